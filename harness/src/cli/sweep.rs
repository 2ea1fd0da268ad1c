//! `qdiff sweep`.

use super::args::SweepArgs;
use super::setup::console;
use super::{exit, tell};
use crate::number::number;
use crate::report::terminal;
use crate::sweep::{Pass, by, words};
use crate::tasks::sweep::{Swept, sweep};
use crate::verdict::Global;
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use qdiff_engine::model::StageId;

/// Feeds the tokens in steps of every size; gives the exit code.
pub(super) fn run(args: &SweepArgs) -> Result<u8> {
    let Swept { prompt, tokens, subject, reference, injected, tolerance, passes } = sweep(&args.request, console())?;
    let wrong = passes.iter().any(|p| p.diagnosis.verdict.diverged());
    let doubted = passes.iter().any(|p| p.diagnosis.verdict.disputed().next().is_some());
    let complete = passes.iter().all(|p| p.diagnosis.verdict.coverage.complete());
    let (code, word) = match (wrong, doubted, complete) {
        (true, ..) => (exit::DIVERGED, "DIVERGED"),
        (_, true, _) => (exit::TROUBLE, "DISPUTED"),
        (_, _, false) => (exit::INCOMPLETE, "INCOMPLETE"),
        _ => (exit::MATCH, "MATCH"),
    };
    let mut out = terminal::first_line(&format!("{word}: {}", words(&passes)));
    out.push('\n');
    out += &format!("run        {prompt}: {tokens} tokens; subject {subject}, reference {reference}\n");
    for rule in &tolerance {
        out += &format!("tolerance  {rule}, instead of the bound\n");
    }
    for fault in &injected {
        out += &format!("injected   {fault}\n");
    }
    out += &format!("\n{}\n\n", table(&passes));
    out += "difference: largest relative L2 distance of a row from the same row in one batch\n";
    tell(&out)?;
    Ok(code)
}

fn table(passes: &[Pass]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["fed", "steps", "stages wrong", "first wrong", "difference, subject", "difference, reference"]);
    let difference = |d: &Option<(StageId, Global)>| match d {
        Some((id, g)) => format!("{} {id} {}", number(g.error), g.at),
        None => "-".to_owned(),
    };
    let whole = passes.first().map_or(0, |p| p.ubatch);
    for pass in passes {
        let fed = if pass.ubatch == whole { "in one batch".to_owned() } else { by(pass.ubatch) };
        table.add_row([
            fed,
            whole.div_ceil(pass.ubatch.max(1)).to_string(),
            pass.diagnosis.findings.len().to_string(),
            pass.first_wrong().map_or_else(|| "-".to_owned(), |(stage, p)| format!("{stage} p{p}")),
            difference(&pass.subject),
            difference(&pass.reference),
        ]);
    }
    for i in [1, 2] {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}
