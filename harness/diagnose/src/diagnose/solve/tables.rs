//! Numbers of few bits that are read as others: an entry of a table of codes, quants that lose their sign or are cut off.
//!
//! `y = Σ unit_k · level(q_k) · x_k` is linear in the levels, so least squares on the wrong elements gives them; of an embedding
//! each element tells its own.

use super::fields::{Reading, Way, apart};
use super::lanes::{ELEMENTS, WHOLE};
use super::scene::Scene;
use super::short;
use super::terms::{Sums, least_squares};
use qdiff_engine::model::WeightSource;
use qdiff_engine::quant::{self, Content, Format, Part};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

/// Codes of a table at most.
const CODES: usize = 64;

/// A row of a weight: the code of each element, what one of a level is, and the weights.
struct Coded {
    code: Vec<usize>,
    unit: Vec<f64>,
    weight: Vec<f64>,
}

fn format_of(source: &dyn WeightSource, name: &str) -> Option<&'static Format> {
    let ty = source.ggml_type(name);
    quant::FORMATS.iter().find(|f| f.ty == ty)
}

fn coded(source: &dyn WeightSource, name: &str, row: usize, table: &Table) -> Option<Coded> {
    let format = format_of(source, name)?;
    let (n, rows) = source.extent(name);
    let stored = (row < rows).then(|| source.row_bytes(name, row))?;
    let decode = |bytes: &[u8]| {
        let mut out = vec![0f32; n];
        quant::dequantize(format.ty, bytes, &mut out);
        out.into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    let weight = decode(stored);
    if let Content::Quants(_) = format.content {
        let apart = apart(source, name, row)?;
        let code = apart.quant.iter().map(|q| (*q >= 0.0 && *q < CODES as f64).then_some(*q as usize));
        return Some(Coded { code: code.collect::<Option<_>>()?, unit: apart.scale, weight });
    }
    let Content::Codes(_) = format.content else { return None };
    let (field, stride) = format.nibbles()?;
    let (block, size) = (format.ty.block_size(), format.ty.type_size());
    let code = |k: usize| {
        let (of_block, at) = (k / block * size, k % block);
        let byte = stored[of_block + field.bytes.start + at / (2 * stride) * stride + at % stride];
        usize::from(if at % (2 * stride) < stride { byte & 15 } else { byte >> 4 })
    };
    let mut bytes = stored.to_vec();
    bytes.chunks_mut(size).for_each(|block| block[field.bytes.clone()].fill(table.code << 4 | table.code));
    let one = |v: f64| if table.signed { v / table.level } else { (v / table.level).abs() };
    let unit = decode(&bytes).into_iter().map(one).collect();
    Some(Coded { code: (0..n).map(code).collect(), unit, weight })
}

/// The largest level of a table of codes, its code, and whether there is none of the other sign: then scales may have one.
#[derive(Clone, Copy, Default)]
struct Table {
    code: u8,
    level: f64,
    signed: bool,
}

impl Table {
    fn of(source: &dyn WeightSource, name: &str) -> Option<Self> {
        let format = format_of(source, name)?;
        let Content::Codes(codes) = format.content else { return Some(Self::default()) };
        let (field, _) = format.nibbles()?;
        let size = |code: u8| {
            let (mut bytes, mut out) = (source.row_bytes(name, 0).to_vec(), vec![0f32; source.extent(name).0]);
            bytes.chunks_mut(format.ty.type_size()).for_each(|block| block[field.bytes.clone()].fill(code << 4 | code));
            quant::dequantize(format.ty, &bytes, &mut out);
            out.iter().map(|v| f64::from(v.abs())).sum::<f64>()
        };
        let code = (0..16).max_by(|a, b| size(*a).total_cmp(&size(*b)))?;
        let levels = codes.levels.iter().map(|l| f64::from(*l));
        let level = levels.clone().fold(0f64, |m, l| if l.abs() > m.abs() { l } else { m });
        Some(Self { code, level, signed: !levels.into_iter().any(|l| l == -level) })
    }
}

/// By how much the level of each code that is read otherwise is off.
type Off = BTreeMap<usize, f64>;

fn read(source: &dyn WeightSource, name: &str, row: usize, off: &Off) -> Option<Vec<f64>> {
    let Coded { code, unit, weight } = coded(source, name, row, &Table::of(source, name)?)?;
    Some((0..weight.len()).map(|k| weight[k] + unit[k] * off.get(&code[k]).unwrap_or(&0.0)).collect())
}

/// The way to read weights by which codes mean other levels, if wrong elements say so.
pub(super) fn of<'a>(scene: &'a Scene<'a>, name: &'a str, sums: Option<&Sums<'a>>) -> Option<Way<'a>> {
    let source: &'a dyn WeightSource = &*scene.e.oracle.weights;
    let format = format_of(source, name)?;
    let bits = match format.content {
        Content::Quants(_) => format.bits(Part::Quants) + format.bits(Part::HighBits),
        Content::Codes(_) => 4,
        _ => return None,
    };
    let codes = (1 << bits <= CODES).then_some(1usize << bits)?;
    let off = match sums {
        Some(sums) => fitted(scene, (source, name), sums, codes)?,
        None => shown(scene, (source, name))?,
    };
    let of_table = matches!(format.content, Content::Codes(_));
    let what = told(&off, of_table);
    let again = off.clone();
    Some(Way {
        what,
        decoded: Rc::new(move |row| read(source, name, row, &off).map(Rc::new)),
        reading: Some(Reading::of(format.ty, move |source, name, row| read(source, name, row, &again))),
    })
}

/// A level that is off by half a whole number, or not at all.
fn half(v: f64) -> Option<f64> {
    let near = (2.0 * v).round() / 2.0;
    ((v - near).abs() <= WHOLE).then_some(near)
}

fn fitted(scene: &Scene<'_>, (source, name): (&dyn WeightSource, &str), sums: &Sums<'_>, codes: usize) -> Option<Off> {
    let chosen = sums.sample((4 * codes).min(ELEMENTS));
    if chosen.len() < codes * 2 {
        return None;
    }
    let (table, mut known) = (Table::of(source, name)?, BTreeMap::<usize, Coded>::new());
    let (mut rows, mut target) = (Vec::new(), Vec::new());
    for (r, i) in chosen {
        let row = &scene.e.rows[r];
        let output = sums.row_of(row, i)?;
        let of = match known.entry(output) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(coded(source, name, output, &table)?),
        };
        let x = sums.activations(row)?;
        let (got, want, bound) = scene.element((r, i));
        let weight = 1.0 / f64::from(bound).max(f64::MIN_POSITIVE);
        let mut sum = vec![0f64; codes];
        (0..x.len()).for_each(|k| sum[of.code[k]] += weight * of.unit[k] * x[k]);
        scene.count(x.len() * 16 + codes * codes / 2);
        rows.push(sum);
        target.push(weight * (got - want));
    }
    let levels = least_squares(&rows, &target)?.into_iter().map(half).collect::<Option<Vec<f64>>>()?;
    let off: Off = levels.into_iter().enumerate().filter(|(_, v)| *v != 0.0).collect();
    // All alike it is an offset.
    (!off.is_empty() && off.len() < codes).then_some(off)
}

fn shown(scene: &Scene<'_>, (source, name): (&dyn WeightSource, &str)) -> Option<Off> {
    let (table, mut off) = (Table::of(source, name)?, Off::new());
    let mut known: Option<(usize, Coded)> = None;
    for &(r, i) in &scene.fit {
        let row = &scene.e.rows[r];
        let step = &scene.e.side.capture.steps[row.step];
        let id = *step.tokens.get(row.place.position.checked_sub(step.first)?)? as usize;
        if known.as_ref().is_none_or(|(of, _)| *of != id) {
            known = Some((id, coded(source, name, id, &table)?));
        }
        let (of, at, (got, want, _)) = (&known.as_ref()?.1, scene.token(row).1 + i, scene.element((r, i)));
        let by = half((got - want) / of.unit[at])?;
        if *off.entry(of.code[at]).or_insert(by) != by {
            return None;
        }
    }
    off.retain(|_, by| *by != 0.0);
    (!off.is_empty()).then_some(off)
}

fn told(off: &Off, of_table: bool) -> String {
    let one = if of_table { "code" } else { "quant" };
    let side = |by: f64| format!("{} too {}", short(by.abs()), if by < 0.0 { "small" } else { "large" });
    let (first, last) = (off.keys().next().copied().unwrap_or(0), off.keys().next_back().copied().unwrap_or(0));
    let by = off.values().next().copied().unwrap_or(0.0);
    if off.len() > 1 && last - first + 1 == off.len() && off.values().all(|v| *v == by) {
        return format!("weights of {one}s {first} to {last} are read {}", side(by));
    }
    let list: Vec<String> = off.iter().take(4).map(|(code, by)| format!("{one} {code} is {}", side(*by))).collect();
    let more = if off.len() > 4 { format!(" and {} more", off.len() - 4) } else { String::new() };
    let of = if of_table { ", in units of the table of codes" } else { "" };
    format!("weights are read as other numbers: {}{more}{of}", list.join(", "))
}
