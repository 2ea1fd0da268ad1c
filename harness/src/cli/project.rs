//! `qdiff.toml`: what a project sets for every run in its folder. The command
//! line wins over the environment, and the environment over the file.

use crate::input;
use crate::runners::Source;
use crate::verdict::tolerance;
use anyhow::{Context as _, Result, bail};
use clap::{Arg, ArgMatches, Command};
use serde::Deserialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The file's name, in the working directory or a folder above it.
const NAME: &str = "qdiff.toml";

/// What the file may hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    model: Option<PathBuf>,
    subject: Option<String>,
    reference: Option<String>,
    /// As `--tolerance`, a list.
    #[serde(default)]
    tolerance: Vec<String>,
    /// As `--prompts`: what `run` runs where no prompt is named.
    prompts: Option<PathBuf>,
}

/// A project's settings.
#[derive(Debug)]
pub struct Project {
    pub(super) path: PathBuf,
    keys: Keys,
}

impl Project {
    /// The settings that hold in the working directory, if any do.
    pub(super) fn find() -> Result<Option<Self>> {
        let here = std::env::current_dir().context("cannot tell the working directory")?;
        let path = here.ancestors().map(|folder| folder.join(NAME)).find(|path| path.is_file());
        path.map(Self::read).transpose()
    }

    fn read(path: PathBuf) -> Result<Self> {
        let shown = path.display().to_string();
        let text = input::text(&path, input::TEXT).with_context(|| format!("cannot read {shown}"))?;
        let mut keys: Keys = toml::from_str(&text).map_err(|e| {
            let line = e.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            anyhow::anyhow!("{shown}, line {line}: {}", e.message().replace('\n', " "))
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        keys.model = keys.model.map(|p| folder.join(p));
        keys.prompts = keys.prompts.map(|p| folder.join(p));
        for (key, named) in [("subject", &mut keys.subject), ("reference", &mut keys.reference)] {
            let Some(name) = named else { continue };
            match Source::of(name) {
                Some(Source::Recorded(capture)) => *name = Source::Recorded(folder.join(capture)).to_string(),
                Some(Source::Live(kind)) if kind.command().is_some() => bail!(
                    "{shown}: key `{key}`: `{kind}` is a command, and a file in a checkout must not start one; name it with \
                     --{key}, or set QDIFF_{}",
                    key.to_uppercase()
                ),
                Some(_) => {}
                None => bail!("{shown}: key `{key}`: no engine is called `{name}`; see `qdiff run --help`"),
            }
        }
        for rule in &keys.tolerance {
            tolerance::rule(rule).with_context(|| format!("{shown}: key `tolerance`"))?;
        }
        Ok(Self { path, keys })
    }

    /// The commands with the project's settings where the command line and the environment have none.
    pub(super) fn apply(&self, command: Command) -> Command {
        let keys = &self.keys;
        let model = keys.model.iter().map(|path| path.display().to_string()).collect();
        let settings: [(&str, Option<&str>, Vec<String>); 4] = [
            ("model", Some("QDIFF_MODEL"), model),
            ("subject", Some("QDIFF_SUBJECT"), keys.subject.iter().cloned().collect()),
            ("reference", Some("QDIFF_REFERENCE"), keys.reference.iter().cloned().collect()),
            ("tolerance", None, keys.tolerance.clone()),
        ];
        let mut changed = command.clone();
        for sub in command.get_subcommands() {
            for (id, variable, values) in &settings {
                // What shares the name and is another thing is read from another variable.
                let same = |a: &&Arg| a.get_id() == id && a.get_env() == variable.map(OsStr::new);
                let arg = sub.get_arguments().find(same);
                if arg.is_some_and(|arg| !values.is_empty() && accepts(arg, values)) {
                    let values: Vec<clap::builder::OsStr> = values.iter().map(|v| leaked(v).into()).collect();
                    changed = changed.mut_subcommand(sub.get_name(), |s| s.mut_arg(*id, |a| a.default_values(values)));
                }
            }
        }
        changed
    }

    /// The prompts of the project, where the command line and the environment
    /// name none, and no capture names the tokens.
    pub(super) fn prompts(&self, matches: &ArgMatches) -> Option<PathBuf> {
        let ("run", of) = matches.subcommand()? else { return None };
        let named = |id: &str| of.value_source(id).is_some_and(|s| s != clap::parser::ValueSource::DefaultValue);
        let recorded = |id: &str| matches!(of.get_one::<Source>(id), Some(Source::Recorded(_)));
        let free = !["prompt", "tokens", "prompts"].iter().any(|id| named(id));
        self.keys.prompts.clone().filter(|_| free && !recorded("subject") && !recorded("reference"))
    }

    /// Whether a command's tolerances are the project's.
    pub(super) fn sets_tolerance(matches: &ArgMatches) -> bool {
        let of = matches.subcommand().map(|(_, of)| of);
        let source =
            of.filter(|of| of.try_contains_id("tolerance").is_ok()).and_then(|of| of.value_source("tolerance"));
        source == Some(clap::parser::ValueSource::DefaultValue)
    }
}

/// Whether an argument takes these values: a side that runs is no capture.
fn accepts(arg: &Arg, values: &[String]) -> bool {
    let recorded = |value: &str| matches!(Source::of(value), Some(Source::Recorded(_)));
    let named = arg.get_possible_values();
    let takes_captures = named.is_empty() || named.iter().any(|v| recorded(v.get_name()));
    takes_captures || !values.iter().any(|v| recorded(v))
}

/// Defaults of the command line live as long as the process.
fn leaked(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}
