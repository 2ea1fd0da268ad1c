//! Matrices as halves: what `prefill/wide_products.cu` multiplies on Hopper.
//!
//! They are beside the blocks of the file, from which they are made on the card when a model is loaded. Halves of
//! weights that are integers are exact, and take two bytes a weight.

use super::arena::Plan;
use super::device::{Device, HOPPER};
use super::kernels::*;
use super::launch::Call;
use super::layouts::{Operand, Wide};
use super::operand::{PIECE, Part, piece_of};
use super::weights::Weight;
use crate::quant::GgmlType;

/// Rows of an image, bytes of its halves, and tokens of a tile.
pub(super) const ROWS: usize = constant!("prefill/wide.cuh", "WIDE_ROWS") as usize;
const HALVES: usize = constant!("prefill/wide.cuh", "WIDE_WEIGHTS") as usize;
pub(super) const TOKENS: usize = constant!("prefill/operand.cuh", "OPERAND_TOKENS") as usize;
/// Bytes of the minima of an image's rows in eight groups.
const MINIMA: usize = constant!("prefill/wide.cuh", "WIDE_MINIMA") as usize;
/// Bytes of shared memory of a block.
const SHARED: u32 = constant!("prefill/wide.cuh", "WIDE_STAGES")
    * (constant!("prefill/wide.cuh", "WIDE_STAGE") + constant!("prefill/wide.cuh", "WIDE_EIGHT"));
const THREADS: u32 = constant!("prefill/wide_products.cu", "THREADS");

/// Whether a card has the instructions: Hopper, whose blocks may have the shared memory.
pub fn keeps_halves(device: &Device) -> bool {
    device.capability == HOPPER
}

/// How a format's sums are scaled: twice a group, or once for both groups of a piece; and whether it has minima.
fn kind_of(ty: GgmlType) -> (bool, bool, bool) {
    let (_, minima, _) = piece_of(ty);
    (ty == GgmlType::Q6_K, matches!(ty, GgmlType::Q4_K | GgmlType::Q5_K), minima)
}

/// `struct Image` of `wide.cuh`, for a format.
pub fn image_of(ty: GgmlType) -> String {
    let (halves, folded, minima) = kind_of(ty);
    format!("Image<{halves}, {folded}, {minima}, {}>", image_bytes(ty))
}

/// Its bytes, which the kernel takes and checks.
fn image_bytes(ty: GgmlType) -> usize {
    let scales = match kind_of(ty) {
        (true, ..) => 2 * PIECE,
        (_, true, _) => 1,
        _ => PIECE,
    };
    HALVES + 4 * ROWS * scales
}

impl Wide {
    /// Room for a matrix of `m` rows of `n` weights; none for weights that are no halves.
    pub fn plan(ty: GgmlType, n: usize, m: usize, plan: &mut Plan) -> Option<Self> {
        if Part::of(&[ty]) != Part::Half {
            return None;
        }
        let (tiles, groups) = (m.div_ceil(ROWS), n / 32);
        let images = plan.take(tiles * groups.div_ceil(PIECE) * image_bytes(ty)).at;
        let (.., minima) = kind_of(ty);
        Some(Self { images, minima: if minima { plan.take(tiles * groups.div_ceil(8) * MINIMA).at } else { 0 } })
    }

    /// What makes them.
    pub fn make(self, weight: &Weight) -> Call {
        let params = WidenParams {
            w: weight.planes,
            images: self.images,
            minima: self.minima,
            n: weight.n as i32,
            m: weight.m as i32,
        };
        let pieces = (weight.n / 32).div_ceil(PIECE);
        Call::new(params, (pieces as u32, weight.m.div_ceil(ROWS) as u32, 1), ROWS as u32).of(&[&weight.ty])
    }
}

/// The product of x with up to three matrices, whose results have no place yet: a block a tile.
pub fn products(x: Operand, weights: &[&Weight], wide: &[Wide], tokens: usize) -> Call {
    let params = WideProductsParams {
        x,
        images: std::array::from_fn(|i| wide.get(i).map_or(0, |w| w.images)),
        minima: std::array::from_fn(|i| wide.get(i).map_or(0, |w| w.minima)),
        y: [0; 3],
        rest: [0; 3],
        m: std::array::from_fn(|i| weights.get(i).map_or(0, |w| w.m as i32)),
        n: weights[0].n as i32,
        tokens: tokens as i32,
        whole: 0,
        shares: 1,
        token0: 0,
    };
    let tiles: usize = weights.iter().map(|w| w.m.div_ceil(ROWS)).sum();
    let [a, b, c] = std::array::from_fn(|i| image_of(weights.get(i).unwrap_or(&weights[0]).ty));
    Call::new(params, (tiles as u32, tokens.div_ceil(TOKENS) as u32, 1), THREADS).of(&[&a, &b, &c]).shared(SHARED)
}

#[cfg(test)]
mod tests {
    use crate::cuda::kernels::Params;
    use crate::cuda::memory::Memory;
    use crate::cuda::options::{Options, Path};
    use crate::cuda::testing::{graphs, with_calls_where};
    use crate::model::Role;
    use crate::ops::Op;

    #[test]
    fn halves_of_the_layers_matrices_are_counted_in_the_memory_and_made_where_they_stand() {
        for graph in &graphs() {
            let options = Options { step: 8, context: 16, path: Path::Fast, ..Options::default() };
            let of = |wide| with_calls_where(graph, &options, wide, |calls| halves(calls.memory));
            let ((without, none), (with, mut made)) = (of(false), of(true));
            assert!(none.is_empty());
            let linear = graph.nodes.iter().filter(|n| n.op == Op::Linear && n.role != Role::Logits);
            let weights: usize = linear.map(|n| n.weights[0].extent.iter().product::<usize>()).sum();
            assert!(with >= without + 2 * weights, "{with} and {without} bytes, {weights} weights");
            // Whole rows and pieces, and no room in another's.
            made.sort_unstable();
            assert!(made.iter().all(|(start, end)| start < end));
            assert!(made.windows(2).all(|two| two[0].1 <= two[1].0));
        }
    }

    /// The bytes of it all, and where each of the launches that make halves writes 128 bytes for a piece of each row.
    fn halves(memory: &Memory) -> (usize, Vec<(u64, u64)>) {
        let place = |call: super::Call| {
            let Params::Widen(params) = call.params else { panic!("{call:?}") };
            (params.images, params.images + u64::from(call.grid.0 * call.grid.1) * (128 * super::ROWS as u64))
        };
        (memory.bytes, memory.widening().into_iter().map(place).collect())
    }
}
