//! How values are read from the command line, and what a shell may complete them to.

use crate::mutations::{FaultSite, Mutation, catalogue};
use crate::nearest::nearest;
use crate::prompts::BUILT_IN;
use crate::runners::{PLACEHOLDERS, RUNNERS, Source};
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use qdiff_engine::model::skeletons;
use qdiff_engine::quant::{CACHES, KvType, NoKvType};
use std::collections::HashSet;
use std::ffi::OsStr;

/// A count.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("it is not a number".to_owned()),
    }
}

/// Reads the types of KV caches.
#[derive(Clone, Copy)]
pub struct KvTypes;

impl TypedValueParser for KvTypes {
    type Value = KvType;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<KvType, Error> {
        value.to_string_lossy().parse().map_err(|e: NoKvType| {
            let of = arg.map(|arg| format!("{arg}: ")).unwrap_or_default();
            command.clone().error(ErrorKind::ValueValidation, format!("{of}{e}"))
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(CACHES.into_iter().map(|(name, _, help)| PossibleValue::new(name).help(help))))
    }
}

/// Text of which some is known by name: shells complete it, and what is not
/// among it may be a pattern, or a name with parameters.
#[derive(Clone)]
pub struct Known(fn() -> Vec<PossibleValue>);

/// Faults to inject.
pub const FAULT: Known = Known(|| mutations(|m| m.site() != FaultSite::Elsewhere));

/// Names of mutations.
pub const MUTATION: Known = Known(|| mutations(|_| true));

fn mutations(wanted: fn(&Mutation) -> bool) -> Vec<PossibleValue> {
    catalogue().filter(|m| wanted(m)).map(|m| PossibleValue::new(m.name).help(m.of_first_stage(&m.choices()))).collect()
}

/// Stages, by name or pattern.
pub const STAGE: Known = Known(|| {
    let names = skeletons().flat_map(|graph| graph.stage_names());
    let mut seen = HashSet::new();
    names.filter(|name| seen.insert(*name)).map(PossibleValue::new).collect()
});

/// Prompts: those that are built in, or text.
pub const PROMPT: Known = Known(|| BUILT_IN.iter().map(|p| PossibleValue::new(p.name).help(p.about)).collect());

impl TypedValueParser for Known {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter()))
    }
}

/// Reads where a side comes from. Help and completions follow from the table of runners.
#[derive(Clone, Copy)]
pub struct SourceParser {
    recorded: bool,
    nobody: bool,
    commands: Commands,
}

/// Which commands a side may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commands {
    No,
    /// Those of engines that stay up.
    Served,
    All,
}

/// A subject: `auto`, a runner, a command or a capture.
pub const SUBJECT: SourceParser = SourceParser { recorded: true, nobody: false, commands: Commands::All };

/// A reference: `auto`, a runner, a command, a capture, or nobody.
pub const REFERENCE: SourceParser = SourceParser { recorded: true, nobody: true, commands: Commands::All };

/// A side that runs.
pub const LIVE: SourceParser = SourceParser { recorded: false, nobody: false, commands: Commands::No };

/// A subject that runs.
pub const LIVE_SUBJECT: SourceParser = SourceParser { recorded: false, nobody: false, commands: Commands::All };

/// A subject that takes one token after the other.
pub const STEPPED_SUBJECT: SourceParser = SourceParser { recorded: false, nobody: false, commands: Commands::Served };

impl TypedValueParser for SourceParser {
    type Value = Source;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Source, Error> {
        let text = value.to_string_lossy();
        match Source::of(&text) {
            Some(Source::Live(kind))
                if self.commands == Commands::Served && kind.command().is_some_and(|command| !command.serves) =>
            {
                let text = format!(
                    "`{kind}` runs all tokens at once and cannot take one after the other; an engine that stays up can, as \
                     `serve: COMMAND`"
                );
                return Err(command.clone().error(ErrorKind::ValueValidation, text));
            }
            Some(Source::Live(kind)) if kind.command().is_some() && self.commands == Commands::No => {
                let text = format!(
                    "`{kind}` is a command, which can be a side of run, logits and rl, and the subject of check, sweep and report --verify"
                );
                return Err(command.clone().error(ErrorKind::ValueValidation, text));
            }
            Some(source @ (Source::Auto | Source::Live(_))) => return Ok(source),
            Some(source @ Source::Nobody) if self.nobody => return Ok(source),
            Some(source @ Source::Recorded(_)) if self.recorded => return Ok(source),
            Some(recorded @ Source::Recorded(_)) => {
                let text = format!("a recorded capture does not run; judge it with `qdiff run --subject {recorded}`");
                return Err(command.clone().error(ErrorKind::ValueValidation, text));
            }
            Some(Source::Nobody) | None => {}
        }
        let valid: Vec<String> =
            self.possible_values().into_iter().flatten().map(|v| v.get_name().to_owned()).collect();
        let near = nearest(&text, valid.iter().map(String::as_str));
        let mut error = Error::new(ErrorKind::InvalidValue).with_cmd(command);
        if let Some(arg) = arg {
            error.insert(ContextKind::InvalidArg, ContextValue::String(arg.to_string()));
        }
        error.insert(ContextKind::InvalidValue, ContextValue::String(text.into_owned()));
        if let Some(near) = near.first() {
            error.insert(ContextKind::SuggestedValue, ContextValue::String((*near).to_owned()));
        }
        error.insert(ContextKind::ValidValue, ContextValue::Strings(valid));
        Err(error)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let auto = PossibleValue::new("auto").help("CUDA where there is a GPU, else the CPU");
        let live = RUNNERS.iter().map(|r| PossibleValue::new(r.name).help(r.about));
        let recorded = PossibleValue::new("capture:DIR").help("a recorded capture of any engine");
        let nobody = PossibleValue::new("none").help("no reference: float64 and health checks alone judge the subject");
        let beside = self.recorded.then_some(recorded).into_iter().chain(self.nobody.then_some(nobody));
        let command = PossibleValue::new("cmd:COMMAND").help("any engine, by the command that dumps a run of it");
        let served = PossibleValue::new("serve:COMMAND").help("any engine that stays up and reads steps from stdin");
        let commands = match self.commands {
            Commands::No => vec![],
            Commands::Served => vec![served],
            Commands::All => vec![command, served],
        };
        Some(Box::new([auto].into_iter().chain(live).chain(beside).chain(commands)))
    }
}

/// The help of a subject, with what a command of it may name.
pub(super) fn subject_help() -> String {
    // clap takes {n} for the end of a line, so the names have no braces here.
    let line = |(name, what): (&str, &str)| format!("\n  {name:<11} {what}");
    let lines: String = PLACEHOLDERS.map(line).concat();
    format!(
        "The engine under suspicion\n\nqdiff replaces these names in a command where they are in braces, as in {{model}}:{lines}\nserve: \
         takes model and dir alone"
    )
}
