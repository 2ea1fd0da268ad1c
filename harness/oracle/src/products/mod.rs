//! The f64 products of linear layers, which judging spends most of its time on: on the CPU, or on a GPU.
//!
//! A [`Layer`] gives the same quantities on both, from the same weights, but for the order of sums: y = W·x in f64,
//! `u·√n·Σ|W·x|`, and `√Σ(W·dx)²` ([`qdiff_engine::ops::linear`]). What is made of them is decided elsewhere, and once. The device
//! shares nothing with the engine's CUDA kernels but the compiler that kernels go through. What it gives is held against the
//! CPU (`held.rs`): rows of some stages in every run, and every row of a stage that turns out wrong, so that no stage is
//! found wrong by the device alone.

mod device;
mod held;
mod layer;

pub use layer::{Judging, Layer, Reading};

use crate::log::{self, Level};
use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use device::Device;
use qdiff_engine::model::StageId;
use rayon::current_num_threads;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Where the products of linear layers are evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OracleChoice {
    /// With --check full, on the first GPU if it has room and saves time; else on the CPU
    #[default]
    Auto,
    /// On the CPU
    Cpu,
    /// On the first GPU; probes, rounding ties, attention and all else stay on the CPU
    Cuda,
    /// On both, and every value of the one is compared with the other's
    Both,
}

/// Products of a thread from which on a GPU saves time: what one core takes two seconds for, several times what opening the
/// device and cuBLAS take (`-v` says how long).
pub const PAYS: usize = 1 << 32;

/// Of so many stages one is evaluated on the CPU as well; [`LEAST_HELD`] at least, and one of every size.
const HELD: usize = 16;
const LEAST_HELD: usize = 2;

/// What the stages that are evaluated on the CPU as well are drawn from.
const SEED: u32 = 0x71d1_ff00;

/// A stage that is judged by linear layers: its own, or those of the segment that ends in it.
pub struct Work {
    /// The stage.
    pub stage: StageId,
    /// Products that its layers take, of all sides.
    pub products: usize,
    /// Weights of the largest of them.
    pub weights: usize,
}

/// On what the linear layers were evaluated that a stage is judged by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evaluated {
    /// The GPU that evaluated them, or a part of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Whether the CPU was found to give the same, of some rows at least.
    held: bool,
    /// Why the CPU evaluated them, or a part of them, though a GPU was to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    because: Option<String>,
}

/// On what the linear layers of a verdict were evaluated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evaluators {
    /// The GPUs; none where the CPU evaluated all.
    pub devices: BTreeSet<String>,
    /// Stages whose layers were evaluated there, or a part of them.
    pub on_device: usize,
    /// Those of which the CPU was found to give the same, of some rows at least.
    pub held: Vec<StageId>,
    /// Stages whose layers were to be evaluated there, and were on the CPU, or a part of them.
    pub on_cpu: usize,
    /// Why.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub because: BTreeSet<String>,
}

impl Evaluators {
    /// The products of these stages.
    pub fn of<'a>(all: impl Iterator<Item = (StageId, &'a Evaluated)>) -> Self {
        let mut evaluators = Self::default();
        for (stage, Evaluated { device, held, because }) in all {
            evaluators.on_device += usize::from(device.is_some());
            evaluators.devices.extend(device.clone());
            evaluators.held.extend(held.then_some(stage));
            evaluators.on_cpu += usize::from(because.is_some());
            evaluators.because.extend(because.clone());
        }
        evaluators
    }
}

/// Evaluates products; on the CPU by default.
#[derive(Default)]
pub struct Products(Mutex<State>);

#[derive(Default)]
struct State {
    choice: Option<OracleChoice>,
    /// Open as long as it works.
    device: Option<Arc<Device>>,
    /// Whether layers were to be evaluated on it when judging began.
    active: bool,
    /// Why a GPU that is there is not used.
    refused: Option<String>,
    /// Stages of which some rows are evaluated on the CPU as well.
    held: HashSet<StageId>,
    /// Stages of which all rows are, because they were found wrong.
    wrong: HashSet<StageId>,
    evaluated: HashMap<StageId, Evaluated>,
    /// What leaves no verdict.
    trouble: Option<String>,
}

/// Says why nothing can be evaluated on the requested device.
///
/// # Errors
/// A GPU asked for that is not there, or a library: with its remedy.
pub fn ready(choice: OracleChoice) -> Result<()> {
    match choice {
        OracleChoice::Auto | OracleChoice::Cpu => Ok(()),
        OracleChoice::Cuda => device::ready().context("--oracle cuda (--oracle cpu needs no GPU)"),
        OracleChoice::Both => device::ready().context("--oracle both (--oracle cpu needs no GPU)"),
    }
}

impl Products {
    /// Begins a verdict of these stages, and opens the GPU if it is to be used. Where not every row is evaluated, probes
    /// leave the CPU less to do than it takes to bring rows to a GPU and back.
    ///
    /// # Errors
    /// If the GPU was requested and cannot be used.
    pub fn begin(&self, choice: OracleChoice, every_row: bool, work: &[Work]) -> Result<()> {
        let mut state = self.state();
        state.choice = Some(choice);
        state.evaluated.clear();
        state.trouble = None;
        let insisted = matches!(choice, OracleChoice::Cuda | OracleChoice::Both);
        let products = || work.iter().map(|w| w.products).sum::<usize>();
        let pays = || every_row && products() / current_num_threads() >= PAYS;
        let wanted = match choice {
            OracleChoice::Cpu => false,
            OracleChoice::Auto => state.refused.is_none() && pays() && device::present(),
            OracleChoice::Cuda | OracleChoice::Both => true,
        };
        if wanted && state.device.is_none() {
            let start = Instant::now();
            match Device::open(room(work)) {
                Ok(device) => {
                    let took = start.elapsed().as_secs_f64();
                    log::line(Level::Notable, &format!("the oracle opened {} in {took:.2} s", device.name));
                    state.device = Some(Arc::new(device));
                }
                Err(e) if insisted => return Err(e.context("the oracle on the GPU (--oracle cpu needs none)")),
                Err(e) => state.refused = Some(format!("{e:#}")),
            }
        }
        state.active = wanted && state.device.is_some();
        state.held = match choice {
            OracleChoice::Both => work.iter().map(|w| w.stage).collect(),
            _ => drawn(work),
        };
        if let Some(because) = state.refused.clone().filter(|_| choice == OracleChoice::Auto && pays()) {
            let refused = Evaluated { because: Some(because), ..Evaluated::default() };
            state.evaluated.extend(work.iter().map(|w| (w.stage, refused.clone())));
        }
        Ok(())
    }

    /// Whether layers are evaluated on a GPU.
    pub fn on_device(&self) -> bool {
        let state = self.state();
        state.active && state.device.is_some()
    }

    /// On what the layers of the stage were evaluated since [`Self::begin`]; `None` where that is a matter of course.
    pub fn evaluated(&self, judged: StageId) -> Option<Evaluated> {
        self.state().evaluated.get(&judged).cloned()
    }

    /// Has every row of the stage evaluated on the CPU as well until [`Self::end`]; false where that says nothing new.
    pub fn hold(&self, judged: StageId) -> bool {
        let mut state = self.state();
        let on_device = state.evaluated.get(&judged).is_some_and(|evaluated| evaluated.device.is_some());
        on_device && state.choice != Some(OracleChoice::Both) && state.wrong.insert(judged)
    }

    /// Ends judging: of stages found wrong some rows are held while causes are looked for.
    ///
    /// # Errors
    /// As [`Self::trouble`].
    pub fn end(&self) -> Result<()> {
        let mut state = self.state();
        let wrong = std::mem::take(&mut state.wrong);
        state.held.extend(wrong);
        drop(state);
        self.trouble()
    }

    /// # Errors
    /// If the GPU gave other values than the CPU, or, asked for, gave none.
    pub fn trouble(&self) -> Result<()> {
        match &self.state().trouble {
            Some(trouble) => bail!("{trouble}"),
            None => Ok(()),
        }
    }

    /// What evaluates the layers that this stage is judged by.
    pub fn judging(&self, judged: StageId) -> Judging<'_> {
        Judging { products: self, judged }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, judged: StageId, note: impl FnOnce(&mut Evaluated)) {
        note(self.state().evaluated.entry(judged).or_default());
    }

    /// The device is not used any more.
    fn failed(&self, stage: StageId, error: &anyhow::Error) {
        let mut state = self.state();
        let because = format!("{error:#}");
        state.device = None;
        match state.choice {
            Some(OracleChoice::Cuda | OracleChoice::Both) => {
                let trouble = format!("the oracle on the GPU: {because} at {stage}; --oracle cpu needs no GPU");
                state.trouble.get_or_insert(trouble);
            }
            _ => state.refused = Some(because),
        }
    }
}

/// Device memory that weights take at most: each thread judges a layer.
fn room(work: &[Work]) -> u64 {
    let mut sizes: Vec<usize> = work.iter().map(|w| w.weights).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.iter().take(current_num_threads()).map(|weights| 4 * *weights as u64).sum()
}

/// The stages of which rows are evaluated on the CPU as well: drawn by their names, and of every size of layer one.
fn drawn(work: &[Work]) -> HashSet<StageId> {
    let number = |w: &Work| crc32fast::hash(format!("{SEED} {}", w.stage).as_bytes());
    let mut all: Vec<&Work> = work.iter().collect();
    all.sort_unstable_by_key(|w| (number(w), w.stage));
    let (count, mut sizes) = ((work.len() / HELD).max(LEAST_HELD), HashSet::new());
    let held = all.iter().enumerate().filter(|(i, w)| sizes.insert(w.weights) || *i < count);
    held.map(|(_, w)| w.stage).collect()
}

#[cfg(test)]
mod tests;
