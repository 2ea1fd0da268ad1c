//! Tokens as llama.cpp makes them.

use crate::model::Model;
use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;
use qdiff_capture::supervisor;

impl Model {
    fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is loaded; the vocabulary lives as long as it.
        unsafe { sys::llama_model_get_vocab(self.raw) }
    }

    pub(crate) fn tokens(&self) -> usize {
        // SAFETY: as above.
        unsafe { sys::llama_vocab_n_tokens(self.vocab()) as usize }
    }

    pub(crate) fn split(&self, text: &[u8], parse_special: bool) -> Result<Vec<u32>> {
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

    pub(crate) fn bytes_of(&self, token: u32, special: bool) -> Option<Vec<u8>> {
        // llama.cpp would abort.
        if token as usize >= self.tokens() {
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

    pub(crate) fn ends(&self, token: u32) -> bool {
        // SAFETY: the id is in range, as llama.cpp would abort on others.
        (token as usize) < self.tokens() && unsafe { sys::llama_vocab_is_eog(self.vocab(), token as i32) }
    }
}
