//! What an engine keeps on the device, and where.

use super::CudaError;
use super::arena::{Part, Plan};
use super::device::Doing as _;
use super::kernels::constant;
use super::known::{Known, is_cache, is_own_state, known};
use super::launch::Call;
use super::layouts::{Operand, Ptr, Wide};
use super::operand::{Part as Split, SHARED, cache_tile, sums_bytes};
use super::options::{Gemm, Options, Path};
use super::slots::{Slots, taken};
use super::weights::{self, Weight};
use crate::model::{Axis, Graph, Node, Role, StageId, WeightSource, row_len};
use crate::ops::anatomy::Collective;
use crate::ops::{Ngrams, Op, Rope};
use crate::quant::GgmlType;
use cudarc::driver::result;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// The places of everything of an engine on the device.
pub struct Memory {
    /// Length in bytes of it all.
    pub bytes: usize,
    /// Tensors by name.
    pub weights: HashMap<String, Weight>,
    /// Per node, the buffer it writes: one per stage name, which the layers share; caches have one each.
    pub outputs: Vec<Part>,
    /// Where decode steps write their taps (`slots.rs`).
    pub slot_memory: Ptr,
    /// Per node, where the next of them does: 0 for a cache, which stands where it is, and where it is no tap.
    pub slots: Vec<Ptr>,
    /// Where the caches are that `cache_rows.cu` reads, and their rows' checksums.
    pub cache_table: Ptr,
    pub row_sums: Ptr,
    /// Per rotating node, `base^(−2i/d)` of each plane.
    pub frequencies: HashMap<usize, Ptr>,
    /// Per state that is not kept row by row, what it was before the step.
    pub before: HashMap<usize, Ptr>,
    /// Token ids of a step.
    pub tokens: Ptr,
    /// Rows of the table of n-grams for each of them.
    pub ngrams: Ptr,
    /// What kernels are given of the rows of a step of several sequences (`Batch::at`).
    pub rows: Ptr,
    /// The number of the adapter that each row of a step has.
    pub adapters: Ptr,
    /// A weight dequantised for cuBLAS.
    pub dequantised: Ptr,
    /// Shares of the sums of a product on the tensor cores.
    pub parts: Ptr,
    /// The rows of a product of many tokens, prepared.
    pub operand: Operand,
    /// A layer's caches in tiles.
    pub cache_tiles: Ptr,
    /// A cache as f32, for taps.
    pub cache_f32: Ptr,
    /// Parts of the logits, of all ranks.
    pub gathered: Ptr,
    /// The ring of taps.
    pub ring: Ptr,
    /// For the fused kernels, as all that follows, which starts as zero: position of the step's token.
    pub position: Ptr,
    /// Shares of the attention, of a token or of several rows: sums of values, and measures of weights.
    pub partial: [Ptr; 2],
    /// Halves of a layer's last product.
    pub halves: [Ptr; 2],
    /// Counter of the blocks that have told their largest logit.
    pub argmax_arrived: Ptr,
    /// Largest logit so far.
    pub best: Ptr,
}

/// Bytes of the ring of taps.
pub const RING_BYTES: usize = 64 << 20;

/// Shares of the keys that the fused attention makes at most.
pub const SPLITS: u32 = constant!("fused/shares.cuh", "SPLITS");

/// Shares of rows for which there is room at least: as many as fill a large card.
const SHARES: usize = 4 * SPLITS as usize;

impl Memory {
    /// Where everything would stand from address `start` on: needs no device. `source` tells the tensors' extents and
    /// formats, `wide` whether the layers' matrices are kept as halves besides.
    ///
    /// # Errors
    /// A tensor the kernels cannot read.
    pub fn at(
        start: u64, graph: &Graph, source: &dyn WeightSource, options: &Options, wide: bool,
    ) -> Result<Self, CudaError> {
        let config = &graph.config;
        let mut plan = Plan::from(start);
        let mut weights = HashMap::new();
        let read_in_blocks = read_in_blocks(graph);
        for weight in graph.weights() {
            let in_blocks = read_in_blocks.contains(weight.name.as_str());
            let planned = plan_weight(source, &weight.name, in_blocks, &mut plan)?;
            weights.insert(weight.name.clone(), planned);
        }
        for name in layer_matrices(graph).filter(|_| wide) {
            if let Some(weight) = weights.get_mut(name) {
                weight.wide = Wide::plan(weight.ty, weight.n, weight.m, &mut plan);
            }
        }
        let outputs = plan_outputs(graph, options, &mut plan);
        let mut before = HashMap::new();
        // The states of each sequence, and those within a step of one of them.
        let more = if options.path == Path::Tapped { 1 } else { 0 };
        for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| is_own_state(node)) {
            before.insert(index, plan.take(outputs[index].bytes + more * 4 * row_len(node)).at);
        }
        let mut frequencies = HashMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            if let Some(rope) = rotation(node) {
                frequencies.insert(index, plan.take(2 * rope.head_dim).at);
            }
        }
        let layers = graph.nodes.iter().filter(|node| node.op == Op::Linear);
        let largest = layers.map(|node| &weights[&node.weights[0].name]).map(|w| 4 * w.n * w.m).max().unwrap_or(0);
        let dequantised = match options.gemm {
            Gemm::Cublas => largest,
            // Some faults read a weight as plain f32.
            Gemm::Own if cfg!(any(test, feature = "faults")) => largest,
            Gemm::Own => 0,
        };
        let parts = match options.path {
            Path::Fast => 4 * SHARED,
            Path::Tapped => 0,
        };
        // What longer steps of the fast path take.
        let longer = |bytes: usize| if options.path == Path::Fast { bytes } else { 0 };
        let row = weights.values().map(|w| w.n).max().unwrap_or(0);
        let part = Split::of(&weights.values().filter(|w| w.m > 1).map(|w| w.ty).collect::<Vec<_>>());
        let (tile_keys, tile_bytes) = cache_tile(config.head_dim);
        let tiles = config.n_kv_heads * options.context.div_ceil(tile_keys);
        let (slot_bytes, caches) = match options.path {
            Path::Fast if options.taps => {
                let (count, bytes) = taken(graph, options.context);
                (count * bytes, graph.nodes.iter().filter(|n| is_cache(n)).count())
            }
            // A decode step of a rank is a graph, too (`rank_graph.rs`).
            Path::Tapped if options.taps && graph.placement.is_some() => (taken(graph, options.context).1, 0),
            _ => (0, 0),
        };
        let joins = |node: &Node| node.op == Op::Collective(Collective::Concatenation);
        let widest = graph.nodes.iter().filter(|node| is_cache(node)).map(row_len).max().unwrap_or(0);
        let gathered = if graph.nodes.iter().any(joins) { options.step * config.n_vocab } else { 0 };
        let mut take = |bytes| plan.take(bytes).at;
        let slot_memory = take(slot_bytes);
        let (rows, tables) = match options.more_sequences {
            0 => (0, 0),
            more => (options.step, options.context * (more + 1)),
        };
        Ok(Self {
            operand: Operand {
                parts: take(longer(part.bytes(options.step, row))),
                inverse: take(longer(4 * options.step)),
                sums: take(longer(sums_bytes(options.step, row))),
            },
            cache_tiles: take(longer(tiles * tile_bytes)),
            weights,
            outputs,
            slots: Slots::new(graph, &vec![options.taps; graph.nodes.len()], options.context, options.context)
                .addresses(slot_memory),
            slot_memory,
            cache_table: take(24 * caches),
            row_sums: take(8 * caches * options.context),
            frequencies,
            before,
            tokens: take(4 * options.step.max(1)),
            ngrams: take(4 * options.step.max(1) * ngrams_of(graph).map_or(0, |ngrams| ngrams.heads.len())),
            rows: take(4 * (4 * rows + tables)),
            adapters: take(if options.adapters > 0 { 4 * options.step.max(1) } else { 0 }),
            dequantised: take(dequantised),
            parts: take(parts),
            cache_f32: take(4 * options.context * widest),
            gathered: take(4 * gathered),
            ring: take(RING_BYTES),
            position: take(8),
            halves: [0, 1].map(|_| take(4 * config.n_embd)),
            partial: [config.head_dim, 2].map(|each| take(4 * shares(options) * config.n_heads * each)),
            argmax_arrived: take(4),
            best: take(8),
            bytes: plan.bytes(),
        })
    }

    /// Brings the weights, and the tables that stages need.
    pub fn fill(&self, graph: &Graph, source: &dyn WeightSource) -> Result<(), CudaError> {
        for (name, weight) in &self.weights {
            bring(source, name, weight)?;
        }
        for (index, node) in graph.nodes.iter().enumerate() {
            if let Some(rope) = rotation(node) {
                // SAFETY: the part was planned with the table's length.
                unsafe { result::memcpy_htod_sync(self.frequencies[&index], &frequency_table(rope)) }
                    .doing("copying frequencies to the device")?;
            }
        }
        Ok(())
    }

    /// Puts the planes of another tensor in the place of those of `name`; with `scales` only those of its scales.
    #[cfg(any(test, feature = "faults"))]
    pub fn replace(&self, name: &str, other: &str, scales: bool, source: &dyn WeightSource) -> Result<(), CudaError> {
        let weight = &self.weights[name];
        let planes = weight.parts.iter().zip(weights::split(weight.ty, source.stored(other).bytes));
        for (part, bytes) in planes.skip(if scales { weights::planes_of_quants(weight.ty) } else { 0 }) {
            // SAFETY: the part was planned with the plane's length, which slices of one extent share.
            unsafe { result::memcpy_htod_sync(part.at, &bytes[..part.bytes]) }.doing("planting a bug")?;
        }
        Ok(())
    }

    /// What makes the halves of matrices that are kept so, from their blocks.
    pub fn widening(&self) -> Vec<Call> {
        self.weights.values().filter_map(|weight| Some(weight.wide?.make(weight))).collect()
    }

    /// The tensor of a node, of which every op here takes one at most.
    ///
    /// # Panics
    /// If its op takes none.
    pub fn weight(&self, node: &Node) -> &Weight {
        &self.weights[&node.weights[0].name]
    }

    /// See [`super::CudaEngine::read_weight`].
    pub fn read_weight(&self, name: &str) -> Result<(GgmlType, Vec<u8>), CudaError> {
        let weight = &self.weights[name];
        let mut planes = Vec::new();
        for part in &weight.parts {
            let mut bytes = vec![0u8; part.bytes];
            // SAFETY: the part's own address and length.
            unsafe { result::memcpy_dtoh_sync(&mut bytes, part.at) }.doing("reading weights back")?;
            planes.push(bytes);
        }
        Ok((weight.ty, weights::join(weight.ty, &planes)))
    }
}

/// The tensors that kernels read in groups of 32 weights: those of products and the embedding. Others are plain numbers.
fn read_in_blocks(graph: &Graph) -> HashSet<&str> {
    let in_blocks = |node: &&Node| {
        let anatomy = node.op.anatomy();
        anatomy.multiplies_weights() || anatomy.looks_up()
    };
    graph.nodes.iter().filter(in_blocks).flat_map(|node| &node.weights).map(|weight| weight.name.as_str()).collect()
}

fn plan_weight(source: &dyn WeightSource, name: &str, in_blocks: bool, plan: &mut Plan) -> Result<Weight, CudaError> {
    let (n, m) = source.extent(name);
    let ty = match (in_blocks, m) {
        (false, _) | (true, 1) => GgmlType::F32,
        (true, _) => weights::kept_as(source.ggml_type(name)),
    };
    if in_blocks && n % 32 != 0 {
        return Err(CudaError::Unsupported(format!(
            "tensor `{name}` has rows of {n} weights, and the CUDA kernels take multiples of 32; use --subject cpu"
        )));
    }
    let parts = weights::plan(ty, n * m / ty.block_size(), plan);
    let planes = std::array::from_fn(|i| parts.get(i).map_or(0, |part: &Part| part.at));
    Ok(Weight { planes, parts, ty, n, m, wide: None })
}

/// The names of the matrices of linear layers that a prefill multiplies with rows of all tokens: not that of the logits.
fn layer_matrices(graph: &Graph) -> impl Iterator<Item = &str> {
    let linear = graph.nodes.iter().filter(|node| node.op == Op::Linear && node.role != Role::Logits);
    linear.map(|node| node.weights[0].name.as_str())
}

/// Weights that are made plain at a time, before they are copied.
const AT_ONCE: usize = 1 << 22;

/// Copies a tensor to the device: its planes, or the plain numbers of a vector or of a format that no kernel reads.
fn bring(source: &dyn WeightSource, name: &str, weight: &Weight) -> Result<(), CudaError> {
    let copy = |at: Ptr, bytes: &[u8]| {
        // SAFETY: the parts were planned with the lengths of all that is copied to them.
        unsafe { result::memcpy_htod_sync(at, bytes) }.doing("copying weights to the device")
    };
    let (n, m) = (weight.n, weight.m);
    if source.ggml_type(name) == weight.ty {
        let planes = weights::split(weight.ty, source.stored(name).bytes);
        return weight.parts.iter().zip(planes).try_for_each(|(part, bytes)| copy(part.at, &bytes));
    }
    let rows = (AT_ONCE / n).clamp(1, m);
    let mut plain = vec![0f32; n * rows];
    (0..m).step_by(rows).try_for_each(|first| {
        let some = &mut plain[..n * rows.min(m - first)];
        // One row a task: the CPU's reader is the same for all.
        some.par_chunks_mut(n).enumerate().for_each(|(r, row)| source.rows(name, first + r, row));
        let at = weight.parts[0].at + weight.ty.row_bytes(n * first) as u64;
        copy(at, &weights::plain(weight.ty, some))
    })
}

fn plan_outputs(graph: &Graph, options: &Options, plan: &mut Plan) -> Vec<Part> {
    let mut by_name: HashMap<StageId, Part> = HashMap::new();
    let walked = graph.nodes.iter().any(is_own_state);
    let part_of = |node: &Node| {
        let key = if node.op.has_state() { node.id } else { StageId::global(node.id.name) };
        *by_name.entry(key).or_insert_with(|| plan.take(output_bytes(node, options, walked)))
    };
    graph.nodes.iter().map(part_of).collect()
}

/// `walked`: whether longer steps go a node at a time.
fn output_bytes(node: &Node, options: &Options, walked: bool) -> usize {
    let of_pairs = node.shape.contains(&Axis::Tokens) && node.shape.contains(&Axis::Keys);
    if of_pairs && options.path == Path::Fast && !options.taps && !walked {
        return 0;
    }
    let tokens = if options.last_logits && node.role == Role::Logits { 1 } else { options.step };
    let elements: usize = Graph::extent(node, tokens, options.context).iter().product();
    if is_cache(node) {
        return options.context * options.row_bytes(node);
    }
    let sequences = if is_own_state(node) { options.more_sequences + 1 } else { 1 };
    4 * elements * sequences
}

/// The rotation that a node does, as its only work or on the way.
fn rotation(node: &Node) -> Option<&Rope> {
    match &node.op {
        Op::Rope(rope) => Some(rope),
        Op::Defined(op) => match known(op) {
            Some(Known::BlockScores(scores)) => Some(&scores.rope),
            _ => None,
        },
        _ => None,
    }
}

/// The embedding of n-grams, if there is one.
pub fn ngrams_of(graph: &Graph) -> Option<&Ngrams> {
    graph.nodes.iter().find_map(|node| match &node.op {
        Op::Defined(op) => match known(op) {
            Some(Known::Ngrams(ngrams)) => Some(ngrams),
            _ => None,
        },
        _ => None,
    })
}

/// The angle of each plane at position 1, rounded once from f64.
fn frequency_table(rope: &Rope) -> Vec<f32> {
    rope.frequencies::<f64>().into_iter().map(|angle| angle as f32).collect()
}

/// Shares of a query head for which there is room: of a decode step, or of the rows of a pass.
pub fn shares(options: &Options) -> usize {
    match options.more_sequences {
        0 => SPLITS as usize,
        _ if options.path == Path::Tapped => SPLITS as usize,
        _ => options.step.max(SHARES),
    }
}
