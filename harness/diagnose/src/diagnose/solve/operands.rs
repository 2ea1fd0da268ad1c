//! The right operation on a displaced operand: of another token, column, head or id, or of another stage.

use super::cut;
use super::fused::Split;
use super::held::EACH;
use super::index::{Index, Sources, beside};
use super::maps::{TILES, strides, transposed};
use super::scene::{Layout, Scene};
use super::terms::Sums;
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::model::{Axis, Node, StageId, WeightSource as _};
use qdiff_engine::ops::anatomy::{Activation, Contraction, Elementwise, Gather, RowReduction};
use qdiff_engine::ops::{self, Anatomy, Context, Tensor, UNIT};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A token and a column of it; or how many there are of each.
type Place = (usize, usize);

/// Where an operand is read instead: what that is called, and the place for its own.
struct Displaced {
    what: String,
    place: Box<dyn Fn(Place, Place) -> Option<Place>>,
    /// Another stage in its place.
    stage: Option<StageId>,
    /// Whether it is the value after the step before.
    before: bool,
}

impl Displaced {
    fn new(what: impl Into<String>, place: impl Fn(Place, Place) -> Option<Place> + 'static) -> Self {
        Self { what: what.into(), place: Box::new(place), stage: None, before: false }
    }

    fn token(what: impl Into<String>, token: impl Fn(i64, i64) -> i64 + 'static) -> Self {
        Self::new(what, move |(t, c), (tokens, _)| Some((usize::try_from(token(t as i64, tokens as i64)).ok()?, c)))
    }

    fn column(what: impl Into<String>, column: impl Fn(usize, usize) -> usize + 'static) -> Self {
        Self::new(what, move |(t, c), (_, columns)| Some((t, column(c, columns))))
    }
}

/// Runs of columns of which each begins nearer to the one before than it is long: their lengths, and how far apart.
fn overlapping(width: usize) -> impl Iterator<Item = (usize, usize)> {
    let runs = [8usize, 16, 32, 64, 128, 256].into_iter().filter(move |run| *run < width);
    runs.flat_map(|run| (0..8).map(move |b| (run, 1usize << b)).filter(|(run, apart)| apart < run))
}

/// Ways to read an operand of so many columns in the wrong place.
fn displacements(width: usize, head: usize) -> Vec<Displaced> {
    let tokens = [-1i64, 1, -2, 2, -3, 3, -4, 4];
    let shifted = |by: i64| Displaced::token(format!("the {} in the part", beside("token", by)), move |t, _| t + by);
    let mut all: Vec<Displaced> = tokens.map(shifted).into();
    all.push(Displaced::token("the part's first token", |_, _| 0));
    all.push(Displaced::token("the part's last token", |_, n| n - 1));
    all.push(Displaced::token("the neighbour in a pair of tokens", |t, _| t ^ 1));
    all.push(Displaced::token("the token at the other end of the part", |t, n| n - 1 - t));
    let mut by = 1;
    while by < width {
        all.push(Displaced::column(format!("the {}, wrapping around", beside("column", by as i64)), move |c, n| {
            (c + by) % n
        }));
        all.push(Displaced::column(format!("the {}, wrapping around", beside("column", -(by as i64))), move |c, n| {
            (c + n - by % n) % n
        }));
        let paired = move |c: usize, n: usize| if c ^ by < n { c ^ by } else { c };
        all.push(Displaced::column(format!("the column {by} apart, in pairs"), paired));
        by *= 2;
    }
    if head < width {
        all.push(Displaced::column("the first head", move |c, _| c % head));
        all.push(Displaced::column("the head before, wrapping around", move |c, n| (c + n - head) % n));
        all.push(Displaced::column("the head after, wrapping around", move |c, n| (c + head) % n));
    }
    all.push(Displaced::column("the columns in reverse order", |c, n| n - 1 - c));
    all.extend(overlapping(width).map(|(run, apart)| {
        let what = format!("the column as if runs of {run} began {apart} apart");
        Displaced::column(what, move |c, _| c / run * apart + c % run)
    }));
    all.extend(Index::tiled(usize::MAX).into_iter().map(|index| {
        let what = format!("the part's {}", index.told("token", "t"));
        Displaced::token(what, move |t, n| index.of(t as usize, n as usize).map_or(-1, |t| t as i64))
    }));
    all.extend(TILES.map(|tile| {
        let what = format!("the transposed place in each tile of {tile} tokens by {tile} columns");
        Displaced::new(what, move |place, extents| Some(transposed(place, tile, extents)))
    }));
    all
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    match scene.node().op.anatomy() {
        Anatomy::Gather(Gather::Rows) => embeddings(scene),
        Anatomy::Contraction(Contraction::Weight(None)) => products(scene),
        Anatomy::Elementwise(Elementwise::Rotation(_)) => Vec::new(),
        Anatomy::Elementwise(_) => elementwise(scene).into_iter().chain(weights(scene)).collect(),
        // A row of another token, of what is no attention: routers, sums of shares.
        Anatomy::RowReduction(RowReduction::Other) => elementwise(scene),
        Anatomy::State(_) | Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) => Vec::new(),
        Anatomy::Decision(_) | Anatomy::Collective(_) => Vec::new(),
    }
}

/// The vector of an operand in a token's place, displaced.
fn vector_of(scene: &Scene<'_>, id: StageId, row: &RowAt, d: &Displaced) -> Option<Vec<f32>> {
    let graph = &scene.e.oracle.graph;
    let id = d.stage.unwrap_or(id);
    let layout = Layout::of(&graph.nodes[graph.index(id)?]);
    let tensor = scene.tensor(row.step.checked_sub(usize::from(d.before))?, id)?;
    let (tokens, _, width) = layout.extents(&tensor.shape);
    let token = scene.token(row).0;
    scene.count(EACH * width);
    let value = |c: usize| {
        let (token, c) = (d.place)((token, c), (tokens, width)).filter(|(t, c)| *t < tokens && *c < width)?;
        Some(tensor.data[layout.at(&tensor.shape, token, c)])
    };
    (0..width).map(value).collect()
}

/// Operand `i`, and ways to read it: displaced, or of a stage that is as wide.
fn ways(scene: &Scene<'_>, i: usize) -> Option<(StageId, Vec<Displaced>)> {
    let graph = &scene.e.oracle.graph;
    let node = &graph.nodes[*scene.node().inputs.get(i)?];
    let fixed = |n: &Node| -> usize {
        n.shape.iter().filter_map(|a| if let Axis::Fixed(n) = a { Some(*n) } else { None }).product()
    };
    let mut all = displacements(fixed(node), graph.config.head_dim);
    let alike = graph.nodes.iter().filter(|other| {
        let near = match (other.id.layer, node.id.layer) {
            // The first layer fills a buffer that others should fill again.
            (Some(a), Some(b)) => a.abs_diff(b) <= 1 || a == 0,
            _ => true,
        };
        near && other.id != node.id
            && other.id != scene.node().id
            && !scene.follows(other.id)
            && other.shape == node.shape
    });
    let in_its_place =
        alike.map(|other| Displaced { stage: Some(other.id), ..Displaced::token(other.id.to_string(), |t, _| t) });
    all.extend(in_its_place);
    let left = Displaced { before: true, ..Displaced::token("the step before: not written in this step", |t, _| t) };
    all.push(left);
    all.push(Displaced { before: true, ..Displaced::token("the last token of the step before", |_, n| n - 1) });
    let width = fixed(node);
    all.extend(strides(scene, width).into_iter().map(|stride| {
        let what = format!("rows with a stride of {stride} elements instead of {width}");
        Displaced::new(what, move |(t, c), (_, width)| Some(((t * stride + c) / width, (t * stride + c) % width)))
    }));
    Some((node.id, all))
}

/// What is done with operand `id`, `done` being what is computed of it.
fn told(id: StageId, d: &Displaced, done: &str) -> String {
    match d.stage {
        Some(_) => format!("{} is {done} in the place of {id}", d.what),
        None => format!("the {done} values of {id} are those of {}", d.what),
    }
}

/// A column in the place of another: in words, of the column and a number, and that number.
type Column = (String, fn(usize, usize) -> usize, usize);

/// Columns of a vector that all tokens share which may be read in the place of another.
pub(super) fn columns(width: usize, head: usize) -> Vec<Column> {
    let mut all: Vec<Column> = Vec::new();
    let mut by = 1;
    while by < width {
        all.push((format!("of the {}, wrapping around,", beside("column", by as i64)), |c, by| c + by, by));
        all.push((
            format!("of the {}, wrapping around,", beside("column", -(by as i64))),
            |c, by| c.wrapping_sub(by),
            by,
        ));
        all.push((format!("of the column {by} apart, in pairs,"), |c, by| c ^ by, by));
        if by > 1 {
            let same = if by == head {
                "the head's column of the first head".to_owned()
            } else {
                format!("the column modulo {by}")
            };
            all.push((format!("of {same}"), |c, by| c % by, by));
            all.push((format!("of the first column of each {by}"), |c, by| c / by * by, by));
            all.push((format!("of the column divided by {by}"), |c, by| c / by, by));
        }
        by *= 2;
    }
    if !width.is_power_of_two() {
        all.push((format!("of the column and {} bit by bit", width - 1), |c, width| c & (width - 1), width));
    }
    for (of, run) in [("each head", head), ("the row", width)] {
        if run.is_multiple_of(2) && run <= width && (of == "each head" || head < width) {
            let interleaved = |c: usize, run: usize| c / run * run + c % run % 2 * (run / 2) + c % run / 2;
            let split = |c: usize, run: usize| c / run * run + c % run % (run / 2) * 2 + c % run / (run / 2);
            all.push((format!("with the halves of {of} interleaved"), interleaved, run));
            all.push((format!("with the even columns of {of} before its odd ones"), split, run));
        }
    }
    if head < width && !head.is_power_of_two() {
        all.push(("of the head's column of the first head".to_owned(), |c, head| c % head, head));
    }
    all
}

/// A place in a vector, of a token's number in its part and a column.
type FlatIndex = Rc<dyn Fn(usize, usize) -> usize>;

/// The vector of weights read in another column.
fn weights<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(weight) =
        scene.node().weights.first().filter(|_| scene.node().op.anatomy() == Anatomy::Elementwise(Elementwise::Offset))
    else {
        return Vec::new();
    };
    let (width, input) = (weight.extent[0], scene.e.oracle.graph.nodes[scene.node().inputs[0]].id);
    let vector = Rc::new(scene.vector(&weight.name, width));
    let own = Rc::new(Displaced::token("", |t, _| t));
    let law = |(which, place, by): Column| {
        let (vector, own) = (vector.clone(), own.clone());
        Law::new(format!("the bias {which} is added"), 1, move |row: &RowAt| {
            let (x, from) = (vector_of(scene, input, row, &own)?, scene.token(row).1);
            let at = |c: usize| f64::from(x[c]) + f64::from(vector[place(c, by) % vector.len()]);
            let value: Vec<f64> = (from..from + row.range.len()).map(at).collect();
            let bound = value.iter().map(|v| (2.0 * UNIT * v.abs()) as f32).collect();
            Some(Row { value, bound })
        })
    };
    let mut all: Vec<Law<'a>> = columns(width, scene.e.oracle.graph.config.head_dim).into_iter().map(law).collect();
    all.extend(in_line(scene, (&weight.name, width, input)));
    let fixed = |what: &str, at: fn(&Scene<'_>, &RowAt) -> usize| {
        let (vector, own) = (vector.clone(), own.clone());
        Law::new(what, 1, move |row: &RowAt| {
            let (x, from) = (vector_of(scene, input, row, &own)?, scene.token(row).1);
            let by = f64::from(vector[at(scene, row) % vector.len()]);
            let value: Vec<f64> = (from..from + row.range.len()).map(|c| f64::from(x[c]) + by).collect();
            let bound = value.iter().map(|v| (2.0 * UNIT * v.abs()) as f32).collect();
            Some(Row { value, bound })
        })
    };
    // By the element's number in the buffer of the part.
    let mut flat: Vec<(String, FlatIndex)> = Vec::new();
    if !width.is_power_of_two() {
        flat.push((format!("masked with {}", width - 1), Rc::new(move |t, c| (t * width + c) & (width - 1))));
    }
    for m in (1..16).map(|b| 1usize << b).filter(|m| *m < width && !width.is_multiple_of(*m)) {
        flat.push((format!("modulo {m}"), Rc::new(move |t, c| (t * width + c) % m)));
    }
    for m in [2, 4, 8] {
        flat.push((format!("divided by {m}"), Rc::new(move |t, c| (t * width + c) / m % width)));
    }
    flat.extend(strides(scene, width).into_iter().filter(|stride| !stride.is_multiple_of(width)).map(|stride| {
        let other: FlatIndex = Rc::new(move |t, c| (t * stride + c) % width);
        (format!("modulo {width}, rows being counted as {stride} elements"), other)
    }));
    for (how, index) in flat {
        let (vector, own) = (vector.clone(), own.clone());
        let what = format!("the bias is read at the element's number in the buffer of the part, {how}");
        all.push(Law::new(what, 1, move |row: &RowAt| {
            let (x, (token, from)) = (vector_of(scene, input, row, &own)?, scene.token(row));
            let number = scene.number(row.step, token).0;
            let at = |c: usize| f64::from(x[c]) + f64::from(vector[index(number, c) % vector.len()]);
            let value: Vec<f64> = (from..from + row.range.len()).map(at).collect();
            let bound = value.iter().map(|v| (2.0 * UNIT * v.abs()) as f32).collect();
            Some(Row { value, bound })
        }));
    }
    let what = "the bias is read by row in place of column: that of the token's number in the part is added";
    all.push(fixed(what, |scene, row| scene.token(row).0));
    let what = "the bias is read by row in place of column: that of the token's position is added";
    all.push(fixed(what, |_, row| row.place.position));
    for weight in scene.e.oracle.graph.weights().iter().filter(|w| w.extent.len() == 1 && w.name != weight.name) {
        let near = |name: &str| scene.node().id.layer.is_none_or(|l| name.starts_with(&format!("blk.{l}.")));
        let kin = weight.name.split_once('.').map(|(_, rest)| rest.split_once('.').map(|(_, rest)| rest));
        let own_kin =
            scene.node().weights[0].name.split_once('.').map(|(_, rest)| rest.split_once('.').map(|(_, r)| r));
        let long = weight.extent[0];
        if long < width || !(near(&weight.name) || kin == own_kin) {
            continue;
        }
        let (own, other) = (own.clone(), scene.vector(&weight.name, long));
        let what = format!("{} is added in the place of {}", weight.name, scene.node().weights[0].name);
        all.push(Law::new(what, 1, move |row: &RowAt| {
            let (x, from) = (vector_of(scene, input, row, &own)?, scene.token(row).1);
            let all = from..from + row.range.len();
            let value: Vec<f64> = all.map(|c| f64::from(x[c]) + f64::from(other[c])).collect();
            let bound = value.iter().map(|v| (2.0 * UNIT * v.abs()) as f32).collect();
            Some(Row { value, bound })
        }));
    }
    all
}

/// A sum or function of elements with one operand displaced.
fn elementwise<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let node = scene.node();
    let done = match node.op.anatomy() {
        Anatomy::Elementwise(Elementwise::Gated(_)) => "multiplied",
        Anatomy::Elementwise(Elementwise::Function(_)) => "taken",
        _ => "added",
    };
    let own = Rc::new(Displaced::token("", |t, _| t));
    let weight = node.weights.first().map(|w| Rc::new(scene.vector(&w.name, w.extent[0])));
    let mut all = normed(scene, done);
    for i in 0..node.inputs.len() {
        let Some((id, ways)) = ways(scene, i) else { continue };
        for d in ways {
            let (own, weight) = (own.clone(), weight.clone());
            all.push(Law::new(told(id, &d, done), 0, move |row: &RowAt| {
                let from = scene.token(row).1;
                let columns = from..from + row.range.len();
                let operand = |k: usize| -> Option<Tensor<f64>> {
                    let id = scene.e.oracle.graph.nodes[node.inputs[k]].id;
                    let all = vector_of(scene, id, row, if k == i { &d } else { &own })?;
                    let data = all.get(columns.clone())?.iter().map(|v| f64::from(*v)).collect();
                    Some(Tensor { shape: vec![1, columns.len()], data })
                };
                let operands: Vec<Tensor<f64>> = (0..node.inputs.len()).map(operand).collect::<Option<_>>()?;
                let value = match &weight {
                    Some(w) => {
                        operands[0].data.iter().zip(w.get(columns.clone())?).map(|(x, w)| x + f64::from(*w)).collect()
                    }
                    None => {
                        let (source, weights) = (&scene.e.oracle.weights, node.weights.as_slice());
                        let context = Context { tokens: &[], positions: &[], history: &[], source, weights };
                        ops::forward(&node.op, &operands.iter().collect::<Vec<_>>(), &context).data
                    }
                };
                // A function rounds several times; a sum once, to its own size; a row as it is with its own operand.
                let (_, want, own) = scene.e.row(row);
                let of_row = matches!(node.op.anatomy(), Anatomy::RowReduction(_));
                let reach = |(v, (w, b)): (&f64, (&f64, &f32))| {
                    let relative = if of_row && *w != 0.0 { f64::from(*b) / w.abs() } else { 0.0 };
                    (relative.max(2.0 * UNIT) * v.abs()) as f32
                };
                let bound = value.iter().zip(want.iter().zip(own)).map(reach).collect();
                Some(Row { value, bound })
            }));
        }
    }
    all.extend(read_off(scene, done));
    all
}

/// A sum with an operand divided by its root mean square: the norm that reads it wrote over it, before its weights.
fn normed<'a>(scene: &'a Scene<'a>, done: &str) -> Vec<Law<'a>> {
    let (node, nodes) = (scene.node(), &scene.e.oracle.graph.nodes);
    let [first, second] = node.inputs[..] else { return Vec::new() };
    if !matches!(node.op.anatomy(), Anatomy::Elementwise(Elementwise::Sum)) {
        return Vec::new();
    }
    let of = |(at, other): (usize, usize)| {
        let norms = nodes.iter().filter(move |norm| norm.inputs.first() == Some(&at));
        let (norm, rms) = norms.into_iter().find_map(|norm| match norm.op.anatomy() {
            Anatomy::RowReduction(RowReduction::MeanSquare(rms)) if rms.groups == 1 => Some((norm.id, rms)),
            _ => None,
        })?;
        let (id, other, own) = (nodes[at].id, nodes[other].id, Displaced::token("", |t, _| t));
        let what = format!(
            "{id} is {done} divided by the root mean square of its row, as {norm} has it before it is multiplied by its weights"
        );
        Some(Law::new(what, 0, move |row: &RowAt| {
            let (x, y) = (vector_of(scene, id, row, &own)?, vector_of(scene, other, row, &own)?);
            let mean = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / x.len() as f64;
            let (scale, from) = (1.0 / (mean + rms.eps).sqrt(), scene.token(row).1);
            let all = from..from + row.range.len();
            let sums = x.get(all.clone())?.iter().zip(y.get(all)?).map(|(x, y)| (f64::from(*x) * scale, f64::from(*y)));
            let (value, bound) = sums.map(|(x, y)| (x + y, (UNIT * (12.0 * x.abs() + 2.0 * y.abs())) as f32)).unzip();
            Some(Row { value, bound })
        }))
    };
    [(first, second), (second, first)].into_iter().filter_map(of).collect()
}

/// What operand `i` of an element was, given the others, and how far that may be off; nothing where it does not follow.
fn implied(scene: &Scene<'_>, (r, i): (usize, usize), of: usize) -> Option<(f64, f64)> {
    let row = &scene.e.rows[r];
    let got = scene.element((r, i)).0;
    let at = row.range.start + i;
    let other = |k: usize| Some(f64::from(*scene.operand(row.step, k)?.data.get(at)?));
    match scene.node().op.anatomy() {
        Anatomy::Elementwise(Elementwise::Sum) if scene.node().inputs.len() == 2 => {
            let other = other(1 - of)?;
            Some((got - other, 4.0 * UNIT * (got.abs() + other.abs())))
        }
        Anatomy::Elementwise(Elementwise::Gated(Activation::Silu)) if of == 1 => {
            let gate = other(0)?;
            let value = got / (gate / (1.0 + (-gate).exp()));
            value.is_finite().then_some((value, 32.0 * UNIT * value.abs()))
        }
        _ => None,
    }
}

/// Wrong elements that are looked at, and those of them that one place must give: of others there may be no such place.
const SHOWN: usize = 16;
const GIVEN: usize = 3;

/// An operand that is found in another place, of its own buffer or of one beside it: so many tokens and columns on.
fn read_off<'a>(scene: &'a Scene<'a>, done: &str) -> Vec<Law<'a>> {
    let (node, graph) = (scene.node(), &scene.e.oracle.graph);
    let shown = super::scene::evenly(scene.fit.clone(), SHOWN);
    let mut all = Vec::new();
    for of in 0..node.inputs.len() {
        let own = graph.nodes[node.inputs[of]].id;
        let values: Option<Vec<(f64, f64)>> = shown.iter().map(|&at| implied(scene, at, of)).collect();
        let (Some(values), Some(&(r, i))) = (values, shown.first()) else { continue };
        // The value at a place that many tokens and columns from an element's own.
        let there = move |row: &RowAt, i: usize, id: StageId, (tokens, columns): (i64, i64)| -> Option<f64> {
            let layout = Layout::of(&graph.nodes[graph.index(id)?]);
            let (tensor, (token, from)) = (scene.tensor(row.step, id)?, scene.token(row));
            let number = usize::try_from(scene.number(row.step, token).0 as i64 + tokens).ok()?;
            let (token, (all, _, width)) = (scene.numbered(row.step, number)?, layout.extents(&tensor.shape));
            let column = usize::try_from((from + i) as i64 + columns).ok()?;
            (token < all && column < width).then(|| f64::from(tensor.data[layout.at(&tensor.shape, token, column)]))
        };
        let near = |id: StageId| graph.index(id).is_some_and(|i| graph.nodes[i].id.layer == node.id.layer);
        let inputs = node.inputs.iter().map(|&i| graph.nodes[i].id);
        let stages: std::collections::BTreeSet<StageId> =
            inputs.chain(scene.alike().into_iter().filter(|id| near(*id))).collect();
        let (first, width) = (&scene.e.rows[r], scene.width().unwrap_or(0) as i64);
        let column = (scene.token(first).1 + i) as i64;
        for id in stages {
            for tokens in -2i64..=2 {
                scene.count(16 * width as usize);
                let gives = |by: &i64| {
                    let is = |at: &(usize, usize), (value, off): &(f64, f64)| {
                        there(&scene.e.rows[at.0], at.1, id, (tokens, *by)).map(|v| (v - value).abs() <= *off)
                    };
                    // Beyond the end of a buffer anything may stand.
                    let mut given = 0;
                    for (at, value) in shown.iter().zip(&values) {
                        match is(at, value) {
                            Some(false) => return false,
                            Some(true) => given += 1,
                            None => {}
                        }
                    }
                    given >= GIVEN
                };
                for by in (-column..width - column).filter(|by| (id, tokens, *by) != (own, 0, 0)).filter(gives).take(2)
                {
                    all.push(Law::new(told_place(own, id, (tokens, by), done), 2, move |row: &RowAt| {
                        let value = |i: usize| -> f64 {
                            let at = row.range.start + i;
                            let operand = |k: usize| Some(f64::from(*scene.operand(row.step, k)?.data.get(at)?));
                            let other = there(row, i, id, (tokens, by));
                            let made = match node.op.anatomy() {
                                Anatomy::Elementwise(Elementwise::Sum) => {
                                    operand(1 - of).zip(other).map(|(a, b)| a + b)
                                }
                                _ => operand(0).zip(other).map(|(g, u)| g / (1.0 + (-g).exp()) * u),
                            };
                            made.unwrap_or(f64::NAN)
                        };
                        let value: Vec<f64> = (0..row.range.len()).map(value).collect();
                        let bound = value.iter().map(|v| (8.0 * UNIT * v.abs()) as f32).collect();
                        Some(Row { value, bound })
                    }));
                }
            }
        }
    }
    all
}

/// Which operand is read where.
fn told_place(own: StageId, id: StageId, (tokens, columns): (i64, i64), done: &str) -> String {
    let mut place = Vec::new();
    if tokens != 0 {
        place.push(format!("the {} in the part", beside("token", tokens)));
    }
    if columns != 0 {
        place.push(format!("the {}", beside("column", columns)));
    }
    let of = if place.is_empty() { String::new() } else { format!(" of {}", place.join(" and ")) };
    format!("in the place of {own}, {id}{of} is {done}")
}

/// A linear layer on displaced activations.
fn products<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (Some(sums), Some((id, ways))) = (Sums::new(scene).map(Rc::new), ways(scene, 0)) else {
        return Vec::new();
    };
    let product = |what: String, x: Activations<'a>| {
        let sums = sums.clone();
        Law::new(what, 0, move |row: &RowAt| {
            let x = sums.rounded(row, &x(row)?);
            let (_, _, bound) = scene.e.row(row);
            let from = scene.token(row).1;
            let looked_at = (0..row.range.len()).filter(|i| sums.looks_at(from + i)).count();
            scene.count(looked_at * x.len());
            let value = |i: usize| match sums.looks_at(from + i) {
                true => sums.weight(from + i).iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum(),
                false => f64::NAN,
            };
            // A sum of as many terms of the same weights: as uncertain as the right one.
            Some(Row { value: (0..row.range.len()).map(value).collect(), bound: bound.to_vec() })
        })
    };
    let displaced =
        |d: Displaced| product(told(id, &d, "multiplied"), Box::new(move |row| vector_of(scene, id, row, &d)));
    let mut all: Vec<Law<'a>> = ways.into_iter().map(displaced).collect();
    for (each, how) in [(scene.e.oracle.graph.config.head_dim, "head by head"), (1, "column by column")] {
        let what =
            format!("{id} stands in memory {how}, and is read token by token: each row is made of several tokens");
        all.push(product(what, Box::new(move |row| turned(scene, row, each))));
    }
    all
}

/// What a row is multiplied with.
type Activations<'a> = Box<dyn Fn(&RowAt) -> Option<Vec<f32>> + 'a>;

/// A row of the first operand `[T, n]` of a pass as if that stood as `[n / each, T, each]`.
fn turned(scene: &Scene<'_>, row: &RowAt, each: usize) -> Option<Vec<f32>> {
    let tensor = scene.operand(row.step, 0)?;
    let &[rows, n] = tensor.shape.as_slice() else { return None };
    // Some of the rows alone do not tell.
    let whole = scene.e.side.capture.steps[row.step].kept.is_none() && each > 0 && n.is_multiple_of(each);
    let from = scene.token(row).0 * n;
    let at = |at: usize| tensor.data[at / each % rows * n + at / (rows * each) * each + at % each];
    whole.then(|| (from..from + n).map(at).collect())
}

/// Biases of queries, keys and values as one vector, of which a part is taken that begins elsewhere.
fn in_line<'a>(scene: &'a Scene<'a>, (own, width, input): (&str, usize, StageId)) -> Vec<Law<'a>> {
    let Some(layer) = scene.node().id.layer else { return Vec::new() };
    let names = ["q", "k", "v"].map(|of| format!("blk.{layer}.attn_{of}.bias"));
    let vectors: Option<Vec<_>> = names.iter().map(|name| scene.shared_vector(name)).collect();
    let Some((vectors, place)) = vectors.zip(names.iter().position(|name| name == own)) else { return Vec::new() };
    let begins: usize = vectors[..place].iter().map(|vector| vector.len()).sum();
    let line: Rc<Vec<f32>> = Rc::new(vectors.iter().flat_map(|vector| vector.iter().copied()).collect());
    let d = scene.e.oracle.graph.config.head_dim as i64;
    let by = [1, d, width as i64, 2 * d, d / 2, 32, 16, 8].into_iter().flat_map(|by| [-by, by]);
    let known = Rc::new(Displaced::token("", |t, _| t));
    let widths = [0, 1, 2].map(|part| vectors[part].len());
    let head = d as usize;
    let in_groups =
        widths.iter().all(|w| *w > 0 && w.is_multiple_of(head)) && (widths[0] / head).is_multiple_of(widths[1] / head);
    let split = |split: Split| {
        let before = [0, widths[0], widths[0] + widths[1]];
        let source = move |c: usize| {
            let (part, column) = split.source((place, c), widths, head);
            before[part] + column
        };
        let (line, known) = (line.clone(), known.clone());
        let told = split
            .told()
            .replacen("a row of", "of the biases, a row of", 1)
            .replacen("a row that", "of the biases, a row that", 1);
        let moves = (0..width).any(|c| source(c) != begins + c);
        moves.then(|| {
            Law::new(told, 1, move |row: &RowAt| {
                let (x, from) = (vector_of(scene, input, row, &known)?, scene.token(row).1);
                let at = |c: usize| f64::from(x[c]) + f64::from(line[source(c)]);
                let value: Vec<f64> = (from..from + row.range.len()).map(at).collect();
                let bound = value.iter().map(|v| (2.0 * UNIT * v.abs()) as f32).collect();
                Some(Row { value, bound })
            })
        })
    };
    let splits: Vec<Law<'a>> = Split::ALL.into_iter().filter(|_| in_groups).filter_map(split).collect();
    let law = |by: i64| {
        let first = usize::try_from(begins as i64 + by).ok().filter(|first| first + width <= line.len())?;
        let (line, known) = (line.clone(), known.clone());
        let side = if by < 0 { "before" } else { "after" };
        // A whole other bias may as well be taken by its name.
        let mut ends = vectors.iter().scan(0, |end, vector| {
            *end += vector.len();
            Some((*end - vector.len(), vector.len()))
        });
        let what = match ends.position(|place| place == (first, width)) {
            Some(other) => format!("{} is added in the place of {own}", names[other]),
            None => format!(
                "the biases of queries, keys and values stand in one line, and are read {} {side} their place",
                by.abs()
            ),
        };
        Some(Law::new(what, 1, move |row: &RowAt| {
            let (x, from) = (vector_of(scene, input, row, &known)?, scene.token(row).1);
            let at = |c: usize| f64::from(x[c]) + f64::from(line[first + c]);
            let value: Vec<f64> = (from..from + row.range.len()).map(at).collect();
            let bound = value.iter().map(|v| (2.0 * UNIT * v.abs()) as f32).collect();
            Some(Row { value, bound })
        }))
    };
    splits.into_iter().chain(by.filter_map(law)).collect()
}

/// Bits of a number beyond the first so many.
fn bits_beyond(id: usize, bits: u32) -> u32 {
    (usize::BITS - id.leading_zeros()).saturating_sub(bits)
}

/// The embedding of another id.
fn embeddings<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(weight) = scene.node().weights.first() else { return Vec::new() };
    let (n, rows) = scene.e.oracle.weights.extent(&weight.name);
    type Other = Box<dyn Fn(usize) -> usize>;
    let mut others: Vec<(String, Other)> = vec![
        ("the id one less".to_owned(), Box::new(|id| id.wrapping_sub(1))),
        ("the id one more".to_owned(), Box::new(|id| id + 1)),
        ("id 0".to_owned(), Box::new(|_| 0)),
        ("the id without its lowest bit".to_owned(), Box::new(|id| id & !1)),
        ("the id with its lowest bit set".to_owned(), Box::new(|id| id | 1)),
        ("half the id".to_owned(), Box::new(|id| id / 2)),
        ("twice the id".to_owned(), Box::new(|id| id * 2)),
        (
            "the id rounded to half precision (11 bits)".to_owned(),
            Box::new(|id| half::f16::from_f32(id as f32).to_f32() as usize),
        ),
        (
            "the id rounded to bf16 (8 bits)".to_owned(),
            Box::new(|id| half::bf16::from_f32(id as f32).to_f32() as usize),
        ),
        ("the id cut off to 11 bits".to_owned(), Box::new(|id| id >> bits_beyond(id, 11) << bits_beyond(id, 11))),
        ("the id cut off to 8 bits".to_owned(), Box::new(|id| id >> bits_beyond(id, 8) << bits_beyond(id, 8))),
    ];
    for bit in (0..20).map(|bit| 1usize << bit).filter(|bit| *bit < rows) {
        others.push((format!("the id whose bit of {bit} is the other one"), Box::new(move |id| id ^ bit)));
    }
    // In such a small table every id is its own.
    for m in (3..20).map(|bits| 1usize << bits).filter(|m| *m < rows) {
        others.push((format!("the id modulo {m}"), Box::new(move |id| id % m)));
        others.push((format!("the id rounded down to a multiple of {m}"), Box::new(move |id| id / m * m)));
        others.push((format!("the id, at most {}", m - 1), Box::new(move |id| id.min(m - 1))));
    }
    let law = |(what, other): (String, Other)| {
        Law::new(format!("the embedding of {what} is there instead"), 0, move |row: &RowAt| {
            let step = &scene.e.side.capture.steps[row.step];
            let id = *step.tokens.get(row.place.position.checked_sub(step.first)?)? as usize;
            let other = Some(other(id)).filter(|id| *id < rows)?;
            let mut values = vec![0f32; n];
            scene.weights().rows(&weight.name, other, &mut values);
            Some(Scene::exact(values.into_iter().map(f64::from).collect()))
        })
    };
    let mut all = by_place(scene, &weight.name, n);
    all.extend(others.into_iter().map(law));
    all
}

/// Embeddings of other ids that no rule gives.
pub(super) fn ids<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (Anatomy::Gather(Gather::Rows), Some(weight)) = (scene.node().op.anatomy(), scene.node().weights.first())
    else {
        return Vec::new();
    };
    let extent = scene.e.oracle.weights.extent(&weight.name);
    let strides = apart(scene, &weight.name, extent);
    strides
        .into_iter()
        .chain(unmasked(scene, &weight.name, extent))
        .chain(mean_of_rows(scene, &weight.name, extent))
        .chain(found(scene, &weight.name, extent))
        .collect()
}

/// A table cut over ranks, each of which looks up the ids of the others too, at a row that it has, and the rows are added.
fn unmasked<'a>(scene: &'a Scene<'a>, table: &'a str, (n, rows): (usize, usize)) -> Vec<Law<'a>> {
    type Stand = fn(usize, usize, usize) -> usize;
    // The row of a rank's shard for an id that it has not, of the id, the shard's first one and its length.
    let stands: [(&str, Stand); 3] = [
        ("its first row", |_, _, _| 0),
        ("the nearest of its rows", |id, first, len| if id < first { 0 } else { len - 1 }),
        ("the row with the id's rest by its number of rows", |id, _, len| id % len),
    ];
    let law = |((ranks, shard), (what, stand)): ((usize, usize), (&str, Stand))| {
        let what = format!(
            "the table is cut over {ranks} ranks, and those that do not have the token's row add {what}: ids of other ranks are not masked"
        );
        Law::new(what, 1, move |row: &RowAt| {
            let step = &scene.e.side.capture.steps[row.step];
            let id = *step.tokens.get(row.place.position.checked_sub(step.first)?)? as usize;
            let (mut sums, mut sizes, mut values) = (vec![0f64; n], vec![0f64; n], vec![0f32; n]);
            for first in (0..ranks).map(|rank| rank * shard).take_while(|first| *first < rows) {
                // The last one has the rest.
                let len = if first == (ranks - 1) * shard { rows - first } else { shard.min(rows - first) };
                let local = if (first..first + len).contains(&id) { id - first } else { stand(id, first, len) };
                scene.weights().rows(table, first + local, &mut values);
                for ((sum, size), v) in sums.iter_mut().zip(&mut sizes).zip(&values) {
                    (*sum, *size) = (*sum + f64::from(*v), *size + f64::from(v.abs()));
                }
            }
            let bound = sizes.iter().map(|size| (ranks as f64 * UNIT * size) as f32).collect();
            (row.range.len() == n).then_some(Row { value: sums, bound })
        })
    };
    let mut cuts: Vec<(usize, usize)> = [2, 4, 8]
        .into_iter()
        .flat_map(|n| [(n, rows.div_ceil(n)), (n, rows / n)])
        .filter(|(_, len)| *len > 0)
        .collect();
    cuts.dedup();
    cuts.into_iter().flat_map(|cut| stands.map(|stand| (cut, stand))).map(law).collect()
}

/// Embeddings of tokens at other places of the sequence.
fn by_place<'a>(scene: &'a Scene<'a>, table: &'a str, n: usize) -> Vec<Law<'a>> {
    let steps = &scene.e.side.capture.steps;
    if steps.iter().any(|step| step.run != steps[0].run) {
        return Vec::new();
    }
    let sequence: Rc<BTreeMap<usize, u32>> =
        Rc::new(steps.iter().flat_map(|step| (step.first..).zip(step.tokens.iter().copied())).collect());
    let (prompt, first) = (scene.prompt(), scene.first_of_part());
    let again = first.clone();
    type Place = Box<dyn Fn(usize) -> Option<usize>>;
    let places: [(&str, Place); 5] = [
        ("the token before in the sequence", Box::new(|p| p.checked_sub(1))),
        ("the token after in the sequence", Box::new(|p| Some(p + 1))),
        (
            "the prompt's token with the number that the row has in its part: each part begins at the prompt's beginning",
            Box::new(move |p| Some(p - first(p))),
        ),
        ("the first token of the part", Box::new(move |p| Some(again(p)))),
        ("the prompt's last token", Box::new(move |_| prompt.checked_sub(1))),
    ];
    let law = |(what, place): (&str, Place)| {
        let sequence = sequence.clone();
        Law::new(format!("the embedding of {what} is there instead"), 0, move |row: &RowAt| {
            let id = *sequence.get(&place(row.place.position)?)?;
            let mut values = vec![0f32; n];
            scene.weights().rows(table, id as usize, &mut values);
            Some(Scene::exact(values.into_iter().map(f64::from).collect()))
        })
    };
    places.into_iter().map(law).collect()
}

/// Rows of a table that begin so many elements apart as another width says.
fn apart<'a>(scene: &'a Scene<'a>, table: &'a str, (n, rows): (usize, usize)) -> Vec<Law<'a>> {
    let round = [16usize, 32, 64, 128, 256, 512, 1024];
    let mut strides: Vec<usize> = round.into_iter().flat_map(|m| [n / m * m, n.next_multiple_of(m), n + m]).collect();
    strides.extend([n + 1, n - 1, n + 4, n + 8, n.next_power_of_two(), n.next_power_of_two() / 2]);
    strides.sort_unstable();
    strides.dedup();
    strides.retain(|stride| *stride > 0 && *stride != n);
    let law = |stride: usize| {
        let what = format!("rows of the table are read as if they began {stride} elements apart, not {n}");
        Law::new(what, 1, move |row: &RowAt| {
            let step = &scene.e.side.capture.steps[row.step];
            let id = *step.tokens.get(row.place.position.checked_sub(step.first)?)? as usize;
            let (first, mut all) = (id * stride, Vec::with_capacity(2 * n));
            for at in [first / n, first / n + 1] {
                let mut values = vec![0f32; n];
                if at < rows {
                    scene.weights().rows(table, at, &mut values);
                } else {
                    values.fill(f32::NAN);
                }
                all.extend(values.into_iter().map(f64::from));
            }
            (row.range.len() == n).then(|| Scene::exact(all[first % n..][..n].to_vec()))
        })
    };
    strides.into_iter().map(law).collect()
}

/// Elements of a row by which the mean of the first rows of a table is recognised, and how near it is.
const SAMPLED: usize = 8;
const NEAR: f64 = 1e-5;

/// The mean of the first rows of the table in the place of others, as loaders fill in the rows of tokens that were added.
fn mean_of_rows<'a>(scene: &'a Scene<'a>, table: &'a str, (n, rows): (usize, usize)) -> Option<Law<'a>> {
    let first = scene.e.bad_rows().find(|row| row.range.len() == n)?;
    let (got, ..) = scene.e.row(first);
    let largest = got.iter().fold(0f64, |most, v| most.max(f64::from(v.abs())));
    scene.count(2 * n * rows);
    let (mut sums, mut values) = (vec![0f64; n], vec![0f32; n]);
    let mut found = None;
    for count in 1..=rows {
        scene.weights().rows(table, count - 1, &mut values);
        sums.iter_mut().zip(&values).for_each(|(sum, v)| *sum += f64::from(*v));
        let off = |i: usize| (sums[i] / count as f64 - f64::from(got[i])).abs() > NEAR * largest;
        if count > 1 && !(0..SAMPLED.min(n)).any(off) && !(0..n).any(off) {
            found = Some((count, sums.iter().map(|sum| sum / count as f64).collect::<Vec<f64>>()));
            break;
        }
    }
    let (count, mean) = found?;
    Some(Law::new(format!("the mean of the table's first {count} rows is there instead"), 1, move |row: &RowAt| {
        // A sum of so many in f32.
        let reach = |v: &f64| (UNIT * (16.0 * v.abs() + largest * (count as f64).sqrt())) as f32;
        (row.range.len() == n).then(|| Row { value: mean.clone(), bound: mean.iter().map(reach).collect() })
    }))
}

/// Embeddings of other ids, without a rule: each is looked up in the table.
fn found<'a>(scene: &'a Scene<'a>, table: &'a str, (n, rows): (usize, usize)) -> Vec<Law<'a>> {
    let id = move |row: &RowAt| -> Option<usize> {
        let step = &scene.e.side.capture.steps[row.step];
        Some(*step.tokens.get(row.place.position.checked_sub(step.first)?)? as usize)
    };
    let bad = || scene.e.bad_rows().filter(|row| row.range.len() == n);
    let mut values = vec![0f32; n];
    let mut other: BTreeMap<usize, usize> = BTreeMap::new();
    scene.count(2 * n * rows);
    for candidate in 0..rows {
        scene.weights().rows(table, candidate, &mut values);
        for row in bad() {
            if scene.e.row(row).0 == values {
                let Some(own) = id(row) else { return Vec::new() };
                other.entry(own).or_insert(candidate);
            }
        }
    }
    // All of one id, below the ids that it replaces: a limit.
    let limit = other.values().next().copied().filter(|one| other.iter().all(|(own, o)| o == one && own > one));
    if let Some(limit) = limit.filter(|_| other.len() > 1) {
        return vec![Law::new(
            format!("the embedding of the id, at most {limit}, is there instead"),
            1,
            move |row: &RowAt| {
                let mut values = vec![0f32; n];
                scene.weights().rows(table, id(row)?.min(limit), &mut values);
                Some(Scene::exact(values.into_iter().map(f64::from).collect()))
            },
        )];
    }
    let zeros: BTreeSet<usize> =
        bad().filter(|row| scene.e.row(row).0.iter().all(|v| *v == 0.0)).filter_map(id).collect();
    let is_empty = !zeros.is_empty();
    let mut moved = other.clone();
    moved.retain(|own, _| !zeros.contains(own));
    let cut = cut::laws(scene, (&moved, &zeros));
    if !cut.is_empty() {
        return cut;
    }
    let beyond = if is_empty { ", and zeros where the table has none" } else { "" };
    let sources: Sources = other.iter().map(|(own, other)| ((*own, rows), vec![*other])).collect();
    let by =
        Index::giving(&sources).into_iter().find(|index| matches!(index, Index::By(_))).filter(|_| other.len() > 2);
    if let Some(index) = by {
        return vec![Law::new(
            format!("the embedding of the {} is there instead{beyond}", index.told("id", "i")),
            1,
            move |row| {
                let mut values = vec![0f32; n];
                // What is behind the table may be zeros.
                match index.of(id(row)?, rows) {
                    Some(other) => scene.weights().rows(table, other, &mut values),
                    None if beyond.is_empty() => return None,
                    None => {}
                }
                Some(Scene::exact(values.into_iter().map(f64::from).collect()))
            },
        )];
    }
    // In a batch it may be the row of another sequence's token.
    let alone = scene.e.side.capture.steps.iter().all(|step| step.in_pass.is_none());
    let one = (!other.is_empty() && alone).then(|| {
        let what = "the embedding of another id is there instead, and no rule is known for which";
        let law = Law::new(what, 1, move |row: &RowAt| {
            let own = id(row)?;
            let mut values = vec![0f32; n];
            match other.get(&own) {
                Some(other) => scene.weights().rows(table, *other, &mut values),
                // Another one would give something else.
                None => values.fill(f32::NAN),
            }
            Some(Scene::exact(values.into_iter().map(f64::from).collect()))
        });
        Law { of_even: Some(usize::MAX), ..law }
    });
    one.into_iter().collect()
}
