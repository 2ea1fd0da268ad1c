//! Mutations: named ways for an engine to be wrong.
//!
//! A mutation rewrites one node of the graph. Run by an engine it is an
//! injected fault; evaluated on captured operands it is a hypothesis. One file
//! per family; what is not the fault of a stage stands in `elsewhere`.

mod affine;
mod attention;
mod copies;
pub mod decoding;
mod elsewhere;
mod id;
mod inject;
mod layout;
mod logits;
mod numerics;
mod order;
mod position;
mod precision;
mod race;
mod region;
mod samplers;
mod tokenizer;
mod weights;

pub use id::CauseId;
pub use inject::Injection;
pub use samplers::Chain;

use crate::prompts::Ready;
use crate::verdict::Evidence;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A parameter of a mutation.
#[derive(Debug)]
pub struct Param {
    /// Name in `NAME:PARAM=VALUE`.
    pub name: &'static str,
    /// What it means, with its unit.
    pub help: &'static str,
    /// Value where none is given.
    pub default: f64,
    /// Further values that the search for a cause tries.
    pub search: &'static [f64],
}

/// What it means that a mutation fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It reproduces the subject's values to f32 rounding.
    Value,
    /// It reproduces the size of the error, which is rounding of another
    /// arithmetic; the values themselves depend on an order nobody declared.
    Rounding,
    /// It says which part alone is wrong, not by what rule.
    Place,
}

/// What of an engine a mutation is the fault of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A stage: a node of the graph.
    Stage,
    /// What makes tokens of the prompt.
    Tokenizer,
    /// What draws a token from logits.
    Samplers,
    /// Nothing that qdiff can spoil.
    Elsewhere,
}

/// Reads lists of parameter values off the evidence.
pub type Propose = fn(&Evidence<'_>) -> Vec<Vec<f64>>;

/// The tokens that a faulty tokenizer makes of a prompt; none where it changes
/// nothing.
pub type Encode = fn(&Tokenizer, &Ready) -> Option<Vec<u32>>;

/// A named way for a stage to be wrong.
pub struct Mutation {
    /// Name, as in `--inject NAME`.
    pub name: &'static str,
    /// Stages it applies to; `*` for any.
    pub stages: &'static [&'static str],
    /// What is wrong, in one sentence, as the report tells it.
    pub story: &'static str,
    /// How to recognise it without this tool, or where it is found.
    pub seen: &'static str,
    /// How to mend it.
    pub remedy: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
    /// What a fit means.
    pub kind: Kind,
    /// Rewrites the node with these values of the parameters; gives false
    /// where it does not apply to it, or changes nothing.
    pub apply: fn(&mut Node, &[f64], &Graph) -> bool,
    /// Whether it gives the same values every time, and so can be recognised by
    /// evaluating it.
    pub recurs: bool,
    /// Of a fault of the samplers: what becomes of them.
    pub chain: Option<fn(&mut Chain)>,
    /// Of a fault of the tokenizer: what it makes of a prompt.
    pub encode: Option<Encode>,
    /// Values worth trying, read off the evidence; without it the defaults and
    /// the search lists are tried.
    pub propose: Option<Propose>,
}

impl Mutation {
    /// What most mutations have in common.
    const PLAIN: Mutation = Mutation {
        name: "",
        stages: &[],
        story: "",
        seen: "",
        remedy: "",
        params: &[],
        kind: Kind::Value,
        apply: |_, _, _| false,
        recurs: true,
        chain: None,
        encode: None,
        propose: None,
    };

    /// Whether it can happen to a stage of this name.
    pub fn concerns(&self, stage: &str) -> bool {
        self.stages.contains(&stage) || self.stages == ["*"]
    }

    /// Whether it may explain a stage of this name.
    pub fn may_explain(&self, stage: &str) -> bool {
        self.recurs && self.concerns(stage)
    }

    /// What it is the fault of.
    pub fn part(&self) -> Part {
        match self {
            m if !m.stages.is_empty() => Part::Stage,
            m if m.encode.is_some() => Part::Tokenizer,
            m if m.chain.is_some() => Part::Samplers,
            _ => Part::Elsewhere,
        }
    }

    /// Whether it is the fault of a stage.
    pub fn of_a_stage(&self) -> bool {
        self.part() == Part::Stage
    }

    /// The values of its parameters where none are given.
    pub fn defaults(&self) -> Vec<f64> {
        self.params.iter().map(|p| p.default).collect()
    }
}

/// A mutation as reports name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// Its name in the catalogue.
    pub name: String,
    /// What is wrong.
    pub story: String,
    /// How to mend it.
    pub remedy: String,
}

impl From<&Mutation> for Entry {
    fn from(m: &Mutation) -> Self {
        Self { name: m.name.to_owned(), story: m.story.to_owned(), remedy: m.remedy.to_owned() }
    }
}

/// Every mutation, by family: the more specific families first, which is the
/// order in which explanations that fit alike are told.
pub fn catalogue() -> impl Iterator<Item = &'static Mutation> {
    [
        layout::MUTATIONS,
        weights::MUTATIONS,
        position::MUTATIONS,
        attention::MUTATIONS,
        numerics::MUTATIONS,
        decoding::MUTATIONS,
        logits::MUTATIONS,
        copies::MUTATIONS,
        order::MUTATIONS,
        affine::MUTATIONS,
        region::MUTATIONS,
        precision::MUTATIONS,
        race::MUTATIONS,
        tokenizer::MUTATIONS,
        samplers::MUTATIONS,
        elsewhere::MUTATIONS,
    ]
    .into_iter()
    .flatten()
}

/// The mutation of this name.
pub fn find(name: &str) -> Option<&'static Mutation> {
    catalogue().find(|m| m.name == name)
}
