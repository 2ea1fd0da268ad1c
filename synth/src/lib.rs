//! Small synthetic GGUF models: complete files that llama.cpp loads, with seeded
//! weights of any supported type and a real (tiny) byte-level BPE vocabulary.
//!
//! Every tensor's values are drawn from a generator seeded by [`Synth::seed`] and the tensor's own name, before
//! quantisation: two models that differ only in their weight types, their tying or their number of layers share the
//! values of every tensor they have in common.

mod adapter;
mod folder;
#[cfg(feature = "ggml")]
mod image;
mod kv;
mod large;
mod massive;
mod quantize;
mod rng;
mod split;
mod tensor;
mod upcycled;
mod vocab;

#[cfg(all(test, feature = "ggml"))]
mod tests;

pub use adapter::Lora;
#[cfg(feature = "ggml")]
pub use image::{patch, tensor_range};
pub use kv::Kv;
pub use split::part_name;
pub use upcycled::upcycle;
pub use vocab::symbol;

use qdiff_engine::model::{
    self, ARCHITECTURES, Architecture, Graph, Metadata, Role, Weight, qwen2, qwen2moe, qwen2vl, qwen3moe, qwen3next,
    qwen3vl, qwen3vlmoe, qwen4exp, qwen35, qwen35moe, tensor_of,
};
use qdiff_engine::ops::anatomy::{Elementwise, Gather, RowReduction};
use qdiff_engine::ops::{Anatomy, Definition as _, Softplus};
use qdiff_engine::quant::GgmlType;
use quantize::quantize;
use rng::Rng;
use std::path::Path;
use tensor::{Fill, Large, Tensor};

/// The description of a synthetic model. Every field has a default.
#[derive(Clone, Debug)]
pub struct Synth {
    /// One of `known`.
    pub arch: &'static str,
    /// The architectures that there are.
    pub known: &'static [Architecture],
    /// Further keys of the architecture, whose name is their prefix; also in place of its own keys.
    pub settings: Vec<(String, Setting)>,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head; for `qwen2` it must be `n_embd / n_heads`.
    pub head_dim: usize,
    /// Width of the feed-forward part.
    pub n_ff: usize,
    /// Size of the vocabulary, at least [`base_vocab`]; ids past that are padding tokens `[PADn]`.
    pub n_vocab: usize,
    /// Trained context length.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Whether the output matrix is the token embedding (no `output.weight`).
    pub tied: bool,
    /// Whether queries, keys and values are projected by one matrix, and gate and up of experts are in one tensor where the
    /// architecture may have that.
    pub fused: bool,
    /// Blocks behind the layers that guess further tokens; for hybrid architectures.
    pub mtp: usize,
    /// Whether matrices have scales, which their products are multiplied by.
    pub scales: bool,
    /// Whether magnitudes are as those of real models: see `massive`.
    pub massive: bool,
    /// Type of the 2-D tensors.
    pub weight_type: GgmlType,
    /// Types of single tensors, by full name (`blk.0.attn_q.weight`); for one
    /// that is not 2-D as well, though llama.cpp may refuse the result.
    pub overrides: Vec<(String, GgmlType)>,
    /// Seed of the weights.
    pub seed: u64,
    /// The chat template; none where empty.
    pub chat_template: String,
}

impl Default for Synth {
    fn default() -> Self {
        Self {
            arch: qwen2::ARCH,
            known: ARCHITECTURES,
            settings: Vec::new(),
            n_embd: 256,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            n_ff: 512,
            n_vocab: 512,
            context: 2048,
            rope_base: 1e6,
            eps: 1e-6,
            tied: false,
            fused: false,
            mtp: 0,
            scales: false,
            massive: false,
            weight_type: GgmlType::Q8_0,
            overrides: Vec::new(),
            seed: 1,
            chat_template: vocab::CHAT_TEMPLATE.to_owned(),
        }
    }
}

/// The value of a metadata key.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// An unsigned integer.
    Integer(usize),
    /// A float.
    Real(f32),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of integers.
    Integers(Vec<i32>),
    /// A list of integers of 64 bits.
    Long(Vec<u64>),
}

impl std::str::FromStr for Setting {
    type Err = std::convert::Infallible;

    /// `7`, `0.5`, `true`, `[1,2]`; else it is a text.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let list = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let list = list.and_then(|t| t.split(',').map(|n| n.trim().parse().ok()).collect::<Option<Vec<i32>>>());
        Ok(match (text.parse(), text.parse(), text.parse(), list) {
            (Ok(n), ..) => Self::Integer(n),
            (_, Ok(x), ..) => Self::Real(x),
            (_, _, Ok(is), _) => Self::Bool(is),
            (.., Some(all)) => Self::Integers(all),
            _ => Self::Text(text.to_owned()),
        })
    }
}

/// Number of tokens of the vocabulary without padding tokens.
pub fn base_vocab() -> usize {
    vocab::Vocab::build().tokens.len()
}

impl Synth {
    /// Writes the model to `path`.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    ///
    /// # Panics
    ///
    /// As [`Synth::to_bytes`].
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.to_bytes())
    }

    /// The names of all tensors, in the order of the file.
    pub fn tensor_names(&self) -> Vec<String> {
        self.tensors().into_iter().map(|t| t.name).collect()
    }

    /// The values of one tensor before quantisation, rows one after the other.
    ///
    /// # Panics
    ///
    /// If the model has no tensor of that name.
    pub fn values(&self, tensor: &str) -> Vec<f32> {
        let all = self.tensors();
        let found = all.iter().find(|t| t.name == tensor);
        self.draw(found.unwrap_or_else(|| panic!("no tensor {tensor:?}")))
    }

    /// The model as the bytes of a GGUF file.
    ///
    /// # Panics
    ///
    /// If the description is inconsistent: an unknown architecture, a vocabulary below [`base_vocab`], rows that are
    /// not whole blocks of their type, an override for a tensor that is not there.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_with(|_| ())
    }

    /// As [`Synth::to_bytes`], with the metadata as `change` leaves them, valid or not.
    ///
    /// # Panics
    ///
    /// As [`Synth::to_bytes`].
    pub fn to_bytes_with(&self, change: impl FnOnce(&mut Kv)) -> Vec<u8> {
        let mut metadata = self.metadata();
        change(&mut metadata);
        metadata.file(&self.drawn(self.tensors()))
    }

    /// The model as the bytes of `count` files, as llama.cpp's `llama-gguf-split` splits one: see [`part_name`].
    ///
    /// # Panics
    ///
    /// As [`Synth::to_bytes`].
    pub fn to_parts(&self, count: usize) -> Vec<Vec<u8>> {
        self.to_parts_with(count, |_, _| ())
    }

    /// As [`Synth::to_parts`], with the metadata of each part, numbered from 0 on, as `change` leaves them.
    ///
    /// # Panics
    ///
    /// As [`Synth::to_bytes`].
    pub fn to_parts_with(&self, count: usize, mut change: impl FnMut(usize, &mut Kv)) -> Vec<Vec<u8>> {
        let parts = split::parts(self.metadata(), self.tensors(), count);
        let file = |(no, (mut metadata, tensors)): (usize, (Kv, Vec<Tensor>))| {
            change(no, &mut metadata);
            metadata.file(&self.drawn(tensors))
        };
        parts.into_iter().enumerate().map(file).collect()
    }

    /// Tensors with their data.
    fn drawn(&self, tensors: Vec<Tensor>) -> Vec<(Tensor, Vec<u8>)> {
        let data: Vec<_> = tensors.iter().map(|t| quantize(t, &self.draw(t))).collect();
        tensors.into_iter().zip(data).collect()
    }

    /// Whether the description is one of a model that can be written.
    ///
    /// # Errors
    /// The first thing that contradicts another, in words.
    pub fn validate(&self) -> Result<(), String> {
        let must = |holds: bool, problem: String| if holds { Ok(()) } else { Err(problem) };
        let known: Vec<_> = self.known.iter().map(|(arch, _)| *arch).collect();
        must(known.contains(&self.arch), format!("unknown architecture {:?}; known: {}", self.arch, known.join(", ")))?;
        must(self.n_vocab >= base_vocab(), format!("the vocabulary needs at least {} tokens", base_vocab()))?;
        let sizes = [self.n_embd, self.n_layers, self.n_heads, self.n_kv_heads, self.head_dim, self.n_ff, self.context];
        must(sizes.iter().all(|&n| n > 0), "every size must be at least 1".to_owned())?;
        must(self.n_heads.is_multiple_of(self.n_kv_heads), "heads must be a multiple of key-value heads".to_owned())?;
        must(self.head_dim.is_multiple_of(2), "the head dimension must be even".to_owned())?;
        must(
            self.says_head_dim() || self.head_dim * self.n_heads == self.n_embd,
            format!("{} needs heads * head dimension = embedding width", self.arch),
        )?;
        let hybrid = [qwen3next::ARCH, qwen35::ARCH, qwen35moe::ARCH].contains(&self.arch);
        must(self.mtp == 0 || hybrid, format!("{} has no blocks for multi-token prediction", self.arch))?;
        let graph = model::build_of(self.known, self).map_err(|e| e.to_string())?;
        let tensors = self.listed(&graph);
        for (name, _) in &self.overrides {
            must(tensors.iter().any(|t| t.name == *name), format!("there is no tensor {name:?} to store otherwise"))?;
        }
        for t in &tensors {
            let lacking = || {
                format!(
                    "{}: this build has no ggml, which makes {} of the values; choose F32 (--weights f32)",
                    t.name,
                    t.ty.name()
                )
            };
            must(quantize::writes(t.ty), lacking())?;
            let block = t.ty.block_size();
            let problem =
                || format!("{}: a row of {} values is not whole blocks of {} ({block})", t.name, t.ne[0], t.ty.name());
            must(t.ne[0].is_multiple_of(block), problem())?;
        }
        Ok(())
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.validate().unwrap_or_else(|problem| panic!("{problem}"));
        self.listed(&self.graph())
    }

    /// The tensors of a description that may still contradict itself.
    fn listed(&self, graph: &Graph) -> Vec<Tensor> {
        // Logits with a spread of about 3, so that one token tends to stand out.
        let (head, matrix) = (Fill::Matrix { gain: 3.0 }, Fill::Matrix { gain: 1.0 });
        let large = (self.head_dim / 32).max(1);
        let mut list: Vec<Tensor> = Vec::new();
        let whole = graph.tensors();
        for node in graph.nodes.iter().filter(|n| !(self.tied && n.role == Role::Logits)) {
            let fill = match (node.op.anatomy(), node.role) {
                (Anatomy::Gather(Gather::Rows | Gather::Hashed), _) | (Anatomy::Contraction(_), Role::Logits) => head,
                (Anatomy::RowReduction(RowReduction::Recurrent), _) => matrix,
                (Anatomy::RowReduction(_), _) => Fill::Norm,
                // Value biases stay moderate, as in Qwen: a large one would drown the content in a constant.
                (Anatomy::Elementwise(Elementwise::Offset), Role::Value) => {
                    Fill::Bias { head: self.head_dim, large: 1, lo: 2.0, hi: 4.0 }
                }
                (Anatomy::Elementwise(Elementwise::Offset), _) => {
                    Fill::Bias { head: self.head_dim, large, lo: 10.0, hi: 30.0 }
                }
                // Scales of matrices.
                _ if node.weights.iter().any(|weight| weight.name.ends_with(".scale")) => {
                    Fill::Spread { lo: 0.5, hi: 2.0 }
                }
                // Decays from near 0 to near 1.
                (_, Role::Mixer) if node.op.name() == Softplus.name() => Fill::Spread { lo: -6.0, hi: 2.0 },
                (Anatomy::Elementwise(Elementwise::Function(_)), Role::Mixer) => Fill::Decay,
                // Scores that tell experts apart.
                (Anatomy::Contraction(_), Role::Router) => Fill::Matrix { gain: 2.0 },
                _ => matrix,
            };
            for Weight { name, .. } in &node.weights {
                // Slices are of one tensor, which is listed once. Its biases stay moderate as those of values.
                let Some(Weight { name, extent }) = whole.iter().find(|whole| whole.name == tensor_of(name)) else {
                    continue;
                };
                if list.iter().any(|listed| listed.name == *name) {
                    continue;
                }
                let fill = match fill {
                    Fill::Bias { head, .. } if name.ends_with("attn_qkv.bias") => {
                        Fill::Bias { head, large: 1, lo: 2.0, hi: 4.0 }
                    }
                    fill => fill,
                };
                // llama.cpp's own quantiser leaves routers as they are.
                let anatomy = node.op.anatomy();
                let product = anatomy.multiplies_weights() || anatomy.looks_up();
                let plain = extent.len() < 2 || node.role == Role::Router || !product;
                // Short rows may be no whole blocks.
                let blocks = anatomy != Anatomy::Gather(Gather::Hashed)
                    || extent[0].is_multiple_of(self.weight_type.block_size());
                let usual = match (plain, blocks) {
                    (true, _) => GgmlType::F32,
                    (false, true) => self.weight_type,
                    (false, false) => GgmlType::F16,
                };
                let own = self.overrides.iter().rev().find(|(n, _)| n == name);
                let ty = own.map_or(usual, |o| o.1);
                // A bias of all projections is of the queries as well.
                let several = |large: &Large| self.fused && matches!(large, Large::KeyBias);
                let large = massive::of(node, extent, self.n_embd).filter(|large| !several(large));
                list.push(Tensor { ty, name: name.clone(), ne: extent.clone(), fill, large });
            }
        }
        self.guess(&mut list);
        list
    }

    /// Adds the blocks that guess further tokens: each is as the last layer, which is one of attention, with what joins the
    /// residual stream and the token before it.
    fn guess(&self, list: &mut Vec<Tensor>) {
        let (last, e) = (format!("blk.{}.", self.n_layers - 1), self.n_embd);
        for block in self.n_layers..self.n_layers + self.mtp {
            let named = |name: &str| format!("blk.{block}.{name}");
            let alike = |t: &Tensor| Some(Tensor { name: named(t.name.strip_prefix(&last)?), ..t.clone() });
            let of_block: Vec<Tensor> = list.iter().filter_map(alike).collect();
            list.extend(of_block);
            let matrix = Fill::Matrix { gain: 1.0 };
            let (name, ne) = (named("nextn.eh_proj.weight"), vec![2 * e, e]);
            list.push(Tensor { ty: self.weight_type, name, ne, fill: matrix, large: None });
            for norm in ["enorm", "hnorm", "shared_head_norm"] {
                let name = named(&format!("nextn.{norm}.weight"));
                list.push(Tensor { ty: GgmlType::F32, name, ne: vec![e], fill: Fill::Norm, large: None });
            }
        }
    }

    fn graph(&self) -> Graph {
        model::build_of(self.known, self).expect("the description is one of a model")
    }

    fn draw(&self, t: &Tensor) -> Vec<f32> {
        let mut values = self.plain(t);
        if let Some(large) = t.large.filter(|_| self.massive) {
            massive::enlarge(large, self.n_embd, &mut values);
        }
        values
    }

    fn plain(&self, t: &Tensor) -> Vec<f32> {
        let mut rng = Rng::new(self.seed, &t.name);
        let count = t.ne.iter().product();
        match t.fill {
            Fill::Matrix { gain } => {
                let std = gain / (t.ne[0] as f32).sqrt();
                let mut values = Vec::with_capacity(count);
                for _ in 0..count / t.ne[0] {
                    let row = std * rng.between(0.75, 1.25);
                    values.extend((0..t.ne[0]).map(|_| row * rng.bell()));
                }
                values
            }
            Fill::Spread { lo, hi } => (0..count).map(|_| rng.between(lo, hi)).collect(),
            Fill::Decay => (0..count).map(|_| -rng.between(-4.0, 2.0).exp()).collect(),
            Fill::Norm => (0..count).map(|_| 1.0 + 0.2 * rng.bell()).collect(),
            Fill::Bias { head, large, lo, hi } => {
                let mut values: Vec<f32> = (0..count).map(|_| 0.4 * rng.bell()).collect();
                for chunk in values.chunks_mut(head) {
                    for _ in 0..large {
                        let at = (rng.next() % chunk.len() as u64) as usize;
                        let sign = if rng.next() >> 63 == 0 { 1.0 } else { -1.0 };
                        chunk[at] = sign * rng.between(lo, hi);
                    }
                }
                values
            }
        }
    }

    /// Whether the metadata have the length of a head: Qwen2's is that of the stream over the heads.
    fn says_head_dim(&self) -> bool {
        ![qwen2::ARCH, qwen2moe::ARCH, qwen2vl::ARCH].contains(&self.arch)
    }

    /// Hyperparameters, without the architecture before their names.
    fn settings(&self) -> Vec<(String, Setting)> {
        let mut integers = vec![
            ("block_count", self.n_layers + self.mtp),
            ("context_length", self.context),
            ("embedding_length", self.n_embd),
            ("feed_forward_length", self.n_ff),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
        ];
        if self.says_head_dim() {
            integers.extend([("attention.key_length", self.head_dim), ("attention.value_length", self.head_dim)]);
        }
        // Numbers that nothing divides by, and of experts that are a whole number of blocks in every format.
        let newest = self.arch == qwen4exp::ARCH;
        let of_experts = [qwen2moe::ARCH, qwen3moe::ARCH, qwen3vlmoe::ARCH, qwen3next::ARCH, qwen35moe::ARCH];
        if newest || of_experts.contains(&self.arch) {
            integers.extend([("expert_count", 7), ("expert_used_count", 3), ("expert_feed_forward_length", 256)]);
        }
        if newest || [qwen2moe::ARCH, qwen35moe::ARCH, qwen3next::ARCH].contains(&self.arch) {
            integers.push(("expert_shared_feed_forward_length", 768));
        }
        let hybrid = newest || [qwen3next::ARCH, qwen35::ARCH, qwen35moe::ARCH].contains(&self.arch);
        if hybrid {
            // Every second layer is one of attention, with half of each head rotated.
            integers.extend([("full_attention_interval", 2), ("rope.dimension_count", self.head_dim / 4 * 2)]);
            integers.extend([("ssm.conv_kernel", 4), ("ssm.state_size", 64), ("ssm.group_count", 2)]);
            integers.extend([("ssm.time_step_rank", 4), ("ssm.inner_size", 256)]);
        }
        if self.mtp > 0 {
            integers.push(("nextn_predict_layers", self.mtp));
        }
        if newest {
            // Two sizes of n-grams with two heads each, of which a row is a quarter of the stream.
            integers.extend([("hyper_connection.count", 3), ("hyper_connection.low_rank", 256)]);
            integers.extend([("attention.indexer.head_count", 2), ("attention.indexer.key_length", self.head_dim)]);
            integers.extend([("attention.indexer.top_k", 8), ("ple.ngram_size", 3)]);
            integers.extend([("ple.heads_per_ngram", 2), ("embedding_length_per_layer_input", self.n_embd / 4)]);
            integers.extend([("ple.conv_kernel", 4), ("ple.eos_token_id", 2)]);
        }
        let reals = [("attention.layer_norm_rms_epsilon", self.eps), ("rope.freq_base", self.rope_base)];
        let integers = integers.into_iter().map(|(key, n)| (key.to_owned(), Setting::Integer(n)));
        let mut all: Vec<_> = integers.chain(reals.map(|(key, x)| (key.to_owned(), Setting::Real(x)))).collect();
        let interleaved = [qwen3vl::ARCH, qwen3vlmoe::ARCH].contains(&self.arch);
        if hybrid && self.arch != qwen3next::ARCH || interleaved {
            // As many pairs as are rotated, of which each is turned by one of three positions.
            let pairs = self.head_dim as i32 / if interleaved { 2 } else { 4 };
            let sections = [(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0];
            all.push(("rope.dimension_sections".to_owned(), Setting::Integers(sections.to_vec())));
        }
        if self.arch == qwen2vl::ARCH {
            let pairs = self.head_dim as i32 / 2;
            let sections = [pairs / 4, (pairs * 3 + 7) / 8, pairs - pairs / 4 - (pairs * 3 + 7) / 8, 0];
            all.push(("rope.dimension_sections".to_owned(), Setting::Integers(sections.to_vec())));
        }
        if newest {
            let ratios = (0..self.n_layers).map(|layer| if layer % 2 == 1 { 4 } else { 0 });
            all.push(("attention.compress_ratios".to_owned(), Setting::Integers(ratios.collect())));
            all.push(("ple.layers".to_owned(), Setting::Integers(vec![0])));
            // Primes, and products that need more than 32 bits.
            let long = [
                ("ple.layer_multipliers", vec![0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9]),
                ("ple.head_offsets", vec![0, 101, 204, 311]),
                ("ple.head_vocab_sizes", vec![101, 103, 107, 109]),
            ];
            all.extend(long.map(|(key, list)| (key.to_owned(), Setting::Long(list))));
        }
        for (key, value) in &self.settings {
            match all.iter_mut().find(|(own, _)| own == key) {
                Some(own) => own.1 = value.clone(),
                None => all.push((key.clone(), value.clone())),
            }
        }
        all
    }

    /// The value of a key with the architecture before it.
    fn setting(&self, key: &str) -> Option<Setting> {
        let name = key.strip_prefix(self.arch)?.strip_prefix('.')?;
        self.settings().into_iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    fn metadata(&self) -> Kv {
        let mut kv = self.described();
        let mut vocab = vocab::Vocab::build();
        vocab.pad_to(self.n_vocab);
        kv.string("tokenizer.ggml.model", "gpt2");
        kv.string("tokenizer.ggml.pre", "qwen2");
        kv.strings(vocab::TOKENS, &vocab.tokens);
        kv.i32s(vocab::TYPES, &vocab.types);
        kv.strings("tokenizer.ggml.merges", &vocab.merges);
        kv.u32("tokenizer.ggml.eos_token_id", vocab.im_end);
        kv.u32("tokenizer.ggml.padding_token_id", vocab.endoftext);
        kv.u32("tokenizer.ggml.bos_token_id", vocab.endoftext);
        kv.bool("tokenizer.ggml.add_bos_token", false);
        if !self.chat_template.is_empty() {
            kv.string("tokenizer.chat_template", &self.chat_template);
        }
        kv
    }

    /// Metadata without a vocabulary.
    fn described(&self) -> Kv {
        let mut kv = Kv::default();
        kv.string("general.architecture", self.arch);
        kv.string("general.name", &format!("synthetic {}", self.arch));
        kv.u32("general.quantization_version", 2);

        let key = |k: &str| format!("{}.{k}", self.arch);
        for (name, value) in self.settings() {
            let key = key(&name);
            match value {
                Setting::Integer(n) => kv.u32(&key, n as u32),
                Setting::Real(x) => kv.f32(&key, x),
                Setting::Bool(is) => kv.bool(&key, is),
                Setting::Text(text) => kv.string(&key, &text),
                Setting::Integers(all) => kv.i32s(&key, &all),
                Setting::Long(all) => kv.u64s(&key, &all),
            }
        }
        kv
    }
}

/// So that the graph of the architecture says which tensors there are. The head
/// is not tied there: whether it is, is [`Synth::tied`].
impl Metadata for Synth {
    fn integer(&self, key: &str) -> Option<u64> {
        if let Setting::Integer(n) = self.setting(key)? { Some(n as u64) } else { None }
    }
    fn real(&self, key: &str) -> Option<f64> {
        if let Setting::Real(x) = self.setting(key)? { Some(f64::from(x)) } else { None }
    }
    fn boolean(&self, key: &str) -> Option<bool> {
        if let Setting::Bool(is) = self.setting(key)? { Some(is) } else { None }
    }
    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        match self.setting(key)? {
            Setting::Integers(all) => Some(all.into_iter().map(i64::from).collect()),
            Setting::Long(all) => Some(all.into_iter().map(u64::cast_signed).collect()),
            _ => None,
        }
    }
    fn text(&self, key: &str) -> Option<String> {
        match self.setting(key) {
            Some(Setting::Text(text)) => Some(text),
            _ => (key == "general.architecture").then(|| self.arch.to_owned()),
        }
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        let fused = model::FUSED.iter().any(|fused| tensor.ends_with(fused));
        // llama.cpp loads the scale of the output matrix in one format alone.
        let loaded = tensor != "output.scale" || self.weight_type == GgmlType::NVFP4 && !self.tied;
        let scaled = !tensor.ends_with(".scale") || self.scales && loaded;
        let there = (self.fused || !fused) && scaled;
        there.then(|| vec![self.n_embd as u64, self.n_vocab as u64])
    }
}
