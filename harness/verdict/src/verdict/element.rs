//! One element of a stage, beside what it should be.

use super::Place;
use crate::number::Real;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One element with what it should have been.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Element {
    /// The row.
    pub place: Place,
    /// Index in the row.
    pub index: usize,
    /// The runner's value.
    #[serde(with = "Real")]
    pub got: f64,
    /// The f64 value.
    #[serde(with = "Real")]
    pub want: f64,
    /// Largest difference allowed.
    #[serde(with = "Real")]
    pub allowed: f64,
    /// What the other side has there, where it was captured in the same shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<Real>,
}

impl Element {
    pub(super) fn of(place: Place, index: usize, got: f32, want: f64, allowed: f64) -> Self {
        Self { place, index, got: f64::from(got), want, allowed, other: None }
    }

    /// Share of what is allowed that its difference takes.
    pub fn share(&self) -> f64 {
        share((self.got - self.want).abs(), self.allowed)
    }
}

/// Share of what is allowed; nothing is allowed of nothing.
#[inline(always)]
pub(super) fn share(difference: f64, allowed: f64) -> f64 {
    // Infinite also of a finite value where f64, on operands that are not, has none. All is computed before it is chosen
    // from, so that many are at once.
    let quotient = if allowed > 0.0 { difference / allowed } else { f64::INFINITY };
    let quotient = if difference == 0.0 { 0.0 } else { quotient };
    if difference.is_finite() & allowed.is_finite() { quotient } else { f64::INFINITY }
}
