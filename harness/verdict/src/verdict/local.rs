//! The local check: a stage's output against the f64 evaluation of its op on that runner's own captured operands.

use super::element::Element;
use super::evaluate::{evaluate_but, probed};
use super::foreign;
use super::grain::Grain;
use super::held::{Row, norm, size};
use super::lost;
use super::operands::{Side, rows_of};
use super::rows::{of_token, row_at, rows};
use super::source::{Block, Passed};
use super::spread::Bins;
use super::tolerance::{ELEMENT_FACTOR, INCONCLUSIVE, of_row, vacuous};
use super::{Place, Policy, Seed, Segment, Spread};
use crate::capture::{Capture, Filter, Step, Whose};
use crate::number::Real;
use crate::oracle::Oracle;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// The local residual of one stage over a whole run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Local {
    /// Largest share of what is allowed, over rows and elements; above 1 the stage is wrong.
    #[serde(with = "Real")]
    pub used: f64,
    /// Relative L2 distance of the worst row.
    #[serde(with = "Real")]
    pub residual: f64,
    /// Relative L2 distance that row is allowed.
    #[serde(with = "Real")]
    pub allowed: f64,
    /// Largest relative L2 distance that a row is allowed of those computed: an error that is a smaller share of a row's norm
    /// may not show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shows: Option<Real>,
    /// The worst row.
    pub at: Option<Place>,
    /// The worst element.
    pub worst: Option<Element>,
    /// First row beyond what is allowed.
    pub first_bad: Option<Place>,
    /// Positions beyond what is allowed.
    pub bad_positions: BTreeSet<usize>,
    /// Those of rows that it has from another run alone, as of the tokens that were kept at a rollback, if rows of its own are beyond too.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub bad_before: BTreeSet<usize>,
    /// The same, by the run that the rows are of.
    #[serde(skip)]
    bad_of: BTreeMap<Whose, BTreeSet<usize>>,
    /// Steps that have such rows.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub bad_steps: BTreeSet<usize>,
    /// The last step that was judged.
    #[serde(default, skip_serializing_if = "none")]
    pub last_step: usize,
    /// Heads beyond what is allowed.
    pub bad_heads: BTreeSet<usize>,
    /// Rows judged.
    pub rows: usize,
    /// Rows that were not judged: what they are allowed is so much that a fault may be as large.
    #[serde(alias = "vague")]
    pub inconclusive: usize,
    /// Their positions.
    #[serde(default)]
    pub inconclusive_positions: BTreeSet<usize>,
    /// Rows judged that are known only as what operands within the rounding of their storage give.
    #[serde(default)]
    pub by_operands: usize,
    /// Rows judged of which probes have no doubt: what they should be was not put together.
    #[serde(default, skip_serializing_if = "none")]
    pub probed: usize,
    /// About how many of its bounds a single element of those must be off by to be doubted, for any rounding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sees: Option<Real>,
    /// What the random numbers of those probes were drawn from, where any were drawn: a hash of the values and weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// Their steps and positions.
    #[serde(skip)]
    pub(super) passed: BTreeSet<(usize, usize)>,
    /// The rows of a state beyond their bound: steps and positions.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) bad_at: BTreeSet<(usize, usize)>,
    /// Rows beyond what is allowed of which all elements are the same bit by bit, as of memory that nobody wrote to.
    #[serde(default, skip_serializing_if = "none")]
    pub unwritten: usize,
    /// Rows beyond what is allowed.
    pub bad_rows: usize,
    /// Rows judged of the prefill.
    pub prefill_rows: usize,
    /// Rows of the prefill beyond what is allowed.
    pub bad_prefill_rows: usize,
    /// First NaN or infinity in the output.
    pub non_finite: Option<Element>,
    /// First infinity that is right: the f64 value is beyond the range of f32. Such rows are not judged, nor is anything
    /// that reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond: Option<Element>,
    /// Whether an operand was not finite already.
    pub poisoned_input: bool,
    /// Whether a row is beyond what is allowed in a step whose operands are all finite.
    #[serde(skip)]
    pub(super) wrong_of_finite: bool,
    /// Smallest rule that would have let every row pass.
    #[serde(with = "Real")]
    pub rule: f64,
    /// A shape other than the operands ask for.
    pub extent: Option<String>,
    /// How the residual is spread.
    pub spread: Spread,
    /// The subgraph that was evaluated, where the stage's own operands were not captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<Segment>,
}

impl Local {
    /// Whether the row of a state at a position is wrong in the step of this number.
    pub fn is_wrong_at(&self, step: usize, position: usize) -> bool {
        self.bad_at.contains(&(step, position))
    }

    /// Whether the stage does its mathematics.
    pub fn ok(&self) -> bool {
        self.used <= 1.0 && self.non_finite.is_none() && self.extent.is_none()
    }

    /// Smallest tolerance rule (relative L2 per row, and the same share of the row's largest value for one element)
    /// that would have let it pass; `None` where no rule could.
    pub fn least_tolerance(&self) -> Option<f64> {
        let possible = self.extent.is_none() && self.non_finite.is_none() && self.rule.is_finite();
        // Rounded up in the two digits it is printed with. A vacuous rule lets nothing pass.
        possible.then_some(self.rule * 1.06).filter(|rule| !vacuous(*rule))
    }

    /// Whether all that is wrong are rows that seem never to have been written.
    pub fn never_written(&self) -> bool {
        self.bad_rows > 0 && self.unwritten == self.bad_rows
    }

    /// Counts a row that is beyond what is allowed.
    fn note_bad(&mut self, at: Place) {
        self.bad_rows += 1;
        self.bad_prefill_rows += usize::from(at.step == 0);
        self.bad_positions.insert(at.position);
        self.bad_of.entry(at.whose).or_default().insert(at.position);
        self.bad_steps.insert(at.step);
        self.bad_heads.extend(at.head);
        if self.first_bad.is_none_or(|first| (at.step, at.position) < (first.step, first.position)) {
            self.first_bad = Some(at);
        }
    }
}

/// Elements of a row that are hardly the same by chance.
const SHORTEST: usize = 16;

/// Whether all elements are one, bit by bit; of a few that tells only where they are no numbers.
fn uniform(row: &[f32]) -> bool {
    let first = row.first().copied().unwrap_or_default();
    (first.is_nan() || row.len() >= SHORTEST) && row.iter().all(|v| v.to_bits() == first.to_bits())
}

/// Whether every value that is not finite is what f32 makes of the f64 value: an infinity of its sign. `spare` is the
/// allowed error in f64.
fn overflows(got: &[f32], want: &[f64], spare: impl Fn(usize) -> f64) -> bool {
    let right =
        |(i, (g, w)): (usize, (&f32, &f64))| g.is_finite() || w.is_finite() && (w + spare(i).copysign(*w)) as f32 == *g;
    got.iter().zip(want).enumerate().all(right)
}

/// Whether a row is beyond what is allowed, or holds what is no number.
fn wrong_row(row: &Row, got: &[f32]) -> bool {
    row.used > 1.0 || got.iter().any(|v| !v.is_finite())
}

fn none(count: &usize) -> bool {
    *count == 0
}

/// Gathers the local residual of one stage of one side, block by block.
struct Check<'a> {
    node: &'a Node,
    graph: &'a Graph,
    capture: &'a Capture,
    filter: &'a Filter,
    rule: Option<f64>,
    grain: Grain,
    local: Local,
    seen: bool,
    /// Last step of another extent than it should have.
    short: Option<usize>,
    /// Over all elements so far.
    bins: Bins,
}

impl Check<'_> {
    /// The residual; `None` if the stage or its operands were captured in no step.
    fn finish(self) -> Option<Local> {
        let Self { mut local, bins, .. } = self;
        local.spread.elements(&bins);
        self.seen.then_some(local)
    }

    /// Holds what the side gave against what it should have given.
    fn take(&mut self, block: &Block<'_>) {
        let step = block.step;
        let Some(stored) = step.stages.get(&self.node.id) else {
            return;
        };
        self.seen = true;
        self.local.last_step = self.local.last_step.max(step.index);
        let per_row = block.value.data.len() / block.rows.len().max(1);
        let count = if block.known.is_some() { block.rows.len() } else { step.rows() };
        if stored.shape().iter().product::<usize>() != count * per_row {
            self.wrong_extent(stored.shape(), block, count);
            return;
        }
        if self.local.extent.is_some() {
            return;
        }
        let Some(got) = rows_of(self.node, stored, &block.rows) else {
            return;
        };
        let own = lost::own_rows(self.graph, self.node, self.capture, block.index);
        for (at, mut range) in rows(self.node, &got.shape, step, block.positions()) {
            // In a cache that lost rows its own key stands before its position, and the keys behind it may be left out.
            if let (Some(own), Anatomy::Contraction(Contraction::Scores(_))) = (&own, self.node.op.anatomy()) {
                let own = (0..step.rows()).find(|r| step.first + step.offset(*r) == at.position).map(|r| own[r]);
                range.end = own.map_or(range.end, |own| range.end.min(range.start + own as usize + 1));
            }
            let given = step.has_row(self.node.id, at.position);
            if given && self.filter.position(at.position) && block.knows(at.position) {
                if foreign::reads(self.graph, self.node, step, at) {
                    self.local.inconclusive += 1;
                    self.local.inconclusive_positions.insert(at.position);
                    continue;
                }
                let row = range.start / got.shape.last().copied().unwrap_or(1).max(1);
                self.local.by_operands += usize::from(block.by_operands.get(row) == Some(&true));
                let terms = block.terms.as_ref().map(|t| &t[range.clone()]);
                let row = (&got.data[range.clone()], &block.value.data[range.clone()], &block.bound[range]);
                self.row(at, row, terms, block);
            }
        }
    }

    /// Counts the rows of a token that were not evaluated.
    fn pass(&mut self, step: &Step, row: usize, by: &Passed) {
        let position = step.first + step.offset(row);
        if step.has_row(self.node.id, position) && self.filter.position(position) {
            let rows = of_token(self.node);
            self.seen = true;
            self.local.last_step = self.local.last_step.max(step.index);
            self.local.rows += rows;
            self.local.prefill_rows += if step.index == 0 { rows } else { 0 };
            self.local.probed += rows;
            (self.local.sees, self.local.seed) = (Some(Real(by.sees)), by.seed);
            self.local.passed.insert((step.index, position));
        }
    }

    fn wrong_extent(&mut self, got: &[usize], block: &Block<'_>, rows: usize) {
        let (step, local) = (block.step, &mut self.local);
        if local.extent.is_none() {
            let mut want = block.value.shape.clone();
            if let Some(axis) = self.node.token_axis().filter(|a| *a < want.len()) {
                want[axis] = rows;
            }
            local.extent = Some(format!("shape {got:?} where {want:?} is expected, from {} on", step.told()));
        }
        local.used = f64::INFINITY;
        local.residual = f64::INFINITY;
        local.worst = None;
        // Once per step, for any number of blocks.
        if self.short != Some(block.index) {
            self.short = Some(block.index);
            for position in step.first..step.keys() {
                local.note_bad(Place { whose: step.whose, step: step.index, position, head: None });
                local.spread.row(position, f64::INFINITY);
            }
        }
    }

    fn row(
        &mut self, at: Place, (got, want, bound): (&[f32], &[f64], &[f32]), terms: Option<&[f32]>, block: &Block<'_>,
    ) {
        let (local, grain) = (&mut self.local, self.grain);
        // Nothing is known about an element outside the format's range.
        let exceeded = !grain.exact() && got.iter().zip(want).any(|(g, w)| grain.exceeded(*g, *w));
        let within = |(g, w): (&f32, &f64)| if exceeded && grain.exceeded(*g, *w) { *w as f32 } else { *g };
        let got = &if exceeded { got.iter().zip(want).map(within).collect() } else { Cow::Borrowed(got) };
        let mut row = Row::new(got, want, bound, self.rule, &mut self.bins);
        if foreign::looks(block.step, self.node, at) {
            // No rounding puts weight where there is no key.
            (row.used, row.rule) = (f64::INFINITY, f64::INFINITY);
        }
        let rounding = if grain.exact() { 0.0 } else { norm(got.iter().map(|g| grain.reach(*g))) };
        if rounding > 0.0 {
            row.allowed += rounding / size(want);
        }
        let open = match self.rule {
            Some(rule) => vacuous(rule),
            None => {
                // Where terms cancel, it is they that are rounded.
                let allowed = match terms {
                    Some(terms) => {
                        let larger = want.iter().zip(terms).map(|(w, t)| w.abs().max(f64::from(*t)));
                        (of_row(bound) + rounding) / size(&larger.collect::<Vec<f64>>())
                    }
                    None => row.allowed,
                };
                let coarse = block.segment || block.coarse || !grain.exact();
                exceeded || coarse && (allowed > INCONCLUSIVE || allowed.is_nan())
            }
        };
        // The bound of a segment is of first order, and proves little where it is as large as the values themselves.
        let vague = block.segment && vacuous(row.allowed) && row.used <= ELEMENT_FACTOR;
        let wrong = row.used > 1.0 && row.allowed.is_finite() && !vague;
        if open && !wrong && got.iter().all(|v| v.is_finite()) && want.iter().all(|v| v.is_finite()) {
            local.inconclusive += 1;
            local.inconclusive_positions.insert(at.position);
            return;
        }
        let infinite = got.iter().position(|v| !v.is_finite());
        if let Some(index) = infinite.filter(|_| !block.poisoned)
            && overflows(got, want, |i| ELEMENT_FACTOR * f64::from(bound[i]))
        {
            local.beyond.get_or_insert_with(|| Element::of(at, index, got[index], want[index], 0.0));
            local.inconclusive += 1;
            local.inconclusive_positions.insert(at.position);
            return;
        }
        local.rows += 1;
        local.prefill_rows += usize::from(at.step == 0);
        if wrong_row(&row, got) {
            local.unwritten += usize::from(uniform(got));
            if self.node.has_state() {
                local.bad_at.insert((at.step, at.position));
            }
        }
        if let Some(index) = infinite {
            // The operands of the first value that is not finite show where it began.
            if local.non_finite.is_none() {
                local.poisoned_input = block.poisoned;
                local.non_finite = Some(Element::of(at, index, got[index], want[index], 0.0));
            }
            local.note_bad(at);
            local.spread.row(at.position, f64::INFINITY);
            return;
        }
        local.rule = local.rule.max(row.rule);
        local.shows = Some(Real(local.shows.map_or(row.allowed, |shows| shows.0.max(row.allowed))));
        let of_worst = got[row.worst];
        let exactly = grain.unsettle(of_worst, want[row.worst]);
        let element = Element::of(at, row.worst, of_worst, exactly, row.worst_allowed + grain.reach(of_worst));
        local.spread.row(at.position, row.used);
        if row.used > 1.0 {
            local.note_bad(at);
            local.wrong_of_finite |= !block.poisoned;
            local.spread.keep(element);
        }
        // Of rows that are allowed nothing, the one that is off most is the worst.
        let beyond = row.used == local.used && row.used > 1.0 && row.residual > local.residual;
        if local.at.is_none() || row.used > local.used || beyond {
            local.used = row.used;
            local.residual = row.residual;
            local.allowed = row.allowed;
            local.at = Some(at);
            local.worst = Some(element);
        }
    }
}

/// The local residuals of `node` on every side.
pub fn residuals<'a>(
    node: &'a Node, oracle: &'a Oracle<'_>, sides: &'a [Side<'a>], filter: &'a Filter, policy: &Policy,
) -> Vec<Option<Local>> {
    let rule = policy.rule(node.id);
    let check = |side: &'a Side<'a>| {
        let grain = Grain::of(node, &oracle.graph, *side);
        let (graph, capture) = (&oracle.graph, side.capture);
        Check {
            node,
            graph,
            capture,
            filter,
            rule,
            grain,
            local: Local::default(),
            seen: false,
            short: None,
            bins: Bins::default(),
        }
    };
    let all = |passed: Option<&Passed>| {
        let mut checks: Vec<Check<'_>> = sides.iter().map(check).collect();
        evaluate_but(node, oracle, sides, (filter, passed), &mut |block| {
            checks[block.side].take(&block);
            ControlFlow::Continue(())
        });
        checks
    };
    let passed = rule.map_or_else(|| probed(node, oracle, sides, filter, policy), |_| None);
    let mut checks = all(passed.as_ref());
    if let Some(mut passed) = passed {
        let open = |check: &Check<'_>| check.seen && (!check.local.ok() || check.local.inconclusive > 0);
        let wrong: Vec<usize> = (0..checks.len()).filter(|&side| open(&checks[side])).collect();
        if !wrong.is_empty() {
            // Which rows are wrong, and what of them, is evaluated.
            wrong.into_iter().for_each(|side| passed.clear(side));
            checks = all(Some(&passed));
        }
        passed.rows().for_each(|(side, step, row)| checks[side].pass(&sides[side].capture.steps[step], row, &passed));
    }
    let locals = checks.into_iter().zip(sides).map(|(check, side)| {
        let local = check.finish()?;
        let own = side.capture.steps.last().and_then(|step| local.bad_of.get(&step.whose));
        let bad_before = own.map_or_else(BTreeSet::new, |own| &local.bad_positions - own);
        Some(Local { segment: Segment::of(node, &oracle.graph, side.capture), bad_before, ..local })
    });
    locals.collect()
}

/// Puts what `other` holds beside the elements of `local`.
pub(super) fn add_other(node: &Node, local: &mut Local, other: &Capture) {
    let elements = local.worst.iter_mut().chain(&mut local.non_finite);
    for element in elements.chain(&mut local.spread.worst) {
        let row = row_at(node, other, element.place);
        element.other = row.and_then(|row| Some(Real(f64::from(*row.get(element.index)?))));
    }
}
