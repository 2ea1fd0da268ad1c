//! One wrong element worked out: its operands, what a right kernel makes of them, and what the engine gave.

use super::super::work::Meter;
use super::scene::Scene;
use super::terms::Sums;
use crate::number::{Float, Real};
use crate::verdict::{Evidence, right, tolerance::ELEMENT_FACTOR};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, RowReduction};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Numbers of one operand that are kept.
const KEPT: usize = 32_768;

/// Terms that a short table has.
const SHORT: usize = 8;

/// Lists of numbers, each with its name.
type Lists = Vec<(String, Vec<f32>)>;

/// The same as a report keeps them.
pub type Operands = Vec<(String, Vec<Real>)>;

/// A wrong element, worked out.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Example {
    /// Position of its token.
    pub position: usize,
    /// Its head, of a stage whose rows are heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<usize>,
    /// Its index in the row.
    pub element: usize,
    /// What the engine gave.
    #[serde(with = "Real")]
    pub got: f64,
    /// What it should be.
    #[serde(with = "Real")]
    pub right: f64,
    /// How far rounding may move it.
    #[serde(with = "Real")]
    pub allowed: f64,
    /// The formula, in words.
    pub formula: String,
    /// What each list of numbers is, and the numbers, as the engine gave or holds them.
    pub operands: Operands,
    /// Whether it is the sum of the products of the two operands, one by one.
    pub products: bool,
    /// Numbers that the longest of these lists has in all; only the first of very many are kept.
    pub numbers: usize,
}

impl Example {
    /// The element that is furthest beyond what is allowed, of those that are numbers.
    pub(in crate::diagnose) fn of(e: &Evidence<'_>) -> Option<Self> {
        let beyond =
            |got: f32, want: f64, bound: f32| (f64::from(got) - want).abs() / f64::from(bound.max(f32::MIN_POSITIVE));
        let mut worst: Option<(f64, usize, usize)> = None;
        for (r, row) in e.rows.iter().enumerate().filter(|(_, row)| row.bad) {
            let (got, want, bound) = e.row(row);
            for i in (0..got.len()).filter(|&i| got[i].is_finite() && !right(got[i], want[i], bound[i])) {
                let by = beyond(got[i], want[i], bound[i]);
                if worst.is_none_or(|(most, ..)| by > most) {
                    worst = Some((by, r, i));
                }
            }
        }
        let (_, r, i) = worst?;
        let row = &e.rows[r];
        let (got, want, bound) = e.row(row);
        let (formula, operands) = operands(e, (r, i))?;
        Some(Self {
            position: row.place.position,
            head: row.place.head,
            element: i,
            got: f64::from(got[i]),
            right: want[i],
            allowed: ELEMENT_FACTOR * f64::from(bound[i]),
            formula: formula.to_owned(),
            products: matches!(e.node.op.anatomy(), Anatomy::Contraction(_)),
            numbers: operands.iter().map(|(_, values)| values.len()).max().unwrap_or(0),
            operands: operands
                .into_iter()
                .map(|(name, values)| (name, values.into_iter().take(KEPT).map(|x| Real(x.decimal())).collect()))
                .collect(),
        })
    }

    /// As Markdown: with every number, or with the largest terms alone.
    pub fn markdown(&self, whole: bool) -> String {
        let head = self.head.map_or_else(String::new, |head| format!(", head {head}"));
        let mut text = format!("Position {}{head}, element {}: {}\n\n", self.position, self.element, self.formula);
        match self.operands.as_slice() {
            [(a, left), (b, right)] if self.products => {
                let mut order: Vec<usize> = (0..left.len().min(right.len())).collect();
                let held = |x: Real| f64::from(f32::narrow(x.0));
                let product = |k: usize| held(left[k]) * held(right[k]);
                let all = order.len();
                if !whole && all > SHORT {
                    order.sort_by(|i, j| product(*j).abs().total_cmp(&product(*i).abs()));
                    order.truncate(SHORT);
                    order.sort_unstable();
                }
                let _ = writeln!(text, "| k | {a} | {b} | product |\n| ---: | ---: | ---: | ---: |");
                for k in &order {
                    let _ = writeln!(text, "| {k} | {} | {} | {:e} |", left[*k].0, right[*k].0, product(*k));
                }
                if all < self.numbers {
                    let left = self.numbers - all;
                    let _ = writeln!(text, "| {left} more | | | the report holds only the first {all} |");
                } else if order.len() < all {
                    let rest: f64 = (0..all).filter(|k| !order.contains(k)).map(product).sum();
                    let _ = writeln!(text, "| {} others | | | {rest:e} |", all - order.len());
                }
                if all == self.numbers {
                    let _ = writeln!(text, "| sum | | | {:e} |", (0..all).map(product).sum::<f64>());
                }
            }
            others => {
                for (name, values) in others {
                    let shown = if whole { values.len() } else { values.len().min(SHORT) };
                    let list: Vec<String> = values.iter().take(shown).map(|x| x.0.to_string()).collect();
                    let more =
                        if shown < values.len() { format!(", … ({} in all)", values.len()) } else { String::new() };
                    let _ = writeln!(text, "- {name}: {}{more}", list.join(", "));
                }
            }
        }
        let _ = writeln!(
            text,
            "\n- the right value: {} (rounding may change it by {:e})\n- the engine's value: {}",
            self.right, self.allowed, self.got
        );
        text
    }
}

/// What an element is made of: the formula, and the operands by name.
fn operands(e: &Evidence<'_>, (r, i): (usize, usize)) -> Option<(&'static str, Lists)> {
    let meter = Meter::new(u64::MAX);
    let scene = Scene::of(e, &meter);
    let (row, graph) = (&e.rows[r], &e.oracle.graph);
    let name = |k: usize| graph.nodes[e.node.inputs[k]].id.to_string();
    let narrow = |values: Vec<f64>| values.into_iter().map(|v| v as f32).collect::<Vec<f32>>();
    let (token, from) = scene.token(row);
    // Element `at` of the token's vector of operand `k`.
    let element = |k: usize, at: usize| -> Option<f32> { e.operand(row, k)?.get(at).copied() };
    let weight = |at: usize| -> Option<f32> {
        let weight = e.node.weights.first()?;
        let vector = scene.vector(&weight.name, *weight.extent.first()?);
        vector.get(at % vector.len().max(1)).copied()
    };
    Some(match e.node.op.anatomy() {
        Anatomy::Contraction(contraction) => {
            let (a, b) = Sums::new(&scene)?.of_output(row, i)?;
            let (formula, left, right) = match contraction {
                Contraction::Scores(_) => ("the sum of the products of query and key", name(0), name(1)),
                Contraction::Context(_) => ("the sum of the products of weights and values", name(0), name(1)),
                _ => (
                    "the sum of the products of weights and inputs",
                    format!("{} [{}]", e.node.weights.first()?.name, from + i),
                    name(0),
                ),
            };
            (formula, vec![(left, narrow(a)), (right, narrow(b))])
        }
        Anatomy::RowReduction(RowReduction::MeanSquare(norm)) => {
            let run = scene.width()? / norm.groups;
            let x = e.operand(row, 0)?;
            let first = (from + i) / run * run;
            let x = x.get(first..first + run)?.to_vec();
            let own = x.get((from + i) % run).copied()?;
            let all = vec![
                (name(0), x),
                ("the element itself".to_owned(), vec![own]),
                (e.node.weights.first()?.name.clone(), vec![weight((from + i) % run)?]),
                ("ε".to_owned(), vec![norm.eps as f32]),
            ];
            ("the element over the root of the mean of squares plus ε, times the weight", all)
        }
        Anatomy::RowReduction(RowReduction::Exponentials(softmax)) => {
            let scores = scene.operand(row.step, 0)?;
            let (n, layout) = (*scores.shape.last()?, scene.layout());
            let head = row.place.head?;
            let seen = (0..n.min(row.place.position + 1))
                .map(|k| scores.data[layout.at(&scores.shape, token, head * n + k)])
                .collect();
            (
                "exp(scale × score), divided by the sum of exp(scale × score) over all visible keys",
                vec![(name(0), seen), ("the scale".to_owned(), vec![softmax.scale as f32])],
            )
        }
        Anatomy::Elementwise(kind) => {
            let at = from + i;
            let formula = match kind {
                Elementwise::Sum => "the sum of two elements",
                Elementwise::Offset => "the element plus the bias",
                Elementwise::Gated(_) => "the activation of the first operand, times the second",
                Elementwise::Rotation(rope) if rope.plane(at % rope.head_dim).is_none() => {
                    "the element, which does not turn"
                }
                Elementwise::Rotation(_) => {
                    "the pair that holds the element, rotated by the angle position × frequency, and multiplied by the magnitude"
                }
                Elementwise::Function(1) => "a function of the element",
                Elementwise::Function(_) => "a function of an element of each operand",
            };
            let mut all: Lists =
                (0..e.node.inputs.len()).filter_map(|k| Some((name(k), vec![element(k, at)?]))).collect();
            if let Elementwise::Rotation(rope) = kind {
                let (x, of_head) = (e.operand(row, 0)?, at % rope.head_dim);
                if let Some((plane, [a, b])) = rope.plane(of_head) {
                    let pair = [a, b].map(|i| x.get(at - of_head + i).copied());
                    all = vec![
                        (name(0), vec![pair[0]?, pair[1]?]),
                        ("the position".to_owned(), vec![row.place.position as f32]),
                        ("the frequency".to_owned(), vec![rope.frequencies::<f64>()[plane] as f32]),
                        ("the magnitude".to_owned(), vec![rope.magnitude() as f32]),
                    ];
                }
            }
            if let (Elementwise::Offset, Some(own)) = (kind, e.node.weights.first()) {
                all.push((own.name.clone(), vec![weight(at)?]));
            }
            // Within a segment.
            if all.is_empty() {
                (
                    "its operands were not captured, so the sum cannot be shown: dump the stages that it reads (`verdict.stages[].inputs` of the JSON report)",
                    all,
                )
            } else {
                (formula, all)
            }
        }
        Anatomy::State(_)
        | Anatomy::Gather(_)
        | Anatomy::RowReduction(_)
        | Anatomy::Decision(_)
        | Anatomy::Collective(_) => return None,
    })
}
