//! Exit codes: part of the stable interface.

/// Everything asked for was judged and matches.
pub const MATCH: u8 = 0;
/// The subject diverged, also where coverage is incomplete; or the reference
/// is suspect.
pub const DIVERGED: u8 = 1;
/// Trouble: usage, environment, bad input, or qdiff itself in doubt.
pub const TROUBLE: u8 = 2;
/// No divergence, but not everything asked for could be judged.
pub const INCOMPLETE: u8 = 3;
/// What `--bisect` turns [`TROUBLE`] and [`INCOMPLETE`] into: `git bisect run`
/// takes it for "cannot be tested".
pub const SKIP: u8 = 125;
