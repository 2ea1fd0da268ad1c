//! Queries, keys and values in one buffer, or gate and up, read from another place of it.

use super::scene::Scene;
use super::{Law, Row};
use crate::verdict::{RowAt, assembled, work_of};
use qdiff_engine::model::{Axis, Node, Role, StageId};
use qdiff_engine::ops::{self, Context, Tensor};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

/// The three beside each other in a row of the buffer, as the layer makes them: their stages and columns.
struct Fused {
    parts: Vec<(StageId, Range<usize>)>,
    width: usize,
}

impl Fused {
    /// Those that a stage is one of.
    fn of(scene: &Scene<'_>, own: &Node) -> Option<Self> {
        let nodes = &scene.e.oracle.graph.nodes;
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
    let mut all = splits(scene);
    all.extend(pairs(scene));
    let Some(fused) = Fused::of(scene, scene.node()).map(Rc::new) else { return all };
    let Some(own) = fused.own(scene.node().id).cloned() else { return all };
    let widths: Vec<usize> = fused.parts.iter().map(|(_, columns)| columns.len()).collect();
    let strides: BTreeSet<usize> = widths.iter().copied().chain([widths[0] + widths[1], fused.width]).collect();
    let firsts: BTreeSet<usize> =
        [0, widths[0], widths[1], widths[0] + widths[1], 2 * widths[0], 2 * widths[1]].into_iter().collect();
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

/// How the row of a matrix that makes queries, keys and values at once is split otherwise than it was put together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// It is queries, keys and values one after the other, and is split by groups of heads: queries, a key and a value of each.
    ByGroups,
    /// It is by groups of heads, and is split as if it were one after the other.
    OfGroups,
    /// The parts lie in this order.
    Order([usize; 3]),
}

impl Split {
    pub(super) const ALL: [Self; 7] = [
        Self::ByGroups,
        Self::OfGroups,
        Self::Order([0, 2, 1]),
        Self::Order([1, 0, 2]),
        Self::Order([1, 2, 0]),
        Self::Order([2, 0, 1]),
        Self::Order([2, 1, 0]),
    ];

    /// The part and column of it whose value a column of a part gets. Widths are those of the parts, `head` that of a head.
    pub(super) fn source(self, (part, column): (usize, usize), widths: [usize; 3], head: usize) -> (usize, usize) {
        let kv_heads = widths[1] / head;
        let of_group = [widths[0] / kv_heads, head, head];
        let each: usize = of_group.iter().sum();
        // What lies at an element of a buffer of parts in this order.
        let plain = |at: usize, order: [usize; 3]| {
            let mut rest = at;
            for part in order {
                if rest < widths[part] {
                    return (part, rest);
                }
                rest -= widths[part];
            }
            (2, widths[2] - 1)
        };
        let before: usize = widths[..part].iter().sum();
        match self {
            Self::ByGroups => {
                let (group, within) = (column / of_group[part], column % of_group[part]);
                plain(group * each + of_group[..part].iter().sum::<usize>() + within, [0, 1, 2])
            }
            Self::OfGroups => {
                let (group, mut rest) = ((before + column) / each, (before + column) % each);
                let mut part = 0;
                while rest >= of_group[part] {
                    rest -= of_group[part];
                    part += 1;
                }
                (part, group * of_group[part] + rest)
            }
            Self::Order(order) => plain(before + column, order),
        }
    }

    pub(super) fn told(self) -> String {
        let groups = "by groups of heads, the queries, a key and a value of each";
        match self {
            Self::ByGroups => {
                format!("a row of queries, keys and values, one after the other, is split as if it were {groups}")
            }
            Self::OfGroups => {
                format!("a row that is {groups}, is split as if it were queries, keys and values, one after the other")
            }
            Self::Order(order) => {
                let [a, b, c] = order.map(|part| ["queries", "keys", "values"][part]);
                format!(
                    "a row of {a}, {b} and {c}, one after the other, is split as if it were queries, keys and values"
                )
            }
        }
    }
}

/// The three parts of the row split otherwise: where it is one of them, or made of one of them.
fn splits<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (graph, node, e) = (&scene.e.oracle.graph, scene.node(), scene.e);
    let head = graph.config.head_dim;
    let input = node.inputs.first().map(|&i| &graph.nodes[i]);
    let of = |of: &Node| {
        let fused = Fused::of(scene, of)?;
        let part = fused.parts.iter().position(|(id, _)| *id == of.id)?;
        Some((fused, part))
    };
    let own = of(node);
    let is_one = own.is_some();
    let Some((fused, part)) = own.or_else(|| of(input.filter(|_| node.inputs.len() == 1)?)) else { return Vec::new() };
    let widths = [0, 1, 2].map(|i| fused.parts[i].1.len());
    if widths.iter().any(|w| *w == 0 || !w.is_multiple_of(head)) || !(widths[0] / head).is_multiple_of(widths[1] / head)
    {
        return Vec::new();
    }
    // A column that stays where it is must be right.
    let column = |&(r, i): &(usize, usize)| scene.token(&e.rows[r]).1 + i;
    let wrong: Vec<usize> = scene.fit.iter().map(column).filter(|c| *c < widths[part]).collect();
    let heads: BTreeSet<usize> = wrong.iter().map(|c| c / head).collect();
    let moves = |split: &&Split| {
        let moved = |h: &usize| split.source((part, h * head), widths, head) != (part, h * head);
        wrong.len() == scene.fit.len() && (0..widths[part] / head).filter(moved).eq(heads.iter().copied())
    };
    let fitting: Vec<Split> = Split::ALL.iter().filter(moves).copied().collect();
    if fitting.is_empty() {
        return Vec::new();
    }
    let Some(parts) = (0..3).map(|i| graph.index(fused.parts[i].0)).collect::<Option<Vec<usize>>>() else {
        return Vec::new();
    };
    if !is_one {
        return fitting.into_iter().map(|split| of_operand(scene, split, &fused, (part, widths, head))).collect();
    }
    let sources =
        fitting.into_iter().map(|split| (split.told(), move |column| split.source((part, column), widths, head)));
    placed(scene, &parts, &widths, sources)
}

/// Laws by which each column is one of these stages' right values, of the columns that `sources` name: a part and its column.
fn placed<'a, F: Fn(usize) -> (usize, usize) + 'a>(
    scene: &'a Scene<'a>, parts: &[usize], widths: &[usize], sources: impl Iterator<Item = (String, F)>,
) -> Vec<Law<'a>> {
    let (graph, e, own) = (&scene.e.oracle.graph, scene.e, scene.node().id);
    // The others as they should be.
    let others = || parts.iter().map(|&i| &graph.nodes[i]).filter(|other| other.id != own);
    let work: u64 = others().map(|other| work_of(other, e.oracle, e.side.capture)).sum();
    if work > scene.meter().left() / 4 {
        return Vec::new();
    }
    scene.meter().count(work);
    let right: Rc<Vec<_>> = Rc::new(
        parts
            .iter()
            .map(|&i| &graph.nodes[i])
            .map(|one| if one.id == own { e.expected.clone() } else { assembled(one, e.oracle, e.side, e.filter) })
            .collect(),
    );
    let law = |(what, source): (String, F)| {
        let (right, widths) = (right.clone(), widths.to_vec());
        Law::new(what, 1, move |row: &RowAt| {
            let (token, first) = scene.token(row);
            let mut made = Row { value: Vec::new(), bound: Vec::new() };
            for column in first..first + row.range.len() {
                let (from, at) = source(column);
                let (value, bound) = right[from][row.step].as_ref()?;
                let at = token * widths[from] + at;
                made.value.push(*value.data.get(at)?);
                made.bound.push(bound[at]);
            }
            Some(made)
        })
    };
    sources.map(law).collect()
}

/// Gate and up in one row, one after the other or in turn, taken apart in the other way.
fn pairs<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (graph, own) = (&scene.e.oracle.graph, scene.node());
    let of = |role: Role| {
        let same = |n: &Node| n.role == role && n.id.layer == own.id.layer && n.op.anatomy() == own.op.anatomy();
        graph.nodes.iter().position(same)
    };
    let Some(parts) = [Role::Gate, Role::Up].into_iter().map(of).collect::<Option<Vec<usize>>>() else {
        return Vec::new();
    };
    let Some(part) = parts.iter().position(|&i| graph.nodes[i].id == own.id) else { return Vec::new() };
    let widths: Vec<usize> = parts.iter().filter_map(|&i| columns(&graph.nodes[i])).collect();
    let Some(&n) = widths.first().filter(|n| widths.len() == 2 && widths[1] == **n && **n > 1) else {
        return Vec::new();
    };
    type Source = fn((usize, usize), usize) -> (usize, usize);
    let ways: [(&str, Source); 2] = [
        (
            "a row of gate and up, one after the other, is taken apart as if their columns stood in turn",
            |(part, c), n| ((2 * c + part) / n, (2 * c + part) % n),
        ),
        (
            "a row in which the columns of gate and up stand in turn is taken apart as if one stood after the other",
            |(part, c), n| ((part * n + c) % 2, (part * n + c) / 2),
        ),
    ];
    // A column that stays where it is must be right.
    let moves = |source: &Source| {
        let column = |&(r, i): &(usize, usize)| scene.token(&scene.e.rows[r]).1 + i;
        scene.fit.iter().map(column).all(|c| c < n && source((part, c), n) != (part, c))
    };
    let sources = ways
        .into_iter()
        .filter(|(_, source)| moves(source))
        .map(|(what, source)| (what.to_owned(), move |c| source((part, c), n)));
    let sources: Vec<_> = sources.collect();
    if sources.is_empty() { Vec::new() } else { placed(scene, &parts, &widths, sources.into_iter()) }
}

/// What a stage makes of the part that such a split gives it.
fn of_operand<'a>(
    scene: &'a Scene<'a>, split: Split, fused: &Fused, (part, widths, head): (usize, [usize; 3], usize),
) -> Law<'a> {
    let (node, parts) = (scene.node(), [0, 1, 2].map(|i| fused.parts[i].0));
    let steps = &scene.e.side.capture.steps;
    let made = move |step: usize| {
        let given: Vec<Rc<Tensor<f32>>> = parts.iter().map(|id| scene.tensor(step, *id)).collect::<Option<_>>()?;
        let (own, rows) = (&given[part], given[part].rows());
        let mut mapped = Tensor { shape: own.shape.clone(), data: Vec::with_capacity(own.data.len()) };
        for (row, column) in (0..rows).flat_map(|row| (0..widths[part]).map(move |column| (row, column))) {
            let (from, at) = split.source((part, column), widths, head);
            mapped.data.push(f64::from(*given[from].data.get(row * widths[from] + at)?));
        }
        if node.has_state() {
            let bound = vec![0.0; mapped.data.len()];
            return Some((mapped, bound));
        }
        let (tokens, positions, source) = (steps[step].kept_tokens(), steps[step].positions(), scene.weights());
        let context =
            Context { tokens: &tokens, positions: &positions, history: &[], source: &source, weights: &node.weights };
        Some(ops::forward_with_bound(&node.op, &[&mapped], &context))
    };
    let known: RefCell<HashMap<usize, Made>> = RefCell::default();
    Law::new(split.told(), 1, move |row: &RowAt| {
        let (token, first) = scene.token(row);
        let position = row.place.position;
        let (step, token) = match node.has_state() {
            true => {
                let wrote = (0..=row.step).find(|s| (steps[*s].first..steps[*s].keys()).contains(&position))?;
                (wrote, scene.numbered(wrote, position - steps[wrote].first)?)
            }
            false => (row.step, token),
        };
        let made = known.borrow_mut().entry(step).or_insert_with(|| made(step).map(Rc::new)).clone()?;
        let at = token * widths[part] + first..token * widths[part] + first + row.range.len();
        Some(Row { value: made.0.data.get(at.clone())?.to_vec(), bound: made.1.get(at)?.to_vec() })
    })
}

/// A stage of a step with its bounds.
type Made = Option<Rc<(Tensor<f64>, Vec<f32>)>>;

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
            // The right values of its own stage are known; those of the others are the engine's.
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
