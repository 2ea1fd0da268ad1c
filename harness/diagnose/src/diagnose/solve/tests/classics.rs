//! What engines get wrong most often, told in the words of whoever debugs them.

use super::bench::{At, Bench, Stage};
use super::plants::Plant;
use super::{CONDITIONS, planted, says};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Node, Role, qwen2, qwen3};
use qdiff_engine::ops::Op;
use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;
use std::ops::Range;

/// The prompt, and the tokens of a part of it at most.
const TOKENS: (usize, usize) = (35, 23);

/// First position of the part that a position is in.
fn part(s: &Stage, position: usize) -> usize {
    s.steps.iter().filter(|(first, _)| *first <= position).map(|(first, _)| *first).max().unwrap()
}

/// The softmax over keys chosen by `(key, position, first position of its part)`.
fn over(taken: fn(usize, usize, usize) -> bool) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let (x, tokens, keys) = (&s.inputs[0][at.step], s.steps[at.step].1, s.width(at.step));
        let row = &x.data[(at.head * tokens + at.token) * keys..][..keys];
        let all: Vec<f64> = row.iter().map(|v| f64::from(*v) / (s.head_dim() as f64).sqrt()).collect();
        let seen = |k: usize| taken(k, at.position, part(s, at.position));
        let sum: f64 = (0..keys).filter(|&k| seen(k)).map(|k| (all[k] - all[at.column]).exp()).sum();
        if seen(at.column) { 1.0 / sum } else { 0.0 }
    }
}

/// The scaled scores of the keys that a query sees.
fn scores(s: &Stage, at: &At) -> Vec<f64> {
    let (x, tokens, keys) = (&s.inputs[0][at.step], s.steps[at.step].1, s.width(at.step));
    let row = &x.data[(at.head * tokens + at.token) * keys..][..=at.position];
    row.iter().map(|v| f64::from(*v) / (s.head_dim() as f64).sqrt()).collect()
}

/// The weighted sum of the values of keys chosen so.
fn sum(taken: fn(usize, usize, usize) -> bool) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let (weights, values) = (&s.inputs[0][at.step], &s.inputs[1][at.step]);
        let (tokens, keys, d) = (s.steps[at.step].1, values.shape[0], s.head_dim());
        let group = s.graph.config.n_heads / s.graph.config.n_kv_heads;
        let row = &weights.data[(at.head * tokens + at.token) * keys..][..keys];
        let value = |k: usize| f64::from(values.row(k)[at.head / group * d + at.column % d]);
        let seen = (0..keys).filter(|&k| taken(k, at.position, part(s, at.position)));
        seen.map(|k| f64::from(row[k]) * value(k)).sum()
    }
}

/// The value at this number of the buffer of a part, counted in rows of the right width.
fn flat(s: &Stage, at: &At, number: usize) -> f64 {
    f64::from(s.given[at.step].data.get(number).copied().unwrap_or(0.0))
}

/// A rotation of the element by another position.
fn rotated(position: fn(&Stage, usize) -> usize) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let (d, x) = (s.head_dim(), s.x(0, at, 0).unwrap());
        let (head, i) = (at.column / d * d, at.column % d);
        let frequency = s.graph.config.rope_base.powf(-2.0 * (i % (d / 2)) as f64 / d as f64);
        let (sin, cos) = (position(s, at.position) as f64 * frequency).sin_cos();
        let (a, b) = (f64::from(x[head + i % (d / 2)]), f64::from(x[head + i % (d / 2) + d / 2]));
        if i < d / 2 { a * cos - b * sin } else { a * sin + b * cos }
    }
}

/// A norm that divides by the root of another mean: of the row of the token `from(token)`, given its own run of that row.
fn normed(from: fn(usize) -> usize, mean: fn(&[f32], Range<usize>) -> f64) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let (weight, run) = (&s.matrix[0], s.matrix[0].len());
        let other = s.inputs[0][at.step].row(from(at.token));
        let scale =
            1.0 / (mean(other, at.column / run * run..at.column / run * run + run) + s.graph.config.rms_eps).sqrt();
        f64::from(s.x(0, at, 0).unwrap()[at.column]) * scale * f64::from(weight[at.column % run])
    }
}

/// One over the root of the mean of squares of a row of the part, of the run that an element is in.
fn of_row(s: &Stage, at: &At, token: usize) -> f64 {
    let run = s.matrix[0].len();
    let part = &s.inputs[0][at.step].row(token)[at.column / run * run..][..run];
    1.0 / (squares(part) / run as f64 + s.graph.config.rms_eps).sqrt()
}

/// A rotation whose plane `i`, of so many, has the frequency of another one.
fn with_planes(plane: fn(usize, usize) -> usize) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let (d, x) = (s.head_dim(), s.x(0, at, 0).unwrap());
        let (head, i) = (at.column / d * d, at.column % d);
        let other = plane(i % (d / 2), d / 2);
        let frequency = s.graph.config.rope_base.powf(-2.0 * other as f64 / d as f64);
        let (sin, cos) = (at.position as f64 * frequency).sin_cos();
        let (a, b) = (f64::from(x[head + i % (d / 2)]), f64::from(x[head + i % (d / 2) + d / 2]));
        if i < d / 2 { a * cos - b * sin } else { a * sin + b * cos }
    }
}

/// A row of a product with one input that counts as another number where `of` says so.
fn one_input(of: fn(&[f32]) -> Option<(usize, f64)>) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let x = s.x(0, at, 0).unwrap();
        of(x).map_or(s.own(at), |(k, other)| s.own(at) + f64::from(s.matrix[at.column][k]) * (other - f64::from(x[k])))
    }
}

/// The largest of a row, if it is a bit below a power of two: as an integer it overflows.
fn overflows(x: &[f32]) -> Option<(usize, f64)> {
    let k = (0..x.len()).max_by(|a, b| x[*a].abs().total_cmp(&x[*b].abs()))?;
    let (v, above) = (f64::from(x[k]), f64::from(x[k].abs().log2().ceil().exp2()));
    (v.abs() > 0.7 * above).then_some((k, v - (2.0 * above).copysign(v)))
}

fn squares(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v).powi(2)).sum()
}

/// The embedding of the token at another position, as a stage of the model has it.
fn embedded(place: fn(&Stage, usize) -> usize) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let there = place(s, at.position);
        let step = s.steps.iter().rposition(|(first, _)| *first <= there).unwrap();
        f64::from(s.given[step].row(there - s.steps[step].0)[at.column])
    }
}

fn plants(node: &Node) -> Vec<Plant> {
    match node.op {
        Op::Embed => vec![
            Plant::new("token before", "the embedding of the token before in the sequence", |s, at| {
                match s.steps[at.step] {
                    (_, 1) => embedded(|_, p| p - 1)(s, at),
                    _ => s.own(at),
                }
            }),
            Plant::new(
                "parts from the beginning",
                // The buffer holds the same rows.
                "the number that the row has in its part|what the step before left",
                embedded(|s, p| p - part(s, p)),
            ),
            Plant::new("rows that were added", "the mean of the table's first 24 rows is there instead", |s, at| {
                s.matrix[..24].iter().map(|row| f64::from(row[at.column])).sum::<f64>() / 24.0
            }),
        ],
        Op::RmsNorm(_) => vec![
            Plant::new(
                "first of each 4",
                "the mean is that of the first token of each 4",
                normed(|t| t / 4 * 4, |x, run| squares(&x[run.clone()]) / run.len() as f64),
            ),
            Plant::new(
                "all heads",
                "over all heads of the token together|missing",
                normed(|t| t, |x, _| squares(x) / x.len() as f64),
            ),
            Plant::new(
                "warps that are not added",
                "are missing from the mean of squares",
                normed(
                    |t| t,
                    |x, run| {
                        let groups = x[run.clone()].chunks(16).enumerate().filter(|(g, _)| g % 3 != 1);
                        groups.map(|(_, part)| squares(part)).sum::<f64>() / run.len() as f64
                    },
                ),
            ),
            Plant::new(
                "a scratch for 8 rows",
                "the mean is that of the last token whose number is t mod 8",
                |s, at| {
                    let tokens = s.steps[at.step].1;
                    let last = at.token + (tokens - 1 - at.token) / 8 * 8;
                    normed(|t| t, |x, run| squares(&x[run.clone()]) / run.len() as f64)(s, at) * of_row(s, at, last)
                        / of_row(s, at, at.token)
                },
            ),
            Plant::new("twice", "the norm is applied twice", |s, at| {
                let (weight, run) = (&s.matrix[0], s.matrix[0].len());
                let mut x: Vec<f64> = s.inputs[0][at.step].row(at.token)[at.column / run * run..][..run]
                    .iter()
                    .map(|v| f64::from(*v))
                    .collect();
                for _ in 0..2 {
                    let scale =
                        1.0 / (x.iter().map(|v| v * v).sum::<f64>() / run as f64 + s.graph.config.rms_eps).sqrt();
                    x.iter_mut().zip(weight).for_each(|(v, w)| *v *= scale * f64::from(*w));
                }
                x[at.column % run]
            }),
            Plant::new(
                "padded",
                "divided by 256 instead of|divided by 64 instead of",
                normed(|t| t, |x, run| squares(&x[run.clone()]) / run.len().next_power_of_two().max(64) as f64),
            ),
        ],
        Op::Rope(_) => vec![
            Plant::new("position stuck", "the position stays at the prompt's length", rotated(|_, p| p.min(TOKENS.0))),
            Plant::new("first of the part", "all tokens of a part are rotated as its first", rotated(part)),
            Plant::new(
                "parts begin at pages",
                "as if the part began at a multiple of 16: its first position is rounded up",
                rotated(|s, p| part(s, p).next_multiple_of(16) + p - part(s, p)),
            ),
            Plant::new(
                "tokens in twos",
                "every 2 tokens of a part are rotated alike|rotated as the part's token t/2",
                rotated(|s, p| part(s, p) + (p - part(s, p)) / 2),
            ),
            Plant::new(
                "tokens of each 8 reversed",
                "rotated as the part's token at the other end of each 8",
                rotated(|s, p| part(s, p) + ((p - part(s, p)) / 8 * 8 + 7 - (p - part(s, p)) % 8)),
            ),
            Plant::new(
                "planes of lanes",
                "the frequency is that of the plane i mod|the frequency is that of the plane 8 before",
                with_planes(|i, n| i % (n / 2)),
            ),
            Plant::new("planes reversed", "plane at the other end", with_planes(|i, n| n - 1 - i)),
            Plant::new(
                "planes in pairs",
                "plane 1 apart, in pairs|plane at the other end of each 2",
                with_planes(|i, _| i ^ 1),
            ),
        ],
        Op::AttnScores(_) => {
            vec![Plant::new("logarithm of the position", "multiplied by ln(p + 1)/ln(12)", |s, at| {
                s.own(at) * (((at.position + 1) as f64).ln() / 12f64.ln()).max(1.0)
            })]
        }
        Op::AttnWeights(_) => vec![
            Plant::new("blind to the cache", "own part alone", over(|k, p, first| k <= p && k >= first)),
            Plant::new(
                "mask by row",
                "row in its part, which is taken for its position",
                over(|k, p, first| k + first <= p),
            ),
            Plant::new(
                "a bound of whole tiles",
                "whole tiles of 8 keys, as many as there are up to the end of its tile of 4 queries:",
                over(|k, p, _| k <= p && k < ((p / 4 * 4 + 4) / 8 * 8).max(8)),
            ),
            Plant::new(
                "splits to the nearest",
                "as many tiles of 8 keys as the number of keys is nearest to",
                over(|k, p, _| k <= p && k < ((p + 1 + 4) / 8).max(1) * 8),
            ),
            Plant::new("exponentials in f16", "exponentials are rounded to f16, and not in their sum", |s, at| {
                let all = scores(s, at);
                let top = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = all.iter().map(|v| (v - top).exp()).sum();
                all.get(at.column).map_or(0.0, |v| half::f16::from_f32((v - top).exp() as f32).to_f64() / sum)
            }),
            Plant::new(
                "whole shares",
                "whole shares of the keys, a share being their number divided by 3, rounded up:",
                over(|k, p, _| k <= p && k < (p + 1) / (p + 1).div_ceil(3) * (p + 1).div_ceil(3)),
            ),
            Plant::new("prompt alone", "of the prompt alone", over(|k, p, _| k <= p && k < TOKENS.0)),
            Plant::new(
                "cache alone",
                "in the cache before the part",
                over(|k, p, first| k < first || first == 0 && k <= p),
            ),
        ],
        Op::AttnContext(_) => vec![
            Plant::new(
                "prompt's values",
                "the values are summed over the keys of the prompt alone",
                sum(|k, p, _| k <= p && k < TOKENS.0),
            ),
            Plant::new("heads outside", "heads by tokens", |s, at| {
                let (tokens, d) = (s.steps[at.step].1, s.head_dim());
                let i = at.token * s.width(at.step) + at.column;
                let (head, token, column) = (i / (tokens * d), i % (tokens * d) / d, i % d);
                flat(s, at, token * s.width(at.step) + head * d + column)
            }),
        ],
        Op::Residual => vec![
            Plant::new("addends in f16", "both addends are rounded to f16", |s, at| {
                let of = |i: usize| f64::from(half::f16::from_f32(s.x(i, at, 0).unwrap()[at.column]).to_f32());
                of(0) + of(1)
            }),
            // The second operand is the stream, which a norm reads.
            Plant::new("its norm in its place", "is added divided by the root mean square of its row", |s, at| {
                let (x, y) = (s.x(1, at, 0).unwrap(), f64::from(s.x(0, at, 0).unwrap()[at.column]));
                let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
                f64::from(x[at.column]) / (mean + s.graph.config.rms_eps).sqrt() + y
            }),
            Plant::new(
                "a column from the row before",
                "in the place of&of the previous token in the part and the column 9",
                |s, at| {
                    let other = s.x(1, at, -1).and_then(|x| x.get(at.column + 9)).map_or(0.0, |v| f64::from(*v));
                    f64::from(s.x(0, at, 0).unwrap()[at.column]) + other
                },
            ),
        ],
        Op::SwiGlu => vec![Plant::new(
            "up beyond the turn",
            "in the place of&ffn_gate of the next token in the part&column",
            |s, at| {
                let (gate, up) = (f64::from(s.x(0, at, 0).unwrap()[at.column]), s.x(1, at, 0).unwrap()[at.column]);
                let first = s.width(at.step) - 32;
                let other = match at.column.checked_sub(first) {
                    Some(c) => s.x(0, at, 1).map_or(0.0, |x| f64::from(x[c])),
                    None => f64::from(up),
                };
                gate / (1.0 + (-gate).exp()) * other
            },
        )],
        Op::Linear if node.role == Role::FfnOutput => {
            let share = |s: &Stage, at: &At, i: usize| -> f64 {
                let (w, x) = (&s.matrix[at.column], s.x(0, at, 0).unwrap());
                let len = w.len().div_ceil(3);
                (i * len..w.len().min(i * len + len)).map(|k| f64::from(w[k]) * f64::from(x[k])).sum()
            };
            vec![
                Plant::new(
                    "a split twice",
                    "of 3 splits of the sum, the share of split 0 is added twice|inputs 0..85 are taken twice",
                    move |s, at| s.own(at) + share(s, at, 0),
                ),
                Plant::new("splits in f16", "in 3 splits, whose shares are rounded to f16", move |s, at| {
                    (0..3).map(|i| half::f16::from_f32(share(s, at, i) as f32).to_f64()).sum()
                }),
                Plant::new(
                    "an overflow",
                    "one input of the row, the largest of its 32, counts as itself less 2 times the next power of two",
                    one_input(overflows),
                ),
                Plant::new(
                    "the scale of another row",
                    "scaled back by the largest of the part's token t mod 8",
                    |s, at| {
                        let of =
                            |token: usize| s.inputs[0][at.step].row(token).iter().fold(0f32, |m, v| m.max(v.abs()));
                        s.own(at) * f64::from(of(at.token % 8)) / f64::from(of(at.token))
                    },
                ),
            ]
        }
        Op::Linear if node.role == Role::AttnOutput => vec![
            Plant::new("read padded by 16", "read with a stride of", |s, at| {
                flat(s, at, at.token * (s.width(at.step) + 16) + at.column)
            }),
            Plant::new("written padded by 8", "written with a stride of", |s, at| {
                let (i, wide) = (at.token * s.width(at.step) + at.column, s.width(at.step) + 8);
                if i % wide < s.width(at.step) { flat(s, at, i / wide * s.width(at.step) + i % wide) } else { 0.0 }
            }),
            Plant::new("read padded to 256", "read with a stride of", |s, at| flat(s, at, at.token * 256 + at.column)),
        ],
        Op::Bias => vec![
            Plant::new("permuted for the other pairs", "the bias with the halves of each head interleaved", |s, at| {
                let (d, c) = (s.head_dim(), at.column);
                let other = c / d * d + c % d % 2 * (d / 2) + c % d / 2;
                f64::from(s.x(0, at, 0).unwrap()[c]) + f64::from(s.matrix[0][other])
            }),
            Plant::new("a mask for the remainder", "bit by bit", |s, at| {
                let vector = &s.matrix[0];
                f64::from(s.x(0, at, 0).unwrap()[at.column]) + f64::from(vector[at.column & (vector.len() - 1)])
            }),
            Plant::new(
                "a mask of the whole buffer",
                "number in the buffer of the part, masked with|modulo|bit by bit",
                |s, at| {
                    let (vector, width) = (&s.matrix[0], s.width(at.step));
                    let flat = at.token * width + at.column;
                    f64::from(s.x(0, at, 0).unwrap()[at.column]) + f64::from(vector[flat & (width - 1)])
                },
            ),
        ],
        _ => Vec::new(),
    }
}

#[test]
fn classics_are_told() {
    let mut wrong = Vec::new();
    for arch in [qwen2::ARCH, qwen3::ARCH] {
        let model = Synth {
            arch,
            n_embd: 192,
            n_heads: 6,
            n_kv_heads: 2,
            head_dim: 32,
            n_ff: 256,
            weight_type: GgmlType::Q8_0,
            ..Synth::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        model.write(&path).unwrap();
        let file = Gguf::open(&path).unwrap();
        let mut bench = Bench::new(&model, &file, TOKENS);
        for node in bench.oracle.graph.nodes.clone().iter().filter(|n| n.id.layer.is_none_or(|layer| layer == 1)) {
            let stage = bench.stage(node);
            for plant in plants(node) {
                let judged = bench.judged(&stage, planted(&stage, &plant, &CONDITIONS[0]));
                let said = judged.solution.as_ref().map_or_else(String::new, super::Solution::told);
                if !judged.positions.is_empty() && !says(&said, &plant.words) {
                    wrong.push(format!("{}: {}: {said}", node.id, plant.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Attention in tiles of keys, as a kernel that shows nothing within makes it: each key's weight by the running maxima, and
/// whether the result so far, or its sum, is brought to a new one.
fn in_tiles(s: &[f64], tile: usize, (of_result, of_sum): (bool, bool)) -> Vec<f64> {
    let (mut top, mut sum, mut all) = (f64::NEG_INFINITY, 0.0, Vec::new());
    for part in s.chunks(tile) {
        let new = part.iter().copied().fold(top, f64::max);
        let by = (top - new).exp();
        if of_result {
            all.iter_mut().for_each(|w| *w *= by);
        }
        sum = if of_sum && !all.is_empty() { sum * by } else { sum };
        all.extend(part.iter().map(|s| (s - new).exp()));
        sum += part.iter().map(|s| (s - new).exp()).sum::<f64>();
        top = new;
    }
    all.into_iter().map(|w| w / sum).collect()
}

/// What a kernel that gives the context alone gets wrong, with queries and caches to judge it by.
#[test]
fn attention_that_shows_nothing_within_is_told() {
    type Made = fn(&[f64], usize, (usize, usize)) -> Vec<f64>;
    fn softmax(s: &[f64]) -> Vec<f64> {
        in_tiles(s, s.len().max(1), (true, true))
    }
    // Scores of all keys of the part, the query's position, and the first position and the tokens of its part.
    let cases: [(&str, &str, Made); 14] = [
        (
            "shares joined by powers of two",
            "sum and result alike, is brought from its own maximum m_t to the row's, m, by 2^(m_t − m)&in tiles of 8",
            |s, p, _| {
                let top = s[..=p].iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let each = s[..=p].chunks(8).flat_map(|part| {
                    let own = part.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    part.iter().map(move |s| (s - own).exp() * (own - top).exp2()).collect::<Vec<_>>()
                });
                let all: Vec<f64> = each.collect();
                let sum: f64 = all.iter().sum();
                all.into_iter().map(|w| w / sum).collect()
            },
        ),
        (
            "pages that are not seen",
            "zeros are read in the place of keys and values, but of the keys of the pages of 4|keys and values, but of the first keys alone, as many as the prompt has tokens and 1 more",
            |s, p, _| {
                let seen = TOKENS.0.next_multiple_of(4);
                let scores: Vec<f64> = (0..=p).map(|k| if k < seen { s[k] } else { 0.0 }).collect();
                softmax(&scores).into_iter().enumerate().map(|(k, w)| if k < seen { w } else { 0.0 }).collect()
            },
        ),
        ("values of a page", "the values are summed over the first 16 keys alone", |s, p, _| {
            softmax(&s[..=p]).into_iter().enumerate().map(|(k, w)| if k < 16 { w } else { 0.0 }).collect()
        }),
        (
            "result not rescaled",
            "when the maximum changes, the sum is rescaled but the result so far is not&in tiles of 8",
            |s, p, _| in_tiles(&s[..=p], 8, (false, true)),
        ),
        (
            "not rescaled for a little",
            "result and sum alike, is not rescaled when the maximum grows by a factor of 256 or less&in tiles of 8|neither exponentials nor sum so far are rescaled&in tiles of 8",
            |s, p, _| {
                let (mut top, mut all): (f64, Vec<f64>) = (f64::NEG_INFINITY, Vec::new());
                for part in s[..=p].chunks(8) {
                    let new = part.iter().copied().fold(top, f64::max);
                    if new - top > 256f64.ln() {
                        all.iter_mut().for_each(|w| *w *= (top - new).exp());
                    }
                    all.extend(part.iter().map(|s| (s - new).exp()));
                    top = new;
                }
                let sum: f64 = all.iter().sum();
                all.into_iter().map(|w| w / sum).collect()
            },
        ),
        ("sum not rescaled", "the sum so far is not rescaled&in tiles of 16", |s, p, _| {
            in_tiles(&s[..=p], 16, (true, false))
        }),
        (
            "softmaxes added",
            "nothing is rescaled|each part is divided by its own sum, and by&in 2 splits",
            |s, p, _| {
                let parts: Vec<&[f64]> = s[..=p].chunks((p + 1).div_ceil(2)).collect();
                let each = parts.iter().flat_map(|part| softmax(part)).collect::<Vec<_>>();
                each.into_iter().map(|w| w / parts.len() as f64).collect()
            },
        ),
        ("tile of queries", "up to the last query of its tile of 8", |s, p, (first, tokens)| {
            softmax(&s[..((p - first) / 8 * 8 + 8).min(tokens) + first])
        }),
        ("edge of the cache", "all keys but the last that was in the cache", |s, p, (first, _)| {
            let seen: Vec<f64> = (0..=p).map(|k| if first > 0 && k + 1 == first { -1e30 } else { s[k] }).collect();
            softmax(&seen)
        }),
        ("small mask", "masked keys count with -3 added to their scores", |s, p, _| {
            softmax(&s.iter().enumerate().map(|(k, s)| if k > p { s - 3.0 } else { *s }).collect::<Vec<_>>())
        }),
        ("small weights", "keys whose weight is below 0.02 are left out", |s, p, _| {
            softmax(&s[..=p]).into_iter().map(|w| if w < 0.02 { 0.0 } else { w }).collect()
        }),
        ("cap", "a soft cap is applied to the scaled scores: c·tanh(x/c) with c = 2", |s, p, _| {
            softmax(&s[..=p].iter().map(|s| 2.0 * (s / 2.0).tanh()).collect::<Vec<_>>())
        }),
        ("sink", "an attention sink|softmax off by one", |s, p, _| {
            let mut with: Vec<f64> = s[..=p].to_vec();
            with.push(1.5);
            let mut all = softmax(&with);
            all.pop();
            all
        }),
        ("last tile", "whole tiles of 16 keys: the tail is left out", |s, p, _| {
            softmax(&s[..if p < 15 { p + 1 } else { (p + 1) / 16 * 16 }])
        }),
    ];
    let model = Synth {
        n_embd: 192,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 32,
        n_ff: 256,
        weight_type: GgmlType::F32,
        ..Synth::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    let mut bench = Bench::new(&model, &file, TOKENS);
    let nodes = bench.oracle.graph.nodes.clone();
    let of = |op: fn(&Op) -> bool| nodes.iter().find(|n| n.id.layer == Some(1) && op(&n.op)).unwrap();
    let (scores, context) = (of(|op| matches!(op, Op::AttnScores(_))), of(|op| matches!(op, Op::AttnContext(_))));
    let (given, stage) = (bench.stage(scores), bench.stage(context));
    let hidden = [scores.id, of(|op| matches!(op, Op::AttnWeights(_))).id];
    bench.capture.steps.iter_mut().for_each(|step| hidden.iter().for_each(|id| drop(step.stages.remove(id))));
    let mut wrong = Vec::new();
    let Op::AttnContext(a) = context.op else { unreachable!("the context") };
    for (name, words, made) in cases {
        let mut values = stage.given.clone();
        for (step, tensor) in values.iter_mut().enumerate() {
            let ((first, tokens), keys) = (stage.steps[step], given.given[step].shape[2]);
            for head in 0..a.n_heads {
                for token in 0..tokens {
                    let row = &given.given[step].data[(head * tokens + token) * keys..][..keys];
                    let scaled: Vec<f64> = row.iter().map(|s| f64::from(*s) / (a.head_dim as f64).sqrt()).collect();
                    let weights = made(&scaled, first + token, (first, tokens));
                    for column in 0..a.head_dim {
                        let value =
                            |k: usize| f64::from(stage.inputs[1][step].row(k)[a.kv_head(head) * a.head_dim + column]);
                        let sum: f64 = weights.iter().enumerate().map(|(k, w)| w * value(k)).sum();
                        tensor.data[(token * a.n_heads + head) * a.head_dim + column] = sum as f32;
                    }
                }
            }
        }
        let judged = bench.judged(&stage, values);
        let said = judged.solution.as_ref().map_or_else(String::new, super::Solution::told);
        if !says(&said, words) {
            wrong.push(format!("{name}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
