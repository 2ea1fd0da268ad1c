//! Embeddings of n-grams (the per-layer embedding of Qwen3.8-Flash-Next): rows of a table, picked by hashes of a token and of those
//! before it in its sequence.
//!
//! tokens `[T]`, W `[R, D]` -> `[T, (N − 1)·G·D]`. For n from 2 to N, `m_n = t₀·a₀ ⊕ … ⊕ t_{n−1}·a_{n−1}` in 64 bits, with t_j the
//! token j places before; for each of the G heads h of n, the row is `m_n mod size_h + offset_h`. Before the first token of the
//! sequence, and before and at an end-of-text token among those before, there is the end-of-text token. (llama.cpp's
//! `llm_graph_input_qwen4exp_ple`.)

use super::anatomy::Gather;
use super::{Anatomy, Context, Definition, Real, Tensor};

/// The op.
#[derive(Clone, Debug, PartialEq)]
pub struct Ngrams {
    /// `a_j`, N of them.
    pub multipliers: Vec<u64>,
    /// The first row of each head and the number of its rows; heads of shorter n-grams come first.
    pub heads: Vec<(u64, u64)>,
    /// The token that ends a text.
    pub end: u32,
}

impl Ngrams {
    /// The rows of the token at `position` of a sequence; `None` if the sequence does not reach it.
    pub fn rows(&self, history: &[u32], position: usize) -> Option<Vec<usize>> {
        let longest = self.multipliers.len();
        let of_each = self.heads.len() / longest.saturating_sub(1).max(1);
        let mut ended = false;
        let mut mixed = u64::from(*history.get(position)?).wrapping_mul(*self.multipliers.first()?);
        let mut rows = Vec::with_capacity(self.heads.len());
        for (back, multiplier) in self.multipliers.iter().enumerate().skip(1) {
            let before = position.checked_sub(back).map(|at| history[at]).filter(|_| !ended);
            ended |= before.is_none_or(|token| token == self.end);
            let token = before.filter(|_| !ended).unwrap_or(self.end);
            mixed ^= u64::from(token).wrapping_mul(*multiplier);
            let heads = self.heads.iter().skip((back - 1) * of_each).take(of_each);
            rows.extend(heads.map(|(first, count)| (mixed % count.max(&1) + first) as usize));
        }
        Some(rows)
    }

    fn of<F: Real>(&self, c: &Context<'_>) -> Tensor<F> {
        let (width, count) = c.extent(0);
        let mut y = Tensor { shape: vec![c.positions.len(), self.heads.len() * width], data: Vec::new() };
        let mut row = vec![0f32; width];
        for &position in c.positions {
            let rows = self.rows(c.history, position as usize).unwrap_or_else(|| vec![count; self.heads.len()]);
            for at in rows {
                // What is not known of the text, or beyond the table, gives nothing.
                row.fill(f32::NAN);
                if at < count {
                    c.rows(0, at, &mut row);
                }
                y.data.extend(F::wide(&row).iter());
            }
        }
        y
    }
}

impl Definition for Ngrams {
    fn name(&self) -> &'static str {
        "ngrams"
    }
    fn about(&self) -> &'static str {
        "rows of the table of n-grams, picked by hashes of the token and those before it"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Gather(Gather::Hashed)
    }
    fn forward32(&self, _: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        self.of(c)
    }
    fn forward64(&self, _: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        self.of(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes, written out; an end of text cuts what is before it, but not its own window.
    #[test]
    fn rows_follow_from_the_tokens_before() {
        let op = Ngrams { multipliers: vec![3, 5, 7], heads: vec![(0, 11), (11, 13), (24, 17), (41, 19)], end: 2 };
        let row = |mixed: u64, head: usize| (mixed % op.heads[head].1 + op.heads[head].0) as usize;
        let expected = |t: [u64; 3]| {
            let two = (t[0] * 3) ^ (t[1] * 5);
            let three = two ^ (t[2] * 7);
            vec![row(two, 0), row(two, 1), row(three, 2), row(three, 3)]
        };
        let text = [9, 8, 2, 6, 5];
        let cases = [(0, [9, 2, 2]), (1, [8, 9, 2]), (2, [2, 8, 9]), (3, [6, 2, 2]), (4, [5, 6, 2])];
        for (at, window) in cases {
            assert_eq!(op.rows(&text, at), Some(expected(window)), "{at}");
        }
        assert_eq!(op.rows(&text, 5), None);
    }
}
