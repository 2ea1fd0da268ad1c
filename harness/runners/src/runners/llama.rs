//! llama.cpp as a runner.

use super::{Manifest, Reads, Runner, RunnerKind, Start, llama_cuda};
use crate::arithmetic::{Arithmetic, AttentionRule, LinearRule};
use crate::capture::{Shift, Step, Want};
use crate::llama::context::{TappedContext, flash};
use crate::llama::{BUILT_IN, Load, Model, built_in, cuda_backend, dot_types, variant};
use crate::room::Room;
use anyhow::{Result, bail, ensure};
use qdiff_engine::cpu::Row;
use qdiff_engine::model::{EmittedLayout, Graph, Node, WeightSource as _};
use qdiff_engine::quant::{ActivationFormat, GgmlType, KvType};
use std::path::Path;
use std::sync::Arc;

/// llama.cpp on the CPU.
pub const LLAMA: RunnerKind = RunnerKind {
    name: "llama",
    about: "llama.cpp on the CPU",
    faults: false,
    llama: true,
    sequences: true,
    shifts: true,
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
        let mut llama = Llama::new(opened.llama()?, graph, room)?;
        if opened.is_adapted() {
            let files: Vec<&Path> = opened.adapters.iter().map(|adapter| adapter.path.as_path()).collect();
            let numbers = (0..=room.more as u32).map(|sequence| opened.adapter_of(sequence)).collect();
            llama.session.adapt(&files, numbers)?;
        }
        Ok(Box::new(llama))
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
    shifts: false,
    reads: |ty| if llama_cuda::described(ty) { Reads::Stored } else { Reads::Refused },
    ready: cuda_backend,
    start: Start::Own(|opened, graph, room, _| {
        opened.llama()?;
        ensure!(!opened.is_adapted(), "{} has no adapters here; take {}", LLAMA_CUDA.name, LLAMA.name);
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
        let pooled = graph.nodes.iter().find(|node| node.emission.layout == EmittedLayout::FirstHalves);
        if let (Some(node), None) = (pooled, room.kv.number()) {
            bail!(
                "{}: llama.cpp keeps pooled keys in the cache too, and qdiff does not judge them in {}; take --kv-type f32, f16 or bf16",
                node.id,
                room.kv
            );
        }
        let (name, arithmetic) = match (model.on_gpu, room.kv.number()) {
            (true, Some(kv)) => ("llama.cpp (cuda)".to_owned(), llama_cuda::arithmetic(kv)),
            (true, None) => bail!(
                "qdiff does not know what llama.cpp's CUDA kernels round beside a KV cache in {}; take --kv-type f16, or llama \
                 in place of llama-cuda",
                room.kv
            ),
            (false, _) => {
                let linear = dot_types();
                let attention = attention(room.kv, &linear);
                // Kernels of other variants round in another order, so that figures of two machines may differ.
                let kernels =
                    variant().filter(|name| *name != BUILT_IN).map_or_else(String::new, |name| format!(", {name}"));
                let arithmetic = Arithmetic { linear, attention, kv: room.kv, ..Arithmetic::default() };
                let split = if room.split.is_some() { ", split KV" } else { "" };
                (format!("llama.cpp (cpu{kernels}{split})"), arithmetic)
            }
        };
        Ok(Self {
            session: TappedContext::new(model, graph, room)?,
            manifest: Manifest { name, arithmetic, injected: Vec::new(), stored: None, unkept: None },
        })
    }
}

/// Cached keys and values are weights to ggml: what they are multiplied with takes their dot type, and is summed in f32. Values
/// in blocks are read by flash attention (`ggml_compute_forward_flash_attn_ext_f16_one_chunk`), which makes f32 of them and
/// keeps weights and sums in f32. Beside it, keys in f32 are cast to f16.
fn attention(kv: KvType, dot_types: &[LinearRule]) -> Vec<AttentionRule> {
    let dot_type = |cache: ActivationFormat| {
        let of_blocks = |ty: GgmlType| dot_types.iter().find(|rule| rule.weights == ty.name());
        cache.stored_as().and_then(of_blocks).map_or(cache, |rule| rule.activations)
    };
    let flash = flash(kv);
    let scores = match kv.keys {
        ActivationFormat::F32 if flash => ActivationFormat::F16,
        keys => dot_type(keys),
    };
    let context = if flash { ActivationFormat::F32 } else { dot_type(kv.values) };
    let plain = [scores, context] == [ActivationFormat::F32; 2];
    let rule = AttentionRule { scores, context, ..AttentionRule::default() };
    if plain { Vec::new() } else { vec![rule] }
}

impl Runner for Llama {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn taps(&self, node: &Node) -> bool {
        self.session.taps(node)
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

    fn shift(&mut self, sequence: u32, Shift { tokens, from }: Shift) -> Result<()> {
        self.session.shift(sequence, from, tokens)
    }
}
