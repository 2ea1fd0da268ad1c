//! A cause is a prediction: what explains one run must give what another run of other tokens holds.
//!
//! Each explanation is evaluated on the other run's own operands with the numbers that the first run gave it. It must give
//! every wrong element there within rounding and make no right one wrong. What fits the first run alone is withdrawn; where
//! the two runs allow fewer conditions than the first one did, the report gives the condition that both allow.

use super::doubt::among_layers;
use super::searcher::{Searcher, assume};
use super::solve::{
    Condition, Form, Holds, Known, OTHERWISE, Pair, Predicted, RIGHT, WORK, When, again, apart, beside, known_up_to,
    of_all, of_law, of_values, others, solve_if,
};
use super::work::Meter;
use super::{Cause, Confidence, Diagnosis, Finding, OtherRun, Solution, Trial, through};
use crate::capture::{Capture, Filter};
use crate::mutations::{CauseId, Explains, Mutation, find};
use crate::oracle::Oracle;
use crate::progress::Progress;
use crate::verdict::{Evidence, Policy, Side, StageResult, TRIED, excerpt, work_of};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// What is being done, as progress tells it.
const TRYING: &str = "trying causes on other tokens";

/// The work that trying explanations on one run may take: about 3 seconds of a core.
const WORK_OF_A_RUN: u64 = 3_000_000_000;

/// What the first one may take instead, however wide its stage is: about 8 seconds.
const WORK_OF_THE_FIRST: u64 = 8_000_000_000;

/// What the few after it may take, if the first one took all: about a second each. A cause is reported as tried, or taken back.
const WORK_OF_THE_NEXT: u64 = 1_000_000_000;

/// How many those are.
const NEXT: usize = 3;

/// Elements that are looked at of a stage that was looked at as a whole in the first run.
const WHOLE: usize = 4 * TRIED;

/// Whether the finding has anything that other tokens can test.
fn may_be_tried(finding: &Finding) -> bool {
    finding.says_why() && !finding.unwritten
}

impl Diagnosis {
    /// Whether it tells a cause that other tokens may bear out.
    pub fn tells_causes(&self) -> bool {
        self.findings.iter().any(may_be_tried)
    }

    /// Whether a cause is reported by one rule of several that fit the runs so far.
    pub fn leaves_rules_open(&self) -> bool {
        self.findings.iter().filter_map(|f| f.solution.as_ref()).any(|solution| !solution.also.is_empty())
    }

    /// Into how many kinds the rules of all causes come apart that are left open, in a run in these passes with so many decode steps
    /// after them.
    pub fn rules_apart(&self, passes: &[usize], decode: usize) -> usize {
        self.findings.iter().filter_map(|f| f.solution.as_ref()).map(|solution| apart(solution, passes, decode)).sum()
    }

    /// The conditions of causes, the simplest of each.
    fn conditions(&self) -> impl Iterator<Item = &When> {
        self.findings.iter().filter_map(|finding| match &finding.solution.as_ref()?.holds {
            Holds::Under { conditions, .. } => conditions.first(),
            Holds::Everywhere | Holds::Some { .. } => None,
        })
    }

    /// Token ids, so many at most, of which the run does not tell whether the condition of a cause holds.
    pub fn ids_untold(&self, most: usize) -> Vec<u32> {
        let untold = self.conditions().filter_map(When::ids_untold);
        let all = untold.flat_map(|(first, last)| {
            let each = (last - first) as usize / most.max(1) + 1;
            (first..=last).step_by(each).chain([last])
        });
        all.take(most).collect()
    }

    /// A position at which the runs do not tell whether a cause is at work in a part that begins there: the one that kernels are most
    /// likely to cut at.
    pub fn begin_untold(&self) -> Option<usize> {
        let (first, last) = self.conditions().find_map(When::begins_untold)?;
        (first.max(1)..=last).max_by_key(|at| at.trailing_zeros())
    }

    /// Says of every cause why it was not tried on other tokens.
    pub fn untried(&mut self, because: &str) {
        for finding in self.findings.iter_mut().filter(|finding| may_be_tried(finding)) {
            finding.trial = Some(Trial::Untried { because: because.to_owned() });
            if let Some(solution) = &mut finding.solution {
                solution.tell_no_chance();
            }
        }
    }
}

/// Holds every explanation of the run `subject` against `others`, runs of the same subject on other tokens. Those are tried
/// first that come first, one of each stage name; then the others while work is left. `progress` takes the number done.
pub fn confirm(
    oracle: &Oracle<'_>, subject: &Side<'_>, others: &[Side<'_>], (filter, policy): (&Filter, &Policy),
    diagnosis: &mut Diagnosis, progress: Progress<'_>,
) {
    diagnosis.others = others.iter().map(|side| run(side.capture)).collect();
    let tokens: usize = diagnosis.others.iter().map(|run| run.prompt.len() + run.decoded.len()).sum();
    // More where the search was given more.
    let budget = diagnosis.search.budget.max(1.0);
    let work = |of_a_run: u64| (of_a_run as f64 * budget) as u64 * others.len() as u64;
    let mut left = work(WORK_OF_A_RUN);
    let Diagnosis { verdict, findings, .. } = diagnosis;
    let origins = verdict.origins();
    let mut order: Vec<usize> = (0..findings.len()).filter(|&i| may_be_tried(&findings[i])).collect();
    order.sort_by_key(|&i| (0..i).any(|j| findings[j].id.name == findings[i].id.name));
    let all = order.len();
    // What explains both runs in the place of a law that explains one, by the name of the stage.
    let mut better: Vec<(&str, Known)> = Vec::new();
    for (done, i) in order.into_iter().enumerate() {
        progress(TRYING, done, all);
        let Some(origin) = origins.iter().find(|origin| origin.id == findings[i].id) else { continue };
        let least = match done {
            0 => WORK_OF_THE_FIRST,
            1..=NEXT => WORK_OF_THE_NEXT,
            _ => 0,
        };
        let meter = Meter::new(left.max(work(least)));
        let of = |side| Searcher { oracle, subject: side, filter, policy, known: &[], meter: &meter, examples: false };
        let first = of(*subject);
        let known: Vec<&Known> =
            better.iter().filter(|(name, _)| *name == origin.id.name).map(|(_, law)| law).collect();
        let alone = others.len() == 1;
        let against = Against::Run { alone, known: &known };
        let each = others.iter().map(|other| tried(&first, &of(*other), origin, (&findings[i], against)));
        let said = each.reduce(together).unwrap_or_else(|| Said::of(Predicted::Silent(WORK)));
        if let Some((instead, _)) = &said.instead {
            better.push((origin.id.name, instead.known(origin.id.layer)));
        }
        settle(&first, origin, &mut findings[i], said, tokens);
        left -= meter.done().min(left);
    }
    if all > 0 {
        progress(TRYING, all, all);
    }
    let meter = Meter::new(0);
    let searcher = Searcher { oracle, subject: *subject, filter, policy, known: &[], meter: &meter, examples: false };
    among_layers(&searcher, &origins, findings);
}

/// Holds the rules that are left open against one run more, of which those stay that it allows.
pub fn narrow(
    oracle: &Oracle<'_>, subject: &Side<'_>, other: Side<'_>, (filter, policy): (&Filter, &Policy),
    diagnosis: &mut Diagnosis,
) {
    let Diagnosis { verdict, findings, others, .. } = diagnosis;
    others.push(run(other.capture));
    let more = others.last().map_or(0, |run| run.prompt.len() + run.decoded.len());
    let origins = verdict.origins();
    for finding in findings {
        let Some(solution) = finding.solution.as_ref().filter(|solution| !solution.also.is_empty()) else { continue };
        let Some(origin) = origins.iter().find(|origin| origin.id == finding.id) else { continue };
        let meter = Meter::new(WORK_OF_THE_FIRST);
        let of = |side| Searcher { oracle, subject: side, filter, policy, known: &[], meter: &meter, examples: false };
        let (first, there) = (of(*subject), of(other));
        let Some(node) = oracle.graph.index(finding.id).map(|i| &oracle.graph.nodes[i]) else { continue };
        let part = first.part(origin, TRIED);
        let here = first.evidence(node, part.as_ref().unwrap_or(subject.capture));
        let there = there.evidence(node, other.capture);
        let pair = Pair { first: &here, other: &there, meter: &meter };
        let allows = |form: &Form| {
            let other = Solution { law: Some(form.clone()), also: Vec::new(), ..solution.clone() };
            match of_law(pair, &other).0 {
                Predicted::Holds { elements, .. } => Some((elements, true)),
                Predicted::Under { elements, .. } => Some((elements, false)),
                Predicted::Silent(_) => Some((0, true)),
                Predicted::Open { .. } | Predicted::Fails(_) => None,
            }
        };
        let all = solution.law.iter().chain(&solution.also);
        let kept = all.filter_map(|form| Some((form.clone(), allows(form)?)));
        let (same, otherwise): (Vec<_>, Vec<_>) = kept.partition(|(_, (_, same))| *same);
        // A rule that asks for another condition is not as likely as one that holds under its own.
        let kept = if same.is_empty() { otherwise } else { same };
        let kept: Vec<(Form, usize)> = kept.into_iter().map(|(form, (elements, _))| (form, elements)).collect();
        let told = finding.told().unwrap_or_default();
        let (Some(((law, more_elements), rest)), Some(solution)) = (kept.split_first(), &mut finding.solution) else {
            finding.leave_place(first.shape(origin));
            let because = OTHERWISE.to_owned();
            finding.trial = Some(Trial::Withdrawn { tokens: more, told, because });
            continue;
        };
        (solution.what, solution.law) = (law.to_string(), Some(law.clone()));
        solution.also = rest.iter().map(|(form, _)| form.clone()).collect();
        if let Some(Trial::Confirmed { elements, tokens, .. } | Trial::Narrowed { elements, tokens, .. }) =
            &mut finding.trial
        {
            (*elements, *tokens) = (*elements + more_elements, *tokens + more);
        }
    }
}

/// The tokens of a capture.
pub(super) fn run(capture: &Capture) -> OtherRun {
    let of = |decoded: bool| -> Vec<u32> {
        let steps = capture.steps.iter().filter(|step| (step.index > 0) == decoded);
        steps.flat_map(|step| step.tokens.iter().copied()).collect()
    };
    OtherRun { prompt: of(false), decoded: of(true) }
}

/// The result for a run.
struct Said {
    predicted: Predicted,
    /// The words of a law that hold, if not all do; a fault's name there, if a number differs.
    what: Option<String>,
    /// If the reported cause fails: what explains the other run, and holds in the first one.
    /// With the wrong elements of the other run that it gives.
    instead: Option<(Box<Solution>, usize)>,
    /// Laws by other rules that both runs allow.
    also: Vec<Form>,
    /// Keys of a query up to which the parts of a law are known.
    up_to: Option<usize>,
}

impl Said {
    fn of(predicted: Predicted) -> Self {
        Self { predicted, what: None, instead: None, also: Vec::new(), up_to: None }
    }
}

/// What two runs say.
fn together(a: Said, b: Said) -> Said {
    use Predicted::{Fails, Holds, Open, Silent, Under};
    let what = a.what.or(b.what);
    let predicted = match (a.predicted, b.predicted) {
        (Fails(why), _) | (_, Fails(why)) => Fails(why),
        (Silent(_), other) | (other, Silent(_)) => other,
        (Open { elements: x, of }, Open { elements: y, .. }) => Open { elements: x + y, of },
        (Open { elements: x, of }, Holds { elements: y, .. } | Under { elements: y, .. })
        | (Holds { elements: y, .. } | Under { elements: y, .. }, Open { elements: x, of }) => {
            Open { elements: x + y, of }
        }
        (Holds { elements: x, both: None }, Holds { elements: y, both })
        | (Holds { elements: x, both }, Holds { elements: y, both: None }) => Holds { elements: x + y, both },
        // The reported one is first in both.
        (Holds { elements: x, both: Some(a) }, Holds { elements: y, both: Some(b) }) => {
            Holds { elements: x + y, both: Some(of_both(a, &b)) }
        }
        (Holds { elements: x, both: None }, Under { elements: y, both })
        | (Under { elements: x, both }, Holds { elements: y, both: None }) => Under { elements: x + y, both },
        (Holds { elements: x, both: Some(a) } | Under { elements: x, both: a }, Under { elements: y, both: b })
        | (Under { elements: x, both: a }, Holds { elements: y, both: Some(b) }) => match of_both(a, &b) {
            both if both.is_empty() => Fails(OTHERWISE),
            both => Under { elements: x + y, both },
        },
    };
    let also = a.also.into_iter().filter(|form| b.also.contains(form)).collect();
    Said { predicted, what, instead: None, also, up_to: a.up_to.max(b.up_to) }
}

/// Conditions that are among others too.
fn of_both(mut some: Vec<When>, others: &[When]) -> Vec<When> {
    some.retain(|when| others.iter().any(|other| other.alike(when)));
    some
}

/// What an explanation is held against.
#[derive(Clone, Copy)]
enum Against<'a> {
    /// Another run, of one alone or of several; with what explains another layer of both runs.
    Run { alone: bool, known: &'a [&'a Known] },
    /// Another sequence of the run: it only shows whether the explanation holds there.
    Sequence,
}

/// What the explanation of a finding says of another run.
fn tried(
    first: &Searcher<'_>, other: &Searcher<'_>, origin: &StageResult, (finding, against): (&Finding, Against<'_>),
) -> Said {
    let graph = &first.oracle.graph;
    let Some(node) = graph.index(finding.id).map(|i| &graph.nodes[i]) else { return Said::of(Predicted::Silent(WORK)) };
    let capture = other.subject.capture;
    let everywhere: BTreeSet<usize> = (0..capture.steps.last().map_or(0, |step| step.keys())).collect();
    let mixes = finding.cause.as_ref().and_then(|cause| find(&cause.name.mutation)).is_some_and(|m| m.mixes_rows);
    let may_be_part = finding.inside.is_empty() && !mixes;
    let part = first.part(origin, TRIED).filter(|_| may_be_part);
    let limit = if part.is_some() { TRIED } else { WHOLE };
    let other_part = excerpt(first.oracle, node, capture, &everywhere, limit).filter(|_| may_be_part);
    let (at_first, there) = (part.as_ref().unwrap_or(first.subject.capture), other_part.as_ref().unwrap_or(capture));
    if !there.steps.iter().any(|step| step.stages.contains_key(&node.id)) {
        return Said::of(Predicted::Silent("the stage was not captured there"));
    }
    let work = work_of(node, first.oracle, there) + work_of(node, first.oracle, at_first);
    if work > first.meter.left() {
        return Said::of(Predicted::Silent(WORK));
    }
    first.meter.count(work);
    let (here, there) = (first.evidence(node, at_first), other.evidence(node, there));
    if let Some(key) = &finding.key {
        return Said::of(inside(other, &there, key));
    }
    if let Some(solution) = finding.solution.as_ref().filter(|_| !finding.inside.is_empty()) {
        // The last stage of a segment, as if the others were right.
        let (Some(a), Some(b)) = (first.filled(node), other.filled(node)) else {
            return Said::of(Predicted::Silent(WORK));
        };
        let (here, there) = (first.of_last(&here, &a), other.of_last(&there, &b));
        let (predicted, what) = of_law(Pair { first: &here, other: &there, meter: first.meter }, solution);
        return Said { predicted, what, ..Said::of(Predicted::Silent(WORK)) };
    }
    let (predicted, what) = match (&finding.solution, &finding.cause) {
        (Some(_), _) if !there.misshapen.is_empty() => (Predicted::Fails(OTHERWISE), None),
        (Some(solution), _) => of_law(Pair { first: &here, other: &there, meter: first.meter }, solution),
        (None, Some(cause)) => of_cause(other, (&here, &there), cause),
        (None, None) => (Predicted::Silent(WORK), None),
    };
    let Against::Run { alone, known } = against else {
        return Said { predicted, what, ..Said::of(Predicted::Silent(WORK)) };
    };
    // A condition on two features in the place of one may show that the law is another.
    let asks_more = |both: &[When]| {
        matches!(both.first(), Some(When::Both(..)))
            && finding.solution.as_ref().is_some_and(|solution| !solution.holds.on_two_features())
    };
    let asks_more = matches!(&predicted, Predicted::Under { both, .. } if asks_more(both));
    let fails = asks_more || matches!(predicted, Predicted::Fails(_) | Predicted::Open { .. });
    let told = finding.solution.as_ref();
    let instead = if fails && alone { of_both_runs((&here, &there), (told, known), first.meter) } else { None };
    let instead = instead.filter(|(solution, _)| {
        // Two laws, each under a condition, ask as much.
        !asks_more || !solution.holds.on_two_features() && !solution.is_twice()
    });
    let told = instead.as_ref().map(|(solution, _)| &**solution).or(finding.solution.as_ref());
    let fits = |solution: &&Solution| match predicted {
        Predicted::Holds { .. } | Predicted::Under { .. } => true,
        // Where no other run bears a rule out, the plain one is the likely one.
        Predicted::Silent(_) => !solution.sees_plainly(),
        Predicted::Open { .. } | Predicted::Fails(_) => instead.is_some(),
    };
    let also = told.filter(fits).map(|solution| others(solution, [&here, &there])).unwrap_or_default();
    let up_to = told.and_then(|solution| known_up_to(solution, [&here, &there]));
    Said { predicted, what, instead, also, up_to }
}

/// Leaves of a finding what the other run says of it alone.
pub(super) fn settled_by(
    first: &Searcher<'_>, other: &Searcher<'_>, origin: &StageResult, finding: &mut Finding, tokens: usize,
) {
    let said = tried(first, other, origin, (finding, Against::Run { alone: true, known: &[] }));
    settle(first, origin, finding, said, tokens);
}

/// The conditions under which the law of a finding holds in the first run and in others. None where it does not say what is wrong there.
pub(super) fn in_all(
    first: &Searcher<'_>, others: [&Searcher<'_>; 2], origin: &StageResult, finding: &Finding,
) -> Vec<When> {
    let graph = &first.oracle.graph;
    let node = graph.index(finding.id).map(|i| &graph.nodes[i]);
    let (Some(solution), Some(node), true) = (&finding.solution, node, finding.inside.is_empty()) else {
        return Vec::new();
    };
    let part = first.part(origin, TRIED);
    let at_first = first.evidence(node, part.as_ref().unwrap_or(first.subject.capture));
    let [a, b] = others.map(|other| other.evidence(node, other.subject.capture));
    of_all(&[&at_first, &a, &b], solution, first.meter)
}

/// What the explanation of a finding says of another sequence of its run.
pub(super) fn held_there(
    first: &Searcher<'_>, other: &Searcher<'_>, origin: &StageResult, finding: &Finding,
) -> Predicted {
    tried(first, other, origin, (finding, Against::Sequence)).predicted
}

/// Wrong elements of the other run that a law gives, and where it holds in both.
fn holds(pair: Pair<'_>, solution: &Solution) -> Option<(usize, Holds)> {
    let (elements, holds) = match of_law(pair, solution) {
        (Predicted::Holds { elements, both: None }, None) => (elements, Holds::Everywhere),
        (
            Predicted::Holds { elements, both: Some(conditions) } | Predicted::Under { elements, both: conditions },
            None,
        ) => (elements, Holds::Under { conditions, tried: true }),
        _ => return None,
    };
    (elements > 0 && solution.confidence == Confidence::Proved).then_some((elements, holds))
}

/// What is read off the other run where the first one misled, if it gives what the first one holds: it says which elements
/// of that are wrong, and none of them was used to find it.
fn of_both_runs(
    (here, there): (&Evidence<'_>, &Evidence<'_>), (told, known): (Option<&Solution>, &[&Known]), meter: &Meter,
) -> Option<(Box<Solution>, usize)> {
    // What comes to the same in the first run is near at hand: another number of the same law.
    let near = told.and_then(|told| {
        let own = Meter::new(meter.left() / 3);
        let pair = Pair { first: here, other: there, meter: &own };
        let found = beside(here, told, &own, &|solution| {
            holds(pair, solution).is_some_and(|(_, holds)| !holds.on_two_features())
        });
        meter.count(own.done());
        found
    });
    if let Some(solution) = near
        && let Some((elements, holds)) = holds(Pair { first: here, other: there, meter }, &solution)
    {
        return Some((Box::new(Solution { holds, ..solution }), elements));
    }
    // What explains another layer of both runs.
    for law in known {
        let Some(solution) = again(here, law, meter) else { continue };
        if let Some((elements, holds)) = holds(Pair { first: here, other: there, meter }, &solution) {
            return Some((Box::new(Solution { holds, ..solution }), elements));
        }
    }
    let found = |from: &Evidence<'_>, to: &Evidence<'_>| {
        let own = Meter::new(meter.left() / 3);
        let pair = Pair { first: from, other: to, meter: &own };
        let holds = |solution: &Solution| holds(pair, solution);
        // A law with a condition on two features is reported if every other law needs as much.
        let second = RefCell::new(None);
        let accept = |solution: &Solution| {
            let Some((elements, holds)) = holds(solution) else { return false };
            let simple = !holds.on_two_features();
            if !simple {
                second.borrow_mut().get_or_insert_with(|| (Solution { holds, ..solution.clone() }, elements));
            }
            simple
        };
        let found = solve_if(from, (&[], &[]), &own, &accept);
        let found = found.and_then(|solution| {
            let (elements, holds) = holds(&solution)?;
            Some((Solution { holds, ..solution }, elements))
        });
        let found = found.or(second.into_inner());
        meter.count(own.done());
        found
    };
    // What else the first run allows, and what the other one says, which the first one must bear out.
    let (solution, elements) = match found(here, there) {
        Some(found) => found,
        None => {
            let lists =
                |solution: &Solution| solution.holds.is_list() || solution.law.as_ref().is_some_and(Form::lists_rows);
            let (solution, elements) = found(there, here).filter(|(solution, _)| !lists(solution))?;
            let of_other = solution.elements;
            (Solution { elements, held_out: elements, ..solution }, of_other)
        }
    };
    Some((Box::new(solution), elements))
}

/// What a fault of stages that were not captured says.
fn inside(other: &Searcher<'_>, e: &Evidence<'_>, key: &through::Key) -> Predicted {
    if e.bad_rows().next().is_none() && e.misshapen.is_empty() {
        return Predicted::Fails(RIGHT);
    }
    match through::again(other, e, key) {
        Some(found) => Predicted::Holds { elements: found.elements.0, both: None },
        None if other.meter.over() => Predicted::Silent(WORK),
        None => Predicted::Fails(OTHERWISE),
    }
}

/// What a fault of the catalogue says. A number that is the length of the prompt is that of the other one there.
fn of_cause(
    other: &Searcher<'_>, (here, there): (&Evidence<'_>, &Evidence<'_>), cause: &Cause,
) -> (Predicted, Option<String>) {
    let Some(mutation) = find(&cause.name.mutation) else { return (Predicted::Silent(WORK), None) };
    let own: Vec<f64> = cause.name.parameters.iter().map(|(_, value)| *value).collect();
    let of = |values: &[f64]| of_values_there(other, (here, there), cause, (mutation, [&own, values]));
    let predicted = of(&own);
    if !matches!(predicted, Predicted::Fails(_)) {
        return (predicted, None);
    }
    let [length, length_there] = [here, there].map(|e| prompt(e.side.capture) as f64);
    let Some(at) = own.iter().position(|value| *value == length && length > 1.0) else { return (predicted, None) };
    let mut values = own.clone();
    values[at] = length_there;
    match of(&values) {
        Predicted::Fails(_) => (predicted, None),
        held => (
            held,
            Some(format!("{}: {} is the prompt's length", CauseId::new(mutation, &values), mutation.params[at].name)),
        ),
    }
}

/// Tokens of the prompt of a run.
fn prompt(capture: &Capture) -> usize {
    capture.steps.iter().filter(|step| step.index == 0).map(|step| step.tokens.len()).sum()
}

/// What a fault says with these values of its parameters in the first run, and in the other one.
fn of_values_there(
    other: &Searcher<'_>, (here, there): (&Evidence<'_>, &Evidence<'_>), cause: &Cause,
    (mutation, [own, values]): (&'static Mutation, [&[f64]; 2]),
) -> Predicted {
    let applied = |values: &[f64]| mutation.applied(here.node, values, &here.oracle.graph);
    let (Some(node), Some(node_there)) = (applied(own), applied(values)) else { return Predicted::Fails(OTHERWISE) };
    let condition = match cause.name.since {
        _ if !cause.whole => Condition::Unsaid,
        Some(position) => Condition::Since(position),
        None => Condition::None,
    };
    let by_values = || {
        let pair = Pair { first: here, other: there, meter: other.meter };
        of_values(pair, (&assume(&node, here), &assume(&node_there, there)), condition)
    };
    if there.bad_rows().next().is_none() && there.misshapen.is_empty() {
        return by_values();
    }
    let Some(fit) = other.test(there, None, &(mutation, values.to_vec())) else {
        return Predicted::Fails(OTHERWISE);
    };
    let same = cause.whole && fit.whole && cause.name.since == fit.since;
    // Sizes have no values, and neither has NaN; a wrong extent has no elements of its own.
    let of_values = cause.kind == Explains::Value && cause.before > 0.0 && cause.before.is_finite();
    if same && (!of_values || !there.misshapen.is_empty()) {
        let given = there.misshapen.iter().filter_map(|&step| there.given[step].as_ref());
        let elements = there.wrong().len() + given.map(|tensor| tensor.data.len()).sum::<usize>();
        return Predicted::Holds { elements, both: None };
    }
    by_values()
}

/// Leaves of a finding what both runs say.
fn settle(first: &Searcher<'_>, origin: &StageResult, finding: &mut Finding, said: Said, tokens: usize) {
    let Said { predicted, what, instead, also, up_to } = said;
    if let Some((solution, elements)) = instead {
        let trial = Some(Trial::Confirmed { elements, tokens, there: None });
        finding.leave_place(String::new());
        (finding.solution, finding.trial) = (Some(Solution { also, up_to, ..*solution }), trial);
        return;
    }
    if let Some(solution) = &mut finding.solution {
        (solution.also, solution.up_to) = (also, up_to);
    }
    let because = str::to_owned;
    let trial = match predicted {
        Predicted::Holds { elements, both } => {
            if let (Some(solution), Some(conditions)) = (&mut finding.solution, both) {
                solution.holds = Holds::Under { conditions, tried: true };
            }
            let there = what.clone().filter(|_| finding.solution.is_none());
            Trial::Confirmed { elements, tokens, there }
        }
        Predicted::Under { elements, both } => {
            as_law(first, origin, finding);
            narrowed(finding, (elements, tokens), Holds::Under { conditions: both, tried: true })
        }
        Predicted::Open { elements, of } => narrowed(finding, (elements, tokens), of),
        Predicted::Silent(WORK) => Trial::Untried { because: because(WORK) },
        Predicted::Silent(why) => Trial::Silent { tokens, because: because(why) },
        Predicted::Fails(why) => {
            let told = finding.told().unwrap_or_default();
            finding.leave_place(first.shape(origin));
            Trial::Withdrawn { tokens, told, because: because(why) }
        }
    };
    finding.trial = Some(trial);
    if let (Some(solution), Some(what)) = (&mut finding.solution, what) {
        solution.what = what;
    }
}

/// Makes a law of a fault that holds under a condition: the condition is then a prediction for a third run.
pub(super) fn as_law(first: &Searcher<'_>, origin: &StageResult, finding: &mut Finding) {
    let of_values = |cause: &&Cause| cause.kind == Explains::Value;
    let alone = finding.solution.is_none() && finding.inside.is_empty();
    let Some(cause) = finding.cause.as_ref().filter(of_values).filter(|_| alone) else { return };
    let Some(solution) = first.as_law(origin, cause) else { return };
    finding.remedy = finding.remedy.take().or_else(|| Some(cause.remedy.clone()));
    (finding.solution, finding.cause) = (Some(solution), None);
}

pub(super) fn narrowed(finding: &mut Finding, (elements, tokens): (usize, usize), holds: Holds) -> Trial {
    if let Some(solution) = &mut finding.solution {
        solution.holds = holds.clone();
        match holds {
            Holds::Some { .. } => solution.confidence = Confidence::Consistent,
            // A condition that both runs allow says why others are right.
            _ if elements > 0 => solution.confidence = Confidence::Proved,
            _ => {}
        }
    }
    // A place that was named may be another one there.
    if finding.solution.is_some() {
        finding.cause.take_if(|cause| cause.kind == Explains::Place);
    }
    if let Some(cause) = &mut finding.cause {
        cause.name.since = None;
        cause.whole = false;
    }
    Trial::Narrowed { elements, tokens, holds }
}
