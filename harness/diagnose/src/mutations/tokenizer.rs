//! Faults before the first stage: the text becomes other tokens.

use super::{Mutation, Splitting};
use qdiff_engine::tokenizer::chat::{Message, chatml};
use qdiff_engine::tokenizer::{Rule, Word, words};

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "chat-template-missing",
        story: "the chat template is left out: the model is given the bare text of the turn",
        seen: "fluent text that goes on with the prompt instead of answering it; every stage matches, on fewer tokens",
        remedy: "render tokenizer.chat_template, and tokenise what it gives",
        encode: Some(|tokenizer, prompt| {
            let bare = prompt.message.as_deref()?;
            Some(tokenizer.encode(bare, true))
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "special-tokens-as-text",
        story: "special tokens in the prompt are taken for text, and cut into pieces",
        seen: "fluent text that is off the prompt and repeats the marks of its turns; every stage matches, on more tokens",
        remedy: "parse special tokens when tokenising a rendered template",
        encode: Some(|tokenizer, prompt| Some(tokenizer.encode(&prompt.text, false))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "system-prompt-missing",
        story: "the system turn is left out, be it a given one or the template's own",
        seen: "answers in another tone or language; every stage matches, on fewer tokens",
        remedy: "render tokenizer.chat_template, which adds a system turn where none is given",
        encode: Some(|tokenizer, prompt| {
            let turn = Message::new("user", prompt.message.as_deref()?);
            Some(tokenizer.encode(&chatml(&[turn]), true))
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "bos-added",
        story: "a token that begins a text is put before the prompt, which this vocabulary does not ask for",
        seen: "tokenizer.ggml.add_bos_token is false or absent; every stage matches, one position later",
        remedy: "add the token only if tokenizer.ggml.add_bos_token is true",
        encode: Some(|tokenizer, prompt| {
            let mut ids = tokenizer.encode(&prompt.text, true);
            let bos = tokenizer.bos().filter(|bos| ids.first() != Some(bos))?;
            ids.insert(0, bos);
            Some(ids)
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "digits-together",
        story: "the digits of a number are one word, where this vocabulary has a word for each",
        seen: "numbers of several digits become other tokens, if the vocabulary has tokens of several digits",
        remedy: r"split at every \p{N}, as the pre-tokenizer of tokenizer.ggml.pre does",
        splitting: Some(Splitting { split: digits_together, shown_by: "1234567890 100 2000 2024 00 99" }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "spaces-together",
        story: "a run of white space is all one word; its last character should begin the next word",
        seen: "indented text and double spaces become other tokens; prose does not",
        remedy: r"keep the lookahead of the pre-tokenizer's rule \s+(?!\S)",
        splitting: Some(Splitting { split: spaces_together, shown_by: "a  the  in\n    return  x" }),
        ..Mutation::PLAIN
    },
];

fn digits_together(text: &str) -> Vec<Word> {
    let mut all: Vec<Word> = Vec::new();
    for (word, rule) in words(text) {
        match all.last_mut() {
            Some((number, Rule::Number)) if rule == Rule::Number => number.end = word.end,
            _ => all.push((word, rule)),
        }
    }
    all
}

fn spaces_together(text: &str) -> Vec<Word> {
    let mut all: Vec<Word> = Vec::new();
    for (mut word, rule) in words(text) {
        if let Some((spaces, Rule::SpacesBeforeText)) = all.last_mut() {
            word.start += text[word.clone()].chars().next().map_or(0, char::len_utf8);
            spaces.end = word.start;
        }
        if !word.is_empty() {
            all.push((word, rule));
        }
    }
    all
}
