//! Rows of a cache that are converted to f16 or bf16 otherwise than to the nearest number: what a conversion in integers slips
//! into; and rows that are rounded twice, by way of another format.

use super::rounded::{cut_to_8, cut_to_11, e4m3, e5m2, eight};
use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::RowAt;
use half::{bf16, f16};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::State;

/// Bits of the significand that are cut off, and of a format that is as narrow.
#[derive(Clone, Copy)]
struct To {
    name: &'static str,
    cut: u32,
    /// By how much the exponent of f32 is larger.
    bias: u32,
}

const ALL: [To; 2] = [To { name: "f16", cut: 13, bias: 112 }, To { name: "bf16", cut: 16, bias: 0 }];

/// The value of an f32 in a narrower format, by its bits without the sign.
type Convert = fn(u32, To) -> u32;

/// What the nearest number adds before bits are cut off.
fn half(bits: u32, to: To) -> u32 {
    (1 << (to.cut - 1)) - 1 + (bits >> to.cut & 1)
}

/// The exponent as the format has it, and the fraction.
fn parts(bits: u32, to: To) -> (u32, u32) {
    ((bits >> 23).wrapping_sub(to.bias), bits & 0x7f_ffff)
}

/// An f32 of these.
fn joined(exponent: u32, fraction: u32, to: To) -> u32 {
    (exponent + to.bias) << 23 | fraction << to.cut
}

const WAYS: [(&str, Convert); 5] = [
    ("a carry of the fraction into the exponent is joined to it bit by bit (OR) instead of added", |bits, to| {
        let (exponent, fraction) = parts(bits, to);
        let rounded = (fraction + half(bits, to)) >> to.cut;
        let width = 23 - to.cut;
        joined(exponent | rounded >> width, rounded & ((1 << width) - 1), to)
    }),
    ("a carry of the fraction into the exponent is lost", |bits, to| {
        let (exponent, fraction) = parts(bits, to);
        joined(exponent, (fraction + half(bits, to)) >> to.cut & ((1 << (23 - to.cut)) - 1), to)
    }),
    ("the bit that rounds up is joined bit by bit (OR) instead of added", |bits, to| {
        let up = u32::from((bits & ((1 << to.cut) - 1)) + half(bits, to) >= 1 << to.cut);
        (bits >> to.cut | up) << to.cut
    }),
    ("numbers below the least normal one become 0", |bits, to| {
        let rounded = bits.wrapping_add(half(bits, to)) >> to.cut << to.cut;
        if bits >> 23 <= to.bias { 0 } else { rounded }
    }),
    ("what is cut off always rounds up, away from zero", |bits, to| {
        bits.wrapping_add((1 << to.cut) - 1) >> to.cut << to.cut
    }),
];

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !matches!(scene.node().op.anatomy(), Anatomy::State(State::Rows(_))) {
        return Vec::new();
    }
    let of = |to: To, (how, convert): (&'static str, Convert)| {
        Law::new(format!("rows are converted to {} otherwise: {how}", to.name), 1, move |row: &RowAt| {
            let given = given(scene, row)?;
            let value = given.iter().map(|v| {
                let (sign, bits) = (v.to_bits() & 0x8000_0000, v.to_bits() & 0x7fff_ffff);
                // What has no normal number is converted in another way.
                let normal = (to.bias + 1..=to.bias + if to.cut == 13 { 30 } else { 254 }).contains(&(bits >> 23));
                let below = bits >> 23 <= to.bias;
                let told = normal || below && how.contains("below");
                let value = if told { f32::from_bits(sign | convert(bits, to)) } else { f32::NAN };
                f64::from(value)
            });
            Some(Row { value: value.collect(), bound: vec![0.0; given.len()] })
        })
    };
    let twice = |(how, convert): Conversion| {
        Law::new(format!("rows are rounded {how}"), 1, move |row: &RowAt| {
            let given = given(scene, row)?;
            Some(Row { value: given.iter().map(|v| f64::from(convert(*v))).collect(), bound: vec![0.0; given.len()] })
        })
    };
    let mut all: Vec<Law<'a>> = ALL.into_iter().flat_map(|to| WAYS.map(|way| of(to, way))).collect();
    all.extend(TWICE.map(twice));
    all
}

/// In words, and what becomes of a number.
type Conversion = (&'static str, fn(f32) -> f32);

const TWICE: [Conversion; 14] = [
    ("to f16 first, and then to fp8 (e4m3)", |x| e4m3(f16::from_f32(x).to_f32())),
    ("to bf16 first, and then to fp8 (e4m3)", |x| e4m3(bf16::from_f32(x).to_f32())),
    ("to fp8 (e4m3) after the bits beyond f16's are cut off", |x| e4m3(cut_to_11(x))),
    ("to fp8 (e4m3) after the bits beyond bf16's are cut off", |x| e4m3(cut_to_8(x))),
    ("to f16 first, and then to fp8 (e5m2)", |x| e5m2(f16::from_f32(x).to_f32())),
    ("to bf16 first, and then to fp8 (e5m2)", |x| e5m2(bf16::from_f32(x).to_f32())),
    ("to fp8 (e5m2) after the bits beyond f16's are cut off", |x| e5m2(cut_to_11(x))),
    ("to fp8 (e5m2) after the bits beyond bf16's are cut off", |x| e5m2(cut_to_8(x))),
    ("to fp8 (e4m3) with 240 as the largest number", |x| eight(x, 3, -6, 240.0)),
    ("to fp8 (e4m3) without numbers below the least normal one", |x| if x.abs() < 0.015_625 { 0.0 } else { e4m3(x) }),
    ("to bf16 first, and then to f16", |x| f16::from_f32(bf16::from_f32(x).to_f32()).to_f32()),
    ("to f16 after the bits beyond bf16's are cut off", |x| f16::from_f32(cut_to_8(x)).to_f32()),
    ("to f16 first, and then to bf16", |x| bf16::from_f32(f16::from_f32(x).to_f32()).to_f32()),
    ("to bf16 after the bits beyond f16's are cut off", |x| bf16::from_f32(cut_to_11(x)).to_f32()),
];

/// A row as the step gave it that wrote it.
fn given(scene: &Scene<'_>, row: &RowAt) -> Option<Vec<f32>> {
    let steps = &scene.e.side.capture.steps;
    let position = row.place.position;
    let wrote = (0..=row.step).find(|s| (steps[*s].first..steps[*s].keys()).contains(&position))?;
    let tensor = scene.operand(wrote, 0)?;
    let from = scene.token(row).1;
    let token = scene.numbered(wrote, position - steps[wrote].first)?;
    (token < tensor.rows()).then(|| tensor.row(token))?.get(from..from + row.range.len()).map(<[f32]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::{ALL, WAYS, half};
    use half::f16;

    #[test]
    fn conversions_differ_from_the_nearest_number_where_they_say() {
        let to = ALL[0];
        let made = |way: usize, x: f32| f32::from_bits(WAYS[way].1(x.to_bits(), to));
        for x in [1.0f32, 1.2345, 3.9, 0.3333, 700.0, 0.001] {
            assert_eq!([0, 1].map(|way| made(way, x)), [f16::from_f32(x).to_f32(); 2], "{x}");
        }
        // 1.9999 rounds to 2; the exponent of 1 is odd in f16, that of 2 is even.
        assert_eq!([0, 1].map(|way| made(way, 1.9999)), [1.0, 1.0]);
        assert_eq!([0, 1].map(|way| made(way, 3.9999)), [4.0, 2.0]);
        assert_eq!(made(4, 1.0001), f16::from_f32(1.001).to_f32());
        assert_eq!(half(0, to), 0xfff);
    }
}
