//! Both sides run for their logits alone, and every one is looked at.

use super::request::PositionsRequest;
use super::sides::{SideChoice, SidesRequest};
use super::{Console, repeat, run, verify};
use crate::capture::Filter;
use crate::logits::study;
use crate::pair::Pair;
use crate::report::Outcome;
use crate::report::logits::LogitsReport;
use crate::runners::Manifest;
use crate::weights::WeightCheck;
use anyhow::{Context as _, Result};
use clap::Args;
use std::collections::BTreeMap;

/// Whose logits, after which tokens.
#[derive(Clone, Debug, Args)]
pub struct LogitsRequest {
    #[command(flatten)]
    pub sides: SidesRequest,
    #[command(flatten)]
    pub positions: PositionsRequest,
}

/// Looks at every logit.
///
/// # Errors
/// Whatever keeps a side from running.
pub fn logits(request: &LogitsRequest, console: Console<'_>) -> Result<LogitsReport> {
    let chosen = SideChoice::new(&request.sides, console)?;
    let settings = chosen.settings()?;
    let opened = request.sides.tokens.prompt.model.open()?;
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    let last = pair.oracle.graph.nodes.last().context("the graph has no stage")?;
    let stage = [last.id.to_string()];
    pair.filter = Filter::new(&pair.oracle.graph, &stage, None, request.positions.positions.as_deref())?;
    pair.names = chosen.names(&pair.oracle.graph)?;
    let input = chosen.input(&pair)?;
    let sides = chosen.on(&pair, &[])?;
    let hash = opened.sha256();
    sides.chosen.check_model(&hash)?;
    (console.begin)();
    let (subject, reference) = sides.record(&pair, &input)?;
    let diagnosis = pair.judge(&subject, reference.as_ref())?;
    let study = study(&opened, &pair.oracle, &subject, reference.as_ref(), &pair.filter)?;
    pair.settings.store.trouble()?;
    let doubt = reference.as_ref().and_then(|r| verify::doubt(&pair, &diagnosis.verdict, r, &input.ready.tokens));
    let inert = match sides.chosen.live_subject() {
        Some(kind) => sides.faults.inert_on(&mut pair, kind, input.tokens(Some(&subject.fed)))?,
        None => Vec::new(),
    };
    let model = run::describe(&opened, hash);
    let outcome = Outcome::of(&WeightCheck::default(), None, &diagnosis.verdict, doubt.as_ref());
    let mut report = LogitsReport {
        outcome: model.settle(outcome, &diagnosis.verdict.coverage),
        model,
        named: repeat::named(request.sides.tokens.prompt.model.model.as_deref()),
        prompt: input.ready.name,
        tokens: input.ready.tokens,
        decoded: subject.fed,
        subject: subject.manifest,
        inert,
        reference: reference.map_or_else(Manifest::nobody, |r| r.manifest),
        study,
        diagnosis,
        doubt,
        text: BTreeMap::new(),
    };
    report.spell(|id| opened.piece(id as u32));
    Ok(report)
}
