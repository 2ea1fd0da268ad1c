//! What was rounded: outputs that are all numbers of a coarser format, or products whose operands were rounded to one.
//!
//! An output that was rounded is a number of the format, which few f32 values are, and within half a step of the right
//! value (a whole one where bits are cut off). Rounded operands are multiplied again and must give the wrong elements
//! within the bounds of f32 sums, which no other rounding does.

use super::scene::Scene;
use super::terms::Sums;
use super::{Law, Row, Solver, functions, gated, norm, operands};
use crate::verdict::RowAt;
use half::{bf16, f16};
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{Anatomy, UNIT};
use std::collections::BTreeSet;
use std::rc::Rc;

/// A coarser way to keep numbers.
#[derive(Clone, Copy)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) round: fn(f32) -> f32,
    /// Half of its step, relative, or its step where it cuts off.
    unit: f64,
    /// One of as many bits with other exponents: most numbers are rounded alike.
    pub(super) twin: Option<&'static Format>,
}

impl Format {
    /// Whether it gives the next number towards zero and not the nearest.
    fn cuts_off(&self) -> bool {
        (self.round)(1.999_999_9) < 2.0
    }

    /// `told` of a law about this format, which gives way to both names where its twin, f16's TF32, holds as well.
    pub(super) fn law<'a>(
        &'static self, told: impl Fn(&str) -> String, law: impl Fn(&'static Self, String) -> Law<'a>,
    ) -> Law<'a> {
        let both = |twin: &'static Self| {
            let name = format!("{} or {} (both keep 11 bits)", self.name, twin.name);
            (Box::new(law(twin, told(twin.name))), told(&name))
        };
        Law { twin: self.twin.map(both), ..law(self, told(self.name)) }
    }
}

/// Keeps so many bits of a significand of 23, to the nearest even.
fn nearest(x: f32, kept: u32) -> f32 {
    let (bits, drop) = (x.to_bits(), 23 - kept);
    let half = (1 << (drop - 1)) - 1 + (bits >> drop & 1);
    if x.is_finite() { f32::from_bits((bits.wrapping_add(half)) >> drop << drop) } else { x }
}

/// The same, what is half way between two numbers away from zero.
fn away(x: f32, kept: u32) -> f32 {
    let (bits, drop) = (x.to_bits(), 23 - kept);
    if x.is_finite() { f32::from_bits((bits.wrapping_add(1 << (drop - 1))) >> drop << drop) } else { x }
}

/// A number of an 8-bit format of so many bits of significand, whose least exponent and largest value are given.
pub(super) fn eight(x: f32, kept: u32, least: i32, largest: f32) -> f32 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = x.abs().log2().floor().max(least as f32);
    let step = (exponent - kept as f32).exp2();
    ((x / step).round_ties_even() * step).clamp(-largest, largest)
}

/// The nearest number of fp8 with a significand of 3 bits more, or of 2.
pub(super) fn e4m3(x: f32) -> f32 {
    eight(x, 3, -6, 448.0)
}

pub(super) fn e5m2(x: f32) -> f32 {
    eight(x, 2, -14, 57344.0)
}

/// The bits beyond 11, or beyond 8, cut off.
pub(super) fn cut_to_11(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_e000)
}

pub(super) fn cut_to_8(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_0000)
}

static TF32: Format = Format { name: "TF32", round: |x| nearest(x, 10), unit: 1.0 / 2048.0, twin: None };

pub(super) static FORMATS: [&Format; 8] = [
    &Format { name: "bf16", round: |x| bf16::from_f32(x).to_f32(), unit: 1.0 / 256.0, twin: None },
    &Format { name: "bf16, cut off instead of rounded,", round: cut_to_8, unit: 1.0 / 128.0, twin: None },
    &Format { name: "f16", round: |x| f16::from_f32(x).to_f32(), unit: 1.0 / 2048.0, twin: Some(&TF32) },
    &TF32,
    // As `cvt.rna.tf32.f32` rounds.
    &Format { name: "TF32, halves away from zero,", round: |x| away(x, 10), unit: 1.0 / 2048.0, twin: None },
    &Format {
        name: "f16 or TF32 (both keep 11 bits), cut off instead of rounded,",
        round: cut_to_11,
        unit: 1.0 / 1024.0,
        twin: None,
    },
    &Format { name: "fp8 (e4m3)", round: e4m3, unit: 1.0 / 16.0, twin: None },
    &Format { name: "fp8 (e5m2)", round: e5m2, unit: 1.0 / 8.0, twin: None },
];

/// A name, and what becomes of a number.
pub(super) type Rounding = (&'static str, fn(f64) -> f64);

/// The formats of half as many bits as f32, as numbers of f64 are rounded to them: by way of f32, since `from_f64` looks at
/// the upper 32 bits alone and takes what lies a little beyond the middle of two numbers for the middle.
pub(super) const HALVES: [Rounding; 2] =
    [("bf16", |x| bf16::from_f32(x as f32).to_f64()), ("f16", |x| f16::from_f32(x as f32).to_f64())];

/// Rows of a scale: quantised together.
#[derive(Clone, Copy)]
pub(super) struct Quantised {
    pub(super) name: &'static str,
    /// Values that share a scale; 0 for the whole row.
    run: usize,
    levels: f32,
    /// What becomes of a whole number that is kept in digits of 8 bits.
    digits: fn(i32) -> i32,
    /// Whether the scale is a power of two, which takes the largest to below `levels`.
    power: bool,
}

const fn quantised_to(name: &'static str, run: usize, levels: f32) -> Quantised {
    Quantised { name, run, levels, digits: |q| q, power: false }
}

/// The lower digit as a signed number, the upper one as it is without what the lower one carries.
const fn without_carry(name: &'static str, run: usize) -> Quantised {
    Quantised { name, run, levels: 32767.0, digits: |q| (q & !0xff) + (q as i8) as i32, power: false }
}

/// Four signed digits, which are exact but for a carry that one of them loses.
const fn four_digits(name: &'static str, run: usize, digits: fn(i32) -> i32) -> Quantised {
    Quantised { name, run, levels: 1_073_741_824.0, digits, power: true }
}

/// The digit with this number as a signed one, after those below it have carried: its excess goes to no other.
fn loses_carry<const DIGIT: u32>(q: i32) -> i32 {
    let below: i32 = (0..DIGIT).map(|lower| 128 << (8 * lower)).sum();
    let digit = q.wrapping_add(below) >> (8 * DIGIT) & 0xff;
    if digit >= 128 { q.wrapping_sub(1 << (8 * (DIGIT + 1))) } else { q }
}

pub(super) const QUANTISED: &[Quantised] = &[
    quantised_to("int8, one scale a row", 0, 127.0),
    quantised_to("int8, one scale for 32", 32, 127.0),
    quantised_to("int8, one scale for 128", 128, 127.0),
    quantised_to("int8, one scale for 16", 16, 127.0),
    quantised_to("int8, one scale for 64", 64, 127.0),
    quantised_to("int8, one scale for 256", 256, 127.0),
    quantised_to("int4, one scale a row", 0, 7.0),
    quantised_to("int4, one scale for 32", 32, 7.0),
    quantised_to("int4, one scale for 128", 128, 7.0),
    without_carry("two digits of 8 bits, one scale a row, without what the lower one carries,", 0),
    without_carry("two digits of 8 bits, one scale for 32, without what the lower one carries,", 32),
    without_carry("two digits of 8 bits, one scale for 128, without what the lower one carries,", 128),
    four_digits("four digits of 8 bits for each 32 (what the lowest one carries is lost)", 32, loses_carry::<0>),
    four_digits("four digits of 8 bits for each 32 (what the second one carries is lost)", 32, loses_carry::<1>),
    four_digits("four digits of 8 bits for each 32 (what the third one carries is lost)", 32, loses_carry::<2>),
    four_digits("four digits of 8 bits for each 256 (what the lowest one carries is lost)", 256, loses_carry::<0>),
    four_digits("four digits of 8 bits for each 256 (what the second one carries is lost)", 256, loses_carry::<1>),
    four_digits("four digits of 8 bits for each 256 (what the third one carries is lost)", 256, loses_carry::<2>),
    Quantised {
        digits: |q| q & !0xff,
        ..quantised_to("the upper of two digits of 8 bits, one scale a row,", 0, 32767.0)
    },
    Quantised {
        digits: |q| q & !0xff,
        ..quantised_to("the upper of two digits of 8 bits, one scale for 32,", 32, 32767.0)
    },
];

impl Quantised {
    pub(super) fn apply(self, row: &mut [f32]) {
        let run = if self.run == 0 { row.len().max(1) } else { self.run };
        for part in row.chunks_mut(run) {
            let largest = part.iter().fold(0f32, |m, v| m.max(v.abs()));
            if self.power && largest > 0.0 && largest.is_finite() {
                // The next power of two above the largest becomes that of the levels.
                let scale = (f64::from(largest).log2().floor() + 1.0).exp2() / f64::from(self.levels);
                let whole = |v: f32| (f64::from(v) / scale).round_ties_even() as i32;
                part.iter_mut().for_each(|v| *v = (f64::from((self.digits)(whole(*v))) * scale) as f32);
                continue;
            }
            let scale = largest / self.levels;
            if scale > 0.0 {
                part.iter_mut().for_each(|v| *v = (self.digits)((*v / scale).round() as i32) as f32 * scale);
            }
        }
    }
}

type Change = Rc<dyn Fn(&mut [f32])>;

/// What may be rounded: weights, activations.
const OPERANDS: [(&str, (bool, bool)); 3] = [
    ("the weights are", (true, false)),
    ("the activations are", (false, true)),
    ("weights and activations are", (true, true)),
];

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let mut all = outputs(scene);
    all.extend(quantised(scene));
    all.extend(added(scene));
    if !scene.node().op.anatomy().is_layer() {
        return all;
    }
    let Some(sums) = Sums::new(scene).map(Rc::new) else {
        return all;
    };
    let of = |what: String, change: Change, (weights, inputs): (bool, bool)| {
        let sums = sums.clone();
        Law::new(what, 1, move |row: &RowAt| {
            product(scene, &sums, row, weights.then_some(&change), inputs.then_some(&change))
        })
    };
    for operands in OPERANDS {
        let told = |name: &str| format!("{} rounded to {name} before they are multiplied", operands.0);
        let law = |f: &'static Format, what: String| {
            of(what, Rc::new(|row: &mut [f32]| row.iter_mut().for_each(|v| *v = (f.round)(*v))), operands.1)
        };
        all.extend(FORMATS.iter().map(|f| f.law(told, law)));
        all.extend(
            QUANTISED
                .iter()
                .map(|q| of(told(q.name.trim_end_matches(',')), Rc::new(|row: &mut [f32]| q.apply(row)), operands.1)),
        );
    }
    all
}

/// Addends that are rounded before they are added, and the sum after that or not.
fn added<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !matches!(scene.node().op.anatomy(), Anatomy::Elementwise(Elementwise::Sum)) {
        return Vec::new();
    }
    let graph = &scene.e.oracle.graph;
    let inputs: Rc<[usize]> = scene.node().inputs.clone().into();
    let mut which: Vec<(String, Option<usize>)> = vec![("both addends are".to_owned(), None)];
    which.extend(inputs.iter().enumerate().map(|(i, &input)| (format!("{} is", graph.nodes[input].id), Some(i))));
    let of = |format: &'static Format, (what, one): (String, Option<usize>), of_sum: bool| {
        let (inputs, name) = (inputs.clone(), format.name.trim_end_matches(','));
        let sum = if of_sum { ", and so is the sum" } else { "" };
        let what = format!("{what} rounded to {name} before the sum is made{sum}");
        Law::new(what, 1, move |row: &RowAt| {
            let (token, from) = scene.token(row);
            let mut value = vec![0f64; row.range.len()];
            for i in 0..inputs.len() {
                let tensor = scene.operand(row.step, i)?;
                let rounds = one.is_none_or(|one| one == i);
                let part = (token < tensor.shape[0]).then(|| tensor.row(token))?.get(from..from + value.len())?;
                let round = |v: f32| if rounds { (format.round)(v) } else { v };
                value.iter_mut().zip(part).for_each(|(sum, v)| *sum += f64::from(round(*v)));
            }
            if of_sum {
                value.iter_mut().for_each(|v| *v = f64::from((format.round)(*v as f32)));
            }
            let bound = value.iter().map(|v| (UNIT * v.abs()) as f32).collect();
            Some(Row { value, bound })
        })
    };
    let ways = which.iter().flat_map(|which| [false, true].map(|of_sum| (which.clone(), of_sum)));
    let all: Vec<_> = ways.collect();
    FORMATS
        .iter()
        .flat_map(|format| all.iter().map(move |(which, of_sum)| (*format, which.clone(), *of_sum)))
        .map(|(format, which, of_sum)| of(format, which, of_sum))
        .collect()
}

/// How values that share a scale become whole numbers and back: by the largest size and the largest and least value.
#[derive(Clone, Copy)]
enum Levels {
    /// From −n to n.
    Symmetric(f64),
    /// The value of largest size becomes −n, as in ggml's formats of a few bits.
    Signed(f64),
    /// From the least to the largest in n steps.
    Between(f64),
}

impl Levels {
    const ALL: [(&str, Self); 10] = [
        ("int8", Self::Symmetric(127.0)),
        ("int4", Self::Symmetric(7.0)),
        ("int8 (128 levels on a side)", Self::Symmetric(128.0)),
        ("int4 (8 levels on a side)", Self::Symmetric(8.0)),
        ("int4 by the value of largest size", Self::Signed(8.0)),
        ("int5 by the value of largest size", Self::Signed(16.0)),
        ("int6", Self::Symmetric(31.0)),
        ("int8 between least and largest", Self::Between(255.0)),
        ("int4 between least and largest", Self::Between(15.0)),
        ("int5 between least and largest", Self::Between(31.0)),
    ];

    /// Step and first value.
    fn scale(self, x: &[f64]) -> (f64, f64) {
        let largest = x.iter().fold(0f64, |m, v| if v.abs() > m.abs() { *v } else { m });
        match self {
            Self::Symmetric(n) => (largest.abs() / n, 0.0),
            Self::Signed(n) => (-largest / n, 0.0),
            Self::Between(n) => {
                let (low, high) = x.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
                ((high - low) / n, low)
            }
        }
    }

    fn limit(self, quant: f64) -> f64 {
        match self {
            Self::Symmetric(128.0) => quant.clamp(-128.0, 127.0),
            Self::Symmetric(8.0) => quant.clamp(-8.0, 7.0),
            Self::Signed(n) => quant.clamp(-n, n - 1.0),
            Self::Symmetric(_) | Self::Between(_) => quant,
        }
    }
}

/// Ways to a whole number.
const WHOLE: [Rounding; 3] = [
    ("", f64::round),
    (", cut off instead of rounded", f64::trunc),
    (", the one below instead of the nearest", f64::floor),
];

/// Rows of a cache, quantised with a scale for so many elements.
fn quantised<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(width) = scene.width().filter(|_| scene.node().has_state()) else {
        return Vec::new();
    };
    let d = scene.e.oracle.graph.config.head_dim;
    let mut runs = vec![width, d, 8, 16, 32, 64, 128];
    runs.retain(|run| width.is_multiple_of(*run));
    runs.sort_unstable();
    runs.dedup();
    let scales: [Rounding; 3] = [("", |x| x), (" kept in f16", HALVES[1].1), (" kept in bf16", HALVES[0].1)];
    let of = |run: usize, (name, levels): (&str, Levels), (kept, scale_of): Rounding, (how, whole): Rounding| {
        let what = format!("rows are quantised to {name}{how}, one scale{kept} for {run} elements");
        Law::new(what, 1, move |row: &RowAt| {
            let (value, _) = scene.e.expected[row.step].as_ref()?;
            let (layout, (token, from)) = (scene.layout(), scene.token(row));
            let x: Vec<f64> = (0..width).map(|j| value.data[layout.at(&value.shape, token, j)]).collect();
            let (mut out, mut bound) = (Vec::with_capacity(width), Vec::with_capacity(width));
            for part in x.chunks(run) {
                let (exact, first) = levels.scale(part);
                let kept = scale_of(exact);
                for v in part {
                    // By the scale as it is, not as it is kept.
                    let at = if exact == 0.0 { 0.0 } else { (v - first) / exact };
                    let quant = |at: f64| levels.limit(whole(at));
                    out.push(scale_of(first) + quant(at) * kept);
                    // In the middle it goes either way.
                    let either = quant(at - 1e-4) != quant(at + 1e-4);
                    bound.push((if either { kept.abs() } else { 8.0 * UNIT * (v.abs() + first.abs()) }) as f32);
                }
            }
            let all = from..from + row.range.len();
            Some(Row { value: out.get(all.clone())?.to_vec(), bound: bound.get(all)?.to_vec() })
        })
    };
    let mut all = Vec::new();
    for run in runs {
        for levels in Levels::ALL {
            for scale in scales {
                all.extend(WHOLE.map(|whole| of(run, levels, scale, whole)));
            }
        }
    }
    all
}

/// Outputs that all are numbers of a format.
fn outputs<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let fits = |f: &&&'static Format| {
        scene.fit.iter().all(|&at| {
            let got = scene.element(at).0 as f32;
            (f.round)(got).to_bits() == got.to_bits()
        })
    };
    let told = |name: &str| format!("the output is rounded to {}", name.trim_end_matches(','));
    let law = |f: &'static Format, what: String| {
        let law = Law::new(what, 1, move |row: &RowAt| {
            let (got, want, bound) = scene.e.row(row);
            let near = |((g, w), b): ((&f32, &f64), &f32)| {
                let rounded = f64::from((f.round)(*w as f32));
                // A value near the middle of a step goes either way; the given value must be a number of the format.
                let step = 2.0 * f.unit * w.abs() + f64::from(*b);
                let member = (f.round)(*g).to_bits() == g.to_bits();
                let inward = !f.cuts_off() || f64::from(g.abs()) <= w.abs() + f64::from(*b) * 4.0;
                if member && inward && (f64::from(*g) - w).abs() <= f.unit * w.abs() * 1.001 + f64::from(*b) * 4.0 {
                    f64::from(*g)
                } else {
                    rounded + if member { 0.0 } else { step }
                }
            };
            let value: Vec<f64> = got.iter().zip(want).zip(bound).map(near).collect();
            Some(Row { value, bound: bound.to_vec() })
        });
        Law { coarser: true, ..law }
    };
    FORMATS.iter().filter(fits).map(|f| f.law(told, law)).collect()
}

/// Another function of the stage's operands, whose output is rounded then.
pub(super) fn over<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let member = |format: &&&'static Format| {
        scene.fit.iter().all(|&at| {
            let got = scene.element(at).0 as f32;
            (format.round)(got).to_bits() == got.to_bits()
        })
    };
    // A constant, or zeros, is no evidence.
    let several = || scene.fit.iter().map(|&at| scene.element(at).0.to_bits()).collect::<BTreeSet<_>>().len() > 8;
    let Some(format) = FORMATS.iter().find(member).filter(|_| several()) else { return Vec::new() };
    let solvers: [Solver; 4] = [functions::laws, norm::laws, gated::laws, operands::laws];
    let laws = solvers.into_iter().flat_map(|solver| solver(scene)).filter(|law| !law.coarser && !law.parts);
    let rounded = |law: Law<'a>| {
        let (name, own) = (format.name.trim_end_matches(','), law.row);
        Law::new(
            format!("{}, and the output is rounded to {name}", law.what),
            law.parameters + 1,
            move |row: &RowAt| {
                let mut made = own(row)?;
                let (got, ..) = scene.e.row(row);
                for ((value, bound), got) in made.value.iter_mut().zip(&mut made.bound).zip(got) {
                    // Near the middle of a step it goes either way; of a difference of large numbers further than a step.
                    let off = 4.0 * f64::from(*bound) + 4.0 * UNIT * value.abs();
                    let [low, high] = [*value - off, *value + off].map(|v| f64::from((format.round)(v as f32)));
                    let member = (format.round)(*got).to_bits() == got.to_bits();
                    let got = f64::from(*got);
                    let either = member && (low..=high).contains(&got);
                    *value = if either { got } else { f64::from((format.round)(*value as f32)) };
                    *bound = 0.0;
                }
                Some(made)
            },
        )
    };
    laws.map(rounded).collect()
}

/// The products of a row with operands changed.
fn product(
    scene: &Scene<'_>, sums: &Sums<'_>, row: &RowAt, weights: Option<&Change>, inputs: Option<&Change>,
) -> Option<Row> {
    let mut x: Vec<f32> = sums.activations(row)?.iter().map(|v| *v as f32).collect();
    if let Some(change) = inputs {
        change(&mut x);
    }
    let (_, _, bound) = scene.e.row(row);
    let value = |i: usize| {
        if !sums.looks_at(i) {
            return f64::NAN;
        }
        let mut w = sums.weight(i).as_ref().clone();
        if let Some(change) = weights {
            change(&mut w);
        }
        w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    let value: Vec<f64> = (0..row.range.len()).map(value).collect();
    let bound = bound.iter().zip(&value).map(|(b, v)| b + (UNIT * v.abs()) as f32).collect();
    Some(Row { value, bound })
}

#[cfg(test)]
mod tests {
    use super::{QUANTISED, loses_carry};

    #[test]
    fn a_digit_that_loses_its_carry_is_too_small_by_one_of_the_next() {
        for (q, second) in [(0x7eff, 0x7eff), (0x7f7f, 0x7f7f), (0x7f80, -0x8080), (0x1_8000, 0x8000), (-1, -1)] {
            assert_eq!(loses_carry::<1>(q), second, "{q:#x}");
        }
        assert_eq!([loses_carry::<0>(0x17f), loses_carry::<0>(0x180)], [0x17f, 0x80]);
        let second = QUANTISED.iter().find(|q| q.name.contains("32 (what the second")).unwrap();
        // 1 is 2^29 of the units of its group, and 2^-14 is 2^15 of them: the second digit is 128.
        let mut row = [1.0, f32::exp2(-14.0), f32::exp2(-15.0), 0.0];
        second.apply(&mut row);
        assert_eq!(row, [1.0, -f32::exp2(-14.0), f32::exp2(-15.0), 0.0]);
    }
}
