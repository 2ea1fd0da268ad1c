//! The engine's CPU interpreter as a runner.

use super::ranks::Ranks;
use super::{Manifest, Reads, Runner, RunnerKind, Start};
use crate::arithmetic::Arithmetic;
use crate::capture::{Collector, PassCollector, Shift, Step, Want};
use anyhow::{Context as _, Result};
use qdiff_engine::cpu::{CpuEngine, Row};
use qdiff_engine::model::{Graph, Model};
use qdiff_engine::quant::KvType;
use qdiff_engine::tap::Intervene;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// The engine's CPU interpreter.
pub const CPU: RunnerKind = RunnerKind {
    name: "cpu",
    about: "qdiff's engine on the CPU",
    faults: true,
    llama: false,
    sequences: true,
    shifts: true,
    ranks: true,
    device: false,
    reads: |_| Reads::Stored,
    ready: || Ok(()),
    start: Start::Own(|opened, of, room, faults| {
        let graph = match (faults.graph, &of.placement) {
            (Some(graph), _) => graph,
            (None, Some(placement)) => placement.place(opened.model.graph())?,
            (None, None) => opened.model.graph().clone(),
        };
        if graph.placement.is_some() {
            let manifest = manifest(room.kv, faults.words);
            return Ok(Box::new(Ranks::on_cpu(&opened.model, &graph, room.kv, manifest)));
        }
        let cpu = Cpu::new(&opened.model, graph, room.kv, faults.words);
        let own = |sequence: &u32| opened.adapter_of(*sequence) != opened.adapter_of(0);
        let weights = |sequence| (sequence, Arc::new(opened.model.of_adapter(opened.adapter_of(sequence))) as Arc<_>);
        let others = (1..=room.more as u32).filter(own).map(weights).collect();
        Ok(Box::new(Cpu { engine: cpu.engine.with_adapted(others), ..cpu }))
    }),
};

/// Runs a graph, possibly with faults in it, on the engine's own weights.
pub struct Cpu<'a> {
    engine: CpuEngine<'a>,
    manifest: Manifest,
    /// Threads of its own, in the place of all there are.
    pool: Option<ThreadPool>,
    load: Option<Load>,
}

fn manifest(kv: KvType, injected: Vec<String>) -> Manifest {
    let arithmetic = Arithmetic { kv, ..Arithmetic::default() };
    Manifest { name: CPU.name.to_owned(), arithmetic, injected, stored: None, unkept: None }
}

/// Threads that compute nothing, as many as the machine has cores.
struct Load {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn new() -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let spin = |done: Arc<AtomicBool>| {
            move || {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cores).map(|_| thread::spawn(spin(done.clone()))).collect();
        Self { done, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

impl<'a> Cpu<'a> {
    /// A runner of `graph` with KV caches of types `kv`; `injected` says which faults it carries.
    pub fn new(model: &'a Model, graph: Graph, kv: KvType, injected: Vec<String>) -> Self {
        Self {
            engine: CpuEngine::new(graph, model).with_kv(kv),
            manifest: manifest(kv, injected),
            pool: None,
            load: None,
        }
    }

    /// The same with KV caches of these types.
    #[must_use]
    pub fn with_kv(self, kv: KvType) -> Self {
        Self { engine: self.engine.with_kv(kv), manifest: manifest(kv, self.manifest.injected), ..self }
    }

    /// The engine as it is, with something that changes what stages give.
    pub fn intervened(model: &'a Model, intervention: Box<dyn Intervene + 'a>) -> Self {
        let plain = Self::new(model, model.graph().clone(), KvType::F32, Vec::new());
        Self { engine: plain.engine.intervened(intervention), ..plain }
    }
}

impl Runner for Cpu<'_> {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        let mut taps = Collector::new(want, self.engine.position(), tokens);
        match &self.pool {
            Some(pool) => pool.install(|| self.engine.step(tokens, &mut taps)),
            None => self.engine.step(tokens, &mut taps),
        };
        Ok(taps.finish())
    }

    fn rows(&mut self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Step>> {
        let graph = self.engine.graph().clone();
        let mut pass = PassCollector::new(want, self.engine.sequences(), rows)?;
        self.engine.step_rows(rows, &mut pass.taps(&graph))?;
        Ok(pass.finish())
    }

    fn goes_back_to(&mut self, these: BTreeSet<(u32, usize)>) {
        self.engine.keep_states(these);
    }

    fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<()> {
        Ok(self.engine.share(from, to, tokens)?)
    }

    fn take_back(&mut self, sequence: u32, to: usize) -> Result<()> {
        Ok(self.engine.take_back(sequence, to)?)
    }

    fn shift(&mut self, sequence: u32, Shift { tokens, from }: Shift) -> Result<()> {
        Ok(self.engine.shift(sequence, from, tokens)?)
    }

    fn vary(&mut self, run: usize) -> Result<Option<&'static str>> {
        Ok(match run % 3 {
            2 => {
                self.load = Some(Load::new());
                Some("while other threads keep all cores busy")
            }
            0 => {
                let one = ThreadPoolBuilder::new().num_threads(1).build().context("cannot start a thread")?;
                self.pool = Some(one);
                Some("on a single thread")
            }
            _ => None,
        })
    }
}
