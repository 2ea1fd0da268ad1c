//! A copy of a model by ggml's own quantisers.

use crate::gguf::index;
use anyhow::Result;
use llama_cpp_sys_2 as sys;
use qdiff_engine::gguf::split;
use qdiff_engine::model::WeightSource;
use qdiff_engine::quant::{GgmlType, Stored};
use qdiff_llama::llama::gguf::Index;
use rayon::prelude::*;
use std::ffi::CString;
use std::io::Write as _;
use std::path::Path;

/// Alignment of tensor data in the copy, in bytes: GGUF's default.
const ALIGNMENT: usize = 32;

/// Version of ggml's block formats: GGML_QNT_VERSION in ggml.h.
const QUANTS_VERSION: u32 = 2;

/// Weights that are read and quantised at a time.
const AT_ONCE: usize = 1 << 20;

/// As [`qdiff_llama::llama::copy::write_copy`].
pub(crate) fn write_copy(
    weights: &dyn WeightSource, (file, at): (&Path, &Index), ty: GgmlType, target: &Path,
) -> Result<usize> {
    let as_what = |tensor: &str| {
        let Stored { ty: own, extent: (n, rows), .. } = weights.stored(tensor);
        match rows {
            1 => GgmlType::F32,
            _ if n.is_multiple_of(ty.block_size()) => ty,
            _ => own,
        }
    };
    let mut order = at.names();
    order.sort_unstable();
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(target)?);
    out.write_all(&header((file, at), ty, order.iter().map(|&tensor| (tensor, as_what(tensor))))?)?;
    let mut kept = 0;
    for tensor in order {
        let Stored { ty: own, extent: (n, rows), bytes } = weights.stored(tensor);
        let to = as_what(tensor);
        if rows > 1 && to != ty {
            kept += 1;
        }
        if to == own {
            out.write_all(bytes)?;
        } else {
            let some = (AT_ONCE / n).max(1);
            for first in (0..rows).step_by(some) {
                let count = some.min(rows - first);
                let quantised = (first..first + count).into_par_iter().with_min_len(16).map(|row| {
                    let mut values = vec![0f32; n];
                    weights.rows(tensor, row, &mut values);
                    quantised(to, &values)
                });
                for row in quantised.collect::<Vec<_>>() {
                    out.write_all(&row)?;
                }
            }
        }
        let bytes = rows * to.row_bytes(n);
        out.write_all(&vec![0u8; bytes.next_multiple_of(ALIGNMENT) - bytes])?;
    }
    out.flush()?;
    Ok(kept)
}

/// A row as ggml stores it.
fn quantised(ty: GgmlType, row: &[f32]) -> Vec<u8> {
    let importance = vec![1f32; row.len()];
    // Of u64, so that the fields of blocks are aligned.
    let mut blocks = vec![0u64; ty.row_bytes(row.len()).div_ceil(8)];
    // SAFETY: the row is whole blocks of a type that ggml quantises to, `importance` has a number for each column, and
    // `blocks` room for all.
    unsafe {
        let wanted = sys::ggml_quantize_requires_imatrix(ty.id() as _);
        let importance = if wanted { importance.as_ptr() } else { std::ptr::null() };
        sys::ggml_quantize_chunk(
            ty.id() as _,
            row.as_ptr(),
            blocks.as_mut_ptr().cast(),
            0,
            1,
            row.len() as i64,
            importance,
        );
    }
    let mut bytes: Vec<u8> = blocks.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.truncate(ty.row_bytes(row.len()));
    bytes
}

/// The copy's metadata and index.
fn header<'a>(
    (file, at): (&Path, &Index), ty: GgmlType, tensors: impl ExactSizeIterator<Item = (&'a str, GgmlType)>,
) -> Result<Vec<u8>> {
    // SAFETY: contexts made here are freed here; tensors live in `all`, which outlives the writing of the header; the
    // buffer has the size asked for.
    unsafe {
        let from = index(file)?;
        let to = sys::gguf_init_empty();
        sys::gguf_set_kv(to, from);
        for key in [split::NO, split::COUNT, split::TENSORS] {
            sys::gguf_remove_key(to, CString::new(key)?.as_ptr());
        }
        sys::gguf_set_val_u32(to, c"general.alignment".as_ptr(), ALIGNMENT as u32);
        match ty {
            // LLAMA_FTYPE_ALL_F32 and LLAMA_FTYPE_MOSTLY_F16.
            GgmlType::F32 | GgmlType::F16 => {
                sys::gguf_set_val_u32(to, c"general.file_type".as_ptr(), u32::from(ty == GgmlType::F16));
            }
            // llama.cpp guesses a missing type.
            _ => {
                sys::gguf_remove_key(to, c"general.file_type".as_ptr());
                sys::gguf_set_val_u32(to, c"general.quantization_version".as_ptr(), QUANTS_VERSION);
            }
        }
        let all = sys::ggml_init(sys::ggml_init_params {
            mem_size: (tensors.len() + 1) * sys::ggml_tensor_overhead(),
            mem_buffer: std::ptr::null_mut(),
            no_alloc: true,
        });
        for (tensor, ty) in tensors {
            let mut ne: Vec<i64> = at.dims(tensor).unwrap_or_default().iter().map(|&d| d as i64).collect();
            let t = sys::ggml_new_tensor(all, ty.id() as _, ne.len() as i32, ne.as_mut_ptr());
            sys::ggml_set_name(t, CString::new(tensor)?.as_ptr());
            sys::gguf_add_tensor(to, t);
        }
        let mut header = vec![0u8; sys::gguf_get_meta_size(to)];
        sys::gguf_get_meta_data(to, header.as_mut_ptr().cast());
        sys::ggml_free(all);
        sys::gguf_free(to);
        sys::gguf_free(from);
        Ok(header)
    }
}
