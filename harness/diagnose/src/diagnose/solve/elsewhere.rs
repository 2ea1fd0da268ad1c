//! What stands there: a constant, or values that belong somewhere else: to another row, head or column, another stage,
//! layer or step. Values that the subject gave are compared as they are, those it should have given within their bounds.

use super::scene::{Layout, Scene};
use super::{Law, Row};
use crate::verdict::{RowAt, right};
use qdiff_engine::model::{Node, StageId};
use qdiff_engine::ops::Tensor;
use std::collections::BTreeMap;

/// How far rows are shifted at most.
const SHIFT: i64 = 8;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let mut all = constant(scene);
    all.extend(buffers(scene));
    all.extend(rows(scene));
    all.extend(heads(scene));
    all
}

/// The same number in every wrong element.
fn constant<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let value = scene.element(scene.fit[0]).0;
    if scene.fit.iter().any(|&at| scene.element(at).0 != value) {
        return Vec::new();
    }
    // Where all right values lie beyond it they are cut off there.
    let beyond = |&at: &(usize, usize)| scene.element(at).1 / value >= 1.0;
    if value != 0.0 && scene.fit.iter().all(beyond) {
        return Vec::new();
    }
    let what = if value == 0.0 {
        "zeros stand there: never written, or cleared".to_owned()
    } else {
        format!("the constant {value} stands there")
    };
    vec![Law::new(what, 1, move |row| Some(Scene::exact(vec![value; row.range.len()])))]
}

/// The vector of a token of a stage as the subject gave it, cut to a row.
fn given(scene: &Scene<'_>, id: StageId, step: usize, token: usize, row: &RowAt) -> Option<Row> {
    let graph = &scene.e.oracle.graph;
    let other = &graph.nodes[graph.index(id)?];
    let layout = Layout::of(other);
    // A cache has the rows of earlier steps too: what the step that wrote them gave.
    let (step, token) = match scene.node().has_state() && !other.has_state() {
        true => {
            let steps = &scene.e.side.capture.steps;
            let wrote = (0..=step).find(|s| (steps[*s].first..steps[*s].keys()).contains(&token))?;
            (wrote, token - steps[wrote].first)
        }
        false => (step, token),
    };
    let tensor = scene.tensor(step, id)?;
    let (tokens, _, width) = layout.extents(&tensor.shape);
    let (_, from) = scene.token(row);
    if token >= tokens || from + row.range.len() > width {
        return None;
    }
    let value = |j: usize| f64::from(tensor.data[layout.at(&tensor.shape, token, j)]);
    Some(Scene::exact((from..from + row.range.len()).map(value).collect()))
}

/// Another stage's values, or those of the step before.
fn buffers<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let own = scene.node().id;
    let mut all = Vec::new();
    if !scene.node().has_state() {
        // At the same addresses, wherever the step before had written as far.
        all.push(Law::new(
            "what the step before left in the buffer stands there: not written in this step",
            0,
            move |row| {
                let tensor = scene.tensor(row.step.checked_sub(1)?, own)?;
                let part = tensor.data.get(row.range.clone())?;
                Some(Scene::exact(part.iter().map(|v| f64::from(*v)).collect()))
            },
        ));
        all.push(Law::new("the last row of the step before stands there", 0, move |row| {
            let before = row.step.checked_sub(1)?;
            let (tokens, ..) = scene.layout().extents(scene.shape(before));
            given(scene, own, before, tokens.checked_sub(1)?, row)
        }));
    }
    for id in scene.alike() {
        let is_input = scene.node().inputs.iter().any(|&i| scene.e.oracle.graph.nodes[i].id == id);
        let what = match is_input {
            true => format!("its own input {id} stands there: the stage is skipped"),
            false => format!("the values of {id} stand there"),
        };
        all.push(Law::new(what, 0, move |row| given(scene, id, row.step, scene.token(row).0, row)));
        let what = format!("what {id} held in the step before stands there");
        all.push(Law::new(what, 0, move |row| given(scene, id, row.step.checked_sub(1)?, scene.token(row).0, row)));
    }
    // Buffers of other extents, from their beginning on.
    let (graph, node) = (&scene.e.oracle.graph, scene.node());
    let alike = scene.alike();
    let near = |n: &&Node| match (n.id.layer, node.id.layer) {
        (Some(a), Some(b)) => a.abs_diff(b) <= 1,
        _ => true,
    };
    let strange = graph.nodes.iter().filter(|n| n.id != own && !scene.follows(n.id) && !alike.contains(&n.id));
    let strange = strange.filter(near);
    for id in strange.map(|n| n.id) {
        let at = |tensor: &Tensor<f32>, row: &RowAt| -> Option<Row> {
            let part = tensor.data.get(row.range.clone())?;
            Some(Scene::exact(part.iter().map(|v| f64::from(*v)).collect()))
        };
        let what = format!("the values of {id} stand there, counted from the beginning of its buffer");
        all.push(Law::new(what, 0, move |row| at(scene.tensor(row.step, id)?.as_ref(), row)));
        let what = format!("what {id} held in the step before stands there, counted from the beginning of its buffer");
        all.push(Law::new(what, 0, move |row| at(scene.tensor(row.step.checked_sub(1)?, id)?.as_ref(), row)));
        // By token, as far as the narrower one goes.
        let what = format!("the first values of each token of {id} stand there");
        all.push(Law::new(what, 0, move |row| given(scene, id, row.step, scene.token(row).0, row)));
        if graph.index(id).is_some_and(|i| graph.nodes[i].op.has_state()) {
            let what = format!("what {id} holds of the position stands there");
            all.push(Law::new(what, 0, move |row| given(scene, id, row.step, row.place.position, row)));
        }
    }
    for (name, vector) in scene.vectors() {
        all.push(Law::new(format!("the weight {name} itself stands there"), 0, move |row| {
            let from = scene.token(row).1;
            let part = vector.get(from..from + row.range.len())?;
            Some(Scene::exact(part.iter().map(|v| f64::from(*v)).collect()))
        }));
    }
    all
}

/// What the stage should have at another token's place, of this step.
pub(super) fn expected(scene: &Scene<'_>, row: &RowAt, token: i64, from: i64) -> Option<Row> {
    let (value, bound) = scene.e.expected[row.step].as_ref()?;
    let layout = scene.layout();
    let (tokens, _, width) = layout.extents(&value.shape);
    let inside = token >= 0 && token < tokens as i64 && from >= 0 && from as usize + row.range.len() <= width;
    inside.then(|| {
        let at = |j: usize| layout.at(&value.shape, token as usize, from as usize + j);
        let all = 0..row.range.len();
        Row { value: all.clone().map(|j| value.data[at(j)]).collect(), bound: all.map(|j| bound[at(j)]).collect() }
    })
}

/// Rows of other tokens of the step.
fn rows<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if scene.of_pairs() {
        return Vec::new();
    }
    let shifted = |by: i64| {
        let what = format!(
            "the row of the token {} {} in the part stands there",
            by.abs(),
            if by < 0 { "before" } else { "after" }
        );
        Law::new(what, 1, move |row: &RowAt| {
            let (token, from) = scene.token(row);
            expected(scene, row, token as i64 + by, from as i64)
        })
    };
    let mut distances: Vec<i64> = (1..=SHIFT).flat_map(|by| [-by, by]).collect();
    distances.extend(far(scene));
    let mut all: Vec<Law<'a>> = distances.into_iter().map(shifted).collect();
    all.push(Law::new("the row of the part's first token stands there", 0, |row| {
        expected(scene, row, 0, scene.token(row).1 as i64)
    }));
    all.push(Law::new("the row of the part's last token stands there", 0, |row| {
        let (tokens, ..) = scene.layout().extents(scene.shape(row.step));
        expected(scene, row, tokens as i64 - 1, scene.token(row).1 as i64)
    }));
    let swapped = |row: &RowAt| expected(scene, row, (scene.token(row).0 ^ 1) as i64, scene.token(row).1 as i64);
    all.push(Law::new("the rows of neighbouring tokens are exchanged", 0, swapped));
    let reversed = |row: &RowAt| {
        let (tokens, ..) = scene.layout().extents(scene.shape(row.step));
        expected(scene, row, tokens as i64 - 1 - scene.token(row).0 as i64, scene.token(row).1 as i64)
    };
    all.push(Law::new("the rows of the part stand in reverse order", 0, reversed));
    all
}

/// The distance at which the first wrong row has a row that should be just what it is, beyond those that are tried anyway.
fn far(scene: &Scene<'_>) -> Option<i64> {
    let row = &scene.e.rows[scene.rows[0]];
    let (got, want, bound) = scene.e.row(row);
    let wrong: Vec<usize> = (0..got.len()).filter(|&i| !right(got[i], want[i], bound[i])).collect();
    let (token, from) = scene.token(row);
    let (tokens, ..) = scene.layout().extents(scene.shape(row.step));
    let stands = |by: &i64| {
        expected(scene, row, token as i64 + by, from as i64)
            .is_some_and(|other| wrong.iter().all(|&i| right(got[i], other.value[i], other.bound[i])))
    };
    let all = (SHIFT + 1..tokens as i64).flat_map(|by| [-by, by]);
    all.filter(|by| (0..tokens as i64).contains(&(token as i64 + by))).find(stands)
}

/// Heads in the place of others, where rows are heads.
fn heads<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(first) = scene.e.bad_rows().find_map(|r| r.place.head) else {
        return Vec::new();
    };
    let heads = scene.e.rows.iter().filter_map(|r| r.place.head).max().unwrap_or(0) + 1;
    let of = move |row: &RowAt, head: usize| {
        let (token, from) = scene.token(row);
        let len = if scene.of_pairs() { scene.shape(row.step).last().copied()? } else { row.range.len() };
        let own = row.place.head? * len;
        expected(scene, row, token as i64, from as i64 - own as i64 + (head * len) as i64)
    };
    let fixed = (0..heads)
        .filter(move |&h| h != first)
        .map(|head| Law::new(format!("the values of head {head} stand there"), 1, move |row: &RowAt| of(row, head)));
    let shifted = (1..heads).map(|by| {
        let what = match by * 2 > heads {
            true => format!("the values of the head {} before, round the end, stand there", heads - by),
            false => format!("the values of the head {by} further on, round the end, stand there"),
        };
        Law::new(what, 1, move |row: &RowAt| of(row, (row.place.head? + by) % heads))
    });
    fixed.chain(shifted).collect()
}

/// Columns in the place of others: the map is read off the wrong elements, and must be a rule.
pub(super) fn columns<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(width) = scene.width().filter(|_| !scene.of_pairs()) else {
        return Vec::new();
    };
    let Some(map) = read_map(scene, width) else {
        return Vec::new();
    };
    rules(&map, width, scene.head())
        .into_iter()
        .map(|(what, rule)| {
            Law::new(what, 2, move |row: &RowAt| {
                let (value, bound) = scene.e.expected[row.step].as_ref()?;
                let (layout, (token, from)) = (scene.layout(), scene.token(row));
                let source =
                    |i: usize| rule(from + i).filter(|&s| s < width).map(|s| layout.at(&value.shape, token, s));
                let all = || (0..row.range.len()).map(source);
                Some(Row {
                    value: all().map(|at| at.map_or(f64::NAN, |at| value.data[at])).collect(),
                    bound: all().map(|at| at.map_or(0.0, |at| bound[at])).collect(),
                })
            })
        })
        .collect()
}

/// Which column's value stands in each wrong column of the fitted rows: one that gives it in all of them.
fn read_map(scene: &Scene<'_>, width: usize) -> Option<BTreeMap<usize, usize>> {
    let e = scene.e;
    let mut candidates: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(r, i) in &scene.fit {
        let row = &e.rows[r];
        let (got, (token, from)) = (scene.element((r, i)).0 as f32, scene.token(row));
        let (value, bound) = e.expected[row.step].as_ref()?;
        let agrees = |&s: &usize| {
            let at = scene.layout().at(&value.shape, token, s);
            right(got, value.data[at], bound[at])
        };
        match candidates.get_mut(&(from + i)) {
            Some(known) => known.retain(agrees),
            None => {
                // Few columns tell a rule.
                if candidates.len() < 256 {
                    candidates.insert(from + i, (0..width).filter(agrees).collect());
                }
            }
        }
    }
    let found: BTreeMap<usize, usize> = candidates
        .iter()
        .filter_map(|(c, sources)| if let [one] = sources[..] { Some((*c, one)) } else { None })
        .collect();
    (!found.is_empty() && found.len() * 10 >= candidates.len() * 9).then_some(found)
}

type Rule = Box<dyn Fn(usize) -> Option<usize>>;

/// Rules that give every pair of the map.
fn rules(map: &BTreeMap<usize, usize>, width: usize, head: Option<usize>) -> Vec<(String, Rule)> {
    let mut all: Vec<(String, Rule)> = Vec::new();
    let (&c0, &s0) = map.iter().next().expect("a map has pairs");
    // One pair tells no rule but itself.
    if map.len() == 1 {
        return vec![(format!("the value of the column {s0} stands there"), Box::new(move |_| Some(s0)))];
    }
    let shift = s0 as i64 - c0 as i64;
    let side = |by: i64| format!("{} {}", by.abs(), if by < 0 { "before" } else { "after" });
    all.push((
        format!("the value of the column {} stands there", side(shift)),
        Box::new(move |c| usize::try_from(c as i64 + shift).ok()),
    ));
    all.push((
        format!("the value of the column {} stands there, round the end", side(shift)),
        Box::new(move |c| Some((c as i64 + shift).rem_euclid(width as i64) as usize)),
    ));
    all.push((format!("the value of column {s0} stands there"), Box::new(move |_| Some(s0))));
    for n in [Some(width), head].into_iter().flatten() {
        let of = if n == width { "the row" } else { "each head" };
        all.push((
            format!("the columns of {of} stand in reverse order"),
            Box::new(move |c| Some(c / n * n + n - 1 - c % n)),
        ));
        for rows in (2..n).filter(|r| n.is_multiple_of(*r)) {
            let what = format!("the columns of {of} are transposed, read as {rows} by {}", n / rows);
            all.push((what, Box::new(move |c| Some(c / n * n + c % n % rows * (n / rows) + c % n / rows))));
        }
    }
    let bit = c0 ^ s0;
    let what = match bit.is_power_of_two() {
        true => format!("columns {bit} apart are exchanged"),
        false => format!("the value of the column whose number differs in the bits of {bit} stands there"),
    };
    all.push((what, Box::new(move |c| Some(c ^ bit))));
    if map.len() == 2 || map.iter().all(|(c, s)| map.get(s) == Some(c)) {
        let pairs = map.clone();
        let (a, b) = (c0.min(s0), c0.max(s0));
        let what = match map.len() {
            2 => format!("columns {a} and {b} are exchanged"),
            n => format!("{} pairs of columns are exchanged, {a} and {b} first", n / 2),
        };
        all.push((what, Box::new(move |c| pairs.get(&c).copied())));
    }
    all.retain(|(_, rule)| map.iter().all(|(c, s)| rule(*c) == Some(*s)));
    all
}
