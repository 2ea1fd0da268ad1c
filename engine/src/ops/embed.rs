//! `y[t] = W[token[t]]`: one row of the embedding table per token.
//!
//! tokens `[T]`, W `[V, E]` -> `[T, E]`.

use super::{Context, Real, Tensor, UNIT};

/// Looks up the rows of the tokens.
///
/// # Panics
/// If a token is not below V.
pub fn forward<F: Real>(c: &Context<'_>) -> Tensor<F> {
    let (width, _) = c.extent(0);
    let mut y = Tensor::zeros(vec![c.tokens.len(), width]);
    let mut row = vec![0f32; width];
    for (&token, y) in c.tokens.iter().zip(y.data.chunks_mut(width.max(1))) {
        c.rows(0, token as usize, &mut row);
        F::widen(&row, y);
    }
    y
}

/// A table stored in blocks is `scale·quant − min`: one rounding each, of
/// terms no larger than a small multiple of the row's largest value.
pub fn bound(y: &Tensor<f64>) -> Vec<f32> {
    let width = y.row_len();
    y.data
        .chunks(width.max(1))
        .flat_map(|row| {
            let largest = row.iter().fold(0f64, |m, v| m.max(v.abs()));
            std::iter::repeat_n((UNIT * largest) as f32, row.len())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Matrix;
    use proptest::prelude::*;

    proptest! {
        /// A token gives its own row, for any neighbours.
        #[test]
        fn picks_rows(width in 1usize..9, rows in 1usize..9, picks in prop::collection::vec(0usize..1000, 1..6)) {
            let table: Vec<f32> = (0..width * rows).map(|i| i as f32).collect();
            let w = Matrix(width, rows, table.clone());
            let tokens: Vec<u32> = picks.iter().map(|p| (p % rows) as u32).collect();
            let weights = [w.weight()];
            let y = forward::<f64>(&Context { tokens: &tokens, positions: &[], history: &[], source: &w, weights: &weights });
            for (t, &token) in tokens.iter().enumerate() {
                for i in 0..width {
                    prop_assert_eq!(y.row(t)[i], f64::from(table[token as usize * width + i]));
                }
            }
        }
    }
}
