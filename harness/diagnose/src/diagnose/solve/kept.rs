//! What later steps do to rows that a cache keeps: they are rotated once more, or the buffer grows and is read with the
//! stride that it has then.

use super::form::Form;
use super::index::Index;
use super::scene::Scene;
use super::{Alternative, Law, Row};
use crate::verdict::RowAt;
use half::{bf16, f16};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::Node;
use qdiff_engine::ops::anatomy::{Elementwise, State};
use qdiff_engine::ops::{Anatomy, Rope, Tensor, UNIT, rope};
use qdiff_engine::quant::ActivationFormat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// What later steps do to rows of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// They are rotated again by their positions, forwards or backwards.
    Rotated {
        /// Backwards.
        back: bool,
        /// Once, and not by each.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        once: bool,
    },
    /// Blocks of q8_0 are coded by the scale of the first row of the page of so many; 0 if of all rows.
    FirstScale(usize),
    /// Blocks of q8_0 are coded by the largest scale that they have in a row of the pass.
    PassScale,
    /// Codes of q8_0 are right, and the scales of a row are those of other blocks of it.
    ScaleOf(Block),
    /// The same, and the scales are those of the first row of the page of so many.
    ScaleOfFirst(usize),
    /// Blocks of q8_0 are coded by their scale as it is stored, in f16.
    StoredScale,
    /// Codes of q4_0 and q5_0 are not limited: the one above the largest becomes 0.
    CodesWrap,
    /// Codes of q8_0 are not rounded to the nearest whole number.
    Cut(Cut),
    /// Blocks of q8_0 whose scale is below 1 are coded by 1.
    AtLeastOne,
    /// The scale of a block of q4_0, q5_0 or q8_0 is its largest magnitude over this number.
    LargestOver(u8),
    /// Codes of q8_0 are made by 128 over the largest magnitude, and read by the scale over 127.
    CodesBy128,
    /// The smallest value of a block of q4_1 or q5_1 is taken for the nearest multiple of its scale.
    WholeOffset,
    /// What is below the smallest normal number of the cache's format becomes 0.
    NoSubnormals,
    /// Numbers are written in this format, and their bits are read in that of the cache.
    BitsOf(DType),
    /// The buffer doubles when it is full, and what is in it stays at its address.
    Grown {
        /// Rows of the first buffer.
        first: usize,
        /// Whether a head's rows lie together; else a column's do.
        by_head: bool,
    },
}

/// Another block of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// The transposed one, if the blocks of a row are read as a matrix of so many rows.
    Turned(usize),
    /// The next one, after the last the first.
    Next,
    /// The one before, before the first the last.
    Before,
    /// The one at the other end.
    Mirrored,
    /// The first of the row.
    First,
}

impl Block {
    /// The number of the block, of so many.
    fn of(self, block: usize, blocks: usize) -> Option<usize> {
        match self {
            Self::Turned(rows) => Index::Turned { each: blocks, rows }.of(block, blocks),
            Self::Next => Some((block + 1) % blocks),
            Self::Before => Some((block + blocks - 1) % blocks),
            Self::Mirrored => Some(blocks - 1 - block),
            Self::First => Some(0),
        }
    }
}

/// What becomes of the fraction of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// It is cut off, towards zero.
    Off,
    /// The next whole number below.
    Down,
    /// The next whole number above.
    Up,
    /// A half is added, also to negative codes, and the fraction is cut off.
    OffAfterHalf,
}

impl Cut {
    const ALL: [Self; 4] = [Self::Off, Self::Down, Self::Up, Self::OffAfterHalf];

    fn of(self, code: f64) -> f64 {
        match self {
            Self::Off => code.trunc(),
            Self::Down => code.floor(),
            Self::Up => code.ceil(),
            Self::OffAfterHalf => (code + 0.5).trunc(),
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rotated { back, once } => {
                let (way, again) = if *back { (" back", "") } else { ("", " again") };
                let when = if *once { "a later step, once" } else { "each later step" };
                write!(f, "rows of earlier steps are rotated{way} by their positions{again} in {when}")
            }
            Self::FirstScale(0) => {
                f.write_str("each block is coded by the scale that it has in the first row of the cache")
            }
            Self::FirstScale(page) => {
                write!(f, "each block is coded by the scale that it has in the first row of its page of {page}")
            }
            Self::PassScale => {
                f.write_str("each block is coded by the largest scale that it has in a row of the pass that writes it")
            }
            Self::ScaleOf(block) => {
                f.write_str("codes are right, and each block has the scale of another block of its row: ")?;
                match block {
                    Block::Turned(rows) => {
                        write!(f, "the transposed one, the blocks being read as {rows} rows")
                    }
                    Block::Next => f.write_str("the next one"),
                    Block::Before => f.write_str("the one before"),
                    Block::Mirrored => f.write_str("the one at the other end"),
                    Block::First => f.write_str("the first one"),
                }
            }
            Self::ScaleOfFirst(page) => write!(
                f,
                "codes are right, and each block has the scale that it has in the first row of its page of {page}"
            ),
            Self::WholeOffset => f.write_str(
                "the offset of each block is rounded to a multiple of its scale: codes count from a whole zero point",
            ),
            Self::StoredScale => f.write_str(
                "each block is coded by its scale as it is stored, rounded to f16, and not by the exact one",
            ),
            Self::CodesWrap => f.write_str(
                "codes are not limited to the largest one before they are packed: the code after it becomes 0, the most negative value of its block",
            ),
            Self::Cut(cut) => f.write_str(match cut {
                Cut::Off => "codes are cut off towards zero, and not rounded to the nearest whole number",
                Cut::Down => "codes are rounded down, and not to the nearest whole number",
                Cut::Up => "codes are rounded up, and not to the nearest whole number",
                Cut::OffAfterHalf => {
                    "codes are rounded by adding 1/2 and cutting off the fraction, which is wrong for negative ones"
                }
            }),
            Self::AtLeastOne => f.write_str("each block whose scale should be below 1 is coded by the scale 1"),
            Self::LargestOver(number) => {
                let right = match number {
                    ..9 => "its largest value over -8",
                    9..17 => "its largest value over -16",
                    _ => "over 127",
                };
                write!(f, "the scale of each block is its largest magnitude over {number}, and not {right}")
            }
            Self::CodesBy128 => f.write_str(
                "codes are made with 128 over the largest magnitude of their block (127 at most), and the stored scale is that magnitude over 127",
            ),
            Self::NoSubnormals => {
                f.write_str("numbers below the smallest normal number of the cache's format are stored as 0: it has no subnormal numbers there")
            }
            Self::BitsOf(format) => {
                write!(f, "numbers are written in {format}, and their bits are read in the format of the cache")
            }
            Self::Grown { first, by_head } => {
                let one = if *by_head { "head" } else { "column" };
                write!(
                    f,
                    "the buffer holds the rows of one {one} after those of another and grows from {first} rows by doubling: what it held stays at its old stride"
                )
            }
        }
    }
}

/// Elements of a block of q8_0.
pub(in super::super) const BLOCK: usize = 32;

/// The number of the step that wrote a position.
fn wrote(scene: &Scene<'_>, position: usize) -> Option<usize> {
    scene.e.side.capture.steps.iter().position(|step| (step.first..step.keys()).contains(&position))
}

impl Kept {
    pub(super) fn on<'a>(self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        match self {
            Self::Rotated { back, once } => {
                let rope = rotation(scene)?;
                Some(Box::new(move |row| rotated(scene, row, rope, (if back { -1.0 } else { 1.0 }, once))))
            }
            Self::FirstScale(_)
            | Self::PassScale
            | Self::ScaleOf(_)
            | Self::ScaleOfFirst(_)
            | Self::StoredScale
            | Self::Cut(_)
            | Self::CodesBy128
            | Self::AtLeastOne => {
                let (of_cache, format) = cache_format(scene);
                (of_cache && format == ActivationFormat::Q8_0).then(|| -> Alternative<'a> {
                    Box::new(move |row| match self {
                        Self::FirstScale(page) => {
                            let first = row.place.position.checked_div(page).unwrap_or(0) * page;
                            by_others(scene, row, first..first + 1)
                        }
                        Self::PassScale => {
                            let step = &scene.e.side.capture.steps[wrote(scene, row.place.position)?];
                            by_others(scene, row, step.first..step.keys())
                        }
                        Self::ScaleOf(block) => by_scales_of(scene, row, row.place.position, |own, n| block.of(own, n)),
                        Self::ScaleOfFirst(page) => {
                            by_scales_of(scene, row, row.place.position / page * page, |own, _| Some(own))
                        }
                        Self::Cut(cut) => with_codes(scene, row, |exact| cut.of(exact).clamp(-128.0, 127.0)),
                        Self::CodesBy128 => {
                            with_codes(scene, row, |exact| (exact * 128.0 / 127.0).round().clamp(-127.0, 127.0))
                        }
                        Self::AtLeastOne => by_stored(scene, row, 1.0),
                        _ => by_stored(scene, row, 0.0),
                    })
                })
            }
            Self::LargestOver(number) => {
                let half = half_of_codes(scene).unwrap_or(128.0);
                let (of_cache, format) = cache_format(scene);
                let has = match format {
                    ActivationFormat::Q4_0 => [7, 8].contains(&number),
                    ActivationFormat::Q5_0 => [15, 16].contains(&number),
                    ActivationFormat::Q8_0 => number == 128,
                    _ => false,
                };
                (of_cache && has).then(|| -> Alternative<'a> {
                    Box::new(move |row| by_largest(scene, row, (f32::from(number), half)))
                })
            }
            Self::WholeOffset => {
                let top = match cache_format(scene) {
                    (true, ActivationFormat::Q4_1) => 15.0,
                    (true, ActivationFormat::Q5_1) => 31.0,
                    _ => return None,
                };
                Some(Box::new(move |row| with_whole_offsets(scene, row, top)))
            }
            Self::CodesWrap => {
                let half = half_of_codes(scene)?;
                Some(Box::new(move |row| with_codes_wrapped(scene, row, half)))
            }
            Self::NoSubnormals => {
                let smallest = smallest_normal(scene)?;
                Some(Box::new(move |row| without_subnormals(scene, row, smallest)))
            }
            Self::BitsOf(format) => {
                let (of_cache, read) = cache_format(scene);
                let read = read.number().filter(|read| *read != format && read.size() == format.size() && of_cache)?;
                Some(Box::new(move |row| by_bits_of(scene, row, format, read)))
            }
            Self::Grown { first, by_head } => {
                let stood = grown(scene, first, by_head)?;
                Some(Box::new(move |row| {
                    let (value, bound) = scene.e.expected[row.step].as_ref()?;
                    let (layout, (slot, from)) = (scene.layout(), scene.token(row));
                    let at = |i: usize| {
                        let (slot, column) = stood[row.step].get(slot)?.get(from + i).copied()??;
                        Some(layout.at(&value.shape, slot, column))
                    };
                    let all: Vec<Option<usize>> = (0..row.range.len()).map(at).collect();
                    Some(Row {
                        value: all.iter().map(|at| at.map_or(f64::NAN, |at| value.data[at])).collect(),
                        bound: all.iter().map(|at| at.map_or(0.0, |at| bound[at])).collect(),
                    })
                }))
            }
        }
    }
}

/// The rotation that made the rows of a cache.
fn rotation<'a>(scene: &Scene<'a>) -> Option<&'a Rope> {
    let made = &scene.e.oracle.graph.nodes[*scene.node().inputs.first()?];
    let of_cache = matches!(scene.node().op.anatomy(), Anatomy::State(_));
    match made.op.anatomy() {
        Anatomy::Elementwise(Elementwise::Rotation(rope)) if of_cache => Some(rope),
        _ => None,
    }
}

/// A row that every step since it was written has rotated once more, or one of them.
fn rotated(scene: &Scene<'_>, row: &RowAt, rope: &Rope, (sign, once): (f64, bool)) -> Option<Row> {
    let position = row.place.position;
    let steps = row.step - wrote(scene, position)?;
    let by = sign * position as f64 * if once { steps.min(1) } else { steps } as f64;
    let (_, want, bound) = scene.e.row(row);
    let (d, from) = (rope.head_dim, scene.token(row).1);
    if !from.is_multiple_of(d) || !want.len().is_multiple_of(d) {
        return None;
    }
    let plain = Tensor { shape: vec![1, want.len()], data: want.to_vec() };
    let value = rope::forward(rope, &plain, &[by]).data;
    let size = want.iter().fold(0f64, |m, v| m.max(v.abs()));
    let reach = (UNIT * size * (8.0 + by.abs())) as f32;
    Some(Row { value, bound: bound.iter().map(|b| b + reach).collect() })
}

/// The row that a position was given, and its elements from one on.
fn given(scene: &Scene<'_>, position: usize, from: usize, n: usize) -> Option<Vec<f32>> {
    let step = wrote(scene, position)?;
    let operand = scene.operand(step, 0)?;
    let first = scene.e.side.capture.steps[step].first;
    let width: usize = operand.shape[1..].iter().product();
    operand.data.get((position - first) * width + from..).and_then(|row| row.get(..n)).map(<[f32]>::to_vec)
}

/// A row of q8_0 by the largest scales of the rows of these positions.
fn by_others(scene: &Scene<'_>, row: &RowAt, positions: Range<usize>) -> Option<Row> {
    let (position, from, n) = (row.place.position, scene.token(row).1, row.range.len());
    let own = given(scene, position, from, n)?;
    let mut other = vec![0f32; n];
    for position in positions {
        let row = given(scene, position, from, n)?;
        other.iter_mut().zip(row).for_each(|(most, v)| *most = most.max(v.abs()));
    }
    let (value, bound) = coded_by(&own, &other);
    Some(Row { value, bound })
}

/// A row of q8_0 whose blocks are coded by the scales that the blocks of another row have, with bounds.
pub(in super::super) fn coded_by(own: &[f32], other: &[f32]) -> (Vec<f64>, Vec<f32>) {
    let (mut value, mut bound) = (Vec::with_capacity(own.len()), Vec::with_capacity(own.len()));
    for (own, other) in own.chunks(BLOCK).zip(other.chunks(BLOCK)) {
        let largest = other.iter().fold(0f32, |most, v| most.max(v.abs()));
        let stored = f16::from_f32(largest / 127.0).to_f64();
        // By the scale as it is stored, or before.
        let scale = f64::from(largest / 127.0);
        for v in own {
            let codes =
                [scale, stored].map(|s| if s == 0.0 { 0.0 } else { (f64::from(*v) / s).round().clamp(-127.0, 127.0) });
            value.push(codes[1] * stored);
            bound.push(((codes[0] - codes[1]).abs() * stored) as f32);
        }
    }
    (value, bound)
}

/// A row of q8_0 whose blocks have the scales of other blocks, of the row of a position.
fn by_scales_of(
    scene: &Scene<'_>, row: &RowAt, position: usize, block: impl Fn(usize, usize) -> Option<usize>,
) -> Option<Row> {
    let (from, width) = (scene.token(row).1, scene.width()?);
    let whole = given(scene, row.place.position, 0, width)?;
    let most = |of: &[f32]| of.iter().fold(0f32, |most, v| most.max(v.abs()));
    let largest: Vec<f32> = whole.chunks(BLOCK).map(most).collect();
    let theirs: Vec<f32> = given(scene, position, 0, width)?.chunks(BLOCK).map(most).collect();
    let (mut value, mut bound) = (Vec::with_capacity(row.range.len()), Vec::with_capacity(row.range.len()));
    for (i, v) in whole.get(from..from + row.range.len())?.iter().enumerate() {
        let own = (from + i) / BLOCK;
        let scale = f64::from(largest[own] / 127.0);
        let other = f16::from_f32(theirs[block(own, theirs.len())?] / 127.0).to_f64();
        let exact = if scale == 0.0 { 0.0 } else { f64::from(*v) / scale };
        value.push(exact.round() * other);
        let is_half = (exact.abs().fract() - 0.5).abs() < 4.0 * UNIT * exact.abs();
        bound.push(if is_half { other as f32 } else { 0.0 });
    }
    Some(Row { value, bound })
}

/// A row of q8_0 by its own scales as they are stored, which are at least so much.
fn by_stored(scene: &Scene<'_>, row: &RowAt, least: f32) -> Option<Row> {
    let own = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
    let (mut value, mut bound) = (Vec::with_capacity(own.len()), Vec::with_capacity(own.len()));
    for own in own.chunks(BLOCK) {
        let largest = own.iter().fold(0f32, |most, v| most.max(v.abs()));
        let scale = f16::from_f32((largest / 127.0).max(least)).to_f64();
        for v in own {
            let exact = if scale == 0.0 { 0.0 } else { f64::from(*v) / scale };
            value.push(exact.round().clamp(-128.0, 127.0) * scale);
            // A half may be rounded either way, and is one within the rounding of the quotient.
            let is_half = (exact.abs().fract() - 0.5).abs() < 4.0 * UNIT * exact.abs();
            bound.push(if is_half { scale as f32 } else { 0.0 });
        }
    }
    Some(Row { value, bound })
}

/// Whether the stage is a cache of rows, and its format.
fn cache_format(scene: &Scene<'_>) -> (bool, ActivationFormat) {
    let node = scene.node();
    let of_cache = matches!(node.op.anatomy(), Anatomy::State(State::Rows(_)));
    (of_cache, scene.e.side.arithmetic.kv.of(node.is_of_values()))
}

/// A row whose blocks are coded by their largest magnitude over a number, in codes from `-half` to `half - 1`.
fn by_largest(scene: &Scene<'_>, row: &RowAt, (number, half): (f32, f64)) -> Option<Row> {
    let own = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
    let (mut value, mut bound) = (Vec::with_capacity(own.len()), Vec::with_capacity(own.len()));
    for own in own.chunks(BLOCK) {
        let scale = own.iter().fold(0f32, |most, v| most.max(v.abs())) / number;
        let stored = f16::from_f32(scale).to_f64();
        for v in own {
            let exact = if scale == 0.0 { 0.0 } else { f64::from(*v) / f64::from(scale) };
            // A quotient, or a product with the inverse, may be on the other side of a half.
            let code = |side: f64| (exact * (1.0 + side * 4.0 * UNIT)).round().clamp(-half, half - 1.0);
            value.push(code(0.0) * stored);
            bound.push(((code(1.0) - code(-1.0)).abs() * stored) as f32);
        }
    }
    Some(Row { value, bound })
}

/// A row of q4_1 or q5_1 whose offsets are multiples of their scales, in codes up to `top`.
fn with_whole_offsets(scene: &Scene<'_>, row: &RowAt, top: f32) -> Option<Row> {
    let own = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
    let (mut value, mut bound) = (Vec::with_capacity(own.len()), Vec::with_capacity(own.len()));
    for own in own.chunks(BLOCK) {
        let (low, high) = own.iter().fold((f32::MAX, f32::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        let scale = (high - low) / top;
        if scale == 0.0 {
            // What becomes of a block of equal values, the law does not say.
            value.extend(own.iter().map(|_| f64::NAN));
            bound.extend(own.iter().map(|_| 0.0));
            continue;
        }
        let exact = |v: f32| f64::from(v) / f64::from(scale);
        let zero = exact(low).round();
        let (stored, offset) =
            (f16::from_f32(scale).to_f64(), f16::from_f32((f64::from(scale) * zero) as f32).to_f64());
        for v in own {
            // A quotient, or a product with the inverse, may be on the other side of a half.
            let code = |side: f64| {
                ((exact(*v) * (1.0 + side * 4.0 * UNIT)).round() - zero).clamp(0.0, f64::from(top)) * stored
            };
            value.push(code(0.0) + offset);
            bound.push((code(1.0) - code(-1.0)).abs() as f32);
        }
    }
    Some(Row { value, bound })
}

/// A row of q8_0 whose codes are made otherwise of the quotients.
fn with_codes(scene: &Scene<'_>, row: &RowAt, code: impl Fn(f64) -> f64) -> Option<Row> {
    let own = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
    let (mut value, mut bound) = (Vec::with_capacity(own.len()), Vec::with_capacity(own.len()));
    for own in own.chunks(BLOCK) {
        let largest = own.iter().fold(0f32, |most, v| most.max(v.abs()));
        let scale = f64::from(largest / 127.0);
        let stored = f16::from_f32(largest / 127.0).to_f64();
        for v in own {
            let exact = if scale == 0.0 { 0.0 } else { f64::from(*v) / scale };
            // A quotient, or a product with the inverse, may be on the other side of a whole number.
            let [below, above] = [-1.0, 1.0].map(|side| code(exact * (1.0 + side * 2.0 * UNIT)));
            value.push(code(exact) * stored);
            bound.push(((above - below).abs() * stored) as f32);
        }
    }
    Some(Row { value, bound })
}

/// Half the number of codes of a cache of q4_0 or q5_0.
fn half_of_codes(scene: &Scene<'_>) -> Option<f64> {
    match cache_format(scene) {
        (true, ActivationFormat::Q4_0) => Some(8.0),
        (true, ActivationFormat::Q5_0) => Some(16.0),
        _ => None,
    }
}

/// A row of q4_0 or q5_0, as ggml codes it, in which the code after the largest one becomes 0.
fn with_codes_wrapped(scene: &Scene<'_>, row: &RowAt, half: f64) -> Option<Row> {
    let own = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
    let (_, want, bound) = scene.e.row(row);
    let (mut value, mut bounds) = (want.to_vec(), bound.to_vec());
    for (block, own) in own.chunks(BLOCK).enumerate() {
        let largest = own.iter().fold(0f32, |most, v| if v.abs() > most.abs() { *v } else { most });
        let scale = largest / -half as f32;
        if scale == 0.0 {
            continue;
        }
        let lowest = -half * f16::from_f32(scale).to_f64();
        for (i, v) in own.iter().enumerate() {
            let (at, code) = (block * BLOCK + i, f64::from(*v) / f64::from(scale) + half + 0.5);
            // Within the rounding of the quotient, the code may be the largest one as well.
            let edge = 4.0 * UNIT * half;
            if code >= 2.0 * half - edge {
                if code < 2.0 * half + edge {
                    bounds[at] += (want[at] - lowest).abs() as f32;
                }
                value[at] = lowest;
            }
        }
    }
    Some(Row { value, bound: bounds })
}

/// The smallest normal number of a cache's format, as its rows have it before they are scaled: 2⁻¹⁴ of f16 and e5m2, 2⁻⁶ of e4m3.
fn smallest_normal(scene: &Scene<'_>) -> Option<f64> {
    let (node, arithmetic) = (scene.node(), scene.e.side.arithmetic);
    let smallest = match arithmetic.kv.of(node.is_of_values()) {
        ActivationFormat::F16 | ActivationFormat::F8E5m2 => 2f64.powi(-14),
        ActivationFormat::F8E4m3 => 2f64.powi(-6),
        _ => return None,
    };
    let of_cache = matches!(node.op.anatomy(), Anatomy::State(State::Rows(_)));
    of_cache.then(|| smallest * f64::from(arithmetic.kv_scale(node.id).unwrap_or(1.0)))
}

/// A row whose numbers below the smallest normal one are 0.
fn without_subnormals(scene: &Scene<'_>, row: &RowAt, smallest: f64) -> Option<Row> {
    let own = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
    let (_, want, bound) = scene.e.row(row);
    let value = own.iter().zip(want).map(|(v, want)| if f64::from(v.abs()) < smallest { 0.0 } else { *want });
    Some(Row { value: value.collect(), bound: bound.to_vec() })
}

/// A row whose numbers are written in one format and read in another one of as many bits.
fn by_bits_of(scene: &Scene<'_>, row: &RowAt, written: DType, read: DType) -> Option<Row> {
    let own = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
    let scale = scene.e.side.arithmetic.kv_scale(scene.node().id).unwrap_or(1.0);
    let mut codes: Vec<u8> = Vec::with_capacity(2 * own.len());
    for v in own {
        let rounded = written.round(v / scale);
        match written {
            DType::F16 => codes.extend(f16::from_f32(rounded).to_le_bytes()),
            DType::Bf16 => codes.extend(bf16::from_f32(rounded).to_le_bytes()),
            _ => {
                let same = |code: &u8| {
                    let mut number = [0f32];
                    written.decode(&[*code], &mut number);
                    number[0].to_bits() == rounded.to_bits()
                };
                codes.push((0..=u8::MAX).find(same)?);
            }
        }
    }
    let mut value = vec![0f32; row.range.len()];
    read.decode(&codes, &mut value);
    Some(Row { value: value.iter().map(|v| f64::from(v * scale)).collect(), bound: scene.e.row(row).2.to_vec() })
}

/// The slot and the column whose value is in a slot and column.
type Stood = Vec<Vec<Option<(usize, usize)>>>;

/// What is in each slot after each step. Nothing if the buffer never grows.
fn grown(scene: &Scene<'_>, first: usize, by_head: bool) -> Option<Vec<Stood>> {
    let (width, d) = (scene.width()?, scene.e.oracle.graph.config.head_dim);
    let run = if by_head { d } else { 1 };
    let at = |slot: usize, column: usize, rows: usize| (column / run * rows + slot) * run + column % run;
    let (mut rows, mut buffer, mut grows) = (first, vec![None; first * width], false);
    let mut all = Vec::new();
    for step in &scene.e.side.capture.steps {
        while rows < step.keys() {
            rows *= 2;
            grows |= buffer.iter().any(Option::is_some);
            buffer.resize(rows * width, None);
        }
        for slot in step.first..step.keys() {
            (0..width).for_each(|column| buffer[at(slot, column, rows)] = Some((slot, column)));
        }
        scene.count(step.keys() * width);
        let of_slot = |slot: usize| (0..width).map(|column| buffer[at(slot, column, rows)]).collect();
        all.push((0..step.keys()).map(of_slot).collect());
    }
    grows.then_some(all)
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let firsts = [8, 16, 32, 64, 128, 0].map(Kept::FirstScale);
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    let rotated = ways.map(|(back, once)| Kept::Rotated { back, once });
    // A buffer that grows before anything is in it is as good as a larger one.
    let grown = [256, 128, 64, 32, 16, 8, 4]
        .into_iter()
        .flat_map(|first| [false, true].map(|by_head| Kept::Grown { first, by_head }));
    let blocks = scene.width().unwrap_or(0) / BLOCK;
    let turned = (2..blocks).filter(|rows| blocks.is_multiple_of(*rows)).map(Block::Turned);
    // Of two blocks it is the other one.
    let others = turned.chain([Block::Next, Block::Before, Block::Mirrored, Block::First]).map(Kept::ScaleOf);
    let others = others.filter(|kept| blocks > 2 || !matches!(kept, Kept::ScaleOf(Block::Before | Block::Mirrored)));
    firsts
        .into_iter()
        .chain(others.filter(|_| blocks > 1))
        .chain([4, 8, 16, 32, 64, 128, 256].map(Kept::ScaleOfFirst))
        .chain([Kept::PassScale, Kept::StoredScale, Kept::CodesWrap, Kept::NoSubnormals])
        .chain(Cut::ALL.map(Kept::Cut))
        .chain([Kept::AtLeastOne, Kept::CodesBy128])
        .chain(DType::NARROW.map(Kept::BitsOf))
        .chain([7, 8, 15, 16, 128].map(Kept::LargestOver))
        .chain([Kept::WholeOffset])
        .chain(rotated)
        .chain(grown)
        .filter_map(|kept| Law::of(Form::Kept(kept), scene))
        .collect()
}

/// Rows under the scale of another cache, where caches of numbers have scales; without it, or by it twice.
pub(super) fn scales<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (node, arithmetic) = (scene.node(), scene.e.side.arithmetic);
    let of = |id| f64::from(arithmetic.kv_scale(id).unwrap_or(1.0));
    let own = of(node.id);
    let is_cache = |node: &&Node| matches!(node.op.anatomy(), Anatomy::State(State::Rows(_)));
    if !is_cache(&node) || own == 1.0 {
        return Vec::new();
    }
    let mut all = vec![("no scale".to_owned(), 1.0 / own), ("its scale twice".to_owned(), own)];
    let others = scene.e.oracle.graph.nodes.iter().filter(|other| other.id != node.id).filter(is_cache);
    let others: Vec<(String, f64)> = others.map(|other| (format!("the scale of {}", other.id), of(other.id))).collect();
    all.extend(others.iter().map(|(what, scale)| (what.clone(), scale / own)));
    let law = |(what, by): (String, f64)| {
        Law::new(format!("the rows are read by {what}"), 0, move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let value: Vec<f64> = want.iter().map(|v| v * by).collect();
            let reach = |(v, b): (&f64, &f32)| (f64::from(*b) * by.abs() + 4.0 * UNIT * v.abs()) as f32;
            Some(Row { bound: value.iter().zip(bound).map(reach).collect(), value })
        })
    };
    let mut stored = vec![("are not divided by the scale".to_owned(), 1.0)];
    stored.push(("are multiplied by the scale and not divided by it".to_owned(), 1.0 / own));
    stored.extend(others.into_iter().map(|(what, scale)| (format!("are divided by {what}"), scale)));
    let number = arithmetic.kv.of(node.is_of_values()).number();
    let stored = stored.into_iter().filter(|(_, scale)| *scale != own).filter_map(|(what, scale)| {
        let number = number?;
        Some(Law::new(format!("the rows {what} when they are stored"), 0, move |row: &RowAt| {
            let rows = given(scene, row.place.position, scene.token(row).1, row.range.len())?;
            let most = number.largest();
            let code = |v: &f32| f64::from(number.round((f64::from(*v) / scale).clamp(-most, most) as f32));
            let value: Vec<f64> = rows.iter().map(|v| own * code(v)).collect();
            // A quotient, or a product with the inverse, may be rounded to the other side of a half.
            let reach = |v: &f32| {
                let exact = f64::from(*v) / scale;
                let [below, above] = [-1.0, 1.0].map(|side| exact * (1.0 + side * 2.0 * UNIT));
                let [below, above] = [below, above].map(|v| f64::from(number.round(v.clamp(-most, most) as f32)));
                (own * (above - below).abs() + 4.0 * UNIT * own * code(v).abs()) as f32
            };
            Some(Row { bound: rows.iter().map(reach).collect(), value })
        }))
    });
    all.into_iter().filter(|(_, by)| *by != 1.0).map(law).chain(stored).collect()
}
