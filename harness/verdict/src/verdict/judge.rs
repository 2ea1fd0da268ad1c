//! From residuals to statuses, origins and one verdict.

use super::{
    AttentionMap, Coverage, Decisions, Element, ElementMap, Local, LogitsRow, Measured, Parts, Policy, Side,
    StageResult, Status, Symptom, Unjudged, again, attention, coverage, decisions, elements, health, logits, masked,
    measured, unread,
};
use crate::capture::Filter;
use crate::metrics::{argmax, largest_difference, margin};
use crate::number::Real;
use crate::oracle::Oracle;
use crate::products::Evaluators;
use crate::progress::Progress;
use anyhow::Result;
use qdiff_engine::model::{Graph, Node, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// The token after each step, as both sides would choose it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TokenCheck {
    /// Step whose last logits choose it.
    pub step: usize,
    /// The reference's choice.
    pub reference: u32,
    /// The subject's choice.
    pub subject: u32,
    /// By how much the subject prefers its own choice to the reference's.
    #[serde(with = "Real")]
    pub margin: f64,
    /// Largest difference between the two sides' logits in that row.
    #[serde(with = "Real")]
    pub error: f64,
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Every stage asked for, in graph order.
    pub stages: Vec<StageResult>,
    /// Tokens of each step after the prefill that has several, by its number; each other one decodes a token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub longer: BTreeMap<usize, usize>,
    /// What was judged.
    pub coverage: Coverage,
    /// What was not, in graph order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unjudged: Vec<Unjudged>,
    /// On what linear layers were evaluated.
    #[serde(default)]
    pub evaluators: Evaluators,
    /// What was taken from parts that were judged elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// Choices of the next token.
    pub tokens: Vec<TokenCheck>,
    /// Choices within the graph, such as a token's experts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decisions>,
    /// The logits at every position judged; empty where they were not captured.
    pub logits: Vec<LogitsRow>,
    /// Elements of the first stages where a fault begins.
    #[serde(default)]
    pub elements: Vec<ElementMap>,
    /// Attention weights in the first layers where a fault begins, the heads of
    /// a layer one after the other, first the one that tells most.
    pub attention: Vec<AttentionMap>,
    /// Suspicious things that need no reference to be seen.
    pub health: Vec<Symptom>,
}

impl Verdict {
    /// The place that a finding at `id` names: the stage, or the segment that it was judged over.
    pub fn name(&self, id: StageId) -> String {
        let stage = self.stages.iter().find(|s| s.id == id);
        stage.map_or_else(|| id.to_string(), StageResult::name)
    }

    /// Whether the subject is wrong anywhere. Without a reference, an invariant that it breaks says so too.
    pub fn diverged(&self) -> bool {
        self.stages.iter().any(|s| s.origin) || self.ailment().is_some()
    }

    /// Without a reference and without a finding, the first invariant that the subject breaks.
    pub fn ailment(&self) -> Option<&Symptom> {
        let decisive = self.coverage.alone && !self.stages.iter().any(|s| s.origin);
        self.health.iter().find(|s| decisive && s.broken)
    }

    /// Where faults begin: first by step, then in graph order.
    pub fn origins(&self) -> Vec<&StageResult> {
        origins(&self.stages)
    }

    /// The first stage with a value that f32 does not hold, and the value.
    pub fn beyond(&self) -> Option<(StageId, &Element)> {
        self.stages.iter().find_map(|s| Some((s.id, s.subject.as_ref()?.beyond.as_ref()?)))
    }

    /// Stages where the reference misses f64.
    pub fn disputed(&self) -> impl Iterator<Item = &StageResult> {
        self.stages.iter().filter(|s| s.status == Status::Disputed)
    }
}

/// Whether the subject's stage itself is right, and not only a part of a segment that is.
fn is_right(stage: &StageResult) -> bool {
    stage.subject.as_ref().is_some_and(|local| local.segment.is_none() && local.ok())
}

/// Judges the subject against the reference; where there is none, by its own operands and the invariants alone.
///
/// # Errors
/// If a captured tensor could not be kept or read back: then there is no verdict.
pub fn judge(
    oracle: &Oracle<'_>, subject: Side<'_>, reference: Option<Side<'_>>, filter: &Filter, policy: &Policy,
    progress: Progress<'_>,
) -> Result<Verdict> {
    let (alone, nobody) = (reference.is_none(), subject.capture.blank());
    let sides = [subject, reference.unwrap_or(Side { capture: &nobody, arithmetic: subject.arithmetic })];
    let asked = measured::asked(&oracle.graph, filter, if alone { &sides[..1] } else { &sides });
    let measured = measured::stages(oracle, &asked, &sides, filter, policy, progress)?;
    let evaluators = Evaluators::of(measured.iter().filter_map(Measured::evaluated));
    let stages = measured::own(&oracle.graph, &asked, measured, alone);
    let verdict = conclude(oracle, &asked, sides, (filter, policy), (stages, alone), &HashSet::new())?;
    // What follows of the stages evaluates some again.
    oracle.products.trouble()?;
    Ok(Verdict { evaluators, ..verdict })
}

/// The verdict of stages that were judged elsewhere, each alone: the one that [`judge`] gives. A stage that was not is
/// missing.
///
/// # Errors
/// As [`judge`]; stages that were judged on other values than these.
pub fn put_together(
    oracle: &Oracle<'_>, subject: Side<'_>, reference: Side<'_>, filter: &Filter, policy: &Policy,
    measured: &[Measured],
) -> Result<Verdict> {
    let sides = [subject, reference];
    let asked = super::measured::asked(&oracle.graph, filter, &sides);
    let stages = measured::results(&oracle.graph, &asked, &sides, measured)?;
    let parts = again::sample(oracle, &asked, &sides, (filter, policy), measured)?;
    let there: HashSet<StageId> = measured.iter().map(|m| m.stage).collect();
    let evaluators = Evaluators::of(measured.iter().filter_map(Measured::evaluated));
    let absent = asked.iter().map(|node| node.id).filter(|id| !there.contains(id)).collect();
    let verdict = conclude(oracle, &asked, sides, (filter, policy), (stages, false), &absent)?;
    Ok(Verdict { evaluators, parts: Some(parts), ..verdict })
}

/// What follows from the separately judged stages together. Whether `absent` stages were wrong is unknown.
fn conclude(
    oracle: &Oracle<'_>, asked: &[&Node], [subject, reference]: [Side<'_>; 2], (filter, policy): (&Filter, &Policy),
    (mut stages, alone): (Vec<StageResult>, bool), absent: &HashSet<StageId>,
) -> Result<Verdict> {
    let graph = &oracle.graph;
    let within = within(graph, &mut stages, (alone, subject.capture.steps.len()));
    mark_origins(oracle, &mut stages, absent);
    let unread = unread::mark(oracle, subject, (filter, policy), (&mut stages, alone));
    if masked::settle(oracle, subject, (filter, policy), (&mut stages, alone)) || unread {
        for stage in &mut stages {
            stage.origin = false;
            if stage.status == Status::Inherited {
                stage.status = Status::Match;
            }
        }
        mark_origins(oracle, &mut stages, absent);
    }
    let last = graph.nodes.last().filter(|n| filter.stage(n.id));
    let (coverage, unjudged) = coverage::count(graph, asked, &stages, (&within, alone), subject, (filter, policy));

    let verdict = Verdict {
        tokens: tokens(subject, reference),
        decisions: decisions::compare(graph, &stages, subject.capture, reference.capture, filter),
        logits: last.map_or_else(Vec::new, |node| logits::compare(node, subject.capture, reference.capture, filter)),
        elements: elements::maps(oracle, &origins(&stages), subject, reference.capture, filter),
        attention: attention::maps(graph, &stages, subject.capture, reference.capture),
        health: health::check(
            graph,
            subject.capture,
            |id| stages.iter().any(|s| s.id == id && s.overflowed()),
            |id| policy.rule(id).is_none() && stages.iter().any(|s| s.id == id && is_right(s)),
        ),
        stages,
        longer: subject.capture.longer(),
        coverage,
        unjudged,
        evaluators: Evaluators::default(),
        parts: None,
    };
    subject.capture.store.trouble()?;
    reference.capture.store.trouble()?;
    Ok(verdict)
}

/// Where faults begin: those of the engine before those of the capture alone, by step, then in graph order, in which
/// stages stand.
fn origins(stages: &[StageResult]) -> Vec<&StageResult> {
    let mut origins: Vec<&StageResult> = stages.iter().filter(|s| s.origin).collect();
    origins.sort_by_key(|s| {
        let first = s.subject.as_ref().and_then(|l| l.first_bad);
        (s.unread, first.map_or(usize::MAX, |p| p.step))
    });
    origins
}

/// Gives the stages inside judged segments their status, and returns them: those that are judged with another
/// on one side, and alone or with another on the other.
fn within(graph: &Graph, stages: &mut [StageResult], (alone, steps): (bool, usize)) -> Vec<bool> {
    let mut inside = [vec![false; graph.nodes.len()], vec![false; graph.nodes.len()]];
    for stage in stages.iter() {
        for (inside, local) in inside.iter_mut().zip([&stage.subject, &stage.reference]) {
            let judged = local.as_ref().filter(|l| l.inconclusive == 0);
            if let Some(segment) = judged.and_then(|l| l.segment.as_ref()) {
                segment.stages.iter().filter_map(|id| graph.index(*id)).for_each(|i| inside[i] = true);
            }
        }
    }
    let mut covered = vec![false; graph.nodes.len()];
    for stage in stages.iter_mut().filter(|s| s.status == Status::Missing) {
        let Some(index) = graph.index(stage.id) else {
            continue;
        };
        let judged = |side: usize, local: &Option<Local>| local.is_some() || inside[side][index];
        // No step reads such a state, so nothing that the reference gives follows from its own.
        let unread = steps == 1 && graph.nodes[index].is_own_state();
        if unread && stage.reference.is_none() && stage.subject.as_ref().is_some_and(|s| s.inconclusive == 0) {
            (covered[index], stage.status) = (true, Status::Alone);
        } else if judged(0, &stage.subject) && (alone || judged(1, &stage.reference)) {
            covered[index] = true;
            stage.status = match &stage.reference {
                Some(local) if !local.ok() => Status::Disputed,
                _ => Status::Covered,
            };
        }
    }
    covered
}

/// Tells origins from what follows from them.
fn mark_origins(oracle: &Oracle<'_>, stages: &mut [StageResult], absent: &HashSet<StageId>) {
    let graph = &oracle.graph;
    let mut tainted = vec![false; graph.nodes.len()];
    let mut poisoned = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let upstream = node.inputs.iter().any(|&i| tainted[i]);
        tainted[index] = upstream;
        let Some(stage) = stages.iter_mut().find(|s| s.id == node.id) else {
            continue;
        };
        match stage.status {
            // What nobody saw passes on what reaches it.
            Status::Covered => poisoned[index] = node.inputs.iter().any(|&i| poisoned[i]),
            Status::Diverged => stage.origin = true,
            // NaN may have begun there.
            Status::Missing if absent.contains(&stage.id) => poisoned[index] = true,
            Status::Poisoned => {
                // Inherited only from a stage that was judged and is poisoned
                // itself; from one outside the filter, this is the first seen.
                // A step whose operands are finite may be wrong on its own.
                let inherited = stage.subject.as_ref().is_some_and(|l| l.poisoned_input && !l.wrong_of_finite)
                    && node.inputs.iter().any(|&i| poisoned[i]);
                stage.origin = !inherited;
                // What was captured there went nowhere.
                poisoned[index] = !stage.unread && !stage.kept;
            }
            Status::Match if upstream => {
                let allowed = stage.subject.as_ref().map_or(0.0, |l| l.allowed);
                // No common shape to compare in is a difference as well.
                if stage.global.is_none_or(|g| g.error > allowed) {
                    stage.status = Status::Inherited;
                }
            }
            _ => {}
        }
        poisoned[index] |= stage.subject.as_ref().is_some_and(|l| l.beyond.is_some());
        // What was captured there went nowhere.
        tainted[index] |= stage.origin && !stage.unread && !stage.kept;
    }
}

fn tokens(subject: Side<'_>, reference: Side<'_>) -> Vec<TokenCheck> {
    let steps = subject.capture.steps.iter().zip(&reference.capture.steps);
    steps
        .filter_map(|(s, r)| {
            let (a, b) = (s.choice.as_ref()?.get(), r.choice.as_ref()?.get());
            let (a, b) = (a.data.as_slice(), b.data.as_slice());
            let (ours, theirs) = (argmax(a), argmax(b));
            Some(TokenCheck {
                step: s.index,
                reference: theirs as u32,
                subject: ours as u32,
                margin: margin(a, ours, theirs),
                error: largest_difference(a, b),
            })
        })
        .collect()
}
