//! What a block format is. Each format's file describes it once; the decoders' offsets, the planes on a device, the
//! names of fields in a report and the faults of a decoder derive from that.

use super::{ActivationFormat, FORMATS, GgmlType, dequantize};
use std::ops::Range;

/// A format that [`super::dequantize`] unpacks. Source: the block structures in
/// ggml-common.h and the `dequantize_row_*` functions in ggml-quants.c.
#[derive(Clone, Debug, PartialEq)]
pub struct Format {
    /// Its type: name, weights and bytes per block.
    pub ty: GgmlType,
    /// The fields of a block, in the order of its bytes.
    pub fields: &'static [Field],
    /// Their contents.
    pub content: Content,
    /// What ggml's kernels for the CPU are given beside them (`vec_dot_type` in ggml-cpu.c).
    pub dot: ActivationFormat,
    /// What llama.cpp's kernels for CUDA are given beside them.
    pub mmq: Mmq,
}

/// How llama.cpp's matrix-matrix kernels for CUDA are given activations, beside weights of a format
/// (`mmq_get_q8_1_ds_layout` in mmq.cuh). Its kernels for vectors take `quantize_q8_1`'s of all formats with blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mmq {
    /// With a scale per 32.
    D4,
    /// With a scale and a sum per 32.
    Ds4,
    /// In a way that has not been held against a card.
    Unmeasured,
    /// Plain numbers have no such kernels.
    None,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// One 32-bit IEEE float.
    F32,
    /// One 16-bit IEEE float.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Small integers under scales.
    Quants(Quants),
    /// Numbers of a table under scales.
    Codes(Codes),
}

/// What the codes of a block mean: weight = scale * number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codes {
    /// The numbers that a weight may be, smallest first.
    pub levels: &'static [f32],
    /// Consecutive weights that share a scale.
    pub run: usize,
}

/// What the integers of a block mean: weight = scale * quant, and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quants {
    /// What makes the unsigned quants signed.
    pub offset: Offset,
    /// Consecutive weights that share a scale.
    pub run: usize,
    /// Distance of the weights that share a byte of [`Part::Quants`]: of so many
    /// bytes, byte `j` holds weight `j` lowest, then `j + stride`, and so on.
    pub stride: usize,
}

/// What is added to the quants, or taken off them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// Nothing: the quants are signed bytes.
    None,
    /// A constant is taken off every quant before it is scaled.
    ZeroPoint(u8),
    /// [`Part::Offset`] is added to every scaled quant.
    PerBlock,
    /// [`Part::Offset`] times the sub-block's offset is taken off every scaled
    /// quant.
    PerSubBlock,
}

/// What a field of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The scale of the whole block, f16.
    Scale,
    /// The offset of the whole block, or the scale of its offsets, f16.
    Offset,
    /// Scales and offsets of the sub-blocks, six bits each (`k_blocks.rs`).
    PackedScales,
    /// Scales of the sub-blocks, a signed byte each.
    ByteScales,
    /// Scales of the sub-blocks (and their offsets), or their low bits, packed as the format's own file says.
    SubScales,
    /// The upper bits of the sub-blocks' scales.
    SubScalesHigh,
    /// Scales of the sub-blocks, 8-bit floats.
    SmallFloats,
    /// Scales of the sub-blocks, and among them the bits of the block's f16 scale.
    SplitScale,
    /// The scale of the whole block, a power of two: its exponent plus 127.
    Exponent,
    /// The upper bits of the quants, or of the codes.
    HighBits,
    /// The quants, or their low bits.
    Quants,
    /// The codes, or their low bits.
    Codes,
    /// A bit a weight, set where it is negative.
    Signs,
    /// Several of these together, as the format's own file says.
    Packed,
    /// A plain number.
    Number,
}

/// A field of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// ggml's name for it.
    pub name: &'static str,
    /// What it says.
    pub part: Part,
    /// Its place in the block.
    pub bytes: Range<usize>,
}

impl Field {
    /// The field of `len` bytes that a block begins with.
    pub(super) const fn first(name: &'static str, part: Part, len: usize) -> Self {
        Self { name, part, bytes: 0..len }
    }

    /// The field of `len` bytes after this one.
    pub(super) const fn then(&self, name: &'static str, part: Part, len: usize) -> Self {
        Self { name, part, bytes: self.bytes.end..self.bytes.end + len }
    }

    /// Its `N` bytes, which is its length.
    #[inline(always)]
    pub(super) fn of<'a, const N: usize>(&self, block: &'a [u8]) -> &'a [u8; N] {
        block[self.bytes.clone()].try_into().expect("the field has this length")
    }

    /// The place of its byte `i` in the block.
    #[inline(always)]
    pub(super) const fn at(&self, i: usize) -> usize {
        self.bytes.start + i
    }
}

impl Format {
    /// Whether the fields are as long as the block.
    pub(super) const fn fills_its_block(&self) -> bool {
        self.fields[self.fields.len() - 1].bytes.end == self.ty.type_size()
    }

    /// The field that says `part`.
    pub fn field(&self, part: Part) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.part == part)
    }

    /// The field of the sub-blocks' scales.
    pub fn sub_scales(&self) -> Option<&'static Field> {
        use Part::{ByteScales, PackedScales, SmallFloats, SplitScale, SubScales};
        [PackedScales, ByteScales, SubScales, SmallFloats, SplitScale].into_iter().find_map(|part| self.field(part))
    }

    /// The meaning of the quants; `None` for plain numbers and codes.
    pub fn quants(&self) -> Option<Quants> {
        if let Content::Quants(quants) = self.content { Some(quants) } else { None }
    }

    /// The meaning of the codes; `None` for plain numbers and quants.
    pub fn codes(&self) -> Option<Codes> {
        if let Content::Codes(codes) = self.content { Some(codes) } else { None }
    }

    /// The field that holds 4 bits a weight, quants or codes, two to a byte, and how far apart the weights of a byte stand;
    /// `None` where there is none.
    pub fn nibbles(&self) -> Option<(&'static Field, usize)> {
        let (part, stride) = match self.content {
            Content::Quants(quants) => (Part::Quants, quants.stride),
            // The codes of a run, its first half in the low bits.
            Content::Codes(codes) => (Part::Codes, codes.run / 2),
            Content::F32 | Content::F16 | Content::Bf16 => return None,
        };
        self.field(part).filter(|_| self.bits(part) == 4).map(|field| (field, stride))
    }

    /// Bits of a weight in the field that has `part`.
    pub fn bits(&self, part: Part) -> usize {
        self.field(part).map_or(0, |f| 8 * f.bytes.len() / self.ty.block_size())
    }

    /// The floats of a block, each with two bytes and the bits in them that are all set where it is NaN or infinite, or may be.
    fn exponents(&self) -> Vec<(&'static Field, [(usize, u8); 2])> {
        let of = |field: &'static Field| {
            let last = field.bytes.end - 1;
            let half = [(last, 0x7c), (last, 0x7c)];
            let bits = match (field.part, self.content) {
                (Part::Scale | Part::Offset, _) | (Part::Number, Content::F16) => half,
                (Part::Number, Content::F32 | Content::Bf16) => [(last, 0x7f), (last - 1, 0x80)],
                // The exponent's bits are at the top of the third and the fourth of four u16.
                (Part::SplitScale, _) => [(last, 0x70), (last - 2, 0xc0)],
                (Part::Exponent, _) => [(last, 0xfc), (last, 0xfc)],
                _ => return None,
            };
            Some((field, bits))
        };
        self.fields.iter().filter_map(of).collect()
    }

    /// The blocks of `bytes` with weights that are NaN or infinite: each with the first field that makes them so.
    pub fn not_finite<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, &'static Field)> + use<'a> {
        let (exponents, ty) = (self.exponents(), self.ty);
        bytes.chunks_exact(ty.type_size()).enumerate().filter_map(move |(at, block)| {
            let set = |(byte, bits): &(usize, u8)| block[*byte] & bits == *bits;
            let (field, _) = exponents.iter().find(|(_, bits)| bits.iter().all(set))?;
            // With a power of two, only the largest codes may be beyond the largest float.
            let finite = || {
                let mut weights = vec![0f32; ty.block_size()];
                dequantize(ty, block, &mut weights);
                weights.iter().all(|w| w.is_finite())
            };
            (field.part != Part::Exponent || !finite()).then_some((at, *field))
        })
    }

    /// Makes `quant` of every quant of a block, as stored: before an offset.
    pub fn set_quants(&self, block: &mut [u8], quant: u8) {
        let mut rest = u32::from(quant);
        for part in [Part::Quants, Part::HighBits] {
            if let Some(field) = self.field(part) {
                let bits = self.bits(part);
                let own = rest & ((1 << bits) - 1);
                let byte = (0..8).step_by(bits).fold(0, |byte, shift| byte | own << shift);
                block[field.bytes.clone()].fill(byte as u8);
                rest >>= bits;
            }
        }
    }
}

impl GgmlType {
    /// The description of the type's blocks; `None` for a type that this crate does not unpack.
    pub fn format(self) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.ty == self)
    }

    /// Whether [`super::dequantize`] unpacks it.
    pub fn is_supported(self) -> bool {
        self.format().is_some()
    }
}
