//! Makes a Qwen2 model into one of experts with its weights, for tests on real magnitudes:
//! `upcycled MODEL.gguf OUT.gguf [LAYERS]`; by default all layers.

use anyhow::{Context as _, Result};
use qdiff_engine::model::Model;

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [model, out, layers @ ..] = given.as_slice() else { anyhow::bail!("upcycled MODEL.gguf OUT.gguf [LAYERS]") };
    let layers = layers.first().map_or(Ok(usize::MAX), |layers| layers.parse()).context("LAYERS is a number")?;
    Ok(qdiff_synth::upcycle(&Model::open(model.as_ref())?, layers, out.as_ref())?)
}
