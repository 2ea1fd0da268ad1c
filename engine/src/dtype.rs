//! Number formats of floating point that f32 holds: of arrays in a file, of caches, and of what an engine rounds to.

use half::{bf16, f16};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number format of floating point, rounded to the nearest and to even in the middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DType {
    /// IEEE binary32, 24 significant bits (one implicit).
    #[default]
    F32,
    /// IEEE binary16, 11 significant bits; infinite beyond 65,504.
    F16,
    /// bfloat16, 8 significant bits: the upper half of an IEEE binary32.
    Bf16,
    /// OCP 8-bit floating point, E4M3 (`float8_e4m3fn` elsewhere): 4 bits of exponent, 4 significant bits (one implicit); beyond 448 that number
    /// (saturated) or NaN.
    F8E4m3,
    /// OCP 8-bit floating point, E5M2: 5 bits of exponent, 3 significant bits: the upper half of an IEEE binary16; beyond 57,344
    /// that number (saturated) or infinite.
    F8E5m2,
}

impl DType {
    /// Every one of them.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::F8E4m3, Self::F8E5m2];

    /// Those narrower than f32, the fewest significant bits first.
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
        // The exponent from the number's bits: exact, and subnormal numbers lie below every `least`.
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

    /// Whether `got` may replace `want` because `want` is beyond the largest number.
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

    /// Its name in captures and manifests: `f32`, `f16`, `bf16`, `f8_e4m3`, `f8_e5m2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8_e4m3",
            Self::F8E5m2 => "f8_e5m2",
        }
    }

    /// The format of this name, in capitals or not.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|e| e.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8E4m3 | Self::F8E5m2 => 1,
        }
    }

    /// The values in `bytes`, little-endian, one for each element of `out`.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.size(), "bytes of as many elements");
        match self {
            Self::F32 => each(bytes, out, f32::from_le_bytes),
            Self::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F8E4m3 => each(bytes, out, |[b]| e4m3(b)),
            Self::F8E5m2 => each(bytes, out, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (v, b) in out.iter_mut().zip(bytes.as_chunks().0) {
        *v = value(*b);
    }
}

/// OCP 8-bit floating point, E4M3: bias 7, and of the largest exponent only the largest mantissa is no number.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
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
        for (format, all) in [(DType::F8E4m3, numbers(3, 7, 0x7f)), (DType::F8E5m2, numbers(2, 15, 0x7c))] {
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
        assert!(DType::F16.exceeded(f32::INFINITY, 65_520.0) && !DType::F16.exceeded(f32::INFINITY, 65_519.0));
        assert!(!DType::F16.exceeded(f32::NEG_INFINITY, 65_520.0) && !DType::F32.exceeded(f32::INFINITY, 1e60));
        assert!(DType::F8E4m3.exceeded(f32::NAN, -1e3) && DType::F8E5m2.exceeded(57_344.0, 1e6));
    }

    proptest! {
        /// Rounding is that of the crate `half`, and no more than half a step.
        #[test]
        fn rounds_as_others_do(bits: u32) {
            let x = f32::from_bits(bits);
            prop_assume!(x.is_finite());
            prop_assert_eq!(DType::F16.round(x).to_bits(), f16::from_f32(x).to_f32().to_bits());
            prop_assert_eq!(DType::Bf16.round(x).to_bits(), bf16::from_f32(x).to_f32().to_bits());
            for format in DType::NARROW {
                let rounded = format.round(x);
                prop_assert!(format.holds(rounded));
                let off = (f64::from(x) - f64::from(rounded)).abs();
                prop_assert!(off <= format.half_step(f64::from(rounded)) || format.exceeded(rounded, f64::from(x)));
            }
        }
    }

    fn one(dtype: DType, bytes: &[u8]) -> f32 {
        let mut out = [0.0];
        dtype.decode(bytes, &mut out);
        out[0]
    }

    /// The values that the formats' definitions give as examples, and their limits.
    #[test]
    fn values_are_those_of_the_definitions() {
        for (bits, value) in [
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0x08, 2f32.powi(-6)),
            (0x01, 2f32.powi(-9)),
            (0x07, 0.875 * 2f32.powi(-6)),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x80, -0.0),
        ] {
            assert_eq!(one(DType::F8E4m3, &[bits]).to_bits(), value.to_bits(), "{bits:x}");
        }
        assert!(one(DType::F8E4m3, &[0x7f]).is_nan() && one(DType::F8E4m3, &[0xff]).is_nan());
        for (bits, value) in [(0x7b, 57344.0), (0x7c, f32::INFINITY), (0x01, 2f32.powi(-16)), (0xbc, -1.0)] {
            assert_eq!(one(DType::F8E5m2, &[bits]), value, "{bits:x}");
        }
        assert_eq!(one(DType::Bf16, &[0x80, 0x3f]), 1.0);
        assert_eq!(one(DType::F16, &[0x00, 0x3c]), 1.0);
    }

    #[test]
    fn every_name_is_read() {
        for dtype in DType::ALL {
            assert_eq!(DType::named(&dtype.name().to_uppercase()), Some(dtype));
            assert_eq!(serde_json::to_value(dtype).unwrap(), dtype.name());
        }
        assert!(DType::named("i8").is_none());
    }
}
