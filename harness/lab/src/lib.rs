//! What proves qdiff, and is no part of it: bugs that are planted and how often they are found and named
//! ([`score`]), what runs and verdicts cost against llama.cpp ([`bench`]), and REPORT.md, which tells all results
//! ([`report::book`]).
//!
//! [`bench`]: report::bench

pub mod cli;
pub mod report;
pub mod score;
mod tasks;
