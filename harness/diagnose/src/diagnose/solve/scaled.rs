//! What kernels bring to size before they multiply: factors under a power of two of their own, digits of them, and shares of a sum.

use super::factors::{Other, Terms, called, products};
use super::index::Index;
use super::scene::Scene;
use super::terms::{Sums, grouped};
use crate::verdict::RowAt;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use std::rc::Rc;

/// Ways of a layer's sums.
pub(super) fn of_layer<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    of_others(scene, sums).into_iter().chain(of_digits(sums)).chain(of_shares(scene, sums)).collect()
}

/// Ways of any sums.
pub(super) fn others<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    of_groups(scene).into_iter().chain(of_values(scene, sums)).collect()
}

/// What rows, or runs of a row, are brought to before they become integers.
type Measure = fn(&[f64]) -> f64;

pub(super) fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0f64, |m, v| m.max(v.abs()))
}

/// The power of two that a row, or a run of it, is brought to size by.
pub(super) fn power(x: &[f64]) -> f64 {
    largest(x).log2().floor().exp2()
}

const MEASURES: [(&str, Measure); 2] = [("the largest", largest), ("the power of two of the largest", power)];

/// Factors that are dealt out to groups, each of which is scaled as its own largest says, while sums are scaled back as those of one
/// group: the first, or the one that the output has among the groups.
fn of_groups<'a>(scene: &'a Scene<'a>) -> Vec<Other<'a>> {
    let op = scene.node().op.anatomy();
    let ([left, right], of_scores) = (called(op), matches!(op, Anatomy::Contraction(Contraction::Scores(_))));
    // Weights have scales of their own.
    let sides: &[bool] = if of_scores { &[true, false] } else { &[false] };
    let runs = (0..9).map(|b| 1usize << b).flat_map(|run| [2, 4, 8].map(|groups| (run, groups)));
    let mut all: Vec<Other<'a>> = Vec::new();
    for ((run, groups), (what, measure)) in runs.flat_map(|of| MEASURES.map(|measure| (of, measure))) {
        for (&of_left, of_output) in sides.iter().flat_map(|side| [(side, false), (side, true)]) {
            let (name, back) = (if of_left { left } else { right }, if of_output { "output" } else { "first" });
            let told = format!(
                "{name} of each {run} of {} are scaled by {what} of those in the same place of each {}, and scaled back as those of the {back}",
                run * groups,
                run * groups
            );
            let terms: Terms<'a> = Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
                let x = if of_left { a } else { b };
                if run * groups > x.len() {
                    return None;
                }
                let of = |g: usize| -> Vec<f64> { x.chunks(run).skip(g).step_by(groups).flatten().copied().collect() };
                let of: Vec<f64> = (0..groups).map(|g| measure(&of(g))).collect();
                let output = if of_scores { i } else { scene.token(row).1 + i };
                let back = of[if of_output { output / run % groups } else { 0 }];
                let by = |g: usize| if of[g] > 0.0 { back / of[g] } else { 1.0 };
                Some((0..a.len()).map(|k| a[k] * b[k] * by(k / run % groups)).collect())
            });
            all.push((told, terms));
        }
    }
    all
}

/// The sums over runs of keys scaled back as their keys are, and not as the values.
fn of_values<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    let graph = &scene.e.oracle.graph;
    let Anatomy::Contraction(Contraction::Context(attention)) = scene.node().op.anatomy() else { return Vec::new() };
    let inputs = |node: usize| &graph.nodes[node].inputs;
    let scores = inputs(scene.node().inputs[0]).first().copied();
    let Some(&keys) = scores.and_then(|scores| inputs(scores).get(1)) else { return Vec::new() };
    let d = attention.head_dim;
    let ways = [8usize, 16, 32, 64].into_iter().flat_map(|run| [(run, run), (run, 2 * run)]);
    let law = |(run, tile): (usize, usize)| -> Other<'a> {
        let what = format!(
            "the sum over each {run} keys is scaled back by the power of two of the largest of its keys, and not of the values of the {tile}"
        );
        let sums = sums.clone();
        let terms: Terms<'a> = Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
            let [keys, values] =
                [graph.nodes[keys].id, graph.nodes[scene.node().inputs[1]].id].map(|id| scene.tensor(row.step, id));
            let (keys, values) = (keys?, values?);
            let (width, group) = (attention.n_kv_heads * d, grouped(attention, (scene.token(row).1 + i) / d));
            let n = values.data.len() / width;
            // The largest of some rows' heads.
            let size = |of: &[f32], rows: std::ops::Range<usize>| -> Option<f64> {
                let heads = rows.map(|key| of.get(key * width + group * d..)?.get(..d));
                let all: Vec<f64> = heads.collect::<Option<Vec<_>>>()?.concat().into_iter().map(f64::from).collect();
                Some(power(&all))
            };
            sums.scene.count(4 * n * d);
            let by = |part: usize| -> Option<f64> {
                let (from, of) = (part * run, part * run / tile * tile);
                Some(size(&keys.data, from..(from + run).min(n))? / size(&values.data, of..(of + tile).min(n))?)
            };
            let by: Vec<f64> = (0..a.len().div_ceil(run)).map(by).collect::<Option<_>>()?;
            Some((0..a.len()).map(|k| a[k] * b[k] * by[k / run]).collect())
        });
        (what, terms)
    };
    ways.map(law).collect()
}

/// Inputs cut into four digits of 8 bits, of which all are read as signed and none carries to the next.
fn of_digits<'a>(sums: &Rc<Sums<'a>>) -> impl Iterator<Item = Other<'a>> {
    [32usize, 256, usize::MAX].into_iter().map(|run| {
        let (sums, of) = (sums.clone(), if run == usize::MAX { "a row".to_owned() } else { run.to_string() });
        let what = format!(
            "inputs become integers of 31 bits under one power of two for {of}, and their lower bytes are read as signed, without a carry to the next byte"
        );
        let terms: Terms<'a> = Rc::new(move |row: &RowAt, _, a: &[f64], _: &[f64]| {
            let x = sums.activations(row)?;
            let digits = |part: &[f64]| -> Vec<f64> {
                let unit = power(part) / 29f64.exp2();
                part.iter().map(|v| unit * without_carry((v / unit).round() as i32)).collect()
            };
            let read: Vec<f64> = x.chunks(run.min(x.len())).flat_map(digits).collect();
            Some(products(a, &read))
        });
        (what, terms)
    })
}

/// What the bytes of an integer are worth, each read as signed.
fn without_carry(whole: i32) -> f64 {
    whole.to_le_bytes().iter().rev().fold(0.0, |sum, byte| 256.0 * sum + f64::from(*byte as i8))
}

/// Shares of a sum that lie as far apart as whole tiles of tokens, and are read as far apart as there are tokens.
fn of_shares<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> impl Iterator<Item = Other<'a>> {
    let all = [2usize, 3, 4, 6, 8].into_iter().flat_map(|shares| [16usize, 32, 64, 128].map(|tile| (shares, tile)));
    all.map(move |(shares, tile)| {
        let sums = sums.clone();
        let what = format!(
            "{shares} shares of the sum lie as far apart as whole tiles of {tile} tokens, and are read as far apart as the part has tokens"
        );
        let terms: Terms<'a> = Rc::new(move |row: &RowAt, _, a: &[f64], b: &[f64]| {
            let (number, tokens) = scene.number(row.step, scene.token(row).0);
            let (n, apart) = (a.len(), tokens.next_multiple_of(tile));
            let each = n.div_ceil(shares).next_multiple_of(64);
            let inputs = scene.operand(row.step, 0)?;
            let mut made = vec![0f64; n];
            for (share, first) in (0..n).step_by(each).enumerate() {
                let (stands, token) = ((share * tokens + number) / apart, (share * tokens + number) % apart);
                // Between tiles nothing was written.
                if token >= tokens {
                    continue;
                }
                let at = scene.numbered(row.step, token)? * n;
                let other = if token == number { b.to_vec() } else { sums.rounded(row, inputs.data.get(at..at + n)?) };
                let of = stands * each..((stands + 1) * each).min(n);
                made[first] = of.map(|k| a[k] * other[k]).sum();
            }
            Some(made)
        });
        (what, terms)
    })
}

/// Inputs that are scaled back as those of another row of the part, or of another run of the row.
fn of_others<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    let mut all: Vec<Other<'a>> = Vec::new();
    for (what, measure) in MEASURES {
        // A row of the operand, by its number in the part.
        let of_row = move |row: &RowAt, number: usize, n: usize| -> Option<f64> {
            let inputs = scene.operand(row.step, 0)?;
            let at = scene.numbered(row.step, number)? * n;
            let row: Vec<f64> = inputs.data.get(at..at + n)?.iter().map(|v| f64::from(*v)).collect();
            scene.count(n);
            Some(measure(&row))
        };
        for index in Index::slips(65).into_iter().filter(|_| scene.node().op.anatomy().is_layer()) {
            let told = index.told("token", "t");
            all.push((
                format!("inputs are scaled back by {what} of the part's {told}, and not of their own row"),
                Rc::new(move |row: &RowAt, _, a: &[f64], b: &[f64]| {
                    let (number, count) = scene.number(row.step, scene.token(row).0);
                    let own = of_row(row, number, a.len())?;
                    let by = of_row(row, index.of(number, count)?, a.len())? / own;
                    Some(a.iter().zip(b).map(|(a, b)| a * b * by).collect())
                }),
            ));
        }
        for run in [16usize, 32, 64, 128, 256] {
            let maps = [
                Index::By(-1),
                Index::By(1),
                Index::Is(0),
                Index::Apart(1),
                Index::First(2),
                Index::First(4),
                Index::First(8),
            ];
            // Blocks may share out the inputs, each for itself.
            for (index, blocks) in maps.into_iter().flat_map(|index| [1, 2, 4].map(|blocks| (index.clone(), blocks))) {
                let sums = sums.clone();
                let told = index.told(&format!("run of {run}"), "r");
                let within =
                    if blocks > 1 { format!(", within each of {blocks} parts of the inputs") } else { String::new() };
                all.push((
                    format!("the inputs of each {run} are scaled back by {what} of the {told}{within}"),
                    Rc::new(move |row: &RowAt, _, a: &[f64], _: &[f64]| {
                        let x = sums.activations(row)?;
                        let of: Vec<f64> = x.chunks(run).map(measure).collect();
                        let len = of.len().div_ceil(blocks);
                        let other = |r: usize| Some(r / len * len + index.of(r % len, len)?).filter(|o| *o < of.len());
                        let by = |r: usize| other(r).filter(|_| of[r] > 0.0).map_or(1.0, |o| of[o] / of[r]);
                        let by: Vec<f64> = (0..of.len()).map(by).collect();
                        Some((0..a.len()).map(|k| a[k] * x[k] * by[k / run]).collect())
                    }),
                ));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{power, without_carry};

    #[test]
    fn bytes_with_their_highest_bit_set_are_worth_less() {
        assert_eq!([127, 128, 0x0180, -1].map(without_carry), [127.0, -128.0, 128.0, f64::from(-0x0101_0101)]);
        assert_eq!([power(&[0.5, -3.0]), power(&[4.0])], [2.0, 4.0]);
    }
}
