//! Rows of a cache that are written to the wrong slots. It has two effects: the slot that is written in their place holds
//! them and loses what belongs there, and their own keeps what it held.
//!
//! Which row stands in which slot is read off the wrong slots. A rule `f(p)` for the slot of position p, and of which
//! positions it holds, is then carried out for the whole run: a slot holds the last row that was written to it. One that
//! nobody wrote must be as it was after the step before; where that is not captured, nothing is said of it.

use super::maps::{TILES, strides, transposed};
use super::scene::Scene;
use super::{Law, Row};
use crate::capture::Step;
use crate::verdict::{RowAt, right};
use qdiff_engine::ops::Anatomy;
use std::collections::BTreeSet;
use std::rc::Rc;

/// The slot of a position, given the part that it is of.
type Slot = Rc<dyn Fn(usize, &Step) -> Option<usize>>;

/// Positions that a rule is about, in words after "each row"; with the part that a position is of.
type Domain = (String, Moves);

/// Whether a rule is about a position, given the part that it is of.
type Moves = Rc<dyn Fn(usize, &Step) -> bool>;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !matches!(scene.node().op.anatomy(), Anatomy::State(_)) {
        return Vec::new();
    }
    let moved = moved(scene);
    let mut all = Vec::new();
    if let (Some(first), Some(last)) = (moved.first(), moved.iter().next_back()) {
        let positions: BTreeSet<usize> = moved.iter().map(|(p, _)| *p).collect();
        let own =
            if known(scene) { ", and its own keeps what it held" } else { ", and its own holds no row of this run" };
        let holds = |f: &Slot| moved.iter().all(|(p, s)| f(*p, part(scene, *p)) == Some(*s));
        for (seen, rule, f) in rules(*first, *last).into_iter().filter(|(.., f)| holds(f)) {
            for (whose, of) in domains(scene, &positions) {
                for (as_well, told) in [(false, own), (true, " as well as to its own")] {
                    let what = format!("{seen}: each row{whose} is written {}{told}", rule.trim_end_matches(','));
                    let (f, of) = (f.clone(), of.clone());
                    all.push(Law::new(what, 2, move |row: &RowAt| written(scene, row, &f, &of, as_well)));
                }
            }
        }
    }
    all.extend(places(scene));
    all
}

/// The step that writes a position.
fn part<'a>(scene: &'a Scene<'_>, position: usize) -> &'a Step {
    let steps = &scene.e.side.capture.steps;
    steps.iter().find(|s| (s.first..s.keys()).contains(&position)).unwrap_or(&steps[0])
}

/// Whether what wrong slots hold that have no row is what stood there after the step before, or zero.
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

/// Which position's row stands in which wrong slot.
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
    super::elsewhere::expected(scene, row, slot as i64, scene.token(row).1 as i64)
}

/// Rules that may give these two pairs of a position and its slot: what is then seen, and what is done.
fn rules((p0, s0): (usize, usize), (p1, s1): (usize, usize)) -> Vec<(String, String, Slot)> {
    let mut rules: Vec<(String, Slot)> = Vec::new();
    let all = &mut rules;
    let by = s0 as i64 - p0 as i64;
    let count = if by.abs() == 1 { "slot" } else { "slots" };
    let what = format!("{} {count} {} its own", by.abs(), if by < 0 { "before" } else { "after" });
    all.push((what, Rc::new(move |p, _| usize::try_from(p as i64 + by).ok())));
    all.push(("to the slot of its number in the part".to_owned(), Rc::new(|p, step| Some(p - step.first))));
    all.push((
        "to the slot of its number in the part and twice the part's first".to_owned(),
        Rc::new(|p, step| Some(p + step.first)),
    ));
    for m in 2..=64usize {
        all.push((format!("to slot p mod {m}, for position p,"), Rc::new(move |p, _| Some(p % m))));
        all.push((format!("to the first slot of its {m}"), Rc::new(move |p, _| Some(p / m * m))));
        all.push((format!("to the last slot of its {m}"), Rc::new(move |p, _| Some(p / m * m + m - 1))));
        all.push((
            format!("to the slot at the other end of its {m}"),
            Rc::new(move |p, _| Some(p / m * m + m - 1 - p % m)),
        ));
        all.push((
            format!("to the next slot, round the end of its {m},"),
            Rc::new(move |p, _| Some(p / m * m + (p % m + 1) % m)),
        ));
        all.push((
            format!("to the slot before, round the end of its {m},"),
            Rc::new(move |p, _| Some(p / m * m + (p % m + m - 1) % m)),
        ));
        if m.is_power_of_two() {
            let bit = m / 2;
            all.push((format!("to the slot {bit} apart, in pairs,"), Rc::new(move |p, _| Some(p ^ bit))));
        }
    }
    all.push((format!("to slot {s0}"), Rc::new(move |_, _| Some(s0))));
    all.push(("to the slot of the part's first row".to_owned(), Rc::new(|_, step| Some(step.first))));
    all.push(("to the slot of the part's last row".to_owned(), Rc::new(|_, step| Some(step.keys() - 1))));
    all.push((
        "in reverse order within its part".to_owned(),
        Rc::new(|p, step| Some(step.first + step.keys() - 1 - p)),
    ));
    // No rule but the pairs themselves.
    if (p0, s0) != (p1, s1) {
        let what = format!("to the other's slot, of positions {p0} and {p1}");
        let of = move |p, _: &Step| Some(if p == p0 { s0 } else { s1 });
        if (p0, p1) == (s1, s0) {
            all.push((what, Rc::new(of)));
        }
    }
    // What is seen of it.
    let seen = match by {
        1.. => format!("the row {by} before stands there"),
        _ => format!("the row {} after stands there", -by),
    };
    let told = |(rule, f): (String, Slot)| match rule.strip_prefix("to slot p mod ").and_then(|m| m.split_once(',')) {
        Some((m, _)) => (format!("slots are counted modulo {m}"), rule.clone(), f),
        None if rule.starts_with("to slot ") => (format!("row {p0} stands in slot {s0}"), rule, f),
        None => (seen.clone(), rule, f),
    };
    rules.into_iter().map(told).collect()
}

/// Positions that may be all that are moved, if these are seen to be.
fn domains(scene: &Scene<'_>, moved: &BTreeSet<usize>) -> Vec<Domain> {
    let (Some(&low), Some(&high)) = (moved.first(), moved.last()) else { return Vec::new() };
    let mut all: Vec<Domain> = vec![
        (String::new(), Rc::new(|_, _| true)),
        (" of a decode step".to_owned(), Rc::new(|_, step| step.index > 0 && step.tokens.len() == 1)),
        (" of the prefill".to_owned(), Rc::new(|_, step| step.index == 0)),
    ];
    let mut add = |words: String, of: Moves| all.push((words, of));
    if low == high {
        add(format!(", that of position {low} alone,"), Rc::new(move |p, _| p == low));
    }
    for m in [2usize, 3, 4, 5, 8, 16, 32, 64] {
        let rest = low % m;
        if moved.len() > 1 && moved.iter().all(|p| p % m == rest) {
            add(format!(" where position mod {m} = {rest}"), Rc::new(move |p, _| p % m == rest));
        }
    }
    let number = low - part(scene, low).first;
    if moved.len() > 1 && moved.iter().all(|p| p - part(scene, *p).first == number) {
        add(format!(" with number {number} in its part"), Rc::new(move |p, step| p - step.first == number));
    }
    if moved.iter().all(|p| p + 1 == part(scene, *p).keys()) {
        add(" that is the last of its part".to_owned(), Rc::new(|p, step| p + 1 == step.keys()));
    }
    add(format!(" from position {low} on"), Rc::new(move |p, _| p >= low));
    add(format!(" up to position {high}"), Rc::new(move |p, _| p <= high));
    add(format!(" of positions {low} to {high}"), Rc::new(move |p, _| (low..=high).contains(&p)));
    all
}

/// A row of the cache after its step, if rows of some positions go to the slots of a rule.
fn written(scene: &Scene<'_>, row: &RowAt, f: &Slot, of: &Moves, as_well: bool) -> Option<Row> {
    let (slot, steps) = (scene.token(row).0, &scene.e.side.capture.steps);
    let mut holds = None;
    for step in &steps[..=row.step] {
        for p in step.first..step.keys() {
            let moves = of(p, step);
            let there = moves && f(p, step) == Some(slot);
            if there || p == slot && (!moves || as_well) {
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
    // The slot and column whose value stands in one, of so many rows.
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
