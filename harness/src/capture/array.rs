//! An array of a capture, whatever holds it: its shape is held against the stage's, its elements are converted and
//! brought into the stage's order.

use super::names::Named;
use super::{Element, Step, Store, Stored};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use qdiff_engine::model::{Axis, Graph, Node};
use qdiff_engine::ops::Tensor;
use std::io::{ErrorKind, Read};
use std::sync::Arc;

/// Elements that are converted at once.
const CHUNK: usize = 1 << 14;

/// What is known of the shapes that arrays must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Those that the graph says.
    Known,
    /// Only where tokens and cached rows stand: the model is not at hand.
    Unknown,
}

/// An array as its container holds it.
pub(super) struct Array<R> {
    /// Extents, outermost axis first.
    pub(super) shape: Vec<usize>,
    /// The axes as they lie in `data`, the one that changes slowest first; empty where that is their order.
    pub(super) lies: Vec<usize>,
    /// What an element is.
    pub(super) element: Element,
    /// Whether the highest byte of an element comes first.
    pub(super) big_endian: bool,
    /// The elements, and nothing after them.
    pub(super) data: R,
}

impl<R: Read> Array<R> {
    /// The next elements.
    fn fill(&mut self, out: &mut [f32]) -> Result<()> {
        let size = self.element.size();
        let mut bytes = vec![0; size * out.len().min(CHUNK)];
        for out in out.chunks_mut(CHUNK) {
            let bytes = &mut bytes[..size * out.len()];
            self.data.read_exact(bytes).map_err(|e| match e.kind() {
                ErrorKind::UnexpectedEof => anyhow!("ends before its last element"),
                _ => e.into(),
            })?;
            if self.big_endian {
                bytes.chunks_mut(size).for_each(<[u8]>::reverse);
            }
            self.element.decode(bytes, out)?;
        }
        Ok(())
    }
}

/// Reads one array into `store`, its axes as the stage has them. `most` bounds the bytes of an array where no graph says
/// what it holds. Of the stage `last`, the logits, the row of the step's last token may stand alone: then the others
/// become NaN, and the second value is true.
///
/// # Errors
/// An array that has another shape than the stage may have, ends early, goes on after its last element, or has another
/// checksum than its container says.
pub(super) fn read<R: Read>(
    mut array: Array<R>, (node, named, shapes): (&Node, &Named, Shapes), last: bool, step: &Step, most: u64,
    store: &Arc<Store>,
) -> Result<(Stored, bool)> {
    let expected = step.extent(node);
    let (given, element) = (array.shape.clone(), array.element);
    ensure!(
        named.axes.is_empty() || named.axes.len() == given.len(),
        "has {} axes, and the map orders {}",
        given.len(),
        named.axes.len()
    );
    let mut shape: Vec<usize> =
        if named.axes.is_empty() { given.clone() } else { named.axes.iter().map(|&a| given[a]).collect() };
    let mut alone = false;
    if !fits(&shape, &expected, node, shapes) {
        // The same elements in the same order, in other brackets.
        let count = |s: &[usize]| s.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let bracketed = |as_in: &[usize]| named.foreign && count(&shape) == count(as_in);
        let row = Graph::extent(node, 1, step.keys());
        let ends = step.rows().checked_sub(1).is_some_and(|r| step.offset(r) + 1 == step.tokens.len());
        alone = last && shapes == Shapes::Known && ends && (shape == row || shape == row[1..] || bracketed(&row));
        if !alone && !bracketed(&expected) {
            bail!("has shape {given:?}, and the stage has {expected:?} elements");
        }
        shape = if alone { row } else { expected.clone() };
    }
    let bytes = given.iter().try_fold(element.size() as u64, |n, &d| n.checked_mul(d as u64));
    ensure!(
        shapes == Shapes::Known || bytes.is_some_and(|b| b <= most),
        "has shape {given:?}, which is more than such a file can hold"
    );
    let stored = store.keep_parts(shape.clone(), |out| array.fill(out))?;
    // The checksum is compared where an archive's entry ends.
    let rest = std::io::copy(&mut array.data.take(1), &mut std::io::sink())?;
    ensure!(rest == 0, "goes on after its last element");
    let identity: Vec<usize> = (0..given.len()).collect();
    let lies = if array.lies.is_empty() { &identity } else { &array.lies };
    let wanted = if named.axes.is_empty() { &identity } else { &named.axes };
    let stored = if lies == wanted {
        stored
    } else {
        let lying: Vec<usize> = lies.iter().map(|&axis| given[axis]).collect();
        let place = |axis: &usize| lies.iter().position(|a| a == axis).context("every axis lies somewhere");
        let order = wanted.iter().map(place).collect::<Result<Vec<usize>>>()?;
        store.keep(Tensor { shape, data: permuted(&stored.get().data, &lying, &order) })
    };
    let stored = if alone { beneath(&stored, expected, store)? } else { stored };
    Ok((stored.stood_as(element), alone))
}

/// `row` as the last of a tensor of this shape, whose other rows are NaN.
fn beneath(row: &Stored, shape: Vec<usize>, store: &Arc<Store>) -> Result<Stored> {
    let row = row.get().into_owned().data;
    let mut before = shape.iter().product::<usize>() - row.len();
    store.keep_parts(shape, |out| {
        let absent = before.min(out.len());
        before -= absent;
        out[..absent].fill(f32::NAN);
        let from = row.len() - (out.len() - absent).min(row.len());
        out[absent..].copy_from_slice(&row[from..]);
        Ok(())
    })
}

/// Whether an array of this shape can be the stage's. Only the number of cached rows is the engine's to get wrong (that
/// is a finding), and only within reason; all else is refused unread.
fn fits(shape: &[usize], expected: &[usize], node: &Node, shapes: Shapes) -> bool {
    let axes = shape.iter().zip(expected).zip(&node.shape);
    shape.len() == expected.len()
        && axes.clone().all(|((got, want), axis)| match axis {
            Axis::Keys => (1..=4 * want).contains(got),
            Axis::Fixed(_) if shapes == Shapes::Unknown => *got > 0,
            _ => got == want,
        })
}

/// The elements of an array of `shape`, its axes taken in the order `axes`.
fn permuted(data: &[f32], shape: &[usize], axes: &[usize]) -> Vec<f32> {
    let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    let strides: Vec<(usize, usize)> = axes.iter().map(|&a| (shape[a], stride(a))).collect();
    (0..data.len())
        .map(|mut i| {
            let mut at = 0;
            for &(extent, stride) in strides.iter().rev() {
                at += i % extent * stride;
                i /= extent;
            }
            data[at]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::permuted;

    #[test]
    fn axes_are_taken_in_the_order_asked_for() {
        let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
        // [2,3,4] taken as (1,0,2) is [3,2,4].
        let got = permuted(&data, &[2, 3, 4], &[1, 0, 2]);
        assert_eq!(got[..8], [0.0, 1.0, 2.0, 3.0, 12.0, 13.0, 14.0, 15.0]);
        let back = permuted(&got, &[3, 2, 4], &[1, 0, 2]);
        assert_eq!(back, data);
    }
}
