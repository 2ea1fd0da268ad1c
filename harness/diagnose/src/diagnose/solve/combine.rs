//! Sums that are not the right ones: the right value times a factor, plus a multiple of another vector. Both numbers are
//! fitted by least squares and must be the same for every wrong element.

use super::elsewhere::expected;
use super::scene::{Layout, Scene};
use super::{Law, Row, short};
use crate::verdict::RowAt;
use qdiff_engine::model::StageId;
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{Anatomy, UNIT};
use std::rc::Rc;

/// Where the second vector of the sum comes from.
#[derive(Clone)]
enum Other {
    /// None: a factor alone.
    Nothing,
    /// One, in every element.
    One,
    /// Another stage of the step, of the token so many rows away.
    Stage(StageId, i64),
    /// A vector of the model.
    Weight(String, Rc<Vec<f32>>),
    /// The stage's own right value of the token so many rows away.
    Token(i64),
    /// The stage's own right value of the column so many further on, round the end.
    Column(usize),
    /// That of the column so many apart, in pairs.
    Pair(usize),
    /// What the step before left at the same place.
    Before,
}

impl Other {
    fn values(&self, scene: &Scene<'_>, row: &RowAt) -> Option<Vec<f64>> {
        let (token, from) = scene.token(row);
        let all = from..from + row.range.len();
        match self {
            Self::Nothing => Some(vec![0.0; row.range.len()]),
            Self::One => Some(vec![1.0; row.range.len()]),
            Self::Weight(_, vector) => Some(vector.get(all)?.iter().map(|v| f64::from(*v)).collect()),
            Self::Token(by) => Some(expected(scene, row, token as i64 + by, from as i64)?.value),
            Self::Column(_) | Self::Pair(_) => {
                let width = scene.width()?;
                let column = |j: usize| match self {
                    Self::Column(by) => (j + by) % width,
                    Self::Pair(by) if j ^ by < width => j ^ by,
                    _ => j,
                };
                let whole = whole(scene, row, width)?;
                Some(all.map(|j| whole[column(j)]).collect())
            }
            Self::Before => {
                let tensor = scene.tensor(row.step.checked_sub(1)?, scene.node().id)?;
                Some(tensor.data.get(row.range.clone())?.iter().map(|v| f64::from(*v)).collect())
            }
            Self::Stage(id, by) => {
                let graph = &scene.e.oracle.graph;
                let layout = Layout::of(&graph.nodes[graph.index(*id)?]);
                let tensor = scene.tensor(row.step, *id)?;
                let (tokens, _, width) = layout.extents(&tensor.shape);
                let token = usize::try_from(token as i64 + by).ok().filter(|t| *t < tokens)?;
                (all.end <= width)
                    .then(|| all.map(|j| f64::from(tensor.data[layout.at(&tensor.shape, token, j)])).collect())
            }
        }
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let mut others = vec![Other::Nothing, Other::One];
    others.extend(scene.vectors().into_iter().map(|(name, values)| Other::Weight(name, Rc::new(values))));
    let alike = scene.alike();
    others.extend(alike.iter().map(|id| Other::Stage(*id, 0)));
    others.extend(alike.iter().flat_map(|id| [-1, 1].map(|by| Other::Stage(*id, by))));
    if !scene.of_pairs() {
        others.extend([-1, 1, -2, 2].map(Other::Token));
        others.push(Other::Before);
        let width = scene.width().unwrap_or(1);
        let powers = || (0..10).map(|b| 1usize << b).filter(move |by| *by < width);
        others.extend(powers().map(Other::Pair));
        others.extend(powers().flat_map(|by| [Other::Column(by), Other::Column(width - by)]));
        others.extend(scene.head().into_iter().flat_map(|d| [Other::Column(d), Other::Column(width - d)]));
    }
    // A rotation of slow planes goes nearly straight on: what was given is then near any sum of input and output.
    others.retain(|o| !matches!((o, scene.node().op.anatomy()), (Other::Stage(id, _), Anatomy::Elementwise(Elementwise::Rotation(_))) if input(scene, *id)));
    let mut all: Vec<(bool, Law<'a>)> = others.into_iter().filter_map(|other| law(scene, other)).collect();
    // Of two sums that are one, as w + x and 2w − y are where w = x + y, that which scales nothing.
    all.sort_by_key(|(scaled, _)| *scaled);
    all.into_iter().map(|(_, law)| law).collect()
}

/// Whether the stage reads another.
fn input(scene: &Scene<'_>, id: StageId) -> bool {
    scene.node().inputs.iter().any(|&i| scene.e.oracle.graph.nodes[i].id == id)
}

/// The right values of a token's whole vector.
fn whole(scene: &Scene<'_>, row: &RowAt, width: usize) -> Option<Vec<f64>> {
    let (value, _) = scene.e.expected[row.step].as_ref()?;
    let (layout, token) = (scene.layout(), scene.token(row).0);
    Some((0..width).map(|j| value.data[layout.at(&value.shape, token, j)]).collect())
}

/// `(a, b)` of `got = a·want + b·other`, each residual in units of its bound.
fn fitted(scene: &Scene<'_>, other: &Other) -> Option<(f64, f64)> {
    let (mut ww, mut wz, mut zz, mut gw, mut gz) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let mut row = None;
    for &(r, i) in &scene.fit {
        if row.as_ref().is_none_or(|(known, _): &(usize, Vec<f64>)| *known != r) {
            row = Some((r, other.values(scene, &scene.e.rows[r])?));
        }
        let z = row.as_ref()?.1[i];
        let (got, want, bound) = scene.element((r, i));
        let weight = 1.0 / (f64::from(bound) + UNIT * got.abs()).powi(2);
        ww += weight * want * want;
        wz += weight * want * z;
        zz += weight * z * z;
        gw += weight * got * want;
        gz += weight * got * z;
    }
    if matches!(other, Other::Nothing) {
        return (ww > 0.0).then(|| (gw / ww, 0.0));
    }
    let det = ww * zz - wz * wz;
    (det > 1e-12 * ww * zz).then(|| ((gw * zz - gz * wz) / det, (ww * gz - wz * gw) / det))
}

/// A number as it was meant: a small one, or one over a small one, where it is that to four digits.
fn meant(x: f64) -> f64 {
    let simple = [0.0, 1.0, 2.0, 0.5, 3.0, 4.0, 0.25, 8.0, 0.125, 1.0 / 3.0];
    let found = simple.into_iter().flat_map(|s| [s, -s]).find(|s| (x - s).abs() <= 1e-4 * s.abs().max(0.01));
    found.unwrap_or(x)
}

/// The law, and whether it scales the right value.
fn law<'a>(scene: &'a Scene<'a>, other: Other) -> Option<(bool, Law<'a>)> {
    let (a, b) = fitted(scene, &other)?;
    let (a, b) = (meant(a), meant(b));
    if !(a.is_finite() && b.is_finite()) || (a == 1.0 && b == 0.0) || (b == 0.0 && !matches!(other, Other::Nothing)) {
        return None;
    }
    // The stage's own values alone, of elsewhere, are told as moved.
    if a == 0.0 && b == 1.0 && matches!(other, Other::Token(_) | Other::Column(_) | Other::Pair(_) | Other::Before) {
        return None;
    }
    // A constant alone is told as one, or as a limit.
    if a == 0.0 && matches!(other, Other::One) {
        return None;
    }
    // Nobody takes off what the stage does not read: another operand stands in an operand's place (`operands`).
    let foreign = matches!(&other, Other::Stage(id, _) if !input(scene, *id));
    if foreign && (a, b) == (1.0, -1.0) {
        return None;
    }
    let what = told(scene, &other, a, b);
    let scaled = a != 1.0 && a != 0.0;
    let law = Law::new(what, 2, move |row: &RowAt| {
        let z = other.values(scene, row)?;
        let (_, want, bound) = scene.e.row(row);
        let value = want.iter().zip(&z).map(|(w, z)| a * w + b * z).collect();
        let reach = |((w, z), k): ((&f64, &f64), &f32)| {
            (f64::from(*k) * a.abs().max(1.0) + UNIT * ((a * w).abs() + (b * z).abs())) as f32
        };
        Some(Row { value, bound: want.iter().zip(&z).zip(bound).map(reach).collect() })
    });
    Some((scaled, law))
}

fn told(scene: &Scene<'_>, other: &Other, a: f64, b: f64) -> String {
    let graph = &scene.e.oracle.graph;
    let name = match other {
        Other::Nothing if a == -1.0 => return "the sign is wrong".to_owned(),
        Other::Nothing => return format!("the right value times {} stands there", short(a)),
        Other::One if a == 1.0 => return format!("a constant is added: {}", short(b)),
        Other::One => return format!("the right value times {} plus {} stands there", short(a), short(b)),
        Other::Weight(name, _) => name.clone(),
        Other::Token(by) => {
            format!(
                "the right value of the token {} {} in the part",
                by.abs(),
                if *by < 0 { "before" } else { "after" }
            )
        }
        Other::Column(by) => match scene.width() {
            Some(width) if by * 2 > width => {
                format!("the right value of the column {} before, round the end,", width - by)
            }
            _ => format!("the right value of the column {by} after, round the end,"),
        },
        Other::Pair(by) => format!("the right value of the column {by} apart, in pairs,"),
        Other::Before => "what the step before left in the buffer".to_owned(),
        Other::Stage(id, 0) => id.to_string(),
        Other::Stage(id, by) => {
            format!("{id} of the token {} {} in the part", by.abs(), if *by < 0 { "before" } else { "after" })
        }
    };
    let own_weight = scene.node().weights.iter().any(|w| w.name == name);
    let input = scene.node().inputs.iter().any(|&i| graph.nodes[i].id.to_string() == name);
    match (a, b) {
        (1.0, 1.0) if own_weight || input => format!("{name} is added twice"),
        (1.0, 1.0) => format!("{name} is added as well"),
        (1.0, -1.0) if own_weight || input => format!("{name} is not added"),
        (1.0, -1.0) => format!("{name} is subtracted"),
        (1.0, -2.0) if own_weight || input => format!("{name} is subtracted instead of added"),
        (1.0, _) => format!("{} times {name} is added", short(b)),
        (0.0, 1.0) => format!("{name} alone stands there"),
        (0.0, _) => format!("{} times {name} stands there", short(b)),
        _ => format!("{} times the right value plus {} times {name} stands there", short(a), short(b)),
    }
}
