//! Causes in several sequences of one run. The engine is one: what explains a stage in one of them must give what is wrong of
//! that stage in the others, and then all of them get the same cause.

use super::confirm::held_there;
use super::doubt::among_layers;
use super::searcher::{PREFIX, Searcher};
use super::solve::{Form, Holds, OTHERWISE, Predicted, RIGHT, WORK, When, jointly, others};
use super::spots::{Told, wrong_elements};
use super::work::Meter;
use super::{
    Diagnosis, Finding, Search, Solution, Trial, borrowed, joined, leaks, passes, resumed, scattered, strangers,
    taken_over,
};
use crate::capture::Filter;
use crate::mutations::find;
use crate::oracle::Oracle;
use crate::verdict::{Evidence, Policy, Side, StageResult, judge};
use anyhow::Result;
use qdiff_engine::model::StageId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The work that holding causes against other sequences may take: about 6 seconds of a core.
const WORK_OF_ALL: u64 = 6_000_000_000;

/// The work that holding rules against another run may take, which are looked for in both.
const WORK_OF_RULES: u64 = 2 * WORK_OF_ALL;

/// The third opinion on each sequence of a run: sequences may have different adapters.
#[derive(Clone, Copy)]
pub struct Opinions<'o> {
    /// That on most of them.
    pub usual: &'o Oracle<'o>,
    /// That on a sequence which has another one.
    pub others: &'o dyn Fn(&Side<'_>) -> Option<&'o Oracle<'o>>,
}

impl<'o> Opinions<'o> {
    fn of(&self, side: &Side<'_>) -> &'o Oracle<'o> {
        (self.others)(side).unwrap_or(self.usual)
    }

    pub(super) fn searcher<'s>(
        &self, side: Side<'s>, (filter, policy): (&'s Filter, &'s Policy), meter: &'s Meter,
    ) -> Searcher<'s>
    where
        'o: 's,
    {
        Searcher { oracle: self.of(&side), subject: side, filter, policy, known: &[], meter, examples: false }
    }
}

/// A sequence as it was judged.
pub struct Sibling<'a> {
    /// Its steps; those of a prefix that it has from another sequence come first.
    pub side: Side<'a>,
    /// What was found in it.
    pub diagnosis: &'a mut Diagnosis,
}

/// Holds the causes of each stage in each of the sequences of a run against the others. A cause that gives all that is wrong
/// there is the cause in all of them; one that does not is taken back, unless the stage is right in the others: then it has
/// to do with the sequence, and what is taken back is its condition.
pub fn among_sequences(opinions: Opinions<'_>, runs: &mut [Sibling<'_>], (filter, policy): (&Filter, &Policy)) {
    let meter = Meter::new(WORK_OF_ALL);
    let of = |side| opinions.searcher(side, (filter, policy), &meter);
    let searchers: Vec<Searcher<'_>> = runs.iter().map(|run| of(run.side)).collect();
    let mut decided: BTreeMap<&'static str, Decided> = BTreeMap::new();
    for id in stages(runs) {
        let all: Vec<(&Searcher<'_>, &Diagnosis)> =
            searchers.iter().zip(runs.iter()).map(|(searcher, run)| (searcher, &*run.diagnosis)).collect();
        // The engine runs the same code in each layer.
        let changed = match decided.get(id.name) {
            Some(known) if meter.over() || known.knows(&all, id) => known.in_layer(&all, id),
            None if meter.over() => continue,
            _ => {
                let (changed, new) = settled(&all, id);
                decided.entry(id.name).or_insert(new);
                changed
            }
        };
        put(runs, changed);
    }
    let all: Vec<(&Searcher<'_>, &Diagnosis)> =
        searchers.iter().zip(runs.iter()).map(|(searcher, run)| (searcher, &*run.diagnosis)).collect();
    let changed = by_others(&all);
    put(runs, changed);
}

/// The sequences of a run as they were judged, and the number of the one that is looked at.
pub(super) type Runs<'a> = (&'a [(&'a Searcher<'a>, &'a Diagnosis)], usize);

/// Why no run on other tokens is made.
const OF_THIS_RUN: &str = "it is read off the values of the sequences of this run";

/// Why a law that gives what is wrong in several sequences is no cause.
const NO_RULE: &str = "no rule was found that says in all sequences which elements it is about";

/// The same of where a law holds.
const OF_SEQUENCES: &str = "where it holds is read off all sequences of this run together";

/// Why another run of such passes says nothing of what this one shows.
const NOTHING_THERE: &str = "nothing of this stage is wrong in that run";

/// The same where something is.
const OTHERWISE_THERE: &str = "in that run it was not found in the same places of the passes";

/// What the values of all sequences show of a stage, and those of one sequence do not.
const BY_OTHERS: [fn(&Evidence<'_>, Runs<'_>) -> Option<Told>; 9] = [
    passes::words,
    strangers::words,
    leaks::words,
    borrowed::words,
    resumed::words,
    strangers::rows,
    scattered::words,
    taken_over::words,
    joined::words,
];

fn by_values(e: &Evidence<'_>, runs: Runs<'_>) -> Option<Told> {
    BY_OTHERS.iter().find_map(|told| told(e, runs))
}

impl Diagnosis {
    /// The findings whose cause the values of all sequences of the run show, and no other run bore out.
    fn shown_by_sequences(&self) -> impl Iterator<Item = &Finding> {
        let of_this_run = |f: &&Finding| match &f.trial {
            Some(Trial::Untried { because }) => because == OF_THIS_RUN,
            Some(Trial::Silent { because, .. }) => [NOTHING_THERE, OTHERWISE_THERE].contains(&because.as_str()),
            _ => false,
        };
        self.findings.iter().filter(of_this_run)
    }

    /// Whether another run of such passes may bear out what the values of this one show.
    pub fn is_shown_by_sequences(&self) -> bool {
        self.shown_by_sequences().next().is_some()
    }
}

/// Holds what the values of the sequences of a run show, and no other run bore out, against `others`, the sequences of a run of other
/// tokens in passes of the same or other lengths: the same must be wrong there in the same places of the passes, and nothing else of
/// the stage. `rules` are held against any passes, and all else against the same passes.
///
/// # Errors
/// As [`judge`].
pub fn confirm_among_sequences(
    opinions: Opinions<'_>, runs: &mut [Sibling<'_>], (others, rules): (&[Side<'_>], bool),
    (filter, policy): (&Filter, &Policy),
) -> Result<()> {
    // More where the search was given more.
    let budget = runs.iter().map(|run| run.diagnosis.search.budget).fold(1.0, f64::max);
    let meter = Meter::new((WORK_OF_RULES as f64 * budget) as u64);
    let of = |side| opinions.searcher(side, (filter, policy), &meter);
    let shown: BTreeSet<StageId> =
        runs.iter().flat_map(|run| run.diagnosis.shown_by_sequences().map(|finding| finding.id)).collect();
    if shown.is_empty() || others.len() != runs.len() {
        return Ok(());
    }
    let names: Vec<String> = shown.iter().map(StageId::to_string).collect();
    let these = Filter::new(&opinions.usual.graph, &names, None, None)?;
    let judged = |side: &Side<'_>| -> Result<Diagnosis> {
        let verdict = judge(opinions.of(side), *side, None, &these, policy, &|_, _, _| ())?;
        Ok(Diagnosis { verdict, findings: Vec::new(), search: Search::default(), others: Vec::new() })
    };
    let there: Vec<Diagnosis> = others.iter().map(judged).collect::<Result<_>>()?;
    let [own, others] =
        [runs.iter().map(|run| of(run.side)).collect::<Vec<_>>(), others.iter().map(|s| of(*s)).collect()];
    let here: Vec<(&Searcher<'_>, &Diagnosis)> =
        own.iter().zip(runs.iter()).map(|(searcher, run)| (searcher, &*run.diagnosis)).collect();
    let there: Vec<(&Searcher<'_>, &Diagnosis)> = others.iter().zip(&there).collect();
    let tokens = there.iter().flat_map(|(searcher, _)| searcher.subject.capture.own_tokens()).count();
    let shape_of =
        |run: usize, id| origin(here[run].1, id).map_or_else(String::new, |origin| here[run].0.shape(origin));
    let (mut changed, mut of_passes) = (Vec::new(), Vec::new());
    for (run, (searcher, diagnosis)) in here.iter().enumerate() {
        for finding in diagnosis.shown_by_sequences() {
            // A rule for the rows of whole passes holds in all their sequences.
            let known = of_passes
                .iter()
                .find(|(old, _): &&(Finding, Finding)| old.id == finding.id && old.shape == finding.shape);
            if let Some((_, new)) = known {
                let mut finding = finding.clone();
                (finding.remedy, finding.trial) = (new.remedy.clone(), new.trial.clone());
                (finding.evident, finding.shape) = match &new.trial {
                    Some(Trial::Withdrawn { .. }) => (false, shape_of(run, finding.id)),
                    _ => (true, new.shape.clone()),
                };
                changed.push((run, finding));
                continue;
            }
            let graph = &opinions.usual.graph;
            let Some(node) = graph.index(finding.id).map(|i| &graph.nodes[i]) else { continue };
            let told = by_values(&searcher.evidence(node, searcher.subject.capture), (&here, run));
            let Some(told) = told.filter(|told| told.shown.is_rule() == rules && !meter.over()) else { continue };
            let e = others[run].evidence(node, others[run].subject.capture);
            let (old, mut finding) = (finding.clone(), finding.clone());
            // A rule of whole passes, which are those of all sequences.
            let each = |other: usize| others[other].evidence(node, others[other].subject.capture);
            let of_other = |other: usize| {
                let other = by_values(&each(other), (&there, other))?;
                (other.shown.is_rule() && other.shown.what == told.shown.what).then_some(other)
            };
            // A rule gives all that is wrong in every sequence.
            let in_all = |told: &Told, rules: bool| {
                let like = |other: usize| {
                    let e = each(other);
                    !e.bad_rows().any(|row| e.side.capture.is_own(row.step))
                        || by_values(&e, (&there, other)).is_some_and(|of| told.shown.is_like(&of.shown))
                };
                !rules || told.shown.is_of_passes() || (0..others.len()).all(like)
            };
            let found = by_values(&e, (&there, run));
            let found = if rules { found.or_else(|| (0..others.len()).find_map(of_other)) } else { found };
            let is_told = found.is_some();
            let trial = match found {
                Some(other) if told.shown.is_like(&other.shown) && in_all(&told, rules) => {
                    // Of rules that fit one run, those that fit the other too are left.
                    let both = told.shown.both(&other.shown);
                    let remedy = finding.remedy.clone();
                    both.iter().for_each(|words| finding.explained_by(words));
                    finding.remedy = remedy;
                    let likewise = |run: &usize| {
                        told.shown.is_of_passes()
                            || by_values(&each(*run), (&there, *run)).is_some_and(|of| told.shown.is_like(&of.shown))
                    };
                    let elements = match rules {
                        true => (0..others.len()).filter(likewise).map(|run| wrong_elements(&each(run))).sum(),
                        false => wrong_elements(&e),
                    };
                    let there = both.is_none().then_some(other.words);
                    Trial::Confirmed { elements, tokens, there }
                }
                _ if meter.over() => Trial::Silent { tokens, because: WORK.to_owned() },
                // A rule of one run alone.
                _ if rules && (is_told || e.bad_rows().next().is_some()) => {
                    finding.leave_place(shape_of(run, finding.id));
                    finding.evident = false;
                    Trial::Withdrawn { tokens, told: told.words, because: OTHERWISE.to_owned() }
                }
                _ => {
                    let because = if e.bad_rows().next().is_some() { OTHERWISE_THERE } else { NOTHING_THERE };
                    let before = if let Some(Trial::Silent { tokens, .. }) = finding.trial { tokens } else { 0 };
                    Trial::Silent { tokens: before + tokens, because: because.to_owned() }
                }
            };
            let finding = Finding { trial: Some(trial), ..finding };
            if told.shown.is_of_passes() {
                of_passes.push((old, finding.clone()));
            }
            changed.push((run, finding));
        }
    }
    put(runs, changed);
    Ok(())
}

/// Findings without a cause, of which the other sequences tell it.
fn by_others(runs: &[(&Searcher<'_>, &Diagnosis)]) -> Vec<(usize, Finding)> {
    let mut all = Vec::new();
    for (run, (searcher, diagnosis)) in runs.iter().enumerate() {
        // A factor for each row only says that a sum is wrong.
        let by_row = |f: &Finding| f.solution.as_ref().is_some_and(Solution::has_own_factors);
        // So does a law of which no rule says where it holds.
        let listed = |f: &Finding| f.solution.as_ref().is_some_and(|s| matches!(s.holds, Holds::Some { .. }));
        // Or one that does not say what is there.
        let open = |f: &Finding| f.solution.as_ref().is_some_and(|s| s.unsaid > 0);
        let unexplained = |f: &&Finding| {
            let why = f.says_why() && !by_row(f) && !listed(f) && !open(f);
            !why && !f.evident && !f.unread && f.inside.is_empty()
        };
        // What is explained under a condition here, and not at all in another sequence, is a rule of all of them if there is one.
        let bare = |id: StageId| {
            let others = runs.iter().flat_map(|(_, diagnosis)| &diagnosis.findings);
            others
                .filter(|f| f.id == id)
                .any(|f| !f.says_why() && !f.unread && f.inside.is_empty() && f.shape != PREFIX)
        };
        let under = |f: &Finding| f.solution.as_ref().is_some_and(|s| matches!(s.holds, Holds::Under { .. }));
        let conditional = |f: &&Finding| !unexplained(f) && under(f) && bare(f.id);
        for finding in diagnosis.findings.iter().filter(|f| unexplained(f) || conditional(f)) {
            let graph = &searcher.oracle.graph;
            let Some(node) = graph.index(finding.id).map(|i| &graph.nodes[i]) else { continue };
            if searcher.meter.over() {
                break;
            }
            let e = searcher.evidence(node, searcher.subject.capture);
            let told = match () {
                () if listed(finding) => {
                    let of_rows = [passes::words, joined::words, strangers::words, taken_over::words];
                    of_rows.iter().find_map(|told| told(&e, (runs, run)))
                }
                () if conditional(&finding) => passes::words(&e, (runs, run)),
                () => by_values(&e, (runs, run)),
            };
            all.extend(told.map(|told| (run, shown(finding, &told))));
        }
    }
    all
}

/// Looks for a rule of whole passes that says what is wrong, where a run on other tokens left no rule for where a cause holds.
pub fn rules_among_sequences(opinions: Opinions<'_>, runs: &mut [Sibling<'_>], (filter, policy): (&Filter, &Policy)) {
    let meter = Meter::new(WORK_OF_ALL);
    let of = |side| opinions.searcher(side, (filter, policy), &meter);
    let searchers: Vec<Searcher<'_>> = runs.iter().map(|run| of(run.side)).collect();
    let all: Vec<(&Searcher<'_>, &Diagnosis)> =
        searchers.iter().zip(runs.iter()).map(|(searcher, run)| (searcher, &*run.diagnosis)).collect();
    let listed = |f: &&Finding| f.solution.as_ref().is_some_and(|s| matches!(s.holds, Holds::Some { .. }));
    let mut changed = Vec::new();
    for (run, (searcher, diagnosis)) in all.iter().enumerate() {
        for finding in diagnosis.findings.iter().filter(listed).filter(|finding| finding.inside.is_empty()) {
            let graph = &opinions.usual.graph;
            let Some(node) = graph.index(finding.id).map(|i| &graph.nodes[i]) else { continue };
            let told = passes::words(&searcher.evidence(node, searcher.subject.capture), (&all, run));
            changed.extend(told.map(|told| (run, shown(finding, &told))));
        }
    }
    put(runs, changed);
}

/// A finding with what the values of the sequences of this run show.
fn shown(finding: &Finding, told: &Told) -> Finding {
    let mut finding = finding.clone();
    finding.explained_by(&told.words);
    finding.remedy = Some(told.remedy.to_owned());
    finding.trial = Some(Trial::Untried { because: OF_THIS_RUN.to_owned() });
    finding
}

/// Puts findings in the place of those of their stages.
pub(super) fn put(runs: &mut [Sibling<'_>], changed: Vec<(usize, Finding)>) {
    for (run, finding) in changed {
        let mut findings = runs[run].diagnosis.findings.iter_mut();
        findings.find(|old| old.id == finding.id).into_iter().for_each(|old| *old = finding.clone());
    }
}

/// Holds against the other sequences of a run what a run on other tokens left of each cause: that may say of where it holds what
/// one sequence alone bears out. `before` has what each diagnosis told before. Such a cause is taken back, and so is one that the
/// other run refutes in another sequence: it gets no other cause.
pub fn again_among_sequences(
    opinions: Opinions<'_>, runs: &mut [Sibling<'_>], before: &[Diagnosis], (filter, policy): (&Filter, &Policy),
) {
    let meter = Meter::new(WORK_OF_ALL);
    let old = |run: usize, id: StageId| before[run].findings.iter().find(|finding| finding.id == id);
    for id in stages(runs) {
        let of = |side| opinions.searcher(side, (filter, policy), &meter);
        let searchers: Vec<Searcher<'_>> = runs.iter().map(|run| of(run.side)).collect();
        let all: Vec<(&Searcher<'_>, &Diagnosis)> =
            searchers.iter().zip(runs.iter()).map(|(searcher, run)| (searcher, &*run.diagnosis)).collect();
        let found = |run: usize| all[run].1.findings.iter().find(|finding| finding.id == id);
        let is_wrong = |run: &usize| found(*run).is_some_and(|finding| !finding.evident && !finding.unread);
        let wrong: Vec<usize> = (0..all.len()).filter(is_wrong).collect();
        let refuted = |run: usize| {
            let finding = found(run).filter(|finding| !told(finding))?;
            let Some(Trial::Withdrawn { tokens, because, .. }) = &finding.trial else { return None };
            Some((old(run, id)?.name()?, (*tokens, because.clone())))
        };
        let refuted: Vec<(String, (usize, String))> = wrong.iter().filter_map(|&run| refuted(run)).collect();
        let mut changed = Vec::new();
        for &run in &wrong {
            let Some(finding) = found(run).filter(|finding| told(finding)) else { continue };
            let of_name = refuted.iter().find(|(refuted, _)| Some(refuted) == finding.name().as_ref());
            let is_old = old(run, id).is_some_and(|old| old.told() == finding.told());
            let against = match of_name {
                Some((_, why)) => Some(why.clone()),
                None if is_old => None,
                None => Tried::of(&all, &wrong, (run, finding), false).against,
            };
            // One law of which each sequence says another condition.
            let other = |other: &usize| found(*other).is_some_and(|other| is_the_law_elsewhere(finding, other));
            let under = finding.solution.as_ref().is_none_or(|solution| !matches!(solution.holds, Holds::Some { .. }));
            // Where another run left no rule in one of them, there is none.
            let none = |other: &usize| found(*other).is_some_and(|other| left_no_rule(finding, other));
            if under && wrong.iter().any(none) {
                let listed = Holds::Some { elements: 0, of: 0, rows: None, elsewhere: false };
                let finding = under_no_rule(finding.clone(), &listed, (all[run].0, origin(all[run].1, id)));
                changed.push((run, finding));
                continue;
            }
            if under && (against.is_some() || wrong.iter().any(other)) {
                let mut tried = Tried { against: against.clone(), ..Tried::alone(run, finding) };
                tried.jointly(&all, &wrong);
                if let Some(holds) = tried.narrowed {
                    let mut finding = finding.clone();
                    let own = finding.solution.as_ref().map(|solution| solution.holds.clone());
                    let tried = matches!(own, Some(Holds::Under { tried: true, .. }));
                    let Some(holds) = allowed_too(holds, own.as_ref()) else {
                        let listed = Holds::Some { elements: 0, of: 0, rows: None, elsewhere: false };
                        changed.push((run, under_no_rule(finding, &listed, (all[run].0, origin(all[run].1, id)))));
                        continue;
                    };
                    // It was tried on no other run.
                    if !tried && matches!(holds, Holds::Under { .. }) {
                        finding.trial = Some(Trial::Untried { because: OF_SEQUENCES.to_owned() });
                    }
                    hold(&mut finding, &holds, (all[run].0, origin(all[run].1, id)));
                    changed.push((run, finding));
                    continue;
                }
            }
            changed.extend(against.map(|why| (run, taken_back(all[run].0, all[run].1, finding, why))));
        }
        changed.extend(of_another(&all, &wrong, id));
        put(runs, changed);
    }
    let of = |side| opinions.searcher(side, (filter, policy), &meter);
    let searchers: Vec<Searcher<'_>> = runs.iter().map(|run| of(run.side)).collect();
    let all: Vec<(&Searcher<'_>, &Diagnosis)> =
        searchers.iter().zip(runs.iter()).map(|(searcher, run)| (searcher, &*run.diagnosis)).collect();
    let changed = by_others(&all);
    put(runs, changed);
    // What is taken back in one layer is no cause in the others.
    for run in runs.iter_mut() {
        let searcher = opinions.searcher(run.side, (filter, policy), &meter);
        let Diagnosis { verdict, findings, .. } = &mut *run.diagnosis;
        among_layers(&searcher, &verdict.origins(), findings);
    }
}

/// Findings without a cause in the sequences of which the confirmed cause of another one gives all that is wrong.
fn of_another(runs: &[(&Searcher<'_>, &Diagnosis)], wrong: &[usize], id: StageId) -> Vec<(usize, Finding)> {
    let found = |run: usize| runs[run].1.findings.iter().find(|finding| finding.id == id);
    let confirmed = |finding: &&Finding| matches!(finding.trial, Some(Trial::Confirmed { .. })) && told(finding);
    let bare: Vec<usize> = wrong
        .iter()
        .copied()
        .filter(|run| found(*run).is_some_and(|own| !own.says_why() && own.inside.is_empty()))
        .collect();
    let mut all = Vec::new();
    for &run in wrong.iter().filter(|_| !bare.is_empty()) {
        let Some(finding) = found(run).filter(confirmed) else { continue };
        let tried = Tried::of(runs, wrong, (run, finding), false);
        let whose = runs[run].0.subject.capture.steps.last().map(|step| step.whose);
        let (None, Some(whose)) = (&tried.against, whose) else { continue };
        for &other in bare.iter().filter(|other| tried.holds.iter().any(|(held, _)| held == *other)) {
            let Some(own) = found(other) else { continue };
            let because = format!("it is the cause of {whose}, too, and confirmed there");
            let told = tried.told_in(runs, (other, own));
            all.extend(told.map(|told| (other, Finding { trial: Some(Trial::Untried { because }), ..told })));
        }
        break;
    }
    all
}

/// The decisions about the causes of a stage, each by its name in any layer.
struct Decided {
    /// The one that stands, and where it holds, if the sequences say more of that than one alone.
    stands: Option<(String, Option<Holds>)>,
    /// Those that do not, with what is otherwise elsewhere.
    against: Vec<(String, (usize, String))>,
}

impl Decided {
    /// Whether the causes of another layer were held against each other in this one.
    fn knows(&self, runs: &[(&Searcher<'_>, &Diagnosis)], id: StageId) -> bool {
        let told = runs.iter().flat_map(|(_, diagnosis)| diagnosis.findings.iter().filter(|f| f.id == id && told(f)));
        let mut names = told.filter_map(Finding::name);
        let stands = |name: &str| self.stands.as_ref().is_some_and(|(known, _)| known == name);
        names.all(|name| stands(&name) || self.against.iter().any(|(known, _)| *known == name))
    }

    /// The findings of the stage in another layer that change, by the number of their sequence.
    fn in_layer(&self, runs: &[(&Searcher<'_>, &Diagnosis)], id: StageId) -> Vec<(usize, Finding)> {
        let mut changed = Vec::new();
        for (run, (searcher, diagnosis)) in runs.iter().enumerate() {
            let Some(own) = diagnosis.findings.iter().find(|finding| finding.id == id) else { continue };
            let Some(name) = own.name() else { continue };
            match (&self.stands, self.against.iter().find(|(known, _)| *known == name)) {
                (Some((known, Some(holds))), _) if *known == name => {
                    let mut finding = own.clone();
                    hold(&mut finding, holds, (searcher, origin(diagnosis, id)));
                    changed.push((run, finding));
                }
                (_, Some((_, why))) => changed.push((run, taken_back(searcher, diagnosis, own, why.clone()))),
                _ => {}
            }
        }
        changed
    }
}

/// Whether another finding has the law of this one under another condition.
fn is_the_law_elsewhere(own: &Finding, other: &Finding) -> bool {
    let [own, other] = [own, other].map(|finding| finding.solution.as_ref());
    own.zip(other).is_some_and(|(own, other)| {
        let first = |of: &Solution| of.holds.told().first().map(|when| (*when).clone());
        own.words == other.words && first(own) != first(other)
    })
}

/// A finding whose law holds elsewhere than another run said, or under no rule that is known.
pub(super) fn under_no_rule(
    mut finding: Finding, listed: &Holds, (searcher, origin): (&Searcher<'_>, Option<&StageResult>),
) -> Finding {
    hold(&mut finding, listed, (searcher, origin));
    let told = match (&finding.trial, &finding.solution) {
        (
            Some(Trial::Confirmed { elements, tokens, .. } | Trial::Narrowed { elements, tokens, .. }),
            Some(solution),
        ) => Some((*elements, *tokens, solution.holds.clone())),
        _ => None,
    };
    if let Some((elements, tokens, holds)) = told {
        finding.trial = Some(Trial::Narrowed { elements, tokens, holds });
    }
    finding
}

/// Whether another finding has the law of this one, and a run on other tokens left no rule for where it holds.
fn left_no_rule(own: &Finding, other: &Finding) -> bool {
    let same = own.solution.as_ref().zip(other.solution.as_ref()).is_some_and(|(own, other)| own.words == other.words);
    same && matches!(&other.trial, Some(Trial::Narrowed { holds: Holds::Some { .. }, .. }))
}

/// Those of the conditions that all sequences allow that another run allowed as well. Nothing if there are none.
fn allowed_too(all: Holds, own: Option<&Holds>) -> Option<Holds> {
    let (Holds::Under { conditions, .. }, Some(Holds::Under { conditions: both, tried: true })) = (&all, own) else {
        return Some(all);
    };
    let conditions: Vec<When> =
        conditions.iter().filter(|when| both.iter().any(|own| own.alike(when))).cloned().collect();
    (!conditions.is_empty()).then_some(Holds::Under { conditions, tried: true })
}

/// Tells of a finding where its cause holds. Rows that another sequence lists are no rows of this one.
fn hold(finding: &mut Finding, holds: &Holds, (searcher, origin): (&Searcher<'_>, Option<&StageResult>)) {
    if let Some(solution) = &mut finding.solution {
        solution.holds = match holds {
            Holds::Some { elements, of, .. } => {
                let own = origin.and_then(|origin| searcher.unexplained(origin, solution));
                own.unwrap_or(Holds::Some { elements: *elements, of: *of, rows: None, elsewhere: true })
            }
            holds => holds.clone(),
        };
    } else if let Some(cause) = finding.cause.as_mut().filter(|cause| cause.name.since.is_some()) {
        // Another sequence has it at other positions.
        (cause.name.since, cause.whole) = (None, false);
    }
}

/// A finding without its cause.
fn taken_back(searcher: &Searcher<'_>, diagnosis: &Diagnosis, own: &Finding, why: (usize, String)) -> Finding {
    let mut finding = own.clone();
    let (tokens, because) = why;
    finding.trial = Some(Trial::Withdrawn { tokens, told: own.told().unwrap_or_default(), because });
    finding.leave_place(origin(diagnosis, own.id).map_or_else(String::new, |origin| searcher.shape(origin)));
    finding
}

/// The stages that have a cause in any of the sequences: those at which one of them went wrong first come first.
fn stages(runs: &[Sibling<'_>]) -> Vec<StageId> {
    let of = |from: usize, to: usize| {
        runs.iter().flat_map(move |run| run.diagnosis.findings.iter().skip(from).take(to - from))
    };
    let mut all: Vec<StageId> = Vec::new();
    for finding in of(0, 1).chain(of(1, usize::MAX)).filter(|finding| told(finding)) {
        if !all.contains(&finding.id) {
            all.push(finding.id);
        }
    }
    all
}

/// Whether it tells a cause that another sequence can speak against.
fn told(finding: &Finding) -> bool {
    finding.says_why() && !finding.unwritten
}

/// The findings of a stage that change, by the number of their sequence, and what is decided of its causes.
fn settled(runs: &[(&Searcher<'_>, &Diagnosis)], id: StageId) -> (Vec<(usize, Finding)>, Decided) {
    let found = |run: usize| runs[run].1.findings.iter().find(|finding| finding.id == id);
    let wrong: Vec<usize> =
        (0..runs.len()).filter(|&run| found(run).is_some_and(|f| !f.evident && !f.unread)).collect();
    let mut tried: Vec<Tried<'_>> = Vec::new();
    for &run in &wrong {
        let Some(finding) = found(run).filter(|finding| told(finding)) else { continue };
        // The first that explains all of them is the cause.
        let of_all = tried.iter().any(|tried| tried.against.is_none() && tried.holds.len() + 1 == wrong.len());
        if !of_all && !tried.iter().any(|tried| tried.finding.name() == finding.name()) {
            let mut one = Tried::of(runs, &wrong, (run, finding), true);
            if one.against.is_some() {
                one.jointly(runs, &wrong);
            }
            tried.push(one);
        }
    }
    // Another rule for the keys that are seen may say the same in one sequence, and hold in all.
    let alternatives: Vec<(usize, Finding)> = match tried.iter().any(|tried| tried.against.is_none()) {
        true => Vec::new(),
        false => tried.iter().flat_map(|tried| by_other_keys(runs, (tried.run, tried.finding))).collect(),
    };
    for (run, finding) in &alternatives {
        if runs[*run].0.meter.over() {
            break;
        }
        let against = tried.iter().find(|tried| tried.run == *run).and_then(|tried| tried.against.clone());
        let mut one = Tried { against, ..Tried::alone(*run, finding) };
        one.jointly(runs, &wrong);
        if one.against.is_none() {
            tried.push(one);
            break;
        }
    }
    // Else the one that explains most.
    let stands = |tried: &&Tried<'_>| tried.against.is_none();
    let best = tried.iter().filter(stands).max_by_key(|tried| (tried.holds.len(), Reverse(tried.run)));
    let mut changed = Vec::new();
    for &run in &wrong {
        let Some(own) = found(run) else { continue };
        if let Some(best) = best.filter(|best| best.run == run || best.holds.iter().any(|(other, _)| *other == run)) {
            changed.extend(best.told_in(runs, (run, own)).map(|finding| (run, finding)));
            continue;
        }
        let against =
            tried.iter().find(|tried| tried.finding.name() == own.name()).and_then(|tried| tried.against.clone());
        if let Some(why) = against.filter(|_| told(own)) {
            changed.push((run, taken_back(runs[run].0, runs[run].1, own, why)));
        }
    }
    let stands = best.and_then(|best| Some((best.finding.name()?, best.narrowed.clone())));
    let against = tried.iter().filter_map(|tried| Some((tried.finding.name()?, tried.against.clone()?))).collect();
    (changed, Decided { stands, against })
}

/// A finding by each of the other rules for keys that give what is wrong of its sequence as well.
fn by_other_keys(runs: &[(&Searcher<'_>, &Diagnosis)], (run, finding): (usize, &Finding)) -> Vec<(usize, Finding)> {
    let searcher = runs[run].0;
    let graph = &searcher.oracle.graph;
    let node = graph.index(finding.id).map(|i| &graph.nodes[i]);
    let (Some(node), Some(solution)) = (node, &finding.solution) else { return Vec::new() };
    let e = searcher.evidence(node, searcher.subject.capture);
    let of = |form: Form| {
        let what = form.to_string();
        let words = (solution.words.0, what.clone());
        let solution = Solution { what, words, law: Some(form), ..solution.clone() };
        (run, Finding { solution: Some(solution), ..finding.clone() })
    };
    others(solution, [&e, &e]).into_iter().take(OTHERS).map(of).collect()
}

/// Other rules that are held against all sequences.
const OTHERS: usize = 512;

/// A stage as it was judged.
pub(super) fn origin(diagnosis: &Diagnosis, id: StageId) -> Option<&StageResult> {
    diagnosis.verdict.stages.iter().find(|stage| stage.id == id)
}

/// A cause of one sequence, held against the others.
struct Tried<'a> {
    run: usize,
    finding: &'a Finding,
    /// The others of which it gives all that is wrong, with the number of wrong elements.
    holds: Vec<(usize, usize)>,
    /// Where it holds, if the others say more of that than its own sequence does.
    narrowed: Option<Holds>,
    /// The tokens of one that it does not hold of, and what is otherwise there.
    against: Option<(usize, String)>,
}

impl<'a> Tried<'a> {
    /// Before it is held against any.
    fn alone(run: usize, finding: &'a Finding) -> Self {
        Self { run, finding, holds: Vec::new(), narrowed: None, against: None }
    }

    /// `may_narrow` if the report may use the place where it holds in the others.
    fn of(
        runs: &[(&Searcher<'_>, &'a Diagnosis)], wrong: &[usize], (run, finding): (usize, &'a Finding),
        may_narrow: bool,
    ) -> Self {
        let mut tried = Self::alone(run, finding);
        let Some(origin) = origin(runs[run].1, finding.id) else { return tried };
        // Those in which the stage is wrong come first. Rows that one has from another sequence are in other passes there: they say
        // nothing of a condition.
        let has_condition = tried.has_condition();
        let is_of_prefix = |of: &Finding| of.id == finding.id && of.shape == PREFIX;
        let has_own = |run: &usize| !has_condition || !runs[*run].1.findings.iter().any(is_of_prefix);
        let more = (0..runs.len()).filter(|other| !wrong.contains(other)).filter(has_own);
        let others = wrong.iter().copied().chain(more);
        for other in others.filter(|other| *other != run) {
            let (searcher, diagnosis) = runs[other];
            if !diagnosis.verdict.stages.iter().any(|stage| stage.id == finding.id && stage.subject.is_some()) {
                continue;
            }
            let is_wrong = wrong.contains(&other);
            let predicted = held_there(runs[run].0, searcher, origin, finding);
            let conflicts = !matches!(predicted, Predicted::Fails(_));
            let (elements, allowed) = match predicted {
                Predicted::Holds { elements, both: None } => (elements, true),
                Predicted::Holds { elements, .. } if finding.solution.is_none() => (elements, true),
                Predicted::Holds { elements, both: Some(both) } | Predicted::Under { elements, both } => (
                    elements,
                    match may_narrow {
                        true => tried.narrow(Holds::Under { conditions: both, tried: false }),
                        false => tried.allows(&both),
                    },
                ),
                Predicted::Open { elements, of } => {
                    (elements, if may_narrow { tried.narrow(of) } else { tried.allows(&[]) })
                }
                Predicted::Silent(WORK) => break,
                Predicted::Silent(_) => continue,
                // It depends on the sequence, if no other condition is reported.
                Predicted::Fails(_) => (0, !is_wrong && !tried.has_condition()),
            };
            if !allowed {
                let tokens = searcher.subject.capture.steps.iter().map(|step| step.tokens.len()).sum();
                let what = match (conflicts, is_wrong) {
                    (true, _) => NO_RULE,
                    (_, true) => OTHERWISE,
                    (_, false) => RIGHT,
                };
                tried.against = Some((tokens, format!("elsewhere in the same run, {what}")));
                break;
            }
            tried.holds.extend((is_wrong && elements > 0).then_some((other, elements)));
        }
        tried
    }

    /// A condition that is read off one sequence may be too narrow, and contradict another sequence: this one is read off all together.
    fn jointly(&mut self, runs: &[(&Searcher<'_>, &Diagnosis)], wrong: &[usize]) {
        let Some(solution) = self.finding.solution.as_ref() else { return };
        let graph = &runs[self.run].0.oracle.graph;
        let Some(node) = graph.index(self.finding.id).map(|i| &graph.nodes[i]) else { return };
        // Rows that a sequence has from another one are in other passes there.
        let is_of_prefix = |of: &Finding| of.id == self.finding.id && of.shape == PREFIX;
        let asked = |run: &usize| !runs[*run].1.findings.iter().any(is_of_prefix);
        let asked: Vec<usize> = wrong.iter().copied().filter(asked).collect();
        let all: Vec<Evidence<'_>> =
            asked.iter().map(|run| runs[*run].0.evidence(node, runs[*run].0.subject.capture)).collect();
        let meter = runs[self.run].0.meter;
        let Some((holds, given)) = jointly(&all.iter().collect::<Vec<_>>(), solution, (false, meter)) else { return };
        // Nothing that is right elsewhere may be wrong by it.
        let right = (0..runs.len()).filter(|run| !wrong.contains(run));
        let under = Solution { holds: holds.clone(), ..solution.clone() };
        let told = Finding { solution: Some(under), ..self.finding.clone() };
        let Some(origin) = origin(runs[self.run].1, told.id) else { return };
        let refutes = |run: usize| {
            let judged = runs[run].1.verdict.stages.iter().any(|s| s.id == told.id && s.subject.is_some());
            judged && matches!(held_there(runs[self.run].0, runs[run].0, origin, &told), Predicted::Fails(_))
        };
        if right.into_iter().any(refutes) || meter.over() {
            return;
        }
        (self.against, self.narrowed) = (None, Some(holds));
        let others = asked.into_iter().zip(given).filter(|(run, _)| *run != self.run);
        self.holds = others.collect();
    }

    /// Whether a condition is reported.
    fn has_condition(&self) -> bool {
        match (&self.finding.solution, &self.finding.cause) {
            (Some(solution), _) => matches!(self.narrowed.as_ref().unwrap_or(&solution.holds), Holds::Under { .. }),
            (None, cause) => cause.as_ref().is_some_and(|cause| cause.name.since.is_some()),
        }
    }

    /// Whether its reported condition is among those of another sequence, or says that no rule is known.
    fn allows(&self, conditions: &[When]) -> bool {
        let of_trial = match &self.finding.trial {
            Some(Trial::Narrowed { holds, .. }) => Some(holds),
            _ => None,
        };
        match self.finding.solution.as_ref().map(|solution| &solution.holds).or(of_trial) {
            Some(Holds::Some { .. }) => true,
            Some(holds) => holds.told().first().is_some_and(|told| conditions.iter().any(|when| told.alike(when))),
            None => false,
        }
    }

    /// Takes what one more sequence says of where it holds; gives whether any of that is left.
    fn narrow(&mut self, by: Holds) -> bool {
        let own = self.finding.solution.as_ref().map(|solution| &solution.holds);
        match (self.narrowed.as_ref().or(own), by) {
            (Some(Holds::Some { .. }), _) => true,
            (Some(Holds::Under { conditions, .. }), Holds::Under { conditions: mut both, tried }) => {
                both.retain(|when| conditions.iter().any(|own| own.alike(when)));
                let any = !both.is_empty();
                self.narrowed = Some(Holds::Under { conditions: both, tried });
                any
            }
            (_, by) => {
                self.narrowed = Some(by);
                true
            }
        }
    }

    /// Its finding in a sequence that it holds of.
    fn told_in(&self, runs: &[(&Searcher<'_>, &Diagnosis)], (run, own): (usize, &Finding)) -> Option<Finding> {
        let mut finding = own.clone();
        let (searcher, diagnosis) = runs[run];
        let origin = origin(diagnosis, own.id)?;
        let same = own.name() == self.finding.name();
        if run != self.run || !same {
            let of_own = own.solution.as_ref().filter(|_| run == self.run).map(|solution| solution.elements);
            let elements = of_own.or_else(|| Some(self.holds.iter().find(|(other, _)| *other == run)?.1))?;
            let solution = self.finding.solution.clone();
            // What the law does not speak of is counted in this sequence, too.
            let node = searcher.oracle.graph.index(own.id).map(|i| &searcher.oracle.graph.nodes[i]);
            let wrong = node.map_or(0, |node| wrong_elements(&searcher.evidence(node, searcher.subject.capture)));
            finding.solution = solution.map(|solution| Solution {
                unsaid: if solution.unsaid > 0 { wrong.saturating_sub(elements) } else { 0 },
                elements,
                held_out: elements,
                ..solution
            });
            finding.cause = match &self.finding.cause {
                Some(_) if own.name() == self.finding.name() && own.solution.is_none() => own.cause.clone(),
                Some(cause) if self.finding.solution.is_none() => {
                    let values = cause.name.parameters.iter().map(|(_, value)| *value).collect();
                    Some(searcher.again(origin, &(find(&cause.name.mutation)?, values))?)
                }
                cause => cause.clone(),
            };
            finding.inside.clone_from(&self.finding.inside);
            finding.key.clone_from(&self.finding.key);
            finding.remedy.clone_from(&self.finding.remedy);
            finding.shape = String::new();
        }
        let own = || finding.solution.as_ref().map(|solution| &solution.holds);
        let listed = run != self.run && matches!(own(), Some(Holds::Some { .. }));
        let holds = self.narrowed.clone().or_else(|| own().filter(|_| listed).cloned());
        holds.iter().for_each(|holds| hold(&mut finding, holds, (searcher, Some(origin))));
        Some(finding)
    }
}
