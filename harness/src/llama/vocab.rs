//! Tokens and chat template, for now from llama.cpp alone.

use super::Model;
use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;
use std::ffi::CString;

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

    /// Splits `text` into tokens; special tokens in it are recognised.
    ///
    /// # Errors
    /// If llama.cpp refuses the text.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = vec![0; text.len() + 8];
        // SAFETY: both lengths are passed along.
        let n = unsafe {
            sys::llama_tokenize(
                self.vocab(),
                text.as_ptr().cast(),
                i32::try_from(text.len())?,
                tokens.as_mut_ptr(),
                i32::try_from(tokens.len())?,
                true,
                true,
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
        let mut buffer = vec![0u8; 256];
        // SAFETY: the buffer's length is passed along; an id beyond the
        // vocabulary is refused here, as llama.cpp would abort.
        let n = unsafe {
            if token as usize >= self.n_tokens() {
                return format!("<{token}>");
            }
            sys::llama_token_to_piece(
                self.vocab(),
                token as i32,
                buffer.as_mut_ptr().cast(),
                buffer.len() as i32,
                0,
                true,
            )
        };
        buffer.truncate(n.max(0) as usize);
        String::from_utf8_lossy(&buffer).into_owned()
    }

    /// `text` as a bare user turn in ChatML, without a system prompt, ready
    /// for the assistant's answer.
    ///
    /// # Errors
    /// If llama.cpp cannot render the turn.
    pub fn user_turn(&self, text: &str) -> Result<String> {
        let (role, content) = (CString::new("user")?, CString::new(text)?);
        let template = CString::new("chatml")?;
        let message = sys::llama_chat_message {
            role: role.as_ptr(),
            content: content.as_ptr(),
        };
        let mut buffer = vec![0u8; text.len() * 2 + 256];
        // SAFETY: all strings live through the call; the length is passed along.
        let n = unsafe {
            sys::llama_chat_apply_template(
                template.as_ptr(),
                &message,
                1,
                true,
                buffer.as_mut_ptr().cast(),
                i32::try_from(buffer.len())?,
            )
        };
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        if n > buffer.len() {
            bail!("llama.cpp cannot render the chat template");
        }
        buffer.truncate(n);
        Ok(String::from_utf8(buffer)?)
    }
}
