//! Text to tokens and back, from the GGUF's own vocabulary: byte-level BPE
//! with Qwen2's pre-tokenizer, and special tokens.
//!
//! llama.cpp's `llama_tokenize` is the definition; where it has a peculiarity, so has this. One thing is stricter: text
//! is UTF-8, and what is not is refused instead of becoming U+FFFD.

pub mod alphabet;
mod bpe;
pub mod chat;
mod check;
mod split;
mod stream;
mod vocab;

pub use check::check;
pub use split::{Rule, Split, Word, words};
pub use stream::TextStream;
pub use vocab::{Kind, VocabError};

use crate::gguf::Gguf;
use std::collections::BTreeSet;
use std::ops::Range;
use vocab::Vocab;

/// Bytes that are no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} is not UTF-8; save the text as UTF-8")]
pub struct TextError {
    /// The offset of the first byte that is not UTF-8.
    pub at: usize,
}

/// One token of a text, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The bytes of its text.
    pub span: Range<usize>,
    /// The rule that cut the word which it is of.
    pub rule: Rule,
}

/// A vocabulary, ready for use.
pub struct Tokenizer {
    vocab: Vocab,
    /// Tokens to be recognised as a whole, the longest first.
    special: Vec<u32>,
    /// The token of each byte as a string of its own, for what is no token.
    bytes: Vec<Option<u32>>,
}

impl Tokenizer {
    /// Reads the vocabulary of `gguf`.
    ///
    /// # Errors
    /// [`VocabError`] for a vocabulary that is broken or of another kind.
    pub fn new(gguf: &Gguf) -> Result<Self, VocabError> {
        let vocab = Vocab::read(gguf)?;
        let mut special: Vec<u32> = (0..vocab.texts.len() as u32)
            .filter(|i| matches!(vocab.kinds[*i as usize], Kind::Control | Kind::UserDefined))
            .collect();
        special.sort_by_key(|i| std::cmp::Reverse(vocab.texts[*i as usize].len()));
        let single = |byte: u8| {
            let symbol = vocab.bpe.bytes[usize::from(byte)];
            Some(symbol).filter(|s| byte.is_ascii_graphic() && (*s as usize) < vocab.texts.len())
        };
        let bytes = (0..=255).map(single).collect();
        Ok(Self { special, bytes, vocab })
    }

    /// Number of tokens, padding included.
    pub fn n_tokens(&self) -> usize {
        self.vocab.texts.len()
    }

    /// What the token is for; `None` beyond the vocabulary.
    pub fn kind(&self, id: u32) -> Option<Kind> {
        self.vocab.kinds.get(id as usize).copied()
    }

    /// Whether the token ends a generation.
    pub fn ends_generation(&self, id: u32) -> bool {
        self.vocab.ends.contains(&id)
    }

    /// The tokens that end a generation.
    pub fn ends(&self) -> &BTreeSet<u32> {
        &self.vocab.ends
    }

    /// Tokens of which one alone ends a generation, and the order of a hash map in llama.cpp says which: the file does
    /// not.
    pub fn unsettled_ends(&self) -> &BTreeSet<u32> {
        &self.vocab.unsettled_ends
    }

    /// The token after every text, where the vocabulary names one.
    pub fn eos(&self) -> Option<u32> {
        self.vocab.eos
    }

    /// The token before every text, where the vocabulary names one.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.bos
    }

    /// The tokens of `text`, with the vocabulary's own at its ends. Special tokens in the text are recognised if
    /// `parse_special`; otherwise only those that the vocabulary defines for any text.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        self.encode_split(text, parse_special, |text| words(text).collect())
    }

    /// The same of words that are cut otherwise than the vocabulary asks for.
    pub fn encode_split(&self, text: &str, parse_special: bool, split: Split) -> Vec<u32> {
        let tokens = self.explain_split(text, parse_special, split);
        let mut ids = Vec::with_capacity(tokens.len() + 2);
        ids.extend(self.vocab.bos.filter(|_| self.vocab.add_bos));
        ids.extend(tokens.iter().map(|t| t.id));
        ids.extend(self.vocab.eos.filter(|_| self.vocab.add_eos));
        ids
    }

    /// As [`encode`](Self::encode), of bytes that may be no text.
    ///
    /// # Errors
    /// [`TextError`] if they are not UTF-8.
    pub fn encode_bytes(&self, bytes: &[u8], parse_special: bool) -> Result<Vec<u32>, TextError> {
        let text = std::str::from_utf8(bytes).map_err(|e| TextError { at: e.valid_up_to() })?;
        Ok(self.encode(text, parse_special))
    }

    /// The tokens of `text` alone, each with its place and rule.
    pub fn explain(&self, text: &str, parse_special: bool) -> Vec<Token> {
        self.explain_split(text, parse_special, |text| words(text).collect())
    }

    fn explain_split(&self, text: &str, parse_special: bool, split: Split) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        for (span, special) in self.fragments(text, parse_special) {
            if let Some(id) = special {
                tokens.push(Token { id, span, rule: Rule::Special });
                continue;
            }
            for (word, rule) in split(&text[span.clone()]) {
                let word = span.start + word.start..span.start + word.end;
                self.encode_word(text, word, rule, &mut tokens);
            }
        }
        tokens
    }

    /// Cuts special tokens out: one kind after the other, the longest first, each wherever it is left.
    fn fragments(&self, text: &str, parse_special: bool) -> Vec<(Range<usize>, Option<u32>)> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![(0..text.len(), None)];
        for &id in &self.special {
            let special = self.vocab.texts[id as usize].as_str();
            if !parse_special && self.vocab.kinds[id as usize] == Kind::Control || !text.contains(special) {
                continue;
            }
            let mut cut = Vec::with_capacity(fragments.len() + 2);
            for (span, token) in fragments {
                if token.is_some() {
                    cut.push((span, token));
                    continue;
                }
                let mut start = span.start;
                for (at, found) in text[span.clone()].match_indices(special) {
                    let at = span.start + at;
                    if at > start {
                        cut.push((start..at, None));
                    }
                    start = at + found.len();
                    cut.push((at..start, Some(id)));
                }
                if start < span.end {
                    cut.push((start..span.end, None));
                }
            }
            fragments = cut;
        }
        fragments
    }

    fn encode_word(&self, text: &str, word: Range<usize>, rule: Rule, out: &mut Vec<Token>) {
        let mut start = word.start;
        for (symbol, len) in self.vocab.bpe.encode(&text.as_bytes()[word]) {
            let span = start..start + len;
            start = span.end;
            if (symbol as usize) < self.n_tokens() {
                out.push(Token { id: symbol, span, rule });
                continue;
            }
            // No token: its bytes one by one, and those without a token are lost.
            for at in span {
                if let Some(id) = self.bytes[usize::from(text.as_bytes()[at])] {
                    out.push(Token { id, span: at..at + 1, rule });
                }
            }
        }
    }

    /// The bytes that the token prints, which need not be whole characters;
    /// those of control tokens only if `special`. Empty beyond the vocabulary.
    pub fn piece(&self, id: u32, special: bool) -> Vec<u8> {
        let Some(text) = self.vocab.texts.get(id as usize) else {
            return Vec::new();
        };
        match self.vocab.kinds[id as usize] {
            Kind::Control if !special => Vec::new(),
            Kind::Control | Kind::UserDefined => text.as_bytes().to_vec(),
            Kind::Unused => Vec::new(),
            Kind::Normal => {
                let mut bytes = Vec::with_capacity(text.len());
                for c in text.chars() {
                    match alphabet::byte(c) {
                        Some(byte) => bytes.push(byte),
                        None => unknown(c, text, &mut bytes),
                    }
                }
                bytes
            }
        }
    }

    /// The bytes that `ids` print, one after the other.
    pub fn decode(&self, ids: &[u32], special: bool) -> Vec<u8> {
        ids.iter().flat_map(|id| self.piece(*id, special)).collect()
    }
}

/// What llama.cpp prints for a character outside GPT-2's alphabet.
fn unknown(c: char, text: &str, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"[UNK_BYTE_0x");
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        bytes.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(b']');
}

#[cfg(test)]
mod tests;
