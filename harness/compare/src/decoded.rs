//! The tokens that an engine fed at its decode steps, against those that its own logits choose.

use crate::capture::Stored;
use crate::capture::manifest::Sampler;
use crate::loaded::LoadedModel;
use crate::metrics::argmax;
use crate::number::{Real, counted, number};
use crate::pair::Recording;
use crate::tokens::{NamedToken, named};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the comparison found.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct DecodedCheck {
    /// How the engine chooses, in words.
    pub sampler: String,
    /// Whether its manifest says so.
    pub declared: bool,
    /// Choices that were held against the logits they were made of.
    pub checked: usize,
    /// Choices whose logits were not captured, or hold NaN.
    #[serde(default)]
    pub unchecked: usize,
    /// Choices that its own logits do not make, and the reference's logits do: of a capture that does not say how it chose.
    #[serde(default)]
    pub as_reference: usize,
    /// Tokens that its logits do not choose, before the first that they do: of a capture that does not say how it chose, in which
    /// they may be the rest of the prompt.
    #[serde(default)]
    pub given: usize,
    /// Choices that its logits do not make.
    pub others: usize,
    /// The first of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<OtherChoice>,
    /// What all of these have in common, where anything is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<ChoicePattern>,
}

/// A token that an engine fed, and the one that its own logits choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherChoice {
    /// Step whose last logits choose: 0 for the prompt.
    pub step: usize,
    /// What the engine chose.
    pub fed: NamedToken,
    /// What its logits choose.
    pub chosen: NamedToken,
    /// Logit of the token fed.
    #[serde(with = "Real")]
    pub fed_logit: f64,
    /// The largest logit.
    #[serde(with = "Real")]
    pub chosen_logit: f64,
    /// By how much the largest is larger.
    #[serde(with = "Real")]
    pub margin: f64,
    /// Logits that are larger than that of the token fed.
    pub larger: usize,
    /// Logits of the row.
    pub of: usize,
}

/// What wrong choices have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChoicePattern {
    /// Each is the smallest logit's.
    Smallest,
    /// Each is what the logits of the step before chose.
    StepBefore,
}

impl DecodedCheck {
    /// Whether the engine chose a token that its logits do not.
    pub fn diverged(&self) -> bool {
        self.first.is_some()
    }

    /// The outcome in words.
    pub fn words(&self) -> String {
        let Self { sampler, checked, unchecked, as_reference, given, others, .. } = self;
        let lacking = match unchecked {
            0 => String::new(),
            n => format!("; {} not checked: their logits were not captured, or hold NaN", counted(*n, "choice")),
        };
        if let Some(first) = &self.first {
            let pattern = match self.pattern {
                Some(ChoicePattern::Smallest) => "; each is the token of the smallest logit, as an argmin gives it",
                Some(ChoicePattern::StepBefore) => "; each is what the logits of the step before choose",
                None => "",
            };
            let more = if *others > 1 {
                format!("; {others} of {checked} choices are not its logits'")
            } else {
                String::new()
            };
            return format!("{}{more}{pattern}{lacking}", first.words());
        }
        let as_reference = match as_reference {
            0 => String::new(),
            n => format!(
                "; {} the reference's choice and not the engine's own: a manifest with \"sampler\": \"told\" says that the tokens were given",
                if *n == 1 { "1 is".to_owned() } else { format!("{n} are") }
            ),
        };
        let given = match given {
            0 => String::new(),
            n => format!(
                "{} that its logits do not choose may be the rest of the prompt: a manifest with \"sampler\": \"told\" or \"greedy\" says it",
                counted(*n, "token")
            ),
        };
        match checked {
            0 if given.is_empty() => format!("not checked: {sampler}{lacking}"),
            0 => format!("not checked: {given}{lacking}"),
            n => format!(
                "{} fed as the engine's own logits choose ({sampler}){as_reference}{}{lacking}",
                counted(*n, "token"),
                if given.is_empty() { given } else { format!("; {given}") }
            ),
        }
    }

    /// What to do about it, or to say.
    pub fn remedy(&self) -> Option<String> {
        let undeclared = "; an engine that samples, or that was given these tokens, says so in its manifest: \
                          \"sampler\": \"drawn\", or \"told\"";
        let undeclared = if self.declared { "" } else { undeclared };
        let look = "look at how the next token is taken from the logits: from which row of them, by which comparison";
        self.diverged().then(|| format!("{look}{undeclared}"))
    }
}

impl OtherChoice {
    fn words(&self) -> String {
        let Self { step, fed, chosen, fed_logit, chosen_logit, margin, larger, of } = self;
        let after = if *step == 0 { "the prompt".to_owned() } else { format!("step {step}") };
        let rank = if larger + 1 == *of { "the smallest".to_owned() } else { format!("number {} by size", larger + 1) };
        format!(
            "after {after} the engine chose {} (id {}), and its own logits choose {} (id {}): their logits are {} and {}, \
             margin {}; of {of} logits that of its choice is {rank}",
            fed.text,
            fed.id,
            chosen.text,
            chosen.id,
            number(*fed_logit),
            number(*chosen_logit),
            number(*margin)
        )
    }
}

/// Why the choices of an engine are not checked that fed one token in each pass.
const UNKNOWN_END: &str = "every pass has one token, and nothing says which of them were chosen; a manifest with \"sampler\": \"told\" or \"greedy\" says it";

/// A choice that the logits of its row do not make.
struct Other {
    /// The largest logit's token.
    chosen: usize,
    /// Logits larger than that of what was chosen.
    larger: usize,
    /// Whether none is smaller.
    smallest: bool,
}

/// Whether a sampler that may take the `most` largest logits, any of them where `None`, can choose `token` of `row`. Among
/// equals any may be taken: a dump in fewer bits makes equals of what was not.
fn other(row: &[f32], token: usize, most: usize) -> Option<Other> {
    let own = row[token];
    let larger = row.iter().filter(|x| **x > own).count();
    (larger >= most).then(|| Other { chosen: argmax(row), larger, smallest: row.iter().all(|x| *x >= own) })
}

/// Holds what `subject` fed against its own logits, and `end`, the token at which it stopped, too. Nothing where the tokens
/// were given to it.
pub fn check(
    opened: &LoadedModel, subject: &Recording, end: Option<u32>, reference: Option<&Recording>,
) -> Option<DecodedCheck> {
    let chose = subject.chose?;
    let (most, sampler) = match chose.sampler {
        None => (1, "greedy, as its manifest names no sampler"),
        Some(Sampler::Greedy) => (1, "greedy"),
        Some(Sampler::TopK(k)) => (if k == 0 { usize::MAX } else { k }, "any of the top_k largest"),
        Some(Sampler::Drawn) => (usize::MAX, "drawn: any token may be"),
        Some(Sampler::Told) => return None,
    };
    // A step of one token was chosen after the step before it; of more, somebody gave them, and those of the prompt.
    let steps = &subject.capture.steps;
    let prompt = steps.len().checked_sub(subject.fed.len() + 1)?;
    let next = |i: usize| match steps.get(i + 1) {
        Some(step) => (step.tokens.len() == 1).then(|| step.tokens[0]),
        None => end,
    };
    // Nothing says where the prompt of such a capture ends.
    if !chose.alone && chose.sampler.is_none() && prompt == 0 && steps.len() > 1 && steps[0].tokens.len() == 1 {
        let sampler = UNKNOWN_END.to_owned();
        return Some(DecodedCheck { sampler, ..DecodedCheck::default() });
    }
    let choices: Vec<(usize, u32)> = (prompt..steps.len()).filter_map(|i| Some((i, next(i)?))).collect();
    if choices.is_empty() || most == usize::MAX {
        return None;
    }
    let mut found =
        DecodedCheck { sampler: sampler.to_owned(), declared: chose.sampler.is_some(), ..DecodedCheck::default() };
    let mut patterns = vec![ChoicePattern::Smallest, ChoicePattern::StepBefore];
    let mut before: Option<usize> = None;
    // Other tokens before the first that its logits choose.
    let mut leading = 0;
    for (i, token) in choices {
        let (row, token) = (steps[i].choice.as_ref().map(Stored::get), token as usize);
        let Some(row) = row.filter(|row| token < row.data.len() && !row.data.iter().any(|x| x.is_nan())) else {
            (found.unchecked, before) = (found.unchecked + 1, None);
            continue;
        };
        found.checked += 1;
        let row = &row.data;
        let last = before.replace(argmax(row));
        let Some(Other { chosen, larger, smallest }) = other(row, token, most) else { continue };
        let theirs = reference.and_then(|r| Some(r.capture.steps.get(i)?.choice.as_ref()?.get()));
        if !chose.alone && chose.sampler.is_none() && theirs.is_some_and(|row| argmax(&row.data) == token) {
            found.as_reference += 1;
            continue;
        }
        found.others += 1;
        leading += usize::from(found.checked == found.others + found.as_reference);
        patterns.retain(|pattern| match pattern {
            ChoicePattern::Smallest => smallest,
            ChoicePattern::StepBefore => last == Some(token),
        });
        if found.first.is_none() {
            let name = |id: usize| named(id as u32, &opened.piece_bytes(id as u32).unwrap_or_default());
            let (fed_logit, chosen_logit) = (f64::from(row[token]), f64::from(row[chosen]));
            found.first = Some(OtherChoice {
                step: steps[i].index,
                fed: name(token),
                chosen: name(chosen),
                fed_logit,
                chosen_logit,
                margin: chosen_logit - fed_logit,
                larger,
                of: row.len(),
            });
        }
    }
    found.pattern = found.first.as_ref().and_then(|_| patterns.first().copied());
    let unsaid = !chose.alone && chose.sampler.is_none();
    if unsaid && found.pattern.is_none() && leading == found.others {
        (found.given, found.checked) = (leading, found.checked - leading);
        (found.first, found.others) = (None, 0);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_logit_is_no_choice() {
        let row = [0.5, 3.0, -2.0, 3.0, 1.0];
        // Either of two equal ones may be taken.
        assert!([1, 3].iter().all(|token| other(&row, *token, 1).is_none()));
        let argmin = other(&row, 2, 1).unwrap();
        assert_eq!((argmin.chosen, argmin.larger, argmin.smallest), (1, 4, true));
        let second = other(&row, 4, 1).unwrap();
        assert_eq!((second.chosen, second.larger, second.smallest), (1, 2, false));
        // Any of the three largest may be drawn.
        assert!(other(&row, 4, 3).is_none() && other(&row, 0, 3).is_some());
    }
}
