//! Prefill against decode: the same tokens in one batch, in ubatches and token
//! by token, each run judged, and each held against the one in one batch.

use crate::diagnose::Diagnosis;
use crate::pair::{Pair, Tokens};
use crate::runners::{Faults, RunnerKind};
use crate::verdict::{Global, largest_difference};
use anyhow::Result;
use qdiff_engine::model::StageId;

/// One way of feeding the tokens.
#[derive(Debug)]
pub struct Pass {
    /// Tokens fed at once.
    pub ubatch: usize,
    /// The outcome.
    pub diagnosis: Diagnosis,
    /// The subject's largest difference from its own run in one batch.
    pub subject: Option<(StageId, Global)>,
    /// The reference's.
    pub reference: Option<(StageId, Global)>,
}

impl Pass {
    /// First stage that is wrong, and its first wrong position.
    pub fn first_wrong(&self) -> Option<(StageId, usize)> {
        let first = self.diagnosis.findings.first()?;
        let stage = self.diagnosis.verdict.stages.iter().find(|s| s.id == first.id)?;
        let positions = &stage.subject.as_ref()?.bad_positions;
        Some((first.id, positions.first().copied().unwrap_or(0)))
    }
}

/// Runs both sides on `tokens` once per size, the whole in one batch first.
///
/// # Errors
/// As [`Pair::run`] and [`Pair::judge`].
pub fn sweep(
    pair: &Pair<'_>, (subject, reference): (&RunnerKind, &RunnerKind), tokens: &[u32], sizes: &[usize], faults: &Faults,
) -> Result<Vec<Pass>> {
    let run = |kind: &RunnerKind, ubatch: usize, faults: Faults| {
        let what = Tokens { prompt: tokens, ubatch, decode: 0, forced: None };
        pair.run(kind, what, faults)
    };
    let one = (run(subject, tokens.len(), faults.clone())?, run(reference, tokens.len(), Faults::default())?);
    let mut passes = vec![Pass {
        ubatch: tokens.len(),
        diagnosis: pair.judge(&one.0, Some(&one.1))?,
        subject: None,
        reference: None,
    }];
    for &ubatch in sizes.iter().filter(|&&n| n < tokens.len()) {
        let parts = (run(subject, ubatch, faults.clone())?, run(reference, ubatch, Faults::default())?);
        let (graph, filter) = (&pair.oracle.graph, &pair.filter);
        passes.push(Pass {
            ubatch,
            diagnosis: pair.judge(&parts.0, Some(&parts.1))?,
            subject: largest_difference(graph, &parts.0.capture, &one.0.capture, filter),
            reference: largest_difference(graph, &parts.1.capture, &one.1.capture, filter),
        });
    }
    pair.settings.store.trouble()?;
    Ok(passes)
}

/// What the passes together say, in words.
pub fn words(passes: &[Pass]) -> String {
    let [one, parts @ ..] = passes else {
        return "nothing was run".to_owned();
    };
    // The smallest step tells most: it begins soonest after the first token.
    let smallest = parts.iter().min_by_key(|p| p.ubatch);
    let any = parts.iter().find(|p| p.first_wrong().is_some());
    let wrong = |part: &Pass| {
        let (stage, position) = part.first_wrong()?;
        Some(format!(
            "wrong from token {position} on when fed {}: decode or cache, at {stage}; in one batch it is right",
            by(part.ubatch)
        ))
    };
    match (one.first_wrong(), smallest.map(Pass::first_wrong)) {
        (None, Some(Some(_))) => smallest.and_then(wrong).unwrap_or_default(),
        (None, _) => any.and_then(wrong).unwrap_or_else(|| {
            let fed: Vec<String> = parts.iter().map(|p| by(p.ubatch)).collect();
            format!("every stage is correct, in one batch{}", join(&fed))
        }),
        (Some((stage, position)), Some(None)) => format!(
            "wrong from token {position} on in a batch: prefill, at {stage}; fed {} the same tokens are right, so look at the mask and at what the rows of a batch share",
            by(smallest.map_or(1, |p| p.ubatch))
        ),
        (Some((stage, 0)), _) => {
            format!("wrong at token 0: prefill, at {stage}; however the tokens are fed")
        }
        (Some((stage, position)), _) => {
            format!("wrong from token {position} on: prefill as well as decode, at {stage}; tokens before it are right")
        }
    }
}

/// `, in parts of 7 and token by token`.
fn join(fed: &[String]) -> String {
    match fed {
        [] => String::new(),
        [one] => format!(" and {one}"),
        [some @ .., last] => format!(", {} and {last}", some.join(", ")),
    }
}

/// `token by token`, or `in parts of 7`.
pub fn by(ubatch: usize) -> String {
    match ubatch {
        1 => "token by token".to_owned(),
        n => format!("in parts of {n}"),
    }
}
