//! How probes combine outputs, and from what share on they doubt a row.

/// Outputs that share a combination.
pub(super) const BLOCK: usize = 16;

/// Combinations of each block.
pub(super) const PROBES: usize = 2;

/// Share of what is allowed from which on a row is computed.
pub(super) const DOUBT: f64 = 0.5;

/// Deviations λ that errors of a right engine exceed with probability 1e-9.
pub(super) const DEVIATIONS: f64 = 6.55;

/// Numbers that are added up side by side.
pub(super) const LANES: usize = 8;

/// The larger of two shares; infinite of what is not finite.
pub(super) fn worse(share: f64, error: f64, allowed: f64) -> f64 {
    let of_error = match error.is_finite() && allowed.is_finite() {
        true if error == 0.0 => 0.0,
        true if allowed > 0.0 => error / allowed,
        _ => f64::INFINITY,
    };
    share.max(of_error)
}
