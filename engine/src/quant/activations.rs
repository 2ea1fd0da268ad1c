//! What llama.cpp's CPU backend turns `f32` activations into before a dot
//! product with quantised weights.
//!
//! Each weight type has one activation format (`vec_dot_type` in ggml-cpu.c):
//! F32 takes F32; F16, F16; BF16, BF16; Q4_0, Q5_0 and Q8_0, Q8_0; Q4_1 and
//! Q5_1, Q8_1; the K formats, Q8_K. The rounding is that of the x86 AVX2 build.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use super::GgmlType;

/// A format of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ActivationFormat {
    /// Unchanged.
    #[serde(rename = "f32")]
    F32,
    /// Rounded to IEEE binary16.
    #[serde(rename = "f16")]
    F16,
    /// Rounded to bfloat16.
    #[serde(rename = "bf16")]
    Bf16,
    /// Signed 8 bits and an f16 scale per 32.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// As Q8_0, with the f16 sum of the block beside it.
    #[serde(rename = "q8_1")]
    Q8_1,
    /// Signed 8 bits and an f32 scale per 256.
    #[serde(rename = "q8_K")]
    Q8K,
}

impl ActivationFormat {
    /// The format that llama.cpp's CPU backend multiplies weights of type `ty`
    /// with; `None` for a type that is not in [`GgmlType::ALL_SUPPORTED`].
    pub fn of_weights(ty: GgmlType) -> Option<Self> {
        Some(match ty {
            GgmlType::F32 => Self::F32,
            GgmlType::F16 => Self::F16,
            GgmlType::BF16 => Self::Bf16,
            GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 => Self::Q8_0,
            GgmlType::Q4_1 | GgmlType::Q5_1 => Self::Q8_1,
            GgmlType::Q4_K | GgmlType::Q5_K | GgmlType::Q6_K => Self::Q8K,
            _ => return None,
        })
    }

    /// Elements that share a scale (1 where there is none); the length of an
    /// activation row must be a multiple of it.
    pub fn block_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q8_0 | Self::Q8_1 => 32,
            Self::Q8K => 256,
        }
    }
}

/// Writes to `out` the exact value that each element of `x` has after
/// quantisation to `fmt`: scale, as stored, times quant.
///
/// Meant for finite `x`. Sources: `quantize_row_q8_0` and `quantize_row_q8_1`
/// in ggml-cpu/arch/x86/quants.c, `quantize_row_q8_K_ref` in ggml-quants.c.
///
/// # Panics
/// If the lengths differ, or are no multiple of [`ActivationFormat::block_size`].
pub fn emulate(fmt: ActivationFormat, x: &[f32], out: &mut [f64]) {
    assert_eq!(
        x.len(),
        out.len(),
        "activations and their emulation differ in length"
    );
    assert!(
        x.len().is_multiple_of(fmt.block_size()),
        "{} activations are not whole blocks",
        x.len()
    );
    match fmt {
        ActivationFormat::F32 => each(x, out, f64::from),
        ActivationFormat::F16 => each(x, out, |v| f16::from_f32(v).to_f64()),
        ActivationFormat::Bf16 => each(x, out, |v| bf16::from_f32(v).to_f64()),
        ActivationFormat::Q8_0 | ActivationFormat::Q8_1 => {
            let (blocks, _) = x.as_chunks::<32>();
            let (to, _) = out.as_chunks_mut::<32>();
            for (x, out) in blocks.iter().zip(to) {
                let (d, quants) = q8_block(x);
                let d = f16::from_f32(d).to_f64();
                for (o, q) in out.iter_mut().zip(quants) {
                    *o = d * f64::from(q.clamp(-128, 127));
                }
            }
        }
        ActivationFormat::Q8K => {
            let (blocks, _) = x.as_chunks::<256>();
            let (to, _) = out.as_chunks_mut::<256>();
            for (x, out) in blocks.iter().zip(to) {
                q8_k_block(x, out);
            }
        }
    }
}

/// For each block of 32, the f16 sum that Q8_1 stores less the sum of the
/// block's emulated values.
///
/// A dot product of Q4_1 or Q5_1 with Q8_1 takes each block's offset `m` times
/// the *stored* sum `s = f16(d * sum of quants)` (`d` in f32), instead of the
/// sum of the elements: the row's value is that of the emulated elements plus
/// the sum over blocks of `m` ([`super::block_mins`]) times this residual.
/// `out` is cleared first; `emulated` is [`emulate`]'s output for Q8_1.
///
/// # Panics
/// If the lengths differ or are no multiple of 32.
pub fn q8_1_sum_residuals(x: &[f32], emulated: &[f64], out: &mut Vec<f64>) {
    assert_eq!(
        x.len(),
        emulated.len(),
        "activations and their emulation differ in length"
    );
    assert!(
        x.len().is_multiple_of(32),
        "{} activations are not whole blocks",
        x.len()
    );
    out.clear();
    let (blocks, _) = x.as_chunks::<32>();
    let (emulated, _) = emulated.as_chunks::<32>();
    out.extend(blocks.iter().zip(emulated).map(|(x, emulated)| {
        let (d, quants) = q8_block(x);
        let sum = quants.iter().fold(0_i32, |sum, q| sum.wrapping_add(*q));
        let stored = f16::from_f32(d * sum as f32).to_f64();
        // Exact: 32 multiples of one f16, each below 2^7 times it.
        stored - emulated.iter().sum::<f64>()
    }));
}

fn each(x: &[f32], out: &mut [f64], f: impl Fn(f32) -> f64) {
    for (o, v) in out.iter_mut().zip(x) {
        *o = f(*v);
    }
}

/// The scale, in f32 as before storing, and the quants of a Q8_0 or Q8_1
/// block, not yet saturated to 8 bits.
fn q8_block(x: &[f32; 32]) -> (f32, [i32; 32]) {
    let max = x.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
    let inverse = if max == 0.0 { 0.0 } else { 127.0 / max };
    (max / 127.0, x.map(|v| to_i32(v * inverse)))
}

/// Rounds half to even, as `cvtps2dq`: what does not fit becomes `i32::MIN`.
fn to_i32(v: f32) -> i32 {
    let rounded = v.round_ties_even();
    if (-2_147_483_648.0..2_147_483_648.0).contains(&rounded) {
        rounded as i32
    } else {
        i32::MIN
    }
}

fn q8_k_block(x: &[f32; 256], out: &mut [f64; 256]) {
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
    let inverse = -127.0 / max;
    let d = f64::from(1.0 / inverse);
    for (o, v) in out.iter_mut().zip(x) {
        *o = d * f64::from(nearest_int(inverse * v).min(127) as i8);
    }
}

/// ggml's rounding, half to even, by adding 1.5 * 2^23: the sum's low mantissa
/// bits are the integer. Valid below 2^22 in magnitude.
fn nearest_int(v: f32) -> i32 {
    let bits = (v + 12_582_912.0).to_bits();
    (bits & 0x007f_ffff) as i32 - 0x0040_0000
}
