//! What became of an explanation on other tokens.

use super::solve::Holds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An explanation of one run, held against another run of other tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Trial {
    /// It gives every wrong element of the other run within rounding, where it says so.
    Confirmed {
        /// Wrong elements of the other run.
        elements: usize,
        /// Tokens of the other run.
        tokens: usize,
        /// What it is called there, where one of its numbers is of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        there: Option<String>,
    },
    /// It gives every wrong element of the other run, under a condition that both runs allow.
    Narrowed {
        /// Wrong elements of the other run.
        elements: usize,
        /// Tokens of the other run.
        tokens: usize,
        /// Where both runs have it.
        holds: Holds,
    },
    /// It does not hold of the other run, and is no cause.
    Withdrawn {
        /// Tokens of the other run; 0 where something else speaks against it.
        tokens: usize,
        /// What it said.
        told: String,
        /// What speaks against it.
        because: String,
    },
    /// The other run does not tell.
    Silent {
        /// Tokens of the other run.
        tokens: usize,
        /// Why.
        because: String,
    },
    /// It was not tried.
    Untried {
        /// Why.
        because: String,
    },
}

/// Another run of the subject, that explanations were tried on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OtherRun {
    /// Tokens of its prompt.
    pub prompt: Vec<u32>,
    /// Tokens that were fed after it.
    pub decoded: Vec<u32>,
}
