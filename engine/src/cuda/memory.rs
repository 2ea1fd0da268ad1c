//! What an engine keeps on the device, and where.

use super::arena::{Arena, Part, Plan};
use super::calls::refuse;
use super::options::{Gemm, Options, Path};
use super::weights::{self, PLANES, Planes};
use super::{CudaError, readback};
use crate::model::{Graph, Model, Node, StageId, WeightSource as _};
use crate::ops::{Op, Rope};
use crate::quant::GgmlType;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use std::collections::HashMap;
use std::sync::Arc;

/// A tensor on the device.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Where its planes are.
    pub planes: Planes,
    parts: Vec<Part>,
    /// Format; vectors are F32 whatever the file holds.
    pub ty: GgmlType,
    /// Length of a row.
    pub n: usize,
    /// Rows.
    pub m: usize,
}

/// Device memory of an engine.
pub struct Memory {
    arena: Arena,
    /// Tensors by name.
    pub weights: HashMap<String, Weight>,
    /// Per node, the buffer it writes.
    pub outputs: Vec<Buffer>,
    /// Per rotating node, `base^(−2i/d)` of each plane.
    pub frequencies: HashMap<usize, u64>,
    /// Token ids of a step.
    pub tokens: u64,
    /// A weight dequantised for cuBLAS.
    pub dequantised: u64,
    /// Shares of the sums of a product on the tensor cores.
    pub parts: u64,
    /// A cache as f32, for taps.
    pub cache_f32: u64,
    /// The ring of taps.
    pub ring: u64,
    /// Scratch of the fused kernels.
    pub scratch: Scratch,
}

/// A stage's output on the device.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// Address.
    pub at: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// Scratch of the fused kernels; all of it starts as zero.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// Position of the step's token.
    pub position: u64,
    /// Shares of the attention.
    pub partial: u64,
    /// Counters of blocks that are done: one per head of the cache, one more.
    pub arrived: u64,
    /// Largest logit so far.
    pub best: u64,
}

/// Elements of all shares of a product on the tensor cores: few outputs are
/// shared out, many need no sharing.
pub const PARTS: usize = 4 << 20;

/// Shares of the keys that the fused attention makes at most.
pub const SPLITS: usize = 32;

fn failed(what: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |e| CudaError::Driver(e, what)
}

impl Memory {
    /// Takes everything at once and brings the weights.
    ///
    /// # Errors
    /// Too little memory, or a tensor the kernels cannot read.
    pub fn new(
        model: &Model,
        options: &Options,
        context: &Arc<CudaContext>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, CudaError> {
        let graph = model.graph();
        refuse(graph)?;
        let config = &graph.config;
        let mut plan = Plan::default();
        let mut planned = Vec::new();
        for weight in graph.weights() {
            planned.push((weight.name.clone(), plan_weight(model, &weight.name, &mut plan)?));
        }
        let (buffers, buffer_of) = plan_buffers(graph, options, &mut plan);
        let mut rotations = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            if let Op::Rope(rope) = &node.op {
                rotations.push((index, rope.clone(), plan.take(2 * rope.head_dim)));
            }
        }
        let tokens = plan.take(4 * options.step.max(1));
        let largest = planned.iter().map(|(_, (_, n, m, _))| 4 * n * m).max();
        let largest = largest.unwrap_or(0);
        let dequantised = plan.take(match options.gemm {
            Gemm::Cublas => largest,
            // Some faults read a weight as plain f32.
            Gemm::Own if cfg!(feature = "faults") => largest,
            Gemm::Own => 0,
        });
        let parts = plan.take(match options.path {
            Path::Fast => 4 * PARTS,
            Path::Tapped => 0,
        });
        let cache_f32 = plan.take(4 * options.context * config.n_kv_heads * config.head_dim);
        let ring = readback::plan(&mut plan);
        let scratch = [8, 4 * SPLITS * config.n_heads * (config.head_dim + 2), 4 * (config.n_kv_heads + 1), 8]
            .map(|bytes| plan.take(bytes));

        let arena = plan.allocate(context, stream)?;
        let mut weights = HashMap::new();
        for (name, (ty, n, m, parts)) in planned {
            let mut planes: Planes = [0; PLANES];
            for (plane, part) in planes.iter_mut().zip(&parts) {
                *plane = arena.at(*part);
            }
            for (part, bytes) in parts.iter().zip(bytes_of(model, &name, ty)) {
                // SAFETY: the part was planned with the plane's length.
                unsafe { result::memcpy_htod_sync(arena.at(*part), &bytes) }
                    .map_err(failed("copying weights to the device"))?;
            }
            weights.insert(name, Weight { planes, parts, ty, n, m });
        }
        let mut frequencies = HashMap::new();
        for (index, rope, part) in rotations {
            // SAFETY: the part was planned with the table's length.
            unsafe { result::memcpy_htod_sync(arena.at(part), &frequency_table(&rope)) }
                .map_err(failed("copying frequencies to the device"))?;
            frequencies.insert(index, arena.at(part));
        }
        let buffers: Vec<Buffer> =
            buffers.iter().map(|part| Buffer { at: arena.at(*part), bytes: part.bytes }).collect();
        Ok(Self {
            weights,
            outputs: buffer_of.iter().map(|&i| buffers[i]).collect(),
            frequencies,
            tokens: arena.at(tokens),
            dequantised: arena.at(dequantised),
            parts: arena.at(parts),
            cache_f32: arena.at(cache_f32),
            ring: arena.at(ring),
            scratch: Scratch {
                position: arena.at(scratch[0]),
                partial: arena.at(scratch[1]),
                arrived: arena.at(scratch[2]),
                best: arena.at(scratch[3]),
            },
            arena,
        })
    }

    /// The bytes of a tensor as the file has them, read back from the device.
    /// Vectors come as f32, which is how they are kept.
    ///
    /// # Errors
    /// If CUDA fails.
    ///
    /// # Panics
    /// If the graph uses no such tensor.
    pub fn read_weight(&self, name: &str) -> Result<(GgmlType, Vec<u8>), CudaError> {
        let weight = &self.weights[name];
        let planes = weight
            .parts
            .iter()
            .map(|part| {
                let mut bytes = vec![0u8; part.bytes];
                // SAFETY: the part's own address and length.
                unsafe { result::memcpy_dtoh_sync(&mut bytes, self.arena.at(*part)) }
                    .map_err(failed("reading weights back"))?;
                Ok(bytes)
            })
            .collect::<Result<Vec<_>, CudaError>>()?;
        Ok((weight.ty, weights::join(weight.ty, &planes)))
    }
}

type Planned = (GgmlType, usize, usize, Vec<Part>);

fn plan_weight(model: &Model, name: &str, plan: &mut Plan) -> Result<Planned, CudaError> {
    let (n, m) = model.extent(name);
    let ty = match m {
        1 => GgmlType::F32,
        _ => model.ggml_type(name),
    };
    if m > 1 && n % 32 != 0 {
        return Err(CudaError::Unsupported(format!(
            "tensor `{name}` has rows of {n} weights, and the CUDA kernels take multiples of 32; use --subject cpu"
        )));
    }
    let blocks = n * m / ty.block_size();
    Ok((ty, n, m, weights::plan(ty, blocks, plan)))
}

/// The planes of a tensor; a vector is one plane of f32.
fn bytes_of(model: &Model, name: &str, ty: GgmlType) -> Vec<Vec<u8>> {
    let (n, m) = model.extent(name);
    if m == 1 {
        let mut vector = vec![0f32; n];
        model.rows(name, 0, &mut vector);
        return vec![bytemuck::cast_slice(&vector).to_vec()];
    }
    let tensor = model.gguf().tensor(name).expect("checked at load");
    weights::split(ty, model.gguf().data(tensor))
}

/// A buffer per stage name, which the layers share; states last, and have one
/// each. Gives the buffers and, per node, which is its own.
fn plan_buffers(graph: &Graph, options: &Options, plan: &mut Plan) -> (Vec<Part>, Vec<usize>) {
    let mut parts = Vec::new();
    let mut by_name: HashMap<StageId, usize> = HashMap::new();
    let buffer_of = graph
        .nodes
        .iter()
        .map(|node| {
            let key = if node.op.has_state() { node.id } else { StageId::global(node.id.name) };
            *by_name.entry(key).or_insert_with(|| {
                parts.push(plan.take(output_bytes(node, graph, options)));
                parts.len() - 1
            })
        })
        .collect();
    (parts, buffer_of)
}

fn output_bytes(node: &Node, graph: &Graph, options: &Options) -> usize {
    let fast = options.path == Path::Fast;
    let last = graph.nodes.len() - 1;
    let tokens = match node.op {
        Op::AttnScores(_) | Op::AttnWeights(_) if fast && !options.scores => return 0,
        _ if options.last_logits && node.id == graph.nodes[last].id => 1,
        _ => options.step,
    };
    let elements: usize = Graph::extent(node, tokens, options.context).iter().product();
    let bytes = if node.op.has_state() { options.kv.bytes() } else { 4 };
    bytes * elements
}

/// `base^(−2i/d)` per plane, rounded once from f64.
fn frequency_table(rope: &Rope) -> Vec<f32> {
    (0..rope.head_dim / 2).map(|i| rope.base.powf(-2.0 * i as f64 / rope.head_dim as f64) as f32).collect()
}
