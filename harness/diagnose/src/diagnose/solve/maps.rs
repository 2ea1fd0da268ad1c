//! Indices computed wrongly: of a token, a key or a row of a weight, by a slip that a kernel's author makes, such as the
//! index within a tile in the place of the whole one, a tile read the other way round, or rows as far apart as those of
//! another buffer.

use super::scene::Scene;
use qdiff_engine::model::Axis;
use std::collections::BTreeSet;
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
