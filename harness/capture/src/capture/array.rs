//! An array of a capture, in any container: its shape is held against the stage's, its elements are converted and
//! brought into the stage's order.

use super::rounding::of_integers;
use super::view::{Choice, View, gather};
use super::{Step, Store, Stored, exporter};
use crate::number::counted;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Axis, Graph, Node};
use qdiff_engine::ops::Tensor;
use std::io::{ErrorKind, Read};
use std::sync::Arc;

/// Elements that are converted at once.
const CHUNK: usize = 1 << 14;

/// Most entries of a table: a block for each of so many tokens.
const MOST_ENTRIES: usize = 1 << 22;

/// Up to here every whole number is an f32.
const EXACT: f32 = 16_777_216.0;

/// How many times as many cached rows as there should be are read: the number of rows is the engine's to get wrong.
const KEYS: usize = 4;

/// What is known of the shapes that arrays must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Those that the graph says.
    Known,
    /// Only where tokens and cached rows stand: the model is not at hand.
    Unknown,
}

/// What the elements of an array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Numbers of a stage.
    Real(DType),
    /// Numbers of a stage in IEEE binary64, taken as the nearest f32.
    Double,
    /// Whole numbers of as many bytes, with a sign or without: entries of a table.
    Whole { bytes: usize, signed: bool },
}

impl Format {
    /// The format of this name, as safetensors and lines write it.
    ///
    /// # Errors
    /// Another name: those there are.
    pub(super) fn named(name: &str) -> Result<Self> {
        let whole = match name.to_ascii_lowercase().as_str() {
            "f64" => return Ok(Self::Double),
            "i32" => Some((4, true)),
            "i64" => Some((8, true)),
            "u32" => Some((4, false)),
            _ => None,
        };
        let format = match whole {
            Some((bytes, signed)) => Some(Self::Whole { bytes, signed }),
            None => DType::named(name).map(Self::Real),
        };
        let [first, others @ ..] = DType::ALL.map(DType::name);
        format.with_context(|| format!("has dtype {name}; write {first}, f64, {}", others.join(", ")))
    }

    /// Bytes of an element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Real(element) => element.size(),
            Self::Double => 8,
            Self::Whole { bytes, .. } => bytes,
        }
    }
}

/// The whole number of so many bytes, the lowest first.
fn whole(bytes: &[u8], signed: bool) -> i64 {
    let high = if signed && bytes.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
    let mut wide = [high; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(wide)
}

/// The f32 nearest to each f64 in `bytes`.
///
/// # Errors
/// A finite one that f32 does not reach.
fn narrowed(bytes: &[u8], out: &mut [f32]) -> Result<()> {
    for (v, b) in out.iter_mut().zip(bytes.as_chunks().0) {
        let wide = f64::from_le_bytes(*b);
        *v = wide as f32;
        let reached = v.is_finite() || !wide.is_finite();
        ensure!(reached, "holds {wide:e}, and f32 ends at {:e}", f32::MAX.copysign(*v));
    }
    Ok(())
}

/// An array as its container holds it.
pub(super) struct Array<R> {
    /// Extents, outermost axis first.
    pub(super) shape: Vec<usize>,
    /// The axes as they lie in `data`, the one that changes slowest first; empty where that is their order.
    pub(super) lies: Vec<usize>,
    /// What an element is.
    pub(super) format: Format,
    /// Whether the highest byte of an element comes first.
    pub(super) big_endian: bool,
    /// The elements, and nothing after them.
    pub(super) data: R,
}

impl<R: Read> Array<R> {
    /// What its elements are, as those of these stages.
    fn element(&self, targets: &[Target<'_>]) -> Result<DType> {
        match self.format {
            Format::Real(element) => Ok(element),
            Format::Double => Ok(DType::F32),
            // What was chosen, such as experts.
            Format::Whole { .. } if targets.iter().all(|target| of_integers(target.node)) => Ok(DType::F32),
            Format::Whole { .. } => bail!(
                "holds whole numbers; write float32 or float16, or say under `elements` of the manifest what its bytes are"
            ),
        }
    }

    /// The next elements, `bytes` as in the file.
    fn bytes(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.data.read_exact(bytes).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => anyhow!("ends before its last element"),
            _ => e.into(),
        })?;
        if self.big_endian {
            bytes.chunks_mut(self.format.size()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    /// The next elements.
    fn fill(&mut self, out: &mut [f32]) -> Result<()> {
        let size = self.format.size();
        let mut bytes = vec![0; size * out.len().min(CHUNK)];
        for out in out.chunks_mut(CHUNK) {
            let bytes = &mut bytes[..size * out.len()];
            self.bytes(bytes)?;
            match self.format {
                Format::Double => narrowed(bytes, out)?,
                Format::Real(element) => element.decode(bytes, out),
                Format::Whole { signed, .. } => {
                    for (out, bytes) in out.iter_mut().zip(bytes.chunks(size)) {
                        let entry = whole(bytes, signed);
                        *out = entry as f32;
                        ensure!(out.abs() <= EXACT, "holds {entry}, which is the number of nothing that is chosen");
                    }
                }
            }
        }
        Ok(())
    }

    /// Passes over the next elements.
    fn skip(&mut self, count: usize) -> Result<()> {
        let bytes = (count * self.format.size()) as u64;
        let passed = std::io::copy(&mut self.data.by_ref().take(bytes), &mut std::io::sink())?;
        ensure!(passed == bytes, "ends before its last element");
        Ok(())
    }

    /// Refuses what goes on after its last element. The checksum is compared where an archive's entry ends.
    fn end(self) -> Result<()> {
        let rest = std::io::copy(&mut self.data.take(1), &mut std::io::sink())?;
        ensure!(rest == 0, "goes on after its last element");
        Ok(())
    }

    /// Refuses more elements than `most` bytes hold.
    fn within(&self, most: u64) -> Result<()> {
        let bytes = self.shape.iter().try_fold(self.format.size() as u64, |n, &d| n.checked_mul(d as u64));
        ensure!(
            bytes.is_some_and(|b| b <= most),
            "has shape {:?}, which is more than such a file can hold",
            self.shape
        );
        Ok(())
    }

    /// All elements, of which there must be `count`.
    ///
    /// # Errors
    /// Another number of elements.
    pub(super) fn numbers(mut self, count: usize) -> Result<Vec<f32>> {
        let elements = self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        ensure!(elements == Some(count), "has shape {:?}, and the step has {}", self.shape, counted(count, "row"));
        let mut values = vec![0f32; count];
        self.fill(&mut values)?;
        self.end()?;
        Ok(values)
    }

    /// The entries of a table, with their shape.
    ///
    /// # Errors
    /// What holds no whole numbers, or more of them than a table has.
    pub(super) fn table(mut self) -> Result<Entries> {
        let count = self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|n| *n <= MOST_ENTRIES);
        let count = count.with_context(|| {
            format!("has shape {:?}, and a table of the map has {MOST_ENTRIES} entries at most", self.shape)
        })?;
        let lies = View::of(&self.shape, &self.lies)?;
        let entries: Vec<i64> = match self.format {
            Format::Real(_) | Format::Double => {
                let mut values = vec![0f32; count];
                self.fill(&mut values)?;
                let whole = |v: f32| (v.fract() == 0.0 && v.abs() <= EXACT).then_some(v as i64);
                let entries: Option<Vec<i64>> = values.into_iter().map(whole).collect();
                entries.context("is a table of the map, and has an entry that is no whole number")?
            }
            Format::Whole { bytes: size, signed } => {
                let mut bytes = vec![0; size * count];
                self.bytes(&mut bytes)?;
                bytes.chunks(size).map(|entry| whole(entry, signed)).collect()
            }
        };
        let shape = self.shape.clone();
        self.end()?;
        let entries = lies.places()?.into_iter().map(|place| entries[place]).collect();
        Ok(Entries { shape, entries })
    }
}

/// A table: an array of whole numbers, which says where elements of other arrays are.
#[derive(Debug)]
pub(super) struct Entries {
    shape: Vec<usize>,
    entries: Vec<i64>,
}

impl Entries {
    /// All of them, row-major.
    pub(super) fn entries(&self) -> &[i64] {
        &self.entries
    }

    /// Those that are chosen, in their order.
    ///
    /// # Errors
    /// Choices that it has not.
    pub(super) fn chosen(&self, choices: &[Choice]) -> Result<Vec<i64>> {
        let view = View::of(&self.shape, &[])?.choose(choices)?;
        Ok(view.places()?.into_iter().map(|place| self.entries[place]).collect())
    }
}

/// The stage of a step that arrays are for.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) node: &'a Node,
    pub(super) step: &'a Step,
    pub(super) shapes: Shapes,
    /// Whether the row of the step's last token is enough.
    pub(super) last: bool,
    /// Whether arrays are the engine's own, and brought into the stage's shape where their elements lie in its order.
    pub(super) foreign: bool,
    /// Of how many sequences the arrays are: a state is one of each.
    pub(super) sequences: usize,
}

/// The shape in which an array is the stage.
struct Fit {
    shape: Vec<usize>,
    /// Whether it is the last token's row alone.
    alone: bool,
}

impl Target<'_> {
    /// The shape of the stage.
    pub(super) fn extent(&self) -> Vec<usize> {
        let axes = self.step.extent(self.node).into_iter().zip(&self.node.shape);
        axes.map(|(n, axis)| if *axis == Axis::Last { self.sequences } else { n }).collect()
    }

    /// How an array of this shape is the stage.
    ///
    /// # Errors
    /// An array of another shape.
    fn fit(&self, shape: &[usize]) -> Result<Fit> {
        let (expected, step) = (self.extent(), self.step);
        if fits(shape, &expected, self.node, self.shapes) {
            return Ok(Fit { shape: shape.to_vec(), alone: false });
        }
        // The same elements in the same order, in other brackets.
        let count = |s: &[usize]| s.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let bracketed = |as_in: &[usize]| self.foreign && count(shape) == count(as_in);
        let row = Graph::extent(self.node, 1, step.keys());
        let ends = step.rows().checked_sub(1).is_some_and(|r| step.offset(r) + 1 == step.tokens.len());
        let known = self.last && self.shapes == Shapes::Known && ends;
        if known && (shape == row || shape == &row[1..] || bracketed(&row)) {
            return Ok(Fit { shape: row, alone: true });
        }
        if !bracketed(&expected) {
            if self.shapes == Shapes::Unknown {
                let of_axis = |(n, axis): (&usize, &Axis)| match axis {
                    Axis::Fixed(_) => "_".to_owned(),
                    _ => n.to_string(),
                };
                let known: Vec<String> = expected.iter().zip(&self.node.shape).map(of_axis).collect();
                let known = known.join(", ");
                bail!("has shape {shape:?}, and the stage has [{known}], where only the model says what _ is");
            }
            bail!("has shape {shape:?}, and the stage has {expected:?} elements{}", exporter::remedy(shape, &expected));
        }
        Ok(Fit { shape: expected, alone: false })
    }

    /// Most elements that are read of an array of which the stage is put together.
    fn most(&self) -> usize {
        let expected = self.extent().into_iter().zip(&self.node.shape);
        expected.map(|(n, axis)| if *axis == Axis::Keys { KEYS * n } else { n }).fold(1, usize::saturating_mul)
    }

    /// Keeps `data` of this shape as the stage; the second value is true where it is the last token's row alone.
    ///
    /// # Errors
    /// Another shape than the stage has.
    pub(super) fn keep(&self, tensor: Tensor<f32>, element: DType, store: &Arc<Store>) -> Result<(Stored, bool)> {
        let Fit { shape, alone } = self.fit(&tensor.shape)?;
        self.finish(store.keep(Tensor { shape, data: tensor.data }), alone, element, store)
    }

    fn finish(&self, stored: Stored, alone: bool, element: DType, store: &Arc<Store>) -> Result<(Stored, bool)> {
        let stored = if alone { beneath(&stored, self.extent(), store)? } else { stored };
        Ok((stored.stood_as(element), alone))
    }
}

/// Reads one array into `store`, its axes in this order. `most` bounds the bytes of an array where no graph gives its
/// size. Where the row of the step's last token is enough and alone there, the other rows
/// become NaN, and the second value is true.
///
/// # Errors
/// An array that has another shape than the stage may have, ends early, goes on after its last element, or has another
/// checksum than its container says.
pub(super) fn read<R: Read>(
    mut array: Array<R>, target: Target<'_>, order: &[usize], most: u64, store: &Arc<Store>,
) -> Result<(Stored, bool)> {
    let (given, element) = (array.shape.clone(), array.element(std::slice::from_ref(&target))?);
    check_order(order, &given)?;
    let shape: Vec<usize> = if order.is_empty() { given.clone() } else { order.iter().map(|&a| given[a]).collect() };
    let Fit { shape, alone } = target.fit(&shape)?;
    if target.shapes == Shapes::Unknown {
        array.within(most)?;
    }
    let stored = store.keep_parts(shape.clone(), |out| array.fill(out))?;
    let identity: Vec<usize> = (0..given.len()).collect();
    let lies = if array.lies.is_empty() { identity.clone() } else { array.lies.clone() };
    array.end()?;
    let wanted = if order.is_empty() { &identity } else { order };
    let stored = if lies == wanted {
        stored
    } else {
        let lying: Vec<usize> = lies.iter().map(|&axis| given[axis]).collect();
        let place = |axis: &usize| lies.iter().position(|a| a == axis).context("every axis lies somewhere");
        let order = wanted.iter().map(place).collect::<Result<Vec<usize>>>()?;
        store.keep(Tensor { shape, data: permuted(&stored.get().data, &lying, &order) })
    };
    target.finish(stored, alone, element, store)
}

/// Reads the parts of one array that several targets take, in one pass: tensors, and their format in the file. `views`
/// are given for the array's shape.
///
/// # Errors
/// As [`read`]; views that the array has not, or that are more than their stage can be.
pub(super) fn read_parts<R: Read>(
    mut array: Array<R>, targets: &[Target<'_>], views: impl Fn(usize, View) -> Result<View>, most: u64,
) -> Result<(Vec<Tensor<f32>>, DType)> {
    let element = array.element(targets)?;
    array.within(most)?;
    let whole = View::of(&array.shape, &array.lies)?;
    let total = whole.count()?;
    let taken = |(i, target): (usize, &Target<'_>)| {
        let view = views(i, whole.clone())?;
        let (shape, most) = (view.shape(), target.most());
        ensure!(
            view.count()? <= most,
            "has shape {shape:?}, of what the map takes, and {} has {:?} elements{}",
            target.node.id,
            target.extent(),
            exporter::remedy(&shape, &target.extent())
        );
        Ok(view)
    };
    let views = targets.iter().enumerate().map(taken).collect::<Result<Vec<View>>>()?;
    let data = gather(&views, total, |count, out| match out {
        Some(out) => array.fill(out),
        None => array.skip(count),
    })?;
    array.end()?;
    let tensors = views.iter().zip(data).map(|(view, data)| Tensor { shape: view.shape(), data });
    Ok((tensors.collect(), element))
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
            Axis::Keys => (1..=KEYS * want).contains(got),
            Axis::Fixed(_) if shapes == Shapes::Unknown => *got > 0,
            _ => got == want,
        })
}

/// A tensor with its axes in this order; as it is where there is none.
///
/// # Errors
/// An order of another number of axes.
pub(super) fn ordered(tensor: Tensor<f32>, order: &[usize]) -> Result<Tensor<f32>> {
    check_order(order, &tensor.shape)?;
    if order.is_empty() {
        return Ok(tensor);
    }
    let shape = order.iter().map(|&axis| tensor.shape[axis]).collect();
    Ok(Tensor { shape, data: permuted(&tensor.data, &tensor.shape, order) })
}

/// Refuses an order of another number of axes than the shape has.
fn check_order(order: &[usize], shape: &[usize]) -> Result<()> {
    ensure!(
        order.is_empty() || order.len() == shape.len(),
        "has {} axes, and the map orders {}",
        shape.len(),
        order.len()
    );
    Ok(())
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
