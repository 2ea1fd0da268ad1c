//! Queries, keys and values in one buffer, read from another place of it.

use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::model::{Axis, Node, Role, StageId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// The three beside each other in a row of the buffer, as the layer makes them: their stages and columns.
struct Fused {
    parts: Vec<(StageId, Range<usize>)>,
    width: usize,
}

impl Fused {
    fn of(scene: &Scene<'_>) -> Option<Self> {
        let (own, nodes) = (scene.node(), &scene.e.oracle.graph.nodes);
        let mut width = 0;
        let mut part = |role: Role| {
            let same = |n: &&Node| n.role == role && n.id.layer == own.id.layer && n.op.name() == own.op.name();
            let node = nodes.iter().find(same)?;
            let (first, columns) = (width, columns(node)?);
            width += columns;
            Some((node.id, first..width))
        };
        let parts: Vec<_> = [Role::Query, Role::Key, Role::Value].into_iter().map_while(&mut part).collect();
        (parts.len() == 3 && parts.iter().any(|(id, _)| *id == own.id)).then_some(Self { parts, width })
    }

    fn own(&self, id: StageId) -> Option<&Range<usize>> {
        self.parts.iter().find(|(other, _)| *other == id).map(|(_, columns)| columns)
    }
}

/// Elements of a stage whose rows are vectors of tokens.
fn columns(node: &Node) -> Option<usize> {
    let Some((Axis::Tokens, rest)) = node.shape.split_first() else { return None };
    rest.iter().map(|axis| if let Axis::Fixed(n) = axis { Some(*n) } else { None }).product()
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(fused) = Fused::of(scene).map(Rc::new) else { return Vec::new() };
    let Some(own) = fused.own(scene.node().id).cloned() else { return Vec::new() };
    let widths: Vec<usize> = fused.parts.iter().map(|(_, columns)| columns.len()).collect();
    let strides: BTreeSet<usize> = widths.iter().copied().chain([widths[0] + widths[1], fused.width]).collect();
    let firsts: BTreeSet<usize> =
        [0, widths[0], widths[1], widths[0] + widths[1], 2 * widths[0], 2 * widths[1]].into_iter().collect();
    let mut all = Vec::new();
    for (stride, first) in strides.iter().flat_map(|s| firsts.iter().map(move |f| (*s, *f))) {
        let what = match (stride == fused.width, first == own.start) {
            (true, true) => continue,
            (false, true) => {
                format!("rows are read with a stride of {stride} elements instead of {}", fused.width)
            }
            (true, false) => format!("rows are read from element {first} on instead of {}", own.start),
            (false, false) => continue,
        };
        let fused = fused.clone();
        all.push(Law::new(
            format!("the buffer holds queries, keys and values side by side, and {what}"),
            1,
            move |row: &RowAt| read(scene, &fused, row, (stride, first)),
        ));
    }
    all
}

/// A row as it is read from `first` on with a stride.
fn read(scene: &Scene<'_>, fused: &Fused, row: &RowAt, (stride, first): (usize, usize)) -> Option<Row> {
    let (expected, bounds) = scene.e.expected[row.step].as_ref()?;
    let (token, from) = scene.token(row);
    let number = scene.number(row.step, token).0;
    let (mut value, mut bound) = (Vec::new(), Vec::new());
    for j in from..from + row.range.len() {
        let at = number * stride + first + j;
        let column = at % fused.width;
        let (id, columns) = fused.parts.iter().find(|(_, columns)| columns.contains(&column))?;
        let there = scene.numbered(row.step, at / fused.width).and_then(|token| {
            let index = token * columns.len() + column - columns.start;
            // Of its own stage the right values are known; of the others what the engine gave.
            match *id == scene.node().id {
                true => Some((expected.data[index], bounds[index])),
                false => Some((f64::from(*scene.tensor(row.step, *id)?.data.get(index)?), 0.0)),
            }
        });
        let (v, b) = there.unwrap_or((f64::NAN, 0.0));
        value.push(v);
        bound.push(b);
    }
    Some(Row { value, bound })
}
