//! The first table of the book: every model on every path, in one line each.

use super::runs::{Digest, Figures, Runs, StageDigest};
use super::verdicts::share;
use qdiff::report::grouped;
use qdiff::report::{Section, Table, markdown};

/// A line for each model and path, over all prompts.
pub(super) fn render(all: &[Runs], out: &mut String) {
    out.push_str(
        "\n## Every model on every path\n\n\
         The reference is llama.cpp on the CPU unless the path names another one. The worst share is the largest ratio of an\n\
         error to its bound, over all rows and elements of all stages. The bound is the error that correct f32 arithmetic may\n\
         make, computed from the operands: above 100 % a stage would be wrong. Rows judged include rows of stages that were\n\
         not tapped and are checked as part of the next tapped stage.\n",
    );
    super::missing::missing("runs", all.iter().all(|runs| runs.runs.is_empty()), out);
    // The paths of a model together, models in the order in which they first appear.
    let models = grouped(all.iter().flat_map(|runs| &runs.runs), |run| &run.model.sha256);
    let paths = models.into_iter().flat_map(|(_, runs)| grouped(runs, |run| (&run.subject, run.path())));
    let head = ["model", "path", "on", "prompts", "verdict", "rows judged", "worst share, subject", "reference"];
    let table = Table::new(&head, &[3, 5, 6, 7], paths.map(|((subject, path), runs)| cells(subject, path, &runs)));
    markdown::section(&Section::table("", table), 3, out);
}

/// All prompts of one model on one path; at least one.
fn cells(subject: &str, path: String, runs: &[&Digest]) -> Vec<String> {
    let sum = |of: fn(&Digest) -> usize| runs.iter().map(|r| of(r)).sum::<usize>();
    let worst = |side: fn(&StageDigest) -> Option<Figures>| {
        share(runs.iter().filter_map(|r| r.worst(side)).reduce(Figures::or))
    };
    vec![
        format!("{} {}", runs[0].model.name, runs[0].model.format),
        path,
        subject.to_owned(),
        runs.len().to_string(),
        verdict(runs),
        format!("{} of {}", sum(|r| r.coverage.judged), sum(|r| r.coverage.asked)),
        worst(|s| s.subject),
        worst(|s| s.reference),
    ]
}

/// The verdict of all prompts, or how many have which.
fn verdict(runs: &[&Digest]) -> String {
    let mut words = grouped(runs, |run| run.word());
    words.sort_unstable_by_key(|(word, _)| *word);
    let alone = words.len() == 1;
    let told = words.iter().map(|(word, n)| if alone { (*word).to_owned() } else { format!("{} {word}", n.len()) });
    told.collect::<Vec<_>>().join(", ")
}
