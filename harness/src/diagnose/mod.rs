//! Why: what explains the origins of a verdict. The catalogue of mutations is evaluated on the subject's own operands.

mod fit;
mod glance;
mod solve;
mod sums;
mod through;

pub use solve::{Confidence, Solution, UNEXPLAINED};

use crate::capture::{Capture, Filter};
use crate::mutations::{CauseId, Explains, Mutation, catalogue, told};
use crate::number::{Real, counted};
use crate::oracle::Oracle;
use crate::progress::Progress;
use crate::verdict::{
    DESCRIBED, Evidence, Expected, Policy, Segment, Side, StageResult, TRIED, Verdict, assembled, describe, excerpt,
    products_beyond, settle_all, written,
};
use fit::{Fit, Scope, fit};
use glance::Glance;
use qdiff_engine::model::{Node, StageId};
use qdiff_engine::ops::Op;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Time that the search for causes takes at most, unless told otherwise.
pub const BUDGET: Duration = Duration::from_secs(30);

/// Weights of a linear stage from which on its hypotheses are tried one by one.
const HEAVY: usize = 1 << 24;

/// Products of f64 that operands of a hypothesis may take which the stage does not read: a fraction of a second.
const BEYOND: usize = 1 << 28;

/// An explanation that reproduces the subject's output.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// Name of the mutation, with its parameters.
    pub name: CauseId,
    /// What is wrong, in one sentence.
    pub story: String,
    /// How to mend it.
    pub remedy: String,
    /// What it means that it fits.
    pub kind: Explains,
    /// Residual of the stage as it should be.
    #[serde(with = "Real")]
    pub before: f64,
    /// Residual once the fault is assumed.
    #[serde(with = "Real")]
    pub after: f64,
    /// Share of what is allowed that is taken once the fault is assumed.
    #[serde(with = "Real")]
    pub used: f64,
    /// Whether all of the stage is as the fault says, or only what is wrong of it.
    pub whole: bool,
    /// Other mutations that fit as well, the simpler first; of a stage with
    /// a very large weight, those that take no second pass over it.
    pub ties: Vec<CauseId>,
}

/// What the search for causes took.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Search {
    /// Hypotheses evaluated.
    pub tried: usize,
    /// Time it took.
    #[serde(with = "Real")]
    pub seconds: f64,
    /// Origins whose search was cut short for want of time.
    pub unfinished: usize,
}

/// What to do about a stage that is wrong in the capture alone.
pub const EXPORTER: &str = "look at what is captured there: another buffer or layout than the next stages read, or the right one at another moment";

/// An origin with its evidence.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The stage.
    #[serde(rename = "stage")]
    pub id: StageId,
    /// Stages of its segment, not captured, that the explanation is about; none where it is about the stage itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inside: Vec<StageId>,
    /// Whether the stages that read it were made of the right values: what was captured is wrong, and not the engine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// Whether what was captured there seems never to have been written, which is all that is wrong.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unwritten: bool,
    /// What explains it, if anything known does.
    pub cause: Option<Cause>,
    /// What was computed instead, solved for where nothing known explains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solution: Option<Solution>,
    /// What the residual looks like, where nothing known explains all of it.
    pub shape: String,
}

impl Finding {
    /// What was computed instead, with its name in the catalogue where it has one.
    pub fn told(&self) -> Option<String> {
        let told = match (&self.solution, &self.cause) {
            (Some(solution), Some(cause)) => format!("{} ({})", solution.told(), cause.name),
            (Some(solution), None) => solution.told(),
            (None, Some(cause)) => format!("{} ({})", cause.story, cause.name),
            (None, None) => return None,
        };
        // Another stage may give the same at the end of its segment.
        Some(if self.inside.is_empty() {
            told
        } else {
            format!("as from a fault in {}: {told}", through::list(&self.inside))
        })
    }
}

/// A verdict with what explains it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The statuses of the stages.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Its origins, first first.
    pub findings: Vec<Finding>,
    /// What the search for their causes took.
    pub search: Search,
}

type Candidate = (&'static Mutation, Vec<f64>);

/// A few rows of a layer, and of a large one some outputs of them.
type Sample<'a> = (Option<Glance>, Evidence<'a>);

struct Searcher<'a> {
    oracle: &'a Oracle<'a>,
    subject: Side<'a>,
    filter: &'a Filter,
    policy: &'a Policy,
    deadline: Instant,
    tried: AtomicUsize,
    unfinished: Mutex<BTreeSet<StageId>>,
    known: Mutex<Vec<Known>>,
}

/// What explains a stage, by the stage's name.
type Known = (&'static str, Explanation);

/// A hypothesis about a stage, or about stages of the segment that ends in it.
#[derive(Clone)]
enum Explanation {
    Here(Candidate),
    Inside(through::Key),
    /// What was solved for, proved and told in these words.
    Solved(String),
}

/// Looks for a cause of every origin, in no more time than `budget`. The whole catalogue is tried on the first origin
/// of each stage name; what explains it is tested on the others of that name before anything else is. `progress` is
/// told how many of the origins are done.
pub fn explain(
    oracle: &Oracle<'_>, subject: &Side<'_>, verdict: Verdict, (filter, policy): (&Filter, &Policy), budget: Duration,
    progress: Progress<'_>,
) -> Diagnosis {
    let start = Instant::now();
    let origins = verdict.origins();
    let searcher = Searcher {
        oracle,
        subject: *subject,
        filter,
        policy,
        deadline: start + budget,
        tried: AtomicUsize::new(0),
        unfinished: Mutex::default(),
        known: Mutex::default(),
    };
    let is_first = |i: usize| (0..i).all(|j| origins[j].id.name != origins[i].id.name);
    let (first, rest): (Vec<usize>, Vec<usize>) = (0..origins.len()).partition(|&i| is_first(i));
    let done = AtomicUsize::new(0);
    let find = |i: usize| {
        let mut finding = searcher.finding(origins[i]);
        if let Some(cause) = finding.cause.as_mut().filter(|_| finding.unread) {
            cause.remedy = EXPORTER.to_owned();
        }
        progress("looking for causes", done.fetch_add(1, Ordering::Relaxed) + 1, origins.len());
        (i, finding)
    };
    let mut findings: Vec<(usize, Finding)> = first.into_par_iter().map(find).collect();
    findings.par_extend(rest.into_par_iter().map(find));
    findings.sort_by_key(|(i, _)| *i);
    let search = Search {
        tried: searcher.tried.into_inner(),
        seconds: start.elapsed().as_secs_f64(),
        unfinished: searcher.unfinished.into_inner().expect("nobody panics with the list").len(),
    };
    let findings = findings.into_iter().map(|(_, f)| f).collect();
    Diagnosis { verdict, findings, search }
}

/// What an origin holds that nobody read, where all of it seems never to have been written.
fn unwritten(origin: &StageResult) -> Option<String> {
    let local = origin.subject.as_ref().filter(|local| origin.unread && local.never_written())?;
    let held = local.non_finite.as_ref().or(local.worst.as_ref()).map(|element| element.got)?;
    let rows = counted(local.unwritten, "row");
    let s = if local.unwritten == 1 { "s" } else { "" };
    Some(format!("as if never written: {rows} of the capture hold{s} {held} throughout"))
}

impl Searcher<'_> {
    /// What is known to explain stages of this name.
    fn known(&self, name: &str) -> (Vec<Candidate>, Vec<through::Key>, Vec<String>) {
        let (mut here, mut inside, mut solved) = (Vec::new(), Vec::new(), Vec::new());
        for (_, known) in self.list().iter().filter(|(stage, _)| *stage == name) {
            match known.clone() {
                Explanation::Here(candidate) => here.push(candidate),
                Explanation::Inside(key) => inside.push(key),
                Explanation::Solved(words) => solved.push(words),
            }
        }
        (here, inside, solved)
    }

    fn cut_short(&self, id: StageId) {
        self.unfinished.lock().expect("nobody panics with the list").insert(id);
    }

    fn list(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().expect("nobody panics with the list")
    }

    /// The finding of one origin.
    fn finding(&self, origin: &StageResult) -> Finding {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id).expect("an origin is a stage of the graph")];
        if let Some(shape) = unwritten(origin) {
            let (inside, cause, solution) = Default::default();
            return Finding { id: origin.id, inside, unread: true, unwritten: true, cause, solution, shape };
        }
        let bad = origin.subject.as_ref().map_or_else(BTreeSet::new, |l| l.bad_positions.clone());
        let capture = self.subject.capture;
        let part = |limit| excerpt(self.oracle, node, capture, &bad, limit);
        let tried = part(TRIED);
        let e = self.evidence(node, tried.as_ref().unwrap_or(capture));
        let numbers = origin.subject.as_ref().filter(|l| l.non_finite.is_none());
        let before = numbers.map_or(f64::NAN, |l| l.residual);

        let (known, known_inside, solved) = self.known(origin.id.name);
        let again = known.iter().find_map(|c| Some((c.clone(), self.test(&e, None, c).filter(|f| f.whole)?)));
        let found = again.map_or_else(|| self.search(&e), |one| vec![one]);
        let whole = found.first().is_some_and(|(_, fit)| fit.whole);
        let is_new = |c: &&Candidate| known.iter().all(|k| k.0.name != c.0.name || k.1 != c.1);
        if let Some(new) = found.first().map(|(c, _)| c).filter(is_new).cloned() {
            self.list().push((origin.id.name, Explanation::Here(new)));
        }
        let cause = found.first().map(|((m, values), fit)| Cause {
            name: named(m, values, fit),
            story: told(m.story, node, graph),
            remedy: told(m.remedy, node, graph),
            kind: m.explains,
            before,
            after: fit.after,
            used: fit.used,
            whole: fit.whole,
            ties: ties(&found),
        });
        let all_of_it = |c: &Cause| c.kind == Explains::Value && c.whole;
        let solution =
            if cause.as_ref().is_some_and(all_of_it) { None } else { solve::solve(&e, &solved, self.deadline) };
        // What gives the values, and tells where, goes before what gives their size, or some of the stage alone.
        let partial = |c: &Cause| c.kind == Explains::Value;
        let proved = |s: &Solution| s.confidence == Confidence::Proved;
        let solution = solution.filter(|s| proved(s) || !cause.as_ref().is_some_and(partial));
        if let Some(new) = solution.as_ref().filter(|s| proved(s)).map(Solution::told).filter(|s| !solved.contains(s)) {
            self.list().push((origin.id.name, Explanation::Solved(new)));
        }
        // Of what is solved for and holds everywhere, where it shows is no cause.
        let everywhere = |s: &Solution| proved(s) && s.when.is_none();
        // Scores that are kept in f16 are just that: the known fault is its name.
        let coarser = |s: &Solution| s.coarser && matches!(node.op, Op::AttnScores(_));
        let names = |c: &Cause| match c.kind {
            // Of some of the stage: what is told of it is where.
            Explains::Place => !solution.as_ref().is_some_and(everywhere),
            Explains::Value => true,
            Explains::Rounding => solution.as_ref().is_some_and(|s| coarser(s) || s.halves),
        };
        let cause = cause.filter(|c| solution.is_none() || names(c));
        let unknown = !cause.as_ref().is_some_and(all_of_it) && !solution.as_ref().is_some_and(proved);
        if let Some(finding) = unknown.then(|| self.inside(&e, (before, tried.is_some()), &known_inside)).flatten() {
            return Finding { unread: origin.unread, ..finding };
        }
        // Whatever was not tried for want of time may explain it.
        if solution.is_none() && !whole && Instant::now() >= self.deadline {
            self.cut_short(origin.id);
        }
        let explained = solution.is_some() || whole && cause.as_ref().is_none_or(|c| c.kind == Explains::Value);
        let shape = match &tried {
            _ if explained => String::new(),
            None => describe(&e),
            // More of it is looked at than each hypothesis is tried on.
            Some(_) => describe(&self.evidence(node, part(DESCRIBED).as_ref().unwrap_or(capture))),
        };
        let inside = Vec::new();
        Finding { id: origin.id, inside, unread: origin.unread, unwritten: false, cause, solution, shape }
    }

    /// What explains a segment by stages that were not captured.
    fn inside(&self, e: &Evidence<'_>, (before, part): (f64, bool), known: &[through::Key]) -> Option<Finding> {
        Segment::of(e.node, &e.oracle.graph, self.subject.capture)?;
        // Attention takes all rows before.
        let whole = part.then(|| self.evidence(e.node, self.subject.capture));
        let found = through::through(self, whole.as_ref().unwrap_or(e), known)?;
        if !known.contains(&found.key) {
            self.list().push((e.node.id.name, Explanation::Inside(found.key)));
        }
        let (after, used) = (found.fit.after, found.fit.used);
        let (elements, held_out) = found.elements;
        let what = found.story;
        let (cause, solution) = match found.known {
            Some((name, kind)) => {
                let (story, remedy) = (what, found.remedy);
                (Some(Cause { name, story, remedy, kind, before, after, used, whole: true, ties: Vec::new() }), None)
            }
            None => {
                let confidence = Confidence::Proved;
                (
                    None,
                    Some(Solution {
                        what,
                        when: None,
                        confidence,
                        coarser: false,
                        halves: false,
                        elements,
                        held_out,
                        used,
                    }),
                )
            }
        };
        let (inside, shape) = (found.stages, String::new());
        Some(Finding { id: e.node.id, inside, unread: false, unwritten: false, cause, solution, shape })
    }

    /// What the subject gave and should have given, as far as `capture` holds it.
    fn evidence<'c>(&'c self, node: &'c Node, capture: &'c Capture) -> Evidence<'c> {
        let side = Side { capture, ..self.subject };
        Evidence::new(self.oracle, node, side, self.filter, self.policy)
    }

    /// Everything that fits, best first.
    fn search(&self, e: &Evidence<'_>) -> Vec<(Candidate, Fit)> {
        let sample = e.sample();
        let small = sample.as_ref().map(|s| self.evidence(e.node, s));
        let small = small.map(|small| (Glance::of(&small), small));
        let late = AtomicBool::new(false);
        let try_one = |(order, candidate): (usize, Candidate)| {
            if Instant::now() >= self.deadline {
                late.store(true, Ordering::Relaxed);
                return None;
            }
            let fit = self.test(e, small.as_ref(), &candidate)?;
            Some((order, candidate, fit))
        };
        let all = candidates(e).into_iter().enumerate();
        // What takes what was computed as it is takes no pass over the weights.
        let cheap = |(m, values): &Candidate| {
            let node = || m.applied(e.node, values, &self.oracle.graph);
            !heavy(e) || node().is_some_and(|node| as_computed(&node, e))
        };
        let (cheap, costly): (Vec<_>, Vec<_>) = all.partition(|(_, c)| cheap(c));
        let mut found: Vec<(usize, Candidate, Fit)> = cheap.into_par_iter().filter_map(try_one).collect();
        let explained = |f: &(usize, Candidate, Fit)| f.1.0.explains == Explains::Value && f.2.whole;
        // Each takes a pass over the weights: the first that explains all ends it.
        for candidate in costly {
            if found.iter().any(explained) {
                break;
            }
            found.extend(try_one(candidate));
        }
        if late.into_inner() {
            self.cut_short(e.node.id);
        }
        // What reproduces the values goes before what reproduces their size;
        // what holds of the whole stage before what holds of a part of it.
        found.sort_by_key(|(order, (m, _), fit)| (m.explains, !fit.whole, fit.since.is_some(), *order));
        found.into_iter().map(|(_, c, fit)| (c, fit)).collect()
    }

    /// What the hypothesis leaves of the evidence; first of the sample of it, where there is one.
    fn test(&self, e: &Evidence<'_>, sample: Option<&Sample<'_>>, (mutation, values): &Candidate) -> Option<Fit> {
        let node = mutation.applied(e.node, values, &self.oracle.graph)?;
        // Another operand that was not captured may have to be evaluated from far
        // away, which takes long and proves little.
        let others = node.inputs != e.node.inputs;
        if others && products_beyond(&node, e.node, self.oracle, e.side.capture) > BEYOND {
            return None;
        }
        self.tried.fetch_add(1, Ordering::Relaxed);
        let scope = match node.weights != e.node.weights || node.faults.read.is_some() {
            _ if mutation.whole_run => Scope::Run,
            true => Scope::Steps,
            false => Scope::Rows,
        };
        let as_computed = node.faults.write.is_none();
        if mutation.explains == Explains::Rounding && !sums::of_halves(e) {
            return None;
        }
        if let Some((glance, small)) = sample.filter(|_| as_computed && !others) {
            if glance.as_ref().is_some_and(|glance| !glance.survives(small, &node, self.filter)) {
                return None;
            }
            fit(small, &assume(&node, small), scope)?;
        }
        let fit = fit(e, &assume(&node, e), scope)?;
        let plausible = match mutation.explains {
            _ if mutation.entire && (!fit.whole || fit.since.is_some()) => false,
            Explains::Value => fit.explains(),
            Explains::Rounding => true,
            Explains::Place => fit.encloses(),
        };
        plausible.then_some(fit)
    }
}

/// The stage under the hypothesis. One that only writes otherwise needs no second evaluation.
fn assume(node: &Node, e: &Evidence<'_>) -> Expected {
    let mut expected = if as_computed(node, e) {
        let mut expected = e.exactly().clone();
        written(node, e.side, &mut expected);
        expected
    } else {
        assembled(node, e.oracle, e.side, e.filter)
    };
    settle_all(e.node, &e.oracle.graph, e.side, &mut expected);
    expected
}

/// Whether a node computes what the stage should.
fn as_computed(node: &Node, e: &Evidence<'_>) -> bool {
    node.op == e.node.op
        && node.inputs == e.node.inputs
        && node.weights == e.node.weights
        && !node.faults.left_out
        && node.faults.read.is_none()
        && node.faults.compute.is_none()
}

/// Whether one evaluation of the stage takes a noticeable time.
fn heavy(e: &Evidence<'_>) -> bool {
    let products: usize = e.node.weights.iter().map(|w| w.extent.iter().product::<usize>()).sum();
    e.node.op == Op::Linear && products > HEAVY
}

/// The cause that a candidate is where it fits so.
fn named(mutation: &Mutation, values: &[f64], fit: &Fit) -> CauseId {
    // From a position on is only what holds of every row from there on.
    CauseId { since: fit.since.filter(|_| fit.whole), ..CauseId::new(mutation, values) }
}

/// Others that fit as well as the best: by value, and of as much of the stage.
fn ties(found: &[(Candidate, Fit)]) -> Vec<CauseId> {
    let Some(((best, _), fit)) = found.first() else {
        return Vec::new();
    };
    let mut names: Vec<CauseId> = Vec::new();
    for ((m, values), other) in &found[1..] {
        let alike =
            m.explains == best.explains && other.whole == fit.whole && other.since == fit.since && m.name != best.name;
        if alike && !names.iter().any(|n| n.mutation == m.name) {
            names.push(named(m, values, other));
        }
    }
    names
}

/// All hypotheses for a stage with the values to try, the likelier first.
fn candidates(e: &Evidence<'_>) -> Vec<Candidate> {
    let values = |m: &Mutation| m.propose.map_or_else(|| m.usual(), |propose| propose(e));
    let fitting = catalogue().filter(|m| m.may_explain(&e.oracle.graph, e.node));
    fitting.flat_map(|m| values(m).into_iter().map(move |values| (m, values))).collect()
}
