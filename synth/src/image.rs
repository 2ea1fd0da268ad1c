//! GGUF files as bytes in memory, to be changed.

use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::ops::Range;

/// Hands `f` the raw bytes of one tensor in the GGUF image `bytes`.
///
/// # Panics
///
/// As [`tensor_range`].
pub fn patch(bytes: &mut [u8], tensor: &str, f: impl FnOnce(&mut [u8])) {
    let range = tensor_range(bytes, tensor);
    f(&mut bytes[range]);
}

/// Where the data of one tensor lies in the GGUF image `bytes`.
///
/// # Panics
///
/// If the image is no GGUF file, or has no tensor of that name, or ends before the tensor does.
pub fn tensor_range(bytes: &[u8], tensor: &str) -> Range<usize> {
    let name = CString::new(tensor).expect("a tensor name without NUL");
    let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: the buffer is live and of the stated length; ggml copies from it.
    let ctx = unsafe { sys::gguf_init_from_buffer(bytes.as_ptr().cast(), bytes.len(), params) };
    assert!(!ctx.is_null(), "not a GGUF image");
    // SAFETY: `ctx` is a live context until `gguf_free`, `name` a C string; the
    // queries by id are made for an id that `gguf_find_tensor` gave.
    let found = unsafe {
        let id = sys::gguf_find_tensor(ctx, name.as_ptr());
        let found = (id >= 0).then(|| {
            let start = sys::gguf_get_data_offset(ctx) + sys::gguf_get_tensor_offset(ctx, id);
            start..start + sys::gguf_get_tensor_size(ctx, id)
        });
        sys::gguf_free(ctx);
        found
    };
    let range = found.unwrap_or_else(|| panic!("no tensor {tensor:?}"));
    assert!(range.end <= bytes.len(), "the image ends before tensor {tensor:?} does");
    range
}
