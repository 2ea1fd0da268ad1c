//! What holds of results of any kind.

use std::fmt::Write as _;

/// Version of the layout of results; raised when a field changes its meaning.
pub const RESULTS_VERSION: u32 = 1;

/// Says that nothing of `kind` was measured: a gap is printed, not left out.
pub(super) fn missing(kind: &str, so: bool, out: &mut String) {
    if so {
        let _ = writeln!(out, "\nMissing: no result of kind `{kind}`.");
    }
}
