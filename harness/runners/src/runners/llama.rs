//! llama.cpp as a runner.

use super::{Manifest, Reads, Runner, RunnerKind, Start, llama_cuda};
use crate::arithmetic::{Arithmetic, AttentionRule};
use crate::capture::{Step, Want};
use crate::llama::context::TappedContext;
use crate::llama::{Load, Model, built_in, cuda_backend, dot_types};
use crate::room::Room;
use anyhow::{Result, bail};
use qdiff_engine::cpu::Row;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, WeightSource as _};
use qdiff_engine::quant::GgmlType;
use std::sync::Arc;

/// llama.cpp on the CPU.
pub const LLAMA: RunnerKind = RunnerKind {
    name: "llama",
    about: "llama.cpp on the CPU",
    faults: false,
    llama: true,
    sequences: true,
    ranks: false,
    device: false,
    reads: |ty| if bounded(ty) { Reads::Stored } else { Reads::Refused },
    ready: built_in,
    start: Start::Own(|opened, graph, room, _| {
        let layers = graph.nodes.iter().filter(|node| node.op.anatomy().multiplies_weights());
        for name in layers.flat_map(|node| &node.weights).map(|weight| weight.name.as_str()) {
            let ty = opened.model.ggml_type(name);
            if !bounded(ty) {
                bail!(
                    "tensor `{name}` is {ty}: llama.cpp adds the zero point of such weights over whole blocks, and qdiff has no \
                     bound for what these sums round; judge the engine against f64 alone with --reference none"
                );
            }
        }
        Ok(Box::new(Llama::new(opened.llama()?, graph, room)?))
    }),
};

/// Whether what llama.cpp's products round with weights of type `ty` stays within the bounds of the operands: ternary weights
/// are mostly 0, and its kernels (`ggml_vec_dot_tq2_0_q8_K`) sum them as 1, less the sum of the activations.
fn bounded(ty: GgmlType) -> bool {
    ty != GgmlType::TQ1_0 && ty != GgmlType::TQ2_0
}

/// llama.cpp on a GPU.
pub const LLAMA_CUDA: RunnerKind = RunnerKind {
    name: "llama-cuda",
    about: "llama.cpp on a GPU (see scripts/build-ggml-cuda)",
    // Which kernel multiplies depends on the rows of a whole pass, and so does what is declared of its arithmetic.
    sequences: false,
    reads: |ty| if llama_cuda::described(ty) { Reads::Stored } else { Reads::Refused },
    ready: cuda_backend,
    start: Start::Own(|opened, graph, room, _| {
        opened.llama()?;
        llama_cuda::measured(graph, &opened.model)?;
        let model = Arc::new(Model::load(&opened.path, Load::Cuda)?);
        Ok(Box::new(Llama::new(&model, graph, room)?))
    }),
    ..LLAMA
};

/// llama.cpp, every stage tapped.
pub struct Llama {
    session: TappedContext,
    manifest: Manifest,
}

impl Llama {
    /// A runner with the room asked for.
    ///
    /// # Errors
    /// If llama.cpp cannot make the context.
    pub fn new(model: &Arc<Model>, graph: &Graph, room: Room) -> Result<Self> {
        let cpu =
            || Arithmetic { linear: dot_types(), attention: attention(room.kv), kv: room.kv, ..Arithmetic::default() };
        let (name, arithmetic) = match model.on_gpu {
            true => ("llama.cpp (cuda)", llama_cuda::arithmetic(room.kv)),
            false => ("llama.cpp (cpu)", cpu()),
        };
        Ok(Self {
            session: TappedContext::new(model, graph, room)?,
            manifest: Manifest { name: name.to_owned(), arithmetic, injected: Vec::new(), stored: None, unkept: None },
        })
    }
}

/// Cached keys and values are weights to ggml: what they are multiplied with
/// takes their dot type, and is summed in f32.
fn attention(kv: DType) -> Vec<AttentionRule> {
    let rule = AttentionRule { scores: kv.into(), context: kv.into(), ..AttentionRule::default() };
    match kv {
        DType::F32 => Vec::new(),
        _ => vec![rule],
    }
}

impl Runner for Llama {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        self.session.step(tokens, want)
    }

    fn rows(&mut self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Step>> {
        self.session.rows(rows, want)
    }

    fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<()> {
        self.session.share(from, to, tokens)
    }

    fn take_back(&mut self, sequence: u32, to: usize) -> Result<()> {
        self.session.take_back(sequence, to)
    }
}
