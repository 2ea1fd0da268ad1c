//! What the commands make of the arguments they share: the model, the tokens,
//! the threads, the progress line.

use super::args::PromptArgs;
use crate::loaded::LoadedModel;
use crate::prompts::{self, Ready, Style};
use anyhow::{Context as _, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};

/// The file to work on.
///
/// # Errors
/// If none is named.
pub(super) fn model_path(given: Option<&PathBuf>) -> Result<PathBuf> {
    given
        .cloned()
        .context("no model: give --model FILE.gguf or set QDIFF_MODEL; ./scripts/fetch-model fetches the default one")
}

/// Opens the model that the arguments name.
///
/// # Errors
/// If none is named, or either side refuses the file.
pub(super) fn open(given: Option<&PathBuf>) -> Result<LoadedModel> {
    LoadedModel::new(&model_path(given)?)
}

/// The prompt and its tokens, checked against the model; token ids have no
/// text.
///
/// # Errors
/// Ids beyond the vocabulary; no token at all; more than the context holds.
pub(super) fn prompt(opened: &LoadedModel, args: &PromptArgs) -> Result<Ready> {
    let mut ready = if args.tokens.is_empty() {
        prompts::resolve(opened, &args.prompt, style(args))?
    } else {
        Ready { name: "tokens".to_owned(), text: String::new(), message: None, tokens: args.tokens.clone() }
    };
    if let Some(n) = args.length {
        let context = opened.model.graph().config.context;
        if n > context {
            bail!("--length {n} exceeds the model's context of {context} tokens");
        }
        ready.tokens = ready.tokens.iter().copied().cycle().take(n).collect();
        // They are no longer what the text makes.
        ready.text.clear();
    }
    opened.check(&ready.tokens, args.decode)?;
    Ok(ready)
}

/// As [`prompt()`], for whoever needs no text.
pub(super) fn tokens(opened: &LoadedModel, args: &PromptArgs) -> Result<(String, Vec<u32>)> {
    prompt(opened, args).map(|ready| (ready.name, ready.tokens))
}

/// How texts become prompts.
pub(super) fn style(args: &PromptArgs) -> Style<'_> {
    Style { raw: args.raw, system: args.system.as_deref(), template: args.template }
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
    let _ = rayon::ThreadPoolBuilder::new().num_threads(n).build_global();
    Ok(n)
}

/// A progress line on stderr, shown on a terminal only.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{msg:<34} {wide_bar} {pos}/{len} {elapsed}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// `done` of `total` of `what`; the line goes once all is done.
    pub(super) fn show(&self, what: &str, done: usize, total: usize) {
        if self.0.message() != what {
            self.0.reset();
            self.0.set_message(what.to_owned());
        }
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
        if done == total {
            self.0.finish_and_clear();
        }
    }
}

/// `path` for messages.
pub(super) fn show(path: &Path) -> String {
    path.display().to_string()
}
