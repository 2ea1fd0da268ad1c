//! Scores of queries that were quantised in blocks.

use super::operands::Operand;
use qdiff_engine::dtype::DType;
use qdiff_engine::ops::{Attention, Tensor, UNIT};
use qdiff_engine::quant::{self, ActivationFormat};

/// Kernels take the offset of a block of a key times the stored sum of the query's block, not times the sum of what its elements
/// became. The offset is the smallest value of the block, of which code 0 always occurs. Nothing in formats that store no sum.
pub(super) fn stored_sums(
    (a, format): (&Attention, ActivationFormat), query: &Operand<'_>, inputs: &[&Tensor<f64>], value: &mut Tensor<f64>,
    bound: &mut [f32],
) {
    let ([q, k], mut residuals) = ([inputs[0], inputs[1]], Vec::new());
    quant::sum_residuals(format, &query.narrow(), &q.data, &mut residuals);
    if residuals.is_empty() {
        return;
    }
    let blocks = a.head_dim / 32;
    let offsets: Vec<f64> =
        k.data.chunks(32).map(|block| block.iter().copied().fold(f64::INFINITY, f64::min)).collect();
    let sums: Vec<f64> = q.data.chunks(32).map(|block| block.iter().sum()).collect();
    let (tokens, keys) = (q.rows(), k.rows());
    for (row, (value, bound)) in value.data.chunks_mut(keys).zip(bound.chunks_mut(keys)).enumerate() {
        let (h, t) = (row / tokens, row % tokens);
        let of_query = (t * a.n_heads + h) * blocks..(t * a.n_heads + h + 1) * blocks;
        let (residuals, sums) = (&residuals[of_query.clone()], &sums[of_query]);
        for (n, (value, bound)) in value.iter_mut().zip(bound).enumerate() {
            let of_key = &offsets[(n * a.n_kv_heads + a.kv_head(h)) * blocks..][..blocks];
            let mut reach = 0.0;
            for ((r, sum), m) in residuals.iter().zip(sums).zip(of_key) {
                *value += m * r;
                // If a query is uncertain, so is the rounding of its sum.
                let u = if query.delta().is_some() { 2.0 * DType::F16.half_step(r + sum) } else { 0.0 };
                reach += (m * u).powi(2) + (2.0 * UNIT * m * (r + sum)).powi(2);
            }
            *bound = bound.hypot(reach.sqrt() as f32);
        }
    }
}
