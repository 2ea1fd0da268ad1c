//! Mutations: named ways for an engine to be wrong.
//!
//! A mutation rewrites one node of the graph, one that it `fits` by op and role. Run by an engine it is an
//! injected fault; evaluated on captured operands it is a hypothesis. One file
//! per family; `elsewhere` has the faults outside the stages.

mod adapters;
mod affine;
mod attention;
mod cached;
mod chain;
mod copies;
mod decoding;
mod elsewhere;
mod ends;
mod id;
mod inject;
mod layout;
mod logits;
mod mutation;
mod numerics;
mod order;
mod places;
mod position;
mod precision;
mod race;
mod ranks;
mod recurrent;
mod region;
mod routing;
mod samplers;
mod stored_row;
mod streams;
mod tokenizer;
mod weights;

pub use chain::Chain;
pub use id::CauseId;
pub use inject::Injection;
use mutation::each;
pub(crate) use mutation::to_digits;
pub use mutation::{
    Apply, CatalogueEntry, Encode, Ends, Explains, FaultSite, Fits, Mutation, Param, Propose, Splitting, told,
};

/// Every mutation, by family: the more specific families first, which is the
/// order in which equally good explanations are listed.
pub fn catalogue() -> impl Iterator<Item = &'static Mutation> {
    [
        ranks::MUTATIONS,
        adapters::MUTATIONS,
        layout::MUTATIONS,
        weights::MUTATIONS,
        position::MUTATIONS,
        attention::MUTATIONS,
        routing::MUTATIONS,
        recurrent::MUTATIONS,
        streams::MUTATIONS,
        numerics::MUTATIONS,
        decoding::MUTATIONS,
        cached::MUTATIONS,
        logits::MUTATIONS,
        copies::MUTATIONS,
        order::MUTATIONS,
        affine::MUTATIONS,
        region::MUTATIONS,
        precision::MUTATIONS,
        race::MUTATIONS,
        tokenizer::MUTATIONS,
        samplers::MUTATIONS,
        ends::MUTATIONS,
        elsewhere::MUTATIONS,
    ]
    .into_iter()
    .flatten()
}

/// The mutation of this name.
pub fn find(name: &str) -> Option<&'static Mutation> {
    catalogue().find(|m| m.name == name)
}
