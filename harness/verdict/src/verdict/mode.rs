//! How linear layers and attention are checked.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How linear layers and attention are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckMode {
    /// Compute every row
    Full,
    /// Probe the rows, and compute suspicious ones
    Probe,
    /// Probe long prompts, where probes save time; compute the rows of short ones
    #[default]
    Auto,
}

/// What random numbers are drawn from; in hexadecimal where people read or write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub struct Seed(pub u64);

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let all = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let seed = all.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        seed.map(Self).ok_or_else(|| "a seed is up to 16 hexadecimal digits, as reports tell it".to_owned())
    }
}

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Reports wrote the number once.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Digits(String),
            Number(u64),
        }
        match Written::deserialize(deserializer)? {
            Written::Digits(text) => text.parse().map_err(serde::de::Error::custom),
            Written::Number(seed) => Ok(Self(seed)),
        }
    }
}
