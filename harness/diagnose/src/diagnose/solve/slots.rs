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
    /// Counted from the sequence's first page of so many, and not from that in which the part begins.
    FirstPages(usize),
    /// The first one behind the prompt.
    BehindPrompt,
    /// In its page of so many the one of its number in the part, modulo the page.
    InPage(usize),
    /// Counted on from the part's first without the table of pages.
    CountedOn {
        /// Slots of a page.
        page: usize,
        /// How many pages further the table's next one is; slots between are nobody's.
        apart: usize,
    },
}

impl Slot {
    fn of(&self, p: usize, part: &Step, prompt: usize) -> Option<usize> {
        match self {
            Self::BehindPrompt => Some(prompt),
            Self::InPage(m) => Some(p / m * m + p.checked_sub(part.first)? % m),
            Self::Of(index) => index.of(p, usize::MAX),
            Self::Number => p.checked_sub(part.first),
            Self::NumberAndTwice => Some(p + part.first),
            Self::PartFirst => Some(part.first),
            Self::PartLast => part.keys().checked_sub(1),
            Self::PartMirrored => (part.first + part.keys()).checked_sub(p + 1),
            Self::FromTile(m) => p.checked_sub(part.first % m),
            Self::FirstPages(m) => p.checked_sub(part.first / m * m),
            Self::CountedOn { page, apart } => {
                let (first, own) = (part.first / page, p / page);
                let on = own.checked_sub(first)?;
                on.is_multiple_of(*apart).then(|| (first + on / apart) * page + p % page)
            }
        }
    }
}

/// Positions that are moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// All.
    All,
    /// Those of decode steps.
    Decoded,
    /// Those of the prompt.
    Prompt,
    /// Those of the prompt's parts that do not begin at 0.
    LaterParts,
    /// Those of this decode step.
    Step(usize),
    /// Those of decode steps with this rest modulo the first number.
    Decoding(usize, usize),
    /// This one.
    Position(usize),
    /// Those with this rest modulo the first number.
    Rest(usize, usize),
    /// Those with this number in their part.
    Number(usize),
    /// The last of each part.
    LastOfPart,
    /// The last of each part of several tokens.
    LastOfSeveral,
    /// From this one on.
    From(usize),
    /// Up to this one.
    UpTo(usize),
    /// From the first to the second.
    Between(usize, usize),
    /// Those that are seen to be moved in a run: no rule is known.
    Seen(BTreeSet<usize>),
}

impl Rows {
    fn has(&self, p: usize, part: &Step) -> bool {
        let decoded = part.index > 0 && part.tokens.len() == 1;
        match self {
            Self::All => true,
            Self::Decoded => decoded,
            Self::Prompt => part.index == 0,
            Self::LaterParts => part.index == 0 && part.first > 0,
            Self::Step(number) => decoded && part.index == *number,
            Self::Decoding(m, rest) => decoded && p % m == *rest,
            Self::Position(one) => p == *one,
            Self::Rest(m, rest) => p % m == *rest,
            Self::Number(number) => p.checked_sub(part.first) == Some(*number),
            Self::LastOfPart => p + 1 == part.keys(),
            Self::LastOfSeveral => p + 1 == part.keys() && part.tokens.len() > 1,
            Self::From(low) => p >= *low,
            Self::UpTo(high) => p <= *high,
            Self::Between(low, high) => (low..=high).contains(&&p),
            Self::Seen(some) => some.contains(&p),
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Slot::Of(Index::Mod(m)) = self.to {
            write!(f, "slots are counted modulo {m}: ")?;
        }
        f.write_str("each row")?;
        match &self.rows {
            Rows::All => Ok(()),
            Rows::Decoded => f.write_str(" of a decode step"),
            Rows::Prompt => f.write_str(" of the prefill"),
            Rows::LaterParts => f.write_str(" of the prefill's later parts"),
            Rows::Step(number) => write!(f, " of decode step {number}"),
            Rows::Decoding(m, 0) => write!(f, " of a decode step whose position is a multiple of {m}"),
            Rows::Decoding(m, rest) => write!(f, " of a decode step where position mod {m} = {rest}"),
            Rows::Position(p) => write!(f, ", that of position {p} alone,"),
            Rows::Rest(m, rest) => write!(f, " where position mod {m} = {rest}"),
            Rows::Number(n) => write!(f, " with number {n} in its part"),
            Rows::LastOfPart => f.write_str(" that is the last of its part"),
            Rows::LastOfSeveral => f.write_str(" that is the last of a part of several tokens"),
            Rows::From(low) => write!(f, " from position {low} on"),
            Rows::UpTo(high) => write!(f, " up to position {high}"),
            Rows::Between(low, high) => write!(f, " of positions {low} to {high}"),
            Rows::Seen(some) => {
                let list: Vec<String> = some.iter().map(ToString::to_string).collect();
                write!(f, " of positions {} (no rule is known that says which)", list.join(", "))
            }
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
            Slot::Of(Index::Next(m)) => write!(f, "to the next slot, wrapping around in its {m}"),
            Slot::Of(Index::Before(m)) => write!(f, "to the slot before, wrapping around in its {m}"),
            Slot::Of(Index::Apart(m)) => write!(f, "to the slot {m} apart, in pairs"),
            Slot::Of(Index::Is(slot)) => write!(f, "to slot {slot}"),
            Slot::Of(index) => write!(f, "to the {}", index.told("slot", "p")),
            Slot::Number => f.write_str("to the slot of its number in the part"),
            Slot::NumberAndTwice => f.write_str("to the slot of its number in the part and twice the part's first"),
            Slot::PartFirst => f.write_str("to the slot of the part's first row"),
            Slot::PartLast => f.write_str("to the slot of the part's last row"),
            Slot::PartMirrored => f.write_str("in reverse order within its part"),
            Slot::BehindPrompt => f.write_str("to the first slot behind the prompt"),
            Slot::InPage(m) => write!(
                f,
                "to the slot of its page of {m} that its number in the part says, modulo {m}, and not its position"
            ),
            Slot::FromTile(m) => write!(f, "as if its part began at the first slot of its {m}"),
            Slot::FirstPages(m) => write!(
                f,
                "to pages of {m} that are counted from the sequence's first one, and not from the one in which its part begins"
            ),
            Slot::CountedOn { page, apart } => write!(
                f,
                "to the slot that is counted on from its part's first one: the table of pages of {page}, which are {apart} apart, is not read"
            ),
        }?;
        f.write_str(match (self.as_well, self.keeps) {
            _ if self.shared => ", and read from there: its slot is that of another position",
            (true, _) => " as well as to its own",
            (false, true) => ", and its own slot keeps its old content",
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

    /// Whether its rows are those that were seen in one run.
    pub(super) fn lists_rows(&self) -> bool {
        matches!(self.rows, Rows::Seen(_))
    }

    /// The same of another run: rows that were seen in one are those that are seen in the other.
    pub(super) fn in_run(&self, scene: &Scene<'_>) -> Self {
        let seen = || positions(scene, &moved(scene), &self.to).unwrap_or_default();
        let rows = if let Rows::Seen(_) = self.rows { Rows::Seen(seen()) } else { self.rows.clone() };
        Self { rows, ..self.clone() }
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !matches!(scene.node().op.anatomy(), Anatomy::State(_)) {
        return Vec::new();
    }
    let moved = moved(scene);
    let (mut all, mut seen) = (Vec::new(), Vec::new());
    if let Some((s0, sources)) = moved.first() {
        let keeps = known(scene);
        let written = |to: &Slot, rows: &Rows| {
            let of = [(false, false), (true, false), (true, true)];
            let of = of.map(|(as_well, shared)| (to.clone(), rows.clone(), as_well, shared));
            let of = of.map(|(to, rows, as_well, shared)| Written { to, rows, as_well, keeps, shared });
            of.into_iter().filter_map(|written| Law::of(Form::Written(written), scene)).collect::<Vec<_>>()
        };
        let mut tried: Vec<Slot> = Vec::new();
        for &p0 in sources.iter().rev().take(SOURCES) {
            for to in rules(&moved, (p0, *s0)) {
                let Some(positions) = positions(scene, &moved, &to).filter(|_| !tried.contains(&to)) else { continue };
                let domains = domains(scene, &positions, p0.abs_diff(*s0));
                all.extend(domains.iter().flat_map(|rows| written(&to, rows)));
                // If no rule gives the rows, the report lists them.
                if seen.is_empty() && positions.len() > 1 && positions.len() <= SEEN {
                    seen = written(&to, &Rows::Seen(positions));
                }
                tried.push(to);
            }
        }
    }
    all.extend(places(scene));
    all.extend(super::kept::laws(scene));
    all.extend(seen);
    all
}

/// Rows that are listed at most, and positions of like rows that a slot's may be.
const SEEN: usize = 8;
const SOURCES: usize = 4;

/// Rows that show a rule by a number that kernels seldom count by.
const SHOWN: usize = 4;

/// Rules for slots of which the row of position `p0` is in `s0`.
fn rules(moved: &[Moved], (p0, s0): (usize, usize)) -> Vec<Slot> {
    let by = Index::By(s0 as i64 - p0 as i64);
    // What is as far off as a part is long is counted from its first row.
    let mut all = vec![Slot::BehindPrompt, Slot::Number, Slot::NumberAndTwice, Slot::Of(by)];
    // Few rows are where some odd number leads.
    let counts = (2..=64usize).filter(|m| m.is_power_of_two() || moved.len() >= SHOWN);
    all.extend(counts.flat_map(|m| {
        let apart = m.is_power_of_two().then_some(Index::Apart(m / 2));
        let of = [Index::Mod(m), Index::First(m), Index::Last(m), Index::Reversed(m), Index::Next(m), Index::Before(m)];
        of.into_iter().chain(apart).map(Slot::Of)
    }));
    all.extend([Slot::Of(Index::Is(s0)), Slot::PartFirst, Slot::PartLast, Slot::PartMirrored]);
    all.extend([4, 8, 16, 32, 64, 128, 256].map(Slot::FromTile));
    all.extend([8, 16, 32, 64, 128, 256].map(Slot::FirstPages));
    all.extend([8, 16, 32, 64, 128, 256].map(Slot::InPage));
    all.extend(
        [8, 16, 32, 64, 128].into_iter().flat_map(|page| [2, 3, 4].map(|apart| Slot::CountedOn { page, apart })),
    );
    // Rings, and pages beyond the end of a table.
    all.extend((p0 > s0 + 64).then(|| Slot::Of(Index::Mod(p0 - s0))));
    let pages = [8, 16, 32, 64, 128, 256].into_iter().filter(|each| p0 % each == s0 % each && p0 > s0);
    all.extend(pages.map(|each| Slot::Of(Index::Clamped { each, last: s0 / each })));
    let pairs: BTreeMap<usize, usize> = moved.iter().filter_map(|(s, from)| Some((*from.last()?, *s))).collect();
    let exchanged = pairs.len() == 2 && pairs.iter().all(|(p, s)| pairs.get(s) == Some(p));
    all.extend(exchanged.then_some(Slot::Of(Index::Pairs(pairs))));
    all
}

/// The positions whose rows are in the slots of others by a rule, if it gives them all.
fn positions(scene: &Scene<'_>, moved: &[Moved], to: &Slot) -> Option<BTreeSet<usize>> {
    let of = |(slot, from): &Moved| {
        from.iter().rev().copied().find(|p| to.of(*p, part(scene, *p), scene.prompt()) == Some(*slot))
    };
    moved.iter().map(of).collect()
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

/// A slot, and the positions whose row is in it: rows may be alike.
type Moved = (usize, Vec<usize>);

/// The wrong slots that hold the row of another position.
fn moved(scene: &Scene<'_>) -> Vec<Moved> {
    let e = scene.e;
    let mut all: BTreeSet<Moved> = BTreeSet::new();
    for &r in scene.rows.iter().filter(|&&r| e.rows[r].bad) {
        let row = &e.rows[r];
        let (Some((value, _)), slot) = (e.expected[row.step].as_ref(), scene.token(row).0) else { continue };
        let (slots, ..) = scene.layout().extents(&value.shape);
        let from: Vec<usize> = (0..slots).filter(|p| *p != slot && stands(scene, row, *p)).collect();
        all.extend((!from.is_empty()).then_some((slot, from)));
    }
    all.into_iter().collect()
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

/// Positions that may be all that are moved, if these are seen to be, `apart` from their own.
fn domains(scene: &Scene<'_>, moved: &BTreeSet<usize>, apart: usize) -> Vec<Rows> {
    let (Some(&low), Some(&high)) = (moved.first(), moved.last()) else { return Vec::new() };
    let mut all = vec![Rows::All, Rows::Decoded, Rows::Prompt, Rows::LaterParts];
    if low == high {
        all.push(Rows::Position(low));
    }
    if moved.iter().all(|p| Rows::Decoded.has(*p, part(scene, *p))) {
        // They may be moved by a page: so many slots.
        let rests = [apart, 64, 32, 16, 8, 4, 2].into_iter().filter(|m| *m > 1).map(|m| Rows::Decoding(m, low % m));
        let steps = (low == high).then(|| Rows::Step(part(scene, low).index));
        all.extend(rests.filter(|rows| moved.iter().all(|p| rows.has(*p, part(scene, *p)))).chain(steps));
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
    if moved.iter().all(|p| Rows::LastOfSeveral.has(*p, part(scene, *p))) {
        all.push(Rows::LastOfSeveral);
    }
    all.extend([Rows::From(low), Rows::UpTo(high), Rows::Between(low, high)]);
    all
}

/// A row of the cache after its step, if rows of some positions go to the slots of a rule.
fn written(scene: &Scene<'_>, row: &RowAt, law: &Written) -> Option<Row> {
    let (slot, steps) = (scene.token(row).0, &scene.e.side.capture.steps);
    let (mut holds, prompt) = (None, scene.prompt());
    if law.shared {
        let goes = |p: usize, step: &Step| if law.rows.has(p, step) { law.to.of(p, step, prompt) } else { Some(p) };
        let own = goes(slot, part(scene, slot))?;
        let written = steps[..=row.step].iter().flat_map(|step| (step.first..step.keys()).map(move |p| (p, step)));
        let last = written.rev().find(|(p, step)| goes(*p, step) == Some(own))?;
        return expected(scene, row, last.0);
    }
    // Slots that were filled before the run are as they should be.
    if !steps[..=row.step].iter().any(|step| (step.first..step.keys()).contains(&slot)) {
        return expected(scene, row, slot);
    }
    for step in &steps[..=row.step] {
        for p in step.first..step.keys() {
            let moves = law.rows.has(p, step);
            let there = moves && law.to.of(p, step, prompt) == Some(slot);
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

/// Slots of a page; whether it is read or written in another order, in all steps or the prefill alone; and orders of slots, heads
/// and columns in it, by the numbers of the axes.
const PAGES: [usize; 5] = [8, 16, 32, 64, 128];
const WAYS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];
const ORDERS: [[usize; 3]; 5] = [[1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1], [2, 1, 0]];

/// The address of a place whose axes are in this order.
fn put_together(at: [usize; 3], order: [usize; 3], extents: [usize; 3]) -> usize {
    order.iter().fold(0, |address, &axis| address * extents[axis] + at[axis])
}

/// The place at an address.
fn taken_apart(mut address: usize, order: [usize; 3], extents: [usize; 3]) -> [usize; 3] {
    let mut at = [0; 3];
    for &axis in order.iter().rev() {
        at[axis] = address % extents[axis];
        address /= extents[axis];
    }
    at
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
    let d = scene.e.oracle.graph.config.head_dim;
    // Pages of several slots, whose elements are written in one order of the axes and read in another.
    for page in PAGES.into_iter().filter(|_| width.is_multiple_of(d) && width > d) {
        let extents = [page, width / d, d];
        for (order, back, prefill) in
            ORDERS.into_iter().flat_map(|order| WAYS.map(|(back, prefill)| (order, back, prefill)))
        {
            let axes = ["slots", "heads", "columns"];
            let (usual, names) = (axes.join(" by "), order.map(|axis| axes[axis]).join(" by "));
            let (from, to) = if back { (&usual, &names) } else { (&names, &usual) };
            let where_ = if prefill { " in the prefill" } else { "" };
            let what = format!("pages of {page} slots are written as {from}{where_}, and read as {to}");
            let prompt = if prefill { scene.prompt() } else { usize::MAX };
            let other = move |(slot, j): Place, _: usize| {
                let at = [slot % page, j / d, j % d];
                let [s, h, c] = if back {
                    taken_apart(put_together(at, order, extents), [0, 1, 2], extents)
                } else {
                    taken_apart(put_together(at, [0, 1, 2], extents), order, extents)
                };
                let source = slot / page * page + s;
                // Rows of decode steps go to their own slots, and to no other.
                match (slot < prompt, source < prompt) {
                    (false, _) => Some((slot, j)),
                    (true, true) => Some((source, h * d + c)),
                    (true, false) => None,
                }
            };
            ways.push((what, Rc::new(other)));
        }
    }
    // A part at a time.
    let parts: Rc<[(usize, usize)]> = steps.iter().map(|s| (s.first, s.keys())).collect();
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
                let there = |j| other((slot, from + j), rows).filter(|(s, _)| *s < rows);
                let at = |j| there(j).map(|(s, j)| layout.at(&value.shape, s, j));
                let all: Vec<Option<usize>> = (0..row.range.len()).map(at).collect();
                Some(Row {
                    value: all.iter().map(|at| at.map_or(f64::NAN, |at| value.data[at])).collect(),
                    bound: all.iter().map(|at| at.map_or(0.0, |at| bound[at])).collect(),
                })
            })
        })
        .collect()
}
