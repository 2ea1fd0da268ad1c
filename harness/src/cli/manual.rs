//! `qdiff schema`, `qdiff completions` and `qdiff man`: what follows from the
//! types and from the definition of the command line.

use super::{Cli, exit, said};
use crate::compare::Comparison;
use crate::report::{
    CheckReport, Failure, GenerationReport, LogitsReport, OracleReport, Part, Report, SweepReport, WeightsReport, file,
    json,
};
use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap::builder::PossibleValue;
use schemars::Schema;
use std::path::Path;

/// What has a JSON schema, by its name.
pub(super) fn schemas() -> [(PossibleValue, fn() -> Schema); 11] {
    let of = |name: &'static str, about: &'static str| PossibleValue::new(name).help(about);
    [
        (of("run", "What `run --json` writes").alias("report"), json::schema::<Report>),
        (
            of(
                "failure",
                "What is written in the place of a report where a command, or a prompt of `run --prompts`, failed",
            ),
            json::schema::<Failure>,
        ),
        (of("check", "What `check --json` writes"), json::schema::<CheckReport>),
        (of("generate", "What `generate --json` writes").alias("generation"), json::schema::<GenerationReport>),
        (of("logits", "What `logits --json` writes"), json::schema::<LogitsReport>),
        (of("weights", "What `weights --json` writes"), json::schema::<WeightsReport>),
        (of("sweep", "What `sweep --json` writes"), json::schema::<SweepReport>),
        (of("compare", "What `compare --json` writes without a model"), json::schema::<Comparison>),
        (of("verify-oracle", "What `verify-oracle --json` writes"), json::schema::<OracleReport>),
        (of("part", "What `judge` writes"), json::schema::<Part>),
        (of("capture", "The manifest.json of a capture"), json::capture_schema),
    ]
}

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
