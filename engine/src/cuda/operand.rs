//! The operands of products on the tensor cores, and the tiles of the caches: how many bytes each takes.

use super::kernels::constant;
use crate::quant::GgmlType;
use std::fmt;

/// Edges of a tile of a product.
pub(super) const OUTPUTS: usize = constant!("prefill/products.cu", "OUTPUTS") as usize;
pub(super) const TOKENS: usize = constant!("prefill/warpgroups.cuh", "TOKENS") as usize;
/// Groups of a piece.
pub(super) const PIECE: usize = constant!("prefill/pieces.cuh", "PIECE") as usize;
/// Blocks of a product that a multiprocessor is to hold.
const BLOCKS: usize = constant!("prefill/products.cu", "BLOCKS") as usize;
/// Bytes of shared memory that CUDA takes for itself for each block.
pub(super) const RESERVED: usize = 1 << 10;
/// Bytes of a part of a group of an operand, and of the sums of eight groups.
const PART_BYTES: usize = constant!("prefill/operand.cuh", "PART_BYTES") as usize;
const EIGHT_SUMS: usize = constant!("prefill/operand.cuh", "EIGHT_SUMS") as usize;
/// Tokens that stand together in an operand of halves.
const OPERAND_TOKENS: usize = constant!("prefill/operand.cuh", "OPERAND_TOKENS") as usize;
/// Bytes of shared memory for eight groups' minima.
const MINIMA: usize = constant!("prefill/products.cu", "MINIMA") as usize;
/// Elements of all shares of a product but the first: few outputs are shared out, many need no sharing.
pub const SHARED: usize = 8 << 20;

/// What the elements of an operand are split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Two halves, for weights that are integers or halves.
    Half,
    /// Three bfloat16, for weights of which one has an exponent of 8 bits.
    Brain,
}

impl Part {
    /// For these formats.
    pub fn of(formats: &[GgmlType]) -> Self {
        if formats.iter().any(|&ty| matches!(ty, GgmlType::F32 | GgmlType::BF16)) { Self::Brain } else { Self::Half }
    }

    fn count(self) -> usize {
        match self {
            Self::Half => 2,
            Self::Brain => 3,
        }
    }

    /// Bytes of an operand of so many tokens' rows of `n` elements.
    pub fn bytes(self, tokens: usize, n: usize) -> usize {
        // An even number of groups.
        tokens.next_multiple_of(OPERAND_TOKENS) * n.div_ceil(64) * 2 * self.count() * PART_BYTES
    }
}

/// Bytes of the sums of so many tokens' rows of `n` elements.
pub fn sums_bytes(tokens: usize, n: usize) -> usize {
    tokens.next_multiple_of(OPERAND_TOKENS) * n.div_ceil(256) * EIGHT_SUMS
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Half => "HalfPart",
            Self::Brain => "BrainPart",
        })
    }
}

/// Keys of a tile of the caches, and its bytes: `struct CacheTile` of `cache.cuh`, which the kernels take and check.
pub fn cache_tile(head_dim: usize) -> (usize, usize) {
    let keys = if head_dim <= 64 { 64 } else { 32 };
    (keys, 4 * keys * head_dim * 2 + 4 * keys + 16)
}

/// Tiles of the caches that a block takes at once, if it may have so many bytes of shared memory: two, and the next two, of
/// heads of 64 elements. The registers of wider ones are for few threads.
pub fn tiles_at_once(head_dim: usize, limit: usize) -> u32 {
    let (_, bytes) = cache_tile(head_dim);
    if head_dim == 64 && 4 * bytes <= limit { 2 } else { 1 }
}

/// Layout of a format: the pitches of its planes in a stage (`pieces.cuh`), whether its minima meet sums of x, and how
/// many numbers scale a group.
pub(super) fn piece_of(ty: GgmlType) -> (usize, bool, usize) {
    match ty {
        GgmlType::Q4_0 => (48, false, 1),
        GgmlType::Q5_0 => (48 + 8, false, 1),
        GgmlType::Q4_1 | GgmlType::Q4_K => (48, true, 2),
        GgmlType::Q5_1 => (48 + 8, true, 2),
        GgmlType::Q5_K => (48 + 48, true, 2),
        GgmlType::Q6_K => (48 + 48, false, 2),
        GgmlType::Q8_0 => (80, false, 1),
        GgmlType::F16 | GgmlType::BF16 => (160, false, 1),
        GgmlType::F32 => (320, false, 1),
        _ => unreachable!("{ty}: no format without kernels is kept on a device"),
    }
}

/// Bytes of a stage of `products.cu` for a format: the tokens, and of every row of weights its planes and its scales. The
/// kernel takes the number and checks it.
fn stage_bytes(ty: GgmlType, part: Part) -> usize {
    let (pitches, sums, scales) = piece_of(ty);
    // Minima in shared memory of their own need no sums of x here, and leave one number that scales.
    let (apart, sums, scales) = match part {
        Part::Half => (0, 0, if sums { 1 } else { scales }),
        Part::Brain => (16, if sums { 4 } else { 0 }, scales),
    };
    let of_token = PIECE * (part.count() * PART_BYTES + apart + sums);
    (TOKENS * of_token + OUTPUTS * (pitches + 4 * scales * PIECE)).next_multiple_of(1024)
}

/// Arguments of the template of `products.cu` for matrices of these formats, and the shared memory that it takes, of
/// `limit` bytes if it can.
pub fn product_of(formats: &[GgmlType], limit: usize) -> (String, u32) {
    let part = Part::of(formats);
    let stage = formats.iter().map(|&ty| stage_bytes(ty, part)).max().unwrap_or(0);
    // Those of eight groups while the next eight's come.
    let minima = if part == Part::Half && formats.iter().any(|&ty| piece_of(ty).1) { 2 * MINIMA } else { 0 };
    let bytes = |stages: usize| stages * stage + minima;
    // More wait for less, as long as a multiprocessor holds its blocks.
    let fits = |&stages: &usize| BLOCKS * (bytes(stages) + RESERVED) <= limit || stages == 3 && bytes(stages) <= limit;
    let stages = [4, 3].into_iter().find(fits).unwrap_or(2);
    let [a, b, c] = std::array::from_fn(|i| *formats.get(i).unwrap_or(&formats[0]));
    (format!("{part}, {a}, {b}, {c}, {stage}, {stages}"), bytes(stages) as u32)
}
