//! How far a cause may be relied on, in words. Every report says it in these.

use crate::diagnose::{Cause, Confidence, Finding, Holds, Solution, Trial};
use crate::mutations::Explains;
use crate::number::{counted, number};

/// Of a cause that fits, where no other tokens were run.
pub(super) const UNTRIED: &str = "fits this run; not tried on other tokens";

/// How far the cause of a finding may be relied on, and what it explains of the run; nothing where no cause is known.
pub(super) fn words(finding: &Finding) -> Option<String> {
    match (&finding.solution, &finding.cause) {
        (Some(s), _) => Some(format!("{}; {}", standing(finding), of_solution(s, finding.excerpt))),
        (None, Some(c)) if c.kind == Explains::Place => Some(of_cause(c, false)),
        (None, Some(c)) => {
            let conditioned = matches!(&finding.trial, Some(Trial::Narrowed { holds: Holds::Under { .. }, .. }));
            Some(format!("{}; {}", standing(finding), of_cause(c, conditioned)))
        }
        (None, None) => match (&finding.trial, finding.plain()) {
            (Some(Trial::Untried { because }), Some(_)) => Some(format!("not tried on other tokens: {because}")),
            (Some(Trial::Confirmed { elements, tokens, there: Some(there) }), Some(_)) => Some(format!(
                "confirmed on {}: there {there}, in the same places of the same passes; that explains all {} of {} in this sequence in \
                 these passes",
                others(*tokens),
                wrong(*elements),
                finding.id
            )),
            (Some(Trial::Confirmed { elements, tokens, there: None }), Some(_)) => Some(format!(
                "confirmed on {}: the same rule gives all {} of {} in all sequences of that run",
                others(*tokens),
                wrong(*elements),
                finding.id
            )),
            (Some(Trial::Silent { tokens, because }), Some(_)) => {
                Some(format!("read off the values of this run; {} do not tell more: {because}", others(*tokens)))
            }
            _ => None,
        },
    }
}

/// What other tokens say of the cause of a finding, in a few words; nothing where they do not bear it out.
pub(super) fn short(finding: &Finding) -> Option<String> {
    match finding.trial.as_ref()? {
        Trial::Confirmed { tokens, .. } => Some(format!("confirmed on {}", others(*tokens))),
        Trial::Narrowed { tokens, .. } => Some(format!("narrowed by {}", others(*tokens))),
        Trial::Silent { .. } | Trial::Untried { .. } | Trial::Withdrawn { .. } => None,
    }
}

/// A cause that did not hold on other tokens.
pub(super) fn withdrawn(finding: &Finding) -> Option<String> {
    let Some(Trial::Withdrawn { tokens, told, because }) = &finding.trial else { return None };
    // Other tokens may have borne it out where something else of the run speaks against it.
    Some(match *tokens {
        0 => format!("one candidate for the cause is taken back, \"{told}\": {because}"),
        tokens => format!("one candidate for the cause is taken back, \"{told}\": on {}, {because}", others(tokens)),
    })
}

fn wrong(elements: usize) -> String {
    counted(elements, "wrong element")
}

fn others(tokens: usize) -> String {
    counted(tokens, "other token")
}

/// What other tokens say of a cause.
fn standing(finding: &Finding) -> String {
    let sizes = finding.solution.is_none() && finding.cause.as_ref().is_some_and(|c| c.kind == Explains::Rounding);
    // The elements of the other run are not those of this one.
    let gives = |elements: usize| {
        let does = if sizes { "accounts for the size of" } else { "gives" };
        // What is left in memory that nobody wrote, no law says.
        let all = if finding.solution.as_ref().is_some_and(|s| s.unsaid > 0) { "" } else { "all " };
        format!("it {does} {all}{} of {} in that run", wrong(elements), finding.id)
    };
    match &finding.trial {
        Some(Trial::Confirmed { elements, tokens, there }) => {
            let there = there.as_ref().map_or_else(String::new, |name| format!(", as {name}"));
            format!("confirmed on {}: {}{there}", others(*tokens), gives(*elements))
        }
        Some(Trial::Narrowed { elements, tokens, holds: Holds::Some { .. } }) => {
            let what = gives(*elements);
            format!("narrowed by {}: {what}, and no rule is known for where it holds", others(*tokens))
        }
        Some(Trial::Narrowed { elements: 0, tokens, .. }) => {
            format!("narrowed by {}: nothing is wrong in that run, and both runs allow its condition", others(*tokens))
        }
        Some(Trial::Narrowed { elements, tokens, .. }) => {
            format!("narrowed by {}: {}, and both runs allow its condition", others(*tokens), gives(*elements))
        }
        Some(Trial::Silent { tokens, because }) => {
            format!("fits this run; {} do not tell more: {because}", others(*tokens))
        }
        Some(Trial::Untried { because }) => format!("fits this run; not tried on other tokens: {because}"),
        Some(Trial::Withdrawn { .. }) | None => UNTRIED.to_owned(),
    }
}

fn of_solution(s: &Solution, excerpt: bool) -> String {
    let all = wrong(s.elements) + if excerpt { " of the rows that were tried" } else { "" };
    let why = if s.confidence == Confidence::Consistent { "; why others are right is not known" } else { "" };
    let used = format!("within rounding, {} of them not used to find it{why}", s.held_out);
    match s.unsaid {
        0 => format!("in this run it gives all {all} {used}"),
        more => format!("in this run it gives {all} {used}; of {more} more it does not say what they hold"),
    }
}

/// What it means that a cause of the catalogue fits, `conditioned` where a condition is reported with it. The headline has its name.
fn of_cause(c: &Cause, conditioned: bool) -> String {
    let (name, before, after) = (&c.name, number(c.before), number(c.after));
    // A stage with NaN or infinity in it has no residual.
    let finite = c.before > 0.0;
    match c.kind {
        Explains::Value if !finite => format!("{name} gives the wrong values, and NaN or infinity in the same places"),
        Explains::Value if c.whole => format!("here it explains the residual {before} -> {after}"),
        Explains::Value if conditioned => {
            format!("{name} explains every wrong element: of a residual of {before} it leaves {after}")
        }
        Explains::Value => format!(
            "{name} explains every wrong element: of a residual of {before} it leaves {after}. It would change other elements too, which are right, and no rule is known that says which"
        ),
        Explains::Rounding if !finite => format!("{name} explains NaN and infinity, and the size of the rest"),
        Explains::Rounding => format!("{name} explains the size of the residual, {before}, and not its values"),
        Explains::Place if !finite => "location known, cause unknown; NaN or infinity is there".to_owned(),
        Explains::Place => format!("location known, cause unknown; residual {before}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qdiff_engine::model::StageId;

    /// A cause that fitted one run was called proved, without a test on other tokens.
    #[test]
    fn each_outcome_has_its_word() {
        let told = |trial: Option<Trial>| {
            let solution = Some(super::super::origin::proved("a law"));
            let found = Finding::of(StageId::layer(1, "stage"), (Vec::new(), None, solution, String::new()));
            words(&Finding { trial, ..found }).unwrap()
        };
        let (elements, tokens, because) = (7, 40, "so".to_owned());
        let narrowed = |elements, open| {
            let under = Holds::Under { conditions: Vec::new(), tried: true };
            let holds = if open { Holds::Some { elements, of: 9, rows: None, elsewhere: false } } else { under };
            Some(Trial::Narrowed { elements, tokens, holds })
        };
        for (trial, word) in [
            (
                Some(Trial::Confirmed { elements, tokens, there: None }),
                "confirmed on 40 other tokens: it gives all 7 wrong elements of L01.stage in that run; ",
            ),
            (
                narrowed(7, false),
                "narrowed by 40 other tokens: it gives all 7 wrong elements of L01.stage in that run, and both runs allow",
            ),
            (
                narrowed(7, true),
                "narrowed by 40 other tokens: it gives all 7 wrong elements of L01.stage in that run, and no rule is",
            ),
            (narrowed(0, false), "narrowed by 40 other tokens: nothing is wrong in that run, and both runs allow"),
            (
                Some(Trial::Silent { tokens, because: because.clone() }),
                "fits this run; 40 other tokens do not tell more: so;",
            ),
            (Some(Trial::Untried { because }), "fits this run; not tried on other tokens: so; in this run it gives"),
            (None, "fits this run; not tried on other tokens; in this run it gives all 1 wrong element within"),
        ] {
            assert!(told(trial).starts_with(word), "{word}");
        }
    }
}
