//! Writes a Q4_K_M model of a real shape with random weights: see `scripts/large-model`.

use anyhow::{Context as _, Result};
use clap::Parser;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::ARCHITECTURES;
use qdiff_synth::{Setting, Synth};
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
    /// Architecture
    #[arg(long, default_value = Synth::qwen2_5_7b().arch)]
    arch: String,
    /// Layers
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_layers)]
    layers: usize,
    /// Width of the residual stream, a multiple of 256
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_embd)]
    width: usize,
    /// Query heads
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_heads as u32, value_parser = clap::value_parser!(u32).range(1..))]
    heads: u32,
    /// Width of a head; without it the heads share the width of the stream
    #[arg(long)]
    head_dim: Option<usize>,
    /// Key and value heads
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_kv_heads)]
    kv_heads: usize,
    /// Width of the feed-forward network, a multiple of 256
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_ff)]
    feed_forward: usize,
    /// Tokens of the vocabulary
    #[arg(long, default_value_t = Synth::qwen2_5_7b().n_vocab)]
    vocabulary: usize,
    /// Value of a metadata key of the architecture, such as expert_count=128; repeat for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, Setting)>,
}

fn setting(text: &str) -> Result<(String, Setting)> {
    let (key, value) = text.split_once('=').context("KEY=VALUE is needed, such as expert_count=128")?;
    Ok((key.to_owned(), value.parse()?))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let known = ARCHITECTURES.iter().find(|(name, _)| *name == args.arch);
    let model = Synth {
        arch: known.with_context(|| format!("no architecture {}", args.arch))?.0,
        n_layers: args.layers,
        n_embd: args.width,
        n_heads: args.heads as usize,
        n_kv_heads: args.kv_heads,
        head_dim: args.head_dim.unwrap_or(args.width / args.heads as usize),
        n_ff: args.feed_forward,
        n_vocab: args.vocabulary,
        settings: args.set,
        ..Synth::qwen2_5_7b()
    };
    let written = model.q4_k_m().write_like(&Gguf::open(&args.like)?, args.parts.into(), &args.out, "model")?;
    println!("{}", written[0].display());
    Ok(())
}
