//! By what parts of an attention are weighted when they are put together by the logarithms of their sums.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// By which number the logarithms of parts' sums of exponentials are multiplied, before parts are weighted by e to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    /// 1/ln 2: to base 2, and put together with e.
    ToBaseTwo,
    /// ln 2: to base e, and put together with 2.
    ByPowersOfTwo,
    /// log₁₀ e.
    ToBaseTen,
    /// The scale of the scores once more.
    Scaled,
    /// 1 over it.
    Unscaled,
    /// 2.
    Twice,
    /// −1.
    Inverse,
    /// 1/ln 2 for the logarithm of the sum alone: the maximum that is added to it is as it should be.
    SumToBaseTwo,
    /// log₁₀ e, likewise.
    SumToBaseTen,
}

impl Power {
    pub(super) const ALL: [Self; 9] = [
        Self::ToBaseTwo,
        Self::ByPowersOfTwo,
        Self::ToBaseTen,
        Self::Scaled,
        Self::Unscaled,
        Self::Twice,
        Self::Inverse,
        Self::SumToBaseTwo,
        Self::SumToBaseTen,
    ];

    /// The exponent by which a part is weighted: of its maximum, and the logarithm of its sum of exponentials with that taken off.
    pub(super) fn of_part(self, (top, sum): (f64, f64), scale: f64) -> f64 {
        match self {
            Self::SumToBaseTwo | Self::SumToBaseTen => top + self.of(scale) * sum,
            _ => self.of(scale) * (top + sum),
        }
    }

    fn of(self, scale: f64) -> f64 {
        match self {
            Self::ToBaseTwo | Self::SumToBaseTwo => std::f64::consts::LOG2_E,
            Self::ByPowersOfTwo => std::f64::consts::LN_2,
            Self::ToBaseTen | Self::SumToBaseTen => std::f64::consts::LOG10_E,
            Self::Scaled => scale,
            Self::Unscaled => 1.0 / scale,
            Self::Twice => 2.0,
            Self::Inverse => -1.0,
        }
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToBaseTwo => "parts are put together by e^lse, with the logarithm of their sums, lse, to base 2",
            Self::ByPowersOfTwo => "parts are put together by 2^lse, with the natural logarithm of their sums, lse",
            Self::ToBaseTen => "parts are put together by e^lse, with the logarithm of their sums, lse, to base 10",
            Self::Scaled => "parts are put together by e^lse, with a logarithm of their sums, lse, that is scaled twice",
            Self::Unscaled => {
                "parts are put together by e^lse, with a logarithm of their sums, lse, that is divided by the scale of the scores"
            }
            Self::Twice => "parts are put together by e^(2·lse), lse the logarithm of their sums",
            Self::Inverse => "parts are put together by e^(−lse), lse the logarithm of their sums: the wrong way round",
            Self::SumToBaseTwo => "parts are put together by e^(m + log₂ l), with m their maximum and l their sum, not by e^(m + ln l)",
            Self::SumToBaseTen => {
                "parts are put together by e^(m + log₁₀ l), with m their maximum and l their sum, not by e^(m + ln l)"
            }
        })
    }
}
