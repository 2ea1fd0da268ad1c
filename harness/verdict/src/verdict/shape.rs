//! What a residual looks like, for a fault that no hypothesis explains: which part of the rows is wrong, in what
//! pattern, whether a factor or an offset would mend it, what the wrong rows equal instead, and of what rank the
//! residual is.

use super::evidence::{Evidence, Wrong, right};
use super::lost;
use crate::number::ordinal;
use qdiff_engine::model::{Node, Role, StageId};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use std::collections::BTreeSet;

/// Share of a residual that a fit must leave at most to be mentioned.
const FITTED: f64 = 1e-3;

/// Wrong elements that a rule must hold of to be one.
pub const FEW: usize = 4;

/// Most columns that are reported as the correct ones.
const FEWEST: usize = 3;

/// Rows that are compared with rows from elsewhere, and whose rank is taken.
const ROWS: usize = 48;

/// Describes the residual in words; empty if no element is beyond its bound.
pub fn describe(e: &Evidence<'_>) -> String {
    if let Some(step) = e.misshapen.first() {
        let label = e.side.capture.steps[*step].told().replace("step", "step ");
        let lost = lost::rows(&e.oracle.graph, e.node, e.side.capture, *step).map_or_else(String::new, |lost| {
            let rows = if lost.len() == 1 { "row of position" } else { "rows of positions" };
            let last = if lost.len() == 1 { String::new() } else { format!("..{}", lost.end - 1) };
            let are = if lost.len() == 1 { "is" } else { "are" };
            format!(": the {rows} {}{last} {are} missing", lost.start)
        });
        return match e.misshapen.len() {
            1 => format!("the tensor's shape is wrong in {label} only{lost}"),
            n => format!("the tensor's shape is wrong in {n} steps, from {label} on{lost}"),
        };
    }
    let wrong = e.wrong();
    if wrong.is_empty() {
        return match e.bad_rows().count() {
            0 => String::new(),
            n => format!("{n} rows are off as a whole, no element of them alone"),
        };
    }
    // The report of another sequence, or of this one before its rollback, counts the rows that were taken over from it.
    let is_own = |row: usize| e.side.capture.is_own(e.rows[row].step);
    let own = wrong.iter().filter(|w| is_own(w.row)).count();
    let partly = own > 0 && !(0..e.rows.len()).all(is_own);
    let counted = |row: &usize| !partly || is_own(*row);
    let all: usize = (0..e.rows.len()).filter(counted).map(|row| e.rows[row].range.len()).sum();
    let (own, of) = if partly { (own, " of its own passes") } else { (wrong.len(), "") };
    let mut words = vec![format!("{own} of {all} elements{of} are wrong")];
    words.extend(positions(e));
    let width = e.rows.iter().map(|r| r.range.len()).max().unwrap_or(0);
    let columns: BTreeSet<usize> = wrong.iter().map(|w| w.index).collect();
    let columns: Vec<usize> = columns.into_iter().collect();
    // The columns of scores are keys, of which every row has its own number.
    words.push(pattern(&columns, width));
    words.extend(heads(e, &columns, width));
    words.extend(tile(e, &wrong, &columns, width));
    if wrong.iter().all(|w| w.got == 0.0) {
        words.push("all of them are zero: not written, cleared, or made of zeros".to_owned());
    } else if let n @ 1.. = wrong.iter().filter(|w| !w.got.is_finite()).count() {
        let of = if n == wrong.len() { "all".to_owned() } else { n.to_string() };
        let are = if n == 1 && wrong.len() > 1 { "is" } else { "are" };
        words.push(format!("{of} of them {are} NaN or infinite"));
    } else if let Some(fit) = fit(&wrong) {
        words.push(fit);
    } else {
        words.extend(equal(e));
        words.extend(rank(e));
    }
    words.join("; ")
}

/// Which columns of a row, of so many.
pub fn pattern(columns: &[usize], width: usize) -> String {
    let (first, last) = (columns[0], columns[columns.len() - 1]);
    let contiguous = last - first + 1 == columns.len();
    match columns {
        [one] => format!("one column, {one}"),
        _ if columns.len() == width => "in every column".to_owned(),
        _ if contiguous && last + 1 == width => format!("a tail, columns {first} to {last}"),
        _ if contiguous => format!("a run of {} columns, {first} to {last}", columns.len()),
        _ if width - columns.len() <= FEWEST => {
            let right: Vec<usize> = (0..width).filter(|c| columns.binary_search(c).is_err()).collect();
            format!("in every column but {}", list(&right))
        }
        _ => {
            let step = columns[1] - columns[0];
            if columns.len() > 2 && columns.windows(2).all(|w| w[1] - w[0] == step) {
                format!("every {} column from {first} on", ordinal(step))
            } else if let Some((run, stride)) = runs(columns, width) {
                format!("runs of {run} columns, one every {stride} from column {first} on")
            } else {
                format!("{} columns of {width}, scattered", columns.len())
            }
        }
    }
}

/// The length and the distance of runs of columns, where there are at least two of one length at one distance; the end of a
/// row may cut the last one.
fn runs(columns: &[usize], width: usize) -> Option<(usize, usize)> {
    let runs: Vec<&[usize]> = columns.chunk_by(|a, b| a + 1 == *b).collect();
    let ([first, second, ..], [rest @ .., last]) = (runs.as_slice(), runs.as_slice()) else { return None };
    let (run, stride) = (first.len(), second[0] - first[0]);
    let cut = last.len() < run && last[last.len() - 1] + 1 == width;
    let alike = rest.iter().all(|r| r.len() == run) && (last.len() == run || cut);
    let apart = runs.windows(2).all(|pair| pair[1][0] - pair[0][0] == stride);
    // Up to the end of the row: what stops earlier is more than a pattern.
    (run > 1 && alike && apart && last[0] + stride >= width).then_some((run, stride))
}

/// Steps that are listed.
const LISTED: usize = 6;

/// Which positions, where it is not all of them.
fn positions(e: &Evidence<'_>) -> Option<String> {
    let all: BTreeSet<_> = e.rows.iter().map(|r| (r.place.step, r.place.position)).collect();
    let bad: BTreeSet<_> = e.bad_rows().map(|r| (r.place.step, r.place.position)).collect();
    if bad.len() == all.len() {
        return None;
    }
    match bad.first() {
        Some((0, p)) if bad.len() == 1 => Some(format!("position {p} alone")),
        Some((s, p)) if bad.len() == 1 => Some(format!("position {p} at step {s} alone")),
        Some((s, _)) if *s > 0 => {
            let steps: BTreeSet<usize> = bad.iter().map(|b| b.0).collect();
            let last = all.last().map_or(0, |a| a.0);
            let more = if steps.len() > LISTED { ", …" } else { "" };
            (steps.len() < last).then(|| format!("steps {}{more}", list(steps.iter().take(LISTED))))
        }
        _ => None,
    }
}

fn list<'a>(numbers: impl IntoIterator<Item = &'a usize>) -> String {
    numbers.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Whole heads, where a row is made of heads.
fn heads(e: &Evidence<'_>, columns: &[usize], width: usize) -> Option<String> {
    let by_row: BTreeSet<usize> = e.bad_rows().filter_map(|r| r.place.head).collect();
    let all: BTreeSet<usize> = e.rows.iter().filter_map(|r| r.place.head).collect();
    let heads = if all.is_empty() {
        let d = e.oracle.graph.config.head_dim;
        if !of_heads(e.node) || columns.len() == width {
            return None;
        }
        let heads: BTreeSet<usize> = columns.iter().map(|c| c / d).collect();
        if columns.len() * 10 < heads.len() * d * 9 {
            return None;
        }
        heads
    } else if by_row.len() < all.len() {
        by_row
    } else {
        return None;
    };
    let s = if heads.len() == 1 { "" } else { "s" };
    let of_experts = matches!(e.node.role, Role::Gate | Role::Up | Role::FfnHidden | Role::FfnOutput);
    let what = match () {
        () if of_experts => "expert slot",
        () if is_window(e.node) => "row of the window",
        () => "head",
    };
    let what = if heads.len() > 1 { what.replace("row", "rows") } else { what.to_owned() };
    let s = if what.contains("window") { "" } else { s };
    Some(format!("{what}{s} {}", list(&heads)))
}

/// Whether a stage is the window of a convolution: its rows are inputs of earlier tokens, and no heads.
pub fn is_window(node: &Node) -> bool {
    // A delta net's memory has queries, keys, values and gates beside what it was before.
    node.is_own_state() && node.inputs.len() <= 2
}

/// Whether the rows of a stage are made of heads: what attention reads and gives, as it stands before the rotation.
pub fn of_heads(node: &Node) -> bool {
    matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Context(_)))
        || matches!(node.role, Role::Query | Role::Key | Role::Value)
}

/// A filled rectangle of positions and columns that is neither all rows nor all columns.
fn tile(e: &Evidence<'_>, wrong: &[Wrong], columns: &[usize], width: usize) -> Option<String> {
    let position = |w: &Wrong| e.rows[w.row].place.position;
    let (low, high) = (wrong.iter().map(position).min()?, wrong.iter().map(position).max()?);
    let all = e.rows.iter().map(|r| r.place.position).collect::<BTreeSet<_>>().len();
    let (height, span) = (high - low + 1, columns[columns.len() - 1] - columns[0] + 1);
    let part = height > 1 && height < all && span > 1 && span < width;
    (part && wrong.len() == height * span)
        .then(|| format!("a tile of {height} positions from {low} on by {span} columns from {} on", columns[0]))
}

/// `(a, b)` of `got = a·want + b` over the wrong elements, by least squares; without an offset, b = 0.
/// `None` of so few that any rule holds of them, or where one is not finite.
pub fn line(wrong: &[Wrong], with_offset: bool) -> Option<(f64, f64)> {
    if wrong.len() < FEW || wrong.iter().any(|w| !w.got.is_finite()) {
        return None;
    }
    let n = wrong.len() as f64;
    let (mut g, mut w) = (0.0, 0.0);
    if with_offset {
        g = wrong.iter().map(|p| f64::from(p.got)).sum::<f64>() / n;
        w = wrong.iter().map(|p| p.want).sum::<f64>() / n;
    }
    let (mut ww, mut gw) = (0.0, 0.0);
    for p in wrong {
        ww += (p.want - w).powi(2);
        gw += (f64::from(p.got) - g) * (p.want - w);
    }
    let scale = if ww > 0.0 { gw / ww } else { 1.0 };
    Some((scale, g - scale * w))
}

/// The [`line`] in words, if it explains the wrong elements.
fn fit(wrong: &[Wrong]) -> Option<String> {
    let (scale, offset) = line(wrong, true).filter(|_| wrong.len() >= 2 * FEW)?;
    let pairs = || wrong.iter().map(|w| (f64::from(w.got), w.want));
    let (mut left, mut was) = (0.0, 0.0);
    for (got, want) in pairs() {
        left += (got - scale * want - offset).powi(2);
        was += (got - want).powi(2);
    }
    if left.sqrt() > FITTED * was.sqrt() {
        return None;
    }
    let size = pairs().map(|(_, want)| want.abs()).sum::<f64>() / wrong.len() as f64;
    let scaled = (scale - 1.0).abs() > 1e-6;
    let shifted = offset.abs() > 1e-5 * size;
    match (scaled, shifted) {
        (true, false) => Some(format!("scaled by {scale:.6}")),
        (false, true) => Some(format!("offset by {offset:.6}")),
        (true, true) => Some(format!("scaled by {scale:.6} and offset by {offset:.6}")),
        (false, false) => None,
    }
}

/// Rows that show something else than their own values: values that belong to another row or some columns on, or values
/// that the subject gave at another step or in another layer.
fn equal(e: &Evidence<'_>) -> Option<String> {
    let bad: Vec<_> = e.bad_rows().take(ROWS).collect();
    let steps = &e.side.capture.steps;
    // What a stage gave so many steps before, at the same place.
    let shows = |id: StageId, back: usize| {
        bad.iter().all(|r| {
            let other = r.step.checked_sub(back).and_then(|s| steps[s].get(id));
            other.is_some_and(|t| t.data.get(r.range.clone()) == Some(e.row(r).0))
        })
    };
    let own = e.node.id;
    let mut others =
        e.oracle.graph.nodes.iter().map(|n| n.id).filter(|id| id.name == own.name && id.layer != own.layer);
    if let Some(other) = others.find(|&id| shows(id, 0)) {
        return Some(format!("equal to {other}"));
    }
    if let Some(back) = (1..steps.len()).find(|&back| shows(own, back)) {
        return Some(match back {
            1 => "equal to what the step before left there".to_owned(),
            n => format!("equal to what was left there {n} steps before"),
        });
    }
    // The right values of another row of the same step.
    let shifted = |by: i64| {
        bad.iter().all(|r| {
            let start = r.range.start as i64 + by * r.range.len() as i64;
            let (Some((want, bound)), Ok(start)) = (&e.expected[r.step], usize::try_from(start)) else {
                return false;
            };
            let range = start..start + r.range.len();
            let (Some(want), Some(bound)) = (want.data.get(range.clone()), bound.get(range)) else {
                return false;
            };
            e.row(r).0.iter().zip(want).zip(bound).all(|((g, w), b)| right(*g, *w, *b))
        })
    };
    if let Some(by) = [-1, 1, -2, 2, -3, 3].into_iter().find(|&by| shifted(by)) {
        return Some(format!("equal to what belongs {} rows {}", by.abs(), side(by)));
    }
    // Its own values, some columns on; the ends are free.
    let slid = |by: i64| {
        bad.iter().all(|r| {
            let (got, want, bound) = e.row(r);
            let inside = |i: &usize| (0..got.len() as i64).contains(&(*i as i64 + by));
            let mut seen = (0..got.len()).filter(inside).peekable();
            seen.peek().is_some()
                && seen.all(|i| {
                    let from = (i as i64 + by) as usize;
                    right(got[i], want[from], bound[from])
                })
        })
    };
    let far = bad.first().map_or(0, |r| r.range.len() as i64 / 2).min(128);
    (1..=far)
        .flat_map(|by| [-by, by])
        .find(|&by| slid(by))
        .map(|by| format!("equal to what belongs {} columns {}", by.abs(), side(by)))
}

fn side(by: i64) -> &'static str {
    if by < 0 { "before" } else { "after" }
}

/// The same residual in every row, or a residual of low rank.
fn rank(e: &Evidence<'_>) -> Option<String> {
    let rows: Vec<Vec<f64>> = e
        .bad_rows()
        .take(ROWS)
        .map(|r| {
            let (got, want, _) = e.row(r);
            got.iter().zip(want).map(|(g, w)| f64::from(*g) - w).collect()
        })
        .collect();
    let width = rows.first()?.len();
    if rows.len() < 4 || rows.iter().any(|r| r.len() != width || r.iter().any(|v| !v.is_finite())) {
        return None;
    }
    let norm = |r: &[f64]| r.iter().map(|v| v * v).sum::<f64>().sqrt();
    let apart = |a: &[f64], b: &[f64]| norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>());
    if rows.iter().all(|r| apart(r, &rows[0]) <= FITTED * norm(&rows[0])) {
        return Some("the same residual in every row, for every token".to_owned());
    }
    let rank = pivots(rows.clone());
    let full = rows.len().min(width);
    (rank <= 4 && rank < full).then(|| format!("the error has rank {rank} over {} rows", rows.len()))
}

/// Rows that are left when what others already span is taken off, the largest
/// first (Gram–Schmidt with pivoting), down to the share that a fit may leave.
fn pivots(mut rows: Vec<Vec<f64>>) -> usize {
    let norm2 = |r: &[f64]| r.iter().map(|v| v * v).sum::<f64>();
    let first = rows.iter().map(|r| norm2(r)).fold(0.0, f64::max);
    let mut rank = 0;
    while let Some((at, size)) = rows.iter().map(|r| norm2(r)).enumerate().max_by(|a, b| a.1.total_cmp(&b.1)) {
        if size <= FITTED * FITTED * first {
            break;
        }
        rank += 1;
        let pivot = rows.swap_remove(at);
        for row in &mut rows {
            let along = row.iter().zip(&pivot).map(|(a, b)| a * b).sum::<f64>() / size;
            row.iter_mut().zip(&pivot).for_each(|(v, p)| *v -= along * p);
        }
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_named() {
        assert_eq!(pattern(&[7], 100), "one column, 7");
        assert_eq!(pattern(&(0..9).collect::<Vec<_>>(), 9), "in every column");
        assert_eq!(pattern(&(96..100).collect::<Vec<_>>(), 100), "a tail, columns 96 to 99");
        assert_eq!(pattern(&(32..64).collect::<Vec<_>>(), 100), "a run of 32 columns, 32 to 63");
        assert_eq!(pattern(&[3, 35, 67, 99], 100), "every 32nd column from 3 on");
        assert_eq!(pattern(&[1, 12, 23], 100), "every 11th column from 1 on");
        assert_eq!(pattern(&[3, 5, 67], 100), "3 columns of 100, scattered");
        let second_tile: Vec<usize> = (0..240).filter(|c| c / 64 % 2 == 1).collect();
        assert_eq!(pattern(&second_tile, 240), "runs of 64 columns, one every 128 from column 64 on");
        assert_eq!(pattern(&second_tile[..64], 240), "a run of 64 columns, 64 to 127");
        assert_eq!(pattern(&second_tile, 400), "112 columns of 400, scattered");
        // It said "4863 columns of 4864, scattered".
        let all_but = |right: usize| (0..4864).filter(|c| *c != right).collect::<Vec<_>>();
        assert_eq!(pattern(&all_but(17), 4864), "in every column but 17");
    }

    #[test]
    fn factors_and_offsets_are_fitted() {
        let want: Vec<f64> = (0..50).map(|i| f64::from(i * i % 17) - 8.0).collect();
        let told = |f: &dyn Fn(f64) -> f64| {
            let wrong: Vec<Wrong> =
                want.iter().map(|&want| Wrong { row: 0, index: 0, got: f(want) as f32, want }).collect();
            fit(&wrong)
        };
        assert_eq!(told(&|w| 0.5 * w).unwrap(), "scaled by 0.500000");
        assert_eq!(told(&|w| w + 3.0).unwrap(), "offset by 3.000000");
        assert_eq!(told(&|w| 2.0 * w - 1.0).unwrap(), "scaled by 2.000000 and offset by -1.000000");
        assert_eq!(told(&|w| w * w), None);
    }

    #[test]
    fn the_rank_of_a_residual_is_counted() {
        let outer = |k: f64, row: &[f64]| row.iter().map(|v| v * k).collect::<Vec<f64>>();
        let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 0.5, 0.0]);
        let one: Vec<Vec<f64>> = (1..6).map(|k| outer(f64::from(k), &a)).collect();
        assert_eq!(pivots(one.clone()), 1);
        let two: Vec<Vec<f64>> = (1..6)
            .map(|k| {
                let pair = outer(f64::from(k), &a).into_iter().zip(outer(f64::from(k * k), &b));
                pair.map(|(x, y)| x + y).collect()
            })
            .collect();
        assert_eq!(pivots(two), 2);
    }
}
