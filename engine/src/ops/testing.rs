//! A weight source for the ops' tests: one matrix in f32; and what holds of
//! every op: errors of its operands reach its result through its derivatives.

use crate::ops::{Context, Definition, Tensor, Weight};
use crate::quant::{GgmlType, Stored, WeightSource};

/// n, m, and m rows of n weights.
pub(crate) struct Matrix(pub(crate) usize, pub(crate) usize, pub(crate) Vec<f32>);

impl Matrix {
    /// As an op's own.
    pub(crate) fn weight(&self) -> Weight {
        Weight { name: "w".to_owned(), extent: vec![self.0, self.1] }
    }
}

impl WeightSource for Matrix {
    fn stored(&self, _: &str) -> Stored<'_> {
        Stored { ty: GgmlType::F32, extent: (self.0, self.1), bytes: bytemuck::cast_slice(&self.2) }
    }
}

/// Whether f32 stays within four times the bound of a definition without weights, on these operands.
pub(crate) fn within(op: &dyn Definition, inputs: &[&Tensor<f32>]) -> bool {
    let none = Matrix(0, 0, Vec::new());
    let c = Context { tokens: &[], positions: &[], history: &[], source: &none, weights: &[] };
    let wide: Vec<Tensor<f64>> = inputs.iter().map(|x| x.wide()).collect();
    let wide: Vec<&Tensor<f64>> = wide.iter().collect();
    let (narrow, exact) = (op.forward32(inputs, &c), op.forward64(&wide, &c));
    let bound = op.bound(&wide, &exact, &c);
    let off = narrow.data.iter().zip(&exact.data).map(|(y, exact)| (f64::from(*y) - exact).abs());
    off.zip(bound).all(|(off, bound)| off <= 4.0 * f64::from(bound))
}

mod errors {
    use super::Matrix;
    use crate::ops::*;
    use proptest::prelude::*;

    fn tensor(shape: &[usize], from: &[f64]) -> Tensor<f64> {
        let n = shape.iter().product();
        Tensor { shape: shape.to_vec(), data: from.iter().copied().cycle().take(n).collect() }
    }

    /// `√Σ (∂y/∂x · δ)²` by difference quotients, element by element.
    fn by_differences(op: &Op, inputs: &[Tensor<f64>], deltas: &[Vec<f32>], c: &Context<'_>) -> Vec<f64> {
        let mut sums = Vec::new();
        for (i, delta) in deltas.iter().enumerate() {
            for (j, d) in delta.iter().enumerate() {
                let at = |h: f64| {
                    let mut moved = inputs.to_vec();
                    moved[i].data[j] += h;
                    forward(op, &moved.iter().collect::<Vec<_>>(), c).data
                };
                let (up, down) = (at(1e-5), at(-1e-5));
                sums.resize(up.len(), 0f64);
                for (sum, (up, down)) in sums.iter_mut().zip(up.iter().zip(&down)) {
                    *sum += ((up - down) / 2e-5 * f64::from(*d)).powi(2);
                }
            }
        }
        sums.into_iter().map(f64::sqrt).collect()
    }

    proptest! {
        #[test]
        fn is_the_sum_over_the_derivatives(
            values in prop::collection::vec(-2f64..2.0, 64),
            deltas in prop::collection::vec(1e-4f32..1e-2, 61),
        ) {
            let attention = Attention { n_heads: 4, n_kv_heads: 2, head_dim: 4 };
            let w = Matrix(16, 3, values.iter().map(|v| *v as f32).cycle().skip(5).take(48).collect());
            let vector = |n: usize| Matrix(n, 1, values.iter().map(|v| *v as f32).skip(9).take(n).collect());
            let (bias, of_runs) = (vector(16), vector(8));
            let norm = RmsNorm { eps: 1e-3, groups: 2 };
            let (rows, cache) = (vec![2, 16], vec![3, 2, 4]);
            let square = vec![4, 2, 3];
            let cases: Vec<(Op, &Matrix, Vec<Vec<usize>>)> = vec![
                (Op::RmsNorm(norm), &of_runs, vec![rows.clone()]),
                (Op::Linear, &w, vec![rows.clone()]),
                (Op::Bias, &bias, vec![rows.clone()]),
                (Op::Rope(Rope::neox(1e4, 4)), &w, vec![rows.clone()]),
                (Op::AttnScores(attention), &w, vec![vec![2, 4, 4], cache.clone()]),
                (Op::AttnWeights(Softmax { scale: 0.5 }), &w, vec![square.clone()]),
                (Op::AttnContext(attention), &w, vec![square, cache]),
                (Op::Residual, &w, vec![rows.clone(), rows.clone()]),
                (Op::SwiGlu, &w, vec![rows.clone(), rows.clone()]),
                (Defined::op(RowSoftmax), &w, vec![rows.clone()]),
                (Defined::op(Sigmoid("")), &w, vec![rows]),
            ];
            for (op, matrix, shapes) in cases {
                let weights = [matrix.weight()];
                let c = Context { tokens: &[0, 0], positions: &[1, 2], history: &[], source: matrix, weights: &weights };
                let inputs: Vec<Tensor<f64>> = shapes.iter().enumerate()
                    .map(|(i, s)| tensor(s, &values[i..])).collect();
                let deltas: Vec<Vec<f32>> = inputs.iter()
                    .map(|x| deltas.iter().copied().cycle().take(x.data.len()).collect()).collect();
                let borrowed: Vec<&Tensor<f64>> = inputs.iter().collect();
                let y = forward(&op, &borrowed, &c);
                let given: Vec<Option<&[f32]>> = deltas.iter().map(|d| Some(d.as_slice())).collect();
                let got = propagate_error(&op, &borrowed, &given, &y, &c);
                let want = by_differences(&op, &inputs, &deltas, &c);
                for (got, want) in got.iter().zip(&want) {
                    let close = (f64::from(*got) - want).abs() <= 1e-3 * want + 1e-6;
                    prop_assert!(close, "{op:?}: {got} for {want}");
                }
            }
        }
    }
}
