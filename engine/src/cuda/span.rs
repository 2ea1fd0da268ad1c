//! The tokens of a step.

/// The tokens of a step: how many, and the position of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Tokens.
    pub tokens: usize,
    /// Position of the first.
    pub first: usize,
}

impl Span {
    /// Tokens so far, these included.
    pub fn keys(self) -> usize {
        self.first + self.tokens
    }
}
