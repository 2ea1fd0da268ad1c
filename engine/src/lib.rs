//! A Qwen engine with tap points.
//!
//! Everything here computes; nothing here knows of llama.cpp or of diffing.
//! Read [`model`] first: the graph is data, and the rest walks it.

pub mod cpu;
pub mod cuda;
pub mod gguf;
pub mod model;
pub mod ops;
pub mod quant;
pub mod rounding;
pub mod sampler;
pub mod tap;
pub mod tokenizer;
