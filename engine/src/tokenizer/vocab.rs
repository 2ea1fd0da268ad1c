//! The vocabulary of a GGUF: its tokens, their kinds, and the merges.
//!
//! Follows `llama_vocab::impl::load` of the pinned llama.cpp, which corrects the kinds of some tokens by their text.

use super::alphabet;
use super::bpe::{Bpe, Symbol};
use crate::gguf::{Gguf, StringArray, Value};
use std::collections::{BTreeSet, HashMap};

/// A vocabulary that cannot be used: why, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct VocabError(pub(super) String);

impl VocabError {
    /// For this reason.
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text in GPT-2's alphabet.
    Normal,
    /// A control token, or the unknown token: recognised in text only where
    /// special tokens are, and printed only if asked for.
    Control,
    /// A special token that is recognised in any text.
    UserDefined,
    /// Padding: never recognised, printed as nothing.
    Unused,
}

/// Keys of the tokens and of their types.
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";

/// Pre-tokenizers that split as Qwen2's.
const PRE: &[&str] = &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2"];

/// Texts that end a generation, with any type; in this list and those below, spaces part them.
const END_OF_GENERATION: &str = "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> \
    <|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> \
    <|tool_response> <｜end▁of▁sentence｜> [e~[";

/// Tokens for filling in the middle of a text: the metadata keys that may name
/// one, its usual texts, and whether it ends a generation.
const FILL_IN_MIDDLE: &[(&[&str], &str, bool)] = &[
    (
        &["fim_pre_token_id", "prefix_token_id"],
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
        false,
    ),
    (
        &["fim_suf_token_id", "suffix_token_id"],
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
        false,
    ),
    (
        &["fim_mid_token_id", "middle_token_id"],
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
        false,
    ),
    (&["fim_pad_token_id"], "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]", true),
    (&["fim_rep_token_id"], "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>", true),
    (&["fim_sep_token_id"], "<|file_sep|>", true),
];

/// Texts that llama.cpp recognises in any text, with any type.
const ALWAYS_RECOGNISED: &str = "<|channel|> <|message|> <|start|> <|constrain|>";

/// What llama.cpp takes for a `gpt2` vocabulary's first and last token where the metadata names none.
const DEFAULT_ID: u32 = 11;

/// All that is known of the tokens.
pub(super) struct Vocab {
    pub(super) texts: Vec<String>,
    pub(super) kinds: Vec<Kind>,
    pub(super) ends: BTreeSet<u32>,
    pub(super) unsettled_ends: BTreeSet<u32>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) bpe: Bpe,
}

impl Vocab {
    pub(super) fn read(gguf: &Gguf) -> Result<Self, VocabError> {
        expect(gguf, "tokenizer.ggml.model", &["gpt2"], "`gpt2`")?;
        expect(gguf, "tokenizer.ggml.pre", PRE, "`qwen2`")?;
        let texts = texts(gguf)?;
        let ids = ids(&texts)?;
        let mut kinds = kinds(gguf, texts.len())?;
        let fallback = (DEFAULT_ID as usize) < texts.len();
        let named = |key| id(gguf, key, &texts).or(fallback.then_some(DEFAULT_ID));
        let (bos, eos) = (named("bos_token_id"), named("eos_token_id"));
        let (ends, unsettled_ends) = correct_kinds(gguf, &texts, &ids, &mut kinds, eos);
        let flag = |key| gguf.get(key).and_then(Value::as_bool).unwrap_or(false);
        let bpe = bpe(gguf, &ids, texts.len())?;
        Ok(Self {
            kinds,
            ends,
            unsettled_ends,
            bos,
            eos,
            add_bos: flag("tokenizer.ggml.add_bos_token"),
            add_eos: flag("tokenizer.ggml.add_eos_token"),
            bpe,
            texts,
        })
    }
}

fn expect(gguf: &Gguf, key: &'static str, values: &[&str], known: &'static str) -> Result<(), VocabError> {
    let found = gguf.get(key).and_then(Value::as_str).unwrap_or("(none)");
    if values.contains(&found) {
        return Ok(());
    }
    Err(VocabError(format!(
        "`{key}` is `{found}`, but qdiff's own tokenizer knows {known}; llama.cpp's tokens are used unchecked"
    )))
}

/// What `read` gives of the value of `key`.
pub(super) fn list<'a, T: ?Sized>(
    gguf: &'a Gguf, key: &str, expected: &str, read: fn(&'a Value) -> Option<&'a T>,
) -> Result<&'a T, VocabError> {
    gguf.get(key).and_then(read).ok_or_else(|| {
        VocabError(format!("the GGUF has no usable `{key}` ({expected} expected); convert the model again"))
    })
}

pub(super) fn strings<'a>(gguf: &'a Gguf, key: &str) -> Result<&'a StringArray, VocabError> {
    list(gguf, key, "an array of strings", Value::as_strings)
}

/// The merges, as they are written.
pub(super) fn merges(gguf: &Gguf) -> Result<&StringArray, VocabError> {
    strings(gguf, "tokenizer.ggml.merges")
}

fn texts(gguf: &Gguf) -> Result<Vec<String>, VocabError> {
    strings(gguf, TOKENS)?
        .iter()
        .enumerate()
        .map(|(i, bytes)| match std::str::from_utf8(bytes) {
            Ok("") => Ok(format!("[EMPTY_{i}]")),
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(VocabError(format!("token {i} of the GGUF is not UTF-8; convert the model again"))),
        })
        .collect()
}

fn ids(texts: &[String]) -> Result<HashMap<&str, u32>, VocabError> {
    let mut ids = HashMap::with_capacity(texts.len());
    for (i, text) in texts.iter().enumerate() {
        if ids.insert(text.as_str(), i as u32).is_some() {
            return Err(VocabError(format!("token {text:?} occurs twice in the GGUF; convert the model again")));
        }
    }
    Ok(ids)
}

fn kinds(gguf: &Gguf, tokens: usize) -> Result<Vec<Kind>, VocabError> {
    if gguf.get(TOKEN_TYPES).is_none() {
        return Ok(vec![Kind::Normal; tokens]);
    }
    let types = list(gguf, TOKEN_TYPES, "an array of i32", Value::as_i32_array)?;
    if types.len() < tokens {
        let types = types.len();
        return Err(VocabError(format!(
            "the GGUF has {types} token types for {tokens} tokens; convert the model again"
        )));
    }
    let kind = |(i, t): (usize, &i32)| match t {
        1 => Ok(Kind::Normal),
        2 | 3 => Ok(Kind::Control),
        4 => Ok(Kind::UserDefined),
        6 => Err(VocabError(format!(
            "token {i} of the GGUF is of type byte, which `gpt2` vocabularies have not; convert the model again"
        ))),
        _ => Ok(Kind::Unused),
    };
    types[..tokens].iter().enumerate().map(kind).collect()
}

/// A token that the metadata names, if it exists.
fn id(gguf: &Gguf, key: &str, texts: &[String]) -> Option<u32> {
    let id = gguf.get(&format!("tokenizer.ggml.{key}"))?.as_u64()?;
    u32::try_from(id).ok().filter(|i| (*i as usize) < texts.len())
}

/// Sets of ends that never stand together: where all of the first are ends, the second is none, and of this kind.
const NOT_AN_END: &[(&[&str], &str, Kind)] = &[
    (&["<|return|>", "<|call|>"], "<|end|>", Kind::UserDefined),
    (&["<|return|>", "<|calls|>"], "<|end|>", Kind::UserDefined),
    (&["<|flush|>", "<|call|>"], "<|end|>", Kind::UserDefined),
    (&["<|flush|>", "<|calls|>"], "<|end|>", Kind::UserDefined),
    (&["<|tool_response>"], "</s>", Kind::Normal),
    (&["<|plamo:eos|>"], "</s>", Kind::Normal),
];

/// Makes tokens special whose text says so; gives those that end a generation, and those of which only one does.
fn correct_kinds(
    gguf: &Gguf, texts: &[String], ids: &HashMap<&str, u32>, kinds: &mut [Kind], eos: Option<u32>,
) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let (mut ends, mut unsettled) = (BTreeSet::new(), BTreeSet::new());
    for (keys, names, end) in FILL_IN_MIDDLE {
        // The second key is the older one, and llama.cpp reads it last.
        let named = keys.iter().rev().find_map(|key| id(gguf, key, texts));
        let found = named.or_else(|| {
            // llama.cpp takes whichever its hash map yields first.
            let known: BTreeSet<u32> = names.split(' ').filter_map(|n| ids.get(n)).copied().collect();
            let id = *known.first()?;
            kinds[id as usize] = Kind::Control;
            if *end && known.len() > 1 {
                unsettled.extend(known);
            }
            Some(id)
        });
        ends.extend(found.filter(|_| *end));
    }
    for id in END_OF_GENERATION.split(' ').filter_map(|t| ids.get(t)) {
        kinds[*id as usize] = Kind::Control;
        ends.insert(*id);
    }
    for id in ALWAYS_RECOGNISED.split(' ').filter_map(|t| ids.get(t)) {
        kinds[*id as usize] = Kind::UserDefined;
    }
    ends.extend(eos);
    ends.extend(["eot_token_id", "eom_token_id"].iter().filter_map(|key| id(gguf, key, texts)));
    for (together, text, kind) in NOT_AN_END {
        let is_end = |text: &&str| ids.get(text).copied().filter(|id| ends.contains(id));
        if let (true, Some(id)) = (together.iter().all(|text| is_end(text).is_some()), is_end(text)) {
            ends.remove(&id);
            kinds[id as usize] = *kind;
        }
    }
    (ends, unsettled)
}

fn bpe(gguf: &Gguf, ids: &HashMap<&str, u32>, tokens: usize) -> Result<Bpe, VocabError> {
    let list = merges(gguf)?;
    // Merges may name strings that are no token; these are numbered on.
    let mut extra: HashMap<String, Symbol> = HashMap::new();
    let mut symbol = |text: &str| {
        if let Some(id) = ids.get(text) {
            return *id;
        }
        let next = (tokens + extra.len()) as Symbol;
        *extra.entry(text.to_owned()).or_insert(next)
    };
    let bytes = alphabet::characters().map(|c| symbol(c.encode_utf8(&mut [0; 4])));
    let mut ranks = HashMap::with_capacity(list.len());
    let mut whole = String::new();
    for (rank, merge) in list.iter().enumerate() {
        // Any bytes may occur here; bytes that are no text match none.
        let Ok(merge) = std::str::from_utf8(merge) else {
            continue;
        };
        // The first character belongs to the left half even if it is a space.
        let Some(space) = merge.bytes().skip(1).position(|b| b == b' ') else {
            continue;
        };
        let (left, right) = (&merge[..=space], &merge[space + 2..]);
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        let pair = (symbol(left), symbol(right));
        let merged = symbol(&whole);
        ranks.entry(pair).or_insert((rank as u32, merged));
    }
    Ok(Bpe { bytes, merges: ranks })
}
