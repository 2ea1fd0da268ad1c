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
/// What `--bisect` turns [`INCOMPLETE`] into, and [`TROUBLE`] of building or running the engine: `git bisect run` takes it for
/// "cannot be tested", and goes on with another commit.
pub const SKIP: u8 = 125;
/// What `--bisect` turns all other [`TROUBLE`] into, which every commit would have: `git bisect run` stops.
pub const ABORT: u8 = 128;

/// The code of an outcome.
pub fn of(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Match => MATCH,
        Outcome::Diverged | Outcome::ReferenceSuspect => DIVERGED,
        Outcome::OracleSuspect => TROUBLE,
        Outcome::Incomplete => INCOMPLETE,
    }
}

/// The code of several runs: trouble before divergence, divergence before gaps.
pub fn worst(codes: impl IntoIterator<Item = u8>) -> u8 {
    let weight = |code: &u8| [MATCH, INCOMPLETE, DIVERGED, TROUBLE].iter().position(|c| c == code);
    codes.into_iter().max_by_key(weight).unwrap_or(MATCH)
}

/// The code for a script, or where `wanted` for `git bisect run`; `engine` says that all trouble there was is the engine's.
pub fn bisect(code: u8, wanted: bool, engine: bool) -> u8 {
    match code {
        INCOMPLETE if wanted => SKIP,
        TROUBLE if wanted && engine => SKIP,
        TROUBLE if wanted => ABORT,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bisect_skips_what_is_of_one_commit_and_stops_for_the_rest() {
        for (code, engine, expected) in [
            (MATCH, false, 0),
            (DIVERGED, false, 1),
            (INCOMPLETE, false, 125),
            (TROUBLE, true, 125),
            (TROUBLE, false, 128),
        ] {
            assert_eq!(bisect(code, true, engine), expected, "{code}");
            assert_eq!(bisect(code, false, engine), code, "{code}");
        }
    }
}
