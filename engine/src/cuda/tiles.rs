//! How the fused kernels of a decode step go through rows of weights: tiles of 16 rows in shared memory.
//!
//! What is laid out here is read by `fused/tile.cuh`.

use super::kernels::constant;
use super::weights;
use crate::quant::GgmlType;
use std::collections::HashSet;

/// Rows of a tile.
pub const TILE: usize = constant!("fused/tile.cuh", "TILE") as usize;
/// Warps of a block at most.
const MOST_WARPS: usize = constant!("fused/tile.cuh", "MOST_WARPS") as usize;
/// Bytes of a group of 32 elements of the vector, for weights that are integers and for floats.
const INTEGER_GROUP: usize = constant!("fused/tile.cuh", "INTEGER_GROUP") as usize;
const FLOAT_GROUP: usize = constant!("fused/tile.cuh", "FLOAT_GROUP") as usize;
/// Stages that hide the latency of memory behind the bytes on their way.
const STAGES: usize = 3;

/// How a block goes through its rows: `struct Walk` of `tile.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walk {
    /// Tiles at a time.
    pub tiles: i32,
    /// Sets of so many tiles.
    pub sets: i32,
    /// Groups of a row at a time.
    pub chunk: i32,
    /// Chunks in shared memory at once.
    pub stages: i32,
    /// Bytes of a tile in a stage.
    pub stride: i32,
}

/// A walk, with the threads and the shared memory of its block.
#[derive(Clone, Copy, Debug)]
pub struct Walked {
    /// The walk.
    pub walk: Walk,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block: the vector, then the stages.
    pub shared: u32,
}

/// Bytes of a tile of rows of `groups` groups.
fn tile_bytes(ty: GgmlType, groups: usize) -> usize {
    let pitch = |width: usize| if width.is_multiple_of(16) { (width / 16 | 1) * 16 } else { width };
    let plane = |len: usize| (TILE * pitch(len * (32 * groups) / ty.block_size())).next_multiple_of(16);
    weights::plane_lengths(ty).map(plane).sum()
}

/// Bytes of a vector of `n` elements, prepared for rows of all these formats.
fn vector_bytes(formats: &[GgmlType], n: usize) -> usize {
    let float = |&&ty: &&GgmlType| matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
    let floats: HashSet<_> = formats.iter().filter(float).collect();
    let integers = usize::from(!formats.iter().all(|ty| float(&ty)));
    n / 32 * (integers * INTEGER_GROUP + floats.len() * FLOAT_GROUP)
}

/// A block's way through `sets` times `tiles` tiles of rows of `n` weights, of these formats, where it may have
/// `limit` bytes of shared memory, `besides` of them for other things. Where no way is that small it is the smallest,
/// which the card then refuses.
pub fn walk(formats: &[GgmlType], n: usize, tiles: usize, sets: usize, besides: usize, limit: usize) -> Walked {
    let groups = n / 32;
    let vector = (besides + vector_bytes(formats, n)).next_multiple_of(16);
    let stage = |chunk| tiles * formats.iter().map(|&ty| tile_bytes(ty, chunk)).max().unwrap_or(0);
    let room = limit.saturating_sub(vector);
    let whole = room / stage(groups);
    let (chunk, stages) = match sets.min(STAGES) {
        1 if whole >= 1 => (groups, 1),
        several if several > 1 && whole >= 2 => (groups, whole.min(several)),
        // Pieces of a row, two of them at once.
        _ => {
            let least = formats.iter().map(|ty| (ty.block_size() / 32).max(2)).max().unwrap_or(2);
            let pieces = (2..=groups).map(|pieces| groups.div_ceil(pieces).next_multiple_of(least));
            (pieces.into_iter().find(|&chunk| 2 * stage(chunk) <= room).unwrap_or(least), 2)
        }
    };
    let team = (MOST_WARPS / tiles).clamp(1, groups.div_ceil(2));
    let walk = Walk {
        tiles: tiles as i32,
        sets: sets as i32,
        chunk: chunk as i32,
        stages: stages as i32,
        stride: (stage(chunk) / tiles) as i32,
    };
    Walked { walk, threads: (32 * tiles * team) as u32, shared: (vector + stages * stage(chunk)) as u32 }
}

/// Tiles at a time, up to as many as a block has warps, of which the card's shared memory holds enough on their way.
pub fn streamed(format: GgmlType, n: usize, limit: usize) -> usize {
    let room = limit.saturating_sub(vector_bytes(&[format], n));
    let fits = |tiles: &usize| STAGES * tiles * tile_bytes(format, n / 32) <= room;
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}
