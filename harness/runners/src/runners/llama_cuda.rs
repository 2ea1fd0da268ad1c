//! What llama.cpp's CUDA backend computes in, read from its source: the llama.cpp that llama-cpp-sys-2 0.1.161 carries,
//! on an NVIDIA GPU from Ampere on, flash attention off.
//!
//! `ggml_cuda_mul_mat` (ggml-cuda.cu) chooses a kernel by weight format and number of tokens:
//!
//! | weights | tokens | kernel | arithmetic |
//! | --- | --- | --- | --- |
//! | blocks | up to 8 | `mul_mat_vec_q` (mmvq.cu, `MMVQ_MAX_BATCH_SIZE`) | `quantize_q8_1`, integer dot products, f32 sums |
//! | blocks | more | `mul_mat_q` (mmq.cu) | `quantize_mmq_q8_1` in the layout of `mmq_get_q8_1_ds_layout`, f32 sums |
//! | F16 | 1 | `mul_mat_vec_f` (mmvf.cu) | activations and sums of a thread in f16 |
//! | F16 | up to 16 | `mul_mat_f` (mmf.cu) | activations in f16, tensor-core sums |
//! | F16 | more | cuBLAS, `CUBLAS_COMPUTE_16F` | activations, sums and output in f16 |
//! | BF16 | 1 | `mul_mat_vec_f` | f32 |
//! | BF16 | more | `mul_mat_f`, cuBLAS | activations in bf16, tensor-core sums |
//! | F32 | up to 3 | `mul_mat_vec_f` | f32 |
//! | F32 | up to 16 | `mul_mat_f` | tensor cores on f32 operands as they stand: cut to TF32, tensor-core sums |
//! | F32 | more | cuBLAS, `CUBLAS_TF32_TENSOR_OP_MATH` (common.cuh) | operands in TF32, ties to even (measured), tensor-core sums |
//!
//! The two products of the attention are F32 × F32 where the KV cache is F32, and F16 × F32 where it is F16. All
//! kernels are compiled with `-use_fast_math` (ggml-cuda/CMakeLists.txt). The number of tokens from which `mul_mat_q`
//! takes over is smaller for some K formats on consumer Ada and Blackwell, Volta and Orin
//! (`ggml_cuda_should_use_mmvq`).

use crate::arithmetic::{Accumulation, Arithmetic, AttentionRule, Functions, LinearRule};
use anyhow::{Result, bail};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, WeightSource};
use qdiff_engine::quant::{ActivationFormat, Content, FORMATS, Format, GgmlType, Mmq};

/// Most tokens that the kernels for quantised vectors take.
const MMVQ: usize = 8;
/// Most tokens that the tensor-core kernels for plain numbers take.
const MMF: usize = 16;
/// Most tokens that the vector kernel for F32 takes.
const MMVF_F32: usize = 3;

/// The arithmetic of llama.cpp's CUDA backend with a KV cache of type `kv`.
pub(super) fn arithmetic(kv: DType) -> Arithmetic {
    Arithmetic {
        linear: FORMATS.iter().flat_map(rules).collect(),
        attention: attention(kv),
        kv: kv.into(),
        functions: Functions::Fast,
        ..Arithmetic::default()
    }
}

/// Whether what llama.cpp's CUDA kernels compute with weights of type `ty` is described above.
pub fn described(ty: GgmlType) -> bool {
    ty.format().is_some_and(|format| format.mmq != Mmq::Unmeasured)
}

/// Refuses a model with a matrix of a format whose kernels nobody has held against a card: its bounds would be those of f32.
///
/// # Errors
/// The first such tensor, with its format and what to use instead.
pub fn measured(graph: &Graph, weights: &dyn WeightSource) -> Result<()> {
    let layers = graph.nodes.iter().filter(|n| n.op.anatomy().is_layer());
    for name in layers.flat_map(|n| &n.weights).map(|w| w.name.as_str()) {
        let ty = weights.ggml_type(name);
        if !described(ty) {
            bail!(
                "tensor `{name}` is {ty}, and qdiff does not know what llama.cpp's CUDA kernels make of activations \
                 beside it; use llama in place of llama-cuda"
            );
        }
    }
    Ok(())
}

/// The rules for weights of a format.
pub(super) fn rules(format: &Format) -> Vec<LinearRule> {
    let weights = format.ty.name();
    let rule =
        |up_to, activations| LinearRule { weights: weights.to_owned(), up_to, activations, ..LinearRule::default() };
    let on_tensor_cores =
        |up_to, activations| LinearRule { accumulation: Accumulation::TensorCores, ..rule(up_to, activations) };
    match format.content {
        Content::F32 => vec![
            rule(Some(MMVF_F32), ActivationFormat::F32),
            on_tensor_cores(Some(MMF), ActivationFormat::Tf32Truncated),
            on_tensor_cores(None, ActivationFormat::Tf32),
        ],
        Content::F16 => vec![
            LinearRule { accumulation: Accumulation::F16, ..rule(Some(1), ActivationFormat::F16) },
            on_tensor_cores(Some(MMF), ActivationFormat::F16),
            LinearRule { accumulation: Accumulation::F16, output: DType::F16, ..rule(None, ActivationFormat::F16) },
        ],
        Content::Bf16 => vec![rule(Some(1), ActivationFormat::F32), on_tensor_cores(None, ActivationFormat::Bf16)],
        Content::Quants(_) | Content::Codes(_) => {
            let mmq = match format.mmq {
                Mmq::D4 => ActivationFormat::Q8_1MmqD4,
                Mmq::Ds4 => ActivationFormat::Q8_1MmqDs4,
                // Refused by `measured`.
                Mmq::Unmeasured | Mmq::None => return Vec::new(),
            };
            vec![rule(Some(MMVQ), ActivationFormat::Q8_1Mmvq), rule(None, mmq)]
        }
    }
}

/// `build_attn_mha` asks for f32 in the scores (`GGML_PREC_F32`), which the
/// vector kernel and cuBLAS heed and the tensor-core kernels do not.
fn attention(kv: DType) -> Vec<AttentionRule> {
    use Accumulation::TensorCores;
    use ActivationFormat::{Bf16, F16, F32, Tf32, Tf32Truncated};
    let rule = |up_to, scores, context, accumulation| AttentionRule {
        up_to,
        scores,
        context,
        accumulation,
        ..AttentionRule::default()
    };
    match kv {
        DType::F32 => vec![
            rule(Some(MMVF_F32), F32, F32, Accumulation::F32),
            rule(Some(MMF), Tf32Truncated, Tf32Truncated, TensorCores),
            rule(None, Tf32, Tf32, TensorCores),
        ],
        DType::F16 => vec![
            // One token: the scores in f32, the context in f16 sums.
            rule(Some(1), F32, F16, Accumulation::F16),
            rule(Some(MMF), F16, F16, TensorCores),
            rule(None, Tf32, F16, Accumulation::F16),
        ],
        DType::Bf16 => vec![rule(Some(1), F32, F32, Accumulation::F32), rule(None, Bf16, Bf16, TensorCores)],
        // No such cache is made.
        DType::F8E4m3 | DType::F8E5m2 => Vec::new(),
    }
}
