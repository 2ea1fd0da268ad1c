//! What ops read besides their inputs.

use super::Real;
use crate::quant::WeightSource;

/// A tensor of the model file that an op reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Its name.
    pub name: String,
    /// Its extent in ggml's order: the contiguous axis first. Axes beyond the
    /// second (experts) are further rows to whoever reads row by row.
    pub extent: Vec<usize>,
}

/// What an op reads besides its inputs.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Token ids of this step, `[T]`.
    pub tokens: &'a [u32],
    /// Positions of these tokens, `[T]`.
    pub positions: &'a [u32],
    /// The tokens of the sequence from its first on, as far as this step or further; empty where no op asks for more than its
    /// own token ([`Gather::Hashed`](super::anatomy::Gather::Hashed)).
    pub history: &'a [u32],
    /// Where the values of weights come from.
    pub source: &'a dyn WeightSource,
    /// The op's own weights, in the order that it takes them.
    pub weights: &'a [Weight],
}

impl Context<'_> {
    /// Length of a row and number of rows of the op's weight `i`.
    pub fn extent(&self, i: usize) -> (usize, usize) {
        self.source.extent(&self.weights[i].name)
    }

    /// Dequantises rows of the op's weight `i`, as many as `out` has room for.
    pub fn rows(&self, i: usize, first: usize, out: &mut [f32]) {
        self.source.rows(&self.weights[i].name, first, out);
    }

    /// The op's weight `i` as one vector.
    pub fn vector<F: Real>(&self, i: usize) -> Vec<F> {
        let (len, rows) = self.extent(i);
        let mut raw = vec![0f32; len * rows];
        self.rows(i, 0, &mut raw);
        raw.iter().map(|&w| F::of(f64::from(w))).collect()
    }
}
