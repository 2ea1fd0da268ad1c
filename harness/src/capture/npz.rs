//! Captures on disk: a folder with `capture.npz` and `manifest.json`.
//!
//! Any engine that writes these can be a subject. The arrays are named
//! `prefill/L07.q_rope`, `step1/logits`, …, row-major, f32 or f16, shaped as
//! the graph says; whatever is not there counts as missing. A prefill in
//! ubatches has a step for each: `prefill`, `prefill@512`, `prefill@1024`, by
//! the position of the first token.

use super::names::{Named, Names};
use super::{Capture, Step, Store, Stored, steps};
use crate::arithmetic::Arithmetic;
use crate::cleanup;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use npyz::{DType, NpyFile, Order, TypeChar, WriterBuilder as _};
use qdiff_engine::model::{Axis, Graph, Node};
use qdiff_engine::ops::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// Version of the folder's layout; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 2;

/// How many times its size an archive may unpack to where no graph says what
/// its arrays hold.
const UNPACKED: u64 = 64;

/// Longest header of an npy array in bytes: ours and numpy's have 128.
const HEADER: u64 = 1 << 16;

/// Most characters of a file's own text that an error repeats.
const QUOTED: usize = 200;

/// `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
    /// Tokens of a part of the prefill; all of them where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ubatch: Option<usize>,
    /// Positions whose rows are in the arrays; all where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Vec<usize>>,
    /// What it computed in; plain f32 where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<Arithmetic>,
}

impl Manifest {
    /// Refuses a capture, in `folder`, of another model than that of this hash.
    ///
    /// # Errors
    /// Both hashes.
    pub fn check_model(&self, folder: &Path, sha256: &str) -> Result<()> {
        match self.model_sha256.as_ref().filter(|h| *h != sha256) {
            Some(other) => bail!(
                "{} was recorded on another model (sha256 {other}, this one has {sha256}); name that model with -m",
                folder.display()
            ),
            None => Ok(()),
        }
    }

    /// The steps that the arrays belong to, without stages.
    pub fn steps(&self) -> Vec<Step> {
        let mut all = steps(&self.tokens, self.ubatch.unwrap_or(self.tokens.len()), &self.decoded);
        if let Some(positions) = &self.positions {
            for step in &mut all {
                step.keep_only(|p| positions.contains(&p));
            }
        }
        all
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.tokens.is_empty(), "it names no tokens");
        ensure!(self.ubatch != Some(0), "its ubatch is 0");
        let all = self.tokens.len() + self.decoded.len();
        for &position in self.positions.iter().flatten() {
            ensure!(position < all, "it keeps position {position}, and its last is {}", all - 1);
        }
        Ok(())
    }
}

/// Writes a capture step by step. The folder appears whole under its name when
/// it is finished, or not at all.
pub struct Writer {
    target: PathBuf,
    part: TempDir,
    _cleanup: cleanup::Guard,
    zip: ZipWriter<BufWriter<File>>,
    options: SimpleFileOptions,
    arrays: usize,
}

impl Writer {
    /// Begins the folder `target`; `compress` deflates the arrays.
    ///
    /// # Errors
    /// If it exists already, or cannot be written.
    pub fn create(target: &Path, compress: bool) -> Result<Self> {
        check_target(target)?;
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        let part = tempfile::Builder::new()
            .prefix(".qdiff-capture-")
            .tempdir_in(parent)
            .with_context(|| format!("cannot write in {}", parent.display()))?;
        let file = File::create(part.path().join("capture.npz"))
            .with_context(|| format!("cannot write in {}", parent.display()))?;
        let method = if compress { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        Ok(Self {
            target: target.to_path_buf(),
            _cleanup: cleanup::guard(part.path()),
            part,
            zip: ZipWriter::new(BufWriter::with_capacity(1 << 20, file)),
            options: SimpleFileOptions::default().compression_method(method).large_file(true),
            arrays: 0,
        })
    }

    /// Writes the stages of a step, one array each.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.arrays_of(step).with_context(|| self.problem())
    }

    fn arrays_of(&mut self, step: &Step) -> Result<()> {
        let mut ids: Vec<_> = step.stages.keys().copied().collect();
        ids.sort();
        for id in ids {
            let tensor = step.stages[&id].get();
            let shape: Vec<u64> = tensor.shape.iter().map(|&n| n as u64).collect();
            let name = format!("{}/{id}.npy", step.label());
            self.zip.start_file(name, self.options)?;
            let mut array = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut self.zip).begin_nd()?;
            array.extend(tensor.data.iter().copied())?;
            array.finish()?;
            self.arrays += 1;
        }
        Ok(())
    }

    /// Ends the archive, writes the manifest and gives the folder its name.
    /// Gives the number of arrays.
    ///
    /// # Errors
    /// If the disk is full, or the name was taken meanwhile.
    pub fn finish(self, manifest: &Manifest) -> Result<usize> {
        let problem = self.problem();
        let inner = || -> Result<usize> {
            let out = self.zip.finish()?.into_inner().map_err(|e| e.into_error())?;
            out.sync_all()?;
            let text = serde_json::to_string_pretty(manifest)? + "\n";
            std::fs::write(self.part.path().join("manifest.json"), text)?;
            std::fs::rename(self.part.path(), &self.target)?;
            // The folder has its name now; nothing is left to delete under the old one.
            let _ = self.part.keep();
            Ok(self.arrays)
        };
        inner().context(problem)
    }

    fn problem(&self) -> String {
        format!("writing the capture {}", self.target.display())
    }
}

/// Refuses a target that cannot be written, before anything runs.
///
/// # Errors
/// If it exists, or its parent does not.
pub fn check_target(target: &Path) -> Result<()> {
    if target.exists() {
        bail!("{} exists; remove it or name another folder", target.display());
    }
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty());
    if parent.is_some_and(|p| !p.is_dir()) {
        bail!("cannot write {}: its folder does not exist", target.display());
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
        format!("cannot read {}: a capture is a folder with manifest.json and capture.npz", path.display())
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
    let manifest: Manifest =
        serde_json::from_value(version).with_context(|| format!("{} is no manifest", path.display()))?;
    manifest.check().with_context(|| path.display().to_string())?;
    Ok(manifest)
}

/// The stages that have an array in the folder, in any step, as they are called.
///
/// # Errors
/// A file that is no npz.
pub fn stages(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("capture.npz");
    let name = path.display();
    let file = File::open(&path).with_context(|| format!("cannot read {name}"))?;
    let mut zip = ZipArchive::new(BufReader::new(file)).with_context(|| format!("{name} is no npz archive"))?;
    let mut all = Vec::new();
    for i in 0..zip.len() {
        let entry = zip.by_index_raw(i).with_context(|| format!("{name}: entry {i}"))?;
        let full = entry.name().with_context(|| format!("{name}: entry {i}"))?.into_owned();
        let stage = full.strip_suffix(".npy").and_then(|n| n.split_once('/'));
        all.extend(stage.map(|(_, stage)| stage.to_owned()));
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// What is known of the shapes that arrays must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shapes {
    /// Those that the graph says.
    Known,
    /// Only where tokens and cached rows stand: the model is not at hand.
    Unknown,
}

/// Reads the arrays that belong to stages of `graph` into `store`.
///
/// # Errors
/// A file that is no npz; an array that belongs to no stage (with a map such
/// arrays are passed over), is not f32 or f16, or holds more than a few times
/// what its stage can have: an archive is never unpacked further than that.
pub fn read(
    folder: &Path,
    manifest: &Manifest,
    (graph, names): (&Graph, &Names),
    shapes: Shapes,
    store: &Arc<Store>,
) -> Result<Capture> {
    let path = folder.join("capture.npz");
    let name = path.display();
    let file = File::open(&path).with_context(|| format!("cannot read {name}"))?;
    let most = file.metadata().map_or(0, |m| m.len()).saturating_mul(UNPACKED);
    let mut zip = ZipArchive::new(BufReader::new(file)).with_context(|| format!("{name} is no npz archive"))?;
    let mut capture = Capture::new(store.clone());
    capture.steps = manifest.steps();
    let labels: HashMap<String, usize> = (capture.steps.iter().enumerate()).map(|(i, s)| (s.label(), i)).collect();
    for i in 0..zip.len() {
        let entry = zip.by_index(i).with_context(|| format!("{name}: entry {i}"))?;
        let full = entry.name().with_context(|| format!("{name}: entry {i}"))?.into_owned();
        let known = full
            .strip_suffix(".npy")
            .and_then(|n| n.split_once('/'))
            .and_then(|(step, stage)| Some((*labels.get(step)?, names.get(stage)?)));
        let Some((step, named)) = known else {
            if names.mapped() {
                continue;
            }
            bail!(
                "{name}: `{}` belongs to no stage; names are STEP/STAGE.npy, steps {} to {}, stages such as {}",
                cut(&full),
                capture.steps[0].label(),
                capture.steps[capture.steps.len() - 1].label(),
                graph.nodes[1.min(graph.nodes.len() - 1)].id
            );
        };
        let step = &mut capture.steps[step];
        let node = &graph.nodes[named.node];
        let what = (node, named, shapes);
        // npyz repeats what it does not understand, however much that is.
        let stored = array(entry, what, step, most, store)
            .map_err(|e| anyhow!("{}", cut(&format!("{e:#}"))))
            .with_context(|| format!("{name}: `{}`", cut(&full)))?;
        if step.stages.insert(node.id, stored).is_some() {
            bail!("{name}: `{}` is {} of {}, which is there already", cut(&full), node.id, step.label());
        }
    }
    if let Some(logits) = graph.nodes.last() {
        for step in &mut capture.steps {
            step.choice = choice(step, logits, store);
        }
    }
    store.trouble()?;
    Ok(capture)
}

/// The logits of the step's last token, where they were captured.
fn choice(step: &Step, logits: &Node, store: &Arc<Store>) -> Option<Stored> {
    let stored = step.stages.get(&logits.id)?;
    let last = step.rows().checked_sub(1)?;
    (step.offset(last) + 1 == step.tokens.len()).then(|| {
        let mut row = stored.slice(0, last..last + 1);
        row.shape.remove(0);
        store.keep(row)
    })
}

/// `text`, shortened where a hostile file made it long.
fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An npy array with a header of reasonable length. npyz allocates as much as
/// the header claims to have, up to 4 GiB, before anything of it is read.
fn bounded(mut entry: impl Read) -> Result<impl Read> {
    let mut start = Vec::with_capacity(12);
    // Magic and version, then the length: two bytes in version 1, four later.
    entry.by_ref().take(8).read_to_end(&mut start)?;
    let digits = if start.get(6) == Some(&1) { 2 } else { 4 };
    entry.by_ref().take(digits).read_to_end(&mut start)?;
    let length = start.iter().skip(8).rev();
    let length = length.fold(0, |n, &byte| n << 8 | u64::from(byte));
    ensure!(
        length <= HEADER,
        "is no npy array of ours: its header claims {length} bytes, and {HEADER} are read at most; write it with numpy.save"
    );
    Ok(Cursor::new(start).chain(entry))
}

fn array(
    entry: impl Read,
    (node, named, shapes): (&Node, &Named, Shapes),
    step: &Step,
    most: u64,
    store: &Arc<Store>,
) -> Result<Stored> {
    let expected = step.extent(node);
    let array = NpyFile::new(bounded(entry)?).context("is no npy array")?;
    let given: Vec<usize> = array.shape().iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>()?;
    ensure!(
        named.axes.is_empty() || named.axes.len() == given.len(),
        "has {} axes, and the map orders {}",
        given.len(),
        named.axes.len()
    );
    let mut shape: Vec<usize> =
        if named.axes.is_empty() { given.clone() } else { named.axes.iter().map(|&a| given[a]).collect() };
    if !fits(&shape, &expected, node, shapes) {
        // The same elements in the same order, in other brackets.
        let count = |s: &[usize]| s.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if !named.foreign || count(&shape) != count(&expected) {
            bail!("has shape {given:?}, and the stage has {expected:?} elements");
        }
        shape.clone_from(&expected);
    }
    let bytes = shape.iter().try_fold(4u64, |n, &d| n.checked_mul(d as u64));
    ensure!(
        shapes == Shapes::Known || bytes.is_some_and(|b| b <= most),
        "has shape {given:?}, which is more than such a file can hold"
    );
    if array.order() != Order::C && given.len() > 1 {
        bail!("is stored in Fortran order; write it with numpy.ascontiguousarray");
    }
    let stored = match array.dtype() {
        DType::Plain(t) if t.type_char() == TypeChar::Float && t.size_field() == 4 => {
            let mut values = array.data::<f32>()?;
            store.keep_parts(shape.clone(), |out| fill(out, &mut values, |v| v))
        }
        DType::Plain(t) if t.type_char() == TypeChar::Float && t.size_field() == 2 => {
            let mut values = array.data::<half::f16>()?;
            store.keep_parts(shape.clone(), |out| fill(out, &mut values, f32::from))
        }
        other => bail!("has dtype {}; write float32 or float16", other.descr()),
    }?;
    if named.axes.is_empty() {
        return Ok(stored);
    }
    let data = permuted(&stored.get().data, &given, &named.axes);
    Ok(store.keep(Tensor { shape, data }))
}

/// Whether an array of this shape can be the stage's. Only the number of
/// cached rows is the engine's to get wrong (that is a finding), and only
/// within reason; all else is refused unread.
fn fits(shape: &[usize], expected: &[usize], node: &Node, shapes: Shapes) -> bool {
    let axes = shape.iter().zip(expected).zip(&node.shape);
    shape.len() == expected.len()
        && axes.clone().all(|((got, want), axis)| match axis {
            Axis::Keys => (1..=4 * want).contains(got),
            Axis::Fixed(_) if shapes == Shapes::Unknown => *got > 0,
            _ => got == want,
        })
}

/// The elements of an array of `shape`, its axes taken in the order `axes`.
fn permuted(data: &[f32], shape: &[usize], axes: &[usize]) -> Vec<f32> {
    let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    let strides: Vec<(usize, usize)> = axes.iter().map(|&a| (shape[a], stride(a))).collect();
    (0..data.len())
        .map(|mut i| {
            let mut at = 0;
            for &(extent, stride) in strides.iter().rev() {
                at += i % extent * stride;
                i /= extent;
            }
            data[at]
        })
        .collect()
}

/// Fills `out` with the next values.
fn fill<T>(
    out: &mut [f32],
    values: &mut impl Iterator<Item = std::io::Result<T>>,
    convert: fn(T) -> f32,
) -> Result<()> {
    for v in out {
        *v = convert(values.next().context("ends before its header says")??);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::permuted;

    #[test]
    fn axes_are_taken_in_the_order_asked_for() {
        let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
        // [2,3,4] taken as (1,0,2) is [3,2,4].
        let got = permuted(&data, &[2, 3, 4], &[1, 0, 2]);
        assert_eq!(got[..8], [0.0, 1.0, 2.0, 3.0, 12.0, 13.0, 14.0, 15.0]);
        let back = permuted(&got, &[3, 2, 4], &[1, 0, 2]);
        assert_eq!(back, data);
    }
}
