//! Norms of each head by its length, as the delta net takes them of queries and keys: another length is taken for it.

use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::{Definition, L2Norm, Op, UNIT};
use std::any::Any;

/// What a head is divided by, of its values and ε.
type Length = fn(&[f64], f64) -> f64;

fn squares(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum()
}

/// Other lengths.
const LENGTHS: &[(&str, Length)] = &[
    ("the root of the mean of its squares, and not of their sum", |x, eps| (squares(x) / x.len() as f64 + eps).sqrt()),
    ("the root of the mean of its squares and of ε both, and not of their sum", |x, eps| {
        ((squares(x) + eps) / x.len() as f64).sqrt()
    }),
    ("the sum of its squares, without a root", |x, eps| squares(x) + eps),
    ("its length, to which ε is added after the root", |x, eps| squares(x).sqrt() + eps),
    ("its length, or ε where that is larger", |x, eps| squares(x).sqrt().max(eps)),
    ("its length without ε", |x, _| squares(x).sqrt()),
    ("the sum of its sizes, not of its squares", |x, eps| x.iter().map(|v| v.abs()).sum::<f64>() + eps),
    ("its largest size", |x, _| x.iter().fold(0.0, |most, v| most.max(v.abs()))),
];

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Op::Defined(op) = &scene.node().op else { return Vec::new() };
    let definition: &dyn Definition = &**op;
    let definition: &dyn Any = definition;
    let Some(norm) = definition.downcast_ref::<L2Norm>().copied() else { return Vec::new() };
    let each = LENGTHS.iter().map(|(what, length)| (format!("each head is divided by {what}"), *length, false));
    let whole: Length = |x, eps| (squares(x) + eps).sqrt();
    let row = ("each head is divided by the length of the whole row".to_owned(), whole, true);
    let law = |(what, length, of_row): (String, Length, bool)| {
        Law::new(what, 1, move |row: &RowAt| {
            let (token, from) = scene.token(row);
            let input = scene.operand(row.step, 0)?;
            let width = input.row_len();
            let x: Vec<f64> =
                input.data.get(token * width..(token + 1) * width)?.iter().map(|v| f64::from(*v)).collect();
            let (run, all) = (width / norm.heads.max(1), length(&x, norm.eps));
            let value = |at: usize| {
                let own = &x[at / run / norm.repeats * run..][..run];
                own[at % run] / if of_row { all } else { length(own, norm.eps) }
            };
            let value: Vec<f64> = (from..from + row.range.len()).map(value).collect();
            let bound = value.iter().map(|v| (UNIT * (12.0 + 0.25 * (run as f64).sqrt()) * v.abs()) as f32).collect();
            Some(Row { value, bound })
        })
    };
    each.chain([row]).map(law).collect()
}
