//! The commands of `qdiff-lab`. The rest of its command line is that of `qdiff`.

use crate::report::bench::BenchReport;
use crate::score::Score;
use crate::tasks::bench::{BenchRequest, Measure, bench};
use crate::tasks::digest::{BookRequest, DigestRequest, book, digest};
use crate::tasks::score::{ScoreRequest, score};
use anyhow::Result;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, Error, Subcommand, ValueEnum};
use qdiff::cli::{Asked, Commands, Reported, exit, reported, say, typed};
use qdiff::report::{format_named, json};
use qdiff::tasks::PromptRequest;

/// What proves qdiff.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, of the command line")]
pub enum Lab {
    /// Plant faults, diagnose them, and say how often the diagnosis is right
    #[command(after_help = "\
Exit codes: 0 if every independent fault that is not inert is found at its stage, the causes of
90 of 100 predict what the faulty engine gives on other tokens, none is false, and no clean run
raises an alarm; else 1.

Examples:
  qdiff-lab score --quick
  qdiff-lab score --json score.json
  qdiff-lab score --model model.gguf --pairs 4")]
    Score(Reported<ScoreRequest>),
    /// Time and memory against llama.cpp, as ratios of one run
    #[command(after_help = "\
Examples:
  qdiff-lab bench --rounds 1")]
    Bench(Reported<BenchRequest>),
    /// Write the figures of reports as one small file, for a folder of results
    #[command(after_help = "\
Examples:
  qdiff-lab digest a.json b.json --title 'On the CPU' --out results/cpu.json")]
    Digest(DigestRequest),
    /// Tell folders of results as one document
    #[command(after_help = "\
Examples:
  qdiff-lab report results --out REPORT.md")]
    Report(BookRequest),
    /// Print the JSON schema of a file that qdiff writes or reads
    #[command(after_help = "\
Examples:
  qdiff-lab schema score")]
    Schema {
        /// The kind of JSON file
        #[arg(value_enum)]
        of: Written,
    },
}

/// What has a JSON schema.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Written {
    /// What `score --json` writes
    Score,
    /// What `bench --json` writes
    Bench,
}

impl Commands for Lab {
    const NAME: &'static str = "qdiff-lab";
    const ABOUT: &'static str = "Plants bugs, measures, and writes REPORT.md: what proves qdiff";
    const AFTER_HELP: &'static str = "\
Exit codes: 0 what was asked was reached or written, 1 the score was not, 2 trouble.

Examples:
  qdiff-lab score --quick
  qdiff-lab bench --rounds 1";

    fn run(&self) -> Result<u8> {
        match self {
            Self::Score(args) => reported(score, args),
            Self::Bench(args) => reported(bench, args),
            Self::Digest(request) => digest(request).map(|()| exit::MATCH),
            Self::Report(request) => {
                let text = book(request)?;
                text.map_or(Ok(()), |text| say(&text)).map(|()| exit::MATCH)
            }
            Self::Schema { of } => {
                let schema = match of {
                    Written::Score => json::schema::<Score>(),
                    Written::Bench => json::schema::<BenchReport>(),
                };
                say(&(serde_json::to_string_pretty(&schema)? + "\n")).map(|()| exit::MATCH)
            }
        }
    }

    fn prompt(&mut self) -> Option<&mut PromptRequest> {
        match self {
            Self::Bench(args) => Some(&mut args.request.prompt),
            _ => None,
        }
    }

    fn asked(&self) -> Option<Asked<'_>> {
        let (command, files) = match self {
            Self::Score(args) => ("score", &args.output),
            Self::Bench(args) => ("bench", &args.output),
            _ => return None,
        };
        Some(Asked { command, files, reports: 1 })
    }

    fn check(command: &mut Command, matches: &ArgMatches) -> Result<(), Error> {
        match matches.subcommand() {
            Some(("bench", of)) => unheard(command, of),
            _ => Ok(()),
        }
    }
}

/// Refuses options of `bench` that say nothing about what is measured.
fn unheard(command: &mut Command, of: &ArgMatches) -> Result<(), Error> {
    let Some(measure) = of.get_one::<Measure>("measure") else { return Ok(()) };
    let heard: &[&str] = match measure {
        Measure::Speed => &["prompt", "raw", "system", "template", "tokens", "threads", "rounds"],
        Measure::Cuda => &[
            "prompt", "raw", "system", "template", "tokens", "gemm", "rounds", "depth", "prefill", "alone", "baseline",
            "taps", "llama_bench",
        ],
        Measure::Batch => &[
            "prompt", "raw", "system", "template", "tokens", "rounds", "depth", "prefill", "alone", "sequences",
            "baseline",
        ],
        Measure::Soak => &["prompt", "raw", "system", "template", "tokens", "gemm"],
        Measure::Run => &["prompt", "length", "rounds"],
        Measure::TappedPrefill => &["prompt", "raw", "system", "template", "tokens", "length", "threads"],
        Measure::Verdict => &[
            "prompt", "raw", "system", "template", "tokens", "threads", "rounds", "also", "lengths", "check", "oracle",
        ],
    };
    let everywhere = ["measure", "model", "color", "quiet", "verbose", "log", "report", "ci"];
    let bench = command.get_subcommands().find(|c| c.get_name() == "bench");
    let ids: Vec<String> = bench.into_iter().flat_map(Command::get_arguments).map(|a| a.get_id().to_string()).collect();
    let known = |id: &str| heard.contains(&id) || everywhere.contains(&id) || format_named(id).is_some();
    match ids.iter().find(|id| typed(of, id) && !known(id)) {
        Some(id) => {
            let measure = measure.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
            let text = format!("'--{id}' says nothing about what `bench --measure {measure}` measures; leave it out");
            Err(command.error(ErrorKind::ArgumentConflict, text))
        }
        None => Ok(()),
    }
}
