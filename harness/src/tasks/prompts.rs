//! The built-in prompts, and the tokens of any prompt in a model's vocabulary.

use crate::loaded::LoadedModel;
use crate::prompts::{BUILT_IN, Style, Template, named, resolve};
use anyhow::{Result, ensure};
use clap::Args;
use std::path::PathBuf;

/// Which prompts, and whose tokens of them.
#[derive(Clone, Debug, Args)]
pub struct PromptsRequest {
    /// One of them, text, @FILE, or - for standard input [default: all built-in ones]
    pub name: Option<String>,
    /// GGUF file whose vocabulary gives the token ids
    #[arg(short, long)]
    pub model: Option<PathBuf>,
    /// Print nothing but the token ids, in one line
    #[arg(long, requires = "name")]
    pub tokens: bool,
    /// Use the text alone, without a chat template
    #[arg(long, requires = "name")]
    pub raw: bool,
    /// A system prompt before the user turn
    #[arg(long, value_name = "TEXT", requires = "name")]
    pub system: Option<String>,
    /// Template that makes a user turn of the text
    #[arg(long, value_enum, default_value_t = Template::Bare)]
    pub template: Template,
}

/// A prompt.
pub struct Shown {
    /// Its name.
    pub name: String,
    /// What it is good for; of one that is not built in, nothing.
    pub about: &'static str,
    /// The text.
    pub text: String,
    /// Its tokens, where there is a model.
    pub tokens: Option<Vec<u32>>,
}

/// The prompt that is named, or all that are built in.
///
/// # Errors
/// As [`resolve`]; a model that cannot be read, or that tokens need and no option named.
pub fn prompts(request: &PromptsRequest) -> Result<Vec<Shown>> {
    let known = request.name.as_deref().map(|given| named(given, request.raw)).transpose()?;
    let listed = !matches!(known, Some(None));
    ensure!(request.model.is_some() || listed && !request.tokens, "name the model whose tokens they are with -m");
    let opened = request.model.as_deref().map(LoadedModel::new).transpose()?;
    let style = Style { raw: request.raw, system: request.system.as_deref(), template: request.template };
    let ready = |given: &str| opened.as_ref().map(|opened| resolve(opened, given, style)).transpose();
    if let Some(given) = request.name.as_deref().filter(|_| !listed) {
        let own =
            ready(given)?.map(|own| Shown { name: own.name, about: "", text: own.text, tokens: Some(own.tokens) });
        return Ok(own.into_iter().collect());
    }
    let chosen = BUILT_IN.iter().filter(|prompt| known.flatten().is_none_or(|known| known.name == prompt.name));
    let shown = chosen.map(|prompt| {
        let tokens = ready(prompt.name)?.map(|ready| ready.tokens);
        Ok(Shown { name: prompt.name.to_owned(), about: prompt.about, text: prompt.text.to_owned(), tokens })
    });
    shown.collect()
}
