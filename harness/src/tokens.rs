//! The stage `tokens`: the engine's tokenizer against llama.cpp's, on the text
//! of the prompt. The run goes on with llama.cpp's tokens, whatever is found.

use crate::generate::quoted;
use crate::llama::Model;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the comparison found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokensCheck {
    /// Tokens of llama.cpp that the engine made as well, from the first on.
    pub same: usize,
    /// Where they part.
    pub difference: Option<TokenDifference>,
    /// Why nothing was compared, if so.
    pub unchecked: Option<String>,
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
    /// Offset of the engine's token in the text, in bytes.
    pub at: usize,
    /// The rule of the pre-tokenizer that cut the engine's token off.
    pub rule: String,
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
        let Some(d) = &self.difference else {
            return format!("the engine's gives llama.cpp's {} tokens", self.same);
        };
        let side = |token: &Option<NamedToken>| match token {
            Some(t) => format!("{} (id {})", t.text, t.id),
            None => "nothing".to_owned(),
        };
        format!(
            "token {} at byte {} is {} to the engine, {} to llama.cpp; cut off by {}",
            d.index,
            d.at,
            side(&d.subject),
            side(&d.reference),
            d.rule
        )
    }
}

/// Tokenises `text` on both sides.
pub fn check(gguf: &Gguf, llama: &Model, text: &str) -> TokensCheck {
    let unchecked = |why: String| TokensCheck {
        same: 0,
        difference: None,
        unchecked: Some(why),
    };
    let tokenizer = match Tokenizer::new(gguf) {
        Ok(tokenizer) => tokenizer,
        Err(e) => return unchecked(e.to_string()),
    };
    match llama.tokenize(text) {
        Ok(theirs) => compare(&tokenizer, text, &theirs, |id| {
            llama.piece_bytes(id, true).unwrap_or_default()
        }),
        Err(e) => unchecked(format!("{e:#}")),
    }
}

/// The engine's tokens of `text` against `theirs`; `piece` gives the bytes of
/// one of these.
pub fn compare(
    tokenizer: &Tokenizer,
    text: &str,
    theirs: &[u32],
    piece: impl Fn(u32) -> Vec<u8>,
) -> TokensCheck {
    let ours = tokenizer.encode(text, true);
    let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let difference = (same < ours.len().max(theirs.len())).then(|| {
        // Tokens before the text, which the vocabulary may ask for, have no place in it.
        let explained = tokenizer.explain(text, true);
        let before = ours.len().saturating_sub(explained.len());
        let place = same.checked_sub(before).and_then(|i| explained.get(i));
        TokenDifference {
            index: same,
            subject: ours
                .get(same)
                .map(|id| named(*id, &tokenizer.piece(*id, true))),
            reference: theirs.get(same).map(|id| named(*id, &piece(*id))),
            at: place.map_or(text.len(), |t| t.span.start),
            rule: place.map_or("none: outside the text".to_owned(), |t| t.rule.to_string()),
        }
    });
    TokensCheck {
        same,
        difference,
        unchecked: None,
    }
}

fn named(id: u32, bytes: &[u8]) -> NamedToken {
    NamedToken {
        id,
        text: quoted(bytes),
    }
}
