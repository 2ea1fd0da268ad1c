//! Arguments of `qdiff weights`.

use super::{FileArgs, ModelArg};
use crate::runners::Spec;
use clap::Args;
use std::path::PathBuf;

/// `qdiff weights`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff weights model.gguf
  qdiff weights model.gguf --inject nibble-order@L00.ffn_down
  qdiff weights model.gguf --inject tensor-not-loaded@blk.1.attn_q.weight --json weights.json
  qdiff weights damaged.gguf --against model.gguf")]
pub struct WeightsArgs {
    /// The file
    #[command(flatten)]
    pub model: ModelArg,
    /// Whose reading is held against ggml's: cpu (the engine's reader), or cuda (bytes and values read back from the device)
    #[arg(long, value_name = "RUNNER", default_value = "cpu", env = "QDIFF_WEIGHTS_SUBJECT")]
    pub subject: Spec,
    /// Hold the file against another one instead, byte by byte and value by value
    #[arg(long, value_name = "FILE.gguf", conflicts_with_all = ["subject", "inject"])]
    pub against: Option<PathBuf>,
    /// Read weights wrongly: NAME[:PARAM=VALUE,…][@L07, @L07.q_proj or @TENSOR]; repeatable (see `qdiff mutations`)
    #[arg(long, value_name = "FAULT")]
    pub inject: Vec<String>,
    /// Where the report goes
    #[command(flatten)]
    pub files: FileArgs,
}
