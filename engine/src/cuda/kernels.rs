//! The kernels of `engine/kernels`, and the parameters of each, declared once.
//!
//! A kernel takes one struct by value. Its fields are here as Rust lays them out and in the kernel's file as CUDA
//! does; [`File::checks`] has the compiler compare the two, and `functions` asks the driver for the size of
//! what was compiled.

use super::layouts::{Batch, Best, Choice, Operand, Ptr, Shared, Stream, Walk};
use super::weights::Planes;
use std::ffi::c_void;
use std::mem::offset_of;

/// A field of a kernel's parameters: name, type, offset and size in bytes.
type Field = (&'static str, &'static str, usize, usize);

/// Declares the kernel files: `Variant(Parameters) "path" { field: type, ... }`.
macro_rules! kernels {
    ($($(#[$meta:meta])* $file:ident($params:ident) $path:literal {
        $($field:ident: $ty:ty,)*
    })*) => {
        /// A file of `engine/kernels` with one kernel in it, which is named as the file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum File {
            $($(#[$meta])* #[doc = concat!("`", $path, "`.")] $file,)*
        }

        impl File {
            /// Every file.
            pub const ALL: &[Self] = &[$($(#[$meta])* Self::$file,)*];

            /// Path below `engine/kernels`.
            pub fn path(self) -> &'static str {
                match self {
                    $($(#[$meta])* Self::$file => $path,)*
                }
            }

            fn text(self) -> &'static str {
                match self {
                    $($(#[$meta])* Self::$file => include_str!(concat!("../../kernels/", $path)),)*
                }
            }

            /// Name and size in bytes of the kernel's parameters, and their fields.
            pub fn params(self) -> (&'static str, usize, &'static [Field]) {
                match self {
                    $($(#[$meta])* Self::$file => (stringify!($params), size_of::<$params>(), const {
                        &[$((
                            stringify!($field),
                            stringify!($ty),
                            offset_of!($params, $field),
                            size_of::<$ty>(),
                        ),)*]
                    }),)*
                }
            }
        }

        $(
            $(#[$meta])*
            #[doc = concat!("Parameters of the kernel in `", $path, "`, which says what they are.")]
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq)]
            #[expect(missing_docs, reason = "the kernel's file says what each is")]
            pub struct $params {
                $(pub $field: $ty,)*
            }

            $(#[$meta])*
            impl From<$params> for Params {
                fn from(params: $params) -> Self {
                    Self::$file(params)
                }
            }
        )*

        /// Parameters of a kernel.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Params {
            $($(#[$meta])* #[doc = concat!("Of `", $path, "`.")] $file($params),)*
        }

        impl Params {
            /// The file of the kernel that takes them.
            pub fn file(&self) -> File {
                match self {
                    $($(#[$meta])* Self::$file(_) => File::$file,)*
                }
            }

            /// Their addresses, in the form that CUDA takes.
            pub fn address(&self) -> *const c_void {
                match self {
                    $($(#[$meta])* Self::$file(params) => std::ptr::from_ref(params).cast(),)*
                }
            }

            /// The struct itself, to be changed.
            #[cfg(any(test, feature = "faults"))]
            pub fn get_mut(&mut self) -> &mut dyn std::any::Any {
                match self {
                    $(Self::$file(params) => params,)*
                }
            }
        }
    };
}

kernels! {
    Embed(EmbedParams) "embed.cu" { tokens: Ptr, w: Planes, y: Ptr, width: i32, }
    RmsNorm(RmsNormParams) "rms_norm.cu" { x: Ptr, w: Ptr, y: Ptr, n: i32, eps: f32, }
    Linear(LinearParams) "linear.cu" { x: Ptr, w: Planes, y: Ptr, n: i32, m: i32, tokens: i32, }
    Dequantise(DequantiseParams) "dequantise.cu" { w: Planes, y: Ptr, groups: i32, }
    Bias(BiasParams) "bias.cu" { x: Ptr, b: Ptr, y: Ptr, n: i32, count: i32, }
    Rope(RopeParams) "rope.cu" {
        x: Ptr, frequency: Ptr, y: Ptr, heads: i32, d: i32, adjacent: i32, first: i32, tokens: i32, rotated: i32,
        magnitude: f32, batch: Batch,
    }
    KvCache(KvCacheParams) "kv_cache.cu" {
        rows: Ptr, cache: Ptr, width: i32, first: i32, tokens: i32, batch: Batch,
    }
    KvRead(KvReadParams) "kv_read.cu" { cache: Ptr, out: Ptr, count: i32, }
    AttnScores(AttnScoresParams) "attn_scores.cu" {
        q: Ptr, k: Ptr, s: Ptr, heads: i32, kv_heads: i32, d: i32, first: i32, tokens: i32, keys: i32, batch: Batch,
    }
    AttnWeights(AttnWeightsParams) "attn_weights.cu" {
        s: Ptr, y: Ptr, scale: f32, first: i32, tokens: i32, keys: i32, batch: Batch,
    }
    AttnContext(AttnContextParams) "attn_context.cu" {
        w: Ptr, v: Ptr, c: Ptr, heads: i32, kv_heads: i32, d: i32, first: i32, tokens: i32, keys: i32, batch: Batch,
    }
    Residual(ResidualParams) "residual.cu" { a: Ptr, b: Ptr, y: Ptr, count: i32, }
    SwiGlu(SwiGluParams) "swiglu.cu" { gate: Ptr, up: Ptr, y: Ptr, count: i32, }
    TopK(TopKParams) "top_k.cu" { x: Ptr, y: Ptr, n: i32, k: i32, }
    Gather(GatherParams) "gather.cu" { x: Ptr, chosen: Ptr, y: Ptr, n: i32, k: i32, count: i32, }
    Columns(ColumnsParams) "columns.cu" {
        x: Ptr, y: Ptr, n: i32, first: i32, run: i32, stride: i32, width: i32, count: i32,
    }
    ExpertLinear(ExpertLinearParams) "expert_linear.cu" {
        x: Ptr, chosen: Ptr, w: Planes, y: Ptr, n: i32, m: i32, experts: i32, lines_of_row: i32,
    }
    ExpertFactor(ExpertFactorParams) "expert_factor.cu" {
        x: Ptr, chosen: Ptr, w: Ptr, y: Ptr, m: i32, experts: i32, count: i32,
    }
    WeightedSum(WeightedSumParams) "weighted_sum.cu" { w: Ptr, x: Ptr, y: Ptr, n: i32, terms: i32, count: i32, }
    RowSoftmax(RowSoftmaxParams) "row_softmax.cu" { x: Ptr, y: Ptr, n: i32, }
    RowShares(RowSharesParams) "row_shares.cu" { x: Ptr, y: Ptr, k: i32, count: i32, }
    Unary(UnaryParams) "unary.cu" { x: Ptr, y: Ptr, count: i32, }
    Softplus(SoftplusParams) "softplus.cu" { x: Ptr, b: Ptr, y: Ptr, n: i32, count: i32, }
    Factors(FactorsParams) "factors.cu" { a: Ptr, b: Ptr, y: Ptr, n: i32, count: i32, }
    L2Norm(L2NormParams) "l2_norm.cu" { x: Ptr, y: Ptr, d: i32, repeats: i32, eps: f32, }
    Convolution(ConvolutionParams) "convolution.cu" {
        x: Ptr, before: Ptr, w: Ptr, y: Ptr, n: i32, taps: i32, apart: i32, count: i32,
    }
    Window(WindowParams) "window.cu" { x: Ptr, state: Ptr, before: Ptr, n: i32, rows: i32, tokens: i32, }
    DeltaNet(DeltaNetParams) "delta_net.cu" {
        q: Ptr, k: Ptr, v: Ptr, g: Ptr, beta: Ptr, from: Ptr, before: Ptr, to: Ptr, y: Ptr, heads: i32, key_heads: i32,
        d: i32, tokens: i32,
    }
    StreamNorm(StreamNormParams) "stream_norm.cu" { x: Ptr, w: Ptr, y: Ptr, n: i32, streams: i32, eps: f32, }
    GatedMean(GatedMeanParams) "gated_mean.cu" { x: Ptr, gate: Ptr, y: Ptr, n: i32, streams: i32, count: i32, }
    StreamSum(StreamSumParams) "stream_sum.cu" { base: Ptr, x: Ptr, w: Ptr, y: Ptr, n: i32, streams: i32, count: i32, }
    StreamDots(StreamDotsParams) "stream_dots.cu" { a: Ptr, b: Ptr, y: Ptr, n: i32, scale: f32, }
    Curve(CurveParams) "curve.cu" { x: Ptr, y: Ptr, share: f32, count: i32, }
    SigmoidGate(SigmoidGateParams) "sigmoid_gate.cu" { gate: Ptr, x: Ptr, y: Ptr, count: i32, }
    Total(TotalParams) "total.cu" { a: Ptr, b: Ptr, c: Ptr, y: Ptr, count: i32, }
    BlockScores(BlockScoresParams) "block_scores.cu" {
        q: Ptr, k: Ptr, w: Ptr, frequency: Ptr, y: Ptr, heads: i32, d: i32, block: i32, rotated: i32, first: i32, keys: i32,
        eps: f32, magnitude: f32,
    }
    TopBlocks(TopBlocksParams) "top_blocks.cu" { x: Ptr, y: Ptr, picks: i32, block: i32, first: i32, keys: i32, }
    ChosenWeights(ChosenWeightsParams) "chosen_weights.cu" {
        s: Ptr, chosen: Ptr, y: Ptr, scale: f32, first: i32, tokens: i32, keys: i32,
    }
    EmbedToken(EmbedTokenParams) "fused/embed_token.cu" {
        w: Planes, x: Ptr, position_at: Ptr, width: i32, token: u32, position: i32, stamps: Ptr,
    }
    AttnQkv(AttnQkvParams) "fused/attn_qkv.cu" {
        x: Stream, norm: Ptr, bias: [Ptr; 3], head_norm: [Ptr; 2], frequency: Ptr, w: [Planes; 3], position_at: Ptr,
        q: Ptr, k_cache: Ptr, v_cache: Ptr, norm_tap: Ptr, proj_tap: [Ptr; 3], biased_tap: [Ptr; 3],
        normed_tap: [Ptr; 2], rope_tap: [Ptr; 2], walk: Walk, n: i32, heads: i32, kv_heads: i32, eps: f32,
        makers: [i32; 3], stamps: Ptr,
    }
    Attention(AttentionParams) "fused/attention.cu" {
        q: Ptr, k: Ptr, v: Ptr, partial: [Ptr; 2], position_at: Ptr, scores_tap: Ptr, weights_tap: Ptr, scale: f32,
        early: i32, stamps: Ptr, batch: Batch, rows: Ptr, tokens: i32, keys: i32,
    }
    JoinShares(JoinSharesParams) "prefill/join_shares.cu" {
        partial: [Ptr; 2], batch: Batch, rows: Ptr, out: Ptr, scores_tap: Ptr, weights_tap: Ptr, heads: i32, splits: i32,
        tokens: i32, keys: i32,
    }
    AttentionHalves(AttentionHalvesParams) "fused/attention_halves.cu" {
        q: Ptr, k: Ptr, v: Ptr, partial: [Ptr; 2], position_at: Ptr, scores_tap: Ptr, weights_tap: Ptr, scale: f32, stamps: Ptr,
    }
    AttnOut(AttnOutParams) "fused/attn_out.cu" {
        partial: [Ptr; 2], w: Planes, a: Stream, y: Ptr, position_at: Ptr, weights_tap: Ptr, context_tap: Ptr,
        product_tap: Ptr, y_tap: Ptr, walk: Walk, n: i32, m: i32, heads: i32, splits: i32, makers: i32,
        stamps: Ptr,
    }
    NormRows(NormRowsParams) "prefill/norm_rows.cu" {
        base: Ptr, product: Shared, sum: Ptr, weight: Ptr, to: Operand, product_tap: Ptr, norm_tap: Ptr, n: i32, eps: f32,
    }
    Products(ProductsParams) "prefill/products.cu" {
        x: Operand, w: [Planes; 3], y: [Ptr; 3], m: [i32; 3], n: i32, tokens: i32, first: i32,
    }
    WideProducts(WideProductsParams) "prefill/wide_products.cu" {
        x: Operand, images: [Ptr; 3], minima: [Ptr; 3], y: [Ptr; 3], rest: [Ptr; 3], m: [i32; 3], n: i32, tokens: i32,
        whole: i32, shares: i32, token0: i32,
    }
    Widen(WidenParams) "prefill/widen.cu" { w: Planes, images: Ptr, minima: Ptr, n: i32, m: i32, }
    HeadRows(HeadRowsParams) "prefill/head_rows.cu" {
        product: [Shared; 3], bias: [Ptr; 3], head_norm: [Ptr; 2], frequency: Ptr, q: Ptr, k_cache: Ptr, v_cache: Ptr,
        proj_tap: [Ptr; 3], biased_tap: [Ptr; 3], normed_tap: [Ptr; 2], k_tap: Ptr, heads: i32, kv_heads: i32,
        first: i32, eps: f32, batch: Batch,
    }
    CacheTiles(CacheTilesParams) "prefill/cache_tiles.cu" {
        k: Ptr, v: Ptr, tiles: Ptr, kv_heads: i32, keys: i32, table: Ptr,
    }
    AttentionRows(AttentionRowsParams) "prefill/attention_rows.cu" {
        q: Ptr, tiles: Ptr, out: Ptr, scores_tap: Ptr, weights_tap: Ptr, heads: i32, kv_heads: i32,
        first: i32, tokens: i32, scale: f32, tap_tokens: i32, tap_keys: i32,
    }
    WideAttention(WideAttentionParams) "prefill/wide_attention.cu" {
        q: Ptr, tiles: Ptr, out: Ptr, scores_tap: Ptr, weights_tap: Ptr, heads: i32, kv_heads: i32,
        first: i32, tokens: i32, scale: f32, tap_tokens: i32, tap_keys: i32,
    }
    PrepareRows(PrepareRowsParams) "prefill/prepare_rows.cu" { x: Ptr, to: Operand, n: i32, }
    ActRows(ActRowsParams) "prefill/act_rows.cu" {
        gate: Shared, up: Shared, to: Operand, gate_tap: Ptr, up_tap: Ptr, tap: Ptr, n: i32,
    }
    HalfLinear(HalfLinearParams) "fused/half_linear.cu" {
        x: Ptr, w: Planes, y: [Ptr; 2], walk: Walk, n: i32, m: i32, first: i32, stamps: Ptr,
    }
    FfnAct(FfnActParams) "fused/ffn_act.cu" {
        x: Ptr, norm: Ptr, gate: Planes, up: Planes, y: Ptr, norm_tap: Ptr, gate_tap: Ptr, up_tap: Ptr, y_tap: Ptr,
        walk: Walk, n: i32, m: i32, eps: f32, stamps: Ptr,
    }
    Router(RouterParams) "fused/router.cu" {
        x: Stream, norm: Ptr, w: Planes, normed: Ptr, y: Ptr, norm_tap: Ptr, y_tap: Ptr, n: i32, m: i32, eps: f32, stamps: Ptr,
    }
    ExpertAct(ExpertActParams) "fused/expert_act.cu" {
        x: Ptr, choice: Choice, gate: Planes, up: Planes, y: Ptr, gate_tap: Ptr, up_tap: Ptr, y_tap: Ptr, walk: Walk, n: i32,
        m: i32, stamps: Ptr,
    }
    ExpertDown(ExpertDownParams) "fused/expert_down.cu" {
        x: Ptr, chosen: Ptr, weights: Ptr, base: Ptr, w: Planes, y: Ptr, down_tap: Ptr, sum_tap: Ptr, y_tap: Ptr, walk: Walk,
        n: i32, m: i32, taken: i32, stamps: Ptr,
    }
    ExpertRows(ExpertRowsParams) "prefill/expert_rows.cu" {
        x: Ptr, chosen: Ptr, w: Planes, y: Ptr, n: i32, m: i32, experts: i32, lines: i32, lines_of_row: i32, at_once: i32,
    }
    MixerIn(MixerInParams) "fused/mixer_in.cu" {
        x: Stream, norm: Ptr, w: [Planes; 4], y: [Ptr; 4], norm_tap: Ptr, product_tap: [Ptr; 4], kernel: Ptr, window: Ptr,
        shift: Ptr, rate: Ptr, window_tap: Ptr, convolved_tap: Ptr, act_tap: Ptr, q_tap: Ptr, k_tap: Ptr, v_tap: Ptr,
        beta_tap: Ptr, soft_tap: Ptr, decay_tap: Ptr, past: i32, keys: i32, walk: Walk, n: i32, m: [i32; 4], makers: [i32; 4],
        eps: f32, stamps: Ptr,
    }
    DeltaStep(DeltaStepParams) "fused/delta_step.cu" {
        act: Ptr, beta: Ptr, decay: Ptr, state: Ptr, y: Ptr, q_tap: Ptr, k_tap: Ptr, state_tap: Ptr, y_tap: Ptr, heads: i32,
        key_heads: i32, q_eps: f32, k_eps: f32, stamps: Ptr,
    }
    MixerOut(MixerOutParams) "fused/mixer_out.cu" {
        x: Ptr, z: Ptr, norm: Ptr, w: Planes, a: Stream, y: Ptr, normed_tap: Ptr, gated_tap: Ptr, product_tap: Ptr, y_tap: Ptr,
        walk: Walk, n: i32, m: i32, eps: f32, stamps: Ptr,
    }
    GatedHeads(GatedHeadsParams) "fused/gated_heads.cu" {
        both: Ptr, k: Ptr, v: Ptr, norm: [Ptr; 2], frequency: Ptr, position_at: Ptr, q: Ptr, gate: Ptr, k_cache: Ptr,
        v_cache: Ptr, half_tap: Ptr, gate_tap: Ptr, normed_tap: [Ptr; 2], rope_tap: [Ptr; 2], heads: i32, kv_heads: i32,
        rotated: i32, eps: f32, stamps: Ptr,
    }
    GatedContext(GatedContextParams) "fused/gated_context.cu" {
        partial: [Ptr; 2], gate: Ptr, y: Ptr, position_at: Ptr, weights_tap: Ptr, context_tap: Ptr, sigmoid_tap: Ptr,
        gated_tap: Ptr, splits: i32, stamps: Ptr,
    }
    LmHead(LmHeadParams) "fused/lm_head.cu" {
        x: Stream, norm: Ptr, w: Planes, logits: Ptr, best: Best, norm_tap: Ptr, walk: Walk, n: i32, m: i32, eps: f32,
        stamps: Ptr,
    }
    Argmax(ArgmaxParams) "fused/argmax.cu" { logits: Ptr, best: Best, m: i32, stamps: Ptr, }
    CacheRows(CacheRowsParams) "fused/cache_rows.cu" { caches: Ptr, out: Ptr, width: i32, newest: i32, known: i32, }
    #[cfg(any(test, feature = "faults"))]
    LinearTransposed(LinearTransposedParams) "faults/linear_transposed.cu" {
        w: Ptr, x: Ptr, y: Ptr, n: i32, m: i32,
    }
    #[cfg(any(test, feature = "faults"))]
    ScoresInterleaved(ScoresInterleavedParams) "faults/scores_interleaved.cu" {
        q: Ptr, k: Ptr, s: Ptr, heads: i32, kv_heads: i32, d: i32, first: i32, tokens: i32, keys: i32,
    }
    #[cfg(any(test, feature = "faults"))]
    Gelu(GeluParams) "faults/gelu.cu" { gate: Ptr, up: Ptr, y: Ptr, count: i32, }
    #[cfg(any(test, feature = "faults"))]
    LeftOut(LeftOutParams) "faults/left_out.cu" {
        x: Ptr, y: Ptr, width: i32, stride: i32, phase: i32, count: i32,
    }
    #[cfg(any(test, feature = "faults"))]
    ZeroedHead(ZeroedHeadParams) "faults/zeroed_head.cu" { y: Ptr, heads: i32, d: i32, head: i32, count: i32, }
    #[cfg(any(test, feature = "faults"))]
    Copy(CopyParams) "faults/copy.cu" { x: Ptr, y: Ptr, count: i32, }
}

impl Params {
    /// The place where the blocks of a decode kernel's launch write when they began, had waited, and ended.
    pub fn stamps(&mut self) -> Option<&mut Ptr> {
        Some(match self {
            Self::EmbedToken(params) => &mut params.stamps,
            Self::AttnQkv(params) => &mut params.stamps,
            Self::Attention(params) => &mut params.stamps,
            Self::AttentionHalves(params) => &mut params.stamps,
            Self::AttnOut(params) => &mut params.stamps,
            Self::HalfLinear(params) => &mut params.stamps,
            Self::FfnAct(params) => &mut params.stamps,
            Self::Router(params) => &mut params.stamps,
            Self::ExpertAct(params) => &mut params.stamps,
            Self::ExpertDown(params) => &mut params.stamps,
            Self::MixerIn(params) => &mut params.stamps,
            Self::DeltaStep(params) => &mut params.stamps,
            Self::MixerOut(params) => &mut params.stamps,
            Self::GatedHeads(params) => &mut params.stamps,
            Self::GatedContext(params) => &mut params.stamps,
            Self::LmHead(params) => &mut params.stamps,
            Self::Argmax(params) => &mut params.stamps,
            _ => return None,
        })
    }
}

/// What kernels include, by path below `engine/kernels`.
const HEADERS: [(&str, &str); 25] = [
    ("barriers.cuh", include_str!("../../kernels/barriers.cuh")),
    ("batch.cuh", include_str!("../../kernels/batch.cuh")),
    ("blocks.cuh", include_str!("../../kernels/blocks.cuh")),
    ("choice.cuh", include_str!("../../kernels/choice.cuh")),
    ("kv.cuh", include_str!("../../kernels/kv.cuh")),
    ("kv_types.cuh", include_str!("../../kernels/kv_types.cuh")),
    ("matrices.cuh", include_str!("../../kernels/matrices.cuh")),
    ("reduce.cuh", include_str!("../../kernels/reduce.cuh")),
    ("fused/decode.cuh", include_str!("../../kernels/fused/decode.cuh")),
    ("fused/best.cuh", include_str!("../../kernels/fused/best.cuh")),
    ("fused/cluster.cuh", include_str!("../../kernels/fused/cluster.cuh")),
    ("fused/shares.cuh", include_str!("../../kernels/fused/shares.cuh")),
    ("fused/experts.cuh", include_str!("../../kernels/fused/experts.cuh")),
    ("fused/digits.cuh", include_str!("../../kernels/fused/digits.cuh")),
    ("fused/tile.cuh", include_str!("../../kernels/fused/tile.cuh")),
    ("fused/ring.cuh", include_str!("../../kernels/fused/ring.cuh")),
    ("fused/rows.cuh", include_str!("../../kernels/fused/rows.cuh")),
    ("fused/stream.cuh", include_str!("../../kernels/fused/stream.cuh")),
    ("prefill/operand.cuh", include_str!("../../kernels/prefill/operand.cuh")),
    ("prefill/row.cuh", include_str!("../../kernels/prefill/row.cuh")),
    ("prefill/shares.cuh", include_str!("../../kernels/prefill/shares.cuh")),
    ("prefill/pieces.cuh", include_str!("../../kernels/prefill/pieces.cuh")),
    ("prefill/warpgroups.cuh", include_str!("../../kernels/prefill/warpgroups.cuh")),
    ("prefill/wide.cuh", include_str!("../../kernels/prefill/wide.cuh")),
    ("prefill/cache.cuh", include_str!("../../kernels/prefill/cache.cuh")),
];

/// Every file that an `#include` may name, with its text.
pub fn included() -> impl Iterator<Item = (&'static str, &'static str)> {
    HEADERS.into_iter().chain(File::ALL.iter().map(|file| (file.path(), file.text())))
}

impl File {
    /// Name of the kernel.
    pub fn name(self) -> &'static str {
        let path = self.path();
        path.rsplit('/').next().unwrap_or(path).trim_end_matches(".cu")
    }

    /// Whether the kernel, where it is launched alone, waits for the one before it (`wait_for_turn` of `decode.cuh`).
    pub fn waits(self) -> bool {
        self.path().starts_with("prefill/") || self == Self::Attention
    }

    /// What the compiler must find true of the kernel's parameters: the size of the struct, and the offset, size and
    /// type of each field.
    pub fn checks(self) -> String {
        let (name, size, fields) = self.params();
        let mut text = format!("{SAME}static_assert(sizeof({name}) == {size}, \"size of {name}\");\n");
        for (field, ty, offset, size) in fields {
            // NVRTC's own spelling of offsetof: it has neither the macro nor a header that brings it.
            let at = format!("__INTADDR__(&(({name} *)0)->{field})");
            let same = match *ty {
                "i32" => format!(" && same<decltype({name}::{field}), int>"),
                "u32" => format!(" && same<decltype({name}::{field}), unsigned>"),
                "f32" => format!(" && same<decltype({name}::{field}), float>"),
                _ => String::new(),
            };
            text += &format!(
                "static_assert({at} == {offset} && sizeof({name}::{field}) == {size}{same}, \
                 \"{name}::{field} is {ty} at {offset} in Rust\");\n"
            );
        }
        text
    }
}

/// Whether two types are one, for [`File::checks`].
const SAME: &str = "template <typename, typename> constexpr bool same = false;\n\
                    template <typename T> constexpr bool same<T, T> = true;\n";

/// The value of `constexpr int NAME = ...;` in a kernel's file, so that a number which both sides need is there
/// alone. The value may be a number, another such constant, or a product of these. Evaluated at compile time, which
/// fails where the file says nothing of the name.
pub const fn value_of(text: &str, name: &str) -> u32 {
    const DECLARED: &str = "constexpr int ";
    let mut at = 0;
    while at < text.len() {
        let end = at + DECLARED.len() + name.len();
        if starts(text, at, DECLARED) && starts(text, at + DECLARED.len(), name) && starts(text, end, " = ") {
            return product(text, end + 3);
        }
        at += 1;
    }
    panic!("no such constant in the kernel's file")
}

const fn starts(text: &str, at: usize, with: &str) -> bool {
    let (text, with, mut i) = (text.as_bytes(), with.as_bytes(), 0);
    while i < with.len() {
        if at + i >= text.len() || text[at + i] != with[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// The product at `at`, which ends with a semicolon.
const fn product(text: &str, mut at: usize) -> u32 {
    let (bytes, mut value) = (text.as_bytes(), 1);
    loop {
        let mut end = at;
        while bytes[end].is_ascii_alphanumeric() || bytes[end] == b'_' {
            end += 1;
        }
        let factor = text.split_at(end).0.split_at(at).1;
        value *= match u32::from_str_radix(factor, 10) {
            Ok(number) => number,
            Err(_) => value_of(text, factor),
        };
        if bytes[end] == b';' {
            return value;
        }
        assert!(starts(text, end, " * "), "a constant that is no product");
        at = end + 3;
    }
}

/// [`value_of`] in a file of `engine/kernels`, by its path.
macro_rules! constant {
    ($path:literal, $name:literal) => {
        const { $crate::cuda::kernels::value_of(include_str!(concat!("../../kernels/", $path)), $name) }
    };
}
pub(super) use constant;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_read_where_they_stand() {
        const TEXT: &str = "constexpr int A = 3; // that\nconstexpr int AB = 4 * A * A;\n";
        assert_eq!([value_of(TEXT, "A"), value_of(TEXT, "AB")], [3, 36]);
    }

    #[test]
    fn no_kernel_file_is_forgotten() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        for sub in ["", "fused", "prefill", "faults"] {
            for entry in std::fs::read_dir(folder.join(sub)).expect("a folder of kernels") {
                let path = entry.expect("an entry").path();
                let known = included().any(|(known, _)| folder.join(known) == path);
                let code = path.extension().is_some_and(|e| e == "cu" || e == "cuh");
                assert!(known || !code, "{}", path.display());
            }
        }
    }
}
