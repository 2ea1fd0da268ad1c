//! Weights on the device: blocks taken apart into planes, and put together again.
//!
//! A plane holds one field of every block of a tensor, in file order, so that the kernels read each field aligned and
//! in wide loads (`blocks.cuh`). No weight is changed: the file's bytes come back from [`join`].

use super::arena::{Part, Plan};
use crate::quant::{self, GgmlType};
use rayon::prelude::*;
use std::ops::Range;

/// Most planes a format has.
pub const PLANES: usize = 4;

/// Addresses of a tensor's planes: `struct Weights` of `blocks.cuh`.
pub type Planes = [u64; PLANES];

/// The bytes of a block by plane: the quants, their upper bits, and its scales, these in one plane where a power of two
/// keeps them aligned, else each in its own. A plain number is one plane.
fn ranges(ty: GgmlType) -> Vec<Range<usize>> {
    let format = ty.format().unwrap_or_else(|| unreachable!("{ty} is refused when a model is opened"));
    let is_quants = |part| matches!(part, quant::Part::Quants | quant::Part::HighBits);
    let of = |part| format.field(part).map(|f| f.bytes.clone());
    let mut planes: Vec<_> = [quant::Part::Quants, quant::Part::HighBits].into_iter().filter_map(of).collect();
    let scales: Vec<_> = format.fields.iter().filter(|f| !is_quants(f.part)).map(|f| f.bytes.clone()).collect();
    let (start, end) = (scales[0].start, scales[scales.len() - 1].end);
    let adjacent = scales.iter().map(Range::len).sum::<usize>() == end - start;
    if adjacent && (end - start).is_power_of_two() {
        planes.push(start..end);
    } else {
        planes.extend(scales);
    }
    planes
}

/// Bytes of a block in each plane.
pub fn plane_lengths(ty: GgmlType) -> impl Iterator<Item = usize> {
    ranges(ty).into_iter().map(|field| field.len())
}

/// The planes of a tensor of `blocks` blocks, each a part of the plan.
pub fn plan(ty: GgmlType, blocks: usize, plan: &mut Plan) -> Vec<Part> {
    ranges(ty).iter().map(|field| plan.take(field.len() * blocks)).collect()
}

/// The planes of a tensor's bytes.
pub fn split(ty: GgmlType, bytes: &[u8]) -> Vec<Vec<u8>> {
    let size = ty.type_size();
    ranges(ty)
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
    let blocks = planes[0].len() / ranges(ty)[0].len();
    let mut bytes = vec![0; blocks * size];
    for (field, plane) in ranges(ty).iter().zip(planes) {
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
            for field in ranges(ty) {
                seen[field.clone()].iter_mut().for_each(|n| *n += 1);
                assert!(field.len().is_power_of_two(), "{ty}: {field:?}");
            }
            assert!(seen.iter().all(|&n| n == 1), "{ty}: {seen:?}");
            assert!(ranges(ty).len() <= PLANES);
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
