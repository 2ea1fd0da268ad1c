//! What a runner computes in. Declared, not guessed: the bounds of the verdict follow from it.

use crate::formats::{Formats, OfStages, name_or_map};
use anyhow::{Result, bail, ensure};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, StageId, Weight, WeightSource};
use qdiff_engine::ops::anatomy::State;
use qdiff_engine::ops::{Anatomy, Attention, Op, Softmax, half_sum};
use qdiff_engine::quant::{ActivationFormat, GgmlType, KvType};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The arithmetic of every class of op. The default is f32 throughout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Arithmetic {
    /// Products with weights: the first rule that fits decides; where none does, operands and sums are f32.
    pub linear: Vec<LinearRule>,
    /// Products of the attention: the first rule that fits decides, as above.
    pub attention: Vec<AttentionRule>,
    /// Formats of the key cache and of the value cache, such as `f16`, or `q8_0/q4_1` where they differ: the rows of a cache are
    /// copies, rounded to its format.
    pub kv: KvType,
    /// By what the rows of a cache are divided before they are rounded to its format, and multiplied after: of one cache, such as
    /// `L00.k_cache`, or by its name of those of all layers, such as `v_cache`; 1 where it is not named.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kv_scale: BTreeMap<String, f32>,
    /// Exponential, sine, cosine, division and roots.
    pub functions: Functions,
    /// What the model's tensors are rounded to when they are loaded.
    #[serde(skip_serializing_if = "is_f32")]
    pub parameters: DType,
    /// What each stage is rounded to before anything reads it; where that is coarser than f32, also between the operations
    /// that an op is made of.
    #[serde(skip_serializing_if = "Formats::plain")]
    pub outputs: Formats,
}

/// The names of its fields.
pub const FIELDS: [&str; 7] = ["linear", "attention", "kv", "kv_scale", "functions", "parameters", "outputs"];

fn is_f32(format: &DType) -> bool {
    *format == DType::F32
}

/// An arithmetic by its name, or spelled out.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Declared {
    /// By name.
    Named(Named),
    /// Spelled out.
    Explicit(Arithmetic),
}

impl<'de> Deserialize<'de> for Declared {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        name_or_map(from, "the name of an arithmetic, or one spelled out", Self::Named, Self::Explicit)
    }
}

impl Declared {
    /// Spelled out.
    pub fn arithmetic(&self) -> Arithmetic {
        match self {
            Self::Named(named) => named.arithmetic(),
            Self::Explicit(arithmetic) => arithmetic.clone(),
        }
    }
}

/// Arithmetics that engines have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Named {
    /// f32 throughout.
    F32,
    /// That of PyTorch in f16: tensors of the model and results of all operations are f16, sums are f32.
    F16,
    /// The same in bf16.
    Bf16,
    /// The same, with the residual stream in f32.
    Bf16ResidualF32,
    /// That of vLLM and SGLang in f16: as PyTorch's, but the residual is summed in f32, and so is all that flash attention
    /// computes, save for the weights, which become f16 before they are divided by their sum.
    F16Flash,
    /// The same in bf16.
    Bf16Flash,
}

impl Named {
    /// Every one of them.
    pub const ALL: [Self; 6] =
        [Self::F32, Self::F16, Self::Bf16, Self::Bf16ResidualF32, Self::F16Flash, Self::Bf16Flash];

    /// Spelled out: tensors, results and cache in the format; sums in f32, or in what tensor cores have for it.
    pub fn arithmetic(self) -> Arithmetic {
        // Only the names of these ops count.
        let scores = Op::AttnScores(Attention { n_heads: 1, n_kv_heads: 1, head_dim: 1 });
        let of_flash = [Op::Residual, scores, Op::AttnWeights(Softmax { scale: 1.0 })];
        let residual = [Op::Embed, Op::Residual];
        let (number, wide): (_, &[Op]) = match self {
            Self::F32 => return Arithmetic::default(),
            Self::F16 => (DType::F16, &[]),
            Self::Bf16 => (DType::Bf16, &[]),
            Self::Bf16ResidualF32 => (DType::Bf16, &residual),
            Self::F16Flash => (DType::F16, &of_flash),
            Self::Bf16Flash => (DType::Bf16, &of_flash),
        };
        let outputs = if wide.is_empty() {
            Formats::All(number)
        } else {
            let ops = wide.iter().map(|op| (op.name().to_owned(), DType::F32)).collect();
            Formats::Each(OfStages { default: number, ops, ..OfStages::default() })
        };
        let accumulation = Accumulation::TensorCores;
        let flash = matches!(self, Self::F16Flash | Self::Bf16Flash);
        let context = if flash { number.into() } else { ActivationFormat::F32 };
        let attention = AttentionRule { context, accumulation, flash, ..AttentionRule::default() };
        Arithmetic {
            linear: vec![LinearRule { accumulation, ..LinearRule::default() }],
            attention: vec![attention],
            kv: number.into(),
            functions: Functions::Precise,
            parameters: number,
            outputs,
            ..Arithmetic::default()
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Bf16ResidualF32 => "bf16-residual-f32",
            Self::F16Flash => "f16-flash",
            Self::Bf16Flash => "bf16-flash",
        })
    }
}

/// What products with the weights of one format do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LinearRule {
    /// Weight format, such as `q5_0`; every format where it is empty.
    pub weights: String,
    /// Largest number of tokens in a step that it is about; any where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<usize>,
    /// What activations become before the product.
    pub activations: ActivationFormat,
    /// What the products are summed in.
    pub accumulation: Accumulation,
    /// What the sum is rounded to.
    pub output: DType,
}

impl LinearRule {
    /// Whether sums or results are coarser than f32.
    pub fn coarse(&self) -> bool {
        self.accumulation == Accumulation::F16 || self.output != DType::F32
    }
}

/// What the two products of the attention do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AttentionRule {
    /// Largest number of tokens in a step that it is about; any where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<usize>,
    /// What query and key become before their product. A format with blocks is the query's alone: the key is as the cache has
    /// it.
    pub scores: ActivationFormat,
    /// What weights and values become before theirs.
    pub context: ActivationFormat,
    /// What both products are summed in.
    pub accumulation: Accumulation,
    /// Whether the weights become that before they are divided by their sum, as in flash attention: then how each is
    /// rounded does not follow from its own value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flash: bool,
    /// Whether shares of the keys are attended apart and joined by the logarithm of the sum of exponentials of each, in f32: the
    /// larger that is, the less certain are the weights of a share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub log_sum_exp: bool,
}

/// A number type for summing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Accumulation {
    /// f32.
    #[default]
    F32,
    /// The f32 of tensor cores, which cut what does not fit instead of rounding
    /// (Fasi, Higham, Mikaitis & Pranesh 2021).
    #[serde(rename = "tensor_cores")]
    TensorCores,
    /// f16, as with `CUBLAS_COMPUTE_16F` or `half2` sums.
    F16,
}

impl Accumulation {
    /// Makes `bound`, that of f32 sums of `n` products each, the bound of its own sums. `sums` are their values, and
    /// `norms` gives the root of the sum of squared products of each.
    pub fn widen(self, bound: &mut [f32], n: usize, sums: &[f64], norms: impl FnOnce() -> Vec<f32>) {
        match self {
            Self::F32 => {}
            Self::TensorCores => bound.iter_mut().for_each(|b| *b *= 2.0),
            // Not f32's bound times the ratio of the units: that one is of the sum of all magnitudes.
            Self::F16 => {
                for ((b, sum), norm) in bound.iter_mut().zip(sums).zip(norms()) {
                    *b = b.hypot(half_sum(n, f64::from(norm), *sum) as f32);
                }
            }
        }
    }
}

/// How exponential, sine, cosine, division and roots are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Functions {
    /// To a few ULP, as C's library does.
    #[default]
    Precise,
    /// CUDA's `--use_fast_math`: `__expf` is off by 2 + 1.17·|x| ULP, `__sinf` by 2^-21.4, division by 2 ULP (CUDA C++
    /// Programming Guide, "Intrinsic Functions").
    Fast,
}

impl Functions {
    /// Factor on the bounds that are made for precise functions.
    pub fn factor(self) -> f64 {
        match self {
            Self::Precise => 1.0,
            Self::Fast => 4.0,
        }
    }
}

/// Lengths of the heads of all caches.
fn heads(graph: &Graph) -> impl Iterator<Item = usize> {
    graph.nodes.iter().filter_map(|node| if let Op::KvCache(cache) = &node.op { Some(cache.head_dim) } else { None })
}

/// Refuses caches of which a block would reach over two heads.
///
/// # Errors
/// The formats, and the length of a head.
pub fn check_heads(kv: KvType, graph: &Graph) -> Result<()> {
    let block = kv.block_size();
    match heads(graph).find(|head| !head.is_multiple_of(block)) {
        Some(head) => bail!(
            "a KV cache in {kv} has blocks of {block} elements, and a head of this model has {head}; take --kv-type f16"
        ),
        None => Ok(()),
    }
}

impl Arithmetic {
    /// Refuses what cannot be: formats that do not exist, or whose blocks do not fit the rows of a model.
    ///
    /// # Errors
    /// The first rule that is wrong.
    pub fn check(&self, graph: &Graph, weights: &dyn WeightSource) -> Result<()> {
        for rule in &self.linear {
            let known = |ty: &GgmlType| ty.name() == rule.weights;
            ensure!(
                rule.weights.is_empty() || GgmlType::ALL_SUPPORTED.iter().any(known),
                "linear: no weight format is called `{}`",
                rule.weights
            );
        }
        check_heads(self.kv, graph)?;
        for (name, scale) in &self.kv_scale {
            let caches = || graph.nodes.iter().filter(|n| matches!(n.op.anatomy(), Anatomy::State(State::Rows(_))));
            ensure!(
                caches().any(|n| n.id.name == *name || n.id.to_string() == *name),
                "kv_scale: no cache of this model is called `{name}`"
            );
            ensure!(scale.is_finite() && *scale > 0.0, "kv_scale: {scale} of `{name}` is no scale");
            ensure!(self.kv.block_size() == 1, "kv_scale: the blocks of {} have scales of their own", self.kv);
        }
        for AttentionRule { scores, context, .. } in &self.attention {
            if let Some(head) = heads(graph).find(|head| !head.is_multiple_of(scores.block_size())) {
                bail!("attention: {scores:?} has blocks of {}, and a head has {head} elements", scores.block_size());
            }
            ensure!(context.block_size() == 1, "attention: {context:?} has blocks; weights need a format without them");
        }
        let linear = graph.nodes.iter().filter(|n| n.op.anatomy().is_layer());
        for Weight { name, .. } in linear.flat_map(|n| &n.weights) {
            let (n, ty) = (weights.extent(name).0, weights.ggml_type(name));
            for rule in &self.linear {
                let block = rule.activations.block_size();
                ensure!(
                    !(rule.weights.is_empty() || rule.weights == ty.name()) || n.is_multiple_of(block),
                    "linear: {:?} has blocks of {block}, and the rows of `{name}` have {n} elements",
                    rule.activations
                );
            }
        }
        Ok(())
    }

    /// Its name, if it has one.
    pub fn name(&self) -> Option<Named> {
        Named::ALL.into_iter().find(|named| named.arithmetic() == *self)
    }

    /// By what the rows of `cache` are divided before they are rounded, if not by 1.
    pub fn kv_scale(&self, cache: StageId) -> Option<f32> {
        let of = self.kv_scale.get(&cache.to_string()).or_else(|| self.kv_scale.get(cache.name));
        of.copied().filter(|scale| *scale != 1.0)
    }

    /// What products with weights of type `ty` do in a step of `tokens`.
    pub fn linear(&self, ty: GgmlType, tokens: usize) -> LinearRule {
        let fits = |r: &&LinearRule| {
            (r.weights.is_empty() || r.weights == ty.name()) && r.up_to.is_none_or(|most| tokens <= most)
        };
        self.linear.iter().find(fits).cloned().unwrap_or_default()
    }

    /// What the attention does in a step of `tokens`.
    pub fn attention(&self, tokens: usize) -> AttentionRule {
        let fits = |r: &&AttentionRule| r.up_to.is_none_or(|most| tokens <= most);
        self.attention.iter().find(fits).cloned().unwrap_or_default()
    }
}
