//! The f64 products of linear layers, which judging spends most of its time on: on the CPU, or on a GPU.
//!
//! A [`Layer`] gives the same quantities on both, from the same weights, but for the order of sums: y = W·x in f64,
//! `u·√n·Σ|W·x|`, and `√Σ(W·dx)²` ([`qdiff_engine::ops::linear`]). What is made of them is decided elsewhere, and once. The device
//! shares nothing with the engine's CUDA kernels but the compiler that kernels go through. What it gives is held against the
//! CPU ([`held`]): rows of some stages in every run, and every row of a stage that turns out wrong, so that no stage is
//! found wrong by the device alone.

mod device;
mod held;

use crate::formats::Format;
use crate::log::{self, Level};
use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use device::{As, Device, Weights};
use qdiff_engine::model::StageId;
use qdiff_engine::ops::{Context, Tensor, linear};
use qdiff_engine::quant::ActivationFormat;
use rayon::current_num_threads;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Where the products of linear layers are evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OracleChoice {
    /// On the first GPU, where there is one with room and it saves time; on the CPU otherwise
    #[default]
    Auto,
    /// On the CPU
    Cpu,
    /// On the first GPU; probes, rounding ties, attention and all else stay on the CPU
    Cuda,
    /// On both, and every value of the one is held against the other
    Both,
}

/// Products of a thread from which on a GPU saves time: what one core takes two seconds for, about twice what opening the
/// device and cuBLAS take.
const PAYS: usize = 1 << 32;

/// Of so many stages one is evaluated on the CPU as well, and [`LEAST_HELD`] at least.
const HELD: usize = 16;
const LEAST_HELD: usize = 2;

/// What the stages that are evaluated on the CPU as well are drawn from.
const SEED: u32 = 0x71d1_ff00;

/// A stage that is judged by linear layers: by itself, or by those of the segment that ends in it.
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
    /// Of these stages.
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

/// Evaluates products; on the CPU until it is told otherwise.
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

/// Says what is missing to evaluate where it is asked for.
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
    /// Begins a verdict of these stages, and opens the GPU if it is to be used.
    ///
    /// # Errors
    /// If the GPU was asked for and cannot be used.
    pub fn begin(&self, choice: OracleChoice, work: &[Work]) -> Result<()> {
        let mut state = self.state();
        state.choice = Some(choice);
        state.evaluated.clear();
        state.trouble = None;
        let insisted = matches!(choice, OracleChoice::Cuda | OracleChoice::Both);
        let pays = || work.iter().map(|w| w.products).sum::<usize>() / current_num_threads() >= PAYS;
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

/// What evaluates the layers that a stage is judged by.
#[derive(Clone, Copy)]
pub struct Judging<'a> {
    products: &'a Products,
    judged: StageId,
}

impl<'a> Judging<'a> {
    /// What evaluates the layer `stage`.
    pub fn layer(self, stage: StageId) -> Layer<'a> {
        let Self { products, judged } = self;
        let state = products.state();
        let device = state.device.clone().filter(|_| state.active);
        // Another layer may have lost it.
        let because = state.refused.clone().filter(|_| state.active && device.is_none());
        let rows = match state.choice {
            Some(OracleChoice::Both) => Some(usize::MAX),
            _ if state.wrong.contains(&judged) => Some(usize::MAX),
            _ => state.held.contains(&judged).then_some(held::ROWS),
        };
        drop(state);
        let layer = Layer { products, judged, stage, device, rows, there: Vec::new() };
        because.into_iter().for_each(|because| layer.on_cpu(because));
        layer
    }
}

/// Device memory that weights take at most: each thread judges a layer.
fn room(work: &[Work]) -> u64 {
    let mut sizes: Vec<usize> = work.iter().map(|w| w.weights).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.iter().take(current_num_threads()).map(|weights| 4 * *weights as u64).sum()
}

/// The stages of which rows are evaluated on the CPU as well: drawn by their names.
fn drawn(work: &[Work]) -> HashSet<StageId> {
    let mut all: Vec<(u32, StageId)> =
        work.iter().map(|w| (crc32fast::hash(format!("{SEED} {}", w.stage).as_bytes()), w.stage)).collect();
    all.sort_unstable();
    all.into_iter().take((work.len() / HELD).max(LEAST_HELD)).map(|(_, stage)| stage).collect()
}

/// What tells one reading of a layer's weights from another: what they were rounded to, the activations that they are
/// multiplied with, and whether offsets are left out.
pub type Reading = (Format, ActivationFormat, bool);

/// The products of one layer, whose weights stay on the device as long as this lives.
pub struct Layer<'a> {
    products: &'a Products,
    judged: StageId,
    stage: StageId,
    device: Option<Arc<Device>>,
    /// Of so many rows of each batch the CPU must give the same.
    rows: Option<usize>,
    /// By what tells one reading of them from another.
    there: Vec<(Reading, Weights)>,
}

impl Layer<'_> {
    /// As [`linear::forward_with_bound`], of the weights that `reading` tells from others of this layer.
    pub fn with_bound(&mut self, x: &Tensor<f64>, context: &Context<'_>, reading: Reading) -> (Tensor<f64>, Vec<f32>) {
        let on_device = self.on_device(&x.data, context, reading, |device, weights| {
            let y = device.product(weights, As::Weight, &x.data)?;
            let magnitudes: Vec<f64> = x.data.iter().map(|v| v.abs()).collect();
            let factor = linear::bound_factor(context.extent(0).0);
            let reach = device.product(weights, As::Magnitude, &magnitudes)?;
            let bound: Vec<f32> = reach.into_iter().map(|sum| factor * sum as f32).collect();
            Ok((Tensor { shape: vec![x.rows(), context.extent(0).1], data: y }, bound))
        });
        let Some((y, bound)) = on_device else { return linear::forward_with_bound(x, context) };
        self.held(|rows| {
            let rows = held::spread(x.rows(), rows);
            held::values(&linear::forward_with_bound(&held::rows_of(x, &rows), context), (&y, &bound), &rows, context)
        });
        (y, bound)
    }

    /// As [`linear::propagate_error`].
    pub fn propagate_error(&mut self, dx: &Tensor<f32>, context: &Context<'_>, reading: Reading) -> Vec<f32> {
        let squares: Vec<f64> = dx.data.iter().map(|d| f64::from(*d).powi(2)).collect();
        let on_device = self.on_device(&squares, context, reading, |device, weights| {
            let sums = device.product(weights, As::Square, &squares)?;
            Ok(sums.into_iter().map(|sum| sum.sqrt() as f32).collect::<Vec<f32>>())
        });
        let Some(errors) = on_device else { return linear::propagate_error(dx, context) };
        self.held(|rows| {
            let rows = held::spread(dx.rows(), rows);
            let dx = held::rows_of(dx, &rows);
            held::errors(&linear::propagate_error(&dx, context), &errors, &dx, &rows, context)
        });
        errors
    }

    /// What the device gives; `None` where the CPU has to.
    fn on_device<R>(
        &mut self, x: &[f64], context: &Context<'_>, reading: Reading, f: impl Fn(&Device, &Weights) -> Result<R>,
    ) -> Option<R> {
        let device = self.device.clone()?;
        if !x.iter().all(|v| v.is_finite()) {
            self.on_cpu("operands are not finite".to_owned());
            return None;
        }
        let given = self.weights(&device, context, reading).and_then(|weights| f(&device, weights));
        match given {
            Ok(given) => {
                self.products.note(self.judged, |evaluated| evaluated.device = Some(device.name.clone()));
                Some(given)
            }
            Err(e) => {
                (self.device, self.there) = (None, Vec::new());
                self.products.failed(self.stage, &e);
                self.on_cpu(format!("{e:#}"));
                None
            }
        }
    }

    /// Notes why the CPU evaluates it; the first reason stays.
    fn on_cpu(&self, because: String) {
        self.products.note(self.judged, |evaluated| {
            evaluated.because.get_or_insert(because);
        });
    }

    fn weights(&mut self, device: &Device, context: &Context<'_>, reading: Reading) -> Result<&Weights> {
        let at = match self.there.iter().position(|(r, _)| *r == reading) {
            Some(at) => at,
            None => {
                let weights = device.upload(context.source, &context.weights[0].name)?;
                self.there.push((reading, weights));
                self.there.len() - 1
            }
        };
        Ok(&self.there[at].1)
    }

    /// Holds what the device gave against what `differs` finds on the CPU.
    fn held(&self, differs: impl FnOnce(usize) -> Option<String>) {
        let (Some(rows), Some(device)) = (self.rows, &self.device) else { return };
        match differs(rows) {
            None => self.products.note(self.judged, |evaluated| evaluated.held = true),
            Some(what) => {
                let trouble = format!(
                    "the oracle on the GPU ({}) and the one on the CPU disagree at {}: {what}; nothing is said of this run: \
                     judge with --oracle cpu, and look into the GPU",
                    device.name, self.stage
                );
                self.products.state().trouble.get_or_insert(trouble);
            }
        }
    }
}

#[cfg(test)]
mod tests;
