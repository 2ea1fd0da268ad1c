//! The results that a report is made of.

use super::{FalseAlarms, Field, LargeModel, Ranks, Runs, VerdictCost};
use crate::report::bench::{Bench, VerdictBench};
use crate::score::Score;
use serde::Deserialize;

/// The whole contents.
#[derive(Default)]
pub struct Book {
    pub(super) field: Vec<Field>,
    pub(super) runs: Vec<Runs>,
    pub(super) alarms: Vec<FalseAlarms>,
    pub(super) scores: Vec<Score>,
    pub(super) benches: Vec<OnFile>,
    pub(super) costs: Vec<VerdictCost>,
    pub(super) large: Vec<LargeModel>,
    pub(super) ranks: Vec<Ranks>,
}

/// What `qdiff-lab bench` measured.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum OnFile {
    Cuda(Box<Bench>),
    Verdict(VerdictBench),
}
