//! A Qwen engine with tap points.
//!
//! Everything here computes; nothing here knows of llama.cpp or of diffing.
//! Read [`model`] first: the graph is data, and the rest walks it.

pub mod cpu;
pub mod cuda;
pub mod dtype;
pub mod folder;
pub mod gguf;
pub mod isa;
pub mod model;
pub mod ops;
pub mod quant;
pub mod rounding;
pub mod sampler;
mod sort;
pub mod tap;
pub mod tokenizer;

use std::ffi::OsString;
use std::path::PathBuf;

/// Where compiled kernels and the like are kept between runs: `qdiff` in the user's folder for caches. `None` without a
/// home.
pub fn cache_folder() -> Option<PathBuf> {
    cache_of(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

/// The same of these variables. An empty one says nothing. A home that is not there is nobody's, and nothing is made below it.
fn cache_of(cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let home = || home.map(PathBuf::from).filter(|home| home.is_dir()).map(|home| home.join(".cache"));
    Some(cache.filter(|cache| !cache.is_empty()).map(PathBuf::from).or_else(home)?.join("qdiff"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_that_is_not_there_has_no_cache() {
        let home = std::env::temp_dir();
        assert_eq!(cache_of(None, Some(home.clone().into())), Some(home.join(".cache/qdiff")));
        assert_eq!(cache_of(None, Some(home.join("qdiff-no-such-home").into())), None);
        assert_eq!(cache_of(None, None), None);
        assert_eq!(cache_of(Some("/a".into()), None), Some(PathBuf::from("/a/qdiff")));
    }
}
