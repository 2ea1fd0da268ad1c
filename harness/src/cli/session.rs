//! What `run`, `verify-oracle` and `bench` share: the model opened on both
//! sides, and the tokens to run.

use super::args::PromptArgs;
use crate::llama;
use crate::prompts;
use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use qdiff_engine::model::{LoadError, Model};
use std::path::{Path, PathBuf};

/// The file to work on.
///
/// # Errors
/// If none is named.
pub(super) fn model_path(given: Option<&PathBuf>) -> Result<PathBuf> {
    given.cloned().context(
        "no model: give --model FILE.gguf or set QDIFF_MODEL; ./scripts/fetch-model fetches the default one",
    )
}

/// A model open on both sides.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) model: Model,
    pub(super) llama: llama::Model,
}

/// Opens the model, the engine's reader first: its errors are the clearer.
///
/// # Errors
/// If either side refuses the file.
pub(super) fn open(given: Option<&PathBuf>) -> Result<Opened> {
    let path = model_path(given)?;
    let model = load(&path)?;
    let llama = llama::Model::load(&path)?;
    Ok(Opened { path, model, llama })
}

/// The engine's side of [`open`].
///
/// # Errors
/// One line that names the file once.
pub(super) fn load(path: &Path) -> Result<Model> {
    Model::open(path).map_err(|e| match e {
        // The reader's own errors name the file already.
        LoadError::Gguf(e) => e.into(),
        e => anyhow::Error::from(e).context(path.display().to_string()),
    })
}

/// The name of the prompt and its tokens, checked against the model.
///
/// # Errors
/// Ids beyond the vocabulary; no token at all; more than the context holds.
pub(super) fn tokens(opened: &Opened, args: &PromptArgs) -> Result<(String, Vec<u32>)> {
    let (name, tokens) = if args.tokens.is_empty() {
        prompts::resolve(&opened.llama, &args.prompt, args.raw)?
    } else {
        ("tokens".to_owned(), args.tokens.clone())
    };
    check(opened, &tokens, args.decode)?;
    Ok((name, tokens))
}

/// Refuses tokens that the model does not have.
///
/// # Errors
/// No token at all, an id beyond the vocabulary, or more than the context holds
/// together with `decode` more.
pub(super) fn check(opened: &Opened, tokens: &[u32], decode: usize) -> Result<()> {
    let config = &opened.model.graph().config;
    if tokens.is_empty() {
        bail!("the prompt is empty: it has no token");
    }
    if let Some(bad) = tokens.iter().find(|t| **t as usize >= config.n_vocab) {
        bail!(
            "token {bad} does not exist; the vocabulary has ids 0 to {}",
            config.n_vocab - 1
        );
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

/// Sets the number of threads for both engines and gives it.
///
/// # Errors
/// If it is zero.
pub(super) fn threads(given: Option<usize>) -> Result<usize> {
    let n = given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    if n == 0 {
        bail!("--threads must be at least 1");
    }
    // A second call in one process (tests) keeps the first pool.
    let _ = rayon::ThreadPoolBuilder::new()
        .num_threads(n)
        .build_global();
    Ok(n)
}

/// A progress line on stderr, shown on a terminal only.
pub(super) fn progress(what: &'static str, total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg:<28} {wide_bar} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

/// SHA-256 of the bytes in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(bytes);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// `path` for messages.
pub(super) fn show(path: &Path) -> String {
    path.display().to_string()
}
