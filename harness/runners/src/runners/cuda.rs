//! The engine's CUDA forward passes as runners.

use super::ranks::{Rank, Ranks};
use super::{Manifest, Reads, Runner, RunnerKind, Start};
use crate::arithmetic::Arithmetic;
use crate::capture::{Collector, PassCollector, Step, Want};
use crate::room::Room;
use anyhow::{Result, ensure};
use qdiff_engine::cpu::Row;
use qdiff_engine::cuda::{Circumstances, CudaEngine, Gemm, Options, Path, kept_as};
use qdiff_engine::model::{Graph, Model, Slices, WeightSource};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The engine's CUDA forward pass, every stage materialised.
pub const CUDA: RunnerKind = RunnerKind {
    name: "cuda",
    about: "qdiff's engine on a GPU; writes every stage to memory",
    faults: false,
    llama: false,
    sequences: true,
    shifts: false,
    ranks: true,
    device: true,
    reads: |ty| match kept_as(ty) {
        kept if kept == ty => Reads::Stored,
        kept => Reads::As(kept),
    },
    ready: || Ok(qdiff_engine::cuda::devices().map(drop)?),
    start: Start::Own(|opened, of, room, _| {
        let options = options(Path::Tapped, room);
        if let Some(placement) = &of.placement {
            return Ok(Box::new(ranks(&opened.model, &placement.place(opened.model.graph())?, options)?));
        }
        let engine = if opened.adapts_alike() {
            CudaEngine::new(&opened.model, options)?
        } else {
            let of = (0..=room.more as u32).map(|sequence| (sequence, opened.adapter_of(sequence))).collect();
            CudaEngine::of_adapters(&opened.model, of, options)?
        };
        Ok(Box::new(Cuda::of(engine, &opened.model, &options)))
    }),
};

/// The engine of each rank on a GPU of its own.
fn ranks(model: &Model, graph: &Graph, options: Options) -> Result<Ranks<'static>> {
    Ok(of_ranks(CudaEngine::ranks(graph, &Slices::new(model), options)?, &options))
}

/// A runner of these engines, each of a rank.
pub fn of_ranks(engines: Vec<CudaEngine>, options: &Options) -> Ranks<'static> {
    let name = engines.first().map_or(CUDA.name.to_owned(), |engine| format!("{} ({})", CUDA.name, engine.device()));
    let end = engines.first().and_then(CudaEngine::ending);
    let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Rank>);
    Ranks::of(engines.collect(), Box::new(move || end.iter().for_each(|end| end())), manifest(name, options))
}

/// The engine's fused CUDA forward pass.
pub const CUDA_FAST: RunnerKind = RunnerKind {
    name: "cuda-fast",
    ranks: false,
    about: "qdiff's fast engine on a GPU; kernels fuse stages",
    start: Start::Own(|opened, _, room, _| {
        ensure!(!opened.is_adapted(), "{} has no adapters; take the subject {}", CUDA_FAST.name, CUDA.name);
        Ok(Box::new(Cuda::new(&opened.model, options(Path::Fast, room))?))
    }),
    ..CUDA
};

fn options(path: Path, room: Room) -> Options {
    let Room { step, context, gemm, kv, more: more_sequences, .. } = room;
    Options { step, context, more_sequences, path, gemm, kv, taps: true, ..Options::default() }
}

fn manifest(name: String, options: &Options) -> Manifest {
    let arithmetic = Arithmetic { kv: options.kv, ..Arithmetic::default() };
    Manifest { name, arithmetic, injected: Vec::new(), stored: None, unkept: None }
}

/// The engine on the first GPU, by either path.
pub struct Cuda {
    engine: CudaEngine,
    path: Path,
    manifest: Manifest,
}

impl Cuda {
    /// A runner made for `options`.
    ///
    /// # Errors
    /// What CUDA lacks, named with its remedy.
    pub fn new(model: &Model, options: Options) -> Result<Self> {
        Ok(Self::of(CudaEngine::new(model, options)?, model, &options))
    }

    /// A runner of this engine, made for `options`.
    fn of(engine: CudaEngine, model: &Model, options: &Options) -> Self {
        let path = match options.path {
            Path::Tapped => CUDA.name,
            Path::Fast => CUDA_FAST.name,
        };
        let gemm = match options.gemm {
            Gemm::Own => "",
            Gemm::Cublas => ", cuBLAS",
        };
        Self {
            manifest: manifest(format!("{path} ({}{gemm}{})", engine.device(), kept_otherwise(model)), options),
            engine,
            path: options.path,
        }
    }

    /// The engine that runs.
    pub fn engine(&mut self) -> &mut CudaEngine {
        &mut self.engine
    }
}

/// The formats of a model's matrices that are kept as plain numbers on a device, in words; nothing where none is.
fn kept_otherwise(model: &Model) -> String {
    let mut all = BTreeSet::new();
    for weight in model.graph().weights().iter().filter(|w| model.extent(&w.name).1 > 1) {
        let ty = model.ggml_type(&weight.name);
        if let Reads::As(plain) = CUDA.reading(ty) {
            all.insert(format!(", {ty} as {plain}"));
        }
    }
    all.into_iter().collect()
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

    fn rows(&mut self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Step>> {
        let graph = self.engine.graph().clone();
        let mut pass = PassCollector::new(want, &self.engine.sequences(), rows)?.with_keys_by_position();
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

    fn vary(&mut self, run: usize) -> Result<Option<&'static str>> {
        let (circumstances, words) = match run % 3 {
            2 => (Circumstances { load: true, ..Circumstances::default() }, "while another stream loads the card"),
            // Launches of the tapped path do not overlap anyway.
            0 if self.path == Path::Fast => {
                (Circumstances { apart: true, ..Circumstances::default() }, "with each launch after the one before")
            }
            _ => return Ok(None),
        };
        self.engine.under(circumstances)?;
        Ok(Some(words))
    }
}
