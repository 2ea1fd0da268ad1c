//! What is to be generated, and what a replay of its draws finds.

use crate::capture::Passes;
use crate::mutations::{CatalogueEntry, Mutation};
use crate::pair::Tokens;
use crate::sampling::Sampling;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// What is to be generated.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// Most tokens of it that are run at once.
    pub ubatch: usize,
    /// At most so many tokens.
    pub most: usize,
    /// How they are drawn.
    pub sampling: &'a Sampling,
    /// What is wrong with the engine's samplers.
    pub spoiled: &'a [&'static Mutation],
    /// The tokens at which the subject ends a text.
    pub ends: &'a BTreeSet<u32>,
}

impl<'a> Plan<'a> {
    /// The prompt, and so many tokens after it: `forced`, or the runner's own choices.
    pub fn tokens(&self, decode: usize, forced: Option<&'a [u32]>) -> Tokens<'a> {
        Tokens { prompt: self.prompt, passes: Passes::Of(self.ubatch), decode, forced }
    }
}

/// Another token than llama.cpp's, drawn by the engine's samplers from its very logits.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OtherDraw {
    /// Index of the generated token.
    pub index: usize,
    /// The known faults of samplers with which llama.cpp's draw what these drew, all along the reference's text.
    pub causes: Vec<CatalogueEntry>,
}

impl OtherDraw {
    /// The names of its causes.
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.causes.iter().map(|c| c.name.as_str()).collect();
        names.join(" or ")
    }
}
