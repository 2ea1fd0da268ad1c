//! `qdiff prompts`.

use super::exit;
use super::say::{say, terminal};
use crate::number::counted;
use crate::tasks::prompts::{PromptsRequest, prompts};
use anyhow::Result;

/// Token ids shown of a prompt at most.
const SHOWN: usize = 64;

/// Lists the built-in prompts, or prints the tokens of any.
pub(super) fn run(request: &PromptsRequest) -> Result<u8> {
    for prompt in prompts(request)? {
        if request.tokens {
            let ids: Vec<String> = prompt.tokens.iter().flatten().map(ToString::to_string).collect();
            say(&format!("{}\n", ids.join(",")))?;
            continue;
        }
        say(&terminal().line(&prompt.name, prompt.about))?;
        say(&terminal().line("", &format!("{:?}", prompt.text)))?;
        if let Some(tokens) = prompt.tokens {
            let shown: Vec<String> = tokens.iter().take(SHOWN).map(ToString::to_string).collect();
            let more = if tokens.len() > SHOWN { ",…" } else { "" };
            say(&terminal().line("", &format!("{}: {}{more}", counted(tokens.len(), "token"), shown.join(","))))?;
        }
    }
    Ok(exit::MATCH)
}
