//! The end of generation: at which tokens an engine ends a text, and where it did, against what the file says to
//! llama.cpp.

use crate::capture::manifest::RecordedEnd;
use crate::loaded::LoadedModel;
use crate::mutations::{CatalogueEntry, Mutation, catalogue};
use crate::number::counted;
use crate::tokens::{NamedToken, named};
use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Ends listed; what follows is counted.
const LISTED: usize = 4;

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EndCheck {
    /// How many tokens end a text, to llama.cpp.
    pub ends: usize,
    /// Those of them that do not to the engine.
    pub missed: Vec<NamedToken>,
    /// Those that do to the engine alone.
    pub added: Vec<NamedToken>,
    /// The first decision of the engine that was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<WrongEnd>,
    /// What makes the engine's ends of the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<CatalogueEntry>,
    /// Why the engine's list of ends was not compared, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<String>,
    /// Whether the right ends are those that a folder of safetensors lists, and not llama.cpp's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub folder: bool,
}

/// An engine that went on after an end, or stopped at what is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrongEnd {
    /// Index of the generated token.
    pub index: usize,
    /// The token.
    pub token: NamedToken,
    /// Whether it stopped there.
    pub stopped: bool,
}

impl EndCheck {
    /// Whether a text ends elsewhere than it should, here or after other tokens.
    pub fn diverged(&self) -> bool {
        self.wrong.is_some() || !self.missed.is_empty() || !self.added.is_empty()
    }

    /// The outcome in words.
    pub fn words(&self) -> String {
        let wrong = self.wrong.as_ref().map(|w| match w.stopped {
            true => format!("the engine stopped at token {}, {}, which ends no text", w.index, told(&w.token)),
            false => format!("the engine went on after token {}, {}, which ends a text", w.index, told(&w.token)),
        });
        let right = if self.folder { "the folder's own list" } else { "llama.cpp" };
        let missed = listed(&self.missed).map(|all| format!("only {right} ends a text at {all}"));
        let added = listed(&self.added).map(|all| format!("only the engine ends a text at {all}"));
        let found: Vec<String> = wrong.into_iter().chain(missed).chain(added).collect();
        let cause = self.cause.as_ref().map_or_else(String::new, |c| format!(": {} ({})", c.story, c.name));
        match (&self.unlisted, found.is_empty()) {
            (_, false) => found.join("; ") + &cause,
            (Some(why), true) => {
                format!("no token was wrongly taken for one; the list of ends was not compared: {why}")
            }
            (None, true) => format!("the same {} as {right}", counted(self.ends, "end-of-text token")),
        }
    }
}

fn ending(ends: usize) -> String {
    format!("{} {}", counted(ends, "token"), if ends == 1 { "ends" } else { "end" })
}

fn told(token: &NamedToken) -> String {
    format!("{} (id {})", token.text, token.id)
}

/// The first of these tokens, and how many more there are; `None` where there are none.
fn listed(tokens: &[NamedToken]) -> Option<String> {
    let first: Vec<String> = tokens.iter().take(LISTED).map(told).collect();
    let more = tokens.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!first.is_empty()).then(|| first.join(", ") + &more)
}

/// The tokens at which an engine ends a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The tokens.
    pub tokens: BTreeSet<u32>,
    /// Why these are llama.cpp's, and not of the engine's own reading.
    pub unlisted: Option<String>,
}

/// What the file says to llama.cpp.
fn right(opened: &LoadedModel) -> BTreeSet<u32> {
    opened.ends()
}

impl Ends {
    /// Those of qdiff's own engines, with a fault where one is injected.
    ///
    /// # Errors
    /// A fault of a vocabulary that the engine cannot read, or one that changes nothing.
    pub fn of_engine(opened: &LoadedModel, fault: Option<&Mutation>) -> Result<Self> {
        let right = right(opened);
        let tokenizer = match (&opened.tokenizer, fault) {
            (Ok(tokenizer), _) => tokenizer,
            (Err(e), None) => return Ok(Self { tokens: right, unlisted: Some(e.to_string()) }),
            (Err(e), Some(m)) => bail!("`{}` changes which tokens end a text, and these cannot be read: {e}", m.name),
        };
        let Some((fault, ends)) = fault.and_then(|m| Some((m, m.ends?(tokenizer)))) else {
            // Where the file does not say which it is, llama.cpp's choice is as good as any.
            let settled = tokenizer.ends().difference(tokenizer.unsettled_ends());
            let unsettled = tokenizer.unsettled_ends().intersection(&right);
            return Ok(Self { tokens: settled.chain(unsettled).copied().collect(), unlisted: None });
        };
        if ends == right {
            bail!("`{}` changes nothing about this vocabulary, where {} a text", fault.name, ending(right.len()));
        }
        Ok(Self { tokens: ends, unlisted: None })
    }

    /// Holds them, and where the engine stopped, against what the file says. `text` is what it generated, the token that
    /// ended it included where it `stopped` by its own decision.
    pub fn check(&self, opened: &LoadedModel, text: &[u32], stopped: bool) -> EndCheck {
        let right = right(opened);
        let name = |id: &u32| named(*id, &opened.piece_bytes(*id).unwrap_or_default());
        let wrong = text.iter().enumerate().find_map(|(index, id)| {
            let stopped = stopped && index + 1 == text.len();
            (stopped != right.contains(id)).then(|| WrongEnd { index, token: name(id), stopped })
        });
        let differs = self.tokens != right;
        let tokenizer = opened.tokenizer.as_ref().ok().filter(|_| differs);
        let makes = |m: &&Mutation| tokenizer.zip(m.ends).is_some_and(|(t, ends)| ends(t) == self.tokens);
        EndCheck {
            ends: right.len(),
            missed: right.difference(&self.tokens).map(name).collect(),
            added: self.tokens.difference(&right).map(name).collect(),
            wrong,
            cause: catalogue().find(makes).map(CatalogueEntry::from),
            unlisted: self.unlisted.clone(),
            folder: opened.is_folder(),
        }
    }
}

/// What a recorded engine says of the end of its text, with the tokens `decoded` before it, against what the file says.
/// Nothing of a folder that does not say where a text ends, or of a GGUF that llama.cpp has not read.
pub fn recorded(opened: &LoadedModel, end: &RecordedEnd, decoded: &[u32]) -> Option<EndCheck> {
    let silent = right(opened).is_empty() && opened.is_folder();
    if silent || opened.is_read_alone() {
        return None;
    }
    let text: Vec<u32> = decoded.iter().copied().chain(end.at).collect();
    let ends = match &end.tokens {
        Some(tokens) => Ends { tokens: tokens.clone(), unlisted: None },
        None => Ends { tokens: right(opened), unlisted: Some("the capture does not list them".to_owned()) },
    };
    Some(ends.check(opened, &text, end.at.is_some()))
}
