//! The built-in prompts, and their tokens in a model's vocabulary.

use crate::loaded::LoadedModel;
use crate::prompts::{BUILT_IN, Prompt, Style, resolve};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// Whose tokens of the built-in prompts.
#[derive(Clone, Debug, Args)]
pub struct PromptsRequest {
    /// GGUF file whose vocabulary gives the token ids
    #[arg(short, long)]
    pub model: Option<PathBuf>,
}

/// A built-in prompt, with its tokens where there is a model.
pub type Shown = (&'static Prompt, Option<Vec<u32>>);

/// Every built-in prompt.
///
/// # Errors
/// A model that cannot be read.
pub fn prompts(request: &PromptsRequest) -> Result<Vec<Shown>> {
    let opened = request.model.as_deref().map(LoadedModel::new).transpose()?;
    let ready = |prompt: &Prompt| opened.as_ref().map(|o| resolve(o, prompt.name, Style::default())).transpose();
    BUILT_IN.iter().map(|prompt| Ok((prompt, ready(prompt)?.map(|ready| ready.tokens)))).collect()
}
