//! `qdiff sweep`.

use super::args::SweepArgs;
use super::output::Output;
use super::planted::{self, Planted};
use super::setup::{self, Bar};
use crate::arithmetic::Number;
use crate::capture::Filter;
use crate::oracle::Oracle;
use crate::pair::{Pair, Tokens};
use crate::report::SweepReport;
use crate::runners::Faults;
use crate::sweep::sweep;
use crate::verdict::Policy;
use anyhow::Result;

pub(super) fn run(args: &SweepArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
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

    let sides = [subject.to_string(), reference.to_string()];
    output.tell(&SweepReport::new((name, tokens.len()), sides, faults.words, passes))
}

/// The tokens that the reference decodes after the prompt.
fn continuation(pair: &Pair<'_>, args: &SweepArgs, tokens: &[u32]) -> Result<Vec<u32>> {
    let (spec, _) = args.reference.resolve(false)?;
    let nothing = Filter::none();
    let pair = Pair { filter: &nothing, ..*pair };
    let what = Tokens { prompt: tokens, ubatch: tokens.len(), decode: args.prompt.decode, forced: None };
    Ok(pair.run(&spec, what, Faults::default())?.fed)
}
