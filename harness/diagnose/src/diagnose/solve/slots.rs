//! Rows of a cache that are written to the wrong slots. It has two effects: the slot that is written in their place holds
//! them and loses what belongs there, and their own keeps what it held.
//!
//! The rows in the wrong slots are read off. A rule `f(p)` for the slot of position p, with the
//! positions that it holds for, is then carried out for the whole run: a slot holds the last row that was written to
//! it. One that nothing wrote must be as it was after the step before; if that is not captured, nothing is concluded
//! from it.

use super::form::Form;
use super::index::Index;
use super::maps::{TILES, strides, transposed};
use super::scene::Scene;
use super::{Alternative, Law, Row};
use crate::capture::Step;
use crate::verdict::{RowAt, right};
use qdiff_engine::ops::Anatomy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// Rows that are written to slots of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Written {
    /// To which.
    to: Slot,
    /// Which rows.
    rows: Rows,
    /// Whether they are written to their own slots too.
    as_well: bool,
    /// Whether their own slots, where nobody writes them, are seen to keep what they held.
    keeps: bool,
    /// Whether they are read from there as well: slots of several positions are one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
}

/// The slot of a position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// By the position.
    Of(Index),
    /// By its number in the part.
    Number,
    /// By its number in the part and twice the part's first.
    NumberAndTwice,
    /// The position of the part's first row.
    PartFirst,
    /// The position of the part's last row.
    PartLast,
    /// In reverse order within the part.
    PartMirrored,
    /// As far before its own as the part's first is from the first slot of its so many.
    FromTile(usize),
}

impl Slot {
    fn of(&self, p: usize, part: &Step) -> Option<usize> {
        match self {
            Self::Of(index) => index.of(p, usize::MAX),
            Self::Number => p.checked_sub(part.first),
            Self::NumberAndTwice => Some(p + part.first),
            Self::PartFirst => Some(part.first),
            Self::PartLast => part.keys().checked_sub(1),
            Self::PartMirrored => (part.first + part.keys()).checked_sub(p + 1),
            Self::FromTile(m) => p.checked_sub(part.first % m),
        }
    }
}

/// Positions that are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// All.
    All,
    /// Those of decode steps.
    Decoded,
    /// Those of the prompt.
    Prompt,
    /// This one.
    Position(usize),
    /// Those with this rest modulo the first number.
    Rest(usize, usize),
    /// Those with this number in their part.
    Number(usize),
    /// The last of each part.
    LastOfPart,
    /// From this one on.
    From(usize),
    /// Up to this one.
    UpTo(usize),
    /// From the first to the second.
    Between(usize, usize),
}

impl Rows {
    fn has(self, p: usize, part: &Step) -> bool {
        match self {
            Self::All => true,
            Self::Decoded => part.index > 0 && part.tokens.len() == 1,
            Self::Prompt => part.index == 0,
            Self::Position(one) => p == one,
            Self::Rest(m, rest) => p % m == rest,
            Self::Number(number) => p.checked_sub(part.first) == Some(number),
            Self::LastOfPart => p + 1 == part.keys(),
            Self::From(low) => p >= low,
            Self::UpTo(high) => p <= high,
            Self::Between(low, high) => (low..=high).contains(&p),
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Slot::Of(Index::Mod(m)) = self.to {
            write!(f, "slots are counted modulo {m}: ")?;
        }
        f.write_str("each row")?;
        match self.rows {
            Rows::All => Ok(()),
            Rows::Decoded => f.write_str(" of a decode step"),
            Rows::Prompt => f.write_str(" of the prefill"),
            Rows::Position(p) => write!(f, ", that of position {p} alone,"),
            Rows::Rest(m, rest) => write!(f, " where position mod {m} = {rest}"),
            Rows::Number(n) => write!(f, " with number {n} in its part"),
            Rows::LastOfPart => f.write_str(" that is the last of its part"),
            Rows::From(low) => write!(f, " from position {low} on"),
            Rows::UpTo(high) => write!(f, " up to position {high}"),
            Rows::Between(low, high) => write!(f, " of positions {low} to {high}"),
        }?;
        f.write_str(" is written ")?;
        match &self.to {
            Slot::Of(Index::By(by)) => {
                let (count, side) =
                    (if by.abs() == 1 { "slot" } else { "slots" }, if *by < 0 { "before" } else { "after" });
                write!(f, "{} {count} {side} its own", by.abs())
            }
            Slot::Of(Index::Mod(m)) => write!(f, "to slot p mod {m}, for position p"),
            Slot::Of(Index::First(m)) => write!(f, "to the first slot of its {m}"),
            Slot::Of(Index::Last(m)) => write!(f, "to the last slot of its {m}"),
            Slot::Of(Index::Reversed(m)) => write!(f, "to the slot at the other end of its {m}"),
            Slot::Of(Index::Next(m)) => write!(f, "to the next slot, round the end of its {m}"),
            Slot::Of(Index::Before(m)) => write!(f, "to the slot before, round the end of its {m}"),
            Slot::Of(Index::Apart(m)) => write!(f, "to the slot {m} apart, in pairs"),
            Slot::Of(Index::Is(slot)) => write!(f, "to slot {slot}"),
            Slot::Of(index) => write!(f, "to the {}", index.told("slot", "p")),
            Slot::Number => f.write_str("to the slot of its number in the part"),
            Slot::NumberAndTwice => f.write_str("to the slot of its number in the part and twice the part's first"),
            Slot::PartFirst => f.write_str("to the slot of the part's first row"),
            Slot::PartLast => f.write_str("to the slot of the part's last row"),
            Slot::PartMirrored => f.write_str("in reverse order within its part"),
            Slot::FromTile(m) => write!(f, "as if its part began at the first slot of its {m}"),
        }?;
        f.write_str(match (self.as_well, self.keeps) {
            _ if self.shared => ", and read from there: its slot is that of another position",
            (true, _) => " as well as to its own",
            (false, true) => ", and its own keeps what it held",
            (false, false) => ", and not to its own",
        })
    }
}

impl Written {
    /// What a row would be.
    pub(super) fn on<'a>(&self, scene: &'a Scene<'a>) -> Option<Alternative<'a>> {
        let law = self.clone();
        let of_cache = matches!(scene.node().op.anatomy(), Anatomy::State(_));
        of_cache.then(|| -> Alternative<'a> { Box::new(move |row: &RowAt| written(scene, row, &law)) })
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !matches!(scene.node().op.anatomy(), Anatomy::State(_)) {
        return Vec::new();
    }
    let moved = moved(scene);
    let mut all = Vec::new();
    if let Some(&(p0, s0)) = moved.first() {
        let positions: BTreeSet<usize> = moved.iter().map(|(p, _)| *p).collect();
        let keeps = known(scene);
        let by = Index::By(s0 as i64 - p0 as i64);
        let rules = [by].into_iter().map(Slot::Of).chain([Slot::Number, Slot::NumberAndTwice]);
        let rules = rules.chain((2..=64usize).flat_map(|m| {
            let apart = m.is_power_of_two().then_some(Index::Apart(m / 2));
            let of =
                [Index::Mod(m), Index::First(m), Index::Last(m), Index::Reversed(m), Index::Next(m), Index::Before(m)];
            of.into_iter().chain(apart).map(Slot::Of)
        }));
        let rules = rules.chain([Slot::Of(Index::Is(s0)), Slot::PartFirst, Slot::PartLast, Slot::PartMirrored]);
        let rules = rules.chain([4, 8, 16, 32, 64, 128, 256].map(Slot::FromTile));
        // Rings, and pages beyond the end of a table.
        let rings = (p0 > s0).then(|| Slot::Of(Index::Mod(p0 - s0))).filter(|_| p0 - s0 > 64);
        let pages = [8, 16, 32, 64, 128, 256].into_iter().filter(|each| p0 % each == s0 % each && p0 > s0);
        let rules = rules.chain(rings).chain(pages.map(|each| Slot::Of(Index::Clamped { each, last: s0 / each })));
        let pairs: BTreeMap<usize, usize> = moved.iter().copied().collect();
        let exchanged = pairs.len() == 2 && pairs.iter().all(|(p, s)| pairs.get(s) == Some(p));
        let rules = rules.chain(exchanged.then(|| Slot::Of(Index::Pairs(pairs.clone()))));
        for to in rules.filter(|to| moved.iter().all(|(p, s)| to.of(*p, part(scene, *p)) == Some(*s))) {
            for rows in domains(scene, &positions) {
                let of = [(false, false), (true, false), (true, true)];
                let of = of.map(|(as_well, shared)| Written { to: to.clone(), rows, as_well, keeps, shared });
                all.extend(of.into_iter().filter_map(|written| Law::of(Form::Written(written), scene)));
            }
        }
    }
    all.extend(places(scene));
    all.extend(super::kept::laws(scene));
    all
}

/// The step that writes a position.
fn part<'a>(scene: &'a Scene<'_>, position: usize) -> &'a Step {
    let steps = &scene.e.side.capture.steps;
    steps.iter().find(|s| (s.first..s.keys()).contains(&position)).unwrap_or(&steps[0])
}

/// Whether wrong slots without a row hold their values after the step before, or zero.
fn known(scene: &Scene<'_>) -> bool {
    let e = scene.e;
    scene.rows.iter().map(|&r| &e.rows[r]).filter(|row| row.bad).all(|row| {
        let (got, ..) = e.row(row);
        let (_, from) = scene.token(row);
        let before = row.step.checked_sub(1).and_then(|before| scene.tensor(before, scene.node().id));
        let slot = scene.token(row).0;
        let stood = before.is_some_and(|tensor| {
            let (slots, ..) = scene.layout().extents(&tensor.shape);
            slot < slots
                && (0..got.len()).all(|j| tensor.data[scene.layout().at(&tensor.shape, slot, from + j)] == got[j])
        });
        stood || got.iter().all(|v| *v == 0.0) || holds_a_row(scene, row)
    })
}

/// Whether a wrong row is that of some position.
fn holds_a_row(scene: &Scene<'_>, row: &RowAt) -> bool {
    let Some((value, _)) = scene.e.expected[row.step].as_ref() else { return false };
    (0..scene.layout().extents(&value.shape).0).any(|p| stands(scene, row, p))
}

/// Whether a wrong row is that of a position.
fn stands(scene: &Scene<'_>, row: &RowAt, position: usize) -> bool {
    let (got, ..) = scene.e.row(row);
    expected(scene, row, position)
        .is_some_and(|other| (0..got.len()).all(|i| right(got[i], other.value[i], other.bound[i])))
}

/// The position whose row is in each wrong slot.
fn moved(scene: &Scene<'_>) -> BTreeSet<(usize, usize)> {
    let e = scene.e;
    let mut all = BTreeSet::new();
    for &r in scene.rows.iter().filter(|&&r| e.rows[r].bad) {
        let row = &e.rows[r];
        let (Some((value, _)), slot) = (e.expected[row.step].as_ref(), scene.token(row).0) else { continue };
        let (slots, ..) = scene.layout().extents(&value.shape);
        all.extend((0..slots).filter(|p| *p != slot).find(|p| stands(scene, row, *p)).map(|p| (p, slot)));
    }
    all
}

/// What belongs into a slot, cut to a row.
fn expected(scene: &Scene<'_>, row: &RowAt, slot: usize) -> Option<Row> {
    let (value, bound) = scene.e.expected[row.step].as_ref()?;
    let (layout, from) = (scene.layout(), scene.token(row).1);
    let at = |j: usize| layout.at(&value.shape, slot, from + j);
    let all = 0..row.range.len();
    (slot < layout.extents(&value.shape).0).then(|| Row {
        value: all.clone().map(|j| value.data[at(j)]).collect(),
        bound: all.map(|j| bound[at(j)]).collect(),
    })
}

/// Positions that may be all that are moved, if these are seen to be.
fn domains(scene: &Scene<'_>, moved: &BTreeSet<usize>) -> Vec<Rows> {
    let (Some(&low), Some(&high)) = (moved.first(), moved.last()) else { return Vec::new() };
    let mut all = vec![Rows::All, Rows::Decoded, Rows::Prompt];
    if low == high {
        all.push(Rows::Position(low));
    }
    if moved.len() > 1 {
        let rests = [2usize, 3, 4, 5, 8, 16, 32, 64].map(|m| Rows::Rest(m, low % m));
        let number = Rows::Number(low - part(scene, low).first);
        all.extend(
            rests.into_iter().chain([number]).filter(|rows| moved.iter().all(|p| rows.has(*p, part(scene, *p)))),
        );
    }
    if moved.iter().all(|p| Rows::LastOfPart.has(*p, part(scene, *p))) {
        all.push(Rows::LastOfPart);
    }
    all.extend([Rows::From(low), Rows::UpTo(high), Rows::Between(low, high)]);
    all
}

/// A row of the cache after its step, if rows of some positions go to the slots of a rule.
fn written(scene: &Scene<'_>, row: &RowAt, law: &Written) -> Option<Row> {
    let (slot, steps) = (scene.token(row).0, &scene.e.side.capture.steps);
    let mut holds = None;
    if law.shared {
        let goes = |p: usize, step: &Step| if law.rows.has(p, step) { law.to.of(p, step) } else { Some(p) };
        let own = goes(slot, part(scene, slot))?;
        let written = steps[..=row.step].iter().flat_map(|step| (step.first..step.keys()).map(move |p| (p, step)));
        let last = written.rev().find(|(p, step)| goes(*p, step) == Some(own))?;
        return expected(scene, row, last.0);
    }
    for step in &steps[..=row.step] {
        for p in step.first..step.keys() {
            let moves = law.rows.has(p, step);
            let there = moves && law.to.of(p, step) == Some(slot);
            if there || p == slot && (!moves || law.as_well) {
                holds = Some(p);
            }
        }
    }
    if let Some(p) = holds {
        return expected(scene, row, p);
    }
    // What nobody wrote.
    let len = row.range.len();
    let (_, from) = scene.token(row);
    let before = row.step.checked_sub(1).and_then(|before| {
        let (slots, ..) = scene.layout().extents(scene.shape(before));
        let tensor = scene.tensor(before, scene.node().id).filter(|_| slot < slots)?;
        let at = |j: usize| f64::from(tensor.data[scene.layout().at(&tensor.shape, slot, from + j)]);
        Some((0..len).map(at).collect::<Vec<f64>>())
    });
    Some(Scene::exact(before.unwrap_or_else(|| vec![f64::NAN; len])))
}

/// Rows written as far apart as those of another buffer, in tiles that are transposed, or with rows for columns.
fn places<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(width) = scene.width() else { return Vec::new() };
    type Place = (usize, usize);
    // The slot and column whose value is in one, of so many rows.
    type Other = Rc<dyn Fn(Place, usize) -> Option<Place>>;
    let steps = &scene.e.side.capture.steps;
    let mut ways: Vec<(String, Other)> = Vec::new();
    for tile in TILES {
        let what = format!("each tile of {tile} slots by {tile} columns is transposed");
        ways.push((what, Rc::new(move |at, rows| Some(transposed(at, tile, (rows, width))))));
    }
    for stride in strides(scene, width) {
        let what = format!("rows are written with a stride of {stride} elements instead of {width}");
        let last = move |(slot, j): Place, rows: usize| {
            let at = slot * width + j;
            let p = (at / stride).min(rows - 1);
            Some((p, at - p * stride)).filter(|(_, j)| *j < width)
        };
        ways.push((what, Rc::new(last)));
    }
    // A part at a time.
    let parts: Rc<[(usize, usize)]> = steps.iter().map(|s| (s.first, s.keys())).collect();
    let d = scene.e.oracle.graph.config.head_dim;
    for run in [width, d].into_iter().collect::<BTreeSet<_>>() {
        let parts = parts.clone();
        let of = if run == width { "" } else { ", head by head" };
        let what = format!("the rows of a part are written transposed, columns before rows{of}");
        let turned = move |(slot, j): Place, _: usize| {
            let &(first, end) = parts.iter().find(|(first, end)| (*first..*end).contains(&slot))?;
            let (rows, at) = (end - first, (slot - first) * run + j % run);
            Some((first + at % rows, j / run * run + at / rows))
        };
        ways.push((what, Rc::new(turned)));
    }
    ways.into_iter()
        .map(|(what, other)| {
            Law::new(what, 1, move |row: &RowAt| {
                let (value, bound) = scene.e.expected[row.step].as_ref()?;
                let (layout, (slot, from)) = (scene.layout(), scene.token(row));
                let (rows, ..) = layout.extents(&value.shape);
                let at = |j| other((slot, from + j), rows).map(|(s, j)| layout.at(&value.shape, s, j));
                let all: Vec<Option<usize>> = (0..row.range.len()).map(at).collect();
                Some(Row {
                    value: all.iter().map(|at| at.map_or(f64::NAN, |at| value.data[at])).collect(),
                    bound: all.iter().map(|at| at.map_or(0.0, |at| bound[at])).collect(),
                })
            })
        })
        .collect()
}
