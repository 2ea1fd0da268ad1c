//! Values from elsewhere in place of the right ones: a constant, another stage, layer or step, a vector of the model.
//! Values that the subject gave are compared as they are.

use super::form::{Form, of_layer};
use super::scene::{Layout, Scene};
use super::{Alternative, Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::model::{Node, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The source of the values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// A number.
    Constant(f64),
    /// The same in whole rows of a cache: what the memory held before.
    Unwritten(f64),
    /// What a stage gave.
    Stage {
        /// The stage.
        stage: StageId,
        /// Whether it is the one that is wrong, or an operand of it.
        kin: Kin,
        /// Whether it is what the step before gave.
        before: bool,
        /// Which of it.
        at: Place,
    },
    /// What another stage gave of another token and column.
    Shifted {
        /// The stage.
        stage: StageId,
        /// So many tokens on.
        tokens: i64,
        /// So many columns on.
        columns: i64,
    },
    /// A vector of the model.
    Weight(String),
    /// NaN, of which no value is known.
    NeverWritten,
}

/// What a stage is to the one that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kin {
    /// Itself.
    Own,
    /// An operand.
    Input,
    /// Another one.
    Other,
}

/// Which values of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Those of the token.
    Token,
    /// Those of the last token.
    LastToken,
    /// Those of the position, of what counts positions.
    Position,
    /// Those at the same address.
    Address,
    /// Those of the slot before, of a cache as it was given.
    SlotBefore,
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Stage { stage: id, kin, before, at } = self else {
            return match self {
                Self::Constant(0.0) => f.write_str("zeros are there instead: not written, cleared, or made of zeros"),
                Self::Constant(value) => write!(f, "the constant {value} is there instead"),
                Self::Unwritten(value) => {
                    write!(
                        f,
                        "rows are not written: the constant {value} is there instead, which the memory held before"
                    )
                }
                Self::Weight(name) => write!(f, "the weight {name} itself is there instead"),
                Self::NeverWritten => f.write_str("as if never written: the capture holds NaN"),
                Self::Shifted { stage, tokens, columns } => {
                    let by = |one: &str, by: i64| {
                        let side = if by < 0 { "before" } else { "after" };
                        (by != 0).then(|| format!("the {one} {} {side}", by.abs()))
                    };
                    let of: Vec<String> = by("token", *tokens).into_iter().chain(by("column", *columns)).collect();
                    write!(f, "the values of {stage} of {} are there instead", of.join(" and "))
                }
                Self::Stage { .. } => Ok(()),
            };
        };
        match (kin, before, at) {
            (_, _, Place::SlotBefore) => f.write_str("what the slot before holds is there once more"),
            (Kin::Own, _, Place::LastToken) => f.write_str("the last row of the step before is there instead"),
            (Kin::Own, ..) => {
                f.write_str("what the step before left in the buffer is there instead: not written in this step")
            }
            (Kin::Input, false, Place::Token) => {
                write!(f, "its own input {id} is there instead: the stage is skipped")
            }
            (Kin::Other, false, Place::Token) => write!(f, "the values of {id} are there instead"),
            (_, true, Place::Token | Place::LastToken) => {
                write!(f, "what {id} held in the step before is there instead")
            }
            (_, false, Place::Address) => {
                write!(f, "the values of {id} are there instead, counted from the beginning of its buffer")
            }
            (_, true, _) => {
                write!(
                    f,
                    "what {id} held in the step before is there instead, counted from the beginning of its buffer"
                )
            }
            (_, false, Place::LastToken) => write!(f, "the last row of {id} is there instead"),
            (_, false, Place::Position) => write!(f, "what {id} holds of the position is there instead"),
        }
    }
}

impl Given {
    /// The same of a stage in another layer.
    pub(super) fn in_layer(&self, by: i32) -> Option<Self> {
        Some(match self {
            Self::Constant(_) | Self::Unwritten(_) | Self::NeverWritten => self.clone(),
            Self::Shifted { stage, tokens, columns } => {
                Self::Shifted { stage: of_layer(*stage, by)?, tokens: *tokens, columns: *columns }
            }
            Self::Weight(name) => Self::Weight(super::form::weight_of_layer(name, by)?),
            Self::Stage { stage, kin, before, at } => {
                Self::Stage { stage: of_layer(*stage, by)?, kin: *kin, before: *before, at: *at }
            }
        })
    }

    /// What a row would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        Some(match self.clone() {
            Self::Constant(value) | Self::Unwritten(value) => {
                Box::new(move |row| Some(Scene::exact(vec![value; row.range.len()])))
            }
            Self::NeverWritten => Box::new(|row| Some(Scene::exact(vec![f64::NAN; row.range.len()]))),
            Self::Shifted { stage, tokens, columns } => Box::new(move |row| {
                let of = |i: usize| shifted(scene, stage, row, i, (tokens, columns)).map_or(f64::NAN, f64::from);
                Some(Scene::exact((0..row.range.len()).map(of).collect()))
            }),
            Self::Weight(name) => {
                let known = scene.e.oracle.graph.weights();
                let vector = scene.vector(&name, known.iter().find(|w| w.name == name)?.extent[0]);
                Box::new(move |row| {
                    let from = scene.token(row).1;
                    let part = vector.get(from..from + row.range.len())?;
                    Some(Scene::exact(part.iter().map(|v| f64::from(*v)).collect()))
                })
            }
            Self::Stage { stage, before, at, .. } => Box::new(move |row| {
                let step = row.step.checked_sub(usize::from(before))?;
                match at {
                    Place::Token => given(scene, stage, step, scene.token(row).0, row),
                    Place::Position => given(scene, stage, step, row.place.position, row),
                    Place::SlotBefore => given(scene, stage, step, scene.token(row).0.checked_sub(1)?, row),
                    Place::LastToken => {
                        let graph = &scene.e.oracle.graph;
                        let node = &graph.nodes[graph.index(stage)?];
                        let (tokens, ..) = Layout::of(node).extents(&scene.tensor(step, stage)?.shape);
                        given(scene, stage, step, tokens.checked_sub(1)?, row)
                    }
                    Place::Address => {
                        let tensor = scene.tensor(step, stage)?;
                        let part = tensor.data.get(row.range.clone())?;
                        Some(Scene::exact(part.iter().map(|v| f64::from(*v)).collect()))
                    }
                }
            }),
        })
    }
}

/// The vector of a token of a stage as the subject gave it, cut to a row.
fn given(scene: &Scene<'_>, id: StageId, step: usize, token: usize, row: &RowAt) -> Option<Row> {
    let graph = &scene.e.oracle.graph;
    let other = &graph.nodes[graph.index(id)?];
    let layout = Layout::of(other);
    // A cache has the rows of earlier steps too: what the step that wrote them gave.
    let (step, token) = match scene.node().has_state() && !other.has_state() {
        true => {
            let steps = &scene.e.side.capture.steps;
            let wrote = (0..=step).find(|s| (steps[*s].first..steps[*s].keys()).contains(&token))?;
            (wrote, token - steps[wrote].first)
        }
        false => (step, token),
    };
    let tensor = scene.tensor(step, id)?;
    let (tokens, _, width) = layout.extents(&tensor.shape);
    let (_, from) = scene.token(row);
    if token >= tokens || from + row.range.len() > width {
        return None;
    }
    let value = |j: usize| f64::from(tensor.data[layout.at(&tensor.shape, token, j)]);
    Some(Scene::exact((from..from + row.range.len()).map(value).collect()))
}

/// What a stage gave so many tokens and columns further on; nothing beyond the ends.
fn shifted(scene: &Scene<'_>, id: StageId, row: &RowAt, i: usize, (tokens, columns): (i64, i64)) -> Option<f32> {
    let graph = &scene.e.oracle.graph;
    let layout = Layout::of(&graph.nodes[graph.index(id)?]);
    let tensor = scene.tensor(row.step, id)?;
    let (token, from) = scene.token(row);
    let number = usize::try_from(scene.number(row.step, token).0 as i64 + tokens).ok()?;
    let column = usize::try_from((from + i) as i64 + columns).ok()?;
    let there = scene.numbered(row.step, number)?;
    let (all, _, width) = layout.extents(&tensor.shape);
    (there < all && column < width).then(|| tensor.data[layout.at(&tensor.shape, there, column)])
}

/// Wrong elements that a shift is read off, those that it must give, and shifts of a stage that are tried.
const PROBES: usize = 4;
const GIVEN: usize = 24;
const SHIFTS: usize = 8;

/// Other stages of the layer that are there shifted: a fused buffer that is read at another stride or offset. Values are
/// found again bit by bit.
fn shifts(scene: &Scene<'_>) -> Vec<Given> {
    let (graph, node) = (&scene.e.oracle.graph, scene.node());
    let own_kind = |n: &Node| n.token_axis() == Some(0) && !n.op.has_state();
    if !own_kind(node) {
        return Vec::new();
    }
    let some = super::scene::evenly(scene.fit.clone(), GIVEN);
    let got = |at: &(usize, usize)| scene.element(*at).0 as f32;
    let probes: Vec<&(usize, usize)> = some.iter().filter(|at| got(at) != 0.0).take(PROBES).collect();
    let near = |n: &&Node| n.id != node.id && n.id.layer == node.id.layer && own_kind(n) && !scene.follows(n.id);
    let mut all = Vec::new();
    for other in graph.nodes.iter().filter(near) {
        let mut tried: Vec<(i64, i64)> = Vec::new();
        for at in &probes {
            let row = &scene.e.rows[at.0];
            let Some(tensor) = scene.tensor(row.step, other.id) else { break };
            let (layout, (token, from)) = (Layout::of(other), scene.token(row));
            let own = (scene.number(row.step, token).0 as i64, (from + at.1) as i64);
            scene.count(tensor.data.len());
            let found = tensor.data.iter().enumerate().filter(|(_, v)| **v == got(at)).take(SHIFTS);
            for (place, _) in found {
                let (t, c) = layout.token(&tensor.shape, place);
                let by = (scene.number(row.step, t).0 as i64 - own.0, c as i64 - own.1);
                if by != (0, 0) && !tried.contains(&by) && tried.len() < SHIFTS {
                    tried.push(by);
                }
            }
        }
        for by in tried {
            let told = some.iter().filter_map(|at| {
                let there = shifted(scene, other.id, &scene.e.rows[at.0], at.1, by)?;
                Some(there == got(at))
            });
            let told: Vec<bool> = told.collect();
            if told.len() >= PROBES && told.iter().all(|gives| *gives) {
                all.push(Given::Shifted { stage: other.id, tokens: by.0, columns: by.1 });
            }
        }
    }
    all
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let all = constant(scene).into_iter().chain(buffers(scene)).chain(shifts(scene));
    all.filter_map(|given| Law::of(Form::Given(given), scene)).collect()
}

/// The same number in every wrong element.
fn constant(scene: &Scene<'_>) -> Option<Given> {
    let value = scene.element(*scene.fit.first()?).0;
    if scene.fit.iter().any(|&at| scene.element(at).0 != value) {
        return None;
    }
    // Where all right values lie beyond it they are cut off there.
    let beyond = |&at: &(usize, usize)| scene.element(at).1 / value >= 1.0;
    let e = scene.e;
    let whole = || e.bad_rows().all(|row| e.row(row).0.iter().all(|got| f64::from(*got) == value));
    let unwritten = value != 0.0 && scene.node().has_state() && whole();
    let given = if unwritten { Given::Unwritten(value) } else { Given::Constant(value) };
    (value == 0.0 || !scene.fit.iter().all(beyond)).then_some(given)
}

/// Another stage's values, or those of the step before.
fn buffers(scene: &Scene<'_>) -> Vec<Given> {
    let (graph, node) = (&scene.e.oracle.graph, scene.node());
    let of = |stage, kin, before, at| Given::Stage { stage, kin, before, at };
    let mut all = Vec::new();
    if !node.has_state() {
        all.extend([Place::Address, Place::LastToken].map(|at| of(node.id, Kin::Own, true, at)));
    } else {
        all.push(of(node.id, Kin::Own, false, Place::SlotBefore));
        // Layers that share the memory: the last one leaves its rows there.
        let kin = graph.nodes.iter().rev().filter(|n| n.id.name == node.id.name && n.id != node.id);
        all.extend(kin.map(|n| of(n.id, Kin::Other, false, Place::Token)));
    }
    let alike = scene.alike();
    for &id in &alike {
        let kin = if node.inputs.iter().any(|&i| graph.nodes[i].id == id) { Kin::Input } else { Kin::Other };
        all.extend([false, true].map(|before| of(id, kin, before, Place::Token)));
    }
    // Buffers of other extents, from their beginning on.
    let near = |n: &&Node| match (n.id.layer, node.id.layer) {
        (Some(a), Some(b)) => a.abs_diff(b) <= 1,
        _ => true,
    };
    let strange = graph.nodes.iter().filter(|n| n.id != node.id && !scene.follows(n.id) && !alike.contains(&n.id));
    for other in strange.filter(near) {
        all.extend([false, true].map(|before| of(other.id, Kin::Other, before, Place::Address)));
        // By token, as far as the narrower one goes.
        all.push(of(other.id, Kin::Other, false, Place::Token));
        if other.op.has_state() {
            all.push(of(other.id, Kin::Other, false, Place::Position));
        }
    }
    all.extend(scene.vectors_of_rows().into_iter().map(|(name, _)| Given::Weight(name)));
    all
}
