//! Faults that share no code with any hypothesis: plain loops over what a
//! stage read and gave, planted in the CPU engine right after the stage.
//!
//! Nothing here calls an op or a mutation. Weights come through the engine's own reader, or as the bytes of their
//! blocks; the hypotheses have theirs from ggml.

#![allow(clippy::needless_range_loop, reason = "plain indices, as the kernels have them whose bugs these are")]

mod attention;
mod buffers;
pub mod cached;
mod decoding;
pub mod kernels;
mod layout;
mod numerics;
mod position;
pub mod sequences;
mod spot;
mod weights;

use cached::CacheFault;
pub use spot::{Fault, Spoil, Spot};
use spot::{context, fault, input_alone, linear, norm, residual, rope, scores, softmax};

use qdiff_engine::model::{Model, Node, StageId};
use qdiff_engine::ops::Tensor;
use qdiff_engine::quant::KvType;
use qdiff_engine::tap::{Intervene, Site};
use std::collections::HashMap;

/// Every independent fault.
pub fn all() -> impl Iterator<Item = &'static Fault> {
    [
        layout::FAULTS,
        weights::FAULTS,
        position::FAULTS,
        attention::FAULTS,
        numerics::FAULTS,
        decoding::FAULTS,
        buffers::FAULTS,
    ]
    .into_iter()
    .flatten()
}

/// Faults in the stages where they are planted; changes what those give.
pub struct FaultyStages<'a> {
    model: &'a Model,
    places: Vec<(Spoil, StageId)>,
    /// Bugs of caches of these types.
    kv: KvType,
    caches: Vec<(&'static CacheFault, StageId)>,
    others: HashMap<StageId, Vec<f32>>,
    old: HashMap<StageId, Vec<f32>>,
}

impl<'a> FaultyStages<'a> {
    /// Each fault in its stage.
    pub fn new(model: &'a Model, places: Vec<(Spoil, StageId)>) -> Self {
        let (others, old) = Default::default();
        Self { model, places, kv: KvType::F32, caches: Vec::new(), others, old }
    }

    /// Each bug in its cache, which has one of these types.
    pub fn of_caches(model: &'a Model, kv: KvType, caches: Vec<(&'static CacheFault, StageId)>) -> Self {
        Self { kv, caches, ..Self::new(model, Vec::new()) }
    }

    /// Whether a fault may want to see what this stage gives: one of its own layer or of the one before, or its like.
    fn seen_later(&self, node: &Node) -> bool {
        self.places.iter().any(|(_, at)| {
            let before = node.id.name == at.name && at.layer > node.id.layer;
            before || node.id.layer == at.layer || node.id.layer == at.layer.and_then(|l| l.checked_sub(1))
        })
    }

    /// What a stage gives with a fault.
    fn spoiled(&self, spoil: impl Fn(&mut Spot<'_>), site: &Site<'_>) -> Tensor<f32> {
        let Tensor { mut shape, mut data } = site.output.clone();
        spoil(&mut Spot {
            node: site.node,
            graph: self.model.graph(),
            config: &self.model.graph().config,
            inputs: site.inputs,
            tokens: site.context.tokens,
            positions: site.context.positions,
            model: self.model,
            kv: self.kv,
            others: &self.others,
            old: self.old.get(&site.node.id).map(Vec::as_slice),
            out: &mut data,
            shape: &mut shape,
        });
        Tensor { shape, data }
    }
}

impl Intervene for FaultyStages<'_> {
    fn change(&mut self, site: Site<'_>) {
        let id = site.node.id;
        for at in 0..self.places.len() {
            let (spoil, place) = self.places[at];
            if place == id {
                *site.output = self.spoiled(spoil, &site);
                self.old.insert(id, site.output.data.clone());
            }
        }
        for (fault, _) in self.caches.clone().into_iter().filter(|(_, place)| *place == id) {
            *site.output = self.spoiled(|s| fault.spoil(s), &site);
        }
        if self.seen_later(site.node) {
            self.others.insert(id, site.output.data.clone());
        }
    }
}
