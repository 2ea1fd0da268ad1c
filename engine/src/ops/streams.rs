//! Hyper-connections: a layer reads and writes several residual streams in place of one (Zhu et al. 2024; the low-rank gates of
//! Qwen3.8-Flash-Next, llama.cpp's `build_hc_mix` and `build_hc_combine`).
//!
//! S streams of width E lie one after the other in a row: `X[c·E + i]`. They are normed, gated element by element and averaged to
//! the one row that a layer's mixer or network reads; what that gives is added to each stream, times a weight of the stream.

use super::anatomy::{Activation, Elementwise, RowReduction};
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT, deviation, real};

/// `y = w_i·x_i/√(mean(x²) + ε)`, the mean over each stream, w of all streams: x `[T, S·E]`, w `[S·E]` -> `[T, S·E]`.
#[derive(Debug)]
pub struct StreamNorm {
    /// ε, added to the mean square.
    pub eps: f64,
    /// S.
    pub streams: usize,
    /// What the result is to the model.
    pub about: &'static str,
}

/// `y_i = 1/S·Σ_c x[c·E + i]·σ(g[c·E + i])`: x and g `[T, S·E]` -> `[T, E]`.
#[derive(Debug)]
pub struct GatedMean {
    /// S.
    pub streams: usize,
}

/// `y[c·E + i] = X[c·E + i] + w_c·x_i`: X `[T, S·E]`, x `[T, E]`, w `[T, S]` -> `[T, S·E]`.
#[derive(Debug)]
pub struct StreamSum {
    /// S.
    pub streams: usize,
}

/// `y[c·E + i] = x_i·w_c`: x `[T, E]`, w `[T, S]` -> `[T, S·E]`.
#[derive(Debug)]
pub struct StreamFactors {
    /// S.
    pub streams: usize,
    /// What the result is to the model.
    pub about: &'static str,
}

/// `y_c = 1/√E·Σ_i a[c·E + i]·b[c·E + i]`: a and b `[T, S·E]` -> `[T, S]`.
#[derive(Debug)]
pub struct StreamDots {
    /// S.
    pub streams: usize,
    /// What the result is to the model.
    pub about: &'static str,
}

/// A function of one operand, element by element.
#[derive(Debug)]
pub struct Curve {
    /// Which.
    pub of: Function,
    /// What the result is to the model.
    pub about: &'static str,
}

/// See [`Curve`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `silu(x/n)`.
    SiluOfShare(usize),
    /// `2·σ(x/n)`.
    TwiceSigmoidOfShare(usize),
    /// `σ(sgn(x)·√max(|x|, 10⁻⁶))`.
    SigmoidOfRoot,
}

/// `y = σ(z)·x`: the gate of the delta net's output.
#[derive(Debug)]
pub struct SigmoidGate(pub &'static str);

fn sigmoid<F: Real>(x: F) -> F {
    F::one() / (F::one() + (-x).exp())
}

/// Roundings that the sigmoid of x is good to, relative to itself: see [`super::Sigmoid`], whose ½ is at least σ for x ≥ 0.
fn of_sigmoid(x: f64) -> f64 {
    8.0 + (-x).max(0.0) + 0.5 / sigmoid(x).max(1e-3)
}

fn width<F: Copy + Default>(x: &Tensor<F>, streams: usize) -> usize {
    (x.row_len() / streams.max(1)).max(1)
}

/// The uncertainty of an operand, zero where it is exact.
fn uncertain(inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], i: usize) -> Vec<f64> {
    deltas[i].map_or_else(|| vec![0.0; inputs[i].data.len()], |d| d.iter().map(|d| f64::from(*d)).collect())
}

impl StreamNorm {
    fn of<F: Real>(&self, x: &Tensor<F>, w: &[F]) -> Tensor<F> {
        let run = width(x, self.streams);
        let mut y = x.clone();
        for (i, stream) in y.data.chunks_mut(run).enumerate() {
            let mean = real::sum(stream.iter().map(|v| *v * *v)) / F::of(run as f64);
            let scale = F::one() / (mean + F::of(self.eps)).sqrt();
            for (v, w) in stream.iter_mut().zip(&w[i % self.streams * run..]) {
                *v = *v * scale * *w;
            }
        }
        y
    }
}

impl Definition for StreamNorm {
    fn name(&self) -> &'static str {
        "stream_norm"
    }
    fn about(&self) -> &'static str {
        self.about
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        self.of(inputs[0], &c.vector(0))
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        self.of(inputs[0], &c.vector(0))
    }
    /// Squares are positive: a tree sum is good to log₂ E roundings, one term by term to √E/2 in the mean, of which the root keeps
    /// half; quotient, root and two products add some.
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let run = width(inputs[0], self.streams) as f64;
        let factor = UNIT * (4.0 + 0.5 * run.log2() + 0.25 * run.sqrt());
        y.data.iter().map(|y| (factor * y.abs() + TINY) as f32).collect()
    }
    /// As of [`super::rms_norm`].
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, c: &Context<'_>,
    ) -> Vec<f32> {
        let (run, w, d) = (width(inputs[0], self.streams), c.vector::<f64>(0), uncertain(inputs, deltas, 0));
        let streams = inputs[0].data.chunks(run).zip(d.chunks(run)).enumerate();
        let of_stream = |(i, (x, d)): (usize, (&[f64], &[f64]))| {
            let n = run as f64;
            let s = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + self.eps).sqrt();
            let common: f64 = x.iter().zip(d).map(|(x, d)| (x * d).powi(2)).sum::<f64>() * (s * s / n).powi(2);
            let each = x.iter().zip(d).zip(&w[i % self.streams * run..]).map(|((x, d), w)| {
                // Its own share of the mean is subtracted, not added.
                let own = (1.0 - 2.0 * x * x * s * s / n) * d * d;
                ((w * s).abs() * deviation(own + x * x * common)) as f32
            });
            each.collect::<Vec<_>>()
        };
        streams.flat_map(of_stream).collect()
    }
}

impl GatedMean {
    fn of<F: Real>(&self, x: &Tensor<F>, gate: &Tensor<F>, term: impl Fn(F, F) -> F) -> Tensor<F> {
        let n = width(x, self.streams);
        let mut y = Tensor::zeros(vec![x.rows(), n]);
        let rows = x.data.chunks(n * self.streams).zip(gate.data.chunks(n * self.streams));
        for (out, (x, gate)) in y.data.chunks_mut(n).zip(rows) {
            for (x, gate) in x.chunks(n).zip(gate.chunks(n)) {
                for ((out, x), gate) in out.iter_mut().zip(x).zip(gate) {
                    *out = *out + term(*x, *gate);
                }
            }
        }
        y
    }

    fn mean<F: Real>(&self, x: &Tensor<F>, gate: &Tensor<F>) -> Tensor<F> {
        let share = F::of(1.0 / self.streams as f64);
        self.of(x, gate, |x, gate| x * sigmoid(gate)).map(|sum| sum * share)
    }
}

impl Definition for GatedMean {
    fn name(&self) -> &'static str {
        "gated_mean"
    }
    fn about(&self) -> &'static str {
        "the mean of the residual streams, each element times the sigmoid of its gate"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        self.mean(inputs[0], inputs[1])
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        self.mean(inputs[0], inputs[1])
    }
    /// Each term is good to the roundings of its sigmoid and a product; their sum, in any order, and the division add some.
    fn bound(&self, inputs: &[&Tensor<f64>], _: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let (terms, share) = (self.streams as f64, 1.0 / self.streams as f64);
        let reach = self.of(inputs[0], inputs[1], |x, g| (x * sigmoid(g)).abs() * (of_sigmoid(g) + 2.0 + terms.sqrt()));
        reach.data.iter().map(|reach| (UNIT * share * reach + TINY) as f32).collect()
    }
    /// `dy² = 1/S²·Σ_c (σ·dx)² + (x·σ·(1 − σ)·dg)²`.
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let (x, gate) = (inputs[0], inputs[1]);
        let (dx, dg) = (uncertain(inputs, deltas, 0), uncertain(inputs, deltas, 1));
        let (share, n) = (1.0 / self.streams as f64, width(x, self.streams));
        let mut out = vec![0f64; x.rows() * n];
        for (at, (x, gate)) in x.data.iter().zip(&gate.data).enumerate() {
            let s = sigmoid(*gate);
            let slope = (s * dx[at]).powi(2) + (x * s * (1.0 - s) * dg[at]).powi(2);
            out[at / (n * self.streams) * n + at % n] += slope;
        }
        out.into_iter().map(|square| (share * square.sqrt()) as f32).collect()
    }
}

/// For each place of all streams: what `f` makes of it, by its place, its place in a row of one stream, and that of its stream.
fn by_stream<T>(rows: usize, streams: usize, n: usize, f: impl Fn(usize, usize, usize) -> T) -> Vec<T> {
    let of_row = |t: usize| (0..streams).flat_map(move |c| (0..n).map(move |i| (t, c, i)));
    let places = (0..rows).flat_map(of_row);
    places.map(|(t, c, i)| f((t * streams + c) * n + i, t * n + i, t * streams + c)).collect()
}

impl Definition for StreamSum {
    fn name(&self) -> &'static str {
        "stream_sum"
    }
    fn about(&self) -> &'static str {
        "every residual stream, plus what the layer's part gave times the stream's weight"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        self.of(inputs)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        self.of(inputs)
    }
    /// One rounding of the product, and one of the sum.
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let of = |at: usize, i: usize, c: usize| {
            let product = inputs[1].data[i] * inputs[2].data[c];
            (UNIT * (product.abs() + y.data[at].abs()) + TINY) as f32
        };
        by_stream(y.rows(), self.streams, width(y, self.streams), of)
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let d: Vec<Vec<f64>> = (0..3).map(|i| uncertain(inputs, deltas, i)).collect();
        let of = |at: usize, i: usize, c: usize| {
            let of_product = (inputs[1].data[i] * d[2][c]).hypot(inputs[2].data[c] * d[1][i]);
            d[0][at].hypot(of_product) as f32
        };
        by_stream(y.rows(), self.streams, width(y, self.streams), of)
    }
}

impl StreamSum {
    fn of<F: Real>(&self, inputs: &[&Tensor<F>]) -> Tensor<F> {
        let [all, x, w] = inputs else { unreachable!("streams, a row, and weights") };
        let of = |at: usize, i: usize, c: usize| all.data[at] + x.data[i] * w.data[c];
        let data = by_stream(all.rows(), self.streams, width(all, self.streams), of);
        Tensor { shape: all.shape.clone(), data }
    }
}

impl Definition for StreamFactors {
    fn name(&self) -> &'static str {
        "stream_factors"
    }
    fn about(&self) -> &'static str {
        self.about
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        self.of(inputs)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        self.of(inputs)
    }
    /// One rounding.
    fn bound(&self, _: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        y.data.iter().map(|y| (UNIT * y.abs() + TINY) as f32).collect()
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let (dx, dw) = (uncertain(inputs, deltas, 0), uncertain(inputs, deltas, 1));
        let of = |_: usize, i: usize, c: usize| (inputs[0].data[i] * dw[c]).hypot(inputs[1].data[c] * dx[i]) as f32;
        by_stream(y.rows(), self.streams, width(y, self.streams), of)
    }
}

impl StreamFactors {
    fn of<F: Real>(&self, inputs: &[&Tensor<F>]) -> Tensor<F> {
        let (x, w) = (inputs[0], inputs[1]);
        let data = by_stream(x.rows(), self.streams, x.row_len(), |_, i, c| x.data[i] * w.data[c]);
        Tensor { shape: vec![x.rows(), self.streams * x.row_len()], data }
    }
}

impl StreamDots {
    /// `scale·Σ term` of each stream.
    fn of<F: Real>(&self, a: &Tensor<F>, b: &Tensor<F>, scale: f64, term: impl Fn(F, F) -> F + Copy) -> Tensor<F> {
        let n = width(a, self.streams);
        let streams = a.data.chunks(n).zip(b.data.chunks(n));
        let dot = |(a, b): (&[F], &[F])| real::sum(a.iter().zip(b).map(|(a, b)| term(*a, *b))) * F::of(scale);
        Tensor { shape: vec![a.rows(), self.streams], data: streams.map(dot).collect() }
    }

    fn scale<F: Copy + Default>(&self, a: &Tensor<F>) -> f64 {
        1.0 / (width(a, self.streams) as f64).sqrt()
    }
}

impl Definition for StreamDots {
    fn name(&self) -> &'static str {
        "stream_dots"
    }
    fn about(&self) -> &'static str {
        self.about
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        self.of(inputs[0], inputs[1], self.scale(inputs[0]), |a, b| a * b)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        self.of(inputs[0], inputs[1], self.scale(inputs[0]), |a, b| a * b)
    }
    /// A sum of E products in any order, and one more product.
    fn bound(&self, inputs: &[&Tensor<f64>], _: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let scale = self.scale(inputs[0]);
        let factor = UNIT * (2.0 + (width(inputs[0], self.streams) as f64).sqrt());
        let reach = self.of(inputs[0], inputs[1], scale, |a, b| (a * b).abs());
        reach.data.iter().map(|reach| (factor * reach + TINY) as f32).collect()
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let (a, b, scale) = (inputs[0], inputs[1], self.scale(inputs[0]));
        let delta = |i: usize| Tensor { shape: inputs[i].shape.clone(), data: uncertain(inputs, deltas, i) };
        let square = |x: &Tensor<f64>, d: &Tensor<f64>| self.of(x, d, scale * scale, |x, d| (x * d).powi(2));
        let (of_b, of_a) = (square(a, &delta(1)), square(b, &delta(0)));
        of_a.data.iter().zip(&of_b.data).map(|(a, b)| (a + b).sqrt() as f32).collect()
    }
}

impl Function {
    fn at<F: Real>(self, x: F) -> F {
        match self {
            Self::SiluOfShare(n) => {
                let z = x * F::of(1.0 / n as f64);
                z * sigmoid(z)
            }
            Self::TwiceSigmoidOfShare(n) => F::of(2.0) * sigmoid(x * F::of(1.0 / n as f64)),
            Self::SigmoidOfRoot => {
                let root = x.abs().max(F::of(1e-6)).sqrt();
                sigmoid(if x > F::zero() {
                    root
                } else if x < F::zero() {
                    -root
                } else {
                    x * root
                })
            }
        }
    }

    /// Roundings of the result, times its unit: those of the sigmoid; of its argument, by the slope; and of products.
    fn reach(self, x: f64) -> f64 {
        let y = self.at(x).abs();
        match self {
            Self::SiluOfShare(n) => {
                let z = x / n as f64;
                (8.0 + 2.0 * (-z).max(0.0)) * y + 2.0 * z.abs()
            }
            Self::TwiceSigmoidOfShare(n) => (9.0 + 2.0 * (-x / n as f64).max(0.0)) * y + 1.0,
            Self::SigmoidOfRoot => (9.0 + 3.0 * x.abs().max(1e-6).sqrt()) * y + 0.5,
        }
    }
}

impl Definition for Curve {
    fn name(&self) -> &'static str {
        "curve"
    }
    fn about(&self) -> &'static str {
        self.about
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Elementwise(Elementwise::Function(1))
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        inputs[0].map(|x| self.of.at(x))
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        inputs[0].map(|x| self.of.at(x))
    }
    fn bound(&self, inputs: &[&Tensor<f64>], _: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        inputs[0].data.iter().map(|x| (UNIT * self.of.reach(*x) + TINY) as f32).collect()
    }
}

impl SigmoidGate {
    fn of<F: Real>(inputs: &[&Tensor<F>]) -> Tensor<F> {
        let pairs = inputs[0].data.iter().zip(&inputs[1].data);
        Tensor { shape: inputs[0].shape.clone(), data: pairs.map(|(z, x)| sigmoid(*z) * *x).collect() }
    }
}

impl Definition for SigmoidGate {
    fn name(&self) -> &'static str {
        "sigmoid_gate"
    }
    fn about(&self) -> &'static str {
        self.0
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Elementwise(Elementwise::Gated(Activation::Other))
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        Self::of(inputs)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        Self::of(inputs)
    }
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let both = inputs[0].data.iter().zip(&y.data);
        both.map(|(z, y)| (UNIT * (of_sigmoid(*z) + 1.0) * y.abs() + TINY) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Matrix, within};
    use proptest::prelude::*;

    const S: usize = 3;

    fn tensor(values: &[f32], from: usize, n: usize) -> Tensor<f32> {
        Tensor { shape: vec![2, n], data: values.iter().copied().cycle().skip(from).take(2 * n).collect() }
    }

    /// `√Σ (∂y/∂x · δ)²` by difference quotients.
    fn by_differences(op: &dyn Definition, inputs: &[&Tensor<f64>], delta: f64, c: &Context<'_>) -> Vec<f64> {
        let mut sums = Vec::new();
        for i in 0..inputs.len() {
            for j in 0..inputs[i].data.len() {
                let at = |h: f64| {
                    let mut moved = inputs[i].clone();
                    moved.data[j] += h;
                    let all: Vec<_> = (0..inputs.len()).map(|k| if k == i { &moved } else { inputs[k] }).collect();
                    op.forward64(&all, c).data
                };
                let (up, down) = (at(1e-6), at(-1e-6));
                sums.resize(up.len(), 0f64);
                for (sum, (up, down)) in sums.iter_mut().zip(up.iter().zip(&down)) {
                    *sum += ((up - down) / 2e-6 * delta).powi(2);
                }
            }
        }
        sums.into_iter().map(f64::sqrt).collect()
    }

    proptest! {
        /// f32 stays within the bound of every op, and errors are carried by the derivatives.
        #[test]
        fn bounds_and_errors(values in prop::collection::vec(-3f32..3.0, 41), w in prop::collection::vec(-2f32..2.0, 12)) {
            let w = Matrix(4, S, w);
            let weights = [w.weight()];
            let c = Context { tokens: &[], positions: &[], history: &[], source: &w, weights: &weights };
            let (all, other, one, few) = (tensor(&values, 0, 12), tensor(&values, 7, 12), tensor(&values, 3, 4), tensor(&values, 5, S));
            type Case<'a> = (Box<dyn Definition>, Vec<&'a Tensor<f32>>);
            let ops: [Case<'_>; 6] = [
                (Box::new(StreamNorm { eps: 1e-6, streams: S, about: "" }), vec![&all]),
                (Box::new(GatedMean { streams: S }), vec![&all, &other]),
                (Box::new(StreamSum { streams: S }), vec![&all, &one, &few]),
                (Box::new(StreamFactors { streams: S, about: "" }), vec![&one, &few]),
                (Box::new(StreamDots { streams: S, about: "" }), vec![&all, &other]),
                (Box::new(SigmoidGate("")), vec![&all, &other]),
            ];
            for (op, inputs) in &ops {
                let wide: Vec<Tensor<f64>> = inputs.iter().map(|x| x.wide()).collect();
                let wide: Vec<&Tensor<f64>> = wide.iter().collect();
                let (narrow, exact) = (op.forward32(inputs, &c), op.forward64(&wide, &c));
                let bound = op.bound(&wide, &exact, &c);
                for ((y, exact), bound) in narrow.data.iter().zip(&exact.data).zip(bound) {
                    prop_assert!((f64::from(*y) - exact).abs() <= 4.0 * f64::from(bound), "{op:?}");
                }
                let deltas: Vec<Vec<f32>> = inputs.iter().map(|x| vec![1e-3; x.data.len()]).collect();
                let deltas: Vec<Option<&[f32]>> = deltas.iter().map(|d| Some(d.as_slice())).collect();
                let carried = op.propagate_error(&wide, &deltas, &exact, &c);
                for (got, want) in carried.iter().zip(by_differences(op.as_ref(), &wide, 1e-3, &c)) {
                    prop_assert!((f64::from(*got) - want).abs() <= 2e-3 * want + 1e-6, "{op:?}: {got} for {want}");
                }
            }
        }

        /// Functions of one operand, far from 0 as well.
        #[test]
        fn curves_stay_within_their_bounds(x in prop::collection::vec(-300f32..300.0, 6), near in prop::collection::vec(-1e-5f32..1e-5, 3)) {
            let x = Tensor { shape: vec![1, 9], data: [x, near].concat() };
            for of in [Function::SiluOfShare(4), Function::TwiceSigmoidOfShare(4), Function::SigmoidOfRoot] {
                prop_assert!(within(&Curve { of, about: "" }, &[&x]), "{of:?}");
            }
        }
    }

    /// Equal gates of equal streams give the stream times the gate; a weight of 1 is a plain sum.
    #[test]
    fn equal_streams_are_one() {
        let x = Tensor { shape: vec![1, 4], data: vec![1.0, 2.0, 1.0, 2.0] };
        let zero = Tensor::zeros(vec![1, 4]);
        assert_eq!(GatedMean { streams: 2 }.mean::<f64>(&x, &zero).data, [0.5, 1.0]);
        let (one, few) =
            (Tensor { shape: vec![1, 2], data: vec![3.0, 4.0] }, Tensor { shape: vec![1, 2], data: vec![1.0, 0.0] });
        assert_eq!(StreamSum { streams: 2 }.of::<f64>(&[&x, &one, &few]).data, [4.0, 6.0, 1.0, 2.0]);
        let w = Function::TwiceSigmoidOfShare(4).at(0f64);
        assert_eq!((w, Function::SigmoidOfRoot.at(0f64)), (1.0, 0.5));
    }
}
