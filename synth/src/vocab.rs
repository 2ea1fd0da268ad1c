//! A small byte-level BPE vocabulary, in the form of GPT-2's and Qwen's.

use qdiff_engine::tokenizer::alphabet;
use std::collections::BTreeMap;
use std::ops::Range;

/// Keys of the tokens and of their types.
pub const TOKENS: &str = "tokenizer.ggml.tokens";
pub const TYPES: &str = "tokenizer.ggml.token_type";

/// Token types of llama.cpp.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// What the merges are learnt from; every one of these becomes a token.
const WORDS: &str = " the| and| of| to| in| is| a| that| it| for| was| on| with| as| he| be| at| by\
    | this| are| from| or| an| not| you| all| one| can| will| there| what| world| model| test\
    |Hello|The|In|It|What|ing|tion|er|ed|es|ly|ent|al|system|user|assistant|\n\n|  |    ";

/// ChatML, as Qwen has it.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' \
    + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The tokens with their types, and the merges.
pub struct Vocab {
    /// The tokens in GPT-2's alphabet: bytes, merges, special tokens, padding.
    pub tokens: Vec<String>,
    /// llama.cpp's type of each token.
    pub types: Vec<i32>,
    /// The merges, "left right", by rank.
    pub merges: Vec<String>,
    /// Id of `<|endoftext|>`.
    pub endoftext: u32,
    /// Id of `<|im_end|>`.
    pub im_end: u32,
}

impl Vocab {
    /// The vocabulary without padding tokens.
    pub fn build() -> Self {
        let mut tokens: Vec<String> = alphabet::characters().map(String::from).to_vec();
        tokens.sort_unstable();
        let mut merges = Vec::new();
        for (left, right) in learn() {
            let whole = format!("{left}{right}");
            if !tokens.contains(&whole) {
                tokens.push(whole);
            }
            merges.push(format!("{left} {right}"));
        }
        let mut types = vec![NORMAL; tokens.len()];
        let endoftext = tokens.len() as u32;
        for special in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] {
            tokens.push(special.into());
            types.push(CONTROL);
        }
        Self { tokens, types, merges, endoftext, im_end: endoftext + 2 }
    }

    /// Fills up with padding tokens `[PADn]` to `count` tokens.
    pub fn pad_to(&mut self, count: usize) {
        let (tokens, types) = padding(self.tokens.len()..count);
        self.tokens.extend(tokens);
        self.types.extend(types);
    }
}

/// Padding tokens of these ids, with their types.
pub fn padding(ids: Range<usize>) -> (Vec<String>, Vec<i32>) {
    (ids.clone().map(|id| format!("[PAD{id}]")).collect(), vec![UNUSED; ids.len()])
}

/// The symbol of a byte in GPT-2's alphabet.
pub fn symbol(byte: u8) -> String {
    alphabet::characters()[usize::from(byte)].into()
}

/// Byte-pair encoding learnt from [`WORDS`], until each is one token: the most
/// frequent pair first, the first in order among equals.
fn learn() -> Vec<(String, String)> {
    let mut words: Vec<Vec<String>> = WORDS.split('|').map(|w| w.bytes().map(symbol).collect()).collect();
    let mut merges = Vec::new();
    loop {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for word in &words {
            for pair in word.windows(2) {
                *counts.entry((&pair[0], &pair[1])).or_default() += 1;
            }
        }
        let Some(best) = counts.values().max() else {
            return merges;
        };
        let (left, right) = *counts.iter().find(|(_, n)| *n == best).expect("the maximum").0;
        let (left, right) = (left.to_owned(), right.to_owned());
        for word in &mut words {
            let mut i = 0;
            while i + 1 < word.len() {
                if word[i] == left && word[i + 1] == right {
                    let tail = word.remove(i + 1);
                    word[i].push_str(&tail);
                }
                i += 1;
            }
        }
        merges.push((left, right));
    }
}
