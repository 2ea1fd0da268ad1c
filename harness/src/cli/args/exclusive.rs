//! Options that shut each other out.
//!
//! clap's own `conflicts_with` refuses them also where one of the two comes
//! from the environment; here only what was typed clashes, and a setting of
//! the environment gives way.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, Error};

/// Of a command, an option and those that it replaces.
const EXCLUSIVE: &[(&str, &str, &[&str])] = &[
    ("run", "prompts", &["prompt", "tokens"]),
    ("record", "like", &["prompt", "tokens", "decode", "length"]),
    ("generate", "nonce", &["prompt", "tokens", "raw"]),
];

/// Refuses what cannot be said together.
///
/// # Errors
/// Names the two options.
pub(super) fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
    let Some((name, of)) = matches.subcommand() else {
        return Ok(());
    };
    let typed = |id: &str| of.value_source(id) == Some(ValueSource::CommandLine);
    for (_, option, replaced) in EXCLUSIVE.iter().filter(|(c, ..)| *c == name) {
        if let Some(other) = replaced.iter().find(|o| typed(option) && typed(o)) {
            let text = format!("the argument '--{option}' cannot be used with '--{other}'");
            return Err(command.error(ErrorKind::ArgumentConflict, text));
        }
    }
    Ok(())
}
