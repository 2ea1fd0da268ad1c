//! The products of one layer, on what is open for them.

use super::device::{As, Device, Weights};
use super::{OracleChoice, Products, held};
use anyhow::Result;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::StageId;
use qdiff_engine::ops::{Context, Tensor, linear};
use qdiff_engine::quant::ActivationFormat;
use std::sync::Arc;

/// What evaluates the layers that a stage is judged by.
#[derive(Clone, Copy)]
pub struct Judging<'a> {
    pub(super) products: &'a Products,
    pub(super) judged: StageId,
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

/// What tells one reading of a layer's weights from another: what they were rounded to, the activations that they are
/// multiplied with, and whether offsets are left out.
pub type Reading = (DType, ActivationFormat, bool);

/// The products of one layer, whose weights stay on the device as long as this lives.
pub struct Layer<'a> {
    pub(super) products: &'a Products,
    pub(super) judged: StageId,
    stage: StageId,
    pub(super) device: Option<Arc<Device>>,
    /// Of so many rows of each batch the CPU must give the same.
    pub(super) rows: Option<usize>,
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
    pub(super) fn on_cpu(&self, because: String) {
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
