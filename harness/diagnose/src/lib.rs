//! Why a stage is wrong: [`mutations`] of the graph are tried, and [`diagnose`] reads laws off the values.

use qdiff_capture::{arithmetic, capture, hash, machine, nearest, number, progress};
use qdiff_llama::llama;
#[cfg(test)]
use qdiff_llama_cpp as _;
use qdiff_oracle::{loaded, oracle, prompts};
use qdiff_verdict::verdict;

pub mod diagnose;
pub mod mutations;
pub mod severity;
pub mod weights;
