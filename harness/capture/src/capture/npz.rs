//! The container of a capture, `capture.npz`, or `capture-00001-of-00004.npz` and so on of one that is
//! recorded in parts: each holds the stages of some layers, and those that they are computed from.
//!
//! Any engine that writes a container can be a subject. The arrays are named `prefill/L07.q_rope`, `step1/logits`, …,
//! with the graph's shapes; an absent array counts as missing. A prefill in ubatches has a step for each:
//! `prefill`, `prefill@512`, `prefill@1024`, by the position of the first token.

use super::array::Shapes;
use super::intake::Intake;
use super::manifest::Manifest;
use super::names::Names;
use super::{Capture, Step, Store, npy};
use crate::home::{Home, unwritable};
use crate::input;
use crate::shard::Shard;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use npyz::WriterBuilder as _;
use qdiff_engine::model::{Graph, StageId};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// How many times the size of what is deflated in it an archive's array may unpack to where no graph says what its arrays hold.
const UNPACKED: u64 = 64;

/// What the archive is called that holds all of a capture.
const WHOLE: &str = "capture.npz";

/// What the archive is called that holds what a part of the work is about.
pub(super) fn name_of(shard: Shard) -> String {
    format!("capture-{:05}-of-{:05}.npz", shard.index, shard.of)
}

/// What a file of this name holds of a capture, if it is an archive of one: all of it, or a part.
pub(super) fn archive(name: &str) -> Option<Option<Shard>> {
    if name == WHOLE {
        return Some(None);
    }
    let (index, of) = name.strip_prefix("capture-")?.strip_suffix(".npz")?.split_once("-of-")?;
    let shard: Shard = format!("{index}/{of}").parse().ok()?;
    (name_of(shard) == name).then_some(Some(shard))
}

/// Writes a capture step by step. The folder appears whole under its name when it is finished, or not at all.
pub struct Writer {
    target: PathBuf,
    part: Home,
    archives: Vec<Archive>,
    options: SimpleFileOptions,
    arrays: usize,
}

/// An archive, and the stages that go into it; all where `None`.
struct Archive {
    zip: ZipWriter<BufWriter<File>>,
    stages: Option<HashSet<StageId>>,
}

impl Writer {
    /// Begins the folder `target`, with an archive for each of `parts`, or one for all where there are none; `compress`
    /// deflates the arrays.
    ///
    /// # Errors
    /// If it exists already, or cannot be written.
    pub fn create(target: &Path, compress: bool, parts: Vec<HashSet<StageId>>) -> Result<Self> {
        check_target(target)?;
        let parent = target.parent().filter(|p| !p.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        let problem = || format!("cannot write in {}", parent.display());
        let part = Home::new(".qdiff-capture-", parent)
            .map_err(|e| anyhow!("cannot write {}: {}", target.display(), unwritable(parent, &e)))?;
        let archive = |(name, stages): (String, _)| {
            let file = File::create(part.path().join(name)).with_context(problem)?;
            Ok(Archive { zip: ZipWriter::new(BufWriter::with_capacity(1 << 20, file)), stages })
        };
        let names = Shard::all(parts.len()).map(name_of);
        let archives = match parts.is_empty() {
            true => vec![archive((WHOLE.to_owned(), None))?],
            false => names.zip(parts.into_iter().map(Some)).map(archive).collect::<Result<_>>()?,
        };
        let method = if compress { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        Ok(Self {
            target: target.to_path_buf(),
            part,
            archives,
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
            let holds = |archive: &&mut Archive| archive.stages.as_ref().is_none_or(|stages| stages.contains(&id));
            for Archive { zip, .. } in self.archives.iter_mut().filter(holds) {
                let rank = id.rank.map_or_else(String::new, |rank| format!("r{rank}."));
                zip.start_file(format!("{rank}{}/{}.npy", step.label(), id.whole()), self.options)?;
                let mut array = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(zip).begin_nd()?;
                array.extend(tensor.data.iter().copied())?;
                array.finish()?;
            }
            self.arrays += 1;
        }
        Ok(())
    }

    /// Ends the archive, writes the manifest and gives the folder its name. Gives the number of arrays.
    ///
    /// # Errors
    /// If the disk is full, or the name was taken meanwhile.
    pub fn finish(self, manifest: &Manifest) -> Result<usize> {
        let problem = self.problem();
        let inner = || -> Result<usize> {
            for Archive { zip, .. } in self.archives {
                zip.finish()?.into_inner().map_err(|e| e.into_error())?.sync_all()?;
            }
            let text = serde_json::to_string_pretty(manifest)? + "\n";
            std::fs::write(self.part.path().join("manifest.json"), text)?;
            self.part.keep_as(&self.target)?;
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
    if let Some(parent) = parent.filter(|p| !p.is_dir()) {
        let kind = if parent.exists() { ErrorKind::NotADirectory } else { ErrorKind::NotFound };
        bail!("cannot write {}: {}", target.display(), unwritable(parent, &kind.into()));
    }
    Ok(())
}

/// Opens an archive.
///
/// # Errors
/// A file that is no npz.
pub(super) fn open(path: &Path) -> Result<ZipArchive<BufReader<File>>> {
    let name = path.display();
    let file = input::open(path).with_context(|| format!("cannot read {name}"))?;
    ZipArchive::new(BufReader::new(file)).with_context(|| format!("{name} is no npz archive"))
}

/// Reads the arrays of an archive called `name` that belong to stages of `graph` into `store`.
///
/// # Errors
/// A file that is no npz; an array that belongs to no stage (with a map such arrays are passed over), occurs
/// twice, has another checksum than the archive says, or holds more than a few times what its stage can have: an
/// archive is never unpacked further than that.
pub fn arrays<R: Read + Seek>(
    zip: ZipArchive<R>, name: &str, manifest: &Manifest, stages: (&Graph, &Names), shapes: Shapes, store: &Arc<Store>,
) -> Result<Capture> {
    let mut intake = Intake::new(name, manifest, stages, shapes, store)?;
    take(&mut intake, zip, name)?;
    intake.finish()
}

/// Takes the arrays of an archive called `name`.
///
/// # Errors
/// As [`arrays`].
pub(super) fn take<R: Read + Seek>(intake: &mut Intake<'_>, mut zip: ZipArchive<R>, name: &str) -> Result<()> {
    ensure!(!zip.has_duplicate_names(), "{name} holds two arrays of one name; it is not clear which of them counts");
    let deflated = deflated(&mut zip).with_context(|| format!("{name} is no npz archive"))?;
    let entries = zip.len();
    for (pass, i) in intake.passes().into_iter().flat_map(|pass| (0..entries).map(move |i| (pass, i))) {
        let entry = zip.by_index(i).with_context(|| format!("{name}: entry {i}"))?;
        let most = match entry.compression() {
            CompressionMethod::Stored => entry.size(),
            _ => deflated.saturating_mul(UNPACKED),
        };
        let full = entry.name().with_context(|| format!("{name}: entry {i}"))?.into_owned();
        intake.take(pass, full.strip_suffix(".npy").unwrap_or(&full), most, |declared| npy::open(entry, declared))?;
    }
    Ok(())
}

/// Bytes of the archive that hold deflated entries, none counted twice. What else is in the file costs whoever made it
/// nothing: a sparse file has as much of it as he likes.
fn deflated<R: Read + Seek>(zip: &mut ZipArchive<R>) -> Result<u64> {
    let mut spans = Vec::with_capacity(zip.len());
    for i in 0..zip.len() {
        let entry = zip.by_index_raw(i)?;
        let start = entry.data_start().filter(|_| entry.compression() != CompressionMethod::Stored);
        spans.extend(start.map(|start| start..start.saturating_add(entry.compressed_size())));
    }
    spans.sort_unstable_by_key(|span| span.start);
    let (mut bytes, mut end) = (0u64, 0);
    for span in spans {
        bytes = bytes.saturating_add(span.end.saturating_sub(span.start.max(end)));
        end = span.end.max(end);
    }
    Ok(bytes)
}
