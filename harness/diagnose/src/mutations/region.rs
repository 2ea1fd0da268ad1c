//! A part of the output that alone is wrong: a head, a row, a column, a tile, the tail.

use super::{Explains, Mutation, Param, each};
use crate::verdict::{Evidence, RowAt, Wrong, of_heads};
use qdiff_engine::model::{Axis, Graph, Node, Role};
use std::collections::BTreeSet;

/// Whether a stage belongs to the feed-forward network.
fn of_experts(node: &Node) -> bool {
    matches!(node.role, Role::Router | Role::Gate | Role::Up | Role::FfnHidden | Role::FfnOutput)
}

/// A way to cut a stage's tensor into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parts {
    /// The first axis: heads of scores, tokens or cached rows of the rest.
    Outer,
    /// The second of three axes: heads of `[T, H, D]`, tokens of `[H, T, N]`.
    Middle,
    /// Runs of so many elements in each row: heads of `[T, H·D]`.
    Runs(usize),
    /// The last axis.
    Columns,
}

impl Parts {
    /// The heads of a stage, if it has any.
    pub(super) fn heads(node: &Node, graph: &Graph) -> Option<Self> {
        let d = graph.config.head_dim;
        match node.shape.as_slice() {
            [Axis::Fixed(_), ..] => Some(Self::Outer),
            // Of experts the second axis counts the chosen ones.
            [_, Axis::Fixed(_), Axis::Fixed(_)] => (!of_experts(node)).then_some(Self::Middle),
            [_, Axis::Fixed(width)] if width.is_multiple_of(d) && of_heads(node) => Some(Self::Runs(d)),
            _ => None,
        }
    }

    /// The tokens of a stage, or the rows of a cache.
    pub(super) fn rows(node: &Node) -> Self {
        match node.shape.first() {
            Some(Axis::Fixed(_)) => Self::Middle,
            _ => Self::Outer,
        }
    }

    /// How many parts a tensor of this shape has.
    pub(super) fn count(self, shape: &[usize]) -> usize {
        match self {
            Self::Outer => shape[0],
            Self::Middle => shape[1],
            Self::Runs(n) => shape[1..].iter().product::<usize>() / n,
            Self::Columns => shape[shape.len() - 1],
        }
    }

    /// How far the elements of a part lie from those of the next.
    fn stride(self, shape: &[usize]) -> usize {
        match self {
            Self::Outer => shape[1..].iter().product(),
            Self::Middle => shape[2..].iter().product(),
            Self::Runs(n) => n,
            Self::Columns => 1,
        }
    }

    /// The part of the element at a flat index.
    pub(super) fn part(self, shape: &[usize], at: usize) -> usize {
        at / self.stride(shape) % self.count(shape)
    }

    /// The flat index of the same element of another part.
    pub(super) fn moved(self, shape: &[usize], at: usize, part: usize) -> usize {
        at + part * self.stride(shape) - self.part(shape, at) * self.stride(shape)
    }
}

/// What is left in a region instead of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Zero,
    /// What the buffer held after the step before.
    Old,
    /// Anything: to a hypothesis the region is open, an injection fills it with noise of the row's size.
    Anything,
}

/// The node with something else in the part of its output whose elements `holds` finds, by the
/// tensor's shape, the position of each row, and the element's index.
fn spoil(
    node: &Node, left: Left, holds: impl Fn(&[usize], &[u32], usize) -> bool + Send + Sync + 'static,
) -> Option<Node> {
    Some(node.writing(move |out| {
        let n = out.value.data.len().max(1) as f64;
        let size = (out.value.data.iter().map(|v| v * v).sum::<f64>() / n).sqrt();
        for at in (0..out.value.data.len()).filter(|&at| holds(&out.value.shape, out.positions, at)) {
            out.value.data[at] = match left {
                Left::Zero => 0.0,
                Left::Old => out.before(at),
                Left::Anything => {
                    out.bound[at] = f32::INFINITY;
                    // Golden-ratio steps: no run of it is affine in the values.
                    size * (2.0 * ((at + 1) as f64 * 0.618_033_988_749_894_9).fract() - 1.0)
                }
            };
        }
    }))
}

/// One part of the output spoiled.
fn spoil_one(node: &Node, parts: Parts, i: usize) -> Option<Node> {
    spoil(node, Left::Anything, move |shape, _, at| parts.part(shape, at) == i)
}

/// The one value of `key` over all wrong elements.
fn only(wrong: &[Wrong], key: impl Fn(&Wrong) -> Option<usize>) -> Option<usize> {
    let (first, rest) = wrong.split_first()?;
    let one = key(first)?;
    rest.iter().all(|w| key(w) == Some(one)).then_some(one)
}

/// The one head that is wrong, counted by rows or along them: nearly all of it, in the rows that are wrong.
fn head(e: &Evidence<'_>) -> Option<usize> {
    let along = Parts::heads(e.node, &e.oracle.graph);
    let wrong = e.wrong();
    let head = only(&wrong, |w| match (e.rows[w.row].place.head, along) {
        (Some(head), _) => Some(head),
        (None, Some(Parts::Runs(d))) => Some(w.index / d),
        _ => None,
    })?;
    let long = |row: &RowAt| match along {
        Some(Parts::Runs(d)) => d,
        _ => row.range.len(),
    };
    (wrong.len() * 10 >= e.bad_rows().map(long).sum::<usize>() * 9).then_some(head)
}

const PLACE: &str = "only the wrong part is known; its values follow no known rule";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "tail-skipped",
        story: "the last columns are not written",
        seen: "the end of each row is zero or shows the step before; it is often the last tile that is not full",
        remedy: "count the blocks of the grid by the columns that one of them writes, rounded up, and guard the end of the row inside the kernel",
        params: &[
            Param::new("from", "first column that is not written", 240.0),
            Param::new("left", "0: zeros are there instead, 1: what the step before left", 0.0),
        ],
        apply: |node, values, _| {
            let left = if values[1] == 0.0 { Left::Zero } else { Left::Old };
            let from = values[0].max(0.0) as usize;
            // The rows of scores are as long as there are keys.
            let inside = match node.shape.last() {
                Some(Axis::Fixed(width)) => from < *width,
                _ => true,
            };
            if !inside || from == 0 {
                return None;
            }
            spoil(node, left, move |shape, _, at| Parts::Columns.part(shape, at) >= from)
        },
        // A rule for keys says which keys of scores are left out.
        propose: Some(|e| {
            let of_columns = matches!(e.node.shape.last(), Some(Axis::Fixed(_)));
            let from = e.wrong().iter().map(|w| w.index).min().filter(|_| of_columns);
            let from = from.into_iter().filter(|&from| from > 0);
            from.flat_map(|f| [vec![f as f64, 0.0], vec![f as f64, 1.0]]).collect()
        }),
        entire: true,
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "one-column-wrong",
        story: "one column alone is wrong",
        seen: PLACE,
        remedy: "look at how this column is computed and stored, unlike its neighbours: by which thread, from which row of a weight, to which address, and what else writes there",
        params: &[Param::new("column", "the column, from 0", 0.0)],
        explains: Explains::Place,
        apply: |node, values, _| spoil_one(node, Parts::Columns, values[0] as usize),
        propose: Some(|e| {
            // A row of one element has no other columns.
            let alone = e.node.shape.last() == Some(&Axis::Fixed(1));
            each(only(&e.wrong(), |w| Some(w.index)).filter(|_| !alone).map(|c| c as f64))
        }),
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "one-row-wrong",
        story: "one position alone is wrong",
        seen: PLACE,
        remedy: "compare this position with its neighbours: the block of the grid, the step, the layout, the address, and what else writes there",
        params: &[Param::new("position", "the position, from 0", 1.0)],
        explains: Explains::Place,
        apply: |node, values, _| {
            let position = values[0] as usize;
            // The rows of a cache are counted from 0 in every step.
            if node.shape.first() == Some(&Axis::Keys) {
                return spoil_one(node, Parts::Outer, position);
            }
            let rows = Parts::rows(node);
            spoil(node, Left::Anything, move |shape, positions, at| {
                positions.get(rows.part(shape, at)).is_some_and(|&p| p as usize == position)
            })
        },
        propose: Some(|e| {
            // If one position was judged, no position is alone.
            let position = only(&e.wrong(), |w| Some(e.rows[w.row].place.position));
            let alone = position.filter(|p| e.rows.iter().any(|row| row.place.position != *p));
            each(alone.map(|p| p as f64))
        }),
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "one-head-wrong",
        story: "one head alone is wrong",
        seen: PLACE,
        remedy: "look at what belongs to this head alone: its block of the grid, its offset, its KV head",
        params: &[Param::new("head", "the head, from 0", 0.0)],
        explains: Explains::Place,
        apply: |node, values, graph| {
            let parts = Parts::heads(node, graph)?;
            spoil_one(node, parts, values[0] as usize)
        },
        propose: Some(|e| {
            // Where there is one head, none is alone. What a window has for heads are its rows.
            let several = |head: &usize| e.rows.iter().any(|row| row.place.head != Some(*head));
            let alone = head(e).filter(several).filter(|_| !crate::verdict::is_window(e.node));
            each(alone.map(|head| head as f64))
        }),
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "one-tile-wrong",
        story: "one tile of the output alone is wrong",
        seen: PLACE,
        remedy: "look at what belongs to this block of the grid alone",
        params: &[
            Param::new("row", "its first position", 0.0),
            Param::new("rows", "its positions", 8.0),
            Param::new("column", "its first column", 32.0),
            Param::new("columns", "its columns", 32.0),
        ],
        explains: Explains::Place,
        apply: |node, v, _| {
            let range = |from: f64, n: f64| from as usize..(from + n) as usize;
            let (rows, columns) = (range(v[0], v[1]), range(v[2], v[3]));
            if !matches!(node.shape[..], [Axis::Tokens, Axis::Fixed(_)]) {
                return None;
            }
            spoil(node, Left::Anything, move |shape, positions, at| {
                let row = positions.get(Parts::Outer.part(shape, at));
                row.is_some_and(|&p| rows.contains(&(p as usize))) && columns.contains(&Parts::Columns.part(shape, at))
            })
        },
        propose: Some(|e| {
            let wrong = e.wrong();
            let position = |w: &Wrong| e.rows[w.row].place.position;
            let bounds = |key: &dyn Fn(&Wrong) -> usize| {
                let low = wrong.iter().map(key).min()?;
                Some((low, wrong.iter().map(key).max()? + 1))
            };
            let (Some(rows), Some(columns)) = (bounds(&position), bounds(&|w| w.index)) else {
                return Vec::new();
            };
            let (height, width) = (rows.1 - rows.0, columns.1 - columns.0);
            // A tile is full, and is a small part of the output in both directions.
            let full = wrong.len() == height * width;
            let row_len = e.rows.first().map_or(0, |r| r.range.len());
            let positions = e.rows.iter().map(|row| row.place.position).collect::<BTreeSet<_>>().len();
            let part = 2 * width <= row_len && 2 * height <= positions && width > 1 && height > 1;
            if full && part { vec![[rows.0, height, columns.0, width].map(|x| x as f64).to_vec()] } else { Vec::new() }
        }),
        ..Mutation::ANYWHERE
    },
];
