//! What to run: the built-in prompts, and how a prompt is given.

use crate::chat;
use crate::input;
use crate::loaded::LoadedModel;
use crate::nearest::hint;
use anyhow::{Context as _, Result, bail};
use qdiff_engine::gguf::Value;
use qdiff_engine::tokenizer::chat::{Conversation, Message, chatml};
use std::path::Path;

/// What a prompt is called that was typed as text, was read from standard input, or was given as tokens.
pub const UNNAMED: [&str; 3] = ["text", "standard input", "tokens"];

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

/// What makes a turn of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Template {
    /// ChatML, with no system prompt except --system
    #[default]
    Bare,
    /// The GGUF's own chat template, which may add a system prompt
    Model,
}

/// How a text becomes a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style<'a> {
    /// As it stands, no turn made of it.
    pub raw: bool,
    /// A system turn before the user's.
    pub system: Option<&'a str>,
    /// What makes turns.
    pub template: Template,
}

/// A prompt ready to run.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Its name.
    pub name: String,
    /// The text that was tokenised, control tokens in it as text.
    pub text: String,
    /// What of it the user said, where it is a turn.
    pub message: Option<String>,
    /// llama.cpp's tokens of it; cut or repeated where the prompt says so.
    pub tokens: Vec<u32>,
}

/// The built-in prompt of this name; nothing where it is `@FILE`, `-` or text.
///
/// # Errors
/// A word that looks like a name and is none: judged as a text of one word it would pass for the prompt that was meant.
pub fn named(given: &str, raw: bool) -> Result<Option<&'static Prompt>> {
    let known = BUILT_IN.iter().find(|p| p.name == given);
    let word = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
    if known.is_none() && !raw && !given.is_empty() && given != "-" && given.chars().all(word) {
        let otherwise = "`qdiff prompts` lists them; with --raw one word is text";
        let names = BUILT_IN.iter().map(|p| p.name);
        bail!("no built-in prompt is called `{given}`{}", hint(given, names, otherwise))
    }
    Ok(known)
}

/// Reads `--prompt`: a built-in name, `@FILE`, `-` for standard input, or text.
///
/// # Errors
/// As [`named`]; a file that cannot be read, an empty prompt, a chat template that is absent or fails, a system prompt for
/// what is no turn.
pub fn resolve(opened: &LoadedModel, given: &str, style: Style<'_>) -> Result<Ready> {
    if let Some(prompt) = named(given, style.raw)? {
        return built_in(opened, prompt, style);
    }
    if given == "-" {
        let bytes =
            input::whole(std::io::stdin(), input::TEXT).context("cannot read the prompt from standard input")?;
        return ready(opened, UNNAMED[1], text_of("standard input", bytes)?, style);
    }
    match given.strip_prefix('@') {
        Some(path) => from_file(opened, Path::new(path), style),
        None => ready(opened, UNNAMED[0], given.to_owned(), style),
    }
}

/// The prompt in a file.
///
/// # Errors
/// As [`resolve`].
pub fn from_file(opened: &LoadedModel, path: &Path, style: Style<'_>) -> Result<Ready> {
    let name = path.display().to_string();
    let bytes = input::bytes(path, input::TEXT)
        .with_context(|| format!("cannot read the prompt file {name}: give an existing UTF-8 text file"))?;
    let text = text_of(&format!("the prompt file {name}"), bytes)?;
    ready(opened, &name, text, style)
}

/// The prompt `text` under this name.
///
/// # Errors
/// As [`resolve`].
pub fn ready(opened: &LoadedModel, name: &str, text: String, style: Style<'_>) -> Result<Ready> {
    if text.trim().is_empty() {
        bail!("the prompt is empty: give a built-in name (see `qdiff prompts`), some text, @FILE or -");
    }
    let (text, message) = if style.raw {
        no_system(style, "--raw takes the text as it stands")?;
        (text, None)
    } else {
        (turn(opened, &text, style)?, Some(text))
    };
    Ok(Ready { name: name.to_owned(), tokens: opened.tokenize(&text)?, text, message })
}

fn text_of(what: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow::anyhow!("{what} is no text: byte {at} is not UTF-8; save it as UTF-8")
    })
}

fn no_system(style: Style<'_>, why: &str) -> Result<()> {
    if style.system.is_some() {
        bail!("--system needs a user turn after it, and {why}");
    }
    Ok(())
}

/// `text` as a user turn, ready for the assistant's answer.
fn turn(opened: &LoadedModel, text: &str, style: Style<'_>) -> Result<String> {
    let system = style.system.map(|s| Message::new("system", s));
    let messages = system.into_iter().chain([Message::new("user", text)]);
    let messages: Vec<Message> = messages.collect();
    if style.template == Template::Bare {
        return Ok(chatml(&messages));
    }
    let gguf = opened.model.gguf();
    let source = gguf.get("tokenizer.chat_template").and_then(Value::as_str);
    let source = source.context("the model has no chat template; use --template bare or --raw")?;
    let special = |key: &str| {
        let id = gguf.get(key).and_then(Value::as_u64);
        id.and_then(|id| u32::try_from(id).ok())
            .and_then(|id| opened.piece_bytes(id))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    };
    let conversation = Conversation {
        messages,
        bos_token: special("tokenizer.ggml.bos_token_id"),
        eos_token: special("tokenizer.ggml.eos_token_id"),
    };
    chat::render(source, &conversation)
}

fn built_in(opened: &LoadedModel, prompt: &Prompt, style: Style<'_>) -> Result<Ready> {
    let raw = Style { raw: true, ..style };
    let text = prompt.text.to_owned();
    let form = match prompt.form {
        Form::Turn => style,
        Form::Raw | Form::Exactly(_) => {
            no_system(style, &format!("the prompt `{}` is none", prompt.name))?;
            raw
        }
    };
    let mut made = ready(opened, prompt.name, text, form)?;
    if let Form::Exactly(n) = prompt.form {
        if made.tokens.is_empty() {
            bail!("the vocabulary has no token for `{}`", prompt.text);
        }
        made.tokens = made.tokens.iter().copied().cycle().take(n).collect();
    }
    Ok(made)
}
