//! `qdiff prompts`.

use super::{exit, say};
use crate::prompts::BUILT_IN;

pub(super) fn run() -> anyhow::Result<u8> {
    for prompt in BUILT_IN {
        say(&format!("{:<12} {}\n", prompt.name, prompt.about))?;
    }
    Ok(exit::MATCH)
}
