//! Values that an engine, or a capture of it, holds in a number format narrower than f32.
//!
//! The rounding of a stage's own value is read off, as ties are: the value behind it may be any number that rounds to
//! it, and the one nearest to f64's is taken. So a value is held to its neighbours in the format, independent of the
//! bound of its sums. What a stage reads from a capture that was rounded where it was stored is uncertain by that
//! rounding. An engine that rounds the values themselves reads the rounded values.

use super::operands::{Expected, Operand, Side, propagate_error};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::anatomy::{Collective, Elementwise, RowReduction};
use qdiff_engine::ops::{Anatomy, Context, Tensor};
use qdiff_engine::quant::{Stored, WeightSource};
use std::borrow::Cow;

/// What rounding a stage's own value may have done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grain {
    /// By the engine.
    output: DType,
    /// Where it was stored.
    stored: DType,
}

impl Grain {
    /// The grain of a node of `graph` as `side` holds it.
    pub(crate) fn of(node: &Node, graph: &Graph, side: Side<'_>) -> Self {
        let rounding = &side.capture.rounding;
        let stored = rounding.stored(node.id);
        if !node.has_state() {
            return Self { output: rounding.output(node.id), stored };
        }
        Self { output: DType::F32, stored: if copied(node, graph, side) { DType::F32 } else { stored } }
    }

    /// Whether nothing was rounded.
    pub fn exact(self) -> bool {
        self == Self::default()
    }

    /// How far the value before may lie from `got`. The engine's rounding counts only where `got` is a number of its format.
    pub fn reach(self, got: f32) -> f64 {
        let own = if self.stored != DType::F32 || self.output.holds(got) { self.output } else { DType::F32 };
        let got = f64::from(got);
        own.half_step(got) + self.stored.half_step(got)
    }

    /// Whether `got` says no more of `want` than that a format does not reach it.
    pub(crate) fn exceeded(self, got: f32, want: f64) -> bool {
        let at_end = |format: DType| format != DType::F32 && f64::from(got.abs()) == format.largest();
        // If it is settled already, it is the captured value.
        let settled = f64::from(got) == want && (at_end(self.output) || at_end(self.stored));
        settled || self.output.exceeded(got, want) || self.stored.exceeded(got, want)
    }

    /// The number nearest to `want` that rounds to `got`, given as the value from which `got` then errs no more than
    /// that.
    pub fn settle(self, got: f32, want: f64) -> f64 {
        let off = f64::from(got) - want;
        let reach = if self.exceeded(got, want) { f64::INFINITY } else { self.reach(got) };
        if off.abs() <= reach { f64::from(got) } else { want + reach.copysign(off) }
    }

    /// The same backwards: what was `settled`, as far as `got` is not all that is known of it.
    pub(crate) fn unsettle(self, got: f32, settled: f64) -> f64 {
        let off = f64::from(got) - settled;
        if off == 0.0 || !off.is_finite() { settled } else { settled - self.reach(got).copysign(off) }
    }
}

/// Whether a cache is stored as the rows that go into it are, so that it is a copy of them to the last bit: what rounds to
/// the same in both places.
pub(super) fn copied(cache: &Node, graph: &Graph, side: Side<'_>) -> bool {
    // What has blocks is no copy of its rows.
    let (rounding, Some(kv)) = (&side.capture.rounding, side.arithmetic.kv.of(cache.is_of_values()).number()) else {
        return false;
    };
    if side.arithmetic.kv_scale(cache.id).is_some() {
        return false;
    }
    // A cache that is stored as the engine has it says no format of its own.
    let held = if rounding.stored(cache.id) == DType::F32 { kv } else { rounding.stored(cache.id) };
    let alike = |&i: &usize| rounding.stored(graph.nodes[i].id) == held;
    cache.inputs.first().is_some_and(alike) && (kv == DType::F32 || kv == held)
}

/// What a stage should be, with the rounding of its own values read off what was `given` of it.
pub(crate) fn settled(grain: Grain, given: &[f32], value: &mut [f64]) {
    if grain.exact() || given.len() != value.len() {
        return;
    }
    for (value, got) in value.iter_mut().zip(given).filter(|(_, got)| got.is_finite()) {
        *value = grain.settle(*got, *value);
    }
}

/// The same of all steps.
pub fn settle_all(node: &Node, graph: &Graph, side: Side<'_>, expected: &mut Expected) {
    let grain = Grain::of(node, graph, side);
    if grain.exact() {
        return;
    }
    for (step, expected) in side.capture.steps.iter().zip(expected) {
        if let (Some(given), Some((value, _))) = (step.get(node.id), expected) {
            settled(grain, &given.data, &mut value.data);
        }
    }
}

/// An operand that was rounded to `format` where it was stored. A value at the end of the format, or beyond it, may
/// have been anything there: it is taken for the largest number, and infinitely uncertain.
pub(super) fn uncertain<'a>(format: DType, mut stored: Cow<'a, Tensor<f32>>) -> Operand<'a> {
    let largest = format.largest();
    let open = |v: &f32| v.is_infinite() || f64::from(v.abs()) >= largest;
    let of = |v: &f32| if open(v) { f32::INFINITY } else { format.half_step(f64::from(*v)) as f32 };
    let deltas = stored.data.iter().map(of).collect();
    if stored.data.iter().any(|v| v.is_infinite()) {
        let finite = |v: &mut f32| *v = (largest as f32).copysign(*v);
        stored.to_mut().data.iter_mut().filter(|v| v.is_infinite()).for_each(finite);
    }
    Operand::Stored(stored, deltas)
}

/// What rounding to `format` on the way to the result may add, where the op is several operations to an engine that
/// rounds after each: the normed value before the weight is multiplied in; the cosine and sine and the products with
/// them; the activated gate. Nothing of other ops, which are one.
pub(super) fn inside(
    node: &Node, format: DType, inputs: &[&Tensor<f64>], value: &Tensor<f64>, context: &Context<'_>,
) -> Option<Vec<f32>> {
    let step = |v: f64| format.half_step(v);
    let of_operand = |delta: Vec<f32>| propagate_error(node, inputs, &[Some(&delta)], value, context);
    match node.op.anatomy() {
        _ if format == DType::F32 || node.faults.left_out => None,
        Anatomy::RowReduction(RowReduction::MeanSquare(_) | RowReduction::Other) if !node.weights.is_empty() => {
            let w = context.vector::<f64>(0);
            let of = |(y, w): (&f64, &f64)| if *w == 0.0 { 0.0 } else { (step(y / w) * w).abs() as f32 };
            Some(value.data.iter().zip(w.iter().cycle()).map(of).collect())
        }
        Anatomy::Elementwise(Elementwise::Rotation(_)) => {
            // Relative: the cosine, and the product with it. A product may be subnormal where its factors are not.
            let delta = inputs[0].data.iter().map(|x| (f64::sqrt(2.0) * format.unit() * x.abs()) as f32).collect();
            let least = (f64::sqrt(2.0) * step(0.0)) as f32;
            Some(of_operand(delta).into_iter().map(|d| d.hypot(least)).collect())
        }
        Anatomy::Elementwise(Elementwise::Gated(_)) => {
            let of = |(y, u): (&f64, &f64)| if *u == 0.0 { 0.0 } else { (step(y / u) * u).abs() as f32 };
            Some(value.data.iter().zip(&inputs[1].data).map(of).collect())
        }
        // The scaled scores of a softmax are operands: see `softmax`.
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => None,
        // Each sum of two parts but the last.
        Anatomy::Collective(Collective::Sum) if inputs.len() > 2 => {
            let reach = |i: usize| inputs.iter().map(|x| x.data[i].abs()).sum::<f64>();
            let rounded = (inputs.len() - 2) as f64;
            Some((0..value.data.len()).map(|i| (rounded * step(reach(i))) as f32).collect())
        }
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => None,
    }
}

/// The model's tensors as an engine holds them that rounds them when it loads them.
#[derive(Clone, Copy)]
pub struct Parameters<'a>(pub &'a dyn WeightSource, pub(super) DType);

impl WeightSource for Parameters<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        self.0.stored(tensor)
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        self.0.rows(tensor, first, out);
        if self.1 != DType::F32 {
            out.iter_mut().for_each(|w| *w = self.1.round(*w));
        }
    }
}
