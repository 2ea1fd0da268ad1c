//! The name of a cause: which mutation, with which parameters, from where on.

use super::{Mutation, to_digits};
use anyhow::{Context as _, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Identifies a cause. Written `rope-base:base=10000@p3000..`, also in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct CauseId {
    /// Name of the mutation in the catalogue.
    pub mutation: String,
    /// Its parameters by name, in the catalogue's order.
    pub parameters: Vec<(String, f64)>,
    /// First position at which it holds; absent where it holds from the start.
    pub since: Option<usize>,
}

impl CauseId {
    /// `mutation` with these values of its parameters.
    pub fn new(mutation: &Mutation, values: &[f64]) -> Self {
        let parameters = mutation.params.iter().zip(values).map(|(p, v)| (p.name.to_owned(), *v));
        Self { mutation: mutation.name.to_owned(), parameters: parameters.collect(), since: None }
    }
}

/// Values of a parameter as near as this are one, which fits do not tell better.
const ONE: f64 = 1e-6;

impl CauseId {
    /// Whether it is the same but for what a fit may be off.
    pub fn is_near(&self, other: &Self) -> bool {
        let near = |((a, x), (b, y)): (&(String, f64), &(String, f64))| {
            a == b && (x == y || (x - y).abs() <= ONE * x.abs().max(y.abs()))
        };
        self.mutation == other.mutation
            && self.since == other.since
            && self.parameters.len() == other.parameters.len()
            && self.parameters.iter().zip(&other.parameters).all(near)
    }

    /// The same with its parameters in the fewest digits, three or more, in which it is none of `others`.
    pub fn shortest(&self, others: &[&Self]) -> Self {
        let short = |id: &Self, digits: usize| {
            let parameters = id.parameters.iter().map(|(name, x)| (name.clone(), to_digits(*x, digits))).collect();
            Self { parameters, ..id.clone() }
        };
        let told = |digits: &usize| others.iter().all(|other| short(other, *digits) != short(self, *digits));
        (2..17).find(told).map_or_else(|| self.clone(), |digits| short(self, digits))
    }
}

impl fmt::Display for CauseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.mutation)?;
        for (i, (name, value)) in self.parameters.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { ':' } else { ',' })?;
        }
        self.since.map_or(Ok(()), |position| write!(f, "@p{position}.."))
    }
}

impl FromStr for CauseId {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("`{text}` is no cause such as rope-base:base=10000@p3000..");
        let (head, since) = match text.split_once("@p") {
            None => (text, None),
            Some((head, since)) => {
                let position = since.strip_suffix("..").and_then(|p| p.parse().ok()).with_context(wrong)?;
                (head, Some(position))
            }
        };
        let (mutation, parameters) = head.split_once(':').unwrap_or((head, ""));
        let parameter = |text: &str| {
            let (name, value) = text.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let parameters = parameters.split(',').filter(|p| !p.is_empty()).map(parameter);
        Ok(Self {
            mutation: mutation.to_owned(),
            parameters: parameters.collect::<Option<_>>().with_context(wrong)?,
            since,
        })
    }
}

impl TryFrom<String> for CauseId {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<CauseId> for String {
    fn from(id: CauseId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in
            ["lm-head-transposed", "rope-base:base=10000@p3000..", "one-tile-wrong:row=4,rows=1", "scaled:by=inf"]
        {
            let id: CauseId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
        }
        for text in ["a:b", "a:b=c", "a@p3", "a@pz.."] {
            assert!(text.parse::<CauseId>().is_err(), "{text}");
        }
    }
}
