//! The two sides of a task: live or recorded, faults included, on which tokens.

use super::Console;
use super::faults::{self, InjectedFaults};
use super::request::{CaptureRequest, FaultRequest, PassesRequest, TokensRequest, UBATCH};
use super::values;
use crate::capture::{Filter, Names, Passes, Plan, RowsSaid, container, manifest};
use crate::compare::comparable;
use crate::exercise::DECODE_STEPS;
use crate::llama;
use crate::loaded::NO_LLAMA;
use crate::mutations::{FaultSite, Injection};
use crate::pair::{Pair, Recording, Settings, Tokens};
use crate::prompts::Ready;
use crate::runners::{CommandLine, EngineTrouble, Faults, LLAMA, Runner as _, RunnerKind, Source, TapFiltered};
use crate::sequences;
use crate::verdict::Repeated;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use qdiff_engine::model::{Graph, Node, Placement};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The two sides, on which tokens.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sides")]
pub struct SidesRequest {
    #[command(flatten)]
    pub tokens: TokensRequest,
    #[command(flatten)]
    pub passes: PassesRequest,
    /// The engine under suspicion
    #[arg(long, value_name = "ENGINE", default_value = "auto", env = "QDIFF_SUBJECT", value_parser = values::SUBJECT, help_heading = "Sides",
          long_help = values::subject_help())]
    pub subject: Source,
    #[command(flatten)]
    pub map: MapRequest,
    /// The engine to compare with [default: llama, or none for a folder of safetensors]
    #[arg(long, value_name = "ENGINE", env = "QDIFF_REFERENCE", value_parser = values::REFERENCE, help_heading = "Sides")]
    pub reference: Option<Source>,
    #[command(flatten)]
    pub faults: FaultRequest,
    #[command(flatten)]
    pub capture: CaptureRequest,
    #[command(flatten)]
    pub why: WhyRequest,
}

/// The subject's recording of each sequence, the reference's, and the rows that a capture names.
type Recorded = (Vec<Recording>, Option<Vec<Recording>>, Vec<RowsSaid>);

/// Two sides that run.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sides")]
pub struct LiveSidesRequest {
    /// The engine under suspicion
    #[arg(long, value_name = "ENGINE", default_value = "auto", env = "QDIFF_SUBJECT", value_parser = values::LIVE_SUBJECT,
          long_help = values::subject_help())]
    pub subject: Source,
    /// The engine to compare with
    #[arg(long, value_name = "ENGINE", default_value = "llama", env = "QDIFF_REFERENCE", value_parser = values::LIVE)]
    pub reference: Source,
    #[command(flatten)]
    pub faults: FaultRequest,
}

impl LiveSidesRequest {
    /// Subject and reference, and the faults to inject.
    pub(super) fn kinds(
        &self, console: Console<'_>,
    ) -> Result<(&'static RunnerKind, &'static RunnerKind, Vec<Injection>)> {
        let (subject, injections) = subject(&self.subject, &self.faults, console)?;
        Ok((subject, self.reference.runner(false)?.0, injections))
    }
}

/// What a capture calls the stages.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sides")]
pub struct MapRequest {
    /// Names of the dumped arrays: a file of lines THEIRS = OURS (see docs/engine/maps.md)
    #[arg(long, value_name = "FILE", env = "QDIFF_MAP")]
    pub map: Option<PathBuf>,
}

/// With how much work causes are looked for.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How to run it")]
pub struct WhyRequest {
    /// Work for the search for causes, as a multiple of the default; 0 skips the search. qdiff counts work and not
    /// time, so every machine finds the same cause
    #[arg(long, value_name = "N TIMES", default_value_t = 1.0, env = "QDIFF_WHY_BUDGET")]
    pub why_budget: f64,
}

impl Default for WhyRequest {
    fn default() -> Self {
        Self { why_budget: 1.0 }
    }
}

impl SidesRequest {
    /// The reference: by default llama.cpp, or none where llama.cpp cannot read the model.
    fn reference(&self) -> Source {
        let usual = if self.of_folder() { Source::Nobody } else { Source::Live(&LLAMA) };
        self.reference.clone().unwrap_or(usual)
    }

    fn of_folder(&self) -> bool {
        self.tokens.prompt.model.model.as_ref().is_some_and(|path| path.is_dir())
    }

    /// As both runners take it.
    ///
    /// # Errors
    /// No threads, or a budget that is no amount of work.
    pub fn settings(&self) -> Result<Settings> {
        let budget = self.why.why_budget;
        ensure!((0.0..=1e9).contains(&budget), "--why-budget must be a factor from 0 to 1e9, such as 4");
        Ok(Settings { budget, ..self.capture.settings()? })
    }
}

/// Where one side comes from, as far as that is known without the model.
#[expect(clippy::large_enum_variant, reason = "two of them a process")]
pub(super) enum Side {
    /// A runner.
    Live(&'static RunnerKind),
    /// A capture: its folder and manifest.
    Recorded(PathBuf, manifest::Manifest),
    /// No reference.
    Nobody,
}

impl Side {
    /// Finds the runner, or reads the manifest of the capture.
    ///
    /// # Errors
    /// A runner that this machine does not have; a folder that is no capture.
    pub(super) fn open(source: &Source) -> Result<Self> {
        Ok(match source {
            Source::Recorded(folder) => Self::Recorded(folder.clone(), container::any_manifest(folder)?),
            Source::Nobody => Self::Nobody,
            Source::Auto | Source::Live(_) => Self::Live(source.runner(false)?.0),
        })
    }

    /// Whether it is a command that feeds what somebody else chose.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Live(kind) if kind.command().is_some_and(|command| command.waits()))
    }

    /// The folder and the manifest of a capture.
    pub(super) fn recorded(&self) -> Option<(&Path, &manifest::Manifest)> {
        if let Self::Recorded(folder, manifest) = self { Some((folder, manifest)) } else { None }
    }
}

/// Both sides, checked as far as that is possible without the model.
pub(super) struct SideChoice<'a> {
    request: &'a SidesRequest,
    subject: Side,
    reference: Side,
    injections: Vec<Injection>,
}

/// Both sides, ready to run on a model.
pub(super) struct Sides<'a> {
    pub(super) chosen: SideChoice<'a>,
    /// Faults of the subject.
    pub(super) faults: InjectedFaults,
    /// The stages that are tapped of a subject that runs.
    pub(super) taps: Filter,
}

/// The tokens of one run.
pub(super) struct Input {
    pub(super) ready: Ready,
    /// The prompt that is named beside a recording.
    pub(super) asked: Option<Ready>,
    decode: usize,
    ubatch: usize,
    /// Lengths of the passes over the prompt, where it is not fed in parts of `ubatch`.
    passes: Option<Vec<usize>>,
    /// Tokens of the decode steps, where a recording names them, or where nobody chooses any.
    forced: Option<Vec<u32>>,
    recorded: bool,
}

/// The engine under suspicion, and the faults to inject into it; says where `auto` had to take the CPU.
///
/// # Errors
/// A fault that cannot be read; a runner that is not there, or that must not be another.
pub(super) fn subject(
    source: &Source, given: &FaultRequest, console: Console<'_>,
) -> Result<(&'static RunnerKind, Vec<Injection>)> {
    let injections = faults::read(&given.inject)?;
    let (kind, instead) = source.runner(faults::rewriting(&injections, source)?)?;
    if let Some(why) = instead {
        (console.instead)(&why)?;
    }
    Ok((kind, injections))
}

impl<'a> SideChoice<'a> {
    /// Reads the requested side.
    ///
    /// # Errors
    /// A fault that cannot be read, a runner that is not there or cannot take it, a recording that is none.
    pub(super) fn new(request: &'a SidesRequest, console: Console<'_>) -> Result<Self> {
        let (mut subject, injections) = if let Source::Auto | Source::Live(_) = &request.subject {
            let (kind, injections) = subject(&request.subject, &request.faults, console)?;
            (Side::Live(kind), injections)
        } else {
            let injections = faults::read(&request.faults.inject)?;
            faults::rewriting(&injections, &request.subject)?;
            (Side::open(&request.subject)?, injections)
        };
        let reference = request.reference();
        let mut reference = Side::open(&reference).map_err(|e| match reference {
            Source::Live(kind) if kind.llama && llama::built_in().is_err() => {
                anyhow!("{e}, or leave llama.cpp out (--reference none)")
            }
            _ => e,
        })?;
        if let (Side::Recorded(_, a), Side::Recorded(_, b)) = (&mut subject, &mut reference)
            && a.sequences.is_some() != b.sequences.is_some()
        {
            // Beside a capture without a plan, a plan of one sequence is its passes.
            for (manifest, source) in [(a, &request.subject), (b, &request.reference())] {
                *manifest = manifest.clone().alone().with_context(|| source.to_string())?;
            }
        }
        let chosen = Self { request, subject, reference, injections };
        let of_llama = |side: &Side| matches!(side, Side::Live(kind) if kind.llama);
        if request.of_folder() && (of_llama(&chosen.subject) || of_llama(&chosen.reference)) {
            let model = request.tokens.prompt.model.path()?.display();
            bail!("{model}: {NO_LLAMA}, or leave llama.cpp out (--reference none)");
        }
        if let (Some(a), Some(b)) = (chosen.subject.recorded(), chosen.reference.recorded()) {
            comparable(a, b)?;
        }
        Ok(chosen)
    }

    /// The subject, where it is no capture.
    pub(super) fn live_subject(&self) -> Option<&'static RunnerKind> {
        if let Side::Live(kind) = self.subject { Some(kind) } else { None }
    }

    /// Whether the subject's values are what another engine dumped.
    pub(super) fn dumped(&self) -> bool {
        match self.subject {
            Side::Live(kind) => kind.command().is_some(),
            Side::Recorded(..) => true,
            Side::Nobody => false,
        }
    }

    /// The sequences that the run is of, where there are several: as a capture says, or as `asked`.
    ///
    /// # Errors
    /// Sides that cannot run several sequences in one pass, or are of other ones.
    pub(super) fn plan(&self, asked: Option<&Plan>) -> Result<Option<Plan>> {
        let plan = self.recorded().map_or(asked, |(_, manifest)| manifest.sequences.as_ref());
        if let Some(own) = plan {
            for side in [&self.subject, &self.reference] {
                match side {
                    Side::Live(kind) => {
                        kind.check_sequences()?;
                        own.shifts().then(|| kind.check_shifts()).transpose()?;
                    }
                    Side::Recorded(folder, manifest) => ensure!(
                        manifest.sequences.as_ref() == plan,
                        "the capture {} is of other sequences; name one of the same passes, or an engine",
                        folder.display()
                    ),
                    Side::Nobody => {}
                }
            }
            ensure!(
                self.injections.is_empty(),
                "--inject changes a run of one sequence: leave --inject out, or --sequences and --serving"
            );
        }
        Ok(plan.cloned())
    }

    /// Whether a side is llama.cpp on the CPU, and runs.
    pub(super) fn runs_llama(&self) -> bool {
        [&self.subject, &self.reference].iter().any(|side| matches!(side, Side::Live(kind) if **kind == LLAMA))
    }

    /// Whether the reference is llama.cpp.
    pub(super) fn is_held_against_llama(&self) -> bool {
        matches!(self.reference, Side::Live(kind) if kind.llama)
    }

    /// The ranks that the run is cut over: as a capture says, or as `asked`.
    ///
    /// # Errors
    /// A subject that runs, or was recorded, on one rank alone.
    pub(super) fn ranks(&self, asked: Option<&Placement>) -> Result<Option<Placement>> {
        if let Some((folder, manifest)) = self.subject.recorded() {
            ensure!(
                asked.is_none() || manifest.ranks.is_some(),
                "{} is a capture of one rank; leave --ranks out",
                folder.display()
            );
            return Ok(manifest.ranks.clone());
        }
        if let (Some(_), Side::Live(kind)) = (asked, &self.subject) {
            kind.check_ranks()?;
        }
        Ok(asked.cloned())
    }

    /// The tokens of all sequences of a capture, where one is of several.
    pub(super) fn recorded_sequences(&self) -> Option<Ready> {
        let (folder, manifest) = self.recorded()?;
        manifest.sequences.as_ref().map(|_| Input::recorded(folder, manifest).ready)
    }

    /// The folder and manifest of the capture whose tokens the run is about.
    pub(super) fn recorded(&self) -> Option<(&Path, &manifest::Manifest)> {
        self.subject.recorded().or(self.reference.recorded())
    }

    /// What a recorded subject says of the end of its text, and the tokens before it.
    pub(super) fn recorded_end(&self) -> Option<(&manifest::RecordedEnd, &[u32])> {
        let (_, manifest) = self.subject.recorded()?;
        Some((manifest.end.as_ref()?, &manifest.decoded))
    }

    /// As both runners take it: the KV cache of what runs beside a capture is of the capture's type.
    ///
    /// # Errors
    /// As [`SidesRequest::settings`]; a capture whose KV cache is of another type than the one asked for.
    pub(super) fn settings(&self) -> Result<Settings> {
        let settings = self.request.settings()?;
        let asked = self.request.capture.kv_type;
        for (folder, manifest) in self.subject.recorded().into_iter().chain(self.reference.recorded()) {
            let own = manifest.kv();
            if let Some(asked) = asked.filter(|asked| *asked != own) {
                bail!(
                    "{} was recorded with a KV cache in {own}, and --kv-type asks for {asked}; leave --kv-type out, or \
                     record it again",
                    folder.display()
                );
            }
        }
        let recorded = self.recorded().map(|(_, manifest)| manifest.kv());
        Ok(Settings { kv: recorded.unwrap_or(settings.kv), ..settings })
    }

    /// Refuses captures of another model than this.
    pub(super) fn check_model(&self, sha256: &str) -> Result<()> {
        let mut captures = self.subject.recorded().into_iter().chain(self.reference.recorded());
        captures.try_for_each(|(folder, manifest)| manifest.check_model(folder, sha256))
    }

    /// What the request or the recording says is to be run.
    pub(super) fn input(&self, pair: &Pair<'_>) -> Result<Input> {
        let SidesRequest { tokens, capture, .. } = self.request;
        let input = match self.recorded() {
            None => Input::new(tokens.ready(pair.opened)?, tokens.decode, capture.ubatch).fed(&self.request.passes)?,
            Some((folder, manifest)) => {
                // Nothing is decoded after it: the capture says how it went on.
                let asked = tokens.prompt.typed.then(|| tokens.prompt.ready(pair.opened, 0)).transpose()?;
                Input { asked, ..Input::recorded(folder, manifest) }
            }
        };
        let input = self.taken(input);
        input.check(pair).map(|()| input)
    }

    /// The part of `input` that both sides can take: a command may take no decode steps, or no parts of the prompt.
    pub(super) fn taken(&self, input: Input) -> Input {
        if self.recorded().is_some() {
            return input;
        }
        let decode = if self.decodes() { input.decode } else { 0 };
        // If no side chooses tokens, any tokens do: each stage is held against f64 on its own operands.
        let unchosen = self.subject.waits() && (self.reference.waits() || matches!(self.reference, Side::Nobody));
        let forced = if unchosen { Some(fed_again(&input.ready.tokens, decode)) } else { input.forced };
        // An engine that is not told the parts feeds the prompt at once, or in parts that somebody says it always takes.
        let own = Some(self.request.capture.ubatch).filter(|own| *own != UBATCH).unwrap_or(input.ready.tokens.len());
        let ubatch = if self.commands().all(|command| command.parts()) { input.ubatch } else { own };
        Input { decode, ubatch, forced, ..input }
    }

    fn commands(&self) -> impl Iterator<Item = CommandLine> {
        let sides = [&self.subject, &self.reference];
        sides.into_iter().filter_map(|side| if let Side::Live(kind) = side { kind.command() } else { None })
    }

    /// Whether every command takes decode steps.
    fn decodes(&self) -> bool {
        self.commands().all(|command| command.decodes())
    }

    /// The same with why a command left decode steps out.
    pub(super) fn why_unexercised(&self, mut left: Vec<String>) -> Vec<String> {
        if let Some(steps) = left.iter_mut().find(|what| *what == DECODE_STEPS).filter(|_| !self.decodes()) {
            steps.push_str(" (the command takes neither {n} nor {decoded})");
        }
        left
    }

    /// What the subject's dump calls the stages.
    ///
    /// # Errors
    /// A map that cannot be read, or names none of the model's stages.
    pub(super) fn names(&self, graph: &Graph) -> Result<Names> {
        self.request.map.map.as_ref().map_or_else(|| Ok(Names::of(graph)), |path| Names::read(graph, path))
    }

    /// The sides on this model; `parts` besides stages may be faulty.
    ///
    /// # Errors
    /// Faults that apply nowhere in it.
    pub(super) fn on(self, pair: &Pair<'_>, parts: &[FaultSite]) -> Result<Sides<'a>> {
        let faults = InjectedFaults::new((&pair.engine_graph()?, pair.settings.kv), &self.injections, parts)?;
        Ok(Sides { chosen: self, faults, taps: Filter::default() })
    }
}

impl Sides<'_> {
    /// Runs or reads the reference and the subject on the same tokens. Work of the subject that needs no reference
    /// comes first: a capture is read, and a command is run as far as it does not need the reference's choices.
    ///
    /// # Errors
    /// What keeps a side from running or being read; of the subject as [`EngineTrouble`].
    pub(super) fn record(&self, pair: &Pair<'_>, input: &Input) -> Result<(Recording, Option<Recording>)> {
        // The stages that are read, dumped, or tapped by kernels without every stage are not known yet.
        let known = |side: &Side| matches!(side, Side::Live(kind) if kind.command().is_none() && !kind.device);
        let of_subject = |node: &Node| self.taps.stage(node.id);
        let mut live: Vec<&dyn Fn(&Node) -> bool> = Vec::new();
        if known(&self.chosen.reference) {
            live.push(&|_| true);
        }
        if known(&self.chosen.subject) {
            live.push(&of_subject);
        }
        pair.make_room(input.tokens(None), &live)?;
        let tapped = |kind: &RunnerKind, tokens: Tokens<'_>| self.tapped(pair, kind, tokens);
        // An engine that takes no tokens to decode chooses them, and the reference is fed these; so it is with one
        // whose reference waits for tokens.
        let alone = |kind: &RunnerKind| kind.command().is_some_and(|command| input.decode == 0 || !command.forced());
        if let (Side::Live(subject), Side::Live(reference)) = (&self.chosen.subject, &self.chosen.reference)
            && (alone(subject) || self.chosen.reference.waits() && !self.chosen.subject.waits())
        {
            let tokens = input.tokens(None);
            let subject = pair.record(&mut tapped(subject, tokens)?, tokens).map_err(EngineTrouble::of)?;
            let reference = pair.run(reference, input.tokens(Some(&subject.fed)), Faults::default())?;
            return Ok((subject, Some(reference)));
        }
        // What computes on a GPU leaves the CPU to the other.
        if let (Side::Live(subject), Side::Live(reference)) = (&self.chosen.subject, &self.chosen.reference)
            && subject.device
            && known(&self.chosen.reference)
        {
            let tokens = input.tokens(None);
            let (subject, reference) =
                pair.run_beside(reference, tokens, &|| Ok(Box::new(tapped(subject, tokens)?)))?;
            return Ok((subject, Some(reference)));
        }
        let mut begun = None;
        let (mut recorded, since) = (None, Instant::now());
        match &self.chosen.subject {
            Side::Recorded(folder, manifest) => {
                recorded = Some(pair.read(folder, manifest, &pair.names, &manifest.how()).map_err(EngineTrouble::of)?);
            }
            Side::Live(kind) if kind.command().is_some() => {
                let mut runner = tapped(kind, input.tokens(None))?;
                (pair.progress)(&format!("running {kind}"), 0, 1);
                runner.begin(input.tokens(None)).map_err(EngineTrouble::of)?;
                begun = Some(runner);
            }
            Side::Live(_) | Side::Nobody => {}
        }
        let before = since.elapsed().as_secs_f64();
        let reference = match &self.chosen.reference {
            Side::Recorded(folder, manifest) => {
                Some(pair.read(folder, manifest, &Names::of(&pair.oracle.graph), &manifest.how())?)
            }
            Side::Nobody => None,
            Side::Live(kind) => Some(pair.run(kind, input.tokens(None), Faults::default())?),
        };
        // Without a reference the subject goes on with its own choices.
        let forced = reference.as_ref().map(|r| r.fed.as_slice());
        let tokens = input.tokens(forced);
        let subject = match (&self.chosen.subject, recorded, begun) {
            (_, Some(recorded), _) => recorded,
            (_, _, Some(mut runner)) => {
                let subject = pair.record(&mut runner, tokens).map_err(EngineTrouble::of)?;
                Recording { seconds: before + subject.seconds, ..subject }
            }
            (Side::Live(kind), ..) => pair.record(&mut tapped(kind, tokens)?, tokens).map_err(EngineTrouble::of)?,
            _ => bail!("without a subject there is nothing to judge; name an engine"),
        };
        Ok((subject, reference))
    }

    /// Runs both on all sequences of a plan; gives a recording of each sequence, and what a recorded subject gave its kernels.
    ///
    /// # Errors
    /// What keeps a side from running.
    pub(super) fn record_sequences(&self, pair: &Pair<'_>, plan: &Plan, tokens: &[u32]) -> Result<Recorded> {
        let run = |side: &Side, names: &Names| match side {
            Side::Nobody => Ok(None),
            Side::Recorded(folder, manifest) => {
                let mut recording = pair.read(folder, manifest, names, &manifest.how())?;
                let said = std::mem::take(&mut recording.capture.rows);
                Ok(Some((sequences::split(&pair.oracle.graph, recording, plan), said)))
            }
            Side::Live(kind) => {
                let mut runner = sequences::runner(pair, kind, plan, Faults::default())?;
                Ok(Some(sequences::recorded(pair, runner.as_mut(), plan, tokens, names)?))
            }
        };
        let reference = run(&self.chosen.reference, &Names::of(&pair.oracle.graph))?;
        let subject = run(&self.chosen.subject, &pair.names).map_err(EngineTrouble::of)?;
        let (subject, said) = subject.context("without a subject there is nothing to judge; name an engine")?;
        Ok((subject, reference.map(|(recordings, _)| recordings), said))
    }

    fn tapped<'r>(&'r self, pair: &Pair<'r>, kind: &RunnerKind, tokens: Tokens<'_>) -> Result<TapFiltered<'r>> {
        let inner = pair.runner(kind, tokens, self.faults.stages.clone())?;
        Ok(TapFiltered { inner, taps: &self.taps })
    }

    /// Runs the subject alone on other tokens than it ran before.
    ///
    /// # Errors
    /// As [`Pair::run`].
    pub(super) fn elsewhere(&self, pair: &Pair<'_>, kind: &RunnerKind, tokens: Tokens<'_>) -> Result<Recording> {
        let mut runner = self.tapped(pair, kind, tokens)?;
        // An engine that chooses what it decodes is not told.
        let forced = tokens.forced.filter(|_| !runner.chooses(tokens));
        pair.record(&mut runner, Tokens { forced, ..tokens })
    }

    /// Runs the subject again as it ran `first`, `runs` times in all, and compares the runs.
    ///
    /// # Errors
    /// A subject that is recorded; as [`Pair::repeat`].
    pub(super) fn repeat(&self, pair: &Pair<'_>, input: &Input, first: &Recording, runs: usize) -> Result<Repeated> {
        let kind = self.chosen.live_subject().context("a recorded capture cannot run again")?;
        let tokens = input.tokens(Some(&first.fed));
        pair.repeat(&|| Ok(Box::new(self.tapped(pair, kind, tokens)?)), tokens, first, runs)
    }
}

/// The tokens of `prompt` again, `n` of them, for decode steps where no side chooses tokens.
pub(super) fn fed_again(prompt: &[u32], n: usize) -> Vec<u32> {
    prompt.iter().copied().cycle().take(n).collect()
}

impl Input {
    /// Whether tokens of the prompt were fed at the decode steps, for want of somebody who chooses.
    pub(super) fn unchosen(&self) -> bool {
        self.forced.as_ref().is_some_and(|forced| !forced.is_empty()) && !self.recorded
    }

    /// These tokens, and `decode` more of the runner's choice.
    pub(super) fn new(ready: Ready, decode: usize, ubatch: usize) -> Self {
        Self { ready, asked: None, decode, ubatch, passes: None, forced: None, recorded: false }
    }

    /// The same, fed in the requested passes.
    ///
    /// # Errors
    /// As [`PassesRequest::lengths`].
    pub(super) fn fed(self, passes: &PassesRequest) -> Result<Self> {
        Ok(Self { passes: passes.lengths(self.ready.tokens.len())?, ..self })
    }

    /// The same, fed in passes of these lengths.
    pub(super) fn in_passes(self, lengths: Vec<usize>) -> Self {
        Self { passes: Some(lengths), ..self }
    }

    /// The lengths of the passes over the prompt, where it is not fed in parts of one size.
    pub(super) fn passes(&self) -> &[usize] {
        self.passes.as_deref().unwrap_or_default()
    }

    /// The tokens of a recording, in its steps.
    pub(super) fn recorded(folder: &Path, manifest: &manifest::Manifest) -> Self {
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        let ready = Ready { name, text: String::new(), message: None, tokens: manifest.tokens.clone() };
        let (ubatch, passes) = match manifest.passes_of_prompt() {
            Passes::Of(most) => (most, None),
            Passes::Lengths(lengths) => (manifest.tokens.len(), Some(lengths.to_vec())),
        };
        let forced = Some(manifest.decoded.clone());
        Self { forced, passes, recorded: true, ..Self::new(ready, manifest.decoded.len(), ubatch) }
    }

    /// Refuses what cannot be run, before anything is.
    pub(super) fn check(&self, pair: &Pair<'_>) -> Result<()> {
        let forced = self.forced.as_deref().unwrap_or_default();
        pair.opened.check(&[self.ready.tokens.as_slice(), forced].concat(), 0)?;
        pair.filter.check(&pair.oracle.graph, self.ready.tokens.len() + self.decode)?;
        Ok(())
    }

    /// As runners take them, the decode steps forced on these tokens, or on those of the recording.
    pub(super) fn tokens<'a>(&'a self, forced: Option<&'a [u32]>) -> Tokens<'a> {
        let forced = forced.or(self.forced.as_deref());
        let passes = self.passes.as_deref().map_or(Passes::Of(self.ubatch), Passes::Lengths);
        Tokens { prompt: &self.ready.tokens, passes, decode: self.decode, forced }
    }
}
