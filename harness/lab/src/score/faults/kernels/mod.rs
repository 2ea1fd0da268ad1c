//! Bugs as authors of inference kernels make them: tiles, lanes, splits, barriers, tails, buffers and number types.
//!
//! Each is a plain loop over what its stage read and gave. They were written down from how kernels are built, without
//! regard to what any catalogue knows.

mod attention;
mod caches;
mod cell;
#[cfg(feature = "faults")]
pub mod cuda;
mod elementwise;
mod memory;
mod newer;
mod norms;
mod precision;
mod products;
mod rotation;
mod round;
pub(super) mod rounding;
mod softmax;
#[cfg(test)]
mod tests;
mod tiles;
mod weights;

pub use cell::KernelFault;
use cell::{
    Cell, Pair, bug, cell, counted, dot, given, layer_before, moved, moved_pairs, patch, product, product_of, stale,
};

/// Bugs of experts, delta nets and residual streams.
pub fn newer() -> &'static [KernelFault] {
    newer::FAULTS
}

/// Every bug of a kernel.
pub fn all() -> impl Iterator<Item = &'static KernelFault> {
    [
        products::FAULTS,
        weights::FAULTS,
        precision::FAULTS,
        norms::FAULTS,
        rotation::FAULTS,
        caches::FAULTS,
        attention::FAULTS,
        softmax::FAULTS,
        elementwise::FAULTS,
        memory::FAULTS,
        round::FAULTS,
        tiles::FAULTS,
    ]
    .into_iter()
    .flatten()
}
