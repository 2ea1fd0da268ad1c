//! The stage's right values in the wrong place of the step: another row, head, column or slot, a transposed tile, or rows
//! that lie as far apart as those of another buffer. The places of the values are read off the wrong elements, and
//! must be a rule.

use super::form::Form;
use super::index::{Index, Sources, beside};
use super::maps::{TILES, strides, transposed};
use super::scene::Scene;
use super::{Alternative, Law, Row};
use crate::verdict::{RowAt, right};
use qdiff_engine::ops::Anatomy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Where right values stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Moved {
    /// In another place along an axis.
    Along {
        /// The axis.
        axis: Axis,
        /// The source of the value in a place.
        index: Index,
    },
    /// In the transposed place of a tile of so many tokens by as many columns.
    Tile(usize),
    /// A buffer of tokens by heads is taken for one of heads by tokens, or the other way round.
    Heads {
        /// Elements of a head.
        head: usize,
        /// Whether it is written as heads by tokens; else it is read so.
        written: bool,
    },
    /// As if rows lay so far apart.
    Stride {
        /// Elements from one row to the next.
        stride: usize,
        /// As many as it should be.
        width: usize,
        /// Whether rows are written so; else they are read so.
        written: bool,
    },
    /// A row is made of shards of so many columns, and zeros fill each of them up.
    Filled {
        /// Columns of a shard.
        shard: usize,
        /// With those that fill it up.
        to: usize,
    },
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Tokens of the part.
    Token,
    /// Slots of a cache.
    Slot,
    /// Heads.
    Head,
    /// Chosen experts of a token.
    Expert,
    /// Columns of a row.
    Column,
    /// Columns of a head of so many.
    OfHead(usize),
    /// Rows of the part that wrote a slot.
    Part,
    /// Keys of a query.
    Key,
    /// Keys of a query, counted back from its own.
    Back,
}

/// A token, or slot, and a column of it; or how many there are of each.
type Place = (usize, usize);

/// What else an axis may count by: elements of a head, the position of the row, and the part that wrote it, from its first
/// row on.
struct Counted {
    head: usize,
    position: usize,
    part: Range<usize>,
}

impl Moved {
    /// The place whose value is in this one.
    fn from(&self, (t, j): Place, (tokens, width): Place, by: &Counted) -> Option<Place> {
        let head = by.head;
        match self {
            Self::Along { axis: Axis::Token | Axis::Slot, index } => Some((index.of(t, tokens)?, j)),
            Self::Along { axis: Axis::Head | Axis::Expert, index } => {
                Some((t, index.of(j / head, width / head)? * head + j % head))
            }
            Self::Along { axis: Axis::Column, index } => Some((t, index.of(j, width)?)),
            Self::Along { axis: Axis::OfHead(d), index } => Some((t, j / d * d + index.of(j % d, *d)?)),
            Self::Along { axis: Axis::Part, index } => {
                let there = by.part.start + index.of(t.checked_sub(by.part.start)?, by.part.len())?;
                Some((there, j)).filter(|_| by.part.contains(&t))
            }
            Self::Along { axis: Axis::Key, index } => Some((t, j / head * head + index.of(j % head, head)?)),
            Self::Along { axis: Axis::Back, index } => {
                let back = index.of(by.position.checked_sub(j % head)?, by.position + 1)?;
                Some((t, j / head * head + by.position - back))
            }
            Self::Tile(tile) => Some(transposed((t, j), *tile, (tokens, width))),
            Self::Heads { head: d, written } => {
                let (at, heads) = (t * width + j, width / d);
                let (tokens, heads) = if *written { (tokens, heads) } else { (heads, tokens) };
                let (outer, inner) = (at / (tokens * d), at % (tokens * d) / d);
                let at = (inner * heads + outer) * d + at % d;
                Some((at / width, at % width))
            }
            Self::Filled { shard, to } => {
                Some((t, j / to * shard + j % to)).filter(|(_, from)| j % to < *shard && *from < width)
            }
            Self::Stride { stride, written: false, .. } => {
                let at = t * stride + j;
                Some((at / width, at % width)).filter(|(t, _)| *t < tokens)
            }
            Self::Stride { stride, .. } => {
                let at = t * width + j;
                let last = (at / stride).min(tokens - 1);
                Some((last, at - last * stride)).filter(|(_, j)| *j < width)
            }
        }
    }

    /// What a row would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Alternative<'a> {
        let moved = self.clone();
        Box::new(move |row: &RowAt| {
            let (value, bound) = scene.e.expected[row.step].as_ref()?;
            let (layout, (token, from)) = (scene.layout(), scene.token(row));
            let (tokens, _, width) = layout.extents(&value.shape);
            let (head, position) = (head(scene, row)?, row.place.position);
            let counted = Counted { head, position, part: part(scene, position) };
            // A token's row is found by its number in the part: perhaps only some rows of the part were captured.
            let numbered = !scene.node().has_state() && !matches!(moved, Self::Along { axis: Axis::Part, .. });
            let (own, all) = if numbered { scene.number(row.step, token) } else { (token, tokens) };
            let of = |j: usize| {
                let (t, j) = moved.from((own, j), (all, width), &counted)?;
                let t = if numbered { scene.numbered(row.step, t)? } else { t };
                (t < tokens).then(|| layout.at(&value.shape, t, j))
            };
            let all: Vec<Option<usize>> = (from..from + row.range.len()).map(of).collect();
            // Beyond the end of a buffer anything may stand.
            if all.iter().all(Option::is_none) && matches!(moved, Self::Along { .. }) {
                return None;
            }
            let nothing = if matches!(moved, Self::Filled { .. }) { 0.0 } else { f64::NAN };
            Some(Row {
                value: all.iter().map(|at| at.map_or(nothing, |at| value.data[at])).collect(),
                bound: all.iter().map(|at| at.map_or(0.0, |at| bound[at])).collect(),
            })
        })
    }
}

/// The positions of the part that has a position.
fn part(scene: &Scene<'_>, position: usize) -> Range<usize> {
    let mut parts = scene.e.side.capture.steps.iter().map(|step| step.first..step.keys());
    parts.find(|part| part.contains(&position)).unwrap_or_default()
}

/// Elements of a head of a row; of pairs of tokens as many as there are keys.
fn head(scene: &Scene<'_>, row: &RowAt) -> Option<usize> {
    match (scene.of_pairs(), row.place.head) {
        (true, _) => scene.shape(row.step).last().copied(),
        (false, Some(_)) => Some(row.range.len()),
        (false, None) => Some(scene.head().unwrap_or(1)),
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (axis, index) = match self {
            Self::Tile(n) => return write!(f, "each tile of {n} tokens by {n} columns is transposed"),
            Self::Heads { written, .. } => {
                let (is, taken) = if *written { ("written", "read") } else { ("read", "written") };
                return write!(f, "the buffer is {is} as heads by tokens, and {taken} as tokens by heads");
            }
            Self::Stride { stride, width, written } => {
                let verb = if *written { "written" } else { "read" };
                return write!(f, "rows are {verb} with a stride of {stride} elements instead of {width}");
            }
            Self::Filled { shard, to } => {
                return write!(
                    f,
                    "the row is joined from shards of {shard} columns that zeros fill up to {to}, and these zeros are left in"
                );
            }
            Self::Along { axis, index } => (axis, index),
        };
        let side = |by: &i64| if *by < 0 { "before" } else { "after" };
        match (axis, index) {
            (Axis::Token, Index::Apart(1)) => f.write_str("the rows of neighbouring tokens are exchanged"),
            (Axis::Token, Index::Mirrored) => f.write_str("the rows of the part are in reverse order"),
            (Axis::Token, Index::By(_)) => {
                write!(f, "the row of the {} in the part is there instead", index.told("token", "t"))
            }
            (Axis::Token, _) => write!(f, "the row of the part's {} is there instead", index.told("token", "t")),
            (Axis::Slot, Index::Is(slot)) => write!(f, "row {slot} is there instead"),
            (Axis::Slot, Index::By(by)) => write!(f, "the row {} {} is there instead", by.abs(), side(by)),
            (Axis::Slot, Index::Apart(m)) if m.is_power_of_two() => write!(f, "rows {m} apart are exchanged"),
            (Axis::Slot, Index::Mod(m)) => write!(f, "slots are counted modulo {m}"),
            (Axis::Slot, Index::Reversed(m)) => write!(f, "rows are in reverse order in groups of {m}"),
            (Axis::Slot, Index::First(m)) => write!(f, "the first row of every {m} is there instead"),
            (Axis::Slot, _) => write!(f, "the {} is there instead", index.told("row", "r")),
            (Axis::Part, _) => write!(f, "its part's {} is there instead", index.told("row", "r")),
            (Axis::Key, _) => write!(f, "the value of the {} is there instead", index.told("key", "k")),
            (Axis::Back, Index::AtMost(m)) => {
                write!(f, "the value of the key {0} before the query is there instead for all keys further back", m - 1)
            }
            (Axis::Back, _) => {
                write!(
                    f,
                    "the value of a key at another distance is there instead, at the {}",
                    index.told("distance", "d")
                )
            }
            (Axis::Expert, _) => {
                write!(f, "the values of the token's {} are there instead", index.told("chosen expert", "j"))
            }
            (Axis::Head, Index::Is(head)) => write!(f, "the values of head {head} are there instead"),
            (Axis::Head, Index::Round(by)) => {
                write!(f, "the values of the {}, wrapping around, are there instead", beside("head", *by))
            }
            (Axis::Head, _) => write!(f, "the values of the {} are there instead", index.told("head", "h")),
            (Axis::Column | Axis::OfHead(_), Index::Is(c)) => write!(f, "the value of column {c} is there instead"),
            (Axis::Column | Axis::OfHead(_), Index::Apart(m)) if m.is_power_of_two() => {
                write!(f, "columns {m} apart are exchanged")
            }
            (Axis::Column | Axis::OfHead(_), Index::Apart(m)) => {
                write!(f, "the value of the column whose number differs in the bits of {m} is there instead")
            }
            (Axis::Column, Index::Mirrored) => f.write_str("the columns of the row are in reverse order"),
            (Axis::OfHead(_), Index::Mirrored) => f.write_str("the columns of each head are in reverse order"),
            (Axis::Column | Axis::OfHead(_), Index::Turned { each, rows }) => {
                let of = if matches!(axis, Axis::Column) { format!("each {each}") } else { "each head".to_owned() };
                write!(f, "the columns of {of} are transposed, read as {rows} by {}", each / rows)
            }
            (Axis::Column | Axis::OfHead(_), Index::Pairs(pairs)) => {
                let (&a, &b) = pairs.first_key_value().unwrap_or((&0, &0));
                match pairs.len() {
                    2 => write!(f, "columns {a} and {b} are exchanged"),
                    n => write!(f, "{} pairs of columns are exchanged, {a} and {b} first", n / 2),
                }
            }
            (Axis::Column | Axis::OfHead(_), Index::By(_) | Index::Round(_)) => {
                write!(f, "the value of the {} is there instead", index.told("column", "c"))
            }
            (Axis::Column | Axis::OfHead(_), _) => {
                write!(f, "the value of the {} is there instead", index.told("column", "c"))
            }
        }
    }
}

fn laws<'a>(scene: &'a Scene<'a>, axis: Axis, indices: Vec<Index>) -> Vec<Law<'a>> {
    indices.into_iter().filter_map(|index| Law::of(Form::Moved(Moved::Along { axis, index }), scene)).collect()
}

/// Rows of other tokens or slots of the step by the simplest maps, and heads in the place of others.
pub(super) fn rows<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (axis, mut indices) = of_axis(scene);
    indices.retain(is_simple);
    let mut heads = Index::giving(&of_heads(scene));
    heads.retain(|index| matches!(index, Index::Is(_) | Index::Round(_)));
    let of_rows = if scene.of_experts() { Axis::Expert } else { Axis::Head };
    laws(scene, axis, indices).into_iter().chain(laws(scene, of_rows, heads)).collect()
}

fn is_simple(index: &Index) -> bool {
    matches!(index, Index::By(_) | Index::Is(0) | Index::End | Index::Apart(1) | Index::Mirrored)
}

/// Tokens or slots, and the maps that may give their rows.
fn of_axis(scene: &Scene<'_>) -> (Axis, Vec<Index>) {
    let axis = if matches!(scene.node().op.anatomy(), Anatomy::State(_)) { Axis::Slot } else { Axis::Token };
    (axis, if scene.of_pairs() { Vec::new() } else { Index::giving(&of_rows(scene)) })
}

/// The right values of this place of the step, cut to a row.
fn stands(scene: &Scene<'_>, row: &RowAt, place: impl Fn(usize) -> Place) -> bool {
    let Some((value, bounds)) = scene.e.expected[row.step].as_ref() else { return false };
    let (layout, (got, ..), from) = (scene.layout(), scene.e.row(row), scene.token(row).1);
    let (tokens, _, width) = layout.extents(&value.shape);
    let wrong = scene.wrong_of(row);
    let any = !wrong.is_empty();
    for i in wrong {
        let (t, j) = place(from + i);
        if t >= tokens || j >= width {
            return false;
        }
        let at = layout.at(&value.shape, t, j);
        if !right(got[i], value.data[at], bounds[at]) {
            return false;
        }
    }
    any
}

/// Rows that are looked at.
const ROWS: usize = 48;

/// The tokens whose rows are in each wrong row. A row from no token ends the search.
fn of_rows(scene: &Scene<'_>) -> Sources {
    let e = scene.e;
    let mut all = Sources::new();
    for &r in scene.rows.iter().filter(|&&r| scene.wrong_in(r)).take(ROWS) {
        let row = &e.rows[r];
        let Some((value, _)) = e.expected[row.step].as_ref() else { continue };
        let (token, (tokens, ..)) = (scene.token(row).0, scene.layout().extents(&value.shape));
        let some: Vec<usize> = (0..tokens).filter(|&t| t != token && stands(scene, row, |j| (t, j))).collect();
        // A slot that nothing was written to tells nothing of where others went.
        if some.is_empty() && scene.node().has_state() && e.row(row).0.iter().all(|v| *v == 0.0) {
            continue;
        }
        if some.is_empty() {
            return Sources::new();
        }
        if scene.node().has_state() {
            meet(&mut all, (token, tokens), some);
        } else {
            let number = |t: usize| scene.number(row.step, t).0;
            meet(&mut all, scene.number(row.step, token), some.into_iter().map(number).collect());
        }
    }
    all
}

/// The heads in the place of each wrong one, where rows are heads.
fn of_heads(scene: &Scene<'_>) -> Sources {
    let e = scene.e;
    let heads = e.rows.iter().filter_map(|r| r.place.head).max().map_or(0, |last| last + 1);
    let mut all = Sources::new();
    for &r in scene.rows.iter().filter(|&&r| scene.wrong_in(r)).take(ROWS) {
        let row = &e.rows[r];
        let (Some(own), Some(len), token) = (row.place.head, head(scene, row), scene.token(row).0) else {
            return Sources::new();
        };
        let of = |h: &usize| *h != own && stands(scene, row, |j| (token, h * len + j % len));
        let some: Vec<usize> = (0..heads).filter(of).collect();
        if some.is_empty() {
            return Sources::new();
        }
        meet(&mut all, (own, heads), some);
    }
    all.retain(|_, some| !some.is_empty());
    all
}

/// Keeps the candidates that both have.
pub(super) fn meet(all: &mut Sources, key: (usize, usize), some: Vec<usize>) {
    all.entry(key).and_modify(|known| known.retain(|o| some.contains(o))).or_insert(some);
}

/// Columns that are looked at: few tell a rule.
const COLUMNS: usize = 256;

/// Columns in the place of others.
pub(super) fn columns<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(width) = scene.width().filter(|_| !scene.of_pairs()) else { return Vec::new() };
    let mut all: Vec<Law<'a>> =
        filled(scene).and_then(|moved| Law::of(Form::Moved(moved), scene)).into_iter().collect();
    let Some(sources) = of_columns(scene, width) else { return all };
    all.extend(laws(scene, Axis::Column, Index::giving(&sources)));
    if let Some(d) = scene.head() {
        let within = sources.iter().map(|((c, _), some)| {
            let inside = some.iter().filter(|s| *s / d == c / d).map(|s| s % d).collect();
            ((c % d, d), inside)
        });
        let mut of_head = Sources::new();
        within.for_each(|(key, some)| meet(&mut of_head, key, some));
        all.extend(laws(scene, Axis::OfHead(d), Index::giving(&of_head)));
        // Whole heads.
        let mut of_heads = Sources::new();
        for ((c, _), some) in &sources {
            let alike = some.iter().filter(|s| *s % d == c % d).map(|s| s / d).collect();
            meet(&mut of_heads, (c / d, width / d), alike);
        }
        all.extend(laws(scene, Axis::Head, Index::giving(&of_heads)));
    }
    // Pairs that no rule gives.
    let pairs: BTreeMap<usize, usize> =
        sources.iter().filter_map(|((c, _), some)| if let [one] = some[..] { Some((*c, one)) } else { None }).collect();
    if pairs.len() == sources.len() && (pairs.len() == 2 || pairs.iter().all(|(c, s)| pairs.get(s) == Some(c))) {
        all.extend(laws(scene, Axis::Column, vec![Index::Pairs(pairs)]));
    }
    all
}

/// The shards whose filling is left in, by the zeros from the first wrong column on.
fn filled(scene: &Scene<'_>) -> Option<Moved> {
    let e = scene.e;
    let first = |&&r: &&usize| Some((r, *scene.wrong_of(&e.rows[r]).first()?));
    let (r, shard) = scene.rows.iter().filter_map(|r| first(&r)).min_by_key(|(_, first)| *first)?;
    let (got, ..) = e.row(&e.rows[r]);
    let zeros = got[shard..].iter().take_while(|v| **v == 0.0).count();
    let is_whole = e.rows[r].place.head.is_none() && shard > 0 && zeros > 0 && shard + zeros < got.len();
    is_whole.then_some(Moved::Filled { shard, to: shard + zeros })
}

/// The columns whose values are in each wrong column of the fitted rows: those that give it in all of them.
fn of_columns(scene: &Scene<'_>, width: usize) -> Option<Sources> {
    let e = scene.e;
    let mut all = Sources::new();
    for &(r, i) in &scene.fit {
        let row = &e.rows[r];
        let (got, (token, from)) = (scene.element((r, i)).0 as f32, scene.token(row));
        let (value, bound) = e.expected[row.step].as_ref()?;
        let agrees = |&s: &usize| {
            let at = scene.layout().at(&value.shape, token, s);
            right(got, value.data[at], bound[at])
        };
        let few = all.len() < COLUMNS;
        match all.get_mut(&(from + i, width)) {
            Some(known) => known.retain(agrees),
            None if few => {
                all.insert((from + i, width), (0..width).filter(agrees).collect());
            }
            None => {}
        }
    }
    let seen = all.len();
    all.retain(|_, some| !some.is_empty());
    (!all.is_empty() && all.len() * 10 >= seen * 9).then_some(all)
}

/// Keys in the place of others.
pub(super) fn keys<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let sources = of_keys(scene).into_iter().flatten();
    sources.flat_map(|(axis, sources)| laws(scene, axis, Index::giving(&sources))).collect()
}

/// The keys whose values are in the place of each wrong one: by their numbers, and by their distance from the query.
fn of_keys(scene: &Scene<'_>) -> Option<[(Axis, Sources); 2]> {
    let e = scene.e;
    if !scene.of_pairs() {
        return None;
    }
    let [mut keys, mut back] = [Sources::new(), Sources::new()];
    for &(r, i) in scene.fit.iter().take(ROWS * 8) {
        let (row, got) = (&e.rows[r], scene.element((r, i)).0 as f32);
        let (value, bound) = e.expected[row.step].as_ref()?;
        let (n, p, (token, from)) = (*value.shape.last()?, row.place.position, scene.token(row));
        let at = |k: usize| scene.layout().at(&value.shape, token, from / n * n + k);
        let own = (from + i) % n;
        let some: Vec<usize> =
            (0..n.min(p + 1)).filter(|&k| k != own && right(got, value.data[at(k)], bound[at(k)])).collect();
        if some.is_empty() || own > p {
            return None;
        }
        meet(&mut back, (p - own, p + 1), some.iter().map(|k| p - k).collect());
        meet(&mut keys, (own, n), some);
    }
    Some([(Axis::Key, keys), (Axis::Back, back)])
}

/// Rows by any other map, tiles transposed, and rows as far apart as another buffer's.
pub(super) fn places<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (axis, mut indices) = of_axis(scene);
    indices.retain(|index| !is_simple(index));
    let mut all = laws(scene, axis, indices);
    if axis == Axis::Slot {
        let mut of_parts = Sources::new();
        for ((slot, _), some) in of_rows(scene) {
            let part = part(scene, slot);
            let inside = some.iter().filter(|s| part.contains(s)).map(|s| s - part.start).collect();
            meet(&mut of_parts, (slot - part.start, part.len()), inside);
        }
        all.extend(laws(scene, Axis::Part, Index::giving(&of_parts)));
    }
    if !scene.of_pairs() && !scene.node().has_state() {
        let width = scene.width().unwrap_or(0);
        let apart = strides(scene, width).into_iter();
        let apart = apart.flat_map(|stride| [false, true].map(|written| Moved::Stride { stride, width, written }));
        let heads =
            scene.head().into_iter().flat_map(|head| [false, true].map(|written| Moved::Heads { head, written }));
        let moved = TILES.map(Moved::Tile).into_iter().chain(heads).chain(apart);
        all.extend(moved.filter_map(|moved| Law::of(Form::Moved(moved), scene)));
    }
    all
}
