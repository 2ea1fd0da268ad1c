//! What a run tells.

use super::judged::{self, arithmetic, flip};
use super::model::shorten;
use super::origin::{self, inert, loosened, positions};
use super::screen::{Check, Document, Fate, Line, Screen, Section, Table};
use super::stages::{self, NONE};
use super::{Outcome, Report, next};
use crate::arithmetic::Arithmetic;
use crate::capture::Lengths;
use crate::decoded::DecodedCheck;
use crate::diagnose::{EXPORTER, Finding};
use crate::metrics::largest;
use crate::number::{apart, counted, number, percent};
use crate::products::Evaluators;
use crate::severity::Severity;
use crate::slots::SlotsCheck;
use crate::tokens::TokensCheck;
use crate::verdict::{Decisions, Element, Gap, Local, StageResult, Unjudged, Verdict};
use crate::weights::Mismatch;
use std::collections::BTreeSet;

/// Findings listed; what follows is counted.
const FINDINGS: usize = 20;

/// Residual up to which an undeclared arithmetic may be all that is wrong: a product of bf16 is off by less.
const TOLERABLE: f64 = 1e-2;

/// Stages named of a gap at most.
const NAMED: usize = 6;

impl Document for Report {
    const KIND: &'static str = "run";

    fn screen(&self, full: bool) -> Screen {
        let table = Section::table("Stages", stages::table(&self.diagnosis.verdict, full));
        let mut sections = vec![Section::lines("", more(self)), Section::lines("Run", facts(self)), table];
        sections.push(findings(self));
        sections.extend(elements(self));
        sections.push(Section::lines("Evidence", evidence(self)));
        let seconds = &self.seconds;
        let before = match &self.weights.unchecked {
            Some(why) => Fate::Skipped(format!("not compared: {why}")),
            None => Fate::of(weights(self)),
        };
        let before = [Check::new("model", "weights", before).took(seconds.weights)];
        let tokens = self.tokens.as_ref().map(|check| tokens_check(check).took(seconds.tokens));
        let end = self.end.as_ref().map(origin::end_check);
        let decoded = self.decoded.as_ref().map(decoded_check);
        let slots = self.slots.as_ref().map(slots_check);
        let stages = stages::checks(self).enumerate();
        let stages = stages.map(|(i, check)| check.took(seconds.stages.get(i).copied().unwrap_or_default()));
        Screen {
            sections,
            checks: before.into_iter().chain(tokens).chain(slots).chain(decoded).chain(end).chain(stages).collect(),
            next: Some(next::next(self)),
            repeat: self.run.repeat(),
            seconds: seconds.total(),
            ..Screen::new(format!("{}, {}", self.model.name, self.run.prompt), self.outcome, headline(self))
        }
    }
}

fn headline(report: &Report) -> String {
    let words = of_outcome(report);
    let Some(of) = &report.run.sequence else { return words };
    let mark = if words.starts_with("at ") { "," } else { ":" };
    format!("in {}{mark} {words}", of.whose())
}

fn of_outcome(report: &Report) -> String {
    let verdict = &report.diagnosis.verdict;
    match report.outcome {
        Outcome::Diverged => diverged(report),
        Outcome::ReferenceSuspect | Outcome::OracleSuspect => {
            let at = verdict.disputed().next().map_or_else(String::new, |s| format!("at {}: ", s.id));
            let reason = report.doubt.as_ref().map_or("", |d| d.reason.as_str());
            format!("{at}the subject agrees with f64, the reference does not: {reason}")
        }
        Outcome::Incomplete => under(report) + &judged::incomplete(report),
        Outcome::Match if verdict.coverage.alone => under(report) + &judged::incomplete(report),
        Outcome::Match => under(report) + &judged::correct(report),
    }
}

/// Under what a verdict holds that is no finding: the beginning of its headline.
fn under(report: &Report) -> String {
    let weights = if report.weights.unchecked.is_some() { "(weights not compared): " } else { "" };
    weights.to_owned() + &rounded(report) + &loosened(&report.run.tolerance) + &inert(&report.run.inert)
}

/// That the subject declares to round what it computes: the beginning of a headline.
fn rounded(report: &Report) -> String {
    let a = &report.subject.arithmetic;
    let kept = if report.subject.unkept.is_some() { ", not kept" } else { "" };
    if a.outputs.plain() { String::new() } else { format!("({} arithmetic declared{kept}): ", arithmetic(report)) }
}

fn diverged(report: &Report) -> String {
    if let Some(race) = report.repeated.as_ref().and_then(|r| r.race.as_ref()) {
        return race.words();
    }
    if let Some(text) = weights(report) {
        return format!("at weights: {text}");
    }
    if let Some(check) = report.tokens.as_ref().filter(|c| c.diverged()) {
        return format!("at tokens: {}", check.words());
    }
    if let Some(check) = report.slots.as_ref().filter(|c| c.diverged()) {
        return format!("at {}: {}", check.what(), check.words());
    }
    let verdict = &report.diagnosis.verdict;
    match (report.diagnosis.findings.first(), verdict.ailment()) {
        (Some(first), _) => origin::headline(verdict, first),
        (None, Some(symptom)) => format!("at {symptom} (a health check fails; no reference ran)"),
        (None, None) => beside(report).into_iter().next().unwrap_or_default(),
    }
}

/// What is wrong with the tokens that the subject fed, if anything is.
fn wrong_choice(report: &Report) -> Option<String> {
    let decoded = report.decoded.as_ref().filter(|decoded| decoded.diverged())?;
    Some(format!("at the decoded tokens: {}", decoded.words()))
}

/// What is wrong of tokens and not of stages, the first first.
fn beside(report: &Report) -> Vec<String> {
    let chosen = report.decoded.as_ref().and_then(|decoded| decoded.first.as_ref()).map(|first| first.step);
    let ended = report.end.as_ref().and_then(|end| end.wrong.as_ref()).map(|wrong| wrong.index);
    let mut all = [wrong_choice(report), wrong_end(report)];
    // For one token both name the fault, and that it ended the text says more.
    if ended.is_some() && ended <= chosen {
        all.reverse();
    }
    all.into_iter().flatten().collect()
}

fn decoded_check(check: &DecodedCheck) -> Check {
    let fate = match (check.diverged(), check.checked) {
        (false, 0) => Fate::Skipped(check.words()),
        (wrong, _) => Fate::of(wrong.then(|| check.words())),
    };
    Check::new("model", "decoded tokens", fate)
}

/// What is wrong with the end of the subject's text, if anything is.
fn wrong_end(report: &Report) -> Option<String> {
    let end = report.end.as_ref().filter(|end| end.diverged())?;
    Some(format!("at the end of generation: {}", end.words()))
}

/// What is wrong with the weights, if anything is.
fn weights(report: &Report) -> Option<String> {
    let check = &report.weights;
    let Mismatch { tensor, format, row, index, got, want, .. } = check.mismatches.first()?;
    let reader = if report.model.folder { "the safetensors crate" } else { "ggml" };
    let others = match check.mismatches.len() {
        1 => String::new(),
        n => format!("; {n} tensors differ"),
    };
    Some(format!("{tensor} ({format}) row {row} [{index}] is {got} to the engine, {want} to {reader}{others}"))
}

fn tokens_check(check: &TokensCheck) -> Check {
    let fate = match (&check.unchecked, check.diverged()) {
        (Some(_), _) => Fate::Skipped(check.words()),
        (None, wrong) => Fate::of(wrong.then(|| check.words())),
    };
    Check::new("model", "tokens", fate)
}

fn slots_check(check: &SlotsCheck) -> Check {
    Check::new("model", "slots", Fate::of(check.diverged().then(|| check.words())))
}

fn more(report: &Report) -> Vec<Line> {
    let mut more = Vec::new();
    let findings = &report.diagnosis.findings;
    if let Some(first) = findings.first() {
        let race = report.repeated.as_ref().is_some_and(|r| r.race.is_some());
        let tokens = report.tokens.as_ref().is_some_and(TokensCheck::diverged);
        let slots = report.slots.as_ref().is_some_and(SlotsCheck::diverged);
        if race || tokens || slots || !report.weights.mismatches.is_empty() {
            more.push(("also", origin::headline(&report.diagnosis.verdict, first)));
        }
    }
    more.extend(report.slots.as_ref().and_then(SlotsCheck::standing).map(|words| ("cause", words)));
    more.extend(beside(report).into_iter().filter(|wrong| *wrong != diverged(report)).map(|wrong| ("also", wrong)));
    more.extend(origin::why(&report.diagnosis));
    if let Some(declaration) = &report.declaration {
        let text = "with this in its manifest every stage that was judged is right; declare it if the engine is meant to compute so (docs/engine/arithmetic.md):";
        more.push(("declare", format!("{text} {declaration}")));
    }
    more.extend(next::dump(report));
    if let Some(gap) = &report.gap {
        more.push(("missing", missing(gap, &report.diagnosis.verdict)));
        if !gap.add.is_empty() {
            let names: Vec<String> = gap.add.iter().map(ToString::to_string).collect();
            let (names, side) = (names.join(", "), if gap.of_reference { "reference" } else { "subject" });
            more.push((
                "add",
                format!("{names} to the capture of the {side}: the smallest addition that closes the gap"),
            ));
        }
    }
    more
}

/// `24 stages, 600 rows not judged: L01.attn_norm … logits (1 row, position 7)`.
fn missing(gap: &Gap, verdict: &Verdict) -> String {
    let unjudged = &verdict.unjudged;
    // The subject's own rows were judged where the reference alone lacks the stage.
    let by_subject = |of: &Unjudged| {
        let stage = verdict.stages.iter().find(|stage| stage.id == of.stage);
        let given = |stage: &StageResult| stage.subject.as_ref().is_some_and(|local| local.rows >= of.rows);
        !of.inconclusive && stage.is_some_and(|stage| given(stage) && stage.reference.is_none())
    };
    let side = if !verdict.coverage.alone && unjudged.iter().all(by_subject) {
        " in the reference, which lacks them"
    } else {
        ""
    };
    let names: Vec<String> = unjudged.iter().map(ToString::to_string).collect();
    let named = match names.as_slice() {
        [first @ .., last] if names.len() > NAMED => format!("{} … {last}", first[..NAMED - 1].join(" ")),
        all => all.join(" "),
    };
    format!("{}, {} not judged{side}: {named}", counted(names.len(), "stage"), counted(gap.rows, "row"))
}

fn facts(report: &Report) -> Vec<Line> {
    let m = &report.model;
    let run = &report.run;
    let cut = run.ranks.as_ref().map_or_else(String::new, |ranks| format!(", cut over ranks as {ranks}"));
    let mut facts: Vec<Line> = Vec::new();
    // What else is wrong, and how grave it is, comes before what was run.
    let findings = &report.diagnosis.findings;
    if findings.len() > 1 {
        facts.push(("origins", origin::origins(findings)));
        let alone: Vec<String> = findings.iter().filter(|f| f.unread).map(|f| f.id.to_string()).collect();
        if !alone.is_empty() && alone.len() < findings.len() {
            let text = "the next stages were computed from right values, so these are wrong in the capture alone, unless another \
                        fault undoes them:";
            facts.push(("capture", format!("{text} {}", origin::few(&alone, alone.len(), ", "))));
        }
    }
    facts.extend(report.severity.as_ref().and_then(Severity::words).map(|words| ("effect", words)));
    facts.push((
        "model",
        format!("{} {}, {}, sha256 {}", m.name, m.format, counted(m.layers, "layer"), shorten(&m.sha256)),
    ));
    facts.extend(m.hashed_by.iter().map(|command| ("hash", format!("the sha256 is what `{command}` prints"))));
    facts.extend(m.adapters.iter().map(|adapter| ("adapter", adapter.words())));
    facts.extend([(
        "run",
        format!(
            "{}: {}{}{}{cut}; subject {}, reference {}",
            run.prompt,
            counted(run.tokens.len(), "prompt token"),
            if let Some(sequence) = &run.sequence {
                sequence.words()
            } else if run.passes.is_empty() {
                String::new()
            } else {
                format!(" in passes of {}", Lengths(run.passes.clone()))
            },
            decoded(run.decoded.len()),
            report.subject.name,
            report.reference.name
        ),
    )]);
    let declared = arithmetic(report);
    if let Some(stored) = &report.subject.stored {
        let told = "qdiff allows for this rounding";
        // The other thing that it may be.
        let undeclared = stored.ends_with("values") && report.subject.arithmetic == Arithmetic::default();
        let or = if undeclared { "; an engine that computes in it declares that as its arithmetic" } else { "" };
        let told = format!("{told}{or}");
        facts.push(("storage", format!("the subject's values are stored as {stored}; {told}")));
    }
    if report.subject.arithmetic != Arithmetic::default() {
        let kept = match &report.subject.unkept {
            Some(unkept) => format!("; it is not kept: {unkept}, and such values are held to f32"),
            None => String::new(),
        };
        facts.push(("arithmetic", format!("the subject declares {declared}; what is allowed follows from it{kept}")));
    }
    facts.extend(origin::injected(&report.subject.injected, &run.inert));
    facts.extend(run.tolerance.iter().map(|rule| ("tolerance", format!("{rule}, instead of the bound"))));
    facts.extend(report.weights.unchecked.iter().map(|why| ("weights", format!("not compared: {why}"))));
    facts.push(("coverage", judged::coverage(report)));
    facts.extend(judged::segments(report).map(|text| ("segments", text)));
    facts.extend(judged::identical(report).map(|text| ("identical", text)));
    facts.extend(judged::parts(report).map(|text| ("parts", text)));
    facts.extend(judged::seeds(report).map(|text| ("probes", text)));
    facts.extend(oracle(&report.diagnosis.verdict.evaluators).map(|text| ("oracle", text)));
    if let Some(memory) = report.memory.filter(|memory| memory.peak > memory.allowed) {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let text = format!("{} MiB were taken, more than the {} MiB allowed", mib(memory.peak), memory.allowed >> 20);
        facts.push(("memory", text));
    }
    if !run.unexercised.is_empty() {
        let what = run.unexercised.join(", ");
        let text = format!("not exercised here: {what}; `qdiff check` tries what a model has room for");
        facts.push(("untested", text));
    }
    facts
}

/// ` + 8 decode steps`; nothing where there are none.
pub(super) fn decoded(steps: usize) -> String {
    if steps == 0 { String::new() } else { format!(" + {}", counted(steps, "decode step")) }
}

/// On what linear layers were evaluated, where a GPU had a part in it or was to have one.
fn oracle(evaluators: &Evaluators) -> Option<String> {
    let Evaluators { devices, on_device, held, on_cpu, because } = evaluators;
    let list = |words: &BTreeSet<String>| words.iter().cloned().collect::<Vec<_>>().join(", ");
    let on_device = (*on_device > 0).then(|| {
        let (stages, devices, held) = (counted(*on_device, "stage"), list(devices), held.len());
        format!(
            "linear layers of {stages} evaluated on {devices}; rows of {held} of them on the CPU too, with the same result \
             but for rounding"
        )
    });
    let on_cpu = (*on_cpu > 0).then(|| {
        format!("linear layers of {}, or a part of them, on the CPU: {}", counted(*on_cpu, "stage"), list(because))
    });
    let both: Vec<String> = on_device.into_iter().chain(on_cpu).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

fn evidence(report: &Report) -> Vec<Line> {
    let verdict = &report.diagnosis.verdict;
    let mut lines = stages::legend(verdict);
    if let Some((first, local)) = first_origin(report) {
        of_origin(first, local, &mut lines);
    }
    if let Some(check) = &report.tokens {
        lines.push(("tokenizer", check.words()));
        lines.extend(check.cause.iter().map(|c| ("remedy", c.remedy.clone())));
    }
    if let Some(slots) = &report.slots {
        lines.push(("slots", slots.words()));
        lines.extend(slots.remedy().map(|remedy| ("remedy", remedy.to_owned())));
    }
    if let Some(decoded) = &report.decoded {
        lines.push(("decoded", decoded.words()));
        lines.extend(decoded.remedy().map(|remedy| ("remedy", remedy)));
    }
    lines.extend(report.end.iter().flat_map(origin::end));
    if let Some(severity) = &report.severity {
        lines.extend(severity.alone().map(|words| ("size", words)));
    }
    lines.push(("tokens", tokens(report)));
    lines.extend(decisions(report).map(|words| ("choices", words)));
    if let Some(repeated) = report.repeated.as_ref().filter(|r| r.race.is_none()) {
        let varied = repeated.varied.join(", one ");
        let varied = if varied.is_empty() { varied } else { format!("; one {varied}") };
        let words = match &repeated.failed {
            Some(error) => format!("the subject could not run again: {error}"),
            None => format!("{} of the subject, bit for bit the same{varied}", counted(repeated.runs, "run")),
        };
        lines.push(("repeat", words));
    }
    match verdict.health.as_slice() {
        [] => {}
        [one] => lines.push(("health", one.to_string())),
        [first, rest @ ..] => {
            let more = counted(rest.len(), "more line");
            lines.push(("health", format!("{first} ({more} of other stages or steps in the report)")));
        }
    }
    lines
}

/// The first origin with its residual.
fn first_origin(report: &Report) -> Option<(&Finding, &Local)> {
    let first = report.diagnosis.findings.first()?;
    let stage = report.diagnosis.verdict.stages.iter().find(|s| s.id == first.id)?;
    Some((first, stage.subject.as_ref()?))
}

fn of_origin(finding: &Finding, local: &Local, lines: &mut Vec<Line>) {
    if let Some(extent) = &local.extent {
        lines.push(("extent", format!("{}: {extent}", finding.id)));
    }
    let told = |which: &str, e: &Element, allowed: String| {
        let [got, want, other] = values(e);
        let other = if e.other.is_some() { format!(", reference {other}") } else { String::new() };
        let (id, at) = (finding.id, e.place);
        format!("{which} of {id}: {at} [{}]: subject {got}, f64 {want}{other}{allowed}", e.index)
    };
    match (&local.non_finite, &local.worst) {
        (Some(e), _) => lines.push(("element", told("first NaN or infinity", e, String::new()))),
        (None, Some(e)) => {
            lines.push(("element", told("in the worst row", e, format!(", {} is allowed there", number(e.allowed)))))
        }
        (None, None) => {}
    }
    // A known fault, or a large error, is nothing to tolerate.
    let least = local.least_tolerance().filter(|least| !finding.says_why() && *least <= TOLERABLE);
    if let Some(least) = least {
        let used = percent(local.used);
        let option = format!("--tolerance '{}={least:.1e}'", finding.id);
        lines.push(("tolerance", format!("the error is {used} of what is allowed; {option} would let it pass")));
    }
}

fn tokens(report: &Report) -> String {
    let verdict = &report.diagnosis.verdict;
    if report.run.unchosen {
        return "the prompt's, fed again: the command takes {decoded}, and no reference ran to choose any".to_owned();
    }
    if verdict.coverage.alone {
        return "the subject's own choices; no reference ran to compare them with".to_owned();
    }
    if verdict.tokens.is_empty() {
        return "no choice to compare: a side's logits were not captured".to_owned();
    }
    let Some(t) = verdict.tokens.iter().find(|t| t.subject != t.reference) else {
        let steps = counted(verdict.tokens.len(), "step");
        return match report.decoded.as_ref().is_some_and(DecodedCheck::diverged) {
            true => format!("the logits of both sides choose the same after {steps}; the subject chose otherwise"),
            false => format!("the same token chosen at the last position of {} of {steps}", verdict.tokens.len()),
        };
    };
    let kind = flip(report, t.step, None);
    let margin = if t.margin.is_finite() && t.error.is_finite() {
        let (margin, error) = (number(t.margin), number(t.error));
        format!(
            "The subject's logits prefer its own choice by {margin}; the logits of the two sides differ by up to {error}"
        )
    } else {
        "Some of the logits are NaN or infinite".to_owned()
    };
    format!(
        "the first different choice is after step {}: the subject takes {}, the reference {}. {margin}. {kind}",
        t.step,
        report.run.name(t.subject),
        report.run.name(t.reference),
    )
}

/// In how many rows the two sides chose other experts or blocks, and by how little; nothing of a model without such choices.
fn decisions(report: &Report) -> Option<String> {
    let all = &report.diagnosis.verdict.decisions;
    let count = |of: fn(&Decisions) -> usize| all.iter().map(of).sum::<usize>();
    let (rows, other, reordered) = (count(|d| d.rows), count(|d| d.other), count(|d| d.reordered));
    let first = all.iter().find_map(|d| Some((d.stage, d.first?)));
    let Some((stage, at)) = first else {
        return (rows > 0)
            .then(|| format!("the same in all {} of {}", counted(rows, "row"), counted(all.len(), "stage")));
    };
    let most = |of: fn(&Decisions) -> f64| number(largest(all.iter().map(of)));
    let by = match count(|d| d.compared) {
        0 => String::new(),
        compared => format!(
            ". {} subject's values prefer its own choice by up to {}, and the values of the two sides differ by up to {}",
            match compared < other + reordered {
                true => format!("In the {compared} of these rows that can be compared, the"),
                false => "The".to_owned(),
            },
            most(|d| d.margin),
            most(|d| d.moved)
        ),
    };
    let how = match (other, reordered) {
        (0, _) => format!(
            "the two sides choose the same in all {}, but in another order in {reordered}",
            counted(rows, "row")
        ),
        (_, 0) => format!("the two sides make other choices in {other} of {}", counted(rows, "row")),
        _ => format!(
            "the two sides make other choices in {other} of {}, and the same choices in another order in {reordered}",
            counted(rows, "row")
        ),
    };
    Some(format!(
        "{how}. The first of these rows is {stage} {at}. {}{by}",
        flip(report, at.step, Some((stage, at.position)))
    ))
}

/// Every origin with its cause.
fn findings(report: &Report) -> Section {
    let all = &report.diagnosis.findings;
    let verdict = &report.diagnosis.verdict;
    let row = |f: &Finding| {
        let (before, after, remedy) = match &f.cause {
            Some(c) => (number(c.before), number(c.after), c.remedy.clone()),
            None => {
                let stage = verdict.stages.iter().find(|stage| stage.id == f.id);
                let local = stage.and_then(|stage| stage.subject.as_ref()).filter(|local| local.non_finite.is_none());
                let before = local.map_or_else(|| NONE.to_owned(), |local| number(local.residual));
                let remedy = if f.unread { EXPORTER } else { f.mended().unwrap_or_default() };
                (before, NONE.to_owned(), remedy.to_owned())
            }
        };
        vec![verdict.name(f.id), positions(verdict, f), origin::story(f), before, after, remedy]
    };
    let table = Table::new(
        &["stage", "where", "cause", "residual", "explained to", "remedy"],
        &[3, 4],
        all.iter().take(FINDINGS).map(row),
    );
    let more = all.len().checked_sub(FINDINGS + 1).map(|n| ("and", format!("{} more", n + 1)));
    Section { lines: more.into_iter().collect(), ..Section::table("Origins", table).at_length() }
}

/// What the subject has of an element, what f64 gives, and what the reference has, if it has any.
fn values(e: &Element) -> [String; 3] {
    let Some(other) = e.other else {
        let [got, want] = apart([e.got, e.want]);
        return [got, want, NONE.to_owned()];
    };
    apart([e.got, e.want, other.0])
}

/// The worst elements of the first origin.
fn elements(report: &Report) -> Option<Section> {
    let (first, local) = first_origin(report)?;
    let row = |e: &Element| {
        let [got, want, other] = values(e);
        vec![e.place.to_string(), e.index.to_string(), got, want, other, number(e.allowed)]
    };
    let table = Table::new(
        &["row", "index", "subject", "f64", "reference", "allowed"],
        &[1, 2, 3, 4, 5],
        local.spread.worst.iter().map(row),
    );
    Some(Section::table(&format!("Worst elements of {}", first.id), table).at_length())
}
