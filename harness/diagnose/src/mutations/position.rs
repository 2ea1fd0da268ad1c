//! Positions: the rotation and the cache.

use super::mutation::to_digits;
use super::places::rotations;
use super::{Mutation, Param, each};
use crate::verdict::Evidence;
use qdiff_engine::model::fault::Output;
use qdiff_engine::model::{Graph, Node, Role};
use qdiff_engine::ops::anatomy::{Elementwise, State};
use qdiff_engine::ops::{Anatomy, Op, Pairing, Rope, Scaling, Tensor, forward_with_bound, rope as op};
use std::collections::BTreeMap;
use std::f64::consts::{PI, TAU};

/// Offsets of a position that are looked for.
const REACH: i32 = 1024;

fn rope(node: &Node) -> Option<&Rope> {
    if let Anatomy::Elementwise(Elementwise::Rotation(rope)) = node.op.anatomy() { Some(rope) } else { None }
}

/// Other parameters of the rotation.
fn rotating(node: &Node, change: impl FnOnce(&mut Rope)) -> Option<Node> {
    let own = rope(node)?;
    let mut other = own.clone();
    change(&mut other);
    (other != *own).then(|| node.with(Op::Rope(other)))
}

/// The rotation of any rows by `rope`, at the position that `at` makes of a token's; it is also told
/// whether the step is the first.
fn turned(node: &Node, rope: &Rope, at: impl Fn(f64, bool) -> f64 + Send + Sync + 'static) -> Option<Node> {
    let rope = rope.clone();
    Some(node.computing(move |inputs, c| {
        let first = c.positions.first().is_none_or(|&p| p == 0);
        let positions: Vec<f64> = c.positions.iter().map(|&p| at(f64::from(p), first)).collect();
        let y = op::forward(&rope, inputs[0], &positions);
        let bound = op::bound(&rope, &y, &positions);
        (y, bound)
    }))
}

/// A cache that shows the rows of the last step alone.
fn stuck(out: Output<'_>) {
    let rows = out.positions.len().min(out.value.rows());
    let from = out.value.data.len() - rows * out.value.row_len();
    out.value.data.drain(..from);
    out.bound.drain(..from);
    out.value.shape[0] = rows;
}

/// The angle by which a plane was turned at a position.
struct Turn {
    /// Index of the step.
    step: usize,
    position: f64,
    plane: usize,
    angle: f64,
    /// Square of the plane's length: how much the angle can be relied on.
    weight: f64,
}

/// What the subject turned each plane by, all heads together.
fn turns(e: &Evidence<'_>) -> Vec<Turn> {
    let Some(rope) = rope(e.node) else {
        return Vec::new();
    };
    let (d, half) = (rope.head_dim, rope.rotated / 2);
    let mut sums: BTreeMap<(usize, usize, usize), (f64, f64)> = BTreeMap::new();
    for row in e.bad_rows() {
        let Some(x) = e.operand(row, 0) else { continue };
        let x = &x[row.place.head.unwrap_or(0) * d..][..d];
        let (y, ..) = e.row(row);
        for i in 0..half {
            let (a, b) = (f64::from(x[i]), f64::from(x[i + half]));
            let (c, s) = (f64::from(y[i]), f64::from(y[i + half]));
            let sum = sums.entry((row.step, row.place.position, i)).or_default();
            sum.0 += a * s - b * c;
            sum.1 += a * c + b * s;
        }
    }
    let turn = |((step, position, plane), (sin, cos)): (_, (f64, f64))| Turn {
        step,
        position: position as f64,
        plane,
        angle: sin.atan2(cos),
        weight: sin.hypot(cos),
    };
    sums.into_iter().map(turn).collect()
}

/// The base that makes the angles, by least squares on its logarithm: first
/// from positions so small that no angle is ambiguous, then from all of them.
fn fitted_base(e: &Evidence<'_>) -> Option<f64> {
    let rope = rope(e.node)?;
    let d = rope.rotated as f64;
    let turns = turns(e);
    let (mut top, mut bottom) = (0.0, 0.0);
    for t in &turns {
        if t.plane > 0 && (1.0..=3.0).contains(&t.position) && t.angle > 1e-4 {
            let share = 2.0 * t.plane as f64 / d;
            let trust = t.weight * (share * t.angle).powi(2);
            top += trust * -(t.angle / t.position).ln() / share;
            bottom += trust;
        }
    }
    let mut log = Some(top / bottom).filter(|l| l.is_finite())?;
    let furthest = turns.iter().fold(0.0, |m: f64, t| m.max(t.position));
    let mut reach = 3.0;
    while reach < 2.0 * furthest {
        reach *= 2.0;
        for _ in 0..3 {
            let (mut top, mut bottom) = (0.0, 0.0);
            for t in turns.iter().filter(|t| t.plane > 0 && t.position <= reach) {
                let share = 2.0 * t.plane as f64 / d;
                let theta = t.position * (-share * log).exp();
                let off = (t.angle - theta + PI).rem_euclid(TAU) - PI;
                let slope = -share * theta;
                // A turn that is half a circle off tells nothing.
                if off.abs() < 1.0 {
                    top += t.weight * slope * off;
                    bottom += t.weight * slope * slope;
                }
            }
            if bottom > 0.0 {
                log += top / bottom;
            }
        }
    }
    Some(log.exp()).filter(|b| b.is_finite() && *b > 0.0)
}

/// `x` in `digits` significant digits.
pub(super) fn rounded(x: f64, digits: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // Through text: powers of ten are not exact, and 1e-5 must come out as 1e-5.
    let text = format!("{x:.*e}", (digits - 1).max(0) as usize);
    text.parse().unwrap_or(x)
}

/// The offset that best turns the right angles into those of the subject, of the steps that `chosen` names.
fn fitted_offset(e: &Evidence<'_>, chosen: fn(usize) -> bool) -> Option<f64> {
    let rope = rope(e.node)?;
    let turns: Vec<Turn> = turns(e).into_iter().filter(|t| chosen(t.step)).collect();
    let misfit = |by: i32| -> f64 {
        let one = |t: &Turn| {
            let pace = rope.base.powf(-2.0 * t.plane as f64 / rope.rotated as f64);
            t.weight * (1.0 - (t.angle - (t.position + f64::from(by)) * pace).cos())
        };
        turns.iter().map(one).sum()
    };
    let best = (-REACH..=REACH).min_by(|a, b| misfit(*a).total_cmp(&misfit(*b)))?;
    (best != 0 && !turns.is_empty()).then_some(f64::from(best))
}

/// Turns of one position from which planes are read off: no angle of theirs is ambiguous.
const NEAR: std::ops::RangeInclusive<f64> = 1.0..=3.0;

/// The planes between which YaRN goes over, by the line on which the shares of the planes between them lie.
fn fitted_planes(e: &Evidence<'_>) -> Option<Vec<f64>> {
    let rope = rope(e.node)?;
    let Scaling { factor, between: Some(own), .. } = rope.scaling? else { return None };
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for turn in turns(e).iter().filter(|turn| NEAR.contains(&turn.position)) {
        let unscaled = turn.position * rope.base.powf(-2.0 * turn.plane as f64 / rope.rotated as f64);
        let sum = sums.entry(turn.plane).or_default();
        // As much as the angle says of it.
        let trust = turn.weight * unscaled * unscaled;
        (sum.0, sum.1) = (sum.0 + trust * turn.angle / unscaled, sum.1 + trust);
    }
    // How far each is on its way from what is kept to what is divided.
    let way =
        |(plane, (share, trust)): (usize, (f64, f64))| (plane as f64, (1.0 - share / trust) / (1.0 - 1.0 / factor));
    let within: Vec<(f64, f64)> = sums.into_iter().map(way).filter(|(_, way)| (0.02..0.98).contains(way)).collect();
    let n = within.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| within.iter().map(of).sum::<f64>() / n;
    let (plane, way) = (mean(|w| w.0), mean(|w| w.1));
    let slope = within.iter().map(|w| (w.0 - plane) * (w.1 - way)).sum::<f64>()
        / within.iter().map(|w| (w.0 - plane).powi(2)).sum::<f64>();
    let low = plane - way / slope;
    let read = [low, low + 1.0 / slope];
    // They are whole numbers, unless they are not rounded.
    let near = |v: f64| if (v - v.round()).abs() < 0.02 { v.round() } else { rounded(v, 4) };
    let read = read.map(near);
    (within.len() > 1 && slope > 0.0 && read != own).then(|| read.to_vec())
}

/// The planes that were read off, and those near them that are computed of a usual context and not rounded.
fn near_planes(e: &Evidence<'_>, read: Vec<f64>) -> Vec<Vec<f64>> {
    let Some(rope) = rope(e.node) else { return vec![read] };
    let of = |turns: f64, trained: f64| rope.rotated as f64 * (trained / (turns * TAU)).ln() / (2.0 * rope.base.ln());
    let exact = (9..=20).map(|b| f64::from(1 << b)).map(|trained| {
        // In so many digits it is the same in f32.
        vec![to_digits(of(32.0, trained).max(0.0), 8), to_digits(of(1.0, trained), 8)]
    });
    let is_near = |planes: &Vec<f64>| planes.iter().zip(&read).all(|(a, b)| (a - b).abs() < 0.05);
    let exact: Vec<Vec<f64>> = exact.filter(is_near).collect();
    exact.into_iter().chain([read]).collect()
}

fn not_rotated(node: &Node, _: &[f64], _: &Graph) -> Option<Node> {
    turned(node, rope(node)?, |_, _| 0.0)
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "rope-not-on-q",
        fits: Some(|_, n| {
            matches!((n.op.anatomy(), n.role), (Anatomy::Elementwise(Elementwise::Rotation(_)), Role::Query))
        }),
        story: "queries are not rotated",
        seen: "the output of RoPE equals its input at every position",
        remedy: "apply RoPE to q, with the position of each token",
        apply: not_rotated,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-not-on-k",
        fits: Some(|_, n| {
            matches!((n.op.anatomy(), n.role), (Anatomy::Elementwise(Elementwise::Rotation(_)), Role::Key))
        }),
        story: "keys are not rotated",
        seen: "the output of RoPE equals its input at every position",
        remedy: "apply RoPE to k before it enters the cache",
        apply: not_rotated,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-pairing",
        fits: Some(rotations),
        story: "adjacent elements are rotated (NORM) where Qwen rotates split halves (NEOX)",
        seen: "good at position 0, then ever worse; text loops after a few tokens",
        remedy: "pair element i with i + head_dim/2",
        apply: |node, _, _| rotating(node, |r| r.pairing = Pairing::Norm),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-twice",
        fits: Some(rotations),
        story: "the rotation is applied twice",
        seen: "angles are double; often the cache holds rotated keys and they are rotated again when read",
        remedy: "apply RoPE once, before the key enters the cache",
        apply: |node, _, _| turned(node, rope(node)?, |p, _| 2.0 * p),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-position-off-by-one",
        fits: Some(rotations),
        story: "the rotation takes another position than the token's",
        seen: "position 0 is rotated although it must not be",
        remedy: "give each token the number of tokens before it in its sequence as its position: 0 for the first token",
        params: &[Param::new("by", "positions too far", 1.0).searched(&[-1.0])],
        apply: |node, values, _| {
            let by = values[0];
            if by == 0.0 { None } else { turned(node, rope(node)?, move |p, _| p + by) }
        },
        propose: Some(|e| each(fitted_offset(e, |_| true))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "decode-offset",
        fits: Some(rotations),
        story: "in every pass except the first, the rotation takes a wrong position; the distance is the same in each step",
        seen: "the prefill is right and the first decoded token is not",
        remedy: "give each token the number of tokens before it as its position; count the tokens of the cache once, and add nothing",
        params: &[Param::new("by", "positions too far in every step but the first", 16.0).searched(&[1.0, -1.0])],
        apply: |node, values, _| {
            let by = values[0];
            if by == 0.0 { None } else { turned(node, rope(node)?, move |p, first| if first { p } else { p + by }) }
        },
        propose: Some(|e| each(fitted_offset(e, |step| step > 0))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-exponent-of-head",
        fits: Some(rotations),
        story: "the exponents of the frequencies are divided by the length of a head, and not by the part of it that is rotated",
        seen: "the first plane is right, and every other turns too fast",
        remedy: "divide 2i by rope.dimension_count, the number of rotated elements",
        apply: |node, _, _| {
            rope(node).filter(|r| r.rotated < r.head_dim)?;
            rotating(node, |r| r.base = r.base.powf(r.rotated as f64 / r.head_dim as f64))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-at-the-end",
        fits: Some(rotations),
        story: "the last elements of each head are rotated, and not the first",
        seen: "the first elements of each head equal the input's",
        remedy: "rotate the first rope.dimension_count elements of a head, and leave the others as they are",
        apply: |node, _, _| {
            let whole = rope(node).filter(|r| r.rotated < r.head_dim)?;
            let (d, rotated, op) = (whole.head_dim, whole.rotated, node.op.clone());
            // Turned round each head before and after.
            let turned = move |data: &[f64], by: usize| -> Vec<f64> {
                data.chunks(d).flat_map(|head| [&head[by..], &head[..by]].concat()).collect()
            };
            Some(node.computing(move |inputs, c| {
                let moved = Tensor { shape: inputs[0].shape.clone(), data: turned(&inputs[0].data, d - rotated) };
                let (y, bound) = forward_with_bound(&op, &[&moved], c);
                let wide: Vec<f64> = bound.iter().map(|b| f64::from(*b)).collect();
                let bound = turned(&wide, rotated).into_iter().map(|b| b as f32).collect();
                (Tensor { shape: y.shape.clone(), data: turned(&y.data, rotated) }, bound)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-base",
        fits: Some(rotations),
        story: "the rotary base is not the model's",
        seen: "good for a few tokens, then loops; the error grows with the position",
        remedy: "read <arch>.rope.freq_base from the GGUF; frequency i of n is base^(-i/n)",
        params: &[Param::new("base", "base of the rotary frequencies", 10_000.0).searched(&[1e6, 5e5, 1e5])],
        apply: |node, values, _| rotating(node, |r| r.base = values[0]),
        of_model: true,
        propose: Some(|e| {
            let mut bases = vec![10_000.0];
            if let Some(base) = fitted_base(e) {
                bases.extend([rounded(base, 2), rounded(base, 4), rounded(base, 6), base]);
            }
            bases.dedup();
            each(bases)
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-magnitude",
        fits: Some(rotations),
        story: "the magnitude by which YaRN multiplies sines and cosines is not applied exactly once (0: never; 2: twice; −1: sines and cosines are divided by it)",
        seen: "the angles are right, and every rotated vector is too long or too short by one factor",
        remedy: "multiply sines and cosines by the magnitude, 0.1·ln(factor) + 1 unless the model says otherwise, once",
        params: &[Param::new("times", "how many times it is applied", 0.0).searched(&[2.0, -1.0])],
        apply: |node, values, _| {
            let times = values[0];
            rotating(node, |r| {
                if let Some(scaling) = r.scaling.as_mut().filter(|scaling| scaling.magnitude != 1.0) {
                    scaling.magnitude = scaling.magnitude.powf(times);
                }
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-yarn-context",
        fits: Some(rotations),
        story: "YaRN computes its range of pairs from a wrong training context",
        seen: "the first and the last pairs of a head are right, those between are not; the error grows with the position",
        remedy: "compute the two pairs from rope.scaling.original_context_length, not from context_length, and with the model's base",
        params: &[Param::new("context", "tokens of the context from which the range is computed", 32_768.0)],
        apply: |node, values, _| {
            rotating(node, |r| {
                let planes = Scaling::planes((r.rotated, r.base), values[0], [32.0, 1.0]);
                if let Some(between) = r.scaling.as_mut().and_then(|scaling| scaling.between.as_mut()) {
                    *between = planes;
                }
            })
        },
        of_model: true,
        propose: Some(|e| {
            let own = e.oracle.graph.config.context as f64;
            let factor = rope(e.node).and_then(|r| r.scaling).map_or(1.0, |scaling| scaling.factor);
            let mut contexts = vec![own, own * factor, own / factor];
            contexts.extend((11..=20).map(|b| f64::from(1 << b)));
            each(contexts)
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-yarn-planes",
        fits: Some(rotations),
        story: "YaRN's ramp from undivided to divided angles begins or ends at another pair of elements than the model's",
        seen: "the first and the last pairs of a head are right, those between are not; the error grows with the position",
        remedy: "look at what the two pairs are computed from: the model's own base, the elements of a head that are rotated, the context that the model was trained on, and 32 and 1 turns; the first is rounded down, the last up",
        params: &[
            Param::new("low", "the last pair that keeps its angle", 4.0),
            Param::new("high", "the first pair whose angle is divided", 12.0),
        ],
        apply: |node, values, _| {
            let planes = [values[0], values[1]];
            rotating(node, |r| {
                if let Some(between) = r.scaling.as_mut().and_then(|scaling| scaling.between.as_mut()) {
                    *between = planes;
                }
            })
        },
        of_model: true,
        propose: Some(|e| fitted_planes(e).into_iter().flat_map(|read| near_planes(e, read)).collect()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-yarn-ramp",
        fits: Some(rotations),
        story: "YaRN has no ramp: {divided}",
        seen: "the pairs on one side of the ramp, and those within it, are wrong; the error grows with the position",
        remedy: "divide the angles of the slow pairs by rope.scaling.factor, keep those of the fast ones, and go over between them",
        params: &[Param::new(
            "divided",
            "0: no angle is divided, 1: all angles are divided, \
             2: its two bounds are interchanged so that it is a step at the bound of the slow pairs",
            0.0,
        )
        .searched(&[1.0, 2.0])],
        apply: |node, values, _| {
            rotating(node, |r| {
                if let Some(between) = r.scaling.as_mut().and_then(|scaling| scaling.between.as_mut()) {
                    let half = r.head_dim as f64;
                    *between = match values[0] as i64 {
                        0 => [half, half + 1.0],
                        1 => [-2.0, -1.0],
                        // The bound that is rounded up as the second is rounded down as the first.
                        _ => [between[1] - 1.0, between[0]],
                    };
                }
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-of-whole-heads",
        fits: Some(rotations),
        story: "all elements of a head are rotated; the model rotates only the first elements",
        seen: "the last elements of each head are not the input's",
        remedy: "rotate only the first `rope.dimension_count` elements of a head; this number also divides the exponents",
        apply: |node, _, _| rotating(node, |r| r.rotated = r.head_dim),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-partial",
        fits: Some(rotations),
        story: "only part of each head is rotated",
        seen: "the last elements of each head equal the input's",
        remedy: "rotate as many elements of a head as the model says: `rope.dimension_count` of the GGUF, and all where it says nothing",
        params: &[Param::new("dims", "elements of a head that are rotated", 32.0).searched(&[16.0, 64.0])],
        apply: |node, values, _| {
            let dims = values[0] as usize;
            let part = dims < rope(node)?.head_dim && dims > 0 && dims.is_multiple_of(2);
            if part { rotating(node, |r| r.rotated = dims) } else { None }
        },
        propose: Some(|e| {
            let d = e.oracle.graph.config.head_dim;
            each((2..d).step_by(2).rev().map(|n| n as f64))
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rope-on-v",
        fits: Some(|_, n| matches!((n.op.anatomy(), n.role), (Anatomy::State(_), Role::Value))),
        story: "values are rotated as if they were keys",
        seen: "row 0 of the value cache is right, every other is turned",
        remedy: "apply RoPE to q and k alone",
        apply: |node, _, graph| {
            let mut layer = graph.nodes.iter().filter(|n| n.id.layer == node.id.layer);
            turned(node, layer.find_map(rope)?, |p, _| p)
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "kv-position-stuck",
        fits: Some(|_, n| matches!(n.op.anatomy(), Anatomy::State(State::Rows(_)))),
        story: "the cache holds only the rows of the current step: its length never advances, or the exporter dumped only new rows",
        seen: "every decode step alike, attention over one key; a single batched prefill hides it",
        remedy: "advance the cache position by the number of tokens after every step",
        apply: |node, _, _| Some(node.writing(stuck)),
        ..Mutation::PLAIN
    },
];

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn rounds_to_significant_digits() {
        assert_eq!(rounded(9_999.2, 2), 10_000.0);
        assert_eq!(rounded(1.000_03e-5, 2), 1e-5);
        assert_eq!(rounded(0.0, 3), 0.0);
        assert_eq!(rounded(-123_456.0, 3), -123_000.0);
    }
}
