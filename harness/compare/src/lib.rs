//! Two engines side by side: a [`pair`] and its comparisons (stages, logits, tokens, texts, many prompts).

use qdiff_capture::{arithmetic, capture, memory, metrics, number, progress, room, sampling, supervisor};
use qdiff_diagnose::{diagnose, mutations};
use qdiff_llama::llama;
#[cfg(test)]
use qdiff_llama_cpp as _;
use qdiff_oracle::{loaded, oracle, prompts};
use qdiff_runners::runners;
use qdiff_verdict::verdict;

pub mod borne;
pub mod compare;
pub mod decoded;
pub mod ends;
pub mod generate;
pub mod logits;
pub mod nonce;
pub mod pair;
pub mod rl;
pub mod sequences;
pub mod slots;
pub mod sweep;
pub mod tokens;
