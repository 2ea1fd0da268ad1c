//! Magnitudes as those of real Qwen models, where errors hide that do not show among values around 1.

use crate::Synth;
use crate::tensor::{Fill, Tensor};
use crate::vocab::Vocab;

/// Channels of the residual stream with massive activations, with their values: those of the embeddings of [`Synth::massive_tokens`].
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

impl Synth {
    /// Tokens with massive activations: the second of the vocabulary, and the one that begins a chat.
    pub fn massive_tokens() -> [u32; 2] {
        let vocab = Vocab::build();
        let first = vocab.tokens.iter().position(|token| token == "<|im_start|>");
        [1, first.map_or(1, |id| id as u32)]
    }

    /// Gives the drawn values of a tensor such magnitudes.
    pub(crate) fn enlarge(&self, t: &Tensor, values: &mut [f32]) {
        let channels = CHANNELS.iter().filter(|(channel, _)| *channel < self.n_embd);
        match t.fill {
            _ if t.name == "token_embd.weight" => {
                for token in Self::massive_tokens() {
                    channels.clone().for_each(|(at, value)| values[token as usize * self.n_embd + at] = *value);
                }
            }
            Fill::Norm if t.ne[0] == self.n_embd => channels.for_each(|(at, _)| values[*at] *= TAKEN_BACK),
            Fill::Norm if t.name.contains("attn_q_norm") || t.name.contains("attn_k_norm") => {
                values[3 % t.ne[0]] *= HEADS;
            }
            Fill::Bias { .. } if t.name.ends_with("attn_k.bias") => {
                values.iter_mut().filter(|v| v.abs() >= 10.0).for_each(|v| *v *= BIASES);
            }
            Fill::Matrix { .. } if t.name.ends_with("ffn_gate_inp.weight") => {
                let layer = t.name.split('.').nth(1).and_then(|layer| layer.parse().ok()).unwrap_or(0);
                values.iter_mut().for_each(|v| *v *= ROUTERS[layer % ROUTERS.len()]);
            }
            _ => {}
        }
    }
}
