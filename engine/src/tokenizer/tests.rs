//! Vocabularies that are refused, and why. That the tokens are llama.cpp's is
//! tested where llama.cpp is: `tests/tests/suite/tokenizer_vs_llama.rs`.

use super::{Rule, Tokenizer};
use crate::gguf::Gguf;
use crate::gguf::tests::writer::File;

fn vocabulary(tokens: &[&[u8]], types: &[i32], merges: &[&[u8]]) -> Gguf {
    let file = File::new(0, 5)
        .kv_text("tokenizer.ggml.model", "gpt2")
        .kv_text("tokenizer.ggml.pre", "qwen2")
        .kv_texts("tokenizer.ggml.tokens", tokens)
        .kv_texts("tokenizer.ggml.merges", merges);
    let types_of = file.str(b"tokenizer.ggml.token_type").u32(9).u32(5).i64(types.len() as i64);
    types.iter().fold(types_of, |file, ty| file.raw(&ty.to_le_bytes())).read().expect("a valid file")
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
    let text = |file: File| file.kv_text("tokenizer.ggml.pre", "qwen2").kv_text("tokenizer.ggml.tokens", "a");
    for (gguf, says) in [
        (vocabulary(&[b"a", b"a"], &[1, 1], &[]), "token \"a\" occurs twice"),
        (vocabulary(&[b"a", b"b"], &[1], &[]), "1 token types for 2 tokens"),
        (vocabulary(&[b"a", b"\xFF"], &[1, 1], &[]), "token 1 of the GGUF is not UTF-8"),
        (vocabulary(&[b"a", b"<0x00>"], &[1, 6], &[]), "token 1 of the GGUF is of type byte"),
        (File::new(0, 1).kv_text("tokenizer.ggml.model", "llama").read().unwrap(), "is `llama`, but"),
        (
            text(File::new(0, 3).kv_text("tokenizer.ggml.model", "gpt2")).read().unwrap(),
            "no usable `tokenizer.ggml.tokens`",
        ),
    ] {
        let problem = Tokenizer::new(&gguf).err().expect("accepted").to_string();
        assert!(problem.contains(says), "{problem:?} does not say {says:?}");
    }
}
