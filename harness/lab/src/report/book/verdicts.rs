//! What was run, the verdict on each prompt, and the arithmetic of each stage.

use super::runs::{Digest, Figures, Runs, StageDigest};
use qdiff::number::{number, percent};
use qdiff::report::grouped;
use qdiff::report::markdown::{self, escape};
use qdiff::report::{Section, Table};
use qdiff::shown::shown;
use std::fmt::Write as _;

/// The models and machines, the verdicts, and the arithmetic.
pub(super) fn render(all: &[Runs], out: &mut String) {
    if all.is_empty() {
        return;
    }
    out.push_str("\n## What was tested\n");
    tested(all, out);
    out.push_str("\n## Verdicts by prompt\n");
    for runs in all {
        verdicts(runs, out);
    }
    out.push_str(
        "\n## Arithmetic by stage\n\n\
         Each side against the f64 evaluation of every stage on its own operands, in the arithmetic that it\n\
         declares: the largest relative L2 distance of a row over all layers, positions and runs, and the largest\n\
         share of the forward error bound of f32 that a row or element takes. Where no share is above 100 %, no\n\
         difference between the two sides is left unexplained.\n",
    );
    for runs in all {
        arithmetic(runs, out);
    }
}

fn tested(all: &[Runs], out: &mut String) {
    out.push('\n');
    for (_, runs) in grouped(all.iter().flat_map(|runs| &runs.runs), |run| &run.model.sha256) {
        let m = &runs[0].model;
        let (name, format, hash) = (escape(&m.name), escape(&m.format), shown(&m.sha256));
        let _ = writeln!(out, "- {name} {format}, {} layers, sha256 `{hash}`", m.layers);
    }
    out.push_str("\nOn:\n\n");
    for runs in all {
        let (title, machine) = (escape(&runs.title), escape(&runs.machine.to_string()));
        let _ = writeln!(out, "- {title}: {machine}, {} prompts", runs.runs.len());
    }
}

/// The share of what is allowed, of one side.
pub(super) fn share(figures: Option<Figures>) -> String {
    figures.map_or_else(|| "-".to_owned(), |f| percent(f.used.0))
}

fn verdicts(runs: &Runs, out: &mut String) {
    let row = |run: &Digest| {
        let c = run.coverage;
        vec![
            run.prompt.clone(),
            format!("{} + {}", run.tokens, run.decode),
            run.subject.clone(),
            run.reference.clone(),
            run.word().to_owned(),
            format!("{} of {}", c.judged, c.asked),
            share(run.worst(|s| s.subject)),
            share(run.worst(|s| s.reference)),
            format!("{} of {}", run.agreed.0, run.agreed.1),
            number(run.kl.0),
        ]
    };
    let head = [
        "prompt", "tokens", "subject", "reference", "verdict", "rows judged", "used, subject", "used, reference",
        "same choice", "KL, worst",
    ];
    let table = Table::new(&head, &[1, 5, 6, 7, 8, 9], runs.runs.iter().map(row));
    markdown::section(&Section::table(&runs.title, table), 3, out);
    let commands: Vec<&str> = runs.runs.iter().map(|r| r.command.as_str()).collect();
    let _ = writeln!(out, "\n{}", markdown::code(&commands.join("\n")));
}

fn arithmetic(runs: &Runs, out: &mut String) {
    let residual = |f: Option<Figures>| f.map_or_else(|| "-".to_owned(), |f| number(f.residual.0));
    let row = |s: StageDigest| {
        let (subject, reference) = (s.subject, s.reference);
        let figures = [residual(subject), share(subject), residual(reference), share(reference)];
        [s.stage, s.layers.to_string()].into_iter().chain(figures).collect()
    };
    let head = ["stage", "layers", "subject", "used", "reference", "used"];
    let table = Table::new(&head, &[1, 2, 3, 4, 5], runs.stages().into_iter().map(row));
    markdown::section(&Section::table(&runs.title, table), 3, out);
}
