//! The built-in prompts, and their tokens in a model's vocabulary.

use crate::loaded::LoadedModel;
use crate::nearest::hint;
use crate::prompts::{BUILT_IN, Prompt, Style, resolve};
use anyhow::{Result, bail, ensure};
use clap::Args;
use std::path::PathBuf;

/// Which of the built-in prompts, and whose tokens of them.
#[derive(Clone, Debug, Args)]
pub struct PromptsRequest {
    /// One of them [default: all]
    pub name: Option<String>,
    /// GGUF file whose vocabulary gives the token ids
    #[arg(short, long)]
    pub model: Option<PathBuf>,
    /// Print nothing but the token ids, in one line
    #[arg(long, requires = "name")]
    pub tokens: bool,
}

/// A built-in prompt, with its tokens where there is a model.
pub type Shown = (&'static Prompt, Option<Vec<u32>>);

/// The built-in prompt that is named, or all of them.
///
/// # Errors
/// A name that none has; a model that cannot be read, or that tokens are asked of and nobody named.
pub fn prompts(request: &PromptsRequest) -> Result<Vec<Shown>> {
    let chosen = |prompt: &&Prompt| request.name.as_ref().is_none_or(|name| name == prompt.name);
    let chosen: Vec<&Prompt> = BUILT_IN.iter().filter(chosen).collect();
    if let (Some(name), true) = (&request.name, chosen.is_empty()) {
        bail!(
            "no built-in prompt is called `{name}`{}",
            hint(name, BUILT_IN.iter().map(|p| p.name), "`qdiff prompts` lists them")
        );
    }
    ensure!(!request.tokens || request.model.is_some(), "name the model whose tokens they are with -m");
    let opened = request.model.as_deref().map(LoadedModel::new).transpose()?;
    let ready = |prompt: &Prompt| opened.as_ref().map(|o| resolve(o, prompt.name, Style::default())).transpose();
    chosen.into_iter().map(|prompt| Ok((prompt, ready(prompt)?.map(|ready| ready.tokens)))).collect()
}
