//! Which terms: least squares of the error of a sum on the partial sums of groups of its terms.
//!
//! A stage that is a sum of products, `y = Σ p_i`, errs by `Σ_g c_g · Σ_{i in g} p_i` if the terms of group g are taken
//! 1 + c_g times: left out (−1), taken twice (1), scaled (`groups`). The c_g are fitted on the error of
//! half of the wrong elements, each in units of its bound; they must be whole numbers, or one number, to be reported.

use super::groups::{Groups, told};
use super::scene::{Layout, Scene, evenly};
use super::{At, Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::model::WeightSource as _;
use qdiff_engine::ops::anatomy::{Contraction, index, line_of};
use qdiff_engine::ops::{Anatomy, Attention};
use qdiff_engine::quant::{self, ActivationFormat};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Elements that are fitted at most, and rows of a weight that are read for them.
const ELEMENTS: usize = 768;
const OUTPUTS: usize = 512;

/// Outputs of a layer that are all looked at, and of a wider one how many in a row.
const NARROW: usize = 1024;
const RUN: usize = 64;

/// Groups that are fitted at once.
const GROUPS: usize = 160;

/// A coefficient this near a whole number is one.
const WHOLE: f64 = 0.01;

/// Activations by step and token.
pub(super) type Rows = HashMap<(usize, usize), Rc<Vec<f64>>>;

/// The terms of the sums of a stage.
pub(super) struct Sums<'a> {
    pub(super) scene: &'a Scene<'a>,
    weights: RefCell<HashMap<usize, Rc<Vec<f32>>>>,
    rows: RefCell<Rows>,
    /// Outputs of a product with weights that are looked at, of so many: of each expert the same.
    outputs: BTreeSet<usize>,
    width: usize,
}

impl<'a> Sums<'a> {
    pub(super) fn new(scene: &'a Scene<'a>) -> Option<Self> {
        let (mut outputs, mut width) = (BTreeSet::new(), 1);
        match scene.node().op.anatomy() {
            Anatomy::Contraction(Contraction::Weight(picked)) => {
                let wrong: BTreeSet<usize> = scene.fit.iter().map(|(_, i)| *i).collect();
                width = match picked {
                    None => scene.width()?,
                    Some(picked) => scene.weights().extent(&scene.node().weights[0].name).1 / picked.groups.max(1),
                };
                if width <= NARROW {
                    outputs.extend(0..width);
                } else {
                    outputs.extend(evenly(wrong.into_iter().collect(), OUTPUTS));
                    // Right ones too, whole runs of them, which show where the law does not hold.
                    let runs = (0..8).map(|i| i * (width - RUN) / 7);
                    outputs.extend(runs.flat_map(|first| first..first + RUN));
                }
                scene.operand(0, 0).or_else(|| scene.operand(scene.e.rows.first()?.step, 0))?;
            }
            Anatomy::Contraction(Contraction::Scores(_) | Contraction::Context(_) | Contraction::Rows(_)) => {}
            Anatomy::Gather(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => return None,
            Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => return None,
        }
        Some(Self { scene, weights: RefCell::default(), rows: RefCell::default(), outputs, width })
    }

    /// Whether an output of a product with weights is looked at, by its place in its token's vector.
    pub(super) fn looks_at(&self, output: usize) -> bool {
        self.scene.asks(output) && self.has(output)
    }

    /// The same, whether it is needed at the moment or not.
    pub(super) fn has(&self, output: usize) -> bool {
        self.outputs.contains(&(output % self.width))
    }

    /// The row of the weight that makes element `i` of a row: of experts that of the chosen one.
    pub(super) fn row_of(&self, row: &RowAt, i: usize) -> Option<usize> {
        self.row_for(row, i, expert(self.scene, row)?)
    }

    /// The same as of some expert.
    pub(super) fn row_for(&self, row: &RowAt, i: usize, expert: usize) -> Option<usize> {
        Some(expert * self.width + (self.scene.token(row).1 + i) % self.width)
    }

    /// The weights of a row of the weight: of one output.
    pub(super) fn weight(&self, output: usize) -> Rc<Vec<f32>> {
        let name = &self.scene.node().weights[0].name;
        let read = || {
            let mut row = vec![0f32; self.scene.e.oracle.weights.extent(name).0];
            self.scene.count(4 * row.len());
            self.scene.weights().rows(name, output, &mut row);
            Rc::new(row)
        };
        self.weights.borrow_mut().entry(output).or_insert_with(read).clone()
    }

    /// The activations of a token, in the arithmetic of the runner.
    pub(super) fn activations(&self, row: &RowAt) -> Option<Rc<Vec<f64>>> {
        let scene = self.scene;
        let (inputs, n) = (scene.operand(row.step, 0)?, scene.weights().extent(&scene.node().weights[0].name).0);
        let lines = scene.shape(row.step).iter().product::<usize>() / self.width;
        // Experts may share the row of their token.
        let line = line_of(inputs.data.len(), n, line(scene, row), lines);
        if let Some(known) = self.rows.borrow().get(&(row.step, line)) {
            return Some(known.clone());
        }
        let values = Rc::new(self.rounded(row, inputs.data.get(line * n..(line + 1) * n)?));
        self.rows.borrow_mut().insert((row.step, line), values.clone());
        Some(values)
    }

    /// Activations as the runner rounds them before it multiplies.
    pub(super) fn rounded(&self, row: &RowAt, x: &[f32]) -> Vec<f64> {
        let (scene, name) = (self.scene, &self.scene.node().weights[0].name);
        let tokens = scene.e.side.capture.steps[row.step].tokens.len();
        let rule = scene.e.side.arithmetic.linear(scene.e.oracle.weights.ggml_type(name), tokens);
        let mut values = vec![0f64; x.len()];
        match rule.activations {
            ActivationFormat::F32 => values.iter_mut().zip(x).for_each(|(v, x)| *v = f64::from(*x)),
            format => quant::emulate(format, x, &mut values),
        }
        values
    }

    /// The products that make element `i` of a row, where it is looked at.
    fn terms(&self, row: &RowAt, i: usize) -> Option<Vec<f64>> {
        let (a, b) = self.factors(row, i)?;
        self.scene.count(a.len());
        Some(a.iter().zip(&b).map(|(a, b)| a * b).collect())
    }

    /// The two factors of each of these products: weights and inputs of a linear layer, elements of a query and of a
    /// key, weights of keys and their values.
    pub(super) fn factors(&self, row: &RowAt, i: usize) -> Option<(Vec<f64>, Vec<f64>)> {
        let (token, from) = self.scene.token(row);
        if self.scene.node().op.anatomy().multiplies_weights() {
            if !self.looks_at(from + i) {
                return None;
            }
            return self.of_output(row, i);
        }
        if let Anatomy::Contraction(Contraction::Rows(terms)) = self.scene.node().op.anatomy() {
            let (weights, rows) = (self.scene.operand(row.step, 0)?, self.scene.operand(row.step, 1)?);
            let n = rows.data.len() / weights.data.len().max(1);
            let lines = token * terms..(token + 1) * terms;
            let value = |line: usize| rows.data.get(line * n + from + i).map(|v| f64::from(*v));
            let right = lines.clone().map(value).collect::<Option<Vec<f64>>>()?;
            return Some((weights.data.get(lines)?.iter().map(|w| f64::from(*w)).collect(), right));
        }
        Some((self.left(row, i, token as i64, 0)?, self.right(row, i, grouped, |at, _| at)?))
    }

    /// The same of any element, whether it is looked at or not.
    pub(super) fn of_output(&self, row: &RowAt, i: usize) -> Option<(Vec<f64>, Vec<f64>)> {
        if !self.scene.node().op.anatomy().multiplies_weights() {
            return self.factors(row, i);
        }
        let weights = self.weight(self.row_of(row, i)?);
        self.scene.count(2 * weights.len());
        Some((weights.iter().map(|w| f64::from(*w)).collect(), self.activations(row)?.to_vec()))
    }

    /// The first factors as of another token of the part, and of a head so many further on, wrapping around.
    pub(super) fn left(&self, row: &RowAt, i: usize, token: i64, head_by: usize) -> Option<Vec<f64>> {
        let (scene, graph) = (self.scene, &self.scene.e.oracle.graph);
        let from = scene.token(row).1;
        let first = scene.operand(row.step, 0)?;
        let layout = Layout::of(&graph.nodes[scene.node().inputs[0]]);
        let (tokens, ..) = layout.extents(&first.shape);
        let token = usize::try_from(token).ok().filter(|t| *t < tokens)?;
        let wide = |part: &[f32]| -> Vec<f64> {
            scene.count(2 * part.len());
            part.iter().map(|v| f64::from(*v)).collect()
        };
        match scene.node().op.anatomy() {
            Anatomy::Contraction(Contraction::Scores(a)) => {
                let head = (row.place.head? + head_by) % a.n_heads;
                first.row(token).get(head * a.head_dim..(head + 1) * a.head_dim).map(wide)
            }
            Anatomy::Contraction(Contraction::Context(a)) => {
                let head = ((from + i) / a.head_dim + head_by) % a.n_heads;
                let (keys, n) = (row.place.position + 1, *first.shape.last()?);
                let weight = |key| f64::from(first.data[layout.at(&first.shape, token, head * n + key)]);
                scene.count(4 * keys);
                (keys <= n).then(|| (0..keys).map(weight).collect())
            }
            _ => None,
        }
    }

    /// The second factors as of another head of the cache, given that of the query, and of another element (of values) or
    /// key (of scores), given its own and how many there are.
    pub(super) fn right(
        &self, row: &RowAt, i: usize, head_of: impl Fn(&Attention, usize) -> usize,
        place: impl Fn(usize, usize) -> usize,
    ) -> Option<Vec<f64>> {
        let scene = self.scene;
        let cache = scene.operand(row.step, 1)?;
        let moved = |at: usize, end: usize| Some(place(at, end)).filter(|at| *at < end);
        match scene.node().op.anatomy() {
            Anatomy::Contraction(Contraction::Scores(a)) => {
                let group = head_of(a, row.place.head?);
                let key = moved(i, cache.data.len() / (a.n_kv_heads * a.head_dim))?;
                let part = cache.data.get((key * a.n_kv_heads + group) * a.head_dim..)?.get(..a.head_dim)?;
                Some(part.iter().map(|v| f64::from(*v)).collect())
            }
            Anatomy::Contraction(Contraction::Context(a)) => {
                let column = scene.token(row).1 + i;
                let group = head_of(a, column / a.head_dim);
                let at = moved(column % a.head_dim, a.head_dim)?;
                let value = |key: usize| cache.data.get((key * a.n_kv_heads + group) * a.head_dim + at);
                scene.count(4 * row.place.position);
                (0..=row.place.position).map(|key| value(key).map(|v| f64::from(*v))).collect()
            }
            _ => None,
        }
    }

    /// Some of the wrong elements that something may be fitted on, whose terms are at hand.
    pub(super) fn sample(&self, most: usize) -> Vec<At> {
        let looked_at = |&&(r, i): &&At| {
            let from = self.scene.token(&self.scene.e.rows[r]).1;
            self.outputs.is_empty() || self.outputs.contains(&((from + i) % self.width))
        };
        let chosen: Vec<At> = self.scene.fit.iter().filter(looked_at).copied().collect();
        evenly(chosen, most)
    }

    /// Terms of the longest sum, and ways to sort them into groups for a fit to so many elements.
    pub(super) fn kinds(&self, longest: usize, elements: usize) -> (usize, Vec<Groups>) {
        let of_keys = matches!(self.scene.node().op.anatomy(), Anatomy::Contraction(Contraction::Context(_)));
        // Rows that nothing is fitted on may have more keys.
        let keys = self.scene.e.rows.iter().map(|row| row.place.position + 1).filter(|_| of_keys);
        let terms = keys.max().unwrap_or(0).max(longest);
        // As many lanes as terms are single terms.
        let mut kinds: Vec<Groups> =
            [2, 4, 8, 16, 32, 64, 128].into_iter().filter(|n| *n < terms).map(Groups::Lanes).collect();
        // Lanes that read several values at a time: fewer numbers to tell than of single terms.
        let dealt = [2, 4, 8, 16, 32].into_iter().flat_map(|run| [8, 16, 32].map(|lanes| Groups::Dealt { run, lanes }));
        kinds.extend(dealt.filter(|kind| matches!(kind, Groups::Dealt { run, lanes } if 2 * run * lanes <= terms)));
        let mut run = terms.next_power_of_two() / 2;
        while run >= 1 && terms.div_ceil(run) <= GROUPS {
            kinds.push(Groups::Runs(run));
            run /= 2;
        }
        if of_keys {
            kinds.extend([1, 4, 16, 64].map(Groups::FromEnd));
            // Several sums that a loop makes at once, and a tail that goes alone.
            kinds.extend([2, 4, 8].map(Groups::Unrolled));
        } else {
            kinds.extend([8, 32, 128].map(Groups::FromEnd));
        }
        kinds.retain(|k| k.count(terms) > 1 && k.count(terms) <= GROUPS && k.count(terms) * 2 <= elements);
        kinds.sort_by_key(|k| k.count(terms));
        (terms, kinds)
    }
}

/// The line of a product that a row of the stage is: its token, or of experts the place of one among the chosen.
pub(super) fn line(scene: &Scene<'_>, row: &RowAt) -> usize {
    let token = scene.token(row).0;
    let Anatomy::Contraction(Contraction::Weight(Some(_))) = scene.node().op.anatomy() else { return token };
    token * scene.shape(row.step).get(1).copied().unwrap_or(1) + row.place.head.unwrap_or(0)
}

/// The expert that a row of the stage belongs to; the only one where there are none.
pub(super) fn expert(scene: &Scene<'_>, row: &RowAt) -> Option<usize> {
    let Anatomy::Contraction(Contraction::Weight(Some(picked))) = scene.node().op.anatomy() else { return Some(0) };
    index(*scene.operand(row.step, 1)?.data.get(line(scene, row))?, picked.groups)
}

/// The head of the cache that belongs to a head of the queries.
pub(super) fn grouped(a: &Attention, head: usize) -> usize {
    head / (a.n_heads / a.n_kv_heads)
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(sums) = Sums::new(scene).map(Rc::new) else {
        return Vec::new();
    };
    let chosen = sums.sample(ELEMENTS);
    let products: Option<Vec<Vec<f64>>> = chosen.iter().map(|&(r, i)| sums.terms(&scene.e.rows[r], i)).collect();
    let Some(products) = products.filter(|p| !p.is_empty()) else {
        return Vec::new();
    };
    let errors: Vec<(f64, f64)> = chosen
        .iter()
        .map(|&at| scene.element(at))
        .map(|(got, want, bound)| (got - want, 1.0 / f64::from(bound).max(f64::MIN_POSITIVE)))
        .collect();
    let longest = products.iter().map(Vec::len).max().unwrap_or(0);
    let (terms, kinds) = sums.kinds(longest, errors.len());
    // Of laws that hold that which is about the fewest terms: nobody sees a term that is nearly 0.
    let mut all: Vec<(usize, Law<'a>)> = Vec::new();
    for kind in kinds {
        let count = kind.count(terms);
        scene.count(products.len() * (2 * longest + count * count));
        let Some(taken) = fitted(&products, &errors, kind, terms) else { continue };
        // A tail alone is reported by its length.
        if matches!(kind, Groups::Unrolled(n) if taken[..n].iter().all(|c| *c == 0.0)) {
            continue;
        }
        let what = told(scene, kind, &taken, terms);
        let parameters = taken.iter().filter(|c| **c != 0.0).count();
        let touched = (0..terms).filter(|&term| taken[kind.of(term, terms)] != 0.0).count();
        let sums = sums.clone();
        let law = Law::new(what, parameters, move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let value = |(i, want): (usize, &f64)| {
                sums.terms(row, i).map_or(f64::NAN, |p| {
                    let n = p.len();
                    want + p.iter().enumerate().map(|(k, p)| taken[kind.of(k, n)] * p).sum::<f64>()
                })
            };
            Some(Row { value: want.iter().enumerate().map(value).collect(), bound: bound.to_vec() })
        });
        all.push((touched, law));
    }
    all.sort_by_key(|(touched, _)| *touched);
    all.into_iter().map(|(_, law)| law).collect()
}

/// How many times more each group is taken, if that is a whole number of times, or one factor for all that are.
pub(super) fn fitted(products: &[Vec<f64>], errors: &[(f64, f64)], kind: Groups, terms: usize) -> Option<Vec<f64>> {
    let g = kind.count(terms);
    let rows: Vec<Vec<f64>> = products
        .iter()
        .zip(errors)
        .map(|(p, (_, weight))| {
            let mut sums = kind.sums(p, g);
            sums.iter_mut().for_each(|sum| *sum *= weight);
            sums
        })
        .collect();
    let target: Vec<f64> = errors.iter().map(|(d, weight)| d * weight).collect();
    let mut c = least_squares(&rows, &target)?;
    let large: Vec<f64> = c.iter().copied().filter(|c| c.abs() > WHOLE).collect();
    let first = *large.first()?;
    let one = large.iter().all(|c| (c - first).abs() <= WHOLE * first.abs());
    for v in &mut c {
        let whole = v.round();
        *v = match *v {
            v if (v - whole).abs() <= WHOLE => whole,
            _ if one => first,
            _ => return None,
        };
    }
    // All terms alike is no law of terms.
    let differs = c.iter().any(|v| *v != c[0]);
    (differs && c.iter().any(|v| *v != 0.0)).then_some(c)
}

/// The solution of `rows · c = target`, by Cholesky of the normal equations.
pub(super) fn least_squares(rows: &[Vec<f64>], target: &[f64]) -> Option<Vec<f64>> {
    let g = rows.first()?.len();
    let mut a = vec![0f64; g * g];
    let mut b = vec![0f64; g];
    for (row, t) in rows.iter().zip(target) {
        for i in 0..g {
            if row[i] == 0.0 {
                continue;
            }
            b[i] += row[i] * t;
            for j in 0..=i {
                a[i * g + j] += row[i] * row[j];
            }
        }
    }
    let trace: f64 = (0..g).map(|i| a[i * g + i]).sum();
    for i in 0..g {
        a[i * g + i] += 1e-13 * trace + f64::MIN_POSITIVE;
    }
    for i in 0..g {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| a[i * g + k] * a[j * g + k]).sum();
            let v = a[i * g + j] - dot;
            if i == j {
                if v <= 0.0 {
                    return None;
                }
                a[i * g + i] = v.sqrt();
            } else {
                a[i * g + j] = v / a[j * g + j];
            }
        }
    }
    for i in 0..g {
        let dot: f64 = (0..i).map(|k| a[i * g + k] * b[k]).sum();
        b[i] = (b[i] - dot) / a[i * g + i];
    }
    for i in (0..g).rev() {
        let dot: f64 = (i + 1..g).map(|k| a[k * g + i] * b[k]).sum();
        b[i] = (b[i] - dot) / a[i * g + i];
    }
    Some(b)
}
