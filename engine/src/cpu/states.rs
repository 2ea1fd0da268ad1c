//! What recurrent layers keep of each sequence: the states after its last token, and those that a run goes back to, as after
//! a rejected draft, or that another sequence begins with.

use super::Group;
use crate::ops::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The states after some token, by node.
pub(crate) type OfNodes = BTreeMap<usize, Arc<Tensor<f32>>>;

/// States by the number of tokens that they come after.
pub(crate) type AfterTokens = BTreeMap<usize, OfNodes>;

/// The states of all sequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct States {
    of: BTreeMap<u32, AfterTokens>,
    /// Which are kept beside the last: of a sequence, after so many tokens.
    keeps: BTreeSet<(u32, usize)>,
}

impl States {
    /// Keeps these from now on.
    pub(crate) fn keep(&mut self, these: BTreeSet<(u32, usize)>) {
        self.keeps = these;
    }

    /// Whether any is kept beside the last.
    pub(crate) fn keeps_any(&self) -> bool {
        !self.keeps.is_empty()
    }

    /// Forgets all states, and none of what is to be kept.
    pub(crate) fn clear(&mut self) {
        self.of.clear();
    }

    /// After how many tokens of its sequence the caller wants the states of a group; the last number is that after the step.
    pub(crate) fn asked(&self, group: &Group) -> Vec<usize> {
        let (sequence, end) = (group.sequence, group.slots.len());
        let first = end - group.rows.len();
        let kept = self.keeps.range((sequence, first + 1)..(sequence, end)).map(|(_, tokens)| *tokens);
        kept.chain([end]).collect()
    }

    /// The states of a sequence after so many tokens; those before its first token have no entries. `None` if they are not kept.
    pub(crate) fn after(&self, sequence: u32, tokens: usize) -> Option<OfNodes> {
        match self.of.get(&sequence).and_then(|own| own.get(&tokens)) {
            Some(states) => Some(states.clone()),
            None => (tokens == 0).then(OfNodes::new),
        }
    }

    /// Adds what a pass of a sequence gave.
    pub(crate) fn add(&mut self, sequence: u32, states: AfterTokens) {
        let own = self.of.entry(sequence).or_default();
        own.retain(|tokens, _| self.keeps.contains(&(sequence, *tokens)));
        own.extend(states);
    }

    /// Forgets what came after the first `to` tokens of a sequence.
    pub(crate) fn take_back(&mut self, sequence: u32, to: usize) {
        if let Some(own) = self.of.get_mut(&sequence) {
            own.retain(|tokens, _| *tokens <= to);
        }
    }

    /// Lets an empty sequence begin with the first tokens of another, so many.
    pub(crate) fn share(&mut self, from: u32, to: u32, tokens: usize) {
        let own = self.of.get(&from).into_iter().flatten().filter(|(after, _)| **after <= tokens);
        let own = own.map(|(after, states)| (*after, states.clone())).collect();
        self.of.insert(to, own);
    }
}
