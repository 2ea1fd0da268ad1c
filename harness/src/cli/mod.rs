//! Arguments and exit codes; everything is validated before anything runs.

mod args;
mod demo;
mod devices;
mod dispatch;
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
mod say;
mod schemas;
mod setup;
mod stages;
mod verify;

use crate::report::Failure;
use crate::runners::EngineTrouble;
use crate::supervisor::{self, Ended, keeper};
use args::Command;
pub use args::{Asked, Cli, FileArgs, Reported};
pub use dispatch::reported;
pub use exclusive::typed;
use program::ColorChoice;
pub use program::{CommandLine, Commands};
pub use say::say;
use say::{QUIET, complain, unless_closed};
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

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
