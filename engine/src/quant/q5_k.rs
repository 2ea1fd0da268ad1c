//! Q5_K: 256 weights in 176 bytes (see `k_blocks.rs`).

use super::k_blocks::{self, D, DMIN, SCALES};
use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants};

/// The fifth (highest) bits: weight `l` of sub-block `s` at bit `s` of byte `l`.
const QH: Field = SCALES.then("qh", Part::HighBits, 32);
/// The low 4 bits: 32 bytes per pair of sub-blocks, the even one in the low halves.
const QS: Field = QH.then("qs", Part::Quants, 128);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q5_K,
    fields: &[D, DMIN, SCALES, QH, QS],
    content: Content::Quants(Quants { offset: Offset::PerSubBlock, run: 32, stride: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Ds4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 176], out: &mut [f32; 256]) {
    k_blocks::unpack(b, QS.of(b), Some(QH.of(b)), |product| product, out);
}
