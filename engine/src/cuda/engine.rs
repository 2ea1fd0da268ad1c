//! The forward pass on the GPU, every stage materialised.
//!
//! Walks the graph; each op is one kernel launch with the node's parameters.
//! All device memory is taken at the start: the weights in their GGUF blocks,
//! a buffer per stage name (layers take turns), a cache per layer.

use super::kernels::{SOURCES, cached};
use super::{CudaError, devices};
use crate::model::{Graph, Model, Node, StageId, WeightSource as _, Write, row_len};
use crate::ops::{Attention, Op, Pairing, Rope};
use crate::tap::TapSink;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr as _, DriverError, LaunchConfig,
    PushKernelArg as _, sys,
};
use cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::sync::Arc;

/// Threads of an elementwise block.
const THREADS: u32 = 256;
/// Warps of a block where a warp makes one output.
const WARPS: u32 = 8;
/// Tokens that the linear kernel takes at a time; as in `linear.cu`.
const LINEAR_TOKENS: u32 = 8;

/// A model on a GPU, at some position.
pub struct CudaEngine {
    graph: Graph,
    stream: Arc<CudaStream>,
    functions: HashMap<String, CudaFunction>,
    weights: HashMap<String, Weight>,
    /// Per node, the buffer it writes.
    buffer_of: Vec<usize>,
    buffers: Vec<CudaSlice<f32>>,
    frequencies: HashMap<usize, CudaSlice<f32>>,
    tokens: CudaSlice<u32>,
    max_tokens: usize,
    capacity: usize,
    position: usize,
    device: String,
}

struct Weight {
    bytes: CudaSlice<u8>,
    format: String,
    row_bytes: usize,
    n: i32,
    m: i32,
}

fn failed(what: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |e| CudaError::Driver(e, what)
}

impl CudaEngine {
    /// Puts `model` on the first GPU, with room for steps of `max_tokens`
    /// tokens and a context of `capacity`.
    ///
    /// # Errors
    /// Whatever is missing, or too little memory.
    pub fn new(model: &Model, max_tokens: usize, capacity: usize) -> Result<Self, CudaError> {
        let device = devices()?.swap_remove(0);
        let context = CudaContext::new(device.ordinal).map_err(failed("opening the device"))?;
        let stream = context.default_stream();
        let graph = model.graph().clone();

        let mut lengths: Vec<usize> = Vec::new();
        let mut by_name: HashMap<StageId, usize> = HashMap::new();
        let buffer_of: Vec<usize> = graph
            .nodes
            .iter()
            .map(|node| {
                // Caches last; every other stage shares its buffer with the
                // same stage of the other layers.
                let key = match node.op {
                    Op::KvCache(_) => node.id,
                    _ => StageId::global(node.id.name),
                };
                *by_name.entry(key).or_insert_with(|| {
                    lengths.push(Graph::extent(node, max_tokens, capacity).iter().product());
                    lengths.len() - 1
                })
            })
            .collect();
        let weight_bytes: usize = graph
            .weights()
            .iter()
            .filter_map(|(name, _)| model.gguf().tensor(name))
            .map(|t| t.size as usize)
            .sum();
        let needed = weight_bytes + 4 * lengths.iter().sum::<usize>();
        let (free, _) = context
            .mem_get_info()
            .map_err(failed("asking for free memory"))?;
        if needed > free {
            return Err(CudaError::Memory {
                needed: needed >> 20,
                free: free >> 20,
            });
        }

        let arch = match device.capability {
            // Architecture-specific features of Hopper and later.
            (major, minor) if major >= 9 => format!("sm_{major}{minor}a"),
            (major, minor) => format!("sm_{major}{minor}"),
        };
        let mut functions = HashMap::new();
        for source in SOURCES {
            let cubin = cached(source, &arch)?;
            let module = context
                .load_module(Ptx::from_binary(cubin))
                .map_err(failed("loading a kernel"))?;
            for name in entry_points(source.name) {
                let function = module
                    .load_function(&name)
                    .map_err(failed("finding a kernel"))?;
                functions.insert(name, function);
            }
        }
        let mut weights = HashMap::new();
        for (name, _) in graph.weights() {
            let tensor = model.gguf().tensor(&name).expect("checked at load");
            let (n, m) = model.extent(&name);
            // Vectors are read as f32 by their kernels, whatever the file holds.
            let mut vector = vec![0f32; if m == 1 { n } else { 0 }];
            if m == 1 {
                model.rows(&name, 0, &mut vector);
            }
            let bytes = if m == 1 {
                bytemuck::cast_slice(&vector)
            } else {
                model.gguf().data(tensor)
            };
            weights.insert(
                name.clone(),
                Weight {
                    bytes: stream
                        .clone_htod(bytes)
                        .map_err(failed("copying weights to the device"))?,
                    format: tensor.ggml_type.to_string(),
                    row_bytes: tensor.ggml_type.row_bytes(n),
                    n: n as i32,
                    m: m as i32,
                },
            );
        }
        let mut frequencies = HashMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            if let Op::Rope(rope) = &node.op {
                let table = stream
                    .clone_htod(&frequency_table(rope))
                    .map_err(failed("copying frequencies to the device"))?;
                frequencies.insert(index, table);
            }
        }
        let allocate = |n: &usize| {
            stream
                .alloc_zeros::<f32>((*n).max(1))
                .map_err(failed("taking device memory"))
        };
        Ok(Self {
            buffers: lengths.iter().map(allocate).collect::<Result<_, _>>()?,
            tokens: stream
                .alloc_zeros::<u32>(max_tokens.max(1))
                .map_err(failed("taking device memory"))?,
            graph,
            functions,
            weights,
            buffer_of,
            frequencies,
            max_tokens,
            capacity,
            position: 0,
            device: device.name,
            stream,
        })
    }

    /// Name of the GPU.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Runs `tokens` at the next positions through all stages.
    ///
    /// # Errors
    /// If CUDA fails.
    ///
    /// # Panics
    /// If there are more tokens than there is room for.
    pub fn step(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let (count, keys) = (tokens.len(), self.position + tokens.len());
        assert!(
            count <= self.max_tokens && keys <= self.capacity,
            "a step beyond the room taken"
        );
        self.stream
            .memcpy_htod(tokens, &mut self.tokens.slice_mut(..count))
            .map_err(failed("copying tokens to the device"))?;
        let mut host = Vec::new();
        for index in 0..self.graph.nodes.len() {
            let node = self.graph.nodes[index].clone();
            if !matches!(node.op, Op::KvCache(_)) {
                self.poison(index)?;
            }
            self.launch(index, &node, count)?;
            if taps.wants(node.id) {
                let shape = Graph::extent(&node, count, keys);
                host.resize(shape.iter().product(), 0.0);
                let view = self.buffers[self.buffer_of[index]].slice(..host.len());
                self.stream
                    .memcpy_dtoh(&view, &mut host)
                    .map_err(failed("reading a tap"))?;
                self.stream
                    .synchronize()
                    .map_err(failed("running a stage"))?;
                taps.tap(node.id, &shape, &host);
            }
        }
        self.stream
            .synchronize()
            .map_err(failed("running a step"))?;
        self.position = keys;
        Ok(())
    }

    /// Fills a buffer with NaN, so that what a kernel leaves unwritten shows.
    fn poison(&self, index: usize) -> Result<(), CudaError> {
        let buffer = &self.buffers[self.buffer_of[index]];
        let (pointer, _guard) = buffer.device_ptr(&self.stream);
        // SAFETY: the buffer's own address and length; the stream orders it
        // before the kernel that writes.
        unsafe { sys::cuMemsetD8Async(pointer, 0xFF, buffer.num_bytes(), self.stream.cu_stream()) }
            .result()
            .map_err(failed("clearing a buffer"))
    }

    fn launch(&mut self, index: usize, node: &Node, count: usize) -> Result<(), CudaError> {
        assert_eq!(
            node.write,
            Write::All,
            "the graph of this engine carries no faults"
        );
        let tokens = count as i32;
        let first = self.position as i32;
        let keys = first + tokens;
        let elements = (row_len(node) * count) as i32;
        // Taken out for the launch: a kernel reads other buffers, never its own.
        let slot = self.buffer_of[index];
        let spare = self
            .stream
            .null::<f32>()
            .map_err(failed("an empty buffer"))?;
        let mut y = std::mem::replace(&mut self.buffers[slot], spare);
        let input = |i: usize| &self.buffers[self.buffer_of[node.inputs[i]]];
        let weight = || &self.weights[node.weight.as_deref().unwrap_or("")];
        let function = |name: &str| &self.functions[name];
        let stream = self.stream.clone();
        let flat = LaunchConfig {
            grid_dim: ((elements as u32).div_ceil(THREADS), 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        let shaped = |grid: (u32, u32, u32), threads: u32| LaunchConfig {
            grid_dim: grid,
            block_dim: (threads, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY (all launches): arguments have the types and order of the
        // kernel's parameters, and the buffers the extents of the graph.
        let launched = match &node.op {
            Op::Embed { .. } => {
                let w = weight();
                let f = function(&format!("embed_{}", w.format));
                let mut args = stream.launch_builder(f);
                args.arg(&self.tokens)
                    .arg(&w.bytes)
                    .arg(&w.row_bytes)
                    .arg(&mut y)
                    .arg(&w.n);
                // SAFETY: as above.
                unsafe { args.launch(shaped((count as u32, 1, 1), THREADS)) }
            }
            Op::RmsNorm(norm) => {
                let w = weight();
                let (n, eps) = ((row_len(node) / norm.groups) as i32, norm.eps as f32);
                let mut args = stream.launch_builder(function("rms_norm"));
                args.arg(input(0))
                    .arg(&w.bytes)
                    .arg(&mut y)
                    .arg(&n)
                    .arg(&eps);
                // SAFETY: as above; norm weights are f32 in every GGUF this engine accepts.
                unsafe { args.launch(shaped(((count * norm.groups) as u32, 1, 1), THREADS)) }
            }
            Op::Linear(_) => {
                let w = weight();
                let grid = (
                    (w.m as u32).div_ceil(WARPS),
                    (count as u32).div_ceil(LINEAR_TOKENS),
                    1,
                );
                let f = function(&format!("linear_{}", w.format));
                let mut args = stream.launch_builder(f);
                args.arg(input(0))
                    .arg(&w.bytes)
                    .arg(&w.row_bytes)
                    .arg(&mut y)
                    .arg(&w.n)
                    .arg(&w.m)
                    .arg(&tokens);
                // SAFETY: as above.
                unsafe { args.launch(shaped(grid, 32 * WARPS)) }
            }
            Op::Bias => {
                let w = weight();
                let mut args = stream.launch_builder(function("bias"));
                args.arg(input(0))
                    .arg(&w.bytes)
                    .arg(&mut y)
                    .arg(&w.n)
                    .arg(&elements);
                // SAFETY: as above.
                unsafe { args.launch(flat) }
            }
            Op::Rope(rope) => {
                let (heads, d) = ((row_len(node) / rope.head_dim) as i32, rope.head_dim as i32);
                let adjacent = i32::from(rope.pairing == Pairing::Norm);
                let table = &self.frequencies[&index];
                let mut args = stream.launch_builder(function("rope"));
                args.arg(input(0)).arg(table).arg(&mut y);
                args.arg(&heads)
                    .arg(&d)
                    .arg(&adjacent)
                    .arg(&first)
                    .arg(&tokens);
                // SAFETY: as above.
                unsafe { args.launch(flat) }
            }
            Op::KvCache(_) => {
                let width = row_len(node) as i32;
                let mut args = stream.launch_builder(function("kv_cache"));
                args.arg(input(0))
                    .arg(&mut y)
                    .arg(&width)
                    .arg(&first)
                    .arg(&tokens);
                // SAFETY: as above.
                unsafe { args.launch(flat) }
            }
            Op::AttnScores(a) => {
                let (h, g, d) = heads(a);
                let grid = ((keys as u32).div_ceil(WARPS), count as u32, h as u32);
                let mut args = stream.launch_builder(function("attn_scores"));
                args.arg(input(0))
                    .arg(input(1))
                    .arg(&mut y)
                    .arg(&h)
                    .arg(&g)
                    .arg(&d);
                args.arg(&first).arg(&tokens).arg(&keys);
                // SAFETY: as above.
                unsafe { args.launch(shaped(grid, 32 * WARPS)) }
            }
            Op::AttnWeights(softmax) => {
                let h = Graph::extent(node, count, keys as usize)[0] as u32;
                let scale = softmax.scale as f32;
                let mut args = stream.launch_builder(function("attn_weights"));
                args.arg(input(0))
                    .arg(&mut y)
                    .arg(&scale)
                    .arg(&first)
                    .arg(&tokens)
                    .arg(&keys);
                // SAFETY: as above.
                unsafe { args.launch(shaped((count as u32, h, 1), THREADS)) }
            }
            Op::AttnContext(a) => {
                let (h, g, d) = heads(a);
                let mut args = stream.launch_builder(function("attn_context"));
                args.arg(input(0))
                    .arg(input(1))
                    .arg(&mut y)
                    .arg(&h)
                    .arg(&g)
                    .arg(&d);
                args.arg(&first).arg(&tokens).arg(&keys);
                // SAFETY: as above.
                unsafe { args.launch(shaped((count as u32, h as u32, 1), 64)) }
            }
            Op::Residual | Op::SwiGlu(_) => {
                let mut args = stream.launch_builder(function(node.op.name()));
                args.arg(input(0)).arg(input(1)).arg(&mut y).arg(&elements);
                // SAFETY: as above.
                unsafe { args.launch(flat) }
            }
            Op::Copy => unreachable!("no clean graph leaves an op out"),
        };
        launched.map_err(failed("launching a kernel"))?;
        self.buffers[slot] = y;
        Ok(())
    }
}

fn heads(a: &Attention) -> (i32, i32, i32) {
    (a.n_heads as i32, a.n_kv_heads as i32, a.head_dim as i32)
}

/// Kernels of a file: one per weight format where the op reads blocks.
fn entry_points(name: &str) -> Vec<String> {
    match name {
        "embed" | "linear" => crate::quant::GgmlType::ALL_SUPPORTED
            .iter()
            .map(|ty| format!("{name}_{ty}"))
            .collect(),
        name => vec![name.to_owned()],
    }
}

/// `base^(−2i/d)` per plane, rounded once from f64.
fn frequency_table(rope: &Rope) -> Vec<f32> {
    (0..rope.head_dim / 2)
        .map(|i| rope.base.powf(-2.0 * i as f64 / rope.head_dim as f64) as f32)
        .collect()
}
