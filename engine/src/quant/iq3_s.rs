//! IQ3_S: 256 weights in 110 bytes, in sub-blocks of 32, four weights at a time from a grid of 512 points.
//!
//! weight = (d * (1 + 2 * scale)) * ±magnitude. Source: `dequantize_row_iq3_s` in ggml-quants.c.

use super::codebook::signed;
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, grids};

/// The scale of the scales.
const D: Field = Field::first("d", Part::Scale, 2);
/// The low 8 bits of each point.
const QS: Field = D.then("qs", Part::Codes, 64);
/// The ninth bits, eight points a byte, the first lowest.
const QH: Field = QS.then("qh", Part::HighBits, 8);
/// A bit a weight.
const SIGNS: Field = QH.then("signs", Part::Signs, 32);
/// 4 bits a sub-block, the even one low.
const SCALES: Field = SIGNS.then("scales", Part::SubScales, 4);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ3_S,
    fields: &[D, QS, QH, SIGNS, SCALES],
    content: Content::Codes(Codes {
        levels: &[-15.0, -13.0, -11.0, -9.0, -7.0, -5.0, -3.0, -1.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0],
        run: 32,
    }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let sub = i / 8;
        let scale = b[SCALES.at(sub / 2)] >> (4 * (sub % 2)) & 0x0f;
        let ninth = usize::from(b[QH.at(sub)] >> (i % 8) & 1);
        let signs = b[SIGNS.at(i / 2)] >> (4 * (i % 2));
        let point = usize::from(b[QS.at(i)]) | ninth << 8;
        signed(&grids::IQ3_S[point], signs, d * (1 + 2 * scale) as f32, out);
    }
}
