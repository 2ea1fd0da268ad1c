//! The first table of the book: every model on every path, in one line each.

use super::super::{Section, Table, markdown};
use super::runs::{Digest, Figures, Runs, StageDigest};
use super::verdicts::share;
use std::collections::BTreeMap;

/// A line for each model and path, over all prompts.
pub(super) fn render(all: &[Runs], out: &mut String) {
    let mut lines: Vec<Line> = Vec::new();
    for run in all.iter().flat_map(|runs| &runs.runs) {
        match lines.iter_mut().find(|line| line.is_of(run)) {
            Some(line) => line.runs.push(run),
            None => lines.push(Line { path: run.path(), runs: vec![run] }),
        }
    }
    // The paths of a model together, models in the order in which they first appear.
    let models: Vec<&str> = lines.iter().map(Line::model).collect();
    lines.sort_by_cached_key(|line| models.iter().position(|&model| model == line.model()));
    out.push_str(
        "\n## Every model on every path\n\n\
         The reference is llama.cpp on the CPU where the path names no other. A share is how much of the error that\n\
         correct f32 arithmetic may make, computed from the operands, the worst row or element of any stage took:\n\
         above 100 % a stage would be wrong. Rows judged include those of stages that were not tapped and are checked\n\
         as part of the next tapped one.\n",
    );
    super::missing("runs", lines.is_empty(), out);
    let head = ["model", "path", "on", "prompts", "verdict", "rows judged", "worst share, subject", "reference"];
    let table = Table::new(&head, &[3, 5, 6, 7], lines.iter().map(Line::cells));
    markdown::section(&Section::table("", table), 3, out);
}

/// The runs of one model on one path.
struct Line<'a> {
    path: String,
    /// At least one.
    runs: Vec<&'a Digest>,
}

impl<'a> Line<'a> {
    fn model(&self) -> &'a str {
        &self.runs[0].model.sha256
    }

    fn is_of(&self, run: &Digest) -> bool {
        let first = self.runs[0];
        (&first.model.sha256, &first.subject, &self.path) == (&run.model.sha256, &run.subject, &run.path())
    }

    fn cells(&self) -> Vec<String> {
        let first = self.runs[0];
        let sum = |of: fn(&Digest) -> usize| self.runs.iter().map(|r| of(r)).sum::<usize>();
        vec![
            format!("{} {}", first.model.name, first.model.format),
            self.path.clone(),
            first.subject.clone(),
            self.runs.len().to_string(),
            self.verdict(),
            format!("{} of {}", sum(|r| r.coverage.judged), sum(|r| r.coverage.asked)),
            self.worst(|s| s.subject),
            self.worst(|s| s.reference),
        ]
    }

    /// The verdict of all prompts, or how many have which.
    fn verdict(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for run in &self.runs {
            *counts.entry(run.word()).or_default() += 1;
        }
        let alone = counts.len() == 1;
        let told = counts.iter().map(|(word, n)| if alone { (*word).to_owned() } else { format!("{n} {word}") });
        told.collect::<Vec<_>>().join(", ")
    }

    fn worst(&self, side: fn(&StageDigest) -> Option<Figures>) -> String {
        share(self.runs.iter().filter_map(|r| r.worst(side)).reduce(Figures::or))
    }
}
