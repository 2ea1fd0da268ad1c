//! A context of llama.cpp as its users have it: no taps, flash attention, KV cache in f16. For measuring speed.

use super::Model;
use crate::supervisor;
use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;
use std::sync::Arc;

/// A context without taps.
pub struct Plain {
    ctx: *mut sys::llama_context,
    position: usize,
    _model: Arc<Model>,
}

impl Plain {
    /// A context for `n_ctx` tokens, at most `n_step` of them in a step.
    ///
    /// # Errors
    /// If llama.cpp cannot make it.
    pub fn new(model: &Arc<Model>, n_ctx: usize, n_step: usize) -> Result<Self> {
        let _doing = supervisor::doing(|| "llama.cpp was making a context".to_owned());
        // SAFETY: plain C calls; the result is checked.
        let ctx = unsafe {
            let mut params = sys::llama_context_default_params();
            params.n_ctx = n_ctx.next_multiple_of(256) as u32;
            params.n_batch = n_step as u32;
            params.n_ubatch = n_step as u32;
            params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_ENABLED;
            sys::llama_init_from_model(model.raw, params)
        };
        if ctx.is_null() {
            bail!("llama.cpp cannot make a context of {n_ctx} tokens; run again with -v to see why");
        }
        Ok(Self { ctx, position: 0, _model: Arc::clone(model) })
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        // SAFETY: the context's own memory.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.ctx), false) };
        self.position = 0;
    }

    /// Runs `tokens` at the next positions, for the logits of the last, and waits for them.
    ///
    /// # Errors
    /// If llama.cpp fails.
    pub fn step(&mut self, tokens: &[u32]) -> Result<()> {
        let mut tokens: Vec<i32> = tokens.iter().map(|&t| t as i32).collect();
        // SAFETY: the batch borrows the tokens for the call alone.
        let code = unsafe {
            let batch = sys::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32);
            let code = sys::llama_decode(self.ctx, batch);
            sys::llama_synchronize(self.ctx);
            code
        };
        if code != 0 {
            bail!("llama.cpp failed at position {} (code {code})", self.position);
        }
        self.position += tokens.len();
        Ok(())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once.
        unsafe { sys::llama_free(self.ctx) };
    }
}
