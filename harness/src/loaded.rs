//! A model open on both sides: the engine's reader and llama.cpp's.

use crate::llama::gguf::{GgmlWeights, Index};
use crate::number::counted;
use crate::oracle::Oracle;
use crate::{hash, llama};
use anyhow::{Context as _, Result, bail};
use qdiff_engine::gguf::NotFinite;
use qdiff_engine::model::{LoadError, Model};
use qdiff_engine::tokenizer::{Tokenizer, VocabError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model open on both sides.
pub struct LoadedModel {
    /// The file, or the first of several.
    pub path: PathBuf,
    /// The engine's side.
    pub model: Model,
    /// llama.cpp's side.
    pub llama: Arc<llama::Model>,
    /// The engine's tokenizer, or why there is none.
    pub tokenizer: Result<Tokenizer, VocabError>,
    /// The oracle's index of the file.
    index: Arc<Index>,
}

impl LoadedModel {
    /// Opens the model, the engine's reader first: its errors are the clearer.
    ///
    /// # Errors
    /// If either side refuses the file, or a weight in it is NaN or infinite: no engine can be right with such a file.
    pub fn new(path: &Path) -> Result<Self> {
        let model = load(path)?;
        // While llama.cpp reads the file, at no cost in time.
        let (llama, (damaged, index, tokenizer)) = std::thread::scope(|scope| {
            let gguf = model.gguf();
            let read = || (gguf.not_finite(), Index::read(gguf), Tokenizer::new(gguf));
            let beside = std::thread::Builder::new().spawn_scoped(scope, read);
            let llama = llama::Model::load(path, llama::Load::Cpu);
            // Where there is no memory for a thread, after it.
            let read = beside.map_or_else(|_| read(), |beside| beside.join().expect("reading a file does not panic"));
            (llama, read)
        });
        let (llama, index) = (Arc::new(llama?), Arc::new(index?));
        let opened = Self { path: path.to_path_buf(), llama, tokenizer, index, model };
        opened.is_unchanged()?;
        refuse_damaged(&damaged).with_context(|| path.display().to_string())?;
        Ok(opened)
    }

    /// The weight format of most bytes.
    pub fn main_format(&self) -> String {
        let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
        for t in &self.model.gguf().tensors {
            *bytes.entry(t.ggml_type.to_string()).or_default() += t.size;
        }
        let most = bytes.into_iter().max_by_key(|(_, n)| *n);
        most.map_or_else(String::new, |(format, _)| format)
    }

    /// What the oracle reads of it.
    ///
    /// # Errors
    /// As [`Oracle::new`].
    pub fn oracle(&self) -> Result<Oracle<'_>> {
        let weights = GgmlWeights::new(self.model.gguf(), self.index.clone());
        let oracle = Oracle::new(weights, &self.llama)?;
        self.is_unchanged()?;
        Ok(oracle)
    }

    /// Refuses a file that llama.cpp or ggml, which open it by its name, may have read other bytes of than the engine has.
    fn is_unchanged(&self) -> Result<()> {
        match self.model.gguf().changed() {
            Some(path) => bail!("{} was changed while it was being opened; run again", path.display()),
            None => Ok(()),
        }
    }

    /// SHA-256 of the file in hexadecimal; of several, of all bytes one file after the other.
    pub fn sha256(&self) -> String {
        hash::of_model(self.model.gguf())
    }

    /// Refuses tokens that the model does not have.
    ///
    /// # Errors
    /// No token at all, an id beyond the vocabulary, or more than the context holds together with `decode` more.
    pub fn check(&self, tokens: &[u32], decode: usize) -> Result<()> {
        let config = &self.model.graph().config;
        if tokens.is_empty() {
            bail!("the prompt is empty: it has no token");
        }
        if let Some(bad) = tokens.iter().find(|t| **t as usize >= config.n_vocab) {
            bail!("token {bad} does not exist; the vocabulary has ids 0 to {}", config.n_vocab - 1);
        }
        if decode > config.context || tokens.len() + decode > config.context {
            bail!(
                "the prompt of {} tokens and {decode} decode steps exceed the model's context of {} tokens; shorten the prompt or lower -n",
                tokens.len(),
                config.context
            );
        }
        Ok(())
    }
}

/// Refuses weights that are not finite, with the first of them.
///
/// # Errors
/// If there are any.
pub fn refuse_damaged(damaged: &[NotFinite]) -> Result<()> {
    let Some(first) = damaged.first() else { return Ok(()) };
    let others = match damaged.len() - 1 {
        0 => String::new(),
        n => format!("; {} as well", counted(n, "other tensor")),
    };
    bail!("{first}{others}; the file itself is damaged: fetch it again, or convert the model again");
}

/// The engine's side of [`LoadedModel::new`].
///
/// # Errors
/// One line that names the file once.
pub fn load(path: &Path) -> Result<Model> {
    Model::open(path).map_err(|e| match e {
        // The reader's own errors name the file already.
        LoadError::Gguf(e) => e.into(),
        e => anyhow::Error::from(e).context(path.display().to_string()),
    })
}
