//! Two runners on the same tokens, judged.
//!
//! What `qdiff run` does between reading its arguments and telling the outcome, for whoever needs it as a whole: other
//! commands, the score of the mutations, tests.

use crate::arithmetic::{Arithmetic, Declared, check_heads};
use crate::capture::manifest::{Manifest as CaptureManifest, Sampler};
use crate::capture::raw::MorePasses;
use crate::capture::{Capture, Filter, Lengths, Names, Shapes, Step, Store, Want, container};
use crate::diagnose::{
    Diagnosis, Opinions, Sibling, again_among_sequences, agree_among_sequences, among_sequences, bear_out, confirm,
    confirm_among_sequences, explain, narrow, once_more, rules_among_sequences, undecided, unsteady,
};
use crate::loaded::LoadedModel;
use crate::memory::{self, Extent, Size};
use crate::number::counted;
use crate::oracle::Oracle;
use crate::progress::Progress;
use crate::room::Room;
pub use crate::runners::Tokens;
use crate::runners::command::Engine;
use crate::runners::{self, Faults, Forced, Manifest, Origins, Runner, RunnerKind, Start, Whole};
use crate::supervisor;
use crate::verdict::{Measured, Policy, Race, Repeated, Side, Verdict, judge, put_together};
use anyhow::{Context as _, Result, anyhow, ensure};
use qdiff_engine::cuda::Gemm;
use qdiff_engine::model::{Graph, Node, Placement, Slice, StageId};
use qdiff_engine::quant::KvType;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How both runners run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Threads of llama.cpp.
    pub threads: usize,
    /// Linear layers of the CUDA engine.
    pub gemm: Gemm,
    /// Types of both sides' KV caches.
    pub kv: KvType,
    /// Whether llama.cpp keeps a KV cache of its own for each sequence, not one for all.
    pub split_kv: bool,
    /// Where captured tensors stay.
    pub store: Arc<Store>,
    /// Memory that all may take together, where captured tensors share it with the rest.
    pub memory: Option<Size>,
    /// Work that the search for causes may take, as a multiple of the usual.
    pub budget: f64,
    /// Time that an engine behind a command may take, for its whole run or for one step.
    pub timeout: Duration,
}

/// Default time for an engine behind a command.
pub const TIMEOUT: Duration = Duration::from_secs(600);

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: 1,
            gemm: Gemm::Own,
            kv: KvType::F32,
            split_kv: false,
            store: Store::usual(None),
            memory: None,
            budget: 1.0,
            timeout: TIMEOUT,
        }
    }
}

/// How often it is looked how far a runner is.
const LOOK: Duration = Duration::from_millis(100);

/// What both runners share.
pub struct Pair<'a> {
    /// The model.
    pub opened: &'a LoadedModel,
    /// The third opinion.
    pub oracle: Oracle<'a>,
    /// The same for sequences that have another adapter than sequence 0, by the number of the adapter.
    adapted: BTreeMap<usize, Oracle<'a>>,
    /// The whole graph, if the graph is cut over ranks.
    pub whole: Option<Graph>,
    /// The selection.
    pub filter: Filter,
    /// What is allowed.
    pub policy: Policy,
    /// What the subject's arrays are called, where they are read from a dump.
    pub names: Names,
    /// Stages that were judged elsewhere, each alone: then no stage is judged here.
    pub measured: Option<Vec<Measured>>,
    /// How they run.
    pub settings: Settings,
    /// Where progress is reported.
    pub progress: Progress<'a>,
    /// Takes a line that names the wrong stages, before their causes are known.
    pub told: &'a (dyn Fn(&str) + Sync),
}

/// One runner's part.
pub struct Recording {
    /// Its taps.
    pub capture: Capture,
    /// What it is.
    pub manifest: Manifest,
    /// The token fed at each decode step.
    pub fed: Vec<u32>,
    /// How it chose these, where it did and not qdiff.
    pub chose: Option<Chose>,
    /// Seconds that running or reading it took; of a subject that ran beside the reference, those beyond it.
    pub seconds: f64,
}

/// How an engine chose the tokens that it fed.
#[derive(Clone, Copy, Debug)]
pub struct Chose {
    /// As its manifest says.
    pub sampler: Option<Sampler>,
    /// Whether it surely made its own choices: for a capture this is unknown.
    pub alone: bool,
}

impl Recording {
    /// As the verdict takes it.
    pub fn side(&self) -> Side<'_> {
        Side { capture: &self.capture, arithmetic: &self.manifest.arithmetic }
    }
}

impl<'a> Pair<'a> {
    /// On this model; every stage is selected, and no rule allows more than the bounds.
    ///
    /// # Errors
    /// As [`Oracle::new`].
    pub fn new(opened: &'a LoadedModel, settings: Settings, progress: Progress<'a>) -> Result<Self> {
        let oracle = opened.oracle()?;
        // Number 0 is no adapter.
        let others = (0..=opened.adapters.len()).filter(|own| opened.is_adapted() && *own != opened.adapter_of(0));
        let adapted = others.map(|own| Ok((own, opened.oracle_of(own)?))).collect::<Result<_>>()?;
        check_heads(settings.kv, &oracle.graph)?;
        let (filter, policy) = (Filter::default(), Policy::default());
        let names = Names::of(&oracle.graph);
        Ok(Self {
            opened,
            oracle,
            adapted,
            whole: None,
            filter,
            policy,
            names,
            measured: None,
            settings,
            progress,
            told: &|_| {},
        })
    }

    /// The third opinion on a recording: with the adapter of its sequence.
    fn opinion(&self, recording: &Recording) -> &Oracle<'a> {
        self.other_opinion(&recording.capture).unwrap_or(&self.oracle)
    }

    /// The same, if its sequence has another adapter than sequence 0.
    fn other_opinion(&self, capture: &Capture) -> Option<&Oracle<'a>> {
        let sequence = capture.steps.last().map_or(0, |step| step.whose.sequence);
        self.adapted.get(&self.opened.adapter_of(sequence))
    }

    /// The same of a graph that is cut over ranks.
    ///
    /// # Errors
    /// As [`Oracle::placed`].
    pub fn placed(self, placement: &Placement) -> Result<Self> {
        ensure!(!self.opened.is_adapted(), "a model with adapters is not cut over ranks; leave --adapter out");
        let (oracle, whole) = self.oracle.placed(placement)?;
        let names = Names::of(&oracle.graph);
        Ok(Self { oracle, whole: Some(whole), names, ..self })
    }

    /// A weight that the cut takes apart within its blocks, if there is one: a runner that quantises activations by whole
    /// blocks cannot be compared there.
    pub fn cut_within_a_block(&self) -> Option<String> {
        let within = |name: &str| {
            let slice = Slice::of(name).filter(|slice| slice.columns)?;
            let block = self.oracle.weights.ggml_type(slice.tensor).block_size();
            (!slice.range.start.is_multiple_of(block) || !slice.range.end.is_multiple_of(block))
                .then(|| name.to_owned())
        };
        self.oracle.graph.weights().into_iter().find_map(|weight| within(&weight.name))
    }

    /// The engine's graph, cut as that of the oracle is.
    ///
    /// # Errors
    /// As [`Placement::place`].
    pub fn engine_graph(&self) -> Result<Graph> {
        let whole = self.opened.model.graph();
        Ok(match &self.oracle.graph.placement {
            Some(placement) => placement.place(whole)?,
            None => whole.clone(),
        })
    }

    /// Makes a runner and runs it.
    ///
    /// # Errors
    /// As [`RunnerKind::start`] and [`Runner::step`].
    pub fn run(&self, kind: &RunnerKind, tokens: Tokens<'_>, faults: Faults) -> Result<Recording> {
        let mut runner = self.runner(kind, tokens, faults)?;
        // The map is the subject's.
        let names = Names::of(&self.oracle.graph);
        self.recorded(runner.as_mut(), tokens, &|| Ok(tokens.forced), self.progress, &names)
    }

    /// The tokens that a runner decodes, with nothing tapped.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn decode(&self, kind: &RunnerKind, tokens: Tokens<'_>) -> Result<Vec<u32>> {
        let mut runner = self.runner(kind, tokens, Faults::default())?;
        let want = Want::choice(&self.oracle.graph, &self.settings.store);
        runners::run(runner.as_mut(), tokens, &|| Ok(tokens.forced), &want, |_| Ok(()))
    }

    /// Makes a runner with room for `tokens`.
    ///
    /// # Errors
    /// As [`RunnerKind::start`].
    pub fn runner(&self, kind: &RunnerKind, tokens: Tokens<'_>, faults: Faults) -> Result<Box<dyn Runner + 'a>> {
        self.started(kind, self.room(tokens), faults)
    }

    /// The same, with this room.
    pub(crate) fn started(&self, kind: &RunnerKind, room: Room, faults: Faults) -> Result<Box<dyn Runner + 'a>> {
        let graph = &self.oracle.graph;
        match kind.start {
            Start::Own(create) => match self.whole.as_ref().filter(|_| !kind.ranks) {
                Some(whole) => {
                    let inner = create(self.opened, whole, room, faults)?;
                    Ok(Box::new(Whole::new(inner, graph, whole)))
                }
                None => create(self.opened, graph, room, faults),
            },
            Start::Command(command) => {
                let Settings { store, timeout, .. } = &self.settings;
                Ok(Box::new(Engine::new(command, &self.opened.path, graph, &store.folder, *timeout)?))
            }
        }
    }

    /// Leaves to captured stages what memory the rest of a run does not take: of each side that runs, those that `taps` says.
    ///
    /// # Errors
    /// If there is too little room on disk for what does not fit, or too little memory for the longest pass.
    pub fn make_room(&self, tokens: Tokens<'_>, sides: &[&dyn Fn(&Node) -> bool]) -> Result<()> {
        let (graph, steps) = (&self.oracle.graph, tokens.extents());
        self.check_memory(&steps)?;
        if !self.limit(&steps) || !self.filter.every_position() {
            return Ok(());
        }
        let of_side = |taps: &&dyn Fn(&Node) -> bool| {
            let kept = self.filter.capture_set(graph, taps);
            memory::of_stages(graph, |node| kept.contains(&node.id), &steps)
        };
        self.settings.store.check_room(sides.iter().map(of_side).sum())
    }

    /// Refuses passes for which the free memory is surely too small. What is taken is known to about a fifth.
    pub(crate) fn check_memory(&self, steps: &[Extent]) -> Result<()> {
        let Some(Size(free)) = Size::free().filter(|_| self.settings.memory.is_some()) else { return Ok(()) };
        let judged = self.filter.capture_set(&self.oracle.graph, &|_| true);
        let taken = memory::beside(&self.oracle.graph, |node| judged.contains(&node.id), steps) as u64;
        let longest = steps.iter().map(|step| step.tokens).max().unwrap_or_default();
        ensure!(
            taken <= free + free / 4,
            "a pass of {longest} tokens takes about {} at a time, and {} are free; feed the prompt in shorter passes with \
             --ubatch or --passes, or judge fewer stages with --stages",
            Size(taken),
            Size(free)
        );
        Ok(())
    }

    /// Leaves to captured stages what the rest of a run in these steps does not take, where that is bounded.
    pub(crate) fn limit(&self, steps: &[Extent]) -> bool {
        let Settings { store, memory: Some(Size(allowed)), .. } = &self.settings else { return false };
        let beside = memory::beside(&self.oracle.graph, |_| true, steps);
        store.limit(usize::try_from(*allowed).unwrap_or(usize::MAX).saturating_sub(beside));
        true
    }

    /// Room for `tokens`.
    pub fn room(&self, tokens: Tokens<'_>) -> Room {
        self.room_of(tokens.longest(), tokens.prompt.len() + tokens.decode)
    }

    /// Room for so many tokens in a step, and in all.
    pub(crate) fn room_of(&self, step: usize, context: usize) -> Room {
        let Settings { threads, gemm, kv, .. } = self.settings;
        Room { step, context, threads, gemm, kv, ..Room::default() }
    }

    /// Runs `runner`, from where it stands.
    ///
    /// # Errors
    /// As [`Runner::step`].
    pub fn record(&self, runner: &mut dyn Runner, tokens: Tokens<'_>) -> Result<Recording> {
        self.recorded(runner, tokens, &|| Ok(tokens.forced), self.progress, &self.names)
    }

    /// Runs the reference, and beside it the subject that `make` makes, whose decode steps wait for the tokens that the
    /// reference chose: one of them leaves the CPU to the other. Only the subject's time beyond the reference
    /// counts.
    ///
    /// # Errors
    /// As [`Self::run`], of the reference first.
    pub fn run_beside<'r>(
        &self, reference: &RunnerKind, tokens: Tokens<'_>, make: &(dyn Fn() -> Result<Box<dyn Runner + 'r>> + Sync),
    ) -> Result<(Recording, Recording)> {
        let (chose, choices) = mpsc::channel::<Vec<u32>>();
        let ended = AtomicBool::new(false);
        let progress = |what: &str, done: usize, total: usize| {
            // One of them reports progress at a time.
            if ended.load(Ordering::Relaxed) {
                (self.progress)(what, done, total);
            }
        };
        let subject = || {
            let choices = choices;
            let _doing = supervisor::doing(|| "the subject was running".to_owned());
            let mut runner = make()?;
            let forced = OnceCell::new();
            let wait = || {
                let chosen = choices.recv().context("the reference chose no tokens")?;
                Ok(Some(forced.get_or_init(|| chosen).as_slice()))
            };
            self.recorded(runner.as_mut(), tokens, &wait, &progress, &self.names)
        };
        thread::scope(|scope| {
            let subject = scope.spawn(subject);
            // Dropped where the reference fails, so that nobody waits for it.
            let chose = chose;
            let reference = self.run(reference, tokens, Faults::default());
            let since = Instant::now();
            ended.store(true, Ordering::Relaxed);
            // Nobody takes them where the subject failed.
            reference.iter().for_each(|reference| drop(chose.send(reference.fed.clone())));
            drop(chose);
            let subject = subject.join().unwrap_or_else(|e| resume_unwind(e));
            let (reference, subject) = (reference?, subject?);
            Ok((Recording { seconds: since.elapsed().as_secs_f64(), ..subject }, reference))
        })
    }

    fn recorded(
        &self, runner: &mut dyn Runner, tokens: Tokens<'_>, forced: Forced<'_>, progress: Progress<'_>, names: &Names,
    ) -> Result<Recording> {
        let (start, mut capture) = (Instant::now(), Capture::new(self.settings.store.clone()));
        let what = format!("running {}", runner.manifest().name);
        progress(&what, 0, 1);
        if let Some(folder) = runner.dump(tokens, &self.settings.store)? {
            progress(&what, 1, 1);
            let dumped = self.dumped(&folder, tokens, names)?;
            let chose = dumped.chose.filter(|_| runner.chooses(tokens)).map(|chose| Chose { alone: true, ..chose });
            return Ok(Recording { seconds: start.elapsed().as_secs_f64(), chose, ..dumped });
        }
        let fed = self.stepped(runner, tokens, forced, progress, &mut |step| {
            capture.steps.push(step);
            Ok(())
        })?;
        let (seconds, mut manifest) = (start.elapsed().as_secs_f64(), runner.manifest().clone());
        // For an engine that hands out its steps as it dumps them.
        let stages = capture.steps.iter().flat_map(|step| &step.stages);
        capture.elements = stages.filter_map(|(id, stored)| Some((*id, stored.narrow()?))).collect();
        if !capture.elements.is_empty() {
            manifest.stored = capture.settle_formats(&self.oracle.graph, &manifest.arithmetic, None)?;
        }
        Ok(Recording { capture, manifest, fed, chose: None, seconds })
    }

    /// Runs `runner`, from where it stands, and hands over each step when it is
    /// done. Gives the token fed at each decode step.
    ///
    /// # Errors
    /// As [`Runner::step`] and `each`.
    pub fn steps(
        &self, runner: &mut dyn Runner, tokens: Tokens<'_>, mut each: impl FnMut(Step) -> Result<()>,
    ) -> Result<Vec<u32>> {
        self.stepped(runner, tokens, &|| Ok(tokens.forced), self.progress, &mut each)
    }

    fn stepped(
        &self, runner: &mut dyn Runner, tokens: Tokens<'_>, forced: Forced<'_>, progress: Progress<'_>,
        each: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<Vec<u32>> {
        self.limit(&tokens.extents());
        let taps = |node: &Node| runner.taps(node);
        let want = Want::new(&self.oracle.graph, &self.filter, &taps, &self.settings.store);
        let what = format!("running {}", runner.manifest().name);
        let total = (tokens.steps() * want.taken().1).max(1);
        let (ended, end) = mpsc::channel::<()>();
        thread::scope(|scope| {
            // A step may take minutes: its stages are counted as they come.
            scope.spawn(|| {
                let end = end;
                while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    progress(&what, want.taken().0.min(total - 1), total);
                }
            });
            progress(&what, 0, total);
            let fed = runners::run(runner, tokens, forced, &want, each);
            drop(ended);
            fed
        })
        .inspect(|_| progress(&what, total, total))
    }

    /// Reads the dump of an engine that had to run `tokens`.
    fn dumped(&self, folder: &Path, tokens: Tokens<'_>, names: &Names) -> Result<Recording> {
        let mut manifest = container::manifest(folder).map_err(|error| match error.downcast_ref::<MorePasses>() {
            Some(more) if more.named == tokens.steps() => too_long(more.ended, tokens),
            _ => error.context("the engine's dump"),
        })?;
        if manifest.model_sha256.is_some() {
            manifest.check_model(folder, &self.opened.sha256())?;
        }
        let lengths: Vec<usize> = manifest.steps().iter().map(|step| step.tokens.len()).collect();
        let (given, decoded) = (manifest.tokens.len(), manifest.decoded.len());
        manifest.divide(tokens.prompt.len());
        let told = tokens.forced.is_none_or(|forced| manifest.decoded == forced);
        let hint = if manifest.tokens == tokens.prompt && manifest.decoded.len() < tokens.decode {
            "; {n} steps come after the pass over the prompt, so a run has {n} + 1 passes"
        } else if told {
            ""
        } else {
            "; {decoded} tells it which to feed"
        };
        ensure!(
            manifest.tokens == tokens.prompt && told && manifest.decoded.len() == tokens.decode,
            "the engine dumped a run of other tokens than it should run: {given} of a prompt and {decoded} decoded, for {} \
             and {}{hint}",
            tokens.prompt.len(),
            tokens.decode
        );
        ensure!(
            self.whole.is_none() || manifest.ranks.is_some(),
            "the engine dumped a run of one rank, and --ranks asks for several; its manifest must name `ranks`"
        );
        let wanted = Lengths(tokens.lengths());
        ensure!(
            lengths == wanted.0,
            "the engine ran passes of {} tokens, and should run passes of {wanted}",
            Lengths(lengths)
        );
        let mut recording = self.read(folder, &manifest, names, "run by its command")?;
        recording.capture.steps.iter_mut().zip(tokens.indices()).for_each(|(step, index)| step.index = index);
        Ok(recording)
    }

    /// The stages of a capture on disk; of one of the whole graph, what the ranks have of them.
    fn captured(&self, folder: &Path, manifest: &CaptureManifest, names: &Names) -> Result<Capture> {
        let (graph, store) = (&self.oracle.graph, &self.settings.store);
        let read = |graph, names| container::read(folder, manifest, (graph, names), Shapes::Known, store);
        let Some(whole) = &self.whole else {
            let ranks = manifest.ranks.as_ref();
            let asked = ranks.map(|ranks| format!("{} is a capture of ranks; add --ranks {ranks}", folder.display()));
            return asked.map_or_else(|| read(graph, names), |why| Err(anyhow!(why)));
        };
        if let Some(ranks) = &manifest.ranks {
            let own = ranks.settled(whole, |tensor| self.oracle.weights.ggml_type(tensor).block_size())?;
            ensure!(
                Some(&own) == graph.placement.as_ref(),
                "{} is cut otherwise than it is judged; give --ranks {own}",
                folder.display()
            );
            return read(graph, names);
        }
        let capture = read(whole, &Names::of(whole))?;
        let origins = Origins::new(graph, whole);
        let elements = graph.nodes.iter().filter_map(|n| Some((n.id, *capture.elements.get(&origins.of(n.id)?)?)));
        Ok(Capture {
            steps: capture.steps.iter().map(|step| origins.cut(step, store)).collect(),
            elements: elements.collect(),
            cut: capture.cut,
            unmatched: capture.unmatched.clone(),
            ..capture.sibling()
        })
    }

    /// Reads a capture from disk, whose arrays are called as `names` says; `how` says in a word or two how it came about.
    ///
    /// # Errors
    /// As [`container::read`].
    pub fn read(&self, folder: &Path, manifest: &CaptureManifest, names: &Names, how: &str) -> Result<Recording> {
        let start = Instant::now();
        let arithmetic = manifest.arithmetic.as_ref().map_or_else(Arithmetic::default, Declared::arithmetic);
        arithmetic
            .check(&self.oracle.graph, &self.oracle.weights)
            .with_context(|| format!("arithmetic of {}", folder.display()))?;
        let mut capture = self.captured(folder, manifest, names)?;
        let stored = capture
            .settle_formats(&self.oracle.graph, &arithmetic, manifest.storage.as_ref())
            .with_context(|| format!("number formats of {}", folder.display()))?;
        let declared = if manifest.arithmetic.is_some() { "" } else { ", arithmetic not declared: f32 assumed" };
        let unmatched = match capture.unmatched.as_slice() {
            [] => String::new(),
            [line] => format!("; {line}, fits no array"),
            [first, more @ ..] => format!("; {first}, and {} fit no array", counted(more.len(), "more line")),
        };
        Ok(Recording {
            manifest: Manifest {
                name: format!("{} ({how}{declared}{unmatched})", manifest.name()),
                arithmetic,
                injected: Vec::new(),
                stored,
                unkept: capture.unkept(&self.oracle.graph),
            },
            capture,
            fed: manifest.decoded.clone(),
            chose: Some(Chose { sampler: manifest.sampler, alone: false }),
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Runs what `make` makes again, `runs` times in all, and compares with `first` bit by bit. Stops at the first difference.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn repeat<'r>(
        &self, make: &dyn Fn() -> Result<Box<dyn Runner + 'r>>, tokens: Tokens<'_>, first: &Recording, runs: usize,
    ) -> Result<Repeated> {
        let mut varied = Vec::new();
        for run in 2..=runs {
            let mut runner = make()?;
            let words = runner.vary(run)?.map(str::to_owned);
            // An engine that chooses takes no tokens to decode: it is compared as far as it chooses the same.
            let forced = tokens.forced.filter(|_| !runner.chooses(tokens));
            let again = self.record(runner.as_mut(), Tokens { forced, ..tokens })?;
            let graph = &self.oracle.graph;
            if let Some(race) = Race::between(graph, &first.capture, &again.capture, run) {
                let race = Some(Race { under: words, ..race });
                return Ok(Repeated { runs: run, varied, race, failed: None });
            }
            varied.extend(words.filter(|words| !varied.contains(words)));
        }
        Ok(Repeated { runs, varied, race: None, failed: None })
    }

    /// Holds the causes of a diagnosis of `subject` against other runs of it.
    pub fn confirm<'r>(
        &self, subject: &Recording, others: impl IntoIterator<Item = &'r Recording>, diagnosis: &mut Diagnosis,
    ) {
        let others: Vec<Side<'_>> = others.into_iter().map(Recording::side).collect();
        confirm(
            self.opinion(subject),
            &subject.side(),
            &others,
            (&self.filter, &self.policy),
            diagnosis,
            self.progress,
        );
    }

    /// Holds the causes of which the run `other` does not tell, as they were `before` it, against one run more, whose passes are
    /// those of `subject`.
    pub fn once_more(
        &self, subject: &Recording, [other, alike]: [&Recording; 2], before: &Diagnosis, diagnosis: &mut Diagnosis,
    ) {
        let others = [other.side(), alike.side()];
        once_more(self.opinion(subject), &subject.side(), others, (&self.filter, &self.policy), before, diagnosis);
    }

    /// Holds the causes whose conditions were read off two runs against a third one.
    pub fn bear_out(&self, subject: &Recording, third: &Recording, diagnosis: &mut Diagnosis) {
        bear_out(self.opinion(subject), &subject.side(), third.side(), (&self.filter, &self.policy), diagnosis);
    }

    /// Holds the causes in the sequences of one run against each other.
    pub fn among_sequences(&self, judged: &mut [(Recording, Diagnosis)]) {
        let opinions = Opinions { usual: &self.oracle, others: &|side| self.other_opinion(side.capture) };
        if self.settings.budget > 0.0 {
            among_sequences(opinions, &mut siblings(judged), (&self.filter, &self.policy));
        }
    }

    /// Holds what other tokens left of the causes in the sequences of one run against each other. `before` has the diagnoses as
    /// they were before.
    pub fn again_among_sequences(&self, judged: &mut [(Recording, Diagnosis)], before: &[Diagnosis]) {
        let opinions = Opinions { usual: &self.oracle, others: &|side| self.other_opinion(side.capture) };
        again_among_sequences(opinions, &mut siblings(judged), before, (&self.filter, &self.policy));
    }

    /// Holds what the values of the sequences of a run show against those of another one, which has passes like the first ones of
    /// `passes`, and may have more.
    ///
    /// # Errors
    /// As [`judge`].
    pub fn confirm_among_sequences(
        &self, judged: &mut [(Recording, Diagnosis)], others: &mut [Recording], passes: usize,
    ) -> Result<()> {
        let opinions = Opinions { usual: &self.oracle, others: &|side| self.other_opinion(side.capture) };
        for rules in [true, false] {
            let sides: Vec<Side<'_>> = others.iter().map(Recording::side).collect();
            let how = (&self.filter, &self.policy);
            confirm_among_sequences(opinions, &mut siblings(judged), (&sides, rules), how)?;
            // The same rows are wrong in the same passes.
            others.iter_mut().for_each(|other| other.capture.end_before_pass(passes));
        }
        Ok(())
    }

    /// Leaves of the conditions of causes those that all sequences of a run allow, and all of another one.
    pub fn agree_among_sequences(&self, judged: &mut [(Recording, Diagnosis)], others: &[&[Recording]]) {
        let opinions = Opinions { usual: &self.oracle, others: &|side| self.other_opinion(side.capture) };
        let others: Vec<Side<'_>> = others.iter().copied().flatten().map(Recording::side).collect();
        let how = (&self.filter, &self.policy);
        agree_among_sequences(opinions, &mut siblings(judged), &others, how);
        rules_among_sequences(opinions, &mut siblings(judged), how);
    }

    /// Holds the rules that a diagnosis of `subject` leaves open against one run more of it.
    pub fn narrow(&self, subject: &Recording, other: &Recording, diagnosis: &mut Diagnosis) {
        narrow(self.opinion(subject), &subject.side(), other.side(), (&self.filter, &self.policy), diagnosis);
    }

    /// Takes back the rules of a diagnosis of `subject` that no run tells from several others.
    pub fn undecided(&self, subject: &Recording, diagnosis: &mut Diagnosis) {
        undecided(self.opinion(subject), &subject.side(), (&self.filter, &self.policy), diagnosis);
    }

    /// Takes back causes at stages that gave other values in another run of `subject` on the same tokens.
    pub fn unsteady(&self, subject: &Recording, differing: &[StageId], diagnosis: &mut Diagnosis) {
        unsteady(self.opinion(subject), &subject.side(), (&self.filter, &self.policy), diagnosis, differing);
    }

    /// Judges the one against the other, or alone where there is none, and looks for what explains it.
    ///
    /// # Errors
    /// As [`judge`]; captured tensors that could not be read back.
    pub fn judge(&self, subject: &Recording, reference: Option<&Recording>) -> Result<Diagnosis> {
        self.judge_then(subject, reference, |_| ())
    }

    /// The same; `then` is given the verdict before causes are looked for.
    ///
    /// # Errors
    /// As [`Self::judge`].
    pub fn judge_then(
        &self, subject: &Recording, reference: Option<&Recording>, then: impl FnOnce(&Verdict),
    ) -> Result<Diagnosis> {
        let (side, other, oracle) = (subject.side(), reference.map(Recording::side), self.opinion(subject));
        let (rules, budget) = ((&self.filter, &self.policy), self.settings.budget);
        let verdict = match (&self.measured, other) {
            (Some(measured), Some(other)) => put_together(oracle, side, other, rules.0, rules.1, measured)?,
            _ => judge(oracle, side, other, rules.0, rules.1, self.progress)?,
        };
        if let [first, others @ ..] = verdict.origins().as_slice() {
            let more =
                if others.is_empty() { String::new() } else { format!(", {} more", counted(others.len(), "stage")) };
            (self.told)(&format!("wrong on its own inputs: {}{more}; looking for causes", verdict.name(first.id)));
        }
        then(&verdict);
        let diagnosis = explain(oracle, &side, verdict, rules, budget, self.progress);
        oracle.products.trouble()?;
        subject.capture.store.trouble()?;
        Ok(diagnosis)
    }
}

/// More passes than the run has, in words: most often the engine decodes although the command has no decode steps.
fn too_long(ended: usize, tokens: Tokens<'_>) -> anyhow::Error {
    let asked = match tokens.decode {
        0 => "the prompt".to_owned(),
        n => format!("the prompt and {}", counted(n, "decode step")),
    };
    let remedy = if ended >= tokens.prompt.len() {
        "for an engine that feeds the prompt token by token, give --ubatch 1; if it decodes, let the command take {n} or {decoded}"
    } else {
        "let the command take {n} or {decoded}, or decode nothing more"
    };
    anyhow!("the engine ran {ended} passes, and qdiff asked for {} ({asked}): {remedy}", tokens.steps())
}

fn siblings(judged: &mut [(Recording, Diagnosis)]) -> Vec<Sibling<'_>> {
    judged.iter_mut().map(|(subject, diagnosis)| Sibling { side: subject.side(), diagnosis }).collect()
}
