//! The two sides of a task: live or recorded, faults included, on which tokens.

use super::Console;
use super::faults::{self, InjectedFaults};
use super::request::{CaptureRequest, FaultRequest, TokensRequest};
use super::values;
use crate::capture::{Filter, Names, npz};
use crate::compare::comparable;
use crate::diagnose::BUDGET;
use crate::loaded::LoadedModel;
use crate::mutations::{FaultSite, Injection};
use crate::pair::{Pair, Recording, Settings, Tokens};
use crate::prompts::Ready;
use crate::runners::{Faults, RunnerKind, Source, TapFiltered};
use anyhow::{Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The two sides, on which tokens.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sides")]
pub struct SidesRequest {
    /// Model and tokens
    #[command(flatten)]
    pub tokens: TokensRequest,
    /// The runner under suspicion
    #[arg(long, value_name = "RUNNER", default_value = "auto", env = "QDIFF_SUBJECT", value_parser = values::subject(), help_heading = "Sides")]
    pub subject: Source,
    /// Names of arrays
    #[command(flatten)]
    pub map: MapRequest,
    /// The runner it is held against
    #[arg(long, value_name = "RUNNER", default_value = "llama", env = "QDIFF_REFERENCE", value_parser = values::reference(), help_heading = "Sides")]
    pub reference: Source,
    /// Faults
    #[command(flatten)]
    pub faults: FaultRequest,
    /// Steps and memory
    #[command(flatten)]
    pub capture: CaptureRequest,
    /// The search for causes
    #[command(flatten)]
    pub why: WhyRequest,
}

/// What a capture calls the stages.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sides")]
pub struct MapRequest {
    /// Names of the subject's arrays: a file of lines THEIRS = OURS (see docs/bring-your-own-engine.md)
    #[arg(long, value_name = "FILE", env = "QDIFF_MAP")]
    pub map: Option<PathBuf>,
}

/// How long causes are looked for.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How to run it")]
pub struct WhyRequest {
    /// Seconds that the search for causes may take
    #[arg(long, value_name = "SECONDS", default_value_t = BUDGET.as_secs_f64(), env = "QDIFF_WHY_BUDGET")]
    pub why_budget: f64,
}

impl SidesRequest {
    /// As both runners take it.
    ///
    /// # Errors
    /// No threads, or a budget that is no time.
    pub fn settings(&self) -> Result<Settings> {
        let budget = Duration::try_from_secs_f64(self.why.why_budget)
            .map_err(|_| anyhow::anyhow!("--why-budget must be a number of seconds, zero or more"))?;
        Ok(Settings { budget, ..self.capture.settings()? })
    }
}

/// Where one side comes from, as far as it can be told without the model.
#[expect(clippy::large_enum_variant, reason = "two of them a process")]
enum Side {
    /// A runner.
    Live(&'static RunnerKind),
    /// A capture: its folder and manifest.
    Recorded(PathBuf, npz::Manifest),
    /// No reference.
    Nobody,
}

impl Side {
    fn open(source: &Source, runner: impl FnOnce() -> Result<&'static RunnerKind>) -> Result<Self> {
        Ok(match source {
            Source::Recorded(folder) => Self::Recorded(folder.clone(), npz::manifest(folder)?),
            Source::Nobody => Self::Nobody,
            Source::Auto | Source::Live(_) => Self::Live(runner()?),
        })
    }

    fn recorded(&self) -> Option<(&Path, &npz::Manifest)> {
        match self {
            Self::Recorded(folder, manifest) => Some((folder, manifest)),
            _ => None,
        }
    }
}

/// Both sides, as far as they can be told, and refused, without the model.
pub(super) struct SideChoice {
    subject: Side,
    reference: Side,
    injections: Vec<Injection>,
}

/// Both sides, ready to run on a model.
pub(super) struct Sides {
    chosen: SideChoice,
    /// What the subject's capture calls the stages.
    names: Names,
    /// Faults of the subject.
    pub(super) faults: InjectedFaults,
    /// The stages that are tapped of a subject that runs.
    pub(super) taps: Filter,
}

/// The tokens of one run.
pub(super) struct Input {
    pub(super) ready: Ready,
    /// The prompt that a recording is said to be of.
    pub(super) asked: Option<Ready>,
    /// What `--prompt` would take.
    pub(super) given: String,
    pub(super) decode: usize,
    pub(super) ubatch: usize,
    /// Tokens of the decode steps, where a recording names them.
    pub(super) forced: Option<Vec<u32>>,
}

/// The runner under suspicion; says where `auto` had to take the CPU.
pub(super) fn subject(source: &Source, faults: bool, console: Console<'_>) -> Result<&'static RunnerKind> {
    let (kind, instead) = source.runner(faults)?;
    if let Some(why) = instead {
        (console.aside)(&format!("the subject is the CPU engine: {why}"));
    }
    Ok(kind)
}

/// Two sides that run, and the faults to inject.
pub(super) fn both_live(
    (of_subject, reference): (&Source, &Source),
    given: &FaultRequest,
    console: Console<'_>,
) -> Result<(&'static RunnerKind, &'static RunnerKind, Vec<Injection>)> {
    let injections = faults::read(&given.inject)?;
    let rewriting = faults::rewriting(&injections, of_subject)?;
    let subject = subject(of_subject, rewriting, console)?;
    Ok((subject, reference.runner(false)?.0, injections))
}

impl SideChoice {
    /// Reads what is asked for.
    ///
    /// # Errors
    /// A fault that cannot be read, a runner that is not there or cannot take
    /// it, a recording that is none.
    pub(super) fn new(request: &SidesRequest, console: Console<'_>) -> Result<Self> {
        let injections = faults::read(&request.faults.inject)?;
        let rewriting = faults::rewriting(&injections, &request.subject)?;
        let chosen = Self {
            subject: Side::open(&request.subject, || subject(&request.subject, rewriting, console))?,
            reference: Side::open(&request.reference, || Ok(request.reference.runner(false)?.0))?,
            injections,
        };
        if let (Some(a), Some(b)) = (chosen.subject.recorded(), chosen.reference.recorded()) {
            comparable(a, b)?;
        }
        Ok(chosen)
    }

    /// Whether the subject is a capture.
    pub(super) fn recorded_subject(&self) -> bool {
        self.subject.recorded().is_some()
    }

    /// The folder and manifest of the capture whose tokens the run is about.
    pub(super) fn recorded(&self) -> Option<(&Path, &npz::Manifest)> {
        self.subject.recorded().or(self.reference.recorded())
    }

    /// Refuses captures of another model than this.
    ///
    /// # Errors
    /// The folder, and both models.
    pub(super) fn check_model(&self, sha256: &str) -> Result<()> {
        let mut captures = self.subject.recorded().into_iter().chain(self.reference.recorded());
        captures.try_for_each(|(folder, manifest)| manifest.check_model(folder, sha256))
    }

    /// What the request or the recording says is to be run.
    ///
    /// # Errors
    /// As [`TokensRequest::ready`].
    pub(super) fn input(&self, request: &SidesRequest, opened: &LoadedModel) -> Result<Input> {
        let prompt = &request.tokens.prompt;
        let given = prompt.prompt.clone();
        let Some((folder, manifest)) = self.recorded() else {
            return Ok(Input {
                ready: request.tokens.ready(opened)?,
                asked: None,
                given,
                decode: request.tokens.decode,
                ubatch: request.capture.ubatch,
                forced: None,
            });
        };
        // Nothing is decoded after it: the capture says how it went on.
        let asked = prompt.typed.then(|| prompt.ready(opened, 0)).transpose()?;
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        Ok(Input {
            asked,
            ready: Ready { name, text: String::new(), message: None, tokens: manifest.tokens.clone() },
            given,
            decode: manifest.decoded.len(),
            ubatch: manifest.ubatch.unwrap_or(manifest.tokens.len()),
            forced: Some(manifest.decoded.clone()),
        })
    }

    /// The sides on this model; `parts` besides stages may be faulty.
    ///
    /// # Errors
    /// Names that are none of its stages, or faults that apply nowhere in it.
    pub(super) fn on(self, request: &SidesRequest, pair: &Pair<'_>, parts: &[FaultSite]) -> Result<Sides> {
        let names = match &request.map.map {
            Some(path) => Names::read(&pair.oracle.graph, path)?,
            None => Names::of(&pair.oracle.graph),
        };
        let faults = InjectedFaults::new(pair.opened, &self.injections, parts)?;
        Ok(Sides { chosen: self, names, faults, taps: Filter::default() })
    }
}

impl Sides {
    /// As [`SideChoice::check_model`].
    ///
    /// # Errors
    /// As [`SideChoice::check_model`].
    pub(super) fn check_model(&self, sha256: &str) -> Result<()> {
        self.chosen.check_model(sha256)
    }

    /// The subject, where it runs.
    ///
    /// # Errors
    /// A capture.
    pub(super) fn live_subject(&self) -> Result<&'static RunnerKind> {
        match self.chosen.subject {
            Side::Live(kind) => Ok(kind),
            _ => bail!("--repeat runs the subject again, and a recorded capture cannot; leave it out"),
        }
    }

    /// Runs or reads the reference, then the subject on the same tokens.
    ///
    /// # Errors
    /// As [`Pair::run`] and [`Pair::read`].
    pub(super) fn record(&self, pair: &Pair<'_>, input: &Input) -> Result<(Recording, Option<Recording>)> {
        let forced = input.forced.as_deref();
        let reference = match &self.chosen.reference {
            Side::Recorded(folder, manifest) => Some(pair.read(folder, manifest, &Names::of(&pair.oracle.graph))?),
            Side::Nobody => None,
            Side::Live(kind) => Some(pair.run(kind, input.tokens(forced), Faults::default())?),
        };
        // Without a reference the subject goes on with its own choices.
        let forced = reference.as_ref().map(|r| r.fed.as_slice()).or(forced);
        let subject = match &self.chosen.subject {
            Side::Recorded(folder, manifest) => pair.read(folder, manifest, &self.names)?,
            Side::Live(kind) => {
                let tokens = input.tokens(forced);
                let mut runner =
                    TapFiltered { inner: pair.runner(kind, tokens, self.faults.stages.clone())?, taps: &self.taps };
                pair.record(&mut runner, tokens)?
            }
            Side::Nobody => bail!("without a subject there is nothing to judge; name a runner"),
        };
        Ok((subject, reference))
    }
}

impl Input {
    /// Refuses what cannot be run, before anything is.
    pub(super) fn check(&self, pair: &Pair<'_>) -> Result<()> {
        let forced = self.forced.as_deref().unwrap_or_default();
        pair.opened.check(&[self.ready.tokens.as_slice(), forced].concat(), 0)?;
        pair.filter.check(&pair.oracle.graph, self.ready.tokens.len() + self.decode)?;
        Ok(())
    }

    /// As runners take them, the decode steps forced on these tokens.
    pub(super) fn tokens<'a>(&'a self, forced: Option<&'a [u32]>) -> Tokens<'a> {
        Tokens { prompt: &self.ready.tokens, ubatch: self.ubatch, decode: self.decode, forced }
    }
}
