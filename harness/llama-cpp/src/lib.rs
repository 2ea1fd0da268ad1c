//! llama.cpp, wrapped as narrowly as qdiff needs it: a model, a context with
//! taps, tokens, and ggml's own view of a GGUF file. The crate `qdiff-llama` says what qdiff asks of it.
//!
//! This crate is the only place of the harness that calls llama.cpp. Every program that it is linked into has llama.cpp.

mod context;
mod copy;
mod gguf;
mod model;
mod said;
mod sampler;
mod taps;
mod variant;
mod vocab;

use anyhow::Result;
use model::Model;
use qdiff_capture::arithmetic::LinearRule;
use qdiff_capture::room::Room;
use qdiff_engine::model::{Graph, WeightSource};
use qdiff_engine::quant::GgmlType;
use qdiff_engine::sampler::Step;
use qdiff_llama::llama::gguf::Index;
use qdiff_llama::llama::{self, Library, Load, Loaded, Owner, Plays, Runs, Samples};
use std::path::Path;

/// The llama.cpp of this crate.
struct LlamaCpp;

/// Runs before `main`, so that no program needs to remember it.
#[used]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
static INSTALLED: extern "C" fn() = {
    extern "C" fn installs() {
        llama::install(&LlamaCpp);
    }
    installs
};

impl Library for LlamaCpp {
    fn cuda_backend(&self) -> Result<()> {
        model::cuda_backend()
    }

    fn variant(&self) -> &'static str {
        model::start().unwrap_or(llama::BUILT_IN)
    }

    fn dot_types(&self) -> Vec<LinearRule> {
        model::dot_types()
    }

    fn load(&self, path: &Path, what: Load) -> Result<Box<dyn Loaded>> {
        Ok(Box::new(Model::load(path, what)?))
    }

    fn index(&self, index: &mut Index, part: usize, path: &Path) -> Result<()> {
        gguf::add(index, part, path)
    }

    fn to_float(&self, ty: u32, bytes: &[u8], out: &mut [f32]) {
        gguf::to_float(ty as _, bytes, out);
    }

    fn write_copy(
        &self, weights: &dyn WeightSource, of: (&Path, &Index), ty: GgmlType, target: &Path,
    ) -> Result<usize> {
        copy::write_copy(weights, of, ty, target)
    }

    fn sampler(&self, chain: &[Step], tokens: usize) -> Box<dyn Samples> {
        Box::new(sampler::Chain::new(chain, tokens))
    }
}

impl Loaded for Model {
    fn metadata(&self, key: &str) -> Option<String> {
        self.value(key)
    }

    fn n_tokens(&self) -> usize {
        self.tokens()
    }

    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<u32>> {
        self.split(text, parse_special)
    }

    fn piece_bytes(&self, token: u32, special: bool) -> Option<Vec<u8>> {
        self.bytes_of(token, special)
    }

    fn ends_generation(&self, token: u32) -> bool {
        self.ends(token)
    }

    fn tapped(&self, owner: Owner, graph: &Graph, room: Room) -> Result<Box<dyn Runs>> {
        Ok(Box::new(context::TappedContext::new(self, owner, graph, room)?))
    }

    fn plain(&self, owner: Owner, n_ctx: usize, n_step: usize, sequences: usize) -> Result<Box<dyn Plays>> {
        Ok(Box::new(context::Plain::new(self, owner, n_ctx, n_step, sequences)?))
    }
}
