//! The number formats in which the arrays of a capture may stand.

use crate::formats::Format;
use anyhow::{Result, bail, ensure};
use half::{bf16, f16};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Number format of an array's elements, as they stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// IEEE binary32.
    F32,
    /// IEEE binary64; taken as the nearest f32.
    F64,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of an IEEE binary32.
    Bf16,
    /// 4 bits of exponent, 3 of mantissa, no infinity (OCP 8-bit floating point, E4M3; `float8_e4m3fn` elsewhere).
    F8E4m3,
    /// 5 bits of exponent, 2 of mantissa: the upper half of an IEEE binary16 (OCP 8-bit floating point, E5M2).
    F8E5m2,
}

impl Element {
    /// Every one of them.
    pub const ALL: [Self; 6] = [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::F8E4m3, Self::F8E5m2];

    /// Its name in captures: `f32`, `f64`, `f16`, `bf16`, `f8_e4m3`, `f8_e5m2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8_e4m3",
            Self::F8E5m2 => "f8_e5m2",
        }
    }

    /// The format of this name, in capitals or not.
    ///
    /// # Errors
    /// Another name: those there are.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|e| e.name().eq_ignore_ascii_case(name));
        let Some(found) = found else {
            bail!("has dtype {name}; write {}", Self::ALL.map(Self::name).join(", "));
        };
        Ok(found)
    }

    /// What values are rounded to that stand so, where that is less than f32.
    pub fn rounded(self) -> Option<Format> {
        match self {
            Self::F32 | Self::F64 => None,
            Self::F16 => Some(Format::F16),
            Self::Bf16 => Some(Format::Bf16),
            Self::F8E4m3 => Some(Format::F8E4m3),
            Self::F8E5m2 => Some(Format::F8E5m2),
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8E4m3 | Self::F8E5m2 => 1,
        }
    }

    /// The values that stand in `bytes`, little-endian, one for each element of `out`. All are exact but those of f64,
    /// which are rounded.
    ///
    /// # Errors
    /// A finite f64 that f32 does not reach.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        assert_eq!(bytes.len(), out.len() * self.size(), "bytes of as many elements");
        match self {
            Self::F32 => each(bytes, out, f32::from_le_bytes),
            Self::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Self::F8E4m3 => each(bytes, out, |[b]| e4m3(b)),
            Self::F8E5m2 => each(bytes, out, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
            Self::F64 => {
                each(bytes, out, |b| f64::from_le_bytes(b) as f32);
                for (wide, narrow) in bytes.as_chunks().0.iter().zip(&*out).filter(|(_, v)| v.is_infinite()) {
                    let wide = f64::from_le_bytes(*wide);
                    ensure!(wide.is_infinite(), "holds {wide:e}, and f32 ends at {:e}", f32::MAX.copysign(*narrow));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Element {
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

    fn one(element: Element, bytes: &[u8]) -> f32 {
        let mut out = [0.0];
        element.decode(bytes, &mut out).unwrap();
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
            assert_eq!(one(Element::F8E4m3, &[bits]).to_bits(), value.to_bits(), "{bits:x}");
        }
        assert!(one(Element::F8E4m3, &[0x7f]).is_nan() && one(Element::F8E4m3, &[0xff]).is_nan());
        for (bits, value) in [(0x7b, 57344.0), (0x7c, f32::INFINITY), (0x01, 2f32.powi(-16)), (0xbc, -1.0)] {
            assert_eq!(one(Element::F8E5m2, &[bits]), value, "{bits:x}");
        }
        assert_eq!(one(Element::Bf16, &[0x80, 0x3f]), 1.0);
        assert_eq!(one(Element::F16, &[0x00, 0x3c]), 1.0);
        assert_eq!(one(Element::F64, &0.1f64.to_le_bytes()), 0.1);
        assert_eq!(one(Element::F64, &f64::INFINITY.to_le_bytes()), f32::INFINITY);
    }

    #[test]
    fn what_f32_does_not_reach_is_no_infinity() {
        let why = Element::F64.decode(&(-1e300f64).to_le_bytes(), &mut [0.0]).unwrap_err().to_string();
        assert!(why.contains("holds -1e300, and f32 ends at -3.4"), "{why}");
    }

    #[test]
    fn every_name_is_read() {
        for element in Element::ALL {
            assert_eq!(Element::named(&element.name().to_uppercase()).unwrap(), element);
            assert_eq!(serde_json::to_value(element).unwrap(), element.name());
        }
        assert!(Element::named("i8").is_err());
    }
}
