//! A vocabulary over ranks that is cut behind where the table is: ids of a rank beyond its rows have zeros, and the next rank's rows
//! come late.

use super::form::Form;
use super::scene::Scene;
use super::{Alternative, Law};
use crate::verdict::RowAt;
use qdiff_engine::model::WeightSource as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Ids at which the vocabulary may be cut, at most.
const CUTS: usize = 128;

/// The first id of the second rank, and by how many rows its table begins before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cut {
    at: usize,
    by: usize,
}

impl Cut {
    /// What a row would be.
    pub(super) fn on<'a>(self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let Self { at, by } = self;
        let table = &scene.node().weights.first()?.name;
        let n = scene.weights().extent(table).0;
        Some(Box::new(move |row: &RowAt| {
            let step = &scene.e.side.capture.steps[row.step];
            let id = *step.tokens.get(row.place.position.checked_sub(step.first)?)? as usize;
            let mut values = vec![0f32; n];
            // Between the two the first rank has no row.
            let own = if id >= at { id.checked_sub(by) } else { Some(id).filter(|id| id + by < at) };
            if let Some(own) = own {
                scene.weights().rows(table, own, &mut values);
            }
            Some(Scene::exact(values.into_iter().map(f64::from).collect()))
        }))
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, by } = self;
        let row = at - by;
        write!(
            f,
            "the vocabulary is cut over ranks at id {at}, and the table at row {row}: ids from {row} to {} have zeros, and each id from {at} on has the embedding of the id {by} before",
            at - 1
        )
    }
}

/// Cuts by which these ids have the embeddings of others, and these have zeros.
pub(super) fn laws<'a>(
    scene: &'a Scene<'a>, (moved, zeros): (&BTreeMap<usize, usize>, &BTreeSet<usize>),
) -> Vec<Law<'a>> {
    let by: BTreeSet<usize> = moved.iter().filter_map(|(own, other)| own.checked_sub(*other)).collect();
    let (Some(&by), 1, Some(&first), Some(&last)) = (by.first(), by.len(), moved.keys().next(), zeros.last()) else {
        return Vec::new();
    };
    let fits = |at: &usize| by > 0 && *at >= by && zeros.iter().all(|id| id + by >= *at);
    let mut cuts: Vec<usize> = (last + 1..=first).rev().take(CUTS).filter(fits).collect();
    // Ranks have round numbers of ids.
    cuts.sort_by_key(|at| std::cmp::Reverse(at.trailing_zeros()));
    cuts.into_iter().filter_map(|at| Law::of(Form::Cut(Cut { at, by }), scene)).collect()
}
