//! Captures on disk. A folder is a capture; what it holds its arrays in is seen from its files: `capture.npz` (or its
//! parts), files `STEP/STAGE.npy`, `*.safetensors`, or `capture.jsonl` with `*.bin`.

use super::array::Shapes;
use super::dump::{self, Expected};
use super::intake::Intake;
use super::manifest::{self, Manifest};
use super::names::Names;
use super::npz;
use super::raw::{self, Lines};
use super::safetensors::Opened;
use super::{Capture, Step, Store, npy};
use crate::input;
use crate::number::counted;
use crate::shard::Shard;
use anyhow::{Context as _, Result, bail, ensure};
use qdiff_engine::model::Graph;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes of a manifest: a million tokens with ids of seven digits take half of it.
const LONGEST: u64 = 16 << 20;

/// Most parts of a capture: more than a model has layers.
const MOST: usize = 4096;

/// Missing parts that are named.
const NAMED: usize = 3;

/// What a capture is, where something else was named.
const CAPTURE: &str = "a capture is a folder with capture.jsonl, or with manifest.json and capture.npz or another container of arrays \
                       (docs/engine/capture-format.md names them)";

/// What a folder holds its arrays in.
enum Container {
    /// One archive, or several that hold a part each, in order.
    Npz(Vec<(Option<Shard>, PathBuf)>),
    /// A file for each array: its name STEP/STAGE, and where it is.
    Npy(Vec<(String, PathBuf)>),
    /// One file or more.
    Safetensors(Vec<PathBuf>),
    /// Lines, and files that they name.
    Raw,
}

impl Container {
    /// Looks which of them it is.
    ///
    /// # Errors
    /// None of them, or more than one.
    fn of(folder: &Path) -> Result<Self> {
        let problem = || format!("cannot read {}: {CAPTURE}", folder.display());
        let (mut npz, mut raw, mut safetensors, mut npy) = (Vec::new(), false, Vec::new(), Vec::new());
        for entry in std::fs::read_dir(folder).with_context(problem)? {
            let entry = entry.with_context(problem)?;
            let path = entry.path();
            if let Some(part) = entry.file_name().to_str().and_then(npz::archive) {
                npz.push((part, path));
            } else if entry.file_name() == raw::LINES {
                raw = true;
            } else if path.extension() == Some(OsStr::new("safetensors")) {
                safetensors.push(path);
            } else if entry.file_type().is_ok_and(|t| t.is_dir()) {
                let step = entry.file_name();
                for array in std::fs::read_dir(&path).with_context(problem)? {
                    let array = array.with_context(problem)?.path();
                    if let (Some(stage), Some("npy")) = (array.file_stem(), array.extension().and_then(OsStr::to_str)) {
                        npy.push((format!("{}/{}", step.to_string_lossy(), stage.to_string_lossy()), array));
                    }
                }
            }
        }
        npz.sort_by(|(_, a), (_, b)| a.cmp(b));
        safetensors.sort();
        npy.sort();
        let several = "STEP/STAGE.npy";
        let held = [
            (!npz.is_empty(), "capture.npz"),
            (raw, raw::LINES),
            (!safetensors.is_empty(), "*.safetensors"),
            (!npy.is_empty(), several),
        ];
        let held: Vec<&str> = held.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect();
        let shown = folder.display();
        ensure!(held.len() < 2, "{shown} holds {}: it is not clear which of them is the capture", held.join(" and "));
        let of = |part: Option<Shard>| part.map(|shard| shard.of);
        ensure!(
            npz.windows(2).all(|w| of(w[0].0) == of(w[1].0)),
            "{shown} holds archives of two captures: one whole and one in parts, or parts of different numbers"
        );
        Ok(match () {
            () if !npz.is_empty() => Self::Npz(npz),
            () if raw => Self::Raw,
            () if !safetensors.is_empty() => Self::Safetensors(safetensors),
            () if !npy.is_empty() => Self::Npy(npy),
            () => bail!("{shown} holds no arrays: {CAPTURE}"),
        })
    }

    /// The files that hold it.
    fn files(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        Ok(match self {
            Self::Npz(archives) => archives.iter().map(|(_, path)| path.clone()).collect(),
            Self::Npy(arrays) => arrays.iter().map(|(_, path)| path.clone()).collect(),
            Self::Safetensors(files) => files.clone(),
            Self::Raw => {
                let lines = Lines::open(folder)?;
                lines.files().into_iter().chain([raw::LINES]).map(|name| folder.join(name)).collect()
            }
        })
    }
}

/// The folders `rank0`, `rank1` and so on, where each rank of a run wrote its own.
fn rank_folders(folder: &Path) -> Vec<PathBuf> {
    (0..=u16::MAX).map(|rank| folder.join(format!("rank{rank}"))).take_while(|path| path.is_dir()).collect()
}

/// Refuses what is in the folder where another run than the expected one wrote it.
///
/// # Errors
/// That; trouble that the tap had; a folder that holds no capture.
pub fn check_run(folder: &Path, expected: &Expected) -> Result<()> {
    let ranks = rank_folders(folder);
    if !ranks.is_empty() {
        return ranks.iter().try_for_each(|rank| check_run(rank, expected));
    }
    dump::check_trouble(folder)?;
    let container = Container::of(folder)?;
    let raw = matches!(container, Container::Raw);
    // The reader of the manifest reports a bad manifest.
    let dump =
        if raw { Lines::open(folder)?.dump()? } else { any_manifest(folder).ok().and_then(|manifest| manifest.dump) };
    expected.check(dump.as_ref(), &container.files(folder)?, raw)
}

/// The archives of `folder` that are read: all of them, or the part's own, where that is all that was fetched of a capture that
/// was recorded in as many parts as the work has.
///
/// # Errors
/// An archive that is not there.
fn archives<'a>(folder: &Path, all: &'a [(Option<Shard>, PathBuf)], names: &Names) -> Result<Vec<&'a Path>> {
    let of = all.iter().find_map(|(part, _)| *part).map_or(0, |shard| shard.of);
    ensure!(of <= MOST, "{} holds archives of {of} parts; {MOST} are as many as are read", folder.display());
    ensure!(
        of < 2 || !names.mapped,
        "{} is a capture in parts, which qdiff writes and calls as the graph does; --map is of other containers",
        folder.display()
    );
    let there = |shard: &Shard| all.iter().any(|(part, _)| *part == Some(*shard));
    if names.part().is_some_and(|own| own.of == of && there(&own)) {
        return Ok(all.iter().map(|(_, path)| path.as_path()).collect());
    }
    let absent: Vec<String> = Shard::all(of).filter(|shard| !there(shard)).map(npz::name_of).collect();
    let more = if absent.len() > NAMED { format!(" and {} more", absent.len() - NAMED) } else { String::new() };
    ensure!(
        absent.is_empty(),
        "{} lacks {}{more}, of the {of} parts that it was recorded in: fetch the missing parts, or record it again",
        folder.display(),
        absent[..absent.len().min(NAMED)].join(", ")
    );
    Ok(all.iter().map(|(_, path)| path.as_path()).collect())
}

/// Whether the folder holds lines that say whose the rows of a step are: these have no manifest.json beside them.
pub fn names_sequences(folder: &Path) -> bool {
    Lines::open(folder).is_ok_and(|lines| lines.name_sequences())
}

/// Reads the manifest of the capture of one sequence in `folder`, and no arrays. A plan of a single sequence becomes its passes.
///
/// # Errors
/// As [`any_manifest`]; a capture of several sequences.
pub fn manifest(folder: &Path) -> Result<Manifest> {
    let manifest = any_manifest(folder)?.alone().with_context(|| folder.display().to_string())?;
    ensure!(
        manifest.sequences.is_none(),
        "{} is a capture of several sequences, which `qdiff run --subject capture:{0}` judges",
        folder.display()
    );
    Ok(manifest)
}

/// Reads the manifest of a capture of one sequence or several. A raw container may do without manifest.json.
///
/// # Errors
/// If it is missing, no manifest, or of another version.
pub fn any_manifest(folder: &Path) -> Result<Manifest> {
    let folders = rank_folders(folder);
    let Some(first) = folders.first() else { return own_manifest(folder, None) };
    let all = folders.iter().enumerate().map(|(rank, own)| of_rank(own, folder, rank)).collect::<Result<Vec<_>>>()?;
    let shown = first.display();
    let Some(ranks) = &all[0].ranks else {
        bail!("{shown}: the manifest of a rank must say how the run was cut over ranks (`ranks`)")
    };
    ensure!(
        ranks.ranks == all.len(),
        "{} has folders of {}, and the run had {}; fetch the missing folders, or run again",
        folder.display(),
        counted(all.len(), "rank"),
        ranks.ranks
    );
    for (own, of_rank) in folders.iter().zip(&all) {
        let same = of_rank.ranks == all[0].ranks
            && (&of_rank.tokens, &of_rank.decoded) == (&all[0].tokens, &all[0].decoded)
            && of_rank.steps().len() == all[0].steps().len();
        ensure!(same, "{} is of other tokens or other ranks than {shown}; run all ranks again", own.display());
    }
    let cut = all.iter().find_map(|of_rank| of_rank.cut.clone());
    let open_end = all.iter().any(|of_rank| of_rank.open_end);
    Ok(Manifest { rank: None, cut, open_end, ..all.into_iter().next().context("a rank")? })
}

/// The manifest of a rank's own folder; what it does not say, that of the run says.
fn of_rank(own: &Path, run: &Path, rank: usize) -> Result<Manifest> {
    let manifest = own_manifest(own, Some(run))?;
    let rank = rank as u16;
    ensure!(
        manifest.rank.is_none_or(|said| said == rank),
        "{}: its manifest says that it is of another rank",
        own.display()
    );
    Ok(Manifest { rank: Some(rank), ..manifest })
}

fn own_manifest(folder: &Path, run: Option<&Path>) -> Result<Manifest> {
    dump::check_trouble(folder)?;
    let of = |folder: &Path| folder.join("manifest.json");
    let of_run = run.map(of).filter(|path| path.symlink_metadata().is_ok() && of(folder).symlink_metadata().is_err());
    let path = of_run.unwrap_or_else(|| of(folder));
    let name = path.display().to_string();
    let lines = folder.join(raw::LINES);
    let is_raw = lines.symlink_metadata().is_ok();
    if is_raw && path.symlink_metadata().is_err() {
        return Lines::open(folder)?.manifest(None, &lines.display().to_string());
    }
    let gone = folder.symlink_metadata().is_err();
    ensure!(!gone, "cannot read {name}: there is no folder {}; did the engine run? {CAPTURE}", folder.display());
    let bytes = input::bytes(&path, LONGEST).with_context(|| format!("cannot read {name}: {CAPTURE}"))?;
    if is_raw { Lines::open(folder)?.manifest(Some(bytes), &name) } else { manifest::parse(&bytes, &name) }
}

/// The stages that have an array in the folder, in any step, as they are called.
///
/// # Errors
/// What is no container, or cannot be read.
pub fn stages(folder: &Path) -> Result<Vec<String>> {
    Ok(held(folder)?.into_keys().collect())
}

/// The same with the labels of the steps; without any where only reading all of the container would tell them.
///
/// # Errors
/// As [`stages`].
pub fn held(folder: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let ranks = rank_folders(folder);
    for (rank, own) in ranks.iter().enumerate() {
        for (stage, steps) in held(own)? {
            all.entry(stage).or_default().extend(steps.into_iter().map(|step| format!("r{rank}.{step}")));
        }
    }
    if !ranks.is_empty() {
        return Ok(all);
    }
    let mut add = |full: &str| {
        if let Some((step, stage)) = full.split_once('/') {
            all.entry(stage.to_owned()).or_default().insert(step.to_owned());
        }
    };
    match Container::of(folder)? {
        Container::Npz(archives) => {
            for (_, path) in archives {
                for (i, full) in npz::open(&path)?.file_names().enumerate() {
                    let full = full.with_context(|| format!("{}: entry {i}", path.display()))?;
                    full.strip_suffix(".npy").into_iter().for_each(&mut add);
                }
            }
        }
        Container::Npy(files) => files.iter().for_each(|(full, _)| add(full)),
        Container::Safetensors(files) => {
            for path in files {
                Opened::new(&path)?.names().for_each(&mut add);
            }
        }
        Container::Raw => all.extend(Lines::open(folder)?.names().map(|name| (name.to_owned(), BTreeSet::new()))),
    }
    Ok(all)
}

/// Reads the arrays of the capture in `folder` that belong to stages of `graph` into `store`.
///
/// # Errors
/// A folder that holds no container, or more than one. An array that belongs to no stage (with a map such arrays are
/// passed over), occurs twice, is of no format of [`qdiff_engine::dtype::DType`], is not wholly there, or holds more
/// than a few times what its stage can have: no more memory is taken than that.
pub fn read(
    folder: &Path, manifest: &Manifest, stages: (&Graph, &Names), shapes: Shapes, store: &Arc<Store>,
) -> Result<Capture> {
    let folders = rank_folders(folder);
    if !folders.is_empty() {
        let mut whole: Option<Capture> = None;
        for (rank, own) in folders.iter().enumerate() {
            let of_rank = of_rank(own, folder, rank)?;
            let capture = read(own, &of_rank, stages, shapes, store)?;
            whole = Some(match whole {
                Some(whole) => whole.with(capture),
                None => capture,
            });
        }
        return whole.context("a rank");
    }
    let container = Container::of(folder)?;
    if let (Some(dump), false) = (&manifest.dump, matches!(container, Container::Raw)) {
        dump::check_one_run(dump, &container.files(folder)?)?;
    }
    let capture = taken(&container, folder, manifest, stages, shapes, store)?;
    Ok(Capture { cut: manifest.cut.is_some(), ..capture })
}

fn taken(
    container: &Container, folder: &Path, manifest: &Manifest, stages: (&Graph, &Names), shapes: Shapes,
    store: &Arc<Store>,
) -> Result<Capture> {
    let name = match container {
        Container::Npz(archives) if archives.len() == 1 => archives[0].1.display().to_string(),
        _ => folder.display().to_string(),
    };
    if let Container::Npz(all) = container {
        let mut intake = Intake::new(&name, manifest, stages, shapes, store)?;
        let archives = archives(folder, all, stages.1)?;
        intake.repeats = archives.len() > 1;
        intake.rank = manifest.rank;
        for path in archives {
            npz::take(&mut intake, npz::open(path)?, &path.display().to_string())?;
        }
        return intake.finish();
    }
    let mut intake = Intake::new(&name, manifest, stages, shapes, store)?;
    intake.rank = manifest.rank;
    for pass in intake.passes() {
        match container {
            Container::Npz(_) => {}
            Container::Npy(files) => {
                for (full, path) in files {
                    let file = input::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                    let length = file.metadata().with_context(|| format!("cannot read {}", path.display()))?.len();
                    intake.take(pass, full, length, |declared| npy::open(BufReader::new(file), declared))?;
                }
            }
            Container::Safetensors(files) => {
                files.iter().try_for_each(|path| Opened::new(path)?.read(pass, &mut intake))?;
            }
            Container::Raw => Lines::open(folder)?.read(pass, folder, 0, &mut intake)?,
        }
    }
    intake.finish()
}

/// Reads the arrays of `step`, the last that the raw container in `folder` holds, and there number `index`: of an engine that
/// goes on meanwhile.
///
/// # Errors
/// As [`read`]; another container, or a step that is not whole.
pub fn step(folder: &Path, index: usize, step: Step, stages: (&Graph, &Names), store: &Arc<Store>) -> Result<Step> {
    let name = folder.display().to_string();
    let lines = Lines::open(folder).context("an engine that stays up dumps in lines, which tap/qdiff_tap.h writes")?;
    ensure!(lines.ended(index), "{name}: the engine reported step {index} as whole, but no line ends it");
    let mut intake = Intake::of_steps(&name, vec![step], stages, Shapes::Known, store);
    for pass in intake.passes() {
        lines.read(pass, folder, index, &mut intake)?;
    }
    intake.finish()?.steps.pop().context("a step")
}
