//! A model open on both sides: by the engine's reader, and by llama.cpp; of a folder of safetensors by the oracle's own.

use crate::folder::FolderWeights;
use crate::llama::gguf::{self, GgmlWeights, Index};
use crate::number::counted;
use crate::oracle::Oracle;
use crate::{hash, llama};
use anyhow::{Context as _, Result, bail};
use qdiff_engine::folder;
use qdiff_engine::gguf::{Gguf, NotFinite, TensorInfo};
use qdiff_engine::model::{LoadError, Model};
use qdiff_engine::tokenizer::{Tokenizer, VocabError};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unicode_normalization::is_nfc;

/// The remedy where llama.cpp is needed, and there is no GGUF.
pub const NO_LLAMA: &str = "is a folder of safetensors, and this asks llama.cpp, which reads only GGUF files: convert it with \
    llama.cpp's convert_hf_to_gguf.py and name the GGUF";

/// A model open on both sides.
pub struct LoadedModel {
    /// The file, or the first of several; or the folder.
    pub path: PathBuf,
    /// The engine's side.
    pub model: Model,
    /// The engine's tokenizer, or why there is none.
    pub tokenizer: Result<Tokenizer, VocabError>,
    /// LoRA adapters of sequences.
    pub adapters: Vec<LoadedAdapter>,
    other: Other,
}

/// A LoRA adapter, and the sequences that have it.
pub struct LoadedAdapter {
    /// The file.
    pub path: PathBuf,
    /// The same, as the engine reads it.
    file: Gguf,
    /// The sequences; all of them if none is named.
    pub sequences: BTreeSet<u32>,
    /// The largest rank of its matrices.
    pub rank: usize,
}

/// The side that is not the engine's.
enum Other {
    /// llama.cpp, and the oracle's index of the file.
    Llama(Arc<llama::Model>, Arc<Index>),
    /// A folder, of which llama.cpp reads nothing: the tokens at which it says that a text ends.
    Folder(BTreeSet<u32>),
    /// Nothing for a GGUF: this build has no llama.cpp.
    Absent,
}

impl LoadedModel {
    /// Opens the model, the engine's reader first: its errors are the clearer.
    ///
    /// # Errors
    /// If either side refuses the file, or a weight in it is NaN or infinite: no engine can be right with such a file.
    pub fn new(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::folder(path);
        }
        let model = load(path)?;
        if llama::built_in().is_err() {
            let (damaged, tokenizer) = (model.gguf().not_finite(), Tokenizer::new(model.gguf()));
            refuse_damaged(&damaged).with_context(|| path.display().to_string())?;
            let (path, adapters) = (path.to_path_buf(), Vec::new());
            return Ok(Self { path, tokenizer, model, adapters, other: Other::Absent });
        }
        // While llama.cpp reads the file, at no cost in time.
        let (llama, (damaged, index, tokenizer)) = std::thread::scope(|scope| {
            let gguf = model.gguf();
            let read = || (gguf.not_finite(), gguf::read(gguf), Tokenizer::new(gguf));
            let beside = std::thread::Builder::new().spawn_scoped(scope, read);
            let llama = llama::Model::load(path, llama::Load::Cpu);
            // Where there is no memory for a thread, after it.
            let read = beside.map_or_else(|_| read(), |beside| beside.join().expect("reading a file does not panic"));
            (llama, read)
        });
        let other = Other::Llama(Arc::new(llama?), Arc::new(index?));
        let opened = Self { path: path.to_path_buf(), tokenizer, model, adapters: Vec::new(), other };
        opened.is_unchanged()?;
        refuse_damaged(&damaged).with_context(|| path.display().to_string())?;
        Ok(opened)
    }

    fn folder(path: &Path) -> Result<Self> {
        let folder::Opened { model, tokenizer, ends } = folder::open(path)?;
        let damaged = model.gguf().not_finite();
        let (path_of, adapters) = (path.to_path_buf(), Vec::new());
        let opened = Self { path: path_of, tokenizer, model, adapters, other: Other::Folder(ends) };
        refuse_damaged(&damaged).map_err(|e| {
            let text = folder::own_words(&e.to_string(), opened.model.graph());
            anyhow::anyhow!("{}: {}", path.display(), text.replace(", or convert the model again", ""))
        })?;
        Ok(opened)
    }

    /// The same with LoRA adapters: each a file, and the sequences that have it, all if none is named.
    ///
    /// # Errors
    /// A file that is no adapter of this model; two adapters for one sequence; a matrix that ggml reads otherwise than the engine.
    pub fn with_adapters(self, given: &[(PathBuf, BTreeSet<u32>)]) -> Result<Self> {
        if given.is_empty() {
            return Ok(self);
        }
        let taken: Vec<&BTreeSet<u32>> = given.iter().map(|(_, sequences)| sequences).collect();
        let meet = |a: &BTreeSet<u32>, b: &BTreeSet<u32>| a.is_empty() || b.is_empty() || !a.is_disjoint(b);
        if (1..taken.len()).any(|at| taken[..at].iter().any(|before| meet(taken[at], before))) {
            bail!(
                "a sequence has one adapter at most; name other sequences, as in --adapter 1=A.gguf --adapter 2=B.gguf"
            );
        }
        let mut files = Vec::new();
        for (path, _) in given {
            let file = Gguf::open(path)?;
            refuse_damaged(&file.not_finite()).with_context(|| path.display().to_string())?;
            files.push(file);
        }
        let Self { path, model, tokenizer, other, .. } = self;
        let own = number_of(given.iter().map(|(_, sequences)| sequences), 0);
        let model = model
            .adapted(&files, own)
            .map_err(|(number, e)| anyhow::Error::from(e).context(given[number].0.display().to_string()))?;
        let rank = |file: &Gguf| file.tensors.iter().filter(|t| t.name.ends_with("lora_a")).map(TensorInfo::rows).max();
        let adapters = given.iter().zip(files).map(|((path, sequences), file)| LoadedAdapter {
            path: path.clone(),
            rank: rank(&file).unwrap_or(0),
            file,
            sequences: sequences.clone(),
        });
        let adapters = adapters.collect();
        Ok(Self { path, model, tokenizer, other, adapters })
    }

    /// Whether sequences have adapters.
    pub fn is_adapted(&self) -> bool {
        !self.adapters.is_empty()
    }

    /// Whether all sequences have the same adapter, or none.
    pub fn adapts_alike(&self) -> bool {
        self.adapters.iter().all(|adapter| adapter.sequences.is_empty())
    }

    /// The number of the adapter that a sequence has: 0 is none, 1 the first.
    pub fn adapter_of(&self, sequence: u32) -> usize {
        number_of(self.adapters.iter().map(|adapter| &adapter.sequences), sequence)
    }

    /// Whether it is a folder of safetensors, of which llama.cpp knows nothing.
    pub fn is_folder(&self) -> bool {
        matches!(self.other, Other::Folder(_))
    }

    /// Whether qdiff's own reader alone has read it: a GGUF, in a build without llama.cpp.
    pub fn is_read_alone(&self) -> bool {
        matches!(self.other, Other::Absent)
    }

    /// llama.cpp's side.
    ///
    /// # Errors
    /// What to do where there is no GGUF, or no llama.cpp.
    pub fn llama(&self) -> Result<&Arc<llama::Model>> {
        match &self.other {
            Other::Llama(llama, _) => Ok(llama),
            Other::Folder(_) => bail!("{}: {NO_LLAMA}", self.path.display()),
            Other::Absent => Err(llama::built_in().err().context("llama.cpp did not read the model")?),
        }
    }

    /// The tokens of a prompt, special tokens in it recognised: llama.cpp's; of a folder those of tokenizer.json; without
    /// llama.cpp those of the engine's tokenizer.
    ///
    /// # Errors
    /// If it cannot be split: of a folder also a text that tokenizer.json would change first.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        if let Other::Llama(llama, _) = &self.other {
            return llama.tokenize(text.as_bytes(), true);
        }
        let tokenizer = self.tokenizer.as_ref().map_err(|e| anyhow::anyhow!("{e}"))?;
        // llama.cpp brings no text into another form, nor does the engine that is as it is.
        if self.is_folder() && !is_nfc(text) {
            bail!(
                "the prompt is not in Unicode's form NFC, into which tokenizers of Qwen bring a text; give it so, or --tokens"
            );
        }
        Ok(tokenizer.encode(text, true))
    }

    /// The bytes that a token prints, those of control tokens as well; `None` beyond the vocabulary, or without one.
    pub fn piece_bytes(&self, token: u32) -> Option<Vec<u8>> {
        match (&self.other, &self.tokenizer) {
            (Other::Llama(llama, _), _) => llama.piece_bytes(token, true),
            (Other::Folder(_) | Other::Absent, Ok(tokenizer)) => {
                tokenizer.kind(token).map(|_| tokenizer.piece(token, true))
            }
            (Other::Folder(_) | Other::Absent, Err(_)) => None,
        }
    }

    /// The text of one token, special tokens spelled out.
    pub fn piece(&self, token: u32) -> String {
        self.piece_bytes(token).map_or_else(|| format!("<{token}>"), |b| String::from_utf8_lossy(&b).into_owned())
    }

    /// Number of tokens, padding included.
    pub fn n_tokens(&self) -> usize {
        match &self.other {
            Other::Llama(llama, _) => llama.n_tokens(),
            Other::Folder(_) => self.model.graph().config.n_vocab,
            Other::Absent => self.tokenizer.as_ref().map_or(self.model.graph().config.n_vocab, Tokenizer::n_tokens),
        }
    }

    /// The tokens that end a text: to llama.cpp, or as a folder says; without llama.cpp to the engine.
    pub fn ends(&self) -> BTreeSet<u32> {
        match &self.other {
            Other::Llama(llama, _) => (0..llama.n_tokens() as u32).filter(|t| llama.ends_generation(*t)).collect(),
            Other::Folder(ends) => ends.clone(),
            Other::Absent => self.tokenizer.as_ref().map(|tokenizer| tokenizer.ends().clone()).unwrap_or_default(),
        }
    }

    /// The weight format of most bytes, and whether it is that of all.
    pub fn main_format(&self) -> (String, bool) {
        let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
        for t in &self.model.gguf().tensors {
            *bytes.entry(t.ggml_type.to_string()).or_default() += t.size;
        }
        let alone = bytes.len() == 1;
        let most = bytes.into_iter().max_by_key(|(_, n)| *n);
        (most.map_or_else(String::new, |(format, _)| format), alone)
    }

    /// The formats of its weights, each once.
    pub fn formats(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.model.gguf().tensors.iter().map(|t| t.ggml_type.name()).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// What the oracle reads of it, with the adapter of sequence 0.
    ///
    /// # Errors
    /// As [`Oracle::new`].
    pub fn oracle(&self) -> Result<Oracle<'_>> {
        self.oracle_of(self.adapter_of(0))
    }

    /// What the oracle reads of it, with the adapter of this number.
    ///
    /// # Errors
    /// As [`Oracle::new`].
    pub fn oracle_of(&self, adapter: usize) -> Result<Oracle<'_>> {
        let oracle = match &self.other {
            Other::Llama(llama, _) => Oracle::new(self.ggml()?, llama)?,
            Other::Folder(_) => {
                let read = FolderWeights::read(self.model.gguf()).and_then(Oracle::of_folder);
                read.with_context(|| self.path.display().to_string())?
            }
            Other::Absent => Oracle::of_engine(&self.model, adapter)?,
        };
        self.is_unchanged()?;
        if self.adapters.is_empty() || self.is_read_alone() {
            return Ok(oracle);
        }
        let own = self.model.adapters();
        let adapters = match self.other {
            Other::Llama(..) => oracle.read_by_ggml(self.adapters.iter().map(|adapter| &adapter.file))?,
            Other::Folder(_) | Other::Absent => own.clone(),
        };
        if let Some(tensor) = adapters.differs(own) {
            bail!("tensor `{tensor}` of an adapter: ggml reads other values than qdiff's engine");
        }
        Ok(oracle.adapted(adapters, adapter))
    }

    /// The weights as ggml reads them.
    ///
    /// # Errors
    /// As [`Self::llama`].
    pub fn ggml(&self) -> Result<GgmlWeights<'_>> {
        match &self.other {
            Other::Llama(_, index) => Ok(GgmlWeights::new(self.model.gguf(), index.clone())),
            Other::Folder(_) | Other::Absent => Err(self.llama().err().context("ggml did not read the model")?),
        }
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

/// The number of the adapter that a sequence has, of adapters with these sequences.
fn number_of<'s>(adapters: impl Iterator<Item = &'s BTreeSet<u32>>, sequence: u32) -> usize {
    let mut adapters = adapters.map(|sequences| sequences.is_empty() || sequences.contains(&sequence));
    adapters.position(|has| has).map_or(0, |at| at + 1)
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
