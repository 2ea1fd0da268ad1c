//! Magnitudes as those of real Qwen models, where errors hide that do not show among values around 1.

use crate::tensor::Large;
use crate::vocab::Vocab;
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Elementwise, Gather, RowReduction};

/// Channels of the residual stream with massive activations, with their values: those of the embeddings of [`tokens`].
/// The weights of the norms take them back, as those of real models do.
const CHANNELS: [(usize, f32); 2] = [(9, 7.3e3), (77, -2.1e3)];

/// By what the weights of a norm are multiplied there.
const TAKEN_BACK: f32 = 0.02;

/// By what large biases of keys are multiplied, which are then in the hundreds, and the scores of attention in the thousands.
const BIASES: f32 = 7.0;

/// By what the weight of the norm of a head is multiplied, in one of its channels: to the same effect where there are no biases.
const HEADS: f32 = 100.0;

/// By what routers are multiplied, in even and in odd layers: nearly equal experts, and one that takes all.
const ROUTERS: [f32; 2] = [0.1, 8.0];

/// Tokens with massive activations: the second of the vocabulary, and the one that begins a chat.
fn tokens() -> [usize; 2] {
    let vocab = Vocab::build();
    [1, vocab.tokens.iter().position(|token| token == "<|im_start|>").unwrap_or(1)]
}

/// Gives drawn values such magnitudes; the residual stream has this width.
pub(crate) fn enlarge(large: Large, width: usize, values: &mut [f32]) {
    let channels = CHANNELS.iter().filter(|(channel, _)| *channel < width);
    match large {
        Large::Embedding => {
            for token in tokens() {
                channels.clone().for_each(|(at, value)| values[token * width + at] = *value);
            }
        }
        Large::Norm => channels.for_each(|(at, _)| values[*at] *= TAKEN_BACK),
        Large::HeadNorm => values[3 % values.len()] *= HEADS,
        Large::KeyBias => values.iter_mut().filter(|v| v.abs() >= 10.0).for_each(|v| *v *= BIASES),
        Large::Router(layer) => values.iter_mut().for_each(|v| *v *= ROUTERS[layer % ROUTERS.len()]),
    }
}

/// What is large in the tensor of this extent that `node` reads.
pub(crate) fn of(node: &Node, extent: &[usize], stream: usize) -> Option<Large> {
    Some(match (node.op.anatomy(), node.role) {
        (Anatomy::Gather(Gather::Rows), _) => Large::Embedding,
        (Anatomy::RowReduction(RowReduction::MeanSquare(_)), Role::Query | Role::Key) => Large::HeadNorm,
        (Anatomy::RowReduction(RowReduction::MeanSquare(_)), _) if extent == [stream] => Large::Norm,
        (Anatomy::Elementwise(Elementwise::Offset), Role::Key) => Large::KeyBias,
        (Anatomy::Contraction(_), Role::Router) if extent.len() == 2 => {
            Large::Router(node.id.layer.unwrap_or_default().into())
        }
        _ => return None,
    })
}
