//! Stored weights decoded otherwise: the scale or offset of another run, an offset that is lost, bits of the quants that
//! are, quants in another order.
//!
//! A weight of a block format is `scale · quant + offset`. Which these are follows from the format's own decoder: it is
//! given the block with all quants 0, and with all quants 1.

use super::index::Index;
use super::lanes::{ELEMENTS, WHOLE};
use super::rounded::{HALVES, Rounding};
use super::scene::Scene;
use super::terms::{Sums, least_squares};
use super::{Law, Row, tables};
use crate::verdict::RowAt;
use half::{bf16, f16};
use qdiff_engine::model::WeightSource;
use qdiff_engine::model::fault::Read;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, Gather};
use qdiff_engine::quant::{self, Field, Format, GgmlType, Offset, Part, Quants};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A row of a weight, taken apart.
pub(super) struct Apart {
    pub(super) quant: Vec<f64>,
    pub(super) scale: Vec<f64>,
    pub(super) offset: Vec<f64>,
    /// What a scale of one would be, where scales are signed bytes or packed in 6 bits; and an offset of one.
    pub(super) unit: Option<Vec<f64>>,
    offset_unit: Vec<f64>,
}

impl Apart {
    /// The scale of a weight with the integer of the scale in this row's place `at`, and the same of the offset.
    pub(super) fn scale_in(&self, own: &Self, k: usize, at: usize) -> f64 {
        let unit = |row: &Self, k: usize| row.unit.as_ref().map_or(0.0, |unit| unit[k]);
        integer(self.scale[at], unit(self, at)) * unit(own, k)
    }

    pub(super) fn offset_in(&self, own: &Self, k: usize, at: usize) -> f64 {
        integer(self.offset[at], self.offset_unit[at]) * own.offset_unit[k]
    }
}

/// How many units a value is.
fn integer(value: f64, unit: f64) -> f64 {
    if unit == 0.0 { 0.0 } else { (value / unit).round() }
}

/// A row of a weight, decoded otherwise.
pub(super) type Decoded<'a> = Rc<dyn Fn(usize) -> Option<Rc<Vec<f64>>> + 'a>;

/// What is known by row: many elements are of the same.
struct ByRow<T>(RefCell<HashMap<usize, Option<Rc<T>>>>);

impl<T> ByRow<T> {
    fn new() -> Self {
        Self(RefCell::default())
    }

    fn get(&self, row: usize, make: impl FnOnce() -> Option<T>) -> Option<Rc<T>> {
        if let Some(known) = self.0.borrow().get(&row) {
            return known.clone();
        }
        let made = make().map(Rc::new);
        self.0.borrow_mut().insert(row, made.clone());
        made
    }
}

/// What an element takes of another one, by index: of so many.
type Place = fn(usize, Quants, usize) -> usize;

fn of_format(weights: &dyn WeightSource, name: &str) -> Option<(&'static Format, Quants)> {
    let ty = weights.ggml_type(name);
    let format = quant::FORMATS.iter().find(|f| f.ty == ty)?;
    Some((format, format.quants()?))
}

pub(super) fn apart(weights: &dyn WeightSource, name: &str, row: usize) -> Option<Apart> {
    let (format, _) = of_format(weights, name)?;
    let ((n, rows), bytes) = (weights.extent(name), format.ty.type_size());
    let stored = (row < rows).then(|| weights.row_bytes(name, row))?;
    let decode = |bytes: &[u8]| {
        let mut out = vec![0f32; n];
        quant::dequantize(format.ty, bytes, &mut out);
        out
    };
    let quants_of = |stored: &[u8], byte: u8| quant::with_quants(format.ty, stored, byte);
    let alike = |byte: u8| decode(&quants_of(stored, byte));
    let one = (0..8).step_by(format.bits(Part::Quants)).fold(0, |byte, bit| byte | 1 << bit);
    // The scale of a block alone, where others are multiplied with it.
    let of_bytes =
        || format.fields.iter().filter(|f| matches!(f.part, Part::ByteScales | Part::PackedScales) || are_signed(f));
    let scaled_by_one = |byte: u8| {
        let mut all = quants_of(stored, byte);
        for block in all.chunks_mut(bytes) {
            for field in of_bytes() {
                let (part, packed) = (&mut block[field.bytes.clone()], field.part == Part::PackedScales);
                if are_signed(field) {
                    // 33 each, less 32 (`q3_k.rs`).
                    part.iter_mut().enumerate().for_each(|(i, b)| *b = if i < 8 { 0x11 } else { 0xaa });
                    continue;
                }
                part.fill(1);
                // The last third holds two halves of a byte each (`k_blocks.rs`).
                let halves = if packed { part.len() / 3 } else { 0 };
                part.iter_mut().rev().take(halves).for_each(|b| *b = 0x11);
            }
        }
        decode(&all)
    };
    let units =
        || scaled_by_one(one).into_iter().zip(scaled_by_one(0)).map(|(one, zero)| f64::from(one) - f64::from(zero));
    let unit = of_bytes().next().map(|_| units().collect());
    let offset_unit =
        if unit.is_some() { scaled_by_one(0).iter().map(|v| f64::from(*v)).collect() } else { Vec::new() };
    let (values, zero, one) = (decode(stored), alike(0), alike(one));
    let wide = |v: &f32| f64::from(*v);
    let scale: Vec<f64> = one.iter().zip(&zero).map(|(one, zero)| wide(one) - wide(zero)).collect();
    let quant = values.iter().zip(&zero).zip(&scale).map(|((v, z), s)| match *s {
        0.0 => 0.0,
        s => ((wide(v) - wide(z)) / s).round(),
    });
    Some(Apart { quant: quant.collect(), offset: zero.iter().map(wide).collect(), scale, unit, offset_unit })
}

/// Changes the bytes of a field.
type Bytes = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// The byte and the bit of a weight, of so many bytes.
type BitOf = fn(usize, usize) -> (usize, usize);

/// A weight of a row that was taken apart, by its index.
type Value = Arc<dyn Fn(&Apart, usize) -> f64 + Send + Sync>;

/// A way to read weights of one format that a law found in one of them: it may be that of others.
#[derive(Clone)]
pub struct Reading(pub(in crate::diagnose) Arc<Read>);

impl Reading {
    /// Weights of other formats are read as they should be.
    pub(super) fn of(
        ty: GgmlType, decode: impl Fn(&dyn WeightSource, &str, usize) -> Option<Vec<f64>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |source: &dyn WeightSource, name: &str, row: usize, out: &mut [f32]| {
            let other = if source.ggml_type(name) == ty { decode(source, name, row) } else { None };
            match other.filter(|other| other.len() == out.len()) {
                Some(other) => out.iter_mut().zip(other).for_each(|(o, v)| *o = v as f32),
                None => source.rows(name, row, out),
            }
        }))
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

/// The words beside it tell it from others.
impl PartialEq for Reading {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A way to decode the rows of a weight otherwise, in words.
pub(super) struct Way<'a> {
    pub(super) what: String,
    pub(super) decoded: Decoded<'a>,
    /// For other weights, where it depends on the format alone.
    pub(super) reading: Option<Reading>,
}

/// A row decoded with the bytes of a field of every block changed.
fn changed(source: &dyn WeightSource, name: &str, row: usize, (field, change): (&Field, &Bytes)) -> Option<Vec<f64>> {
    let (ty, (n, rows)) = (source.ggml_type(name), source.extent(name));
    let mut bytes = (row < rows).then(|| source.row_bytes(name, row).to_vec())?;
    bytes.chunks_mut(ty.type_size()).for_each(|block| change(&mut block[field.bytes.clone()]));
    let mut out = vec![0f32; n];
    quant::dequantize(ty, &bytes, &mut out);
    // A scale that becomes NaN or infinite tells nothing.
    out.iter().all(|v| v.is_finite()).then(|| out.into_iter().map(f64::from).collect())
}

/// The ways to read the weight of a linear stage that other weights may be read by too, in words.
pub(super) fn readings(scene: &Scene<'_>, sums: &Sums<'_>) -> HashMap<String, Reading> {
    if !scene.node().op.anatomy().multiplies_weights() {
        return HashMap::new();
    }
    let ways = ways(scene, &scene.node().weights[0].name, Some(sums));
    ways.into_iter().filter_map(|way| Some((way.what, way.reading?))).collect()
}

/// Ways to decode the rows of weight `name` otherwise, in words.
pub(super) fn ways<'a>(scene: &'a Scene<'a>, name: &'a str, sums: Option<&Sums<'a>>) -> Vec<Way<'a>> {
    let source: &'a dyn WeightSource = &*scene.e.oracle.weights;
    let ty = source.ggml_type(name);
    let Some(format) = quant::FORMATS.iter().find(|f| f.ty == ty && ty.block_size() > 1) else {
        return plain(scene, name, sums);
    };
    let block = ty.block_size();
    let mut all: Vec<Way<'a>> = Vec::new();
    for field in format.fields {
        let size = field.bytes.len();
        let mut changes: Vec<(String, Bytes)> = Vec::new();
        for bit in 0..8 {
            let (cleared, set) = (!(1u8 << bit), 1u8 << bit);
            changes.push((
                format!("bit {bit} of each byte is lost"),
                Arc::new(move |b| b.iter_mut().for_each(|b| *b &= cleared)),
            ));
            changes.push((
                format!("bit {bit} of each byte is always set"),
                Arc::new(move |b| b.iter_mut().for_each(|b| *b |= set)),
            ));
        }
        changes.push((
            "the low half of each byte is lost".to_owned(),
            Arc::new(|b| b.iter_mut().for_each(|b| *b &= 0xf0)),
        ));
        changes.push((
            "the high half of each byte is lost".to_owned(),
            Arc::new(|b| b.iter_mut().for_each(|b| *b &= 0x0f)),
        ));
        if size > 1 {
            changes.push(("its first byte is lost".to_owned(), Arc::new(|b| b[0] = 0)));
            changes.push(("its last byte is lost".to_owned(), Arc::new(|b| b[b.len() - 1] = 0)));
            changes.push(("its bytes are in reverse order".to_owned(), Arc::new(|b| b.reverse())));
            changes.push(("its bytes are read one on, wrapping around".to_owned(), Arc::new(|b| b.rotate_left(1))));
            changes.push(("its bytes are read one back, wrapping around".to_owned(), Arc::new(|b| b.rotate_right(1))));
            changes.push(("its first byte is read for all".to_owned(), Arc::new(|b| b.fill(b[0]))));
        }
        if field.part == Part::PackedScales && size.is_multiple_of(4) {
            for (from, bit) in (0..size).step_by(4).flat_map(|from| [0u8, 2, 4, 6].map(|bit| (from, bit))) {
                let mask = !(3u8 << bit);
                changes.push((
                    format!("bits {bit} and {} of the bytes {from}..{} are lost", bit + 1, from + 3),
                    Arc::new(move |b| b[from..from + 4].iter_mut().for_each(|b| *b &= mask)),
                ));
            }
        }
        // Single bits of weights, one weight after the other, or one of each byte: as one format has them and not another.
        if field.part == Part::HighBits && 8 * size == block {
            let turned = |to: BitOf, from: BitOf| -> Bytes {
                Arc::new(move |b| {
                    let (old, n) = (b.to_vec(), b.len());
                    b.fill(0);
                    for k in 0..8 * n {
                        let ((byte, bit), (other, at)) = (to(k, n), from(k, n));
                        b[byte] |= (old[other] >> at & 1) << bit;
                    }
                })
            };
            let (in_a_row, of_each): (BitOf, BitOf) = (|k, _| (k / 8, k % 8), |k, n| (k % n, k / n));
            let what = "the bits are read eight of a byte, one after the other, and not one of each byte";
            changes.push((what.to_owned(), turned(of_each, in_a_row)));
            let what = "the bits are read one of each byte, and not eight of a byte, one after the other";
            changes.push((what.to_owned(), turned(in_a_row, of_each)));
            let halves: BitOf = |k, n| {
                let at = if k < 4 * n { 2 * k } else { 2 * (k - 4 * n) + 1 };
                (at / 8, at % 8)
            };
            let parity: BitOf = |k, n| ((k % 2 * 4 * n + k / 2) / 8, (k % 2 * 4 * n + k / 2) % 8);
            let what = "the bits are read as if those of both halves of a block stood in turn, and not one half after the other";
            changes.push((what.to_owned(), turned(in_a_row, halves)));
            let what = "the bits are read as if those of all even weights stood before those of the odd ones";
            changes.push((what.to_owned(), turned(in_a_row, parity)));
        }
        for (what, change) in changes {
            let (known, own) = (ByRow::new(), change.clone());
            all.push(Way {
                what: format!("of the field {} of the stored blocks {what}", field.name),
                decoded: Rc::new(move |row| known.get(row, || changed(source, name, row, (field, &own)))),
                reading: Some(Reading::of(ty, move |source, name, row| changed(source, name, row, (field, &change)))),
            });
        }
    }
    all.extend(streams(scene, name));
    let of_others = elsewhere(scene, name, format).into_iter();
    all.extend(of_others.filter(|way| sums.is_none_or(|sums| gives(scene, sums, &way.decoded))));
    all.extend(tables::of(scene, name, sums));
    let Some(quants) = format.quants() else { return all };
    let (run, low) = (quants.run, format.bits(Part::Quants) as u32);
    let bits = low + format.bits(Part::HighBits) as u32;
    let taken_apart = Rc::new(ByRow::new());
    let taken_apart_again = taken_apart.clone();
    let mut add = |what: String, f: Value| {
        let (known, taken_apart, own) = (ByRow::new(), taken_apart.clone(), f.clone());
        let value = |apart: &Apart, f: &Value| (0..apart.quant.len()).map(|k| f(apart, k)).collect::<Vec<f64>>();
        let decode = move |row: usize| {
            let apart = taken_apart.get(row, || apart(source, name, row))?;
            Some(value(&apart, &own))
        };
        all.push(Way {
            what,
            decoded: Rc::new(move |row| known.get(row, || decode(row))),
            reading: Some(Reading::of(ty, move |source, name, row| Some(value(&apart(source, name, row)?, &f)))),
        });
    };
    let block_of = move |k: usize| k / block * block;
    type From = Box<dyn Fn(usize) -> Option<usize> + Send + Sync>;
    let mut places: Vec<(String, From)> = vec![
        (format!("of the {run} weights before"), Box::new(move |k| k.checked_sub(run))),
        (format!("of the {run} weights after"), Box::new(move |k| Some(k + run))),
        ("of the row's first block".to_owned(), Box::new(move |k| Some(k % block))),
    ];
    places.extend([2, 4, 8].map(|n| -> (String, From) {
        let each = n * run;
        (format!("of the first {run} of their {each}"), Box::new(move |k| Some(k / each * each + k % run)))
    }));
    if run < block {
        places.extend([
            (format!("of the other {run} of their {}", 2 * run), Box::new(move |k| Some(k ^ run)) as From),
            (format!("of the first {run} of their block"), Box::new(move |k| Some(block_of(k) + k % run))),
            (
                format!("of the same {run} in the first half of their block"),
                Box::new(move |k| Some(block_of(k) + k % (block / 2))),
            ),
            ("of the block before".to_owned(), Box::new(move |k: usize| k.checked_sub(block))),
            ("of the block after".to_owned(), Box::new(move |k| Some(k + block))),
        ]);
    } else {
        places.push(("of the other block of their pair".to_owned(), Box::new(move |k| Some(k ^ block))));
    }
    let of_its_own = matches!(quants.offset, Offset::PerBlock | Offset::PerSubBlock);
    for (where_, from) in places {
        let from: Arc<dyn Fn(usize) -> Option<usize> + Send + Sync> = Arc::from(from);
        let kinds: &[(&str, bool, bool, bool)] = match of_its_own {
            true => &[
                ("the scale", true, false, false),
                ("the offset", false, true, false),
                ("scale and offset", true, true, false),
                ("scale and upper bits", true, false, true),
                ("scale, offset and upper bits", true, true, true),
            ],
            false => &[("the scale", true, true, false), ("scale and upper bits", true, true, true)],
        };
        for &(what, scale, offset, upper) in kinds.iter().filter(|(.., upper)| !upper || bits > low) {
            let from = from.clone();
            let value = move |a: &Apart, k: usize| {
                let other = from(k).filter(|o| *o < a.quant.len()).unwrap_or(k);
                let (s, o) = (if scale { other } else { k }, if offset { other } else { k });
                let lower = |quant: f64| quant.rem_euclid(f64::from(1u32 << low));
                let quant = if upper { a.quant[other] - lower(a.quant[other]) + lower(a.quant[k]) } else { a.quant[k] };
                a.scale[s] * quant + a.offset[o]
            };
            add(format!("each {run} weights are decoded with {what} {where_}"), Arc::new(value));
        }
    }
    let each = if run < block { block / run } else { TOGETHER };
    let known = |row: usize| taken_apart_again.get(row, || apart(source, name, row));
    let kinds: &[(bool, bool)] =
        if of_its_own { &[(true, false), (false, true), (true, true)] } else { &[(true, true)] };
    for &(scale, offset) in kinds {
        let rest = |a: &Apart, k: usize| {
            (if scale { 0.0 } else { a.scale[k] * a.quant[k] }) + if offset { 0.0 } else { a.offset[k] }
        };
        let other = |a: &Apart, k: usize, at: usize| {
            (if scale { a.scale[at] * a.quant[k] } else { 0.0 }) + if offset { a.offset[at] } else { 0.0 }
        };
        let linear = Linear { rest: &rest, other: &other };
        let Some(of) = taken_from(scene, sums, (run, each), &known, &linear) else { continue };
        let what = match (of_its_own, scale, offset) {
            (false, ..) | (_, true, false) => "scales",
            (_, false, _) => "offsets",
            _ => "scales and offsets",
        };
        let what = format!("runs of {run} weights take the {what} of others: {}", taken(&of));
        let value = move |a: &Apart, k: usize| {
            let other = k / (run * each) * run * each + of[k / run % each] * run + k % run;
            let other = Some(other).filter(|o| *o < a.quant.len()).unwrap_or(k);
            let (s, o) = (if scale { other } else { k }, if offset { other } else { k });
            a.scale[s] * a.quant[k] + a.offset[o]
        };
        add(what, Arc::new(value));
    }
    if quants.offset != Offset::None {
        add("the offset is left out".to_owned(), Arc::new(|a, k| a.scale[k] * a.quant[k]));
        add("the offset has the wrong sign".to_owned(), Arc::new(|a, k| a.scale[k] * a.quant[k] - a.offset[k]));
        // Those of sub-blocks are taken off.
        let sign = if matches!(quants.offset, Offset::PerSubBlock) { -1.0 } else { 1.0 };
        let value = move |a: &Apart, k: usize| sign * (a.offset[k] * a.quant[k] + a.scale[k]);
        add("scale and offset are exchanged".to_owned(), Arc::new(value));
        let value = move |a: &Apart, k: usize| a.scale[k] * a.quant[k] + sign * a.scale[k];
        add("the scale is read for the offset".to_owned(), Arc::new(value));
    }
    for (name, round) in HALVES {
        add(
            format!("the scale is rounded to {name} before the quants are multiplied with it"),
            Arc::new(move |a, k| round(a.scale[k]) * a.quant[k] + a.offset[k]),
        );
        add(
            format!("scale times quant is rounded to {name} before the offset is added"),
            Arc::new(move |a, k| round(a.scale[k] * a.quant[k]) + a.offset[k]),
        );
        if quants.offset != Offset::None {
            add(
                format!("the offset is rounded to {name}"),
                Arc::new(move |a, k| a.scale[k] * a.quant[k] + round(a.offset[k])),
            );
            add(
                format!("scale and offset are rounded to {name} before the quants are multiplied"),
                Arc::new(move |a, k| round(a.scale[k]) * a.quant[k] + round(a.offset[k])),
            );
            add(
                format!(
                    "weights are made in {name}: scale and offset, their product with the quants and the sum are rounded"
                ),
                Arc::new(move |a, k| round(round(round(a.scale[k]) * a.quant[k]) + round(a.offset[k]))),
            );
        }
    }
    let power = |x: f64| if x == 0.0 { 0.0 } else { x.abs().log2().floor().exp2().copysign(x) };
    let nearest = |x: f64| if x == 0.0 { 0.0 } else { x.abs().log2().round().exp2().copysign(x) };
    let scales: [Rounding; 4] = [
        ("of the scale only the exponent is kept", power),
        ("the scale is rounded to a power of two", nearest),
        ("the scale has the wrong sign", |x| -x),
        ("the sign of the scale is lost", f64::abs),
    ];
    for (what, f) in scales {
        // A constant that is taken off every quant is scaled with it.
        let value = move |a: &Apart, k: usize| match (of_its_own, a.scale[k]) {
            (true, s) => f(s) * a.quant[k] + a.offset[k],
            (false, 0.0) => 0.0,
            (false, s) => f(s) * (a.quant[k] + a.offset[k] / s),
        };
        add(what.to_owned(), Arc::new(value));
    }
    for by in [-1.0f64, 1.0, -0.5, 0.5, -2.0, 2.0, -4.0, 4.0, -8.0, 8.0, -16.0, 16.0, -32.0, 32.0] {
        let side = if by < 0.0 { "less" } else { "more" };
        let count = if by.abs() == 1.0 { "one".to_owned() } else { by.abs().to_string() };
        let what = format!("quants are {side} by {count}");
        add(what, Arc::new(move |a, k| a.scale[k] * (a.quant[k] + by) + a.offset[k]));
    }
    for bit in 0..bits.min(8) {
        let name = match bit {
            0 => "the lowest bit".to_owned(),
            b if b + 1 == bits => "the highest bit".to_owned(),
            b => format!("bit {b}"),
        };
        let without = move |q: f64| f64::from(((q as i64) & !(1 << bit)) as i16);
        let with = move |q: f64| f64::from(((q as i64) | (1 << bit)) as i16);
        let value = |f: Arc<dyn Fn(f64) -> f64 + Send + Sync>| {
            Arc::new(move |a: &Apart, k: usize| a.scale[k] * f(a.quant[k]) + a.offset[k])
        };
        add(format!("{name} of the quants is lost"), value(Arc::new(without)));
        add(format!("{name} of the quants is always set"), value(Arc::new(with)));
    }
    if bits > low {
        let kept = (1i64 << low) - 1;
        let value = move |a: &Apart, k: usize| a.scale[k] * ((a.quant[k] as i64) & kept) as f64 + a.offset[k];
        add("the upper bits of the quants are lost".to_owned(), Arc::new(value));
        let upper = ((1i64 << bits) - 1) & !kept;
        let value = move |a: &Apart, k: usize| a.scale[k] * ((a.quant[k] as i64) ^ upper) as f64 + a.offset[k];
        add("the upper bits of the quants are inverted".to_owned(), Arc::new(value));
        for run in [64, 32, 16].into_iter().filter(|run| 2 * run <= block) {
            let each = block / run;
            let rest = |a: &Apart, k: usize| a.scale[k] * ((a.quant[k] as i64) & kept) as f64 + a.offset[k];
            let upper = |a: &Apart, k: usize, at: usize| a.scale[k] * ((a.quant[at] as i64) & !kept) as f64;
            let linear = Linear { rest: &rest, other: &upper };
            let Some(of) = taken_from(scene, sums, (run, each), &known, &linear) else { continue };
            let what = format!("runs of {run} weights take the upper bits of their quants from others: {}", taken(&of));
            let value = move |a: &Apart, k: usize| {
                let other = (k / block * block + of[k / run % each] * run + k % run).min(a.quant.len() - 1);
                let quant = ((a.quant[k] as i64) & kept) | ((a.quant[other] as i64) & !kept);
                a.scale[k] * quant as f64 + a.offset[k]
            };
            add(what, Arc::new(value));
        }
        let orders: [(&str, Place); 14] = [
            ("the weight 4 before", |k, _, _| k.saturating_sub(4)),
            ("the weight 8 before", |k, _, _| k.saturating_sub(8)),
            ("the weight 12 before", |k, _, _| k.saturating_sub(12)),
            ("the weight 4 after", |k, _, _| k + 4),
            ("the weight 8 after", |k, _, _| k + 8),
            ("the weight 12 after", |k, _, _| k + 12),
            ("the weight 16 apart, in pairs", |k, _, _| k ^ 16),
            ("the weight 32 apart, in pairs", |k, _, _| k ^ 32),
            ("the weight 64 apart, in pairs", |k, _, _| k ^ 64),
            ("the weight 128 apart, in pairs", |k, _, _| k ^ 128),
            ("the weight after", |k, _, n| (k + 1) % n),
            ("the weight before", |k, _, n| (k + n - 1) % n),
            ("the weight that shares its byte", |k, q, _| k ^ q.stride),
            ("its neighbour in a pair", |k, _, _| k ^ 1),
        ];
        for (of, place) in orders {
            let value = move |a: &Apart, k: usize| {
                let other = place(k, quants, a.quant.len()).min(a.quant.len() - 1);
                let upper = (a.quant[other] as i64) & !kept;
                a.scale[k] * (((a.quant[k] as i64) & kept) | upper) as f64 + a.offset[k]
            };
            add(format!("the upper bits of the quants are those of {of}"), Arc::new(value));
        }
    }
    if format.fields.iter().any(|f| f.part == Part::PackedScales) {
        packed(run, block, &mut add);
    }
    if format.fields.iter().any(are_signed)
        && let Offset::ZeroPoint(zero) = quants.offset
    {
        signed(run, block, f64::from(zero), &mut add);
    }
    if format.fields.iter().any(|f| f.part == Part::ByteScales) {
        let value = |a: &Apart, k: usize| {
            let Some(unit) = a.unit.as_ref().map(|unit| unit[k]) else { return f64::NAN };
            let scale = (a.scale[k] / unit).round().rem_euclid(256.0) * unit;
            // The offset is the scale times a constant.
            scale * (a.quant[k] + a.offset[k] / a.scale[k])
        };
        add("the scales are taken for unsigned".to_owned(), Arc::new(value));
    }
    if quants.offset == Offset::None {
        let value = |a: &Apart, k: usize| a.scale[k] * a.quant[k].rem_euclid(256.0);
        add("the quants are taken for unsigned".to_owned(), Arc::new(value));
    }
    let orders: [(&str, Place); 6] = [
        ("of the weight after", |k, _, n| (k + 1) % n),
        ("of the weight before", |k, _, n| (k + n - 1) % n),
        ("of its neighbour in a pair", |k, _, _| k ^ 1),
        ("of the block's weights in reverse order", |k, q, _| k / q.run * q.run + q.run - 1 - k % q.run),
        ("of the weight that shares its byte: the halves of bytes are exchanged", |k, q, _| k ^ q.stride),
        ("in the order of their bytes, low half first", |k, q, _| {
            let (first, at) = (k / (2 * q.stride) * 2 * q.stride, k % (2 * q.stride));
            first + at / 2 + at % 2 * q.stride
        }),
    ];
    // Where four quants share a byte it has no halves.
    let orders = &orders[..if low < 4 { 4 } else { 6 }];
    for &(of, place) in orders {
        let value = move |a: &Apart, k: usize| {
            let other = Some(place(k, quants, a.quant.len())).filter(|o| *o < a.quant.len()).unwrap_or(k);
            a.scale[k] * a.quant[other] + a.offset[k]
        };
        add(format!("the quants are those {of}"), Arc::new(value));
    }
    all
}

/// Which run takes what belongs to which, of as many as are listed or of the fewest that say the same.
fn taken(of: &[usize]) -> String {
    let each = (1..=of.len())
        .find(|n| of.len().is_multiple_of(*n) && of.iter().enumerate().all(|(i, from)| *from == of[i % n] + i / n * n));
    let each = each.unwrap_or(of.len());
    let others = of.iter().take(each).enumerate().filter(|(i, from)| i != *from);
    let list: Vec<String> = others.map(|(i, from)| format!("run {i} those of run {from}")).collect();
    format!("of each {each}, counted from 0, {}", list.join(", "))
}

/// Scales and offsets of 6 bits each, whose upper two stand apart from the others.
fn packed(run: usize, block: usize, add: &mut impl FnMut(String, Value)) {
    type Sub = fn(usize) -> usize;
    let subs = block / run;
    let sources: [(&str, Sub); 5] = [
        ("of the sub-block 4 apart, in pairs", |b| b ^ 4),
        ("of its neighbour in a pair of sub-blocks", |b| b ^ 1),
        ("of the sub-block after", |b| b + 1),
        ("of the sub-block before", |b| b.wrapping_sub(1)),
        ("of the block's first sub-block", |_| 0),
    ];
    let six = move |a: &Apart, k: usize, of_scale: bool| -> i64 {
        let (value, unit) = if of_scale {
            (a.scale[k], a.unit.as_ref().map_or(0.0, |u| u[k]))
        } else {
            (a.offset[k], a.offset_unit[k])
        };
        if unit == 0.0 { 0 } else { (value / unit).round() as i64 }
    };
    let made = move |a: &Apart,
                     k: usize,
                     (of_scale, of_offset): (bool, bool),
                     change: &dyn Fn(&Apart, usize, bool) -> i64| {
        let scale =
            if of_scale { change(a, k, true) as f64 * a.unit.as_ref().map_or(f64::NAN, |u| u[k]) } else { a.scale[k] };
        let offset = if of_offset { change(a, k, false) as f64 * a.offset_unit[k] } else { a.offset[k] };
        scale * a.quant[k] + offset
    };
    for (name, which) in [("scales", (true, false)), ("offsets", (false, true)), ("scales and offsets", (true, true))] {
        for half in [false, true] {
            // Only those of the second half of the block have their upper bits elsewhere.
            let here = move |k: usize| !half || k % block / run >= subs / 2;
            let of = if half { " in the second half of each block" } else { "" };
            let lost = move |a: &Apart, k: usize, s: bool| if here(k) { six(a, k, s) & 0x0f } else { six(a, k, s) };
            add(
                format!("the upper two bits of the {name} are lost{of}"),
                Arc::new(move |a, k| made(a, k, which, &lost)),
            );
            let exchanged = move |a: &Apart, k: usize, s: bool| {
                if here(k) { six(a, k, s) & 0x0f | six(a, k, !s) & 0x30 } else { six(a, k, s) }
            };
            let other = match which {
                (true, false) => "offsets",
                (false, true) => "scales",
                _ => "other ones",
            };
            add(
                format!("the upper two bits of the {name} are those of the {other}{of}"),
                Arc::new(move |a, k| made(a, k, which, &exchanged)),
            );
            for (place, sub) in sources {
                let mixed = move |a: &Apart, k: usize, s: bool| {
                    let other = k / block * block + sub(k % block / run) * run + k % run;
                    if !here(k) || other / block != k / block || other >= a.quant.len() {
                        return six(a, k, s);
                    }
                    six(a, k, s) & 0x0f | six(a, other, s) & 0x30
                };
                let what = format!("the upper two bits of the {name} are those {place}{of}");
                add(what, Arc::new(move |a, k| made(a, k, which, &mixed)));
            }
        }
    }
}

/// Whether a field holds 16 scales of 6 bits each, less 32.
fn are_signed(field: &Field) -> bool {
    field.part == Part::SubScales && field.bytes.len() == 12
}

/// Scales of 6 bits without offsets, each less 32, whose upper two stand apart from the others; `zero` is taken off the quants.
fn signed(run: usize, block: usize, zero: f64, add: &mut impl FnMut(String, Value)) {
    type Sub = fn(usize) -> Option<usize>;
    let subs = block / run;
    let sources: [(&str, Sub); 6] = [
        ("are lost", |_| None),
        ("are those of the sub-block 8 apart, in pairs", |b| Some(b ^ 8)),
        ("are those of the sub-block 4 apart, in pairs", |b| Some(b ^ 4)),
        ("are those of its neighbour in a pair of sub-blocks", |b| Some(b ^ 1)),
        ("are those of the sub-block after", |b| Some(b + 1)),
        ("are those of the sub-block before", |b| Some(b.wrapping_sub(1))),
    ];
    let six = |a: &Apart, k: usize| match a.unit.as_ref().map_or(0.0, |unit| unit[k]) {
        0.0 => 32,
        unit => (a.scale[k] / unit).round() as i64 + 32,
    };
    for (what, sub) in sources {
        for half in [false, true] {
            let of = if half { " in the second half of each block" } else { "" };
            let value = move |a: &Apart, k: usize| {
                let own = k % block / run;
                let other = sub(own).map(|sub| k / block * block + sub * run + k % run);
                let there = other.is_none_or(|other| other / block == k / block && other < a.quant.len());
                if half && own < subs / 2 || !there {
                    return a.scale[k] * a.quant[k] + a.offset[k];
                }
                let upper = other.map_or(0, |other| six(a, other) & 0x30);
                let scale = (six(a, k) & 0x0f | upper) - 32;
                let quant = if a.scale[k] == 0.0 { a.quant[k] - zero } else { a.quant[k] + a.offset[k] / a.scale[k] };
                scale as f64 * a.unit.as_ref().map_or(f64::NAN, |unit| unit[k]) * quant
            };
            add(format!("the upper two bits of the scales {what}{of}"), Arc::new(value));
        }
    }
    type Read = fn(i64) -> i64;
    let others: [(&str, Read); 3] = [
        ("the scales are read as four bits less 8, and not as six bits less 32", |six| (six & 0x0f) - 8),
        ("the scales are read as four bits, and not as six bits less 32", |six| six & 0x0f),
        ("32 is not taken off the scales", |six| six),
    ];
    for (what, read) in others {
        let value = move |a: &Apart, k: usize| {
            let quant = if a.scale[k] == 0.0 { a.quant[k] - zero } else { a.quant[k] + a.offset[k] / a.scale[k] };
            read(six(a, k)) as f64 * a.unit.as_ref().map_or(f64::NAN, |unit| unit[k]) * quant
        };
        add(what.to_owned(), Arc::new(value));
    }
}

/// What a weight alone adds to a sum, by its index; and what it adds with what is taken from another place.
struct Linear<'f> {
    rest: &'f dyn Fn(&Apart, usize) -> f64,
    other: &'f dyn Fn(&Apart, usize, usize) -> f64,
}

/// For each run of so many that stand together: the run that something is taken from. The sum is linear in that, so least
/// squares gives it, for any order.
fn taken_from(
    scene: &Scene<'_>, sums: Option<&Sums<'_>>, (run, each): (usize, usize),
    apart: &dyn Fn(usize) -> Option<Rc<Apart>>, linear: &Linear<'_>,
) -> Option<Vec<usize>> {
    let Some(sums) = sums else { return shown_from(scene, (run, each), apart, linear) };
    let chosen = sums.sample(ELEMENTS);
    if each < 2 || chosen.len() * 2 < each * each * 3 {
        return None;
    }
    let (mut rows, mut target) = (Vec::new(), Vec::new());
    for &(r, i) in &chosen {
        let row = &scene.e.rows[r];
        let (a, x) = (apart(sums.row_of(row, i)?)?, sums.activations(row)?);
        let (got, _, bound) = scene.element((r, i));
        let weight = 1.0 / f64::from(bound).max(f64::MIN_POSITIVE);
        let (mut sum, mut rest) = (vec![0f64; each * each], 0.0);
        for (k, x) in x.iter().enumerate() {
            let (first, sub) = (k / (run * each) * each * run, k / run % each);
            rest += x * (linear.rest)(&a, k);
            for c in 0..each {
                let at = (first + c * run + k % run).min(a.quant.len() - 1);
                sum[sub * each + c] += weight * x * (linear.other)(&a, k, at);
            }
        }
        scene.count(x.len() * each * 3 + each.pow(4) / 2);
        rows.push(sum);
        target.push(weight * (got - rest));
    }
    others(&least_squares(&rows, &target)?, each)
}

/// The same of an embedding, whose elements are the weights themselves.
fn shown_from(
    scene: &Scene<'_>, (run, each): (usize, usize), apart: &dyn Fn(usize) -> Option<Rc<Apart>>, linear: &Linear<'_>,
) -> Option<Vec<usize>> {
    let mut of: Vec<Vec<usize>> = vec![(0..each).collect(); each];
    let mut wrong = vec![false; each];
    for &(r, i) in &scene.fit {
        let row = &scene.e.rows[r];
        let step = &scene.e.side.capture.steps[row.step];
        let id = *step.tokens.get(row.place.position.checked_sub(step.first)?)? as usize;
        let (a, k, got) = (apart(id)?, scene.token(row).1 + i, scene.element((r, i)).0);
        let (first, sub) = (k / (run * each) * each * run, k / run % each);
        let gives = |c: &usize| {
            let at = (first + c * run + k % run).min(a.quant.len() - 1);
            let value = (linear.rest)(&a, k) + (linear.other)(&a, k, at);
            (value - got).abs() <= 1e-6 * value.abs().max(got.abs())
        };
        of[sub].retain(gives);
        wrong[sub] = true;
    }
    // Runs that show nothing wrong are right.
    let own = |(sub, of): (usize, Vec<usize>)| if wrong[sub] { of.first().copied() } else { Some(sub) };
    let of: Vec<usize> = of.into_iter().enumerate().map(own).collect::<Option<_>>()?;
    of.iter().enumerate().any(|(sub, from)| sub != *from).then_some(of)
}

/// Of which run each run takes its numbers, where each takes those of one run, and some of another: `numbers` has a row of
/// `each` factors for each run.
fn others(numbers: &[f64], each: usize) -> Option<Vec<usize>> {
    let one = |part: &[f64]| {
        let at = (0..each).find(|c| (part[*c] - 1.0).abs() <= WHOLE)?;
        (0..each).all(|c| c == at || part[c].abs() <= WHOLE).then_some(at)
    };
    let of: Vec<usize> = numbers.chunks(each).map(one).collect::<Option<_>>()?;
    of.iter().enumerate().any(|(b, c)| b != *c).then_some(of)
}

/// Rows that begin elsewhere among the blocks of the tensor.
fn streams<'a>(scene: &'a Scene<'a>, name: &'a str) -> Vec<Way<'a>> {
    let ways: [(&str, i64, i64); 4] = [
        ("rows begin one block late", 0, 1),
        ("rows begin one block early", 0, -1),
        ("rows are read one block further apart than they are stored", 1, 0),
        ("rows are read one block nearer to each other than they are stored", -1, 0),
    ];
    let of = |(what, apart, late): (&str, i64, i64)| -> Way<'a> {
        let known = ByRow::new();
        let decode = move |row: usize| {
            let weights = &scene.e.oracle.weights;
            let (ty, (n, rows)) = (weights.ggml_type(name), weights.extent(name));
            let blocks = n / ty.block_size();
            let first = usize::try_from((row * blocks) as i64 + apart * row as i64 + late).ok()?;
            // Within the tensor, as far as it goes.
            let (from, skipped) = (first / blocks, first % blocks * ty.type_size());
            let mut bytes = (from < rows).then(|| weights.row_bytes(name, from)[skipped..].to_vec())?;
            if skipped > 0 {
                bytes.extend_from_slice(&(from + 1 < rows).then(|| weights.row_bytes(name, from + 1))?[..skipped]);
            }
            let mut out = vec![0f32; n];
            quant::dequantize(ty, &bytes, &mut out);
            out.iter().all(|v| v.is_finite()).then(|| out.into_iter().map(f64::from).collect::<Vec<f64>>())
        };
        let decoded = Rc::new(move |row| known.get(row, || decode(row)));
        Way { what: what.to_owned(), decoded, reading: None }
    };
    ways.into_iter().map(of).collect()
}

/// Plain numbers of 16 bits that are read otherwise.
fn plain<'a>(scene: &'a Scene<'a>, name: &'a str, sums: Option<&Sums<'a>>) -> Vec<Way<'a>> {
    type Bits = fn(u16) -> f64;
    let ways: &[(&str, Bits)] = match scene.e.oracle.weights.ggml_type(name) {
        quant::GgmlType::F16 => &[
            ("weights of f16 below its least normal number are taken for 0", |b| {
                if b & 0x7c00 == 0 { 0.0 } else { f16::from_bits(b).to_f64() }
            }),
            ("the bits of weights in f16 are read as bf16", |b| bf16::from_bits(b).to_f64()),
            ("the bytes of weights in f16 are exchanged", |b| f16::from_bits(b.swap_bytes()).to_f64()),
        ],
        quant::GgmlType::BF16 => &[
            ("the bits of weights in bf16 are read as f16", |b| f16::from_bits(b).to_f64()),
            ("the bytes of weights in bf16 are exchanged", |b| bf16::from_bits(b.swap_bytes()).to_f64()),
        ],
        _ => return Vec::new(),
    };
    let of = |&(what, read): &(&str, Bits)| -> Way<'a> {
        let known = ByRow::new();
        let decode = move |row: usize| {
            let weights = &scene.e.oracle.weights;
            let bytes = (row < weights.extent(name).1).then(|| weights.row_bytes(name, row))?;
            let all: Vec<f64> = bytes.chunks_exact(2).map(|b| read(u16::from_le_bytes([b[0], b[1]]))).collect();
            all.iter().all(|v| v.is_finite()).then_some(all)
        };
        let decoded = Rc::new(move |row| known.get(row, || decode(row)));
        Way { what: what.to_owned(), decoded, reading: None }
    };
    ways.iter().map(of).filter(|way| sums.is_none_or(|sums| gives(scene, sums, &way.decoded))).collect()
}

/// Whether a way to decode rows gives some wrong elements. Sums that are much smaller than the right ones are all within
/// the bounds of those: each must be right.
fn gives(scene: &Scene<'_>, sums: &Sums<'_>, decoded: &Decoded<'_>) -> bool {
    let near = |&(r, i): &(usize, usize)| -> Option<bool> {
        let row = &scene.e.rows[r];
        let (w, x) = (decoded(sums.row_of(row, i)?)?, sums.activations(row)?);
        let (mut sum, mut size) = (0.0, 0.0);
        for (w, x) in w.iter().zip(x.iter()) {
            (sum, size) = (sum + w * x, size + (w * x).abs());
        }
        scene.count(4 * w.len());
        Some((scene.element((r, i)).0 - sum).abs() <= 1e-5 * size)
    };
    let chosen = sums.sample(SHOWN);
    !chosen.is_empty() && chosen.iter().all(|at| near(at).unwrap_or(true))
}

/// Fields of blocks that are those of other rows, or of other blocks of the row.
fn elsewhere<'a>(scene: &'a Scene<'a>, name: &'a str, format: &'static Format) -> Vec<Way<'a>> {
    let source: &'a dyn WeightSource = &*scene.e.oracle.weights;
    // Tiles of rows whose later runs have what belongs to the first.
    let runs = |n: usize| {
        let each = [8usize, 16, 32, 64, 128].into_iter().filter(move |each| 2 * each <= n);
        each.flat_map(|each| {
            [Index::Even, Index::First(4), Index::First(8)].map(|of| Index::Runs { each, of: Box::new(of) })
        })
    };
    let maps = |n: usize| -> Vec<Index> {
        let mut all = vec![Index::By(-1), Index::By(1), Index::Is(0), Index::Mirrored];
        all.extend([1, 2, 4, 8, 16, 32].into_iter().filter(|m| *m < n).map(Index::Apart));
        let tiles = [2, 4, 8, 16, 32].into_iter().filter(|m| *m < n);
        all.extend(
            tiles.flat_map(|m| [Index::First(m), Index::Last(m), Index::Reversed(m), Index::Next(m), Index::Before(m)]),
        );
        all
    };
    let (n, rows) = source.extent(name);
    let blocks = n / format.ty.block_size();
    // The rows of the experts stand one after another.
    let of_expert = match scene.node().op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(Some(picked))) if picked.groups > 1 => {
            Some((Index::Mod(rows / picked.groups), true))
        }
        _ => None,
    };
    let mut all = Vec::new();
    for field in format.fields {
        for (index, of_row) in maps(rows)
            .into_iter()
            .chain(runs(rows))
            .map(|i| (i, true))
            .chain(maps(blocks).into_iter().map(|i| (i, false)))
            .chain(of_expert.clone())
        {
            let what = match index {
                Index::Mod(_) => "same row of the first expert".to_owned(),
                _ => index.told(if of_row { "row" } else { "block" }, if of_row { "r" } else { "b" }),
            };
            let of = move |source: &dyn WeightSource, name: &str, row: usize| {
                mixed(source, name, row, (field, &index, of_row))
            };
            let again = of.clone();
            let part = match field.part {
                Part::Scale | Part::Exponent => "scale",
                Part::Offset => "offset",
                _ => "field",
            };
            all.push(Way {
                what: format!("the {part} {} of each stored block is that of the {what}", field.name),
                decoded: Rc::new(move |row| of(source, name, row).map(Rc::new)),
                reading: Some(Reading::of(format.ty, again)),
            });
        }
    }
    all
}

/// A row decoded with a field of every block from another row, or block.
fn mixed(
    source: &dyn WeightSource, name: &str, row: usize, (field, index, of_row): (&Field, &Index, bool),
) -> Option<Vec<f64>> {
    let (ty, (n, rows)) = (source.ggml_type(name), source.extent(name));
    let mut bytes = (row < rows).then(|| source.row_bytes(name, row).to_vec())?;
    let from = if of_row { source.row_bytes(name, index.of(row, rows)?).to_vec() } else { bytes.clone() };
    let (size, blocks) = (ty.type_size(), n / ty.block_size());
    for (b, block) in bytes.chunks_mut(size).enumerate() {
        let there = if of_row { b } else { index.of(b, blocks).unwrap_or(b) };
        block[field.bytes.clone()].copy_from_slice(&from[there * size..][field.bytes.clone()]);
    }
    let mut out = vec![0f32; n];
    quant::dequantize(ty, &bytes, &mut out);
    out.iter().all(|v| v.is_finite()).then(|| out.into_iter().map(f64::from).collect())
}

/// Elements that plain numbers must give.
const SHOWN: usize = 16;

/// A stage whose weights are read as those of another one are.
pub(super) fn by_reading<'a>(scene: &'a Scene<'a>, what: &str, reading: &Reading) -> Option<Law<'a>> {
    let (weight, known, read) = (scene.node().weights.first()?, ByRow::new(), reading.clone());
    let source: &'a dyn WeightSource = &*scene.e.oracle.weights;
    let (n, rows) = source.extent(&weight.name);
    let decoded = move |row: usize| {
        known.get(row, || {
            let mut out = vec![0f32; n];
            (row < rows).then(|| (read.0)(source, &weight.name, row, &mut out))?;
            Some(out.into_iter().map(f64::from).collect::<Vec<f64>>())
        })
    };
    let law = match scene.node().op.anatomy() {
        Anatomy::Gather(Gather::Rows) => embedded(scene, what.to_owned(), decoded),
        Anatomy::Contraction(Contraction::Weight(_)) => {
            let sums = Sums::new(scene)?;
            Law::new(what, 1, move |row: &RowAt| {
                let (bound, from, x) = (scene.e.row(row).2, scene.token(row).1, sums.activations(row)?);
                let value = |i: usize| {
                    let weights = sums.looks_at(from + i).then(|| decoded(sums.row_of(row, i)?)).flatten();
                    scene.count(2 * x.len());
                    weights.map_or(f64::NAN, |weights| weights.iter().zip(x.iter()).map(|(w, x)| w * x).sum())
                };
                Some(Row { value: (0..bound.len()).map(value).collect(), bound: bound.to_vec() })
            })
        }
        _ => return None,
    };
    Some(Law { reads: Some(reading.clone()), ..law })
}

/// An embedding whose rows are decoded so.
fn embedded<'a>(scene: &'a Scene<'a>, what: String, decoded: impl Fn(usize) -> Option<Rc<Vec<f64>>> + 'a) -> Law<'a> {
    Law::new(what, 1, move |row: &RowAt| {
        let step = &scene.e.side.capture.steps[row.step];
        let id = *step.tokens.get(row.place.position.checked_sub(step.first)?)?;
        let value = decoded(id as usize)?.to_vec();
        // Scaled and offset in f32.
        let bound = value.iter().map(|v| (4.0 * qdiff_engine::ops::UNIT * v.abs()) as f32).collect();
        Some(Row { value, bound })
    })
}

/// Blocks of one run that are looked at together.
const TOGETHER: usize = 8;

/// Embeddings decoded otherwise; products are the affair of `altered`.
pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (Anatomy::Gather(Gather::Rows), Some(weight)) = (scene.node().op.anatomy(), scene.node().weights.first())
    else {
        return Vec::new();
    };
    let law = |Way { what, decoded, reading }: Way<'a>| Law {
        reads: reading,
        ..embedded(scene, what, move |row| decoded(row))
    };
    ways(scene, &weight.name, None).into_iter().map(law).collect()
}
