//! The gated delta rule (Yang et al. 2024), as ggml's `gated_delta_net` has it. Head by head, token by token, with M the
//! transposed state (row j: value, column i: key), k and q those of key head `h mod H_k`:
//!
//! `M ← e^g·M`, `δ_j = β·(v_j − Σ_i M_ji·k_i)`, `M_ji ← M_ji + δ_j·k_i`, `o_j = Σ_i M_ji·q_i/√D`.
//!
//! q, k `[T, H_k·D]`, v `[T, H·D]`, g, β `[T, H]`, the state before the step `[1, H, D·D]` -> the outputs `[T, H·D]` of
//! [`DeltaNet`], the state after the step of [`DeltaState`].
//!
//! **Errors.** Each token rounds, and its rounding goes on with the state. The variance of every element of M is followed
//! through the recursion: decay multiplies it by e^{2g}; the update makes of M the matrix `M·(I − β·k·kᵀ)`, which takes what
//! stands along k; products and sums add theirs. Inner products are good to `u·√D` of the sum of magnitudes. That sum is taken
//! of `N`, which is decayed as M and grows by `|δ·k|`, so that nothing cancels in it: the form in chunks (a triangular solve
//! per chunk, and products with the state at its beginning) adds the terms of M one by one, and its solve carries each δ's error to
//! the later ones exactly as the recursion does. N begins anew with |M| after [`CHUNK`] tokens, as long as any chunk is.
//! The exponent of a decay is good to `u` of the sum of |g| since the chunk began, whose differences that form takes.
//! What operands are uncertain by goes the same way.
//!
//! Variances of single elements know nothing of errors that move together. While `β·|k|² ≤ 2`, as in every right model, the update
//! shrinks what stands along k, and this does not matter. Beyond, what stands along k grows, all elements of a row together: the
//! same errors are then drawn and carried [`DRAWN`] times, and the greater of both variances counts.

use super::anatomy::{RowReduction, State};
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT, at_least_zero};
use rayon::prelude::*;

/// Tokens of the longest chunk whose rounding is allowed.
const CHUNK: usize = 256;

/// How often errors are drawn where they grow.
const DRAWN: usize = 8;

/// The outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of values, H.
    pub heads: usize,
    /// Heads of keys and queries as they are given, H_k.
    pub key_heads: usize,
    /// Length of a head, D.
    pub dim: usize,
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaState(pub DeltaNet);

/// Rows of a head's operands.
struct Head<'a, F> {
    q: Vec<&'a [F]>,
    k: Vec<&'a [F]>,
    v: Vec<&'a [F]>,
    g: Vec<F>,
    beta: Vec<F>,
    state: &'a [F],
}

impl DeltaNet {
    fn head<'a, F: Real>(&self, inputs: &[&'a [F]], h: usize) -> Head<'a, F> {
        let &[q, k, v, g, beta, state] = inputs else { unreachable!("six operands") };
        let (d, tokens) = (self.dim, g.len() / self.heads);
        let rows = |x: &'a [F], heads: usize| -> Vec<&'a [F]> {
            (0..tokens).map(|t| &x[(t * heads + h % heads) * d..][..d]).collect()
        };
        let each = |x: &[F]| (0..tokens).map(|t| x[t * self.heads + h]).collect();
        Head {
            q: rows(q, self.key_heads),
            k: rows(k, self.key_heads),
            v: rows(v, self.heads),
            g: each(g),
            beta: each(beta),
            state: &state[h * d * d..][..d * d],
        }
    }

    /// Outputs of a head, and its state after the step.
    fn run<F: Real>(&self, of: &Head<'_, F>) -> (Vec<F>, Vec<F>) {
        let (d, scale) = (self.dim, F::one() / F::of(self.dim as f64).sqrt());
        let (mut m, mut out) = (of.state.to_vec(), Vec::with_capacity(of.g.len() * d));
        for t in 0..of.g.len() {
            let decay = of.g[t].exp();
            m.iter_mut().for_each(|m| *m = *m * decay);
            for (row, v) in m.chunks_mut(d).zip(of.v[t]) {
                let delta = (*v - F::dot(row, of.k[t])) * of.beta[t];
                F::axpy(delta, of.k[t], row);
                out.push(F::dot(row, of.q[t]) * scale);
            }
        }
        (out, m)
    }

    fn heads<F: Real>(&self, inputs: &[&Tensor<F>]) -> Vec<(Vec<F>, Vec<F>)> {
        let inputs: Vec<&[F]> = inputs.iter().map(|x| x.data.as_slice()).collect();
        (0..self.heads).into_par_iter().map(|h| self.run(&self.head(&inputs, h))).collect()
    }

    /// Outputs of all heads, of each `[T, D]`.
    fn together<T: Copy>(&self, heads: impl ExactSizeIterator<Item = Vec<T>>, tokens: usize, zero: T) -> Vec<T> {
        let (d, mut all) = (self.dim, vec![zero; tokens * self.heads * self.dim]);
        for (h, own) in heads.enumerate() {
            for (t, row) in own.chunks(d.max(1)).enumerate() {
                all[(t * self.heads + h) * d..][..d].copy_from_slice(row);
            }
        }
        all
    }

    /// Variances of a head's outputs and of its state: of rounding, or of operands that are off by `deltas`.
    fn variances(&self, of: &Head<'_, f64>, deltas: Option<&Head<'_, f64>>) -> (Vec<f64>, Vec<f64>) {
        let (d, scale) = (self.dim, 1.0 / (self.dim as f64).sqrt());
        let unit = if deltas.is_none() { UNIT } else { 0.0 };
        let of_dot = unit * (d as f64).sqrt();
        let none = vec![0.0; d];
        let mut m = of.state.to_vec();
        let mut var: Vec<f64> = deltas.map_or_else(|| vec![0.0; d * d], |s| s.state.iter().map(|d| d * d).collect());
        let (mut sizes, mut out) = (Vec::new(), Vec::with_capacity(of.g.len() * d));
        let mut summed = 0.0;
        for t in 0..of.g.len() {
            if t % CHUNK == 0 {
                (sizes, summed) = (m.iter().map(|m| m.abs()).collect(), 0.0);
            }
            let (decay, beta, k, q) = (of.g[t].exp(), of.beta[t], of.k[t], of.q[t]);
            summed += of.g[t].abs();
            let [dk, dq, dv] = match deltas {
                Some(deltas) => [deltas.k[t], deltas.q[t], deltas.v[t]],
                None => [none.as_slice(); 3],
            };
            let (dg, dbeta) = deltas.map_or((0.0, 0.0), |deltas| (deltas.g[t], deltas.beta[t]));
            let of_decay = dg * dg + of_exponent(unit, summed);
            for (m, (var, size)) in m.iter_mut().zip(var.iter_mut().zip(&mut sizes)) {
                *m *= decay;
                *size *= decay;
                *var = *var * decay * decay + of_decay * *m * *m;
            }
            let rows = m.chunks_mut(d).zip(var.chunks_mut(d)).zip(sizes.chunks_mut(d)).zip(of.v[t].iter().zip(dv));
            for (((m, var), sizes), (v, dv)) in rows {
                let (mut dot, mut reach, mut carried) = (0.0, 0.0, 0.0);
                for i in 0..d {
                    dot += m[i] * k[i];
                    reach += sizes[i] * k[i].abs();
                    carried += var[i] * k[i] * k[i] + (m[i] * dk[i]).powi(2);
                }
                let delta = (v - dot) * beta;
                let rounded = (of_dot * reach).powi(2) + unit * unit * (v * v + dot * dot);
                let of_delta = beta * beta * (carried + of_decay * dot * dot + dv * dv + rounded)
                    + (dbeta * (v - dot)).powi(2)
                    + (2.0 * unit * delta).powi(2);
                let (mut o, mut o_reach, mut o_carried) = (0.0, 0.0, 0.0);
                for i in 0..d {
                    let (k, q, step) = (k[i], q[i], delta * k[i]);
                    m[i] += step;
                    sizes[i] += step.abs();
                    var[i] = at_least_zero(var[i] * (1.0 - 2.0 * beta * k * k))
                        + k * k * of_delta
                        + (delta * dk[i]).powi(2)
                        + unit * unit * (step * step + m[i] * m[i]);
                    o += m[i] * q;
                    o_reach += sizes[i] * q.abs();
                    o_carried += var[i] * q * q + (m[i] * dq[i]).powi(2);
                }
                out.push(scale * scale * (o_carried + (of_dot * o_reach).powi(2) + 4.0 * unit * unit * o * o));
            }
        }
        if of.beta.iter().zip(&of.k).any(|(beta, k)| beta * k.iter().map(|k| k * k).sum::<f64>() > 2.0) {
            let (drawn_out, drawn_var) = self.drawn(of, deltas);
            out.iter_mut().zip(drawn_out).for_each(|(v, drawn)| *v = v.max(drawn));
            var.iter_mut().zip(drawn_var).for_each(|(v, drawn)| *v = v.max(drawn));
        }
        (out, var)
    }

    /// The same variances as [`DeltaNet::variances`], as mean squares of errors that are drawn with random signs and carried by the
    /// recursion itself.
    fn drawn(&self, of: &Head<'_, f64>, deltas: Option<&Head<'_, f64>>) -> (Vec<f64>, Vec<f64>) {
        let (d, scale) = (self.dim, 1.0 / (self.dim as f64).sqrt());
        let unit = if deltas.is_none() { UNIT } else { 0.0 };
        let of_dot = unit * (d as f64).sqrt();
        let (mut out, mut var) = (vec![0.0; of.g.len() * d], vec![0.0; d * d]);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut sign = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if state >> 63 == 0 { 1.0 } else { -1.0 }
        };
        let off = |x: Option<f64>| x.unwrap_or(0.0);
        for j in 0..d {
            let (mut m, mut sizes) = (of.state[j * d..][..d].to_vec(), Vec::new());
            let mut errors = vec![vec![0.0; d]; DRAWN];
            if let Some(deltas) = deltas {
                errors
                    .iter_mut()
                    .flatten()
                    .zip(deltas.state[j * d..][..d].iter().cycle())
                    .for_each(|(e, s)| *e = s * sign());
            }
            let mut summed = 0.0;
            for t in 0..of.g.len() {
                if t % CHUNK == 0 {
                    (sizes, summed) = (m.iter().map(|m| m.abs()).collect(), 0.0);
                }
                summed += of.g[t].abs();
                let (decay, beta, k, q, v) = (of.g[t].exp(), of.beta[t], of.k[t], of.q[t], of.v[t][j]);
                m.iter_mut().zip(&mut sizes).for_each(|(m, size)| (*m, *size) = (*m * decay, *size * decay));
                let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
                let reach = |sizes: &[f64], y: &[f64]| sizes.iter().zip(y).map(|(x, y)| x * y.abs()).sum::<f64>();
                let (dot, reached) = (sum(&m, k), reach(&sizes, k));
                let delta = (v - dot) * beta;
                let before = m.clone();
                m.iter_mut().zip(&mut sizes).zip(k).for_each(|((m, size), k)| {
                    *m += delta * k;
                    *size += (delta * k).abs();
                });
                let (y, reached_y) = (sum(&m, q), reach(&sizes, q));
                for e in &mut errors {
                    let of_decay = (off(deltas.map(|x| x.g[t])).powi(2) + of_exponent(unit, summed)).sqrt() * sign();
                    e.iter_mut().zip(&before).for_each(|(e, m)| *e = *e * decay + of_decay * m);
                    let of_keys =
                        deltas.map_or(0.0, |x| x.k[t].iter().zip(&before).map(|(dk, m)| dk * m * sign()).sum());
                    let of_sum = of_dot * reached * sign() + unit * (v.abs() + dot.abs()) * sign();
                    let of_value = off(deltas.map(|x| x.v[t][j])) * sign() - sum(e, k) - of_keys + of_sum;
                    let of_delta = beta * of_value
                        + off(deltas.map(|x| x.beta[t])) * (v - dot) * sign()
                        + 2.0 * unit * delta * sign();
                    for (i, e) in e.iter_mut().enumerate() {
                        *e += of_delta * k[i] + unit * ((delta * k[i]).abs() + m[i].abs()) * sign();
                        if let Some(deltas) = deltas {
                            *e += delta * deltas.k[t][i] * sign();
                        }
                    }
                    let of_queries = deltas.map_or(0.0, |x| x.q[t].iter().zip(&m).map(|(dq, m)| dq * m * sign()).sum());
                    let of_out = sum(e, q) + of_queries + of_dot * reached_y * sign() + 2.0 * unit * y * sign();
                    out[t * d + j] += (scale * of_out).powi(2) / DRAWN as f64;
                }
            }
            for (i, var) in var[j * d..][..d].iter_mut().enumerate() {
                *var = errors.iter().map(|e| e[i] * e[i]).sum::<f64>() / DRAWN as f64;
            }
        }
        (out, var)
    }

    fn all_variances(&self, inputs: &[&Tensor<f64>], deltas: Option<&[Option<&[f32]>]>) -> Vec<(Vec<f64>, Vec<f64>)> {
        let values: Vec<&[f64]> = inputs.iter().map(|x| x.data.as_slice()).collect();
        let wide = |(x, d): (&&Tensor<f64>, &Option<&[f32]>)| -> Vec<f64> {
            d.map_or_else(|| vec![0.0; x.data.len()], |d| d.iter().map(|d| f64::from(*d)).collect())
        };
        let deltas: Option<Vec<Vec<f64>>> = deltas.map(|deltas| inputs.iter().zip(deltas).map(wide).collect());
        let deltas: Option<Vec<&[f64]>> = deltas.as_ref().map(|all| all.iter().map(Vec::as_slice).collect());
        let of_head = |h: usize| {
            let deltas = deltas.as_ref().map(|deltas| self.head(deltas, h));
            self.variances(&self.head(&values, h), deltas.as_ref())
        };
        (0..self.heads).into_par_iter().map(of_head).collect()
    }

    /// Standard deviations of the outputs.
    fn of_outputs(&self, inputs: &[&Tensor<f64>], deltas: Option<&[Option<&[f32]>]>) -> Vec<f32> {
        let heads = self.all_variances(inputs, deltas).into_iter().map(|(out, _)| out);
        let all = self.together(heads, inputs[3].rows(), 0.0);
        all.into_iter().map(|v| (v.sqrt() + if deltas.is_none() { TINY } else { 0.0 }) as f32).collect()
    }

    /// Standard deviations of the state.
    fn of_state(&self, inputs: &[&Tensor<f64>], deltas: Option<&[Option<&[f32]>]>) -> Vec<f32> {
        let all = self.all_variances(inputs, deltas).into_iter().flat_map(|(_, state)| state);
        all.map(|v| (v.sqrt() + if deltas.is_none() { TINY } else { 0.0 }) as f32).collect()
    }

    fn outputs<F: Real>(&self, inputs: &[&Tensor<F>]) -> Tensor<F> {
        let tokens = inputs[3].rows();
        let heads = self.heads(inputs).into_iter().map(|(out, _)| out);
        Tensor { shape: vec![tokens, self.heads * self.dim], data: self.together(heads, tokens, F::zero()) }
    }
}

/// The variance of a decay, relative to it: of the exponential and the product, and of the exponent, which the form in chunks takes as
/// the difference of two sums since the chunk began.
fn of_exponent(unit: f64, summed: f64) -> f64 {
    unit * unit * (9.0 + summed * summed)
}

impl Definition for DeltaNet {
    fn name(&self) -> &'static str {
        "delta_net"
    }
    fn about(&self) -> &'static str {
        "what each token's query reads from the delta net's state after that token"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Recurrent)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        self.outputs(inputs)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        self.outputs(inputs)
    }
    fn bound(&self, inputs: &[&Tensor<f64>], _: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        self.of_outputs(inputs, None)
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        self.of_outputs(inputs, Some(deltas))
    }
}

impl DeltaState {
    fn after<F: Real>(&self, inputs: &[&Tensor<F>]) -> Tensor<F> {
        let state = self.0.heads(inputs).into_iter().flat_map(|(_, state)| state);
        Tensor { shape: inputs[5].shape.clone(), data: state.collect() }
    }
}

impl Definition for DeltaState {
    fn name(&self) -> &'static str {
        "delta_state"
    }
    fn about(&self) -> &'static str {
        "the delta net's state after the step, head by head: a row for each element of the value, a column for each of the key"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::State(State::Own)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        self.after(inputs)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        self.after(inputs)
    }
    fn bound(&self, inputs: &[&Tensor<f64>], _: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        self.0.of_state(inputs, None)
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        self.0.of_state(inputs, Some(deltas))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::within;
    use proptest::prelude::*;

    const OP: DeltaNet = DeltaNet { heads: 4, key_heads: 2, dim: 6 };

    /// Operands of `tokens` tokens: keys and queries of a length, decays from near 0 to 1, a state.
    fn operands(seed: u32, tokens: usize, decay: f32, length: f32) -> Vec<Tensor<f32>> {
        let mut state = seed.wrapping_mul(747_796_405) | 1;
        let mut draw = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut rows =
            |n: usize| Tensor { shape: vec![tokens, n], data: (0..tokens * n).map(|_| draw()).collect::<Vec<f32>>() };
        let (mut q, mut k, v, g, beta) = (rows(12), rows(12), rows(24), rows(4), rows(4));
        for head in q.data.chunks_mut(6).chain(k.data.chunks_mut(6)) {
            let norm = head.iter().map(|v| v * v).sum::<f32>().sqrt();
            head.iter_mut().for_each(|v| *v *= length / norm);
        }
        let (g, beta) = (g.map(|v| -decay * (1.0 + v)), beta.map(|v| 0.5 + 0.49 * v));
        let before = Tensor { shape: vec![1, 4, 36], data: (0..144).map(|_| draw()).collect() };
        vec![q, k, v.map(|v| 4.0 * v), g, beta, before]
    }

    /// The form in chunks, in f32, with the inverse of its triangular matrix, as libraries for GPUs have it.
    fn in_chunks(x: &[Tensor<f32>], chunk: usize) -> (Vec<f32>, Vec<f32>) {
        let inputs: Vec<&[f32]> = x.iter().map(|x| x.data.as_slice()).collect();
        let (d, tokens) = (OP.dim, x[3].rows());
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (mut outs, mut states) = (Vec::new(), Vec::new());
        for h in 0..OP.heads {
            let of = OP.head(&inputs, h);
            let (mut m, mut out) = (of.state.to_vec(), Vec::new());
            for first in (0..tokens).step_by(chunk) {
                let n = chunk.min(tokens - first);
                let (k, q) = (&of.k[first..], &of.q[first..]);
                let sums: Vec<f32> = (0..n).map(|i| of.g[first..=first + i].iter().sum()).collect();
                let between = |i: usize, j: usize| (sums[i] - sums[j]).exp();
                // (I + A)⁻¹, row by row.
                let mut inverse = vec![vec![0f32; n]; n];
                for i in 0..n {
                    for j in 0..i {
                        let a = of.beta[first + i] * dot(k[i], k[j]) * between(i, j);
                        let (before, row) = inverse.split_at_mut(i);
                        row[0].iter_mut().zip(&before[j][..=j]).for_each(|(x, y)| *x -= a * y);
                    }
                    inverse[i][i] = 1.0;
                }
                let part =
                    |i: usize, value: &dyn Fn(usize) -> f32| (0..=i).map(|s| inverse[i][s] * value(s)).sum::<f32>();
                let mut new = vec![0f32; n * d];
                for i in 0..n {
                    let w: Vec<f32> =
                        (0..d).map(|c| part(i, &|s| of.beta[first + s] * k[s][c] * sums[s].exp())).collect();
                    for j in 0..d {
                        let u = part(i, &|s| of.beta[first + s] * of.v[first + s][j]);
                        new[i * d + j] = u - dot(&w, &m[j * d..][..d]);
                    }
                }
                for i in 0..n {
                    for j in 0..d {
                        let old = sums[i].exp() * dot(q[i], &m[j * d..][..d]);
                        let own: f32 = (0..=i).map(|s| dot(q[i], k[s]) * between(i, s) * new[s * d + j]).sum();
                        out.push((old + own) / (d as f32).sqrt());
                    }
                }
                for j in 0..d {
                    for c in 0..d {
                        let added: f32 = (0..n).map(|s| new[s * d + j] * k[s][c] * between(n - 1, s)).sum();
                        m[j * d + c] = m[j * d + c] * sums[n - 1].exp() + added;
                    }
                }
            }
            outs.push(out);
            states.extend(m);
        }
        (OP.together(outs.into_iter(), tokens, 0.0), states)
    }

    proptest! {
        /// Steps of any size give what one step gives; both forms in f32 stay within the bound, at any decay.
        #[test]
        fn both_forms_are_bounded(seed in 0u32..10_000, cut in 1usize..10, decay in prop::sample::select(vec![1e-4f32, 0.1, 2.0, 9.0]), chunk in 1usize..12) {
            let x = operands(seed, 11, decay, 1.0);
            let refs: Vec<&Tensor<f32>> = x.iter().collect();
            prop_assert!(within(&OP, &refs) && within(&DeltaState(OP), &refs));
            let wide: Vec<Tensor<f64>> = x.iter().map(Tensor::wide).collect();
            let all: Vec<&Tensor<f64>> = wide.iter().collect();
            let (out, state) = (OP.outputs(&all), DeltaState(OP).after(&all));
            // In two steps.
            let rows = |x: &Tensor<f64>, from: usize, to: usize| {
                let n = x.row_len();
                Tensor { shape: vec![to - from, n], data: x.data[from * n..to * n].to_vec() }
            };
            let step = |from: usize, to: usize, before: &Tensor<f64>| {
                let mut part: Vec<Tensor<f64>> = wide[..5].iter().map(|x| rows(x, from, to)).collect();
                part.push(before.clone());
                let part: Vec<&Tensor<f64>> = part.iter().collect();
                (OP.outputs(&part), DeltaState(OP).after(&part))
            };
            let (first, between) = step(0, cut, &wide[5]);
            let (rest, last) = step(cut, 11, &between);
            for (a, b) in first.data.iter().chain(&rest.data).zip(&out.data).chain(last.data.iter().zip(&state.data)) {
                prop_assert!((a - b).abs() < 1e-12);
            }
            // In chunks.
            let (chunked, chunked_state) = in_chunks(&x, chunk);
            let (bound, of_state) = (OP.of_outputs(&all, None), OP.of_state(&all, None));
            for ((y, exact), bound) in chunked.iter().zip(&out.data).zip(bound) {
                prop_assert!((f64::from(*y) - exact).abs() <= 4.0 * f64::from(bound), "{y} {exact} {bound}");
            }
            for ((y, exact), bound) in chunked_state.iter().zip(&state.data).zip(of_state) {
                prop_assert!((f64::from(*y) - exact).abs() <= 4.0 * f64::from(bound), "{y} {exact} {bound}");
            }
        }

        /// Keys that are not of length 1 make the state grow, and its errors with it, together.
        #[test]
        fn growing_errors_are_bounded(seed in 0u32..10_000, tokens in 1usize..60, length in 1f32..12.0, apart in 0f32..1.0) {
            let mut x = operands(seed, tokens, 0.1, length);
            // All keys of a head near its first.
            let first = x[1].data[..12].to_vec();
            x[1].data.iter_mut().zip(first.iter().cycle()).for_each(|(k, first)| *k = first + apart * (*k - first));
            let refs: Vec<&Tensor<f32>> = x.iter().collect();
            prop_assume!(OP.outputs(&refs).data.iter().all(|v| v.is_finite()));
            prop_assert!(within(&OP, &refs) && within(&DeltaState(OP), &refs));
        }

        /// Operands that are off move the result by no more than a few times what is carried, and it is not far from what they do.
        #[test]
        fn errors_are_carried(seed in 0u32..10_000, which in 0usize..6) {
            let x = operands(seed, 5, 0.3, 1.0);
            let wide: Vec<Tensor<f64>> = x.iter().map(Tensor::wide).collect();
            let all: Vec<&Tensor<f64>> = wide.iter().collect();
            let size = 1e-5f32;
            let deltas = vec![size; wide[which].data.len()];
            let deltas: Vec<Option<&[f32]>> = (0..6).map(|i| (i == which).then_some(deltas.as_slice())).collect();
            let carried = [OP.of_outputs(&all, Some(&deltas)), OP.of_state(&all, Some(&deltas))].concat();
            let values = |moved: &[&Tensor<f64>]| [OP.outputs(moved).data, DeltaState(OP).after(moved).data].concat();
            let right = values(&all);
            let (mut sum, mut total) = (0.0, 0.0);
            for turn in 0..8u32 {
                let mut moved = wide.clone();
                for (i, v) in moved[which].data.iter_mut().enumerate() {
                    let sign = (i as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add(turn.wrapping_mul(40_503_977)) >> 17 & 1;
                    *v += f64::from(size) * (2.0 * f64::from(sign) - 1.0);
                }
                for ((y, right), carried) in values(&moved.iter().collect::<Vec<_>>()).iter().zip(&right).zip(&carried) {
                    prop_assert!((y - right).abs() <= 8.0 * f64::from(*carried) + 1e-9, "{} {carried}", y - right);
                    (sum, total) = (sum + (y - right).powi(2), total + f64::from(*carried).powi(2));
                }
            }
            prop_assert!(sum < 4.0 * total && total < 30.0 * sum + 1e-12, "{sum} {total}");
        }
    }
}
