//! Writes what an engine computes as a capture that qdiff judges.
//!
//! ```
//! # fn main() -> qdiff_tap::Result<()> {
//! # let (prompt, n_embd, n_vocab) = (vec![151644, 872], 4, 8);
//! # let (embedding, layers, logits) = (vec![0f32; 8], vec![vec![0f32; 8]], vec![0f32; 16]);
//! let tap = qdiff_tap::Tap::begin("my engine")?; //  writes nothing where QDIFF_DUMP is not set
//! tap.step(0, &prompt)?; //                          before a forward pass: the position of its first token, and the ids it is fed
//! tap.rows("embed", None, &embedding, n_embd)?; //   [tokens, n_embd], row-major
//! for (layer, x) in layers.iter().enumerate() {
//!     tap.rows("layer_out", layer, x, n_embd)?;
//! }
//! tap.rows("logits", None, &logits, n_vocab)?;
//! tap.close()?; //                                   after the last forward pass
//! # Ok(())
//! # }
//! ```
//!
//! The folder that the environment's `QDIFF_DUMP` names is made. A new dump replaces an old one there. A process that cannot dump
//! leaves the reason in the folder, and qdiff refuses the folder. Two processes cannot dump to one folder at the same time, and a
//! process that was forked after [`Tap::begin`] cannot tap. `qdiff run -m MODEL --subject capture:FOLDER` judges the dump;
//! docs/engine/capture-format.md says which names and shapes the stages have. Layers count from 0.
//!
//! An array and the line that names it are in their files when a call returns, and a step counts once it has ended: of a run
//! that is killed the steps that had ended are judged. [`Tap::close`] writes the line that says that the dump is whole: qdiff does
//! not pass a dump without it. Taps may come from several threads.
//!
//! | feature | what can be tapped |
//! | --- | --- |
//! | none | slices of numbers, row-major or with strides, and bytes in any number format |
//! | `half` | slices of `half::f16` and `half::bf16` |
//! | `ndarray` | arrays and views of ndarray |
//! | `candle` | tensors of candle, on any device |

mod array;
#[cfg(feature = "candle")]
mod candle;
mod folder;

pub use array::{Array, Element, Elements, Rows, Strided};

use folder::{ELEMENTS, LINES};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What cannot be dumped, and why: it names the array or the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qdiff_tap: {}", self.0)
    }
}

impl std::error::Error for Error {}

/// What every call gives.
pub type Result<T> = std::result::Result<T, Error>;

/// A capture while it is written, or nothing.
///
/// The first error is written into the capture as well, which qdiff then refuses with the same words, and every call after
/// it gives it again: a judged dump is whole, even if an engine ignores errors.
#[derive(Debug)]
pub struct Tap(Option<Own>);

/// A capture, and the process that writes it: one that is forked from it has no part in it.
#[derive(Debug)]
struct Own {
    process: u32,
    folder: PathBuf,
    dump: Mutex<Dump>,
}

impl Tap {
    /// Begins a capture in the folder that `QDIFF_DUMP` names. Where that is not set every call is one branch, and does
    /// nothing. `engine` is the name that reports give the engine.
    ///
    /// # Errors
    /// A folder that cannot be made or written in, to which another process dumps now, or that holds an older capture with a
    /// `manifest.json`. Other captures of lines are replaced. What is left in the folder says why, and is no capture.
    pub fn begin(engine: &str) -> Result<Self> {
        Self::begin_with(engine, "")
    }

    /// The same, with further fields of the manifest as JSON, such as `"arithmetic": "bf16"`; `qdiff schema capture`
    /// describes them.
    ///
    /// # Errors
    /// As [`Tap::begin`].
    pub fn begin_with(engine: &str, fields: &str) -> Result<Self> {
        match std::env::var_os("QDIFF_DUMP").filter(|folder| !folder.is_empty()) {
            Some(folder) => Self::in_folder(Path::new(&folder), engine, fields),
            None => Ok(Self(None)),
        }
    }

    /// The same for a rank of a run that is cut over ranks: its number from 0, and how the run was cut, such as `2` or
    /// `2:heads=7+7,ffn=2432+2432,vocab=whole`. It dumps to the folder `rank1` in that of `QDIFF_DUMP`; the names of stages
    /// are the same for all ranks.
    ///
    /// # Errors
    /// As [`Tap::begin`].
    pub fn begin_rank(engine: &str, rank: usize, ranks: &str, fields: &str) -> Result<Self> {
        let Some(folder) = std::env::var_os("QDIFF_DUMP").filter(|folder| !folder.is_empty()) else {
            return Ok(Self(None));
        };
        Self::rank_in_folder(Path::new(&folder), engine, (rank, ranks), fields)
    }

    /// The same in this folder, independent of the environment.
    ///
    /// # Errors
    /// As [`Tap::begin`].
    pub fn rank_in_folder(folder: &Path, engine: &str, (rank, ranks): (usize, &str), fields: &str) -> Result<Self> {
        let comma = if fields.trim().is_empty() { "" } else { "," };
        let fields = format!("\"rank\":{rank},\"ranks\":{}{comma}{fields}", quoted(ranks));
        let folder = folder.join(format!("rank{rank}"));
        let dump = Dump::new(&folder, engine, 4, &fields).map_err(|why| folder::refused(&folder, &why))?;
        Ok(Self(Some(Own { process: std::process::id(), folder, dump: Mutex::new(dump) })))
    }

    /// The same in this folder, independent of the environment.
    ///
    /// # Errors
    /// As [`Tap::begin`].
    pub fn in_folder(folder: &Path, engine: &str, fields: &str) -> Result<Self> {
        let dump = Dump::new(folder, engine, 3, fields).map_err(|why| folder::refused(folder, &why))?;
        Ok(Self(Some(Own { process: std::process::id(), folder: folder.to_owned(), dump: Mutex::new(dump) })))
    }

    /// Whether anything is written.
    pub fn writes(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a step, that is a forward pass of these token ids, the first of them at position `first`, and ends the one
    /// before. Steps are the prompt, or its parts of one size, and then a token each.
    ///
    /// # Errors
    /// A step without tokens; what cannot be written.
    pub fn step(&self, first: usize, tokens: &[u32]) -> Result<()> {
        self.with(|dump| dump.step(first, tokens))
    }

    /// Says of which sequences the rows of the current step are, numbered from 0 on in the order in which they begin. Arrays then
    /// hold the rows of all of them; caches, scores and weights are dumped with [`Tap::add_of`]. The whole numbers `positions`
    /// and `slots` say which position each row has, and to which slot of the caches it is written.
    ///
    /// # Errors
    /// Another number of sequences than the step has tokens; what cannot be written.
    pub fn sequences(&self, sequences: &[u32]) -> Result<()> {
        self.with(|dump| dump.sequences(sequences))
    }

    /// Says that sequence `to` begins in this step, with so many cached tokens of sequence `from`.
    ///
    /// # Errors
    /// A prefix outside a step; what cannot be written.
    pub fn prefix(&self, from: u32, to: u32, tokens: usize) -> Result<()> {
        self.with(|dump| dump.of_step("prefixes", &format!("[[{from},{to},{tokens}]]")))
    }

    /// Says that a sequence took tokens back before this step, as after a rejected draft, and kept its first `kept` ones.
    ///
    /// # Errors
    /// As [`Tap::prefix`].
    pub fn taken_back(&self, sequence: u32, kept: usize) -> Result<()> {
        self.with(|dump| dump.of_step("taken_back", &format!("[[{sequence},{kept}]]")))
    }

    /// Dumps what a sequence alone has of a stage, such as its cached rows; or its block table, `tables`: the slots of its
    /// positions.
    ///
    /// # Errors
    /// As [`Tap::add`].
    pub fn add_of(&self, sequence: u32, stage: &str, layer: impl Into<Option<usize>>, array: impl Array) -> Result<()> {
        self.put(Some(sequence), stage, layer.into(), &array)
    }

    /// Dumps rows of `width` elements, one after the other. `layer` is the layer's number, or `None` outside of layers.
    ///
    /// # Errors
    /// As [`Tap::add`].
    pub fn rows<T: Element>(
        &self, stage: &str, layer: impl Into<Option<usize>>, data: &[T], width: usize,
    ) -> Result<()> {
        self.add(stage, layer, Rows { data, width })
    }

    /// Dumps the output of a stage, which is copied before the call returns.
    ///
    /// # Errors
    /// An array outside a step, or a second one of its name in it; an array that is none; what cannot be written.
    pub fn add(&self, stage: &str, layer: impl Into<Option<usize>>, array: impl Array) -> Result<()> {
        self.put(None, stage, layer.into(), &array)
    }

    /// Appends rows to a stage of the current step, as an engine has them that computes one token of the step after the other. The
    /// rows of a step are one array, which is dumped when the step ends.
    ///
    /// # Errors
    /// As [`Tap::add`]; rows of another shape or number format than those before them.
    pub fn append(&self, stage: &str, layer: impl Into<Option<usize>>, rows: impl Array) -> Result<()> {
        let layer = layer.into();
        self.named(stage, layer, |dump, name| dump.append(name, rows.elements()?))
    }

    fn put(&self, sequence: Option<u32>, stage: &str, layer: Option<usize>, array: &dyn Array) -> Result<()> {
        self.named(stage, layer, |dump, name| dump.array(name, sequence, &array.elements()?))
    }

    /// Does this to the array of a stage; an error says whose.
    fn named(
        &self, stage: &str, layer: Option<usize>, act: impl FnOnce(&mut Dump, &str) -> std::result::Result<(), String>,
    ) -> Result<()> {
        self.with(|dump| {
            let name = match layer {
                Some(layer) => format!("L{layer:02}.{stage}"),
                None => stage.to_owned(),
            };
            act(dump, &name).map_err(|why| format!("{name} of step {}: {why}", dump.step))
        })
    }

    /// Ends the step at once, so that whoever waits for it can read it; else the next one does, or [`Tap::close`].
    ///
    /// # Errors
    /// What cannot be written.
    pub fn end(&self) -> Result<()> {
        self.with(Dump::end)
    }

    /// Ends the step, and says that the dump is whole: nothing can be tapped after it. Without this call the last step does not
    /// count, and qdiff takes the run for one that was cut short.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn close(&self) -> Result<()> {
        self.with(Dump::close)
    }

    /// Does this to the capture, if there is one and it is still right; tells the first error in the capture too.
    fn with(&self, act: impl FnOnce(&mut Dump) -> std::result::Result<(), String>) -> Result<()> {
        let Some(Own { process, folder, dump }) = &self.0 else { return Ok(()) };
        let this = std::process::id();
        // Before the lock, which a thread of the other process may have held.
        if this != *process {
            let why = format!(
                "process {this} taps the dump that process {process} began before it forked; call Tap::begin after the fork, and \
                 give each process a folder of its own"
            );
            return Err(folder::refused(folder, &why));
        }
        let dump = &mut *dump.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &dump.failed {
            return Err(error.clone());
        }
        act(dump).map_err(|why| {
            if dump.line(&format!("{{\"trouble\":{}}}", quoted(&why))).is_err() {
                folder::refused(folder, &why);
            }
            dump.failed.insert(Error(why)).clone()
        })
    }
}

/// A step that has begun: its first position, its tokens, and the arrays that it has, by name and sequence.
type Begun = (usize, Vec<u32>, HashSet<(String, Option<u32>)>);

/// The files of a capture.
#[derive(Debug)]
struct Dump {
    folder: PathBuf,
    elements: File,
    lines: File,
    /// Bytes in `elements`.
    offset: usize,
    /// Number of the current step, or of the next one.
    step: usize,
    /// The current step: the position of its first token, its tokens, and the arrays that it has.
    open: Option<Begun>,
    /// Rows of the current step so far, by the names of their arrays.
    appended: BTreeMap<String, Elements>,
    closed: bool,
    failed: Option<Error>,
}

impl Dump {
    fn new(folder: &Path, engine: &str, version: u32, fields: &str) -> std::result::Result<Self, String> {
        let (lines, elements) = folder::taken(folder)?;
        let folder = folder.to_owned();
        let appended = BTreeMap::new();
        let mut dump =
            Self { folder, elements, lines, offset: 0, step: 0, open: None, appended, closed: false, failed: None };
        let comma = if fields.trim().is_empty() { "" } else { "," };
        // JSON may be on several lines, and the first line of a capture may not.
        let fields = fields.replace(['\n', '\r'], " ");
        let (which, engine) = (folder::dump(), quoted(engine));
        dump.line(&format!("{{\"schema_version\":{version},\"dump\":{which},\"engine\":{engine}{comma}{fields}}}"))?;
        folder::ready(&dump.folder)?;
        Ok(dump)
    }

    fn step(&mut self, first: usize, tokens: &[u32]) -> std::result::Result<(), String> {
        self.end()?;
        if self.closed {
            return Err("a step was begun after the dump was closed".to_owned());
        }
        if tokens.is_empty() {
            return Err(format!("step {} has no tokens", self.step));
        }
        self.open = Some((first, tokens.to_vec(), HashSet::new()));
        Ok(())
    }

    fn end(&mut self) -> std::result::Result<(), String> {
        for (name, rows) in std::mem::take(&mut self.appended) {
            self.array(&name, None, &rows).map_err(|why| format!("{name}: {why}"))?;
        }
        let Some((first, tokens, _)) = self.open.take() else { return Ok(()) };
        let step = self.step;
        self.step += 1;
        self.line(&format!("{{\"end\":{step},\"first\":{first},\"tokens\":{tokens:?}}}"))
    }

    fn close(&mut self) -> std::result::Result<(), String> {
        self.end()?;
        if !std::mem::replace(&mut self.closed, true) {
            self.line(&format!("{{\"closed\":{}}}", self.step))?;
            // The folder is free, even where a forked process goes on. A file system without locks has nothing to unlock.
            let _ = self.elements.unlock();
        }
        Ok(())
    }

    fn sequences(&mut self, sequences: &[u32]) -> std::result::Result<(), String> {
        let fed = self.open.as_ref().map_or(0, |(_, tokens, _)| tokens.len());
        if fed != sequences.len() || fed == 0 {
            return Err(format!("step {} has {fed} tokens, and {} sequences were named", self.step, sequences.len()));
        }
        self.of_step("sequences", &format!("{sequences:?}"))
    }

    /// A line about the rows of the current step.
    fn of_step(&mut self, what: &str, said: &str) -> std::result::Result<(), String> {
        if self.open.is_none() {
            return Err(format!("{what} were named before the step began"));
        }
        self.line(&format!("{{\"step\":{},\"{what}\":{said}}}", self.step))
    }

    fn array(&mut self, name: &str, sequence: Option<u32>, array: &Elements) -> std::result::Result<(), String> {
        array.check()?;
        let Some((_, _, names)) = &mut self.open else {
            return Err("was tapped before the step began".to_owned());
        };
        if self.appended.contains_key(name) {
            return Err("was appended to in this step before".to_owned());
        }
        if !names.insert((name.to_owned(), sequence)) {
            return Err("was tapped in this step before".to_owned());
        }
        let file = self.folder.join(ELEMENTS);
        self.elements.write_all(&array.bytes).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        // The line that names the elements comes when they are in the file.
        let line = format!(
            "{{\"step\":{},\"name\":{},\"dtype\":{},\"shape\":{:?},\"file\":\"{ELEMENTS}\",\"offset\":{}{}}}",
            self.step,
            quoted(name),
            quoted(array.format),
            array.shape,
            self.offset,
            sequence.map_or_else(String::new, |sequence| format!(",\"sequence\":{sequence}"))
        );
        self.offset += array.bytes.len();
        self.line(&line)
    }

    fn append(&mut self, name: &str, rows: Elements) -> std::result::Result<(), String> {
        rows.check()?;
        let Some((_, _, names)) = &self.open else {
            return Err("was tapped before the step began".to_owned());
        };
        if names.contains(&(name.to_owned(), None)) {
            return Err("was tapped in this step before".to_owned());
        }
        let Some(before) = self.appended.get_mut(name) else {
            self.appended.insert(name.to_owned(), rows);
            return Ok(());
        };
        if (before.format, &before.shape[1..]) != (rows.format, &rows.shape[1..]) {
            return Err(format!(
                "rows of shape {:?} in {} follow rows of shape {:?} in {}",
                &rows.shape[1..],
                rows.format,
                &before.shape[1..],
                before.format
            ));
        }
        before.shape[0] += rows.shape[0];
        before.bytes.extend(rows.bytes);
        Ok(())
    }

    fn line(&mut self, line: &str) -> std::result::Result<(), String> {
        let file = self.folder.join(LINES);
        let written = self.lines.write_all(format!("{line}\n").as_bytes());
        written.map_err(|e| format!("cannot write {}: {e}", file.display()))
    }
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\x1f' => write!(out, "\\u{:04x}", u32::from(c)).expect("a string takes all"),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}
