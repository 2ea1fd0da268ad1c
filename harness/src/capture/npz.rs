//! Captures on disk: a folder with `capture.npz` and `manifest.json`.
//!
//! Any engine that writes these can be a subject. The arrays are named
//! `prefill/L07.q_rope`, `step1/logits`, …, row-major, f32 or f16, shaped as
//! the graph says; whatever is not there counts as missing.

use super::{Capture, Step, label};
use crate::runners::Arithmetic;
use anyhow::{Context as _, Result, bail};
use npyz::{NpyFile, Order, WriterBuilder as _};
use qdiff_engine::model::{Axis, Graph, Node};
use qdiff_engine::ops::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

/// Version of the folder's layout; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout.
    pub schema_version: u32,
    /// What computed it.
    pub engine: String,
    /// SHA-256 of the GGUF, in hexadecimal; checked where it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_sha256: Option<String>,
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Tokens fed at the decode steps.
    #[serde(default)]
    pub decoded: Vec<u32>,
    /// What it computed in; plain f32 where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<Arithmetic>,
}

/// Writes the folder `target`, or nothing: it appears whole under its name.
///
/// # Errors
/// If it exists already, or cannot be written.
pub fn write(capture: &Capture, manifest: &Manifest, target: &Path) -> Result<()> {
    check_target(target)?;
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    let part = tempfile::Builder::new()
        .prefix(".qdiff-capture-")
        .tempdir_in(parent)
        .with_context(|| format!("cannot write in {}", parent.display()))?;
    let problem = || format!("writing the capture {}", target.display());
    let file = File::create(part.path().join("capture.npz")).with_context(problem)?;
    let mut zip = zip::ZipWriter::new(BufWriter::with_capacity(1 << 20, file));
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .large_file(true);
    for step in &capture.steps {
        let mut ids: Vec<_> = step.stages.keys().copied().collect();
        ids.sort();
        for id in ids {
            let tensor = &step.stages[&id];
            let shape: Vec<u64> = tensor.shape.iter().map(|&n| n as u64).collect();
            zip.start_file(format!("{}/{id}.npy", step.label()), options)
                .with_context(problem)?;
            let mut array = npyz::WriteOptions::new()
                .default_dtype()
                .shape(&shape)
                .writer(&mut zip)
                .begin_nd()
                .with_context(problem)?;
            array
                .extend(tensor.data.iter().copied())
                .with_context(problem)?;
            array.finish().with_context(problem)?;
        }
    }
    let out = zip.finish().with_context(problem)?;
    out.into_inner()
        .map_err(|e| e.into_error())
        .with_context(problem)?;
    let text = serde_json::to_string_pretty(manifest)?;
    std::fs::write(part.path().join("manifest.json"), text + "\n").with_context(problem)?;
    std::fs::rename(part.path(), target).with_context(problem)?;
    // The folder has its name now; nothing is left to delete under the old one.
    let _ = part.keep();
    Ok(())
}

/// Refuses a target that cannot be written, before anything runs.
///
/// # Errors
/// If it exists, or its parent does not.
pub fn check_target(target: &Path) -> Result<()> {
    if target.exists() {
        bail!(
            "{} exists; remove it or name another folder",
            target.display()
        );
    }
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty());
    if parent.is_some_and(|p| !p.is_dir()) {
        bail!(
            "cannot write {}: its folder does not exist",
            target.display()
        );
    }
    Ok(())
}

/// Reads `manifest.json` alone.
///
/// # Errors
/// If it is missing, no manifest, or of another version.
pub fn manifest(folder: &Path) -> Result<Manifest> {
    let path = folder.join("manifest.json");
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {}: a capture is a folder with manifest.json and capture.npz",
            path.display()
        )
    })?;
    let version: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    if version["schema_version"] != SCHEMA_VERSION {
        bail!(
            "{} has schema_version {}, this qdiff reads {SCHEMA_VERSION}; record it again",
            path.display(),
            version["schema_version"]
        );
    }
    let manifest: Manifest = serde_json::from_value(version)
        .with_context(|| format!("{} is no manifest", path.display()))?;
    if manifest.tokens.is_empty() {
        bail!("{} names no tokens", path.display());
    }
    if let Some(arithmetic) = &manifest.arithmetic {
        arithmetic
            .check()
            .with_context(|| path.display().to_string())?;
    }
    Ok(manifest)
}

/// Reads the arrays that belong to stages of `graph`.
///
/// # Errors
/// A file that is no npz; an array that belongs to no stage, is not f32 or
/// f16, or holds more than a few times what its stage can have: an archive is
/// never unpacked further than that.
pub fn read(folder: &Path, manifest: &Manifest, graph: &Graph) -> Result<Capture> {
    let path = folder.join("capture.npz");
    let name = path.display();
    let file = File::open(&path).with_context(|| format!("cannot read {name}"))?;
    let mut zip = zip::ZipArchive::new(BufReader::new(file))
        .with_context(|| format!("{name} is no npz archive"))?;
    let mut capture = Capture::default();
    let steps =
        std::iter::once(manifest.tokens.clone()).chain(manifest.decoded.iter().map(|&t| vec![t]));
    let mut first = 0;
    for (index, tokens) in steps.enumerate() {
        let count = tokens.len();
        capture.steps.push(Step {
            index,
            first,
            tokens,
            stages: HashMap::new(),
        });
        first += count;
    }
    for i in 0..zip.len() {
        let entry = zip
            .by_index(i)
            .with_context(|| format!("{name}: entry {i}"))?;
        let full = entry
            .name()
            .with_context(|| format!("{name}: entry {i}"))?
            .into_owned();
        let known = full
            .strip_suffix(".npy")
            .and_then(|n| n.split_once('/'))
            .and_then(|(step, stage)| {
                let step = capture.steps.iter().position(|s| label(s.index) == step)?;
                let node = graph.nodes.iter().find(|n| n.id.to_string() == stage)?;
                Some((step, node))
            });
        let Some((step, node)) = known else {
            bail!(
                "{name}: `{full}` belongs to no stage; names are STEP/STAGE.npy, steps prefill and step1 to step{}, stages such as {}",
                manifest.decoded.len(),
                graph.nodes[1.min(graph.nodes.len() - 1)].id
            );
        };
        let step = &mut capture.steps[step];
        let expected = Graph::extent(node, step.tokens.len(), step.keys());
        let tensor = array(entry, node, &expected).with_context(|| format!("{name}: `{full}`"))?;
        step.stages.insert(node.id, tensor);
    }
    Ok(capture)
}

fn array(entry: impl std::io::Read, node: &Node, expected: &[usize]) -> Result<Tensor<f32>> {
    let array = NpyFile::new(entry).context("is no npy array")?;
    let shape: Vec<usize> = array
        .shape()
        .iter()
        .map(|&n| usize::try_from(n))
        .collect::<Result<_, _>>()?;
    // Only the number of cached rows is the engine's to get wrong (that is a
    // finding), and only within reason; all else is refused unread.
    let fits = shape.len() == expected.len()
        && shape
            .iter()
            .zip(expected)
            .zip(&node.shape)
            .all(|((got, want), axis)| match axis {
                Axis::Keys => (1..=4 * want).contains(got),
                _ => got == want,
            });
    if !fits {
        bail!("has shape {shape:?}, and the stage has {expected:?} elements");
    }
    let elements: usize = shape.iter().product();
    if array.order() != Order::C && shape.len() > 1 {
        bail!("is stored in Fortran order; write it with numpy.ascontiguousarray");
    }
    let dtype = array.dtype().descr();
    let data: Vec<f32> = if dtype.contains("f4") {
        array.into_vec::<f32>()?
    } else if dtype.contains("f2") {
        array
            .into_vec::<half::f16>()?
            .into_iter()
            .map(f32::from)
            .collect()
    } else {
        bail!("has dtype {dtype}; write float32 or float16");
    };
    if data.len() != elements {
        bail!(
            "holds {} elements, and its header says {elements}",
            data.len()
        );
    }
    Ok(Tensor { shape, data })
}
