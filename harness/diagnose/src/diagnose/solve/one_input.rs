//! One input of a row that counts otherwise than it was given: an integer that overflows, a largest value that is cut off, an
//! element that a buffer lost.
//!
//! The error of every output of the row then goes with the weights of that input. Which input it is, and what it counts as, is
//! read off every other output, and must give the rest.

use super::scene::Scene;
use super::terms::Sums;
use super::{Law, Row};
use crate::verdict::RowAt;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Outputs that the input is read off, and weights that are read for them.
const OUTPUTS: usize = 64;
const WEIGHTS: usize = 1 << 22;

/// The share of the error that the weights of no input may leave.
const LEFT: f64 = 1e-4;

/// An input that counts as another number.
#[derive(Clone, Copy)]
struct Counted {
    input: usize,
    own: f64,
    as_: f64,
    /// Whether it is the largest of its 32.
    largest: bool,
}

impl Counted {
    /// The one that gives the error of a row.
    fn of(scene: &Scene<'_>, sums: &Sums<'_>, row: &RowAt) -> Option<Self> {
        let (got, want, bound) = scene.e.row(row);
        let from = scene.token(row).1;
        let looked_at = (0..got.len()).step_by(2).filter(|i| sums.has(from + i));
        let outputs: Vec<usize> = super::scene::evenly(looked_at.collect(), OUTPUTS);
        let x = sums.activations(row)?;
        if outputs.len() < 8 || outputs.len() * x.len() > WEIGHTS {
            return None;
        }
        let (mut we, mut ww, mut ee) = (vec![0f64; x.len()], vec![0f64; x.len()], 0.0);
        for i in outputs {
            let error = f64::from(got[i]) - want[i];
            let units = 1.0 / f64::from(bound[i]).max(f64::MIN_POSITIVE);
            ee += (error * units).powi(2);
            for (k, w) in sums.weight(sums.row_of(row, i)?).iter().enumerate() {
                let w = f64::from(*w) * units;
                we[k] += w * error * units;
                ww[k] += w * w;
            }
            scene.count(4 * x.len());
        }
        let gives = |k: usize| if ww[k] > 0.0 { we[k] * we[k] / ww[k] } else { 0.0 };
        let input = (0..x.len()).max_by(|a, b| gives(*a).total_cmp(&gives(*b)))?;
        let run = input / 32 * 32;
        let largest = x[run..(run + 32).min(x.len())].iter().all(|v| v.abs() <= x[input].abs());
        let counted = Self { input, own: x[input], as_: x[input] + we[input] / ww[input], largest };
        (ee - gives(input) <= LEFT * ee).then_some(counted)
    }

    /// What it counts as, in words.
    fn words(all: &[Self]) -> String {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * a.abs().max(b.abs());
        // What an integer of a power of two loses when it overflows: of its own size, twice or four times.
        let above = |v: f64| v.abs().log2().ceil().exp2();
        let each = |f: &dyn Fn(&Self) -> bool| all.iter().all(f);
        let first = all[0].as_.abs();
        let what = if each(&|c| c.as_.abs() <= 1e-3 * c.own.abs()) {
            "as 0".to_owned()
        } else if each(&|c| near(c.as_, -c.own)) {
            "with the wrong sign".to_owned()
        } else if let Some(by) =
            [1.0, 2.0, 4.0].into_iter().find(|by| each(&|c| near(c.own - c.as_, (by * above(c.own)).copysign(c.own))))
        {
            let times = if by == 1.0 { String::new() } else { format!("{by} times ") };
            format!("as itself less {times}the next power of two, as an integer does that overflows")
        } else if all.len() > 1 && each(&|c| near(c.as_.abs(), first) && c.as_.abs() < c.own.abs()) {
            "as a limit that it is cut off at".to_owned()
        } else {
            "as another number".to_owned()
        };
        let input = all[0].input;
        let same = all.len() > 1 && each(&|c| c.input == input);
        if same && what == "as 0" {
            return format!("input {input} is missing from every sum");
        }
        let which = if same {
            format!("input {input}")
        } else if each(&|c| c.largest) {
            "one input of the row, the largest of its 32,".to_owned()
        } else {
            "one input of the row".to_owned()
        };
        format!("{which} counts {what}")
    }
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !scene.node().op.anatomy().multiplies_weights() {
        return Vec::new();
    }
    let Some(sums) = Sums::new(scene).map(Rc::new) else { return Vec::new() };
    let wrong = scene.rows.iter().filter(|&&r| scene.wrong_in(r)).map(|&r| &scene.e.rows[r]);
    let Some(all) = wrong.map(|row| Counted::of(scene, &sums, row)).collect::<Option<Vec<Counted>>>() else {
        return Vec::new();
    };
    if all.is_empty() {
        return Vec::new();
    }
    let known: RefCell<HashMap<(usize, usize), Option<Counted>>> = RefCell::default();
    let law = Law::new(Counted::words(&all), 1, move |row: &RowAt| {
        let (_, want, bound) = scene.e.row(row);
        let key = (row.step, row.range.start);
        let found = *known
            .borrow_mut()
            .entry(key)
            .or_insert_with(|| if row.bad { Counted::of(scene, &sums, row) } else { None });
        let from = scene.token(row).1;
        let value = |i: usize| match &found {
            Some(_) if !sums.has(from + i) => f64::NAN,
            Some(counted) => sums.row_of(row, i).map_or(f64::NAN, |output| {
                want[i] + f64::from(sums.weight(output)[counted.input]) * (counted.as_ - counted.own)
            }),
            // A row whose inputs count as they are.
            None => want[i] + 256.0 * (f64::from(bound[i]) + 1e-6 * want[i].abs()),
        };
        Some(Row { value: (0..want.len()).map(value).collect(), bound: bound.iter().map(|b| 2.0 * b).collect() })
    });
    vec![Law { of_even: Some(usize::MAX), ..law }]
}
