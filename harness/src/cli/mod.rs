//! Arguments and exit codes; everything is validated before anything runs.

mod args;
mod batch;
mod bench;
mod compare;
mod dequantise;
mod devices;
pub mod exit;
mod generate;
mod inspect;
mod logits;
mod manual;
mod mutations;
mod output;
mod planted;
mod prompts;
mod record;
mod recorded;
mod report;
mod run;
mod score;
mod setup;
mod sides;
mod sweep;
mod verify_oracle;
mod weights;
mod words;

use crate::report::terminal;
pub use args::Cli;
use args::{ColorChoice, Command};
use std::process::ExitCode;

/// Parses the command line, runs it, and gives the exit code.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|a| a == crate::chat::COMMAND) {
        return ExitCode::from(crate::chat::serve());
    }
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no trouble; a closed pipe is none either.
            let bisect = std::env::args().any(|a| a == "--bisect");
            let code = match (e.use_stderr(), bisect) {
                (false, _) => exit::MATCH,
                (true, false) => exit::TROUBLE,
                (true, true) => exit::SKIP,
            };
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    match cli.color {
        ColorChoice::Auto => {}
        ColorChoice::Always => anstream::ColorChoice::Always.write_global(),
        ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
    }
    crate::cleanup::on_interrupt();
    crate::llama::start(cli.verbose);
    // A panic is a bug of ours; to a script it must not look like a verdict.
    let result = std::panic::catch_unwind(|| dispatch(&cli.command)).unwrap_or_else(|_| {
        Err(anyhow::anyhow!("a bug in qdiff itself, see above; please report it with the command"))
    });
    ExitCode::from(result.unwrap_or_else(|e| {
        complain(&format!("{e:#}"));
        match &cli.command {
            Command::Run(args) if args.bisect => exit::SKIP,
            Command::Compare(args) if args.run.bisect => exit::SKIP,
            _ => exit::TROUBLE,
        }
    }))
}

fn dispatch(command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Weights(args) => weights::run(args),
        Command::Logits(args) => logits::run(args),
        Command::VerifyOracle(args) => verify_oracle::run(args),
        Command::Report(args) => report::run(args),
        Command::Record(args) => record::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Dequantise(args) => dequantise::run(args),
        Command::Prompts => prompts::run(),
        Command::Mutations(args) => mutations::run(args),
        Command::Devices => devices::run(),
        Command::Bench(args) => bench::run(args),
        Command::Schema { of } => manual::schema(*of),
        Command::Completions { shell } => manual::completions(*shell),
        Command::Man { folder } => manual::man(folder.as_deref()),
    }
}

/// Prints a line to standard error.
pub(crate) fn complain(text: &str) {
    anstream::eprintln!("qdiff: {}", terminal::plain(text));
}

/// Prints to standard output; a reader that went away is not an error. What
/// steers a terminal is shown, but for line ends and our own colours.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    match anstream::stdout().write_all(terminal::harmless(text).as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}
