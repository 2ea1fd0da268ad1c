//! From a node of the graph to the launches that compute it.

use super::CudaError;
use super::blas::Product;
use super::launch::{Args, Call};
use super::memory::{Buffer, Memory, PARTS, Weight};
use super::options::{Gemm, Options, Path};
use crate::model::{Graph, Node, row_len};
use crate::ops::{Attention, KvCache, Op, Pairing, RmsNorm, Rope, Softmax};

/// Threads of an elementwise block.
const THREADS: u32 = 256;
/// Warps of a block where a warp makes one output.
const WARPS: usize = 8;
/// Tokens that `linear.cu` takes at a time.
const LINEAR_TOKENS: usize = 8;
/// Edge of a tile of `gemm.cu`.
const GEMM_TILE: usize = 64;
/// Shared memory of a block of `gemm.cu`: two stages of two operands in two
/// parts, rows of 36 words.
pub const GEMM_SHARED: u32 = 2 * 2 * 2 * 4 * 36 * GEMM_TILE as u32;
/// Blocks of `gemm.cu` that fill a large card.
const GEMM_BLOCKS: usize = 396;
/// Steps of 32 elements that make a share worth its while.
const GEMM_STEPS: usize = 7;

/// The tokens of a step: how many, and the position of the first.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Tokens.
    pub tokens: usize,
    /// Position of the first.
    pub first: usize,
}

impl Span {
    /// Tokens so far, these included.
    pub fn keys(self) -> usize {
        self.first + self.tokens
    }
}

/// Something queued on the stream.
#[derive(Clone, Debug)]
pub enum Work {
    /// A kernel.
    Kernel(Call),
    /// Two kernels, one after the other.
    Two(Call, Call),
    /// A kernel that dequantises a weight, then a product by cuBLAS.
    Product(Call, Product),
}

/// Makes the launches of single nodes.
#[derive(Clone, Copy)]
pub struct Calls<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// Where everything is.
    pub memory: &'a Memory,
    /// Which kernels.
    pub options: &'a Options,
}

/// What of a graph the kernels cannot do, if anything.
///
/// # Errors
/// The first stage that none of them computes.
pub fn refuse(graph: &Graph) -> Result<(), CudaError> {
    for node in &graph.nodes {
        if let Op::Rope(rope) = &node.op
            && rope.rotated != rope.head_dim
        {
            return Err(CudaError::Unsupported(format!(
                "{} rotates {} of {} elements of a head, and the CUDA kernels rotate all; use --subject cpu",
                node.id, rope.rotated, rope.head_dim
            )));
        }
    }
    Ok(())
}

impl Calls<'_> {
    fn input(&self, node: &Node, i: usize) -> u64 {
        self.memory.outputs[node.inputs[i]].at
    }

    fn weight(&self, node: &Node) -> &Weight {
        &self.memory.weights[&node.weights[0].name]
    }

    /// The work of node `index` over `span`, its result in the node's buffer.
    /// Of the fast path the fused attention stands for three nodes and is made
    /// by [`Self::attention`].
    pub fn of(&self, index: usize, span: Span) -> Work {
        let node = &self.graph.nodes[index];
        let Buffer { at: y, .. } = self.memory.outputs[index];
        let Span { tokens, first } = span;
        let elements = row_len(node) * tokens;
        let (count, start, keys) = (tokens as i32, first as i32, span.keys() as i32);
        let kv = self.options.kv.kernel();
        let args = Args::default;
        Work::Kernel(match &node.op {
            Op::Embed => {
                let w = self.weight(node);
                let args = args().with(self.memory.tokens).with(w.planes).with(y);
                let grid = (tokens as u32, 1, 1);
                Call::new(format!("embed_{}", w.ty), grid, 128, args.with(w.n as i32))
            }
            Op::RmsNorm(RmsNorm { eps, groups }) => {
                let n = (row_len(node) / groups) as i32;
                let args = args().with(self.input(node, 0)).with(self.weight(node).planes[0]);
                let args = args.with(y).with(n).with(*eps as f32);
                let grid = ((tokens * groups) as u32, 1, 1);
                Call::new("rms_norm", grid, THREADS, args)
            }
            Op::Linear => return self.linear(node, self.input(node, 0), y, tokens),
            Op::Bias => {
                let w = self.weight(node);
                let args = args().with(self.input(node, 0)).with(w.planes[0]).with(y);
                Call::flat("bias", elements, args.with(w.n as i32).with(elements as i32))
            }
            // The base is in the table of frequencies; see `refuse` for the rest.
            Op::Rope(Rope { base: _, head_dim, rotated: _, pairing }) => {
                let heads = (row_len(node) / head_dim) as i32;
                let adjacent = i32::from(*pairing == Pairing::Norm);
                let args = args().with(self.input(node, 0)).with(self.memory.frequencies[&index]);
                let args = args.with(y).with(heads).with(*head_dim as i32).with(adjacent);
                Call::flat("rope", elements / 2, args.with(start).with(count))
            }
            Op::KvCache(KvCache { n_kv_heads, head_dim }) => {
                let width = (n_kv_heads * head_dim) as i32;
                let args = args().with(self.input(node, 0)).with(y);
                let args = args.with(width).with(start).with(count);
                Call::flat(format!("kv_cache_{kv}"), elements, args)
            }
            Op::AttnScores(a) => {
                let grid = (span.keys().div_ceil(WARPS) as u32, tokens as u32, a.n_heads as u32);
                let args = self.attention_args(node, y, a);
                let args = args.with(start).with(count).with(keys);
                Call::new(format!("attn_scores_{kv}"), grid, 32 * WARPS as u32, args)
            }
            Op::AttnWeights(Softmax { scale }) => {
                let heads = Graph::extent(node, tokens, span.keys())[0] as u32;
                let args = args().with(self.input(node, 0)).with(y).with(*scale as f32);
                let args = args.with(start).with(count).with(keys);
                Call::new("attn_weights", (tokens as u32, heads, 1), THREADS, args)
            }
            Op::AttnContext(a) => {
                let grid = (tokens as u32, a.n_heads as u32, 1);
                let args = self.attention_args(node, y, a);
                let args = args.with(start).with(count).with(keys);
                Call::new(format!("attn_context_{kv}"), grid, 64, args)
            }
            Op::Residual | Op::SwiGlu => {
                let args = args().with(self.input(node, 0)).with(self.input(node, 1));
                Call::flat(node.op.name(), elements, args.with(y).with(elements as i32))
            }
        })
    }

    /// `y [T, m]` of the linear layer `node` on `x [T, n]`.
    pub fn linear(&self, node: &Node, x: u64, y: u64, tokens: usize) -> Work {
        let w = self.weight(node);
        let tail = |args: Args| args.with(w.n as i32).with(w.m as i32).with(tokens as i32);
        if self.options.gemm == Gemm::Cublas {
            let groups = w.n * w.m / 32;
            let args = Args::default().with(w.planes).with(self.memory.dequantised);
            let name = format!("dequantise_{}", w.ty);
            return Work::Product(
                Call::flat(name, groups, args.with(groups as i32)),
                Product::linear(self.memory.dequantised, x, y, w.n, w.m, tokens),
            );
        }
        if self.options.path == Path::Fast {
            return self.gemm(w, x, y, tokens);
        }
        let args = tail(Args::default().with(x).with(w.planes).with(y));
        let grid = (w.m.div_ceil(WARPS) as u32, tokens.div_ceil(LINEAR_TOKENS) as u32, 1);
        Work::Kernel(Call::new(format!("linear_{}", w.ty), grid, 32 * WARPS as u32, args))
    }

    /// The product on the tensor cores. Where its tiles are too few for the
    /// card, each sum is made in shares, which a second kernel adds up.
    fn gemm(&self, w: &Weight, x: u64, y: u64, tokens: usize) -> Work {
        let tiles = w.m.div_ceil(GEMM_TILE) * tokens.div_ceil(GEMM_TILE);
        let steps = w.n / 32;
        let shares = (GEMM_BLOCKS / tiles).min(steps / GEMM_STEPS).min(PARTS / (w.m * tokens));
        let shares = shares.max(1);
        let to = if shares > 1 { self.memory.parts } else { y };
        let args = Args::default().with(x).with(w.planes).with(to);
        let args = args.with(w.n as i32).with(w.m as i32).with(tokens as i32);
        let grid = (w.m.div_ceil(GEMM_TILE) as u32, tokens.div_ceil(GEMM_TILE) as u32, shares as u32);
        let call = Call::new(format!("gemm_{}", w.ty), grid, 128, args).shared(GEMM_SHARED);
        if shares == 1 {
            return Work::Kernel(call);
        }
        let count = w.m * tokens;
        let args = Args::default().with(self.memory.parts).with(y);
        let args = args.with(shares as i32).with(count as i32);
        Work::Two(call, Call::flat("sum_parts", count, args))
    }

    fn attention_args(&self, node: &Node, y: u64, a: &Attention) -> Args {
        let Attention { n_heads, n_kv_heads, head_dim } = *a;
        let args = Args::default().with(self.input(node, 0)).with(self.input(node, 1));
        let args = args.with(y).with(n_heads as i32).with(n_kv_heads as i32);
        args.with(head_dim as i32)
    }
}
