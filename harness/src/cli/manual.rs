//! `qdiff schema`, `qdiff completions` and `qdiff man`: what follows from the
//! types and from the definition of the command line.

use super::args::Cli;
use super::exit;
use super::say::said;
use super::schemas::schemas;
use crate::report::file;
use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use std::path::Path;

pub(super) fn schema(of: &str) -> Result<u8> {
    let (_, schema) = schemas().into_iter().find(|(name, _)| name.matches(of, false)).context("no such schema")?;
    said(&(serde_json::to_string_pretty(&schema())? + "\n"))
}

pub(super) fn completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "qdiff", &mut text);
    said(&String::from_utf8(text)?)
}

pub(super) fn man(folder: Option<&Path>) -> Result<u8> {
    let mut command = Cli::command().disable_help_subcommand(true);
    let Some(folder) = folder else {
        return said(&page(command)?);
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    // Gives the subcommands their full names.
    command.build();
    write(command, folder)?;
    Ok(exit::MATCH)
}

/// The pages of `command` and of all below it.
fn write(command: clap::Command, folder: &Path) -> Result<()> {
    for sub in command.get_subcommands() {
        write(sub.clone(), folder)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = folder.join(format!("{name}.1"));
    file::write(&path, page(command)?.as_bytes())
}

fn page(command: clap::Command) -> Result<String> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok(String::from_utf8(text)?)
}
