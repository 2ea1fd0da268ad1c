//! From a command to the task that does it.

use super::args::{Asked, Command, MutationsCommand, Reported};
use super::output::Output;
use super::program::Commands;
use super::project::Project;
use super::say::{said, say};
use super::setup::console;
use super::{demo, devices, exit, explain, inspect, manual, mutations, prompts, report, run, stages};
use crate::report::{Told, inert as inert_of};
use crate::tasks::run::REPORTS;
use crate::tasks::{
    Console, PromptRequest, check, dequantise, fetch, generate, judge, logits, record, rl, serving, sweep, synth,
    verify, weights,
};
use clap::{ArgMatches, Args};
use std::path::PathBuf;

impl Commands for Command {
    const NAME: &'static str = "qdiff";
    const ABOUT: &'static str =
        "Finds the bug in an LLM inference engine: the first wrong stage, its positions, and the cause";
    const AFTER_HELP: &'static str = "\
Exit codes: 0 match, 1 diverged, or the reference is wrong (REFERENCE-SUSPECT), 2 trouble, 3 no
divergence but coverage incomplete, or no reference for a GGUF. With --tolerance, exit code 0 means
only that your tolerances were kept; the verdict says so.

Examples:
  qdiff run --prompt haiku
  qdiff run --prompt haiku --inject qkv-bias-omitted@L07
  qdiff inspect model.gguf";

    fn run(&self) -> anyhow::Result<u8> {
        dispatch(self)
    }

    fn prompt(&mut self) -> Option<&mut PromptRequest> {
        Some(match self {
            Self::Run(args) => &mut args.request.sides.tokens.prompt,
            Self::Logits(args) => &mut args.request.sides.tokens.prompt,
            Self::Sweep(args) => &mut args.request.tokens.prompt,
            Self::Rl(args) => &mut args.request.tokens.prompt,
            Self::Record(request) => &mut request.tokens.prompt,
            Self::Generate(args) => &mut args.request.tokens.prompt,
            Self::VerifyOracle(args) => &mut args.request.tokens.prompt,
            _ => return None,
        })
    }

    fn asked(&self) -> Option<Asked<'_>> {
        let (command, files) = match self {
            Self::Run(args) => ("run", &args.output.files),
            Self::Check(args) => ("check", &args.output),
            Self::Weights(args) => ("weights", &args.output),
            Self::Logits(args) => ("logits", &args.output),
            Self::VerifyOracle(args) => ("verify-oracle", &args.output.files),
            Self::Compare(args) => ("compare", &args.output.files),
            Self::Sweep(args) => ("sweep", &args.output),
            Self::Rl(args) => ("rl", &args.output),
            Self::Generate(args) => ("generate", &args.output),
            _ => return None,
        };
        let several = matches!(self, Self::Run(args) if args.request.several());
        Some(Asked { command, files, reports: if several { 2 } else { 1 } })
    }

    fn take(&mut self, project: &Project, matches: &ArgMatches) {
        let from = Project::sets_tolerance(matches).then(|| project.path.clone());
        match self {
            Self::Run(args) => {
                args.request.tolerance.from = from;
                let alone = args.request.sequences.sequences.is_none();
                if let Some(prompts) = project.prompts(matches).filter(|_| alone) {
                    args.request.batch.prompts = Some(prompts);
                    args.request.batch.json_dir.get_or_insert_with(|| PathBuf::from(REPORTS));
                }
            }
            Self::Compare(args) => args.request.tolerance.from = from,
            Self::Judge(request) => request.captures.tolerance.from = from,
            Self::Sweep(args) => args.request.tolerance.from = from,
            _ => {}
        }
    }
}

fn dispatch(command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Check(args) if args.request.serving => reported(serving::check, args),
        Command::Check(args) => reported(check::check, args),
        Command::Inspect(args) => inspect::run(args),
        Command::Weights(args) => reported(weights::weights, args),
        Command::Logits(args) => reported(logits::logits, args),
        Command::VerifyOracle(args) => {
            let output = Output::new(&args.output, 1)?;
            output.tell(&verify::verify_oracle(&args.request, console())?)
        }
        Command::Report(args) => report::run(args),
        Command::Explain(request) => explain::run(request),
        Command::Record(request) => {
            let record::Recorded { arrays, steps, engine, inert } = record::record(request, console())?;
            let (inert, out) = (inert_of(&inert), request.out.display());
            said(&format!(
                "{inert}recorded {arrays} arrays of a run of {steps} pass{} of {engine} in {out}\n",
                if steps == 1 { "" } else { "es" }
            ))
        }
        Command::Judge(request) => {
            let part = judge::judge(request, console())?;
            let told = "`qdiff report` makes the verdict from all parts";
            said(&format!("{}, in {}; {told}\n", part.line(), request.out.display()))
        }
        Command::Generate(args) => reported(generate::generate, args),
        Command::Compare(args) => run::compare(args),
        Command::Sweep(args) => reported(sweep::sweep, args),
        Command::Rl(args) => reported(rl::rl, args),
        Command::Dequantise(request) => said(&dequantise::dequantise(request)?),
        Command::Demo(request) => demo::run(request, &dispatch),
        Command::FetchModel(request) => {
            let model = fetch::fetch(request, console())?;
            say(&format!("{}\n", model.display())).map(|()| exit::MATCH)
        }
        Command::Synth(request) => {
            let bytes = synth::synth(request)?;
            said(&format!("wrote {}, {bytes} bytes\n", request.out.display()))
        }
        Command::Prompts(request) => prompts::run(request),
        Command::Stages(args) => stages::run(args),
        Command::Mutations { command } => match command {
            None => mutations::list(None),
            Some(MutationsCommand::List { json }) => mutations::list(Some(json)),
            Some(MutationsCommand::Show { name, json }) => mutations::show(name, json),
        },
        Command::Devices(json) => devices::run(json),
        Command::Schema { of } => manual::schema(of),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { folder } => manual::man(folder.as_deref()),
    }
}

/// Runs a task and prints its report; gives the exit code. A place that cannot take the report is refused first.
///
/// # Errors
/// Those of the task, and a place that a report cannot go to.
pub fn reported<R: Args, T: Told>(
    task: impl FnOnce(&R, Console<'_>) -> anyhow::Result<T>, args: &Reported<R>,
) -> anyhow::Result<u8> {
    let output = Output::files(&args.output, 1)?;
    output.tell(&task(&args.request, console())?)
}
