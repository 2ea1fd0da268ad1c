//! Whether each stage of a capture is what it should be, by a bound and not by a tolerance: [`verdict`].

use qdiff_capture::{arithmetic, capture, memory, metrics, number, progress};
#[cfg(test)]
use qdiff_llama::llama;
#[cfg(test)]
use qdiff_llama_cpp as _;
use qdiff_oracle::{oracle, products};

pub mod verdict;
