//! The stage before all others: every tensor there, and every value as ggml
//! reads it.

use crate::number::Real;
use crate::oracle::Oracle;
use qdiff_engine::model::{Model, WeightSource};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One value that the engine reads differently.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Mismatch {
    /// GGUF tensor.
    pub tensor: String,
    /// Its format.
    pub format: String,
    /// Row of the first differing value.
    pub row: usize,
    /// Its index in the row.
    pub index: usize,
    /// The engine's value.
    #[serde(with = "Real")]
    #[schemars(with = "Real")]
    pub got: f32,
    /// ggml's value.
    #[serde(with = "Real")]
    #[schemars(with = "Real")]
    pub want: f32,
    /// Rows that differ.
    pub rows: usize,
}

/// The outcome of the check.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct WeightCheck {
    /// Tensors compared.
    pub tensors: usize,
    /// Values compared.
    pub values: u64,
    /// Tensors with a differing value.
    pub mismatches: Vec<Mismatch>,
    /// Tensors of the file that no stage reads.
    pub unused: Vec<String>,
}

/// Rows compared by one task.
const ROWS: usize = 64;

/// Compares every value of every tensor the graph reads, bit by bit.
pub fn check(model: &Model, oracle: &Oracle<'_>) -> WeightCheck {
    let used = model.graph().weights();
    let mismatches = used
        .iter()
        .filter_map(|(name, _)| compare(model, oracle, name))
        .collect();
    WeightCheck {
        tensors: used.len(),
        values: used
            .iter()
            .map(|(_, dims)| dims.iter().product::<u64>())
            .sum(),
        mismatches,
        unused: model
            .gguf()
            .tensors()
            .iter()
            .filter(|t| !used.iter().any(|(name, _)| *name == t.name))
            .map(|t| t.name.clone())
            .collect(),
    }
}

fn compare(model: &Model, oracle: &Oracle<'_>, name: &str) -> Option<Mismatch> {
    let (n, rows) = model.extent(name);
    let differing: Vec<(usize, usize, f32, f32)> = (0..rows.div_ceil(ROWS))
        .into_par_iter()
        .flat_map_iter(|task| {
            let first = task * ROWS;
            let count = ROWS.min(rows - first);
            let (mut ours, mut theirs) = (vec![0f32; n * count], vec![0f32; n * count]);
            model.rows(name, first, &mut ours);
            oracle.weights.rows(name, first, &mut theirs);
            let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
            let mut found = Vec::new();
            for (r, (a, b)) in ours.chunks(n).zip(theirs.chunks(n)).enumerate() {
                if let Some(i) = a.iter().zip(b).position(differs) {
                    found.push((first + r, i, a[i], b[i]));
                }
            }
            found
        })
        .collect();
    let &(row, index, got, want) = differing.first()?;
    Some(Mismatch {
        tensor: name.to_owned(),
        format: model.ggml_type(name).to_string(),
        row,
        index,
        got,
        want,
        rows: differing.len(),
    })
}
