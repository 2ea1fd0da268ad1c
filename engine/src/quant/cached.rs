//! Rows of a KV cache in blocks of 32, as ggml writes them: `quantize_row_q4_0_ref`, `…_q4_1_ref`, `…_q5_0_ref`,
//! `…_q5_1_ref` and `…_iq4_nl_ref` in ggml-quants.c, which its CPU backend calls for these formats. Q8_0 is in
//! `activations.rs`: there the backend has code of its own.

use super::iq4_nl::LEVELS;
use half::f16;

/// How a value follows from its code.
#[derive(Clone, Copy)]
pub(super) enum Code {
    /// The scale times the code less so much. The scale is negative where the largest magnitude is of a positive value.
    Centred(i32),
    /// The scale times the code, of which this is the largest, plus the offset.
    Offset(i32),
    /// The scale times a number of the table.
    Table,
}

/// Largest magnitude of a block that ggml stores as zeros in IQ4_NL.
const NOTHING: f32 = 1e-15;

/// More than the f32 arithmetic of a quantiser moves a value in units of codes, or of the numbers of the table.
const SLACK: f64 = 3e-5;

/// A block as it is stored: f16 scale, offset, codes.
struct Fields {
    scale: f16,
    offset: f16,
    codes: [u8; 32],
}

impl Code {
    fn fields(self, x: &[f32; 32]) -> Fields {
        match self {
            Self::Centred(half) => {
                let scale = largest(x) / -(half as f32);
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                let code = |x: f32| ((x * inverse + (half as f32 + 0.5)) as i32).min(2 * half - 1) as u8;
                Fields { scale: f16::from_f32(scale), offset: f16::ZERO, codes: x.map(code) }
            }
            Self::Offset(top) => {
                let (low, high) = x.iter().fold((f32::MAX, -f32::MAX), |(l, h), v| (l.min(*v), h.max(*v)));
                let scale = (high - low) / top as f32;
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                let code = |x: f32| (((x - low) * inverse + 0.5) as i32).min(top) as u8;
                Fields { scale: f16::from_f32(scale), offset: f16::from_f32(low), codes: x.map(code) }
            }
            Self::Table => {
                let largest = largest(x);
                if largest.abs() < NOTHING {
                    return Fields { scale: f16::ZERO, offset: f16::ZERO, codes: [0; 32] };
                }
                let inverse = 1.0 / (largest / LEVELS[0]);
                let codes = x.map(|x| nearest(x * inverse) as u8);
                // The scale that is best for these codes, large values before small ones.
                let (mut with_values, mut of_squares) = (0f32, 0f32);
                for (x, code) in x.iter().zip(codes) {
                    let (level, weight) = (LEVELS[usize::from(code)], x * x);
                    with_values += weight * level * x;
                    of_squares += weight * level * level;
                }
                let scale = if of_squares > 0.0 { with_values / of_squares } else { 0.0 };
                Fields { scale: f16::from_f32(scale), offset: f16::ZERO, codes }
            }
        }
    }

    /// Adds the bytes of a block: scale, offset, fifth bits, and codes `j` and `j + 16` in one byte.
    pub(super) fn store(self, x: &[f32; 32], bytes: &mut Vec<u8>) {
        let Fields { scale, offset, codes } = self.fields(x);
        bytes.extend(scale.to_le_bytes());
        if let Self::Offset(_) = self {
            bytes.extend(offset.to_le_bytes());
        }
        if let Self::Centred(16) | Self::Offset(31) = self {
            let fifth = codes.iter().enumerate().fold(0u32, |bits, (j, code)| bits | u32::from(code >> 4) << j);
            bytes.extend(fifth.to_le_bytes());
        }
        bytes.extend((0..16).map(|j| codes[j] & 15 | codes[j + 16] << 4));
    }

    /// How far the stored values may lie from those of `x`, whose elements are uncertain by `dx`: by the smallest and the
    /// largest code that each may have, and the smallest and the largest scale and offset.
    pub(super) fn reach(self, x: &[f32; 32], (dx, values): (&[f64; 32], &[f64; 32]), out: &mut [f32; 32]) {
        let ends: [(f64, f64); 32] = std::array::from_fn(|i| (f64::from(x[i]) - dx[i], f64::from(x[i]) + dx[i]));
        let mut hulls = [Hull::default(); 32];
        match self {
            Self::Centred(half) => {
                for Largest { sign, low, high } in Largest::of(x, dx) {
                    let scale = |magnitude: f64| -sign * magnitude / f64::from(half);
                    let stored = around(scale(low), scale(high));
                    for (hull, &(from, to)) in hulls.iter_mut().zip(&ends) {
                        let scaled = quotients([from, to], [scale(low), scale(high)]);
                        let code =
                            |scaled: f64| (scaled + f64::from(half) + 0.5).floor().clamp(0.0, f64::from(2 * half - 1));
                        for code in [code(scaled.0 - SLACK), code(scaled.1 + SLACK)] {
                            stored.iter().for_each(|scale| hull.add(scale * (code - f64::from(half))));
                        }
                    }
                }
            }
            Self::Offset(top) => {
                let fold = |of: fn(&(f64, f64)) -> f64, pick: fn(f64, f64) -> f64| {
                    ends.iter().map(of).reduce(pick).unwrap_or_default()
                };
                let low = [fold(|e| e.0, f64::min), fold(|e| e.1, f64::min)];
                let high = [fold(|e| e.0, f64::max), fold(|e| e.1, f64::max)];
                let scale =
                    [(high[0] - low[1]).max(0.0) / f64::from(top), (high[1] - low[0]).max(0.0) / f64::from(top)];
                let (stored, offset) = (around(scale[0], scale[1]), around(low[0], low[1]));
                for (hull, &(from, to)) in hulls.iter_mut().zip(&ends) {
                    let scaled = quotients([(from - low[1]).max(0.0), to - low[0]], scale);
                    let code = |scaled: f64| (scaled + 0.5).floor().clamp(0.0, f64::from(top));
                    for code in [code(scaled.0 - SLACK), code(scaled.1 + SLACK)] {
                        for (scale, offset) in stored.iter().flat_map(|s| offset.iter().map(move |o| (s, o))) {
                            hull.add(f64::from((code * scale + offset) as f32));
                        }
                    }
                }
            }
            Self::Table => {
                for Largest { sign, low, high } in Largest::of(x, dx) {
                    let scale = |magnitude: f64| sign * magnitude / f64::from(LEVELS[0]);
                    // What each may contribute to the two sums of which the scale is the quotient.
                    let (mut with_values, mut of_squares) = ([0.0; 2], [0.0; 2]);
                    let mut levels = [[0.0; 2]; 32];
                    for (&(from, to), levels) in ends.iter().zip(&mut levels) {
                        let scaled = quotients([from, to], [scale(low), scale(high)]);
                        *levels = [scaled.0 - SLACK, scaled.1 + SLACK]
                            .map(|scaled| f64::from(LEVELS[nearest(scaled as f32)]));
                        let (mut product, mut square) = (Hull::default(), Hull::default());
                        let zero = (from < 0.0 && to > 0.0).then_some(0.0);
                        for v in [from, to].into_iter().chain(zero) {
                            let inner =
                                LEVELS.iter().map(|l| f64::from(*l)).filter(|l| levels[0] <= *l && *l <= levels[1]);
                            for level in inner {
                                product.add(v * v * v * level);
                                square.add(v * v * level * level);
                            }
                        }
                        with_values = [with_values[0] + product.low, with_values[1] + product.high];
                        of_squares = [of_squares[0] + square.low, of_squares[1] + square.high];
                    }
                    // Sums of 32 terms in f32.
                    let rounding = 64.0 * crate::rounding::UNIT;
                    let quotient = quotients(with_values, of_squares);
                    let wider = rounding * quotient.0.abs().max(quotient.1.abs());
                    let stored = around(quotient.0 - wider, quotient.1 + wider);
                    for (hull, levels) in hulls.iter_mut().zip(levels) {
                        levels.iter().for_each(|level| stored.iter().for_each(|scale| hull.add(scale * level)));
                    }
                }
            }
        }
        for ((out, hull), value) in out.iter_mut().zip(hulls).zip(values) {
            *out = (hull.high - value).max(value - hull.low).max(0.0) as f32;
        }
    }
}

/// The first value of the largest magnitude, with its sign.
fn largest(x: &[f32; 32]) -> f32 {
    x.iter().fold(0.0, |largest: f32, v| if largest.abs() < v.abs() { *v } else { largest })
}

/// The number of the table nearest to `x`; of two as near, the larger.
fn nearest(x: f32) -> usize {
    match LEVELS.partition_point(|level| *level <= x) {
        0 => 0,
        above if above == LEVELS.len() || x - LEVELS[above - 1] < LEVELS[above] - x => above - 1,
        above => above,
    }
}

/// What the value of the largest magnitude of a block may be, with this sign.
struct Largest {
    sign: f64,
    low: f64,
    high: f64,
}

impl Largest {
    /// With each sign that it may have.
    fn of(x: &[f32; 32], dx: &[f64; 32]) -> impl Iterator<Item = Self> {
        let each = || x.iter().zip(dx).map(|(x, d)| (f64::from(*x), *d));
        let low = each().map(|(x, d)| x.abs() - d).fold(0.0, f64::max);
        let high = each().map(|(x, d)| x.abs() + d).fold(0.0, f64::max);
        let may = [1.0, -1.0].map(|sign| each().any(|(x, d)| sign * x + d >= low));
        [1.0, -1.0].into_iter().zip(may).filter(|(_, may)| *may).map(move |(sign, _)| Self { sign, low, high })
    }
}

/// The smallest and the largest of some values; none is 0.
#[derive(Clone, Copy)]
struct Hull {
    low: f64,
    high: f64,
}

impl Default for Hull {
    fn default() -> Self {
        Self { low: f64::INFINITY, high: f64::NEG_INFINITY }
    }
}

impl Hull {
    fn add(&mut self, v: f64) {
        self.low = self.low.min(v);
        self.high = self.high.max(v);
    }
}

/// The smallest and the largest quotient of numbers within two ranges, of which the second may begin or end at 0.
fn quotients(of: [f64; 2], by: [f64; 2]) -> (f64, f64) {
    let mut hull = Hull::default();
    for (of, by) in of.into_iter().flat_map(|of| by.map(|by| (of, by))) {
        hull.add(if of == 0.0 { 0.0 } else { of / by });
    }
    (hull.low, hull.high)
}

/// What f16 may make of numbers between two, each of which f32 has computed.
fn around(a: f64, b: f64) -> [f64; 2] {
    let (low, high) = (a.min(b), a.max(b));
    let stored = |v: f64| f16::from_f32(v as f32).to_f64();
    let few = 4.0 * crate::rounding::UNIT;
    [stored(low - few * low.abs()), stored(high + few * high.abs())]
}
