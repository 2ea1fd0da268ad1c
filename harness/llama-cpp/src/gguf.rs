//! A GGUF file as ggml itself reads it.

use crate::model;
use anyhow::{Result, ensure};
use llama_cpp_sys_2 as sys;
use qdiff_capture::supervisor;
use qdiff_engine::quant::GgmlType;
use qdiff_llama::llama::Entry;
use qdiff_llama::llama::gguf::Index;
use std::ffi::{CStr, CString};
use std::path::Path;

/// The tensors of a file, and of the first the metadata.
pub(crate) fn add(into: &mut Index, part: usize, path: &Path) -> Result<()> {
    model::start();
    let _doing = supervisor::doing(|| format!("ggml was reading {}", path.display()));
    let Index { entries, reals, integers } = into;
    // SAFETY: plain C calls; the context is freed below and nothing of it is kept.
    unsafe {
        let ctx = index(path)?;
        let keys = if part == 0 { sys::gguf_get_n_kv(ctx) } else { 0 };
        for i in 0..keys {
            let key = CStr::from_ptr(sys::gguf_get_key(ctx, i)).to_string_lossy();
            let ty = sys::gguf_get_kv_type(ctx, i);
            if ty == sys::GGUF_TYPE_FLOAT32 {
                reals.insert(key.into_owned(), sys::gguf_get_val_f32(ctx, i));
            } else if ty == sys::GGUF_TYPE_ARRAY && !key.starts_with("tokenizer.") {
                let (of, count) = (sys::gguf_get_arr_type(ctx, i), sys::gguf_get_arr_n(ctx, i));
                if count > 0 && of == sys::GGUF_TYPE_UINT64 {
                    // Eight bytes each.
                    let list = std::slice::from_raw_parts(sys::gguf_get_arr_data(ctx, i).cast::<[u8; 8]>(), count);
                    integers.insert(key.into_owned(), list.iter().map(|n| i64::from_ne_bytes(*n)).collect());
                } else if count > 0 && [sys::GGUF_TYPE_INT32, sys::GGUF_TYPE_UINT32].contains(&of) {
                    // Four bytes each, aligned as ggml allocates them.
                    let list = std::slice::from_raw_parts(sys::gguf_get_arr_data(ctx, i).cast::<[u8; 4]>(), count);
                    let wide = |bytes: &[u8; 4]| match of == sys::GGUF_TYPE_INT32 {
                        true => i64::from(i32::from_ne_bytes(*bytes)),
                        false => i64::from(u32::from_ne_bytes(*bytes)),
                    };
                    integers.insert(key.into_owned(), list.iter().map(wide).collect());
                }
            }
        }
        let base = sys::gguf_get_data_offset(ctx);
        for i in 0..sys::gguf_get_n_tensors(ctx) {
            let name = CStr::from_ptr(sys::gguf_get_tensor_name(ctx, i));
            let raw_type = sys::gguf_get_tensor_type(ctx, i);
            let Some(ty) = GgmlType::from_id(raw_type as u32) else {
                continue;
            };
            let ne = std::slice::from_raw_parts(sys::gguf_get_tensor_ne(ctx, i), 4);
            let mut dims: Vec<u64> = ne.iter().map(|&n| n as u64).collect();
            while dims.len() > 1 && dims.last() == Some(&1) {
                dims.pop();
            }
            entries.insert(
                name.to_string_lossy().into_owned(),
                Entry {
                    ty,
                    part,
                    start: base + sys::gguf_get_tensor_offset(ctx, i),
                    row_bytes: sys::ggml_row_size(raw_type, ne[0]),
                    dims,
                },
            );
        }
        sys::gguf_free(ctx);
    }
    Ok(())
}

/// The index of the file, to be freed with `gguf_free`.
pub(crate) fn index(path: &Path) -> Result<*mut sys::gguf_context> {
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: a NUL-terminated path; the result is checked.
    let ctx = unsafe { sys::gguf_init_from_file(name.as_ptr(), params) };
    ensure!(!ctx.is_null(), "ggml cannot read {}", path.display());
    Ok(ctx)
}

/// ggml's own dequantisation of whole blocks.
///
/// # Panics
/// If ggml has no conversion for the type.
pub(crate) fn to_float(ty: sys::ggml_type, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: the traits are a static table; `bytes` holds the blocks of
    // `out.len()` values, as both callers slice it by ggml's own row size.
    unsafe {
        assert!(bytes.len() >= sys::ggml_row_size(ty, out.len() as i64));
        if ty == sys::GGML_TYPE_F32 {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.as_mut_ptr().cast(), out.len() * 4);
            return;
        }
        let convert = (*sys::ggml_get_type_traits(ty)).to_float.expect("a quantised type has to_float");
        convert(bytes.as_ptr().cast(), out.as_mut_ptr(), out.len() as i64);
    }
}
