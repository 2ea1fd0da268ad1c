//! ggml's number formats: what a type is, and how its blocks become `f32`.
//!
//! One file per block format, each with its description, a [`Format`], and `dequantize_block`. The results are
//! bit-equal to ggml's `to_float`: the same operations in the same order, each rounded once (no fused multiply-add).
//!
//! [`activations`] is the other side of a dot product: what engines turn `f32`
//! activations into before they multiply; [`AsMultiplied`] and [`block_offsets`]
//! say what kernels do to the weights themselves.

mod activation_format;
pub mod activations;
mod bf16;
mod cached;
mod codebook;
mod f16;
mod f32;
mod format;
mod grids;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod k_blocks;
mod kv;
mod mxfp4;
mod nibbles;
mod nvfp4;
mod products;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod source;
mod tq1_0;
mod tq2_0;
mod types;

#[cfg(test)]
mod tests;

pub use activation_format::ActivationFormat;
pub use activations::{Tie, emulate, settled, store, sum_residuals, ties, uncertainty};
pub use format::{Codes, Content, Field, Format, Mmq, Offset, Part, Quants};
pub use kv::{CACHES, KvType, NoKvType};
pub use products::{
    AsMultiplied, WithoutOffsets, block_offsets, half_products, offsets, run_of_offsets, takes_sums, with_quants,
};
pub use source::{SomeRows, Stored, WeightSource};
pub use types::GgmlType;

/// The formats by the modules that describe them.
macro_rules! formats {
    ($($module:ident)*) => {
        /// Every format that [`dequantize`] unpacks.
        pub static FORMATS: &[Format] = &[$($module::FORMAT),*];

        impl GgmlType {
            /// The types of [`FORMATS`].
            pub const ALL_SUPPORTED: &'static [Self] = &[$($module::FORMAT.ty),*];
        }

        $(const _: () = assert!($module::FORMAT.fills_its_block(), "fields and block differ in length");)*

        /// Unpacks rows of a supported type; lengths are checked by the caller.
        #[inline(always)]
        fn unpack(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
            $(
                if ty == $module::FORMAT.ty {
                    const TY: GgmlType = $module::FORMAT.ty;
                    let (from, _) = bytes.as_chunks::<{ TY.type_size() }>();
                    let (to, _) = out.as_chunks_mut::<{ TY.block_size() }>();
                    // Called here and not handed on, so that it is compiled as the caller is.
                    for (b, w) in from.iter().zip(to) {
                        $module::dequantize_block(b, w);
                    }
                    return;
                }
            )*
        }
    };
}

formats! {
    f32 f16 bf16
    q1_0 q2_0 q4_0 q4_1 q5_0 q5_1 q8_0
    q2_k q3_k q4_k q5_k q6_k
    iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_nl iq4_xs
    tq1_0 tq2_0 mxfp4 nvfp4
}

/// Unpacks `bytes`, whole blocks of type `ty`, into `out`.
///
/// `out.len()` is the number of weights; it must be a multiple of
/// [`GgmlType::block_size`], and `bytes.len()` must be
/// [`GgmlType::row_bytes`]`(out.len())`. Any number of consecutive rows may be
/// unpacked by one call, since rows are whole blocks. The result is bit-equal
/// to ggml's `to_float` (a NaN may differ in its payload).
///
/// # Panics
/// If the two lengths do not match, or `ty` is not in
/// [`GgmlType::ALL_SUPPORTED`]: a model of such a type is refused at load.
pub fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    assert!(
        ty.is_supported() && out.len().is_multiple_of(ty.block_size()) && bytes.len() == ty.row_bytes(out.len()),
        "{} bytes of {ty} do not unpack to {} weights",
        bytes.len(),
        out.len()
    );
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
        // SAFETY: the CPU was just found to have the features the function is compiled for.
        return unsafe { unpack_avx2(ty, bytes, out) };
    }
    unpack(ty, bytes, out);
}

/// [`unpack`] compiled for AVX2, so that LLVM's vectoriser may use it. Without
/// "fma": each product and sum must be rounded on its own.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn unpack_avx2(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    unpack(ty, bytes, out);
}
