//! The sequences of a step that runs, and their states.

use crate::cpu::Group;
use crate::cpu::states::AfterTokens;

/// The sequences of a step, where there are recurrent layers.
#[derive(Debug, Default)]
pub struct InStep {
    /// The rows of each sequence.
    pub groups: Vec<Group>,
    /// After which tokens the caller wants the states of each.
    pub asked: Vec<Vec<usize>>,
    /// The states of each that are kept.
    pub after: Vec<AfterTokens>,
}
