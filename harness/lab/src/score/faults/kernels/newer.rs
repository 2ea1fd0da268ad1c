//! Bugs of experts, delta nets and residual streams, as ports of the newer models have them.

use super::super::Spot;
use super::rounding::bf16;
use super::{KernelFault, bug, given, patch};
use qdiff_engine::model::{Graph, Model, Node, Role};
use qdiff_engine::ops::Op;
use qdiff_engine::ops::anatomy::{Anatomy, Columns, Contraction, Decision, Gather, State};

fn named(n: &Node, name: &str) -> bool {
    n.op.name() == name
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Row by row, of rows of `width` elements.
fn rows(s: &mut Spot<'_>, width: usize, f: impl Fn(usize, &mut [f32])) {
    s.out.chunks_mut(width.max(1)).enumerate().for_each(|(row, out)| f(row, out));
}

/// The sum of a token's experts, or the shared one's result.
fn sum_of(n: &Node) -> Option<usize> {
    match n.op.anatomy() {
        Anatomy::Contraction(Contraction::Rows(terms)) => Some(terms),
        _ => None,
    }
}

fn columns(n: &Node) -> Option<Columns> {
    match n.op.anatomy() {
        Anatomy::Gather(Gather::Columns(columns)) if columns.runs > 1 && columns.stride > columns.run => Some(columns),
        _ => None,
    }
}

fn blocks(n: &Node) -> Option<(usize, usize)> {
    match n.op.anatomy() {
        Anatomy::Decision(Decision { picks, block: Some(block) }) => Some((picks, block)),
        _ => None,
    }
}

/// The product with the experts that `of` makes of the chosen ones.
fn with_experts(s: &mut Spot<'_>, of: impl Fn(usize, usize) -> usize) {
    let Anatomy::Contraction(Contraction::Weight(Some(picked))) = s.node.op.anatomy() else { return };
    let (weight, chosen) = (s.weight().to_owned(), s.inputs[1].data.clone());
    let (n, all) = s.extent(&weight);
    let (m, w) = (all / picked.groups, s.values(&weight));
    let lines_of_row = chosen.len() / (s.inputs[0].data.len() / n);
    for (line, out) in s.out.chunks_mut(m).enumerate() {
        let x = &s.inputs[0].data[line / lines_of_row * n..][..n];
        let expert = of(chosen[line] as usize, picked.groups);
        for (o, out) in out.iter_mut().enumerate() {
            let row = &w[(expert * m + o) * n..][..n];
            *out = row.iter().zip(x).map(|(w, x)| w * x).sum();
        }
    }
}

/// The product with the chosen experts of the rows that `of` makes of each line, of so many.
fn with_rows(s: &mut Spot<'_>, of: impl Fn(usize, &[f32]) -> usize) {
    let Anatomy::Contraction(Contraction::Weight(Some(picked))) = s.node.op.anatomy() else { return };
    let (weight, chosen) = (s.weight().to_owned(), s.inputs[1].data.clone());
    let (n, all) = s.extent(&weight);
    let (m, w) = (all / picked.groups, s.values(&weight));
    for (line, out) in s.out.chunks_mut(m).enumerate() {
        let x = &s.inputs[0].data[of(line, &chosen) * n..][..n];
        for (o, out) in out.iter_mut().enumerate() {
            let row = &w[(chosen[line] as usize * m + o) * n..][..n];
            *out = row.iter().zip(x).map(|(w, x)| w * x).sum();
        }
    }
}

/// Whether a product with chosen experts is of a row that all of a token's experts share.
fn shared_rows(graph: &Graph, n: &Node, _: &Model) -> bool {
    matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Weight(Some(_))))
        && graph.nodes[n.inputs[0]].shape.len() == 2
}

/// Heads that are normed, each alone.
fn heads(n: &Node) -> Option<usize> {
    match &n.op {
        Op::RmsNorm(norm) => Some(norm.groups).filter(|groups| *groups > 1),
        _ => None,
    }
}

/// How a delta net goes wrong.
#[derive(Clone, Copy, Default)]
struct Wrong {
    neighbours: bool,
    late_decay: bool,
    whole_values: bool,
    coarse: bool,
    unscaled: bool,
    transposed: bool,
    first_beta: bool,
    older_key: bool,
    next_decay: bool,
    early_read: bool,
    kept_coarse: bool,
}

/// The delta net token by token: its outputs, and its state.
fn delta(s: &mut Spot<'_>, wrong: Wrong) {
    let x: Vec<&[f32]> = s.inputs.iter().map(|x| x.data.as_slice()).collect();
    let tokens = s.positions.len();
    let heads = x[4].len() / tokens;
    let d = x[2].len() / tokens / heads;
    let key_heads = x[1].len() / tokens / d;
    let mut state: Vec<f32> = match (x.get(5), s.old) {
        (Some(before), _) => before.to_vec(),
        (None, Some(old)) => old.to_vec(),
        (None, None) => vec![0.0; heads * d * d],
    };
    if wrong.kept_coarse {
        state.iter_mut().for_each(|m| *m = bf16(*m));
    }
    let mut outputs = vec![0f32; tokens * heads * d];
    for t in 0..tokens {
        for h in 0..heads {
            let from = if wrong.neighbours { h / (heads / key_heads) } else { h % key_heads };
            let of_key = if wrong.older_key { t.saturating_sub(1) } else { t };
            let key = &x[1][(of_key * key_heads + from) * d..][..d];
            let query = &x[0][(t * key_heads + from) * d..][..d];
            let of_decay = if wrong.next_decay { (h + 1) % heads } else { h };
            let of_beta = if wrong.first_beta { 0 } else { t };
            let (decay, beta) = (x[3][t * heads + of_decay].exp(), x[4][of_beta * heads + h]);
            for j in 0..d {
                let row = &mut state[(h * d + j) * d..][..d];
                let early: f32 = row.iter().zip(key).map(|(m, k)| m * k).sum();
                if !wrong.late_decay {
                    row.iter_mut().for_each(|m| *m *= decay);
                }
                let late: f32 = row.iter().zip(key).map(|(m, k)| m * k).sum();
                let read = if wrong.early_read { early } else { late };
                let beta = if wrong.whole_values { 1.0 } else { beta };
                let change = (x[2][(t * heads + h) * d + j] - read) * beta;
                row.iter_mut().zip(key).for_each(|(m, k)| *m += change * k);
                if wrong.late_decay {
                    row.iter_mut().for_each(|m| *m *= decay);
                }
                if wrong.coarse {
                    row.iter_mut().for_each(|m| *m = f32::from_bits((m.to_bits() + 0x8000) & 0xffff_0000));
                }
                let scale = if wrong.unscaled { 1.0 } else { 1.0 / (d as f32).sqrt() };
                outputs[(t * heads + h) * d + j] = row.iter().zip(query).map(|(m, q)| m * q).sum::<f32>() * scale;
            }
            if wrong.transposed {
                for j in 0..d {
                    let read = (0..d).map(|i| state[(h * d + i) * d + j] * query[i]).sum::<f32>();
                    outputs[(t * heads + h) * d + j] = read / (d as f32).sqrt();
                }
            }
        }
    }
    let of_state = s.node.has_state();
    s.out.copy_from_slice(if of_state { &state } else { &outputs });
}

fn net(_: &Graph, n: &Node, _: &Model) -> bool {
    named(n, "delta_net") || n.op.anatomy() == Anatomy::State(State::Own) && n.inputs.len() > 1
}

fn outputs(_: &Graph, n: &Node, _: &Model) -> bool {
    named(n, "delta_net")
}

/// Scores of blocks, whose key `of` makes of the normed rows' mean, as far as that is rotated.
fn scored(s: &mut Spot<'_>, rectified: bool, pooled: impl Fn(&[f32], usize) -> Vec<f32>) {
    let Some((_, block)) = s.graph.nodes.iter().find_map(blocks) else { return };
    let (cache, q) = (s.inputs[1].data.clone(), s.inputs[0].data.clone());
    let weight = s.weight().to_owned();
    let w = s.values(&weight);
    let (d, tokens) = (w.len(), s.positions.len());
    let (heads, keys) = (q.len() / tokens / d, s.out.len() / tokens);
    let (half, base, eps) = (s.config.rotated / 2, s.config.rope_base as f32, s.config.rms_eps as f32);
    for t in 0..tokens {
        let seen = keys.min(s.positions[t] as usize + 1);
        for b in 0..seen / block {
            let mut key = pooled(&cache[b * block * d..][..block * d], d);
            let size = key.iter().map(|v| v * v).sum::<f32>() / d as f32;
            key.iter_mut().zip(&w).for_each(|(k, w)| *k *= w / (size + eps).sqrt());
            for i in 0..half {
                let angle = (b * block) as f32 * base.powf(-(i as f32) / half as f32);
                let (x0, x1) = (key[i], key[i + half]);
                key[i] = x0 * angle.cos() - x1 * angle.sin();
                key[i + half] = x0 * angle.sin() + x1 * angle.cos();
            }
            let of_head = |h: usize| {
                let dot: f32 = q[(t * heads + h) * d..][..d].iter().zip(&key).map(|(q, k)| q * k).sum();
                if rectified { dot.max(0.0) } else { dot }
            };
            s.out[t * keys + (b + 1) * block - 1] = (0..heads).map(of_head).sum::<f32>() / (d as f32).sqrt();
        }
    }
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "shares-of-the-chosen",
        "the weights of the chosen experts are divided by their sum, as by a softmax after the choice",
        |graph, n, _| named(n, "gather") && !graph.nodes.iter().any(|n| named(n, "row_shares")),
        |s| {
            let k = s.width();
            rows(s, k, |_, out| {
                let sum: f32 = out.iter().sum();
                out.iter_mut().for_each(|v| *v /= sum);
            });
        },
    ),
    bug(
        "shares-not-made",
        "the weights of the chosen experts are not divided by their sum",
        |_, n, _| named(n, "row_shares"),
        |s| {
            let own = s.inputs[0].data.clone();
            s.out.copy_from_slice(&own);
        },
    ),
    bug(
        "scores-for-weights",
        "the scores of the chosen experts are taken before the softmax",
        |_, n, _| named(n, "gather"),
        |s| {
            let layer = s.node.id.layer;
            let Some(scores) = given(s, layer, |n| n.op == Op::Linear && n.role == Role::Router) else { return };
            let (chosen, tokens) = (s.inputs[1].data.clone(), s.positions.len());
            let (k, experts) = (chosen.len() / tokens, scores.len() / tokens);
            patch(s, |c, at, _| scores[c.t * experts + chosen[c.t * k + at % k] as usize]);
        },
    ),
    bug(
        "expert-after-its-own",
        "a token's line meets the weights of the expert after the chosen one",
        |_, n, _| named(n, "expert_linear"),
        |s| with_experts(s, |chosen, of| (chosen + 1) % of),
    ),
    bug("lines-in-the-order-of-choices", "line l of T tokens meets the row of token l mod T", shared_rows, |s| {
        let tokens = s.positions.len();
        with_rows(s, |line, _| line % tokens);
    }),
    bug(
        "rows-of-an-experts-first-lines",
        "an expert's lines from its fifth on are made of the rows of its first four",
        shared_rows,
        |s| {
            let tokens = s.positions.len();
            with_rows(s, |line, chosen| {
                let own: Vec<usize> = (0..chosen.len()).filter(|l| chosen[*l] == chosen[line]).collect();
                let place = own.iter().position(|l| *l == line).unwrap_or(0);
                own[place % 4] / (chosen.len() / tokens)
            });
        },
    ),
    bug(
        "weights-in-the-order-of-experts",
        "the weights of a token's experts are sorted by the experts' numbers, and their results are not",
        |_, n, _| sum_of(n).is_some_and(|terms| terms > 1),
        |s| {
            let (Some(terms), width) = (sum_of(s.node), s.width()) else { return };
            let near = |n: &&Node| n.id.layer == s.node.id.layer && matches!(n.op.anatomy(), Anatomy::Decision(_));
            let Some(chosen) = s.graph.nodes.iter().find(near).map(|n| n.id) else { return };
            let Some(chosen) = s.others.get(&chosen).cloned() else { return };
            let (w, x) = (s.inputs[0].data.clone(), s.inputs[1].data.clone());
            rows(s, width, |t, out| {
                let mut places: Vec<usize> = (0..terms).collect();
                places.sort_by(|a, b| chosen[t * terms + a].total_cmp(&chosen[t * terms + b]));
                for (c, out) in out.iter_mut().enumerate() {
                    *out = (0..terms).map(|j| w[t * terms + places[j]] * x[(t * terms + j) * width + c]).sum();
                }
            });
        },
    ),
    bug(
        "last-expert-is-the-first",
        "the last expert's weights are those of the first: a table that is one entry short",
        |_, n, _| named(n, "expert_linear"),
        |s| with_experts(s, |chosen, of| if chosen + 1 == of { 0 } else { chosen }),
    ),
    bug(
        "experts-added-unweighted",
        "the results of a token's experts are added without their weights",
        |_, n, _| sum_of(n).is_some_and(|terms| terms > 1),
        |s| {
            let (terms, x) = (sum_of(s.node).unwrap_or(1), s.inputs[1].data.clone());
            patch(s, |c, _, _| (0..terms).map(|k| x[(c.t * terms + k) * c.width + c.o]).sum());
        },
    ),
    bug(
        "shared-expert-without-gate",
        "the shared expert's result is added without its gate",
        |_, n, _| sum_of(n) == Some(1),
        |s| {
            let x = s.inputs[1].data.clone();
            patch(s, |_, at, _| x[at]);
        },
    ),
    bug(
        "choice-among-the-first-half",
        "experts are chosen among the first half of them alone",
        |_, n, _| matches!(n.op.anatomy(), Anatomy::Decision(Decision { block: None, .. })),
        |s| {
            let (probs, k) = (s.inputs[0].data.clone(), s.width());
            let experts = probs.len() / s.positions.len();
            rows(s, k, |t, out| {
                let row = &probs[t * experts..][..experts.div_ceil(2).max(out.len())];
                let mut order: Vec<usize> = (0..row.len()).collect();
                order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                out.iter_mut().zip(order).for_each(|(out, at)| *out = at as f32);
            });
        },
    ),
    bug(
        "value-heads-beside-each-other",
        "value head h reads key head h / (H / H_k)",
        |graph, n, model| {
            let tiled = |n: &Node| {
                named(n, "l2_norm")
                    && qdiff_engine::model::row_len(n) == qdiff_engine::model::row_len(&graph.nodes[n.inputs[0]])
            };
            let fewer = graph.nodes.iter().find(|n| named(n, "delta_net")).is_some_and(|n| {
                let width = |i: usize| qdiff_engine::model::row_len(&graph.nodes[n.inputs[i]]);
                width(1) < width(2) && width(1) > width(2) / width(4)
            });
            net(graph, n, model) && fewer && graph.nodes.iter().any(tiled)
        },
        |s| delta(s, Wrong { neighbours: true, ..Wrong::default() }),
    ),
    bug("decay-after-the-update", "the state is decayed after it was updated", net, |s| {
        delta(s, Wrong { late_decay: true, ..Wrong::default() })
    }),
    bug("values-written-whole", "values are written without β", net, |s| {
        delta(s, Wrong { whole_values: true, ..Wrong::default() })
    }),
    bug("state-in-bf16", "the state is rounded to bfloat16 after every token", net, |s| {
        delta(s, Wrong { coarse: true, ..Wrong::default() })
    }),
    bug("state-kept-in-bf16", "between two passes the state is kept in bfloat16", net, |s| {
        delta(s, Wrong { kept_coarse: true, ..Wrong::default() })
    }),
    bug(
        "expert-has-room-for-four",
        "the lines of an expert behind its fourth in a part are left out: their products are zeros",
        shared_rows,
        |s| {
            let chosen = s.inputs[1].data.clone();
            let width = s.out.len() / chosen.len();
            for (line, out) in s.out.chunks_mut(width).enumerate() {
                if chosen[..line].iter().filter(|expert| **expert == chosen[line]).count() >= 4 {
                    out.fill(0.0);
                }
            }
        },
    ),
    bug("queries-of-full-size", "queries are not divided by the root of a head's length", outputs, |s| {
        delta(s, Wrong { unscaled: true, ..Wrong::default() })
    }),
    bug("state-read-across", "the query meets the state's columns, not its rows", outputs, |s| {
        delta(s, Wrong { transposed: true, ..Wrong::default() })
    }),
    bug("beta-of-the-first-token", "each token has the β of the part's first", net, |s| {
        delta(s, Wrong { first_beta: true, ..Wrong::default() })
    }),
    bug("key-of-the-token-before", "each token is written by the key of the token before it in the part", net, |s| {
        delta(s, Wrong { older_key: true, ..Wrong::default() })
    }),
    bug("decay-of-the-next-head", "each head decays as the head after it", net, |s| {
        delta(s, Wrong { next_decay: true, ..Wrong::default() })
    }),
    bug("read-before-the-decay", "what the key reads is of the state before its decay", net, |s| {
        delta(s, Wrong { early_read: true, ..Wrong::default() })
    }),
    bug(
        "norm-of-heads-in-pairs",
        "a warp sums the squares of two heads and divides them by the length of one",
        |_, n, _| heads(n).is_some_and(|heads| heads.is_multiple_of(2)),
        |s| {
            let (inputs, eps, w) = (s.inputs, s.config.rms_eps, s.values(s.weight()));
            let pairs = inputs[0].data.chunks(2 * w.len());
            let scales: Vec<f64> = pairs
                .map(|x| 1.0 / (x.iter().map(|v| f64::from(v * v)).sum::<f64>() / w.len() as f64 + eps).sqrt())
                .collect();
            let x = &inputs[0].data;
            let values = x.iter().enumerate();
            let value = |(i, x): (usize, &f32)| (f64::from(x * w[i % w.len()]) * scales[i / (2 * w.len())]) as f32;
            let values: Vec<f32> = values.map(value).collect();
            s.out.copy_from_slice(&values);
        },
    ),
    bug(
        "window-stands",
        "a step's rows replace the window's last ones, and the others stay",
        |_, n, _| n.op.anatomy() == Anatomy::State(State::Own) && n.inputs.len() == 1,
        |s| {
            let (x, Some(old)) = (s.inputs[0].data.clone(), s.old.map(<[f32]>::to_vec)) else { return };
            let fresh = x.len().min(old.len());
            let at = old.len() - fresh;
            s.out[..at].copy_from_slice(&old[..at]);
            s.out[at..].copy_from_slice(&x[x.len() - fresh..]);
        },
    ),
    bug(
        "window-not-read",
        "the first tokens of a step are convolved with zeros, not with the rows of the step before",
        |_, n, _| named(n, "convolution"),
        |s| {
            let (x, width) = (s.inputs[0].data.clone(), s.width());
            let weight = s.weight().to_owned();
            let (taps, _) = s.extent(&weight);
            let w = s.values(&weight);
            let apart = s.inputs[1].data.len() / width / (taps - 1);
            patch(s, |c, _, _| {
                let back = |j: usize| c.t.checked_sub((taps - 1 - j) * apart);
                (0..taps).filter_map(|j| Some(w[c.o * taps + j] * x[back(j)? * width + c.o])).sum()
            });
        },
    ),
    bug(
        "length-of-all-heads",
        "queries or keys are divided by the length of the whole row, not of each head",
        |graph, n, _| {
            named(n, "l2_norm")
                && qdiff_engine::model::row_len(n) == qdiff_engine::model::row_len(&graph.nodes[n.inputs[0]])
        },
        |s| {
            let (x, width) = (s.inputs[0].data.clone(), s.width());
            rows(s, width, |t, out| {
                let row = &x[t * width..][..width];
                let root = row.iter().map(|v| v * v).sum::<f32>().sqrt();
                out.iter_mut().zip(row).for_each(|(out, v)| *out = v / root);
            });
        },
    ),
    bug(
        "decay-of-a-logarithm",
        "A is taken for its logarithm, and the exponential is taken again",
        |_, n, _| named(n, "vector_factor") && n.role == Role::Mixer,
        |s| {
            let x = s.inputs[0].data.clone();
            let weight = s.weight().to_owned();
            let w = s.values(&weight);
            patch(s, |c, at, _| -x[at] * w[c.o].exp());
        },
    ),
    bug(
        "beta-up-to-two",
        "β is twice its sigmoid",
        |_, n, _| named(n, "sigmoid") && n.role == Role::Mixer,
        |s| patch(s, |_, _, v| 2.0 * v),
    ),
    bug(
        "output-gate-without-silu",
        "the output is multiplied by z itself",
        |_, n, _| n.op == Op::SwiGlu && n.role == Role::Mixer,
        |s| {
            let (z, x) = (s.inputs[0].data.clone(), s.inputs[1].data.clone());
            patch(s, |_, at, _| z[at] * x[at]);
        },
    ),
    bug(
        "output-gate-by-sigmoid",
        "the output is gated by the sigmoid of z",
        |_, n, _| n.op == Op::SwiGlu && n.role == Role::Mixer,
        |s| {
            let (z, x) = (s.inputs[0].data.clone(), s.inputs[1].data.clone());
            patch(s, |_, at, _| sigmoid(z[at]) * x[at]);
        },
    ),
    bug(
        "output-gate-by-silu",
        "the output is gated by SiLU of z",
        |_, n, _| named(n, "sigmoid_gate"),
        |s| {
            let (z, x) = (s.inputs[0].data.clone(), s.inputs[1].data.clone());
            patch(s, |_, at, _| z[at] * sigmoid(z[at]) * x[at]);
        },
    ),
    bug(
        "norm-weights-plus-one",
        "1 is added to the norm's weights, which the file holds with it",
        |_, n, _| matches!(n.op, Op::RmsNorm(_)) && n.role == Role::Mixer,
        |s| {
            let weight = s.weight().to_owned();
            let w = s.values(&weight);
            patch(s, |c, _, v| v * (w[c.o % w.len()] + 1.0) / w[c.o % w.len()]);
        },
    ),
    bug(
        "halves-one-after-the-other",
        "what stands side by side in each head is taken as one half of the row after the other",
        |_, n, _| columns(n).is_some(),
        |s| {
            let Some(of) = columns(s.node) else { return };
            let (x, width) = (s.inputs[0].data.clone(), s.width());
            let all = x.len() / s.positions.len();
            let first = of.first / of.run * width;
            patch(s, |c, _, _| x[c.t * all + first + c.o]);
        },
    ),
    bug(
        "last-channels-rotated",
        "the last elements of a head are rotated, not the first",
        |_, n, _| matches!(&n.op, Op::Rope(rope) if rope.rotated < rope.head_dim),
        |s| {
            let Op::Rope(rope) = &s.node.op else { return };
            let (d, half, base) = (rope.head_dim, rope.rotated / 2, rope.base as f32);
            let (x, positions) = (s.inputs[0].data.clone(), s.positions);
            let begin = d - rope.rotated;
            patch(s, |c, at, _| {
                let i = c.o % d;
                let Some(place) = i.checked_sub(begin) else { return x[at] };
                let plane = place % half;
                let angle = positions[c.t] as f32 * base.powf(-(plane as f32) / half as f32);
                if place < half {
                    x[at] * angle.cos() - x[at + half] * angle.sin()
                } else {
                    x[at - half] * angle.sin() + x[at] * angle.cos()
                }
            });
        },
    ),
    bug(
        "last-stream-left-out",
        "the mean is over all residual streams but the last",
        |_, n, _| named(n, "gated_mean"),
        |s| {
            let (x, gate, width) = (s.inputs[0].data.clone(), s.inputs[1].data.clone(), s.width());
            let streams = x.len() / s.out.len();
            patch(s, |c, _, _| {
                let of = |stream: usize| (c.t * streams + stream) * width + c.o;
                (0..streams - 1).map(|stream| x[of(stream)] * sigmoid(gate[of(stream)])).sum::<f32>() / streams as f32
            });
        },
    ),
    bug(
        "streams-gated-linearly",
        "the gates of the residual streams do not go through the sigmoid",
        |_, n, _| named(n, "gated_mean"),
        |s| {
            let (x, gate, width) = (s.inputs[0].data.clone(), s.inputs[1].data.clone(), s.width());
            let streams = x.len() / s.out.len();
            patch(s, |c, _, _| {
                let of = |stream: usize| (c.t * streams + stream) * width + c.o;
                (0..streams).map(|stream| x[of(stream)] * gate[of(stream)]).sum::<f32>() / streams as f32
            });
        },
    ),
    bug(
        "one-weight-for-all-streams",
        "every stream takes the part's result with the weight of the first",
        |_, n, _| named(n, "stream_sum"),
        |s| {
            let (all, x, w) = (s.inputs[0].data.clone(), s.inputs[1].data.clone(), s.inputs[2].data.clone());
            let streams = w.len() / s.positions.len();
            patch(s, |c, at, _| all[at] + x[c.t * c.width / streams + c.o % (c.width / streams)] * w[c.t * streams]);
        },
    ),
    bug(
        "result-in-the-first-stream",
        "the part's result is added to the first stream alone",
        |_, n, _| named(n, "stream_sum"),
        |s| {
            let (all, streams) = (s.inputs[0].data.clone(), s.inputs[2].data.len() / s.positions.len());
            patch(s, |c, at, v| if c.o < c.width / streams { v } else { all[at] });
        },
    ),
    bug(
        "stream-weights-once",
        "the weight of a stream is the sigmoid, not twice it",
        |_, n, _| named(n, "curve") && n.id.name.ends_with("stream_weights"),
        |s| patch(s, |_, _, v| v / 2.0),
    ),
    bug(
        "norm-weights-of-the-first-stream",
        "every stream is multiplied by the norm weights of the first",
        |_, n, _| named(n, "stream_norm"),
        |s| {
            let weight = s.weight().to_owned();
            let w = s.values(&weight);
            let run = s.config.n_embd;
            patch(s, |c, _, v| v / w[c.o] * w[c.o % run]);
        },
    ),
    bug(
        "heads-without-offset",
        "the rows of every head of the n-grams are those of the first head's part of the table",
        |_, n, _| named(n, "ngrams"),
        |s| {
            let weight = s.weight().to_owned();
            let (width, count) = s.extent(&weight);
            let table = s.values(&weight);
            let all = s.width();
            // The row that is there, without what the heads before take up.
            rows(s, all, |_, out| {
                for (head, out) in out.chunks_mut(width).enumerate().skip(1) {
                    let own = (0..count).find(|row| table[row * width..][..width] == *out);
                    let first = [0, 101, 204, 311].get(head).copied().unwrap_or(0);
                    if let Some(row) = own.and_then(|row| row.checked_sub(first)) {
                        out.copy_from_slice(&table[row * width..][..width]);
                    }
                }
            });
        },
    ),
    bug(
        "scores-not-rectified",
        "negative products of the indexer's heads count",
        |_, n, _| named(n, "block_scores"),
        |s| {
            scored(s, false, |rows, d| {
                (0..d).map(|i| rows.iter().skip(i).step_by(d).sum::<f32>() / (rows.len() / d) as f32).collect()
            });
        },
    ),
    bug(
        "first-key-of-a-block",
        "a block's key is its first one, not the mean",
        |_, n, _| named(n, "block_scores"),
        |s| {
            scored(s, true, |rows, d| rows[..d].to_vec());
        },
    ),
    bug(
        "one-block-more",
        "one block more is chosen than the budget has",
        |_, n, _| blocks(n).is_some(),
        |s| {
            let (Some((picks, block)), scores) = (blocks(s.node), s.inputs[0].data.clone()) else { return };
            let (positions, keys) = (s.positions, s.width());
            rows(s, keys, |t, out| {
                let whole = keys.min(positions[t] as usize + 1) / block;
                let score = |b: usize| scores[t * keys + (b + 1) * block - 1];
                let mut order: Vec<usize> = (0..whole).collect();
                order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
                for b in order.into_iter().take(picks + 1) {
                    out[b * block..(b + 1) * block].fill(1.0);
                }
            });
        },
    ),
    bug(
        "own-block-left-out",
        "the keys behind the last whole block are left out",
        |_, n, _| blocks(n).is_some(),
        |s| {
            let Some((_, block)) = blocks(s.node) else { return };
            let (positions, keys) = (s.positions, s.width());
            rows(s, keys, |t, out| {
                let seen = keys.min(positions[t] as usize + 1);
                if seen >= block {
                    out[seen / block * block..seen].fill(0.0);
                }
            });
        },
    ),
];
