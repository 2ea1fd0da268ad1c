//! What was rounded inside an operation: an operand, an angle, an exponential, a factor, before it is used.
//!
//! The operation is evaluated in f64 with one of its intermediate numbers rounded to a coarser format. A number near the
//! middle between two of the format goes either way, as the kernel's own f32 arithmetic decides: it is rounded from a
//! little below and a little above as well, and what that changes is allowed.

use super::functions::{frequency, operand, pair};
use super::rounded::{FORMATS, Format};
use super::scene::Scene;
use super::{Law, Row, attended, norm};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{Activation, Elementwise, RowReduction};
use qdiff_engine::ops::{Anatomy, UNIT};
use std::rc::Rc;

/// An intermediate number of an operation, by its place in the list of their names.
type Point = usize;

/// Rounds what is at a point.
type Rounding<'r> = &'r dyn Fn(Point, f64) -> f64;

/// In the place of a point: what an angle is multiplied by, since a kernel's own angle is not the exact one, whatever is rounded.
const ANGLE: Point = Point::MAX;

/// A row of the stage with numbers rounded.
type Evaluate<'a> = Rc<dyn Fn(&RowAt, Rounding<'_>) -> Option<Vec<f64>> + 'a>;

/// How far a kernel's own number may be from the exact one before it is rounded, relative.
const OFF: f64 = 8.0 * UNIT;

/// The name of a point without its verb and what goes with it.
fn noun(name: &str) -> &str {
    let verb = [" is", " are"].iter().find_map(|verb| name.strip_suffix(verb));
    verb.or(name.split_once(" is,").map(|(noun, _)| noun)).unwrap_or(name)
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (points, evaluate) = match operation(scene) {
        Some(operation) => operation,
        None => return Vec::new(),
    };
    let mut all = Vec::new();
    let mut chosen: Vec<(String, Vec<Point>)> =
        points.iter().enumerate().map(|(i, name)| ((*name).to_owned(), vec![i])).collect();
    if let [first, second, ..] = points {
        chosen.push((format!("{} and {}", first.trim_end_matches(" is"), second.replace(" is", " are")), vec![0, 1]));
    }
    if points.len() > 2 {
        chosen.push(("every number on the way is".to_owned(), (0..points.len()).collect()));
    }
    // Any others, the fewer first.
    let mut sets: Vec<Vec<Point>> = (1usize..(1 << points.len()) - 1)
        .map(|set| (0..points.len()).filter(|p| set >> p & 1 == 1).collect())
        .filter(|set: &Vec<Point>| set.len() > 1 && *set != [0, 1])
        .collect();
    sets.sort_by_key(Vec::len);
    chosen.extend(sets.into_iter().map(|set| {
        let names: Vec<&str> = set.iter().map(|&p| noun(points[p])).collect();
        let (last, rest) = names.split_last().expect("a set of two or more");
        (format!("{} and {last} are", rest.join(", ")), set)
    }));
    for (name, at) in chosen {
        let (name, at) = (Rc::<str>::from(name), Rc::<[Point]>::from(at));
        let told = |format: &str| format!("{name} rounded to {}", format.trim_end_matches(','));
        let law = |format: &'static Format, what: String| {
            let (evaluate, at) = (evaluate.clone(), at.clone());
            Law::new(what, 1, move |row: &RowAt| rounded(scene, row, &evaluate, &at, format))
        };
        // Of several numbers it is a kernel in half precision.
        let formats = FORMATS.iter().filter(|f| at.len() < 3 || f.name == "bf16" || f.name == "f16");
        all.extend(formats.map(|format| format.law(told, law)));
    }
    all
}

fn rounded(scene: &Scene<'_>, row: &RowAt, evaluate: &Evaluate<'_>, at: &[Point], format: &Format) -> Option<Row> {
    let with = |off: f64, angle: f64| {
        evaluate(row, &|point, v| match at.contains(&point) {
            true => f64::from((format.round)((v * (1.0 + off)) as f32)),
            false if point == ANGLE => 1.0 + angle * v,
            false => v,
        })
    };
    let value = with(0.0, 0.0)?;
    let near = [with(-OFF, 0.0)?, with(OFF, 0.0)?, with(0.0, -UNIT)?, with(0.0, UNIT)?];
    let (_, want, bound) = scene.e.row(row);
    let reach = |i: usize| {
        let either = near.iter().map(|other| (other[i] - value[i]).abs()).fold(0.0, f64::max);
        let own = f64::from(bound[i]) * (value[i] / want[i]).abs().clamp(1.0, 4.0);
        (either + if own.is_finite() { own } else { f64::from(bound[i]) }) as f32
    };
    if value.len() < want.len() {
        return None;
    }
    let bound = (0..want.len()).map(reach).collect();
    Some(Row { value, bound })
}

/// The numbers of an operation that may be rounded, "is" with them, and its rows.
fn operation<'a>(scene: &'a Scene<'a>) -> Option<(&'static [&'static str], Evaluate<'a>)> {
    Some(match scene.node().op.anatomy() {
        Anatomy::RowReduction(RowReduction::MeanSquare(rms)) => {
            let run = scene.width()? / rms.groups;
            let own = scene.vector(&scene.node().weights[0].name, run);
            let of = move |row: &RowAt, round: Rounding<'_>| {
                let x: Vec<f64> = norm::operand(scene, row, 0)?.iter().map(|v| round(0, *v)).collect();
                let normed = x.chunks(run).flat_map(|part| {
                    let mean = round(2, part.iter().map(|v| v * v).sum::<f64>() / run as f64);
                    let scale = round(3, 1.0 / (mean + rms.eps).sqrt());
                    part.iter().zip(&own).map(move |(v, w)| round(4, v * scale) * round(1, f64::from(*w)))
                });
                Some(normed.collect())
            };
            let points = &[
                "the input is",
                "the weight is",
                "the mean of squares is",
                "the factor of a row is",
                "what is normed is, before it is multiplied with the weight,",
            ];
            (points, Rc::new(of))
        }
        Anatomy::Elementwise(Elementwise::Rotation(rope)) => {
            let of = move |row: &RowAt, round: Rounding<'_>| {
                let mut x: Vec<f64> = operand(scene, row)?.iter().map(|v| round(0, f64::from(*v))).collect();
                let position = round(1, row.place.position as f64);
                for i in 0..rope.rotated / 2 {
                    // A power has an error for each multiplication that it may be made of.
                    let own = round(ANGLE, 4.0 + i as f64);
                    let angle = round(3, position * round(2, frequency(rope, i)) * own);
                    let ((a, b), (sin, cos)) = (pair(rope, i), (round(4, angle.sin()), round(4, angle.cos())));
                    (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
                }
                Some(x)
            };
            let points =
                &["the input is", "the position is", "the frequency is", "the angle is", "sine and cosine are"];
            (points, Rc::new(of))
        }
        Anatomy::RowReduction(RowReduction::Exponentials(softmax)) => {
            let of = move |row: &RowAt, round: Rounding<'_>| {
                let of = |s: &[f64], p: usize, n: usize| {
                    let seen: Vec<f64> = s[..(p + 1).min(n)]
                        .iter()
                        .map(|s| round(1, softmax.scale * round(0, s / softmax.scale)))
                        .collect();
                    let top = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let e: Vec<f64> = seen.iter().map(|s| round(3, round(2, s - top).exp())).collect();
                    let sum = round(4, e.iter().sum());
                    e.iter().map(|e| e / sum).chain(std::iter::repeat(0.0)).take(n).collect()
                };
                Some(attended::weights(scene, softmax.scale, row, of)?.value)
            };
            let points = &[
                "the score is",
                "the scaled score is",
                "the distance of a score from the largest is",
                "the exponential is",
                "the sum that weights are divided by is",
            ];
            (points, Rc::new(of))
        }
        Anatomy::Elementwise(Elementwise::Gated(Activation::Silu)) => {
            let of = move |row: &RowAt, round: Rounding<'_>| {
                let (gate, up) = (scene.operand(row.step, 0)?, scene.operand(row.step, 1)?);
                let (gate, up) = (gate.data.get(row.range.clone())?, up.data.get(row.range.clone())?);
                let element = |(g, u): (&f32, &f32)| {
                    let (g, u) = (round(0, f64::from(*g)), round(1, f64::from(*u)));
                    let sigmoid = round(3, 1.0 / round(5, 1.0 + round(2, (-g).exp())));
                    round(6, round(4, g * sigmoid) * u)
                };
                Some(gate.iter().zip(up).map(element).collect())
            };
            let points = &[
                "the gate is",
                "up is",
                "the exponential is",
                "the sigmoid of the gate is",
                "SiLU of the gate is, before it is multiplied with up,",
                "1 plus the exponential is",
                "the product with up is",
            ];
            (points, Rc::new(of))
        }
        Anatomy::Elementwise(Elementwise::Sum) => {
            let of = move |row: &RowAt, round: Rounding<'_>| {
                let (a, b) = (scene.operand(row.step, 0)?, scene.operand(row.step, 1)?);
                let (a, b) = (a.data.get(row.range.clone())?, b.data.get(row.range.clone())?);
                Some(a.iter().zip(b).map(|(a, b)| round(0, f64::from(*a)) + round(1, f64::from(*b))).collect())
            };
            (&["what is added is", "what it is added to is"], Rc::new(of))
        }
        Anatomy::Elementwise(Elementwise::Offset) => {
            let bias = scene.vector(&scene.node().weights[0].name, scene.width()?);
            let of = move |row: &RowAt, round: Rounding<'_>| {
                let x = scene.operand(row.step, 0)?;
                let (x, from) = (x.data.get(row.range.clone())?, scene.token(row).1);
                Some(
                    x.iter()
                        .zip(&bias[from..])
                        .map(|(x, b)| round(0, f64::from(*x)) + round(1, f64::from(*b)))
                        .collect(),
                )
            };
            (&["the input is", "the bias is"], Rc::new(of))
        }
        // Products are evaluated with rounded factors (`rounded`, `altered`), and nothing happens to these inside.
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => {
            return None;
        }
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "sine and cosine are are rounded" was printed.
    #[test]
    fn several_points_have_one_verb() {
        for (name, expected) in [
            ("sine and cosine are", "sine and cosine"),
            ("the angle is", "the angle"),
            ("what is normed is, before it is multiplied with the weight,", "what is normed"),
        ] {
            assert_eq!(noun(name), expected);
        }
    }
}
