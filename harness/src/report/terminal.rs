//! The first screen: the verdict, then a row per stage, then what to do next.

use super::Report;
use crate::verdict::{Finding, Local, StageResult, Status, Verdict};
use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write as _;

const RED: Style = AnsiColor::Red.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();

/// The report as text with colours; the stream it is printed to strips them.
/// `full` prints a row per stage and layer instead of per stage.
pub fn render(report: &Report, full: bool) -> String {
    let mut out = String::new();
    headline(report, &mut out);
    let m = &report.model;
    let _ = writeln!(
        out,
        "\nmodel      {} {}, {} layers, sha256 {}",
        m.name,
        m.format,
        m.layers,
        shorten(&m.sha256)
    );
    let _ = writeln!(
        out,
        "run        {}: {} prompt tokens + {} decode steps; subject {}, reference {}",
        report.run.prompt,
        report.run.tokens.len(),
        report.run.decoded.len(),
        report.subject.name,
        report.reference.name
    );
    for fault in &report.subject.injected {
        let _ = writeln!(out, "injected   {fault}");
    }
    let _ = writeln!(out, "coverage   {}\n", coverage(report));
    let table = table(&report.verdict, full);
    let _ = writeln!(out, "{table}\n");
    details(report, &mut out);
    let _ = writeln!(out, "\nnext       {}", next(report));
    out
}

fn headline(report: &Report, out: &mut String) {
    let verdict = &report.verdict;
    if let Some(m) = report.weights.mismatches.first() {
        let _ = writeln!(
            out,
            "{RED}DIVERGED{RED:#} at weights: {} ({}) row {} [{}] is {} to the engine, {} to ggml; {} tensors differ",
            m.tensor,
            m.format,
            m.row,
            m.index,
            m.got,
            m.want,
            report.weights.mismatches.len()
        );
    }
    if let Some(first) = verdict.findings.first() {
        let where_ = positions(verdict, first);
        let why = match &first.cause {
            Some(c) => format!(
                "{} ({}; explains the residual {} -> {})",
                c.story,
                c.name,
                number(c.before),
                number(c.after)
            ),
            None if first.shape.is_empty() => "no known cause".to_owned(),
            None => format!("no known cause: {}", first.shape),
        };
        let _ = writeln!(out, "{RED}DIVERGED{RED:#} at {}, {where_}: {why}", first.id);
        if verdict.findings.len() > 1 {
            let _ = writeln!(out, "{}", others(&verdict.findings));
        }
    } else if let Some(stage) = verdict.disputed().next() {
        let doubt = report.doubt.as_deref().unwrap_or("");
        let _ = writeln!(
            out,
            "{YELLOW}DISPUTED{YELLOW:#} at {}: the subject meets f64, the reference does not. {doubt}",
            stage.id
        );
    } else if !verdict.coverage.complete() {
        let _ = writeln!(
            out,
            "{YELLOW}INCOMPLETE{YELLOW:#}: no divergence, but not everything could be judged"
        );
    } else {
        let worst = |pick: fn(&StageResult) -> &Option<Local>| {
            verdict
                .stages
                .iter()
                .filter_map(|s| pick(s).as_ref())
                .fold(0f64, |m, l| m.max(l.residual))
        };
        let _ = writeln!(
            out,
            "{GREEN}MATCH{GREEN:#}: every stage does its mathematics on both sides; largest local residual {} (subject), {} (reference)",
            number(worst(|s| &s.subject)),
            number(worst(|s| &s.reference))
        );
    }
}

fn positions(verdict: &Verdict, finding: &Finding) -> String {
    let stage = verdict.stages.iter().find(|s| s.id == finding.id);
    let Some(local) = stage.and_then(|s| s.subject.as_ref()) else {
        return String::new();
    };
    let first = local.first_bad.map_or(0, |p| p.step);
    let since = match first {
        0 => String::new(),
        n => format!(" from decode step {n} on"),
    };
    if local.bad_rows >= local.rows {
        return format!("all positions{since}");
    }
    let list: Vec<String> = local
        .bad_positions
        .iter()
        .take(6)
        .map(ToString::to_string)
        .collect();
    let more = if local.bad_positions.len() > 6 {
        ", …"
    } else {
        ""
    };
    format!("positions {}{more}{since}", list.join(", "))
}

/// `also origins: L00.k_biased L00.v_biased and the same stages of L01..L23: one cause, 72 places`.
fn others(findings: &[Finding]) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut layers: Vec<u16> = Vec::new();
    let mut causes: Vec<&str> = Vec::new();
    for f in findings {
        if !names.contains(&f.id.name) {
            names.push(f.id.name);
        }
        layers.extend(f.id.layer);
        let cause = f
            .cause
            .as_ref()
            .map_or("no known cause", |c| c.name.as_str());
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    layers.sort_unstable();
    layers.dedup();
    let range = match (layers.first(), layers.last()) {
        (Some(a), Some(b)) if a != b => format!(" in {} layers, L{a:02}..L{b:02}", layers.len()),
        (Some(a), _) => format!(" in L{a:02}"),
        _ => String::new(),
    };
    let cause = if causes.len() == 1 {
        format!("one cause, {}", causes[0])
    } else {
        format!("{} causes: {}", causes.len(), causes.join(", "))
    };
    format!(
        "{} origins: {}{range}: {cause}",
        findings.len(),
        names.join(" ")
    )
}

fn coverage(report: &Report) -> String {
    let c = &report.verdict.coverage;
    let share = if c.asked == 0 {
        0.0
    } else {
        100.0 * c.judged as f64 / c.asked as f64
    };
    // Rounded down: 100 % is said of nothing less.
    let share = (share * 10.0).floor() / 10.0;
    let what = if report.run.filters.is_empty() {
        "every stage, layer, position; nothing skipped".to_owned()
    } else {
        format!(
            "of {} out of {} stages: {}",
            c.stages, c.stages_total, report.run.filters
        )
    };
    format!("{share} % ({what}); {} of {} stage rows", c.judged, c.asked)
}

/// Rows of the table: the stages of one name, or one stage.
fn table(verdict: &Verdict, full: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "stage",
        "layers",
        "local, worst",
        "",
        "allowed",
        "used",
        "llama.cpp",
        "used",
        "global, worst",
        "status",
    ]);
    let mut names: Vec<String> = Vec::new();
    let key = |s: &StageResult| {
        if full {
            s.id.to_string()
        } else {
            s.id.name.to_owned()
        }
    };
    for s in &verdict.stages {
        if !names.contains(&key(s)) {
            names.push(key(s));
        }
    }
    for name in names {
        let group: Vec<&StageResult> = verdict.stages.iter().filter(|s| key(s) == name).collect();
        table.add_row(row(&name, &group));
    }
    for i in [1, 2, 4, 5, 6, 7] {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

fn row(name: &str, group: &[&StageResult]) -> Vec<String> {
    fn worst<'a>(
        group: &[&'a StageResult],
        pick: fn(&StageResult) -> &Option<Local>,
    ) -> Option<(&'a StageResult, &'a Local)> {
        group
            .iter()
            .filter_map(|s| pick(s).as_ref().map(|l| (*s, l)))
            .max_by(|a, b| a.1.used.total_cmp(&b.1.used))
    }
    let layers = match group {
        [one] if one.id.layer.is_none() => "-".to_owned(),
        all => all.len().to_string(),
    };
    let subject = worst(group, |s| &s.subject);
    let reference = worst(group, |s| &s.reference);
    let place = |s: &StageResult, at: String| match s.id.layer {
        Some(l) => format!("L{l:02} {at}"),
        None => at,
    };
    let global = group
        .iter()
        .filter_map(|s| s.global.map(|g| (*s, g)))
        .max_by(|a, b| a.1.error.total_cmp(&b.1.error));
    let none = || "-".to_owned();
    vec![
        name.to_owned(),
        layers,
        subject.map_or_else(none, |(_, l)| number(l.residual)),
        subject.map_or_else(String::new, |(s, l)| {
            let at = l.at.or(l.first_bad);
            at.map_or_else(String::new, |p| place(s, p.to_string()))
        }),
        subject.map_or_else(none, |(_, l)| number(l.allowed)),
        subject.map_or_else(none, |(_, l)| percent(l.used)),
        reference.map_or_else(none, |(_, l)| number(l.residual)),
        reference.map_or_else(none, |(_, l)| percent(l.used)),
        global.map_or_else(none, |(s, g)| {
            format!("{} {}", number(g.error), place(s, g.at.to_string()))
        }),
        status(group),
    ]
}

fn status(group: &[&StageResult]) -> String {
    for (status, word) in [
        (Status::Poisoned, "POISONED"),
        (Status::Diverged, "DIVERGED"),
        (Status::Disputed, "DISPUTED"),
        (Status::Missing, "missing"),
        (Status::Inherited, "inherited"),
    ] {
        let hits: Vec<&&StageResult> = group.iter().filter(|s| s.status == status).collect();
        if let Some(first) = hits.first() {
            let from = match first.id.layer {
                Some(l) if group.len() > 1 => format!(" from L{l:02}"),
                _ => String::new(),
            };
            return format!("{word}{from}");
        }
    }
    "match".to_owned()
}

fn details(report: &Report, out: &mut String) {
    let verdict = &report.verdict;
    if let Some(first) = verdict.findings.first() {
        let stage = verdict.stages.iter().find(|s| s.id == first.id);
        if let Some(local) = stage.and_then(|s| s.subject.as_ref()) {
            if let Some(extent) = &local.extent {
                let _ = writeln!(out, "extent         {}: {extent}", first.id);
            }
            if let Some(e) = local.non_finite.as_ref().or(local.worst.as_ref()) {
                let _ = writeln!(
                    out,
                    "worst element  {} {} [{}]: subject {:.6}, f64 {:.6}, allowed {}",
                    first.id,
                    e.place,
                    e.index,
                    e.got,
                    e.want,
                    number(e.allowed)
                );
            }
            if let Some(least) = local.least_tolerance() {
                let _ = writeln!(
                    out,
                    "tolerance      {}x what is allowed; would pass with --tolerance '{}={least:.1e}'",
                    number(local.used),
                    first.id
                );
            }
        }
        if let Some(cause) = &first.cause {
            let _ = writeln!(out, "remedy         {}", cause.remedy);
        }
    }
    let flips: Vec<_> = verdict
        .tokens
        .iter()
        .filter(|t| t.subject != t.reference)
        .collect();
    match flips.first() {
        None => {
            let _ = writeln!(
                out,
                "tokens         the same choice after each of {} steps",
                verdict.tokens.len()
            );
        }
        Some(t) => {
            // By itself a margin proves nothing; with every stage right it does.
            let proven =
                !verdict.diverged() && verdict.coverage.complete() && report.run.filters.is_empty();
            let kind = if proven {
                "a flip: every stage matches, so rounding and quantised activations alone made it"
            } else {
                "not shown to be a flip"
            };
            let _ = writeln!(
                out,
                "tokens         first other choice after step {}: id {} for {} (margin {}, logits differ by {}): {kind}",
                t.step,
                t.subject,
                t.reference,
                number(t.margin),
                number(t.error)
            );
        }
    }
    match verdict.health.as_slice() {
        [] => {
            let _ = writeln!(out, "health         nothing suspicious");
        }
        [first, rest @ ..] => {
            let more = if rest.is_empty() {
                String::new()
            } else {
                format!(" (and {} more)", rest.len())
            };
            let _ = writeln!(out, "health         {first}{more}");
        }
    }
}

fn next(report: &Report) -> String {
    match report.verdict.findings.first() {
        Some(f) => {
            let layer =
                f.id.layer
                    .map_or_else(String::new, |l| format!(" --layers {l}"));
            format!(
                "{} --stages '{}'{layer} --full",
                report.run.command, f.id.name
            )
        }
        None => format!("{} --full   (a row per layer)", report.run.command),
    }
}

/// A residual in two digits; zero and infinity in words one can read.
pub(crate) fn number(x: f64) -> String {
    if x == 0.0 {
        "0".to_owned()
    } else if x.is_infinite() {
        "inf".to_owned()
    } else if (0.01..1000.0).contains(&x.abs()) {
        format!("{x:.2}")
    } else {
        format!("{x:.1e}")
    }
}

fn percent(used: f64) -> String {
    if used > 10.0 {
        "-".to_owned()
    } else {
        format!("{:.0} %", (used * 100.0).ceil())
    }
}

fn shorten(hash: &str) -> String {
    if hash.len() < 12 {
        return hash.to_owned();
    }
    format!("{}…{}", &hash[..4], &hash[hash.len() - 4..])
}
