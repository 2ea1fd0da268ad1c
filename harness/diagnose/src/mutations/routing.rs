//! Experts: who is chosen, with which weights, and whose products are taken.

use super::{Mutation, Param};
use qdiff_engine::model::{Graph, Node, Role};
use qdiff_engine::ops::anatomy::{Contraction, Decision, Gather, index};
use qdiff_engine::ops::{self, Anatomy, Context, Defined, Definition as _, Op, RowShares, RowSoftmax, Sigmoid, Tensor};

fn is(n: &Node, name: &str) -> bool {
    n.op.name() == name
}

fn weights(_: &Graph, n: &Node) -> bool {
    n.op.anatomy() == Anatomy::Gather(Gather::Elements)
}

/// The choice of experts.
fn choices(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::Decision(Decision { block: None, .. }))
}

/// Scores of a token's experts of which another choice is made: one that is never chosen has no score.
fn chosen_among(kind: usize, row: &mut [f64]) {
    let (n, never) = (row.len(), f64::NEG_INFINITY);
    match kind {
        0 => row[n.div_ceil(2)..].fill(never),
        1 => row[..n / 2].fill(never),
        2 => row[n.saturating_sub(1)..].fill(never),
        3 => row[..n.min(1)].fill(never),
        4 => row.iter_mut().for_each(|score| *score = -*score),
        6 => row[(n / 2 + 1).next_power_of_two().min(n)..].fill(never),
        7 => row[n / 4 * 4..].fill(never),
        8 => row[n / 8 * 8..].fill(never),
        9 => row[n / 32 * 32..].fill(never),
        10.. => best_half(row, [2, 4, 8][(kind - 10) / 2 % 3], kind.is_multiple_of(2)),
        _ => {
            let top = (0..n).rev().max_by(|a, b| row[*a].total_cmp(&row[*b]));
            top.into_iter().for_each(|top| row[top] = never);
        }
    }
}

/// Leaves out the scores beyond the better half of so many groups of experts; a group's score is the largest in it, or the sum of the
/// two largest, as in DeepSeek's `noaux_tc`.
fn best_half(row: &mut [f64], groups: usize, by_largest: bool) {
    let size = row.len() / groups;
    if size == 0 || !row.len().is_multiple_of(groups) {
        return;
    }
    let score = |group: &[f64]| {
        let mut sorted = group.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.iter().take(if by_largest { 1 } else { 2 }).sum::<f64>()
    };
    let scores: Vec<f64> = row.chunks(size).map(score).collect();
    let mut order: Vec<usize> = (0..groups).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order[groups / 2..].iter().for_each(|group| row[group * size..][..size].fill(f64::NEG_INFINITY));
}

/// The token whose probabilities are read for the weight of a token's expert in this place: of so many tokens, each of which chose
/// some of all experts.
fn read_for(kind: usize, (token, place): (usize, usize), (tokens, chosen, experts): (usize, usize, usize)) -> usize {
    match kind {
        0 => token.saturating_sub(1),
        1 => (token + 1).min(tokens - 1),
        2 => 0,
        3 => tokens - 1,
        _ => (token * chosen + place) / experts,
    }
}

fn products(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Weight(Some(_))))
}

/// The sum of a token's experts.
fn sums(_: &Graph, n: &Node) -> bool {
    matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Rows(terms)) if terms > 1)
}

/// The shared expert's result, times its weight.
fn shared(_: &Graph, n: &Node) -> bool {
    n.op.anatomy() == Anatomy::Contraction(Contraction::Rows(1))
}

/// The op on operands of which `change` changed one.
fn with_operand(
    node: &Node, which: usize, change: impl Fn(&Tensor<f64>) -> Tensor<f64> + Send + Sync + 'static,
) -> Option<Node> {
    let op = node.op.clone();
    Some(node.computing(move |inputs, c| {
        let other = change(inputs[which]);
        let all: Vec<&Tensor<f64>> =
            inputs.iter().enumerate().map(|(i, x)| if i == which { &other } else { *x }).collect();
        ops::forward_with_bound(&op, &all, c)
    }))
}

/// Another op on the result.
fn then(node: &Node, next: Op) -> Option<Node> {
    let op = node.op.clone();
    Some(node.computing(move |inputs, c| {
        let (y, first) = ops::forward_with_bound(&op, inputs, c);
        let c = Context { weights: &[], ..*c };
        let (z, mut bound) = ops::forward_with_bound(&next, &[&y], &c);
        let carried = ops::propagate_error(&next, &[&y], &[Some(&first)], &z, &c);
        bound.iter_mut().zip(carried).for_each(|(b, more)| *b += more);
        (z, bound)
    }))
}

/// Groups of the weight of an expert's product.
fn groups(node: &Node) -> Option<usize> {
    match node.op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(Some(picked))) => Some(picked.groups),
        _ => None,
    }
}

/// Row by row.
fn by_row(x: &Tensor<f64>, change: impl Fn(&mut [f64])) -> Tensor<f64> {
    let (mut y, n) = (x.clone(), x.row_len().max(1));
    y.data.chunks_mut(n).for_each(change);
    y
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "expert-weights-order",
        fits: Some(weights),
        story: "the weights of a token's experts stand {order}, and its experts in the order of their scores",
        seen: "tokens are right whose experts happen to stand in that order",
        remedy: "gather the weights in the order in which the experts are listed",
        params: &[Param::new("order", "0: in the order of the experts' indices, 1: in the reverse order", 0.0)
            .searched(&[1.0])],
        apply: |node, values, _| {
            let reverse = values[0] == 1.0;
            if !reverse && values[0] != 0.0 {
                return None;
            }
            with_operand(node, 1, move |chosen| {
                let (mut other, taken) = (chosen.clone(), chosen.row_len().max(1));
                other.data.chunks_mut(taken).for_each(|row| if reverse { row.reverse() } else { row.sort_by(f64::total_cmp) });
                other
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-index-off",
        fits: Some(products),
        story: "each token is multiplied with the weights of another expert than it chose: the index is off",
        seen: "scores, choice and weights are right, the products are those of a neighbour",
        remedy: "check the offset of an expert's weights: index times the size of one expert",
        params: &[Param::new("off", "experts after the chosen one", 1.0).searched(&[-1.0, 2.0])],
        apply: |node, values, _| {
            let (off, groups) = (values[0] as i64, groups(node)? as i64);
            let other = move |v: f64| match index(v, groups as usize) {
                Some(own) => (own as i64 + off).rem_euclid(groups) as f64,
                None => v,
            };
            if off.rem_euclid(groups) == 0 { None } else { with_operand(node, 1, move |x| x.map(other)) }
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "experts-chosen-otherwise",
        fits: Some(choices),
        story: "experts are chosen {among}",
        seen: "some experts, or the best one, are never chosen",
        remedy: "choose among all experts those of the largest scores, the largest first",
        params: &[Param::new(
            "among",
            "0: only among the first half of them, 1: only among the second half, 2: among all but the last one, 3: among all but \
             the first one, 4: by their smallest scores, 5: without the one of the largest score, 6: only among the first of them up to a power of two, \
             7: only among whole runs of 4, 8: only among whole runs of 8, 9: only among whole runs of 32, 10: only in the one of 2 groups with the larger best score, \
             11: only in the one of 2 groups with the larger sum of two scores, 12: only in the 2 of 4 groups with the largest best scores, \
             13: only in the 2 of 4 groups with the largest sums of two scores, 14: only in the 4 of 8 groups with the largest best scores, \
             15: only in the 4 of 8 groups with the largest sums of two scores",
            0.0,
        )
        .searched(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0])],
        apply: |node, values, _| {
            let kind = values[0] as usize;
            with_operand(node, 0, move |x| by_row(x, |row| chosen_among(kind, row)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "experts-searched-from-zero",
        fits: Some(choices),
        story: "the search for a token's next best expert begins at 0 and goes by the router's raw scores: no expert with a score of 0 or \
                less is chosen, and a place for which none is left gets expert 0",
        seen: "tokens with few positive scores have expert 0 more than once",
        remedy: "begin the search for the largest score at minus infinity, or go by the probabilities",
        apply: |node, _, graph| {
            let input = *node.inputs.first()?;
            let is_of_scores = |n: &&Node| is(n, RowSoftmax.name()) || is(n, Sigmoid("").name());
            let scores = graph.nodes.get(input).filter(is_of_scores).map_or(input, |n| n.inputs[0]);
            let (op, inputs) = (node.op.clone(), [&[scores], &node.inputs[1..]].concat());
            let other = node.computing(move |inputs, c| {
                let (mut chosen, bound) = ops::forward_with_bound(&op, inputs, c);
                let (experts, places) = (inputs[0].row_len().max(1), chosen.row_len().max(1));
                for (i, expert) in chosen.data.iter_mut().enumerate() {
                    let score = index(*expert, experts).map(|expert| inputs[0].data[i / places * experts + expert]);
                    if score.is_some_and(|score| score <= 0.0) {
                        *expert = 0.0;
                    }
                }
                (chosen, bound)
            });
            Some(Node { inputs, ..other })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-weights-of-another-token",
        fits: Some(weights),
        story: "the weights of the chosen experts are read from the probabilities of {from}",
        seen: "a token's weights are another token's probabilities of its experts",
        remedy: "gather the weights of a token from its own row: row t of {input} has as many elements as there are experts",
        params: &[Param::new(
            "from",
            "0: the token before, 1: the token after, 2: the part's first token, 3: the part's last token, 4: row i/E, for weight \
             number i and E experts",
            0.0,
        )
        .searched(&[1.0, 2.0, 3.0, 4.0])],
        apply: |node, values, _| {
            let (kind, op) = (values[0] as usize, node.op.clone());
            Some(node.computing(move |inputs, c| {
                let (mut y, bound) = ops::forward_with_bound(&op, inputs, c);
                let (of, chosen) = (inputs[0], inputs[1]);
                let (experts, places) = (of.row_len().max(1), chosen.row_len().max(1));
                let tokens = of.data.len() / experts;
                for (i, weight) in y.data.iter_mut().enumerate() {
                    let token = read_for(kind, (i / places, i % places), (tokens, places, experts));
                    let at = index(chosen.data[i], experts).map(|expert| token * experts + expert);
                    *weight = at.and_then(|at| of.data.get(at)).copied().unwrap_or(f64::NAN);
                }
                (y, bound)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "experts-in-other-slots",
        fits: Some(products),
        story: "the products of a token's experts are in the opposite order",
        seen: "each token has the right experts, the first of them last",
        remedy: "write an expert's product to the slot in which the token chose it",
        apply: |node, _, _| with_operand(node, 1, |x| by_row(x, |row| row.reverse())),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-weights-not-normalised",
        fits: Some(|_, n| is(n, RowShares.name())),
        story: "the weights of the chosen experts are not divided by their sum",
        seen: "the experts' sum is too small by the same factor in all elements of a token",
        remedy: "divide the weights of a token's experts by their sum (norm_topk_prob)",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-weights-softmax-again",
        fits: Some(|_, n| is(n, RowShares.name())),
        story: "the weights of the chosen experts are made by a softmax of their probabilities, and not divided by their sum",
        seen: "the experts' weights sum to 1, and are nearly alike",
        remedy: "divide the probabilities of the chosen experts by their sum; a softmax belongs to their logits",
        apply: |node, _, _| {
            Some(node.computing(|inputs, _| {
                let n = inputs[0].row_len().max(1);
                let shares = |row: &[f64]| -> Vec<f64> {
                    let total: f64 = row.iter().map(|v| v.exp()).sum();
                    row.iter().map(|v| v.exp() / total).collect()
                };
                let data: Vec<f64> = inputs[0].data.chunks(n).flat_map(shares).collect();
                let bound = data.iter().map(|v| (ops::UNIT * (n as f64 + 8.0) * v.abs()) as f32).collect();
                (Tensor { shape: inputs[0].shape.clone(), data }, bound)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-weights-partial-sum",
        fits: Some(|_, n| is(n, RowShares.name())),
        story: "the weights of the chosen experts are divided by the sum of {of}",
        seen: "the experts' weights sum to more than 1",
        remedy: "divide the weights of a token's experts by the sum of all of them",
        params: &[Param::new("of", "0: all but the last of them, 1: all but the first of them, 2: only the first of them", 0.0)
            .searched(&[1.0, 2.0])],
        apply: |node, values, _| {
            let kind = values[0] as usize;
            Some(node.computing(move |inputs, _| {
                let n = inputs[0].row_len().max(1);
                let total = |row: &[f64]| -> f64 {
                    match kind {
                        0 => row[..n - 1].iter().sum(),
                        1 => row[1..].iter().sum(),
                        _ => row[0],
                    }
                };
                let data: Vec<f64> =
                    inputs[0].data.chunks(n).flat_map(|row| row.iter().map(|v| v / total(row)).collect::<Vec<_>>()).collect();
                let bound = data.iter().map(|v| (ops::UNIT * (n as f64 + 2.0) * v.abs()) as f32).collect();
                (Tensor { shape: inputs[0].shape.clone(), data }, bound)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-weights-normalised",
        fits: Some(weights),
        story: "the weights of the chosen experts are divided by their sum, as by a softmax after the choice",
        seen: "the weights of a token's experts sum to 1",
        remedy: "take the softmax over all experts before the choice; this model does not divide by the sum afterwards",
        apply: |node, _, _| then(node, Defined::op(RowShares)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "router-sigmoid-as-weights",
        fits: Some(weights),
        story: "the weights of the chosen experts are the sigmoids of their scores, {divided}",
        seen: "the weights of all experts do not sum to 1",
        remedy: "take the softmax over all experts before the choice; the sigmoid belongs to other routers",
        params: &[Param::new("divided", "0: as they are, 1: divided by their sum", 0.0).searched(&[1.0])],
        apply: |node, values, graph| {
            let probs = graph.nodes.get(*node.inputs.first()?).filter(|n| is(n, RowSoftmax.name()))?;
            let (divides, op) = (values[0] as usize, node.op.clone());
            let node = Node { inputs: vec![probs.inputs[0], *node.inputs.get(1)?], ..node.clone() };
            (divides <= 1).then(|| {
                node.computing(move |inputs, c| {
                    let (mut y, _) = ops::forward_with_bound(&op, inputs, c);
                    y.data.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp()));
                    let places = y.row_len().max(1);
                    if divides == 1 {
                        for row in y.data.chunks_mut(places) {
                            let total: f64 = row.iter().sum();
                            row.iter_mut().for_each(|v| *v /= total);
                        }
                    }
                    let bound = y.data.iter().map(|v| (ops::UNIT * (places as f64 + 8.0) * v.abs()) as f32).collect();
                    (y, bound)
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "router-scores-as-weights",
        fits: Some(weights),
        story: "the raw scores of the chosen experts are taken for their weights",
        seen: "weights are negative or above 1",
        remedy: "gather the weights from the softmax, not from the router's product",
        apply: |node, _, graph| {
            let probs = graph.nodes.get(*node.inputs.first()?).filter(|n| is(n, RowSoftmax.name()))?;
            Some(Node { inputs: vec![probs.inputs[0], *node.inputs.get(1)?], ..node.clone() })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "router-sigmoid",
        fits: Some(|_, n| is(n, RowSoftmax.name())),
        story: "the router's scores go through a sigmoid one by one, and not through a softmax",
        seen: "the probabilities of a token do not sum to 1; the choice is the same",
        remedy: "take the softmax over all experts",
        apply: |node, _, _| Some(node.with(Defined::op(Sigmoid("the sigmoid of each score")))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-missing",
        fits: Some(sums),
        story: "one of a token's experts is left out of the sum",
        seen: "the sum lacks the same slot in every token",
        remedy: "add the results of all chosen experts",
        params: &[Param::new("slot", "which of them, from 0; -1 is the last", -1.0).searched(&[0.0, 1.0, 2.0, 3.0])],
        apply: |node, values, _| {
            let slot = values[0] as i64;
            with_operand(node, 0, move |x| {
                by_row(x, |row| {
                    let at = if slot < 0 { row.len() as i64 + slot } else { slot };
                    if let Some(factor) = usize::try_from(at).ok().and_then(|at| row.get_mut(at)) {
                        *factor = 0.0;
                    }
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-weights-ignored",
        fits: Some(sums),
        story: "the experts' results are added without their weights, {kind}",
        seen: "all experts of a token count alike",
        remedy: "multiply each expert's result by its weight before the sum",
        params: &[Param::new("kind", "0: as they are, 1: as a mean", 0.0).searched(&[1.0])],
        apply: |node, values, _| {
            let mean = values[0] != 0.0;
            with_operand(node, 0, move |x| {
                by_row(x, |row| {
                    let each = if mean { 1.0 / row.len() as f64 } else { 1.0 };
                    row.fill(each);
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "expert-weights-reversed",
        fits: Some(sums),
        story: "the experts' results are added with each other's weights: the first expert has the last weight",
        seen: "weights and results are right, their sum is not",
        remedy: "multiply each expert's result by the weight of the same slot",
        apply: |node, _, _| with_operand(node, 0, |x| by_row(x, |row| row.reverse())),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "shared-gate-missing",
        fits: Some(shared),
        story: "the shared expert's result is not multiplied by its gate",
        seen: "the shared expert counts in full, at any score",
        remedy: "multiply the shared expert's result by the sigmoid of its score",
        apply: |node, _, _| with_operand(node, 0, |x| x.map(|_| 1.0)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gate-sigmoid-missing",
        fits: Some(|_, n| is(n, Sigmoid("").name())),
        story: "the score is taken as it is: the sigmoid is left out",
        seen: "gates are negative or above 1",
        remedy: "take the sigmoid of {input}",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "shared-expert-missing",
        fits: Some(|graph, n| {
            let added = n.inputs.get(1).and_then(|i| graph.nodes.get(*i));
            n.role == Role::FfnOutput && added.is_some_and(|n| shared(graph, n))
        }),
        story: "the shared expert's result is not added",
        seen: "the layer has what its chosen experts give, and nothing else",
        remedy: "add the shared expert's weighted result to the chosen experts' sum",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
];
