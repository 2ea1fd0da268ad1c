//! The small vocabulary in which an architecture declares its graph.

use super::fault::Faults;
use super::graph::{Axis, Emission, EmittedLayout, Graph, Node, Role};
use super::{Config, Metadata, StageId, scales};
use crate::ops::{Op, Weight};

/// Collects nodes in order.
pub struct Builder<'a> {
    config: Config,
    nodes: Vec<Node>,
    layer: Option<u16>,
    /// Where scales of matrices are looked up.
    source: Option<&'a dyn Metadata>,
}

/// A node under construction; [`NodeBuilder::add`] finishes it.
pub struct NodeBuilder<'a, 'b> {
    builder: &'a mut Builder<'b>,
    node: Node,
}

impl<'b> Builder<'b> {
    /// No stages yet.
    pub fn new(config: Config) -> Self {
        Self { config, nodes: Vec::new(), layer: None, source: None }
    }

    /// No stages yet; products with matrices that have a scale in `source` are multiplied by it.
    pub(super) fn reading(config: Config, source: &'b dyn Metadata) -> Self {
        Self { source: Some(source), ..Self::new(config) }
    }

    /// What applies the scale of the matrix `tensor` to the product `x`, the stage made last, if the file has one: its tensor,
    /// the name of its stage, and llama.cpp's operation, empty where it applies none.
    pub(super) fn scale(&mut self, tensor: &str) -> Option<(String, &'static str, &'static str)> {
        let (scale, stage, applied) = scales::of(&self.config.arch, self.source?, self.layer, tensor)?;
        let product = self.nodes.last_mut()?;
        if applied {
            // llama.cpp announces what comes after the scale.
            product.emission.name.clear();
        } else {
            let layer = self.layer.map_or_else(String::new, |layer| format!("blk.{layer}."));
            let told = || format!("llama.cpp loads `{layer}{scale}` and never applies it");
            self.config.llama_departs.get_or_insert_with(told);
        }
        Some((scale, stage, if applied { "MUL" } else { "" }))
    }

    /// Whether the file has this tensor of the layer.
    pub(super) fn has(&self, suffix: &str) -> bool {
        let tensor = self.layer.map_or_else(|| suffix.to_owned(), |layer| format!("blk.{layer}.{suffix}"));
        self.source.is_some_and(|source| source.extent(&tensor).is_some())
    }

    /// llama.cpp announces the stage made last as this operation, empty where it does not.
    pub(super) fn announced(&mut self, op: &'static str) {
        if let Some(node) = self.nodes.last_mut() {
            node.emission.op = op;
        }
    }

    /// Stages declared from here on belong to `layer`.
    pub fn enter(&mut self, layer: Option<u16>) {
        self.layer = layer;
    }

    /// Begins a stage that reads `inputs` and gives `[T, width…]`.
    pub fn stage(
        &mut self, name: &'static str, role: Role, op: Op, inputs: &[usize], width: &[usize],
    ) -> NodeBuilder<'_, 'b> {
        let mut shape = vec![Axis::Tokens];
        shape.extend(width.iter().map(|&n| Axis::Fixed(n)));
        let node = Node {
            id: StageId { layer: self.layer, name, rank: None },
            role,
            op,
            inputs: inputs.to_vec(),
            weights: Vec::new(),
            shape,
            emission: Emission { name: String::new(), source: String::new(), op: "", layout: EmittedLayout::Rows },
            faults: Faults::default(),
            before: None,
        };
        NodeBuilder { builder: self, node }
    }

    /// The graph of all stages.
    pub fn finish(self) -> Graph {
        Graph { config: self.config, nodes: self.nodes, placement: None, adapters: 0 }
    }
}

impl NodeBuilder<'_, '_> {
    /// Reads the GGUF tensor `blk.N.<suffix>`, or `<suffix>` outside layers, of
    /// this extent in ggml's order: the contiguous axis first, experts last.
    pub fn weight(mut self, suffix: &str, extent: &[usize]) -> Self {
        let name = match self.builder.layer {
            Some(layer) => format!("blk.{layer}.{suffix}"),
            None => suffix.to_owned(),
        };
        self.node.weights.push(Weight { name, extent: extent.to_vec() });
        self
    }

    /// Of another symbolic shape, emitted in this layout.
    pub fn laid_out(mut self, shape: &[Axis], layout: EmittedLayout) -> Self {
        self.node.shape = shape.to_vec();
        self.node.emission.layout = layout;
        self
    }

    /// llama.cpp gives it no name, and makes it of the tensor `name`, the layer's suffix left out.
    pub fn made_of(mut self, name: &str) -> Self {
        self.node.emission.source =
            self.builder.layer.map_or_else(|| name.to_owned(), |layer| format!("{name}-{layer}"));
        self
    }

    /// Adds the stage to the graph and gives its index. llama.cpp announces it as `name`, with the layer's suffix, of
    /// operation `op`; an empty name stays empty.
    pub fn add(mut self, name: &str, op: &'static str) -> usize {
        let emission = &mut self.node.emission;
        emission.op = op;
        emission.name = match (self.builder.layer, emission.layout) {
            (
                Some(layer),
                EmittedLayout::KeyCache | EmittedLayout::ValueCacheTransposed | EmittedLayout::FirstHalves,
            ) => format!("{name}_l{layer}"),
            (Some(layer), _) if !name.is_empty() => format!("{name}-{layer}"),
            _ => name.to_owned(),
        };
        self.builder.nodes.push(self.node);
        self.builder.nodes.len() - 1
    }
}
