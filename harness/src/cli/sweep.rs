//! `qdiff sweep`.

use super::args::SweepArgs;
use super::planted::{self, Planted};
use super::setup::{self, Bar};
use super::{exit, say};
use crate::arithmetic::Number;
use crate::capture::Filter;
use crate::number::number;
use crate::oracle::Oracle;
use crate::pair::{Pair, Tokens};
use crate::report::terminal;
use crate::runners::Faults;
use crate::sweep::{Pass, by, sweep, words};
use crate::verdict::{Global, Policy};
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use qdiff_engine::model::StageId;

pub(super) fn run(args: &SweepArgs) -> Result<u8> {
    let injections = planted::read(&args.inject)?;
    let rewriting = planted::rewriting(&injections, &args.subject)?;
    let (subject, _) = args.subject.resolve(rewriting)?;
    let (reference, _) = args.reference.resolve(false)?;
    let threads = setup::threads(args.prompt.threads)?;
    let opened = setup::open(args.prompt.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let filter = Filter::new(&oracle.graph, &args.stages, args.layers.as_deref(), args.positions.as_deref())?;
    let (name, mut tokens) = setup::tokens(&opened, &args.prompt)?;
    filter.check(&oracle.graph, tokens.len() + args.prompt.decode)?;
    let faults = Planted::new(&opened, &injections, &[])?.stages;
    let bar = Bar::new();
    let store = args.memory.store();
    let pair = Pair {
        opened: &opened,
        oracle: &oracle,
        filter: &filter,
        policy: &Policy::new(&oracle.graph, &args.tolerance)?,
        budget: crate::diagnose::BUDGET,
        store: &store,
        threads,
        gemm: args.prompt.gemm,
        kv: Number::F32,
        progress: &|what, done, total| bar.show(what, done, total),
    };
    tokens.extend(continuation(&pair, args, &tokens)?);
    let passes = sweep(&pair, (&subject, &reference), &tokens, &args.sizes, &faults)?;

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
    out += &format!("run        {name}: {} tokens; subject {subject}, reference {reference}\n", tokens.len());
    for fault in &faults.words {
        out += &format!("injected   {fault}\n");
    }
    out += &format!("\n{}\n\n", table(&passes));
    out += "difference: largest relative L2 distance of a row from the same row in one batch\n";
    say(&out)?;
    Ok(code)
}

/// The tokens that the reference decodes after the prompt.
fn continuation(pair: &Pair<'_>, args: &SweepArgs, tokens: &[u32]) -> Result<Vec<u32>> {
    let (spec, _) = args.reference.resolve(false)?;
    let nothing = Filter::none();
    let pair = Pair { filter: &nothing, ..*pair };
    let what = Tokens { prompt: tokens, ubatch: tokens.len(), decode: args.prompt.decode, forced: None };
    Ok(pair.run(&spec, what, Faults::default())?.fed)
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
