//! Numbers in words, and in JSON, which knows neither NaN nor infinity.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// `1 origin`, `2 origins`: how many of what, in words.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A residual in two digits; zero and infinity in words one can read.
pub fn number(x: f64) -> String {
    if x == 0.0 {
        "0".to_owned()
    } else if x.is_infinite() {
        "inf".to_owned()
    } else if (0.01..1000.0).contains(&x.abs()) {
        format!("{x:.2}")
    } else {
        format!("{x:.1e}")
    }
}

/// Values beside each other, in as few digits as tell those apart that are not the same: four where that is enough.
pub fn apart<const N: usize>(values: [f64; N]) -> [String; N] {
    let told = |digits: usize| {
        values.map(|x| {
            let rounded: f64 = format!("{x:.*e}", digits - 1).parse().unwrap_or(x);
            let plain = rounded == 0.0 || !rounded.is_finite() || (1e-4..1e7).contains(&rounded.abs());
            if plain { format!("{rounded}") } else { format!("{rounded:e}") }
        })
    };
    let distinct = |texts: &[String; N]| {
        let mut pairs = (0..N).flat_map(|i| (0..i).map(move |j| (i, j)));
        pairs.all(|(i, j)| texts[i] != texts[j] || values[i] == values[j] || values[i].is_nan())
    };
    // No two doubles are the same in 17 digits.
    (4..17).map(told).find(distinct).unwrap_or_else(|| told(17))
}

/// A share of what is allowed, rounded up; beyond 999 % how much is beside the point.
pub fn percent(used: f64) -> String {
    if used <= 9.99 { format!("{:.0} %", (used * 100.0).ceil()) } else { ">999 %".to_owned() }
}

/// `1st`, `2nd`, `32nd`, `111th`.
pub fn ordinal(n: usize) -> String {
    let end = match (n % 100, n % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{n}{end}")
}

/// Whether two values are one: bit by bit, but NaN is NaN.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// A real number: a JSON number, or one of the words `NaN`, `Infinity` and `-Infinity`. A field is one, or is written
/// as one with `#[serde(with = "Real")]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Real(pub f64);

/// What may be kept in a [`Real`].
pub trait Float: Copy {
    /// The shortest decimal that reads back as this number, as a double.
    fn decimal(self) -> f64;
    /// The nearest value.
    fn narrow(wide: f64) -> Self;
}

impl Float for f64 {
    fn decimal(self) -> f64 {
        self
    }
    fn narrow(wide: f64) -> Self {
        wide
    }
}

impl Float for f32 {
    fn decimal(self) -> f64 {
        // Widened as it is, 0.1 would print as 0.10000000149011612.
        self.to_string().parse().unwrap_or(f64::from(self))
    }
    fn narrow(wide: f64) -> Self {
        wide as f32
    }
}

impl Real {
    /// Writes `x` in as few digits as it needs.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<F: Float, S: Serializer>(x: &F, serializer: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(&Self(x.decimal()), serializer)
    }

    /// Reads what [`Real::serialize`] writes.
    ///
    /// # Errors
    /// Anything but a number or one of the three words.
    pub fn deserialize<'de, F: Float, D: Deserializer<'de>>(deserializer: D) -> Result<F, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Finite(f64),
            Word(String),
        }
        let wide = match Form::deserialize(deserializer)? {
            Form::Finite(x) => x,
            Form::Word(word) => match word.as_str() {
                "NaN" => f64::NAN,
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                other => {
                    return Err(serde::de::Error::custom(format!(
                        "`{other}` is neither a number nor NaN, Infinity or -Infinity"
                    )));
                }
            },
        };
        Ok(F::narrow(wide))
    }
}

impl Serialize for Real {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_nan() => serializer.serialize_str("NaN"),
            f64::INFINITY => serializer.serialize_str("Infinity"),
            f64::NEG_INFINITY => serializer.serialize_str("-Infinity"),
            x => serializer.serialize_f64(x),
        }
    }
}

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize::<f64, D>(deserializer).map(Self)
    }
}

impl JsonSchema for Real {
    fn schema_name() -> Cow<'static, str> {
        "Real".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number; JSON has no NaN and no infinity, so these are words.",
            "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]
        })
    }
}

/// `x` in three significant digits: what a chart can show.
pub fn rounded(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let digits = 2 - x.abs().log10().floor() as i32;
    // Parsed back so that it prints as short as it was rounded.
    match digits {
        0..=17 => format!("{x:.*}", digits as usize),
        _ => format!("{x:.2e}"),
    }
    .parse()
    .unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Box64(#[serde(with = "Real")] f64);

    /// "subject 0.000000, f64 0.000000" was printed of two values of which one was wrong.
    #[test]
    fn values_that_differ_are_told_apart() {
        assert_eq!(apart([0.412_700_01, 145.412_345_6]), ["0.4127", "145.4"]);
        assert_eq!(apart([1.234e-9, 0.0]), ["1.234e-9", "0"]);
        assert_eq!(apart([1e-9, 1.000_001e-9, 0.1 + 0.2]), ["1e-9", "1.000001e-9", "0.3"]);
        assert_eq!(apart([0.3, 0.1 + 0.2]), ["0.3", "0.30000000000000004"]);
        assert_eq!(apart([f64::NAN, f64::INFINITY, 1.5e30]), ["NaN", "inf", "1.5e30"]);
        assert_eq!(apart([2.0, 2.0]), ["2", "2"]);
    }

    #[test]
    fn every_number_comes_back() {
        for x in [0.0, -1.5e-300, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let text = serde_json::to_string(&Box64(x)).unwrap();
            let back: Box64 = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits() << 1 >> 1, x.to_bits() << 1 >> 1, "{text}");
        }
        assert!(serde_json::from_str::<Box64>("\"inf\"").is_err());
        assert!(serde_json::from_str::<Box64>("null").is_err());
    }

    #[test]
    fn rounding_keeps_three_digits() {
        for (x, y) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (123_456.0, "123000.0"),
            (0.081_249, "0.0812"),
            (-9.999e-8, "-1e-7"),
            (1.234_567e-30, "1.23e-30"),
            (6.54321e22, "6.54e22"),
        ] {
            assert_eq!(format!("{:?}", rounded(x)), y);
        }
    }
}
