//! What engines turn `f32` activations into before a dot product.
//!
//! The rounding of ggml's formats is that of its x86 AVX2 build. `activation_format.rs` has the list of formats.
//!
//! The formats of caches with 4 and 5 bits are in `cached.rs`.

use super::ActivationFormat;
use super::cached::Code;
use crate::dtype::DType;
use crate::isa::{Vectorised, vectorised};
use half::{bf16, f16};

/// Writes to `out` the exact value that each element of `x` has after
/// quantisation to `fmt`: scale, as stored, times quant.
///
/// Meant for finite `x`. Sources: `quantize_row_q8_0` and `quantize_row_q8_1` in ggml-cpu/arch/x86/quants.c,
/// `quantize_row_q8_K_ref` in ggml-quants.c, `quantize_q8_1` and `quantize_mmq_q8_1` in ggml-cuda/quantize.cu.
///
/// # Panics
/// If the lengths differ, or are no multiple of [`ActivationFormat::block_size`].
pub fn emulate(fmt: ActivationFormat, x: &[f32], out: &mut [f64]) {
    assert_eq!(x.len(), out.len(), "activations and their emulation differ in length");
    assert!(x.len().is_multiple_of(fmt.block_size()), "{} activations are not whole blocks", x.len());
    if let (Some(_), Some(ty)) = (code_of(fmt), fmt.stored_as()) {
        let mut values = vec![0f32; x.len()];
        super::dequantize(ty, &store(fmt, x), &mut values);
        return out.iter_mut().zip(values).for_each(|(out, v)| *out = f64::from(v));
    }
    match fmt {
        ActivationFormat::Q8K | ActivationFormat::Q8KAway | ActivationFormat::Q8K128 => {
            let nearest: fn(f32) -> i32 = match fmt {
                ActivationFormat::Q8K => nearest_int,
                _ => |v| v.round() as i32,
            };
            let (blocks, _) = x.as_chunks::<256>();
            let (to, _) = out.as_chunks_mut::<256>();
            for (x, out) in blocks.iter().zip(to) {
                q8_k_block(x, out, nearest, fmt.largest());
            }
        }
        _ if fmt.block_size() == 32 => vectorised(Q8 { fmt, x, out }),
        _ => {
            for (o, v) in out.iter_mut().zip(x) {
                *o = round(fmt, *v);
            }
        }
    }
}

/// The bytes of rows of a cache, as ggml's CPU backend stores them: blocks of the type [`ActivationFormat::stored_as`].
///
/// # Panics
/// If `x` is no multiple of 32 long, or the format has no blocks that ggml stores caches in.
pub fn store(fmt: ActivationFormat, x: &[f32]) -> Vec<u8> {
    assert!(x.len().is_multiple_of(32), "{} elements are not whole blocks", x.len());
    let mut bytes = Vec::new();
    for x in x.as_chunks().0 {
        match code_of(fmt) {
            Some(code) => code.store(x, &mut bytes),
            None => {
                assert_eq!(fmt, ActivationFormat::Q8_0, "ggml stores caches so");
                let (scale, quants) = q8_block(fmt, x);
                bytes.extend(f16::from_f32(scale).to_le_bytes());
                bytes.extend(quants.map(|q| q.clamp(-128, 127) as u8));
            }
        }
    }
    bytes
}

/// Blocks of 32 in 8 bits.
struct Q8<'a> {
    fmt: ActivationFormat,
    x: &'a [f32],
    out: &'a mut [f64],
}

impl Vectorised for Q8<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (blocks, _) = self.x.as_chunks::<32>();
        let (to, _) = self.out.as_chunks_mut::<32>();
        for (x, out) in blocks.iter().zip(to) {
            let (d, quants) = q8_block(self.fmt, x);
            let d = stored(self.fmt, d);
            for (o, q) in out.iter_mut().zip(quants) {
                *o = d * f64::from(q.clamp(-128, 127));
            }
        }
    }
}

/// One value in a format without blocks.
pub(super) fn round(fmt: ActivationFormat, v: f32) -> f64 {
    match fmt {
        ActivationFormat::F16 => f16::from_f32(v).to_f64(),
        ActivationFormat::Bf16 => bf16::from_f32(v).to_f64(),
        ActivationFormat::F8E4m3 => f64::from(DType::F8E4m3.round(v)),
        ActivationFormat::F8E5m2 => f64::from(DType::F8E5m2.round(v)),
        // Half of the last kept bit, or just less where that bit is even, is
        // added to the magnitude; then the rest is cut.
        ActivationFormat::Tf32 if v.is_finite() => {
            let half = 0xfff + ((v.to_bits() >> 13) & 1);
            f64::from(f32::from_bits((v.to_bits() + half) & !0x1fff))
        }
        ActivationFormat::Tf32Truncated if v.is_finite() => f64::from(f32::from_bits(v.to_bits() & !0x1fff)),
        _ => f64::from(v),
    }
}

/// A block's scale as it is stored.
fn stored(fmt: ActivationFormat, d: f32) -> f64 {
    if fmt.half_scale() { f16::from_f32(d).to_f64() } else { f64::from(d) }
}

/// How far the emulated values may lie from those of an engine whose inputs
/// are uncertain by `dx` (nothing where they are exact), element by element.
///
/// Quantisation hides an uncertainty, except where a value stands so near to a rounding tie that it may fall on either
/// side: there the whole step is uncertain. An f16 scale that stands near a tie makes its block uncertain.
///
/// # Panics
/// As [`emulate`].
pub fn uncertainty(fmt: ActivationFormat, x: &[f32], dx: Option<&[f32]>) -> Vec<f32> {
    let d = |i: usize| dx.map_or(0.0, |dx| f64::from(dx[i]));
    if fmt == ActivationFormat::F32 || (dx.is_none() && fmt.slack() == 0.0) {
        return (0..x.len()).map(|i| d(i) as f32).collect();
    }
    let size = fmt.block_size();
    if size == 1 {
        let around = |(i, v): (usize, &f32)| {
            let (v, d) = (f64::from(*v), d(i));
            (round(fmt, (v + d) as f32) - round(fmt, (v - d) as f32)).abs() as f32
        };
        return x.iter().enumerate().map(around).collect();
    }
    if let Some(code) = code_of(fmt) {
        let (mut values, mut out) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        emulate(fmt, x, &mut values);
        let blocks = x.as_chunks().0.iter().zip(values.as_chunks().0).zip(out.as_chunks_mut().0);
        for (b, ((x, values), out)) in blocks.enumerate() {
            code.reach(x, (&std::array::from_fn(|i| d(32 * b + i)), values), out);
        }
        return out;
    }
    let mut out = Vec::with_capacity(x.len());
    for (b, block) in x.chunks_exact(size).enumerate() {
        let largest = (0..size).fold(0, |m, i| if block[i].abs() > block[m].abs() { i } else { m });
        let (max, of_max) = (f64::from(block[largest].abs()), d(b * size + largest));
        if max == 0.0 {
            out.extend((0..size).map(|i| d(b * size + i) as f32));
            continue;
        }
        let of_scale = of_max / max + fmt.slack();
        let scale = max / f64::from(fmt.largest());
        let scale_reach = if fmt.half_scale() {
            let at = |by: f64| stored(fmt, (scale * (1.0 + by)) as f32);
            at(of_scale) - at(-of_scale)
        } else {
            of_scale * scale
        };
        // 128 does not fit into 8 bits, so what would have the sign opposite to the largest ends at 127. Which sign that is may be in
        // doubt; else no tie is beyond it.
        let opposed = |v: f32| fmt == ActivationFormat::Q8K128 && (v < 0.0) != (block[largest] < 0.0);
        let either =
            block.iter().enumerate().any(|(i, v)| opposed(*v) && f64::from(v.abs()) + d(b * size + i) >= max - of_max);
        for (i, v) in block.iter().enumerate() {
            let scaled = f64::from(v.abs()) / scale;
            let reach = d(b * size + i) / scale + scaled * of_scale;
            let to_tie = match scaled + reach >= 127.5 {
                true if either => 0.0,
                true if opposed(*v) && scaled - reach > 126.5 => f64::INFINITY,
                _ => (scaled - scaled.floor() - 0.5).abs(),
            };
            // A step that may or may not be taken is no Gaussian: counted double.
            let step = if to_tie <= reach { SQRT_2.max(reach) * scale } else { 0.0 };
            out.push(step.hypot(scale_reach * SQRT_2 * scaled.round()) as f32);
        }
    }
    out
}

/// How blocks of a cache are coded, of formats that have codes.
fn code_of(fmt: ActivationFormat) -> Option<Code> {
    Some(match fmt {
        ActivationFormat::Q4_0 => Code::Centred(8),
        ActivationFormat::Q5_0 => Code::Centred(16),
        ActivationFormat::Q4_1 => Code::Offset(15),
        ActivationFormat::Q5_1 => Code::Offset(31),
        ActivationFormat::Iq4Nl => Code::Table,
        _ => return None,
    })
}

/// A rounding that the engine may have taken the other way, because its
/// quantiser's arithmetic is not followed to the last bit.
#[derive(Clone, Debug, PartialEq)]
pub struct Tie {
    /// The first element concerned.
    pub first: usize,
    /// What this element and those after it would change by.
    pub change: Vec<f64>,
}

/// The roundings in [`emulate`]'s quantisation of exactly known `x` that stand so near to a tie that `fmt`'s engine may
/// take them either way: of one quant, or of a block's f16 scale. Empty for formats that [`emulate`] follows to the
/// last bit.
///
/// # Panics
/// As [`emulate`].
pub fn ties(fmt: ActivationFormat, x: &[f32]) -> Vec<Tie> {
    let slack = fmt.slack();
    let mut ties = Vec::new();
    if slack == 0.0 {
        return ties;
    }
    let (blocks, rest) = x.as_chunks::<32>();
    assert!(rest.is_empty(), "{} activations are not whole blocks", x.len());
    for (b, block) in blocks.iter().enumerate() {
        let (scale, quants) = q8_block(fmt, block);
        if scale == 0.0 {
            continue;
        }
        let (first, held) = (32 * b, stored(fmt, scale));
        if fmt.half_scale() {
            let at = |by: f64| stored(fmt, (f64::from(scale) * (1.0 + by)) as f32);
            let other = [at(-slack), at(slack)].into_iter().find(|s| *s != held);
            if let Some(other) = other {
                let change = quants.map(|q| (other - held) * f64::from(q)).to_vec();
                ties.push(Tie { first, change });
            }
        }
        for (i, (v, q)) in block.iter().zip(quants).enumerate() {
            let scaled = f64::from(*v) / f64::from(scale);
            let to_tie = (scaled.abs().fract() - 0.5).abs();
            if to_tie <= scaled.abs() * slack {
                // The neighbour on the other side of the tie.
                let other = scaled.floor() + scaled.ceil() - f64::from(q);
                let change = vec![(other - f64::from(q)) * held];
                ties.push(Tie { first: first + i, change });
            }
        }
    }
    ties
}

/// How uncertain `emulated`, [`emulate`]'s output for exactly known values,
/// remains once every one of its [`ties`] is settled.
pub fn settled(fmt: ActivationFormat, emulated: &[f64]) -> Vec<f32> {
    // An f16 scale hides what its own arithmetic leaves; an f32 one does not.
    let relative = if fmt.half_scale() { 0.0 } else { SQRT_2 * fmt.slack() };
    emulated.iter().map(|v| (v.abs() * relative) as f32).collect()
}

use std::f64::consts::SQRT_2;

/// For each block of 32, the f16 sum that the format stores less the sum of
/// the block's emulated values. Empty for formats that store no sum.
///
/// Kernels take an offset of the weights times the *stored* sum, instead of the sum of the elements: a row's value is
/// that of the emulated elements plus, over the blocks, the offset ([`super::block_offsets`]) times this residual. The
/// CPU's Q8_1 stores `f16(d * sum of quants)` (`d` in f32), and Q8_1HalfSum `f16(f16(d) * f16(sum of quants))`; CUDA stores the f16 of the f32 sum of the values before
/// quantisation, each kernel adding in an order of its own.
///
/// `out` is cleared first; `emulated` is [`emulate`]'s output for `fmt`.
///
/// # Panics
/// If the lengths differ or are no multiple of 32.
pub fn sum_residuals(fmt: ActivationFormat, x: &[f32], emulated: &[f64], out: &mut Vec<f64>) {
    out.clear();
    let sum: fn(&[f32; 32]) -> f32 = match fmt {
        ActivationFormat::Q8_1 => |x| {
            let (d, quants) = q8_block(ActivationFormat::Q8_1, x);
            d * quants.iter().fold(0_i32, |sum, q| sum.wrapping_add(*q)) as f32
        },
        ActivationFormat::Q8_1HalfSum => |x| {
            let (d, quants) = q8_block(ActivationFormat::Q8_1HalfSum, x);
            f16::from_f32(quants.iter().sum::<i32>() as f32).to_f32() * f16::from_f32(d).to_f32()
        },
        // A butterfly over the 32 lanes of a warp.
        ActivationFormat::Q8_1Mmvq => |x| butterfly(x.to_vec()),
        // Four values to a thread, then a butterfly over eight threads.
        ActivationFormat::Q8_1MmqDs4 => |x| butterfly(x.chunks_exact(4).map(|v| v[0] + v[1] + v[2] + v[3]).collect()),
        _ => return,
    };
    assert_eq!(x.len(), emulated.len(), "activations and their emulation differ in length");
    assert!(x.len().is_multiple_of(32), "{} activations are not whole blocks", x.len());
    let (blocks, _) = x.as_chunks::<32>();
    let (emulated, _) = emulated.as_chunks::<32>();
    out.extend(blocks.iter().zip(emulated).map(|(x, emulated)| {
        // Exact: 32 multiples of one f16, each below 2^7 times it.
        f16::from_f32(sum(x)).to_f64() - emulated.iter().sum::<f64>()
    }));
}

/// The sum that `__shfl_xor_sync` gives every lane: halves added to each other.
fn butterfly(mut lanes: Vec<f32>) -> f32 {
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        lanes.truncate(half);
    }
    lanes[0]
}

/// The scale, in f32 as before storing, and the quants of a block of 32, not yet saturated to 8 bits.
#[inline(always)]
fn q8_block(fmt: ActivationFormat, x: &[f32; 32]) -> (f32, [i32; 32]) {
    let mut lanes = [0f32; 8];
    for x in x.as_chunks::<8>().0 {
        lanes.iter_mut().zip(x).for_each(|(max, v)| *max = max.max(v.abs()));
    }
    let max = lanes.into_iter().fold(0.0, f32::max);
    if max == 0.0 {
        return (0.0, [0; 32]);
    }
    let inverse = 127.0 / max;
    let scale = max / 127.0;
    match fmt {
        // roundf: half away from zero.
        ActivationFormat::Q8_1Mmvq => (scale, x.map(|v| (v / scale).round() as i32)),
        ActivationFormat::Q8_0Ref | ActivationFormat::Q8_1HalfSum => {
            (scale, x.map(|v| (v * (1.0 / scale)).round() as i32))
        }
        ActivationFormat::Q8_1MmqD4 | ActivationFormat::Q8_1MmqDs4 => {
            (1.0 / inverse, x.map(|v| (v * inverse).round() as i32))
        }
        _ => (scale, x.map(|v| to_i32(v * inverse))),
    }
}

/// Rounds half to even, as `cvtps2dq`: what does not fit becomes `i32::MIN`.
#[inline(always)]
fn to_i32(v: f32) -> i32 {
    let rounded = v.round_ties_even();
    if (-2_147_483_648.0..2_147_483_648.0).contains(&rounded) { rounded as i32 } else { i32::MIN }
}

fn q8_k_block(x: &[f32; 256], out: &mut [f64; 256], nearest: fn(f32) -> i32, largest: f32) {
    // The first element of the largest magnitude, with its sign.
    let mut max = 0.0_f32;
    for v in x {
        if v.abs() > max.abs() {
            max = *v;
        }
    }
    if max == 0.0 {
        out.fill(0.0);
        return;
    }
    let inverse = -largest / max;
    let d = f64::from(1.0 / inverse);
    for (o, v) in out.iter_mut().zip(x) {
        *o = d * f64::from(nearest(inverse * v).min(127) as i8);
    }
}

/// ggml's rounding, half to even, by adding 1.5 * 2^23: the sum's low mantissa
/// bits are the integer. Valid below 2^22 in magnitude.
fn nearest_int(v: f32) -> i32 {
    let bits = (v + 12_582_912.0).to_bits();
    (bits & 0x007f_ffff) as i32 - 0x0040_0000
}
