//! Sums that are not the right ones: the right value times a factor, plus a multiple of another vector. Both numbers are
//! fitted by least squares and must be the same for every wrong element.

use super::form::{Form, of_layer, weight_of_layer};
use super::index::beside;
use super::scene::{Layout, Scene};
use super::{Alternative, Law, Row, short};
use crate::verdict::RowAt;
use qdiff_engine::model::{Axis, Node, StageId};
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{Anatomy, UNIT};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A share of the right value that is none.
const NOTHING: f64 = 1e-6;

/// `a` times the right value plus `b` times something else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sum {
    /// Factor of the right value.
    a: f64,
    /// Factor of the other one.
    b: f64,
    /// What is added.
    other: Addend,
    /// Whether the stage adds that anyway.
    own: bool,
}

/// The second vector of a sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Addend {
    /// None: a factor alone.
    Nothing,
    /// One, in every element.
    One,
    /// Another stage of the step, of the token so many rows away.
    Stage(StageId, i64),
    /// A vector of the model.
    Weight(String),
    /// The stage's own right value of the token so many rows away.
    Token(i64),
    /// The stage's own right value of the column so many further on, wrapping around.
    Column(i64),
    /// That of the column so many apart, in pairs.
    Pair(usize),
    /// What it changes of an operand if that is multiplied by a stage with one number a token: (g − 1) times it.
    Gated {
        /// The operand.
        of: StageId,
        /// The stage with the factors g.
        by: StageId,
    },
    /// What it changes of the stage's own right value if that is multiplied by a stage with one number a token.
    Times(StageId),
    /// What the step before left at the same place.
    Before,
    /// What the step before left in its last row.
    LastBefore,
}

impl Addend {
    fn values(&self, scene: &Scene<'_>, row: &RowAt) -> Option<Vec<f64>> {
        Some(self.bounded(scene, row)?.0)
    }

    /// The values, and how far off they may be: a right value of the stage is as uncertain as its bound says.
    fn bounded(&self, scene: &Scene<'_>, row: &RowAt) -> Option<(Vec<f64>, Vec<f32>)> {
        let (token, from) = scene.token(row);
        let all = from..from + row.range.len();
        let wide = |part: &[f32]| part.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let exact: Option<Vec<f64>> = match self {
            Self::Nothing => Some(vec![0.0; row.range.len()]),
            Self::One => Some(vec![1.0; row.range.len()]),
            Self::Weight(name) => scene.shared_vector(name)?.get(all).map(wide),
            Self::Token(_) | Self::Column(_) | Self::Pair(_) => {
                let (value, bound) = scene.e.expected[row.step].as_ref()?;
                let layout = scene.layout();
                let (tokens, _, width) = layout.extents(&value.shape);
                let place = |j: usize| match self {
                    Self::Token(by) => {
                        let number = usize::try_from(scene.number(row.step, token).0 as i64 + by).ok()?;
                        Some((scene.numbered(row.step, number).filter(|t| *t < tokens)?, j))
                    }
                    Self::Column(by) => Some((token, (j as i64 + by).rem_euclid(width as i64) as usize)),
                    Self::Pair(by) if j ^ by < width => Some((token, j ^ by)),
                    _ => Some((token, j)),
                };
                let at = |j: usize| place(j).map(|(t, j)| layout.at(&value.shape, t, j));
                return all.map(|j| at(j).map(|at| (value.data[at], bound[at]))).collect();
            }
            Self::Before => {
                let tensor = scene.tensor(row.step.checked_sub(1)?, scene.node().id)?;
                tensor.data.get(row.range.clone()).map(wide)
            }
            Self::LastBefore => {
                let tensor = scene.tensor(row.step.checked_sub(1)?, scene.node().id)?;
                let (layout, last) = (scene.layout(), scene.layout().extents(&tensor.shape).0.checked_sub(1)?);
                Some(all.map(|j| f64::from(tensor.data[layout.at(&tensor.shape, last, j)])).collect())
            }
            Self::Times(by) => {
                let ((_, want, bound), factor) = (scene.e.row(row), factor(scene, (row.step, token), *by)? - 1.0);
                let off = want.iter().zip(bound).map(|(v, b)| b * factor.abs() as f32 + (2.0 * UNIT * v.abs()) as f32);
                return Some((want.iter().map(|v| v * factor).collect(), off.collect()));
            }
            Self::Gated { of, by } => {
                let factor = factor(scene, (row.step, token), *by)? - 1.0;
                let (values, _) = Self::Stage(*of, 0).bounded(scene, row)?;
                // The product is rounded, and may cancel out in the sum.
                let off = values.iter().map(|v| (2.0 * UNIT * v.abs()) as f32).collect();
                return Some((values.into_iter().map(|v| v * factor).collect(), off));
            }
            Self::Stage(id, by) => {
                let graph = &scene.e.oracle.graph;
                let layout = Layout::of(&graph.nodes[graph.index(*id)?]);
                let tensor = scene.tensor(row.step, *id)?;
                let (tokens, _, width) = layout.extents(&tensor.shape);
                let token = usize::try_from(token as i64 + by).ok().filter(|t| *t < tokens)?;
                (all.end <= width)
                    .then(|| all.map(|j| f64::from(tensor.data[layout.at(&tensor.shape, token, j)])).collect())
            }
        };
        exact.map(|values| (values, vec![0.0; row.range.len()]))
    }
}

impl fmt::Display for Addend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::One => f.write_str("1"),
            Self::Weight(name) => f.write_str(name),
            Self::Token(by) => write!(f, "the right value of the {} in the part", beside("token", *by)),
            Self::Column(by) => write!(f, "the right value of the {}, wrapping around,", beside("column", *by)),
            Self::Pair(by) => write!(f, "the right value of the column {by} apart, in pairs,"),
            Self::Gated { of, by } => write!(f, "({by} − 1) times {of}"),
            Self::Times(by) => write!(f, "({by} − 1) times the right value"),
            Self::Before => f.write_str("what the step before left in the buffer"),
            Self::LastBefore => f.write_str("the last row of the step before"),
            Self::Stage(id, 0) => write!(f, "{id}"),
            Self::Stage(id, by) => write!(f, "{id} of the {} in the part", beside("token", *by)),
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, other, own } = self;
        match (other, *a, *b) {
            (Addend::Nothing, -1.0, _) => f.write_str("the sign is wrong"),
            // Of so little the sign and the last digit are those of rounding.
            (Addend::Nothing, a, _) if a.abs() < NOTHING => f.write_str("next to nothing of the right value is left"),
            (Addend::Nothing, a, _) => write!(f, "the right value times {} is there instead", short(a)),
            (Addend::One, 1.0, b) => write!(f, "a constant is added: {}", short(b)),
            (Addend::One, a, b) => write!(f, "the right value times {} plus {} is there instead", short(a), short(b)),
            (Addend::Times(by), 1.0, 1.0) => write!(f, "the result is multiplied by {by}"),
            (Addend::Gated { of, by }, 1.0, 1.0) => write!(f, "{of} is multiplied by {by} before it is added"),
            (_, 1.0, 1.0) if *own => write!(f, "{other} is added twice"),
            (_, 1.0, 1.0) => write!(f, "{other} is added as well"),
            (_, 1.0, -1.0) if *own => write!(f, "{other} is not added"),
            (_, 1.0, -1.0) => write!(f, "{other} is subtracted"),
            (_, 1.0, -2.0) if *own => write!(f, "{other} is subtracted instead of added"),
            (_, 1.0, b) if *own => write!(f, "{other} is multiplied by {} before it is added", short(1.0 + b)),
            (_, 1.0, b) => write!(f, "{} times {other} is added", short(b)),
            (_, 0.0, 1.0) => write!(f, "{other} alone is there instead"),
            (_, 0.0, b) => write!(f, "{} times {other} is there instead", short(b)),
            (_, a, b) => {
                write!(f, "{} times the right value plus {} times {other} is there instead", short(a), short(b))
            }
        }
    }
}

impl Sum {
    /// The same of stages and weights of another layer.
    pub(super) fn in_layer(&self, by: i32) -> Option<Self> {
        let other = match &self.other {
            Addend::Stage(id, at) => Addend::Stage(of_layer(*id, by)?, *at),
            Addend::Gated { of, by: gate } => Addend::Gated { of: of_layer(*of, by)?, by: of_layer(*gate, by)? },
            Addend::Times(gate) => Addend::Times(of_layer(*gate, by)?),
            Addend::Weight(name) => Addend::Weight(weight_of_layer(name, by)?),
            other => other.clone(),
        };
        Some(Self { other, ..self.clone() })
    }

    /// The factor of the right value, where nothing is added.
    pub(super) fn factor(&self) -> Option<f64> {
        (self.other == Addend::Nothing).then_some(self.a)
    }

    /// What a row would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Alternative<'a> {
        let Self { a, b, other, own } = self.clone();
        Box::new(move |row: &RowAt| {
            let (z, off) = other.bounded(scene, row)?;
            let (_, want, bound) = scene.e.row(row);
            let value = want.iter().zip(&z).map(|(w, z)| a * w + b * z).collect();
            let reach = |i: usize| {
                let sum = f64::from(bound[i]) * a.abs().max(1.0) + f64::from(off[i]) * b.abs();
                // What the stage adds is multiplied first, and may cancel out in the sum.
                let b = if own { b.abs() + 1.0 } else { b };
                (sum + UNIT * ((a * want[i]).abs() + (b * z[i]).abs())) as f32
            };
            Some(Row { value, bound: (0..z.len()).map(reach).collect() })
        })
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let mut others = vec![Addend::Nothing, Addend::One];
    others.extend(scene.vectors_of_rows().into_iter().map(|(name, _)| Addend::Weight(name)));
    let alike = scene.alike();
    others.extend(alike.iter().map(|id| Addend::Stage(*id, 0)));
    others.extend(alike.iter().flat_map(|id| [-1, 1].map(|by| Addend::Stage(*id, by))));
    others.extend(gated(scene));
    if !scene.of_pairs() {
        others.extend([-1, 1, -2, 2].map(Addend::Token));
        others.extend([Addend::Before, Addend::LastBefore]);
        let width = scene.width().unwrap_or(1);
        let powers = || (0..10).map(|b| 1usize << b).filter(move |by| *by < width);
        others.extend(powers().map(Addend::Pair));
        others.extend(powers().chain(scene.head()).flat_map(|by| [by as i64, -(by as i64)].map(Addend::Column)));
    }
    // A rotation of slow planes goes nearly straight on: the given value is then near any sum of input and output.
    let rotates = matches!(scene.node().op.anatomy(), Anatomy::Elementwise(Elementwise::Rotation(_)));
    others.retain(|other| !(rotates && matches!(other, Addend::Stage(id, _) if input(scene, *id))));
    let mut all: Vec<Sum> = others.into_iter().filter_map(|other| fitted(scene, other)).collect();
    // If two sums are one, as w + x and 2w − y are where w = x + y, the sum that scales nothing.
    all.sort_by_key(|sum| sum.a != 1.0 && sum.a != 0.0);
    all.into_iter().filter_map(|sum| Law::of(Form::Sum(sum), scene)).collect()
}

/// What a stage with one number a token has of a token.
fn factor(scene: &Scene<'_>, (step, token): (usize, usize), of: StageId) -> Option<f64> {
    let factors = scene.tensor(step, of)?;
    factors.data.get(token).filter(|_| factors.row_len() == 1).map(|v| f64::from(*v))
}

/// The sum, or one of its operands, multiplied by a stage of the layer that has one number a token.
fn gated(scene: &Scene<'_>) -> Vec<Addend> {
    let (graph, own) = (&scene.e.oracle.graph, scene.node());
    if !matches!(own.op.anatomy(), Anatomy::Elementwise(Elementwise::Sum)) {
        return Vec::new();
    }
    let is_gate = |node: &&Node| {
        node.id.layer == own.id.layer
            && node.token_axis() == Some(0)
            && node.shape[1..].iter().all(|axis| *axis == Axis::Fixed(1))
            && !scene.follows(node.id)
    };
    let gates = graph.nodes.iter().filter(is_gate).map(|node| node.id);
    let of = |by: StageId| {
        let operands = own.inputs.iter().map(move |input| Addend::Gated { of: graph.nodes[*input].id, by });
        operands.chain([Addend::Times(by)])
    };
    gates.flat_map(of).collect()
}

/// Sizes that a factor may have.
const FACTORS: std::ops::RangeInclusive<f64> = 1e-4..=1e5;

/// Whether the stage reads another.
fn input(scene: &Scene<'_>, id: StageId) -> bool {
    scene.node().inputs.iter().any(|&i| scene.e.oracle.graph.nodes[i].id == id)
}

/// A number as it was meant: a small one, or one over a small one, where it is that to four digits.
fn meant(x: f64) -> f64 {
    let simple = [0.0, 1.0, 2.0, 0.5, 3.0, 4.0, 0.25, 8.0, 0.125, 1.0 / 3.0];
    let found = simple.into_iter().flat_map(|s| [s, -s]).find(|s| (x - s).abs() <= 1e-4 * s.abs().max(0.01));
    found.unwrap_or(x)
}

/// The sum with this second vector that comes nearest, each residual in units of its bound; nothing where that is no law.
fn fitted(scene: &Scene<'_>, other: Addend) -> Option<Sum> {
    let (mut ww, mut wz, mut zz, mut gw, mut gz) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let mut row = None;
    for &(r, i) in &scene.fit {
        if row.as_ref().is_none_or(|(known, _): &(usize, Vec<f64>)| *known != r) {
            row = Some((r, other.values(scene, &scene.e.rows[r])?));
        }
        let z = row.as_ref()?.1[i];
        let (got, want, bound) = scene.element((r, i));
        let weight = 1.0 / (f64::from(bound) + UNIT * got.abs()).powi(2);
        ww += weight * want * want;
        wz += weight * want * z;
        zz += weight * z * z;
        gw += weight * got * want;
        gz += weight * got * z;
    }
    let nothing = other == Addend::Nothing;
    let det = ww * zz - wz * wz;
    let (a, b) = match nothing {
        true if ww > 0.0 => (gw / ww, 0.0),
        false if det > 1e-12 * ww * zz => ((gw * zz - gz * wz) / det, (ww * gz - wz * gw) / det),
        _ => return None,
    };
    // What one factor is meant to be tells the other more closely.
    let (a, b) = match (meant(a), meant(b)) {
        (near, _) if near != a && !nothing && zz > 0.0 => (near, meant((gz - near * wz) / zz)),
        (_, near) if near != b && ww > 0.0 => (meant((gw - near * wz) / ww), near),
        both => both,
    };
    // A factor that is next to nothing, or beyond all use, is a fit and no kernel's.
    let usual = |x: f64| x == 0.0 || FACTORS.contains(&x.abs());
    let changes =
        usual(a) && usual(b) && a.is_finite() && b.is_finite() && !(a == 1.0 && b == 0.0) && (b != 0.0 || nothing);
    // The stage's own values from elsewhere are reported as moved; a constant alone as a constant, or as a limit.
    let moved =
        matches!(other, Addend::Token(_) | Addend::Column(_) | Addend::Pair(_) | Addend::Before | Addend::LastBefore);
    let elsewhere = a == 0.0 && (b == 1.0 && moved || other == Addend::One);
    // Nobody takes off what the stage does not read: another operand is in an operand's place (`operands`).
    let foreign = matches!(&other, Addend::Stage(id, _) if !input(scene, *id)) && (a, b) == (1.0, -1.0);
    if matches!(other, Addend::Gated { .. } | Addend::Times(_)) && (a, b) != (1.0, 1.0) {
        return None;
    }
    let own = match &other {
        Addend::Stage(id, 0) => input(scene, *id),
        Addend::Weight(name) => scene.node().weights.iter().any(|w| w.name == *name),
        _ => false,
    };
    (changes && !elsewhere && !foreign).then_some(Sum { a, b, other, own })
}
