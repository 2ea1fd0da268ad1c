//! An origin in words: at which positions, why, and what the cause explains.

use super::Outcome;
use super::screen::{Check, Fate, Line};
use super::standing;
use crate::diagnose::{Diagnosis, EXPORTER, Finding, Holds, Search, Solution, anywhere};
use crate::ends::EndCheck;
use crate::mutations::{CauseId, Explains};
use crate::number::counted;
use crate::verdict::Verdict;
use std::collections::BTreeSet;

/// The words if nothing in the catalogue fits.
pub const UNKNOWN: &str = "no known cause";

/// The words for a stage that is wrong in the capture while its readers are right.
const UNREAD: &str = "but the engine went on from the right values: this is wrong in the capture alone";

/// The same of a cache where no later step tells.
const KEPT: &str = "but what reads it in this step had the right values: the cache is wrong, or the capture of it alone, and no \
                    later step tells which";

/// `at L07.q_rope, all positions: STORY (NAME)`.
pub(super) fn headline(verdict: &Verdict, finding: &Finding) -> String {
    format!("at {}, {}: {}", verdict.name(finding.id), positions(verdict, finding), story(finding))
}

/// The user's own rules, which replace bounds: the beginning of a headline.
pub(super) fn loosened(rules: &[String]) -> String {
    if rules.is_empty() { String::new() } else { format!("with tolerances set by hand, {}: ", rules.join(" ")) }
}

/// Injected faults that could not act: the beginning of a headline.
pub fn inert(faults: &[String]) -> String {
    if faults.is_empty() {
        return String::new();
    }
    format!("with injected faults that are inert here, {}: ", faults.join(", "))
}

/// What was injected, and what of it could not act.
pub(super) fn injected<'a>(injected: &'a [String], inert: &'a [String]) -> impl Iterator<Item = Line> + 'a {
    let nothing = "on this model and these tokens it changes no stage by more than rounding may, where it was judged";
    let inert = inert.iter().map(move |fault| ("inert", format!("{fault}: {nothing}")));
    injected.iter().map(|fault| ("injected", fault.clone())).chain(inert)
}

/// Where a text ends, and how to mend it.
pub(super) fn end(check: &EndCheck) -> impl Iterator<Item = Line> + '_ {
    let remedy = check.cause.iter().map(|c| ("remedy", c.remedy.clone()));
    [("end", check.words())].into_iter().chain(remedy)
}

/// The same as a check.
pub(super) fn end_check(check: &EndCheck) -> Check {
    let fate = match (check.diverged(), &check.unlisted) {
        (false, Some(_)) => Fate::Skipped(check.words()),
        (wrong, _) => Fate::of(wrong.then(|| check.words())),
    };
    Check::new("model", "end of generation", fate)
}

/// What an outcome and its headline make of a check.
pub(super) fn ended(outcome: Outcome, headline: String) -> Fate {
    match outcome {
        Outcome::Match => Fate::Passed(headline),
        Outcome::Diverged | Outcome::ReferenceSuspect => Fate::of(Some(headline)),
        Outcome::OracleSuspect => Fate::Error(headline),
        Outcome::Incomplete => Fate::Skipped(headline),
    }
}

/// What is wrong of a finding: the cause, and what the residual looks like where the cause does not say all of it.
pub fn story(finding: &Finding) -> String {
    // A place is no cause.
    let cause = match finding.told() {
        Some(told) if finding.says_why() => told,
        Some(place) => format!("{UNKNOWN}: {place}"),
        None => UNKNOWN.to_owned(),
    };
    let what = match (finding.plain(), finding.shape.as_str()) {
        (Some(plain), _) => plain.to_owned(),
        (None, "") => cause,
        (None, shape) => format!("{cause}: {shape}"),
    };
    match () {
        () if finding.unread => format!("{what}; {UNREAD}"),
        () if finding.kept => format!("{what}; {KEPT}"),
        () => what,
    }
}

/// The cause of the first origin, what fits as well, the remedy, and whether the search was cut short.
pub(super) fn why(diagnosis: &Diagnosis) -> Vec<Line> {
    let mut lines = Vec::new();
    let unread = diagnosis.findings.first().is_some_and(|f| f.unread);
    let first = diagnosis.findings.first();
    lines.extend(first.and_then(standing::words).map(|words| ("cause", words)));
    lines.extend(first.and_then(standing::withdrawn).map(|words| ("withdrawn", words)));
    if let Some(c) = first.filter(|f| f.solution.is_none()).and_then(|f| f.cause.as_ref())
        && !c.ties.is_empty()
    {
        lines.push(("fits too", list(&c.ties)));
    }
    let exporter = unread.then(|| EXPORTER.to_owned());
    let remedy = first.and_then(Finding::mended).map(str::to_owned).filter(|_| exporter.is_none());
    lines.extend(exporter.or(remedy).map(|remedy| ("remedy", remedy)));
    let Search { budget, unfinished, .. } = diagnosis.search;
    if unfinished > 0 {
        let stages = format!("{unfinished} of the {}", counted(diagnosis.findings.len(), "wrong stage"));
        let text = if budget > 0.0 {
            format!(
                "the budget was used up before every cause was tried on {stages}; --why-budget {} allows four times the work",
                4.0 * budget
            )
        } else {
            format!("no cause was tried on {stages}; --why-budget 1 allows the usual work")
        };
        lines.push(("search", text));
    }
    lines
}

fn list(causes: &[CauseId]) -> String {
    causes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// `all positions from decode step 1 on`, or which. A later step of several tokens is `step 11 (40 tokens)`.
pub(super) fn positions(verdict: &Verdict, finding: &Finding) -> String {
    let stage = verdict.stages.iter().find(|s| s.id == finding.id);
    let Some(local) = stage.and_then(|s| s.subject.as_ref()) else {
        return "positions unknown".to_owned();
    };
    let later_rows = local.rows - local.prefill_rows;
    let first = local.first_bad.map_or(0, |p| p.step);
    let step = |n| match verdict.longer.get(&n) {
        Some(tokens) => format!("step {n} ({})", counted(*tokens, "token")),
        None => format!("decode step {n}"),
    };
    let until = local.bad_steps.last().copied().unwrap_or(first);
    let without_gap = local.bad_steps.is_empty() || until + 1 == first + local.bad_steps.len();
    let from = |n| match local.bad_positions.len() {
        1 if local.bad_steps.len() < 2 => format!(", at {}", step(n)),
        _ if local.bad_steps.is_empty() || without_gap && until == local.last_step => format!(" from {} on", step(n)),
        _ if until == n => format!(" at {} alone", step(n)),
        _ if without_gap => format!(" from {} to step {until}", step(n)),
        _ => format!(", first at {}", step(n)),
    };
    let since = match (first, local.bad_prefill_rows) {
        (n, 0) if n > 0 && local.prefill_rows > 0 => from(n) + " (the prefill is right)",
        // Of another layer decoding may be wrong.
        (0, bad) if bad == local.bad_rows && later_rows > 0 && decodes_wrongly(verdict, finding) => {
            " in the prefill only, in this layer".to_owned()
        }
        (0, bad) if bad == local.bad_rows && later_rows > 0 => {
            format!(
                " in the prefill only ({} right)",
                if verdict.longer.is_empty() { "decode is" } else { "later steps are" }
            )
        }
        (0, _) => String::new(),
        (n, _) => from(n),
    };
    if local.bad_rows >= local.rows {
        return format!("all positions{since}");
    }
    let before = local.bad_before.len();
    let since = match before {
        0 => since,
        n => format!(", beside {} that it had before its own passes", counted(n, "position")),
    };
    let all = &local.bad_positions - &local.bad_before;
    let count = all.len();
    let s = if count == 1 { "" } else { "s" };
    let which = match (all.first(), all.last()) {
        (Some(first), Some(last)) if count > FEW && last - first + 1 == count => format!("{first}..{last}"),
        _ => few(&all, count, ", "),
    };
    format!("position{s} {which}{since}")
}

/// Whether the stage of a finding is wrong in decode steps in another layer.
fn decodes_wrongly(verdict: &Verdict, finding: &Finding) -> bool {
    let of_name = verdict.stages.iter().filter(|stage| stage.id.name == finding.id.name && stage.origin);
    of_name.filter_map(|stage| stage.subject.as_ref()).any(|local| local.bad_rows > local.bad_prefill_rows)
}

/// Items that are named where there may be more.
const FEW: usize = 6;

/// Causes in words at most; what follows is counted.
const CAUSES: usize = 2;

/// The first ones of `all` in words, and a sign that there are more.
pub(super) fn few<T: ToString>(items: impl IntoIterator<Item = T>, all: usize, between: &str) -> String {
    let mut list: Vec<String> = items.into_iter().take(FEW).map(|item| item.to_string()).collect();
    if all > list.len() {
        list.push("…".to_owned());
    }
    list.join(between)
}

/// `72: q_biased k_biased v_biased in 24 layers, L00..L23: one cause, qkv-bias-omitted`.
pub(super) fn origins(findings: &[Finding]) -> String {
    let places_of = |(name, group): (&'static str, Vec<&Finding>)| {
        let layers: BTreeSet<u16> = group.iter().filter_map(|f| f.id.layer).collect();
        let ranks: BTreeSet<u16> = group.iter().filter_map(|f| f.id.rank).collect();
        (name, layers, ranks)
    };
    let named = grouped(findings, |f| f.id.name).into_iter().map(places_of);
    // Stages of the same layers and ranks share a line.
    let places: Vec<String> = grouped(named, |(_, layers, ranks)| (layers.clone(), ranks.clone()))
        .into_iter()
        .map(|((layers, ranks), names)| {
            let names = few(names.iter().map(|(name, ..)| *name), names.len(), " ");
            let layers: Vec<u16> = layers.into_iter().collect();
            let range = match layers.as_slice() {
                [] => String::new(),
                [one] => format!(" in L{one:02}"),
                [a, .., b] if usize::from(b - a) + 1 == layers.len() => {
                    format!(" in {} layers, L{a:02}..L{b:02}", layers.len())
                }
                all => {
                    let named = few(all.iter().map(|l| format!("L{l:02}")), all.len(), " ");
                    format!(" in {} layers, {named}", all.len())
                }
            };
            let of_ranks = match ranks.len() {
                0 => String::new(),
                _ => format!(", {}", few(ranks.iter().map(|r| format!("r{r}")), ranks.len(), " ")),
            };
            format!("{names}{range}{of_ranks}")
        })
        .collect();
    format!("{}: {}: {}", findings.len(), places.join("; "), causes(findings))
}

/// `one cause, NAME`; where nothing fits, or where it is known and no more, that is no cause. Causes that differ in the
/// number of the layer alone are one, and so are those whose numbers differ by no more than fits do, and those that differ
/// in what else may be the condition.
fn causes(findings: &[Finding]) -> String {
    let mut solved: Vec<(Told, Vec<String>)> = Vec::new();
    let mut named: Vec<(&CauseId, bool)> = Vec::new();
    let mut stories: Vec<&str> = Vec::new();
    let mut unknown = Vec::new();
    for f in findings {
        let cause = f.cause.as_ref().filter(|c| c.kind != Explains::Place);
        match (f.solution.as_ref().map(|s| Told::of(s, f.id.layer)).or_else(|| Told::plain(f)), cause) {
            (Some(told), _) => match solved.iter_mut().find(|(known, _)| known.is(&told)) {
                Some((known, at)) => {
                    known.add(told);
                    at.push(f.id.to_string());
                }
                None => solved.push((told, vec![f.id.to_string()])),
            },
            (None, Some(cause)) => match named.iter_mut().find(|(known, _)| known.is_near(&cause.name)) {
                Some((known, exact)) => *exact &= **known == cause.name,
                None => {
                    named.push((&cause.name, true));
                    stories.push(&cause.story);
                }
            },
            (None, None) => unknown.push(f.id.to_string()),
        }
    }
    // One fault shows in several stages, as a law in one and as a fault of the catalogue in another.
    solved.retain(|(told, _)| !stories.contains(&told.what.as_str()));
    let short = |(name, exact): &(&CauseId, bool)| {
        let others: Vec<&CauseId> = named.iter().map(|(other, _)| *other).filter(|other| other != name).collect();
        if *exact { name.to_string() } else { name.shortest(&others).to_string() }
    };
    // What holds of some rows, without a rule for which, describes a stage. It is told only where nothing else is known.
    let (described, mut solved): (Vec<_>, Vec<_>) = solved.into_iter().partition(|(told, _)| told.is_of_some());
    if named.is_empty() && solved.is_empty() && described.len() == 1 && unknown.is_empty() {
        solved = described;
    } else {
        unknown.extend(described.into_iter().flat_map(|(_, at)| at));
    }
    let known: Vec<String> = named.iter().map(short).chain(solved.iter().map(|(told, _)| told.words())).collect();
    let told = match known.len().saturating_sub(CAUSES) {
        0 => known.join("; "),
        more => format!("{}; and {more} more, which --json has", known[..CAUSES].join("; ")),
    };
    match (known.len(), unknown.len()) {
        (0, _) => UNKNOWN.to_owned(),
        (1, 0) => format!("one cause, {told}"),
        // One fault may show as several causes.
        (n, 0) => format!("{n} causes, which one fault may be behind: {told}"),
        (n, all) => {
            let unknown = few(unknown, all, " ");
            let behind = if n > 1 { ", which one fault may be behind" } else { "" };
            format!("{}{behind}: {told}; {UNKNOWN} of {unknown}", counted(n, "cause"))
        }
    }
}

/// The words without the name of a stage's own input, which is another one for each stage.
fn of_any_stage(told: &str) -> String {
    const OWN: &str = "its own input ";
    let Some((before, after)) = told.split_once(OWN) else { return told.to_owned() };
    match after.split_once(' ') {
        Some((name, rest)) if name.contains('.') => format!("{before}{OWN}{rest}"),
        _ => told.to_owned(),
    }
}

/// A law that is reported of one or more layers.
struct Told<'a> {
    /// In its own words, and without the number of the layer; `None` where layers differ.
    own: Option<String>,
    anywhere: String,
    /// The law without its condition, without the number of the layer.
    what: String,
    holds: Option<&'a Holds>,
    /// Whether it is one cause under any condition.
    is_one: bool,
    /// Other conditions under which stages have it.
    others: Vec<&'a Holds>,
}

impl<'a> Told<'a> {
    fn of(solution: &'a Solution, layer: Option<u16>) -> Self {
        let seen = solution.keys_seen();
        let (own, what) = match &seen {
            Some(seen) => (seen.clone(), seen.as_str()),
            None => (solution.told(), solution.what.as_str()),
        };
        let (anywhere, what) = (of_any_stage(&anywhere(&own, layer)), of_any_stage(&anywhere(what, layer)));
        let is_one = seen.is_none() && solution.is_of_one_cause();
        Self { own: Some(own), anywhere, what, holds: Some(&solution.holds), is_one, others: Vec::new() }
    }

    /// What is evident.
    fn plain(finding: &Finding) -> Option<Self> {
        let own = finding.plain()?.to_owned();
        let anywhere = anywhere(&own, finding.id.layer);
        Some(Self { own: Some(own), what: anywhere.clone(), anywhere, holds: None, is_one: false, others: Vec::new() })
    }

    /// Whether another layer has the same law, under a condition that both layers allow.
    fn is(&self, other: &Self) -> bool {
        let (Some(a), Some(b)) = (self.holds, other.holds) else { return self.anywhere == other.anywhere };
        let first_of = |a: &Holds, b: &Holds| a.told().first().is_some_and(|when| b.allows(when));
        let of_some = |holds: &Holds| matches!(holds, Holds::Some { .. });
        // A rule that fits one stage is not reported of both if no rule is known for the other.
        let alike = first_of(a, b) || first_of(b, a) || of_some(a) || of_some(b);
        let is_one = self.is_one && other.is_one;
        self.anywhere == other.anywhere || self.what == other.what && (alike || is_one)
    }

    /// Whether it holds of some rows, and no rule is known for which.
    fn is_of_some(&self) -> bool {
        matches!(self.holds, Some(Holds::Some { .. }))
    }

    fn add(&mut self, other: Self) {
        // The report gives the condition that both allow.
        let told = |a: &Holds, b: &Holds| a.told().first().is_some_and(|when| b.allows(when));
        let narrower = |a: &Holds, b: &Holds| a.told().len() < b.told().len() || told(a, b) && !told(b, a);
        let of_some = |holds: Option<&'a Holds>| holds.filter(|holds| matches!(holds, Holds::Some { .. }));
        if self.anywhere != other.anywhere
            && let Some(some) = of_some(self.holds).or_else(|| of_some(other.holds))
        {
            self.holds = Some(some);
            // The rows are those of one stage.
            self.own = Some(format!("{}, in some of the rows or elements that it would change", self.what));
            self.anywhere.clone_from(&self.what);
        } else if self.anywhere != other.anywhere && self.holds.zip(other.holds).is_some_and(|(a, b)| narrower(b, a)) {
            *self = Self { others: std::mem::take(&mut self.others), ..other };
        } else if self.is_one && self.anywhere != other.anywhere {
            let known = |holds: &Holds| self.holds == Some(holds) || self.others.contains(&holds);
            self.others.extend(other.holds.filter(|holds| !known(holds)));
        } else if self.own != other.own && self.anywhere == other.anywhere {
            self.own = None;
        }
    }

    fn words(&self) -> String {
        // Stages of a law that several layers have are those of the layer.
        let own = self.own.clone().unwrap_or_else(|| self.anywhere.replace("LN.", ""));
        if self.others.is_empty() {
            return own;
        }
        let holds = |holds: &&Holds| match holds {
            Holds::Everywhere => "all of it".to_owned(),
            holds => holds.to_string(),
        };
        let others: Vec<String> = self.others.iter().map(holds).collect();
        format!("{own} (of other stages {})", others.join(", or "))
    }
}

/// `items` by `key`, in the order in which the keys first occur.
pub fn grouped<T, K: PartialEq>(items: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for item in items {
        let key = key(&item);
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

/// A solution that is proved everywhere, in these words.
#[cfg(test)]
pub(super) fn proved(what: &str) -> Solution {
    let stored = serde_json::json!({"what": what, "holds": "everywhere", "confidence": "proved", "elements": 1, "held_out": 1, "used": 0.0});
    serde_json::from_value(stored).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::Cause;
    use qdiff_engine::model::StageId;

    fn named(layer: u16, name: &str) -> Finding {
        let cause = Cause {
            name: name.parse().unwrap(),
            story: String::new(),
            remedy: String::new(),
            kind: Explains::Value,
            before: 1.0,
            after: 0.0,
            used: 0.5,
            whole: true,
            ties: Vec::new(),
        };
        located(layer, Some(cause), None)
    }

    fn located(layer: u16, cause: Option<Cause>, solution: Option<Solution>) -> Finding {
        let id = StageId::layer(layer, "stage");
        Finding::of(id, (Vec::new(), cause, solution, String::new()))
    }

    fn solved(layer: u16, what: &str) -> Finding {
        located(layer, None, Some(proved(what)))
    }

    /// A sentence that holds of some rows counted as a cause beside "no known cause".
    #[test]
    fn what_holds_of_some_rows_is_no_cause_beside_others() {
        let some = |what: &str| {
            let mut told = proved(what);
            told.holds = Holds::Some { elements: 1, of: 17, rows: None, elsewhere: false };
            located(0, None, Some(told))
        };
        assert_eq!(causes(&[some("a"), some("b")]), UNKNOWN);
        assert_eq!(causes(&[some("a"), solved(1, "c")]), format!("1 cause: c; {UNKNOWN} of L00.stage"));
    }

    /// Two numbers that differ by the error of a fit were reported as two causes, and one tensor in 24 layers as 24.
    #[test]
    fn causes_that_differ_in_the_last_digit_or_the_layer_alone_are_one() {
        let fitted = [named(0, "scaled:by=1.138629437"), named(1, "scaled:by=1.138629435")];
        assert_eq!(causes(&fitted), "one cause, scaled:by=1.14");
        let apart = [named(0, "scaled:by=1.5"), named(1, "scaled:by=1.25")];
        assert_eq!(causes(&apart), "2 causes, which one fault may be behind: scaled:by=1.5; scaled:by=1.25");
        let close: Vec<Finding> = ["1.138629437", "1.138629435", "1.14001", "1.14002", "1.14001"]
            .iter()
            .map(|by| named(0, &format!("scaled:by={by}")))
            .collect();
        assert_eq!(
            causes(&close),
            "3 causes, which one fault may be behind: scaled:by=1.139; scaled:by=1.14001; and 1 more, which --json has"
        );
        let layers: Vec<Finding> =
            (1..24).map(|l| solved(l, &format!("blk.{l}.a.weight is added to L{:02}.b", l - 1))).collect();
        assert_eq!(causes(&layers), "one cause, blk.N.a.weight is added to LN−1.b");
        assert_eq!(causes(&layers[2..3]), "one cause, blk.3.a.weight is added to L02.b");
    }
}
