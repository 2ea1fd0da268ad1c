//! `y[t] = W[token[t]]`: one row of the embedding table per token.
//!
//! tokens `[T]`, W `[V, E]` -> `[T, E]`.

use super::{Context, Real, Tensor, UNIT};

/// Looks up the rows of the tokens, or, `transposed`, the columns of the memory
/// taken for `[E, V]`.
///
/// # Panics
/// If a token is not below V.
pub fn forward<F: Real>(transposed: bool, c: &Context<'_>) -> Tensor<F> {
    let (width, rows) = c.weights.extent(c.weight);
    let mut y = Tensor::zeros(vec![c.tokens.len(), width]);
    let mut row = vec![0f32; width];
    for (t, &token) in c.tokens.iter().enumerate() {
        if transposed {
            // Element i is read at i·V + token.
            let mut source = vec![0f32; width];
            for (i, v) in row.iter_mut().enumerate() {
                let flat = i * rows + token as usize;
                c.weights.rows(c.weight, flat / width, &mut source);
                *v = source[flat % width];
            }
        } else {
            c.weights.rows(c.weight, token as usize, &mut row);
        }
        F::widen(&row, &mut y.data[t * width..(t + 1) * width]);
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
        /// A token gives its own row, whatever stands around it; read across,
        /// element i stands at i·V + token.
        #[test]
        fn picks_rows(width in 1usize..9, rows in 1usize..9, picks in prop::collection::vec(0usize..1000, 1..6)) {
            let table: Vec<f32> = (0..width * rows).map(|i| i as f32).collect();
            let w = Matrix(width, rows, table.clone());
            let tokens: Vec<u32> = picks.iter().map(|p| (p % rows) as u32).collect();
            let c = Context { tokens: &tokens, positions: &[], weights: &w, weight: "w" };
            let (y, across) = (forward::<f64>(false, &c), forward::<f32>(true, &c));
            for (t, &token) in tokens.iter().enumerate() {
                for i in 0..width {
                    prop_assert_eq!(y.row(t)[i], f64::from(table[token as usize * width + i]));
                    prop_assert_eq!(across.row(t)[i], table[i * rows + token as usize]);
                }
            }
        }
    }
}
