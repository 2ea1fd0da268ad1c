//! What was judged, and how fine: a check of few stages must not sound like one of all.

use super::origin::grouped;
use super::stages::{NONE, OPEN};
use super::{Outcome, Report};
use crate::arithmetic::{Accumulation, Functions, LinearRule};
use crate::metrics::largest;
use crate::number::{counted, number, percent};
use crate::verdict::{Local, Parts, Place, SEVERAL, Segment, StageResult, Status};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::StageId;
use qdiff_engine::quant::{ActivationFormat, KvType};
use serde::Serialize;
use serde_json::Value;

/// Segments listed by name.
const NAMED: usize = 3;

/// `all 531 stages are correct on both sides; …`, or the segments that were judged.
pub(super) fn correct(report: &Report) -> String {
    let verdict = &report.diagnosis.verdict;
    let declared = match arithmetic(report) {
        plain if plain == "f32" && report.subject.stored.is_some() => "f32 and rounded storage".to_owned(),
        plain if plain == "f32" => plain,
        other if report.subject.unkept.is_some() => format!("its arithmetic ({other}), or f32 where it is not kept,"),
        other => format!("its arithmetic ({other})"),
    };
    let s = if declared.contains(" and ") { "" } else { "s" };
    let used = |pick: fn(&StageResult) -> &Option<Local>| {
        percent(largest(verdict.stages.iter().filter_map(|s| pick(s).as_ref()).map(|l| l.used)))
    };
    let computed = if verdict.coverage.probed.is_some() { " of the rows computed" } else { "" };
    let same = identical(report).filter(|_| verdict.coverage.identical == verdict.coverage.compared);
    let same = same.map_or_else(String::new, |same| format!("; {same}"));
    format!(
        "{} correct on both sides{same}{}; the worst error{computed} is {} of what {declared} allow{s}, the reference's {}",
        stages(report, Status::Match),
        unseen(report),
        used(|s| &s.subject),
        used(|s| &s.reference)
    )
}

/// `all 531 stages are`; where some were judged within segments, which were not: `5 stages, and 64 that were not dumped,
/// checked as 4 segments, are`; where only the reference lacks some: `all 104 stages (the
/// reference lacks 8 of them, and was checked in 8 segments) are`.
fn stages(report: &Report, status: Status) -> String {
    let verdict = &report.diagnosis.verdict;
    let asked = if report.run.filters.is_empty() { "" } else { " asked for" };
    let covered = count(report, Status::Covered);
    let dumped: Vec<&StageResult> = verdict.stages.iter().filter(|s| s.status == status).collect();
    let are = |n: usize| if n == 1 { "is" } else { "are" };
    if covered == 0 {
        let all = match dumped.len() {
            1 if status == Status::Match => "the ",
            2.. if status == Status::Match => "all ",
            _ => "",
        };
        return format!("{all}{}{asked} {}", counted(dumped.len(), "stage"), are(dumped.len()));
    }
    if let [only] = dumped.as_slice() {
        return format!("{} alone, one segment of {}{asked}, is", only.id, counted(covered + 1, "stage"));
    }
    let segments = dumped.iter().filter(|s| segment(s).is_some()).count();
    let checked = match segments {
        1 => "one segment".to_owned(),
        n => format!("{n} segments"),
    };
    let absent = Absent::of(report);
    if let Absent { subject: 0, reference } = absent {
        let all = if status == Status::Match { "all " } else { "" };
        let given = counted(dumped.len() + reference, "stage");
        return format!(
            "{all}{given}{asked} (the reference lacks {reference} of them, and was checked in {checked}) are"
        );
    }
    format!("{}{asked}, and {absent}, checked as {checked}, are", counted(dumped.len(), "stage"))
}

/// Stages that were judged within segments, by who did not give them.
struct Absent {
    /// The subject, and perhaps the reference too.
    subject: usize,
    /// The reference alone: the subject's stage was judged alone.
    reference: usize,
}

impl Absent {
    fn of(report: &Report) -> Self {
        let covered = report.diagnosis.verdict.stages.iter().filter(|s| s.status == Status::Covered);
        let (reference, subject): (Vec<_>, Vec<_>) = covered.partition(|s| s.subject.is_some());
        Self { subject: subject.len(), reference: reference.len() }
    }

    /// How their rows are judged.
    fn judged(&self) -> &'static str {
        match self {
            Self { reference: 0, .. } => "not dumped; they were checked as part of the next dumped stage",
            Self { subject: 0, .. } => "missing in the reference; qdiff checks the reference at its next stage instead",
            _ => "missing on one side; qdiff checks that side at its next stage instead",
        }
    }
}

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.subject, self.reference) {
            (subject, 0) => write!(f, "{subject} that {} not dumped", were(subject)),
            (subject, reference) => {
                write!(f, "{subject} that {} not dumped and {reference} that the reference lacks", were(subject))
            }
        }
    }
}

fn were(n: usize) -> &'static str {
    if n == 1 { "was" } else { "were" }
}

/// The residual over a segment that a stage is judged by, the subject's where it has one.
fn segment(stage: &StageResult) -> Option<(&Segment, &Local)> {
    [&stage.subject, &stage.reference].into_iter().flatten().find_map(|l| Some((l.segment.as_ref()?, l)))
}

/// Whether all segments are the reference's: the subject gave every stage.
fn of_reference(report: &Report) -> bool {
    matches!(Absent::of(report), Absent { subject: 0, reference: 1.. })
}

/// Segments, with the smallest share of a row that is sure to show; the coarsest first.
fn coarsest(report: &Report) -> Vec<(&Segment, f64)> {
    let of = |s| segment(s).and_then(|(segment, local)| Some((segment, local.shows?.0)));
    let mut all: Vec<_> = report.diagnosis.verdict.stages.iter().filter_map(of).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// The stage by whose rows a segment is judged.
fn end(segment: &Segment) -> String {
    segment.stages.last().map_or_else(String::new, ToString::to_string)
}

/// What would not show in segments.
fn unseen(report: &Report) -> String {
    let all = coarsest(report);
    let error = all.first().map_or_else(String::new, |(segment, shows)| {
        format!(
            "; in {segment}, an error{} that changes a row of {} by less than {} of its size may not show",
            if of_reference(report) { " of the reference" } else { "" },
            end(segment),
            number(*shows)
        )
    });
    match shift(report) {
        shift if shift.is_empty() => error,
        shift => format!("{error}; {shift}"),
    }
}

/// That a shift of all positions would not show.
fn shift(report: &Report) -> String {
    let blind = &report.diagnosis.verdict.coverage.blind;
    match blind.as_slice() {
        [] => String::new(),
        names => {
            let (last, first) = names.split_last().map_or((NONE, &[][..]), |(last, first)| (last.as_str(), first));
            let or = if first.is_empty() { "" } else { " or " };
            format!("a shift of all positions may not show: dump {}{or}{last}", first.join(", "))
        }
    }
}

/// Each segment with what shows in it, but for what the headline says: of the coarsest, and that a shift would not show.
pub(super) fn segments(report: &Report) -> Option<String> {
    let mut all = coarsest(report);
    let told_above = report.outcome == Outcome::Match
        || report.outcome == Outcome::Incomplete && report.diagnosis.verdict.coverage.alone;
    if told_above && !all.is_empty() {
        all.remove(0);
    }
    let told = |(segment, shows): &(&Segment, f64)| {
        format!("{} in {segment} ({})", number(*shows), counted(segment.stages.len(), "stage"))
    };
    let named: Vec<String> = all.iter().take(NAMED).map(told).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        1 => "; in the other segment smaller errors show too".to_owned(),
        n => format!("; in the other {n} segments smaller errors show too"),
    };
    let shift = Some(shift(report))
        .filter(|shift| !told_above && !shift.is_empty())
        .map_or_else(String::new, |shift| format!("; {shift}"));
    (!all.is_empty()).then(|| {
        format!(
            "an error{} shows if it changes a row of the segment's last stage by at least {}{more}{shift}",
            if of_reference(report) { " of the reference" } else { "" },
            named.join("; ")
        )
    })
}

/// That the subject's values are the reference's, where most of them are.
pub(super) fn identical(report: &Report) -> Option<String> {
    let c = &report.diagnosis.verdict.coverage;
    let told = 2 * c.identical > c.compared;
    told.then(|| format!("bit-identical to the reference in {} of {}", c.identical, counted(c.compared, "stage")))
}

/// What the first other choice is, where one differs. By itself a margin proves nothing; with every stage right, within its
/// own bounds, it does. What a segment is allowed may hide an error.
///
/// `step` is the one after which the choice was made, or in which it was, at this stage and position.
pub(super) fn flip(report: &Report, step: usize, at: Option<(StageId, usize)>) -> &'static str {
    let whole = report.run.filters.is_empty() && report.run.tolerance.is_empty();
    // Stages are in the order of the graph.
    let stages = &report.diagnosis.verdict.stages;
    let before = at.and_then(|(id, _)| stages.iter().position(|stage| stage.id == id)).unwrap_or(stages.len());
    let first_bad = |stage: &StageResult| stage.subject.as_ref().and_then(|local| local.first_bad);
    let is_before = |(i, stage): (usize, &StageResult)| {
        // The stage that chooses may be wrong itself. No row is made of rows at later positions.
        let in_step = |place: Place| i <= before && at.is_none_or(|(_, position)| place.position <= position);
        first_bad(stage).is_some_and(|place| place.step < step || place.step == step && in_step(place))
    };
    let wrong = stages.iter().any(|stage| first_bad(stage).is_some());
    let later = wrong && !stages.iter().enumerate().any(is_before);
    if later && whole && report.diagnosis.verdict.coverage.within == 0 {
        return "This first difference is a flip: every stage before it is right, so it comes from rounding (of quantised activations too)";
    }
    if later {
        return "No stage before this first difference is known to be wrong, so it may come from rounding";
    }
    if report.outcome == Outcome::Match && whole && report.diagnosis.verdict.coverage.within == 0 {
        "This is a flip: every stage is correct on both sides, so the difference comes from rounding (of quantised activations too)"
    } else if report.diagnosis.findings.is_empty() {
        "Not every stage was judged by its own bound, so this may be rounding or a fault"
    } else {
        "A stage is wrong; that may be why the choices differ"
    }
}

fn count(report: &Report, status: Status) -> usize {
    report.diagnosis.verdict.stages.iter().filter(|s| s.status == status).count()
}

/// What was not judged, of a verdict that is no match and finds nothing.
pub(super) fn incomplete(report: &Report) -> String {
    let verdict = &report.diagnosis.verdict;
    let coverage = &verdict.coverage;
    let unjudged = format!("{} of {} stage rows", coverage.asked - coverage.judged, coverage.asked);
    let lacking = match verdict.unjudged.as_slice() {
        _ if coverage.asked == 0 => "there was nothing to judge".to_owned(),
        [] if coverage.cut => "the run was cut short, and later steps may be missing".to_owned(),
        [] => String::new(),
        [only] => format!("{unjudged} could not be judged: {only}"),
        [first, .., last] => {
            let of = counted(verdict.unjudged.len(), "stage");
            format!("{unjudged} could not be judged, of {of}: {first} to {last}")
        }
    };
    let lacking = match verdict.beyond() {
        Some((stage, e)) => format!(
            "{lacking}; {stage} is beyond f32 in any engine: {} [{}] is {:.3e} in f64, and f32 ends at {:.3e}",
            e.place,
            e.index,
            e.want,
            f32::MAX
        ),
        None => lacking,
    };
    if !coverage.alone {
        return format!("no divergence, but {lacking}");
    }
    let right = stages(report, Status::Alone);
    let invariants = if verdict.beyond().is_some() { "" } else { ", and no health check fails" };
    // A folder of safetensors matches without a reference: then what could not be judged is why this is no match.
    let none = match report.outcome {
        Outcome::Incomplete if report.model.folder => "no reference ran",
        Outcome::Incomplete => "no reference ran, so this is no match",
        _ => "no reference ran",
    };
    let but = match lacking.as_str() {
        "" => String::new(),
        _ if report.outcome == Outcome::Incomplete && report.model.folder => {
            format!("; this is no match, because {lacking}")
        }
        _ => format!("; {lacking}"),
    };
    format!("{none}; {right} correct against f64{}{invariants}{but}", unseen(report))
}

/// How much was judged.
pub(super) fn coverage(report: &Report) -> String {
    let verdict = &report.diagnosis.verdict;
    let c = &verdict.coverage;
    let share = if c.asked == 0 { 0.0 } else { 100.0 * c.judged as f64 / c.asked as f64 };
    // Rounded down: only complete coverage is 100 %.
    let share = (share * 10.0).floor() / 10.0;
    let what = if !report.run.filters.is_empty() {
        format!("of {} out of {} stages: {}", c.stages, c.stages_total, report.run.filters)
    } else if c.asked > 0 && c.asked == c.judged {
        "every stage, layer and position".to_owned()
    } else {
        "of every stage, layer and position".to_owned()
    };
    let within = match c.within {
        0 => String::new(),
        n => format!(", {n} of them {}", Absent::of(report).judged()),
    };
    let locals = verdict.stages.iter().filter_map(|s| s.subject.as_ref());
    let inconclusive = match locals.map(|l| l.inconclusive).sum() {
        0 => String::new(),
        n => format!("; {n} inconclusive: {OPEN}"),
    };
    let last = if c.last_row { "; of the prompt, the last stages have only the last token, as captured" } else { "" };
    let rounded = rounded_scores(report);
    let probed = c.probed.map_or_else(String::new, |p| {
        let sees = format!("a single wrong element shows from about {} times its bound on", p.sees.0.ceil());
        let missed = p.missed.map_or_else(String::new, |missed| {
            let chance = number(missed.0);
            let largest = SEVERAL * p.sees.0.ceil();
            format!("; several that cancel, the largest at least {largest} times its bound, are missed with a probability of at most {chance}")
        });
        format!("; {} of them by probes: {sees}{missed} (--check full computes every row)", p.rows)
    });
    format!("{share} % ({what}); {} of {} stage rows{within}{probed}{last}{inconclusive}{rounded}", c.judged, c.asked)
}

/// Where the random numbers of probes come from.
pub(super) fn seeds(report: &Report) -> Option<String> {
    let verdict = &report.diagnosis.verdict;
    if let Some(seed) = verdict.coverage.probed?.seed {
        return Some(format!("the seed of the random numbers is {seed} for every stage (--probe-seed)"));
    }
    let drawn = |s: &StageResult| Some((s.id, s.subject.as_ref().or(s.reference.as_ref())?.seed?));
    let (first, seed) = verdict.stages.iter().find_map(drawn)?;
    Some(format!(
        "the seed of the random numbers is a hash of a stage's values and weights: {seed} for {first}; the JSON has the \
         seeds of all stages. --probe-seed {seed} uses this seed for every stage"
    ))
}

/// That parts are taken at their word, but for a sample.
pub(super) fn parts(report: &Report) -> Option<String> {
    let Parts { stages, again } = report.diagnosis.verdict.parts.as_ref()?;
    let stages = counted(*stages, "stage");
    Some(format!(
        "{stages} come from parts: {again} drawn at random were judged again here, with the same result; the \
         others were not judged again"
    ))
}

/// Rows that were judged by what operands within their rounding give, and no more is known of them.
fn rounded_scores(report: &Report) -> String {
    let stages = report.diagnosis.verdict.stages.iter().filter_map(|s| Some((s.id, s.subject.as_ref()?.by_operands)));
    let known: Vec<_> = stages.filter(|(_, rows)| *rows > 0).collect();
    let Some((first, _)) = known.first() else { return String::new() };
    let rows = counted(known.iter().map(|(_, rows)| rows).sum(), "row");
    let more = if known.len() == 1 { "" } else { " and after it" };
    format!("; {rows} of {first}{more} known only as far as the rounded scores are")
}

/// What the subject declares of this model: f32 throughout, an arithmetic that has a name, or what differs from f32.
pub(super) fn arithmetic(report: &Report) -> String {
    let (a, formats) = (&report.subject.arithmetic, &report.model.formats);
    if let Some(name) = a.name() {
        return name.to_string();
    }
    let f32 = ActivationFormat::F32;
    let here = |r: &&LinearRule| r.weights.is_empty() || formats.is_empty() || formats.contains(&r.weights);
    let rules: Vec<&LinearRule> = a.linear.iter().filter(here).collect();
    let products = rules.iter().flat_map(|r| {
        let activations = (r.activations != f32).then(|| named(&r.activations, "activations"));
        [activations, (r.output != DType::F32).then(|| named(&r.output, "products"))]
    });
    let sums = rules.iter().map(|r| r.accumulation).chain(a.attention.iter().map(|r| r.accumulation));
    let sums = sums.map(|accumulation| match accumulation {
        Accumulation::F32 => None,
        Accumulation::TensorCores => Some("sums of tensor cores".to_owned()),
        Accumulation::F16 => Some("f16 sums".to_owned()),
    });
    let attention = a.attention.iter().flat_map(|r| [r.scores, r.context]);
    let attention = attention.map(|format| (format != f32).then(|| named(&format, "attention")));
    let flash = a.attention.iter().any(|r| r.flash).then(|| "flash attention".to_owned());
    let joined = a.attention.iter().any(|r| r.log_sum_exp).then(|| "shares joined by log-sum-exp".to_owned());
    let cache = (a.kv != KvType::F32).then(|| named(&a.kv, "cache"));
    let functions = (a.functions == Functions::Fast).then(|| "fast functions".to_owned());
    let parameters = (a.parameters != DType::F32).then(|| format!("{} parameters", a.parameters));
    let outputs = (!a.outputs.plain()).then(|| format!("outputs in {}", a.outputs));
    let parts =
        products.chain(sums).chain(attention).chain([flash, joined, cache, functions, parameters, outputs]).flatten();
    let parts: Vec<String> = grouped(parts, String::clone).into_iter().map(|(part, _)| part).collect();
    if parts.is_empty() { "f32".to_owned() } else { parts.join(", ") }
}

/// A number format as a manifest calls it, of this.
fn named(format: &impl Serialize, of: &str) -> String {
    match serde_json::to_value(format) {
        Ok(Value::String(name)) => format!("{name} {of}"),
        other => unreachable!("{other:?} is no name of a number format"),
    }
}
