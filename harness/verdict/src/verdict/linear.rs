//! Linear layers in the arithmetic of a runner: activations quantised as it
//! does, and the weights as its kernels see them.

use super::grain::Parameters;
use super::operands::{Operand, uncancelled, widen};
use super::source::{Block, Sink, Source, Stage};
use super::ties::{self, Undecided};
use crate::arithmetic::LinearRule;
use crate::products::{Layer, Reading};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::Node;
use qdiff_engine::ops::{Context, Tensor, UNIT};
use qdiff_engine::quant::{self, ActivationFormat, AsMultiplied, GgmlType, WithoutOffsets};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// Rows that a linear layer evaluates at once: enough to amortise
/// dequantisation, few enough to bound memory for a vocabulary of 150,000.
pub(super) const ROWS_AT_ONCE: usize = 64;

/// One step of f16, relative.
const HALF_STEP: f64 = 1.0 / 1024.0;

/// A batch of rows of any steps and sides, for one pass over the weights.
pub(super) struct Batch<'a> {
    stage: Stage<'a>,
    /// What multiplies.
    layer: Layer<'a>,
    /// The layer's weight.
    name: &'a str,
    /// Inputs and outputs of the layer.
    extent: (usize, usize),
    /// Rows that it gives for each token.
    lines: usize,
    rows: Vec<f64>,
    /// Rows of one arithmetic after those of another, which all read the weights alike.
    lots: Vec<Lot<'a>>,
}

/// Rows of one arithmetic.
struct Lot<'a> {
    rule: LinearRule,
    /// What the weights were rounded to.
    parameters: DType,
    deltas: Vec<f32>,
    /// Per row, what its blocks' stored sums are more than their elements, and how uncertain the sums are.
    sums: Vec<(Vec<f64>, Vec<f64>)>,
    /// Rows of it of which a rounding must be read off the outputs.
    undecided: Vec<Undecided>,
    /// Where the rows come from: blocks that wait for their values.
    parts: Vec<Block<'a>>,
}

/// Rows that a layer is applied to.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    /// As the runner holds them.
    pub(super) narrow: &'a [f32],
    /// Their values, where they were evaluated.
    pub(super) computed: Option<&'a [f64]>,
    /// How uncertain they are.
    pub(super) delta: Option<&'a [f32]>,
}

impl<'a> Lines<'a> {
    /// All rows of an operand, which are `narrow` as the runner holds them.
    pub(super) fn of(x: &'a Operand<'_>, narrow: &'a [f32]) -> Self {
        let computed = match x {
            Operand::Captured(_) | Operand::Stored(..) => None,
            Operand::Computed(value, _) => Some(value.data.as_slice()),
        };
        Self { narrow, computed, delta: x.delta() }
    }

    /// These elements.
    pub(super) fn part(&self, range: &Range<usize>) -> Self {
        let Self { narrow, computed, delta } = self;
        Self {
            narrow: &narrow[range.clone()],
            computed: computed.map(|all| &all[range.clone()]),
            delta: delta.map(|all| &all[range.clone()]),
        }
    }
}

/// Evaluates the layer on all rows of all sides.
pub(super) fn layers(stage: Stage<'_>, sides: &[Source<'_>], sink: &mut Sink<'_>) -> ControlFlow<()> {
    let name = stage.node.weights[0].name.as_str();
    let (ty, extent) = (stage.weights.ggml_type(name), stage.weights.extent(name));
    let mut batch = Batch::new(stage, extent, 1);
    for of in sides {
        for &index in &of.steps {
            let step = of.step(index);
            let Some(x) = of.operand(stage.graph, stage.node.inputs[0], index, &(0..step.rows())) else {
                continue;
            };
            if x.shape().iter().product::<usize>() != step.rows() * extent.0 {
                continue;
            }
            let rule = of.side.arithmetic.linear(ty, step.tokens.len());
            let parameters = of.side.arithmetic.parameters;
            let narrow = of.side.capture.rounding.output(stage.node.id);
            let poisoned = !x.finite();
            let coarse = rule.coarse() || x.delta().is_some() || narrow != DType::F32;
            let narrow_x = x.narrow();
            let x = Lines::of(&x, &narrow_x);
            let mut from = 0;
            while from < step.rows() {
                let rows = of.next_rows(index, from, batch.room());
                from = rows.end;
                if rows.is_empty() {
                    break;
                }
                if !of.asked(step, &rows) {
                    continue;
                }
                let elements = rows.start * extent.0..rows.end * extent.0;
                // Filled in with the values.
                let terms = (coarse && !rule.coarse() && of.computed.is_none()).then(|| Cow::Owned(Vec::new()));
                let block = Block { poisoned, coarse, terms, ..of.block(index, rows) };
                if !batch.takes(&rule, parameters) {
                    batch.flush(sink)?;
                }
                batch.add(x.part(&elements), block, (&rule, parameters));
                if batch.room() == 0 {
                    batch.flush(sink)?;
                }
            }
        }
    }
    batch.flush(sink)
}

impl<'a> Batch<'a> {
    /// For a layer of `extent` inputs and outputs that is applied to so many rows for each token.
    pub(super) fn new(stage: Stage<'a>, extent: (usize, usize), lines: usize) -> Self {
        let (layer, name) = (stage.products.layer(stage.node.id), stage.node.weights[0].name.as_str());
        Self { stage, layer, name, extent, lines, rows: Vec::new(), lots: Vec::new() }
    }

    pub(super) fn room(&self) -> usize {
        ROWS_AT_ONCE - self.rows.len() / self.extent.0
    }

    /// Whether rows of this arithmetic read the weights as those do that are there.
    pub(super) fn takes(&self, rule: &LinearRule, parameters: DType) -> bool {
        self.lots.last().is_none_or(|lot| {
            let alike = || self.readings(lot.parameters, &lot.rule).0 == self.readings(parameters, rule).0;
            // A fault in the place of the product may depend on how weights are read in any way.
            (&lot.rule, lot.parameters) == (rule, parameters) || self.stage.node.faults.compute.is_none() && alike()
        })
    }

    /// Adds the rows `x`, whose results are those that `part` counts: rows of the step, or lines of all its rows.
    pub(super) fn add(&mut self, x: Lines<'_>, part: Block<'a>, (rule, parameters): (&LinearRule, DType)) {
        if self.lots.last().is_none_or(|lot| (&lot.rule, lot.parameters) != (rule, parameters)) {
            let (deltas, sums, undecided, parts) = Default::default();
            self.lots.push(Lot { rule: rule.clone(), parameters, deltas, sums, undecided, parts });
        }
        let Some(lot) = self.lots.last_mut() else { return };
        let n = self.extent.0;
        let format = rule.activations;
        let Lines { narrow, computed, delta } = x;
        let from = self.rows.len();
        if format == ActivationFormat::F32 {
            lot.parts.push(part);
            lot.deltas.extend(quant::uncertainty(format, narrow, delta));
            match computed {
                None => self.rows.extend(narrow.iter().map(|&v| f64::from(v))),
                Some(values) => self.rows.extend_from_slice(values),
            }
            return;
        }
        self.rows.resize(from + narrow.len(), 0.0);
        quant::emulate(format, narrow, &mut self.rows[from..]);
        let settled = delta.is_none() && lot.settles(self.stage.node, (self.extent, self.lines), &part, narrow);
        lot.parts.push(part);
        lot.deltas.extend(if settled {
            quant::settled(format, &self.rows[from..])
        } else {
            quant::uncertainty(format, narrow, delta)
        });
        for (r, row) in narrow.chunks_exact(n).enumerate() {
            let mut residuals = Vec::new();
            let values = &self.rows[from + r * n..][..n];
            quant::sum_residuals(format, row, values, &mut residuals);
            let uncertain = match delta {
                Some(delta) if !residuals.is_empty() => delta[r * n..][..n]
                    .chunks_exact(32)
                    .zip(row.chunks_exact(32))
                    .map(|(d, x)| {
                        let spread: f64 = d.iter().map(|d| f64::from(*d).powi(2)).sum();
                        // The sum is stored as f16, and a tie may be near.
                        let sum: f64 = x.iter().map(|v| f64::from(*v)).sum();
                        spread.sqrt() + sum.abs() * HALF_STEP
                    })
                    .collect(),
                _ => vec![0.0; residuals.len()],
            };
            lot.sums.push((residuals, uncertain));
        }
    }

    pub(super) fn flush(&mut self, sink: &mut Sink<'_>) -> ControlFlow<()> {
        let (n, m) = self.extent;
        let lots = std::mem::take(&mut self.lots);
        let Some(first) = lots.first() else { return ControlFlow::Continue(()) };
        let Stage { node, weights, .. } = self.stage;
        let rounded = Parameters(weights, first.parameters);
        let source = AsMultiplied(&rounded, first.rule.activations);
        let context = Context { tokens: &[], positions: &[], history: &[], source: &source, weights: &node.weights };
        let shape = vec![self.rows.len() / n, n];
        let x = Tensor { shape, data: std::mem::take(&mut self.rows) };
        let (mut y, mut bound) = match &node.faults.compute {
            Some(fault) => fault(&[&x], &context),
            None => self.layer.with_bound(&x, &context, self.readings(first.parameters, &first.rule).0),
        };
        let mut done = 0;
        for lot in lots {
            let count = lot.rows();
            let (rows, outputs) = (done * n..(done + count) * n, done * m..(done + count) * m);
            self.give(lot, &x.data[rows], &mut y.data[outputs.clone()], &mut bound[outputs], sink)?;
            done += count;
        }
        ControlFlow::Continue(())
    }

    /// Gives a lot, whose rows are `x`, with what they become.
    fn give(
        &mut self, lot: Lot<'a>, x: &[f64], y: &mut [f64], bound: &mut [f32], sink: &mut Sink<'_>,
    ) -> ControlFlow<()> {
        let ((n, m), Lot { rule, parameters, deltas, .. }) = (self.extent, &lot);
        let Stage { node, weights, .. } = self.stage;
        let (all, some) = self.readings(*parameters, rule);
        let weights = &Parameters(weights, *parameters);
        let source = AsMultiplied(weights, rule.activations);
        // A doubt about an element does not reach the sum stored before.
        let by_element = WithoutOffsets(AsMultiplied(weights, rule.activations));
        let context = Context { tokens: &[], positions: &[], history: &[], source: &source, weights: &node.weights };
        let shape = || vec![x.len() / n, n];
        let terms = lot.parts.iter().any(|part| part.terms.is_some()).then(|| uncancelled(bound, n));
        let layer = &mut self.layer;
        rule.accumulation.widen(bound, n, y, || {
            // As uncertain operands do that are uncertain by all they are.
            let x = Tensor { shape: shape(), data: x.iter().map(|v| v.abs() as f32).collect() };
            layer.propagate_error(&x, &context, all)
        });
        if deltas.iter().any(|d| *d > 0.0) {
            let dx = Tensor { shape: shape(), data: deltas.clone() };
            let context = Context { source: &by_element, ..context };
            widen(bound, layer.propagate_error(&dx, &context, some));
        }
        self.add_sums(&lot, x, y, bound);
        self.apart(&lot, x, bound);
        ties::settle(&lot.undecided, (&by_element, self.name), y);
        let unit = ActivationFormat::from(rule.output).unit().unwrap_or(0.0);
        if unit > 0.0 {
            widen(bound, y.iter().map(|y| (unit * y.abs()) as f32));
        }
        let mut done = 0;
        for part in lot.parts {
            let count = part.rows.len();
            let range = done * m..(done + count) * m;
            done += count;
            sink(Block {
                value: Cow::Owned(Tensor { shape: vec![count, m], data: y[range.clone()].to_vec() }),
                bound: Cow::Borrowed(&bound[range.clone()]),
                terms: part.terms.and_then(|_| Some(Cow::Borrowed(&terms.as_ref()?[range]))),
                ..part
            })?;
        }
        ControlFlow::Continue(())
    }

    /// How weights are read, with the offsets that meet stored sums and without. Few are read otherwise than they are.
    fn readings(&self, parameters: DType, rule: &LinearRule) -> (Reading, Reading) {
        let (ty, format) = (self.stage.weights.ggml_type(self.name), rule.activations);
        let offsets = quant::takes_sums(ty, format);
        let format = if offsets || ty == GgmlType::F32 { format } else { ActivationFormat::F32 };
        ((parameters, format, false), (parameters, format, offsets))
    }

    /// What offsets that are added up apart add to the bound: a sum of them may be large, and the sum that it is taken from as
    /// large, where the weights themselves are small. Each product of a super-block is rounded, and so is its place in the sum.
    fn apart(&self, Lot { rule, .. }: &Lot<'_>, x: &[f64], bound: &mut [f32]) {
        let ((n, m), weights) = (self.extent, self.stage.weights);
        let ty = weights.ggml_type(self.name);
        let Some(run) = quant::run_of_offsets(ty, rule.activations) else { return };
        let sums: Vec<f64> = x.chunks_exact(run).map(|run| run.iter().sum()).collect();
        let runs = ty.block_size() / run;
        let reach: Vec<Vec<f32>> = (0..m)
            .into_par_iter()
            .map(|o| {
                let offsets = quant::offsets(ty, weights.row_bytes(self.name, o));
                let of_runs: Vec<f64> = offsets.iter().step_by(run).map(|offset| f64::from(*offset)).collect();
                let of_block = |(offsets, sums): (&[f64], &[f64])| -> f64 {
                    let sum: f64 = offsets.iter().zip(sums).map(|(offset, sum)| offset * sum).sum();
                    (3.0 * UNIT * sum).powi(2)
                };
                let of_row = |sums: &[f64]| {
                    let blocks = of_runs.chunks(runs).zip(sums.chunks(runs));
                    blocks.map(of_block).sum::<f64>().sqrt() as f32
                };
                sums.chunks_exact(n / run).map(of_row).collect()
            })
            .collect();
        for (o, of_output) in reach.into_iter().enumerate() {
            for (row, more) in of_output.into_iter().enumerate() {
                let b = &mut bound[row * m + o];
                *b = b.hypot(more);
            }
        }
    }

    /// Kernels take the offsets of the weights times the block's stored sum of
    /// activations, not times the sum of what the activations became.
    fn add_sums(&self, Lot { rule, sums, .. }: &Lot<'_>, x: &[f64], y: &mut [f64], bound: &mut [f32]) {
        let ((n, m), format) = (self.extent, rule.activations);
        let weights = self.stage.weights;
        let ty = weights.ggml_type(self.name);
        if !quant::takes_sums(ty, format) {
            return;
        }
        let corrections: Vec<Vec<(f64, f64)>> = (0..m)
            .into_par_iter()
            .map(|o| {
                let bytes = weights.row_bytes(self.name, o);
                let mut offsets = Vec::new();
                quant::block_offsets(ty, format, bytes, &mut offsets);
                let rows = sums.iter().zip(x.chunks_exact(n));
                rows.map(|((residuals, uncertain), values)| {
                    let (mut extra, mut reach) = (0f64, 0f64);
                    let mut stored = Vec::with_capacity(residuals.len());
                    let blocks = residuals.iter().zip(uncertain).zip(values.chunks_exact(32));
                    for (((r, u), x), m) in blocks.zip(&offsets) {
                        let s = r + x.iter().sum::<f64>();
                        stored.push(s);
                        let m = f64::from(*m);
                        extra += m * r;
                        // The product has a rounding of its own, and may cancel.
                        reach += (m * u).powi(2) + (2.0 * UNIT * m * s).powi(2);
                    }
                    extra += quant::half_products(ty, format, bytes, values, &stored);
                    (extra, reach)
                })
                .collect()
            })
            .collect();
        for (o, of_output) in corrections.into_iter().enumerate() {
            for (row, (extra, reach)) in of_output.into_iter().enumerate() {
                y[row * m + o] += extra;
                let b = &mut bound[row * m + o];
                *b = b.hypot(reach.sqrt() as f32);
            }
        }
    }
}

impl Lot<'_> {
    /// How many rows there are.
    fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.rows.len()).sum()
    }

    /// Notes the ties of exact rows `x` together with what the runner made of them, where that was captured. `n` and `m`
    /// are inputs and outputs of the layer, and `lines` what it gives for each token.
    fn settles(&mut self, node: &Node, ((n, m), lines): ((usize, usize), usize), part: &Block<'_>, x: &[f32]) -> bool {
        let first = self.rows();
        let given = part.step.stages.get(&node.id);
        let width = lines * m;
        let whole =
            |shape: &[usize]| shape.first() == Some(&part.step.rows()) && shape[1..].iter().product::<usize>() == width;
        let given = given.filter(|g| whole(g.shape()));
        // What a tie would change is known of the layer itself alone.
        let Some(given) = given.filter(|_| node.faults.compute.is_none()) else {
            return false;
        };
        for (r, x) in x.chunks_exact(n).enumerate() {
            let ties = quant::ties(self.rule.activations, x);
            if !ties.is_empty() {
                let (token, line) = ((part.rows.start + r) / lines, (part.rows.start + r) % lines);
                let given = given.slice(0, token..token + 1).data[line * m..(line + 1) * m].to_vec();
                self.undecided.push(Undecided { row: first + r, ties, given });
            }
        }
        true
    }
}
