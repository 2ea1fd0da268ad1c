//! Both sides on the same tokens, every stage judged: one prompt, or many with the model loaded once.

use super::batch::{self, Batch};
pub use super::run_request::{REPORTS, RunRequest};
use super::sides::{Input, SideChoice, Sides};
use super::{Console, declaration, hashed, repeat, verify};
use crate::capture::Filter;
use crate::decoded;
use crate::diagnose::Diagnosis;
use crate::ends;
use crate::exercise;
use crate::hash;
use crate::loaded::{LoadedAdapter, LoadedModel};
use crate::machine::Machine;
use crate::memory::{self, Size};
use crate::mutations::FaultSite;
use crate::own;
use crate::pair::{Pair, Recording};
use crate::prompts::Ready;
use crate::report::{
    AdapterInfo, Failure, Memory, ModelInfo, Outcome, Report, RunInfo, Seconds, SequenceInfo, Told as _, file,
};
use crate::runners::{EngineTrouble, Manifest};
use crate::severity;
use crate::slots::SlotsCheck;
use crate::tokens::{self, TokensCheck};
use crate::verdict::{Measured, Repeated};
use crate::weights::{self, WeightCheck};
use anyhow::{Context as _, Result, bail, ensure};
use qdiff_engine::folder;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a subject may take that runs once more where it diverges.
const AGAIN: Duration = Duration::from_secs(30);

/// What a run gave.
pub struct Ran {
    /// A report per prompt that could be run.
    pub reports: Vec<Report>,
    /// The settings of the others.
    pub failures: Vec<Failure>,
}

/// Runs both sides and judges them, prompt after prompt. One of several that
/// cannot be run is reported, and the others still run.
///
/// # Errors
/// Anything that keeps all of them from running; for a single prompt, anything that keeps it from being judged.
pub fn run(request: &RunRequest, console: Console<'_>) -> Result<Ran> {
    judged(request, None, console)
}

/// The same, of stages that were judged elsewhere where there are such.
pub(super) fn judged(request: &RunRequest, measured: Option<Vec<Measured>>, console: Console<'_>) -> Result<Ran> {
    let source = request.batch.prompts.as_deref();
    let batch = source.map(|p| batch::read(p, request.batch.shard)).transpose()?;
    let chosen = SideChoice::new(&request.sides, console)?;
    if batch.is_some() && chosen.recorded().is_some() {
        bail!("a recorded capture has its own tokens; leave --prompts out");
    }
    let live = chosen.live_subject();
    if live.is_none() && request.repeat.is_some_and(|runs| runs > 1) {
        bail!("--repeat runs the subject again, and a recorded capture cannot; leave it out");
    }
    if live.is_none() && !request.taps.is_empty() {
        bail!("--taps is about a subject that runs; a recorded capture has its taps already");
    }
    if live.is_some_and(|kind| kind.command().is_some()) && !request.taps.is_empty() {
        bail!("--taps is about qdiff's own engines; a command's own options choose its dumps");
    }
    request.confirm.check(&chosen)?;
    let plan = chosen.plan(request.sequences.sequences.as_ref())?;
    let ranks = chosen.ranks(request.ranks.ranks.as_ref())?;
    ensure!(ranks.is_none() || plan.is_none(), "--ranks runs one sequence; leave --ranks or --sequences out");
    let settings = request.sequences.settings(chosen.settings()?, plan.as_ref(), chosen.runs_llama())?;
    // The process ends after its verdicts, and the system takes a model back faster than llama.cpp frees it.
    let opened = request.sides.tokens.prompt.model.open()?;
    let opened = ManuallyDrop::new(request.adapters.added(opened, plan.as_ref())?);
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    if let Some(ranks) = &ranks {
        pair = pair.placed(ranks).context("--ranks")?;
        if let Some(weight) = pair.cut_within_a_block().filter(|_| chosen.is_held_against_llama()) {
            bail!(
                "--ranks {ranks} cuts within a block of quantised weights ({weight}), where llama.cpp's own activations are \
                 quantised by whole blocks and cannot be compared: add --reference none, or take other shares"
            );
        }
    }
    pair.filter = request.filter.filter(&pair.oracle.graph)?;
    pair.policy = request.tolerance.policy(&pair.oracle.graph, !request.sides.faults.inject.is_empty())?;
    pair.names = chosen.names(&pair.oracle.graph)?;
    pair.measured = measured;
    pair.told = console.found;
    let several = plan.map(|plan| match chosen.recorded_sequences() {
        Some(ready) => opened.check(&ready.tokens, 0).map(|()| (ready, plan)),
        None => {
            let ready = request.sides.tokens.prompt.ready(&opened, 0)?;
            request.sequences.plan(ready.tokens.len()).map(|_| (ready, plan))
        }
    });
    let several = several.transpose()?;
    let single = (batch.is_none() && several.is_none()).then(|| chosen.input(&pair)).transpose()?;
    let runs = Runs::new(request, chosen, pair)?;
    (console.begin)();
    if let Some((ready, plan)) = &several {
        let reports = runs.sequences(ready, plan, &request.sides.tokens.prompt.prompt)?;
        return Ok(Ran { reports, failures: Vec::new() });
    }
    match single {
        Some(input) => {
            let report = runs.judge(input, &request.sides.tokens.prompt.prompt)?;
            Ok(Ran { reports: vec![report], failures: Vec::new() })
        }
        None => runs.batch(&batch.unwrap_or_default(), console),
    }
}

/// What judging a run gave, beside the subject.
pub(super) struct Judged {
    /// The tokens of the prompt, held against the tokenizer's.
    pub(super) same_tokens: Option<TokensCheck>,
    /// Seconds that it took.
    pub(super) tokenizing: f64,
    pub(super) reference: Option<Recording>,
    pub(super) diagnosis: Diagnosis,
    pub(super) repeated: Option<Repeated>,
    /// Seconds that judging took.
    pub(super) judging: f64,
    /// Seconds that other runs of the subject took.
    pub(super) besides: f64,
    /// Which sequence it is of, where several ran together.
    pub(super) sequence: Option<SequenceInfo>,
    /// What a recorded subject gave its kernels for the rows of the run.
    pub(super) slots: Option<SlotsCheck>,
}

/// What every prompt of a run shares.
pub(super) struct Runs<'a> {
    /// The request for the next prompt.
    pub(super) request: &'a RunRequest,
    pub(super) pair: Pair<'a>,
    pub(super) sides: Sides<'a>,
    pub(super) model: ModelInfo,
    weights: WeightCheck,
    /// Seconds that comparing them took.
    weights_took: f64,
}

impl<'a> Runs<'a> {
    /// Puts the sides on the model of `pair`, and compares its weights.
    ///
    /// # Errors
    /// What the sides cannot have on this model; captures of another one.
    pub(super) fn new(request: &'a RunRequest, chosen: SideChoice<'a>, pair: Pair<'a>) -> Result<Self> {
        let mut sides = chosen.on(&pair, &[FaultSite::Tokenizer])?;
        sides.taps = Filter::new(&pair.oracle.graph, &request.taps, None, None).context("--taps")?;
        let (opened, start) = (pair.opened, Instant::now());
        let hash = opened.sha256();
        let weights = weights::of_run(opened, &pair.oracle, &hash);
        let weights_took = start.elapsed().as_secs_f64();
        sides.chosen.check_model(&hash)?;
        Ok(Self { request, sides, model: describe(opened, hash), weights, weights_took, pair })
    }

    /// One prompt, `given` as `--prompt` takes it: both sides run, and judged.
    ///
    /// # Errors
    /// Whatever keeps a side from running, or a stage from being judged.
    pub(super) fn judge(&self, input: Input, given: &str) -> Result<Report> {
        let Self { request, pair, .. } = self;
        let opened = pair.opened;
        let tokens = &input.ready.tokens;
        let tokenizing = Instant::now();
        let same_tokens = match &input.asked {
            Some(asked) => Some(tokens::recorded(opened, asked, tokens)),
            None => tokens::check(opened, &input.ready, self.sides.faults.tokenizer)?,
        };
        let tokenizing = tokenizing.elapsed().as_secs_f64();
        memory::begin();
        let (mut subject, reference) = self.sides.record(pair, &input)?;
        subject.manifest.injected.extend(self.sides.faults.beside());
        let live = self.sides.chosen.live_subject();
        let again = |runs: u16| {
            let since = Instant::now();
            let repeated = self.sides.repeat(pair, &input, &subject, runs.into());
            (repeated, since.elapsed())
        };
        let asked = request.repeat.filter(|runs| *runs > 1 && live.is_some());
        let (mut repeated, mut repeating) = (None, Duration::ZERO);
        if let Some(runs) = asked {
            let (found, took) = again(runs);
            (repeated, repeating) = (Some(found.map_err(EngineTrouble::of)?), took);
        }
        let judging = Instant::now();
        let mut late = Duration::ZERO;
        let mut diagnosis = pair.judge_then(&subject, reference.as_ref(), |verdict| {
            let short = subject.seconds < AGAIN.as_secs_f64();
            if request.repeat.is_none() && live.is_some() && short && verdict.diverged() {
                let (found, took) = again(2);
                late = took;
                // The findings of the first run stay, for any result of the second.
                let failed = |e: anyhow::Error| Repeated { failed: Some(format!("{e:#}")), ..Repeated::default() };
                repeated = Some(found.unwrap_or_else(failed));
            }
        })?;
        let trying = Instant::now();
        request.confirm.confirm(&self.sides, pair, (&input, &subject), &mut diagnosis)?;
        if let Some(race) = repeated.as_ref().and_then(|repeated| repeated.race.as_ref()) {
            pair.unsteady(&subject, &race.differing, &mut diagnosis);
        }
        late += trying.elapsed();
        if opened.is_folder() {
            let causes = diagnosis.findings.iter_mut().filter_map(|finding| finding.cause.as_mut());
            causes.for_each(|cause| cause.remedy = folder::own_words(&cause.remedy, &pair.oracle.graph));
        }
        let judged = Judged {
            same_tokens,
            tokenizing,
            reference,
            diagnosis,
            repeated,
            judging: judging.elapsed().saturating_sub(late).as_secs_f64(),
            besides: (repeating + late).as_secs_f64(),
            sequence: None,
            slots: None,
        };
        Ok(self.report(&input, given, subject, judged))
    }

    /// What a run told. `given` is the prompt as `--prompt` takes it.
    pub(super) fn report(&self, input: &Input, given: &str, mut subject: Recording, judged: Judged) -> Report {
        let Self { request, pair, .. } = self;
        let Judged { same_tokens, tokenizing, reference, diagnosis, repeated, judging, besides, sequence, slots } =
            judged;
        let (opened, Ready { name, tokens, .. }) = (pair.opened, &input.ready);
        let doubt = reference.as_ref().and_then(|reference| verify::doubt(pair, &diagnosis.verdict, reference, tokens));
        let seconds = Seconds {
            weights: self.weights_took,
            tokens: tokenizing,
            reference: reference.as_ref().map_or(0.0, |r| r.seconds),
            subject: subject.seconds + besides,
            judging,
            stages: diagnosis.verdict.stages.iter().map(|s| s.seconds).collect(),
        };
        let graph = &pair.oracle.graph;
        let gap = diagnosis.verdict.gap(graph, &subject.capture, reference.as_ref().map(|r| &r.capture));
        let end = self.sides.chosen.recorded_end().and_then(|(end, _)| end.at);
        let decoded = decoded::check(opened, &subject, end, reference.as_ref());
        let declaration = declaration::proposed(pair, &mut subject, reference.as_ref(), &diagnosis);
        let fed = subject.fed;
        let manifest = reference.map_or_else(Manifest::nobody, |r| r.manifest);
        let mut run = RunInfo {
            prompt: name.clone(),
            tokens: tokens.clone(),
            passes: input.passes().to_vec(),
            sequence,
            ranks: graph.placement.clone(),
            decoded: fed,
            unchosen: input.unchosen(),
            text: BTreeMap::new(),
            tolerance: request.tolerance.words(),
            dumped: self.sides.chosen.dumped(),
            command: repeat::command(request, given),
            filters: repeat::filters(request),
            inert: self.sides.faults.inert(&diagnosis.verdict, &pair.policy),
            unexercised: self.sides.chosen.why_unexercised(exercise::unexercised(graph, &subject.capture)),
        };
        run.spell(&diagnosis.verdict, |token| opened.piece(token));
        let mut report = Report {
            qdiff: env!("CARGO_PKG_VERSION").to_owned(),
            outcome: Outcome::Incomplete,
            machine: Machine::this(),
            model: self.model.clone(),
            run,
            batch: None,
            subject: subject.manifest,
            reference: manifest,
            repeated,
            weights: self.weights.clone(),
            tokens: same_tokens,
            decoded,
            slots,
            end: self.sides.chosen.recorded_end().and_then(|(end, decoded)| ends::recorded(opened, end, decoded)),
            severity: severity::of(graph, &diagnosis, &self.weights.mismatches),
            declaration,
            diagnosis,
            doubt,
            gap,
            seconds,
            memory: memory::peak_of_run().zip(pair.settings.memory).map(|(Size(peak), Size(allowed))| {
                let on_disk = pair.settings.store.on_disk();
                let in_memory = if pair.settings.store.is_memory() { on_disk } else { 0 };
                Memory { peak: peak + in_memory, allowed, on_disk }
            }),
        };
        report.outcome = report.comes_to();
        report
    }

    /// Prompt after prompt. What each gave is written at once, so that nothing is lost with the ones that follow.
    fn batch(&self, batch: &Batch, console: Console<'_>) -> Result<Ran> {
        let folder = self.request.batch.json_dir.as_deref();
        if let Some(folder) = folder {
            // Where nobody named it, a link in its place is nobody's wish.
            let made =
                if folder == Path::new(REPORTS) { own::make(folder) } else { Ok(std::fs::create_dir_all(folder)?) };
            made.with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        let write = |entry: &batch::Entry, text: String| {
            folder.map_or(Ok(()), |folder| file::write(&folder.join(entry.file()), text.as_bytes()))
        };
        // No file of an earlier run may pass for one that this run does not reach.
        for path in folder.iter().flat_map(|f| batch.entries.iter().map(|e| f.join(e.file()))) {
            file::remove(&path)?;
        }
        let mut ran = Ran { reports: Vec::new(), failures: Vec::new() };
        for entry in &batch.entries {
            let place = batch.place(entry, &self.model.sha256);
            match self.entry(entry) {
                Ok(mut report) => {
                    report.batch = Some(place);
                    write(entry, report.json()?)?;
                    ran.reports.push(report);
                }
                Err(e) => {
                    let failure = Failure { batch: Some(place), ..Failure::new(&entry.name, &e) };
                    (console.note)(&failure.line());
                    write(entry, failure.json()?)?;
                    ran.failures.push(failure);
                }
            }
        }
        Ok(ran)
    }

    fn entry(&self, entry: &batch::Entry) -> Result<Report> {
        let tokens = &self.request.sides.tokens;
        let ready = entry.resolve(self.pair.opened, tokens.prompt.style(), tokens.decode)?;
        let input = Input::new(ready, tokens.decode, self.request.sides.capture.ubatch);
        let input = self.sides.chosen.taken(input.fed(&self.request.sides.passes)?);
        input.check(&self.pair)?;
        self.judge(input, &entry.given)
    }
}

/// The model as reports name it.
pub(super) fn describe(opened: &LoadedModel, sha256: String) -> ModelInfo {
    let config = &opened.model.graph().config;
    let (format, alone) = opened.main_format();
    ModelInfo {
        path: opened.path.display().to_string(),
        name: config.name.clone(),
        arch: config.arch.clone(),
        layers: config.n_layers,
        format: if alone { format!("({format})") } else { format!("(mostly {format})") },
        formats: opened.formats(),
        folder: opened.is_folder(),
        hashed_by: hashed::command(opened.model.gguf()),
        adapters: opened.adapters.iter().map(described).collect(),
        sha256,
    }
}

/// An adapter as reports name it.
fn described(adapter: &LoadedAdapter) -> AdapterInfo {
    AdapterInfo {
        path: adapter.path.display().to_string(),
        rank: adapter.rank,
        sequences: adapter.sequences.iter().copied().collect(),
        sha256: hash::of_file(&adapter.path).unwrap_or_default(),
    }
}
