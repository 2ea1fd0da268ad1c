//! From a node of the graph to the launches that compute it.

use super::CudaError;
use super::blas::Product;
use super::functions::Functions;
use super::kernels::*;
use super::known::{is_cache, is_own_state, known};
use super::launch::Call;
use super::layouts::{Batch, Ptr};
use super::memory::Memory;
use super::nccl::Exchange;
use super::options::{Gemm, Options, Path};
use super::several::Several;
pub use super::span::Span;
use super::weights::Weight;
use crate::dtype::DType;
use crate::model::{Graph, Node, row_len};
use crate::ops::anatomy::Collective;
use crate::ops::{KvCache, Op, Pairing, RmsNorm, Rope, Softmax};
use crate::quant::ActivationFormat;

/// Threads of a block that makes a row together.
const ROW_THREADS: u32 = 256;
/// Threads of a block that brings a token's embedding, group by group.
const EMBED_THREADS: u32 = 128;
/// Threads of a block that makes a head's context.
const CONTEXT_THREADS: u32 = 64;
/// Warps of a block where a warp makes one output.
const WARPS: usize = 8;
/// Tokens that `linear.cu` takes at a time.
const LINEAR_TOKENS: usize = constant!("linear.cu", "TOKENS") as usize;

/// Tokens of a step at most: so many blocks CUDA takes along the second axis of a grid.
const MOST_TOKENS: usize = 65_535 * LINEAR_TOKENS;

/// Something queued on the stream.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a few hundred bytes in a few hundred launches, and products are rare")]
pub enum Job {
    /// A kernel.
    Kernel(Call),
    /// A product by cuBLAS.
    Product(Product),
    /// What ranks give each other.
    Exchange(Exchange),
}

/// What is queued together, and the nodes whose outputs it makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// One after another.
    pub jobs: Vec<Job>,
    /// Nodes by index.
    pub nodes: Vec<usize>,
    /// The tokens of their outputs: the step's, but for faults.
    pub span: Span,
    /// Whether a fault wants the outputs as the step before left them.
    pub keeps: bool,
}

#[cfg(any(test, feature = "faults"))]
impl Launch {
    /// Its first kernel.
    ///
    /// # Panics
    /// If it begins with a product by cuBLAS: none does.
    pub fn first_call(&mut self) -> &mut Call {
        match self.jobs.first_mut() {
            Some(Job::Kernel(call)) => call,
            other => unreachable!("{other:?} before any kernel"),
        }
    }
}

/// The kernels among what is launched.
pub fn calls_of(launches: Vec<Launch>) -> impl Iterator<Item = Call> {
    launches.into_iter().flat_map(|launch| launch.jobs).filter_map(|job| match job {
        Job::Kernel(call) => Some(call),
        Job::Product(_) | Job::Exchange(_) => None,
    })
}

/// Refuses a graph with an op that the kernels cannot do as it stands, and steps too long for them: they count elements
/// in 32 bits, and tokens in a grid.
///
/// # Errors
/// What stands against it, and what to use instead.
pub fn check(graph: &Graph, options: &Options) -> Result<(), CudaError> {
    if options.path == Path::Fast && !matches!(options.kv.number(), Some(DType::F32 | DType::F16)) {
        return Err(CudaError::Unsupported(format!(
            "the fused kernels have no KV cache in {}; take --kv-type f16, or --subject cuda",
            options.kv
        )));
    }
    let block = options.kv.block_size();
    if let Some(node) = graph.nodes.iter().find(|node| is_cache(node) && !row_len(node).is_multiple_of(block)) {
        return Err(CudaError::Unsupported(format!(
            "{} has rows of {} elements, and a KV cache in {} has blocks of {block}; take --kv-type f16",
            node.id,
            row_len(node),
            options.kv
        )));
    }
    let mut most = MOST_TOKENS;
    // What the fused kernels know of a decoder with delta nets, `decoder_of` says.
    let recurrent = graph.nodes.iter().any(is_own_state);
    for node in &graph.nodes {
        match &node.op {
            Op::Rope(rope) if rope.rotated != rope.head_dim && options.path == Path::Fast && !recurrent => {
                return Err(CudaError::Unsupported(format!(
                    "{} rotates {} of {} elements of a head, and the fused kernels rotate all; use --subject cuda",
                    node.id, rope.rotated, rope.head_dim
                )));
            }
            Op::Rope(Rope { scaling: Some(_), .. }) if options.path == Path::Fast => {
                return Err(CudaError::Unsupported(format!(
                    "{} scales its angles for a longer context, and the fused kernels do not; use --subject cuda",
                    node.id
                )));
            }
            Op::Embed | Op::RmsNorm(_) | Op::Bias | Op::Rope(_) | Op::AttnContext(_) | Op::Residual | Op::SwiGlu => {
                most = most.min(i32::MAX as usize / row_len(node).max(1));
            }
            // Logits are counted in 64 bits, and so is what belongs to pairs of tokens; a cache is as wide as what
            // goes into it.
            Op::Linear | Op::KvCache(_) | Op::AttnScores(_) | Op::AttnWeights(_) => {}
            Op::Collective(_) if options.path == Path::Fast => {
                return Err(CudaError::Unsupported(format!(
                    "{} is a value of several ranks, for which there is no fused kernel; use --subject cuda",
                    node.id
                )));
            }
            Op::Collective(_) => {}
            Op::Defined(op)
                if known(op).is_some_and(|op| !op.is_fused()) && options.path == Path::Fast && !recurrent =>
            {
                return Err(CudaError::Unsupported(format!(
                    "{} is a stage of the op `{}`, for which there is no fused kernel; use --subject cuda",
                    node.id,
                    op.name()
                )));
            }
            Op::Defined(op) if known(op).is_some() => most = most.min(i32::MAX as usize / row_len(node).max(1)),
            Op::Defined(op) => {
                return Err(CudaError::Unsupported(format!(
                    "{} is a stage of the op `{}`, for which there is no CUDA kernel; use --subject cpu",
                    node.id,
                    op.name()
                )));
            }
        }
    }
    if options.step > most {
        return Err(CudaError::Unsupported(format!(
            "a step of {} tokens, and the CUDA kernels take {most} at once for this model; lower --ubatch",
            options.step
        )));
    }
    Ok(())
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
    /// The card.
    pub functions: &'a Functions,
    /// The rows of a step of several sequences.
    pub batch: Batch,
    /// How the fused attention takes them.
    pub several: &'a Several,
    /// Which of them a node of a recurrent layer is computed of.
    pub part: Part,
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The first row.
    pub row: usize,
    /// The place of the sequence's states among those of the step.
    pub sequence: usize,
    /// The place of its states before these rows.
    pub before: usize,
}

impl Calls<'_> {
    /// Whether the step has rows of several sequences, or of one whose slots are not its positions.
    pub fn is_of_several(&self) -> bool {
        self.batch != Batch::default()
    }

    /// Where input `i` of a node stands; of a state that it looks back to, what that was before the step.
    pub fn input(&self, node: &Node, i: usize) -> Ptr {
        if node.looks_back(i) {
            return self.before(node.inputs[i]);
        }
        self.output(node.inputs[i])
    }

    /// Where the output of node `index` stands.
    pub fn output(&self, index: usize) -> Ptr {
        let node = &self.graph.nodes[index];
        let rows = if is_own_state(node) { self.part.sequence } else { self.part.row };
        self.memory.outputs[index].at + (4 * rows * row_len(node)) as u64
    }

    /// Where the state `index` is, as it was before the rows.
    pub fn before(&self, index: usize) -> Ptr {
        self.memory.before[&index] + (4 * self.part.before * row_len(&self.graph.nodes[index])) as u64
    }

    /// What computes node `index` over `span`, its result in the node's buffer.
    pub fn of(&self, index: usize, span: Span) -> Vec<Job> {
        let node = &self.graph.nodes[index];
        let y = self.output(index);
        let elements = row_len(node) * span.tokens;
        let count = elements as i32;
        let (tokens, first, keys) = (span.tokens as i32, span.first as i32, span.keys() as i32);
        let x = |i| self.input(node, i);
        let batch = self.batch;
        let kv = |values| self.options.kv_kernel(values);
        vec![Job::Kernel(match &node.op {
            Op::Embed => {
                let w = self.memory.weight(node);
                let params = EmbedParams { tokens: self.memory.tokens, w: w.planes, y, width: w.n as i32 };
                Call::new(params, (span.tokens as u32, 1, 1), EMBED_THREADS).of(&[&w.ty])
            }
            Op::RmsNorm(RmsNorm { eps, groups }) => {
                let n = (row_len(node) / groups) as i32;
                let w = self.memory.weight(node).planes[0];
                let params = RmsNormParams { x: x(0), w, y, n, eps: *eps as f32 };
                Call::new(params, ((span.tokens * groups) as u32, 1, 1), ROW_THREADS)
            }
            Op::Linear if self.chooses_adapters(node) => {
                self.expert_linear(node, self.memory.adapters, y, self.options.adapters, span.tokens)
            }
            Op::Linear => return self.linear(self.memory.weight(node), x(0), y, span.tokens),
            Op::Bias => {
                let w = self.memory.weight(node);
                Call::flat(BiasParams { x: x(0), b: w.planes[0], y, n: w.n as i32, count }, elements)
            }
            // Base and scaling are in the table of frequencies.
            Op::Rope(rope @ Rope { base: _, head_dim, rotated, pairing, scaling: _ }) => {
                let params = RopeParams {
                    x: x(0),
                    frequency: self.memory.frequencies[&index],
                    y,
                    heads: (row_len(node) / head_dim) as i32,
                    d: *head_dim as i32,
                    adjacent: i32::from(*pairing == Pairing::Norm),
                    first,
                    tokens,
                    rotated: *rotated as i32,
                    magnitude: rope.magnitude() as f32,
                    batch,
                };
                Call::flat(params, elements / head_dim * (head_dim - rotated / 2))
            }
            Op::KvCache(KvCache { n_kv_heads, head_dim }) => {
                let width = (n_kv_heads * head_dim) as i32;
                let params = KvCacheParams { rows: x(0), cache: y, width, first, tokens, batch };
                let values = node.is_of_values();
                Call::flat(params, elements / self.options.kv.of(values).block_size()).of(&[&kv(values)])
            }
            Op::AttnScores(a) => {
                let (heads, kv_heads, d) = (a.n_heads as i32, a.n_kv_heads as i32, a.head_dim as i32);
                let params =
                    AttnScoresParams { q: x(0), k: x(1), s: y, heads, kv_heads, d, first, tokens, keys, batch };
                let blocks = span.tokens * span.keys().div_ceil(WARPS);
                Call::new(params, (blocks as u32, heads as u32, 1), 32 * WARPS as u32).of(&[&kv(false)])
            }
            Op::AttnWeights(Softmax { scale }) => {
                let heads = Graph::extent(node, span.tokens, span.keys())[0] as u32;
                let params = AttnWeightsParams { s: x(0), y, scale: *scale as f32, first, tokens, keys, batch };
                Call::new(params, (span.tokens as u32, heads, 1), ROW_THREADS)
            }
            Op::AttnContext(a) => {
                let (heads, kv_heads, d) = (a.n_heads as i32, a.n_kv_heads as i32, a.head_dim as i32);
                let params =
                    AttnContextParams { w: x(0), v: x(1), c: y, heads, kv_heads, d, first, tokens, keys, batch };
                Call::new(params, (span.tokens as u32, heads as u32, 1), CONTEXT_THREADS).of(&[&kv(true)])
            }
            Op::Residual => Call::flat(ResidualParams { a: x(0), b: x(1), y, count }, elements),
            Op::Collective(of) => {
                let widths = match (of, &self.graph.placement) {
                    (Collective::Concatenation, Some(placement)) => placement.widths_of_head(),
                    _ => vec![row_len(node); self.graph.ranks()],
                };
                let (from, parts) = (x(0), self.memory.gathered);
                return vec![Job::Exchange(Exchange { of: *of, from, to: y, parts, widths, tokens: span.tokens })];
            }
            Op::Defined(op) => {
                let known =
                    known(op).unwrap_or_else(|| unreachable!("{} is refused when the model is opened", op.name()));
                self.defined(known, index, span)
            }
            Op::SwiGlu => Call::flat(SwiGluParams { gate: x(0), up: x(1), y, count }, elements),
        })]
    }

    /// `y [T, m] = x [T, n] · Wᵀ`.
    pub fn linear(&self, weight: &Weight, x: Ptr, y: Ptr, tokens: usize) -> Vec<Job> {
        let Weight { planes: w, n, m, ref ty, .. } = *weight;
        if self.options.gemm == Gemm::Cublas {
            let plain = self.memory.dequantised;
            return vec![self.dequantise(weight), Job::Product(Product { w: plain, x, y, n, m, tokens })];
        }
        let params = LinearParams { x, w, y, n: n as i32, m: m as i32, tokens: tokens as i32 };
        let grid = (m.div_ceil(WARPS) as u32, tokens.div_ceil(LINEAR_TOKENS) as u32, 1);
        vec![Job::Kernel(Call::new(params, grid, 32 * WARPS as u32).of(&[ty]))]
    }

    /// A weight as plain f32, in the memory kept for one.
    pub fn dequantise(&self, weight: &Weight) -> Job {
        let groups = weight.n * weight.m / 32;
        let params = DequantiseParams { w: weight.planes, y: self.memory.dequantised, groups: groups as i32 };
        Job::Kernel(Call::flat(params, groups).of(&[&weight.ty]))
    }

    /// Brings `elements` of the cache `index` to their place as f32, if it is not f32 itself.
    pub fn read_cache(&self, index: usize, elements: usize) -> Option<Call> {
        let values = self.graph.nodes[index].is_of_values();
        let cache = self.memory.outputs[index].at;
        let params = KvReadParams { cache, out: self.memory.cache_f32, count: elements as i32 };
        let plain = self.options.kv.of(values) == ActivationFormat::F32;
        (!plain).then(|| Call::flat(params, elements).of(&[&self.options.kv_kernel(values)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{qwen2, skeleton};
    use crate::ops::{Anatomy, Defined, Definition, anatomy};

    #[derive(Debug)]
    struct Own;

    impl Definition for Own {
        fn name(&self) -> &'static str {
            "own_op"
        }
        fn about(&self) -> &'static str {
            "a sum"
        }
        fn anatomy(&self) -> Anatomy<'_> {
            Anatomy::Elementwise(anatomy::Elementwise::Sum)
        }
    }

    /// A model with an op that has no kernel is refused when it is opened, with the stage and what to use instead.
    #[test]
    fn an_op_without_a_kernel_is_refused() {
        let mut graph = skeleton(qwen2::graph, 1);
        let options = Options { step: 4, context: 8, taps: true, ..Options::default() };
        assert!(check(&graph, &options).is_ok());
        let node = graph.nodes.iter_mut().find(|n| n.op == Op::Residual).unwrap();
        node.op = Op::Defined(Defined::new(Own));
        let why = check(&graph, &options).unwrap_err().to_string();
        assert!(
            why.contains("L00.attn_residual") && why.contains("`own_op`") && why.contains("--subject cpu"),
            "{why}"
        );
    }
}
