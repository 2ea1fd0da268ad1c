//! Q3_K: 256 weights in 110 bytes, in sub-blocks of 16.
//!
//! weight = (d * (scale - 32)) * (q - 4). Source: `dequantize_row_q3_K` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16};

/// The third (highest) bit of each quant: weight `l` of run `r` of 32 at bit `r` of byte `l`.
const HMASK: Field = Field::first("hmask", Part::HighBits, 32);
/// The low 2 bits: 32 bytes per 128 weights, of which the first 32 stand lowest.
const QS: Field = HMASK.then("qs", Part::Quants, 64);
/// 16 scales of 6 bits: see [`scales`].
const SCALES: Field = QS.then("scales", Part::SubScales, 12);
/// The scale of the scales.
const D: Field = SCALES.then("d", Part::Scale, 2);

const ZERO: u8 = 4;

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q3_K,
    fields: &[HMASK, QS, SCALES, D],
    content: Content::Quants(Quants { offset: Offset::ZeroPoint(ZERO), run: 16, stride: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// The 16 scales, each -32 to 31: the low 4 bits from the halves of bytes 0..8, the low halves first; the upper 2 from
/// bytes 8..12, of which scales 0..4 have the lowest.
#[inline(always)]
fn scales(b: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = b[j % 8] >> (4 * (j / 8)) & 0x0f;
        let high = b[8 + j % 4] >> (2 * (j / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 110], out: &mut [f32; 256]) {
    let (d, scales) = (f16::at(b, &D), scales(SCALES.of(b)));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[sub]);
        let (half, run, first) = (sub / 8, sub / 2, 16 * (sub % 2));
        for (l, out) in out.iter_mut().enumerate() {
            let low = b[QS.at(32 * half + first + l)] >> (2 * (run % 4)) & 3;
            let high = b[HMASK.at(first + l)] >> run & 1;
            *out = scale * (i32::from(low | high << 2) - i32::from(ZERO)) as f32;
        }
    }
}
