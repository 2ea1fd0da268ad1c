//! A GGUF file as ggml itself reads it: the oracle's weights.

use crate::supervisor;
use anyhow::{Context as _, Result, ensure};
use llama_cpp_sys_2 as sys;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::WeightSource;
use qdiff_engine::quant::{GgmlType, Stored};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::Arc;

struct Entry {
    dims: Vec<u64>,
    ty: GgmlType,
    part: usize,
    start: usize,
    row_bytes: usize,
}

/// Tensor index and values by ggml: `gguf_*` for the index, `to_float` for
/// the values. Shares nothing with the engine's reader but the mapped bytes, and which files a model in several has.
pub struct GgmlWeights<'a> {
    /// Each file, and what is mapped of it.
    parts: Vec<(&'a Path, &'a [u8])>,
    index: Arc<Index>,
}

/// What ggml reads of a model's files besides the weights.
#[derive(Default)]
pub struct Index {
    entries: HashMap<String, Entry>,
    reals: HashMap<String, f32>,
    integers: HashMap<String, Vec<i64>>,
}

impl Index {
    /// Of every file of `model`.
    ///
    /// # Errors
    /// As [`GgmlWeights::open`].
    pub fn read(model: &Gguf) -> Result<Self> {
        super::start();
        let mut index = Self::default();
        for (number, part) in model.parts().iter().enumerate() {
            let path = part.path.as_deref().context("ggml reads files alone")?;
            let _doing = supervisor::doing(|| format!("ggml was reading {}", path.display()));
            index.add(number, path)?;
        }
        Ok(index)
    }

    /// The tensors of a file, and of the first the metadata.
    fn add(&mut self, part: usize, path: &Path) -> Result<()> {
        let Self { entries, reals, integers } = self;
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
}

impl<'a> GgmlWeights<'a> {
    /// Reads the index of every file of `model`.
    ///
    /// # Errors
    /// If the model was read from memory, or ggml refuses a file.
    pub fn open(model: &'a Gguf) -> Result<Self> {
        Ok(Self::new(model, Arc::new(Index::read(model)?)))
    }

    /// The weights of `model`, whose index was read.
    pub fn new(model: &'a Gguf, index: Arc<Index>) -> Self {
        let parts = model.parts().iter().filter_map(|part| Some((part.path.as_deref()?, part.bytes()))).collect();
        Self { parts, index }
    }

    /// The model's first file, which has its metadata.
    pub(super) fn first_file(&self) -> &Path {
        self.parts[0].0
    }

    /// Extent in ggml order, trailing ones dropped.
    pub fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.index.entries.get(tensor).map(|e| e.dims.as_slice())
    }

    /// First byte of a tensor in its file.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn start(&self, tensor: &str) -> u64 {
        self.entry(tensor).start as u64
    }

    /// All tensors, in the order of files and within each.
    pub fn names(&self) -> Vec<&str> {
        let mut all: Vec<_> = self.index.entries.iter().collect();
        all.sort_by_key(|(name, e)| (e.part, e.start, name.as_str()));
        all.into_iter().map(|(name, _)| name.as_str()).collect()
    }

    /// A real metadata value to its last digit; llama.cpp itself prints six decimals, too few for an epsilon.
    pub fn real(&self, key: &str) -> Option<f32> {
        self.index.reals.get(key).copied()
    }

    /// A metadata value that is a list of integers, which llama.cpp does not give.
    pub fn integers(&self, key: &str) -> Option<&[i64]> {
        self.index.integers.get(key).map(Vec::as_slice)
    }

    fn entry(&self, tensor: &str) -> &Entry {
        self.index.entries.get(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"))
    }
}

impl WeightSource for GgmlWeights<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let &Entry { ty, ref dims, part, start, row_bytes } = self.entry(tensor);
        let rows = dims[1..].iter().product::<u64>() as usize;
        Stored { ty, extent: (dims[0] as usize, rows), bytes: &self.parts[part].1[start..start + rows * row_bytes] }
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let entry = self.entry(tensor);
        let count = out.len() / entry.dims[0] as usize;
        let bytes = &self.parts[entry.part].1[entry.start + first * entry.row_bytes..][..count * entry.row_bytes];
        to_float(entry.ty.id() as _, bytes, out);
    }
}

/// The index of the file, to be freed with `gguf_free`.
pub(super) fn index(path: &Path) -> Result<*mut sys::gguf_context> {
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
pub fn to_float(ty: sys::ggml_type, bytes: &[u8], out: &mut [f32]) {
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
