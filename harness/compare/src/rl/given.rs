//! Logprobs that an engine reports, in a file of numbers.

use crate::number::counted;
use anyhow::{Context as _, Result, ensure};
use qdiff_capture::input;
use std::path::Path;

/// Most bytes of the file.
const LONGEST: u64 = 64 << 20;

/// Numbers as a file has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    name: String,
    /// Each with half a unit of its last digit; none where the file says `null` or NaN.
    numbers: Vec<Option<(f64, f64)>>,
}

impl Given {
    /// Reads numbers, apart by white space or commas, perhaps in brackets: one for each token but the first, or for the last ones alone.
    ///
    /// # Errors
    /// A file that cannot be read; what is no number.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = input::text(path, LONGEST).with_context(|| format!("cannot read the logprobs in {name}"))?;
        let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']')).filter(|w| !w.is_empty());
        let numbers = words.map(|word| number(word).with_context(|| format!("{name}: `{word}` is no number")));
        Ok(Self { numbers: numbers.collect::<Result<_>>()?, name })
    }

    /// The numbers by the position of the token before each, for a run of so many tokens.
    ///
    /// # Errors
    /// More numbers than tokens.
    pub(super) fn placed(&self, tokens: usize) -> Result<Vec<Option<(f64, f64)>>> {
        let count = self.numbers.len();
        // A number for the first token, which follows none, says nothing.
        let own = if count == tokens { &self.numbers[1..] } else { &self.numbers };
        ensure!(
            !own.is_empty() && own.len() < tokens,
            "{} has {}, and the run {}: give one for each token, or for each of the last ones",
            self.name,
            counted(count, "number"),
            counted(tokens, "token")
        );
        let before = tokens - 1 - own.len();
        Ok(vec![None; before].into_iter().chain(own.iter().copied()).collect())
    }
}

/// A number of a text, with half a unit of its last digit.
fn number(word: &str) -> Option<Option<(f64, f64)>> {
    if ["null", "none", "nan"].contains(&word.to_ascii_lowercase().as_str()) {
        return Some(None);
    }
    let value: f64 = word.parse().ok()?;
    let (digits, exponent) = word.split_once(['e', 'E']).unwrap_or((word, "0"));
    let decimals = digits.split_once('.').map_or(0, |(_, behind)| behind.len()) as i32;
    Some(Some((value, 0.5 * 10f64.powi(exponent.parse::<i32>().unwrap_or(0) - decimals))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_last_tokens() {
        let of = |words: &str| Given {
            name: "file".to_owned(),
            numbers: words.split(' ').map(|word| number(word).unwrap()).collect(),
        };
        assert_eq!(number("-1.25"), Some(Some((-1.25, 0.005))));
        assert_eq!(number("-1.5e-3").unwrap().unwrap().1, 0.5e-4);
        assert_eq!(number("x"), None);
        let values = |given: Given, tokens| {
            given.placed(tokens).map(|all| all.iter().map(|v| v.map(|v| v.0)).collect::<Vec<_>>())
        };
        assert_eq!(values(of("-1 -2"), 4).unwrap(), [None, Some(-1.0), Some(-2.0)]);
        assert_eq!(values(of("null -1 -2"), 3).unwrap(), [Some(-1.0), Some(-2.0)]);
        assert!(values(of("-1 -2 -3 -4"), 3).is_err());
    }
}
