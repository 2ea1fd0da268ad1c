//! One npy array of a capture: its header is read with bounds, its shape held
//! against the stage's, its values converted.

use super::names::Named;
use super::{Step, Store, Stored};
use crate::formats::Format;
use anyhow::{Context as _, Result, bail, ensure};
use npyz::{DType, NpyFile, Order, TypeChar};
use qdiff_engine::model::{Axis, Graph, Node};
use qdiff_engine::ops::Tensor;
use std::io::{Cursor, Read};
use std::sync::Arc;

/// Longest header of an npy array in bytes: ours and numpy's have 128.
const HEADER: u64 = 1 << 16;

/// Brackets of a header that stand in each other at most: the shape in the
/// dictionary, and the fields of a structured type, which is refused with its name.
const BRACKETS: usize = 4;

/// What is known of the shapes that arrays must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Those that the graph says.
    Known,
    /// Only where tokens and cached rows stand: the model is not at hand.
    Unknown,
}

/// An npy array with a header of reasonable length and depth. npyz allocates as much as the header claims to have, up
/// to 4 GiB, before anything of it is read, and its parser takes twice as long for every bracket in another.
fn bounded(mut entry: impl Read) -> Result<impl Read> {
    let mut start = Vec::with_capacity(12);
    // Magic and version, then the length: two bytes in version 1, four later.
    entry.by_ref().take(8).read_to_end(&mut start)?;
    let digits = if start.get(6) == Some(&1) { 2 } else { 4 };
    entry.by_ref().take(digits).read_to_end(&mut start)?;
    let length = start.iter().skip(8).rev();
    let length = length.fold(0, |n, &byte| n << 8 | u64::from(byte));
    ensure!(
        length <= HEADER,
        "is no npy array of ours: its header claims {length} bytes, and {HEADER} are read at most; write it with numpy.save"
    );
    entry.by_ref().take(length).read_to_end(&mut start)?;
    let deepest = start[start.len().min(8)..].iter().scan(0usize, |depth, byte| {
        match byte {
            b'(' | b'[' | b'{' => *depth += 1,
            b')' | b']' | b'}' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    ensure!(
        deepest.max() <= Some(BRACKETS),
        "is no npy array of ours: its header nests brackets deeper than {BRACKETS}; write it with numpy.save"
    );
    Ok(Cursor::new(start).chain(entry))
}

/// Reads one array into `store`, its axes as the stage has them. `most` bounds the bytes of an array where no graph says
/// what it holds. Of the stage `last`, the logits, the row of the step's last token may stand alone: then the others
/// become NaN, and the second value is true. The third is the number format of its elements.
///
/// # Errors
/// An array that is none, has another shape or number type than the stage may
/// have, ends early, goes on after its last element, or has another checksum.
pub(super) fn read(
    mut entry: impl Read, (node, named, shapes): (&Node, &Named, Shapes), last: bool, step: &Step, most: u64,
    store: &Arc<Store>,
) -> Result<(Stored, bool, Format)> {
    let expected = step.extent(node);
    let array = NpyFile::new(bounded(&mut entry)?).context("is no npy array")?;
    let given: Vec<usize> = array.shape().iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>()?;
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
    let bytes = shape.iter().try_fold(4u64, |n, &d| n.checked_mul(d as u64));
    ensure!(
        shapes == Shapes::Known || bytes.is_some_and(|b| b <= most),
        "has shape {given:?}, which is more than such a file can hold"
    );
    if array.order() != Order::C && given.len() > 1 {
        bail!("is stored in Fortran order; write it with numpy.ascontiguousarray");
    }
    let (stored, format) = match array.dtype() {
        DType::Plain(t) if t.type_char() == TypeChar::Float && t.size_field() == 4 => {
            let mut values = array.data::<f32>()?;
            (store.keep_parts(shape.clone(), |out| fill(out, &mut values, |v| v))?, Format::F32)
        }
        DType::Plain(t) if t.type_char() == TypeChar::Float && t.size_field() == 2 => {
            let mut values = array.data::<half::f16>()?;
            (store.keep_parts(shape.clone(), |out| fill(out, &mut values, f32::from))?, Format::F16)
        }
        other => bail!("has dtype {}; write float32 or float16", other.descr()),
    };
    // The checksum is compared where the archive's entry ends.
    let rest = std::io::copy(&mut entry.take(1), &mut std::io::sink())?;
    ensure!(rest == 0, "goes on after its last element");
    let stored = if named.axes.is_empty() {
        stored
    } else {
        let data = permuted(&stored.get().data, &given, &named.axes);
        store.keep(Tensor { shape, data })
    };
    Ok(if alone { (beneath(&stored, expected, store)?, true, format) } else { (stored, false, format) })
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

/// Fills `out` with the next values.
fn fill<T>(
    out: &mut [f32], values: &mut impl Iterator<Item = std::io::Result<T>>, convert: fn(T) -> f32,
) -> Result<()> {
    for v in out {
        *v = convert(values.next().context("ends before its header says")??);
    }
    Ok(())
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
