//! Indices computed wrongly: of a token, a key or a row of a weight, by a slip that a kernel's author makes, such as the
//! index within a tile in the place of the whole one, a tile read the other way round, or rows as far apart as those of
//! another buffer.

use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::{RowAt, right};
use qdiff_engine::model::Axis;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// An index in the place of another: in words after "the", of `one` such as "token", and the index of so many.
pub(super) type Map = (String, Rc<dyn Fn(usize, usize) -> usize>);

/// Maps of the indices of what is called `one`, `t` for short. Within a tile none leads beyond the end.
pub(super) fn maps(one: &str, t: &str) -> Vec<Map> {
    let mut all: Vec<Map> = Vec::new();
    for m in [2usize, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128] {
        all.push((format!("{one} {t} mod {m} for {one} {t}"), Rc::new(move |i, _| i % m)));
        all.push((format!("{one} {t}/{m} for {one} {t}"), Rc::new(move |i, _| i / m)));
        // Of pairs it is the one before, or after, of every second.
        if m > 2 {
            all.push((format!("first {one} of each {m}"), Rc::new(move |i, _| i / m * m)));
            all.push((format!("last {one} of each {m}"), Rc::new(move |i, n| (i / m * m + m - 1).min(n - 1))));
            all.push((
                format!("{one} at the other end of each {m}"),
                Rc::new(move |i, n| Some(i / m * m + m - 1 - i % m).filter(|o| *o < n).unwrap_or(i)),
            ));
            all.push((
                format!("{one} one further on, round the end of each {m}"),
                Rc::new(move |i, n| Some(i / m * m + (i % m + 1) % m).filter(|o| *o < n).unwrap_or(i)),
            ));
            all.push((
                format!("{one} one before, round the end of each {m}"),
                Rc::new(move |i, n| Some(i / m * m + (i % m + m - 1) % m).filter(|o| *o < n).unwrap_or(i)),
            ));
            all.push((
                format!("{one} {t} for {t} < {m}, and {one} {} from there on", m - 1),
                Rc::new(move |i, _| i.min(m - 1)),
            ));
        }
        if m > 1 && m.is_power_of_two() {
            all.push((format!("{one} {m} apart, in pairs"), Rc::new(move |i, n| if i ^ m < n { i ^ m } else { i })));
            for rows in [2usize, 4, 8].into_iter().filter(|rows| m > *rows && m / rows >= 2) {
                let columns = m / rows;
                let turned = move |i: usize, n: usize| {
                    let other = i / m * m + i % m % rows * columns + i % m / rows;
                    if other < n { other } else { i }
                };
                all.push((
                    format!("{one} of the transposed place in each {m}, read as {rows} by {columns}"),
                    Rc::new(turned),
                ));
            }
        }
    }
    all.push((format!("{one} 2{t} for {one} {t}, round the end"), Rc::new(|i, n| 2 * i % n)));
    all
}

/// Tiles on a side, the larger first: part of one looks like a smaller one.
pub(super) const TILES: [usize; 6] = [64, 32, 16, 8, 4, 2];

/// The place that a transposed tile of so many on a side has for `(row, column)`, where both are within; its own elsewhere.
pub(super) fn transposed(
    (row, column): (usize, usize), tile: usize, (rows, columns): (usize, usize),
) -> (usize, usize) {
    let other = (row / tile * tile + column % tile, column / tile * tile + row % tile);
    if other.0 < rows && other.1 < columns { other } else { (row, column) }
}

/// Distances of rows in buffers of the model, and by one or a few too far or near, other than the right one, and less than
/// two rows: with more, most of the rows that are read or written are none of the buffer's.
pub(super) fn strides(scene: &Scene<'_>, width: usize) -> BTreeSet<usize> {
    let nodes = scene.e.oracle.graph.nodes.iter();
    let fixed = |axis: &Axis| if let Axis::Fixed(n) = axis { Some(*n) } else { None };
    let mut all: BTreeSet<usize> = nodes.map(|n| n.shape.iter().filter_map(fixed).product()).collect();
    all.extend([1, 2, 4, 8, 16, 32].into_iter().flat_map(|by| [width + by, width.saturating_sub(by)]));
    all.extend([scene.e.oracle.graph.config.head_dim, width / 2, width.next_power_of_two()]);
    all.retain(|n| *n > 1 && *n != width && *n < 2 * width);
    all
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if scene.of_pairs() || scene.node().has_state() {
        return Vec::new();
    }
    let mut all = tokens(scene);
    all.extend(places(scene));
    all
}

/// The stage's right value in another place of the step: given token and element, and how many there are of each.
fn moved<'a>(
    scene: &'a Scene<'a>, what: String, place: impl Fn((usize, usize), (usize, usize)) -> Option<(usize, usize)> + 'a,
) -> Law<'a> {
    Law::new(what, 1, move |row: &RowAt| {
        let (value, bound) = scene.e.expected[row.step].as_ref()?;
        let (layout, (token, from)) = (scene.layout(), scene.token(row));
        let (tokens, _, width) = layout.extents(&value.shape);
        let of = |j: usize| place((token, j), (tokens, width)).map(|(t, j)| layout.at(&value.shape, t, j));
        let at = || (from..from + row.range.len()).map(of);
        Some(Row {
            value: at().map(|at| at.map_or(f64::NAN, |at| value.data[at])).collect(),
            bound: at().map(|at| at.map_or(0.0, |at| bound[at])).collect(),
        })
    })
}

/// Whole rows of other tokens: which is read off the wrong rows, and must be a rule.
fn tokens<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let e = scene.e;
    let mut known: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for &r in scene.rows.iter().filter(|&&r| e.rows[r].bad) {
        let row = &e.rows[r];
        let (Some((value, bounds)), (got, want, bound)) = (e.expected[row.step].as_ref(), e.row(row)) else { continue };
        let (layout, (token, from)) = (scene.layout(), scene.token(row));
        let tokens = layout.extents(&value.shape).0;
        let stands = |t: &usize| {
            (0..got.len()).filter(|&i| !right(got[i], want[i], bound[i])).all(|i| {
                let at = layout.at(&value.shape, *t, from + i);
                right(got[i], value.data[at], bounds[at])
            })
        };
        match (0..tokens).filter(|t| *t != token).find(stands) {
            Some(other) => known.insert((token, tokens), other),
            None => return Vec::new(),
        };
    }
    if known.len() < 2 {
        return Vec::new();
    }
    let fits = |(_, map): &Map| known.iter().all(|((t, n), other)| map(*t, *n) == *other);
    maps("token", "t")
        .into_iter()
        .filter(fits)
        .map(|(which, map)| {
            let what = format!("the row of the part's {which} stands there");
            moved(scene, what, move |(t, j), (tokens, _)| Some((map(t, tokens), j)).filter(|(t, _)| *t < tokens))
        })
        .collect()
}

/// Tiles transposed, and rows as far apart as another buffer's.
fn places<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let mut all: Vec<Law<'a>> = TILES
        .into_iter()
        .map(|tile| {
            let what = format!("each tile of {tile} tokens by {tile} columns is transposed");
            moved(scene, what, move |place, extents| Some(transposed(place, tile, extents)))
        })
        .collect();
    let width = scene.width().unwrap_or(0);
    for stride in strides(scene, width) {
        let what = format!("rows are read with a stride of {stride} elements instead of {width}");
        let read = move |(t, j), (tokens, width)| {
            let at: usize = t * stride + j;
            Some((at / width, at % width)).filter(|(t, _): &(usize, usize)| *t < tokens)
        };
        all.push(moved(scene, what, read));
        let what = format!("rows are written with a stride of {stride} elements instead of {width}");
        let written = move |(t, j): (usize, usize), (tokens, width): (usize, usize)| {
            let at = t * width + j;
            let last = (at / stride).min(tokens - 1);
            Some((last, at - last * stride)).filter(|(_, j)| *j < width)
        };
        all.push(moved(scene, what, written));
    }
    all
}
