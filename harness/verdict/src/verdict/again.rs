//! What was judged elsewhere is judged again here, in a sample: a file that says what somebody found may say anything.

use super::measured::{Measured, stages};
use super::{Policy, Side};
use crate::capture::Filter;
use crate::oracle::Oracle;
use crate::progress::silent;
use anyhow::{Result, ensure};
use qdiff_engine::model::{Node, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

/// Stages that are judged again.
const SAMPLE: usize = 8;

/// What a verdict takes from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Parts {
    /// Stages of which a part says what it found.
    pub stages: usize,
    /// How many of them were judged again, with the same result.
    pub again: usize,
}

/// Judges some of these stages again, another choice each time, so that nobody can foresee which.
///
/// # Errors
/// If it finds something else.
pub(super) fn sample(
    oracle: &Oracle<'_>, asked: &[&Node], sides: &[Side<'_>; 2], (filter, policy): (&Filter, &Policy),
    measured: &[Measured],
) -> Result<Parts> {
    let told = |id: StageId| measured.iter().find(|m| m.stage == id);
    let mut chosen: Vec<&Node> = asked.iter().copied().filter(|node| told(node.id).is_some()).collect();
    let all = chosen.len();
    let random = RandomState::new();
    chosen.sort_by_cached_key(|node| random.hash_one(node.id));
    chosen.truncate(SAMPLE);
    for found in stages(oracle, &chosen, sides, filter, policy, &silent)? {
        let same = told(found.stage).is_some_and(|told| told.same(&found));
        ensure!(
            same,
            "the parts say of {} what judging it again here does not give: a part was edited, or judged by a machine that \
             errs; judge all parts again",
            found.stage
        );
    }
    Ok(Parts { stages: all, again: chosen.len() })
}
