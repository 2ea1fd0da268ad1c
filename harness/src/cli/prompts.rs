//! `qdiff prompts`.

use super::{exit, say};
use crate::nearest::nearest;
use crate::number::counted;
use crate::prompts::BUILT_IN;
use crate::report::terminal::line;
use crate::tasks::prompts::{PromptsRequest, prompts};
use anyhow::Result;

/// Token ids shown of a prompt at most.
const SHOWN: usize = 64;

/// Lists the built-in prompts.
pub(super) fn run(request: &PromptsRequest) -> Result<u8> {
    for (prompt, tokens) in prompts(request)? {
        say(&line(prompt.name, prompt.about))?;
        say(&line("", &format!("{:?}", prompt.text)))?;
        if let Some(tokens) = tokens {
            let shown: Vec<String> = tokens.iter().take(SHOWN).map(ToString::to_string).collect();
            let more = if tokens.len() > SHOWN { ",…" } else { "" };
            say(&line("", &format!("{}: {}{more}", counted(tokens.len(), "token"), shown.join(","))))?;
        }
    }
    Ok(exit::MATCH)
}

/// What to say of a word that is no built-in prompt, and close to one.
pub(super) fn slip(given: &str) -> Option<String> {
    let known = || BUILT_IN.iter().map(|p| p.name);
    let word = !given.contains(char::is_whitespace) && !known().any(|name| name == given);
    let near = *nearest(given, known()).first().filter(|_| word)?;
    Some(format!("the prompt `{given}` is taken as text; did you mean `{near}`?"))
}
