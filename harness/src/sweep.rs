//! Prefill against decode: the same tokens in one batch, in ubatches and token
//! by token, each run judged, and each held against the one in one batch.

use crate::diagnose::Diagnosis;
use crate::pair::{Pair, Recording, Tokens};
use crate::runners::{Faults, RunnerKind};
use crate::verdict::{Coverage, Global, Verdict, largest_difference};
use anyhow::Result;
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::Serialize;

/// One way of feeding the tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Pass {
    /// Tokens fed at once.
    pub ubatch: usize,
    /// Steps that takes.
    pub steps: usize,
    /// Stages of the subject that are wrong.
    pub wrong: usize,
    /// The first of them.
    pub first_wrong: Option<StageId>,
    /// Its first wrong position.
    pub position: Option<usize>,
    /// The first stage in which the reference alone misses f64.
    pub disputed: Option<StageId>,
    /// What was judged.
    pub coverage: Coverage,
    /// The subject's largest difference from its own run in one batch.
    pub subject: Option<Difference>,
    /// The reference's.
    pub reference: Option<Difference>,
}

/// The largest relative L2 distance of a row from the same row in one batch.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Difference {
    /// The stage.
    pub stage: StageId,
    /// The distance, and the row.
    #[serde(flatten)]
    pub global: Global,
}

impl Pass {
    /// First stage that is wrong, and its first wrong position.
    pub fn first_wrong(&self) -> Option<(StageId, usize)> {
        self.first_wrong.zip(self.position)
    }
}

/// Runs both sides on `tokens` once per size, the whole in one batch first. `heard` is given the verdict on each pass.
///
/// # Errors
/// As [`Pair::run`] and [`Pair::judge`].
pub fn sweep(
    pair: &Pair<'_>, (subject, reference): (&RunnerKind, &RunnerKind), tokens: &[u32], sizes: &[usize],
    faults: &Faults, mut heard: impl FnMut(&Verdict),
) -> Result<Vec<Pass>> {
    let run = |ubatch: usize| -> Result<(Recording, Recording)> {
        let what = Tokens { prompt: tokens, ubatch, decode: 0, forced: None };
        Ok((pair.run(subject, what, faults.clone())?, pair.run(reference, what, Faults::default())?))
    };
    let mut pass = |ubatch: usize, (subject, reference): &(Recording, Recording)| -> Result<Pass> {
        let Diagnosis { verdict, findings, .. } = pair.judge(subject, Some(reference))?;
        heard(&verdict);
        let first = findings.first().and_then(|first| {
            let stage = verdict.stages.iter().find(|s| s.id == first.id)?;
            let positions = &stage.subject.as_ref()?.bad_positions;
            Some((first.id, positions.first().copied().unwrap_or(0)))
        });
        Ok(Pass {
            ubatch,
            steps: tokens.len().div_ceil(ubatch.max(1)),
            wrong: findings.len(),
            first_wrong: first.map(|f| f.0),
            position: first.map(|f| f.1),
            disputed: verdict.disputed().next().map(|s| s.id),
            coverage: verdict.coverage,
            subject: None,
            reference: None,
        })
    };
    let whole = run(tokens.len())?;
    let mut passes = vec![pass(tokens.len(), &whole)?];
    let difference = |a: &Recording, b: &Recording| {
        let (stage, global) = largest_difference(&pair.oracle.graph, &a.capture, &b.capture, &pair.filter)?;
        Some(Difference { stage, global })
    };
    for &ubatch in sizes.iter().filter(|&&n| n < tokens.len()) {
        let parts = run(ubatch)?;
        let (subject, reference) = (difference(&parts.0, &whole.0), difference(&parts.1, &whole.1));
        passes.push(Pass { subject, reference, ..pass(ubatch, &parts)? });
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
