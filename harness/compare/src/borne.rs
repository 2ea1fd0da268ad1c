//! Whether the values of a run are what its positions, cache slots and block tables say: a row of a cache is the one that was
//! last written to the slot that the table names, and a row is rotated as the position says that it was given.
//!
//! That slots are wrong is read off whole numbers. That they are the cause of wrong values is a prediction of those values: no row of a
//! wrong stage may be otherwise, and no right one may be reported as another one.

use crate::capture::{Capture, Filter, Plan, RowsSaid, Step};
use crate::diagnose::Diagnosis;
use crate::oracle::Oracle;
use crate::pair::Recording;
use crate::verdict::{Side, assembled};
use qdiff_engine::model::{Graph, Node, StageId};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Elementwise, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// How far a cached row may lie off the row that was written, relative to that row's largest value: a cache may be rounded to
/// a format of 8 bits of precision.
const ROUNDED: f32 = 0.01;

/// What is wrong of a cache that holds what its slots say, in words.
const OF_SLOTS: &str = "each wrong row is the one in the slot that the slot mapping and the block table name";

/// The same where such slots were not written.
const OF_UNWRITTEN: &str = "each wrong row is the one in the slot that the slot mapping and the block table name; some of these slots were \
                            not written in this run, and hold zeros or the row of another sequence";

/// The same of a rotation.
const OF_POSITIONS: &str = "each wrong row is rotated as the position that it was given";

/// What the rows of a stage say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Borne {
    /// Wrong elements that are what slots or positions say.
    pub elements: usize,
    /// Rows that are not what these say.
    pub otherwise: usize,
    /// Rows that are, but in slots to which the run wrote nothing: they hold zeros, or a copy of another sequence's row.
    #[serde(default, skip_serializing_if = "none")]
    pub unwritten: usize,
}

fn none(rows: &usize) -> bool {
    *rows == 0
}

impl Borne {
    /// With what others say.
    pub fn add(&mut self, other: Self) {
        self.elements += other.elements;
        self.otherwise += other.otherwise;
        self.unwritten += other.unwritten;
    }

    /// Whether all that is wrong is what slots or positions say, and something is.
    pub fn holds(self) -> bool {
        self.elements > 0 && self.otherwise == 0
    }
}

/// The same of each stage that reads slots or positions, in each run of a sequence.
pub type OfRuns = Vec<BTreeMap<StageId, Borne>>;

/// All stages of a run together.
pub fn of_run(stages: &BTreeMap<StageId, Borne>) -> Borne {
    let mut all = Borne::default();
    stages.values().for_each(|of| all.add(*of));
    all
}

/// Tells of the findings of a run that slots or positions are their cause, where all that is wrong of a stage is what these say.
pub fn explain(graph: &Graph, diagnosis: &mut Diagnosis, stages: &BTreeMap<StageId, Borne>) {
    for finding in &mut diagnosis.findings {
        let Some(of) = stages.get(&finding.id).filter(|of| of.holds()) else { continue };
        let of_cache = graph.index(finding.id).is_some_and(|i| graph.nodes[i].has_state());
        finding.explained_by(match (of_cache, of.unwritten) {
            (true, 0) => OF_SLOTS,
            (true, _) => OF_UNWRITTEN,
            (false, _) => OF_POSITIONS,
        });
    }
}

/// A row that was fed: the run, its step among those of the run's own, and its number in that.
type Fed = (usize, usize, usize);

/// Holds the values of the `runs` of `plan` against what an engine said of the rows of each pass.
pub fn borne(oracle: &Oracle<'_>, (plan, tokens): (&Plan, &[u32]), said: &[RowsSaid], runs: &[Recording]) -> OfRuns {
    let mut all: OfRuns = vec![BTreeMap::new(); runs.len()];
    let own: Vec<Vec<&Step>> = runs.iter().map(|run| own(&run.capture)).collect();
    let caches = |node: &&Node| matches!(node.op.anatomy(), Anatomy::State(State::Rows(_)));
    let caches: Vec<(&Node, StageId)> = (oracle.graph.nodes.iter().filter(caches))
        .filter_map(|node| Some((node, oracle.graph.nodes[*node.inputs.first()?].id)))
        .collect();
    // What slots hold, and where rows of each sequence should be read from, and are.
    let mut slots: HashMap<i64, Fed> = HashMap::new();
    let mut right: Vec<Vec<Fed>> = vec![Vec::new(); plan.sequences()];
    let mut written: Vec<Vec<i64>> = vec![Vec::new(); plan.sequences()];
    let (mut steps, mut begun) = (plan.steps(tokens).into_iter(), vec![0; runs.len()]);
    for (fed, said) in plan.fed(tokens).iter().zip(said) {
        for &(sequence, to) in &fed.backs {
            right[sequence as usize].truncate(to);
            written[sequence as usize].truncate(to);
        }
        for &(from, to, length) in &fed.prefixes {
            right[to as usize] = right[from as usize][..length].to_vec();
            written[to as usize] = written[from as usize][..length].to_vec();
        }
        let mut sequences: Vec<u32> = said.sequences.clone();
        sequences.sort_unstable();
        sequences.dedup();
        let turns: BTreeMap<u32, (usize, usize)> = (sequences.iter().zip(steps.by_ref()))
            .map(|(sequence, step)| {
                let run = step.run as usize;
                begun[run] += 1;
                (*sequence, (run, begun[run] - 1))
            })
            .collect();
        let mut rows: BTreeMap<u32, usize> = BTreeMap::new();
        for (row, sequence) in said.sequences.iter().enumerate() {
            let (run, step) = turns[sequence];
            let at = (run, step, *rows.entry(*sequence).and_modify(|row| *row += 1).or_default());
            let place = right[*sequence as usize].len();
            right[*sequence as usize].push(at);
            let slot = said.slots.as_ref().map_or(-1, |slots| slots[row]);
            written[*sequence as usize].push(slot);
            if slot >= 0 {
                slots.insert(slot, at);
            }
            if let Some(position) = said.positions.as_ref().map(|all| all[row]) {
                rotated(oracle, (&runs[run], own[run].get(step).copied()), (at.2, place, position), &mut all[run]);
            }
        }
        if said.slots.is_none() {
            continue;
        }
        for (sequence, (run, step)) in &turns {
            let Some(step) = own[*run].get(*step) else { continue };
            let table = said.tables.get(sequence).unwrap_or(&written[*sequence as usize]);
            for (cache, of) in &caches {
                let row = |&(run, step, row): &Fed| {
                    let stored = own[run].get(step)?.stages.get(of)?;
                    (row < *stored.shape().first()?).then(|| stored.slice(0, row..row + 1).data)
                };
                let held = |slot: i64| slots.get(&slot).map(row);
                let Some(given) = step.get(cache.id) else { continue };
                let right_rows = &right;
                let rows: Vec<_> = (right[*sequence as usize].iter().take(given.rows()).enumerate())
                    .filter_map(|(token, at)| {
                        let right = row(at)?;
                        let slot = held(table.get(token).copied().unwrap_or(-1));
                        let unwritten = slot.is_none();
                        let said = match slot {
                            Some(said) => said?,
                            // Nothing was written to it in this run: the engine copied a page, or it holds zeros.
                            None => {
                                let of_others = right_rows.iter().filter_map(|rows| row(rows.get(token)?));
                                let mut copies = of_others.filter(|copy| rounded(copy, given.row(token)));
                                copies.next().unwrap_or_else(|| vec![0.0; right.len()])
                            }
                        };
                        Some((given.row(token), right, said, unwritten))
                    })
                    .collect();
                // A cache that holds a row as it was written holds all of them so.
                let exact = rows.iter().any(|(got, right, said, _)| got == right && right == said);
                let alike = |want: &[f32], got: &[f32]| if exact { want == got } else { rounded(want, got) };
                let mut borne = Borne::default();
                for (got, right, said, unwritten) in &rows {
                    let of_row = compared(got, right, said, alike);
                    borne.add(Borne { unwritten: usize::from(*unwritten && of_row.elements > 0), ..of_row });
                }
                all[*run].entry(cache.id).or_default().add(borne);
            }
        }
    }
    all
}

/// The steps of a run but for those of a prefix.
fn own(capture: &Capture) -> Vec<&Step> {
    (0..capture.steps.len()).filter(|&i| capture.is_own(i)).map(|i| &capture.steps[i]).collect()
}

/// What a row says that may be another one than it should be.
fn compared(got: &[f32], right: &[f32], said: &[f32], alike: impl Fn(&[f32], &[f32]) -> bool) -> Borne {
    match (alike(said, got), alike(right, got)) {
        (true, false) => Borne { elements: got.iter().zip(right).filter(|(a, b)| a != b).count(), ..Borne::default() },
        (true, true) => Borne::default(),
        (false, _) => Borne { otherwise: 1, ..Borne::default() },
    }
}

/// Whether `cached` is `written`, perhaps in a narrower format.
fn rounded(written: &[f32], cached: &[f32]) -> bool {
    let largest = written.iter().fold(0f32, |largest, v| largest.max(v.abs()));
    written.len() == cached.len() && written.iter().zip(cached).all(|(w, c)| (w - c).abs() <= ROUNDED * largest)
}

/// Holds what rotations gave of a row against the position that it was given, if that is not its place.
fn rotated(
    oracle: &Oracle<'_>, (run, step): (&Recording, Option<&Step>), (row, place, position): (usize, usize, i64),
    all: &mut BTreeMap<StageId, Borne>,
) {
    let (Some(step), Ok(position)) = (step, usize::try_from(position)) else { return };
    let rotates = |node: &&Node| matches!(node.op.anatomy(), Anatomy::Elementwise(Elementwise::Rotation(_)));
    for node in oracle.graph.nodes.iter().filter(rotates).filter(|_| position != place) {
        let input = oracle.graph.nodes[node.inputs[0]].id;
        let of = |id: StageId| {
            let stored = step.stages.get(&id)?;
            (row < *stored.shape().first()?).then(|| stored.slice(0, row..row + 1))
        };
        let (Some(x), Some(got)) = (of(input), of(node.id)) else { continue };
        let evaluated = |at: usize| {
            let mut one = Step::new(at, vec![step.tokens[row]]);
            one.stages.insert(input, run.capture.store.keep(x.clone()));
            let capture = Capture { steps: vec![one], ..run.capture.sibling() };
            let side = Side { capture: &capture, arithmetic: &run.manifest.arithmetic };
            assembled(node, oracle, side, &Filter::default()).pop().flatten()
        };
        let (Some((right, _)), Some((said, bound))) = (evaluated(place), evaluated(position)) else { continue };
        let off = |want: &[f64]| {
            let each = got.data.iter().zip(want).zip(&bound);
            each.filter(|((got, want), bound)| (f64::from(**got) - **want).abs() > f64::from(**bound)).count()
        };
        let borne = match (off(&said.data), off(&right.data)) {
            (0, elements) => Borne { elements, ..Borne::default() },
            _ => Borne { otherwise: 1, ..Borne::default() },
        };
        all.entry(node.id).or_default().add(borne);
    }
}
