//! A causal convolution whose taps meet other rows than their own, of any earlier step: a window that holds more rows than the taps
//! need is read from its other end. And a window that ends too early, or keeps the rows of another stage.

use super::recurrent::before;
use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::{RowAt, is_window};
use qdiff_engine::model::{Axis, Node, StageId, WeightSource as _, row_len};
use qdiff_engine::ops::{Convolution, Definition, Op, TINY, UNIT};
use std::any::Any;
use std::rc::Rc;

/// Rows by which taps are looked for beside their own.
const AWAY: [isize; 4] = [1, 2, -1, 3];

fn convolution(node: &Node) -> Option<Convolution> {
    let Op::Defined(op) = &node.op else { return None };
    let definition: &dyn Definition = &**op;
    let definition: &dyn Any = definition;
    definition.downcast_ref().copied()
}

/// A row of the first input at a position, of the step that ran it; zeros before the first, and behind the rows of the step.
fn input(scene: &Scene<'_>, step: usize, position: isize, width: usize) -> Option<Vec<f32>> {
    let input = scene.e.oracle.graph.nodes[*scene.node().inputs.first()?].id;
    row_of(scene, input, (step, position), width)
}

/// The same of another stage.
fn row_of(scene: &Scene<'_>, id: StageId, (step, position): (usize, isize), width: usize) -> Option<Vec<f32>> {
    let Ok(position) = usize::try_from(position) else { return Some(vec![0.0; width]) };
    let steps = &scene.e.side.capture.steps;
    if position >= steps[step].keys() {
        return Some(vec![0.0; width]);
    }
    let at = (0..=step).rev().find(|&at| (steps[at].first..steps[at].keys()).contains(&position))?;
    let rows = scene.tensor(at, id)?;
    let row = scene.numbered(at, position - steps[at].first)?;
    rows.data.get(row * width..(row + 1) * width).map(<[f32]>::to_vec)
}

/// Windows that end before the part's last row, or keep rows of another stage of the layer, as wide as those of their input.
fn of_other_rows<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (node, nodes) = (scene.node(), &scene.e.oracle.graph.nodes);
    let (true, Some(&own)) = (is_window(node), node.inputs.first()) else { return Vec::new() };
    let width = row_len(&nodes[own]).max(1);
    let rows = row_len(node) / width;
    let alike = |other: &&Node| {
        other.id.layer == node.id.layer
            && other.id != nodes[own].id
            && other.shape.len() == 2
            && other.shape[0] == Axis::Tokens
            && row_len(other) == width
    };
    let others = nodes.iter().filter(alike).map(|other| {
        let id = other.id;
        let told = format!("the window keeps rows of {}, and not of {}", id.name, nodes[own].id.name);
        copies(scene, told, width, move |step, line| {
            let position = (scene.e.side.capture.steps[step].keys() + line) as isize - rows as isize;
            row_of(scene, id, (step, position), width)
        })
    });
    let earlier = [(1, "1 row"), (2, "2 rows")].into_iter().map(|(away, told)| {
        let told = format!("the window ends {told} before the last row of the part");
        copies(scene, told, width, move |step, line| {
            // The rows before the part stand before its own.
            let from = (line + scene.e.side.capture.steps[step].tokens.len()).checked_sub(away)?;
            let all = match from.checked_sub(rows) {
                None => before(scene, node.id, step, (0, rows * width))?.data,
                Some(_) => scene.tensor(step, nodes[own].id)?.data.iter().map(|v| f64::from(*v)).collect(),
            };
            let from = from.checked_sub(rows).unwrap_or(from);
            Some(all.get(from * width..(from + 1) * width)?.iter().map(|v| *v as f32).collect())
        })
    });
    earlier.chain(others).collect()
}

/// That each line of a window is the row that `of` gives for a step and a line.
fn copies<'a>(
    scene: &'a Scene<'a>, told: String, width: usize, of: impl Fn(usize, usize) -> Option<Vec<f32>> + 'a,
) -> Law<'a> {
    Law::new(told, 0, move |row: &RowAt| {
        let all = of(row.step, row.range.start / width)?;
        let first = row.range.start % width;
        scene.count(row.range.len());
        let value: Vec<f64> = all.get(first..first + row.range.len())?.iter().map(|v| f64::from(*v)).collect();
        let bound = value.iter().map(|v| (UNIT * v.abs() + TINY) as f32).collect();
        Some(Row { value, bound })
    })
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(op) = convolution(scene.node()) else { return of_other_rows(scene) };
    let Some(width) = scene.width() else { return Vec::new() };
    let Some(weight) = scene.node().weights.first() else { return Vec::new() };
    let mut taps = vec![0f32; op.taps * width];
    scene.weights().rows(&weight.name, 0, &mut taps);
    let taps = Rc::new(taps);
    let law = |told: String, back: Rc<dyn Fn(isize) -> isize>, wraps: bool| {
        let taps = taps.clone();
        Law::new(told, 0, move |row: &RowAt| {
            let (first, length) = (scene.token(row).1, row.range.len());
            let (mut value, mut size) = (vec![0f64; length], vec![0f64; length]);
            for tap in 0..op.taps {
                let back = back(((op.taps - 1 - tap) * op.apart) as isize);
                let step = &scene.e.side.capture.steps[row.step];
                let position = row.place.position as isize - back;
                // The last rows of the part stand before its first ones.
                let before = wraps && position < step.first as isize && step.tokens.len() >= op.taps;
                let position = if before { position + step.tokens.len() as isize } else { position };
                let x = input(scene, row.step, position, width)?;
                for (i, (value, size)) in value.iter_mut().zip(&mut size).enumerate() {
                    let c = first + i;
                    let product = f64::from(taps[c * op.taps + tap]) * f64::from(*x.get(c)?);
                    *value += product;
                    *size += product.abs();
                }
            }
            scene.count(op.taps * length);
            let factor = UNIT * (op.taps as f64).sqrt();
            let bound = size.iter().map(|size| (factor * size + op.taps as f64 * TINY) as f32).collect();
            Some(Row { value, bound })
        })
    };
    let named = |away: isize| {
        let (by, side) = (away.unsigned_abs(), if away > 0 { "older" } else { "newer" });
        format!("{by} {} {side}", if by == 1 { "row" } else { "rows" })
    };
    let but_last = |away: isize| {
        let told = format!(
            "every tap of the convolution but the last meets the token {} than its own: the window is read from another row",
            named(away)
        );
        law(told, Rc::new(move |back| if back == 0 { 0 } else { back + away }), false)
    };
    let all = |away: isize| {
        let told = format!(
            "every tap of the convolution meets the token {} than its own, and zeros where there is none in the part: the rows before the part, or behind it, are put at the wrong end",
            named(away)
        );
        law(told, Rc::new(move |back| back + away), false)
    };
    let reach = ((op.taps - 1) * op.apart) as isize;
    let whole = [-reach, reach, -1, 1].into_iter().filter(|away| reach > 1 || *away == reach || *away == -reach);
    // Nearer than the token itself nothing is left to read.
    let but_last = AWAY.into_iter().filter(|away| op.apart as isize + away >= 0).map(but_last);
    let told = "the rows before a part are its own last rows: the convolution reads the window that the part leaves, and not the one that it finds";
    but_last.chain(whole.map(all)).chain([law(told.to_owned(), Rc::new(|back| back), true)]).collect()
}
