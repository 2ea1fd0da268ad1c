//! Causes tried on other tokens: the subject runs once more, on a prompt of another length. While a cause is left open it runs again: in the
//! passes of the first run if that run does not tell, on a third prompt if it narrows a condition, in passes that tell open rules apart.

use super::sides::{Input, SideChoice, Sides};
use crate::borne::{Borne, borne, of_run};
use crate::capture::{Passes, Plan as SequencePlan, RowsSaid, container, in_other_run, manifest};
use crate::diagnose::Diagnosis;
use crate::number::counted;
use crate::pair::{Pair, Recording};
use crate::prompts::Ready;
use crate::runners::{Faults, RunnerKind};
use crate::sequences;
use crate::slots::{Elsewhere, SlotsCheck};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use qdiff_engine::model::Node;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// How long a subject may have taken that runs once more for its causes.
const SHORT: Duration = Duration::from_secs(90);

/// Other runs at most, and decode steps of one, where the first run has at least so many.
const RUNS: u16 = 16;
const DECODE: usize = 8;
const SEVERAL: usize = 4;

/// On what causes are tried.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What is judged")]
pub struct ConfirmRequest {
    /// Try causes on other tokens: run the subject N times on prompts of other tokens and lengths, and withdraw causes
    /// that fail there; `capture:DIR` takes a capture of another prompt instead of a run. By default a subject that
    /// diverges runs once more on other tokens if it took less than 90 s, and up to four times more while a cause is left open; `no` skips that
    #[arg(long, value_name = "N|no|capture:DIR", env = "QDIFF_CONFIRM")]
    pub confirm: Option<Confirm>,
}

/// On what causes are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirm {
    /// So many other runs.
    Runs(u16),
    /// The capture in this folder.
    Recorded(PathBuf),
}

impl FromStr for Confirm {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(folder) = text.strip_prefix("capture:").filter(|folder| !folder.is_empty()) {
            return Ok(Self::Recorded(folder.into()));
        }
        let runs = if text == "no" { Some(0) } else { text.parse().ok().filter(|runs| *runs <= RUNS) };
        runs.map(Self::Runs).with_context(|| format!("give a number of runs up to {RUNS}, no, or capture:DIR"))
    }
}

impl std::fmt::Display for Confirm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Runs(0) => f.write_str("no"),
            Self::Runs(runs) => write!(f, "{runs}"),
            Self::Recorded(folder) => write!(f, "capture:{}", folder.display()),
        }
    }
}

impl ConfirmRequest {
    /// Refuses what the subject cannot do.
    ///
    /// # Errors
    /// More runs of a recorded capture; a capture beside a subject that runs; a capture of the subject's own tokens.
    pub(super) fn check(&self, chosen: &SideChoice<'_>) -> Result<()> {
        match &self.confirm {
            Some(Confirm::Runs(1..)) if chosen.live_subject().is_none() => {
                bail!(
                    "--confirm N runs the subject again, and a recorded capture cannot; name another one, as --confirm capture:DIR"
                )
            }
            Some(Confirm::Recorded(_)) if chosen.live_subject().is_some() => {
                bail!(
                    "--confirm capture:DIR is about a recorded subject; qdiff runs this one again, as often as --confirm N says"
                )
            }
            Some(Confirm::Recorded(folder)) => {
                let fed = |manifest: &manifest::Manifest| [manifest.tokens.as_slice(), &manifest.decoded].concat();
                let (other, own) = (fed(&container::any_manifest(folder)?), chosen.recorded().map(|(_, own)| fed(own)));
                // A run that goes on longer is no run on other tokens.
                ensure!(
                    own.is_none_or(|own| !other.starts_with(&own) && !own.starts_with(&other)),
                    "--confirm: {} holds the same tokens as the subject's capture; record it again with another prompt",
                    folder.display()
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Tries the causes of a diagnosis. The findings stay, even if the subject cannot run again.
    ///
    /// # Errors
    /// A capture that is named and cannot be read.
    pub(super) fn confirm(
        &self, sides: &Sides<'_>, pair: &Pair<'_>, (input, subject): (&Input, &Recording), diagnosis: &mut Diagnosis,
    ) -> Result<()> {
        if !diagnosis.tells_causes() {
            return Ok(());
        }
        if let Some(Confirm::Recorded(folder)) = &self.confirm {
            pair.confirm(subject, &[recorded(pair, folder, &container::manifest(folder)?)?], diagnosis);
            pair.undecided(subject, diagnosis);
            return Ok(());
        }
        let graph = &pair.oracle.graph;
        let of_keys = |node: &Node| {
            matches!(
                node.op.anatomy(),
                Anatomy::Contraction(Contraction::Scores(_) | Contraction::Context(_))
                    | Anatomy::RowReduction(RowReduction::Exponentials(_))
            )
        };
        let of_keys = diagnosis.findings.iter().any(|f| graph.index(f.id).is_some_and(|i| of_keys(&graph.nodes[i])));
        let apart = |number| Way::Apart { number, of_keys };
        let wanted = wanted(subject, diagnosis);
        let other = |kind: &RunnerKind, way: Way| other(sides, pair, kind, (input, way, &wanted));
        // In the passes in which open rules come apart most, if there are such.
        let telling = |kind: &RunnerKind, diagnosis: &Diagnosis| {
            let first = input.tokens(None);
            let decode = first.decode.max(SEVERAL);
            let in_parts = first.passes.of_run(first.prompt.len(), 0).len() > 1;
            let most = if is_small(pair) { usize::MAX } else { SEVERAL_HUNDRED };
            let fits = |passes: &&[usize]| (in_parts || passes.len() == 1) && passes.iter().sum::<usize>() < most;
            let kinds = |passes: &[usize]| diagnosis.rules_apart(passes, decode);
            // The first of those that tell as much.
            let told = TELLING.into_iter().filter(fits).rev().max_by_key(|passes| kinds(passes));
            let told = told.filter(|passes| kinds(passes) > 1);
            let given = told.and_then(|passes| other(kind, Way::Given(passes)).ok());
            given.map_or_else(|| other(kind, Way::Apart { number: 2, of_keys: true }), Ok)
        };
        // In passes that tell from where on a cause is at work in a part.
        let at_edge = |kind: &RunnerKind, diagnosis: &Diagnosis| {
            let at = diagnosis.begin_untold()?;
            other(kind, Way::Beginning(at)).ok().map(Ok)
        };
        match self.run(sides, pair, subject.seconds, |kind, number| other(kind, apart(number))) {
            Ok(others) => {
                let before = diagnosis.clone();
                pair.confirm(subject, &others, diagnosis);
                // What is wrong at positions that the other run does not have in such passes.
                if self.confirm.is_none()
                    && diagnosis.is_left_open()
                    && let (Some(kind), [first]) = (sides.chosen.live_subject(), &others[..])
                    && let Ok(more) = other(kind, Way::Alike { number: 2 })
                {
                    pair.once_more(subject, [first, &more], &before, diagnosis);
                }
                // A condition that two runs leave is a prediction for a third one.
                if self.confirm.is_none()
                    && diagnosis.is_narrowed()
                    && let Some(kind) = sides.chosen.live_subject()
                    && let Ok(more) = at_edge(kind, diagnosis).unwrap_or_else(|| other(kind, apart(3)))
                {
                    pair.bear_out(subject, &more, diagnosis);
                }
                // Runs more where rules for the keys that are seen are left open.
                for _ in 0..TOLD {
                    if self.confirm.is_none()
                        && diagnosis.leaves_rules_open()
                        && let Some(kind) = sides.chosen.live_subject()
                        && let Ok(more) = telling(kind, diagnosis)
                    {
                        pair.narrow(subject, &more, diagnosis);
                    }
                }
                pair.undecided(subject, diagnosis);
            }
            Err(why) => why.iter().for_each(|why| diagnosis.untried(why)),
        }
        Ok(())
    }

    /// Tries the causes of the diagnoses of all runs of `plan` on other tokens, each in the run of its number in a plan like it, and
    /// what is wrong `at_slots`.
    ///
    /// # Errors
    /// A capture that is named and cannot be read, or has another number of runs.
    pub(super) fn confirm_plan(
        &self, sides: &Sides<'_>, pair: &Pair<'_>, (plan, tokens): (&SequencePlan, &[u32]),
        (judged, at_slots): (&mut [(Recording, Diagnosis)], bool),
    ) -> Result<Option<Elsewhere>> {
        let open = |diagnosis: &Diagnosis| diagnosis.tells_causes() || diagnosis.is_shown_by_sequences();
        if !at_slots && !judged.iter().any(|(_, diagnosis)| open(diagnosis)) {
            return Ok(None);
        }
        let seconds = judged.iter().map(|(subject, _)| subject.seconds).sum();
        let run = |kind: &RunnerKind, like: SequencePlan, number: u16| -> Result<OtherBatch> {
            let ids = pair.opened.n_tokens().min(pair.opened.model.graph().config.n_vocab);
            let mut runner = sequences::runner(pair, kind, &like, Faults::default())?;
            let tokens = distinct(tokens, like.tokens(), ids, number);
            let (runs, said) =
                sequences::recorded(pair, runner.as_mut(), &like, &tokens, &pair.names).context(ELSEWHERE)?;
            Ok(OtherBatch { plan: like, tokens, runs, said })
        };
        let live = |kind: &RunnerKind, number: u16| {
            let [other, alike] = plan.like(number.into());
            let varied = plan.varied(number.into(), pair.opened.model.graph().config.context);
            if let Some(varied) = varied
                && let Ok(ran) = run(kind, varied, number)
            {
                return Ok(ran);
            }
            // An engine may share whole blocks alone.
            run(kind, other, number).or_else(|why| run(kind, alike, number).map_err(|_| why))
        };
        let others = match &self.confirm {
            Some(Confirm::Recorded(folder)) => {
                let recorded = recorded_plan(pair, folder)?;
                let other = recorded.plan.runs();
                let why = format!(
                    "{} is of {}, and the subject's capture of {}; record other tokens in passes like these",
                    folder.display(),
                    counted(other, "sequence"),
                    plan.runs()
                );
                ensure!(at_slots || other == plan.runs(), "--confirm: {why}");
                if other != plan.runs() {
                    // Slots of other passes tell as much.
                    judged.iter_mut().for_each(|(_, diagnosis)| diagnosis.untried(&why));
                    return Ok(recorded.at_slots(pair));
                }
                Ok(vec![recorded])
            }
            _ => self.run(sides, pair, seconds, live),
        };
        Ok(match others {
            Ok(mut others) => {
                let elsewhere = at_slots.then(|| others.iter().find_map(|other| other.at_slots(pair))).flatten();
                let before: Vec<Diagnosis> = judged.iter().map(|(_, diagnosis)| diagnosis.clone()).collect();
                for (number, (subject, diagnosis)) in judged.iter_mut().enumerate() {
                    pair.confirm(subject, others.iter().filter_map(|other| other.runs.get(number)), diagnosis);
                    pair.undecided(subject, diagnosis);
                }
                pair.again_among_sequences(judged, &before);
                if let Some(other) = others.first_mut() {
                    pair.agree_among_sequences(judged, &[&other.runs]);
                    pair.confirm_among_sequences(judged, &mut other.runs, plan.0.len())?;
                }
                // What is wrong in places that passes of other lengths do not have.
                let open = |diagnosis: &Diagnosis| diagnosis.is_left_open() || diagnosis.is_shown_by_sequences();
                if self.confirm.is_none()
                    && judged.iter().any(|(_, diagnosis)| open(diagnosis))
                    && let (Some(kind), [other]) = (sides.chosen.live_subject(), &others[..])
                    && let Ok(mut alike) = run(kind, plan.clone(), 2)
                {
                    let runs = other.runs.iter().zip(&alike.runs).zip(&before);
                    for ((subject, diagnosis), ((other, alike), before)) in judged.iter_mut().zip(runs) {
                        pair.once_more(subject, [other, alike], before, diagnosis);
                    }
                    pair.again_among_sequences(judged, &before);
                    pair.agree_among_sequences(judged, &[&other.runs, &alike.runs]);
                    pair.confirm_among_sequences(judged, &mut alike.runs, plan.0.len())?;
                }
                // A condition that was read off two runs is held against a third one, and what that leaves of it against a fourth.
                let room = pair.opened.model.graph().config.context;
                for number in [5, 9] {
                    if self.confirm.is_none()
                        && judged.iter().any(|(_, diagnosis)| diagnosis.is_narrowed())
                        && let (Some(kind), Some(more)) =
                            (sides.chosen.live_subject(), plan.varied(number.into(), room))
                        && let Ok(more) = run(kind, more, number)
                    {
                        for ((subject, diagnosis), more) in judged.iter_mut().zip(&more.runs) {
                            pair.bear_out(subject, more, diagnosis);
                        }
                        others.push(more);
                        let runs: Vec<&[Recording]> = others.iter().map(|other| &other.runs[..]).collect();
                        pair.agree_among_sequences(judged, &runs);
                        if let Some(last) = others.last_mut() {
                            pair.confirm_among_sequences(judged, &mut last.runs, plan.0.len())?;
                        }
                    }
                }
                elsewhere
            }
            Err(why) => {
                judged.iter_mut().for_each(|(_, diagnosis)| why.iter().for_each(|why| diagnosis.untried(why)));
                why.filter(|_| at_slots).map(|because| Elsewhere::Untried { because })
            }
        })
    }

    /// Runs the subject, which took so many seconds, as often as requested. The error says why causes are not tried; it
    /// says nothing where none are looked for.
    fn run<T>(
        &self, sides: &Sides<'_>, pair: &Pair<'_>, seconds: f64, run: impl Fn(&RunnerKind, u16) -> Result<T>,
    ) -> Result<Vec<T>, Option<String>> {
        let Some(kind) = sides.chosen.live_subject() else {
            return Err(Some(
                "a capture cannot run again (give one of other tokens: --confirm capture:DIR)".to_owned(),
            ));
        };
        let runs = match &self.confirm {
            Some(Confirm::Runs(0)) | None if pair.settings.budget == 0.0 => return Err(None),
            Some(Confirm::Runs(0)) => return Err(Some("--confirm no leaves that out".to_owned())),
            None if seconds >= SHORT.as_secs_f64() => {
                return Err(Some("the subject took 90 s or more; --confirm 1 runs it once more".to_owned()));
            }
            Some(Confirm::Runs(runs)) => *runs,
            _ => 1,
        };
        (1..=runs).map(|number| run(kind, number)).collect::<Result<_>>().map_err(|e| Some(format!("{e:#}")))
    }
}

/// What failed where another run did.
const ELSEWHERE: &str = "the subject could not run on them";

/// How long the other run is, which has a number from 1 on.
#[derive(Clone, Copy)]
enum Way {
    /// Of another length; `of_keys` where a cause is one of attention.
    Apart { number: u16, of_keys: bool },
    /// In the passes of the first run, with more decode steps if it has any.
    Alike { number: u16 },
    /// In these passes.
    Given(&'static [usize]),
    /// In passes of which one begins here, one shortly before, and one after.
    Beginning(usize),
}

/// Runs that tell open rules apart, at most.
const TOLD: usize = 2;

/// Passes in which rules for keys come apart: prompts shorter than a tile, and parts of unequal lengths.
const TELLING: [&[usize]; 12] = [
    &[3],
    &[6],
    &[12],
    &[21],
    &[37],
    &[70],
    &[13, 11, 9],
    &[7, 19, 4, 12],
    &[11, 11, 5],
    &[33, 21, 40],
    &[140, 9, 20],
    &[280, 13, 9],
];

/// Tokens that the other run has: those that tell where the condition of a cause ends, and those of all wrong rows of the first origin
/// with a cause again, if these are few. Otherwise it would not show whether they are what is wrong.
fn wanted(subject: &Recording, diagnosis: &Diagnosis) -> Vec<u32> {
    let origins = diagnosis.verdict.origins();
    let first = origins.iter().find(|origin| diagnosis.findings.iter().any(|f| f.id == origin.id));
    let Some(bad) = first.and_then(|origin| origin.subject.as_ref()).map(|local| &local.bad_positions) else {
        return Vec::new();
    };
    let untold = diagnosis.ids_untold(UNTOLD);
    if !untold.is_empty() {
        return untold;
    }
    let steps = &subject.capture.steps;
    let all: Vec<(usize, u32)> =
        steps.iter().flat_map(|step| (step.first..).zip(step.tokens.iter().copied())).collect();
    let of_bad: BTreeSet<u32> = all.iter().filter(|(p, _)| bad.contains(p)).map(|(_, token)| *token).collect();
    if of_bad.len() <= WANTED && 2 * bad.len() < all.len() { of_bad.into_iter().collect() } else { Vec::new() }
}

/// The subject on other tokens, of which it has those that are `wanted`.
fn other(
    sides: &Sides<'_>, pair: &Pair<'_>, kind: &RunnerKind, (input, way, wanted): (&Input, Way, &[u32]),
) -> Result<Recording> {
    ensure!(pair.filter.every_position(), "--positions names positions of this prompt alone");
    let first = input.tokens(None);
    let config = &pair.opened.model.graph().config;
    let ids = pair.opened.n_tokens().min(config.n_vocab);
    let decode = match (first.decode, way) {
        (0, _) => 0,
        (decode, Way::Alike { .. }) => decode + PAGE,
        (decode, Way::Given(_)) => decode.max(SEVERAL),
        (decode, Way::Beginning(_)) => decode,
        (decode, _) if decode >= SEVERAL => DECODE,
        (_, Way::Apart { of_keys: true, .. }) => SEVERAL,
        (decode, _) => decode,
    };
    // A command may take the size of parts, and not which comes first.
    let listed = kind.command().is_none_or(|command| command.passes());
    let drawn = |room: usize| match (first.passes, way) {
        (_, Way::Given(passes)) => {
            let fits = passes.iter().sum::<usize>() + decode <= room;
            fits.then(|| OtherTokens::of(first.prompt, (passes.to_vec(), decode), ids, 2))
        }
        (_, Way::Beginning(at)) => {
            let before = at.saturating_sub(SHORTLY).max(1);
            let passes: Vec<usize> = [before, at - before, BEHIND, BEHIND - 1].into_iter().filter(|n| *n > 0).collect();
            let fits = listed && passes.iter().sum::<usize>() + decode <= room;
            fits.then(|| OtherTokens::of(first.prompt, (passes, decode), ids, 3))
        }
        (passes, Way::Alike { number }) => {
            let room = room.checked_sub(first.prompt.len()).filter(|room| *room >= first.decode)?;
            let passes = match passes {
                Passes::Lengths(lengths) => lengths.to_vec(),
                Passes::Of(ubatch) => first.prompt.chunks(ubatch.max(1)).map(<[u32]>::len).collect(),
            };
            Some(OtherTokens::of(first.prompt, (passes, decode.min(room)), ids, number))
        }
        (Passes::Lengths(lengths), Way::Apart { number, .. }) => {
            OtherTokens::like(first.prompt, (lengths, decode), (room, ids), number)
        }
        // One token at a time stays so: the engine may know no other way.
        (Passes::Of(1), Way::Apart { number, of_keys }) => {
            let keys = of_keys.then_some(0);
            let order = Order::SmallFirst;
            let whole = first.prompt.len().max(1);
            let tokens = OtherTokens::new(first.prompt, (whole, decode), (room, ids), (number, order, keys))?;
            Some(OtherTokens { passes: vec![1; tokens.prompt.len()], ..tokens })
        }
        (Passes::Of(ubatch), Way::Apart { number, of_keys }) => {
            let order = if listed { Order::SmallFirst } else { Order::LargeFirst };
            let keys = of_keys.then(|| if is_small(pair) { LONG } else { 0 });
            OtherTokens::new(first.prompt, (ubatch, decode), (room, ids), (number, order, keys))
        }
    };
    let drawn = |room: usize| drawn(room).map(|tokens| tokens.with(first.prompt, wanted));
    let run = |OtherTokens { prompt, passes, decoded }: OtherTokens| {
        let ready = Ready { name: "other tokens".to_owned(), text: String::new(), message: None, tokens: prompt };
        let input = Input::new(ready, decoded.len(), passes.iter().copied().max().unwrap_or(1));
        let input = sides.chosen.taken(if listed { input.in_passes(passes) } else { input });
        let decoded = &decoded[..input.tokens(None).decode];
        sides.elsewhere(pair, kind, input.tokens(Some(decoded))).context(ELSEWHERE)
    };
    let other = drawn(config.context).context("the context has no room for other tokens")?;
    // An engine may have room for no more tokens than it was given first, even if the model allows more.
    let length = |tokens: &OtherTokens| tokens.prompt.len() + tokens.decoded.len();
    let room = first.prompt.len() + if matches!(way, Way::Alike { .. }) { first.decode } else { decode };
    let smaller = drawn(room).filter(|smaller| length(smaller) < length(&other));
    match (run(other), smaller) {
        (Err(why), Some(smaller)) => run(smaller).map_err(|_| why),
        (tried, _) => tried,
    }
}

/// Tokens that a cause is tried on.
#[derive(Clone, Debug)]
pub struct OtherTokens {
    /// Those of the prompt.
    pub prompt: Vec<u32>,
    /// Tokens of each part of it: the short one comes first, so that neither a position nor the end of the prompt is what
    /// tells it from the long one.
    pub passes: Vec<usize>,
    /// Those that are decoded after it.
    pub decoded: Vec<u32>,
}

impl OtherTokens {
    /// Those of run `number`, from 1 on, after a run of the tokens `prompt` in parts of `ubatch` and `decode` more, in a
    /// context of so many tokens with ids below `ids`; where tiles of `keys` are to come apart, so many keys are worth a longer run.
    /// `None` where there is no room.
    pub fn new(
        prompt: &[u32], (ubatch, decode): (usize, usize), (context, ids): (usize, usize),
        (number, order, keys): (u16, Order, Option<usize>),
    ) -> Option<Self> {
        let plan = Plan::new(prompt.len(), (ubatch, decode), (context, number, order, keys))?;
        Some(Self::of(prompt, (plan.passes(), plan.decode), ids, number))
    }

    /// The same after a run of the tokens `prompt` in passes of these lengths. A pass of one token stays one, a short one comes again
    /// and again, and the others are longer. The second of several begins in another page than in the first run, of whatever size
    /// pages are, and not at the beginning of one. `None` where there is no room.
    pub fn like(
        prompt: &[u32], (lengths, decode): (&[usize], usize), (context, ids): (usize, usize), number: u16,
    ) -> Option<Self> {
        let other = |(at, tokens): (usize, &usize)| match *tokens {
            short @ 2..=SHORT_PASS => vec![short, short + 1, short, short],
            tokens if at == 0 && tokens > 1 && lengths.len() > 1 => {
                let behind = LAST_PAGES + 2 * (usize::from(number.max(1) - 1) % 3);
                vec![(tokens + 3).saturating_sub(behind).next_multiple_of(PAGES) + behind]
            }
            tokens => vec![in_other_run(tokens, at + usize::from(number))],
        };
        let passes: Vec<usize> = lengths.iter().enumerate().flat_map(other).collect();
        let room = passes.iter().sum::<usize>() + decode <= context;
        room.then(|| Self::of(prompt, (passes, decode), ids, number))
    }

    fn of(prompt: &[u32], (passes, decode): (Vec<usize>, usize), ids: usize, number: u16) -> Self {
        let length = passes.iter().sum();
        let mut tokens = drawn(prompt, length + decode, ids, number);
        let decoded = tokens.split_off(length);
        Self { prompt: tokens, passes, decoded }
    }

    /// The same with the `wanted` tokens in some places, at which the first run has others.
    fn with(mut self, first: &[u32], wanted: &[u32]) -> Self {
        let mut wanted = wanted.iter().copied().cycle();
        let all = self.prompt.iter_mut().chain(&mut self.decoded).enumerate();
        for (at, token) in all.filter(|(at, _)| at % AMONG == AMONG / 2) {
            let Some(other) = wanted.next() else { break };
            if first.get(at) != Some(&other) {
                *token = other;
            }
        }
        self
    }
}

/// Tokens of the longest pass that is a short one, such as one that does not fill the window of a convolution.
const SHORT_PASS: usize = 4;

/// Tokens of a pass before the one that begins where it tells, and of those behind.
const SHORTLY: usize = 3;
const BEHIND: usize = 21;

/// Tokens of wrong rows that another run has again, at most; and of so many tokens it has one of them.
const WANTED: usize = 3;
const UNTOLD: usize = 16;
const AMONG: usize = 5;

/// Tokens of a prompt in which tiles and parts of keys come apart that are the same of fewer keys.
const LONG: usize = 257;

/// Tokens that a model takes a while for, unless it is small.
const SEVERAL_HUNDRED: usize = 150;

/// Products of a token with weights from which on a model is not small.
const SMALL: usize = 1 << 24;

/// Whether a prompt of some hundred tokens takes the model a moment.
fn is_small(pair: &Pair<'_>) -> bool {
    let graph = pair.opened.model.graph();
    let weights = graph.nodes.iter().flat_map(|node| &node.weights);
    weights.map(|weight| weight.extent.iter().product::<usize>()).sum::<usize>() < SMALL
}

/// Slots of a page, as most engines have them.
const PAGE: usize = 16;

/// Slots of the largest pages that most engines have, and the place in one from which on pages of 8, 16 and 32 begin elsewhere.
const PAGES: usize = 32;
const LAST_PAGES: usize = 25;

/// Keys after which tiles of all sizes end.
const TILES_END: usize = 128;

/// Tokens of a prompt of which the other run has twice as many.
const DOUBLED: usize = 256;

/// Which of the two parts of the other run comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The small one, where each part is named.
    SmallFirst,
    /// The large one, where the largest part alone is named.
    LargeFirst,
}

/// How long the other run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    prompt: usize,
    ubatch: usize,
    decode: usize,
}

impl Plan {
    /// Another length, and parts of other lengths: longer, so that positions of the first run that were decoded are of the
    /// prompt; twice as long where that takes little, so that a position that wraps comes apart from one that is moved;
    /// shorter where there is no more room. `None` where there is none at all.
    ///
    /// Rows of the second part are even where their positions are odd: the part before has an odd number of tokens. One of
    /// the two parts has an odd number of them where the prompt has an even one, and the other way round. For the same reason
    /// the keys of every tile end elsewhere than the rows do. Of tiles of 4 rows 3 are left over somewhere, which may be
    /// dealt out as a whole tile is, or not.
    fn new(
        prompt: usize, (ubatch, decode): (usize, usize),
        (context, number, order, keys): (usize, u16, Order, Option<usize>),
    ) -> Option<Self> {
        let by = usize::from(number.max(1));
        let odd = if prompt % 4 == 3 { 1 } else { 3 };
        let (few, first, step) = match order {
            Order::SmallFirst if (prompt + by).is_multiple_of(2) => (2, 3 + 4 * by, 4),
            Order::SmallFirst => (odd, 3 + 4 * by, 4),
            Order::LargeFirst => (odd, 6 + 2 * by, 2),
        };
        // Tiles of 4, 8, 16 and 32 rows leave different numbers of rows over, and others than the prompt leaves.
        let over = 28 - 8 * ((by - 1) % 3) + few;
        // The numbers of tokens of both runs, and those with the next one, have no divisor in common but 2: splits of the
        // tokens leave some over in one of the runs.
        let apart = |plan: &Self| (0..2).all(|more| common_divisor(prompt + more, plan.prompt + more) <= 2);
        // A page begins in a decode step that others follow, and in another one than in the first run.
        let to_page = |prompt: usize| prompt.next_multiple_of(PAGE) - prompt;
        let paged = |plan: &Self| to_page(plan.prompt) + 1 < decode.max(2);
        let other_step = |plan: &Self| to_page(plan.prompt) != to_page(prompt);
        // A decode step fills the last tile of any size, the one before lacks one key of it, and the next one begins a tile: what goes
        // over whole tiles and what is divided among splits come apart there alone. Among how many, another run tells, where tiles
        // of 16 are one less than can be divided.
        let edge = |plan: &Self| {
            let keys = plan.prompt % TILES_END;
            match number % 2 {
                1 => keys + 1 < TILES_END && keys + decode > TILES_END,
                _ => keys >= TILES_END - 2 * PAGE && keys + decode < TILES_END - PAGE,
            }
        };
        let longer = |least: usize| {
            let plan = |small: usize, more: usize| {
                let more_than = prompt.min(ubatch.max(1)).max(least.saturating_sub(small)).max(small);
                let large = (more_than + 1).saturating_sub(over).next_multiple_of(32) + over + 32 * more;
                Self { prompt: small + large, ubatch: large, decode }
            };
            let with = |more: usize| (0..16).map(move |i| plan(first + step * i, more));
            let fits = |plan: &Self| plan.prompt + decode <= context;
            if keys.is_some()
                && let Some(plan) = (0..4).flat_map(with).filter(fits).find(|plan| apart(plan) && edge(plan))
            {
                return Some(plan);
            }
            let plans: Vec<Self> = with(0).filter(fits).collect();
            // The simpler wish gives way first.
            let wishes: [&dyn Fn(&Self) -> bool; 3] =
                [&|plan| apart(plan) && paged(plan) && other_step(plan), &|plan| apart(plan) && paged(plan), &apart];
            wishes.iter().find_map(|wish| plans.iter().find(|plan| wish(plan))).or(plans.first()).copied()
        };
        let twice = if prompt <= DOUBLED { longer((2 * prompt).max(keys.unwrap_or(0))) } else { None };
        twice.or_else(|| longer(prompt + decode + 1)).or_else(|| {
            let shorter = context.checked_sub(decode)?.min(prompt.saturating_sub(by));
            (shorter > 1).then(|| Self { prompt: shorter, ubatch: (shorter * 2 / 3).max(1), decode })
        })
    }

    /// Tokens of each part: what whole parts leave over comes first.
    fn passes(self) -> Vec<usize> {
        let (whole, rest) = (self.prompt / self.ubatch, self.prompt % self.ubatch);
        Some(rest).filter(|rest| *rest > 0).into_iter().chain(std::iter::repeat_n(self.ubatch, whole)).collect()
    }
}

/// The largest number that divides both.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// So many ids below `ids`, of which no two are equal while there are enough: rows of the caches that are alike would be given by
/// a law of either. In the middle one token stands again and again, as long as a whole tile: what a kernel keeps for a tile of
/// tokens, such as the largest of them, is another number there than in tiles of many tokens, and a law that holds of these alone
/// fails.
fn drawn(first: &[u32], tokens: usize, ids: usize, number: u16) -> Vec<u32> {
    let mut all = distinct(first, tokens, ids, number);
    let tile = (tokens / 4).checked_ilog2().map_or(0, |bits| 1 << bits.min(6));
    let stretch = 2 * tile..3 * tile;
    let other = |token: &u32| !first.iter().skip(stretch.start).take(tile).any(|old| old == token);
    if let Some(token) = all[stretch.clone()].iter().copied().find(other) {
        all[stretch].fill(token);
    }
    all
}

/// The same without a token that stands again and again: of three tokens two that are drawn, and one of the first run at another
/// place. In a batch the row of any other token may be read by mistake, so that equal ones would hide it.
fn distinct(first: &[u32], tokens: usize, ids: usize, number: u16) -> Vec<u32> {
    let mut old: Vec<u32> = Vec::new();
    for token in first {
        if !old.contains(token) {
            old.push(*token);
        }
        if old.len() > tokens {
            break;
        }
    }
    // The last tokens are those that decoding began with.
    old.reverse();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(number) + 1);
    let mut draw = || {
        // Steele, Lea and Flood (2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % ids.max(1) as u64) as u32
    };
    let mut taken: BTreeSet<u32> = BTreeSet::new();
    let each = |i: usize| {
        // Once all ids are taken they begin anew.
        if taken.len() >= ids {
            taken.clear();
        }
        let elsewhere = |token: &u32| first.get(i) != Some(token);
        let fits = |token: &u32| elsewhere(token) && !taken.contains(token);
        let known = if i % 3 == 1 { old.get(i / 3).copied() } else { None };
        // A few draws find another one; where few are left, the next one that is.
        let some = known.filter(fits).or_else(|| (0..8).map(|_| draw()).find(fits));
        let next = || {
            let from = draw();
            let all = || (0..ids as u32).map(|by| (from + by) % ids as u32);
            all().find(fits).or_else(|| all().find(elsewhere)).unwrap_or(0)
        };
        let token = some.unwrap_or_else(next);
        taken.insert(token);
        token
    };
    (0..tokens).map(each).collect()
}

/// Another capture of the subject.
fn recorded(pair: &Pair<'_>, folder: &Path, manifest: &manifest::Manifest) -> Result<Recording> {
    manifest.check_model(folder, &pair.opened.sha256())?;
    pair.read(folder, manifest, &pair.names, &manifest.how())
}

/// Another run of a batch.
struct OtherBatch {
    plan: SequencePlan,
    tokens: Vec<u32>,
    runs: Vec<Recording>,
    said: Vec<RowsSaid>,
}

impl OtherBatch {
    /// What its values say of its positions, slots and block tables; `None` where these were not captured.
    fn at_slots(&self, pair: &Pair<'_>) -> Option<Elsewhere> {
        let check = SlotsCheck::of(&self.plan, &self.tokens, &self.said)?;
        let all = borne(&pair.oracle, (&self.plan, &self.tokens), &self.said, &self.runs);
        let mut values = Borne::default();
        all.iter().for_each(|stages| values.add(of_run(stages)));
        Some(Elsewhere::Tried { tokens: self.tokens.len(), wrong: check.diverged(), values })
    }
}

/// The runs of the sequences of another capture of the subject.
fn recorded_plan(pair: &Pair<'_>, folder: &Path) -> Result<OtherBatch> {
    let manifest = container::any_manifest(folder)?;
    let plan = manifest.sequences.clone().unwrap_or_default();
    let mut recording = recorded(pair, folder, &manifest)?;
    let said = std::mem::take(&mut recording.capture.rows);
    let runs = sequences::split(&pair.oracle.graph, recording, &plan);
    Ok(OtherBatch { tokens: manifest.tokens, plan, runs, said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_run_has_another_length_and_tokens_elsewhere() {
        for (prompt, ubatch, decode, context) in
            [(16, 512, 8, 32768), (1, 1, 0, 64), (40, 7, 3, 2048), (512, 512, 8, 1024), (60, 16, 4, 64)]
        {
            let plan = Plan::new(prompt, (ubatch, decode), (context, 1, Order::SmallFirst, None)).unwrap();
            assert!(plan.prompt + plan.decode <= context && plan.prompt != prompt, "{plan:?}");
            assert_ne!(plan.ubatch.min(plan.prompt), ubatch.min(prompt), "{plan:?}");
            let first: Vec<u32> = (0..prompt as u32).map(|i| i % 37 * 3).collect();
            let tokens = drawn(&first, plan.prompt + plan.decode, 300, 1);
            assert_eq!(tokens.len(), plan.prompt + plan.decode);
            assert!(tokens.iter().all(|token| *token < 300));
            assert!(first.iter().zip(&tokens).all(|(a, b)| a != b), "{tokens:?}");
            assert!(prompt == 1 || tokens.iter().any(|token| first.contains(token)));
        }
        assert_eq!(Plan::new(2, (2, 0), (2, 1, Order::SmallFirst, None)), None);
        // Rows that tiles leave over: they show which tile it is.
        for (prompt, order) in (3..200).flat_map(|p| [(p, Order::SmallFirst), (p, Order::LargeFirst)]) {
            let plan = Plan::new(prompt, (prompt, 3), (4096, 1, order, None)).unwrap();
            let [small, large] = plan.passes()[..] else { panic!("{prompt}") };
            let before = if order == Order::SmallFirst { small } else { large };
            assert!(small + large >= 2 * prompt && before % 2 == 1, "{prompt}: {small}, {large}");
            assert!([prompt, small, large].iter().any(|part| part % 4 == 3), "{prompt}: {small}, {large}");
            assert!((3..40).all(|n| prompt % n > 0 || (small + large) % n > 0), "{prompt}: {small}, {large}");
            assert!([small, large].iter().any(|part| part % 2 != prompt % 2), "{prompt}: {small}, {large}");
            let over = [4, 8, 16, 32].map(|tile| large % tile);
            assert!(over.is_sorted_by(|a, b| a < b) && over[0] > 0, "{prompt}: {large}");
            assert!([4, 8, 16, 32].iter().all(|tile| large % tile != prompt % tile), "{prompt}: {large}");
        }
        for (prompt, decode) in [(16, 4), (40, 4), (132, 4), (60, 8), (250, 8)] {
            let plan = Plan::new(prompt, (512, decode), (4096, 1, Order::SmallFirst, Some(0))).unwrap();
            let keys = plan.prompt + 1..=plan.prompt + decode;
            let full = keys.clone().find(|n| n % TILES_END == 0);
            assert!(full.is_some_and(|n| keys.contains(&(n - 1)) && keys.contains(&(n + 1))), "{plan:?}");
        }
        let first = [7, 7, 9, 7, 11, 7];
        let tokens = distinct(&first, 290, 300, 1);
        assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), 290);
        assert!(first.iter().zip(&tokens).all(|(a, b)| a != b), "{tokens:?}");
        assert_eq!(distinct(&[], 7, 3, 1).iter().collect::<BTreeSet<_>>().len(), 3);
        // A prompt of one token after the other has no shorter parts.
        assert_ne!(drawn(&[1, 2, 3], 20, 300, 1), drawn(&[1, 2, 3], 20, 300, 2));
        assert_eq!(drawn(&[0], 3, 1, 1), [0, 0, 0]);
    }

    #[test]
    fn passes_are_like_those_of_the_first_run() {
        let first: Vec<u32> = (0..60).collect();
        let other = OtherTokens::like(&first, (&[35, 1, 24], 2), (128, 300), 1).unwrap();
        assert!(other.passes[0] > 35 && other.passes[1] == 1 && other.passes[2] > 24, "{other:?}");
        assert_eq!((other.prompt.len(), other.decoded.len()), (other.passes.iter().sum(), 2));
        assert!(first.iter().zip(&other.prompt).all(|(a, b)| a != b), "{other:?}");
        assert!(OtherTokens::like(&first, (&[35, 25], 2), (62, 300), 1).is_none());
        // Where a first part ends with a page, the second one has no page that it shares with the first.
        let paged = OtherTokens::like(&first, (&[11, 10], 1), (128, 300), 1).unwrap();
        assert_ne!(paged.passes[0] % 8, 0, "{paged:?}");
        let plan: SequencePlan = "20,12+1+9@0,1~2+0+7".parse().unwrap();
        let like = |plan: &str| plan.parse::<SequencePlan>().unwrap().like(1).map(|plan| plan.to_string());
        assert_eq!(like(&plan.to_string()), ["25,19+1+20@0,1~3+0+22", "25,19+1+20@0,1~2+0+22"]);
        // Another part of a prefix stays a part, and the whole of one stays the whole; so do drafts.
        assert_eq!(like("17,1+1+9@0:16,0+0+0+5@0:18")[0], "22,1+1+20@0:21,0+0+0+18@0:23");
        assert_eq!(like("9,5,5~5,5~4,5~1,1~1")[0], "14,12,14~12,18~5,18~2,1~2");
    }

    #[test]
    fn what_is_asked_for_is_read() {
        for (text, read) in
            [("no", Confirm::Runs(0)), ("2", Confirm::Runs(2)), ("capture:x", Confirm::Recorded("x".into()))]
        {
            assert_eq!(text.parse::<Confirm>().unwrap(), read);
            assert_eq!(read.to_string(), text);
        }
        for text in ["", "yes", "-1", "17", "capture:"] {
            assert!(text.parse::<Confirm>().is_err(), "{text}");
        }
    }
}
