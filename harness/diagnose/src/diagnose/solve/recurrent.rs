//! Delta nets: one of the operands of a head is that of another token or of another head, or the state that a pass begins with was
//! rounded, turned, or decayed further.

use super::index::Index;
use super::rounded::{FORMATS, Format};
use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::model::{Node, StageId, row_len};
use qdiff_engine::ops::{self, Context, Defined, Definition, DeltaNet, DeltaState, Op, Tensor, UNIT};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// Tokens that a slip of tokens goes over.
const TOKENS: usize = 16;

/// Operands of a head that have a row for each token: q, k, v, g, β.
const OPERANDS: usize = 5;

/// The one with the logarithms of the decay.
const DECAY: usize = 3;

/// What a head gives in a step, with the bounds.
type Given = Option<Rc<(Vec<f64>, Vec<f32>)>>;

/// What becomes of an operand: it is read at another token, of so many, or at another head; the state is rounded before a pass.
#[derive(Clone)]
enum Elsewhere {
    Token(Index),
    Head(Index),
    /// Tokens by heads are read as heads by tokens.
    ByHeads,
    Rounded(&'static Format),
    /// It has a value of its own at some tokens of the part.
    At(Place, Change),
    /// The state of each head is read with rows and columns exchanged, and written back so or not.
    Turned(bool),
    /// The state also decays in the rows that fill the part up to a multiple of so many.
    Filled(usize, Filling),
    /// In the form by chunks of so many tokens, a factor of decay is missing.
    Undecayed(usize, Missing),
}

/// What does not decay where a chunk is computed as a whole.
#[derive(Clone, Copy, PartialEq)]
enum Missing {
    /// What the tokens of the chunk put into the state, as its later tokens read it.
    Read,
    /// The same, as the chunk leaves it.
    Left,
    /// The state that the chunk begins with, as its tokens read it.
    First,
    /// The same, as the chunk leaves it.
    Carried,
    /// All of the state over the tokens of the last chunk, where that is not whole.
    Rest,
    /// The state that the chunk begins with, as its tokens find what they correct: it decays where that is subtracted, and not before
    /// the tokens of the chunk correct each other.
    Erased,
    /// What the tokens of the chunk put into the state, as its later tokens find what they correct.
    Corrected,
    /// The same, which later tokens do not find at all.
    Unseen,
    /// The same, which they find as if none had corrected another: to the first order.
    FirstOrder,
}

/// What is in rows that fill up a part.
#[derive(Clone, Copy)]
enum Filling {
    /// Zeros: the decay is that of an input of zeros.
    Zeros,
    /// The part's last row again.
    Last,
}

/// What it is there.
#[derive(Clone, Copy)]
enum Change {
    Is(f64),
    Times(f64),
}

/// Tokens of a part.
#[derive(Clone, Copy)]
enum Place {
    First,
    Last,
    /// The first token of each chunk of so many but of the first one.
    FirstOfChunks(usize),
    /// The last token of each whole chunk of so many.
    LastOfChunks(usize),
}

impl Place {
    fn has(self, token: usize, tokens: usize) -> bool {
        match self {
            Self::First => token == 0,
            Self::Last => token + 1 == tokens,
            Self::FirstOfChunks(each) => token > 0 && token.is_multiple_of(each),
            Self::LastOfChunks(each) => (token + 1).is_multiple_of(each),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => write!(f, "first token of each part"),
            Self::Last => write!(f, "last token of each part"),
            Self::FirstOfChunks(each) => {
                write!(f, "first token of each chunk of the part but the first, in chunks of {each}")
            }
            Self::LastOfChunks(each) => write!(f, "last token of each whole chunk, in chunks of {each}"),
        }
    }
}

impl Elsewhere {
    fn of(&self, (token, tokens): (usize, usize), (head, heads): (usize, usize)) -> Option<(usize, usize)> {
        match self {
            Self::Token(index) => Some((index.of(token, tokens)?, head)),
            Self::Head(index) => Some((token, index.of(head, heads)?)),
            Self::ByHeads => {
                let at = head * tokens + token;
                Some((at / heads, at % heads))
            }
            Self::Rounded(_) | Self::At(..) | Self::Filled(..) | Self::Turned(_) | Self::Undecayed(..) => {
                Some((token, head))
            }
        }
    }
}

/// The recurrence of a node, and whether its state is meant.
fn recurrence(node: &Node) -> Option<(DeltaNet, bool)> {
    let Op::Defined(op) = &node.op else { return None };
    let definition: &dyn Definition = &**op;
    let definition: &dyn Any = definition;
    let of_state = definition.downcast_ref().map(|DeltaState(net): &DeltaState| (*net, true));
    of_state.or_else(|| definition.downcast_ref().map(|net: &DeltaNet| (*net, false)))
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some((net, of_state)) = recurrence(scene.node()) else { return Vec::new() };
    let nodes = &scene.e.oracle.graph.nodes;
    let mut all = Vec::new();
    for operand in 0..OPERANDS {
        let heads = if operand < 2 { net.key_heads } else { net.heads };
        let id = nodes[scene.node().inputs[operand]].id;
        let tokens = Index::slips(TOKENS).into_iter();
        all.extend(tokens.map(|index| {
            let told = format!("the values of {id} are those of the part's {}", index.told("token", "t"));
            law(scene, (net, of_state), (operand, Elsewhere::Token(index)), told)
        }));
        if heads > 1 {
            let told = format!("the values of {id} stand as tokens by heads, and are read as heads by tokens");
            all.push(law(scene, (net, of_state), (operand, Elsewhere::ByHeads), told));
        }
        let of_heads = Index::slips(heads).into_iter().filter(|_| heads > 1);
        all.extend(of_heads.map(|index| {
            let told = format!("the values of {id} are those of the {}", index.told("head", "h"));
            law(scene, (net, of_state), (operand, Elsewhere::Head(index)), told)
        }));
    }
    let changes = [
        (3, Change::Is(0.0), "the state does not decay"),
        (3, Change::Times(2.0), "the state decays twice"),
        (4, Change::Is(0.0), "nothing is added to the state"),
        (4, Change::Is(1.0), "β is 1"),
        (4, Change::Times(2.0), "β counts twice"),
    ];
    let chunks =
        [8, 16, 32, 64, 128].into_iter().flat_map(|each| [Place::FirstOfChunks(each), Place::LastOfChunks(each)]);
    // Of parts of one token, these are all tokens.
    let longer = scene.e.side.capture.steps.iter().any(|step| step.tokens.len() > 1);
    let of_parts = [Place::First, Place::Last].into_iter().filter(|_| longer);
    let places: Vec<Place> = of_parts.chain(chunks).collect();
    for (operand, value, what) in changes {
        all.extend(places.iter().map(|&place| {
            let told = format!("{what} at the {place}");
            law(scene, (net, of_state), (operand, Elsewhere::At(place, value)), told)
        }));
    }
    for (each, filling, what) in [8, 16, 32, 64, 128]
        .into_iter()
        .flat_map(|each| [(each, Filling::Zeros, "zeros"), (each, Filling::Last, "its last row again")])
        .filter(|_| of_state)
    {
        let told = format!(
            "each part is filled up to a multiple of {each} rows with {what}, and the state decays in these rows too"
        );
        all.push(law(scene, (net, of_state), (OPERANDS, Elsewhere::Filled(each, filling)), told));
    }
    let missing = [
        (Missing::Read, "does not decay as its later tokens read it"),
        (Missing::Left, "does not decay in what the chunk leaves"),
    ]
    .map(|(missing, what)| (missing, format!("what a token adds to the state within a chunk of TILE tokens {what}")));
    let of_first = [(Missing::First, "as its tokens read it"), (Missing::Carried, "in what the chunk leaves")]
        .map(|(missing, what)| (missing, format!("the state before a chunk of TILE tokens does not decay {what}")));
    let rest = (
        Missing::Rest,
        "the state that the part leaves is divided by the decay of its last tokens, those that fill no chunk of TILE"
            .to_owned(),
    );
    let corrected = [
        (Missing::Erased, "the state before a chunk of TILE tokens is erased by keys that the chunk's Gram matrix with decay corrected, and its own decay is applied behind that"),
        (Missing::Corrected, "the Gram matrix of a chunk of TILE tokens has no decay: what a token adds is corrected without it"),
        (Missing::Unseen, "the tokens of a chunk of TILE do not correct each other: each is corrected by the state before the chunk alone"),
        (Missing::FirstOrder, "the tokens of a chunk of TILE correct each other to the first order: the inverse of the Gram matrix is cut off"),
    ]
    .map(|(missing, what)| (missing, what.to_owned()));
    for (missing, what) in missing.into_iter().chain(of_first).chain([rest]).chain(corrected) {
        let shows =
            if of_state { missing != Missing::Read && missing != Missing::First } else { missing != Missing::Rest };
        for each in [8, 16, 32, 64, 128].into_iter().filter(|_| shows) {
            let told = what.replace("TILE", &each.to_string());
            all.push(law(scene, (net, of_state), (OPERANDS, Elsewhere::Undecayed(each, missing)), told));
        }
    }
    // Outputs show how the state is read, not how it is written.
    for (back, how) in [(true, "read and written"), (false, "read")].into_iter().filter(|(back, _)| of_state || !back) {
        let told = format!("the state of each head is {how} with rows and columns exchanged");
        all.push(law(scene, (net, of_state), (OPERANDS, Elsewhere::Turned(back)), told));
    }
    let told = |format: &str| format!("the state is kept in {format} between two passes");
    all.extend(FORMATS.iter().map(|format| {
        format.law(told, |format, told| law(scene, (net, of_state), (OPERANDS, Elsewhere::Rounded(format)), told))
    }));
    all
}

/// That a node computes with one operand otherwise.
fn law<'a>(
    scene: &'a Scene<'a>, (net, of_state): (DeltaNet, bool), (operand, elsewhere): (usize, Elsewhere), told: String,
) -> Law<'a> {
    let known: RefCell<HashMap<(usize, usize), Given>> = RefCell::default();
    Law::new(told, 0, move |row: &RowAt| {
        let each = if of_state { net.dim * net.dim } else { net.heads * net.dim };
        let (mut value, mut bound) = (Vec::new(), Vec::new());
        for (i, at) in row.range.clone().enumerate() {
            let (head, place) = match of_state {
                true => (at / each, at % each),
                false => (at % each / net.dim, at / each * net.dim + at % net.dim),
            };
            if !scene.asks(scene.token(row).1 + i) {
                value.push(f64::NAN);
                bound.push(0.0);
                continue;
            }
            let make = || head_of(scene, (net, of_state), (row.step, head), (operand, &elsewhere)).map(Rc::new);
            let given = known.borrow_mut().entry((row.step, head)).or_insert_with(make).clone()?;
            value.push(*given.0.get(place)?);
            bound.push(given.1[place]);
        }
        Some(Row { value, bound })
    })
}

/// What a head gives in a step with one operand read elsewhere.
fn head_of(
    scene: &Scene<'_>, (net, of_state): (DeltaNet, bool), (step, head): (usize, usize),
    (operand, elsewhere): (usize, &Elsewhere),
) -> Option<(Vec<f64>, Vec<f32>)> {
    let (nodes, inputs) = (&scene.e.oracle.graph.nodes, &scene.node().inputs);
    let tokens = scene.e.side.capture.steps[step].tokens.len();
    let rows = |i: usize| -> Option<Tensor<f64>> {
        let whole = scene.operand(step, i)?;
        let heads = if i < 2 { net.key_heads } else { net.heads };
        let width = row_len(&nodes[inputs[i]]) / heads;
        (whole.data.len() == tokens * heads * width).then_some(())?;
        let mut data = Vec::with_capacity(tokens * width);
        for token in 0..tokens {
            let own = (token, head % heads);
            // Beyond the part's ends there is nothing else to read.
            let other = elsewhere.of((token, tokens), (own.1, heads)).filter(|_| i == operand);
            let (t, h) = other.unwrap_or(own);
            data.extend(whole.data[(t * heads + h) * width..][..width].iter().map(|v| f64::from(*v)));
        }
        if let Elsewhere::At(place, value) = elsewhere
            && i == operand
        {
            let rows = data.chunks_mut(width).enumerate().filter(|(token, _)| place.has(*token, tokens));
            rows.flat_map(|(_, row)| row).for_each(|v| match value {
                Change::Is(value) => *v = *value,
                Change::Times(by) => *v *= by,
            });
        }
        Some(Tensor { shape: vec![tokens, width], data })
    };
    let mut all = (0..OPERANDS).map(rows).collect::<Option<Vec<_>>>()?;
    let state = if of_state { scene.node().id } else { nodes[*inputs.last()?].id };
    let mut before = before(scene, state, step, (head, net.dim * net.dim))?;
    if let Elsewhere::Rounded(format) = elsewhere {
        before.data.iter_mut().for_each(|v| *v = f64::from((format.round)(*v as f32)));
    }
    if let Elsewhere::Turned(_) = elsewhere {
        before.data = turned(&before.data, net.dim);
    }
    all.push(before);
    scene.count(8 * tokens * net.dim * net.dim);
    let one = DeltaNet { heads: 1, key_heads: 1, dim: net.dim };
    let op = if of_state { Defined::op(DeltaState(one)) } else { Defined::op(one) };
    let context = Context { tokens: &[], positions: &[], history: &[], source: &scene.e.oracle.weights, weights: &[] };
    let (mut y, mut bound) = ops::forward_with_bound(&op, &all.iter().collect::<Vec<_>>(), &context);
    if let Elsewhere::Undecayed(each, missing) = elsewhere {
        scene.count(4 * each * tokens * net.dim);
        let (given, mut reach) = undecayed(&all, net.dim, (*each, *missing), of_state);
        // What the recursion may round is as much larger as the values are.
        let largest = |values: &[f64]| values.iter().fold(0f64, |most, v| most.max(v.abs()));
        if largest(&y.data) == 0.0 {
            return None;
        }
        let by = (largest(&given) / largest(&y.data)).max(1.0) as f32;
        reach.iter_mut().zip(&bound).for_each(|(reach, own)| *reach = reach.max(by * own));
        return Some((given, reach));
    }
    if let (Elsewhere::Turned(true), true) = (elsewhere, of_state) {
        (y.data, bound) = (turned(&y.data, net.dim), turned(&bound, net.dim));
    }
    if let Elsewhere::Filled(each, filling) = elsewhere {
        let decay = match filling {
            Filling::Zeros => decay_of_zeros(scene, head % net.heads)?,
            Filling::Last => *all[DECAY].data.last()?,
        };
        let by = ((tokens.next_multiple_of(*each) - tokens) as f64 * decay).exp();
        y.data.iter_mut().for_each(|v| *v *= by);
        let size = y.data.iter().fold(0f64, |most, v| most.max(v.abs()));
        bound.iter_mut().for_each(|b| *b = *b * by as f32 + (16.0 * UNIT * size) as f32);
    }
    Some((y.data, bound))
}

/// Outputs of a head, or its state after the step, by the form in chunks: with G the sum of g since the chunk's beginning and
/// `δ_t = β_t·(v_t − e^{G_t}·M_0·k_t − Σ_{j < t} e^{G_t − G_j}·(k_j·k_t)·δ_j)`, `o_t = (e^{G_t}·M_0·q_t + Σ_{j ≤ t} e^{G_t − G_j}·δ_j·(k_j·q_t))/√D`, and the chunk leaves
/// `e^G·M_0 + Σ_j e^{G − G_j}·δ_j·k_jᵀ`. One of the factors is 1 instead, or another one of δ is missing.
fn undecayed(
    operands: &[Tensor<f64>], d: usize, (each, missing): (usize, Missing), of_state: bool,
) -> (Vec<f64>, Vec<f32>) {
    let [q, k, v, g, beta, state] = operands else { unreachable!("six operands") };
    let (tokens, scale) = (g.data.len(), 1.0 / (d as f64).sqrt());
    let row = |x: &Tensor<f64>, t: usize| x.data[t * d..(t + 1) * d].to_vec();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (mut m, mut out, mut size) = (state.data.clone(), Vec::with_capacity(tokens * d), 0f64);
    for from in (0..tokens).step_by(each) {
        let until = (from + each).min(tokens);
        let (first, mut sums, mut sum) = (m.clone(), Vec::new(), 0.0);
        let mut deltas: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
        // The keys as the others correct them, and what a token adds without the others.
        let (mut erased, mut plain): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
        for t in from..until {
            let (k, v, q) = (row(k, t), row(v, t), row(q, t));
            sum += g.data[t];
            sums.push(sum);
            // What the tokens before it in the chunk have put in, of which it finds so much.
            let found: Vec<f64> = (0..deltas.len())
                .map(|j| match missing {
                    Missing::Unseen => 0.0,
                    Missing::Corrected => dot(&deltas[j].1, &k),
                    _ => dot(&deltas[j].1, &k) * (sum - sums[j]).exp(),
                })
                .collect();
            let less = |of: f64, others: &dyn Fn(usize) -> f64| {
                (of - found.iter().enumerate().map(|(j, by)| by * others(j)).sum::<f64>()) * beta.data[t]
            };
            let old = |j: usize, k: &[f64]| sum.exp() * dot(&first[j * d..(j + 1) * d], k);
            let delta: Vec<f64> = match missing {
                Missing::Erased => {
                    let own: Vec<f64> = (0..d).map(|i| less(k[i], &|j| erased[j][i])).collect();
                    let told: Vec<f64> = (0..d).map(|i| less(v[i], &|j| plain[j][i])).collect();
                    let delta = told.iter().enumerate().map(|(j, told)| told - old(j, &own)).collect();
                    erased.push(own);
                    plain.push(told);
                    delta
                }
                Missing::FirstOrder => {
                    plain.push((0..d).map(|i| (v[i] - old(i, &k)) * beta.data[t]).collect());
                    (0..d).map(|i| less(v[i] - old(i, &k), &|j| plain[j][i])).collect()
                }
                _ => (0..d).map(|i| less(v[i] - old(i, &k), &|j| deltas[j].0[i])).collect(),
            };
            deltas.push((delta, k));
            let old = if missing == Missing::First { 1.0 } else { sum.exp() };
            let by: Vec<f64> = (0..deltas.len())
                .map(|j| dot(&deltas[j].1, &q) * if missing == Missing::Read { 1.0 } else { (sum - sums[j]).exp() })
                .collect();
            for j in 0..d {
                let new: f64 = deltas.iter().zip(&by).map(|((delta, _), by)| delta[j] * by).sum();
                out.push((old * dot(&first[j * d..(j + 1) * d], &q) + new) * scale);
            }
        }
        let all = if missing == Missing::Rest && until - from < each { 0.0 } else { sum };
        let old = if missing == Missing::Carried { 1.0 } else { all.exp() };
        for (j, of) in m.chunks_mut(d).enumerate() {
            of.iter_mut().for_each(|m| *m *= old);
            for ((delta, k), at) in deltas.iter().zip(&sums) {
                let by = if missing == Missing::Left { 1.0 } else { (all - at).exp() };
                of.iter_mut().zip(k).for_each(|(m, k)| *m += by * delta[j] * k);
            }
        }
        size = m.iter().fold(size, |most, m| most.max(m.abs()));
    }
    let given = if of_state { m } else { out };
    let size = given.iter().fold(if of_state { size } else { 0.0 }, |most, v| most.max(v.abs()));
    let bound = (8.0 * UNIT * (d as f64).sqrt() * size) as f32;
    let bound = vec![bound; given.len()];
    (given, bound)
}

/// A square matrix with rows and columns exchanged.
fn turned<T: Copy>(matrix: &[T], n: usize) -> Vec<T> {
    (0..matrix.len()).map(|i| matrix[i % n * n + i / n]).collect()
}

/// The logarithm of a head's decay where the product that it is made of is 0: softplus of its bias, times its factor.
fn decay_of_zeros(scene: &Scene<'_>, head: usize) -> Option<f64> {
    let nodes = &scene.e.oracle.graph.nodes;
    let decay = &nodes[scene.node().inputs[DECAY]];
    let soft = &nodes[*decay.inputs.first()?];
    let of = |node: &Node| Some(f64::from(*scene.shared_vector(&node.weights.first()?.name)?.get(head)?));
    let (factor, bias) = (of(decay)?, of(soft)?);
    Some(factor * bias.exp().ln_1p())
}

/// A head's part of a state, of so many elements, as it was before a step.
pub(super) fn before(
    scene: &Scene<'_>, state: StageId, step: usize, (head, len): (usize, usize),
) -> Option<Tensor<f64>> {
    let steps = &scene.e.side.capture.steps;
    if let Some(again) = steps[step].before.get(&state) {
        let data = again.get().data.get(head * len..(head + 1) * len)?.iter().map(|v| f64::from(*v)).collect();
        return Some(Tensor { shape: vec![1, 1, len], data });
    }
    let data = match steps[step].first {
        0 => vec![0.0; len],
        first => {
            let earlier = step.checked_sub(1).filter(|earlier| steps[*earlier].keys() == first)?;
            let whole = scene.tensor(earlier, state)?;
            whole.data.get(head * len..(head + 1) * len)?.iter().map(|v| f64::from(*v)).collect()
        }
    };
    Some(Tensor { shape: vec![1, 1, len], data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use qdiff_engine::model::WeightSource;

    /// The recursion has no weights.
    struct None;

    impl WeightSource for None {
        fn extent(&self, name: &str) -> (usize, usize) {
            unreachable!("{name}")
        }

        fn stored(&self, name: &str) -> qdiff_engine::quant::Stored<'_> {
            unreachable!("{name}")
        }

        fn rows(&self, name: &str, _: usize, _: &mut [f32]) {
            unreachable!("{name}")
        }
    }

    /// Where nothing is missing, the form in chunks is the recursion; where something is, it is another.
    #[test]
    fn the_form_in_chunks_is_the_recursion() {
        let (d, tokens) = (4, 11);
        let number = |seed: usize| move |i: usize| ((i * 37 + seed * 101) % 64) as f64 / 64.0 - 0.5;
        let of = |seed: usize, rows: usize, width: usize| Tensor {
            shape: vec![rows, width],
            data: (0..rows * width).map(number(seed)).collect::<Vec<f64>>(),
        };
        let mut all: Vec<Tensor<f64>> =
            (0..3).map(|seed| of(seed, tokens, d)).chain([of(3, tokens, 1), of(4, tokens, 1)]).collect();
        all[3].data.iter_mut().for_each(|g| *g -= 0.6);
        all.push(Tensor { shape: vec![1, 1, d * d], data: (0..d * d).map(number(5)).collect() });
        let one = DeltaNet { heads: 1, key_heads: 1, dim: d };
        let context = Context { tokens: &[], positions: &[], history: &[], source: &None, weights: &[] };
        let operands: Vec<&Tensor<f64>> = all.iter().collect();
        for (op, of_state) in [(Defined::op(one), false), (Defined::op(DeltaState(one)), true)] {
            let right = ops::forward(&op, &operands, &context).data;
            let near = |other: &[f64]| right.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-12);
            // One chunk that is whole has no rest.
            assert!(near(&undecayed(&all, d, (tokens, Missing::Rest), of_state).0));
            assert!(near(&undecayed(&all, d, (4, Missing::Rest), of_state).0) != of_state);
            for missing in [Missing::Read, Missing::First] {
                assert!(near(&undecayed(&all, d, (4, missing), of_state).0) == of_state);
            }
            for missing in [
                Missing::Left,
                Missing::Carried,
                Missing::Erased,
                Missing::Corrected,
                Missing::Unseen,
                Missing::FirstOrder,
            ] {
                assert!(!near(&undecayed(&all, d, (4, missing), of_state).0));
            }
        }
    }
}
