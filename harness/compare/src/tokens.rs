//! The stage `tokens`: the engine's tokenizer against llama.cpp's, on the text
//! of the prompt. The run goes on with llama.cpp's tokens in any case.

use crate::generate::quoted;
use crate::loaded::LoadedModel;
use crate::mutations::{CatalogueEntry, Mutation, catalogue};
use crate::number::counted;
use crate::prompts::Ready;
use anyhow::{Context as _, Result, bail};
use qdiff_engine::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokensCheck {
    /// Tokens of llama.cpp that the engine made as well, from the first on.
    pub same: usize,
    /// Where they part.
    pub difference: Option<TokenDifference>,
    /// What makes the engine's tokens of the prompt.
    #[serde(default)]
    pub cause: Option<CatalogueEntry>,
    /// Tokens of the run, where they are not those of the text but repeated or cut from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<usize>,
    /// Known faults of splitting text with which these tokens would be the same, and those of other texts would not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untested: Vec<String>,
    /// Why nothing was compared, if so.
    pub unchecked: Option<String>,
    /// Whether the right tokens are those of a folder's tokenizer.json as qdiff reads it, and not llama.cpp's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub folder: bool,
}

/// A token by id and text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedToken {
    /// Its id.
    pub id: u32,
    /// Its text, quoted.
    pub text: String,
}

/// The first token that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenDifference {
    /// Its index.
    pub index: usize,
    /// The engine's; absent after its last token.
    pub subject: Option<NamedToken>,
    /// llama.cpp's; absent after its last token.
    pub reference: Option<NamedToken>,
    /// Where in the text, in bytes; absent where the prompt is none.
    pub at: Option<usize>,
    /// The rule of the pre-tokenizer that cut the engine's token off, where it is the project's own.
    pub rule: Option<String>,
}

impl TokensCheck {
    /// Whether the engine's tokens are others.
    pub fn diverged(&self) -> bool {
        self.difference.is_some()
    }

    /// The outcome in words.
    pub fn words(&self) -> String {
        if let Some(why) = &self.unchecked {
            return format!("not checked: {why}");
        }
        let right = if self.folder { "tokenizer.json as qdiff reads it" } else { "llama.cpp" };
        let Some(d) = &self.difference else {
            let run = match self.run {
                Some(n) if n > self.same => format!(", which the run repeats to {n}"),
                Some(n) => format!(", of which the run takes {n}"),
                None => String::new(),
            };
            let untested = match self.untested.as_slice() {
                [] => String::new(),
                [fault] => format!("; this text cannot show the fault {fault} (`qdiff mutations show {fault}`)"),
                faults => {
                    format!("; this text cannot show the faults {} (`qdiff mutations show NAME`)", faults.join(", "))
                }
            };
            return format!("all {} as in {right}{run}{untested}", counted(self.same, "prompt token"));
        };
        let side = |token: &Option<NamedToken>| match token {
            Some(t) => format!("{} (id {})", t.text, t.id),
            None => "nothing".to_owned(),
        };
        let at = d.at.map_or_else(String::new, |at| format!(" at byte {at}"));
        let mut words =
            format!("token {}{at} is {} to the engine, {} to {right}", d.index, side(&d.subject), side(&d.reference),);
        if let Some(rule) = &d.rule {
            let _ = write!(words, "; cut off by {rule}");
        }
        if let Some(c) = &self.cause {
            let _ = write!(words, ": {} ({})", c.story, c.name);
        }
        words
    }
}

/// The engine's tokenizer, with a fault of it where one is injected, on the text
/// of the prompt; `None` where the prompt has none.
///
/// # Errors
/// A fault that changes nothing.
pub fn check(opened: &LoadedModel, prompt: &Ready, fault: Option<&Mutation>) -> Result<Option<TokensCheck>> {
    if prompt.text.is_empty() {
        return match fault {
            Some(m) => bail!(
                "`{}` changes how a text becomes tokens, and tokens are given here; give --prompt, without --tokens and --length",
                m.name
            ),
            None => Ok(None),
        };
    }
    let tokenizer = match &opened.tokenizer {
        Ok(tokenizer) => tokenizer,
        Err(e) => return Ok(Some(unchecked(e.to_string()))),
    };
    if opened.is_folder() && fault.is_none() {
        return Ok(Some(unchecked("the tokens are of qdiff's own reading of tokenizer.json".to_owned())));
    }
    let ours = match fault {
        None => tokenizer.encode(&prompt.text, true),
        Some(m) => m.tokens(tokenizer, prompt).with_context(|| {
            let hint = match &m.splitting {
                Some(s) if s.shows(tokenizer, s.shown_by) => {
                    format!("it is untested there; {:?} shows it", s.shown_by)
                }
                Some(s) => format!("it is untested there, as by {:?}: this vocabulary does not show it", s.shown_by),
                None => "with --template model or --system TEXT there is more to leave out".to_owned(),
            };
            format!("`{}` changes nothing about the prompt `{}`; {hint}", m.name, prompt.name)
        })?,
    };
    Ok(Some(match opened.llama().and_then(|llama| llama.tokenize(prompt.text.as_bytes(), true)) {
        Ok(theirs) => compare(tokenizer, prompt, &ours, &theirs, pieces(opened)),
        Err(e) => unchecked(format!("{e:#}")),
    }))
}

/// Recorded tokens against those of the prompt that the command names.
pub fn recorded(opened: &LoadedModel, prompt: &Ready, tokens: &[u32]) -> TokensCheck {
    match &opened.tokenizer {
        Ok(_) if opened.is_read_alone() => {
            unchecked("this build has no llama.cpp, whose tokens of the prompt are the right ones".to_owned())
        }
        Ok(tokenizer) => {
            let folder = opened.is_folder();
            TokensCheck { folder, ..compare(tokenizer, prompt, tokens, &prompt.tokens, pieces(opened)) }
        }
        Err(e) => unchecked(e.to_string()),
    }
}

/// The bytes of llama.cpp's tokens.
fn pieces(opened: &LoadedModel) -> impl Fn(u32) -> Vec<u8> {
    |id| opened.piece_bytes(id).unwrap_or_default()
}

fn unchecked(why: String) -> TokensCheck {
    TokensCheck { unchecked: Some(why), ..TokensCheck::default() }
}

/// `ours`, which an engine made of the prompt, against `theirs`; `piece` gives the bytes of one of these.
pub fn compare(
    tokenizer: &Tokenizer, prompt: &Ready, ours: &[u32], theirs: &[u32], piece: impl Fn(u32) -> Vec<u8>,
) -> TokensCheck {
    let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    if same == ours.len().max(theirs.len()) {
        let run = (prompt.tokens.len() != same).then_some(prompt.tokens.len());
        let untested = catalogue().filter(|m| m.untested_by(tokenizer, &prompt.text)).map(|m| m.name.to_owned());
        return TokensCheck { same, run, untested: untested.collect(), ..TokensCheck::default() };
    }
    let text = prompt.text.as_str();
    let right = tokenizer.encode(text, true);
    // Tokens before the text, which the vocabulary may ask for, have no place in it.
    let explained = tokenizer.explain(text, true);
    let before = right.len().saturating_sub(explained.len());
    let place = same.checked_sub(before).and_then(|i| explained.get(i));
    let difference = TokenDifference {
        index: same,
        subject: ours.get(same).map(|id| named(*id, &tokenizer.piece(*id, true))),
        reference: theirs.get(same).map(|id| named(*id, &piece(*id))),
        at: (!text.is_empty()).then(|| place.map_or(text.len(), |t| t.span.start)),
        // It is known only for the engine's own tokenizer.
        rule: place.filter(|_| ours == right).map(|t| t.rule.to_string()),
    };
    // One that changes nothing explains nothing.
    let explains = |m: &&Mutation| !text.is_empty() && m.tokens(tokenizer, prompt).is_some_and(|made| made == ours);
    TokensCheck {
        same,
        difference: Some(difference),
        cause: catalogue().find(explains).map(CatalogueEntry::from),
        ..TokensCheck::default()
    }
}

/// A token whose text is `bytes`.
pub fn named(id: u32, bytes: &[u8]) -> NamedToken {
    NamedToken { id, text: quoted(bytes) }
}
