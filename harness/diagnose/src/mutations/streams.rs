//! Residual streams, the embedding of n-grams, and attention to chosen blocks of keys.

use super::{Mutation, Param};
use qdiff_engine::model::{Graph, Node, row_len};
use qdiff_engine::ops::anatomy::Decision;
use qdiff_engine::ops::{
    self, Anatomy, BlockScores, Context, Convolution, Curve, Defined, Definition, Function, GatedMean, L2Norm, Ngrams,
    Op, Plain, Rope, Silu, StreamNorm, StreamSum, Tensor,
};
use std::any::Any;

/// The definition of a node's op, if it is of this kind.
fn definition<D: Definition>(n: &Node) -> Option<&D> {
    let Op::Defined(op) = &n.op else { return None };
    let definition: &dyn Definition = &**op;
    (definition as &dyn Any).downcast_ref()
}

fn means(_: &Graph, n: &Node) -> bool {
    definition::<GatedMean>(n).is_some()
}

/// The function of a curve.
fn curve(n: &Node) -> Option<Function> {
    definition::<Curve>(n).map(|curve| curve.of)
}

/// Blocks of keys that are chosen: how many, and of how many keys each.
fn blocks(n: &Node) -> Option<(usize, usize)> {
    match n.op.anatomy() {
        Anatomy::Decision(Decision { picks, block }) => block.map(|block| (picks, block)),
        _ => None,
    }
}

/// The op's result, each element times `by`.
fn times(node: &Node, by: f64) -> Option<Node> {
    let op = node.op.clone();
    Some(node.computing(move |inputs, c| {
        let (y, bound) = ops::forward_with_bound(&op, inputs, c);
        (y.map(|v| v * by), bound.iter().map(|b| b * by.abs() as f32).collect())
    }))
}

/// The sum of streams as they are, with one rounding for each.
fn plain_mean(streams: usize, inputs: &[&Tensor<f64>], _: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    let x = inputs[0];
    let n = x.row_len() / streams.max(1);
    let share = 1.0 / streams as f64;
    let mut y = Tensor::zeros(vec![x.rows(), n]);
    let mut size = y.data.clone();
    for (at, v) in x.data.iter().enumerate() {
        let to = at / (n * streams) * n + at % n;
        y.data[to] += v * share;
        size[to] += v.abs() * share;
    }
    (y, size.iter().map(|size| (ops::UNIT * (streams as f64 + 1.0) * size) as f32).collect())
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

/// Each row of `x`, after `change`.
fn by_row(x: &Tensor<f64>, change: impl Fn(&mut [f64])) -> Tensor<f64> {
    let (mut y, n) = (x.clone(), x.row_len().max(1));
    y.data.chunks_mut(n).for_each(change);
    y
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "l2-eps-wrong",
        fits: Some(|_, n| definition::<L2Norm>(n).is_some()),
        story: "epsilon of the L2 norm is not the model's",
        seen: "heads whose values are small are too short",
        remedy: "read <arch>.attention.layer_norm_rms_epsilon from the GGUF, and add it to the sum of squares",
        params: &[Param::new("eps", "epsilon", 1e-12)],
        apply: |node, values, _| {
            let (eps, own) = (values[0], *definition::<L2Norm>(node)?);
            (own.eps != eps).then(|| node.with(Defined::op(L2Norm { eps, ..own })))
        },
        of_model: true,
        propose: Some(|e| {
            let Some(own) = definition::<L2Norm>(e.node) else { return Vec::new() };
            let width = (row_len(e.node) / (own.heads * own.repeats).max(1)).max(1) as f64;
            // The mean of squares instead of their sum, or the other way round.
            let others = [own.eps * width, own.eps / width, 0.0, 1e-12, 1e-5, 1e-6, 1e-8, 1e-3];
            others.into_iter().map(|eps| vec![eps]).collect()
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "stream-left-out",
        fits: Some(means),
        story: "a residual stream is missing from the mean",
        seen: "what a layer reads does not depend on one of the streams",
        remedy: "add all residual streams, each times its gates",
        params: &[Param::new("stream", "the one that is missing", 0.0).searched(&[1.0, 2.0, 3.0])],
        apply: |node, values, _| {
            let (streams, which) = (definition::<GatedMean>(node)?.streams, values[0] as usize);
            if which >= streams {
                return None;
            }
            with_operand(node, 0, move |x| {
                by_row(x, |row| {
                    let n = row.len() / streams;
                    row[which * n..(which + 1) * n].fill(0.0);
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "stream-gates-linear",
        fits: Some(means),
        story: "the gates of the residual streams do not go through the sigmoid",
        seen: "what a layer reads is far too large, and changes its sign with the gates",
        remedy: "take the sigmoid of a gate before it is multiplied in",
        apply: |node, _, _| {
            let streams = definition::<GatedMean>(node)?.streams;
            Some(node.computing(move |inputs, c| {
                let product = Defined::op(ops::Factors(""));
                let (x, first) = ops::forward_with_bound(&product, &inputs[..2], c);
                let (y, mut bound) = plain_mean(streams, &[&x], c);
                let n = y.row_len();
                let share = 1.0 / streams as f32;
                first.iter().enumerate().for_each(|(at, b)| bound[at / (n * streams) * n + at % n] += b * share);
                (y, bound)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "first-weight-for-all-streams",
        fits: Some(|_, n| definition::<StreamSum>(n).is_some()),
        story: "the result of attention or experts is added to every residual stream with the weight of the first stream",
        seen: "the first stream is right, and the others are not",
        remedy: "each stream has a weight of its own for each token",
        apply: |node, _, _| with_operand(node, 2, |w| by_row(w, |row| row.fill(row[0]))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "first-norm-for-all-streams",
        fits: Some(|_, n| definition::<StreamNorm>(n).is_some()),
        story: "every residual stream is multiplied by the norm weights of the first",
        seen: "the first stream is right, and the columns of the others are off by a factor each",
        remedy: "{weight} holds the weights of all streams, one after the other",
        apply: |node, _, _| {
            let streams = definition::<StreamNorm>(node)?.streams;
            Some(node.reading(move |source, tensor, row, out| {
                let (n, rows) = source.extent(tensor);
                if rows > 1 {
                    return out.chunks_mut(n.max(1)).for_each(|stream| source.rows(tensor, 0, stream));
                }
                source.rows(tensor, row, out);
                let (first, rest) = out.split_at_mut(n / streams);
                rest.chunks_mut(first.len().max(1)).for_each(|stream| stream.copy_from_slice(first));
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "ngram-offsets-missing",
        fits: Some(|_, n| definition::<Ngrams>(n).is_some()),
        story: "the heads of the n-grams all read the first part of the table: their offsets are not added",
        seen: "the first head of n-grams is right, and the others are not",
        remedy: "add a head's offset to its hash, modulo its size",
        apply: |node, _, _| {
            let mut op = definition::<Ngrams>(node)?.clone();
            op.heads.iter_mut().for_each(|(first, _)| *first = 0);
            Some(node.with(Defined::op(op)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "block-scores-not-rectified",
        fits: Some(|_, n| definition::<BlockScores>(n).is_some()),
        story: "negative products of the indexer's heads count in a block's score",
        seen: "scores are too small where heads disagree",
        remedy: "take max(0, q·k) of each head before the sum",
        apply: |node, _, _| {
            let op = node.op.clone();
            // x = max(0, x) − max(0, −x).
            Some(node.computing(move |inputs, c| {
                let opposite = inputs[0].map(|q| -q);
                let (mut y, mut bound) = ops::forward_with_bound(&op, inputs, c);
                let (other, more) = ops::forward_with_bound(&op, &[&opposite, inputs[1]], c);
                y.data.iter_mut().zip(&other.data).for_each(|(y, other)| *y -= other);
                bound.iter_mut().zip(more).for_each(|(b, more)| *b += more);
                (y, bound)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "first-key-of-a-block",
        fits: Some(|_, n| definition::<BlockScores>(n).is_some()),
        story: "a block's key is the key of its first token, and not the mean of all its keys",
        seen: "scores are right where all keys of a block are alike",
        remedy: "average the raw keys of a block, then norm and rotate the mean",
        apply: |node, _, _| {
            let block = definition::<BlockScores>(node)?.block;
            with_operand(node, 1, move |cache| {
                let (mut keys, n) = (cache.clone(), cache.row_len().max(1));
                for rows in keys.data.chunks_mut(n * block) {
                    let (first, rest) = rows.split_at_mut(n);
                    rest.chunks_mut(n).for_each(|row| row.copy_from_slice(first));
                }
                keys
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "block-budget-off",
        fits: Some(|_, n| blocks(n).is_some()),
        story: "more or fewer blocks are chosen than the budget has",
        seen: "attention is right while all blocks fit the budget",
        remedy: "choose as many blocks as the budget of keys has, divided by the keys of a block",
        params: &[Param::new("by", "blocks too many", 1.0).searched(&[-1.0])],
        apply: |node, values, _| {
            let (picks, block) = blocks(node)?;
            let other = picks.checked_add_signed(values[0] as isize).filter(|other| *other > 0 && *other != picks)?;
            Some(node.with(Defined::op(Plain::top_blocks(other, block))))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "streams-summed",
        fits: Some(means),
        story: "the gated residual streams are summed, and not averaged",
        seen: "what a layer reads is too large by the number of streams",
        remedy: "divide the sum of the gated streams by their number",
        apply: |node, _, _| times(node, definition::<GatedMean>(node)?.streams as f64),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "stream-gates-missing",
        fits: Some(means),
        story: "the residual streams are averaged without their gates",
        seen: "what a layer reads does not depend on the gates",
        remedy: "multiply each element of a stream by the sigmoid of its gate before the mean",
        apply: |node, _, _| {
            let streams = definition::<GatedMean>(node)?.streams;
            Some(node.computing(move |inputs, c| plain_mean(streams, inputs, c)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "streams-normed-together",
        fits: Some(|_, n| definition::<StreamNorm>(n).is_some()),
        story: "the norm is over all residual streams together, and not over each",
        seen: "streams of different sizes keep their ratio",
        remedy: "take the mean square of each stream separately",
        apply: |node, _, _| {
            let StreamNorm { eps, about, .. } = *definition::<StreamNorm>(node)?;
            Some(node.with(Defined::op(StreamNorm { eps, streams: 1, about })))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "stream-weights-not-doubled",
        fits: Some(|_, n| matches!(curve(n), Some(Function::TwiceSigmoidOfShare(_)))),
        story: "the weight with which the result of attention or experts is added to a residual stream is the sigmoid, and not twice the sigmoid",
        seen: "attention and experts add half of what they should",
        remedy: "multiply the sigmoid by 2, so that a product of 0 is a plain residual sum",
        apply: |node, _, _| times(node, 0.5),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "stream-share-missing",
        fits: Some(|_, n| matches!(curve(n), Some(Function::TwiceSigmoidOfShare(_) | Function::SiluOfShare(_)))),
        story: "the product is not divided by the number of residual streams before the activation",
        seen: "gates or weights are nearer to their ends than they should be",
        remedy: "divide the product by the number of streams, then take SiLU or the sigmoid",
        apply: |node, _, _| {
            let of = match curve(node)? {
                Function::SiluOfShare(_) => Function::SiluOfShare(1),
                Function::TwiceSigmoidOfShare(_) => Function::TwiceSigmoidOfShare(1),
                Function::SigmoidOfRoot => return None,
            };
            Some(node.with(Defined::op(Curve { of, about: "" })))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "ngram-gate-without-root",
        fits: Some(|_, n| curve(n) == Some(Function::SigmoidOfRoot)),
        story: "the gate of the n-grams is the sigmoid of the score itself, and not of its root",
        seen: "small scores open the gate too little, and large ones too much",
        remedy: "take the root of the score's size, give it the score's sign, then take the sigmoid",
        apply: |node, _, _| Some(node.with(Defined::op(ops::Sigmoid("")))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "ngrams-reversed",
        fits: Some(|_, n| definition::<Ngrams>(n).is_some()),
        story: "the multipliers of the n-grams' hash meet the tokens in the opposite order",
        seen: "every row is another one of the table, but where all tokens are alike",
        remedy: "multiplier 0 meets the token itself, multiplier j the token j before it",
        apply: |node, _, _| {
            let mut op = definition::<Ngrams>(node)?.clone();
            op.multipliers.reverse();
            Some(node.with(Defined::op(op)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "ngrams-across-the-end",
        fits: Some(|_, n| definition::<Ngrams>(n).is_some()),
        story: "n-grams reach over an end of text to the tokens before it",
        seen: "only the rows of tokens after an end of text differ",
        remedy: "read the end-of-text token in the place of all tokens from an end of text back",
        apply: |node, _, _| {
            let op = definition::<Ngrams>(node)?.clone();
            let end = op.end;
            // No token ends the text; the beginning still reads as its end.
            Some(node.computing(move |inputs, c| {
                let mut history: Vec<u32> = vec![end; op.multipliers.len()];
                let ahead = history.len() as u32;
                history.extend(c.history);
                let positions: Vec<u32> = c.positions.iter().map(|p| p + ahead).collect();
                let open = Defined::op(Ngrams { end: u32::MAX, ..op.clone() });
                ops::forward_with_bound(&open, inputs, &Context { history: &history, positions: &positions, ..*c })
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "taps-side-by-side",
        fits: Some(|_, n| definition::<Convolution>(n).is_some_and(|conv| conv.apart > 1)),
        story: "the taps of the convolution meet tokens next to each other, and not at the distance of its dilation",
        seen: "every tap but the newest meets another token's row",
        remedy: "tap j meets the token (K − 1 − j)·A before, with A the size of the longest n-gram",
        apply: |node, _, _| {
            let Convolution { taps, .. } = *definition::<Convolution>(node)?;
            let op = Defined::op(Convolution { taps, apart: 1 });
            Some(node.computing(move |inputs, c| {
                let (x, before) = (inputs[0], inputs[1]);
                let kept = (taps - 1) * x.row_len();
                let newest = Tensor {
                    shape: vec![1, taps - 1, x.row_len()],
                    data: before.data[before.data.len() - kept..].to_vec(),
                };
                ops::forward_with_bound(&op, &[x, &newest], c)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "pooled-keys-unrotated",
        fits: Some(|_, n| definition::<BlockScores>(n).is_some()),
        story: "the pooled keys of blocks are not rotated",
        seen: "the score of the first block is right, and others are not",
        remedy: "rotate a pooled key to the position of its block's first token",
        apply: |node, _, _| {
            let op = definition::<BlockScores>(node)?.clone();
            let rope = Rope { rotated: 0, ..op.rope.clone() };
            Some(node.with(Defined::op(BlockScores { rope, ..op })))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tail-keys-left-out",
        fits: Some(|_, n| blocks(n).is_some()),
        story: "the keys behind the last whole block are not attended to",
        seen: "a token whose own block is not whole does not see itself",
        remedy: "attend to the keys of the chosen blocks and to all keys behind the last whole block",
        apply: |node, _, _| {
            let ((_, block), op) = (blocks(node)?, node.op.clone());
            Some(node.computing(move |inputs, c| {
                let (mut y, bound) = ops::forward_with_bound(&op, inputs, c);
                let keys = y.row_len();
                for (row, position) in y.data.chunks_mut(keys.max(1)).zip(c.positions) {
                    let seen = (*position as usize + 1).min(keys);
                    // The first tokens would see nothing.
                    if seen >= block {
                        row[seen / block * block..seen].fill(0.0);
                    }
                }
                (y, bound)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "budget-of-keys-as-blocks",
        fits: Some(|_, n| blocks(n).is_some()),
        story: "the budget of keys is used as a budget of blocks: too many blocks are chosen",
        seen: "attention is to all keys for longer than it should be",
        remedy: "divide the budget by the keys of a block",
        apply: |node, _, _| {
            blocks(node).map(|(picks, block)| node.with(Defined::op(Plain::top_blocks(picks * block, block))))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "newest-blocks-chosen",
        fits: Some(|_, n| blocks(n).is_some()),
        story: "the newest blocks are chosen, whatever their scores: a sliding window",
        seen: "attention is right while all blocks fit the budget",
        remedy: "choose the blocks of the largest scores",
        apply: |node, _, _| {
            let ((_, block), op) = (blocks(node)?, node.op.clone());
            Some(node.computing(move |inputs, c| {
                let mut order = inputs[0].clone();
                let keys = order.row_len().max(1);
                order.data.iter_mut().enumerate().for_each(|(at, v)| *v = (at % keys / block) as f64);
                ops::forward_with_bound(&op, &[&order], c)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "output-gate-as-silu",
        fits: Some(|_, n| definition::<ops::SigmoidGate>(n).is_some()),
        story: "the output of the delta net is gated by SiLU, as in Qwen3.5, and not by the sigmoid",
        seen: "each output is too large by its gate",
        remedy: "multiply the normed output by the sigmoid of z",
        apply: |node, _, _| {
            Some(node.computing(|inputs, c| {
                let silu = Defined::op(Silu);
                let (gate, first) = ops::forward_with_bound(&silu, &inputs[..1], c);
                let product = Defined::op(ops::Factors(""));
                let (y, mut bound) = ops::forward_with_bound(&product, &[&gate, inputs[1]], c);
                let carried = ops::propagate_error(&product, &[&gate, inputs[1]], &[Some(&first), None], &y, c);
                bound.iter_mut().zip(carried).for_each(|(b, more)| *b += more);
                (y, bound)
            }))
        },
        ..Mutation::PLAIN
    },
];
