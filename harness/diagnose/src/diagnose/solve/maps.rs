//! Places computed wrongly: tiles that are transposed, and rows as far apart as those of another buffer.

use super::scene::Scene;
use qdiff_engine::model::Axis;
use std::collections::BTreeSet;

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
