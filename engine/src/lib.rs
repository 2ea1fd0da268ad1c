//! A Qwen engine with tap points.
//!
//! Everything here computes; nothing here knows of llama.cpp or of diffing.
//! Read [`model`] first: the graph is data, and the rest walks it.

pub mod cpu;
pub mod cuda;
pub mod gguf;
pub mod isa;
pub mod model;
pub mod ops;
pub mod quant;
pub mod rounding;
pub mod sampler;
pub mod tap;
pub mod tokenizer;

/// Where compiled kernels and the like are kept between runs: `qdiff` in the user's folder for caches. `None` without a
/// home.
pub fn cache_folder() -> Option<std::path::PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| std::path::PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(std::path::PathBuf::from).or_else(home)?;
    Some(base.join("qdiff"))
}
