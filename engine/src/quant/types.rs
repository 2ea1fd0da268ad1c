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
    /// 4 bits in super-blocks of 256, with 6-bit scales and offsets per 32.
    pub const Q4_K: Self = Self(12);
    /// 5 bits in super-blocks of 256, with 6-bit scales and offsets per 32.
    pub const Q5_K: Self = Self(13);
    /// 6 bits in super-blocks of 256, with 8-bit scales per 16.
    pub const Q6_K: Self = Self(14);
    /// The upper halves of 32-bit floats.
    pub const BF16: Self = Self(30);

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
