//! Many prompts in one run, with the model loaded once: `run --prompts`.

use crate::hash::sha256;
use crate::input;
use crate::loaded::LoadedModel;
use crate::prompts::{self, Ready, Style};
use crate::report::{Place, file};
use crate::shard::Shard;
use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// The prompts of a run.
#[derive(Default)]
pub(super) struct Batch {
    /// Those of this part.
    pub(super) entries: Vec<Entry>,
    /// How many there are in all parts.
    of: usize,
    /// Names and contents of all of them.
    listing: String,
}

impl Batch {
    /// The place of `entry`, one of [`Batch::entries`], on the model with this hash.
    pub(super) fn place(&self, entry: &Entry, model: &str) -> Place {
        Place { batch: sha256(format!("{model}\n{}", self.listing).as_bytes()), number: entry.index + 1, of: self.of }
    }
}

/// One prompt of several.
pub(super) struct Entry {
    /// Its place among all prompts, for any shard.
    pub(super) index: usize,
    /// What `--prompt` would take.
    pub(super) given: String,
    /// The name it goes by where the text has none.
    pub(super) name: String,
}

impl Entry {
    /// Its text and tokens.
    pub(super) fn resolve(&self, opened: &LoadedModel, style: Style<'_>, decode: usize) -> Result<Ready> {
        let mut ready = prompts::resolve(opened, &self.given, style)?;
        if ready.name == "text" {
            ready.name.clone_from(&self.name);
        }
        opened.check(&ready.tokens, decode)?;
        Ok(ready)
    }

    /// A line that tells it from other prompts: by what it says, not by where
    /// its file is, which another part may find elsewhere.
    fn line(&self) -> String {
        let said = match self.given.strip_prefix('@') {
            Some(path) => sha256(&input::bytes(Path::new(path), input::TEXT).unwrap_or_default()),
            None => sha256(self.given.as_bytes()),
        };
        format!("{said} {:?}\n", self.name)
    }

    /// Name of its file of results: unlike that of every other prompt.
    pub(super) fn file(&self) -> String {
        format!("{:04}-{}.json", self.index, file::name(&self.name))
    }
}

/// The prompts of a file, one a line, or of a folder's `.txt` files, in order of their names.
///
/// # Errors
/// What cannot be read, or holds no prompt; a part without any.
pub(super) fn read(source: &Path, shard: Option<Shard>) -> Result<Batch> {
    let shown = source.display();
    let mut all = if source.is_dir() {
        of_folder(source)?
    } else {
        let text = input::text(source, input::TEXT).with_context(|| {
            format!("cannot read {shown}: give a UTF-8 text file with a prompt a line, or a folder of .txt files")
        })?;
        of_lines(source, &text)?
    };
    if all.is_empty() {
        bail!("{shown} holds no prompt: give a text file with a prompt a line, or a folder of .txt files");
    }
    let of = all.len();
    let listing = all.iter().map(Entry::line).collect();
    if let Some(shard) = shard {
        all.retain(|e| shard.has(e.index));
        if all.is_empty() {
            bail!("--shard {shard} has no prompt: {shown} holds {of}; use fewer parts");
        }
    }
    Ok(Batch { entries: all, of, listing })
}

fn of_folder(folder: &Path) -> Result<Vec<Entry>> {
    let entry = |(index, path): (usize, std::path::PathBuf)| Entry {
        index,
        given: format!("@{}", path.display()),
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    Ok(file::list(folder, "txt")?.into_iter().enumerate().map(entry).collect())
}

fn of_lines(file: &Path, text: &str) -> Result<Vec<Entry>> {
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    lines
        .enumerate()
        .map(|(index, (line, given))| {
            if given == "-" {
                bail!("line {} of {file} is `-`, but many prompts cannot come from standard input", line + 1);
            }
            Ok(Entry { index, given: given.to_owned(), name: format!("{file}:{}", line + 1) })
        })
        .collect()
}
