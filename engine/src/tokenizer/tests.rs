//! Vocabularies that are refused, and why. That the tokens are llama.cpp's is
//! tested where llama.cpp is: `tests/tests/suite/tokenizer_vs_llama.rs`.

use super::{Rule, Tokenizer, VocabError};
use crate::gguf::Gguf;

/// The bytes of a GGUF without tensors.
fn gguf(entries: &[(&str, Entry)]) -> Gguf {
    let string = |out: &mut Vec<u8>, s: &[u8]| {
        out.extend((s.len() as u64).to_le_bytes());
        out.extend(s);
    };
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    for (key, entry) in entries {
        string(&mut out, key.as_bytes());
        match entry {
            Entry::Text(text) => {
                out.extend(8u32.to_le_bytes());
                string(&mut out, text.as_bytes());
            }
            Entry::Texts(list) => {
                out.extend(9u32.to_le_bytes());
                out.extend(8u32.to_le_bytes());
                out.extend((list.len() as u64).to_le_bytes());
                for text in list {
                    string(&mut out, text);
                }
            }
            Entry::Types(list) => {
                out.extend(9u32.to_le_bytes());
                out.extend(5u32.to_le_bytes());
                out.extend((list.len() as u64).to_le_bytes());
                for n in list {
                    out.extend(n.to_le_bytes());
                }
            }
        }
    }
    Gguf::from_bytes(out).expect("a valid file")
}

enum Entry {
    Text(&'static str),
    Texts(Vec<&'static [u8]>),
    Types(Vec<i32>),
}

fn vocabulary(tokens: &[&'static [u8]], types: &[i32], merges: &[&'static [u8]]) -> Gguf {
    gguf(&[
        ("tokenizer.ggml.model", Entry::Text("gpt2")),
        ("tokenizer.ggml.pre", Entry::Text("qwen2")),
        ("tokenizer.ggml.tokens", Entry::Texts(tokens.to_vec())),
        ("tokenizer.ggml.token_type", Entry::Types(types.to_vec())),
        ("tokenizer.ggml.merges", Entry::Texts(merges.to_vec())),
    ])
}

#[test]
fn merges_by_rank_and_strings_that_are_no_token() {
    // "abc" is made by merges but is no token; `d` has none at all.
    let tokens: [&[u8]; 5] = [b"a", b"b", b"c", b"ab", b"<|im_end|>"];
    let gguf = vocabulary(&tokens, &[1, 1, 1, 1, 1], &[b"b c", b"a b", b"a bc"]);
    let tokenizer = Tokenizer::new(&gguf).unwrap();
    assert_eq!(tokenizer.encode("ab", true), [3]);
    assert_eq!(tokenizer.encode("abc", true), [0, 1, 2]);
    assert_eq!(tokenizer.encode("adb", true), [0, 1]);
    assert_eq!(tokenizer.encode("ab<|im_end|>", true), [3, 4]);
    assert_eq!(tokenizer.explain("<|im_end|>", true)[0].rule, Rule::Special);
    assert!(tokenizer.ends_generation(4));
    assert!(tokenizer.piece(4, false).is_empty());
    assert!(tokenizer.piece(99, true).is_empty());
    assert_eq!(tokenizer.encode_bytes(b"ab\xFF", true).unwrap_err().at, 2);
}

#[test]
fn broken_vocabularies_are_refused() {
    let problem = |gguf: &Gguf| Tokenizer::new(gguf).err();
    assert_eq!(problem(&vocabulary(&[b"a", b"a"], &[1, 1], &[])), Some(VocabError::Duplicate("a".into())));
    assert_eq!(problem(&vocabulary(&[b"a", b"b"], &[1], &[])), Some(VocabError::Types { types: 1, tokens: 2 }));
    assert_eq!(problem(&vocabulary(&[b"a", b"\xFF"], &[1, 1], &[])), Some(VocabError::NotUtf8(1)));
    assert_eq!(problem(&vocabulary(&[b"a", b"<0x00>"], &[1, 6], &[])), Some(VocabError::ByteToken(1)));
    assert!(matches!(
        problem(&gguf(&[("tokenizer.ggml.model", Entry::Text("llama"))])),
        Some(VocabError::Unsupported { .. })
    ));
    assert!(matches!(
        problem(&gguf(&[
            ("tokenizer.ggml.model", Entry::Text("gpt2")),
            ("tokenizer.ggml.pre", Entry::Text("qwen2")),
            ("tokenizer.ggml.tokens", Entry::Text("a")),
        ])),
        Some(VocabError::Key { .. })
    ));
}
