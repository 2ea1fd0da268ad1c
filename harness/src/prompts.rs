//! What to run: the built-in prompts, and how a prompt is given.

use crate::llama::Model;
use anyhow::{Context as _, Result, bail};
use std::io::Read as _;

/// How the text of a built-in prompt becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As a bare user turn in ChatML, without a system prompt.
    Turn,
    /// As it stands.
    Raw,
    /// As it stands, repeated and cut to this many tokens.
    Exactly(usize),
}

/// A prompt that every installation has.
#[derive(Debug)]
pub struct Prompt {
    /// Name for `--prompt`.
    pub name: &'static str,
    /// What it is good for.
    pub about: &'static str,
    /// How it is tokenised.
    pub form: Form,
    /// The text.
    pub text: &'static str,
}

/// The built-in prompts.
pub const BUILT_IN: &[Prompt] = &[
    Prompt {
        name: "haiku",
        about: "a short user turn; the default",
        form: Form::Turn,
        text: "Write a haiku about GPU computing.",
    },
    Prompt {
        name: "one-token",
        about: "a single token: no attention to anything else, no rotation",
        form: Form::Exactly(1),
        text: "Hello",
    },
    Prompt {
        name: "code",
        about: "source code: indentation, brackets, identifiers",
        form: Form::Raw,
        text: "fn fibonacci(n: u64) -> u64 {\n    match n {\n        0 | 1 => n,\n        _ => fibonacci(n - 1) +",
    },
    Prompt {
        name: "chinese",
        about: "a user turn in Chinese",
        form: Form::Turn,
        text: "请用一句话解释什么是矩阵乘法。",
    },
    Prompt {
        name: "emoji",
        about: "tokens that are parts of a character",
        form: Form::Turn,
        text: "What do 🦀🚀👩‍🔬 and 🇳🇿 stand for?",
    },
    Prompt {
        name: "repetition",
        about: "one word over and over: rows that differ by position alone",
        form: Form::Raw,
        text: "again again again again again again again again again again again again again again again again",
    },
    Prompt {
        name: "long",
        about: "512 tokens: rotation and attention far from the start",
        form: Form::Exactly(512),
        text: "A matrix is stored row after row, and a vector that multiplies it must walk those rows in the order \
               in which they lie. Whoever reads the columns instead still gets numbers, of the right count and of a \
               plausible size, and that is what makes the mistake so hard to see. Later layers take the numbers for \
               what they are not, and the words that come out are fluent, confident and wrong. The remedy is not to \
               stare at the words. It is to hold every stage against what it should have been, on the very operands \
               it was given, from the first stage on, and to stop at the first that fails.\n\n",
    },
];

/// Reads `--prompt`: a built-in name, `@FILE`, `-` for standard input, or text.
///
/// # Errors
/// A file that cannot be read, an empty prompt.
pub fn resolve(model: &Model, given: &str, raw: bool) -> Result<(String, Vec<u32>)> {
    if let Some(prompt) = BUILT_IN.iter().find(|p| p.name == given) {
        return Ok((prompt.name.to_owned(), tokens_of(model, prompt)?));
    }
    let (name, text) = if given == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("the prompt on standard input is not UTF-8 text")?;
        ("standard input".to_owned(), text)
    } else if let Some(path) = given.strip_prefix('@') {
        let text = std::fs::read_to_string(path).with_context(|| {
            format!("cannot read the prompt file {path}: give an existing UTF-8 text file")
        })?;
        (path.to_owned(), text)
    } else {
        ("text".to_owned(), given.to_owned())
    };
    if text.trim().is_empty() {
        bail!(
            "the prompt is empty: give a built-in name (see `qdiff prompts`), some text, @FILE or -"
        );
    }
    let text = if raw { text } else { model.user_turn(&text)? };
    Ok((name, model.tokenize(&text)?))
}

fn tokens_of(model: &Model, prompt: &Prompt) -> Result<Vec<u32>> {
    match prompt.form {
        Form::Turn => model.tokenize(&model.user_turn(prompt.text)?),
        Form::Raw => model.tokenize(prompt.text),
        Form::Exactly(n) => {
            let once = model.tokenize(prompt.text)?;
            if once.is_empty() {
                bail!("the vocabulary has no token for `{}`", prompt.text);
            }
            Ok(once.iter().copied().cycle().take(n).collect())
        }
    }
}
