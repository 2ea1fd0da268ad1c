//! IQ1_M: 256 weights in 56 bytes, in sub-blocks of 16, eight weights at a time from the grid of IQ1_S.
//!
//! weight = (d * (2 * scale + 1)) * (number ± 1/8). Source: `dequantize_row_iq1_m` in ggml-quants.c.

use super::codebook::shifted;
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, grids, iq1_s};

/// The low 8 bits of each point.
const QS: Field = Field::first("qs", Part::Codes, 32);
/// 4 bits a point, the even one low: its upper 3 bits, and the shift's sign.
const QH: Field = QS.then("qh", Part::HighBits, 16);
/// Four little-endian u16: each four scales of 3 bits, and above them 4 bits of the f16 that scales them, lowest first.
const SCALES: Field = QH.then("scales", Part::SplitScale, 8);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ1_M,
    fields: &[QS, QH, SCALES],
    content: Content::Codes(Codes { levels: iq1_s::LEVELS, run: 16 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 56], out: &mut [f32; 256]) {
    let scales: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes([b[SCALES.at(2 * i)], b[SCALES.at(2 * i + 1)]]));
    let d = f16::to_f32((0..4).fold(0, |bits, i| bits | (scales[i] >> 12) << (4 * i)));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let sub = i / 2;
        let scale = scales[sub / 4] >> (3 * (sub % 4)) & 7;
        let high = b[QH.at(i / 2)] >> (4 * (i % 2));
        let point = usize::from(b[QS.at(i)]) | usize::from(high & 7) << 8;
        shifted(&grids::IQ1[point], high & 8 != 0, d * f32::from(2 * scale + 1), out);
    }
}
