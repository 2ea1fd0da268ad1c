//! Prefill against decode: the same tokens in one batch, in ubatches and token
//! by token, each run judged, and each held against the one in one batch.

use crate::capture::{Lengths, Passes, manifest};
use crate::diagnose::{Diagnosis, Finding};
use crate::pair::{Pair, Recording, Tokens};
use crate::runners::{Faults, RunnerKind};
use crate::verdict::{Coverage, Global, Verdict, largest_difference};
use anyhow::Result;
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::Serialize;

/// How all tokens are fed at once, in words.
const WHOLE: &str = "in one batch";

/// One way of feeding the tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Pass {
    /// Tokens fed at once.
    pub ubatch: usize,
    /// How the tokens were fed, in words.
    pub fed: String,
    /// Steps that takes.
    pub steps: usize,
    /// Stages of the subject that are wrong.
    pub wrong: usize,
    /// The first of them.
    pub first_wrong: Option<StageId>,
    /// Its first wrong position.
    pub position: Option<usize>,
    /// What explains that stage, if anything known does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// How to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
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
        let what = Tokens { passes: Passes::Of(ubatch), ..Tokens::whole(tokens, 0) };
        Ok((pair.run(subject, what, faults.clone())?, pair.run(reference, what, Faults::default())?))
    };
    let mut pass = |ubatch: usize, (subject, reference): &(Recording, Recording)| -> Result<Pass> {
        let fed = if ubatch < tokens.len() { by(ubatch) } else { WHOLE.to_owned() };
        judged(pair, (ubatch, fed), subject, reference, &mut heard)
    };
    let whole = run(tokens.len())?;
    let mut passes = vec![pass(tokens.len(), &whole)?];
    for &ubatch in sizes.iter().filter(|&&n| n < tokens.len()) {
        let parts = run(ubatch)?;
        let (subject, reference) = (difference(pair, &parts.0, &whole.0), difference(pair, &parts.1, &whole.1));
        passes.push(Pass { subject, reference, ..pass(ubatch, &parts)? });
    }
    pair.settings.store.trouble()?;
    Ok(passes)
}

/// Judges recordings of the same tokens that were fed in other steps, each alone, and holds them against the one in the
/// fewest steps.
///
/// # Errors
/// As [`Pair::judge`].
pub fn agree(pair: &Pair<'_>, mut recordings: Vec<(&manifest::Manifest, Recording)>) -> Result<Vec<Pass>> {
    recordings.sort_by_key(|(manifest, _)| manifest.steps().len());
    let mut passes: Vec<Pass> = Vec::new();
    for (manifest, recording) in &recordings {
        let ubatch = manifest.steps().first().map_or(0, |step| step.tokens.len());
        // Its own reference: what they should agree with is each other, and each that does its own arithmetic does.
        let pass = judged(pair, (ubatch, fed(manifest)), recording, recording, &mut |_| {})?;
        let subject = if passes.is_empty() { None } else { difference(pair, recording, &recordings[0].1) };
        passes.push(Pass { subject, ..pass });
    }
    pair.settings.store.trouble()?;
    Ok(passes)
}

/// How a recorded engine fed its tokens, in words.
fn fed(manifest: &manifest::Manifest) -> String {
    let (prompt, single) = (manifest.tokens.len(), manifest.decoded.len());
    let ubatch = match manifest.passes_of_prompt() {
        Passes::Of(most) => most.min(prompt),
        Passes::Lengths(_) => return format!("in passes of {}", Lengths(manifest.passes.clone())),
    };
    match (ubatch == prompt, single) {
        (true, 0) => WHOLE.to_owned(),
        _ if ubatch == 1 => by(1),
        (true, n) => format!("as {prompt} tokens, then {n} one by one"),
        (false, 0) => by(ubatch),
        (false, n) => format!("{}, then {n} one by one", by(ubatch)),
    }
}

/// One pass, judged; without the run that it is compared with.
fn judged(
    pair: &Pair<'_>, (ubatch, fed): (usize, String), subject: &Recording, reference: &Recording,
    heard: &mut impl FnMut(&Verdict),
) -> Result<Pass> {
    let Diagnosis { verdict, findings, .. } = pair.judge(subject, Some(reference))?;
    heard(&verdict);
    let first = findings.first().and_then(|first| {
        let stage = verdict.stages.iter().find(|s| s.id == first.id)?;
        let positions = &stage.subject.as_ref()?.bad_positions;
        Some((first.id, positions.first().copied().unwrap_or(0)))
    });
    let explained = findings.first().filter(|first| first.says_why());
    Ok(Pass {
        ubatch,
        fed,
        steps: subject.capture.steps.len(),
        wrong: findings.len(),
        first_wrong: first.map(|f| f.0),
        position: first.map(|f| f.1),
        cause: explained.and_then(Finding::told),
        remedy: findings.first().and_then(Finding::mended).map(str::to_owned),
        disputed: verdict.disputed().next().map(|s| s.id),
        coverage: verdict.coverage.clone(),
        subject: None,
        reference: None,
    })
}

fn difference(pair: &Pair<'_>, a: &Recording, b: &Recording) -> Option<Difference> {
    let (stage, global) = largest_difference(&pair.oracle.graph, &a.capture, &b.capture, &pair.filter)?;
    Some(Difference { stage, global })
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
            "wrong from token {position} on when fed {}: decode or cache, at {stage}; {} it is right",
            part.fed, one.fed
        ))
    };
    match (one.first_wrong(), smallest.map(Pass::first_wrong)) {
        (None, Some(Some(_))) => smallest.and_then(wrong).unwrap_or_default(),
        (None, _) => any.and_then(wrong).unwrap_or_else(|| {
            let fed: Vec<&str> = parts.iter().map(|p| p.fed.as_str()).collect();
            format!("every stage is correct, {}{}", one.fed, join(&fed))
        }),
        (Some((stage, position)), Some(None)) => format!(
            "wrong from token {position} on in a batch: prefill, at {stage}; fed {} the same tokens are right, so look at the mask and at what the rows of a batch share",
            smallest.map_or("", |p| &p.fed)
        ),
        (Some((stage, 0)), _) => {
            format!("wrong at token 0 however the tokens are fed, at {stage}")
        }
        (Some((stage, position)), _) => {
            format!("wrong from token {position} on: prefill as well as decode, at {stage}; tokens before it are right")
        }
    }
}

/// `, in parts of 7 and token by token`.
fn join(fed: &[&str]) -> String {
    match fed {
        [] => String::new(),
        [one] => format!(" and {one}"),
        [some @ .., last] => format!(", {} and {last}", some.join(", ")),
    }
}

/// `token by token`, or `in parts of 7`.
fn by(ubatch: usize) -> String {
    match ubatch {
        1 => "token by token".to_owned(),
        n => format!("in parts of {n}"),
    }
}
