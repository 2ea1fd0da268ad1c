//! Writes what an engine computes as a capture that qdiff judges.
//!
//! ```
//! # fn main() -> qdiff_tap::Result<()> {
//! # let (prompt, n_embd, n_vocab) = (vec![151644, 872], 4, 8);
//! # let (embedding, layers, logits) = (vec![0f32; 8], vec![vec![0f32; 8]], vec![0f32; 16]);
//! let tap = qdiff_tap::Tap::begin("my engine")?; //  writes nothing where QDIFF_DUMP is not set
//! tap.step(0, &prompt)?; //                          before a forward pass: its position, and the ids it is fed
//! tap.rows("embed", None, &embedding, n_embd)?; //   [tokens, n_embd], row-major
//! for (layer, x) in layers.iter().enumerate() {
//!     tap.rows("layer_out", layer, x, n_embd)?;
//! }
//! tap.rows("logits", None, &logits, n_vocab)?;
//! tap.end()?; //                                     after the last forward pass
//! # Ok(())
//! # }
//! ```
//!
//! The folder that the environment's `QDIFF_DUMP` names is made, and must not hold a capture yet. `qdiff run -m MODEL --subject
//! capture:FOLDER` judges it; docs/bring-your-own-engine.md says which names and shapes the stages have. Layers count from 0.
//!
//! An array and the line that names it are in their files when a call returns, and a step counts once it has ended: of a run
//! that is killed the steps that had ended are judged. Taps may come from several threads.
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

pub use array::{Array, Element, Elements, Rows, Strided};

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
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
/// it gives it again: what is judged is whole, whatever an engine makes of errors.
#[derive(Debug)]
pub struct Tap(Option<Mutex<Dump>>);

impl Tap {
    /// Begins a capture in the folder that `QDIFF_DUMP` names. Where that is not set every call is one branch, and does
    /// nothing. `engine` is the name that reports give the engine.
    ///
    /// # Errors
    /// A folder that cannot be made or written in, or that holds a capture already.
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

    /// The same in this folder, whatever the environment says.
    ///
    /// # Errors
    /// As [`Tap::begin`].
    pub fn in_folder(folder: &Path, engine: &str, fields: &str) -> Result<Self> {
        Dump::new(folder, engine, fields).map(|dump| Self(Some(Mutex::new(dump))))
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
        self.with(|dump| {
            let name = match layer.into() {
                Some(layer) => format!("L{layer:02}.{stage}"),
                None => stage.to_owned(),
            };
            let written = array.elements().and_then(|elements| dump.array(&name, &elements));
            written.map_err(|why| format!("{name} of step {}: {why}", dump.step))
        })
    }

    /// Ends the step at once, so that whoever waits for it can read it; else the next one does. The last step counts only
    /// after this call: a run that fails within it has not computed it.
    ///
    /// # Errors
    /// What cannot be written.
    pub fn end(&self) -> Result<()> {
        self.with(Dump::end)
    }

    /// Does this to the capture, if there is one and it is still right; tells the first error in the capture too.
    fn with(&self, act: impl FnOnce(&mut Dump) -> std::result::Result<(), String>) -> Result<()> {
        let Some(dump) = &self.0 else { return Ok(()) };
        let dump = &mut *dump.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &dump.failed {
            return Err(error.clone());
        }
        act(dump).map_err(|why| {
            // Where this cannot be written either, the step has no end, and does not count.
            let _ = dump.line(&format!("{{\"trouble\":{}}}", quoted(&why)));
            dump.failed.insert(Error(why)).clone()
        })
    }
}

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
    open: Option<(usize, Vec<u32>, HashSet<String>)>,
    failed: Option<Error>,
}

const LINES: &str = "capture.jsonl";
const ELEMENTS: &str = "capture.bin";

impl Dump {
    fn new(folder: &Path, engine: &str, fields: &str) -> Result<Self> {
        let shown = folder.display();
        std::fs::create_dir_all(folder).map_err(|e| Error(format!("cannot make the folder {shown}: {e}")))?;
        let open = |name: &str| {
            OpenOptions::new().write(true).create_new(true).open(folder.join(name)).map_err(|e| match e.kind() {
                std::io::ErrorKind::AlreadyExists => Error(format!("{shown} holds a capture already: {name}")),
                _ => Error(format!("cannot write {name} in {shown}: {e}")),
            })
        };
        let (lines, elements) = (open(LINES)?, open(ELEMENTS)?);
        let mut dump =
            Self { folder: folder.to_owned(), elements, lines, offset: 0, step: 0, open: None, failed: None };
        let comma = if fields.trim().is_empty() { "" } else { "," };
        // JSON may stand on several lines, and the capture's head may not.
        let fields = fields.replace(['\n', '\r'], " ");
        let head = format!("{{\"schema_version\":3,\"engine\":{}{comma}{fields}}}", quoted(engine));
        dump.line(&head).map_err(Error)?;
        Ok(dump)
    }

    fn step(&mut self, first: usize, tokens: &[u32]) -> std::result::Result<(), String> {
        self.end()?;
        if tokens.is_empty() {
            return Err(format!("step {} has no tokens", self.step));
        }
        self.open = Some((first, tokens.to_vec(), HashSet::new()));
        Ok(())
    }

    fn end(&mut self) -> std::result::Result<(), String> {
        let Some((first, tokens, _)) = self.open.take() else { return Ok(()) };
        let step = self.step;
        self.step += 1;
        self.line(&format!("{{\"end\":{step},\"first\":{first},\"tokens\":{tokens:?}}}"))
    }

    fn array(&mut self, name: &str, array: &Elements) -> std::result::Result<(), String> {
        array.check()?;
        let Some((_, _, names)) = &mut self.open else {
            return Err("was tapped before the step began".to_owned());
        };
        if !names.insert(name.to_owned()) {
            return Err("was tapped in this step before".to_owned());
        }
        let file = self.folder.join(ELEMENTS);
        self.elements.write_all(&array.bytes).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        // The line that names the elements comes when they are in the file.
        let line = format!(
            "{{\"step\":{},\"name\":{},\"dtype\":{},\"shape\":{:?},\"file\":\"{ELEMENTS}\",\"offset\":{}}}",
            self.step,
            quoted(name),
            quoted(array.format),
            array.shape,
            self.offset
        );
        self.offset += array.bytes.len();
        self.line(&line)
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
