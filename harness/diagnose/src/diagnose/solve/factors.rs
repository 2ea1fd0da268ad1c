//! What the factors of a sum's terms may be instead: read in the wrong place, rounded, decoded otherwise, of another token,
//! key, head or stage.

use super::heads::HeadOf;
use super::index::{Index, beside};
use super::rounded::{FORMATS, QUANTISED};
use super::scene::{Layout, Scene};
use super::terms::{Sums, grouped};
use super::{At, fields, indexed, scaled};
use crate::verdict::RowAt;
use qdiff_engine::model::{Axis, Graph, Node, WeightSource as _, row_len};
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Definition as _, DeltaNet, RmsNorm};
use qdiff_engine::quant::{self, ActivationFormat};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// The terms of element `i` of a row, given their right factors.
pub(super) type Terms<'a> = Rc<dyn Fn(&RowAt, usize, &[f64], &[f64]) -> Option<Vec<f64>> + 'a>;

/// Another way to make the terms, in words.
pub(super) type Other<'a> = (String, Terms<'a>);

/// Index `k` of so many, moved.
type Order = Box<dyn Fn(usize, usize) -> usize>;

/// Orders in which factors may be read instead, and what is then read. A place beyond the last one is in no run: nobody knows what is
/// read there.
fn orders(terms: usize) -> Vec<(String, Order)> {
    let mut all: Vec<(String, Order)> = Vec::new();
    let mut by = 1;
    while by < terms.min(512) {
        all.push((format!("{by} after, wrapping around"), Box::new(move |k, n| (k + by) % n)));
        all.push((format!("{by} before, wrapping around"), Box::new(move |k, n| (k + n - by % n) % n)));
        all.push((format!("{by} apart, in pairs"), Box::new(move |k, n| if k ^ by < n { k ^ by } else { k })));
        if 4 * by <= terms {
            let middle = move |k: usize, _: usize| {
                let to = [0, 2 * by, by, 3 * by][k / by % 4];
                k / (4 * by) * 4 * by + to + k % by
            };
            let what = format!("as if of each {} the second and the third {by} changed places", 4 * by);
            all.push((what, Box::new(middle)));
        }
        if by > 1 {
            all.push((format!("that is the first of each {by}"), Box::new(move |k, _| k / by * by)));
            all.push((
                format!("that is the last of each {by}"),
                Box::new(move |k, n| (k / by * by + by - 1).min(n - 1)),
            ));
        }
        if by > 2 {
            let reversed = move |k: usize, n: usize| (k / by * by + by - 1 - k % by).min(n - 1);
            all.push((format!("at the other end of each {by}"), Box::new(reversed)));
            let half = by / 2;
            let apart = move |k: usize, n: usize| (k / by * by + k % by % 2 * half + k % by / 2).min(n - 1);
            all.push((format!("as if each {by} were two halves, interleaved"), Box::new(apart)));
            let together = move |k: usize, n: usize| (k / by * by + k % by % half * 2 + k % by / half).min(n - 1);
            all.push((format!("as if each {by} were pairs, not two halves"), Box::new(together)));
        }
        by *= 2;
    }
    all.push(("at the other end".to_owned(), Box::new(|k, n| n - 1 - k)));
    all.push(("that is the first".to_owned(), Box::new(|_, _| 0)));
    all.push(("that is the last".to_owned(), Box::new(|_, n| n - 1)));
    all
}

/// The places that an order gives for each of so many factors, if they have all of them.
fn within(order: &dyn Fn(usize, usize) -> usize, n: usize) -> Option<Rc<[usize]>> {
    (0..n).map(|k| Some(order(k, n)).filter(|at| *at < n)).collect()
}

/// Formats of blocks that weights may be rounded to once more.
const BLOCKS: [(&str, ActivationFormat); 6] = [
    ("Q4_0", ActivationFormat::Q4_0),
    ("Q8_0", ActivationFormat::Q8_0),
    ("Q4_1", ActivationFormat::Q4_1),
    ("Q5_0", ActivationFormat::Q5_0),
    ("Q5_1", ActivationFormat::Q5_1),
    ("Q8_K", ActivationFormat::Q8K),
];

/// What the two factors of a term are called: one and many of each.
fn names(op: Anatomy<'_>) -> [(&'static str, &'static str); 2] {
    match op {
        Anatomy::Contraction(Contraction::Scores(_)) => {
            [("element of the query", "queries"), ("element of the key", "keys")]
        }
        Anatomy::Contraction(Contraction::Context(_)) => [("weight", "weights"), ("value", "values")],
        Anatomy::Contraction(Contraction::Rows(_)) => [("weight", "weights"), ("result", "results")],
        _ => [("weight", "weights"), ("input", "inputs")],
    }
}

/// What the first factors are called, and the second.
pub(super) fn called(op: Anatomy<'_>) -> [&'static str; 2] {
    names(op).map(|(_, many)| many)
}

pub(super) fn products(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// Every other way.
pub(super) fn others<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    let op = scene.node().op.anatomy();
    let [(left, lefts), (right, rights)] = names(op);
    let mut all: Vec<Other<'a>> = Vec::new();
    let terms = scene.fit.first().and_then(|&(r, i)| sums.factors(&scene.e.rows[r], i)).map_or(0, |(a, _)| a.len());
    for (place, order) in orders(terms) {
        // As a rule all sums are of as many terms.
        let usual: Option<Rc<[usize]>> = within(&*order, terms);
        let order = Rc::new(move |n: usize| if n == terms { usual.clone() } else { within(&*order, n) });
        let again = order.clone();
        all.push((
            format!("each {left} is multiplied with the {right} {place}"),
            Rc::new(move |_, _, a, b| Some(a.iter().zip(&*order(b.len())?).map(|(a, k)| a * b[*k]).collect())),
        ));
        all.push((
            format!("each {right} is multiplied with the {left} {place}"),
            Rc::new(move |_, _, a, b| Some(b.iter().zip(&*again(a.len())?).map(|(b, k)| a[*k] * b).collect())),
        ));
    }
    // Ways of shared memory: an order that depends on the output, or the key. `turned` has what is exclusive-ored.
    let strides = (0..8).map(|b| 1usize << b).flat_map(|by| [2usize, 4, 8, 16, 32].map(|m| (by, m)));
    for (by, m) in strides.filter(|(by, m)| *by < terms && by * m <= 256) {
        let factor = if by == 1 { String::new() } else { format!(" times {by}") };
        let what = format!(
            "each {left} is multiplied with the {right} whose number is moved on by the output's mod {m}{factor}"
        );
        let of = move |row: &RowAt, i: usize, a: &[f64], b: &[f64]| {
            let r = scene.token(row).1 + i;
            Some((0..a.len()).map(|k| a[k] * b[(k + r % m * by) % b.len()]).collect())
        };
        all.push((what, Rc::new(of)));
    }
    let narrow = |v: &[f64]| v.iter().map(|v| *v as f32).collect::<Vec<f32>>();
    let wide = |v: Vec<f32>| v.into_iter().map(f64::from).collect::<Vec<f64>>();
    type Change = Rc<dyn Fn(&mut [f32])>;
    let formats = FORMATS.iter().map(|f| -> (&str, Change) {
        // Most numbers are the same in its twin, which comes after it.
        let name = if f.twin.is_some() { "f16 or TF32 (both keep 11 bits)" } else { f.name };
        (name, Rc::new(|row: &mut [f32]| row.iter_mut().for_each(|v| *v = (f.round)(*v))))
    });
    let quantised = QUANTISED.iter().map(|q| -> (&str, Change) { (q.name, Rc::new(|row: &mut [f32]| q.apply(row))) });
    // Blocks of ggml's, which loaders make of weights anew.
    let blocks = BLOCKS.iter().map(|(name, format)| -> (&str, Change) {
        (
            name,
            Rc::new(|row: &mut [f32]| {
                if row.len().is_multiple_of(format.block_size()) {
                    let mut values = vec![0f64; row.len()];
                    quant::emulate(*format, row, &mut values);
                    row.iter_mut().zip(values).for_each(|(v, new)| *v = new as f32);
                }
            }),
        )
    });
    for (name, change) in formats.chain(quantised).chain(blocks) {
        for (of_left, of_right) in [(true, false), (false, true), (true, true)] {
            let what = match (of_left, of_right) {
                (true, false) => lefts.to_owned(),
                (false, true) => rights.to_owned(),
                _ => format!("{lefts} and {rights}"),
            };
            let change = change.clone();
            let of = move |v: &[f64], yes: bool| {
                if !yes {
                    return v.to_vec();
                }
                let mut row = narrow(v);
                change(&mut row);
                wide(row)
            };
            let what = format!("{what} are rounded to {} before they are multiplied", name.trim_end_matches(','));
            all.push((what, Rc::new(move |_, _, a, b| Some(products(&of(a, of_left), &of(b, of_right))))));
        }
    }
    match op {
        Anatomy::Contraction(Contraction::Weight(_)) => of_layer(scene, sums, &mut all),
        Anatomy::Contraction(Contraction::Rows(_)) => super::experts::weights(scene, &mut all),
        _ => of_attention(scene, sums, &mut all),
    }
    all.extend(indexed::ways(scene, sums));
    let few = sums.sample(FEW);
    all.extend(scaled::others(scene, sums).into_iter().filter(|(_, terms)| gives(scene, sums, &few, &**terms)));
    all
}

/// Weights decoded otherwise, and inputs of other tokens and stages.
fn of_layer<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    for fields::Way { what, decoded, .. } in fields::ways(scene, &scene.node().weights[0].name, Some(sums.as_ref())) {
        all.push((
            what,
            Rc::new({
                let sums = sums.clone();
                move |row: &RowAt, i, _: &[f64], b: &[f64]| Some(products(&decoded(sums.row_of(row, i)?)?, b))
            }),
        ));
    }
    let graph = &scene.e.oracle.graph;
    other_rows(scene, sums, all);
    of_tensor(scene, all);
    let mut whole = scaled::of_layer(scene, sums);
    super::shared_tiles::others(scene, &mut whole);
    if scene.node().op.anatomy().is_layer() {
        exchanged(scene, sums, all);
        super::crossed::others(scene, sums, &mut whole);
    } else {
        super::experts::others(scene, sums, &mut whole);
        super::experts::rows(scene, sums, &mut whole);
    }
    whole.extend(normed(scene, sums));
    let few = sums.sample(FEW);
    all.extend(whole.into_iter().filter(|(_, terms)| gives(scene, sums, &few, &**terms)));
    let input = &graph.nodes[scene.node().inputs[0]];
    if let Anatomy::Contraction(Contraction::Context(attention)) = input.op.anatomy() {
        of_heads((attention.n_heads, attention.head_dim), all);
    } else if let Some((heads, d)) = of_delta_net(graph, scene.node()).filter(|(heads, d)| heads * d == row_len(input))
    {
        of_heads((heads, d), all);
    }
    let fixed = |n: &Node| {
        let axes = n.shape.iter().filter_map(|a| if let Axis::Fixed(n) = a { Some(*n) } else { None });
        axes.product::<usize>()
    };
    // The first layer fills a buffer that others should fill again.
    let near = |n: &&Node| match (n.id.layer, input.id.layer) {
        (Some(a), Some(b)) => a.abs_diff(b) <= 1 || a == 0,
        _ => true,
    };
    let wide = |n: &&Node| n.token_axis() == Some(0) && !n.shape.contains(&Axis::Keys) && fixed(n) == fixed(input);
    let stages =
        graph.nodes.iter().filter(|n| n.id != scene.node().id && !scene.follows(n.id)).filter(near).filter(wide);
    let mut places: Vec<(String, usize, i64, usize)> = Vec::new();
    for node in stages {
        let index = graph.index(node.id).expect("a node of the graph");
        match node.id == input.id {
            true => places.extend([-1, 1].map(|by| {
                let side = if by < 0 { "before" } else { "after" };
                (format!("{} of the token {side} is multiplied", node.id), index, by, 0)
            })),
            false => places.push((format!("{} is multiplied in the place of {}", node.id, input.id), index, 0, 0)),
        }
        places.push((format!("{} of the step before is multiplied", node.id), index, 0, 1));
    }
    for (what, index, by, before) in places {
        let sums = sums.clone();
        all.push((
            what,
            Rc::new(move |row: &RowAt, _, a: &[f64], _: &[f64]| {
                let node = &scene.e.oracle.graph.nodes[index];
                let tensor = scene.tensor(row.step.checked_sub(before)?, node.id)?;
                let (tokens, _, width) = Layout::of(node).extents(&tensor.shape);
                let token = usize::try_from(scene.token(row).0 as i64 + by).ok().filter(|t| *t < tokens)?;
                Some(products(a, &sums.rounded(row, tensor.data.get(token * width..(token + 1) * width)?)))
            }),
        ));
    }
}

/// Heads of values in the delta net of a layer, and how long each is.
fn of_delta_net(graph: &Graph, node: &Node) -> Option<(usize, usize)> {
    let name = DeltaNet { heads: 1, key_heads: 1, dim: 1 }.name();
    let net = graph.nodes.iter().find(|n| n.id.layer == node.id.layer && n.op.name() == name)?;
    let width = |i: usize| Some(row_len(&graph.nodes[*net.inputs.get(i)?]));
    let heads = width(4)?;
    (heads > 0).then_some((heads, width(2)? / heads))
}

/// Inputs of other heads: as if these stood as a matrix that is transposed, such as groups by heads of a group.
fn of_heads((heads, d): (usize, usize), all: &mut Vec<Other<'_>>) {
    for rows in (2..heads).filter(|rows| heads.is_multiple_of(*rows)) {
        let index = Index::Turned { each: heads, rows };
        all.push((
            format!("the columns of each head are multiplied with the inputs of the {}", index.told("head", "h")),
            Rc::new(move |_: &RowAt, _, a: &[f64], b: &[f64]| {
                let from = |k: usize| Some(index.of(k / d, heads)? * d + k % d);
                (0..a.len()).map(|k| Some(a[k] * b.get(from(k)?)?)).collect()
            }),
        ));
    }
}

/// The input normed once more, by a norm of its width in the layer, or without weights.
fn normed<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    let (graph, node) = (&scene.e.oracle.graph, scene.node());
    let (id, n) = (graph.nodes[node.inputs[0]].id, scene.weights().extent(&node.weights[0].name).0);
    let norms =
        graph.nodes.iter().filter(|norm| norm.id.layer == node.id.layer).filter_map(|norm| match norm.op.anatomy() {
            Anatomy::RowReduction(RowReduction::MeanSquare(rms)) if rms.groups == 1 => Some((norm, rms)),
            _ => None,
        });
    let norms: Vec<_> = norms.filter(|(norm, _)| scene.e.oracle.weights.extent(&norm.weights[0].name).0 == n).collect();
    let plain = norms.first().map(|(_, rms)| (" without weights".to_owned(), vec![1.0; n], *rms));
    let own = norms.iter().map(|(norm, rms)| {
        let name = &norm.weights[0].name;
        (format!(" with {name}"), scene.vector(name, n), *rms)
    });
    let way = |(with, weights, rms): (String, Vec<f32>, &'a RmsNorm)| -> Other<'a> {
        let (sums, known) = (sums.clone(), RefCell::<HashMap<(usize, usize), Rc<Vec<f64>>>>::default());
        (
            format!("{id} is normed once more{with} before it is multiplied"),
            Rc::new(move |row: &RowAt, _, a: &[f64], _: &[f64]| {
                let (inputs, token) = (scene.operand(row.step, 0)?, scene.token(row).0);
                let own = inputs.data.get(token * n..(token + 1) * n)?;
                let make = || {
                    let mean = own.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n as f64;
                    let scale = (1.0 / (mean + rms.eps).sqrt()) as f32;
                    let x: Vec<f32> = own.iter().zip(&weights).map(|(v, w)| v * scale * w).collect();
                    Rc::new(sums.rounded(row, &x))
                };
                let x = known.borrow_mut().entry((row.step, token)).or_insert_with(make).clone();
                Some(products(a, &x))
            }),
        )
    };
    own.chain(plain).map(way).collect()
}

/// Weights of a matrix that are all read for one scale.
const MATRIX: usize = 1 << 24;

/// Whole numbers under one scale for a whole tensor, or for what meets one input.
fn of_tensor<'a>(scene: &'a Scene<'a>, all: &mut Vec<Other<'a>>) {
    let name = &scene.node().weights[0].name;
    let (n, m) = scene.weights().extent(name);
    let columns = Rc::new(OnceCell::<(Vec<f64>, f64)>::new());
    // The largest weight of each input, and of all.
    let largest = move || {
        let (mut largest, mut row) = (vec![0f64; n], vec![0f32; n]);
        scene.count(n * m);
        for output in 0..m {
            scene.weights().rows(name, output, &mut row);
            largest.iter_mut().zip(&row).for_each(|(l, w)| *l = l.max(f64::from(w.abs())));
        }
        let top = largest.iter().copied().fold(0f64, f64::max);
        (largest, top)
    };
    // The largest input of each step.
    let steps = Rc::new(RefCell::new(HashMap::<usize, f64>::new()));
    let whole = |v: f64, scale: f64| if scale > 0.0 { (v / scale).round() * scale } else { v };
    for (format, levels) in [("int8", 127.0), ("int4", 7.0)] {
        for by_input in [false, true].into_iter().filter(|_| n * m <= MATRIX) {
            let (columns, largest) = (columns.clone(), largest);
            let scale = if by_input { "input" } else { "tensor" };
            all.push((
                format!("weights are rounded to {format}, one scale for each {scale}, before they are multiplied"),
                Rc::new(move |_, _, a: &[f64], b: &[f64]| {
                    let (columns, top) = columns.get_or_init(largest);
                    let scale = |k: usize| if by_input { columns[k] } else { *top } / levels;
                    Some((0..a.len()).map(|k| whole(a[k], scale(k)) * b[k]).collect())
                }),
            ));
        }
        let steps = steps.clone();
        all.push((
            format!("inputs are rounded to {format}, one scale for all tokens of a part, before they are multiplied"),
            Rc::new(move |row: &RowAt, _, a: &[f64], b: &[f64]| {
                let inputs = scene.operand(row.step, 0)?;
                let largest = *steps.borrow_mut().entry(row.step).or_insert_with(|| {
                    scene.count(inputs.data.len());
                    f64::from(inputs.data.iter().fold(0f32, |m, v| m.max(v.abs())))
                });
                Some((0..a.len()).map(|k| a[k] * whole(b[k], largest / levels)).collect())
            }),
        ));
    }
}

/// Wrong elements that all terms of a sum must give together, before more is fitted.
const FEW: usize = 4;

/// The terms of an element's sum, made of its row, its number and its factors.
pub(super) type OfElement<'a> = dyn Fn(&RowAt, usize, &[f64], &[f64]) -> Option<Vec<f64>> + 'a;

/// Whether the terms give these elements.
pub(super) fn gives(scene: &Scene<'_>, sums: &Sums<'_>, few: &[At], terms: &OfElement<'_>) -> bool {
    let mut told = few.iter().filter_map(|&(r, i)| -> Option<bool> {
        let row = &scene.e.rows[r];
        let (a, b) = sums.factors(row, i)?;
        let made = terms(row, i, &a, &b)?;
        let (sum, size) = made.iter().fold((0.0, 0.0), |(sum, size), v| (sum + v, size + v.abs()));
        Some((scene.element((r, i)).0 - sum).abs() <= 1e-4 * size)
    });
    told.next().is_some_and(|first| first && told.all(|gives| gives))
}

/// Inputs, and wrong rows, that are looked at for two of them that are exchanged.
const INPUTS: usize = 8192;
const SHOWN: usize = 8;

/// Two inputs that meet each other's weights. The error of every output then goes with the difference of the two inputs from
/// token to token, which few pairs of inputs do.
fn exchanged<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    let e = scene.e;
    let rows: Vec<usize> = scene.rows.iter().copied().filter(|&r| e.rows[r].bad && scene.fitted(r, 0)).collect();
    let error = |r: usize, i: usize| {
        let (got, want, _) = e.row(&e.rows[r]);
        f64::from(got[i]) - want[i]
    };
    let Some(&first) = rows.first() else { return };
    // The output that shows it best.
    let outputs = 0..e.rows[first].range.len();
    let Some(output) = outputs.max_by(|a, b| error(first, *a).abs().total_cmp(&error(first, *b).abs())) else { return };
    let errors: Vec<(usize, f64)> = rows.iter().map(|&r| (r, error(r, output))).collect();
    let step = errors.len().div_ceil(SHOWN).max(1);
    let shown: Vec<(Rc<Vec<f64>>, f64)> =
        errors.iter().step_by(step).filter_map(|(r, e)| Some((sums.activations(&scene.e.rows[*r])?, *e))).collect();
    let inputs = shown.iter().map(|(x, _)| x.len()).min().unwrap_or(0);
    if shown.len() < 3 || inputs > INPUTS {
        return;
    }
    scene.count(inputs * inputs / 2 * 3);
    let ee: f64 = shown.iter().map(|(_, e)| e * e).sum();
    // The first two tokens tell most pairs; a direction is one up to its size and sign.
    let alike = |i: usize, j: usize| {
        let d = |t: usize| shown[t].0[i] - shown[t].0[j];
        let (a, b) = (d(0) * shown[1].1, d(1) * shown[0].1);
        if (a - b).abs() > 1e-2 * a.abs().max(b.abs()) {
            return false;
        }
        let (mut de, mut dd) = (0.0, 0.0);
        for (t, (_, e)) in shown.iter().enumerate() {
            (de, dd) = (de + d(t) * e, dd + d(t) * d(t));
        }
        dd > 0.0 && de * de >= (1.0 - 1e-6) * dd * ee
    };
    let pairs = (0..inputs).flat_map(|i| (i + 1..inputs).map(move |j| (i, j)));
    for (i, j) in pairs.filter(|(i, j)| alike(*i, *j)).take(4) {
        all.push((
            format!("the weights of the inputs {i} and {j} are exchanged"),
            Rc::new(move |_, _, a: &[f64], b: &[f64]| {
                let mut terms = products(a, b);
                (terms[i], terms[j]) = (a[j] * b[i], a[i] * b[j]);
                Some(terms)
            }),
        ));
    }
}

/// Rows of other weights that are as long, and rows of its own that others should have.
fn other_rows<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    let own = &scene.node().weights[0].name;
    let weights = scene.weights();
    let (n, m) = weights.extent(own);
    let first = scene.fit.iter().map(|&(r, i)| scene.token(&scene.e.rows[r]).1 + i).min().unwrap_or(0);
    let near = |node: &&Node| match (node.id.layer, scene.node().id.layer) {
        (Some(a), Some(b)) => a.abs_diff(b) <= 1,
        _ => true,
    };
    let linear = scene.e.oracle.graph.nodes.iter().filter(|n| n.op.anatomy().is_layer()).filter(near);
    for name in linear.map(|node| &node.weights[0].name).filter(|name| weights.extent(name).0 == n) {
        let rows = weights.extent(name).1;
        let mut starts = vec![(0i64, "the same number".to_owned())];
        if name == own {
            starts = vec![(-1, "the number one less".to_owned()), (1, "the number one more".to_owned())];
            starts.extend([
                (-(m as i64) / 2, "the number half the outputs less".to_owned()),
                (m as i64 / 2, "the number half the outputs more".to_owned()),
            ]);
            // Those of the tile beside.
            let tiles = (1..9).map(|bits| 1i64 << bits).filter(|by| 2 * by < m as i64);
            starts.extend(
                tiles.flat_map(|by| [(-by, format!("a number {by} less")), (by, format!("a number {by} more"))]),
            );
        } else if first > 0 {
            starts.push((-(first as i64), String::new()));
        }
        for (by, which) in starts {
            let what = match by {
                by if by == -(first as i64) && name != own && first > 0 => {
                    format!("from output {first} on, rows of {name} from its first on are multiplied")
                }
                _ => format!("the row of {name} of {which} is multiplied"),
            };
            let sums = sums.clone();
            all.push((
                what,
                Rc::new(move |row: &RowAt, i, _: &[f64], b: &[f64]| {
                    let at = usize::try_from(sums.row_of(row, i)? as i64 + by).ok().filter(|at| *at < rows)?;
                    let mut values = vec![0f32; n];
                    weights.rows(name, at, &mut values);
                    Some(values.iter().zip(b).map(|(w, x)| f64::from(*w) * x).collect())
                }),
            ));
        }
    }
}

/// Factors of other tokens, keys and heads.
fn of_attention<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    let Anatomy::Contraction(Contraction::Scores(attention) | Contraction::Context(attention)) =
        scene.node().op.anatomy()
    else {
        return;
    };
    let of_scores = matches!(scene.node().op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)));
    let side = |by: i64| if by < 0 { "before" } else { "after" };
    let (query, key) = if of_scores { ("the query", "the key") } else { ("the weights", "the value") };
    for by in [-1i64, 1] {
        let of_token = sums.clone();
        all.push((
            format!("{query} of the token {} in the part is taken", side(by)),
            Rc::new(move |row, i, _, b| Some(products(&of_token.left(row, i, scene.token(row).0 as i64 + by, 0)?, b))),
        ));
    }
    let what = if of_scores { "key" } else { "element of the values" };
    for (place, order) in orders(if of_scores { 128 } else { attention.head_dim }) {
        let sums = sums.clone();
        let what = format!("the {what} {place} is taken");
        all.push((what, Rc::new(move |row, i, a, _| Some(products(a, &sums.right(row, i, grouped, &*order)?)))));
    }
    let (h, g) = (attention.n_heads, attention.n_kv_heads);
    for by in 1..h.min(17) {
        let sums = sums.clone();
        let what = format!("{query} of the {} is taken, wrapping around", beside("head", by as i64));
        all.push((
            what,
            Rc::new(move |row, i, _, b| Some(products(&sums.left(row, i, scene.token(row).0 as i64, by)?, b))),
        ));
    }
    // As if heads stood group by group, or one of each group after the other.
    let orders = [
        (h / g, "as if one head of each group stood after the other"),
        (g, "as if heads were dealt out to the groups in turn"),
    ];
    for (rows, what) in orders {
        if rows < 2 || h / rows < 2 {
            continue;
        }
        let (sums, dim) = (sums.clone(), attention.head_dim);
        all.push((
            format!("{query} of another head is taken, {what}"),
            Rc::new(move |row: &RowAt, i, _, b| {
                let own = row.place.head.unwrap_or((scene.token(row).1 + i) / dim);
                let other = own % rows * (h / rows) + own / rows;
                Some(products(&sums.left(row, i, scene.token(row).0 as i64, (other + h - own) % h)?, b))
            }),
        ));
    }
    type Map = Box<dyn Fn(usize) -> usize>;
    // For a single head a rule only names the head that it takes.
    let mut maps: Vec<(String, Map)> = (0..g)
        .map(|fixed| -> (String, Map) { (format!("head {fixed} of the cache"), Box::new(move |_| fixed)) })
        .collect();
    maps.push((format!("head h mod {g} of the cache, for head h"), Box::new(move |head| head % g)));
    maps.extend((1..g).map(|by| -> (String, Map) {
        (
            match by {
                1 => "the next head of the cache (after the last head, from the first)".to_owned(),
                by => format!("the cache's head {by} after the right one, wrapping around"),
            },
            Box::new(move |head| (head / (h / g) + by) % g),
        )
    }));
    let mut rare: Vec<(String, Map)> = Vec::new();
    for map in HeadOf::rare(h, g) {
        let name = match &map {
            HeadOf::Down(bits) => format!("head h >> {bits} of the cache (the last at most)"),
            HeadOf::Over(number) => format!("head h / {number} of the cache (the last at most)"),
            HeadOf::OfFirst(m) => format!("the cache's head of the first of each {m} query heads"),
            other => other.to_string(),
        };
        let map: Map = Box::new(move |head| map.of(head, (h, g)));
        match rare.iter_mut().find(|(_, known)| (0..h).all(|head| known(head) == map(head))) {
            Some((all, _)) => *all += &format!(", or {name}"),
            None => rare.push((name, map)),
        }
    }
    maps.extend(rare.into_iter().map(|(name, map)| (format!("{name}, for head h"), map)));
    for (name, map) in maps {
        let sums = sums.clone();
        all.push((
            format!("{key} is read from {name}"),
            Rc::new(move |row, i, a, _| Some(products(a, &sums.right(row, i, |_, head| map(head), |at, _| at)?))),
        ));
    }
}
