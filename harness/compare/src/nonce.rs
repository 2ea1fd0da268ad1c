//! A prompt that no recording can know: with another number in it, every stage must change.

use crate::capture::Passes;
use crate::pair::{Pair, Recording, Tokens};
use crate::runners::{Faults, RunnerKind};
use anyhow::{Result, bail};
use qdiff_engine::model::Graph;
use schemars::JsonSchema;
use serde::Serialize;
use std::hash::{BuildHasher as _, RandomState};

/// Numbers have eight digits, so that prompts are equally long.
const NUMBERS: u32 = 100_000_000;

/// A number from the system's randomness.
pub fn fresh() -> u32 {
    (RandomState::new().hash_one(std::process::id()) % u64::from(NUMBERS)) as u32
}

/// The prompt with this number.
pub fn prompt(number: u32) -> String {
    format!("Write a haiku about GPU computing and the number {number:08}.")
}

/// A number none of whose digits is the same.
pub fn another(number: u32) -> u32 {
    (0..8).fold(0, |other, i| {
        let digit = number / 10u32.pow(i) % 10;
        other + (digit + 5) % 10 * 10u32.pow(i)
    })
}

/// What changed with the number.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Changes {
    /// Stages compared, of both sides together.
    pub compared: usize,
    /// Stages that are the same to the last bit with either number, with the name of their side.
    pub unchanged: Vec<String>,
}

impl Changes {
    /// Whether anything was not computed from the prompt.
    pub fn stale(&self) -> bool {
        !self.unchanged.is_empty()
    }

    /// Adds a side: what it computed of either prompt.
    pub fn compare(&mut self, graph: &Graph, a: &Recording, b: &Recording) {
        for node in &graph.nodes {
            let stages = |r: &Recording| -> Vec<Vec<f32>> {
                let steps = r.capture.steps.iter();
                steps.filter_map(|s| s.get(node.id).map(|t| t.data.clone())).collect()
            };
            let (one, other) = (stages(a), stages(b));
            if one.is_empty() && other.is_empty() {
                // Not tapped by this runner.
                continue;
            }
            self.compared += 1;
            if one == other {
                let side = &a.manifest.name;
                self.unchanged.push(format!("{} of {side}", node.id));
            }
        }
    }
}

/// Runs both sides on both prompts, and compares each side's stages with itself.
///
/// # Errors
/// Whatever keeps a side from running; prompts of different length or without a difference.
pub fn check(
    pair: &Pair<'_>, prompts: [&[u32]; 2], ubatch: usize, subject: &RunnerKind, reference: &RunnerKind, faults: &Faults,
) -> Result<Changes> {
    let [a, b] = prompts;
    if a.len() != b.len() || a == b {
        bail!(
            "this vocabulary does not spell the two numbers in equally many tokens; name another with --nonce NUMBER"
        );
    }
    let mut changes = Changes::default();
    let sides = [(reference, Faults::default()), (subject, faults.clone())];
    for (kind, faults) in sides {
        let run = |prompt| {
            let tokens = Tokens { passes: Passes::Of(ubatch), ..Tokens::whole(prompt, 0) };
            pair.run(kind, tokens, faults.clone())
        };
        changes.compare(&pair.oracle.graph, &run(a)?, &run(b)?);
        pair.settings.store.trouble()?;
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::{another, prompt};

    #[test]
    fn every_digit_is_another() {
        for n in [0, 1, 12_345_678, 99_999_999, 50_505_050] {
            let (a, b) = (prompt(n), prompt(another(n)));
            let digits = a.bytes().zip(b.bytes()).filter(|(x, _)| x.is_ascii_digit());
            assert!(digits.clone().count() == 8 && digits.into_iter().all(|(x, y)| x != y));
        }
    }
}
