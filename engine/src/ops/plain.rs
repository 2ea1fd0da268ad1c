//! Ops that their anatomy says in full: each is a name, words, and an anatomy, of which [`super::anatomy`] is the definition.

use super::anatomy::{Columns, Contraction, Decision, Elementwise, Gather, Picked};
use super::{Anatomy, Definition};

/// An op without code of its own.
#[derive(Debug)]
pub struct Plain {
    name: &'static str,
    about: &'static str,
    anatomy: Anatomy<'static>,
}

impl Plain {
    /// The places of the `picks` largest values of a row: the experts of a token.
    pub fn top_k(picks: usize) -> Self {
        let about = "the chosen experts, the most probable first";
        Self { name: "top_k", about, anatomy: Anatomy::Decision(Decision::top(picks)) }
    }

    /// The keys of the `picks` blocks of the largest values, each of `block` keys, and those behind the last whole block.
    pub fn top_blocks(picks: usize, block: usize) -> Self {
        let about = "the keys that a token attends to: 1 for keys of a chosen block and for keys after the last whole block, else 0";
        Self { name: "top_blocks", about, anatomy: Anatomy::Decision(Decision { picks, block: Some(block) }) }
    }

    /// The elements of a row at the chosen places.
    pub fn gathered() -> Self {
        let about = "the probabilities of the chosen experts";
        Self { name: "gather", about, anatomy: Anatomy::Gather(Gather::Elements) }
    }

    /// The same elements of every row.
    pub fn columns(columns: Columns, about: &'static str) -> Self {
        Self { name: "columns", about, anatomy: Anatomy::Gather(Gather::Columns(columns)) }
    }

    /// The product with the weights of each chosen one of `groups` experts.
    pub fn expert_linear(groups: usize, about: &'static str) -> Self {
        let anatomy = Anatomy::Contraction(Contraction::Weight(Some(Picked { groups })));
        Self { name: "expert_linear", about, anatomy }
    }

    /// The sum of its operands.
    pub fn total(about: &'static str) -> Self {
        Self { name: "total", about, anatomy: Anatomy::Elementwise(Elementwise::Sum) }
    }

    /// The sum of `terms` rows of a token, each times a factor of its own.
    pub fn weighted_sum(terms: usize, about: &'static str) -> Self {
        Self { name: "weighted_sum", about, anatomy: Anatomy::Contraction(Contraction::Rows(terms)) }
    }
}

impl Definition for Plain {
    fn name(&self) -> &'static str {
        self.name
    }
    fn about(&self) -> &'static str {
        self.about
    }
    fn anatomy(&self) -> Anatomy<'_> {
        self.anatomy
    }
}
