//! Blocks decoded byte by byte, wrongly.

use super::{Fault, Spot};
use half::f16;
use qdiff_engine::model::WeightSource as _;
use qdiff_engine::quant::GgmlType;

fn half(b: &[u8], at: usize) -> f32 {
    f16::from_bits(u16::from(b[at]) | u16::from(b[at + 1]) << 8).to_f32()
}

/// What is wrong about a decoder.
#[derive(Clone, Copy, PartialEq)]
enum Slip {
    /// Bits of the quants above the low four are left out.
    HighBits,
    /// Low and high halves of the quant bytes are exchanged.
    Halves,
    /// Nothing is taken off the quants.
    Uncentred,
    /// Scales and offsets of sub-blocks are exchanged.
    ScalesForMins,
    /// Sub-blocks 4 to 7 have scales and offsets of four bits.
    ScaleBits,
    /// Signed bytes are read without sign.
    Unsigned,
}

/// The quant halves of a byte, low first.
fn pair(byte: u8, slip: Slip) -> (i32, i32) {
    let (low, high) = (i32::from(byte % 16), i32::from(byte / 16));
    if slip == Slip::Halves { (high, low) } else { (low, high) }
}

/// The eight scales and offsets of a K block, bit by bit.
fn scales(b: &[u8], slip: Slip) -> Vec<(f32, f32)> {
    (0..8)
        .map(|j| {
            let (s, m) = if j < 4 {
                (b[4 + j] % 64, b[8 + j] % 64)
            } else {
                let top = |byte: u8| {
                    if slip == Slip::ScaleBits { 0 } else { byte / 64 * 16 }
                };
                (b[8 + j] % 16 + top(b[j]), b[8 + j] / 16 + top(b[4 + j]))
            };
            if slip == Slip::ScalesForMins { (f32::from(m), f32::from(s)) } else { (f32::from(s), f32::from(m)) }
        })
        .collect()
}

/// One block; false where the format knows no such slip.
fn decode(ty: GgmlType, b: &[u8], slip: Slip, out: &mut [f32]) -> bool {
    let bit = |byte: u8, i: usize| {
        if slip == Slip::HighBits { 0 } else { i32::from(byte >> i & 1) }
    };
    match ty {
        GgmlType::Q4_0 | GgmlType::Q5_0 => {
            let five = ty == GgmlType::Q5_0;
            let (quants, middle) = if five { (6, 16) } else { (2, 8) };
            let off = if slip == Slip::Uncentred { 0 } else { middle };
            let d = half(b, 0);
            for j in 0..16 {
                let (mut low, mut high) = pair(b[quants + j], slip);
                if five {
                    low += 16 * bit(b[2 + j / 8], j % 8);
                    high += 16 * bit(b[4 + j / 8], j % 8);
                }
                out[j] = (low - off) as f32 * d;
                out[j + 16] = (high - off) as f32 * d;
            }
            slip == Slip::Halves || slip == Slip::Uncentred || (five && slip == Slip::HighBits)
        }
        GgmlType::Q4_1 | GgmlType::Q5_1 => {
            let five = ty == GgmlType::Q5_1;
            let quants = if five { 8 } else { 4 };
            let (d, m) = (half(b, 0), half(b, 2));
            for j in 0..16 {
                let (mut low, mut high) = pair(b[quants + j], slip);
                if five {
                    low += 16 * bit(b[4 + j / 8], j % 8);
                    high += 16 * bit(b[6 + j / 8], j % 8);
                }
                out[j] = low as f32 * d + m;
                out[j + 16] = high as f32 * d + m;
            }
            slip == Slip::Halves || (five && slip == Slip::HighBits)
        }
        GgmlType::Q8_0 => {
            let d = half(b, 0);
            for j in 0..32 {
                out[j] = f32::from(b[2 + j]) * d;
            }
            slip == Slip::Unsigned
        }
        GgmlType::Q4_K | GgmlType::Q5_K => {
            let five = ty == GgmlType::Q5_K;
            let quants = if five { 48 } else { 16 };
            let (d, dmin) = (half(b, 0), half(b, 2));
            let pairs = scales(b, slip);
            for sub in 0..8 {
                let (scale, min) = pairs[sub];
                for l in 0..32 {
                    let (low, high) = pair(b[quants + sub / 2 * 32 + l], slip);
                    let mut q = if sub % 2 == 0 { low } else { high };
                    if five {
                        q += 16 * bit(b[16 + l], sub);
                    }
                    out[sub * 32 + l] = d * scale * q as f32 - dmin * min;
                }
            }
            let of_scales = matches!(slip, Slip::ScalesForMins | Slip::ScaleBits);
            of_scales || slip == Slip::Halves || (five && slip == Slip::HighBits)
        }
        GgmlType::Q6_K => {
            let d = half(b, 208);
            let off = if slip == Slip::Uncentred { 0 } else { 32 };
            for at in 0..256 {
                let (part, run, l) = (at / 128, at % 128 / 32, at % 32);
                let (low, high) = pair(b[part * 64 + run % 2 * 32 + l], slip);
                let mut q = if run < 2 { low } else { high };
                if slip != Slip::HighBits {
                    q += 16 * (i32::from(b[128 + part * 32 + l]) >> (2 * run) & 3);
                }
                let scale = f32::from(b[192 + at / 16] as i8);
                out[at] = d * scale * (q - off) as f32;
            }
            matches!(slip, Slip::HighBits | Slip::Halves | Slip::Uncentred)
        }
        _ => false,
    }
}

/// Multiplies with rows whose blocks are decoded with a slip; leaves the
/// stage as it is where the weight's format knows none such.
fn slipped(s: &mut Spot<'_>, slip: Slip) {
    let (model, weight) = (s.model, s.weight.to_owned());
    let (n, _) = s.extent(&weight);
    let ty = model.ggml_type(&weight);
    let row = |r: usize| {
        let mut out = vec![0f32; n];
        let blocks = model.row_bytes(&weight, r).chunks(ty.type_size());
        let all = blocks.zip(out.chunks_mut(ty.block_size()));
        let known = all.fold(true, |known, (b, out)| decode(ty, b, slip, out) && known);
        known.then_some(out)
    };
    if row(0).is_some() {
        s.multiply(|o| row(o).unwrap_or_default());
    }
}

fn high_bits(s: &mut Spot<'_>) {
    slipped(s, Slip::HighBits);
}

fn halves(s: &mut Spot<'_>) {
    slipped(s, Slip::Halves);
}

fn uncentred(s: &mut Spot<'_>) {
    slipped(s, Slip::Uncentred);
}

fn scales_for_mins(s: &mut Spot<'_>) {
    slipped(s, Slip::ScalesForMins);
}

fn scale_bits(s: &mut Spot<'_>) {
    slipped(s, Slip::ScaleBits);
}

fn unsigned(s: &mut Spot<'_>) {
    slipped(s, Slip::Unsigned);
}

/// Whether the weight is stored in blocks of so many.
fn blocks_of(s: &Spot<'_>, size: usize) -> bool {
    s.model.ggml_type(s.weight).block_size() == size
}

/// The loop over the blocks of a row returns after the first.
fn first_block(s: &mut Spot<'_>) {
    let (n, _) = s.extent(s.weight);
    if !blocks_of(s, 256) || n <= 256 {
        return;
    }
    let w = s.values(s.weight);
    s.multiply(|o| {
        let mut row = w[o * n..(o + 1) * n].to_vec();
        row[256..].iter_mut().for_each(|v| *v = 0.0);
        row
    });
}

/// The tensor's bytes as f16, row after row of two bytes a weight.
fn bytes_as_half(s: &mut Spot<'_>) {
    let (model, weight) = (s.model, s.weight.to_owned());
    let (n, m) = s.extent(&weight);
    if blocks_of(s, 1) {
        return;
    }
    let bytes: Vec<u8> = (0..m).flat_map(|r| model.row_bytes(&weight, r).to_vec()).collect();
    let stride = bytes.len() / m;
    s.multiply(|o| {
        let value = |i: usize| {
            let at = o * stride + 2 * i;
            if at + 1 < bytes.len() { half(&bytes, at) } else { 0.0 }
        };
        (0..n).map(value).collect()
    });
}

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        cause: "q5-high-bit",
        stages: &["attn_out", "ffn_down"],
        spoil: |s| {
            if s.model.ggml_type(s.weight) != GgmlType::Q6_K {
                high_bits(s);
            }
        },
    },
    Fault {
        cause: "q6k-high-bits",
        stages: &["attn_out", "ffn_down"],
        spoil: |s| {
            if s.model.ggml_type(s.weight) == GgmlType::Q6_K {
                high_bits(s);
            }
        },
    },
    Fault { cause: "nibble-order:kind=0", stages: &["q_proj", "ffn_down"], spoil: halves },
    Fault { cause: "quant-offset-missing", stages: &["k_proj", "ffn_up"], spoil: uncentred },
    Fault { cause: "q4k-scale-min-swapped", stages: &["v_proj", "ffn_down"], spoil: scales_for_mins },
    Fault { cause: "kquant-scale-bits", stages: &["attn_out", "ffn_gate"], spoil: scale_bits },
    Fault { cause: "q8-unsigned", stages: &["q_proj", "ffn_down"], spoil: unsigned },
    Fault { cause: "kquant-early-return", stages: &["ffn_down"], spoil: first_block },
    Fault { cause: "quant-bytes-as-f16", stages: &["ffn_up"], spoil: bytes_as_half },
];
