//! TQ1_0: 256 weights in 54 bytes, each −d, 0 or d.
//!
//! weight = (digit - 1) * d. A byte holds five digits of base 3, the first one most significant, as the fraction
//! byte / 256. Source: `dequantize_row_tq1_0` in ggml-quants.c.

use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16};

/// Five digits a byte: digits `n` of the first 32 bytes make weights `32n` and on; the other 16 bytes follow alike.
const QS: Field = Field::first("qs", Part::Codes, 48);
/// Four digits a byte, for the last 16 weights.
const QH: Field = QS.then("qh", Part::HighBits, 4);
/// The scale.
const D: Field = QH.then("d", Part::Scale, 2);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::TQ1_0,
    fields: &[QS, QH, D],
    content: Content::Codes(Codes { levels: &[-1.0, 0.0, 1.0], run: 256 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Digit `n` of a byte, less 1.
#[inline(always)]
fn digit(byte: u8, n: usize) -> i32 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let rest = byte.wrapping_mul(POWERS[n]);
    ((i32::from(rest) * 3) >> 8) - 1
}

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 54], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    for (at, bytes, digits) in [(0, QS.at(0)..QS.at(32), 5), (160, QS.at(32)..QS.at(48), 5), (240, QH.bytes, 4)] {
        for n in 0..digits {
            for (m, &byte) in b[bytes.clone()].iter().enumerate() {
                out[at + n * bytes.len() + m] = digit(byte, n) as f32 * d;
            }
        }
    }
}
