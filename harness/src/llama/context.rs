//! A context of llama.cpp with taps.

use super::Model;
use super::taps::{Taps, callback};
use crate::arithmetic::Number;
use crate::capture::{Collector, Step, Want};
use crate::room::Room;
use crate::supervisor;
use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;
use qdiff_engine::model::Graph;
use std::sync::Arc;

/// A running model: its KV cache, and the taps of its graph.
pub struct TappedContext {
    ctx: *mut sys::llama_context,
    taps: Box<Taps>,
    position: usize,
    _model: Arc<Model>,
}

impl TappedContext {
    /// A context with `room`, and every stage of `graph` tappable: flash
    /// attention off, a step in one ubatch, all its rows as outputs.
    ///
    /// # Errors
    /// If llama.cpp cannot make the context.
    pub fn new(model: &Arc<Model>, graph: &Graph, room: Room) -> Result<Self> {
        let mut taps = Box::new(Taps::new(graph));
        let (cells, n_step) = (room.context.next_multiple_of(256) as u32, room.step);
        let kv = match room.kv {
            Number::F32 => sys::GGML_TYPE_F32,
            Number::F16 => sys::GGML_TYPE_F16,
            Number::Bf16 => sys::GGML_TYPE_BF16,
        };
        let _doing = supervisor::doing(|| "llama.cpp was making a context".to_owned());
        // SAFETY: plain C calls; the taps are boxed, so their address holds, and outlive the context (see Drop).
        let ctx = unsafe {
            let mut params = sys::llama_context_default_params();
            params.n_ctx = cells;
            params.n_batch = n_step as u32;
            params.n_ubatch = n_step as u32;
            params.n_threads = room.threads as i32;
            params.n_threads_batch = room.threads as i32;
            params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED;
            params.type_k = kv;
            params.type_v = kv;
            params.offload_kqv = model.on_gpu();
            params.op_offload = false;
            params.n_outputs_max = n_step as u32;
            params.cb_eval = Some(callback);
            params.cb_eval_user_data = std::ptr::from_mut::<Taps>(&mut taps).cast();
            sys::llama_init_from_model(model.raw, params)
        };
        if ctx.is_null() {
            bail!("llama.cpp cannot make a context of {cells} tokens; run again with -v to see why");
        }
        Ok(Self { ctx, taps, position: 0, _model: Arc::clone(model) })
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Runs `tokens` at the next positions, in one ubatch, and gives the wanted stages.
    ///
    /// # Errors
    /// If llama.cpp fails, a stage has another shape than the graph says, or
    /// a wanted stage never appeared: llama.cpp's names drift.
    pub fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        self.taps.begin(Collector::new(want, self.position, tokens));
        let _doing = supervisor::doing(|| format!("llama.cpp was running position {}", self.position));
        // SAFETY: the batch has room for every token, and is freed below.
        let code = unsafe {
            let mut batch = sys::llama_batch_init(tokens.len() as i32, 0, 1);
            batch.n_tokens = tokens.len() as i32;
            for (i, &token) in tokens.iter().enumerate() {
                *batch.token.add(i) = token as i32;
                *batch.pos.add(i) = (self.position + i) as i32;
                *batch.n_seq_id.add(i) = 1;
                **batch.seq_id.add(i) = 0;
                *batch.logits.add(i) = 1;
            }
            let code = sys::llama_decode(self.ctx, batch);
            sys::llama_batch_free(batch);
            code
        };
        if code != 0 {
            bail!("llama.cpp failed at position {} (code {code})", self.position);
        }
        let collected = self.taps.finish()?;
        let (missing, total) = collected.missing();
        if let Some(first) = missing.first() {
            bail!(
                "llama.cpp never emitted {} of the {total} wanted stages, first {first}; its tensor names changed: \
                 mend what `add(…)` says in the graph's declaration",
                missing.len(),
            );
        }
        self.position += tokens.len();
        Ok(collected.finish())
    }
}

impl Drop for TappedContext {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once, before the taps it points to.
        unsafe { sys::llama_free(self.ctx) };
    }
}
