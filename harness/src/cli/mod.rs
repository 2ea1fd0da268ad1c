//! Arguments and exit codes; everything is validated before anything runs.

mod args;
mod demo;
mod devices;
mod exclusive;
pub mod exit;
mod explain;
mod inspect;
mod manual;
mod mutations;
mod output;
mod program;
mod project;
mod prompts;
mod report;
mod run;
mod setup;
mod stages;

use crate::report::terminal::{self, Terminal};
use crate::report::{Failure, Told, inert as inert_of};
use crate::runners::EngineTrouble;
use crate::shown::shown;
use crate::supervisor::{self, Ended, keeper};
use crate::tasks::{Console, check, dequantise, fetch, generate, judge, logits, record, sweep, synth, verify, weights};
use anyhow::Context as _;
pub use args::{Asked, FileArgs, Reported};
use args::{Command, MutationsCommand};
use clap::Args;
pub use exclusive::typed;
use output::Output;
use program::ColorChoice;
pub use program::{CommandLine, Commands};
use setup::console;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use terminal_size::terminal_size_of as size_of;

/// The command line of `qdiff`.
pub type Cli = CommandLine<Command>;

/// `qdiff`: parses the command line, runs it, and gives the exit code.
pub fn main() -> ExitCode {
    program::<Command>()
}

/// The same for any program.
pub fn program<C: Commands>() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == crate::chat::COMMAND => return ExitCode::from(crate::chat::serve()),
        Some(word) if word == keeper::COMMAND => return ExitCode::from(keeper::serve(words)),
        _ => {}
    }
    let cli = match CommandLine::<C>::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no trouble, unless they cannot be printed.
            let printed = unless_closed(e.print());
            if let Err(e) = &printed {
                complain(&format!("cannot write to standard output: {e}"));
            }
            return ExitCode::from(if e.use_stderr() || printed.is_err() { trouble() } else { exit::MATCH });
        }
    };
    match cli.color {
        ColorChoice::Auto => {}
        ColorChoice::Always => anstream::ColorChoice::Always.write_global(),
        ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
    }
    if let Some(what) = lacking() {
        complain(&format!(
            "this processor has no {what}, which llama.cpp in this program needs: build qdiff from source on this machine, \
             without llama.cpp (--no-default-features)"
        ));
        return ExitCode::from(trouble());
    }
    if let Some(ended) = (!cli.unsupervised).then(supervisor::split).flatten() {
        return after(ended);
    }
    let code = work(&cli);
    supervisor::ends(code);
    ExitCode::from(code)
}

/// The first instruction set that llama.cpp is compiled for on every x86-64 machine and that this processor lacks. Without
/// this check the first such instruction would end qdiff with SIGILL and no message.
#[cfg(all(feature = "llama", target_arch = "x86_64"))]
fn lacking() -> Option<&'static str> {
    let has = [
        ("SSE4.2", is_x86_feature_detected!("sse4.2")),
        ("AVX", is_x86_feature_detected!("avx")),
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("F16C", is_x86_feature_detected!("f16c")),
        ("BMI2", is_x86_feature_detected!("bmi2")),
    ];
    has.into_iter().find(|(_, has)| !has).map(|(name, _)| name)
}

/// Without llama.cpp, and on other processors, nothing is compiled for more than every machine has.
#[cfg(not(all(feature = "llama", target_arch = "x86_64")))]
fn lacking() -> Option<&'static str> {
    None
}

/// Runs the command, and gives the exit code.
fn work<C: Commands>(cli: &CommandLine<C>) -> u8 {
    crate::cleanup::on_interrupt();
    if let Err(e) = crate::log::start(cli.verbose, cli.log.as_deref()) {
        complain(&format!("{e:#}"));
        return trouble();
    }
    QUIET.store(cli.quiet, Ordering::Relaxed);
    crate::memory::watch();
    let start = Instant::now();
    // A panic is a bug of ours; to a script it must not look like a verdict.
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| cli.command.run())).unwrap_or_else(|_| {
        Err(anyhow::anyhow!("a bug in qdiff itself, see above; please report it with the command"))
    });
    if result.is_ok() {
        setup::took(start.elapsed());
    }
    result.unwrap_or_else(|e| {
        complain(&format!("{e:#}"));
        // What was refused before anything ran leaves the report of an earlier run as it is.
        if !e.is::<EngineTrouble>() {
            return trouble();
        }
        failed(cli, &e);
        exit::bisect(exit::TROUBLE, bisects(), true)
    })
}

/// Tells whoever reads reports that the command failed.
fn failed<C: Commands>(cli: &CommandLine<C>, e: &anyhow::Error) {
    if let Some(asked) = cli.command.asked() {
        output::failed(&asked, &Failure::new(asked.command, e));
    }
}

/// The exit code where a command cannot say anything.
fn trouble() -> u8 {
    exit::bisect(exit::TROUBLE, bisects(), false)
}

/// Whether the exit code is for `git bisect run`, as far as words say that could not be read.
fn bisects() -> bool {
    std::env::args_os().any(|word| word == "--bisect")
}

/// What the process that waited for the work has left to do.
fn after(ended: Ended) -> ExitCode {
    match ended {
        Ended::Code(code) => ExitCode::from(code),
        // Ended by the signal itself, so that a shell stops its loop as well.
        Ended::Told(signal) => {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            ExitCode::from(trouble())
        }
        Ended::Died(how) => {
            complain(&how);
            ExitCode::from(trouble())
        }
    }
}

fn dispatch(command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(args),
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
            said(&format!("{inert}recorded {arrays} arrays of {steps} steps of {engine} in {out}\n"))
        }
        Command::Judge(request) => {
            let part = judge::judge(request, console())?;
            let told = "it is no verdict before `qdiff report` has put all parts together";
            said(&format!("{}, in {}; {told}\n", part.line(), request.out.display()))
        }
        Command::Generate(args) => reported(generate::generate, args),
        Command::Compare(args) => run::compare(args),
        Command::Sweep(args) => reported(sweep::sweep, args),
        Command::Dequantise(request) => said(&dequantise::dequantise(request)?),
        Command::Demo(request) => demo::run(request),
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

/// Whether a CI system takes the report.
static CI: AtomicBool = AtomicBool::new(false);

/// Whether only the verdict is printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Whether standard output is one report and nothing else: the screen goes to standard error.
static PIPED: AtomicBool = AtomicBool::new(false);

/// Where screens are printed, as wide as whoever reads says, or as it is.
fn terminal() -> Terminal {
    static TERMINAL: LazyLock<Terminal> = LazyLock::new(|| {
        let set = std::env::var("COLUMNS").ok().and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        let size = if PIPED.load(Ordering::Relaxed) { size_of(std::io::stderr()) } else { size_of(std::io::stdout()) };
        Terminal::of(set.or(size.map(|(columns, _)| columns.0.into())).unwrap_or(terminal::WIDTH))
    });
    *TERMINAL
}

/// Prints a line to standard error.
fn complain(text: &str) {
    let line = format!("qdiff: {}", shown(text));
    anstream::eprintln!("{line}");
    crate::log::said(&line);
}

/// Prints a screen whose first paragraph is the verdict; where only that is
/// asked for, its first line, unwrapped lines included.
fn tell(screen: &str) -> anyhow::Result<()> {
    if !QUIET.load(Ordering::Relaxed) {
        return say(screen);
    }
    let mut lines = screen.trim_start_matches('\n').split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    say(&lines.take_while(|l| l.starts_with("  ")).fold(first.to_owned(), |all, l| all + l))
}

/// Prints a line beside a verdict.
fn remark(text: &str) -> anyhow::Result<()> {
    if QUIET.load(Ordering::Relaxed) { Ok(()) } else { say(text) }
}

/// Prints to standard output. What steers a terminal or a workflow is shown, but for line ends and our own colours.
///
/// # Errors
/// Standard output that fails for another reason than a closed pipe.
pub fn say(text: &str) -> anyhow::Result<()> {
    put(&terminal::harmless(text))
}

/// Prints as it is.
fn put(text: &str) -> anyhow::Result<()> {
    if PIPED.load(Ordering::Relaxed) {
        return unless_closed(anstream::stderr().write_all(text.as_bytes())).context("cannot write to standard error");
    }
    unless_closed(anstream::stdout().write_all(text.as_bytes())).context("cannot write to standard output")
}

/// Prints what was written in the place of a file.
fn pipe(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    unless_closed(out.write_all(text.as_bytes()).and_then(|()| out.flush())).context("cannot write to standard output")
}

/// A reader that went away is not an error.
fn unless_closed(written: std::io::Result<()>) -> std::io::Result<()> {
    written.or_else(|e| if e.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })
}

/// Prints what was done; gives the exit code.
fn said(text: &str) -> anyhow::Result<u8> {
    say(text).map(|()| exit::MATCH)
}
