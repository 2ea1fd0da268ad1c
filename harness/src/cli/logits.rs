//! `qdiff logits`.

use super::args::LogitsArgs;
use super::output::Output;
use super::run;
use super::setup::{self, Bar};
use super::sides::SideChoice;
use crate::capture::Filter;
use crate::loaded::sha256;
use crate::logits::study;
use crate::oracle::Oracle;
use crate::pair::Pair;
use crate::report::Outcome;
use crate::report::logits::LogitsReport;
use crate::runners::Manifest;
use crate::verdict::Policy;
use crate::weights::WeightCheck;
use anyhow::{Context as _, Result};

/// Runs both sides for their logits alone, and looks at every one; gives the
/// exit code.
pub(super) fn run(args: &LogitsArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
    let parties = SideChoice::new(&args.sides)?;
    let threads = setup::threads(args.sides.prompt.threads)?;
    let opened = setup::open(args.sides.prompt.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let last = oracle.graph.nodes.last().context("the graph has no stage")?;
    let stage = [last.id.to_string()];
    let filter = Filter::new(&oracle.graph, &stage, None, args.positions.as_deref())?;
    let input = parties.input(&args.sides, &opened)?;
    input.check(&opened, &oracle, &filter)?;
    let sides = parties.resolve(&args.sides, &opened, &oracle, &[])?;
    let hash = sha256(opened.bytes());
    sides.recorded.check_model(&hash)?;

    let bar = Bar::new();
    let store = args.sides.capture.memory.store();
    let policy = Policy::default();
    let pair = Pair {
        opened: &opened,
        oracle: &oracle,
        filter: &filter,
        policy: &policy,
        budget: sides.budget,
        store: &store,
        threads,
        gemm: args.sides.prompt.gemm,
        kv: args.sides.capture.kv_type,
        progress: &|what, done, total| bar.show(what, done, total),
    };
    let (subject, reference) = sides.record(&pair, &input)?;
    let diagnosis = pair.judge(&subject, reference.as_ref())?;
    let study = study(&opened, &oracle, &subject, reference.as_ref(), &filter)?;
    store.trouble()?;
    let doubt = reference.as_ref().and_then(|r| run::doubt(&pair, &diagnosis.verdict, r, &input.ready.tokens));
    let outcome = Outcome::of(&WeightCheck::default(), None, &diagnosis.verdict, doubt.as_ref());
    let mut report = LogitsReport {
        outcome,
        model: run::describe(&opened, hash),
        prompt: input.ready.name,
        tokens: input.ready.tokens,
        decoded: subject.fed,
        subject: subject.manifest,
        reference: reference.map_or_else(Manifest::nobody, |r| r.manifest),
        study,
        diagnosis,
        doubt,
        text: Default::default(),
    };
    report.spell(|id| opened.llama.piece(id as u32));
    output.tell(&report)
}
