//! Runs that belong together: `run --prompts`, perhaps in parts. Each says
//! which of how many it is, so that one that is not there is missed.

use super::{Check, Document, Fate, Outcome, Place, Screen};
use crate::runners::EngineTrouble;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most numbers of missing prompts in a message.
const TOLD: usize = 10;

/// The document of a command that failed, in place of its report.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Its place in the batch; absent where it is none of a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Place>,
    /// Name of the prompt; outside of a batch, of the command of qdiff.
    pub prompt: String,
    /// Why it failed.
    pub error: String,
    /// Whether it is trouble of building or running the engine.
    #[serde(skip)]
    pub engine: bool,
}

impl Failure {
    /// The failure of a prompt, or of a command of qdiff.
    pub fn new(prompt: &str, e: &anyhow::Error) -> Self {
        Self { batch: None, prompt: prompt.to_owned(), error: format!("{e:#}"), engine: e.is::<EngineTrouble>() }
    }

    /// The failure in one line.
    pub fn line(&self) -> String {
        format!("{}: {}", self.prompt, self.error)
    }
}

impl Document for Failure {
    const KIND: &'static str = "failure";

    fn screen(&self, _: bool) -> Screen {
        Screen {
            word: "FAILED",
            checks: vec![Check::new("batch", self.prompt.as_str(), Fate::Error(self.error.clone()))],
            ..Screen::new(self.prompt.clone(), Outcome::Incomplete, self.error.clone())
        }
    }
}

/// For each batch of which not every prompt is in `places`, a sentence. Where
/// prompts are there several times, on several subjects, all must be.
pub fn gaps<'a>(places: impl IntoIterator<Item = &'a Place>) -> Vec<String> {
    let mut batches: BTreeMap<(&str, usize), BTreeMap<usize, usize>> = BTreeMap::new();
    for place in places {
        let seen = batches.entry((&place.batch, place.of)).or_default();
        *seen.entry(place.number).or_default() += 1;
    }
    let told = |((_, of), seen): ((&str, usize), BTreeMap<usize, usize>)| {
        let times = seen.values().copied().max().unwrap_or(0);
        // `of` comes from a file and may be anything: no list of that length.
        let there = seen.iter().filter(|(n, _)| (1..=of).contains(*n));
        let missing = of.saturating_mul(times) - there.map(|(_, t)| t).sum::<usize>();
        if missing == 0 {
            return None;
        }
        let absent = (1..=of).filter(|n| seen.get(n).copied().unwrap_or(0) < times);
        let mut numbers: Vec<String> = absent.take(TOLD + 1).map(|n| n.to_string()).collect();
        if numbers.len() > TOLD {
            numbers[TOLD] = "…".to_owned();
        }
        Some(format!(
            "{missing} of {} runs of a batch missing: prompt {}; give the files of all its parts, or run the missing prompts",
            of.saturating_mul(times),
            numbers.join(", ")
        ))
    };
    batches.into_iter().filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::{Place, gaps};

    fn places(of: usize, numbers: &[usize]) -> Vec<Place> {
        let batch = format!("{of}");
        let place = |&number| Place { batch: batch.clone(), number, of };
        numbers.iter().map(place).collect()
    }

    #[test]
    fn what_is_missing_is_told() {
        assert!(gaps(&[]).is_empty());
        assert!(gaps(&places(3, &[3, 1, 2])).is_empty());
        assert!(gaps(&places(2, &[1, 2, 2, 1])).is_empty());
        let told = |of, numbers: &[usize]| gaps(&places(of, numbers)).concat();
        assert!(told(3, &[1, 3]).starts_with("1 of 3 runs of a batch missing: prompt 2;"));
        assert!(told(2, &[1, 2, 2]).starts_with("1 of 4 runs of a batch missing: prompt 1;"));
        assert!(told(usize::MAX, &[7, 0]).contains("prompt 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, …;"));
    }
}
