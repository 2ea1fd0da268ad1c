//! The score as text.

use super::{Case, Group, Score};
use crate::number::number;
use std::fmt::Write as _;

/// Totals, a line for each mutation, and everything that was missed, by name.
pub fn render(score: &Score) -> String {
    let mut out = String::new();
    let word = if score.reached() { "REACHED" } else { "MISSED" };
    let _ = writeln!(out, "{word}: every independent fault detected at its stage, 95 of 100 named, no false alarm\n");
    let _ = writeln!(out, "subject    {}", score.subject);
    let _ = writeln!(out, "models     {}", score.models.join(", "));
    for group in &score.groups {
        of_group(group, &mut out);
    }
    let _ = writeln!(out, "\nclean      {} false alarms in {} runs", score.clean.alarms.len(), score.clean.runs);
    for (what, stage) in &score.clean.alarms {
        let _ = writeln!(out, "           {what}: {stage}");
    }
    let _ = writeln!(out, "\nsmallest magnitude found, and named");
    for g in &score.graded {
        let size = |x: Option<crate::number::Real>| x.map_or("-".to_owned(), |r| number(r.0));
        let _ =
            writeln!(out, "  {:<18} {:<18} {:>8} {:>8}", g.fault, g.stage.to_string(), size(g.found), size(g.named));
    }
    out
}

fn of_group(group: &Group, out: &mut String) {
    let counted: Vec<&Case> = group.counted().collect();
    let inert: Vec<&Case> = group.cases.iter().filter(|c| c.inert()).collect();
    let _ = writeln!(out, "\n{}", group.source);
    let _ = writeln!(
        out,
        "  {:<28} {:>5} {:>8} {:>6} {:>6} {:>8}",
        "fault", "cases", "detected", "stage", "cause", "seconds"
    );
    let mut names: Vec<&str> = counted.iter().map(|c| c.name()).collect();
    names.sort_unstable();
    names.dedup();
    for of in names {
        let cases: Vec<&Case> = counted.iter().copied().filter(|c| c.name() == of).collect();
        let _ = writeln!(out, "  {}", line(of, &cases));
    }
    let _ = writeln!(out, "  {}", line("all", &counted));
    if !group.pairs.is_empty() {
        let count = |f: fn(&super::PairCase) -> bool| group.pairs.iter().filter(|p| f(p)).count();
        let _ = writeln!(
            out,
            "  pairs: {}; both places and no other {}, both causes {}",
            group.pairs.len(),
            count(|p| p.stages_right),
            count(|p| p.causes_right)
        );
    }
    for c in counted {
        if !(c.stage_right && c.cause_right) {
            let found = c.found.map_or("nothing".to_owned(), |id| id.to_string());
            let cause = c.cause.as_deref().unwrap_or("no known cause");
            let more = if c.others > 0 { format!(" and {} more", c.others) } else { String::new() };
            let _ = writeln!(
                out,
                "  missed   {}@{} ({}): {found}{more}, {cause}: {}",
                c.fault,
                c.stage,
                c.model,
                c.reason()
            );
        }
    }
    for p in group.pairs.iter().filter(|p| !(p.stages_right && p.causes_right)) {
        let show = |(a, b): &(String, String)| format!("{a} {b}");
        let planted: Vec<String> = p.faults.iter().map(show).collect();
        let found: Vec<String> = p.found.iter().map(show).collect();
        let _ =
            writeln!(out, "  missed   {} ({}): {}: {}", planted.join(" and "), p.model, found.join(", "), p.reason());
    }
    for c in inert {
        let _ = writeln!(
            out,
            "  inert    {}@{} ({}): {} of what is allowed",
            c.fault,
            c.stage,
            c.model,
            number(c.effect.map_or(0.0, |e| e.0))
        );
    }
}

fn line(name: &str, cases: &[&Case]) -> String {
    let count = |f: fn(&Case) -> bool| cases.iter().filter(|c| f(c)).count();
    let median = median(cases);
    format!(
        "{name:<28} {:>5} {:>8} {:>6} {:>6} {median:>8.2}",
        cases.len(),
        count(|c| c.detected),
        count(|c| c.stage_right),
        count(|c| c.cause_right)
    )
}

/// The middle of the times of these diagnoses, in seconds.
pub(crate) fn median(cases: &[&Case]) -> f64 {
    let mut seconds: Vec<f64> = cases.iter().map(|c| c.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}
