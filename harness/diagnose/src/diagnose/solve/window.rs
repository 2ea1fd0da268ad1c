//! A causal convolution whose taps meet other rows than their own, of any earlier step: a window that holds more rows than the taps
//! need is read from its other end.

use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::model::{Node, WeightSource as _};
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

/// A row of the convolution's input at a position, of the step that ran it; zeros before the first.
fn input(scene: &Scene<'_>, step: usize, position: isize, width: usize) -> Option<Vec<f32>> {
    let Ok(position) = usize::try_from(position) else { return Some(vec![0.0; width]) };
    let steps = &scene.e.side.capture.steps;
    let at = (0..=step).rev().find(|&at| (steps[at].first..steps[at].keys()).contains(&position))?;
    let rows = scene.operand(at, 0)?;
    let row = scene.numbered(at, position - steps[at].first)?;
    rows.data.get(row * width..(row + 1) * width).map(<[f32]>::to_vec)
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (Some(op), Some(width)) = (convolution(scene.node()), scene.width()) else { return Vec::new() };
    // Positions of several sequences do not tell whose they are.
    if scene.e.side.capture.steps.iter().any(|step| step.in_pass.is_some()) {
        return Vec::new();
    }
    let Some(weight) = scene.node().weights.first() else { return Vec::new() };
    let mut taps = vec![0f32; op.taps * width];
    scene.weights().rows(&weight.name, 0, &mut taps);
    let taps = Rc::new(taps);
    let law = |away: isize| {
        let taps = taps.clone();
        let (by, side) = (away.unsigned_abs(), if away > 0 { "older" } else { "newer" });
        let rows = if by == 1 { "row" } else { "rows" };
        let told = format!(
            "every tap of the convolution but the last meets the token {by} {rows} {side} than its own: the window is read from another row"
        );
        Law::new(told, 0, move |row: &RowAt| {
            let (first, length) = (scene.token(row).1, row.range.len());
            let (mut value, mut size) = (vec![0f64; length], vec![0f64; length]);
            for tap in 0..op.taps {
                let back = ((op.taps - 1 - tap) * op.apart) as isize;
                let back = if back == 0 { 0 } else { back + away };
                let x = input(scene, row.step, row.place.position as isize - back, width)?;
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
    // Nearer than the token itself nothing is left to read.
    AWAY.into_iter().filter(|away| op.apart as isize + away >= 0).map(law).collect()
}
