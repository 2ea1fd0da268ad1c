//! Why a vocabulary or a text was refused.

/// A vocabulary that cannot be used, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabError {
    /// A key is absent or of another type.
    #[error("the GGUF has no usable `{key}` ({expected} expected); convert the model again")]
    Key {
        /// The key.
        key: &'static str,
        /// The type that it must have.
        expected: &'static str,
    },
    /// Another kind of tokenizer.
    #[error("`{key}` is `{found}`, but qdiff's own tokenizer knows {known}; llama.cpp's tokens are used unchecked")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is known.
        known: &'static str,
    },
    /// A token that is no text.
    #[error("token {0} of the GGUF is not UTF-8; convert the model again")]
    NotUtf8(usize),
    /// A token that occurs twice.
    #[error("token {0:?} occurs twice in the GGUF; convert the model again")]
    Duplicate(String),
    /// Fewer types than tokens.
    #[error("the GGUF has {types} token types for {tokens} tokens; convert the model again")]
    Types {
        /// How many types.
        types: usize,
        /// How many tokens.
        tokens: usize,
    },
    /// A token of type byte, which byte-level BPE has no use for.
    #[error("token {0} of the GGUF is of type byte, which `gpt2` vocabularies have not; convert the model again")]
    ByteToken(usize),
}

/// Bytes that are no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} is not UTF-8; save the text as UTF-8")]
pub struct TextError {
    /// The offset of the first byte that is not UTF-8.
    pub at: usize,
}
