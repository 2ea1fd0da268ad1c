//! Delta nets: the convolution, its window, the state, and the heads that read it; and gates beside queries.

use super::mutation::{Apply, Fits};
use super::{Mutation, Param};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, row_len};
use qdiff_engine::ops::anatomy::{Columns, Gather};
use qdiff_engine::ops::{
    self, Anatomy, Context, Convolution, Defined, Definition as _, DeltaNet, DeltaState, L2Norm, Op, Plain, Tensor,
    VectorFactor, Window,
};

const NET: DeltaNet = DeltaNet { heads: 1, key_heads: 1, dim: 1 };
const NORM: L2Norm = L2Norm { eps: 0.0, heads: 1, repeats: 1 };

fn is(n: &Node, name: &str) -> bool {
    n.op.name() == name
}

/// Outputs or state of the recurrence.
fn recurrence(_: &Graph, n: &Node) -> bool {
    is(n, NET.name()) || is(n, DeltaState(NET).name())
}

/// What goes on from a state.
fn going_on(graph: &Graph, n: &Node) -> bool {
    recurrence(graph, n) || is(n, Convolution { taps: 1, apart: 1 }.name())
}

fn convolution(_: &Graph, n: &Node) -> bool {
    is(n, Convolution { taps: 1, apart: 1 }.name())
}

fn l2_norm(_: &Graph, n: &Node) -> bool {
    is(n, NORM.name())
}

/// Sizes of a recurrence of `node`: H from β, D from the values.
fn sizes(node: &Node, graph: &Graph) -> Option<DeltaNet> {
    let width = |i: usize| Some(qdiff_engine::model::row_len(graph.nodes.get(*node.inputs.get(i)?)?));
    let (heads, dim) = (width(4)?, width(2)? / width(4)?.max(1));
    Some(DeltaNet { heads, key_heads: width(1)? / dim.max(1), dim })
}

/// The op of `node` for other sizes.
fn of_size(node: &Node, net: DeltaNet) -> Op {
    if is(node, NET.name()) { Defined::op(net) } else { Defined::op(DeltaState(net)) }
}

/// The op on operands that `change` has changed.
fn with_operands(node: &Node, op: Op, change: impl Fn(&mut Vec<Tensor<f64>>) + Send + Sync + 'static) -> Option<Node> {
    Some(node.computing(move |inputs, c| {
        let mut all: Vec<Tensor<f64>> = inputs.iter().map(|x| (*x).clone()).collect();
        change(&mut all);
        ops::forward_with_bound(&op, &all.iter().collect::<Vec<_>>(), c)
    }))
}

/// Each row made of other heads of it: head h of the result is head `of(h)`, of `heads`.
fn heads_of(x: &Tensor<f64>, dim: usize, heads: usize, of: impl Fn(usize) -> usize) -> Tensor<f64> {
    let n = x.row_len();
    let rows = x.data.chunks(n.max(1));
    let data = rows.flat_map(|row| (0..heads).flat_map(|h| row[of(h) * dim..][..dim].to_vec()).collect::<Vec<_>>());
    Tensor { shape: vec![x.rows(), heads * dim], data: data.collect() }
}

/// Changes the operands of a token before the recurrence (q, k, v, g, β), given the state before the token and how far that is
/// uncertain; says how far that leaves each value uncertain, if it does.
type Operands = fn(DeltaNet, &mut [Tensor<f64>; 5], &Tensor<f64>, &[f32]) -> Option<Vec<f32>>;

/// What is done to the state after a token.
#[derive(Clone, Copy)]
enum After {
    Nothing,
    /// It is decayed, and what was read of it too.
    Decay,
    /// It is rounded, before the query reads it or after that.
    Round {
        format: DType,
        before_reading: bool,
    },
}

/// The recurrence token by token, on other operands, and with something done to the state after each token.
fn by_token(
    (net, state): (DeltaNet, bool), (operands, then): (Operands, After), inputs: &[&Tensor<f64>], c: &Context<'_>,
) -> (Tensor<f64>, Vec<f32>) {
    let tokens = inputs[DECAY].rows();
    let (mut before, mut out, mut bound) = (inputs[5].clone(), Vec::new(), Vec::new());
    let mut of_state = vec![0f32; before.data.len()];
    for t in 0..tokens {
        let row = |i: usize| Tensor { shape: vec![1, inputs[i].row_len()], data: inputs[i].row(t).to_vec() };
        let mut own = [0, 1, 2, 3, 4].map(row);
        let of_values = operands(net, &mut own, &before, &of_state);
        let all: Vec<&Tensor<f64>> = own.iter().chain([&before]).collect();
        let carried = of_state.iter().any(|off| *off > 0.0).then_some(of_state.as_slice());
        let deltas = [None, None, of_values.as_deref(), None, None, carried];
        // What the tokens before left uncertain is carried on.
        let bounded = |op: Op| {
            let (y, mut bound) = ops::forward_with_bound(&op, &all, c);
            let more = ops::propagate_error(&op, &all, &deltas, &y, c);
            bound.iter_mut().zip(more).for_each(|(b, more)| *b = b.hypot(more));
            (y, bound)
        };
        let (mut y, mut of_y) = bounded(Defined::op(net));
        let (mut after, mut of_after) = bounded(Defined::op(DeltaState(net)));
        match then {
            After::Nothing => {}
            After::Decay => {
                for (all, each) in [(&mut after, net.dim * net.dim), (&mut y, net.dim)] {
                    let heads = all.data.chunks_mut(each.max(1)).enumerate();
                    heads.for_each(|(h, head)| head.iter_mut().for_each(|m| *m *= inputs[DECAY].row(t)[h].exp()));
                }
            }
            After::Round { format, before_reading } => {
                for (m, off) in after.data.iter_mut().zip(&mut of_after) {
                    let round = |m: f64| f64::from(format.round(m as f32));
                    let (low, high) = (round(*m - f64::from(*off)), round(*m + f64::from(*off)));
                    // Near the middle of two numbers it may be either.
                    (*m, *off) = (round(*m), (high - low) as f32);
                }
                if before_reading {
                    (y, of_y) = read(net, &own[0], (&after, &of_after));
                }
            }
        }
        out.extend(y.data);
        bound.extend(of_y);
        (of_state, before) = (of_after, after);
    }
    if state { (before, of_state) } else { (Tensor { shape: vec![tokens, net.heads * net.dim], data: out }, bound) }
}

/// What a token's queries read of a state, which is uncertain by so much.
fn read(net: DeltaNet, q: &Tensor<f64>, (state, off): (&Tensor<f64>, &[f32])) -> (Tensor<f64>, Vec<f32>) {
    let (d, scale) = (net.dim, 1.0 / (net.dim as f64).sqrt());
    let (mut data, mut bound) = (Vec::new(), Vec::new());
    for (at, (row, off)) in state.data.chunks(d.max(1)).zip(off.chunks(d.max(1))).enumerate() {
        let query = &q.data[at / d % net.key_heads * d..][..d];
        let terms = || row.iter().zip(query).map(|(m, q)| m * q);
        data.push(scale * terms().sum::<f64>());
        let reach: f64 = terms().map(f64::abs).sum();
        let carried: f64 = query.iter().zip(off).map(|(q, off)| (q * f64::from(*off)).powi(2)).sum();
        bound.push((scale * (ops::UNIT * (d as f64).sqrt() * reach + carried.sqrt())) as f32);
    }
    (Tensor { shape: vec![1, data.len()], data }, bound)
}

/// Operands as they are.
fn plain(_: DeltaNet, _: &mut [Tensor<f64>; 5], _: &Tensor<f64>, _: &[f32]) -> Option<Vec<f32>> {
    None
}

/// Operands whose decay is none.
fn undecayed(_: DeltaNet, own: &mut [Tensor<f64>; 5], _: &Tensor<f64>, _: &[f32]) -> Option<Vec<f32>> {
    own[DECAY].data.fill(0.0);
    None
}

/// Values for which the recurrence subtracts what the key reads of the state before its decay.
fn subtracted_before(net: DeltaNet, own: &mut [Tensor<f64>; 5], before: &Tensor<f64>, off: &[f32]) -> Option<Vec<f32>> {
    let ([_, k, v, g, _], d) = (own, net.dim);
    let each = v.data.iter_mut().enumerate().map(|(at, v)| {
        let h = at / d;
        let (key, share) = (&k.data[h % net.key_heads * d..][..d], g.data[h].exp() - 1.0);
        let (row, off) = (&before.data[at * d..][..d], &off[at * d..][..d]);
        let read: f64 = row.iter().zip(key).map(|(m, k)| m * k).sum();
        *v += share * read;
        let reach: f64 = row.iter().zip(key).map(|(m, k)| (m * k).abs()).sum();
        let carried: f64 = key.iter().zip(off).map(|(k, off)| (k * share * f64::from(*off)).powi(2)).sum();
        (ops::UNIT * (d as f64).sqrt() * reach + carried.sqrt()) as f32
    });
    Some(each.collect())
}

/// Values for which β multiplies them alone: what the key reads of the decayed state is subtracted in full.
fn beta_on_values(net: DeltaNet, own: &mut [Tensor<f64>; 5], before: &Tensor<f64>, off: &[f32]) -> Option<Vec<f32>> {
    let ([_, k, v, g, beta], d) = (own, net.dim);
    let each = v.data.iter_mut().enumerate().map(|(at, v)| {
        let h = at / d;
        let (key, share) = (&k.data[h % net.key_heads * d..][..d], (1.0 - 1.0 / beta.data[h]) * g.data[h].exp());
        let (row, off) = (&before.data[at * d..][..d], &off[at * d..][..d]);
        let terms = || row.iter().zip(key).map(|(m, k)| m * k);
        *v += share * terms().sum::<f64>();
        let reach: f64 = terms().map(|term| (share * term).abs()).sum();
        let carried: f64 = key.iter().zip(off).map(|(k, off)| (k * share * f64::from(*off)).powi(2)).sum();
        (ops::UNIT * (d as f64).sqrt() * reach + carried.sqrt()) as f32
    });
    Some(each.collect())
}

/// The outputs where the query meets the state's columns, token by token.
fn across(net: DeltaNet, inputs: &[&Tensor<f64>], c: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    let (tokens, d) = (inputs[3].rows(), net.dim);
    let (mut before, mut of_state) = (inputs[5].clone(), vec![0f32; inputs[5].data.len()]);
    let (mut out, mut bound) = (Vec::new(), Vec::new());
    let scale = 1.0 / (d as f64).sqrt();
    for t in 0..tokens {
        let row = |i: usize| Tensor { shape: vec![1, inputs[i].row_len()], data: inputs[i].row(t).to_vec() };
        let (q, k, v, g, beta) = (row(0), row(1), row(2), row(3), row(4));
        let all = [&q, &k, &v, &g, &beta, &before];
        let op = Defined::op(DeltaState(net));
        let (after, mut of_after) = ops::forward_with_bound(&op, &all, c);
        let more = ops::propagate_error(&op, &all, &[None, None, None, None, None, Some(&of_state)], &after, c);
        of_after.iter_mut().zip(more).for_each(|(b, more)| *b = b.hypot(more));
        for h in 0..net.heads {
            let query = &q.data[h % net.key_heads * d..][..d];
            for j in 0..d {
                let at = |i: usize| (h * d + i) * d + j;
                let terms = || (0..d).map(|i| (after.data[at(i)], query[i], f64::from(of_after[at(i)])));
                out.push(terms().map(|(m, q, _)| m * q).sum::<f64>() * scale);
                let reach: f64 = terms().map(|(m, q, _)| (m * q).abs()).sum();
                let carried: f64 = terms().map(|(_, q, off)| (q * off).powi(2)).sum();
                bound.push((scale * (ops::UNIT * (d as f64).sqrt() * reach + carried.sqrt())) as f32);
            }
        }
        (before, of_state) = (after, of_after);
    }
    (Tensor { shape: vec![tokens, net.heads * d], data: out }, bound)
}

fn columns(n: &Node) -> Option<Columns> {
    if let Anatomy::Gather(Gather::Columns(columns)) = n.op.anatomy() { Some(columns) } else { None }
}

/// Outputs of the recurrence.
fn net(_: &Graph, n: &Node) -> bool {
    is(n, NET.name())
}

/// The recurrence whose state is rounded after each token, before the query reads it or after that.
fn in_format(node: &Node, graph: &Graph, format: DType, before_reading: bool) -> Option<Node> {
    let (net, state) = (sizes(node, graph)?, is(node, DeltaState(NET).name()));
    let then = After::Round { format, before_reading };
    Some(node.computing(move |inputs, c| by_token((net, state), (plain, then), inputs, c)))
}

/// That a state is rounded after each token.
const fn rounded((name, story): (&'static str, &'static str), (fits, apply): (Fits, Apply)) -> Mutation {
    Mutation {
        name,
        fits: Some(fits),
        story,
        seen: "nearly every element is off, by more the longer the sequence",
        remedy: "keep the state in f32 from token to token",
        apply,
        ..Mutation::PLAIN
    }
}

/// The gate by which the result of a norm is multiplied next.
fn gate_of(graph: &Graph, node: &Node) -> Option<usize> {
    let own = graph.index(node.id)?;
    let gated = graph.nodes.iter().find(|n| n.inputs.contains(&own) && n.id.layer == node.id.layer)?;
    let net = graph.nodes.get(*node.inputs.first()?)?;
    let is_gate = matches!(gated.op, Op::SwiGlu) && gated.inputs.get(1) == Some(&own) && recurrence(graph, net);
    is_gate.then(|| gated.inputs.first().copied()).flatten()
}

fn softplus(_: &Graph, n: &Node) -> bool {
    is(n, ops::Softplus.name())
}

/// The head whose number is read for head `h` of so many, by a kind of `vector-elsewhere`.
fn head_read(kind: usize, h: usize, n: usize) -> usize {
    let half = n.div_ceil(2);
    match kind {
        0 => (h + 1) % n,
        1 => (h + n - 1) % n,
        2 => 0,
        3 => n - 1 - h,
        4 => h / 2,
        5 if h < half => 2 * h,
        5 => 2 * (h - half) + 1,
        _ if h.is_multiple_of(2) => h / 2,
        _ => half + h / 2,
    }
}

/// The place of an operand: β, g.
const BETA: usize = 4;
const DECAY: usize = 3;

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "delta-head-map",
        fits: Some(|graph, n| recurrence(graph, n) || l2_norm(graph, n)),
        story: "value heads read the wrong key heads: neighbouring value heads share a key head where the model interleaves them, or the reverse",
        seen: "the first head of values is right, and others are not",
        remedy: "value head h reads key head h mod H_k in Qwen3.5 (the GGUF is reordered so), and h / (H / H_k) in Qwen3-Next",
        apply: |node, _, graph| {
            if l2_norm(graph, node) {
                let (from, to) = (
                    qdiff_engine::model::row_len(graph.nodes.get(node.inputs[0])?),
                    qdiff_engine::model::row_len(node),
                );
                let net = graph.nodes.iter().find(|n| recurrence(graph, n)).and_then(|n| sizes(n, graph))?;
                let (own, repeated) = (from / net.dim, to / net.dim);
                let op = node.op.clone();
                return (repeated > own).then(|| {
                    node.computing(move |inputs, c| {
                        let (y, bound) = ops::forward_with_bound(&op, inputs, c);
                        let each = repeated / own;
                        let of = |h: usize| (h % own) * each;
                        let bound = Tensor { shape: y.shape.clone(), data: bound }.map(f64::from);
                        let bound = heads_of(&bound, net.dim, repeated, of).narrow().data;
                        (heads_of(&y, net.dim, repeated, of), bound)
                    })
                });
            }
            let net = sizes(node, graph)?;
            let each = net.heads / net.key_heads.max(1);
            let op = of_size(node, DeltaNet { key_heads: net.heads, ..net });
            if each < 2 || net.key_heads < 2 {
                return None;
            }
            with_operands(node, op, move |x| {
                for x in &mut x[..2] {
                    *x = heads_of(x, net.dim, net.heads, |h| h / each);
                }
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "state-not-carried",
        fits: Some(going_on),
        story: "each step begins from zeros: what the step before left is not carried over",
        seen: "the first part of a prompt is right, and every later step is not",
        remedy: "begin a step with the state that the step before left, and clear it only for a new sequence",
        apply: |node, _, _| {
            with_operands(node, node.op.clone(), |x| {
                if let Some(state) = x.last_mut() {
                    state.data.fill(0.0);
                }
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "window-of-the-step-alone",
        fits: Some(|_, n| is(n, Window { rows: 1 }.name())),
        story: "the window after a step has only rows of that step; if the step has fewer tokens than the window, the rest is zeros",
        seen: "the convolution is wrong after steps of few tokens",
        remedy: "keep the last rows of this step and of those before it: K − 1 of them, however few tokens the step has",
        apply: |node, _, _| {
            with_operands(node, node.op.clone(), |x| {
                if let Some(state) = x.last_mut() {
                    state.data.fill(0.0);
                }
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "state-counted-twice",
        fits: Some(recurrence),
        story: "the state before the step counts twice",
        seen: "the first part of a prompt is right, and every later step is not",
        remedy: "add the state of the step before once",
        apply: |node, _, _| {
            with_operands(node, node.op.clone(), |x| {
                if let Some(state) = x.last_mut() {
                    state.data.iter_mut().for_each(|m| *m *= 2.0);
                }
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "delta-decay-after",
        fits: Some(recurrence),
        story: "the state is decayed after the update, and not before",
        seen: "outputs are too small by the token's own decay",
        remedy: "decay the state before the update: read the decayed state with the key, and subtract the result from the value",
        apply: |node, _, graph| {
            let (net, state) = (sizes(node, graph)?, is(node, DeltaState(NET).name()));
            Some(node.computing(move |inputs, c| by_token((net, state), (undecayed, After::Decay), inputs, c)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "delta-before-decay",
        fits: Some(recurrence),
        story: "what is subtracted from the value is read from the state before the decay, and not after it",
        seen: "the first token is right, and later ones are not",
        remedy: "decay the state first; then read the decayed state with the key, and subtract the result from the value",
        apply: |node, _, graph| {
            let (net, state) = (sizes(node, graph)?, is(node, DeltaState(NET).name()));
            Some(
                node.computing(move |inputs, c| by_token((net, state), (subtracted_before, After::Nothing), inputs, c)),
            )
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "delta-beta-on-value",
        fits: Some(recurrence),
        story: "β multiplies the value alone: what the key reads of the state is subtracted in full",
        seen: "the first token is right, and the state forgets too much from the second one on",
        remedy: "subtract what the key reads of the decayed state from the value first, and multiply the difference by β",
        apply: |node, _, graph| {
            let (net, state) = (sizes(node, graph)?, is(node, DeltaState(NET).name()));
            Some(node.computing(move |inputs, c| by_token((net, state), (beta_on_values, After::Nothing), inputs, c)))
        },
        ..Mutation::PLAIN
    },
    rounded(
        ("state-in-bf16", "the state is rounded to bf16 after every token"),
        (recurrence, |node, _, graph| in_format(node, graph, DType::Bf16, true)),
    ),
    rounded(
        ("state-in-f16", "the state is rounded to f16 after every token"),
        (recurrence, |node, _, graph| in_format(node, graph, DType::F16, true)),
    ),
    // The state itself is the same.
    rounded(
        ("state-stored-in-bf16", "the state is rounded to bf16 after every token, once the query has read it"),
        (net, |node, _, graph| in_format(node, graph, DType::Bf16, false)),
    ),
    rounded(
        ("state-stored-in-f16", "the state is rounded to f16 after every token, once the query has read it"),
        (net, |node, _, graph| in_format(node, graph, DType::F16, false)),
    ),
    Mutation {
        name: "state-not-updated",
        fits: Some(|_, n| is(n, DeltaState(NET).name()) || is(n, Window { rows: 1 }.name())),
        story: "the state is what it was before the step: the step does not update it",
        seen: "the state after a step is the one before it",
        remedy: "write the state after the step's last token back",
        apply: |node, _, _| {
            Some(node.computing(|inputs, _| {
                let state = (*inputs[inputs.len() - 1]).clone();
                let exact = vec![0.0; state.data.len()];
                (state, exact)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "window-not-moved",
        fits: Some(|_, n| is(n, Window { rows: 1 }.name())),
        story: "older rows of the window stand where they were: the step's rows replace the last ones",
        seen: "the newest row is right, and the row before it is not the token's before",
        remedy: "move the rows of the window on by as many tokens as the step has, then write the step's rows behind them",
        apply: |node, _, _| {
            Some(node.computing(|inputs, _| {
                let (rows, mut state) = (inputs[0], (*inputs[inputs.len() - 1]).clone());
                let fresh = rows.data.len().min(state.data.len());
                let at = state.data.len() - fresh;
                state.data[at..].copy_from_slice(&rows.data[rows.data.len() - fresh..]);
                let exact = vec![0.0; state.data.len()];
                (state, exact)
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "delta-decay-missing",
        fits: Some(recurrence),
        story: "the state is not decayed",
        seen: "old tokens count as much as new ones",
        remedy: "multiply the state by e^g before each token",
        apply: |node, _, _| with_operands(node, node.op.clone(), |x| x[DECAY].data.fill(0.0)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "delta-beta-missing",
        fits: Some(recurrence),
        story: "values are written in full: β is not multiplied in",
        seen: "the state follows every token as if its β were 1",
        remedy: "multiply the difference that is written by β",
        apply: |node, _, _| with_operands(node, node.op.clone(), |x| x[BETA].data.fill(1.0)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "delta-unscaled",
        fits: Some(|_, n| is(n, NET.name())),
        story: "queries are not divided by the root of a head's length",
        seen: "every output is too large by the same factor",
        remedy: "multiply the normalised query by 1/√D",
        apply: |node, _, graph| {
            let root = (sizes(node, graph)?.dim as f64).sqrt();
            with_operands(node, node.op.clone(), move |x| x[0].data.iter_mut().for_each(|q| *q *= root))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "delta-state-across",
        fits: Some(|_, n| is(n, NET.name())),
        story: "queries are multiplied with the columns of the state, and not with its rows: the state is read transposed",
        seen: "every output is another sum of the right products",
        remedy: "row j of the state belongs to element j of the value; multiply it with the query",
        apply: |node, _, graph| {
            let net = sizes(node, graph)?;
            Some(node.computing(move |inputs, c| across(net, inputs, c)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "conv-window-off",
        fits: Some(convolution),
        story: "the window of the convolution is off: each token meets rows one token away from its own",
        seen: "every row is the one of a neighbour, but at the edges of steps",
        remedy: "the last tap meets the token itself, the first one the token K − 1 before it",
        apply: |node, _, _| {
            with_operands(node, node.op.clone(), |x| {
                let n = x[0].row_len();
                let past = &x[1].data[x[1].data.len() - n..];
                let rows = [past, &x[0].data[..x[0].data.len() - n]].concat();
                let kept = x[1].data.len();
                let older = [&vec![0.0; n], &x[1].data[..kept - n]].concat();
                (x[0].data, x[1].data) = (rows, older);
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "conv-window-order",
        fits: Some(convolution),
        story: "the convolution reads the rows of its window {order}",
        seen: "the first K − 1 tokens of each pass but the first are wrong",
        remedy: "the window has its oldest row first; where it is a ring, row j is at (start + j) mod (K − 1)",
        params: &[Param::new("order", "0: newest first, 1: rotated by one row, 2: rotated by two rows", 0.0)
            .searched(&[1.0, 2.0])],
        apply: |node, values, _| {
            let kind = values[0] as usize;
            with_operands(node, node.op.clone(), move |x| {
                let n = x[0].row_len().max(1);
                let rows = x[1].data.len() / n;
                let from = |row: usize| if kind == 0 { rows - 1 - row } else { (row + kind) % rows };
                let old = std::mem::take(&mut x[1].data);
                x[1].data = (0..rows).flat_map(|row| old[from(row) * n..][..n].to_vec()).collect();
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "window-of-padding",
        fits: Some(|_, n| is(n, Window { rows: 1 }.name())),
        story: "the window after a part is taken from the end of its padding: the part is filled up to whole tiles with rows of zeros",
        seen: "the newest rows of the window are zeros",
        remedy: "take the window from the part's last tokens, and not from the end of what is filled up",
        params: &[Param::new("to", "rows to whose multiple a part is filled up", 16.0).searched(&[8.0, 32.0, 64.0, 128.0, 4.0])],
        apply: |node, values, _| {
            let to = values[0] as usize;
            (2..=4096).contains(&to).then(|| {
                with_operands(node, node.op.clone(), move |x| {
                    let (n, rows) = (x[0].row_len(), x[0].rows());
                    let filled = rows.next_multiple_of(to);
                    x[0].data.resize(filled * n, 0.0);
                    x[0].shape[0] = filled;
                })
            })?
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "window-layout",
        fits: Some(|graph, n| convolution(graph, n) || is(n, Window { rows: 1 }.name())),
        story: "the window is {order}",
        seen: "the first tokens of a pass meet rows that are mixed of all channels",
        remedy: "write and read the window in one order: row by row, or channel by channel, in prefill and in decode steps",
        params: &[Param::new(
            "order",
            "0: written channel by channel and read row by row, 1: written row by row and read channel by channel",
            0.0,
        )
        .searched(&[1.0])],
        apply: |node, values, _| {
            let by_channel = values[0] == 0.0;
            if !by_channel && values[0] != 1.0 {
                return None;
            }
            with_operands(node, node.op.clone(), move |x| {
                let n = x[0].row_len().max(1);
                let Some(state) = x.last_mut() else { return };
                let (old, rows) = (state.data.clone(), state.data.len() / n);
                for (at, v) in state.data.iter_mut().enumerate().take(rows * n) {
                    *v = if by_channel { old[at % rows * n + at / rows] } else { old[at % n * rows + at / n] };
                }
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "window-written-across",
        fits: Some(|_, n| is(n, Window { rows: 1 }.name())),
        story: "the window after a part is written {order}",
        seen: "the window's first tokens after a part meet rows that are mixed of all channels",
        remedy: "write and read the window in one order: row by row, or channel by channel, in prefill and in decode steps",
        params: &[Param::new(
            "order",
            "0: channel by channel and read row by row, 1: row by row and read channel by channel",
            0.0,
        )
        .searched(&[1.0])],
        apply: |node, values, graph| {
            let by_channel = values[0] == 0.0;
            let n = row_len(graph.nodes.get(*node.inputs.first()?)?).max(1);
            Some(node.writing(move |out| {
                let (old, rows) = (out.value.data.clone(), out.value.data.len() / n);
                let bounds = out.bound.clone();
                for at in 0..rows * n {
                    let from = if by_channel { at % rows * n + at / rows } else { at % n * rows + at / n };
                    (out.value.data[at], out.bound[at]) = (old[from], bounds[from]);
                }
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "conv-taps-reversed",
        fits: Some(convolution),
        story: "the taps of the convolution meet the tokens in the opposite order",
        seen: "the newest token has the weight of the oldest",
        remedy: "tap j of {weight} meets the token K − 1 − j before",
        apply: |node, _, _| {
            Some(node.reading(|source, tensor, row, out| {
                source.rows(tensor, row, out);
                let taps = source.extent(tensor).0;
                out.chunks_mut(taps.max(1)).for_each(<[f32]>::reverse);
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "conv-taps-turned",
        fits: Some(convolution),
        story: "the taps of the convolution are turned: each token meets the tap {by} its own, wrapping around",
        seen: "the newest token has the weight of another",
        remedy: "tap j of {weight} meets the token K − 1 − j before; where the window is a ring, begin at its oldest row",
        params: &[Param::new("by", "1: after, 2: two after, 3: three after", 1.0).searched(&[2.0, 3.0])],
        apply: |node, values, _| {
            let taps = *node.weights.first()?.extent.first()?;
            let by = (values[0] as usize).checked_rem(taps).filter(|by| *by > 0)?;
            Some(node.reading(move |source, tensor, row, out| {
                source.rows(tensor, row, out);
                out.chunks_exact_mut(taps).for_each(|taps| taps.rotate_left(by));
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "conv-weight-layout",
        fits: Some(convolution),
        story: "{weight} is read as a row of channels for each tap, and holds a row of taps for each channel",
        seen: "every channel is convolved with numbers of other channels",
        remedy: "tap j of channel c is number c·K + j of {weight}",
        apply: |node, _, _| {
            Some(node.reading(|source, tensor, row, out| {
                let (taps, channels) = source.extent(tensor);
                let mut whole = vec![0f32; taps * channels];
                source.rows(tensor, 0, &mut whole);
                for (at, v) in out.iter_mut().enumerate() {
                    *v = whole[at % taps * channels + row + at / taps];
                }
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "l2-norm-missing",
        fits: Some(|graph, n| {
            let as_wide = n.inputs.first().and_then(|i| graph.nodes.get(*i)).map(qdiff_engine::model::row_len);
            l2_norm(graph, n) && as_wide == Some(qdiff_engine::model::row_len(n))
        }),
        story: "queries or keys are not divided by their L2 norm",
        seen: "the state grows beyond all bounds",
        remedy: "divide each head of {input} by its L2 norm",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "l2-norm-as-mean",
        fits: Some(l2_norm),
        story: "each head is divided by the root of the mean of its squares, and not by the root of their sum",
        seen: "every element is too large by the root of a head's length",
        remedy: "divide by √(Σx² + ε)",
        apply: |node, _, graph| {
            let net = graph.nodes.iter().find(|n| recurrence(graph, n)).and_then(|n| sizes(n, graph))?;
            let (root, op) = ((net.dim as f64).sqrt(), node.op.clone());
            Some(node.computing(move |inputs, c| {
                let (y, bound) = ops::forward_with_bound(&op, inputs, c);
                (y.map(|v| v * root), bound.iter().map(|b| b * root as f32).collect())
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "l2-norm-of-all-heads",
        fits: Some(l2_norm),
        story: "queries or keys are divided by the L2 norm of the whole row, and not by the L2 norm of each head",
        seen: "heads of different lengths keep their ratio",
        remedy: "divide each head of {input} by its own L2 norm",
        apply: |node, _, graph| {
            let width = |i: usize| Some(qdiff_engine::model::row_len(graph.nodes.get(i)?));
            let alike = width(*node.inputs.first()?) == Some(qdiff_engine::model::row_len(node));
            let epsilon = graph.config.rms_eps;
            alike.then(|| node.with(Defined::op(L2Norm { eps: epsilon, heads: 1, repeats: 1 })))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "a-log-again",
        fits: Some(|_, n| is(n, VectorFactor("").name())),
        story: "−exp is applied to A a second time: the file already holds −exp(A_log)",
        seen: "decays of all heads are nearly alike",
        remedy: "{weight} holds −exp(A_log); multiply by it",
        apply: |node, _, _| {
            Some(node.reading(|source, tensor, row, out| {
                source.rows(tensor, row, out);
                out.iter_mut().for_each(|a| *a = -a.exp());
            }))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gated-before-norm",
        fits: Some(|graph, n| gate_of(graph, n).is_some()),
        story: "the output is gated before its norm, and not after it",
        seen: "the norm's result goes with the gate, and the next stage applies the gate again, or not at all",
        remedy: "norm {input} head by head, then multiply by the function of the gate",
        apply: |node, _, graph| {
            let (z, op) = (gate_of(graph, node)?, node.op.clone());
            let inputs = node.inputs.iter().copied().chain([z]).collect();
            let gated = node.computing(move |inputs, c| {
                let silu = |(x, z): (&f64, &f64)| x * z / (1.0 + (-z).exp());
                let data = inputs[0].data.iter().zip(&inputs[inputs.len() - 1].data).map(silu).collect();
                let x = Tensor { shape: inputs[0].shape.clone(), data };
                let (y, bound) = ops::forward_with_bound(&op, &[&x], c);
                let reach = |(b, y): (f32, &f64)| b + (16.0 * ops::UNIT * y.abs()) as f32;
                let bound = bound.into_iter().zip(&y.data).map(reach).collect();
                (y, bound)
            });
            Some(Node { inputs, ..gated })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "bias-counted",
        fits: Some(softplus),
        story: "the vector {weight} is {by}",
        seen: "every head is off by a number of its own, before the function",
        remedy: "add {weight} to {input} once, before the function",
        params: &[
            Param::new("by", "0: not added, 2: added twice, -1: subtracted", 2.0).searched(&[0.0, -1.0])
        ],
        apply: |node, values, _| {
            let by = values[0] as f32;
            [0.0, 2.0, -1.0].contains(&by).then(|| {
                node.reading(move |source, tensor, row, out| {
                    source.rows(tensor, row, out);
                    out.iter_mut().for_each(|b| *b *= by);
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "vector-elsewhere",
        fits: Some(|graph, n| softplus(graph, n) || is(n, VectorFactor("").name())),
        story: "for each head, {weight} is read at {from}",
        seen: "each head has another decay, in all tokens alike",
        remedy: "index {weight} by the head of values",
        params: &[Param::new(
            "from",
            "0: the next head, 1: the head before it, 2: the first head, 3: the head at the other end, \
             4: the head at half its number, 5: the head in the place of this one where even heads stand before odd ones, \
             6: the head in the place of this one where the two halves of the heads are interleaved",
            0.0,
        )
        .searched(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        apply: |node, values, _| {
            let (kind, heads) = (values[0] as usize, qdiff_engine::model::row_len(node));
            let map = |kind: usize| (0..heads).map(|h| head_read(kind, h, heads)).collect::<Vec<_>>();
            // With few heads some of them are one, or none.
            let own: Vec<usize> = (0..heads).collect();
            let other = map(kind);
            let is_new = other != own && (0..kind).all(|before| map(before) != other);
            (kind <= 6 && is_new).then(|| {
                node.reading(move |source, tensor, row, out| {
                    source.rows(tensor, row, out);
                    let own = out.to_vec();
                    for (out, from) in out.iter_mut().zip(&other) {
                        *out = own.get(*from).copied().unwrap_or(*out);
                    }
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "softplus-otherwise",
        fits: Some(softplus),
        story: "{of} is computed where softplus of {input} plus {weight} belongs",
        seen: "every head decays otherwise",
        remedy: "add {weight} to {input} first, and compute ln(1 + e^z) of the sum",
        params: &[Param::new(
            "of",
            "0: softplus of the product alone plus the vector, 1: e^z, 2: the sigmoid of z, 3: ReLU of z, 4: softplus of −z",
            0.0,
        )
        .searched(&[1.0, 2.0, 3.0, 4.0])],
        apply: |node, values, _| {
            let (kind, op) = (values[0] as usize, node.op.clone());
            (kind <= 4).then(|| {
                node.computing(move |inputs, c| {
                    let (_, bound) = ops::forward_with_bound(&op, inputs, c);
                    let z = ops::bias::forward(inputs[0], &c.vector::<f64>(0));
                    let soft = |z: f64| z.max(0.0) + (-z.abs()).exp().ln_1p();
                    let y = match kind {
                        0 => ops::bias::forward(&inputs[0].map(soft), &c.vector::<f64>(0)),
                        1 => z.map(f64::exp),
                        2 => z.map(|z| 1.0 / (1.0 + (-z).exp())),
                        3 => z.map(|z| z.max(0.0)),
                        _ => z.map(|z| soft(-z)),
                    };
                    let size = y.data.iter().zip(&z.data).zip(&inputs[0].data);
                    let reach = |(b, ((y, z), x)): (&f32, ((&f64, &f64), &f64))| {
                        let sizes = y.abs() * (1.0 + z.abs()) + z.abs() + x.abs();
                        b * 2.0 + (8.0 * ops::UNIT * sizes) as f32
                    };
                    let bound = bound.iter().zip(size).map(reach).collect();
                    (y, bound)
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "softplus-slope",
        fits: Some(softplus),
        story: "softplus has another slope or threshold: z where slope·z is above the threshold, and ln(1 + e^(slope·z)) / slope below it",
        seen: "every head decays otherwise; the slope and the threshold may be exchanged",
        remedy: "compute ln(1 + e^z), and z itself above 20",
        params: &[
            Param::new("slope", "what z is multiplied by, and the logarithm divided by", 20.0),
            Param::new("threshold", "where z itself is taken", 1.0),
        ],
        apply: |node, values, _| {
            let (slope, threshold, op) = (values[0], values[1], node.op.clone());
            Some(node.computing(move |inputs, c| {
                let (_, bound) = ops::forward_with_bound(&op, inputs, c);
                let z = ops::bias::forward(inputs[0], &c.vector::<f64>(0));
                let of = |z: f64| if slope * z > threshold { z } else { (slope * z).exp().ln_1p() / slope };
                // The logarithm's argument has an error of the product's size.
                let reach = |(b, z): (&f32, &f64)| b * 2.0 + (8.0 * ops::UNIT * (1.0 + z.abs())) as f32;
                let bound = bound.iter().zip(&z.data).map(reach).collect();
                (z.map(of), bound)
            }))
        },
        propose: Some(|_| {
            let exchanged = [vec![20.0, 1.0]];
            let thresholds = [0.0, 1.0, 2.0, 4.0, 5.0, 8.0, 10.0].map(|threshold| vec![1.0, threshold]);
            let slopes = [0.5, 2.0, std::f64::consts::LN_2, std::f64::consts::LOG2_E].map(|slope| vec![slope, 20.0]);
            exchanged.into_iter().chain(thresholds).chain(slopes).collect()
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "sigmoid-slope",
        fits: Some(|_, n| is(n, ops::Sigmoid("").name()) || is(n, ops::Silu.name())),
        story: "the exponent of the sigmoid is multiplied by a factor",
        seen: "0 keeps its value, and all else is nearer to an end or to the middle",
        remedy: "compute 1 / (1 + e^(−x)); 2^(−x) needs x·log2(e)",
        params: &[Param::new("by", "the factor", std::f64::consts::LN_2)],
        apply: |node, values, _| {
            let (by, op, gated) = (values[0], node.op.clone(), is(node, ops::Silu.name()));
            Some(node.computing(move |inputs, c| {
                let (_, bound) = ops::forward_with_bound(&op, inputs, c);
                let of = |x: f64| if gated { x } else { 1.0 } / (1.0 + (-by * x).exp());
                let y = inputs[0].map(of);
                let reach = |((b, y), x): ((&f32, &f64), &f64)| {
                    b * 2.0 + (8.0 * ops::UNIT * y.abs() * (1.0 + (by * x).abs())) as f32
                };
                let bound = bound.iter().zip(&y.data).zip(&inputs[0].data).map(reach).collect();
                (y, bound)
            }))
        },
        propose: Some(|_| {
            let usual = [std::f64::consts::LN_2, std::f64::consts::LOG2_E, 1.702, 2.0, 0.5, -1.0];
            usual.into_iter().map(|by| vec![by]).collect()
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "halves-split-flat",
        // Streams that begin as one are no parts of a row.
        fits: Some(|_, n| columns(n).is_some_and(|of| of.runs > 1 && of.stride > of.run)),
        story: "each head holds its two halves side by side; the engine reads the first half of the whole row, then the second",
        seen: "the first head is right in part, and every other is another's",
        remedy: "split {input} head by head: first one part of a head, then the other",
        apply: |node, _, _| {
            let of = columns(node)?;
            let flat = Columns::range(of.first / of.run * of.count(), of.count());
            Some(node.with(Defined::op(Plain::columns(flat, "one half of a row"))))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "attention-gate-missing",
        fits: Some(|_, n| is(n, "factors")),
        story: "the attention's result is not multiplied by its gate",
        seen: "the layer has attention's result, for any gate",
        remedy: "multiply by the sigmoid of the gate before the output projection",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
];
