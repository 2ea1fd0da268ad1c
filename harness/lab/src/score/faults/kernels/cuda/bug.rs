//! What is known of a bug of the CUDA engine.

/// What is known of a bug that the CUDA engine plants.
pub struct CudaBug {
    /// Its name, as the engine has it.
    pub name: &'static str,
    /// What is computed instead, where and when.
    pub what: &'static str,
}

pub(super) const fn bug(name: &'static str, what: &'static str) -> CudaBug {
    CudaBug { name, what }
}
