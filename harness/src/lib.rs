//! qdiff: which stage of which layer of an LLM inference engine is wrong first, at which positions, and why.
//!
//! The way through the code follows a run: [`runners`] fill a [`capture`],
//! the [`oracle`] evaluates every stage in f64, [`verdict`] judges,
//! [`mutations`] explain, [`report`] tells. Each is a crate, and found here.

pub use qdiff_capture::{
    arithmetic, capture, cleanup, formats, hash, home, input, log, machine, memory, metrics, nearest, number, own,
    progress, room, sampling, shard, shown, supervisor,
};
pub use qdiff_compare::{
    borne, compare, decoded, ends, generate, logits, nonce, pair, rl, sequences, slots, sweep, tokens,
};
pub use qdiff_diagnose::{diagnose, mutations, severity, weights};
pub use qdiff_llama::llama;
#[cfg(feature = "llama")]
use qdiff_llama_cpp as _;
pub use qdiff_oracle::{chat, folder, loaded, oracle, products, prompts};
pub use qdiff_report::report;
pub use qdiff_runners::runners;
pub use qdiff_verdict::verdict;

pub mod cli;
pub mod exercise;
pub mod tasks;
