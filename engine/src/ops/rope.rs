//! Rotary position embedding (Su et al. 2021).
//!
//! Each head of length D is rotated in D/2 planes: plane i by the angle `θ_i = p · base^(−2i/D)`, p the token's
//! position. Which two elements form plane i is the pairing: `Neox` takes i and i + D/2 (Qwen), `Norm` 2i and 2i + 1
//! (original LLaMA order). x `[T, n·D]` -> `[T, n, D]`.
//!
//! A longer context than the model was first trained on divides angles by a factor; YaRN (Peng et al. 2023) those of slow planes
//! alone, between two planes in part, and multiplies what is rotated by `1 + 0.1·ln(factor)`.

use super::{Real, Tensor, UNIT};
use std::f64::consts::PI;

/// Which elements form a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// i and i + D/2.
    Neox,
    /// 2i and 2i + 1.
    Norm,
}

/// How angles are scaled for a longer context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// What angles are divided by.
    pub factor: f64,
    /// What rotated elements are multiplied by.
    pub magnitude: f64,
    /// Planes up to the first keep their angles, from the second on all are divided; without it, all.
    pub between: Option<[f64; 2]>,
}

impl Scaling {
    /// The planes of `rotated` elements that turn `fast` and `slow` times within the `trained` tokens, between which YaRN goes over
    /// from angles that it keeps to those that it divides (`ggml_rope_yarn_corr_dims`, which rounds outwards).
    pub fn planes((rotated, base): (usize, f64), trained: f64, [fast, slow]: [f64; 2]) -> [f64; 2] {
        let rotated = rotated as f64;
        let plane = |turns: f64| rotated * (trained / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
        [plane(fast).floor().max(0.0), plane(slow).ceil().min(rotated - 1.0)]
    }
}

/// Parameters of the rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub base: f64,
    /// Length of a head, D.
    pub head_dim: usize,
    /// Elements at the start of a head that are rotated; all of them in Qwen.
    pub rotated: usize,
    /// Order of the pairs.
    pub pairing: Pairing,
    /// For a longer context.
    pub scaling: Option<Scaling>,
}

impl Rope {
    /// Split halves, over the whole head.
    pub fn neox(base: f64, head_dim: usize) -> Self {
        Self { base, head_dim, rotated: head_dim, pairing: Pairing::Neox, scaling: None }
    }

    fn pair(&self, i: usize) -> (usize, usize) {
        match self.pairing {
            Pairing::Neox => (i, i + self.rotated / 2),
            Pairing::Norm => (2 * i, 2 * i + 1),
        }
    }

    /// The plane that element `i` of a head turns in, and the two elements of that plane; `None` where it does not turn.
    pub fn plane(&self, i: usize) -> Option<(usize, [usize; 2])> {
        let pairs = (0..self.rotated / 2).map(|plane| self.pair(plane));
        pairs.enumerate().find(|(_, (a, b))| [*a, *b].contains(&i)).map(|(plane, (a, b))| (plane, [a, b]))
    }

    /// Angle of each plane at position 1.
    pub fn frequencies<F: Real>(&self) -> Vec<F> {
        let exponents = (0..self.rotated / 2).map(|i| F::of(-2.0 * i as f64 / self.rotated as f64));
        let plain = exponents.map(|exponent| F::of(self.base).powf(exponent));
        plain.enumerate().map(|(i, frequency)| frequency * F::of(self.share(i))).collect()
    }

    /// What is left of the angle of plane `i`.
    pub fn share(&self, i: usize) -> f64 {
        let Some(Scaling { factor, between, .. }) = self.scaling else { return 1.0 };
        let kept =
            between.map_or(0.0, |[low, high]| 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0));
        (1.0 - kept) / factor + kept
    }

    /// What rotated elements are multiplied by.
    pub fn magnitude(&self) -> f64 {
        self.scaling.map_or(1.0, |scaling| scaling.magnitude)
    }
}

/// The rotation without what it multiplies by: rotated rows turn on by it.
#[must_use]
pub fn turning(rope: &Rope) -> Rope {
    Rope { scaling: rope.scaling.map(|scaling| Scaling { magnitude: 1.0, ..scaling }), ..rope.clone() }
}

/// Rotates every head of `x` by its token's position, one per row.
pub fn forward<F: Real>(rope: &Rope, x: &Tensor<F>, positions: &[f64]) -> Tensor<F> {
    let d = rope.head_dim;
    let heads = x.row_len() / d;
    let mut y = Tensor { shape: vec![x.rows(), heads, d], data: x.data.clone() };
    let (width, frequencies, magnitude) = (heads * d, rope.frequencies::<F>(), F::of(rope.magnitude()));
    for (row, &p) in y.data.chunks_mut(width.max(1)).zip(positions) {
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (F::of(p) * *frequency).sin_cos();
            let (sin, cos) = (sin * magnitude, cos * magnitude);
            let (a, b) = rope.pair(i);
            for head in row.chunks_mut(d) {
                let (x0, x1) = (head[a], head[b]);
                head[a] = x0 * cos - x1 * sin;
                head[b] = x0 * sin + x1 * cos;
            }
        }
    }
    y
}

/// An angle in f32 is off by roundings of its own size: one for the product, and one per multiplication where the
/// frequencies are made by repeated multiplication, as ggml does. A wrong angle turns the plane by that much; the
/// rotation itself rounds three times.
pub fn bound(rope: &Rope, y: &Tensor<f64>, positions: &[f64]) -> Vec<f32> {
    let d = rope.head_dim;
    let width = y.row_len();
    let (mut bound, frequencies) = (vec![0f32; y.data.len()], rope.frequencies::<f64>());
    for ((row, out), &p) in y.data.chunks(width.max(1)).zip(bound.chunks_mut(width.max(1))).zip(positions) {
        for (i, frequency) in frequencies.iter().enumerate() {
            // Interpolated angles and the magnitude round a few times more.
            let more = if rope.scaling.is_some() { 6.0 } else { 0.0 };
            let angle = (p * frequency).abs().max(if more > 0.0 { p.abs() * unscaled(rope, i) } else { 0.0 });
            let factor = UNIT * (3.0 + more + angle * (2.0 + more + i as f64));
            let (a, b) = rope.pair(i);
            for (head, out) in row.chunks(d).zip(out.chunks_mut(d)) {
                let reach = (factor * head[a].hypot(head[b])) as f32;
                out[a] = reach;
                out[b] = reach;
            }
        }
    }
    bound
}

/// The frequency of a plane before it is scaled: f32 interpolates between angles of this size.
fn unscaled(rope: &Rope, i: usize) -> f64 {
    rope.base.powf(-2.0 * i as f64 / rope.rotated as f64)
}

/// How uncertain operands make the result: each plane's two are turned into each other.
pub fn propagate_error(rope: &Rope, dx: &[f32], width: usize, positions: &[f64]) -> Vec<f32> {
    let (mut out, frequencies) = (dx.to_vec(), rope.frequencies::<f64>());
    for (row, &p) in out.chunks_mut(width.max(1)).zip(positions) {
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (p * frequency).sin_cos();
            let (sin, cos) = ((sin * rope.magnitude()) as f32, (cos * rope.magnitude()) as f32);
            let (a, b) = rope.pair(i);
            for head in row.chunks_mut(rope.head_dim) {
                let (x, y) = (head[a], head[b]);
                head[a] = (cos * x).hypot(sin * y);
                head[b] = (sin * x).hypot(cos * y);
            }
        }
    }
    out
}

/// The uncertainty of either element of a plane that is turned by an unknown angle: as much as
/// both have together.
pub fn spread(rope: &Rope, dx: &mut [f32]) {
    for head in dx.chunks_mut(rope.head_dim) {
        for (a, b) in (0..rope.rotated / 2).map(|i| rope.pair(i)) {
            let both = head[a].hypot(head[b]);
            (head[a], head[b]) = (both, both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rotate(rope: &Rope, x: &[f64], p: f64) -> Vec<f64> {
        let t = Tensor { shape: vec![1, x.len()], data: x.to_vec() };
        forward(rope, &t, &[p]).data
    }

    proptest! {
        /// A rotation keeps norms, does nothing at position 0, and the inner
        /// product of two rotated vectors depends on their distance alone.
        #[test]
        fn rotates(
            q in prop::collection::vec(-2f64..2.0, 8), k in prop::collection::vec(-2f64..2.0, 8),
            p in 0f64..500.0, distance in 0f64..50.0, shift in 0f64..500.0, neox: bool, scaled: bool,
        ) {
            let pairing = if neox { Pairing::Neox } else { Pairing::Norm };
            let scaling = Scaling { factor: 4.0, magnitude: 1.0, between: Some([0.5, 2.5]) };
            let rope = Rope { pairing, scaling: scaled.then_some(scaling), ..Rope::neox(1e4, 8) };
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let y = rotate(&rope, &q, p);
            prop_assert!((dot(&y, &y) - dot(&q, &q)).abs() < 1e-9);
            prop_assert_eq!(rotate(&rope, &q, 0.0), q.clone());
            let near = dot(&rotate(&rope, &q, p + distance), &rotate(&rope, &k, p));
            let far = dot(&rotate(&rope, &q, p + distance + shift), &rotate(&rope, &k, p + shift));
            prop_assert!((near - far).abs() < 1e-9);
            // What was rotated to a position turns on from there, and is not multiplied again.
            let longer = Rope { scaling: Some(Scaling { magnitude: 1.3, ..scaling }), ..rope };
            let (there, turned) = (rotate(&longer, &q, p + shift), rotate(&turning(&longer), &rotate(&longer, &q, p), shift));
            prop_assert!(there.iter().zip(&turned).all(|(a, b)| (a - b).abs() < 1e-9));
        }
    }
}
