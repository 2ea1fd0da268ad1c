//! IQ2_S: 256 weights in 82 bytes, in sub-blocks of 16, eight weights at a time from a grid of 1024 points.
//!
//! weight = (d * (0.5 + scale) / 4) * ±magnitude. Source: `dequantize_row_iq2_s` in ggml-quants.c.

use super::codebook::signed;
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, grids, iq2_xxs};

/// The scale of the scales.
const D: Field = Field::first("d", Part::Scale, 2);
/// The low 8 bits of each point; ggml's structure counts the signs in.
const QS: Field = D.then("qs", Part::Codes, 32);
/// A bit a weight.
const SIGNS: Field = QS.then("signs", Part::Signs, 32);
/// The upper 2 bits of four points a byte, the first lowest.
const QH: Field = SIGNS.then("qh", Part::HighBits, 8);
/// 4 bits a sub-block, the even one low.
const SCALES: Field = QH.then("scales", Part::SubScales, 8);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ2_S,
    fields: &[D, QS, SIGNS, QH, SCALES],
    content: Content::Codes(Codes { levels: iq2_xxs::LEVELS, run: 16 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 82], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let sub = i / 2;
        let scale = b[SCALES.at(sub / 2)] >> (4 * (sub % 2)) & 0x0f;
        let high = usize::from(b[QH.at(i / 4)] >> (2 * (i % 4)) & 3);
        let point = usize::from(b[QS.at(i)]) | high << 8;
        signed(&grids::IQ2_S[point], b[SIGNS.at(i)], d * (0.5 + f32::from(scale)) * 0.25, out);
    }
}
