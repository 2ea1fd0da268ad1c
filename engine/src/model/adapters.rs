//! LoRA adapters: low-rank terms that are added to the products with matrices of a model.
//!
//! A file of an adapter, as llama.cpp's `convert_lora_to_gguf.py` writes it, has for a matrix `NAME.weight` of n columns and m
//! rows the matrices `NAME.weight.lora_a` `[n, r]` and `NAME.weight.lora_b` `[r, m]`. The product W·x becomes
//! W·x + s·B·(A·x), where s is `adapter.lora.alpha` / r (`llama_adapter_lora_weight::get_scale`).
//!
//! In a graph, this is five stages in the place of one. All adapters of a run share the graph, as the batches of an engine do:
//! matrices are padded with zeros to the largest rank, rounded up to a multiple of 32, and a sequence without an adapter has zeros.

use super::graph::{Graph, Node};
use super::slices::tensor_of;
use super::{Axis, LoadError, Metadata, StageId, Weight, same_extent};
use crate::gguf::Gguf;
use crate::ops::{Defined, Op, VectorFactor};
use crate::quant::{GgmlType, Stored, WeightSource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Products that adapters may add to, and the stages that they then are: the product with the matrix, those with A and with B, the
/// term that is added. The sum keeps the name.
const STAGES: &[(&str, [&str; 4])] = &[
    ("q_proj", ["q_base", "q_lora_a", "q_lora_b", "q_lora"]),
    ("k_proj", ["k_base", "k_lora_a", "k_lora_b", "k_lora"]),
    ("v_proj", ["v_base", "v_lora_a", "v_lora_b", "v_lora"]),
    ("attn_out", ["attn_out_base", "attn_out_lora_a", "attn_out_lora_b", "attn_out_lora"]),
    ("ffn_gate", ["ffn_gate_base", "ffn_gate_lora_a", "ffn_gate_lora_b", "ffn_gate_lora"]),
    ("ffn_up", ["ffn_up_base", "ffn_up_lora_a", "ffn_up_lora_b", "ffn_up_lora"]),
    ("ffn_down", ["ffn_down_base", "ffn_down_lora_a", "ffn_down_lora_b", "ffn_down_lora"]),
];

const A: &str = ".lora_a";
const B: &str = ".lora_b";
const SCALE: &str = ".lora_scale";
/// The rank before it is padded, as a number.
const RANK: &str = ".lora_rank";

/// Types of an adapter's matrices; `convert_lora_to_gguf.py` writes no other by default.
const TYPES: [GgmlType; 3] = [GgmlType::F32, GgmlType::F16, GgmlType::BF16];

fn refused<T>(what: String) -> Result<T, LoadError> {
    Err(LoadError::Tensors(what))
}

/// What an adapter adds to one matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// Columns and rows of the matrix.
    pub extent: [usize; 2],
    /// Rows of A.
    pub rank: usize,
    /// What the product with B is multiplied by.
    pub scale: f32,
}

/// One adapter: what it adds, by the name of the matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adapter(pub BTreeMap<String, Term>);

impl Adapter {
    /// The adapter in a file, for a model of this graph.
    ///
    /// # Errors
    /// A file that is no adapter of this architecture, or has a matrix that does not fit.
    pub fn open(file: &Gguf, graph: &Graph) -> Result<Self, LoadError> {
        let arch = &graph.config.arch;
        for (key, expected) in
            [("general.type", "adapter"), ("adapter.type", "lora"), ("general.architecture", arch.as_str())]
        {
            let found = file.text(key);
            if found.as_deref() != Some(expected) {
                let found = found.map_or_else(|| "missing".to_owned(), |found| format!("`{found}`"));
                return refused(format!(
                    "metadata key `{key}` is {found}, expected `{expected}`: no LoRA adapter of this model; convert it with \
                     llama.cpp's convert_lora_to_gguf.py"
                ));
            }
        }
        let alora = "adapter.alora.invocation_tokens";
        if file.get(alora).is_some() {
            return refused(format!(
                "metadata key `{alora}`: an adapter that begins at certain tokens (aLoRA) is not supported; use one without"
            ));
        }
        let names: Vec<&str> = file.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        if let Some(bad) = file.tensors.iter().find(|tensor| !TYPES.contains(&tensor.ggml_type)) {
            let (name, ty) = (&bad.name, bad.ggml_type);
            return refused(format!(
                "tensor `{name}` is stored as {ty}; convert the adapter with --outtype f32, f16 or bf16"
            ));
        }
        Self::read(file.real("adapter.lora.alpha"), &names, &|name| file.extent(name), graph)
    }

    /// An adapter of these tensors.
    ///
    /// # Errors
    /// A matrix that does not fit the model, or to which no adapter can be added here.
    pub fn read(
        alpha: Option<f64>, names: &[&str], extent: &dyn Fn(&str) -> Option<Vec<u64>>, graph: &Graph,
    ) -> Result<Self, LoadError> {
        let mut terms = BTreeMap::new();
        for name in names {
            let Some(matrix) = name.strip_suffix(A) else {
                let pair = name.strip_suffix(B).map(|matrix| format!("{matrix}{A}"));
                // llama.cpp leaves adapted norms out of account.
                if pair.is_some_and(|a| names.contains(&a.as_str())) || name.ends_with("_norm.weight") {
                    continue;
                }
                return refused(format!(
                    "tensor `{name}` is no matrix of a LoRA adapter, or lacks the other of its pair"
                ));
            };
            let reads = |node: &&Node| node.weights.iter().any(|weight| tensor_of(&weight.name) == matrix);
            let Some(node) = graph.nodes.iter().find(reads) else {
                return refused(format!(
                    "tensor `{name}`: the model has no matrix `{matrix}`; is it of another model?"
                ));
            };
            let known = node.op.anatomy().is_layer() && stages_of(node).is_some() && node.weights[0].name == matrix;
            // The product is then multiplied by the scale before a term is added.
            let scale = matrix.strip_suffix(".weight").map(|name| format!("{name}.scale"));
            let is_scaled = graph.weights().iter().any(|weight| Some(&weight.name) == scale.as_ref());
            if !known || is_scaled {
                return refused(format!("tensor `{name}`: adapters of {} are not supported", node.id.name));
            }
            let of = &node.weights[0].extent;
            let found = |name: &str| extent(name).unwrap_or_default();
            let (a, b) = (found(name), found(&format!("{matrix}{B}")));
            let rank = a.get(1).copied().unwrap_or(1) as usize;
            if rank == 0 || !same_extent(&a, &[of[0], rank]) || !same_extent(&b, &[rank, of[1]]) {
                return refused(format!(
                    "tensors `{matrix}{A}` and `{B}` have shapes {a:?} and {b:?}, and the model's matrix is {of:?}; is the \
                     adapter of another model?"
                ));
            }
            let alpha = alpha.unwrap_or(0.0) as f32;
            let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
            terms.insert(matrix.to_owned(), Term { extent: [of[0], of[1]], rank, scale });
        }
        if terms.is_empty() {
            return refused("the adapter has no matrix".to_owned());
        }
        Ok(Self(terms))
    }
}

/// The stages of a product that is adapted.
fn stages_of(node: &Node) -> Option<[&'static str; 4]> {
    STAGES.iter().find(|(name, _)| *name == node.id.name).map(|(_, stages)| *stages)
}

impl Graph {
    /// The matrices to which adapters may add.
    pub fn adaptable(&self) -> impl Iterator<Item = &Weight> {
        let nodes = self.nodes.iter().filter(|node| node.op.anatomy().is_layer() && stages_of(node).is_some());
        nodes.filter_map(|node| node.weights.first())
    }

    /// The same with adapters: what any of them adds to is a sum.
    ///
    /// # Panics
    /// If the adapters are of another graph.
    #[must_use]
    pub fn adapted(&self, adapters: &Adapters) -> Self {
        let adapters = &adapters.all;
        let mut nodes: Vec<Node> = Vec::with_capacity(self.nodes.len());
        let mut at = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let inputs = node.inputs.iter().map(|&input| at[input]).collect();
            let node = Node { inputs, ..node.clone() };
            let ranks = node.weights.first().map_or(0, |weight| rank_of(adapters, &weight.name));
            if ranks == 0 {
                nodes.push(node);
            } else {
                add(&mut nodes, node, ranks);
            }
            at.push(nodes.len() - 1);
        }
        Self { nodes, adapters: adapters.len(), ..self.clone() }
    }
}

impl Graph {
    /// Of a product to which adapters add: the product with the matrix, those with A and B, and the term that is added.
    pub fn adapted_of(&self, node: &Node) -> Option<[&Node; 4]> {
        let [base, term] = node.inputs[..] else { return None };
        let (base, term) = (&self.nodes[base], &self.nodes[term]);
        term.weights.first().filter(|weight| weight.name.ends_with(SCALE))?;
        let b = &self.nodes[term.inputs[0]];
        Some([base, &self.nodes[b.inputs[0]], b, term])
    }
}

impl Node {
    /// Whether its weight is of an adapter.
    pub fn is_of_adapter(&self) -> bool {
        let of = |weight: &Weight| [A, B, SCALE].iter().any(|suffix| weight.name.ends_with(suffix));
        self.weights.first().is_some_and(of)
    }
}

/// The rank of an adapter, as the weight that it is beside its scale; `None` for another weight.
pub fn rank_beside(scale: &Weight) -> Option<Weight> {
    let name = scale.name.strip_suffix(SCALE)?;
    Some(Weight { name: format!("{name}{RANK}"), extent: scale.extent.clone() })
}

/// The same weight of the adapter of this number, in the place of the one that a sequence has.
pub fn of_other_adapter(weight: &Weight, number: usize) -> Weight {
    Weight { name: format!("{}@{number}", weight.name), extent: weight.extent.clone() }
}

/// A skeleton with an adapter; `None` where no stage can have one.
pub fn with_adapter(whole: &Graph) -> Option<Graph> {
    const RANK: usize = 2;
    let terms = whole
        .adaptable()
        .map(|Weight { name, extent }| (name.clone(), Term { extent: [extent[0], extent[1]], rank: RANK, scale: 1.0 }));
    let adapter = Adapter(terms.collect());
    let any = !adapter.0.is_empty();
    any.then(|| whole.adapted(&Adapters { all: vec![adapter], ..Adapters::default() }))
}

/// Ranks are padded to a multiple of this: kernels take rows of whole blocks.
const BLOCK: usize = 32;

/// The largest rank of what is added to a matrix, padded; 0 if nothing is.
fn rank_of(adapters: &[Adapter], matrix: &str) -> usize {
    let ranks = adapters.iter().filter_map(|adapter| adapter.0.get(matrix)).map(|term| term.rank);
    ranks.max().unwrap_or(0).next_multiple_of(BLOCK)
}

/// The stages of a product of which adapters are a part.
fn add(nodes: &mut Vec<Node>, node: Node, rank: usize) {
    let [base, a, b, term] = stages_of(&node).expect("adapters were checked against the graph");
    let (x, matrix) = (node.inputs[0], node.weights[0].name.clone());
    let [n, m] = [node.weights[0].extent[0], node.weights[0].extent[1]];
    let made = |name: &'static str, op: Op, inputs: Vec<usize>, weights: Vec<Weight>, width: usize| {
        let mut made = Node { id: StageId { name, ..node.id }, op, inputs, weights, ..node.clone() };
        made.shape = vec![Axis::Tokens, Axis::Fixed(width)];
        made.emission.name.clear();
        made.emission.op = "";
        made
    };
    let weight = |suffix: &str, extent: &[usize]| Weight { name: format!("{matrix}{suffix}"), extent: extent.to_vec() };
    let first = nodes.len();
    let mut product = made(base, Op::Linear, vec![x], node.weights.clone(), m);
    // llama.cpp names the sum, and the product by its matrix alone.
    product.emission.op = node.emission.op;
    nodes.push(product);
    nodes.push(made(a, Op::Linear, vec![x], vec![weight(A, &[n, rank])], rank));
    nodes.push(made(b, Op::Linear, vec![first + 1], vec![weight(B, &[rank, m])], m));
    let scaled = Defined::op(VectorFactor("the product with B of the adapter, times its scale"));
    nodes.push(made(term, scaled, vec![first + 2], vec![weight(SCALE, &[1])], m));
    let mut emission = node.emission.clone();
    emission.op = if emission.name.is_empty() { "" } else { "ADD" };
    let (op, inputs, weights) = (Op::Residual, vec![first, first + 3], Vec::new());
    nodes.push(Node { op, inputs, weights, emission, ..node });
}

/// A matrix of an adapter, padded to the largest rank.
struct Part {
    ty: GgmlType,
    extent: (usize, usize),
    dims: [u64; 2],
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Part {
    fn made(ty: GgmlType, extent: (usize, usize), bytes: Vec<u8>, values: Vec<f32>) -> Self {
        Self { ty, extent, dims: [extent.0 as u64, extent.1 as u64], bytes, values }
    }

    /// Zeros.
    fn zeros((n, rows): (usize, usize)) -> Self {
        Self::made(GgmlType::F32, (n, rows), vec![0; 4 * n * rows], vec![0.0; n * rows])
    }

    /// The tensor `name`, as its reader decodes it, padded with zeros.
    fn of(source: &dyn WeightSource, name: &str, (n, rows): (usize, usize)) -> Self {
        let Stored { ty, extent: (own, there), bytes } = source.stored(name);
        let mut values = vec![0.0; n * rows];
        let mut row = vec![0.0; own];
        for (i, out) in values.chunks_mut(n).take(there).enumerate() {
            source.rows(name, i, &mut row);
            out[..own].copy_from_slice(&row);
        }
        let mut padded = vec![0; ty.row_bytes(n) * rows];
        for (to, from) in padded.chunks_mut(ty.row_bytes(n)).zip(bytes.chunks(ty.row_bytes(own))) {
            to[..from.len()].copy_from_slice(from);
        }
        Self::made(ty, (n, rows), padded, values)
    }

    fn number(value: f32) -> Self {
        Self::made(GgmlType::F32, (1, 1), value.to_le_bytes().to_vec(), vec![value])
    }
}

/// The adapters of a run. Number 0 stands for no adapter; the others are numbered from 1 on.
#[derive(Clone, Default)]
pub struct Adapters {
    all: Vec<Adapter>,
    /// Of each number, the matrices by name.
    parts: Arc<Vec<BTreeMap<String, Part>>>,
}

impl Adapters {
    /// These adapters, each with its matrices in one of `files`.
    pub fn new(adapters: Vec<Adapter>, files: &[&dyn WeightSource]) -> Self {
        let names: BTreeSet<&String> = adapters.iter().flat_map(|adapter| adapter.0.keys()).collect();
        let parts = |own: Option<(&Adapter, &&dyn WeightSource)>| {
            let mut parts = BTreeMap::new();
            for matrix in &names {
                let [n, m] = adapters.iter().find_map(|adapter| adapter.0.get(*matrix)).map_or([0; 2], |t| t.extent);
                let rank = rank_of(&adapters, matrix);
                let term = own.and_then(|(adapter, file)| Some((adapter.0.get(*matrix)?, file)));
                for (suffix, extent) in [(A, (n, rank)), (B, (rank, m))] {
                    let name = format!("{matrix}{suffix}");
                    let part = term.map_or_else(|| Part::zeros(extent), |(_, file)| Part::of(*file, &name, extent));
                    parts.insert(name, part);
                }
                parts.insert(format!("{matrix}{SCALE}"), Part::number(term.map_or(0.0, |(term, _)| term.scale)));
                parts.insert(format!("{matrix}{RANK}"), Part::number(term.map_or(0.0, |(term, _)| term.rank as f32)));
            }
            parts
        };
        let own = adapters.iter().zip(files).map(|own| parts(Some(own)));
        let parts = Arc::new(std::iter::once(parts(None)).chain(own).collect());
        Self { all: adapters, parts }
    }

    /// As many as numbers: one more than there are adapters.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The same, with each matrix of all numbers in one tensor of f32, one after another: as a tensor of experts.
    #[must_use]
    pub fn stacked(&self) -> Self {
        let mut stacked = BTreeMap::new();
        for (name, part) in self.parts.iter().flatten().take(self.parts.first().map_or(0, BTreeMap::len)) {
            let values: Vec<f32> = self.parts.iter().flat_map(|parts| parts[name].values.iter().copied()).collect();
            let (n, m) = part.extent;
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            stacked.insert(name.clone(), Part::made(GgmlType::F32, (n, m * self.parts.len()), bytes, values));
        }
        Self { all: self.all.clone(), parts: Arc::new(vec![stacked]) }
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A matrix of an adapter that the two readers decode differently, if there is one.
    pub fn differs(&self, other: &Self) -> Option<&str> {
        let pairs = self.parts.iter().zip(other.parts.iter()).flat_map(|(own, there)| own.iter().zip(there.values()));
        let bits = |part: &Part| part.values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        pairs.into_iter().find(|((_, own), there)| bits(own) != bits(there)).map(|((name, _), _)| name.as_str())
    }

    fn part(&self, adapter: usize, tensor: &str) -> Option<&Part> {
        let parts = self.parts.get(adapter)?;
        // Of another adapter, by its number.
        let other = || {
            let (name, number) = tensor.rsplit_once('@')?;
            self.parts.get(number.parse::<usize>().ok()?)?.get(name)
        };
        parts.get(tensor).or_else(other)
    }

    /// Extent of a matrix in ggml's order; `None` for a tensor of the model.
    pub fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.part(0, tensor).map(|part| part.dims.as_slice())
    }
}

/// The weights of a model with one of its adapters, or with none.
pub struct Adapted<S> {
    /// The weights of the model.
    pub base: S,
    /// The adapters.
    pub adapters: Adapters,
    /// The number of the adapter.
    pub own: usize,
}

impl<S: WeightSource> WeightSource for Adapted<S> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        match self.adapters.part(self.own, tensor) {
            Some(part) => Stored { ty: part.ty, extent: part.extent, bytes: &part.bytes },
            None => self.base.stored(tensor),
        }
    }
    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        match self.adapters.part(self.own, tensor) {
            Some(part) => out.copy_from_slice(&part.values[first * part.extent.0..][..out.len()]),
            None => self.base.rows(tensor, first, out),
        }
    }
    fn extent(&self, tensor: &str) -> (usize, usize) {
        self.adapters.part(self.own, tensor).map_or_else(|| self.base.extent(tensor), |part| part.extent)
    }
}
