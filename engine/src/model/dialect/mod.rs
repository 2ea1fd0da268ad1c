//! How engines name and lay out the stages of the dense models: one table per engine, by op and role. The graph itself has the
//! names of GGUF, which its weights are called by, and those of llama.cpp, which its builders declare.
//!
//! The reader of folders, docs/stages.md (`qdiff stages`) and the hooks of the Python package (`qdiff stages --python`) read these
//! tables.

mod candle;
mod mlx;
mod serving;
mod site;
mod transformers;

pub use site::{Columns, Place, Site};
use site::{at, columns, projected};
pub use transformers::tensors as of_transformers;

use super::{BuildGraph, Node, qwen2, qwen3, skeleton};
use std::collections::HashSet;
use std::sync::LazyLock;

/// An engine's table.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// What the engine is called.
    pub name: &'static str,
    /// Which of its code the table is of.
    pub of: &'static str,
    table: fn(&Node) -> Option<Place>,
}

/// The names of the stages that the tables know: those of the dense models.
static DENSE: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let nodes = [qwen2::graph as BuildGraph, qwen3::graph].into_iter().flat_map(|build| skeleton(build, 1).nodes);
    nodes.map(|node| node.id.name).collect()
});

/// The tables of engines whose code is made of modules.
pub const DIALECTS: [Dialect; 5] = [
    Dialect { name: "transformers", of: "models of transformers 5", table: transformers::place },
    Dialect { name: "vLLM", of: "models of vLLM 0.32", table: serving::vllm },
    Dialect { name: "SGLang", of: "models of SGLang", table: serving::sglang },
    Dialect { name: "MLX", of: "models of mlx-lm", table: mlx::place },
    Dialect { name: "candle", of: "quantized models of candle-transformers", table: candle::place },
];

impl Dialect {
    /// Where the engine has the stage; `None` where the value is never materialised, and of a stage that no dense model has.
    pub fn place(&self, node: &Node) -> Option<Place> {
        DENSE.contains(node.id.name).then(|| (self.table)(node)).flatten()
    }
}
