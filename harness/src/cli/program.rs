//! What every program of the house has in common: the options before its command, and how a command line is read.

use super::args::Asked;
use super::exclusive;
use super::project::Project;
use crate::tasks::PromptRequest;
use clap::error::ErrorKind;
use clap::{
    ArgAction, ArgMatches, Command, CommandFactory as _, Error, FromArgMatches as _, Parser, Subcommand, ValueEnum,
};
use std::ffi::OsString;
use std::path::PathBuf;

/// The commands of a program.
pub trait Commands: Subcommand {
    /// What the program is called.
    const NAME: &'static str;
    /// What it is for, in a sentence.
    const ABOUT: &'static str;
    /// What its help ends with: exit codes, examples.
    const AFTER_HELP: &'static str;

    /// Runs the command, and gives the exit code.
    ///
    /// # Errors
    /// Whatever keeps it from being done.
    fn run(&self) -> anyhow::Result<u8>;

    /// Which tokens to run, of a command that runs any.
    fn prompt(&mut self) -> Option<&mut PromptRequest>;

    /// Where the report of a command goes that makes one.
    fn asked(&self) -> Option<Asked<'_>>;

    /// Takes what a project sets that no argument's default can say.
    fn take(&mut self, _: &Project, _: &ArgMatches) {}

    /// Refuses options of this program that exclude each other.
    ///
    /// # Errors
    /// What clap says of it.
    fn check(_: &mut Command, _: &ArgMatches) -> Result<(), Error> {
        Ok(())
    }
}

/// The version, and what this build lacks.
const VERSION: &str = match cfg!(feature = "llama") {
    true => env!("CARGO_PKG_VERSION"),
    false => concat!(env!("CARGO_PKG_VERSION"), " (without llama.cpp)"),
};

/// A command line of a program with commands `C`.
#[derive(Debug, Parser)]
#[command(name = C::NAME, version = VERSION, about = C::ABOUT, after_help = C::AFTER_HELP)]
pub struct CommandLine<C: Commands> {
    /// When to colour the output
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, env = "QDIFF_COLOR")]
    pub color: ColorChoice,
    /// Print only the verdict
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Print progress and llama.cpp's warnings on stderr; twice, all of llama.cpp's messages
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Write all messages to a file, also those not shown
    #[arg(long, global = true, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Do the work in the process that was started: for a debugger, and to measure what the other one costs
    #[arg(long, global = true, hide = true)]
    pub unsupervised: bool,
    /// What to do
    #[command(subcommand)]
    pub command: C,
}

impl<C: Commands> CommandLine<C> {
    /// What `words` ask for, the program's name first, and the environment for what they do not say.
    ///
    /// # Errors
    /// What clap says of it; help and version are among it.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, Error> {
        let mut command = without_empty(Self::command());
        let words: Vec<OsString> = words.into_iter().collect();
        let mut matches = command.try_get_matches_from_mut(&words)?;
        let project = Project::find().map_err(|e| Error::raw(ErrorKind::Io, format!("{e:#}\n")))?;
        if let Some(project) = &project {
            command = without_empty(project.apply(Self::command()));
            matches = command.try_get_matches_from_mut(&words)?;
        }
        exclusive::check(&mut command, &matches)?;
        C::check(&mut command, &matches)?;
        let mut line = Self::from_arg_matches(&matches)?;
        if let Some(prompt) = line.command.prompt() {
            exclusive::give_way(prompt, &matches);
        }
        if let Some(project) = &project {
            line.command.take(project, &matches);
        }
        Ok(line)
    }
}

/// The commands, for which an environment variable that is set to nothing is not set.
fn without_empty(command: clap::Command) -> clap::Command {
    let empty = |arg: &clap::Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| if empty(&arg) { arg.env(clap::builder::Resettable::Reset) } else { arg });
    command.mut_subcommands(without_empty)
}

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}
