//! llama.cpp behind a safe interface: the one crate of the harness that calls it. Without the feature `llama` its twin says what
//! is missing.

use qdiff_capture::{arithmetic, capture, room};
#[cfg(feature = "llama")]
use qdiff_capture::{log, supervisor};

#[cfg(feature = "llama")]
pub mod llama;
#[cfg(not(feature = "llama"))]
#[path = "llama_absent.rs"]
pub mod llama;
