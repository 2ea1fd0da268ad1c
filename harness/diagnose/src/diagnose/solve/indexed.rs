//! Factors of products read under another index: of another query, key or head by a rule of tiles, or of a tile that is
//! transposed when it is loaded.

use super::factors::{Other, products};
use super::index::Index;
use super::kept::BLOCK;
use super::maps::{TILES, transposed};
use super::scene::{Layout, Scene};
use super::terms::{Sums, grouped};
use crate::verdict::RowAt;
use qdiff_engine::model::{Axis, Node, WeightSource as _};
use qdiff_engine::ops::anatomy::Contraction;
use qdiff_engine::ops::{Anatomy, Attention};
use qdiff_engine::quant::ActivationFormat;
use std::rc::Rc;

/// Ways to make the terms of the stage's sums.
pub(super) fn ways<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    match scene.node().op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(_)) => of_weights(scene, sums),
        Anatomy::Contraction(Contraction::Scores(attention) | Contraction::Context(attention)) => {
            of_attention(scene, sums, attention)
        }
        Anatomy::Gather(_) | Anatomy::Contraction(Contraction::Rows(_)) => Vec::new(),
        Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => Vec::new(),
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => Vec::new(),
    }
}

/// Tiles of a weight transposed.
fn of_weights<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>) -> Vec<Other<'a>> {
    let outputs = scene.e.oracle.weights.extent(&scene.node().weights[0].name).1;
    let of = |tile: usize| -> Other<'a> {
        let sums = sums.clone();
        let terms = move |row: &RowAt, i: usize, a: &[f64], b: &[f64]| {
            let output = sums.row_of(row, i)?;
            let rows: Vec<Rc<Vec<f32>>> =
                (output / tile * tile..outputs.min(output / tile * tile + tile)).map(|r| sums.weight(r)).collect();
            let weight = |k: usize| {
                let (r, k) = transposed((output, k), tile, (outputs, a.len()));
                f64::from(rows[r % tile][k])
            };
            Some((0..a.len()).map(|k| weight(k) * b[k]).collect())
        };
        (format!("each tile of {tile} outputs by {tile} inputs of the weight is transposed"), Rc::new(terms))
    };
    TILES.map(of).into()
}

/// The scale of the block of q8_0 that a column of a cache's row is in: its largest value has the code 127.
fn scale_of(cache: &[f32], (row, column): (usize, usize), width: usize) -> f64 {
    let first = column / BLOCK * BLOCK;
    let block = cache.get(row * width + first..row * width + width.min(first + BLOCK)).unwrap_or_default();
    f64::from(block.iter().fold(0f32, |most, v| most.max(v.abs()))) / 127.0
}

fn of_attention<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, attention: &'a Attention) -> Vec<Other<'a>> {
    let of_scores = matches!(scene.node().op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)));
    let head = move |row: &RowAt, i: usize| match row.place.head {
        Some(head) => head,
        None => (scene.token(row).1 + i) / attention.head_dim,
    };
    let group = move |row: &RowAt, i: usize| grouped(attention, head(row, i));
    // In the cache: key, and element of the head.
    let cached = move |row: &RowAt, i: usize, (key, at): (usize, usize)| -> Option<f64> {
        let cache = scene.operand(row.step, 1)?;
        let index = (key * attention.n_kv_heads + group(row, i)) * attention.head_dim + at;
        cache.data.get(index).map(|v| f64::from(*v))
    };
    let keys =
        move |row: &RowAt| Some(scene.operand(row.step, 1)?.data.len() / (attention.n_kv_heads * attention.head_dim));
    let d = attention.head_dim;
    // The second factors when the cache is read in another place.
    let second = move |row: &RowAt, i: usize, n: usize, place: &dyn Fn((usize, usize)) -> (usize, usize)| {
        let own = |k: usize| if of_scores { (i, k) } else { (k, (scene.token(row).1 + i) % d) };
        let end = keys(row)?;
        let value = |k: usize| {
            let (key, at) = place(own(k));
            if key < end { cached(row, i, (key, at)) } else { Some(0.0) }
        };
        (0..n).map(value).collect::<Option<Vec<f64>>>()
    };
    let (query, key) = if of_scores { ("query", "key") } else { ("weights", "value") };
    let mut all: Vec<Other<'a>> = Vec::new();
    let last = [8, 16, 32, 64, 128].into_iter().flat_map(|tile| [Index::Whole(tile), Index::Ending(tile)]);
    for index in Index::tiled(usize::MAX).into_iter().chain(last) {
        let sums = sums.clone();
        all.push((
            format!("the {query} of the part's {} is taken", index.told("token", "t")),
            Rc::new(move |row: &RowAt, i, _: &[f64], b: &[f64]| {
                let (tokens, ..) = scene.layout().extents(scene.shape(row.step));
                Some(products(&sums.left(row, i, index.of(scene.token(row).0, tokens)? as i64, 0)?, b))
            }),
        ));
    }
    for index in Index::tiled(usize::MAX).into_iter().chain(Index::runs(512)).chain(Index::apart(512)) {
        all.push((
            format!("the {key} of the {} is taken", index.told("key", "k")),
            Rc::new(move |row: &RowAt, i, a: &[f64], _: &[f64]| {
                let n = keys(row)?;
                Some(products(a, &second(row, i, a.len(), &|(key, at)| (index.of(key, n).unwrap_or(key), at))?))
            }),
        ));
    }
    if scene.e.side.arithmetic.kv.of(!of_scores) == ActivationFormat::Q8_0 {
        let pages = [4, 8, 16, 32, 64, 128, 256].map(Index::First);
        for index in pages.into_iter().chain([Index::Is(0), Index::By(-1), Index::By(1)]) {
            let what = format!(
                "the codes of each {key} are multiplied with the scales that blocks have in the {}",
                index.told("key", "k")
            );
            let terms = move |row: &RowAt, i, a: &[f64], _: &[f64]| {
                let cache = scene.operand(row.step, 1)?;
                let own = second(row, i, a.len(), &|at| at)?;
                let n = keys(row)?;
                let factor = |k: usize| {
                    let (key, at) = if of_scores { (i, k) } else { (k, (scene.token(row).1 + i) % d) };
                    let scale = |key| scale_of(&cache.data, (key, group(row, i) * d + at), attention.n_kv_heads * d);
                    let (mine, other) = (scale(key), scale(index.of(key, n).unwrap_or(key)));
                    if mine == 0.0 { 1.0 } else { other / mine }
                };
                Some((0..a.len()).map(|k| a[k] * own[k] * factor(k)).collect())
            };
            all.push((what, Rc::new(terms)));
        }
    }
    for index in Index::digits(d).into_iter().filter(|_| of_scores) {
        all.push((
            format!("each element of the key is multiplied with the query's {}", index.told("element", "e")),
            Rc::new(move |_: &RowAt, _, a: &[f64], b: &[f64]| {
                let n = a.len();
                Some((0..n).map(|k| index.of(k, n).map_or(f64::NAN, |from| a[from]) * b[k]).collect())
            }),
        ));
    }
    for tile in TILES {
        // Behind the last key there are zeros, or each element has its own place.
        for zeros in [false, true] {
            let behind = if zeros { ", with zeros behind the last key" } else { "" };
            let what = format!("each tile of {tile} keys by {tile} elements of the cache is transposed{behind}");
            all.push((
                what,
                Rc::new(move |row: &RowAt, i, a: &[f64], _: &[f64]| {
                    let end = if zeros { usize::MAX } else { keys(row)? };
                    Some(products(a, &second(row, i, a.len(), &|at| transposed(at, tile, (end, d)))?))
                }),
            ));
        }
        let sums = sums.clone();
        let (what, columns) = match of_scores {
            true => (format!("each tile of {tile} queries by {tile} elements is transposed"), d),
            false => (format!("each tile of {tile} queries by {tile} keys of the weights is transposed"), usize::MAX),
        };
        all.push((
            what,
            Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
                let (tokens, ..) = scene.layout().extents(scene.shape(row.step));
                let token = scene.token(row).0;
                let first = token / tile * tile;
                let of = |t: usize| sums.left(row, i, t as i64, 0);
                let rows: Option<Vec<Vec<f64>>> = (first..tokens.min(first + tile)).map(of).collect();
                let rows = rows?;
                let factor = |k: usize| {
                    let (t, k) = transposed((token, k), tile, (tokens, columns.min(a.len())));
                    rows[t - first].get(k).copied()
                };
                let other: Option<Vec<f64>> = (0..a.len()).map(factor).collect();
                Some(products(&other?, b))
            }),
        ));
    }
    let (h, g) = (attention.n_heads, attention.n_kv_heads);
    if g > 1 && h > g {
        let sums = sums.clone();
        let what = format!("the {query} of head h mod {g} · {} + h/{g} is taken, for head h", h / g);
        all.push((
            what,
            Rc::new(move |row: &RowAt, i, _: &[f64], b: &[f64]| {
                let own = head(row, i);
                let other = own % g * (h / g) + own / g;
                Some(products(&sums.left(row, i, scene.token(row).0 as i64, (other + h - own) % h)?, b))
            }),
        ));
    }
    // Other buffers of the shape: of the layers beside it, not yet rotated, keys for values.
    let graph = &scene.e.oracle.graph;
    let near = |n: &&Node| match (n.id.layer, scene.node().id.layer) {
        (Some(a), Some(b)) => a.abs_diff(b) <= 1,
        _ => true,
    };
    let [first, cache] = [0, 1].map(|i| &graph.nodes[scene.node().inputs[i]]);
    let fixed = |n: &Node| -> usize {
        n.shape.iter().filter_map(|a| if let Axis::Fixed(n) = a { Some(*n) } else { None }).product()
    };
    let others = || graph.nodes.iter().filter(|n| n.id != scene.node().id && !scene.follows(n.id)).filter(near);
    for other in others().filter(|n| n.op.has_state() && n.id != cache.id && fixed(n) == fixed(cache)) {
        let id = other.id;
        all.push((
            format!("{id} is read in the place of {}", cache.id),
            Rc::new(move |row: &RowAt, i, a: &[f64], _: &[f64]| {
                let tensor = scene.tensor(row.step, id)?;
                let value = |k: usize| {
                    let (key, at) = if of_scores { (i, k) } else { (k, (scene.token(row).1 + i) % d) };
                    let index = (key * attention.n_kv_heads + group(row, i)) * d + at;
                    tensor.data.get(index).map(|v| f64::from(*v))
                };
                Some(products(a, &(0..a.len()).map(value).collect::<Option<Vec<f64>>>()?))
            }),
        ));
    }
    // Rows of the part itself, which are not taken from the cache.
    let fresh = |n: &&Node| n.token_axis() == Some(0) && !n.shape.contains(&Axis::Keys) && fixed(n) == fixed(cache);
    for other in others().filter(|n| n.id.layer == scene.node().id.layer).filter(fresh) {
        let (id, layout) = (other.id, Layout::of(other));
        let what = if of_scores { "keys" } else { "values" };
        all.push((
            format!("the {what} of the part itself are those of {id}, and only earlier ones those of {}", cache.id),
            Rc::new(move |row: &RowAt, i, a: &[f64], _: &[f64]| {
                let (tensor, first) = (scene.tensor(row.step, id)?, scene.e.side.capture.steps[row.step].first);
                let value = |k: usize| {
                    let (key, at) = if of_scores { (i, k) } else { (k, (scene.token(row).1 + i) % d) };
                    let Some(token) = key.checked_sub(first) else { return cached(row, i, (key, at)) };
                    let index = layout.at(&tensor.shape, token, group(row, i) * d + at);
                    tensor.data.get(index).filter(|_| token < tensor.shape[0]).map(|v| f64::from(*v))
                };
                Some(products(a, &(0..a.len()).map(value).collect::<Option<Vec<f64>>>()?))
            }),
        ));
    }
    let wide = |n: &&Node| match of_scores {
        true => n.token_axis() == Some(0) && !n.shape.contains(&Axis::Keys) && fixed(n) == fixed(first),
        false => n.op.name() == first.op.name(),
    };
    for other in others().filter(|n| n.id != first.id).filter(wide) {
        let (id, layout) = (other.id, Layout::of(other));
        all.push((
            format!("{id} is read in the place of {}", first.id),
            Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
                let tensor = scene.tensor(row.step, id)?;
                let run = if of_scores { d } else { *tensor.shape.last()? };
                let at = |k: usize| layout.at(&tensor.shape, scene.token(row).0, head(row, i) * run + k);
                let value = |k: usize| tensor.data.get(at(k)).map(|v| f64::from(*v));
                Some(products(&(0..a.len()).map(value).collect::<Option<Vec<f64>>>()?, b))
            }),
        ));
    }
    // What the buffer of queries, or of weights, held in the step before.
    all.push((
        format!(
            "the {query} of the step before {} taken: not written in this step",
            if of_scores { "is" } else { "are" }
        ),
        Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
            let before = scene.operand(row.step.checked_sub(1)?, 0)?;
            let index = match of_scores {
                true => scene.token(row).0 * h * d + head(row, i) * d,
                false => {
                    let now = scene.operand(row.step, 0)?;
                    (head(row, i) * now.shape[1] + scene.token(row).0) * now.shape[2]
                }
            };
            let left: Vec<f64> = before.data.get(index..index + a.len())?.iter().map(|v| f64::from(*v)).collect();
            Some(products(&left, b))
        }),
    ));
    all
}
