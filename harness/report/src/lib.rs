//! Reports of a result: on the terminal, as JSON, JUnit, Markdown, for GitHub and as a page of HTML.

use qdiff_capture::{
    arithmetic, capture, cleanup, hash, home, input, machine, metrics, number, sampling, shard, shown,
};
use qdiff_compare::{compare, decoded, ends, generate, logits, nonce, rl, slots, sweep, tokens};
use qdiff_diagnose::{diagnose, mutations, severity, weights};
use qdiff_oracle::{products, prompts};
use qdiff_runners::runners;
use qdiff_verdict::verdict;

pub mod report;
