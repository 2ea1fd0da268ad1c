//! Number formats of floating point narrower than f32: what rounding to them may hide.

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A number format that values are rounded to, to the nearest and to even in the middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// 24 bits of mantissa: f32 itself.
    #[default]
    F32,
    /// IEEE binary16, 11 bits of mantissa; infinite beyond 65,504.
    F16,
    /// bfloat16, 8 bits of mantissa.
    Bf16,
    /// OCP 8-bit floating point, E4M3: 4 bits of mantissa; beyond 448 that number (saturated) or NaN.
    F8E4m3,
    /// OCP 8-bit floating point, E5M2: 3 bits of mantissa; beyond 57,344 that number (saturated) or infinite.
    F8E5m2,
}

impl Format {
    /// Those narrower than f32, the fewest bits of mantissa first.
    pub const NARROW: [Self; 4] = [Self::F8E5m2, Self::F8E4m3, Self::Bf16, Self::F16];

    /// Bits of mantissa with the leading one, exponent of the smallest normal number, and the largest number.
    fn limits(self) -> (i32, i32, f64) {
        match self {
            Self::F32 => (24, -126, f64::from(f32::MAX)),
            Self::F16 => (11, -14, 65_504.0),
            Self::Bf16 => (8, -126, 3.389_531_389_251_535_5e38),
            Self::F8E4m3 => (4, -6, 448.0),
            Self::F8E5m2 => (3, -14, 57_344.0),
        }
    }

    /// Largest number.
    pub fn largest(self) -> f64 {
        self.limits().2
    }

    /// Unit roundoff: half of what the last bit of 1 is worth.
    pub fn unit(self) -> f64 {
        f64::powi(2.0, -self.limits().0)
    }

    /// Half of what the last bit is worth at `x`, of any size and sign: what a number rounded to `x` may be off by at
    /// most. Below the smallest normal number the same everywhere. 0 for f32, which everything is held in.
    pub fn half_step(self, x: f64) -> f64 {
        if self == Self::F32 {
            return 0.0;
        }
        let (bits, least, _) = self.limits();
        // The exponent as it stands in the number: exact, and subnormal numbers lie below every `least`.
        let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        f64::powi(2.0, exponent.max(least) - bits)
    }

    /// The nearest number of the format, by the definition above; beyond the largest what it says first.
    pub fn round(self, x: f32) -> f32 {
        if self == Self::F32 || !x.is_finite() {
            return x;
        }
        let (wide, largest) = (f64::from(x), self.largest());
        let step = 2.0 * self.half_step(wide);
        let rounded = (wide / step).round_ties_even() * step;
        match self {
            _ if rounded.abs() <= largest => rounded as f32,
            Self::F8E4m3 | Self::F8E5m2 => largest.copysign(wide) as f32,
            Self::F32 | Self::F16 | Self::Bf16 => f32::INFINITY.copysign(x),
        }
    }

    /// Whether every number of the format is one of `other`.
    pub fn within(self, other: Self) -> bool {
        let (own, others) = (self.limits(), other.limits());
        let smallest = |limits: (i32, i32, f64)| limits.1 - limits.0;
        own.0 <= others.0 && own.2 <= others.2 && smallest(own) >= smallest(others)
    }

    /// Whether `x` is a number of the format; NaN and infinity are of all.
    pub fn holds(self, x: f32) -> bool {
        !x.is_finite() || self.round(x) == x
    }

    /// Whether `got` may stand for `want` because that is beyond the largest number.
    pub fn exceeded(self, got: f32, want: f64) -> bool {
        // From the middle to the number after the largest on, which is rounded beyond.
        let beyond = self.largest() + self.half_step(self.largest());
        if want.abs() < beyond || self == Self::F32 {
            return false;
        }
        let same = f64::from(got).signum() == want.signum();
        match self {
            Self::F8E4m3 => got.is_nan() || same && f64::from(got.abs()) == self.largest(),
            Self::F8E5m2 => same && f64::from(got.abs()) >= self.largest(),
            Self::F32 | Self::F16 | Self::Bf16 => same && got.is_infinite(),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8_e4m3",
            Self::F8E5m2 => "f8_e5m2",
        })
    }
}

/// A number format for all stages, or one for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Formats {
    /// One for all.
    All(Format),
    /// Some have their own.
    Each(OfStages),
}

/// Number formats of stages: by a pattern, else by the op, else the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OfStages {
    /// Of every other stage.
    pub default: Format,
    /// By the name of an op, such as `residual`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ops: BTreeMap<String, Format>,
    /// By a pattern as `--stages` takes it, such as `L*.q_*`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, Format>,
}

impl<'de> Deserialize<'de> for Formats {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        name_or_map(from, "a number format, or an object of them", Self::All, Self::Each)
    }
}

/// Reads what is either a name or an object, and says what is wrong with the one that it is.
pub(crate) fn name_or_map<'de, D: Deserializer<'de>, N: Deserialize<'de>, M: Deserialize<'de>, T>(
    from: D, expected: &'static str, of_name: fn(N) -> T, of_map: fn(M) -> T,
) -> Result<T, D::Error> {
    struct Either<N, M, T>(&'static str, fn(N) -> T, fn(M) -> T);
    impl<'de, N: Deserialize<'de>, M: Deserialize<'de>, T> Visitor<'de> for Either<N, M, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
            N::deserialize(name.into_deserializer()).map(self.1)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            M::deserialize(MapAccessDeserializer::new(map)).map(self.2)
        }
    }
    from.deserialize_any(Either(expected, of_name, of_map))
}

impl Default for Formats {
    fn default() -> Self {
        Self::All(Format::F32)
    }
}

impl Formats {
    /// Whether they are f32 throughout.
    pub fn plain(&self) -> bool {
        let plain = |format: &Format| *format == Format::F32;
        match self {
            Self::All(format) => plain(format),
            Self::Each(of) => plain(&of.default) && of.ops.values().chain(of.stages.values()).all(plain),
        }
    }
}

impl fmt::Display for Formats {
    /// `bf16`, or `bf16 (residual f32, L*.q_* f16)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(format) => write!(f, "{format}"),
            Self::Each(of) => {
                write!(f, "{}", of.default)?;
                let others: Vec<String> =
                    of.ops.iter().chain(&of.stages).map(|(what, format)| format!("{what} {format}")).collect();
                if others.is_empty() { Ok(()) } else { write!(f, " ({})", others.join(", ")) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// The numbers of a format of 8 bits, by its definition.
    fn numbers(mantissa: i32, bias: i32, codes: i32) -> Vec<f64> {
        let number = |code: i32| {
            let (exponent, rest) =
                (code >> mantissa, f64::from(code & ((1 << mantissa) - 1)) / f64::from(1 << mantissa));
            if exponent == 0 { rest * f64::powi(2.0, 1 - bias) } else { (1.0 + rest) * f64::powi(2.0, exponent - bias) }
        };
        (0..codes).map(number).collect()
    }

    #[test]
    fn limits_are_those_of_the_definitions() {
        // E4M3 has no infinity, and one code for NaN; of E5M2 the largest exponent is no number.
        for (format, all) in [(Format::F8E4m3, numbers(3, 7, 0x7f)), (Format::F8E5m2, numbers(2, 15, 0x7c))] {
            assert_eq!(*all.last().unwrap(), format.largest());
            for (a, b) in all.iter().zip(&all[1..]) {
                let (middle, step) = ((a + b) / 2.0, b - a);
                assert!(format.holds(*a as f32) && !format.holds(middle as f32), "{format} {a}");
                assert!(format.half_step(*b) >= step / 2.0 && format.half_step(*a) == step / 2.0, "{format} {a} {b}");
                assert_eq!(format.round((a + 0.49 * step) as f32), *a as f32, "{format}");
                assert_eq!(format.round(-(a + 0.51 * step) as f32), -*b as f32, "{format}");
            }
            assert_eq!(f64::from(format.round(1e9)), format.largest());
        }
        assert!(Format::F16.exceeded(f32::INFINITY, 65_520.0) && !Format::F16.exceeded(f32::INFINITY, 65_519.0));
        assert!(!Format::F16.exceeded(f32::NEG_INFINITY, 65_520.0) && !Format::F32.exceeded(f32::INFINITY, 1e60));
        assert!(Format::F8E4m3.exceeded(f32::NAN, -1e3) && Format::F8E5m2.exceeded(57_344.0, 1e6));
    }

    proptest! {
        /// Rounding is that of the crate `half`, and no more than half a step.
        #[test]
        fn rounds_as_others_do(bits: u32) {
            let x = f32::from_bits(bits);
            prop_assume!(x.is_finite());
            prop_assert_eq!(Format::F16.round(x).to_bits(), f16::from_f32(x).to_f32().to_bits());
            prop_assert_eq!(Format::Bf16.round(x).to_bits(), bf16::from_f32(x).to_f32().to_bits());
            for format in Format::NARROW {
                let rounded = format.round(x);
                prop_assert!(format.holds(rounded));
                let off = (f64::from(x) - f64::from(rounded)).abs();
                prop_assert!(off <= format.half_step(f64::from(rounded)) || format.exceeded(rounded, f64::from(x)));
            }
        }
    }
}
