//! Q4_K: 256 weights in 144 bytes (see `k_blocks.rs`).

use super::k_blocks::{self, D, DMIN, SCALES};
use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants};

/// 4 bits a quant: 32 bytes per pair of sub-blocks, the even one in the low halves.
const QS: Field = SCALES.then("qs", Part::Quants, 128);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q4_K,
    fields: &[D, DMIN, SCALES, QS],
    content: Content::Quants(Quants { offset: Offset::PerSubBlock, run: 32, stride: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Ds4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 144], out: &mut [f32; 256]) {
    k_blocks::unpack(b, QS.of(b), None, |product| product, out);
}
