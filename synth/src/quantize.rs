//! Values in a storage type, by ggml's own quantisation.

use crate::tensor::Tensor;
#[cfg(feature = "ggml")]
use llama_cpp_sys_2 as sys;
use qdiff_engine::quant::GgmlType;

/// Whether a tensor can be written in this type: without ggml nothing is quantised.
pub(crate) fn writes(ty: GgmlType) -> bool {
    cfg!(feature = "ggml") || ty == GgmlType::F32
}

/// The values of a tensor in its storage type, which is F32: there is no ggml to quantise them.
#[cfg(not(feature = "ggml"))]
pub(crate) fn quantize(t: &Tensor, values: &[f32]) -> Vec<u8> {
    assert!(writes(t.ty), "{}: `Synth::validate` refuses {}", t.name, t.ty.name());
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The values of a tensor in its storage type, by ggml's own quantisation.
#[cfg(feature = "ggml")]
pub(crate) fn quantize(t: &Tensor, values: &[f32]) -> Vec<u8> {
    let per_row = t.ne[0];
    let rows = values.len() / per_row;
    // SAFETY: the type is one of ggml's, and rows are whole blocks.
    let size = unsafe { sys::ggml_row_size(t.ty.id(), per_row as i64) } * rows;
    // Of u64, so that the blocks' own fields are aligned.
    let mut buffer = vec![0_u64; size.div_ceil(8)];
    // All columns matter alike to quantisers that want to know.
    let importance = vec![1.0f32; per_row];
    // SAFETY: `values` has `rows * per_row` floats, `importance` one for each column, `buffer` at least the `size` bytes
    // that ggml needs for them.
    let written = unsafe {
        let wanted = sys::ggml_quantize_requires_imatrix(t.ty.id());
        sys::ggml_quantize_chunk(
            t.ty.id(),
            values.as_ptr(),
            buffer.as_mut_ptr().cast(),
            0,
            rows as i64,
            per_row as i64,
            if wanted { importance.as_ptr() } else { std::ptr::null() },
        )
    };
    assert_eq!(written, size, "{}: ggml wrote another size", t.name);
    let mut bytes: Vec<u8> = buffer.iter().flat_map(|w| w.to_ne_bytes()).collect();
    bytes.truncate(size);
    bytes
}
