//! Qwen2's pre-tokenizer: text into words, which byte-pair encoding then takes apart one by one.
//!
//! The model's `tokenizer.json` states a regular expression of seven alternatives, the first that matches wins:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N} |
//!  ?[^\s\p{L}\p{N}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
//! ```
//!
//! llama.cpp's hand-written matcher (`unicode_regex_split_custom_qwen2`) is what is followed where it differs from a
//! regular expression engine: letters and numbers are those of Unicode 15.1, and the case of a contraction is ASCII's
//! (no long s in `'ſ`).

use std::fmt;
use std::ops::Range;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory as _};

/// What made a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A special token, found before all rules.
    Special,
    /// `'s`, `'re` and the like.
    Contraction,
    /// Letters, with at most one other character before them.
    Letters,
    /// A single digit or other number character.
    Number,
    /// Neither space, letter nor number: punctuation, symbols, marks; at most one space before, line ends after.
    Symbols,
    /// White space up to its last line end.
    LineEnds,
    /// White space but for its last character, which belongs to what follows.
    SpacesBeforeText,
    /// White space.
    Spaces,
}

impl fmt::Display for Rule {
    /// The rule's alternative in the regular expression.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Special => "special token",
            Self::Contraction => r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            Self::Letters => r"[^\r\n\p{L}\p{N}]?\p{L}+",
            Self::Number => r"\p{N}",
            Self::Symbols => r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            Self::LineEnds => r"\s*[\r\n]+",
            Self::SpacesBeforeText => r"\s+(?!\S)",
            Self::Spaces => r"\s+",
        })
    }
}

/// The bytes of a word in a text, and the rule that made it.
pub type Word = (Range<usize>, Rule);

/// Splits a text into words, one after the other.
pub type Split = fn(&str) -> Vec<Word>;

/// Splits `text` into words, one after the other.
pub fn words(text: &str) -> impl Iterator<Item = Word> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let (len, rule) = first_word(&text[start..])?;
        let word = start..start + len;
        start = word.end;
        Some((word, rule))
    })
}

/// Length in bytes and rule of the word that `text` starts with.
fn first_word(text: &str) -> Option<(usize, Rule)> {
    let mut chars = text.chars();
    let (first, second) = (chars.next()?, chars.next());
    let head = first.len_utf8();

    if first == '\''
        && let Some(len) = contraction(&text[head..])
    {
        return Some((head + len, Rule::Contraction));
    }
    if !line_end(first) && !number(first) && (letter(first) || second.is_some_and(letter)) {
        return Some((head + run(&text[head..], letter), Rule::Letters));
    }
    if number(first) {
        return Some((head, Rule::Number));
    }
    let space = usize::from(first == ' ');
    let symbols = space + run(&text[space..], symbol);
    if symbols > space {
        let len = symbols + run(&text[symbols..], line_end);
        return Some((len, Rule::Symbols));
    }
    let spaces = run(text, char::is_whitespace);
    if let Some(end) = text[..spaces].rfind(['\r', '\n']) {
        return Some((end + 1, Rule::LineEnds));
    }
    let last = text[..spaces].chars().next_back().map_or(0, char::len_utf8);
    if spaces > last && spaces < text.len() {
        return Some((spaces - last, Rule::SpacesBeforeText));
    }
    Some((spaces, Rule::Spaces))
}

/// Bytes of the contraction that `text`, after an apostrophe, starts with.
fn contraction(text: &str) -> Option<usize> {
    let lower = |i: usize| text.as_bytes().get(i).map(u8::to_ascii_lowercase);
    match (lower(0)?, lower(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(1),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(2),
        _ => None,
    }
}

/// Bytes at the front of `text` whose characters are all `class`.
fn run(text: &str, class: impl Fn(char) -> bool) -> usize {
    text.find(|c| !class(c)).unwrap_or(text.len())
}

fn letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    c.general_category_group() == GeneralCategoryGroup::Letter
}

fn number(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    c.general_category_group() == GeneralCategoryGroup::Number
}

fn line_end(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

fn symbol(c: char) -> bool {
    !c.is_whitespace() && !letter(c) && !number(c)
}

#[cfg(test)]
mod tests {
    use super::{Rule, words};
    use proptest::prelude::*;

    fn split(text: &str) -> Vec<(&str, Rule)> {
        words(text).map(|(r, rule)| (&text[r], rule)).collect()
    }

    #[test]
    fn one_of_each() {
        use Rule::{Contraction, Letters, LineEnds, Number, Spaces, SpacesBeforeText, Symbols};
        assert_eq!(
            split("It's  a\t12 ...\r\n\n  x \n  y \u{a0} "),
            [
                ("It", Letters),
                ("'s", Contraction),
                (" ", SpacesBeforeText),
                (" a", Letters),
                ("\t", Spaces),
                ("1", Number),
                ("2", Number),
                (" ...\r\n\n", Symbols),
                (" ", SpacesBeforeText),
                (" x", Letters),
                (" \n", LineEnds),
                (" ", SpacesBeforeText),
                (" y", Letters),
                (" \u{a0} ", Spaces),
            ]
        );
    }

    #[test]
    fn contractions_are_ascii() {
        assert_eq!(split("'LL'Ve'x'ſ").len(), 4);
        assert_eq!(split("'S")[0].1, Rule::Contraction);
        assert_eq!(split("'ſ")[0].1, Rule::Letters);
    }

    proptest! {
        #[test]
        fn words_cover_the_text(text in any::<String>()) {
            let joined: String = words(&text).map(|(r, _)| &text[r]).collect();
            prop_assert_eq!(joined, text);
        }
    }
}
