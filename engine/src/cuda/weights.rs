//! Weights on the device: blocks taken apart into planes, and put together again.
//!
//! A plane holds one field of every block of a tensor, in file order, so that
//! the kernels read each field aligned and in wide loads (`blocks.cuh`). No
//! weight is changed: the file's bytes come back from [`join`].

use super::arena::{Part, Plan};
use crate::quant::GgmlType;
use rayon::prelude::*;
use std::ops::Range;

/// Most planes a format has.
pub const PLANES: usize = 4;

/// Addresses of a tensor's planes: `struct Weights` of `blocks.cuh`.
pub type Planes = [u64; PLANES];

/// The fields of a block, in the order of the planes; a plain number is one. Source: the block structures in
/// ggml-common.h.
#[expect(clippy::single_range_in_vec_init, reason = "a number is a block of one field")]
fn fields(ty: GgmlType) -> &'static [Range<usize>] {
    match ty {
        GgmlType::F32 => &[0..4],
        GgmlType::F16 | GgmlType::BF16 => &[0..2],
        GgmlType::Q8_0 => &[2..34, 0..2],
        GgmlType::Q4_0 => &[2..18, 0..2],
        GgmlType::Q4_1 => &[4..20, 0..4],
        GgmlType::Q5_0 => &[6..22, 2..6, 0..2],
        GgmlType::Q5_1 => &[8..24, 4..8, 0..4],
        GgmlType::Q4_K => &[16..144, 0..16],
        GgmlType::Q5_K => &[48..176, 16..48, 0..16],
        GgmlType::Q6_K => &[0..128, 128..192, 192..208, 208..210],
        other => unreachable!("{other} is refused when a model is opened"),
    }
}

/// The planes of a tensor of `blocks` blocks, each a part of the plan.
pub fn plan(ty: GgmlType, blocks: usize, plan: &mut Plan) -> Vec<Part> {
    fields(ty).iter().map(|field| plan.take(field.len() * blocks)).collect()
}

/// The planes of a tensor's bytes.
pub fn split(ty: GgmlType, bytes: &[u8]) -> Vec<Vec<u8>> {
    let size = ty.type_size();
    fields(ty)
        .iter()
        .map(|field| {
            if field.len() == size {
                return bytes.to_vec();
            }
            let mut plane = vec![0; bytes.len() / size * field.len()];
            plane
                .par_chunks_mut(field.len())
                .zip(bytes.par_chunks(size))
                .with_min_len(4096)
                .for_each(|(to, block)| to.copy_from_slice(&block[field.clone()]));
            plane
        })
        .collect()
}

/// A tensor's bytes from its planes: undoes [`split`].
pub fn join(ty: GgmlType, planes: &[Vec<u8>]) -> Vec<u8> {
    let size = ty.type_size();
    let blocks = planes[0].len() / fields(ty)[0].len();
    let mut bytes = vec![0; blocks * size];
    for (field, plane) in fields(ty).iter().zip(planes) {
        for (block, from) in bytes.chunks_mut(size).zip(plane.chunks(field.len())) {
            block[field.clone()].copy_from_slice(from);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_fields_of_a_block_are_all_of_it_and_aligned() {
        for &ty in GgmlType::ALL_SUPPORTED {
            let mut seen = vec![0; ty.type_size()];
            for field in fields(ty) {
                seen[field.clone()].iter_mut().for_each(|n| *n += 1);
                assert!(field.len().is_power_of_two(), "{ty}: {field:?}");
            }
            assert!(seen.iter().all(|&n| n == 1), "{ty}: {seen:?}");
            assert!(fields(ty).len() <= PLANES);
        }
    }

    proptest! {
        #[test]
        fn planes_joined_are_the_bytes(which in 0..GgmlType::ALL_SUPPORTED.len(), blocks in 1usize..9, seed: u64) {
            let ty = GgmlType::ALL_SUPPORTED[which];
            let bytes: Vec<u8> = (0..blocks * ty.type_size())
                .map(|i| (seed.wrapping_mul(i as u64 + 1) >> 32) as u8)
                .collect();
            prop_assert_eq!(join(ty, &split(ty, &bytes)), bytes);
        }
    }
}
