//! The engine's CUDA forward pass as a runner.

use super::{Arithmetic, Manifest, Runner};
use crate::capture::{Collector, Step, Want};
use anyhow::Result;
use qdiff_engine::cuda::CudaEngine;
use qdiff_engine::model::Model;
use std::sync::Arc;

/// Every stage materialised on the first GPU.
pub struct Cuda {
    engine: CudaEngine,
    manifest: Manifest,
}

impl Cuda {
    /// A runner with room for a prompt of `prompt` tokens and `n_ctx` in all.
    ///
    /// # Errors
    /// What CUDA lacks, named with its remedy.
    pub fn new(model: &Model, prompt: usize, n_ctx: usize) -> Result<Self> {
        let engine = CudaEngine::new(model, prompt, n_ctx)?;
        Ok(Self {
            manifest: Manifest {
                name: format!("cuda ({})", engine.device()),
                arithmetic: Arithmetic::default(),
                injected: Vec::new(),
            },
            engine,
        })
    }
}

impl Runner for Cuda {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        let mut taps = Collector::new(want, self.engine.position(), tokens);
        self.engine.step(tokens, &mut taps)?;
        Ok(taps.finish())
    }
}
