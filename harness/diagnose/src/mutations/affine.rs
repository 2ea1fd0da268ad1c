//! A factor or an offset on everything.

use super::position::rounded;
use super::{Mutation, Param, each};
use crate::verdict::{FEW, line};
use qdiff_engine::model::Node;
use qdiff_engine::ops::UNIT;

/// `scale · value + offset` of the whole output.
fn affine(node: &Node, scale: f64, offset: f64) -> Node {
    node.writing(move |out| {
        for (v, b) in out.value.data.iter_mut().zip(out.bound) {
            *v = scale * *v + offset;
            // The product and the sum round once more each.
            *b = (f64::from(*b) * scale.abs()) as f32 + (2.0 * UNIT * (v.abs() + offset.abs())) as f32;
        }
    })
}

/// As it is, and in so few digits as a person would have written.
pub(super) fn digits(x: f64) -> [f64; 3] {
    [rounded(x, 2), rounded(x, 4), x]
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "zeroed",
        story: "the output is zero: not written, or written as zeros",
        seen: "zeros where there should be values",
        remedy: "check that the kernel is launched, covers the output, and writes to this buffer",
        apply: |node, _, _| Some(affine(node, 0.0, 0.0)),
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "scaled",
        story: "the output is multiplied by a constant",
        seen: "the direction is right, the length is not",
        remedy: "look for a factor that is applied twice, left out, or taken from another place",
        params: &[Param::new("by", "the factor", 0.5)],
        apply: |node, values, _| {
            let scale = values[0];
            (scale != 1.0 && scale != 0.0).then(|| affine(node, scale, 0.0))
        },
        propose: Some(|e| each(line(&e.wrong(), false).map(|(scale, _)| digits(scale)).into_iter().flatten())),
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "offset",
        story: "a constant is added to the output",
        seen: "every element is off by the same amount",
        remedy: "look for a constant that is added twice or should have been taken off",
        params: &[Param::new("by", "what is added", 0.5), Param::new("scale", "the factor before it", 1.0)],
        apply: |node, values, _| {
            let (offset, scale) = (values[0], values[1]);
            (offset != 0.0).then(|| affine(node, scale, offset))
        },
        propose: Some(|e| {
            let wrong = e.wrong();
            // One element is always some constant off.
            if wrong.len() < FEW {
                return Vec::new();
            }
            let n = wrong.len() as f64;
            // Equal elements are a constant, not values to which something was added.
            if wrong.iter().all(|w| w.got == wrong[0].got) {
                return Vec::new();
            }
            let alone = wrong.iter().map(|w| f64::from(w.got) - w.want).sum::<f64>() / n;
            let mut all: Vec<Vec<f64>> = digits(alone).into_iter().map(|by| vec![by, 1.0]).collect();
            // Less than rounding is added to nothing: that is a factor alone.
            let largest = wrong.iter().map(|w| f64::from(w.got.abs())).fold(0.0, f64::max);
            if let Some((scale, offset)) = line(&wrong, true).filter(|(_, offset)| offset.abs() > UNIT * largest) {
                all.push(vec![rounded(offset, 4), rounded(scale, 4)]);
                all.push(vec![offset, scale]);
            }
            all.retain(|v| v.iter().all(|x| x.is_finite()));
            all
        }),
        ..Mutation::ANYWHERE
    },
];
