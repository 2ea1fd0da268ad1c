//! The engine's tokenizer against `llama_tokenize`, token for token.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use qdiff::llama::{Load, Model};
use qdiff_engine::gguf::{Gguf, Value};
use qdiff_engine::tokenizer::Tokenizer;
use qdiff_engine::tokenizer::chat::{Conversation, Message, chatml, render};
use qdiff_tests::synth::{Kv, symbol};
use qdiff_tests::{empty, real_model};
use std::path::Path;

/// How many texts the property test compares.
const CASES: u32 = 24_000;

struct Both {
    ours: Tokenizer,
    theirs: Model,
}

impl Both {
    fn open(path: &Path) -> Self {
        let gguf = Gguf::open(path).expect("the file is a GGUF");
        Self {
            ours: Tokenizer::new(&gguf).expect("the vocabulary is usable"),
            theirs: Model::load(path, Load::Vocabulary).expect("llama.cpp loads it"),
        }
    }

    fn real() -> Self {
        Self::open(&real_model())
    }

    fn check(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TestCaseError> {
        let ours = self.ours.encode(text, parse_special);
        let theirs = self.theirs.tokenize(text.as_bytes(), parse_special).expect("llama.cpp takes any text");
        prop_assert_eq!(&ours, &theirs, "{:?}, special tokens {}", text, parse_special);
        Ok(ours)
    }
}

/// Text that is hard to split: pieces of many kinds, side by side.
fn hard_text() -> impl Strategy<Value = String> {
    let spaces = " \t\n\r\u{b}\u{c}\u{85}\u{a0}\u{1680}\u{2003}\u{2028}\u{2029}\u{202f}\u{3000}\u{200b}\u{feff}";
    let digits = "0189²½٣९৪൫௧Ⅷ㊿〇𝟘𝟿𐒠①\u{16e80}";
    let marks = "\u{300}\u{301}\u{64b}\u{93e}\u{940}\u{e31}\u{20dd}\u{fe0f}\u{1f3fd}\u{200d}";
    let letters = "aZéßſİıKÅǅʰªºжЯαΩאبकกあア漢한𠀀𝒳Ⓐ\u{10d40}\u{a7cb}\u{2ebf0}";
    let of = |chars: &'static str, n| {
        let all: Vec<char> = chars.chars().collect();
        prop::collection::vec(select(all), 1..n).prop_map(String::from_iter)
    };
    // Each list is split at a character that no text in it has.
    let listed = |all: &'static str| select(all.split('¦').map(str::to_owned).collect::<Vec<_>>());
    let special = listed(
        "<|im_start|>¦<|im_end|>¦<|endoftext|>¦<|fim_prefix|>¦<|file_sep|>¦<|repo_name|>¦<tool_call>¦\
         </tool_call>¦<|vision_start|>¦[PAD151935]¦<|im_start¦|im_end|>¦<|im_<|im_end|>end|>¦<<|im_end|>>¦\
         <tool_call¦Ġ¦Ċ¦<0x0A>",
    );
    let words = listed(
        "'s¦'S¦'ll¦'Ve¦'RE¦'re¦'ſ¦'¦''¦don't¦HE'D¦l'l¦hello¦ world¦ 1234¦...¦ ...¦!\n¦?!\r\n\r\n¦::¦->¦=>¦\
         /*¦*/¦https://a.b/c?d=e#f¦fn main() {\n    let x = 1;\n}¦\t\tif (a) {\r\n¦C++¦_id¦snake_case¦\
         CamelCase¦0x1F¦3.14e-10¦你好，世界。¦こんにちは¦👩‍🔬🇳🇿¦é¦e\u{301}¦ﷺ¦￿¦\u{10ffff}¦\0¦\u{1}¦\u{7f}¦\u{ad}¦\
         \u{e000}¦        ¦\n\n\n¦ \n ¦  x¦\u{3000}\u{3000}x",
    );
    let piece = prop_oneof![
        6 => words,
        3 => special,
        3 => of(spaces, 6),
        3 => of(letters, 8),
        2 => of(digits, 5),
        2 => of(marks, 4),
        2 => "[ -~]{1,12}",
        2 => prop::collection::vec(any::<char>(), 1..6).prop_map(String::from_iter),
        1 => ".{1,8}",
        1 => "[a-z]{1,60}",
    ];
    prop::collection::vec(piece, 0..10).prop_map(|p| p.concat())
}

#[test]
fn random_texts() {
    let both = Both::real();
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(hard_text(), any::<bool>()), |(text, special)| {
            let tokens = both.check(&text, special)?;
            // The tokens print the text again, with its special parts.
            prop_assert_eq!(both.ours.decode(&tokens, true), text.as_bytes());
            let explained = both.ours.explain(&text, special);
            let spans: Vec<u8> = explained.iter().flat_map(|t| text.as_bytes()[t.span.clone()].to_vec()).collect();
            prop_assert_eq!(spans, text.as_bytes());
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn hard_texts() {
    let both = Both::real();
    let long_word = "ab".repeat(5000);
    let long_space = " ".repeat(5000);
    let many = "<|im_start|>".repeat(500);
    let texts = "¦ ¦\n¦ \n¦\n ¦\r\n\r\n¦  leading and trailing  ¦a  b   c    d¦\
                 tabs\t\tand\u{a0}nbsp\u{85}nel\u{2028}ls\u{2029}ps¦it's I'LL we'Ve 'tis 's's¦1234567890 ١٢٣ ½⅓ Ⅻ¦\
                 e\u{301}\u{301}a\u{300}¦\u{301}starts with a mark¦ \u{301}mark after a space¦!?\n\n!?\r\n!?¦\
                 <|im_start|>user\nHi<|im_end|>\n¦<|im_start|><|im_start|>¦x<|im_end|¦\0\0\0¦\
                 \u{10ffff}\u{e000}\u{fffd}";
    for text in texts.split('¦').chain([long_word.as_str(), &long_space, &many]) {
        for special in [false, true] {
            both.check(text, special).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    let refused = both.ours.encode_bytes(b"ok \xF0\x9F\xA6", true);
    assert_eq!(refused.unwrap_err().at, 3);
}

#[test]
fn every_token_prints_the_same() {
    let both = Both::real();
    assert_eq!(both.ours.n_tokens(), both.theirs.n_tokens());
    for id in 0..both.ours.n_tokens() as u32 {
        for special in [false, true] {
            let theirs = both.theirs.piece_bytes(id, special);
            assert_eq!(Some(both.ours.piece(id, special)), theirs, "token {id}");
        }
        assert_eq!(both.ours.ends_generation(id), both.theirs.ends_generation(id), "token {id}");
    }
}

/// The real model's own chat template, which adds a system prompt where there
/// is none; the expected texts are what Python's Jinja2 makes of it.
#[test]
fn the_real_chat_template() {
    let gguf = Gguf::open(&real_model()).expect("the file is a GGUF");
    let source = gguf.get("tokenizer.chat_template").and_then(Value::as_str);
    let source = source.expect("the model has a template");
    let say = |messages: Vec<Message>| {
        let conversation = Conversation { messages, ..Conversation::default() };
        render(source, &conversation).expect("it renders")
    };
    let turn = "<|im_start|>user\nHi <b>\n<|im_end|>\n<|im_start|>assistant\n";
    let user = Message::new("user", "Hi <b>\n");
    assert_eq!(
        say(vec![user.clone()]),
        format!(
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n{turn}"
        )
    );
    let system = Message::new("system", "Be brief");
    assert_eq!(say(vec![system.clone(), user.clone()]), format!("<|im_start|>system\nBe brief<|im_end|>\n{turn}"));
    assert_eq!(say(vec![system.clone(), user.clone()]), chatml(&[system, user]));
}

/// Splits that the real vocabulary would hide, as it has no token across them:
/// here a letter, a space, a digit and a full stop each merge with the
/// next byte, so that each character's class shows in the tokens.
#[test]
fn class_of_every_character() {
    let folder = empty();
    let path = folder.join("classes.gguf");
    write_vocabulary(&path);
    let both = Both::open(&path);
    let assigned = (0..0x3_3480).chain(0xE_0000..0xE_0200);
    let all: Vec<char> = assigned.filter_map(char::from_u32).collect();
    for chars in all.chunks(4096) {
        // A line end behind each context keeps them apart.
        let text: String = chars.iter().map(|c| format!("a{c}a{c}. {c}\n.{c}1{c}\n \n")).collect();
        if both.check(&text, true).is_err() {
            let culprit = chars.iter().find(|c| {
                let text = format!("a{c}a{c}. {c}\n.{c}1{c}\n \n");
                both.check(&text, true).is_err()
            });
            panic!("{culprit:?} is of another class in llama.cpp");
        }
    }
}

/// Bytes, and merges of four of them with every byte.
fn write_vocabulary(path: &Path) {
    let mut tokens: Vec<String> = (0..=255).map(symbol).collect();
    let mut merges = Vec::new();
    for first in [b'a', b' ', b'1', b'.'].map(symbol) {
        for second in (0..=255).map(symbol) {
            tokens.push(format!("{first}{second}"));
            merges.push(format!("{first} {second}"));
        }
    }
    let mut kv = Kv::default();
    kv.string("general.architecture", "qwen2");
    kv.string("tokenizer.ggml.model", "gpt2");
    kv.string("tokenizer.ggml.pre", "qwen2");
    kv.strings("tokenizer.ggml.tokens", &tokens);
    kv.strings("tokenizer.ggml.merges", &merges);
    kv.i32s("tokenizer.ggml.token_type", &vec![1; tokens.len()]);
    std::fs::write(path, kv.to_bytes()).expect("a file");
}
