//! Weights on the device: blocks taken apart into planes, and put together again.
//!
//! A plane holds one field of every block of a tensor, in file order, so that the kernels read each field aligned and
//! in wide loads (`blocks.cuh`). No weight is changed: the file's bytes come back from [`join`]. If no kernel reads a format
//! ([`kept_as`]), the CPU's reader makes plain numbers of it when the model is loaded, and the device keeps these.

use super::arena::{Part, Plan};
use super::layouts::Wide;
use crate::quant::{self, GgmlType};
use rayon::prelude::*;
use std::ops::Range;

/// Most planes a format has.
pub const PLANES: usize = 4;

/// Addresses of a tensor's planes: `struct Weights` of `blocks.cuh`.
pub type Planes = [u64; PLANES];

/// A tensor on the device.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Where its planes are.
    pub planes: Planes,
    /// Where each plane stands.
    pub(super) parts: Vec<Part>,
    /// Format; vectors are F32 for any file, and matrices as [`kept_as`] says.
    pub ty: GgmlType,
    /// Length of a row.
    pub n: usize,
    /// Rows.
    pub m: usize,
    /// Its halves, where they are kept.
    pub wide: Option<Wide>,
}

/// As what a matrix of type `ty` is kept on the device: as it is, where `blocks.cuh` has its format; else as the narrowest plain
/// numbers that hold every weight exactly. Kernels then read more bytes a weight, and compute the same.
pub fn kept_as(ty: GgmlType) -> GgmlType {
    match ty {
        GgmlType::F32
        | GgmlType::F16
        | GgmlType::BF16
        | GgmlType::Q4_0
        | GgmlType::Q4_1
        | GgmlType::Q5_0
        | GgmlType::Q5_1
        | GgmlType::Q8_0
        | GgmlType::Q4_K
        | GgmlType::Q5_K
        | GgmlType::Q6_K => ty,
        // An f16 with either sign, or zero; a 4-bit float times an 8-bit one, of six bits together.
        GgmlType::Q1_0 | GgmlType::TQ1_0 | GgmlType::NVFP4 => GgmlType::F16,
        // A 4-bit float times any power of two.
        GgmlType::MXFP4 => GgmlType::BF16,
        _ => GgmlType::F32,
    }
}

/// The formats that kernels read.
pub fn read_by_kernels() -> impl Iterator<Item = GgmlType> + Clone {
    GgmlType::ALL_SUPPORTED.iter().copied().filter(|&ty| kept_as(ty) == ty)
}

/// `weights` as numbers of a plain type, which hold them exactly.
///
/// # Panics
/// If the type has blocks.
pub fn plain(ty: GgmlType, weights: &[f32]) -> Vec<u8> {
    match ty {
        GgmlType::F32 => bytemuck::cast_slice(weights).to_vec(),
        GgmlType::F16 => weights.iter().flat_map(|w| half::f16::from_f32(*w).to_le_bytes()).collect(),
        GgmlType::BF16 => weights.iter().flat_map(|w| half::bf16::from_f32(*w).to_le_bytes()).collect(),
        _ => unreachable!("{ty} has blocks"),
    }
}

fn is_quants(part: quant::Part) -> bool {
    matches!(part, quant::Part::Quants | quant::Part::HighBits)
}

/// How many planes stand before those of the scales.
#[cfg(any(test, feature = "faults"))]
pub fn planes_of_quants(ty: GgmlType) -> usize {
    ty.format().map_or(0, |format| format.fields.iter().filter(|field| is_quants(field.part)).count())
}

/// The bytes of a block by plane: the quants, their upper bits, and its scales, these in one plane where a power of two
/// keeps them aligned, else each in its own. A plain number is one plane.
fn ranges(ty: GgmlType) -> Vec<Range<usize>> {
    let format = ty.format().unwrap_or_else(|| unreachable!("{ty}: no format without kernels is kept on a device"));
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
    use crate::cuda::options::Options;
    use crate::cuda::testing::{bytes_of, graphs};
    use proptest::prelude::*;

    /// The room that a model takes is counted by what is kept of it.
    #[test]
    fn a_format_without_kernels_takes_the_room_of_plain_numbers() {
        let options = Options { step: 4, context: 64, ..Options::default() };
        for graph in graphs() {
            let bytes = |ty| bytes_of(&graph, &options, ty);
            assert_eq!(bytes(GgmlType::IQ4_NL), bytes(GgmlType::F32));
            assert_eq!(bytes(GgmlType::MXFP4), bytes(GgmlType::BF16));
            assert_eq!(bytes(GgmlType::NVFP4), bytes(GgmlType::F16));
            assert!(bytes(GgmlType::Q4_0) < bytes(GgmlType::F16) && bytes(GgmlType::F16) < bytes(GgmlType::F32));
        }
    }

    /// The formats that kernels read are those that `blocks.cuh` has a struct for.
    #[test]
    fn kernels_read_what_the_header_has() {
        let header = include_str!("../../kernels/blocks.cuh");
        for &ty in GgmlType::ALL_SUPPORTED {
            let there = [" {", " :"].iter().any(|end| header.contains(&format!("struct {ty}{end}")));
            assert_eq!(kept_as(ty) == ty, there, "{ty}");
        }
    }

    #[test]
    fn the_fields_of_a_block_are_all_of_it_and_aligned() {
        for ty in read_by_kernels() {
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
        /// The plain numbers equal the weights to the last bit, for any bytes of the blocks.
        #[test]
        fn what_is_kept_is_exact(
            ty in prop::sample::select(GgmlType::ALL_SUPPORTED),
            bytes in prop::collection::vec(any::<u8>(), 256 * 4),
        ) {
            let kept = kept_as(ty);
            prop_assume!(kept != ty);
            let (mut weights, mut back) = (vec![0f32; 256], vec![0f32; 256]);
            quant::dequantize(ty, &bytes[..ty.row_bytes(256)], &mut weights);
            quant::dequantize(kept, &plain(kept, &weights), &mut back);
            for (w, b) in weights.iter().zip(&back) {
                prop_assert!(w.to_bits() == b.to_bits() || w.is_nan() && b.is_nan(), "{} as {}: {:e} {:e}", ty, kept, w, b);
            }
        }

        #[test]
        fn planes_joined_are_the_bytes(
            ty in prop::sample::select(read_by_kernels().collect::<Vec<_>>()), blocks in 1usize..9, seed: u64,
        ) {
            let bytes: Vec<u8> = (0..blocks * ty.type_size())
                .map(|i| (seed.wrapping_mul(i as u64 + 1) >> 32) as u8)
                .collect();
            prop_assert_eq!(join(ty, &split(ty, &bytes)), bytes);
        }
    }
}
