//! The table of ggml's tensor types.

use std::fmt;

/// A tensor type that the pinned llama.cpp knows, by ggml's number.
///
/// Only valid types exist: a removed one (Q4_2, Q4_0_4_4, ...) has no value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GgmlType(u8);

/// Name, weights per block, bytes per block, by ggml's number; zero where the type was removed. Source: `enum
/// ggml_type` in ggml.h, the `type_traits` table in ggml.c and the block structures in ggml-common.h.
const TABLE: [(&str, u16, u16); 43] = [
    ("f32", 1, 4),
    ("f16", 1, 2),
    ("q4_0", 32, 18),
    ("q4_1", 32, 20),
    ("", 0, 0),
    ("", 0, 0),
    ("q5_0", 32, 22),
    ("q5_1", 32, 24),
    ("q8_0", 32, 34),
    ("q8_1", 32, 36),
    ("q2_K", 256, 84),
    ("q3_K", 256, 110),
    ("q4_K", 256, 144),
    ("q5_K", 256, 176),
    ("q6_K", 256, 210),
    ("q8_K", 256, 292),
    ("iq2_xxs", 256, 66),
    ("iq2_xs", 256, 74),
    ("iq3_xxs", 256, 98),
    ("iq1_s", 256, 50),
    ("iq4_nl", 32, 18),
    ("iq3_s", 256, 110),
    ("iq2_s", 256, 82),
    ("iq4_xs", 256, 136),
    ("i8", 1, 1),
    ("i16", 1, 2),
    ("i32", 1, 4),
    ("i64", 1, 8),
    ("f64", 1, 8),
    ("iq1_m", 256, 56),
    ("bf16", 1, 2),
    ("", 0, 0),
    ("", 0, 0),
    ("", 0, 0),
    ("tq1_0", 256, 54),
    ("tq2_0", 256, 66),
    ("", 0, 0),
    ("", 0, 0),
    ("", 0, 0),
    ("mxfp4", 32, 17),
    ("nvfp4", 64, 36),
    ("q1_0", 128, 18),
    ("q2_0", 64, 18),
];

impl GgmlType {
    /// 32-bit IEEE floats.
    pub const F32: Self = Self(0);
    /// 16-bit IEEE floats.
    pub const F16: Self = Self(1);
    /// 4 bits and a scale per 32 weights.
    pub const Q4_0: Self = Self(2);
    /// 4 bits, a scale and an offset per 32 weights.
    pub const Q4_1: Self = Self(3);
    /// 5 bits and a scale per 32 weights.
    pub const Q5_0: Self = Self(6);
    /// 5 bits, a scale and an offset per 32 weights.
    pub const Q5_1: Self = Self(7);
    /// 8 bits and a scale per 32 weights.
    pub const Q8_0: Self = Self(8);
    /// 2 bits in super-blocks of 256, with 4-bit scales and offsets per 16.
    pub const Q2_K: Self = Self(10);
    /// 3 bits in super-blocks of 256, with 6-bit scales per 16.
    pub const Q3_K: Self = Self(11);
    /// 4 bits in super-blocks of 256, with 6-bit scales and offsets per 32.
    pub const Q4_K: Self = Self(12);
    /// 5 bits in super-blocks of 256, with 6-bit scales and offsets per 32.
    pub const Q5_K: Self = Self(13);
    /// 6 bits in super-blocks of 256, with 8-bit scales per 16.
    pub const Q6_K: Self = Self(14);
    /// Points of a grid of 256 and signs, eight weights at a time, in super-blocks of 256.
    pub const IQ2_XXS: Self = Self(16);
    /// The same of a grid of 512.
    pub const IQ2_XS: Self = Self(17);
    /// Points of a grid of 256 and signs, four weights at a time, in super-blocks of 256.
    pub const IQ3_XXS: Self = Self(18);
    /// Points of a grid of 2048, eight weights at a time, shifted by an eighth either way, in super-blocks of 256.
    pub const IQ1_S: Self = Self(19);
    /// One of 16 numbers and a scale per 32 weights.
    pub const IQ4_NL: Self = Self(20);
    /// As IQ3_XXS, of a grid of 512, each weight with a sign.
    pub const IQ3_S: Self = Self(21);
    /// As IQ2_XS, of a grid of 1024, each weight with a sign.
    pub const IQ2_S: Self = Self(22);
    /// The numbers of IQ4_NL in super-blocks of 256, with 6-bit scales per 32.
    pub const IQ4_XS: Self = Self(23);
    /// As IQ1_S, with scales per 16 and shifts per 8.
    pub const IQ1_M: Self = Self(29);
    /// The upper halves of 32-bit floats.
    pub const BF16: Self = Self(30);
    /// −1, 0 or 1, five to a byte, with a scale per 256 weights.
    pub const TQ1_0: Self = Self(34);
    /// −1, 0 or 1 in 2 bits, with a scale per 256 weights.
    pub const TQ2_0: Self = Self(35);
    /// 4-bit floats under a power of two per 32 weights.
    pub const MXFP4: Self = Self(39);
    /// 4-bit floats under 8-bit floats per 16 weights.
    pub const NVFP4: Self = Self(40);
    /// A sign and a scale per 128 weights.
    pub const Q1_0: Self = Self(41);
    /// 2 bits and a scale per 64 weights.
    pub const Q2_0: Self = Self(42);

    /// The type of ggml's number `id`; `None` if there is none or it was removed.
    pub fn from_id(id: u32) -> Option<Self> {
        let known = TABLE.get(id as usize).is_some_and(|row| row.1 > 0);
        known.then_some(Self(id as u8))
    }

    /// ggml's number of this type, as stored in a GGUF file.
    pub fn id(self) -> u32 {
        u32::from(self.0)
    }

    /// llama.cpp's name: "f32", "q4_K", ...
    pub fn name(self) -> &'static str {
        TABLE[usize::from(self.0)].0
    }

    /// Weights per block (1 for plain numbers).
    pub const fn block_size(self) -> usize {
        TABLE[self.0 as usize].1 as usize
    }

    /// Bytes per block.
    pub const fn type_size(self) -> usize {
        TABLE[self.0 as usize].2 as usize
    }

    /// Bytes that `n` weights take; `n` must be a multiple of the block size.
    pub fn row_bytes(self, n: usize) -> usize {
        debug_assert!(n.is_multiple_of(self.block_size()));
        n / self.block_size() * self.type_size()
    }
}

impl fmt::Display for GgmlType {
    /// The upper-case name that model files carry: "Q4_K".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name().to_uppercase())
    }
}

impl fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
