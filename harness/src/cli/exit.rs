//! Exit codes: part of the stable interface.

use crate::report::Outcome;

/// Everything asked for was judged and matches.
pub const MATCH: u8 = 0;
/// The subject diverged, also where coverage is incomplete; or the reference is suspect.
pub const DIVERGED: u8 = 1;
/// Trouble: usage, environment, bad input, or qdiff itself in doubt.
pub const TROUBLE: u8 = 2;
/// No divergence, but not everything asked for could be judged.
pub const INCOMPLETE: u8 = 3;
/// What `--bisect` turns [`TROUBLE`] and [`INCOMPLETE`] into: `git bisect run` takes it for "cannot be tested".
pub const SKIP: u8 = 125;

/// The code of an outcome.
pub fn of(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Match => MATCH,
        Outcome::Diverged | Outcome::ReferenceSuspect => DIVERGED,
        Outcome::OracleSuspect => TROUBLE,
        Outcome::Incomplete => INCOMPLETE,
    }
}

/// The code that stands for several: trouble before divergence, divergence before gaps.
pub fn worst(codes: impl IntoIterator<Item = u8>) -> u8 {
    let weight = |code: &u8| [MATCH, INCOMPLETE, DIVERGED, TROUBLE].iter().position(|c| c == code);
    codes.into_iter().max_by_key(weight).unwrap_or(MATCH)
}

/// The code for a script, or where `wanted` for `git bisect run`.
pub fn bisect(code: u8, wanted: bool) -> u8 {
    match code {
        TROUBLE | INCOMPLETE if wanted => SKIP,
        code => code,
    }
}
