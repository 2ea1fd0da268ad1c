//! What a GGUF file is, and what the graph uses of it.

use super::request::ModelRequest;
use crate::llama;
use crate::loaded::refuse_damaged;
use crate::runners::{CUDA, Reads};
use anyhow::{Context as _, Result};
use qdiff_engine::folder;
use qdiff_engine::gguf::{Gguf, NotFinite, Value};
use qdiff_engine::model::{Model, Role, Weight, row_len, tensor_of};
use serde::Serialize;
use serde_json::Value as Json;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Entries given of an array at most.
const SHOWN: usize = 8;

/// A model's file, or files.
#[derive(Debug, Serialize)]
pub struct Inspection {
    pub path: String,
    /// Version of the format; 0 of a folder of safetensors.
    pub version: u32,
    pub bytes: u64,
    /// The names of its files, in their order, where it is in several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Its metadata, in the file's order.
    pub metadata: Vec<Entry>,
    /// Tensors and bytes of each type.
    pub types: BTreeMap<String, (usize, u64)>,
    /// Of formats that the kernels for CUDA do not read, as what the engine keeps matrices on a GPU, and their bytes there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub on_cuda: BTreeMap<String, (String, u64)>,
    /// Its tensors, in the file's order.
    pub tensors: Vec<Tensor>,
    /// Tensors with NaN or infinity among their weights.
    pub not_finite: Vec<NotFinite>,
    /// What the graph uses; absent where no graph can be made of it.
    pub graph: Option<Usage>,
}

/// A metadata value.
#[derive(Debug, Serialize)]
pub struct Entry {
    pub key: String,
    /// Its type, of an array that of its elements, as llama.cpp names it.
    pub of: &'static str,
    /// Elements, of an array.
    pub count: Option<usize>,
    /// It; of an array the first elements.
    pub value: Json,
}

/// A tensor.
#[derive(Debug, Serialize)]
pub struct Tensor {
    pub name: String,
    pub of: String,
    /// Its extents, the contiguous one first.
    pub dims: Vec<u64>,
    pub bytes: u64,
    /// The file that it is in, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// What a graph uses of a file.
#[derive(Debug, Serialize)]
pub struct Usage {
    /// Stages of the graph.
    pub stages: usize,
    pub stage_names: Vec<&'static str>,
    /// The model in a line.
    pub shape: String,
    /// Bytes read for a decoded token.
    pub bytes_a_token: u64,
}

/// Reads the file; the reason why it cannot run is beside it.
///
/// # Errors
/// If it is none.
pub fn inspect(request: &ModelRequest) -> Result<(Inspection, Option<anyhow::Error>)> {
    let path = request.path()?;
    if path.is_dir() {
        let model = folder::open(path)?.model;
        let inspection = of(path, model.gguf());
        let damage = refuse_damaged(&inspection.not_finite).with_context(|| path.display().to_string());
        return Ok((Inspection { graph: Some(usage(&model)), ..inspection }, damage.err()));
    }
    let gguf = Gguf::open(path)?;
    let inspection = of(path, &gguf);
    Ok(match Model::new(gguf).with_context(|| path.display().to_string()) {
        Ok(model) => {
            let damage = refuse_damaged(&inspection.not_finite).with_context(|| path.display().to_string());
            (Inspection { graph: Some(usage(&model)), ..inspection }, damage.err())
        }
        Err(e) => (inspection, Some(e)),
    })
}

/// What the file says, without a graph.
fn of(path: &Path, gguf: &Gguf) -> Inspection {
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    let mut on_cuda: BTreeMap<String, (String, u64)> = BTreeMap::new();
    for t in &gguf.tensors {
        let entry = types.entry(t.ggml_type.to_string()).or_default();
        entry.0 += 1;
        entry.1 += t.size;
        if let (Reads::As(plain), true) = (CUDA.reading(t.ggml_type), t.rows() > 1) {
            let entry = on_cuda.entry(t.ggml_type.to_string()).or_insert_with(|| (plain.to_string(), 0));
            entry.1 += (t.rows() * plain.row_bytes(t.row_len())) as u64;
        }
    }
    let tensor = |t: &qdiff_engine::gguf::TensorInfo| Tensor {
        name: t.name.clone(),
        of: t.ggml_type.to_string(),
        dims: t.dims.clone(),
        bytes: t.size,
        file: gguf.file_of(t),
    };
    Inspection {
        path: path.display().to_string(),
        version: gguf.version,
        bytes: gguf.size(),
        files: gguf.files(),
        metadata: gguf.metadata.iter().map(|(key, value)| entry(key, value)).collect(),
        types,
        on_cuda,
        tensors: gguf.tensors.iter().map(tensor).collect(),
        not_finite: gguf.not_finite(),
        graph: None,
    }
}

/// Has llama.cpp load the file, where there is one and this build has llama.cpp: nobody else knows all that llama.cpp refuses,
/// such as a pre-tokenizer that it does not have.
///
/// # Errors
/// As [`llama::Model::load`].
pub fn load(request: &ModelRequest) -> Result<()> {
    if request.path()?.is_dir() || llama::built_in().is_err() {
        return Ok(());
    }
    llama::Model::load(request.path()?, llama::Load::Cpu).map(drop)
}

fn usage(model: &Model) -> Usage {
    let graph = model.graph();
    let c = &graph.config;
    let used = graph.tensors();
    // Decoding a token reads every weight once, but of a table that is looked up alone one row.
    let readers = graph.nodes.iter().filter(|n| !n.op.anatomy().looks_up());
    let multiplied: HashSet<&str> = readers.flat_map(|n| &n.weights).map(|w| tensor_of(&w.name)).collect();
    let size = |w: &Weight| {
        let whole = multiplied.contains(w.name.as_str());
        model.gguf().tensor(&w.name).map_or(0, |t| if whole { t.size } else { t.size / t.rows() as u64 })
    };
    let read: u64 = used.iter().map(size).sum();
    let mtp = match c.n_mtp {
        0 => String::new(),
        n => format!(" (and {n} for multi-token prediction, which no engine here runs)"),
    };
    Usage {
        stages: graph.nodes.len(),
        stage_names: graph.stage_names(),
        shape: format!(
            "{} layers{}, {} heads, {} KV heads of {}, width {}, feed-forward {}, vocabulary {}, {} head",
            c.n_layers,
            mtp,
            c.n_heads,
            c.n_kv_heads,
            c.head_dim,
            c.n_embd,
            graph.first(Role::FfnHidden).map_or(0, row_len),
            c.n_vocab,
            if graph.tied_head() { "tied" } else { "separate" }
        ),
        bytes_a_token: read,
    }
}

fn entry(key: &str, value: &Value) -> Entry {
    let (of, count) = match value {
        Value::Array(array) => (array.type_name(), Some(array.len())),
        plain => (plain.type_name(), None),
    };
    Entry { key: key.to_owned(), of, count, value: value.json(SHOWN) }
}
