//! LoRA adapters for small models.

use crate::tensor::{Fill, Tensor};
use crate::{Kv, Synth};
use qdiff_engine::model;
use qdiff_engine::quant::GgmlType;
use std::collections::HashSet;

/// The description of an adapter.
#[derive(Clone, Copy, Debug)]
pub struct Lora<'a> {
    /// Rows of each A.
    pub rank: usize,
    /// `adapter.lora.alpha`: terms are multiplied by alpha / rank.
    pub alpha: f32,
    /// The matrices that it adds to, without layer and `.weight`; all where none is named.
    pub matrices: &'a [&'a str],
    /// Type of its matrices.
    pub ty: GgmlType,
    /// Seed of its values.
    pub seed: u64,
}

impl Synth {
    /// An adapter for this model as the bytes of a GGUF file. It changes products by about as much as they are, times alpha / rank.
    ///
    /// # Panics
    /// If the description is of no model.
    pub fn adapter(&self, lora: &Lora<'_>) -> Vec<u8> {
        let mut kv = Kv::default();
        kv.string("general.architecture", self.arch);
        kv.string("general.type", "adapter");
        kv.string("adapter.type", "lora");
        kv.f32("adapter.lora.alpha", lora.alpha);
        let graph = model::build_of(self.known, self).expect("a model that can be written");
        let all: HashSet<&str> = graph.adaptable().map(|weight| weight.name.as_str()).collect();
        let known = |t: &Tensor| {
            let matrix = t.name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
            let asked = lora.matrices.is_empty() || matrix.is_some_and(|matrix| lora.matrices.contains(&matrix));
            asked && all.contains(t.name.as_str())
        };
        let pair = |t: Tensor| {
            let made = |suffix: &str, ne: [usize; 2]| Tensor {
                name: format!("{}.{suffix}", t.name),
                ne: ne.to_vec(),
                ty: lora.ty,
                fill: Fill::Matrix { gain: 1.0 },
                large: None,
            };
            [made("lora_a", [t.ne[0], lora.rank]), made("lora_b", [lora.rank, t.ne[1]])]
        };
        let tensors = self.tensors().into_iter().filter(known).flat_map(pair).collect();
        kv.file(&Self { seed: lora.seed, massive: false, ..self.clone() }.drawn(tensors))
    }
}
