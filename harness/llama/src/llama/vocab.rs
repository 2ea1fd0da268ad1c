//! Tokens as llama.cpp makes them.

use super::Model;
use crate::supervisor;
use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;

impl Model {
    fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is loaded; the vocabulary lives as long as it.
        unsafe { sys::llama_model_get_vocab(self.raw) }
    }

    /// Number of tokens, padding included.
    pub fn n_tokens(&self) -> usize {
        // SAFETY: as above.
        unsafe { sys::llama_vocab_n_tokens(self.vocab()) as usize }
    }

    /// Splits text that may be none into tokens; control tokens in it are recognised only if `parse_special`.
    ///
    /// # Errors
    /// If llama.cpp refuses the text.
    pub fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<u32>> {
        let mut tokens = vec![0; text.len() + 8];
        let _doing = supervisor::doing(|| "llama.cpp was splitting the prompt into tokens".to_owned());
        // SAFETY: both lengths are passed along.
        let n = unsafe {
            sys::llama_tokenize(
                self.vocab(),
                text.as_ptr().cast(),
                i32::try_from(text.len())?,
                tokens.as_mut_ptr(),
                i32::try_from(tokens.len())?,
                true,
                parse_special,
            )
        };
        if n < 0 {
            bail!("llama.cpp cannot tokenise the prompt (code {n})");
        }
        tokens.truncate(n as usize);
        Ok(tokens.into_iter().map(|t| t as u32).collect())
    }

    /// The text of one token, special tokens spelled out.
    pub fn piece(&self, token: u32) -> String {
        match self.piece_bytes(token, true) {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => format!("<{token}>"),
        }
    }

    /// The bytes that a token prints, those of control tokens only if `special`; `None` beyond the vocabulary.
    pub fn piece_bytes(&self, token: u32, special: bool) -> Option<Vec<u8>> {
        // llama.cpp would abort.
        if token as usize >= self.n_tokens() {
            return None;
        }
        let mut buffer = vec![0u8; 64];
        loop {
            // SAFETY: the buffer's length is passed along, the id is in range.
            let n = unsafe {
                sys::llama_token_to_piece(
                    self.vocab(),
                    token as i32,
                    buffer.as_mut_ptr().cast(),
                    buffer.len() as i32,
                    0,
                    special,
                )
            };
            if let Ok(n) = usize::try_from(n) {
                buffer.truncate(n);
                return Some(buffer);
            }
            buffer.resize(n.unsigned_abs() as usize, 0);
        }
    }

    /// Whether the token ends a generation.
    pub fn ends_generation(&self, token: u32) -> bool {
        // SAFETY: the id is in range, as llama.cpp would abort on others.
        (token as usize) < self.n_tokens() && unsafe { sys::llama_vocab_is_eog(self.vocab(), token as i32) }
    }
}
