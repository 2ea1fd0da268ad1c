//! qdiff: which stage of which layer of an LLM inference engine is wrong first, at which positions, and why.
//!
//! The way through the code follows a run: [`runners`] fill a [`capture`],
//! the [`oracle`] evaluates every stage in f64, [`verdict`] judges,
//! [`mutations`] explain, [`report`] tells.

pub mod arithmetic;
pub mod capture;
pub mod chat;
pub mod cleanup;
pub mod cli;
pub mod compare;
pub mod decoded;
pub mod diagnose;
pub mod ends;
pub mod exercise;
pub mod folder;
pub mod formats;
pub mod generate;
pub mod hash;
mod home;
pub mod input;
#[cfg(feature = "llama")]
pub mod llama;
#[cfg(not(feature = "llama"))]
#[path = "llama_absent.rs"]
pub mod llama;
pub mod loaded;
mod log;
pub mod logits;
pub mod machine;
pub mod memory;
pub mod metrics;
pub mod mutations;
pub mod nearest;
pub mod nonce;
pub mod number;
pub mod oracle;
pub mod own;
pub mod pair;
pub mod products;
pub mod progress;
pub mod prompts;
pub mod report;
pub mod room;
pub mod runners;
pub mod sampling;
pub mod sequences;
pub mod severity;
pub mod shard;
pub mod shown;
pub mod supervisor;
pub mod sweep;
pub mod tasks;
pub mod tokens;
pub mod verdict;
pub mod weights;
