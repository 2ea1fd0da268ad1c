//! Scores, weights and contexts of the rows of whole passes: of other queries, by other tables, scales and masks.

use super::super::pass::{PAGES, Position, conditions};
use super::super::siblings::Runs;
use super::super::solve::BLOCK;
use super::super::spots::Told;
use super::stages::{At, Instead, OF_ROWS, Stages, plain, told};
use crate::verdict::{Evidence, RowAt};
use qdiff_engine::model::{Node, StageId};
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{self, Anatomy, Attention, Context, Tensor, UNIT};
use qdiff_engine::quant::ActivationFormat;
use std::collections::BTreeMap;

/// How to mend scales.
const OF_SCALES: &str = "take the scale of each block from the slot that its codes are in";

/// How to mend lookups.
const OF_TABLES: &str = "look up the slot of each key by the block table of the row's own sequence";

/// How to mend masks.
const OF_MASKS: &str = "mask the keys of each row by the position and the length of its own sequence: look at which row or sequence of the pass \
                        the mask is made for";

/// Scores of the queries of other rows of the pass.
pub(super) fn queries(node: &Node, a: &Attention, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let [queries, cache] = [*node.inputs.first()?, *node.inputs.get(1)?];
    let mut fits = Vec::new();
    for map in stages.maps() {
        let taken = stages.taken(map);
        let rule = |at: At, head: usize| -> Option<Instead> {
            let from = stages.source(&taken, at, false)?;
            Some(stages.scores((queries, nodes[cache].id), a, (at, head), from))
        };
        fits.extend(stages.fitting(conditions(), &format!("each row takes the query of {map}"), rule)?);
    }
    told(fits, OF_ROWS)
}

/// The row that a slot of a cache holds: its run and position.
type Held = BTreeMap<usize, (usize, usize)>;

/// Scores or contexts whose keys or values have codes of their own, and the scales of the first slot of their page, whosever that is.
pub(super) fn by_pages(node: &Node, a: &Attention, runs: Runs<'_>) -> Option<Told> {
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let (left, cache) = (&nodes[*node.inputs.first()?], &nodes[*node.inputs.get(1)?]);
    let of_scores = matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)));
    if runs.0[0].0.subject.arithmetic.kv.of(!of_scores) != ActivationFormat::Q8_0 {
        return None;
    }
    let stages = Stages::of(node, runs)?;
    let (held, rows) = (stages.slots()?, stages.cached(cache.id));
    let width = a.n_kv_heads * a.head_dim;
    let of_block = |of: (usize, usize), block: usize| -> Option<f64> {
        let block = rows.get(&of)?.get(block * BLOCK..width.min((block + 1) * BLOCK))?;
        Some(f64::from(block.iter().fold(0f32, |most, v| most.max(v.abs()))))
    };
    let mut fits = Vec::new();
    for page in PAGES {
        let rule = |at: At, head: usize| -> Option<Instead> {
            let (run, index) = stages.fed[at.0].of[at.1];
            let mut scales: BTreeMap<(usize, usize), f64> = BTreeMap::new();
            let mut value = |key: usize, column: usize| -> Option<f64> {
                let block = column / BLOCK;
                let scale = match scales.get(&(key, block)) {
                    Some(scale) => *scale,
                    None => {
                        let slot = stages.slot_of((run, index), key)?;
                        let other = *held[at.0].get(&(slot / page * page))?;
                        let (mine, theirs) = (of_block((run, key), block)?, of_block(other, block)?);
                        *scales.entry((key, block)).or_insert(if mine == 0.0 { 1.0 } else { theirs / mine })
                    }
                };
                Some(f64::from(*rows.get(&(run, key))?.get(column)?) * scale)
            };
            Some(stages.attended((left.id, of_scores), a, (at, head), &mut value))
        };
        let what = if of_scores { "keys" } else { "values" };
        let words = format!(
            "the codes of {what} are multiplied with the scales of the first slot of their page, of {page} slots, whichever token that holds"
        );
        fits.extend(stages.fitting(plain(), &words, rule)?);
    }
    told(fits, OF_SCALES)
}

/// Scores or contexts whose keys or values are looked up by the table of another row of the pass, or by none.
pub(super) fn by_tables(node: &Node, a: &Attention, runs: Runs<'_>) -> Option<Told> {
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let (left, cache) = (nodes[*node.inputs.first()?].id, nodes[*node.inputs.get(1)?].id);
    let of_scores = matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)));
    let stages = Stages::of(node, runs)?;
    let rows = stages.cached(cache);
    let row = |of: (usize, usize), column: usize| Some(f64::from(*rows.get(&of)?.get(column)?));
    let what = if of_scores { "keys" } else { "values" };
    let mut fits = Vec::new();
    for map in stages.maps() {
        let taken = stages.taken(map);
        let rule = |at: At, head: usize| -> Option<Instead> {
            let from = stages.source(&taken, at, false).filter(|from| from.1 != at.1)?;
            let fed = &stages.fed[at.0];
            let (other, group) = (fed.of[from.1].0, fed.pass.0[from.1]);
            let mut value =
                |key: usize, column: usize| row((other, key), column).filter(|_| key < group.first + group.rows);
            Some(stages.attended((left, of_scores), a, (at, head), &mut value))
        };
        let words = format!("the {what} of each row are looked up by the block table of {map}");
        fits.extend(stages.fitting(conditions(), &words, rule)?);
    }
    if let Some(held) = stages.slots().filter(|_| fits.is_empty()) {
        let rule = |at: At, head: usize| -> Option<Instead> {
            let mut value = |key: usize, column: usize| row(*held[at.0].get(&key)?, column);
            Some(stages.attended((left, of_scores), a, (at, head), &mut value))
        };
        let words = format!("the {what} are read from the slots of their positions: the block table is not used");
        fits.extend(stages.fitting(conditions(), &words, rule)?);
    }
    told(fits, OF_TABLES)
}

/// Weights of rows that are masked by other positions.
pub(super) fn masked(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let mut fits = Vec::new();
    for position in Position::all() {
        let given: Vec<Vec<Option<usize>>> = stages.fed.iter().map(|fed| position.of_all(&fed.pass)).collect();
        // Of keys that were in the cache before, none may be masked.
        let seen = |at: At, cached: bool| -> Option<usize> {
            let pass = &stages.fed[at.0].pass;
            let own = pass.0[at.1];
            let other = given[at.0].get(pass.first_of(at.1) + at.2).copied().flatten()?;
            let least = own.first.checked_sub(1).filter(|_| cached).unwrap_or(0);
            Some(other.clamp(least, own.first + own.rows - 1))
        };
        for cached in [false, true] {
            let rule = |at: At, head: usize| -> Option<Instead> {
                let other = seen(at, cached)?;
                let own = stages.fed[at.0].pass.0[at.1].first + at.2;
                (other != own).then(|| stages.seen(node, (at, head), other))
            };
            let and = if cached { ", and all keys that were in the cache before the pass" } else { "" };
            fits.extend(stages.fitting(
                position.conditions(),
                &format!("each row sees the keys up to {position}{and}"),
                rule,
            )?);
        }
    }
    if fits.is_empty() {
        return padded(node, &stages);
    }
    told(fits, OF_MASKS)
}

/// Weights of rows whose sum counts keys that pad their sequence, with score 0.
fn padded(node: &Node, stages: &Stages<'_>) -> Option<Told> {
    let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = node.op.anatomy() else { return None };
    let mut fits = Vec::new();
    let longest = |at: At| stages.fed[at.0].pass.0.iter().map(|group| group.first + group.rows).max().unwrap_or(0);
    let own = |at: At| stages.fed[at.0].pass.0[at.1];
    let keys: [(&str, &dyn Fn(At) -> usize); 2] = [
        ("by which its sequence is shorter than the longest of the pass", &|at| {
            longest(at) - own(at).first - own(at).rows
        }),
        ("by which it sees fewer than the longest sequence of the pass has", &|at| {
            longest(at) - own(at).first - at.2 - 1
        }),
    ];
    for (words, more) in keys {
        let rule = |at: At, head: usize| -> Option<Instead> {
            (more(at) > 0).then(|| stages.with_zeros(node, (at, head), (softmax.scale, more(at))))
        };
        let words = format!("a score of 0 is in the sum of each row for every key {words}");
        fits.extend(stages.fitting(conditions(), &words, rule)?);
    }
    told(fits, OF_MASKS)
}

impl Stages<'_> {
    /// The weights of a row whose sum counts so many more keys with score 0.
    fn with_zeros(&self, node: &Node, (at, head): (At, usize), (scale, more): (f64, usize)) -> Instead {
        let (e, row, scores) = self.scores_of(node, (at, head))?;
        let seen = &scores[..(row.place.position + 1).min(scores.len())];
        let sum: f64 = seen.iter().map(|s| (s * scale).exp()).sum();
        let by = sum / (sum + more as f64);
        let (_, want, bound) = e.row(row);
        let reach = want.iter().zip(bound).map(|(w, b)| b + (16.0 * UNIT * w * by) as f32);
        Some((want.iter().map(|w| w * by).collect(), reach.collect()))
    }

    /// A row of weights, and the scores that it is made of.
    fn scores_of(&self, node: &Node, (at, head): (At, usize)) -> Option<(&Evidence<'_>, &RowAt, Vec<f64>)> {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let row = &e.rows[*rows.get(head)?];
        let step = &e.side.capture.steps[row.step];
        let scores = step.get(e.oracle.graph.nodes[*node.inputs.first()?].id)?;
        let &[_, tokens, keys] = &scores.shape[..] else { return None };
        let first = (row.place.head? * tokens + at.2) * keys;
        let own = scores.data.get(first..first + keys).filter(|_| tokens == step.tokens.len())?;
        self.meter.count(8 * keys as u64);
        Some((e, row, own.iter().map(|v| f64::from(*v)).collect()))
    }

    /// The weights of a row that sees the keys up to a position.
    fn seen(&self, node: &Node, (at, head): (At, usize), position: usize) -> Instead {
        let (e, row, data) = self.scores_of(node, (at, head))?;
        let keys = data.len();
        let source = e.parameters();
        let positions = [position as u32];
        let context =
            Context { tokens: &[], positions: &positions, history: &[], source: &source, weights: &node.weights };
        let (y, bound) = ops::forward_with_bound(&node.op, &[&Tensor { shape: vec![1, 1, keys], data }], &context);
        (y.data.len() == row.range.len()).then_some((y.data, bound))
    }

    /// The scores of a row with the query of another one.
    fn scores(&self, (queries, cache): (usize, StageId), a: &Attention, (at, head): (At, usize), from: At) -> Instead {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let row = &e.rows[*rows.get(head)?];
        let head = row.place.head?;
        let all = self.operand(queries, from)?;
        let q = all.data.get(head * a.head_dim..(head + 1) * a.head_dim)?;
        let keys = e.side.capture.steps[row.step].get(cache).filter(|keys| keys.rows() > row.place.position)?;
        let (_, want, bound) = e.row(row);
        let (mut value, mut reach) = (want.to_vec(), bound.to_vec());
        for k in 0..value.len().min(row.place.position + 1) {
            let key = keys.row(k).get(a.kv_head(head) * a.head_dim..)?;
            let products = || q.iter().zip(key).map(|(q, k)| q * f64::from(*k));
            value[k] = products().sum();
            reach[k] = reach[k].max((4.0 * UNIT * products().map(f64::abs).sum::<f64>()) as f32);
        }
        Some((value, reach))
    }

    /// What each slot of a cache holds after each pass; nothing where slots are not known.
    fn slots(&self) -> Option<Vec<Held>> {
        let mut held: Vec<Held> = Vec::new();
        for fed in &self.fed {
            let mut now = held.last().cloned().unwrap_or_default();
            for (row, slot) in fed.pass.1.slots.as_ref()?.iter().enumerate() {
                let (group, number) = fed.pass.at(row)?;
                now.insert(*slot, (fed.of[group].0, fed.pass.0[group].first + number));
            }
            held.push(now);
        }
        Some(held)
    }

    /// The slot of a position as a step of a run sees it.
    fn slot_of(&self, (run, index): (usize, usize), position: usize) -> Option<usize> {
        let mut steps = self.capture(run).steps[..=index].iter().rev();
        let step = steps.find(|step| (step.first..step.keys()).contains(&position))?;
        step.slots.as_ref()?.get(position - step.first).copied()
    }

    /// The rows of a cache as they were written, by run and position.
    fn cached(&self, cache: StageId) -> BTreeMap<(usize, usize), Vec<f32>> {
        let mut all = BTreeMap::new();
        for run in 0..self.all.len() {
            let mut from = 0;
            for step in &self.capture(run).steps {
                if let Some(rows) = step.get(cache) {
                    let written = from..step.keys().min(rows.rows());
                    all.extend(written.map(|position| ((run, position), rows.row(position).to_vec())));
                }
                from = from.max(step.keys());
            }
        }
        all
    }

    /// A row of scores, or of a context, with other keys or values, which `value` gives by key and column. An element without one may be
    /// anything.
    fn attended(
        &self, (left, of_scores): (StageId, bool), a: &Attention, (at, head): (At, usize),
        value: &mut dyn FnMut(usize, usize) -> Option<f64>,
    ) -> Instead {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let row = &e.rows[*rows.get(head)?];
        let factors = e.side.capture.steps[row.step].get(left)?;
        let (_, want, bound) = e.row(row);
        let (mut made, mut reach) = (want.to_vec(), bound.to_vec());
        let keys = row.place.position + 1;
        let first = if of_scores { 0 } else { row.range.start % (a.n_heads * a.head_dim) };
        for i in 0..if of_scores { keys.min(made.len()) } else { made.len() } {
            // The head, and the element of the cache's row that each term has.
            let head = if of_scores { row.place.head? } else { (first + i) / a.head_dim };
            let from = a.kv_head(head) * a.head_dim;
            let terms = if of_scores { a.head_dim } else { keys };
            let mut product = |term: usize| -> Option<f64> {
                let (key, column) = if of_scores { (i, from + term) } else { (term, from + (first + i) % a.head_dim) };
                let factor = if of_scores {
                    *factors.row(at.2).get(head * a.head_dim + term)?
                } else {
                    let &[_, tokens, n] = &factors.shape[..] else { return None };
                    *factors.data.get((head * tokens + at.2) * n + key)?
                };
                Some(f64::from(factor) * value(key, column)?)
            };
            self.meter.count(terms as u64);
            match (0..terms).map(&mut product).collect::<Option<Vec<f64>>>() {
                Some(products) => {
                    made[i] = products.iter().sum();
                    let size = products.iter().map(|v| v.abs()).sum::<f64>();
                    reach[i] = reach[i].max((4.0 * UNIT * size) as f32);
                }
                None => reach[i] = f32::INFINITY,
            }
        }
        Some((made, reach))
    }
}
