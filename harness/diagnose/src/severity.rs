//! How grave what was found is: by how much the stages alone are off, and what all of it together does to the
//! logits of this prompt and to the choice of tokens.

use crate::capture::Whose;
use crate::diagnose::Diagnosis;
use crate::number::{Real, counted, number};
use crate::verdict::{Global, Local, LogitsRow, Place};
use crate::weights::Mismatch;
use qdiff_engine::model::{Graph, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::cmp::Ordering;

/// Tensors that are listed.
const LISTED: usize = 8;

/// What findings do to a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Severity {
    /// How far each origin alone is off, in the order of the findings: the relative L2 distance from what it should be of the row
    /// that takes the largest share of its bound.
    pub origins: Vec<Off>,
    /// The same of stages that read weights which the two sides read differently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<OffByWeights>,
    /// What all of them together do; absent where the logits of both sides are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
}

/// How far a stage is off.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Off {
    /// The stage.
    pub stage: StageId,
    /// Relative L2 distance of the row that takes the largest share of its bound; null where no row has one, and `unmeasured` then says why.
    #[serde(deserialize_with = "finite")]
    pub by: Option<f64>,
    /// Why there is no distance; absent where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<Unmeasured>,
}

/// Why a stage has no distance from what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unmeasured {
    /// Its shape is another one, so that no row can be compared.
    Extent,
    /// It has NaN or infinity.
    NotFinite,
}

impl Off {
    fn of(stage: StageId, local: &Local) -> Self {
        // Only rows without NaN have a distance.
        let by = Some(local.residual).filter(|by| by.is_finite() && local.non_finite.is_none());
        let why = if local.extent.is_some() { Unmeasured::Extent } else { Unmeasured::NotFinite };
        Self { stage, by, unmeasured: by.is_none().then_some(why) }
    }

    /// `off by 0.25 of a row's norm`.
    fn size(&self) -> String {
        match (self.by, self.unmeasured) {
            (Some(by), _) => format!("off by {} of a row's norm", number(by)),
            (None, Some(Unmeasured::Extent)) => "of another shape".to_owned(),
            (None, _) => "NaN or infinite".to_owned(),
        }
    }
}

/// A distance as earlier versions wrote it too: `"Infinity"` is none.
fn finite<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let by: Option<Real> = Option::deserialize(deserializer)?;
    Ok(by.map(|by| by.0).filter(|by| by.is_finite()))
}

/// How far a stage is off that reads other weights.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OffByWeights {
    /// The tensor.
    pub tensor: String,
    /// The stage, and how far.
    #[serde(flatten)]
    pub off: Off,
    /// Whether that is no more than rounding may do.
    pub rounding: bool,
}

/// The logits of both sides, compared; the rounding of both sides is in it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Together {
    /// Positions whose logits were compared.
    pub positions: usize,
    /// The first wrong position: what differs before it is no effect of what is wrong.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from: usize,
    /// Largest relative L2 distance of a position's logits, from the first wrong position on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<Global>,
    /// Largest Kullback-Leibler divergence, in nats.
    #[serde(with = "Real")]
    pub kl: f64,
    /// Position where it is largest.
    pub kl_at: usize,
    /// Positions at which another token is the likeliest.
    pub changed: usize,
    /// The first of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<usize>,
    /// Further positions, whose logits are NaN on one side.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub without: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(from: &usize) -> bool {
    *from == 0
}

/// What was found does, where anything was.
pub fn of(graph: &Graph, diagnosis: &Diagnosis, mismatches: &[Mismatch]) -> Option<Severity> {
    let verdict = &diagnosis.verdict;
    if diagnosis.findings.is_empty() && mismatches.is_empty() {
        return None;
    }
    let local = |id: StageId| verdict.stages.iter().find(|stage| stage.id == id)?.subject.as_ref();
    let origins = diagnosis.findings.iter().filter_map(|f| Some(Off::of(f.id, local(f.id)?)));
    let readers = mismatches.iter().take(LISTED).flat_map(|mismatch| {
        let reads = graph.nodes.iter().filter(|node| node.weights.iter().any(|w| w.name == mismatch.tensor));
        reads.filter_map(|node| {
            let local = local(node.id).filter(|local| local.segment.is_none())?;
            Some(OffByWeights { tensor: mismatch.tensor.clone(), off: Off::of(node.id, local), rounding: local.ok() })
        })
    });
    // What is wrong in the capture alone did nothing to the engine.
    let engine = !mismatches.is_empty() || diagnosis.findings.iter().any(|finding| !finding.unread && !finding.kept);
    let logits = graph.nodes.last().and_then(|last| verdict.stages.iter().find(|stage| stage.id == last.id));
    let first = |finding: &crate::diagnose::Finding| {
        let position = local(finding.id)?.bad_positions.first().copied()?;
        // The state that a step leaves is read by the next one.
        let is_left = graph.nodes.iter().any(|node| node.id == finding.id && node.is_own_state());
        Some(position + usize::from(is_left))
    };
    let from = diagnosis.findings.iter().map(|finding| first(finding).unwrap_or(0)).min();
    let from = from.filter(|_| mismatches.is_empty()).unwrap_or(0);
    let worst = logits.and_then(|stage| stage.global);
    let together = engine.then(|| together(&verdict.logits, from, worst)).flatten();
    Some(Severity { origins: origins.collect(), weights: readers.collect(), together })
}

/// What rows of logits show from a position on; `of_all` is the largest distance of all positions.
fn together(rows: &[LogitsRow], from: usize, of_all: Option<Global>) -> Option<Together> {
    let known = |row: &&LogitsRow| !row.subject.is_empty() && !row.reference.is_empty();
    let later = rows.iter().filter(|row| row.position >= from);
    let (rows, without): (Vec<&LogitsRow>, Vec<&LogitsRow>) = later.partition(known);
    let worst = rows.iter().max_by(|a, b| a.kl.partial_cmp(&b.kl).unwrap_or(Ordering::Equal))?;
    let largest = || rows.iter().max_by(|a, b| a.distance.total_cmp(&b.distance));
    let later = |row: &&LogitsRow| {
        let at = Place { whose: Whose::default(), step: row.step, position: row.position, head: None };
        Global { error: row.distance, at, identical: false }
    };
    let distance = of_all.and_then(|worst| if worst.at.position >= from { Some(worst) } else { largest().map(later) });
    let changed = || rows.iter().filter(|row| row.subject[0].token != row.reference[0].token);
    Some(Together {
        positions: rows.len(),
        from,
        distance,
        kl: f64::from(worst.kl),
        kl_at: worst.position,
        changed: changed().count(),
        changed_at: changed().next().map(|row| row.position),
        without: without.len(),
    })
}

impl Severity {
    /// By how much stages alone are off, in words.
    pub fn alone(&self) -> Option<String> {
        let measured = || self.origins.iter().filter_map(|off| Some((off, off.by?)));
        let by_size = |a: &(&Off, f64), b: &(&Off, f64)| a.1.total_cmp(&b.1);
        let unmeasured = |off: &&Off| off.by.is_none();
        let origins = match (measured().min_by(by_size), measured().max_by(by_size)) {
            (Some((least, low)), Some((most, high))) if measured().count() > 1 => Some(format!(
                "{} are off by {} ({}) to {} ({}) of a row's norm, each judged alone",
                counted(measured().count(), "stage"),
                number(low),
                least.stage,
                number(high),
                most.stage
            )),
            (Some((only, _)), _) => Some(format!("{} alone is {}", only.stage, only.size())),
            _ => None,
        };
        let first = self.origins.iter().find(unmeasured).map(|first| {
            let more = match self.origins.iter().filter(unmeasured).count() - 1 {
                0 => String::new(),
                n => format!(", and so are {n} more"),
            };
            format!("{} is {}{more}", first.stage, first.size())
        });
        let weights = self.weights.iter().map(|OffByWeights { tensor, off, rounding }| {
            let rounding = if *rounding { ", no more than rounding may do" } else { "" };
            format!("with what the engine reads of {tensor}, {} is {}{rounding}", off.stage, off.size())
        });
        let words: Vec<String> = origins.into_iter().chain(first).chain(weights).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// What all of it together does to the logits and the tokens, in words.
    pub fn words(&self) -> Option<String> {
        let Together { positions, from, distance, kl, kl_at, changed, changed_at, without } = self.together.as_ref()?;
        let all = match self.origins.len() {
            0 | 1 => String::new(),
            2 => "both origins together: ".to_owned(),
            n => format!("all {n} origins together: "),
        };
        let differ = match distance {
            _ if !kl.is_finite() => format!("KL is no finite number (p{kl_at})"),
            Some(d) => format!(
                "the logits differ by at most {} of their norm (p{}), KL at most {} nats (p{kl_at})",
                number(d.error),
                d.at.position,
                number(*kl)
            ),
            None => format!("KL at most {} nats (p{kl_at})", number(*kl)),
        };
        let positions = counted(*positions, "position");
        let from = if *from == 0 { String::new() } else { format!("from p{from} on, ") };
        let tokens = match changed_at {
            None => format!("{from}the likeliest token is the same at {positions}"),
            Some(first) => format!("{from}the likeliest token differs at {changed} of {positions}, first at p{first}"),
        };
        let without = match without {
            0 => String::new(),
            n => format!("; the logits of {} are NaN", counted(*n, "further position")),
        };
        Some(format!("{all}{differ}; {tokens}{without}; this includes the rounding of both sides"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Choice;

    fn row(position: usize, kl: f32, [subject, reference]: [u32; 2]) -> LogitsRow {
        let top = |token| vec![Choice { token, logit: 1.0, probability: 0.5 }];
        LogitsRow {
            step: 0,
            position,
            kl,
            error: 0.0,
            distance: f64::from(kl) / 4.0,
            subject: top(subject),
            reference: top(reference),
        }
    }

    #[test]
    fn the_largest_divergence_and_every_other_choice_count() {
        let rows = [row(0, 0.25, [7, 7]), row(1, 1.5, [3, 4]), row(2, 0.5, [5, 6])];
        let found = together(&rows, 0, None).unwrap();
        assert_eq!((found.kl, found.kl_at), (1.5, 1));
        assert_eq!((found.positions, found.changed, found.changed_at), (3, 2, Some(1)));
        // What differs before the first wrong position is no effect.
        let later = together(&rows, 2, None).unwrap();
        assert_eq!((later.positions, later.changed, later.changed_at, later.kl_at), (1, 1, Some(2), 2));
        // Nor does the largest distance count, if it is before it: then that of the later rows does.
        let at = |position| Place { whose: Whose::default(), step: 0, position, head: None };
        let largest = |position| Some(Global { error: 0.375, at: at(position), identical: false });
        let distance = |from| together(&rows, from, largest(1)).unwrap().distance.map(|d| (d.error, d.at.position));
        assert_eq!((distance(0), distance(1), distance(2)), (Some((0.375, 1)), Some((0.375, 1)), Some((0.125, 2))));
        // Rows of which a side has no logits tell nothing.
        let lacking = LogitsRow { subject: Vec::new(), ..row(0, 9.0, [1, 2]) };
        assert!(together(&[lacking], 0, None).is_none());
    }
}
