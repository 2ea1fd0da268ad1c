//! The two sides of a command: live or recorded, faults included, on which
//! tokens.

use super::args::{PromptArgs, SidesArgs};
use super::planted::{self, Planted};
use super::recorded::Recorded;
use super::{complain, setup};
use crate::capture::{Filter, Names};
use crate::loaded::LoadedModel;
use crate::mutations::{FaultSite, Injection};
use crate::oracle::Oracle;
use crate::pair::{Pair, Recording, Tokens};
use crate::prompts::Ready;
use crate::runners::{Faults, Spec, TapFiltered};
use anyhow::{Result, bail};
use std::io::IsTerminal as _;
use std::time::Duration;

/// What the arguments say of the sides, as far as it can be told, and refused,
/// without the model.
pub(super) struct SideChoice {
    subject: Spec,
    reference: Spec,
    pub(super) recorded: Recorded,
    injections: Vec<Injection>,
    budget: Duration,
}

/// Both sides, ready to run.
pub(super) struct Sides {
    pub(super) subject: Spec,
    pub(super) reference: Spec,
    pub(super) recorded: Recorded,
    /// What the subject's capture calls the stages.
    names: Names,
    pub(super) planted: Planted,
    /// The stages that are tapped of a subject that runs.
    pub(super) taps: Filter,
    /// Time that the search for causes may take.
    pub(super) budget: Duration,
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

impl SideChoice {
    /// Reads the arguments.
    ///
    /// # Errors
    /// A fault that cannot be read, a runner that is not there or cannot take
    /// it, a recording that is none, or a budget that is no time.
    pub(super) fn new(args: &SidesArgs) -> Result<Self> {
        let injections = planted::read(&args.inject)?;
        let rewriting = planted::rewriting(&injections, &args.subject)?;
        let (subject, reference) = resolve(&args.subject, &args.reference, rewriting)?;
        let budget = Duration::try_from_secs_f64(args.why_budget)
            .map_err(|_| anyhow::anyhow!("--why-budget must be a number of seconds, zero or more"))?;
        Ok(Self { recorded: Recorded::open(&subject, &reference)?, subject, reference, injections, budget })
    }

    /// What the arguments or the recording say is to be run.
    ///
    /// # Errors
    /// As [`setup::prompt()`].
    pub(super) fn input(&self, args: &SidesArgs, opened: &LoadedModel) -> Result<Input> {
        let given = args.prompt.prompt.clone();
        let Some(manifest) = self.recorded.manifest() else {
            return Ok(Input {
                ready: setup::prompt(opened, &args.prompt)?,
                asked: None,
                given,
                decode: args.prompt.decode,
                ubatch: args.capture.ubatch,
                forced: None,
            });
        };
        let asked = args.prompt.typed;
        // Nothing is decoded after it: the capture says how it went on.
        let only = PromptArgs { decode: 0, ..args.prompt.clone() };
        let asked = asked.then(|| setup::prompt(opened, &only)).transpose()?;
        Ok(Input {
            asked,
            ready: Ready {
                name: "recorded".to_owned(),
                text: String::new(),
                message: None,
                tokens: manifest.tokens.clone(),
            },
            given,
            decode: manifest.decoded.len(),
            ubatch: manifest.ubatch.unwrap_or(manifest.tokens.len()),
            forced: Some(manifest.decoded.clone()),
        })
    }

    /// The sides on this model.
    ///
    /// # Errors
    /// Names that are none of its stages, or faults that apply nowhere in it.
    pub(super) fn resolve(
        self,
        args: &SidesArgs,
        opened: &LoadedModel,
        oracle: &Oracle<'_>,
        parts: &[FaultSite],
    ) -> Result<Sides> {
        let names = match &args.map {
            Some(path) => Names::read(&oracle.graph, path)?,
            None => Names::of(&oracle.graph),
        };
        Ok(Sides {
            planted: Planted::new(opened, &self.injections, parts)?,
            subject: self.subject,
            reference: self.reference,
            recorded: self.recorded,
            names,
            taps: Filter::default(),
            budget: self.budget,
        })
    }
}

impl Sides {
    /// Runs or reads the reference, then the subject on the same tokens.
    ///
    /// # Errors
    /// As [`Pair::run`] and [`Pair::read`].
    pub(super) fn record(&self, pair: &Pair<'_>, input: &Input) -> Result<(Recording, Option<Recording>)> {
        let forced = input.forced.as_deref();
        let reference = match (&self.recorded.reference, &self.reference) {
            (Some((folder, manifest)), _) => Some(pair.read(folder, manifest, &Names::of(&pair.oracle.graph))?),
            (None, Spec::None) => None,
            (None, spec) => Some(pair.run(spec, input.tokens(forced), Faults::default())?),
        };
        // Without a reference the subject goes on with its own choices.
        let forced = reference.as_ref().map(|r| r.fed.as_slice()).or(forced);
        let subject = match &self.recorded.subject {
            Some((folder, manifest)) => pair.read(folder, manifest, &self.names)?,
            None => {
                let tokens = input.tokens(forced);
                let mut runner = TapFiltered {
                    inner: pair.runner(&self.subject, tokens, self.planted.stages.clone())?,
                    taps: &self.taps,
                };
                pair.record(&mut runner, tokens)?
            }
        };
        Ok((subject, reference))
    }
}

impl Input {
    /// Refuses what cannot be run, before anything is.
    pub(super) fn check(&self, opened: &LoadedModel, oracle: &Oracle<'_>, filter: &Filter) -> Result<()> {
        let forced = self.forced.as_deref().unwrap_or_default();
        opened.check(&[self.ready.tokens.as_slice(), forced].concat(), 0)?;
        filter.check(&oracle.graph, self.ready.tokens.len() + self.decode)?;
        Ok(())
    }

    /// As runners take them, the decode steps forced on these tokens.
    pub(super) fn tokens<'a>(&'a self, forced: Option<&'a [u32]>) -> Tokens<'a> {
        Tokens { prompt: &self.ready.tokens, ubatch: self.ubatch, decode: self.decode, forced }
    }
}

/// Who runs; `auto` says what it took.
pub(super) fn resolve(subject: &Spec, reference: &Spec, faults: bool) -> Result<(Spec, Spec)> {
    if *subject == Spec::None {
        bail!("--subject none leaves nothing to judge; name a runner");
    }
    let (subject, instead) = subject.resolve(faults)?;
    if let (Some(why), true) = (instead, std::io::stderr().is_terminal()) {
        complain(&format!("the subject is the CPU engine: {why}"));
    }
    let (reference, _) = reference.resolve(false)?;
    Ok((subject, reference))
}
