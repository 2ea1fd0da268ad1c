//! Weights, or what they are decoded with, of another row and another place of it at once: a kernel reads a tile of a matrix with rows
//! and columns exchanged, or two quarters of it. And offsets, which a kernel may add apart: with the inputs of another token, of
//! another row, or more than once.

use super::factors::{Other, Terms, products};
use super::fields::{self, Apart};
use super::index::Index;
use super::scaled::power;
use super::scene::Scene;
use super::terms::Sums;
use crate::verdict::RowAt;
use qdiff_engine::model::WeightSource;
use qdiff_engine::quant::{self, Offset, Quants};
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

/// A weight made of what is read in its own place and in another one.
type Made = fn(&Apart, usize, &Apart, usize) -> f64;

/// What of a weight may be read there, of formats with a scale or an offset for so many inputs: its integer, its scale, its offset,
/// or the integers that scales and offsets of blocks are made with.
fn parts(quants: Quants, inputs: usize, in_blocks: bool) -> Vec<(&'static str, Made)> {
    let mut all: Vec<(&'static str, Made)> =
        vec![("integers of weights", |own, k, there, at| own.scale[k] * there.quant[at] + own.offset[k])];
    let has_offset = matches!(quants.offset, Offset::PerBlock | Offset::PerSubBlock);
    if !inputs.is_multiple_of(quants.run) {
        return all;
    }
    let both = if has_offset { "scales and offsets" } else { "scales" };
    all.push((both, |own, k, there, at| there.scale[at] * own.quant[k] + there.offset[at]));
    if has_offset {
        all.push(("scales", |own, k, there, at| there.scale[at] * own.quant[k] + own.offset[k]));
        all.push(("offsets", |own, k, there, at| own.scale[k] * own.quant[k] + there.offset[at]));
    }
    if in_blocks {
        let both = if has_offset { "integer scales and offsets" } else { "integer scales" };
        all.push((both, |own, k, there, at| there.scale_in(own, k, at) * own.quant[k] + there.offset_in(own, k, at)));
        if has_offset {
            all.push(("integer scales", |own, k, there, at| there.scale_in(own, k, at) * own.quant[k] + own.offset[k]));
            all.push(("integer offsets", |own, k, there, at| {
                own.scale[k] * own.quant[k] + there.offset_in(own, k, at)
            }));
        }
    }
    all
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
            let tile = move |(r, k): Place, row: usize, group: usize| {
                (r / rows * rows + row, k / width * width + group * each + k % each)
            };
            let by_columns: Map = Rc::new(move |(r, k)| {
                let at = k % width / each * rows + r % rows;
                tile((r, k), at / groups, at % groups)
            });
            let what = format!(
                "each {rows} outputs by {width} inputs are read by columns, {each} inputs at a time, and stand there by rows"
            );
            all.push((what, by_columns, each));
            let by_rows: Map = Rc::new(move |(r, k)| {
                let at = r % rows * groups + k % width / each;
                tile((r, k), at % rows, at / rows)
            });
            let what = format!(
                "each {rows} outputs by {width} inputs are read by rows, {each} inputs at a time, and stand there by columns"
            );
            all.extend((rows != groups).then_some((what, by_rows, each)));
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

/// Rows of a matrix in the place of others, of so many.
fn rows(m: usize) -> Vec<(String, Map, usize)> {
    let of_three = [8, 16, 32, 64, 128]
        .into_iter()
        .flat_map(|each| [3, 4].map(|runs| Index::Runs { each, of: Box::new(Index::First(runs)) }));
    let all = Index::slips(65).into_iter().chain(Index::runs(m)).chain(of_three);
    let map = |index: Index| -> (String, Map, usize) {
        let what = format!("that of the {}", index.told("output", "o"));
        (what, Rc::new(move |(r, k)| (index.of(r, m).unwrap_or(r), k)), WHOLE)
    };
    all.map(map).collect()
}

/// The terms with other weights, which are made once for each output.
fn by_output<'a>(sums: &Rc<Sums<'a>>, make: impl Fn(usize) -> Option<Vec<f64>> + 'a) -> Terms<'a> {
    let (sums, known) = (sums.clone(), RefCell::<HashMap<usize, Option<Rc<Vec<f64>>>>>::default());
    Rc::new(move |row: &RowAt, i, _: &[f64], b: &[f64]| {
        let r = sums.row_of(row, i)?;
        let weights = known.borrow_mut().entry(r).or_insert_with(|| make(r).map(Rc::new)).clone()?;
        Some(products(&weights, b))
    })
}

/// As many inputs as any run of a format divides.
const WHOLE: usize = 256;

pub(super) fn others<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    let ty = scene.e.oracle.weights.ggml_type(&scene.node().weights[0].name);
    let quants = quant::FORMATS.iter().find(|f| f.ty == ty).and_then(|format| format.quants());
    let known = Rc::new(Rows { scene, known: RefCell::default() });
    let (n, m) = scene.e.oracle.weights.extent(&scene.node().weights[0].name);
    let within = move |(r, k): Place, own: Place| if r < m && k < n { (r, k) } else { own };
    // Whole rows are other outputs' (`moved`).
    for (what, map, _) in maps() {
        let read = sums.clone();
        let terms = by_output(sums, move |own| {
            let weight = |k: usize| {
                let (r, at) = within(map((own, k)), (own, k));
                f64::from(read.weight(r)[at])
            };
            Some((0..n).map(weight).collect())
        });
        all.push((format!("weights are those of another place: {what}"), terms));
    }
    let Some(quants) = quants else { return };
    let in_blocks = known.get(0).is_some_and(|row| row.unit.is_some());
    for (what, map, inputs) in maps().into_iter().chain(rows(m)) {
        for (part, made) in parts(quants, inputs, in_blocks) {
            let (known, map) = (known.clone(), map.clone());
            let terms = by_output(sums, move |r| {
                let own = known.get(r)?;
                scene.count(8 * n);
                let value = |k: usize| {
                    let (other, at) = within(map((r, k)), (r, k));
                    Some(made(&own, k, &*known.get(other)?, at))
                };
                (0..n).map(value).collect()
            });
            all.push((format!("{part} are those of another place: {what}"), terms));
        }
    }
    not_cleared(scene, sums, &known, (quants.run, n), all);
    if matches!(quants.offset, Offset::PerBlock | Offset::PerSubBlock) {
        offsets(scene, sums, &known, all);
    }
}

/// What is summed of the inputs of one scale is not cleared before the next inputs: it is added again under their scales.
fn not_cleared<'a>(
    scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, rows: &Rc<Rows<'a>>, (run, n): (usize, usize), all: &mut Vec<Other<'a>>,
) {
    let pieces = [2, 4, 8].into_iter().filter(|pieces| pieces * run < n).chain([n.div_ceil(run)]);
    for (run, pieces) in pieces.flat_map(|pieces| [run, 32.max(run)].map(|run| (run, pieces))) {
        let rows = rows.clone();
        let terms = by_output(sums, move |r| {
            let own = rows.get(r)?;
            scene.count(8 * n);
            let under = |k: usize| {
                let end = ((k / run / pieces + 1) * pieces * run).min(n);
                (k..end).step_by(run).map(|at| own.scale[at]).sum::<f64>() * own.quant[k] + own.offset[k]
            };
            Some((0..n).map(under).collect())
        });
        let of = if run * pieces < n { format!("of each {}", run * pieces) } else { "of a row".to_owned() };
        let what = format!(
            "{of} inputs the sum is not cleared after {run}: it is added again with the scales of the inputs that follow"
        );
        all.push((what, terms));
    }
}

/// Offsets that meet other inputs than the quants do, of another row as well, or more than once: what is then added to the terms.
fn offsets<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, rows: &Rc<Rows<'a>>, all: &mut Vec<Other<'a>>) {
    let (n, m) = scene.e.oracle.weights.extent(&scene.node().weights[0].name);
    type More<'a> = Box<dyn Fn(&Sums<'_>, &RowAt, usize, &Apart, &[f64]) -> Option<Vec<f64>> + 'a>;
    let mut add = |what: String, more: More<'a>| {
        let (sums, rows) = (sums.clone(), rows.clone());
        let terms: Terms<'a> = Rc::new(move |row: &RowAt, i, a: &[f64], b: &[f64]| {
            let r = sums.row_of(row, i)?;
            scene.count(4 * n);
            let more = more(&sums, row, r, &*rows.get(r)?, b)?;
            Some(more.iter().enumerate().map(|(k, more)| a[k] * b[k] + more).collect())
        });
        all.push((what, terms));
    };
    for times in [2.0, 4.0, 8.0, 16.0, 32.0] {
        let more = move |_: &Sums<'_>, _: &RowAt, _: usize, own: &Apart, b: &[f64]| {
            Some(own.offset.iter().zip(b).map(|(offset, x)| (times - 1.0) * offset * x).collect())
        };
        add(format!("offsets count {times} times"), Box::new(more));
    }
    for bits in 8..=20 {
        let more = move |sums: &Sums<'_>, row: &RowAt, _: usize, own: &Apart, b: &[f64]| {
            let by = power(&sums.activations(row)?) / f64::from(bits).exp2();
            Some(own.offset.iter().zip(b).map(|(offset, x)| (by - 1.0) * offset * x).collect())
        };
        let what = format!(
            "offsets meet sums of inputs that are not brought to 2^{bits} as the inputs are, and are scaled back with these"
        );
        add(what, Box::new(more));
    }
    let tokens = [Index::By(-1), Index::By(1), Index::Is(0), Index::Apart(1), Index::Apart(2), Index::Apart(4)];
    let tokens = tokens.into_iter().chain([Index::Apart(8), Index::First(2), Index::First(4), Index::First(8)]);
    for (index, scaled) in tokens.flat_map(|index| [(index.clone(), false), (index, true)]) {
        let back = if scaled { ", under the power of two that brings these to size" } else { "" };
        let what =
            format!("offsets meet the inputs of the part's {}, and not of their own{back}", index.told("token", "t"));
        let more = move |sums: &Sums<'_>, row: &RowAt, _: usize, own: &Apart, b: &[f64]| {
            let (number, count) = scene.number(row.step, scene.token(row).0);
            // Behind the last token there are zeros.
            let there = match index {
                Index::Apart(by) => Some(number ^ by).filter(|other| *other < count),
                _ => Some(index.of(number, count)?),
            };
            let Some(there) = there else { return Some(own.offset.iter().zip(b).map(|(o, x)| -o * x).collect()) };
            let at = scene.numbered(row.step, there)? * n;
            let other = sums.rounded(row, scene.operand(row.step, 0)?.data.get(at..at + n)?);
            let by = if scaled { power(&sums.activations(row)?) / power(&other) } else { 1.0 };
            Some((0..n).map(|k| own.offset[k] * (by * other[k] - b[k])).collect())
        };
        add(what, Box::new(more));
    }
    for by in OUTPUTS {
        let rows = rows.clone();
        let more = move |_: &Sums<'_>, _: &RowAt, r: usize, _: &Apart, b: &[f64]| {
            let other = rows.get(Some(r ^ by).filter(|r| *r < m)?)?;
            Some(other.offset.iter().zip(b).map(|(offset, x)| offset * x).collect())
        };
        add(format!("offsets of the output {by} apart, in pairs, are added as well"), Box::new(more));
    }
}
