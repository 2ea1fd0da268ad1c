//! The passes in which a run feeds its tokens, and how they are numbered.

use super::Step;
use anyhow::{Context as _, ensure};
use std::fmt::Display;
use std::str::FromStr;

/// Most passes that a list may name.
pub(super) const MOST: usize = 1 << 20;

/// How the tokens of a prompt are fed. Single tokens may be decoded after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passes<'a> {
    /// In parts of so many tokens, the last one shorter.
    Of(usize),
    /// In passes of these lengths, which are at least 1 and the prompt's tokens in all.
    Lengths(&'a [usize]),
}

/// A pass: some tokens that are fed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// 0 for every part of the prefill, then 1, 2, … for the passes after it.
    pub index: usize,
    /// Its number of tokens.
    pub tokens: usize,
}

impl Passes<'_> {
    /// The passes of a run: those of `prompt` tokens, and then one for each of `decode` single tokens.
    ///
    /// The prefill is the first pass, and those of several tokens that follow it at once. Every other pass is a step with a
    /// number of its own, however many tokens it has.
    pub fn of_run(self, prompt: usize, decode: usize) -> Vec<Pass> {
        let (lengths, prefill) = match self {
            Self::Of(part) => {
                let part = part.max(1);
                let lengths: Vec<usize> = (0..prompt).step_by(part).map(|at| part.min(prompt - at)).collect();
                let parts = lengths.len();
                (lengths, parts)
            }
            Self::Lengths(lengths) => {
                let following = lengths.iter().skip(1).take_while(|tokens| **tokens > 1).count();
                (lengths.to_vec(), 1 + following)
            }
        };
        let all = lengths.into_iter().chain(std::iter::repeat_n(1, decode));
        all.enumerate().map(|(i, tokens)| Pass { index: (i + 1).saturating_sub(prefill), tokens }).collect()
    }
}

/// Of another run with passes like these, how many tokens the one at place `at` has that has so many here: some more, an odd
/// number that differs from place to place. They fill no whole pages of 8, or the next pass would begin where a page does. A pass of one
/// token stays one.
pub fn in_other_run(tokens: usize, at: usize) -> usize {
    let more = 3 + 2 * (at % 8);
    let whole = (tokens + more).is_multiple_of(8);
    if tokens > 1 { tokens + more + if whole { 2 } else { 0 } } else { tokens }
}

/// The steps in which `prompt` and then `decoded` are fed, each decoded token alone. Without stages.
///
/// # Panics
/// If the passes have other tokens than the prompt.
pub fn steps(prompt: &[u32], passes: Passes<'_>, decoded: &[u32]) -> Vec<Step> {
    let tokens = [prompt, decoded].concat();
    let mut first = 0;
    let mut step = |Pass { index, tokens: count }: Pass| {
        let step = Step { index, ..Step::new(first, tokens[first..first + count].to_vec()) };
        first += count;
        step
    };
    passes.of_run(prompt.len(), decoded.len()).into_iter().map(&mut step).collect()
}

/// Lengths of passes, as people write them: `600,10x1,40` is 600 tokens at once, ten one by one, and 40 at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lengths(pub Vec<usize>);

impl Lengths {
    /// Their tokens in all.
    pub fn tokens(&self) -> usize {
        self.0.iter().fold(0, |sum, tokens| sum.saturating_add(*tokens))
    }
}

impl FromStr for Lengths {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = Vec::new();
        for item in text.split(',') {
            let (count, tokens) = item.split_once('x').unwrap_or(("1", item));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| *n > 0);
            let (count, tokens) = number(count).zip(number(tokens)).with_context(|| {
                format!("`{item}` is no pass: a number of tokens such as 40, or how often and how many, such as 10x1")
            })?;
            ensure!(count <= MOST - all.len(), "more than {MOST} passes");
            all.extend(std::iter::repeat_n(tokens, count));
        }
        Ok(Self(all))
    }
}

impl Display for Lengths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, run) in self.0.chunk_by(|a, b| a == b).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run.len() {
                1 => write!(f, "{comma}{}", run[0])?,
                count => write!(f, "{comma}{count}x{}", run[0])?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(steps: &[Step]) -> Vec<String> {
        steps.iter().map(Step::label).collect()
    }

    #[test]
    fn steps_are_labelled_by_position() {
        let all = steps(&[1, 2, 3, 4, 5], Passes::Of(2), &[6, 7]);
        assert_eq!(labels(&all), ["prefill", "prefill@2", "prefill@4", "step1", "step2"]);
        assert_eq!(all[2].tokens, [5]);
        assert_eq!((all[4].first, all[4].keys()), (6, 7));
        assert_eq!(steps(&[1], Passes::Of(512), &[]).len(), 1);
    }

    #[test]
    fn a_pass_of_several_tokens_after_a_decoded_one_is_a_step() {
        let all = steps(&[1, 2, 3, 4, 5, 6, 7, 8], Passes::Lengths(&[2, 2, 1, 3]), &[9]);
        assert_eq!(labels(&all), ["prefill", "prefill@2", "step1", "step2", "step3"]);
        assert_eq!((all[3].first, all[3].tokens.as_slice(), all[3].keys()), (5, &[6, 7, 8][..], 8));
        assert_eq!(labels(&steps(&[1, 2], Passes::Lengths(&[1, 1]), &[])), ["prefill", "step1"]);
    }

    proptest! {
        /// Whatever the passes, each token is fed once and in order, labels differ, and what is written is read again.
        #[test]
        fn passes_hold_every_token_once(lengths in prop::collection::vec(1usize..5, 1..9), decode in 0usize..4) {
            let total: usize = lengths.iter().sum();
            let all = steps(&vec![7; total], Passes::Lengths(&lengths), &vec![8; decode]);
            let mut end = 0;
            for (i, step) in all.iter().enumerate() {
                prop_assert_eq!((step.first, step.tokens.len()), (end, lengths.get(i).copied().unwrap_or(1)));
                end = step.keys();
            }
            prop_assert_eq!(end, total + decode);
            let distinct: std::collections::BTreeSet<String> = labels(&all).into_iter().collect();
            prop_assert_eq!(distinct.len(), all.len());
            let written = Lengths(lengths);
            prop_assert_eq!(written.to_string().parse::<Lengths>().unwrap(), written);
        }
    }

    #[test]
    fn lengths_that_are_none_are_refused() {
        assert_eq!("600,10x1,40".parse::<Lengths>().unwrap().tokens(), 650);
        for text in ["", "0", "3,,4", "0x4", "4x0", "x", "a", "3x", "99999999x1", "-3", "1x2x3"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }
}
