//! What was selected, and how much of it was judged.

use super::probe::MISSED;
use super::{Local, Place, Policy, Seed, Side, StageResult, Status, rows};
use crate::capture::{Capture, Filter, Step};
use crate::number::{Real, counted};
use qdiff_engine::model::{Axis, Graph, Node, StageId};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Elementwise;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Positions named of a stage at most.
const POSITIONS: usize = 4;

/// Rows that were to be judged and rows that were.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Coverage {
    /// Stage rows asked for.
    pub asked: usize,
    /// Stage rows judged on both sides.
    pub judged: usize,
    /// Stages asked for.
    pub stages: usize,
    /// Stages of the whole graph.
    pub stages_total: usize,
    /// The judged rows that are inside a segment on one side at least: judged together with a later stage.
    pub within: usize,
    /// Whether the subject gave the last stages of the prompt's last token alone: their other positions are not asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last_row: bool,
    /// The judged rows that probes passed on one side at least: their f64 values were not computed one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probed: Option<Probed>,
    /// If only segments contain positions: the names of the stages that a shift of all positions would change, and of
    /// which none was judged in any layer. Scores are those of a shift of all positions as well, but for rounding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<String>,
    /// Stages of which the subject's values are the reference's, bit by bit.
    #[serde(default)]
    pub identical: usize,
    /// Stages of which the two were held against each other.
    #[serde(default)]
    pub compared: usize,
    /// Whether there was no reference: then nothing is a full match.
    #[serde(default)]
    pub alone: bool,
    /// Whether the subject's run was cut short, so that steps may be missing of which nothing is known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// What probes passed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Probed {
    /// Stage rows, on one side at least.
    pub rows: usize,
    /// About how many of its bounds a single element of any of them must be off by to raise doubt, for any rounding.
    pub sees: Real,
    /// Chance at most that errors of several elements, which cancel, pass in a row, where the largest is 10 times that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<Real>,
    /// What the random numbers were drawn from, where that was given; else each stage's are drawn from its own values and
    /// weights, and its residuals tell from what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
}

impl Coverage {
    /// Whether the whole selection was judged.
    pub fn complete(&self) -> bool {
        !self.alone && self.complete_alone()
    }

    /// The same, whether there was a reference or not.
    pub fn complete_alone(&self) -> bool {
        self.asked > 0 && self.asked == self.judged && !self.cut
    }
}

/// Selected rows of a stage that were not judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unjudged {
    /// The stage.
    pub stage: StageId,
    /// How many.
    pub rows: usize,
    /// Whether that is all of it.
    pub whole: bool,
    /// Where they are; empty where that is every position, or where each has rows that were judged.
    pub positions: BTreeSet<usize>,
    /// Whether they were captured, but are inconclusive.
    pub inconclusive: bool,
}

impl Unjudged {
    /// `rows` of `all` rows of a stage that is selected at `positions`.
    pub(super) fn of(
        stage: &StageResult, (rows, all): (usize, usize), mut positions: BTreeSet<usize>, alone: bool,
    ) -> Self {
        let locals = || stage.subject.iter().chain(&stage.reference);
        let judged = |p: &usize| {
            let by = |local: &Option<Local>| {
                let evaluated = local.as_ref().and_then(|l| l.spread.positions.get(*p)).is_some_and(Option::is_some);
                let judged = evaluated || local.as_ref().is_some_and(|l| l.passed.iter().any(|(_, at)| at == p));
                judged && local.as_ref().is_some_and(|l| !l.inconclusive_positions.contains(p))
            };
            by(&stage.subject) && (alone || by(&stage.reference))
        };
        positions.retain(|p| rows < all && !judged(p));
        let inconclusive = locals().any(|local| local.inconclusive > 0);
        Self { stage: stage.id, rows, whole: rows == all, positions, inconclusive }
    }
}

impl fmt::Display for Unjudged {
    /// `L01.q_rope (3 rows, positions 4, 5, 6)`; the stage alone where nothing of it was judged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.whole && !self.inconclusive {
            return write!(f, "{}", self.stage);
        }
        write!(f, "{} ({}", self.stage, counted(self.rows, "row"))?;
        if self.inconclusive {
            f.write_str(", inconclusive")?;
        }
        if !self.positions.is_empty() {
            let named: Vec<String> = self.positions.iter().take(POSITIONS).map(ToString::to_string).collect();
            let more = if self.positions.len() > POSITIONS { ", …" } else { "" };
            let s = if self.positions.len() == 1 { "" } else { "s" };
            write!(f, ", position{s} {}{more}", named.join(", "))?;
        }
        f.write_str(")")
    }
}

/// Counts the selected and the judged rows, and lists those not judged.
pub(super) fn count(
    graph: &Graph, asked: &[&Node], stages: &[StageResult], (within, alone): (&[bool], bool), subject: Side<'_>,
    (filter, policy): (&Filter, &Policy),
) -> (Coverage, Vec<Unjudged>) {
    let mut coverage = Coverage { stages: asked.len(), stages_total: graph.nodes.len(), alone, ..Coverage::default() };
    coverage.cut = subject.capture.cut;
    let globals = || stages.iter().filter_map(|stage| stage.global.as_ref());
    (coverage.compared, coverage.identical) = (globals().count(), globals().filter(|g| g.identical).count());
    coverage.blind = blind(graph, stages);
    let mut unjudged = Vec::new();
    let only_last = for_last_row(graph, subject.capture);
    coverage.last_row = only_last.contains(&true);
    let overflow = !stages.iter().any(|s| s.origin);
    // Downstream of a wrong extent fewer rows exist; that is no gap.
    let mut short: Vec<usize> = Vec::new();
    for (node, stage) in asked.iter().zip(stages) {
        let last = graph.index(node.id).is_some_and(|i| only_last[i]);
        let rows: usize = subject.capture.steps.iter().map(|step| rows_asked(node, step, filter, last)).sum();
        let judged = |l: &Option<Local>| l.as_ref().map_or(0, |l| l.rows);
        let wrong_extent = stage.subject.as_ref().is_some_and(|l| l.extent.is_some());
        let reads_short = node.inputs.iter().any(|&i| short.contains(&i));
        let waived = stage.status != Status::Missing && (wrong_extent || reads_short);
        if wrong_extent || (reads_short && node.shape.contains(&Axis::Keys)) {
            short.extend(graph.index(node.id));
        }
        coverage.asked += rows;
        let locals = || [&stage.subject, &stage.reference].into_iter().flatten();
        let passed: BTreeSet<_> = locals().flat_map(|l| &l.passed).collect();
        let asked = |(step, position): &&(usize, usize)| {
            !last
                || subject
                    .capture
                    .steps
                    .iter()
                    .any(|s| s.index == *step && s.last_row.as_ref().is_none_or(|(_, at)| at == position))
        };
        let count = passed.into_iter().filter(asked).count() * rows::of_token(node);
        if count > 0 {
            let of = coverage.probed.get_or_insert(Probed {
                rows: 0,
                sees: Real(0.0),
                missed: Some(Real(MISSED)),
                seed: policy.seed,
            });
            of.rows += count;
            of.sees = Real(locals().filter_map(|l| l.sees).fold(of.sees.0, |most, sees| most.max(sees.0)));
        }
        let inside = graph.index(node.id).is_some_and(|i| within[i]);
        if inside {
            coverage.within += rows;
        }
        let judged = if waived || inside {
            rows
        } else {
            let of_reference = if alone { rows } else { judged(&stage.reference) };
            // Nothing is known of a row that is not finite where no fault is known to have made it so.
            let poisoned = stage.subject.as_ref().filter(|_| overflow && stage.status == Status::Poisoned);
            let lost = poisoned.map_or(0, |l| l.bad_rows);
            (judged(&stage.subject) - lost).min(of_reference).min(rows)
        };
        coverage.judged += judged;
        if judged < rows {
            let positions =
                subject.capture.steps.iter().flat_map(|s| s.first..s.keys()).filter(|p| filter.position(*p));
            unjudged.push(Unjudged::of(stage, (rows - judged, rows), positions.collect(), alone));
        }
    }
    (coverage, unjudged)
}

/// Names of the stages that take positions as they are, and not as distances, if a segment has some inside and none is judged.
fn blind(graph: &Graph, stages: &[StageResult]) -> Vec<String> {
    let turned = |node: &Node| matches!(node.op.anatomy(), Anatomy::Elementwise(Elementwise::Rotation(_)));
    // A cache of what was turned holds it as it is.
    let copies = |node: &Node| node.op.has_state() && node.inputs.iter().any(|i| turned(&graph.nodes[*i]));
    let shifted: Vec<&Node> = graph.nodes.iter().filter(|node| turned(node) || copies(node)).collect();
    let of = |id| shifted.iter().any(|node| node.id == id);
    let locals = || stages.iter().filter_map(|stage| Some((stage.id, stage.subject.as_ref()?)));
    let inside = locals().flat_map(|(_, l)| &l.segment).any(|segment| segment.stages.iter().any(|id| of(*id)));
    if !inside || locals().any(|(id, l)| l.rows > 0 && of(id)) {
        return Vec::new();
    }
    let mut names: Vec<String> = Vec::new();
    for node in shifted {
        if !names.iter().any(|name| name == node.id.name) {
            names.push(node.id.name.to_owned());
        }
    }
    names
}

/// The nodes of which nothing but the stage whose last row alone was given tells, row by row: what they are at other
/// positions changes nothing that the engine gave, and most likely it did not compute it.
fn for_last_row(graph: &Graph, capture: &Capture) -> Vec<bool> {
    let mut only = vec![false; graph.nodes.len()];
    let Some((last, _)) = capture.steps.iter().find_map(|s| s.last_row.as_ref()) else {
        return only;
    };
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let captured = capture.steps.iter().any(|s| s.stages.contains_key(&node.id));
        let mut readers = graph.nodes.iter().enumerate().skip(index).filter(|(_, n)| n.inputs.contains(&index));
        only[index] =
            last.contains(&node.id) || !captured && !node.has_state() && readers.all(|(reader, _)| only[reader]);
    }
    only
}

/// Rows of `node` in `step` that the filter selects, captured or not. No row of a cache is selected in a step without a
/// selected token; a stage that exists for the last row alone (`last`) has that row alone.
fn rows_asked(node: &Node, step: &Step, filter: &Filter, last: bool) -> usize {
    let positions: Vec<u32> = (step.first..step.keys()).map(|p| p as u32).collect();
    if step.cut_short && node.is_own_state() {
        return 0;
    }
    if !positions.iter().any(|&p| filter.position(p as usize)) {
        return 0;
    }
    let shape = Graph::extent(node, step.tokens.len(), step.keys());
    let computed = |position| !last || step.last_row.as_ref().is_none_or(|(_, at)| position == *at);
    let asked = |at: &Place| filter.position(at.position) && computed(at.position);
    rows::rows(node, &shape, step, positions).filter(|(at, _)| asked(at)).count()
}
