//! Blocks decoded byte by byte, wrongly.

use super::{Fault, Spot, fault, linear};
use half::f16;
use qdiff_engine::model::{Model, Node, Role, WeightSource as _};
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
    /// Codes are taken for quants with 8 in the middle.
    Codes,
}

/// The values of the codes of IQ4_NL.
const IQ4_NL: [f32; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];
/// What those of MXFP4 do, twice.
const TWICE_E2M1: [f32; 16] = [0., 1., 2., 3., 4., 6., 8., 12., -0., -1., -2., -3., -4., -6., -8., -12.];

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
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q4_1 | GgmlType::Q5_1 => {
            let five = matches!(ty, GgmlType::Q5_0 | GgmlType::Q5_1);
            let lifted = matches!(ty, GgmlType::Q4_1 | GgmlType::Q5_1);
            let high_bits = if lifted { 4 } else { 2 };
            let quants = if five { high_bits + 4 } else { high_bits };
            let off = if lifted || slip == Slip::Uncentred { 0 } else { 8 << i32::from(five) };
            let (d, m) = (half(b, 0), if lifted { half(b, 2) } else { 0.0 });
            for j in 0..16 {
                let (mut low, mut high) = pair(b[quants + j], slip);
                if five {
                    low += 16 * bit(b[high_bits + j / 8], j % 8);
                    high += 16 * bit(b[high_bits + 2 + j / 8], j % 8);
                }
                out[j] = (low - off) as f32 * d + m;
                out[j + 16] = (high - off) as f32 * d + m;
            }
            slip == Slip::Halves || (!lifted && slip == Slip::Uncentred) || (five && slip == Slip::HighBits)
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
        GgmlType::IQ4_NL | GgmlType::MXFP4 => {
            let (scale, table, quants) = if ty == GgmlType::IQ4_NL {
                (half(b, 0), IQ4_NL, 2)
            } else {
                (2f32.powi(i32::from(b[0]) - 128), TWICE_E2M1, 1)
            };
            for j in 0..16 {
                let (low, high) = pair(b[quants + j], slip);
                let weight = |code: i32| if slip == Slip::Codes { (code - 8) as f32 } else { table[code as usize] };
                out[j] = scale * weight(low);
                out[j + 16] = scale * weight(high);
            }
            matches!(slip, Slip::Halves | Slip::Codes)
        }
        _ => false,
    }
}

/// What the weight of a stage is stored in.
fn format(node: &Node, model: &Model) -> GgmlType {
    model.ggml_type(&node.weights[0].name)
}

/// Whether the weight of a stage is of a format that can be decoded with a slip.
fn knows(node: &Node, model: &Model, slip: Slip) -> bool {
    let ty = format(node, model);
    let (block, mut out) = (vec![0; ty.type_size()], vec![0f32; ty.block_size()]);
    decode(ty, &block, slip, &mut out)
}

/// Multiplies with rows whose blocks are decoded with a slip.
fn slipped(s: &mut Spot<'_>, slip: Slip) {
    let (model, weight) = (s.model, s.weight());
    let (n, _) = s.extent(weight);
    let ty = model.ggml_type(weight);
    s.multiply(|r| {
        let mut out = vec![0f32; n];
        let blocks = model.row_bytes(weight, r).chunks(ty.type_size());
        blocks.zip(out.chunks_mut(ty.block_size())).for_each(|(b, out)| {
            decode(ty, b, slip, out);
        });
        out
    });
}

/// The loop over the blocks of a row returns after the first.
fn first_block(s: &mut Spot<'_>) {
    let (n, _) = s.extent(s.weight());
    let w = s.values(s.weight());
    s.multiply(|o| {
        let mut row = w[o * n..(o + 1) * n].to_vec();
        row[256..].iter_mut().for_each(|v| *v = 0.0);
        row
    });
}

/// No weight is negative.
fn magnitudes(s: &mut Spot<'_>) {
    let (n, _) = s.extent(s.weight());
    let w = s.values(s.weight());
    s.multiply(|o| w[o * n..(o + 1) * n].iter().map(|v| v.abs()).collect());
}

/// The tensor's bytes as f16, row after row of two bytes a weight.
fn bytes_as_half(s: &mut Spot<'_>) {
    let (model, weight) = (s.model, s.weight());
    let (n, m) = s.extent(weight);
    let bytes: Vec<u8> = (0..m).flat_map(|r| model.row_bytes(weight, r).to_vec()).collect();
    let stride = bytes.len() / m;
    s.multiply(|o| {
        let value = |i: usize| {
            let at = o * stride + 2 * i;
            if at + 1 < bytes.len() { half(&bytes, at) } else { 0.0 }
        };
        (0..n).map(value).collect()
    });
}

const OUT: &[Role] = &[Role::AttnOutput, Role::FfnOutput];

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "q5-high-bit",
        |_, n, m| linear(n, OUT) && knows(n, m, Slip::HighBits) && format(n, m) != GgmlType::Q6_K,
        |s| slipped(s, Slip::HighBits),
    ),
    fault("q6k-high-bits", |_, n, m| linear(n, OUT) && format(n, m) == GgmlType::Q6_K, |s| slipped(s, Slip::HighBits)),
    fault(
        "nibble-order:kind=0",
        |_, n, m| linear(n, &[Role::Query, Role::FfnOutput]) && knows(n, m, Slip::Halves),
        |s| slipped(s, Slip::Halves),
    ),
    fault(
        "codes-as-quants",
        |_, n, m| linear(n, &[Role::Key, Role::FfnOutput]) && knows(n, m, Slip::Codes),
        |s| slipped(s, Slip::Codes),
    ),
    fault(
        "grid-signs",
        |_, n, m| linear(n, &[Role::Query, Role::Up]) && matches!(format(n, m), GgmlType::IQ2_S | GgmlType::IQ3_S),
        magnitudes,
    ),
    fault(
        "quant-offset-missing",
        |_, n, m| linear(n, &[Role::Key, Role::Up]) && knows(n, m, Slip::Uncentred),
        |s| slipped(s, Slip::Uncentred),
    ),
    fault(
        "q4k-scale-min-swapped",
        |_, n, m| linear(n, &[Role::Value, Role::FfnOutput]) && knows(n, m, Slip::ScalesForMins),
        |s| slipped(s, Slip::ScalesForMins),
    ),
    fault(
        "kquant-scale-bits",
        |_, n, m| linear(n, &[Role::AttnOutput, Role::Gate]) && knows(n, m, Slip::ScaleBits),
        |s| slipped(s, Slip::ScaleBits),
    ),
    fault(
        "q8-unsigned",
        |_, n, m| linear(n, &[Role::Query, Role::FfnOutput]) && knows(n, m, Slip::Unsigned),
        |s| slipped(s, Slip::Unsigned),
    ),
    fault(
        "kquant-early-return",
        |_, n, m| linear(n, &[Role::FfnOutput]) && format(n, m).block_size() == 256 && n.weights[0].extent[0] > 256,
        first_block,
    ),
    fault("quant-bytes-as-f16", |_, n, m| linear(n, &[Role::Up]) && format(n, m).block_size() > 1, bytes_as_half),
];
