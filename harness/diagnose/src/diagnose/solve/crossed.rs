//! Weights, or what they are decoded with, of another row and another place of it at once: a kernel reads a tile of a matrix with rows
//! and columns exchanged, or two quarters of it. And offsets, which a kernel may add apart: with the inputs of another token, of
//! another row, or more than once.

use super::factors::{Other, Terms};
use super::fields::{self, Apart};
use super::index::Index;
use super::scene::Scene;
use super::terms::Sums;
use crate::verdict::RowAt;
use qdiff_engine::model::WeightSource;
use qdiff_engine::quant::{self, Offset};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Outputs that stand together in a tile, and inputs.
const OUTPUTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const INPUTS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// A row of the matrix and a place in it.
type Place = (usize, usize);

/// Where a weight is read instead, of so many rows and inputs.
type Map = Rc<dyn Fn(Place) -> Place>;

/// What of a weight is read there.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Weight,
    Scale,
    Offset,
    Both,
}

impl Part {
    fn name(self, has_offset: bool) -> &'static str {
        match self {
            Self::Weight => "weights",
            Self::Scale => "scales",
            Self::Offset => "offsets",
            Self::Both if has_offset => "scales and offsets",
            Self::Both => "scales",
        }
    }
}

/// Ways to read tiles of a matrix, in words, and the number of inputs that stand together.
fn maps() -> Vec<(String, Map, usize)> {
    let mut all: Vec<(String, Map, usize)> = Vec::new();
    for (outputs, inputs) in OUTPUTS.into_iter().flat_map(|outputs| INPUTS.map(|inputs| (outputs, inputs))) {
        let map: Map = Rc::new(move |(r, k)| match (r / outputs + k / inputs) % 2 {
            1 => (r ^ outputs, k ^ inputs),
            _ => (r, k),
        });
        let what = format!(
            "of each {} outputs by {} inputs the two quarters beside the diagonal change places",
            2 * outputs,
            2 * inputs
        );
        all.push((what, map, inputs));
    }
    for (rows, groups) in [(8, 2), (8, 4), (8, 8), (16, 2), (16, 4), (16, 8), (16, 16), (4, 4), (4, 2)] {
        // A square of single weights is turned, which `indexed` covers for tiles.
        for each in [1usize, 2, 4, 8].into_iter().filter(|each| *each > 1 || rows != groups) {
            let width = groups * each;
            let map: Map = Rc::new(move |(r, k)| {
                let at = k % width / each * rows + r % rows;
                (r / rows * rows + at / groups, k / width * width + at % groups * each + k % each)
            });
            let what = format!(
                "each {rows} outputs by {width} inputs are read by columns, {each} inputs at a time, and stand there by rows"
            );
            all.push((what, map, each));
        }
    }
    all
}

/// Rows that are taken apart, each once.
struct Rows<'a> {
    scene: &'a Scene<'a>,
    known: RefCell<HashMap<usize, Option<Rc<Apart>>>>,
}

impl<'a> Rows<'a> {
    fn get(&self, row: usize) -> Option<Rc<Apart>> {
        let source: &dyn WeightSource = &*self.scene.e.oracle.weights;
        let name = &self.scene.node().weights[0].name;
        let read = || fields::apart(source, name, row).map(Rc::new);
        self.known.borrow_mut().entry(row).or_insert_with(read).clone()
    }
}

pub(super) fn others<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    let ty = scene.e.oracle.weights.ggml_type(&scene.node().weights[0].name);
    let quants = quant::FORMATS.iter().find(|f| f.ty == ty).and_then(|format| format.quants());
    let has_offset = quants.is_some_and(|q| matches!(q.offset, Offset::PerBlock | Offset::PerSubBlock));
    let rows = Rc::new(Rows { scene, known: RefCell::default() });
    let (n, m) = scene.e.oracle.weights.extent(&scene.node().weights[0].name);
    for (what, map, inputs) in maps() {
        let parts: &[Part] = match quants {
            Some(quants) if inputs.is_multiple_of(quants.run) && has_offset => {
                &[Part::Weight, Part::Scale, Part::Offset, Part::Both]
            }
            Some(quants) if inputs.is_multiple_of(quants.run) => &[Part::Weight, Part::Both],
            _ => &[Part::Weight],
        };
        for &part in parts {
            let (sums, rows, map) = (sums.clone(), rows.clone(), map.clone());
            let terms: Terms<'a> = Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
                let r = sums.row_of(row, i)?;
                let there = |k: usize| Some(map((r, k))).filter(|(r, k)| *r < m && *k < n).unwrap_or((r, k));
                if part == Part::Weight {
                    let weight = |k: usize| f64::from(sums.weight(there(k).0)[there(k).1]);
                    return Some((0..n).map(|k| weight(k) * b[k]).collect());
                }
                let own = rows.get(r)?;
                let value = |k: usize| -> Option<f64> {
                    let (r, at) = there(k);
                    let other = rows.get(r)?;
                    let scale = if part == Part::Offset { own.scale[k] } else { other.scale[at] };
                    let offset = if part == Part::Scale { own.offset[k] } else { other.offset[at] };
                    Some(scale * own.quant[k] + offset)
                };
                scene.count(8 * a.len());
                (0..n).map(|k| Some(value(k)? * b[k])).collect()
            });
            all.push((format!("{} are those of another place: {what}", part.name(has_offset)), terms));
        }
    }
    if has_offset {
        offsets(scene, sums, &rows, all);
    }
}

/// Offsets that meet other inputs than the quants do, of another row as well, or more than once: what is then added to the terms.
fn offsets<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, rows: &Rc<Rows<'a>>, all: &mut Vec<Other<'a>>) {
    let (n, m) = scene.e.oracle.weights.extent(&scene.node().weights[0].name);
    type More<'a> = Box<dyn Fn(&RowAt, usize, &Apart, &[f64]) -> Option<Vec<f64>> + 'a>;
    let mut add = |what: String, more: More<'a>| {
        let (sums, rows) = (sums.clone(), rows.clone());
        let terms: Terms<'a> = Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
            let r = sums.row_of(row, i)?;
            scene.count(4 * n);
            let more = more(row, r, &*rows.get(r)?, b)?;
            Some(more.iter().enumerate().map(|(k, more)| a[k] * b[k] + more).collect())
        });
        all.push((what, terms));
    };
    for times in [2.0, 4.0, 8.0, 16.0, 32.0] {
        let more = move |_: &RowAt, _: usize, own: &Apart, b: &[f64]| {
            Some(own.offset.iter().zip(b).map(|(offset, x)| (times - 1.0) * offset * x).collect())
        };
        add(format!("offsets count {times} times"), Box::new(more));
    }
    let tokens = [Index::By(-1), Index::By(1), Index::Is(0), Index::Apart(1), Index::Apart(2), Index::Apart(4)];
    for index in tokens.into_iter().chain([Index::Apart(8), Index::First(2), Index::First(4), Index::First(8)]) {
        let sums = sums.clone();
        let what = format!("offsets meet the inputs of the part's {}, and not of their own", index.told("token", "t"));
        let more = move |row: &RowAt, _: usize, own: &Apart, b: &[f64]| {
            let (number, count) = scene.number(row.step, scene.token(row).0);
            let at = scene.numbered(row.step, index.of(number, count)?)? * n;
            let other = sums.rounded(row, scene.operand(row.step, 0)?.data.get(at..at + n)?);
            Some((0..n).map(|k| own.offset[k] * (other[k] - b[k])).collect())
        };
        add(what, Box::new(more));
    }
    for by in OUTPUTS {
        let rows = rows.clone();
        let more = move |_: &RowAt, r: usize, _: &Apart, b: &[f64]| {
            let other = rows.get(Some(r ^ by).filter(|r| *r < m)?)?;
            Some(other.offset.iter().zip(b).map(|(offset, x)| offset * x).collect())
        };
        add(format!("offsets of the output {by} apart, in pairs, are added as well"), Box::new(more));
    }
}
