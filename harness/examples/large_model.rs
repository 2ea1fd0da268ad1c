//! Writes a Q4_K_M model of a real shape with random weights: see `scripts/large-model`.

use anyhow::Result;
use clap::Parser;
use qdiff_engine::gguf::Gguf;
use qdiff_synth::Synth;
use std::path::PathBuf;

/// What to write.
#[derive(Parser)]
struct Args {
    /// GGUF whose vocabulary and chat template it gets
    #[arg(long, value_name = "FILE.gguf")]
    like: PathBuf,
    /// Folder to write to
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// In how many files
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    parts: u16,
    /// Layers
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_layers)]
    layers: usize,
    /// Width of the residual stream, a multiple of 256
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_embd)]
    width: usize,
    /// Query heads; they share the width
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_heads as u32, value_parser = clap::value_parser!(u32).range(1..))]
    heads: u32,
    /// Key and value heads
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_kv_heads)]
    kv_heads: usize,
    /// Width of the feed-forward network, a multiple of 256
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_ff)]
    feed_forward: usize,
    /// Tokens of the vocabulary
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_vocab)]
    vocabulary: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let model = Synth {
        n_layers: args.layers,
        n_embd: args.width,
        n_heads: args.heads as usize,
        n_kv_heads: args.kv_heads,
        head_dim: args.width / args.heads as usize,
        n_ff: args.feed_forward,
        n_vocab: args.vocabulary,
        ..Synth::qwen2_5_7b()
    };
    let written = model.q4_k_m().write_like(&Gguf::open(&args.like)?, args.parts.into(), &args.out, "model")?;
    println!("{}", written[0].display());
    Ok(())
}
