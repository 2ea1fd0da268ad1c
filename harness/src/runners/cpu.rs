//! The engine's CPU interpreter as a runner.

use super::{Manifest, Runner, RunnerKind};
use crate::arithmetic::{Arithmetic, Number};
use crate::capture::{Collector, Step, Want};
use anyhow::Result;
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::model::{Graph, Model};
use qdiff_engine::tap::Intervene;
use std::sync::Arc;

/// The engine's CPU interpreter.
pub const CPU: RunnerKind = RunnerKind {
    name: "cpu",
    about: "the engine's CPU interpreter",
    faults: true,
    llama: false,
    device: false,
    ready: || Ok(()),
    create: |opened, _, room, faults| {
        let graph = faults.graph.unwrap_or_else(|| opened.model.graph().clone());
        Ok(Box::new(Cpu::new(&opened.model, graph, room.kv, faults.words)))
    },
};

/// Runs a graph, possibly with faults in it, on the engine's own weights.
pub struct Cpu<'a> {
    engine: CpuEngine<'a>,
    manifest: Manifest,
}

impl<'a> Cpu<'a> {
    /// A runner of `graph` with a KV cache of type `kv`; `injected` says which faults it carries.
    pub fn new(model: &'a Model, graph: Graph, kv: Number, injected: Vec<String>) -> Self {
        Self {
            engine: CpuEngine::new(graph, model).with_kv(kv.format()),
            manifest: Manifest {
                name: CPU.name.to_owned(),
                arithmetic: Arithmetic { kv, ..Arithmetic::default() },
                injected,
                stored: None,
            },
        }
    }

    /// The engine as it is, with something that changes what stages give.
    pub fn intervened(model: &'a Model, intervention: Box<dyn Intervene + 'a>) -> Self {
        let plain = Self::new(model, model.graph().clone(), Number::F32, Vec::new());
        Self { engine: plain.engine.intervened(intervention), ..plain }
    }
}

impl Runner for Cpu<'_> {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        let mut taps = Collector::new(want, self.engine.position(), tokens);
        self.engine.step(tokens, &mut taps);
        Ok(taps.finish())
    }
}
