//! Rows of a cache that were right when they were written, or that a sequence took over from another one, and are so no longer: what
//! copied or moved them left out a part of them.

use super::shared_page;
use super::siblings::{Runs, origin};
use super::spots::{Link, Shown, Told};
use super::work::Meter;
use crate::oracle::Oracle;
use crate::verdict::{Evidence, RowAt};
use qdiff_engine::model::{Graph, Node, WeightSource as _};
use qdiff_engine::ops::anatomy::State;
use qdiff_engine::ops::{self, Anatomy, Context, Tensor};
use qdiff_engine::quant::ActivationFormat;
use std::collections::BTreeSet;

/// How to mend it.
const REMEDY: &str = "look at what copies or moves cached rows, as when a sequence begins to write to a page that it shares: keys, values, and their \
                      scales and offsets, in every layer";

/// The same of rows that hold other values.
const REMEDY_OF_OTHERS: &str = "look at what writes to slots of earlier tokens: rows that fill up a pass, rows of other sequences, and what copies \
                                or moves cached rows";

/// The same of rows that hold those of a token that fills up a pass.
pub(super) const REMEDY_OF_FILLERS: &str = "give the rows that fill up a pass to a fixed size a slot that no sequence reads, in every pass: slots of an earlier pass \
                                 may still stand in the buffer";

/// The same of a page that a rollback cuts.
const REMEDY_OF_PAGES: &str =
    "free only the pages behind the last row that is kept: round the rows that are kept up to full pages, not down";

/// Of rows that a sequence had before tokens were taken back.
const KEPT: &str = "kept at the rollback";

/// How far a row may be from the one of another token, relative to its largest element: the cache may round.
const NEAR: f64 = 2e-2;

/// Ids that engines fill passes up with, and the work that evaluating the model for them may take.
const FILLERS: u32 = 4;
const WORK: u64 = 300_000_000;

/// How far the elements of a block may be from one multiple of what they were, relative to the largest.
const ONE: f64 = 1e-4;

/// What the rows hold.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Zeros,
    /// In each block of so many the right codes, with other ones of these.
    Fields(usize, &'static str),
    /// The row of this token at this position, before which there is nothing.
    Filler(u32),
    Others,
}

/// What a stage is for a token that stands alone: at position 0, with its own key as the only one. Nothing of recurrent layers.
fn alone(oracle: &Oracle<'_>, last: usize, token: u32) -> Option<Tensor<f64>> {
    let (tokens, positions) = ([token], [0]);
    let mut all: Vec<Option<Tensor<f64>>> = Vec::with_capacity(last + 1);
    for node in &oracle.graph.nodes[..=last] {
        let inputs = node.inputs.iter().map(|input| all.get(*input)?.as_ref()).collect::<Option<Vec<_>>>();
        let (weights, source) = (&node.weights, &oracle.weights);
        let context = Context { tokens: &tokens, positions: &positions, history: &[], source, weights };
        let of = |inputs: Vec<&Tensor<f64>>| match node.op.anatomy() {
            Anatomy::State(State::Rows(_)) => inputs.first().map(|rows| (*rows).clone()),
            Anatomy::State(State::Own) => None,
            _ => Some(ops::forward(&node.op, &inputs, &context)),
        };
        let shape = Graph::extent(node, 1, 1);
        let value = inputs.and_then(of).filter(|value| value.data.len() == shape.iter().product::<usize>());
        all.push(value.map(|value| Tensor { shape, ..value }));
    }
    all.pop().flatten()
}

/// The token at position 0 whose row is in all wrong rows.
fn filler(e: &Evidence<'_>, meter: &Meter) -> Option<u32> {
    let nodes = &e.oracle.graph.nodes[..=*e.node.inputs.first()?];
    let of_node = |node: &Node| -> u64 {
        let extents = node.weights.iter().map(|weight| e.oracle.weights.extent(&weight.name));
        let gathers = matches!(node.op.anatomy(), Anatomy::Gather(_));
        extents.map(|(n, rows)| if gathers { n } else { n * rows } as u64).sum()
    };
    let work = u64::from(FILLERS) * nodes.iter().map(of_node).sum::<u64>();
    if work > WORK.min(meter.left()) {
        return None;
    }
    meter.count(work);
    (0..FILLERS).find(|token| {
        let Some(own) = e.node.inputs.first().and_then(|input| alone(e.oracle, *input, *token)) else {
            return false;
        };
        let largest = own.data.iter().fold(0f64, |most, v| most.max(v.abs()));
        let is_own = |row: &RowAt| {
            let from = row.range.start % own.data.len().max(1);
            let (got, ..) = e.row(row);
            let values = own.data.get(from..from + got.len());
            values.is_some_and(|own| got.iter().zip(own).all(|(g, w)| (f64::from(*g) - w).abs() <= NEAR * largest))
        };
        largest > 0.0 && e.bad_rows().all(is_own)
    })
}

/// Which fields of blocks are other ones, if each block is what it was, times a number and, in formats with offsets, plus another one:
/// whether scales are, and offsets. Nothing if it is not.
fn fields(got: &[f32], want: &[f64], (block, offsets): (usize, bool)) -> Option<(bool, bool)> {
    if block < 2 || !got.len().is_multiple_of(block) {
        return None;
    }
    let mut other = (false, false);
    for (got, want) in got.chunks(block).zip(want.chunks(block)) {
        let end = |sign: f64| (0..want.len()).max_by(|a, b| (sign * want[*a]).total_cmp(&(sign * want[*b])));
        let (high, low) = (end(1.0)?, end(-1.0)?);
        let (by, more) = if offsets {
            let by = f64::from(got[high] - got[low]) / (want[high] - want[low]);
            (by, f64::from(got[high]) - by * want[high])
        } else {
            let largest = if want[high].abs() < want[low].abs() { low } else { high };
            (f64::from(got[largest]) / want[largest], 0.0)
        };
        let size = got.iter().fold(0f64, |most, g| most.max(f64::from(g.abs())));
        let is_so = |(g, w): (&f32, &f64)| (f64::from(*g) - by * w - more).abs() <= ONE * size;
        if !by.is_finite() || !got.iter().zip(want).all(is_so) {
            return None;
        }
        // The offset is what the code 0 means.
        other.0 |= (by - 1.0).abs() > ONE;
        other.1 |= offsets && (f64::from(got[low]) - want[low]).abs() > ONE * size;
    }
    Some(other)
}

/// Which rows that the pass did not write are wrong.
pub(super) fn words(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    if !matches!(e.node.op.anatomy(), Anatomy::State(State::Rows(_))) {
        return None;
    }
    let capture = runs[run].0.subject.capture;
    let own = capture.steps.last()?.whose;
    let before = capture.steps.iter().enumerate().filter(|(index, _)| !capture.is_own(*index)).map(|(_, step)| step);
    let (taken, from) = before.fold((0, own), |(n, _), step| (n + step.tokens.len(), step.whose));
    let format = e.side.arithmetic.kv.of(e.node.is_of_values());
    let block = (format.block_size(), matches!(format, ActivationFormat::Q4_1 | ActivationFormat::Q5_1));
    let (mut rows, mut zeros, mut other) = (BTreeSet::new(), true, Some((false, false)));
    let slot = |row: &RowAt| -> Option<usize> {
        let width: usize = e.given[row.step].as_ref()?.shape[1..].iter().product();
        Some(row.range.start / width)
    };
    for row in e.bad_rows() {
        let slot = slot(row)?;
        if slot >= capture.steps[row.step].first || !capture.is_own(row.step) {
            return None;
        }
        rows.insert(slot);
        let (got, want, _) = e.row(row);
        zeros &= got.iter().all(|v| *v == 0.0);
        other = other.and_then(|(scales, offsets)| {
            let (a, b) = fields(got, want, block)?;
            Some((scales | a, offsets | b))
        });
    }
    // They were seen right when they were written.
    let wrote = |row: &&RowAt| {
        let step = &capture.steps[row.step];
        slot(row).filter(|slot| !row.bad && (step.first..step.keys()).contains(slot))
    };
    let written: BTreeSet<usize> = e.rows.iter().filter_map(|row| wrote(&row)).collect();
    if !rows.is_subset(&written) {
        return None;
    }
    let (first, last) = (*rows.first()?, *rows.last()?);
    if last - first + 1 != rows.len() || (first < taken && last >= taken) {
        return None;
    }
    let range = if first == last { format!("row {first}") } else { format!("rows {first}..{last}") };
    let (had, from) = match (last < taken, from.sequence == own.sequence) {
        (true, true) => (KEPT.to_owned(), from),
        (true, false) => (format!("taken over from {from}"), from),
        (false, _) => ("written by an earlier pass".to_owned(), own),
    };
    // What is wrong where it was taken from was not spoilt on the way.
    let own_steps = capture.steps.iter().enumerate().filter(|(index, _)| capture.is_own(*index));
    let begins = own_steps.filter_map(|(_, step)| step.in_pass).map(|pass| pass.number).min();
    let wrong_there = runs.iter().any(|(other, diagnosis)| {
        let steps = &other.subject.capture.steps;
        let local = origin(diagnosis, e.node.id).and_then(|stage| stage.subject.as_ref());
        // What became wrong there later was not taken along.
        let earlier = || steps.iter().filter(|step| step.in_pass.zip(begins).is_none_or(|(pass, at)| pass.number < at));
        let wrong =
            |slot: &usize| local.is_some_and(|local| earlier().any(|step| local.is_wrong_at(step.index, *slot)));
        last < taken && steps.last().is_some_and(|step| step.whose == from) && rows.iter().any(wrong)
    });
    if wrong_there {
        return None;
    }
    let one = first == last;
    let holds = match (zeros, other) {
        (true, _) => Holds::Zeros,
        (_, Some((true, true))) => Holds::Fields(block.0, "scales and offsets"),
        (_, Some((true, false))) => Holds::Fields(block.0, "scales"),
        (_, Some((false, true))) => Holds::Fields(block.0, "offsets"),
        _ => filler(e, runs[run].0.meter).map_or(Holds::Others, Holds::Filler),
    };
    let are = match (one, holds) {
        (true, Holds::Zeros) => "is zero".to_owned(),
        (false, Holds::Zeros) => "are zero".to_owned(),
        (one, Holds::Filler(token)) => {
            let (is, row) = if one { ("is", "the row") } else { ("are", "each the row") };
            format!("{is} now {row} of token {token} at position 0, as rows are that fill up a pass")
        }
        (true, Holds::Others) => "is no longer what it was".to_owned(),
        (false, Holds::Others) => "are no longer what they were".to_owned(),
        (_, Holds::Fields(n, which)) => format!(
            "no longer {} the {which} of the blocks of {n}: the codes are right",
            if one { "has" } else { "have" }
        ),
    };
    let lost = || if holds == Holds::Zeros { "are zero" } else { "are others" };
    if last + 1 == taken && !one && had == KEPT && matches!(holds, Holds::Zeros | Holds::Others) {
        let fits = shared_page::cut(first, taken, lost());
        if let Some(told) = shared_page::told(fits, REMEDY_OF_PAGES) {
            return Some(told);
        }
    }
    let what = match holds {
        Holds::Zeros => "zero",
        Holds::Fields(_, which) => which,
        Holds::Filler(_) => "fillers",
        Holds::Others => "changed",
    };
    // Where they begin, a page does.
    let link = Link::of((runs, run), last, (from, last))?;
    let links = vec![[link, link]];
    let shown = Shown { what: format!("rows of before, {what}"), links, ..Shown::default() };
    let remedy = match holds {
        Holds::Filler(_) => REMEDY_OF_FILLERS,
        Holds::Others => REMEDY_OF_OTHERS,
        Holds::Zeros | Holds::Fields(..) => REMEDY,
    };
    Some(Told { words: format!("{range}, {had}, {are}"), remedy, shown })
}

#[cfg(test)]
mod tests {
    use super::fields;

    #[test]
    fn codes_under_another_scale_are_known() {
        let want: Vec<f64> = (0..64).map(|i| f64::from(i % 17) - 8.0).collect();
        let scaled: Vec<f32> =
            want.iter().enumerate().map(|(i, w)| (w * if i < 32 { 0.3 } else { -2.0 }) as f32).collect();
        let of = |got: &[f32], block: usize, offsets: bool| fields(got, &want, (block, offsets));
        assert_eq!(of(&scaled, 32, false), Some((true, false)));
        assert_eq!([of(&scaled, 64, false), of(&scaled, 1, false)], [None, None]);
        // Another offset in each block, alone and with another scale.
        let more = |i: usize| if i < 32 { 2.0 } else { -1.0 };
        let moved: Vec<f32> = want.iter().enumerate().map(|(i, w)| *w as f32 + more(i)).collect();
        assert_eq!(of(&moved, 32, true), Some((false, true)));
        assert_eq!([of(&moved, 32, false), of(&moved, 64, true)], [None, None]);
        let both: Vec<f32> = scaled.iter().enumerate().map(|(i, v)| v + more(i)).collect();
        assert_eq!(of(&both[..32], 32, true).map(|other| other.0), Some(true));
    }
}
