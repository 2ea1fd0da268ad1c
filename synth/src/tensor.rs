//! Tensors that are to be drawn.

use qdiff_engine::quant::GgmlType;

/// How a tensor's values are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// Bell-shaped with standard deviation `gain / sqrt(row length)`, each row with a scale of its own.
    Matrix { gain: f32 },
    /// Around 1 with spread.
    Norm,
    /// Anything between these.
    Spread { lo: f32, hi: f32 },
    /// Minus the exponential of something between -4 and 2.
    Decay,
    /// Small, but per head of `head` values `large` of them with a magnitude in `lo..hi`.
    Bias { head: usize, large: usize, lo: f32, hi: f32 },
}

/// One tensor of the model: name, dimensions (innermost first), type, filling.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) ne: Vec<usize>,
    pub(crate) ty: GgmlType,
    pub(crate) fill: Fill,
    /// What is large in it where magnitudes are those of real models.
    pub(crate) large: Option<Large>,
}

/// What is large in a tensor of a real model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Large {
    /// Two channels of two tokens.
    Embedding,
    /// Nothing: the weights of the norm take those channels back.
    Norm,
    /// One channel of the norm of each head.
    HeadNorm,
    /// The biases of keys that are large already.
    KeyBias,
    /// All of it, or nothing, by the number of the layer.
    Router(usize),
}
