//! Whatever can fill a capture: one trait, one file per runner.

pub mod cpu;
pub mod cuda;
pub mod llama;
mod spec;

pub use spec::{Faults, Room, Spec};

use crate::capture::{Capture, Step};
use anyhow::Result;
use qdiff_engine::model::StageId;
use qdiff_engine::quant::{ActivationFormat, GgmlType};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// What a runner computes in. Declared, not guessed: the bounds of the
/// verdict follow from it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arithmetic {
    /// Per weight format (`q5_0`), what activations become before the product; formats
    /// that are not listed keep f32.
    pub activations: Vec<(String, ActivationFormat)>,
    /// Accumulation of products.
    pub accumulation: String,
    /// Type of the KV cache.
    pub kv: String,
}

impl Arithmetic {
    /// Everything in f32.
    pub fn f32() -> Self {
        Self {
            activations: Vec::new(),
            accumulation: "f32".to_owned(),
            kv: "f32".to_owned(),
        }
    }

    /// What nobody declares is refused: accumulation and cache in f32 are what
    /// the bounds are made for.
    ///
    /// # Errors
    /// Arithmetic that the bounds do not cover.
    pub fn check(&self) -> Result<()> {
        for (what, value) in [("accumulation", &self.accumulation), ("kv", &self.kv)] {
            if value != "f32" {
                anyhow::bail!("arithmetic.{what} is `{value}`; only f32 has bounds so far");
            }
        }
        Ok(())
    }

    /// What activations become for weights of type `ty`.
    pub fn activation(&self, ty: GgmlType) -> ActivationFormat {
        self.activations
            .iter()
            .find(|(name, _)| name == ty.name())
            .map_or(ActivationFormat::F32, |(_, format)| *format)
    }
}

/// Identifies a runner in reports and manifests.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// Short name, e.g. `cpu` or `llama.cpp (cpu)`.
    pub name: String,
    /// Declared arithmetic.
    pub arithmetic: Arithmetic,
    /// Faults injected, in words.
    pub injected: Vec<String>,
}

/// Runs a model step by step with taps.
pub trait Runner {
    /// What it is.
    fn manifest(&self) -> &Manifest;

    /// Runs `tokens` at the next positions and gives the wanted stages.
    ///
    /// # Errors
    /// Whatever keeps the step from finishing or a wanted stage from being seen.
    fn step(&mut self, tokens: &[u32], wanted: &HashSet<StageId>) -> Result<Step>;
}

/// Runs the prompt and then `decode` steps. The tokens of the steps are those
/// of `forced` where given, else the runner's own greedy choices (lowest id
/// among equals). Gives the capture and the token fed at each decode step.
///
/// # Errors
/// As [`Runner::step`].
pub fn run(
    runner: &mut dyn Runner,
    prompt: &[u32],
    decode: usize,
    forced: Option<&[u32]>,
    wanted: &HashSet<StageId>,
    logits: StageId,
    mut progress: impl FnMut(usize),
) -> Result<(Capture, Vec<u32>)> {
    let mut capture = Capture::default();
    let mut fed = Vec::with_capacity(decode);
    let mut tokens = prompt.to_vec();
    for index in 0..=decode {
        let mut step = runner.step(&tokens, wanted)?;
        step.index = index;
        progress(index);
        if index < decode {
            let next = match forced {
                Some(forced) => forced[index],
                None => {
                    let logits = step.stages.get(&logits).ok_or_else(|| {
                        anyhow::anyhow!("{} gave no logits to choose from", runner.manifest().name)
                    })?;
                    argmax(logits.row(logits.rows() - 1)) as u32
                }
            };
            fed.push(next);
            tokens = vec![next];
        }
        capture.steps.push(step);
    }
    Ok((capture, fed))
}

/// Index of the largest value, the lowest among equals; NaN never wins.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] || x[best].is_nan() {
            best = i;
        }
    }
    best
}
