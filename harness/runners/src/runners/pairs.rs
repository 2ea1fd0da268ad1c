//! What engines turn activations into beside each format of weights, so that an engine that declares nothing can be held against it.

use super::llama_cuda;
use crate::arithmetic::LinearRule;
use qdiff_engine::quant::{ActivationFormat, Content, Format, Mmq};

/// Rules for weights of a format; none where the products are f32.
pub type Pairs = fn(&Format) -> Vec<LinearRule>;

/// The ways of engines, each with the rules that it has for weights of a format.
pub const PAIRS: [Pairs; 5] = [
    // ggml's on a CPU with vectors.
    |format| one(format, format.dot),
    // Without them.
    |format| one(format, away(format, ActivationFormat::Q8KAway)),
    |format| one(format, away(format, ActivationFormat::Q8K128)),
    // llama.cpp's on a GPU, and the kernels for vectors for any number of tokens.
    |format| if blocks(format) { llama_cuda::rules(format) } else { Vec::new() },
    |format| match format.mmq {
        Mmq::D4 | Mmq::Ds4 => one(format, ActivationFormat::Q8_1Mmvq),
        Mmq::Unmeasured | Mmq::None => Vec::new(),
    },
];

/// Weights that share scales.
fn blocks(format: &Format) -> bool {
    matches!(format.content, Content::Quants(_) | Content::Codes(_))
}

/// What an engine rounds halves of away from zero that takes ggml's formats of blocks, `of_k` beside those of 256 weights; it
/// unpacks plain numbers, and multiplies them in f32.
fn away(format: &Format, of_k: ActivationFormat) -> ActivationFormat {
    match format.dot {
        ActivationFormat::Q8_0 => ActivationFormat::Q8_0Ref,
        ActivationFormat::Q8_1 => ActivationFormat::Q8_1HalfSum,
        ActivationFormat::Q8K => of_k,
        _ => ActivationFormat::F32,
    }
}

fn one(format: &Format, activations: ActivationFormat) -> Vec<LinearRule> {
    let rule = LinearRule { weights: format.ty.name().to_owned(), activations, ..LinearRule::default() };
    if activations == ActivationFormat::F32 { Vec::new() } else { vec![rule] }
}
