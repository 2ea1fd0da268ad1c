//! What every format says, in the same words.

use super::{Outcome, Report};
use crate::diagnose::Cause;
use crate::diagnose::Finding;
use crate::mutations::Explains;
use crate::number::counted;
use crate::number::number;
use crate::tokens::TokensCheck;
use crate::verdict::{Gap, Local, StageResult, Verdict};

/// The words of a report, without layout.
pub struct Summary {
    /// The verdict in one word.
    pub word: &'static str,
    /// What follows the word: where, and what is wrong.
    pub headline: String,
    /// More on the headline: the cause's figures, the other origins.
    pub more: Vec<(&'static str, String)>,
    /// What was run.
    pub facts: Vec<(&'static str, String)>,
    /// The evidence.
    pub evidence: Vec<(&'static str, String)>,
    /// The command to run next, and why.
    pub next: (String, &'static str),
}

impl Summary {
    /// Puts `report` in words.
    pub fn new(report: &Report) -> Self {
        let (word, headline) = headline(report);
        Self {
            word,
            headline,
            more: more(report),
            facts: facts(report),
            evidence: evidence(report),
            next: next(report),
        }
    }

    /// The verdict as one line.
    pub fn line(&self) -> String {
        format!("{} {}", self.word, self.headline)
    }
}

fn headline(report: &Report) -> (&'static str, String) {
    let verdict = &report.diagnosis.verdict;
    match report.outcome {
        Outcome::Diverged => ("DIVERGED", diverged(report)),
        Outcome::ReferenceSuspect | Outcome::OracleSuspect => {
            let stage = verdict.disputed().next();
            let at = stage.map_or_else(String::new, |s| format!("at {}: ", s.id));
            let reason = report.doubt.as_ref().map_or("", |d| d.reason.as_str());
            ("DISPUTED", format!("{at}the subject meets f64, the reference does not. {reason}"))
        }
        Outcome::Incomplete if verdict.coverage.alone => (
            "INCOMPLETE:",
            "no reference: the subject does its mathematics on its own operands and breaks no invariant, \
             and nothing was there to hold it against"
                .to_owned(),
        ),
        Outcome::Incomplete => ("INCOMPLETE:", "no divergence, but not everything could be judged".to_owned()),
        Outcome::Match => {
            let worst = |pick: fn(&StageResult) -> &Option<Local>| {
                let locals = verdict.stages.iter().filter_map(|s| pick(s).as_ref());
                number(locals.fold(0f64, |m, l| m.max(l.residual)))
            };
            (
                "MATCH:",
                format!(
                    "every stage does its mathematics on both sides; largest local residual {} (subject), {} (reference)",
                    worst(|s| &s.subject),
                    worst(|s| &s.reference)
                ),
            )
        }
    }
}

fn diverged(report: &Report) -> String {
    if let Some(race) = report.repeated.as_ref().and_then(|r| r.race.as_ref()) {
        return race.words();
    }
    if let Some(m) = report.weights.mismatches.first() {
        let others = match report.weights.mismatches.len() {
            1 => String::new(),
            n => format!("; {n} tensors differ"),
        };
        return format!(
            "at weights: {} ({}) row {} [{}] is {} to the engine, {} to ggml{others}",
            m.tensor, m.format, m.row, m.index, m.got, m.want
        );
    }
    if let Some(check) = report.tokens.as_ref().filter(|c| c.diverged()) {
        return format!("at tokens: {}", check.words());
    }
    let Some(first) = report.diagnosis.findings.first() else {
        let ailment = report.diagnosis.verdict.ailment();
        return ailment.map_or_else(String::new, |symptom| format!("at {symptom} (an invariant; no reference)"));
    };
    let at = format!("at {}, {}", report.diagnosis.verdict.name(first.id), positions(&report.diagnosis.verdict, first));
    match &first.cause {
        Some(c) if first.shape.is_empty() => format!("{at}: {} ({})", c.story, c.name),
        Some(c) => format!("{at}: {} ({}): {}", c.story, c.name, first.shape),
        None if first.shape.is_empty() => format!("{at}: no known cause"),
        None => format!("{at}: no known cause: {}", first.shape),
    }
}

fn more(report: &Report) -> Vec<(&'static str, String)> {
    let mut more = Vec::new();
    let findings = &report.diagnosis.findings;
    if let Some(first) = findings.first() {
        let tokens = report.tokens.as_ref().is_some_and(TokensCheck::diverged);
        if tokens || !report.weights.mismatches.is_empty() {
            more.push(("then", format!("at {}", report.diagnosis.verdict.name(first.id))));
        }
        if let Some(c) = &first.cause {
            more.push(("cause", explained(c)));
            if !c.ties.is_empty() {
                more.push(("alike", format!("{} fits as well", c.ties.join(", "))));
            }
        }
        let search = &report.diagnosis.search;
        if search.unfinished > 0 {
            more.push((
                "search",
                format!(
                    "stopped after {} s with {} unfinished; --why-budget gives it more",
                    number(search.seconds),
                    counted(search.unfinished, "origin")
                ),
            ));
        }
    }
    if findings.len() > 1 {
        more.push(("origins", origins(findings)));
    }
    if let Some(gap) = &report.gap {
        more.push(("missing", missing(gap)));
        if !gap.add.is_empty() {
            let names: Vec<String> = gap.add.iter().map(ToString::to_string).collect();
            let side = if gap.of_reference { "reference" } else { "subject" };
            more.push((
                "add",
                format!("{} to what is captured of the {side}: the least that closes the gap", names.join(", ")),
            ));
        }
    }
    more
}

/// Stages named of a gap at most.
const NAMED: usize = 6;

/// `24 stages, 600 rows: L01.attn_norm L01.q_proj … logits`.
fn missing(gap: &Gap) -> String {
    let names: Vec<String> = gap.stages.iter().map(ToString::to_string).collect();
    let named = match names.as_slice() {
        [first @ .., last] if names.len() > NAMED => format!("{} … {last}", first[..NAMED - 1].join(" ")),
        all => all.join(" "),
    };
    format!("{}, {} not judged: {named}", counted(names.len(), "stage"), counted(gap.rows, "row"))
}

/// What it means that a cause fits.
pub(super) fn explained(c: &Cause) -> String {
    let (name, before, after) = (&c.name, number(c.before), number(c.after));
    // A stage that diverges without a residual has no finite values to take it of.
    let finite = c.before > 0.0;
    match c.kind {
        Explains::Value if !finite => format!("{name} gives NaN or infinity in the same places"),
        Explains::Value if c.whole => format!("{name} explains the residual {before} -> {after}"),
        Explains::Value => {
            format!("{name} explains what is wrong of the stage, not all of it: {before} -> {after}")
        }
        Explains::Rounding => format!("{name} explains the size of the residual, {before}"),
        Explains::Place => format!("{name} says where, not why; residual {before}"),
    }
}

/// `all positions from decode step 1 on`, or which.
pub(super) fn positions(verdict: &Verdict, finding: &Finding) -> String {
    let stage = verdict.stages.iter().find(|s| s.id == finding.id);
    let Some(local) = stage.and_then(|s| s.subject.as_ref()) else {
        return "positions unknown".to_owned();
    };
    let decode_rows = local.rows - local.prefill_rows;
    let first = local.first_bad.map_or(0, |p| p.step);
    let since = match (first, local.bad_prefill_rows) {
        (n, 0) if n > 0 && local.prefill_rows > 0 => {
            format!(" from decode step {n} on (the prefill is right: decode or cache)")
        }
        (0, bad) if bad == local.bad_rows && decode_rows > 0 => " in the prefill only (decode is right)".to_owned(),
        (0, _) => String::new(),
        (n, _) => format!(" from decode step {n} on"),
    };
    if local.bad_rows >= local.rows {
        return format!("all positions{since}");
    }
    let shown = local.bad_positions.iter().take(6);
    let list: Vec<String> = shown.map(ToString::to_string).collect();
    let more = if local.bad_positions.len() > 6 { ", …" } else { "" };
    format!("positions {}{more}{since}", list.join(", "))
}

/// `72: q_biased k_biased v_biased in 24 layers, L00..L23: one cause, qkv-bias-omitted`.
fn origins(findings: &[Finding]) -> String {
    // Stages of the same layers are told together.
    let mut groups: Vec<(Vec<&str>, Vec<u16>)> = Vec::new();
    let mut causes: Vec<&str> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for f in findings {
        let cause = f.cause.as_ref();
        let cause = cause.map_or("no known cause", |c| c.name.as_str());
        if !causes.contains(&cause) {
            causes.push(cause);
        }
        if seen.contains(&f.id.name) {
            continue;
        }
        seen.push(f.id.name);
        let same = findings.iter().filter(|o| o.id.name == f.id.name);
        let mut layers: Vec<u16> = same.filter_map(|o| o.id.layer).collect();
        layers.sort_unstable();
        match groups.iter_mut().find(|(_, l)| *l == layers) {
            Some((names, _)) => names.push(f.id.name),
            None => groups.push((vec![f.id.name], layers)),
        }
    }
    let places: Vec<String> = groups
        .iter()
        .map(|(names, layers)| {
            let range = match layers.as_slice() {
                [] => String::new(),
                [one] => format!(" in L{one:02}"),
                [a, .., b] => format!(" in {} layers, L{a:02}..L{b:02}", layers.len()),
            };
            format!("{}{range}", names.join(" "))
        })
        .collect();
    let cause = match causes.as_slice() {
        [one] => format!("one cause, {one}"),
        all => format!("{} causes: {}", all.len(), all.join(", ")),
    };
    format!("{}: {}: {cause}", findings.len(), places.join("; "))
}

fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let m = &report.model;
    let mut facts = vec![
        ("model", format!("{} {}, {} layers, sha256 {}", m.name, m.format, m.layers, shorten(&m.sha256))),
        (
            "run",
            format!(
                "{}: {} prompt tokens + {} decode steps; subject {}, reference {}",
                report.run.prompt,
                report.run.tokens.len(),
                report.run.decoded.len(),
                report.subject.name,
                report.reference.name
            ),
        ),
    ];
    for fault in &report.subject.injected {
        facts.push(("injected", fault.clone()));
    }
    for rule in &report.run.tolerance {
        facts.push(("tolerance", format!("{rule}, instead of the bound")));
    }
    facts.push(("coverage", coverage(report)));
    facts
}

fn coverage(report: &Report) -> String {
    let c = &report.diagnosis.verdict.coverage;
    let share = if c.asked == 0 { 0.0 } else { 100.0 * c.judged as f64 / c.asked as f64 };
    // Rounded down: 100 % is said of nothing less.
    let share = (share * 10.0).floor() / 10.0;
    let what = if report.run.filters.is_empty() && c.complete() {
        "every stage, layer, position; nothing skipped".to_owned()
    } else if report.run.filters.is_empty() {
        "of every stage, layer, position".to_owned()
    } else {
        format!("of {} out of {} stages: {}", c.stages, c.stages_total, report.run.filters)
    };
    let within = match c.within {
        0 => String::new(),
        n => format!(", {n} of them not tapped but within the segment of a later stage"),
    };
    format!("{share} % ({what}); {} of {} stage rows{within}", c.judged, c.asked)
}

fn evidence(report: &Report) -> Vec<(&'static str, String)> {
    let verdict = &report.diagnosis.verdict;
    let mut lines = Vec::new();
    if let Some(first) = report.diagnosis.findings.first() {
        let stage = verdict.stages.iter().find(|s| s.id == first.id);
        if let Some(local) = stage.and_then(|s| s.subject.as_ref()) {
            of_origin(first, local, &mut lines);
        }
        if let Some(cause) = &first.cause {
            lines.push(("remedy", cause.remedy.clone()));
        }
    }
    if let Some(check) = &report.tokens {
        lines.push(("tokenizer", check.words()));
        lines.extend(check.cause.iter().map(|c| ("remedy", c.remedy.clone())));
    }
    lines.push(("tokens", tokens(report)));
    if let Some(repeated) = report.repeated.as_ref().filter(|r| r.race.is_none()) {
        let words = format!("{} runs of the subject, bit for bit the same", repeated.runs);
        lines.push(("repeat", words));
    }
    lines.push((
        "health",
        match verdict.health.as_slice() {
            [] => "nothing suspicious".to_owned(),
            [one] => one.to_string(),
            [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
        },
    ));
    lines
}

fn of_origin(finding: &Finding, local: &Local, lines: &mut Vec<(&'static str, String)>) {
    if let Some(extent) = &local.extent {
        lines.push(("extent", format!("{}: {extent}", finding.id)));
    }
    if let Some(e) = local.non_finite.as_ref().or(local.worst.as_ref()) {
        let other = e.other.map_or_else(String::new, |v| format!(", reference {:.6}", v.0));
        lines.push((
            "element",
            format!(
                "worst of {}: {} [{}]: subject {:.6}, f64 {:.6}{other}, allowed {}",
                finding.id,
                e.place,
                e.index,
                e.got,
                e.want,
                number(e.allowed)
            ),
        ));
    }
    if let Some(least) = local.least_tolerance() {
        lines.push((
            "tolerance",
            format!(
                "{}x what is allowed; would pass with --tolerance '{}={least:.1e}'",
                number(local.used),
                finding.id
            ),
        ));
    }
}

fn tokens(report: &Report) -> String {
    let verdict = &report.diagnosis.verdict;
    if verdict.coverage.alone {
        return "the subject's own choices; nothing to compare them with".to_owned();
    }
    if verdict.tokens.is_empty() {
        return "no choice to compare: the logits are not among what was judged".to_owned();
    }
    let Some(t) = verdict.tokens.iter().find(|t| t.subject != t.reference) else {
        return format!("the same choice after each of {} steps", verdict.tokens.len());
    };
    // By itself a margin proves nothing; with every stage right it does.
    let proven = report.outcome == Outcome::Match && report.run.filters.is_empty();
    let kind = if proven {
        "a flip: every stage matches, so rounding and quantised activations alone made it"
    } else {
        "not shown to be a flip"
    };
    format!(
        "first other choice after step {}: {} for {} (margin {}, logits differ by {}): {kind}",
        t.step,
        report.run.name(t.subject),
        report.run.name(t.reference),
        number(t.margin),
        number(t.error)
    )
}

fn next(report: &Report) -> (String, &'static str) {
    match report.diagnosis.findings.first() {
        Some(f) => {
            let layer = f.id.layer.map_or_else(String::new, |l| format!(" --layers {l}"));
            (format!("{} --stages '{}'{layer} --full", report.run.command, f.id.name), "the first origin alone")
        }
        None => (format!("{} --full", report.run.repeat()), "a row per layer"),
    }
}

fn shorten(hash: &str) -> String {
    match (hash.get(..4), hash.get(hash.len().saturating_sub(4)..)) {
        (Some(head), Some(tail)) if hash.len() >= 12 => format!("{head}…{tail}"),
        _ => hash.to_owned(),
    }
}
