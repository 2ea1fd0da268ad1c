//! The search for what explains one origin.

use super::fit::{Fit, Scope, fit};
use super::glance::Glance;
use super::solve::{self, Confidence, Example, Fault, Holds, Solution};
use super::work::Meter;
use super::{CACHE, Cause, Finding, sums, through};
use crate::capture::{Capture, Filter};
use crate::mutations::{CauseId, Explains, Mutation, catalogue, find};
use crate::number::counted;
use crate::oracle::Oracle;
use crate::verdict::{
    DESCRIBED, Evidence, Expected, Inside, Policy, Segment, Side, StageResult, TRIED, assembled, describe, excerpt,
    products_beyond, settle_all, work_of, written,
};
use crate::verdict::{foreign, lost};
use qdiff_engine::model::Node;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, State};
use rayon::prelude::*;
use std::collections::BTreeSet;

/// Weights of a linear stage from which on its hypotheses are tried one by one.
const HEAVY: usize = 1 << 24;

/// Faults that explain a part of a stage of which a condition is looked for.
const PARTIAL: usize = 6;

/// Products of f64 that operands of a hypothesis may take which the stage does not read: a fraction of a second.
const BEYOND: usize = 1 << 28;

/// What is wrong of a sequence whose own rows are right.
pub(super) const PREFIX: &str = "only rows that the sequence took over from another one, or from before its rollback, are wrong; the cause is in that report";

/// A mutation with values of its parameters.
pub(super) type Candidate = (&'static Mutation, Vec<f64>);

/// A few rows of a layer, and of a large one some outputs of them.
type Sample<'a> = (Option<Glance>, Evidence<'a>);

/// What the search for one origin works with.
pub(super) struct Searcher<'a> {
    pub(super) oracle: &'a Oracle<'a>,
    pub(super) subject: Side<'a>,
    pub(super) filter: &'a Filter,
    pub(super) policy: &'a Policy,
    /// What explains other origins.
    pub(super) known: &'a [Known],
    /// The work that is left.
    pub(super) meter: &'a Meter,
    /// Whether a wrong element of a finding is worked out.
    pub(super) examples: bool,
}

/// What explains a stage, by the stage's name.
#[derive(Clone, PartialEq)]
pub(super) struct Known {
    stage: &'static str,
    explanation: Explanation,
}

/// A hypothesis about a stage, or about stages of the segment that ends in it.
#[derive(Clone, PartialEq)]
enum Explanation {
    Here(&'static str, Vec<f64>),
    Inside(through::Key),
    Solved(Box<solve::Known>),
}

impl Searcher<'_> {
    /// What is known to explain stages of this name, and what gives the values of others.
    fn known(&self, name: &str) -> (Vec<Candidate>, Vec<through::Key>, [Vec<solve::Known>; 2]) {
        let (mut here, mut inside, mut solved, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (own, others): (Vec<&Known>, Vec<&Known>) = self.known.iter().partition(|known| known.stage == name);
        for known in own {
            match &known.explanation {
                Explanation::Here(name, values) => here.extend(find(name).map(|m| (m, values.clone()))),
                Explanation::Inside(key) => inside.push(key.clone()),
                Explanation::Solved(law) => solved.push((**law).clone()),
            }
        }
        for known in others {
            if let Explanation::Solved(law) = &known.explanation {
                elsewhere.push((**law).clone());
            } else if let Explanation::Here(name, values) = &known.explanation {
                let of_values = find(name).filter(|m| m.explains == Explains::Value);
                here.extend(of_values.map(|m| (m, values.clone())));
            }
        }
        (here, inside, [solved, elsewhere])
    }

    /// The finding of one origin, and the part of it that may explain others. Explanations of others are tried first,
    /// for any work left.
    pub(super) fn finding(&self, origin: &StageResult) -> (Finding, Vec<Known>) {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id).expect("an origin is a stage of the graph")];
        let never_written = unwritten(origin).map(|shape| {
            let (inside, cause, solution) = Default::default();
            let finding = Finding::of(origin.id, (inside, cause, solution, shape));
            (Finding { unread: origin.unread, kept: origin.kept, unwritten: true, ..finding }, Vec::new())
        });
        if let Some(finding) = never_written.clone().filter(|_| origin.unread || origin.kept) {
            return finding;
        }
        let capture = self.subject.capture;
        let evident = |shape: String| {
            let (inside, cause, solution) = Default::default();
            let finding = Finding::of(origin.id, (inside, cause, solution, shape));
            (Finding { unread: origin.unread, kept: origin.kept, evident: true, ..finding }, Vec::new())
        };
        // Laws of attention take each key for the row of its position.
        if let Some(shape) = lost::told(graph, node, capture) {
            return evident(shape);
        }
        let tried = self.part(origin, TRIED);
        let e = self.evidence(node, tried.as_ref().unwrap_or(capture));
        let before = residual(origin);
        if e.bad_rows().next().is_some() && !e.bad_rows().any(|row| e.side.capture.is_own(row.step)) {
            return evident(PREFIX.to_owned());
        }
        if let Some(shape) = foreign::told(node, capture) {
            return evident(shape);
        }

        let mut new: Vec<Explanation> = Vec::new();
        let (known, known_inside, [solved, elsewhere]) = self.known(origin.id.name);
        let again = known.iter().find_map(|c| Some((c.clone(), self.test(&e, None, c).filter(|f| f.whole)?)));
        let mut found = again.map_or_else(|| self.search(&e), |one| vec![one]);
        let whole = found.first().is_some_and(|(_, fit)| fit.whole);
        let all_of_it = |c: &Cause| c.kind == Explains::Value && c.whole;
        let explains_all = found.first().is_some_and(|((m, _), fit)| m.explains == Explains::Value && fit.whole);
        // A number that was measured on a row's statistic is tried against formulas that need none: ε tells them apart on other
        // tokens.
        let has_scale = self.subject.arithmetic.kv_scale(node.id).is_some();
        let measured = (matches!(node.op.anatomy(), Anatomy::RowReduction(_)) || has_scale)
            && found.first().is_some_and(|((m, values), _)| {
                m.propose.is_some() && !m.of_model && values.iter().any(|v| v.fract() != 0.0)
            });
        let solution = match explains_all && !measured {
            true => None,
            false => solve::solve(&e, (&solved, &elsewhere), self.meter),
        };
        let conditional = if measured || solution.as_ref().is_some_and(|s| s.confidence == Confidence::Proved) {
            None
        } else {
            self.under_a_condition(&e, node, &mut found, &known)
        };
        let remedy_of_fault = conditional.as_ref().map(|(_, remedy)| remedy.clone());
        let solution = conditional.map(|(solution, _)| solution).or(solution);
        new.extend(found.first().map(|((m, values), _)| Explanation::Here(m.name, values.clone())));
        let cause = found.first().map(|(candidate, fit)| self.cause(node, candidate, fit, before, ties(&found)));
        let cause = cause.filter(|_| !solution.as_ref().is_some_and(Solution::is_of_fault));
        // An explanation of values and places goes before one of sizes, or of a part of the stage.
        let partial = |c: &Cause| c.kind == Explains::Value;
        let proved = |s: &Solution| s.confidence == Confidence::Proved;
        // If a derived formula holds everywhere, the place where it shows is no cause.
        let everywhere = |s: &Solution| proved(s) && s.holds == Holds::Everywhere;
        let solution = solution.filter(|s| proved(s) || !cause.as_ref().is_some_and(partial));
        // Nothing is gained by another number that was measured.
        // In a part of the rows the number was no more than measured in these.
        let formula = |s: &Solution| s.is_formula() && (everywhere(s) || !whole && proved(s));
        let solution = solution.filter(|s| !measured || formula(s));
        new.extend(
            solution.as_ref().filter(|s| proved(s)).map(|s| Explanation::Solved(Box::new(s.known(origin.id.layer)))),
        );
        // Scores that are kept in f16 are just that: the known fault is its name.
        let coarser =
            |s: &Solution| s.coarser && matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)));
        let names = |c: &Cause| match c.kind {
            // A part of the stage: its explanation is the place.
            Explains::Place => !solution.as_ref().is_some_and(everywhere),
            // The report names every score that is not made. What would change right elements is no name of what holds everywhere.
            Explains::Value => {
                let otherwise = |s: &Solution| s.leaves_out() || everywhere(s) && !c.whole;
                !measured && !solution.as_ref().is_some_and(otherwise)
            }
            Explains::Rounding => solution.as_ref().is_some_and(|s| coarser(s) || s.halves),
        };
        let cause = cause.filter(|c| solution.is_none() || names(c));
        let unknown = !cause.as_ref().is_some_and(all_of_it) && !solution.as_ref().is_some_and(proved);
        let within = unknown.then(|| self.inside(&e, (before, tried.is_some()), &known_inside)).flatten();
        // The last stage of a segment, as if the others were right.
        let mut last = Vec::new();
        let solution = if unknown && within.is_none() && cause.is_none() && tried.is_none() {
            let filled = self.filled(node);
            let found = filled.as_ref().and_then(|filled| {
                solve::solve(&self.of_last(&e, filled), (&solved, &elsewhere), self.meter).filter(proved)
            });
            last.extend(found.is_some().then_some(origin.id));
            found.or(solution)
        } else {
            solution
        };
        let solution = solution.or_else(|| {
            let none = cause.as_ref().is_none_or(|c| c.kind == Explains::Place) && within.is_none();
            none.then(|| solve::never_written(&e, self.meter)).flatten()
        });
        let cause = cause.filter(|c| c.kind != Explains::Place || !solution.as_ref().is_some_and(Solution::is_of_nan));
        // An engine may compute NaN: what explains that goes before.
        let place = cause.as_ref().is_none_or(|c| c.kind == Explains::Place);
        if let Some(finding) = never_written.filter(|_| within.is_none() && solution.is_none() && place) {
            return finding;
        }
        let finding = if let Some((finding, key)) = within {
            new.push(Explanation::Inside(key));
            Finding { unread: origin.unread, kept: origin.kept, ..finding }
        } else {
            let explained = solution.is_some() || whole && cause.as_ref().is_none_or(|c| c.kind == Explains::Value);
            let shape = match &tried {
                _ if explained => String::new(),
                None => describe(&e),
                Some(_) => self.shape(origin),
            };
            Finding {
                unread: origin.unread,
                kept: origin.kept,
                ..Finding::of(origin.id, (last, cause, solution, shape))
            }
        };
        let example = if self.examples { Example::of(&e) } else { None };
        let lacks = !e.misshapen.is_empty();
        let of_cache = matches!(node.op.anatomy(), Anatomy::State(State::Rows(_)));
        let moved = finding.solution.as_ref().is_some_and(Solution::is_of_other_rows) && !has_scale;
        let of_fault = remedy_of_fault.filter(|_| finding.solution.as_ref().is_some_and(Solution::is_of_fault));
        let other = finding.solution.as_ref().and_then(Solution::other_stage).filter(|_| of_cache && !lacks);
        let written = || node.inputs.first().map(|&input| self.oracle.graph.nodes[input].id);
        let of_cache = || match other {
            Some(stage) => written().map(|written| format!("write {written} to the cache, and not {stage}")),
            None => (of_cache && (lacks || moved)).then(|| CACHE.to_owned()),
        };
        let remedy = of_fault.or_else(of_cache);
        let finding = Finding { example, evident: lacks, excerpt: tried.is_some(), remedy, ..finding };
        let stage = origin.id.name;
        (finding, new.into_iter().map(|explanation| Known { stage, explanation }).collect())
    }

    /// The fault that explains all that is wrong under a condition, with its remedy. Without one, of the faults that explain all that is
    /// wrong and more, one that explains another origin comes first, and else the one that would change the fewest elements.
    fn under_a_condition(
        &self, e: &Evidence<'_>, node: &Node, found: &mut [(Candidate, Fit)], known: &[Candidate],
    ) -> Option<(Solution, String)> {
        let partial =
            |m: &Mutation, fit: &Fit| m.explains == Explains::Value && (!fit.whole || fit.since.is_some()) && !m.entire;
        if !found.first().is_some_and(|((m, _), fit)| partial(m, fit)) {
            return None;
        }
        let mut least: Option<(usize, usize)> = None;
        let mut best: Option<(Solution, String)> = None;
        for (i, ((m, values), fit)) in found.iter().enumerate().take(PARTIAL) {
            if !partial(m, fit) || self.meter.over() {
                continue;
            }
            let (story, remedy) = m.told(values, (node, true), &self.oracle.graph);
            let fault = Fault { name: CauseId::new(m, values), story };
            let Some(solution) = solve::of_fault(e, fault, self.meter) else { continue };
            // If it holds from a position on that no kernel's rule gives, the fault keeps its own name.
            if fit.since.is_some_and(|since| fit.whole && solution.holds.is_since(since)) {
                // The first one explains all that is wrong so.
                if i == 0 {
                    return None;
                }
                continue;
            }
            if let Some(reach) = solution.reach() {
                least = Some(least.map_or((reach, i), |known| known.min((reach, i))));
            } else if matches!(solution.holds, Holds::Under { .. })
                && best.as_ref().is_none_or(|(best, _)| solution.holds.simplicity() < best.holds.simplicity())
            {
                best = Some((solution, remedy));
            }
        }
        let elsewhere = found.iter().position(|(candidate, _)| {
            known.iter().any(|(m, values)| m.name == candidate.0.name && *values == candidate.1)
        });
        if let Some(i) = elsewhere.or(least.map(|(_, i)| i)).filter(|_| best.is_none()) {
            found[..=i].rotate_right(1);
        }
        best
    }

    /// A known fault that explains an origin, as a law.
    pub(super) fn as_law(&self, origin: &StageResult, cause: &Cause) -> Option<Solution> {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id)?];
        let tried = self.part(origin, TRIED);
        // Since when it acts is a condition of the law.
        let name = CauseId { since: None, ..cause.name.clone() };
        let fault = Fault { name, story: cause.story.clone() };
        solve::of_fault(&self.evidence(node, tried.as_ref().unwrap_or(self.subject.capture)), fault, self.meter)
    }

    /// A law of another origin, if it gives all that is wrong of this one everywhere.
    pub(super) fn law_again(&self, origin: &StageResult, law: &solve::Known) -> Option<Solution> {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id)?];
        let tried = self.part(origin, TRIED);
        let e = self.evidence(node, tried.as_ref().unwrap_or(self.subject.capture));
        solve::again(&e, law, self.meter).filter(|s| s.confidence == Confidence::Proved && s.holds == Holds::Everywhere)
    }

    /// What this mutation explains of an origin, if it explains all of it.
    pub(super) fn again(&self, origin: &StageResult, candidate: &Candidate) -> Option<Cause> {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id)?];
        let tried = self.part(origin, TRIED);
        let e = self.evidence(node, tried.as_ref().unwrap_or(self.subject.capture));
        let fit = self.test(&e, None, candidate).filter(|fit| fit.whole)?;
        Some(self.cause(node, candidate, &fit, residual(origin), Vec::new()))
    }

    /// Where a law without a reported condition holds for an origin; `None` where it would change nothing else.
    pub(super) fn unexplained(&self, origin: &StageResult, solution: &Solution) -> Option<Holds> {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id)?];
        let tried = self.part(origin, TRIED);
        solve::unexplained(&self.evidence(node, tried.as_ref().unwrap_or(self.subject.capture)), solution, self.meter)
    }

    /// That each wrong row of an origin is multiplied by a factor of its own, if it is.
    pub(super) fn own_factors(&self, origin: &StageResult) -> Option<Solution> {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id)?];
        let tried = self.part(origin, TRIED);
        solve::own_factors(&self.evidence(node, tried.as_ref().unwrap_or(self.subject.capture)), self.meter)
    }

    /// What the residual of an origin looks like. More of it is looked at than hypotheses are tried on.
    pub(super) fn shape(&self, origin: &StageResult) -> String {
        let graph = &self.oracle.graph;
        let Some(node) = graph.index(origin.id).map(|i| &graph.nodes[i]) else { return String::new() };
        describe(&self.evidence(node, self.part(origin, DESCRIBED).as_ref().unwrap_or(self.subject.capture)))
    }

    /// Some of the rows of an origin, where it has more than `limit` elements.
    pub(super) fn part(&self, origin: &StageResult, limit: usize) -> Option<Capture> {
        let graph = &self.oracle.graph;
        let bad = origin.subject.as_ref().map_or_else(BTreeSet::new, |l| l.bad_positions.clone());
        excerpt(self.oracle, &graph.nodes[graph.index(origin.id)?], self.subject.capture, &bad, limit)
    }

    fn cause(&self, node: &Node, (m, values): &Candidate, fit: &Fit, before: f64, ties: Vec<CauseId>) -> Cause {
        let (story, remedy) = m.told(values, (node, true), &self.oracle.graph);
        Cause {
            name: named(m, values, fit),
            story,
            remedy,
            kind: m.explains,
            before,
            after: fit.after,
            used: fit.used,
            whole: fit.whole,
            ties,
        }
    }

    /// The ways to read weights that explain other origins, each once.
    fn readings(&self) -> Vec<through::Reads> {
        let mut all: Vec<through::Reads> = Vec::new();
        for known in self.known {
            if let Explanation::Solved(law) = &known.explanation
                && let Some((what, reading)) = law.reading()
                && !all.iter().any(|(known, _)| known == what)
            {
                all.push((what.to_owned(), reading.clone()));
            }
        }
        all
    }

    /// What explains the segment that ends in an origin by a way to read weights that explains other origins.
    pub(super) fn by_reading(&self, origin: &StageResult) -> Option<Finding> {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id)?];
        Segment::of(node, graph, self.subject.capture)?;
        let e = self.evidence(node, self.subject.capture);
        let found = through::by_reading(self, &e, &self.readings())?;
        let (finding, _) = Self::of_segment(&e, found, residual(origin));
        Some(Finding { unread: origin.unread, kept: origin.kept, ..finding })
    }

    /// What explains a segment by stages that were not captured.
    fn inside(
        &self, e: &Evidence<'_>, (before, part): (f64, bool), known: &[through::Key],
    ) -> Option<(Finding, through::Key)> {
        Segment::of(e.node, &e.oracle.graph, self.subject.capture)?;
        // Attention takes all rows before.
        let whole = part.then(|| self.evidence(e.node, self.subject.capture));
        let e = whole.as_ref().unwrap_or(e);
        let found = through::by_reading(self, e, &self.readings()).or_else(|| through::through(self, e, known))?;
        Some(Self::of_segment(e, found, before))
    }

    /// What is known of the same stage in other layers, or of any other stage, where it gives an origin.
    pub(super) fn by_known(&self, origin: &StageResult) -> Option<Solution> {
        let graph = &self.oracle.graph;
        let node = &graph.nodes[graph.index(origin.id)?];
        let (_, _, [own, elsewhere]) = self.known(origin.id.name);
        let tried = self.part(origin, TRIED);
        let e = self.evidence(node, tried.as_ref().unwrap_or(self.subject.capture));
        solve::by_known(&e, &[own, elsewhere].concat(), self.meter)
    }

    /// The capture with what should be inside of the segment that ends in a stage.
    pub(super) fn filled(&self, node: &Node) -> Option<Capture> {
        Segment::of(node, &self.oracle.graph, self.subject.capture)?;
        Some(Inside::of(node, self.oracle, self.subject)?.filled())
    }

    /// The last stage of a segment alone, as uncertain as the segment is.
    pub(super) fn of_last<'c>(&'c self, segment: &Evidence<'c>, filled: &'c Capture) -> Evidence<'c> {
        let own = self.evidence(segment.node, filled);
        let mut expected = own.exactly().clone();
        for (expected, segment) in expected.iter_mut().zip(segment.exactly()) {
            if let (Some((_, bound)), Some((_, of))) = (expected, segment) {
                bound.iter_mut().zip(of).for_each(|(b, of)| *b = b.max(*of));
            }
        }
        own.assuming(expected)
    }

    /// The finding of what was found in a segment.
    fn of_segment(e: &Evidence<'_>, found: through::Found, before: f64) -> (Finding, through::Key) {
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
                        holds: Holds::Everywhere,
                        confidence,
                        coarser: false,
                        halves: false,
                        law: None,
                        words: (0, String::new()),
                        of_model: None,
                        reads: None,
                        listed: None,
                        by_chance: None,
                        also: Vec::new(),
                        up_to: None,
                        elements,
                        unsaid: 0,
                        held_out,
                        used,
                    }),
                )
            }
        };
        let (inside, shape) = (found.stages, String::new());
        let key = Some(found.key.clone());
        let finding = Finding { key, ..Finding::of(e.node.id, (inside, cause, solution, shape)) };
        (finding, found.key)
    }

    /// What the subject gave and should have given, as far as `capture` holds it.
    pub(super) fn evidence<'c>(&'c self, node: &'c Node, capture: &'c Capture) -> Evidence<'c> {
        let side = Side { capture, ..self.subject };
        Evidence::new(self.oracle, node, side, self.filter, self.policy)
    }

    /// Everything that fits, best first.
    fn search(&self, e: &Evidence<'_>) -> Vec<(Candidate, Fit)> {
        let sample = e.sample();
        let small = sample.as_ref().map(|s| self.evidence(e.node, s));
        let small = small.map(|small| (Glance::of(&small), small));
        let try_one = |(order, candidate): &(usize, Candidate)| {
            let fit = self.test(e, small.as_ref(), candidate)?;
            Some((*order, candidate.clone(), fit))
        };
        let all = candidates(e).into_iter().enumerate();
        // What takes what was computed as it is takes no pass over the weights.
        let cheap = |(m, values): &Candidate| {
            let node = || m.applied(e.node, values, &self.oracle.graph);
            !heavy(e) || node().is_some_and(|node| as_computed(&node, e))
        };
        let (cheap, costly): (Vec<_>, Vec<_>) = all.partition(|(_, c)| cheap(c));
        // What survives the sample counts its own work.
        let elements = e.rows.iter().map(|row| row.range.len() as u64).sum::<u64>();
        let (kept, all) = (4 * elements, work_of(e.node, self.oracle, e.side.capture));
        let evaluated = small.as_ref().map_or(all, |(glance, small)| match glance {
            Some(glance) => glance.share(work_of(e.node, self.oracle, small.side.capture)),
            None => work_of(e.node, self.oracle, small.side.capture),
        });
        let each = |(_, (m, values)): &(usize, Candidate)| match m.applied(e.node, values, &self.oracle.graph) {
            Some(node) if !as_computed(&node, e) => evaluated,
            Some(_) => kept,
            None => 0,
        };
        let mut found: Vec<(usize, Candidate, Fit)> =
            self.meter.affordable(&cheap, each).par_iter().filter_map(try_one).collect();
        let explained = |f: &(usize, Candidate, Fit)| f.1.0.explains == Explains::Value && f.2.whole;
        // Each takes a pass over the weights: the first that explains all ends it.
        for candidate in costly {
            if found.iter().any(explained) || self.meter.half() {
                break;
            }
            self.meter.count(evaluated);
            found.extend(try_one(&candidate));
        }
        // What reproduces the values goes before what reproduces their size;
        // what holds of the whole stage before what holds of a part of it.
        found.sort_by_key(|(order, (m, _), fit)| (m.explains, !fit.whole, fit.since.is_some(), *order));
        found.into_iter().map(|(_, c, fit)| (c, fit)).collect()
    }

    /// What the hypothesis leaves of the evidence; first of the sample of it, where there is one.
    pub(super) fn test(
        &self, e: &Evidence<'_>, sample: Option<&Sample<'_>>, (mutation, values): &Candidate,
    ) -> Option<Fit> {
        let node = mutation.applied(e.node, values, &self.oracle.graph)?;
        // Another operand that was not captured may have to be evaluated from far
        // away, which takes long and proves little.
        let others = node.inputs != e.node.inputs;
        if others && products_beyond(&node, e.node, self.oracle, e.side.capture) > BEYOND {
            return None;
        }
        self.meter.count_tried(1);
        let scope = match node.weights != e.node.weights || node.faults.read.is_some() {
            _ if mutation.whole_run => Scope::Run,
            true => Scope::Steps,
            false => Scope::Rows,
        };
        let unwritten = node.faults.write.is_none();
        if mutation.explains == Explains::Rounding && !sums::of_halves(e) {
            return None;
        }
        if let Some((glance, small)) = sample.filter(|_| unwritten && !others) {
            if glance.as_ref().is_some_and(|glance| !glance.survives(small, &node, self.filter)) {
                return None;
            }
            if glance.is_some() {
                self.meter.count(work_of(e.node, self.oracle, small.side.capture));
            }
            fit(small, &assume(&node, small), scope)?;
        }
        if sample.is_some() && !as_computed(&node, e) {
            self.meter.count(work_of(e.node, self.oracle, e.side.capture));
        }
        let assumed = assume(&node, e);
        let fit = fit(e, &assumed, scope)?;
        // A number that is fitted gives some elements near their bounds by chance; one that others use does not.
        let is_fitted = mutation.of_model && !mutation.usual().contains(values);
        if is_fitted && through::bits(e, &assumed) < solve::BITS {
            return None;
        }
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
pub(super) fn assume(node: &Node, e: &Evidence<'_>) -> Expected {
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
        && node.faults.hold.is_none()
}

/// What an origin holds where all that is wrong seems never to have been written: rows of one value, and of NaN unless what
/// reads them shows that it had others.
fn unwritten(origin: &StageResult) -> Option<String> {
    // NaN at the end of a segment may come from any of its stages.
    let is_buffer = |segment: bool| !segment || origin.unread || origin.kept;
    let local = origin.subject.as_ref().filter(|l| l.never_written() && is_buffer(l.segment.is_some()))?;
    let held = local.non_finite.as_ref().or(local.worst.as_ref()).map(|element| element.got)?;
    if !origin.unread && !origin.kept && !held.is_nan() {
        return None;
    }
    let rows = counted(local.unwritten, "row");
    let s = if local.unwritten == 1 { "s" } else { "" };
    Some(format!("as if never written: {rows} of the capture hold{s} {held} throughout"))
}

/// The residual of an origin; NaN where it is not finite.
fn residual(origin: &StageResult) -> f64 {
    origin.subject.as_ref().filter(|l| l.non_finite.is_none()).map_or(f64::NAN, |l| l.residual)
}

/// Whether one evaluation of the stage takes a noticeable time.
pub(super) fn heavy(e: &Evidence<'_>) -> bool {
    let products: usize = e.node.weights.iter().map(|w| w.extent.iter().product::<usize>()).sum();
    e.node.op.anatomy().is_layer() && products > HEAVY
}

/// The cause that a candidate is where it fits so.
pub(super) fn named(mutation: &Mutation, values: &[f64], fit: &Fit) -> CauseId {
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
    let all = fitting.flat_map(|m| values(m).into_iter().map(move |values| (m, values)));
    // In a cache without blocks nothing is held otherwise.
    let without_blocks = e.side.arithmetic.kv.of(e.node.is_of_values()).block_size() == 1;
    let holds = |(m, values): &Candidate| {
        m.applied(e.node, values, &e.oracle.graph).is_some_and(|node| node.faults.hold.is_some())
    };
    all.filter(|candidate| !(without_blocks && holds(candidate))).collect()
}
