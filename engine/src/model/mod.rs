//! The model as data: hyperparameters, weights and the list of stages.

mod adapters;
mod architectures;
mod blocks;
mod builder;
mod check;
mod config;
mod cut;
mod dense;
mod described;
mod dialect;
mod experts;
pub mod fault;
mod faulty;
mod graph;
mod hybrid;
mod placement;
pub mod qwen2;
pub mod qwen2moe;
pub mod qwen2vl;
pub mod qwen3;
pub mod qwen35;
pub mod qwen35moe;
pub mod qwen3moe;
pub mod qwen3next;
pub mod qwen3vl;
pub mod qwen3vlmoe;
pub mod qwen4exp;
mod scales;
mod slices;
mod stage;
mod streams;
mod weights;

pub use adapters::{Adapted, Adapter, Adapters, Term, of_other_adapter, rank_beside, with_adapter};
#[cfg(test)]
pub(crate) use architectures::Invented;
pub use architectures::{
    ARCHITECTURES, Architecture, BuildGraph, FUSED, KINDS, build, build_of, in_two, skeleton, skeletons,
};
pub(crate) use blocks::HEAD;
pub use builder::{Builder, NodeBuilder};
pub use check::{LoadError, same_extent};
pub(crate) use config::EMBEDDING;
pub use config::{Config, ConfigError, MAX_LAYERS, Metadata};
pub use described::{described, symbolic};
pub use dialect::{Columns, DIALECTS, Dialect, Place, Site, of_transformers};
pub use graph::{Axis, Before, Emission, EmittedLayout, Graph, Node, Role, row_len};
pub use placement::{Placement, PlacementError, Shares};
pub use slices::{Slice, Slices, tensor_of};
pub use stage::{StageId, UnknownStage, of_rank};
pub use weights::Model;

pub use crate::ops::Weight;
pub use crate::quant::WeightSource;
