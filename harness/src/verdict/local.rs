//! The local check: a stage's output against the f64 evaluation of its op on
//! that runner's own captured operands.

use super::rows::{place, row_len};
use super::tolerance::{ELEMENT_FACTOR, ROW_FACTOR};
use super::{Place, Policy};
use crate::capture::{Capture, Filter, Step};
use crate::oracle::Oracle;
use crate::runners::Arithmetic;
use qdiff_engine::model::{Graph, Node, StageId, WeightSource};
use qdiff_engine::ops::{self, Context, Linear, Op, Tensor, kv_cache, linear};
use qdiff_engine::quant::{self, ActivationFormat};
use serde::Serialize;
use std::collections::BTreeSet;

/// Rows that a linear layer evaluates at once: enough to amortise
/// dequantisation, few enough to bound memory for a vocabulary of 150,000.
const ROWS_AT_ONCE: usize = 64;

/// One runner's part in a verdict.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// What it gave.
    pub capture: &'a Capture,
    /// What it says it computes in.
    pub arithmetic: &'a Arithmetic,
}

/// One element with what it should have been.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Element {
    /// The row.
    pub place: Place,
    /// Index in the row.
    pub index: usize,
    /// The runner's value.
    pub got: f64,
    /// The f64 value.
    pub want: f64,
    /// Largest difference allowed.
    pub allowed: f64,
}

/// The local residual of one stage over a whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Local {
    /// Largest share of what is allowed, over rows and elements; above 1 the
    /// stage is wrong.
    pub used: f64,
    /// Relative L2 distance of the worst row.
    pub residual: f64,
    /// Relative L2 distance that row is allowed.
    pub allowed: f64,
    /// The worst row.
    pub at: Option<Place>,
    /// The worst element.
    pub worst: Option<Element>,
    /// First row beyond what is allowed.
    pub first_bad: Option<Place>,
    /// Positions beyond what is allowed.
    pub bad_positions: BTreeSet<usize>,
    /// Heads beyond what is allowed.
    pub bad_heads: BTreeSet<usize>,
    /// Rows judged.
    pub rows: usize,
    /// Rows beyond what is allowed.
    pub bad_rows: usize,
    /// First NaN or infinity in the output.
    pub non_finite: Option<Element>,
    /// Whether an operand was not finite already.
    pub poisoned_input: bool,
    /// Smallest rule that would have let every row pass.
    pub rule: f64,
    /// A shape other than the operands ask for.
    pub extent: Option<String>,
}

impl Local {
    /// Whether the stage does its mathematics.
    pub fn ok(&self) -> bool {
        self.used <= 1.0 && self.non_finite.is_none() && self.extent.is_none()
    }

    /// Smallest tolerance rule (relative L2 per row, and the same share of the
    /// row's largest value for one element) that would have let it pass;
    /// `None` where no rule could.
    pub fn least_tolerance(&self) -> Option<f64> {
        let possible = self.extent.is_none() && self.non_finite.is_none() && self.rule.is_finite();
        // Rounded up in the two digits it is printed with.
        possible.then_some(self.rule * 1.06)
    }

    /// Counts a row that is beyond what is allowed.
    fn note_bad(&mut self, at: Place) {
        self.bad_rows += 1;
        self.bad_positions.insert(at.position);
        self.bad_heads.extend(at.head);
        if self
            .first_bad
            .is_none_or(|first| (at.step, at.position) < (first.step, first.position))
        {
            self.first_bad = Some(at);
        }
    }
}

/// What a stage should be on one side, step by step: value and bound.
pub type Expected = Vec<Option<(Tensor<f64>, Vec<f32>)>>;

/// Evaluates `node` in f64 on the captured operands of every side, all steps.
/// `None` where an operand was not captured.
pub fn evaluate(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    sides: &[Side<'_>],
) -> Vec<Expected> {
    match &node.op {
        Op::Linear(layer) => linear_layers(layer, node, graph, weights, sides),
        Op::KvCache(cache) => sides
            .iter()
            .map(|s| caches(cache, node, graph, s))
            .collect(),
        _ => sides
            .iter()
            .map(|side| {
                let per_step = |step| pointwise(node, graph, weights, step);
                side.capture.steps.iter().map(per_step).collect()
            })
            .collect(),
    }
}

fn input(node: &Node, graph: &Graph, i: usize) -> StageId {
    graph.nodes[node.inputs[i]].id
}

fn widen(t: &Tensor<f32>) -> Tensor<f64> {
    Tensor {
        shape: t.shape.clone(),
        data: t.data.iter().map(|&v| f64::from(v)).collect(),
    }
}

fn pointwise(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    step: &Step,
) -> Option<(Tensor<f64>, Vec<f32>)> {
    let inputs: Option<Vec<Tensor<f64>>> = (0..node.inputs.len())
        .map(|i| step.stages.get(&input(node, graph, i)).map(widen))
        .collect();
    let inputs = inputs?;
    let positions = step.positions();
    let context = Context {
        tokens: &step.tokens,
        positions: &positions,
        weights,
        weight: node.weight.as_deref().unwrap_or(""),
    };
    let operands: Vec<&Tensor<f64>> = inputs.iter().collect();
    // An operand of a shape that the op cannot take has been reported at its
    // own stage.
    let shapes_fit = match (&node.op, operands.as_slice()) {
        (Op::AttnContext(_), [w, v]) => w.shape.get(2) == v.shape.first(),
        (Op::Residual | Op::SwiGlu(_), [a, b]) => a.shape == b.shape,
        _ => true,
    };
    shapes_fit.then(|| ops::forward_with_bound(&node.op, &operands, &context))
}

fn caches(op: &ops::KvCache, node: &Node, graph: &Graph, side: &Side<'_>) -> Expected {
    let row_shape: Vec<usize> = Graph::extent(node, 0, 0)[1..].to_vec();
    let mut cache = Some(Tensor::<f64>::default());
    side.capture
        .steps
        .iter()
        .map(|step| {
            let rows = step.stages.get(&input(node, graph, 0)).map(widen);
            match (&mut cache, rows) {
                (Some(cache), Some(rows)) => kv_cache::append(op, cache, &rows, &row_shape),
                (cache, _) => *cache = None,
            }
            // A cache is a copy: no rounding is allowed.
            cache.clone().map(|c| {
                let exact = vec![0f32; c.data.len()];
                (c, exact)
            })
        })
        .collect()
}

/// All rows of all steps of all sides through one pass over the weights.
fn linear_layers(
    layer: &Linear,
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    sides: &[Side<'_>],
) -> Vec<Expected> {
    let name = node.weight.as_deref().unwrap_or("");
    let ty = weights.ggml_type(name);
    let (n, m) = weights.extent(name);
    let mut rows: Vec<f64> = Vec::new();
    let mut sums: Vec<(usize, Vec<f64>)> = Vec::new();
    for side in sides {
        let format = side.arithmetic.activation(ty);
        for step in &side.capture.steps {
            let Some(x) = step.stages.get(&input(node, graph, 0)) else {
                continue;
            };
            for x in x.data.chunks_exact(n) {
                let at = rows.len();
                rows.resize(at + n, 0.0);
                quant::emulate(format, x, &mut rows[at..]);
                if format == ActivationFormat::Q8_1 {
                    let mut residuals = Vec::new();
                    quant::q8_1_sum_residuals(x, &rows[at..], &mut residuals);
                    sums.push((at / n, residuals));
                }
            }
        }
    }
    let context = Context {
        tokens: &[],
        positions: &[],
        weights,
        weight: name,
    };
    let count = rows.len() / n.max(1);
    let (mut y, mut bound) = (Vec::with_capacity(count * m), Vec::with_capacity(count * m));
    for chunk in rows.chunks(n * ROWS_AT_ONCE) {
        let x = Tensor {
            shape: vec![chunk.len() / n, n],
            data: chunk.to_vec(),
        };
        let (part, part_bound) = linear::forward_with_bound(layer, &x, &context);
        y.extend(part.data);
        bound.extend(part_bound);
    }
    add_min_sums(&mut y, &sums, m, name, weights);

    let mut done = 0;
    sides
        .iter()
        .map(|side| {
            side.capture
                .steps
                .iter()
                .map(|step| {
                    let x = step.stages.get(&input(node, graph, 0))?;
                    let t = x.data.len() / n;
                    let range = done * m..(done + t) * m;
                    done += t;
                    let value = Tensor {
                        shape: vec![t, m],
                        data: y[range.clone()].to_vec(),
                    };
                    Some((value, bound[range].to_vec()))
                })
                .collect()
        })
        .collect()
}

/// Q4_1 and Q5_1 weights are `d·q + m`; against q8_1 activations ggml takes
/// `m` times the block's sum of activations, which is stored rounded to f16.
fn add_min_sums(
    y: &mut [f64],
    sums: &[(usize, Vec<f64>)],
    m: usize,
    name: &str,
    weights: &dyn WeightSource,
) {
    if sums.is_empty() {
        return;
    }
    let ty = weights.ggml_type(name);
    let mut mins = Vec::new();
    for o in 0..m {
        mins.clear();
        quant::block_mins(ty, weights.row_bytes(name, o), &mut mins);
        for (row, residuals) in sums {
            let extra: f64 = mins
                .iter()
                .zip(residuals)
                .map(|(&m, r)| f64::from(m) * r)
                .sum();
            y[row * m + o] += extra;
        }
    }
}

/// Holds what a side gave for `node` against what it should have given.
/// `None` if the stage or its operands were not captured in any step.
pub fn residual(
    node: &Node,
    oracle: &Oracle<'_>,
    side: &Side<'_>,
    expected: &Expected,
    filter: &Filter,
    policy: &Policy,
) -> Option<Local> {
    let mut local = Local::default();
    let mut seen = false;
    for (step, expected) in side.capture.steps.iter().zip(expected) {
        let (Some(got), Some((want, bound))) = (step.stages.get(&node.id), expected) else {
            continue;
        };
        seen = true;
        // Of the first step that is not finite, the operands tell where it began.
        if local.non_finite.is_none() {
            local.poisoned_input = node.inputs.iter().any(|&i| {
                let t = step.stages.get(&oracle.graph.nodes[i].id);
                t.is_some_and(|t| t.data.iter().any(|v| !v.is_finite()))
            });
        }
        if got.data.len() != want.data.len() {
            if local.extent.is_none() {
                local.extent = Some(format!(
                    "shape {:?} where {:?} is expected, from {} on",
                    got.shape,
                    want.shape,
                    step.label()
                ));
            }
            local.used = f64::INFINITY;
            local.residual = f64::INFINITY;
            local.worst = None;
            for position in step.first..step.keys() {
                local.note_bad(Place {
                    step: step.index,
                    position,
                    head: None,
                });
            }
            continue;
        }
        if local.extent.is_some() {
            continue;
        }
        judge_rows(
            node,
            step,
            (got, want, bound),
            filter,
            policy.rule(node.id),
            &mut local,
        );
    }
    seen.then_some(local)
}

fn judge_rows(
    node: &Node,
    step: &Step,
    (got, want, bound): (&Tensor<f32>, &Tensor<f64>, &[f32]),
    filter: &Filter,
    rule: Option<f64>,
    local: &mut Local,
) {
    let n = row_len(&got.shape);
    for r in 0..got.data.len() / n {
        let at = place(node, &got.shape, step, r);
        if !filter.position(at.position) {
            continue;
        }
        local.rows += 1;
        // Scores beyond the diagonal carry no meaning.
        let range = r * n..r * n + super::rows::judged_len(node, at, n);
        let (got, want, bound) = (
            &got.data[range.clone()],
            &want.data[range.clone()],
            &bound[range],
        );
        let row = Row::new(got, want, bound, rule);
        if let Some(index) = got.iter().position(|v| !v.is_finite()) {
            let (got, want) = (f64::from(got[index]), want[index]);
            local.non_finite.get_or_insert(Element {
                place: at,
                index,
                got,
                want,
                allowed: 0.0,
            });
            local.note_bad(at);
            continue;
        }
        local.rule = local.rule.max(row.rule);
        if row.used > 1.0 {
            local.note_bad(at);
        }
        if local.at.is_none() || row.used > local.used {
            local.used = row.used;
            local.residual = row.residual;
            local.allowed = row.allowed;
            local.at = Some(at);
            let index = row.worst;
            local.worst = Some(Element {
                place: at,
                index,
                got: f64::from(got[index]),
                want: want[index],
                allowed: row.worst_allowed,
            });
        }
    }
}

struct Row {
    used: f64,
    residual: f64,
    allowed: f64,
    worst: usize,
    worst_allowed: f64,
    rule: f64,
}

impl Row {
    fn new(got: &[f32], want: &[f64], bound: &[f32], rule: Option<f64>) -> Self {
        let (mut d2, mut y2, mut b2, mut largest) = (0f64, 0f64, 0f64, 0f64);
        for ((g, w), b) in got.iter().zip(want).zip(bound) {
            d2 += (f64::from(*g) - w).powi(2);
            y2 += w * w;
            b2 += f64::from(*b).powi(2);
            largest = largest.max(w.abs());
        }
        let element_allowed = |b: f32| match rule {
            Some(rule) => rule * largest,
            None => ELEMENT_FACTOR * f64::from(b),
        };
        let row_allowed = match rule {
            Some(rule) => rule * y2.sqrt(),
            None => ROW_FACTOR * b2.sqrt(),
        };
        let (mut used, mut worst) = (share(d2.sqrt(), row_allowed), 0);
        let mut worst_share = -1.0;
        let mut rule_needed = share(d2.sqrt(), y2.sqrt());
        for (i, ((g, w), b)) in got.iter().zip(want).zip(bound).enumerate() {
            let s = share((f64::from(*g) - w).abs(), element_allowed(*b));
            if s > worst_share {
                (worst_share, worst) = (s, i);
            }
            rule_needed = rule_needed.max(share((f64::from(*g) - w).abs(), largest));
        }
        used = used.max(worst_share);
        let scale = if y2 > 0.0 { y2.sqrt() } else { 1.0 };
        Self {
            used,
            residual: d2.sqrt() / scale,
            allowed: row_allowed / scale,
            worst,
            rule: rule_needed,
            worst_allowed: bound.get(worst).map_or(0.0, |b| element_allowed(*b)),
        }
    }
}

/// Share of what is allowed; nothing is allowed of nothing.
fn share(difference: f64, allowed: f64) -> f64 {
    if !difference.is_finite() || allowed.is_nan() || allowed.is_infinite() {
        // A finite value where f64, on operands that are not, has none.
        f64::INFINITY
    } else if difference == 0.0 {
        0.0
    } else if allowed > 0.0 {
        difference / allowed
    } else {
        f64::INFINITY
    }
}
