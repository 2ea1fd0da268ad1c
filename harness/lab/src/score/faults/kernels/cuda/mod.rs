//! Bugs of the CUDA engine's kernels and launches, which `qdiff_engine::cuda::faults` plants: what each computes instead.
//! Numbers are those of the score's synthetic models and its prompt of 150 tokens.

mod attention;
mod bug;
mod digits;
mod fused;
mod prefill;
mod products;
mod rows;
mod tiles;

pub use bug::CudaBug;
use bug::bug;

/// Every bug.
pub fn all() -> impl Iterator<Item = &'static CudaBug> {
    [products::BUGS, rows::BUGS, attention::BUGS, fused::BUGS, digits::BUGS, tiles::BUGS, prefill::BUGS]
        .into_iter()
        .flatten()
}

/// The bug of a name.
pub fn find(name: &str) -> Option<&'static CudaBug> {
    all().find(|bug| bug.name == name)
}

#[cfg(test)]
mod tests {
    use super::all;
    use qdiff_engine::cuda::faults::{fused, tapped};
    use std::collections::BTreeSet;

    #[test]
    fn every_bug_that_the_engine_plants_is_described() {
        let planted: BTreeSet<&str> = tapped().iter().chain(fused()).map(|fault| fault.cause).collect();
        let described: BTreeSet<&str> = all().map(|bug| bug.name).collect();
        assert_eq!(planted, described);
        assert_eq!(all().count(), described.len());
        for bug in all() {
            assert!(!bug.what.is_empty() && !bug.what.ends_with('.'), "{}: {}", bug.name, bug.what);
        }
    }

    #[test]
    fn there_are_enough_bugs_of_both_paths() {
        assert!(tapped().len() >= 40 && fused().len() >= 15, "{} and {}", tapped().len(), fused().len());
    }
}
