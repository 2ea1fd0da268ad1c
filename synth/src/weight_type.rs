//! Storage types, and values in them by ggml's own quantisation.

use crate::Tensor;
use llama_cpp_sys_2 as sys;

/// The storage type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(non_camel_case_types, reason = "ggml's own names")]
pub enum WeightType {
    /// 32-bit floats.
    F32 = sys::GGML_TYPE_F32,
    /// IEEE half precision.
    F16 = sys::GGML_TYPE_F16,
    /// bfloat16.
    BF16 = sys::GGML_TYPE_BF16,
    /// 4 bits in blocks of 32, scale.
    Q4_0 = sys::GGML_TYPE_Q4_0,
    /// 4 bits in blocks of 32, scale and minimum.
    Q4_1 = sys::GGML_TYPE_Q4_1,
    /// 5 bits in blocks of 32, scale.
    Q5_0 = sys::GGML_TYPE_Q5_0,
    /// 5 bits in blocks of 32, scale and minimum.
    Q5_1 = sys::GGML_TYPE_Q5_1,
    /// 8 bits in blocks of 32, scale.
    Q8_0 = sys::GGML_TYPE_Q8_0,
    /// 4 bits in super-blocks of 256.
    Q4_K = sys::GGML_TYPE_Q4_K,
    /// 5 bits in super-blocks of 256.
    Q5_K = sys::GGML_TYPE_Q5_K,
    /// 6 bits in super-blocks of 256.
    Q6_K = sys::GGML_TYPE_Q6_K,
}

impl WeightType {
    /// Every type that a synthetic model can have.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
    ];

    /// The type's number in ggml and in GGUF files.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Values per block.
    pub fn block_len(self) -> usize {
        // SAFETY: the number of a type is a valid index of ggml's static table.
        unsafe { sys::ggml_blck_size(self.id()) as usize }
    }
}

/// The values of a tensor in its storage type, by ggml's own quantisation.
pub(crate) fn quantize(t: &Tensor, values: &[f32]) -> Vec<u8> {
    let per_row = t.ne[0];
    let rows = values.len() / per_row;
    assert!(
        per_row.is_multiple_of(t.ty.block_len()),
        "{}: rows of {per_row} values are not whole blocks of {:?}",
        t.name,
        t.ty
    );
    // SAFETY: the type is one of ggml's, and rows are whole blocks.
    let size = unsafe { sys::ggml_row_size(t.ty.id(), per_row as i64) } * rows;
    // Of u64, so that the blocks' own fields are aligned.
    let mut buffer = vec![0_u64; size.div_ceil(8)];
    // SAFETY: `values` has `rows * per_row` floats, `buffer` at least the `size`
    // bytes that ggml needs for them; none of the types needs an importance
    // matrix.
    let written = unsafe {
        sys::ggml_quantize_chunk(
            t.ty.id(),
            values.as_ptr(),
            buffer.as_mut_ptr().cast(),
            0,
            rows as i64,
            per_row as i64,
            std::ptr::null(),
        )
    };
    assert_eq!(written, size, "{}: ggml wrote another size", t.name);
    let mut bytes: Vec<u8> = buffer.iter().flat_map(|w| w.to_ne_bytes()).collect();
    bytes.truncate(size);
    bytes
}
