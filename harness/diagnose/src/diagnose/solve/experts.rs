//! Mixtures of experts: another expert's weights are multiplied, or experts are added by other weights than their own.

use super::factors::{Other, products};
use super::index::Index;
use super::scene::{Layout, Lists, Scene};
use super::terms::{Rows, Sums, expert, line};
use super::{Law, Row};
use crate::verdict::{RowAt, right};
use qdiff_engine::model::{Axis, Node, StageId, WeightSource as _};
use qdiff_engine::ops::anatomy::{Contraction, index};
use qdiff_engine::ops::{Anatomy, UNIT};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// The expert of a row, and the weight of one of those that a row's token chose.
type Choice<'a> = Rc<dyn Fn(&RowAt) -> Option<usize> + 'a>;
type Weight<'a> = Rc<dyn Fn(&RowAt, usize) -> Option<f64> + 'a>;

/// Experts in the place of the chosen one: by its number, by its place among those that the token chose, by the token.
pub(super) fn others<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    let Anatomy::Contraction(Contraction::Weight(Some(picked))) = scene.node().op.anatomy() else { return };
    let mut add = |what: String, other: Choice<'a>| {
        let sums = sums.clone();
        all.push((
            format!("the weights of the {what} are multiplied"),
            Rc::new(move |row: &RowAt, i, _: &[f64], b: &[f64]| {
                let weights = sums.weight(sums.row_for(row, i, other(row)?)?);
                Some(weights.iter().zip(b).map(|(w, x)| f64::from(*w) * x).collect())
            }),
        ));
    };
    for index in Index::slips(picked.groups) {
        let what = index.told("expert", "e");
        add(what, Rc::new(move |row| index.of(expert(scene, row)?, picked.groups)));
    }
    add(
        "expert with the number of its place among those that the token chose".to_owned(),
        Rc::new(move |row| row.place.head.filter(|place| *place < picked.groups)),
    );
    // By number, experts next to the chosen one that have no lines in the step, or have some.
    let idle = move |step: usize, e: usize| Some(!lists(scene, step)?.contains_key(&e));
    let ends = move |row: &RowAt, way: i64, while_idle: bool| -> Option<usize> {
        let mut at = expert(scene, row)?;
        loop {
            let next = usize::try_from(at as i64 + way).ok().filter(|next| *next < picked.groups);
            match next {
                Some(next) if idle(row.step, next)? => at = next,
                Some(next) if !while_idle => return Some(next),
                _ => return while_idle.then_some(at),
            }
        }
    };
    for (way, side) in [(-1, "before"), (1, "after")] {
        let farthest = if way < 0 { "first" } else { "last" };
        add(
            format!("{farthest} of the experts without lines that stand, by number, directly {side} the chosen one"),
            Rc::new(move |row| ends(row, way, true)),
        );
        add(format!("nearest expert {side} the chosen one that has lines"), Rc::new(move |row| ends(row, way, false)));
    }
    add(
        "expert whose number is the rank of the chosen one among the experts that have lines in the pass".to_owned(),
        Rc::new(move |row| {
            let (own, lists) = (expert(scene, row)?, lists(scene, row.step)?);
            Some(lists.keys().filter(|other| **other < own).count())
        }),
    );
    // What a line of the step chose.
    let chosen = move |step: usize, token: usize, place: usize| -> Option<usize> {
        let chosen = scene.operand(step, 1)?;
        let taken = *chosen.shape.last()?;
        self::index(*chosen.data.get(token * taken + place).filter(|_| place < taken)?, picked.groups)
    };
    let taken = scene.node().shape.get(1).map_or(1, |_| places(scene));
    for index in Index::slips(taken) {
        let what = format!("expert in the {} of those that the token chose", index.told("place", "j"));
        add(
            what,
            Rc::new(move |row| chosen(row.step, scene.token(row).0, index.of(row.place.head.unwrap_or(0), taken)?)),
        );
    }
    let counts = [(true, false), (false, true), (false, false)];
    // Lines with padding go on behind the last tile without: where they do, what is there comes first.
    let behind = move |tile: usize| {
        let goes_on = |lists: Lists| {
            let (mut padded, mut plain) = (0, 0);
            for lines in lists.values() {
                (padded, plain) = (padded + lines.len().next_multiple_of(tile), plain + lines.len());
            }
            padded >= plain + tile
        };
        (0..scene.e.side.capture.steps.len()).any(|step| lists(scene, step).is_some_and(goes_on))
    };
    let ways = move |tile: usize| {
        let last = behind(tile).then_some(((false, true), true));
        last.into_iter().chain(counts.map(|gaps| (gaps, false))).map(move |way| (tile, way))
    };
    for (tile, (gaps, last)) in TILES.into_iter().flat_map(ways) {
        let experts = picked.groups;
        let padding = |with: bool| if with { "with" } else { "without" };
        let which = match gaps {
            (false, false) => {
                format!(
                    "expert of the first line of its tile of {tile} lines (no expert's lines are filled up to whole tiles)"
                )
            }
            (tiles, lines) => format!(
                "expert that owns its tile of {tile} lines (tiles are counted {} padding, lines {}{})",
                padding(tiles),
                padding(lines),
                if last { "; tiles behind those of all experts are the last expert's" } else { "" }
            ),
        };
        add(
            which,
            Rc::new(move |row| {
                let lists = lists(scene, row.step)?;
                let own = of_tile(&lists, (expert(scene, row)?, line(scene, row)), (tile, gaps), experts);
                own.or_else(|| experts.checked_sub(1).filter(|_| last))
            }),
        );
    }
    for index in Index::slips(8) {
        let what = format!("expert that the part's {} chose in this place", index.told("token", "t"));
        add(
            what,
            Rc::new(move |row| {
                let (number, count) = scene.number(row.step, scene.token(row).0);
                let token = scene.numbered(row.step, index.of(number, count)?)?;
                chosen(row.step, token, row.place.head.unwrap_or(0))
            }),
        );
    }
}

/// Maps of a step's lines go over so many.
const LINES: usize = 65;

/// Lines of a tile.
const TILES: [usize; 6] = [4, 8, 16, 32, 64, 128];

/// The lists of a step, of which all tokens were captured.
pub(super) fn lists(scene: &Scene<'_>, step: usize) -> Option<Lists> {
    lists_of(scene, step, scene.e.oracle.graph.nodes[*scene.node().inputs.get(1)?].id)
}

/// The same by this stage, which has the experts that tokens chose.
fn lists_of(scene: &Scene<'_>, step: usize, chosen: StageId) -> Option<Lists> {
    let make = || {
        let of_step = &scene.e.side.capture.steps[step];
        let mut of: HashMap<usize, Vec<usize>> = HashMap::new();
        let chosen = (of_step.rows() == of_step.tokens.len()).then(|| scene.tensor(step, chosen))??;
        for (line, expert) in chosen.data.iter().enumerate() {
            of.entry(*expert as usize).or_default().push(line);
        }
        Some(Rc::new(of))
    };
    scene.lists.borrow_mut().entry(step).or_insert_with(make).clone()
}

/// The number of a row's line among those of its expert in the step.
pub(super) fn line_of_expert(scene: &Scene<'_>, row: &RowAt) -> Option<i64> {
    let Anatomy::Contraction(Contraction::Weight(Some(_))) = scene.node().op.anatomy() else { return None };
    let (lists, own) = (lists(scene, row.step)?, expert(scene, row)?);
    Some(lists.get(&own)?.binary_search(&line(scene, row)).ok()? as i64)
}

/// The same, and how many lines the expert has.
pub(super) fn place_in_expert(scene: &Scene<'_>, row: &RowAt) -> Option<(usize, usize)> {
    let line = line_of_expert(scene, row)? as usize;
    let own = expert(scene, row)?;
    Some((line, lists(scene, row.step)?.get(&own)?.len()))
}

/// Whether a row's line is beyond the capacity of its expert: so many quarters of the lines that each has if those of the step are shared
/// evenly, rounded up to whole tiles.
pub(super) fn beyond_capacity(scene: &Scene<'_>, row: &RowAt, quarters: usize, tile: usize) -> Option<bool> {
    let Anatomy::Contraction(Contraction::Weight(Some(picked))) = scene.node().op.anatomy() else { return None };
    let lines: usize = lists(scene, row.step)?.values().map(Vec::len).sum();
    let capacity = (quarters * lines).div_ceil(4 * picked.groups).next_multiple_of(tile);
    Some(line_of_expert(scene, row)? >= capacity as i64)
}

/// The number of a line's tile of so many lines where each expert's lines are filled up to whole tiles, and the lines of the step.
pub(super) fn tile_of_line(scene: &Scene<'_>, row: &RowAt, tile: usize) -> Option<(usize, usize)> {
    let own = expert(scene, row)?;
    let line = line_of_expert(scene, row)? as usize;
    let lists = lists(scene, row.step)?;
    let before: usize = lists.iter().filter(|(e, _)| **e < own).map(|(_, lines)| lines.len().div_ceil(tile)).sum();
    Some((before + line / tile, lists.values().map(Vec::len).sum()))
}

/// The expert of the tile that a line is in. By either count, the lines of an expert begin at a multiple of the tile, or without such
/// gaps: by the first one tiles are given to experts, and by the second one lines are placed.
fn of_tile(
    lists: &Lists, (own, line): (usize, usize), (tile, (of_tiles, of_lines)): (usize, (bool, bool)), experts: usize,
) -> Option<usize> {
    let count = |e: usize| lists.get(&e).map_or(0, Vec::len);
    let starts = |gaps: bool| -> Vec<usize> {
        let ends = (0..experts).scan(0, |end, e| {
            *end += if gaps { count(e).next_multiple_of(tile) } else { count(e) };
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    };
    let place = starts(of_lines)[own] + lists.get(&own)?.binary_search(&line).ok()?;
    let (of, first) = (starts(of_tiles), place / tile * tile);
    (0..experts).find(|&e| (of[e]..of[e + 1]).contains(&first))
}

/// Rows of the activations in the place of a line's own: of another line of the same expert, or by the line's number in the step.
pub(super) fn rows<'a>(scene: &'a Scene<'a>, sums: &Rc<Sums<'a>>, all: &mut Vec<Other<'a>>) {
    let Anatomy::Contraction(Contraction::Weight(Some(_))) = scene.node().op.anatomy() else { return };
    let n = scene.weights().extent(&scene.node().weights[0].name).0;
    let known: Rc<RefCell<Rows>> = Rc::default();
    let mut add = |what: String, of: Choice<'a>| {
        let (sums, known) = (sums.clone(), known.clone());
        all.push((
            what,
            Rc::new(move |row: &RowAt, _, a: &[f64], _: &[f64]| {
                let at = of(row)?;
                let inputs = scene.operand(row.step, 0)?;
                let own = inputs.data.get(at * n..(at + 1) * n)?;
                let rounded = || Rc::new(sums.rounded(row, own));
                let x = known.borrow_mut().entry((row.step, at)).or_insert_with(rounded).clone();
                Some(products(a, &x))
            }),
        ));
    };
    // Lines of a step, and the rows that they are made of.
    let counts = move |step: usize| -> Option<(usize, usize)> {
        let (lines, inputs) = (scene.operand(step, 1)?.data.len(), scene.operand(step, 0)?.data.len() / n);
        (inputs > 0 && lines.is_multiple_of(inputs)).then_some((lines, inputs))
    };
    let id = scene.e.oracle.graph.nodes[scene.node().inputs[0]].id;
    add(
        format!(
            "the multiplied values of {id} are those of token l mod T, for line l of T tokens: as if lines were in the order of choices"
        ),
        Rc::new(move |row| {
            let (lines, inputs) = counts(row.step)?;
            (lines > inputs).then(|| line(scene, row) % inputs)
        }),
    );
    // Where each line has a row of its own: those of another choice of its token.
    let taken = places(scene);
    for index in Index::slips(taken) {
        add(
            format!("the multiplied values of {id} are those of the token's {}", index.told("chosen expert", "j")),
            Rc::new(move |row| {
                let (lines, inputs) = counts(row.step)?;
                let own = line(scene, row);
                (lines == inputs && taken > 1)
                    .then(|| own / taken * taken + index.of(own % taken, taken).unwrap_or(own % taken))
            }),
        );
    }
    for index in Index::slips(LINES) {
        add(
            format!("the multiplied values of {id} are those of the expert's {}", index.told("line", "i")),
            Rc::new(move |row| {
                let ((lines, inputs), lists) = (counts(row.step)?, lists(scene, row.step)?);
                let own = line(scene, row);
                let list = lists.get(&expert(scene, row)?)?;
                let place = list.binary_search(&own).ok()?;
                let other = index.of(place, list.len()).map_or(own, |place| list[place]);
                Some(other / (lines / inputs))
            }),
        );
    }
}

/// Experts that a token chooses.
fn places(scene: &Scene<'_>) -> usize {
    let heads = scene.e.rows.iter().filter_map(|row| row.place.head).max();
    heads.map_or(1, |last| last + 1)
}

/// Lines that an expert takes of a pass.
#[derive(Clone, Copy)]
enum Capacity {
    /// So many.
    Lines(usize),
    /// So many quarters of an even share, rounded up.
    Quarters(usize),
}

impl Capacity {
    fn all() -> impl Iterator<Item = Self> {
        (1..=32).chain([48, 64, 96, 128]).map(Self::Lines).chain([4, 5, 6, 8].map(Self::Quarters))
    }

    /// How many, where a pass has so many lines for so many experts.
    fn of(self, lines: usize, experts: usize) -> usize {
        match self {
            Self::Lines(lines) => lines,
            Self::Quarters(quarters) => (quarters * lines).div_ceil(4 * experts.max(1)),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lines(1) => f.write_str("1 line"),
            Self::Lines(lines) => write!(f, "{lines} lines"),
            Self::Quarters(quarters) => write!(f, "{} times its even share of the lines", *quarters as f64 / 4.0),
        }
    }
}

/// Weights in the place of those that experts are added by.
pub(super) fn weights<'a>(scene: &'a Scene<'a>, all: &mut Vec<Other<'a>>) {
    let Anatomy::Contraction(Contraction::Rows(terms)) = scene.node().op.anatomy() else { return };
    all.push((
        format!("the results of the experts, {terms} for each token, are read as one for each token, {terms} times"),
        Rc::new(move |row: &RowAt, i, a: &[f64], _: &[f64]| {
            let (results, (number, count)) = (scene.operand(row.step, 1)?, scene.number(row.step, scene.token(row).0));
            let (width, column) = (scene.width()?, scene.token(row).1 + i);
            let at = |j: usize| results.data.get((j * count + number) * width + column).map(|v| f64::from(*v));
            let read: Option<Vec<f64>> = (0..a.len()).map(at).collect();
            Some(products(a, &read?))
        }),
    ));
    let mut add = |what: String, at: Weight<'a>| {
        all.push((
            what,
            Rc::new(move |row: &RowAt, _, a: &[f64], b: &[f64]| {
                let other: Option<Vec<f64>> = (0..a.len()).map(|j| at(row, j)).collect();
                Some(products(&other?, b))
            }),
        ));
    };
    let own = move |row: &RowAt, at: usize| scene.operand(row.step, 0)?.data.get(at).map(|w| f64::from(*w));
    add("experts are not weighted: each counts once".to_owned(), Rc::new(|_, _| Some(1.0)));
    add("experts are weighted alike".to_owned(), Rc::new(move |_, _| Some(1.0 / terms as f64)));
    for stride in (0..=2 * terms).filter(|stride| *stride != terms) {
        let what =
            format!("the weights of the experts are read with a stride of {stride} for a token instead of {terms}");
        add(what, Rc::new(move |row, j| own(row, scene.number(row.step, scene.token(row).0).0 * stride + j)));
    }
    add(
        format!("the weights of the experts, {terms} for each token, are read as one for each token, {terms} times"),
        Rc::new(move |row, j| {
            let (number, count) = scene.number(row.step, scene.token(row).0);
            own(row, scene.numbered(row.step, 0)? * terms + j * count + number)
        }),
    );
    for index in Index::slips(8) {
        let what = format!("the weights of the experts are those of the part's {}", index.told("token", "t"));
        add(
            what,
            Rc::new(move |row, j| {
                let (number, count) = scene.number(row.step, scene.token(row).0);
                own(row, scene.numbered(row.step, index.of(number, count)?)? * terms + j)
            }),
        );
    }
    let graph = &scene.e.oracle.graph;
    let input = &graph.nodes[scene.node().inputs[0]];
    let decides = |n: &&Node| n.id.layer == input.id.layer && matches!(n.op.anatomy(), Anatomy::Decision(_));
    if let Some(decision) = graph.nodes.iter().find(decides) {
        let chosen = decision.id;
        let of = decision.inputs.first().and_then(|input| graph.nodes[*input].shape.last());
        let experts = if let Some(Axis::Fixed(experts)) = of { *experts } else { terms };
        // The places of a token's experts in the order of their numbers.
        let order = move |row: &RowAt| -> Option<Vec<usize>> {
            let (token, chosen) = (scene.token(row).0, scene.tensor(row.step, chosen)?);
            let own = chosen.data.get(token * terms..(token + 1) * terms)?;
            let mut places: Vec<usize> = (0..terms).collect();
            places.sort_by(|a, b| own[*a].total_cmp(&own[*b]));
            Some(places)
        };
        let weight = move |row: &RowAt, j: usize| own(row, scene.token(row).0 * terms + j);
        // Whether a choice comes after so many lines of its expert in the pass.
        let beyond = move |row: &RowAt, j: usize, capacity: Capacity| -> Option<bool> {
            let (lists, chosen) = (lists_of(scene, row.step, chosen)?, scene.tensor(row.step, chosen)?);
            let line = scene.token(row).0 * terms + j;
            let place = lists.get(&self::index(*chosen.data.get(line)?, usize::MAX)?)?.binary_search(&line).ok()?;
            Some(place >= capacity.of(chosen.data.len(), experts))
        };
        for capacity in Capacity::all() {
            let left = move |row: &RowAt, j: usize| Some(if beyond(row, j, capacity)? { 0.0 } else { weight(row, j)? });
            let what = format!("an expert takes no more than {capacity} of a pass, and later lines add nothing");
            add(what.clone(), Rc::new(left));
            add(
                format!("{what}; the weights of the others are divided by their own sum"),
                Rc::new(move |row, j| {
                    let sum: f64 = (0..terms).map(|j| left(row, j)).sum::<Option<f64>>()?;
                    Some(if sum > 0.0 { left(row, j)? / sum } else { 0.0 })
                }),
            );
        }
        add(
            "the weights of the experts stand in the order of the experts' numbers, and the experts by probability"
                .to_owned(),
            Rc::new(move |row, j| weight(row, *order(row)?.get(j)?)),
        );
        add(
            "the experts stand in the order of their numbers, and their weights by probability".to_owned(),
            Rc::new(move |row, j| weight(row, order(row)?.iter().position(|place| *place == j)?)),
        );
    }
    let near = |n: &&Node| n.id.layer == input.id.layer && n.role == input.role && n.id != input.id;
    for node in graph.nodes.iter().filter(near).filter(|n| n.token_axis() == Some(0) && !scene.follows(n.id)) {
        let (id, layout) = (node.id, Layout::of(node));
        add(
            format!("{id} is taken for {}", input.id),
            Rc::new(move |row, j| {
                let tensor = scene.tensor(row.step, id)?;
                let (_, _, width) = layout.extents(&tensor.shape);
                tensor.data.get(scene.token(row).0 * width + j).filter(|_| j < width).map(|w| f64::from(*w))
            }),
        );
    }
}

/// Wrong elements of a row that another expert must give before it is taken for the one.
const GIVEN: usize = 6;

/// Rows that are looked at.
const ROWS: usize = 8;

/// That the weights by which experts are added multiply what goes into them.
fn weighted<'a>(scene: &'a Scene<'a>) -> Option<Law<'a>> {
    let nodes = &scene.e.oracle.graph.nodes;
    let adds = |n: &&Node| {
        n.id.layer == scene.node().id.layer && matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Rows(_)))
    };
    let weights = nodes[*nodes.iter().find(adds)?.inputs.first()?].id;
    let what = format!(
        "each row is multiplied by {weights} of its expert: the weights are applied to what goes into the experts"
    );
    Some(Law::new(what, 1, move |row: &RowAt| {
        let weight = f64::from(*scene.tensor(row.step, weights)?.data.get(line(scene, row))?);
        let (_, want, bound) = scene.e.row(row);
        Some(Row {
            value: want.iter().map(|v| v * weight).collect(),
            bound: bound.iter().zip(want).map(|(b, v)| b.max((UNIT * v.abs()) as f32)).collect(),
        })
    }))
}

/// The product of another expert, whichever it is; or the right one, of rows that are weighted.
pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !matches!(scene.node().op.anatomy(), Anatomy::Contraction(Contraction::Weight(Some(_)))) {
        return Vec::new();
    }
    weighted(scene).into_iter().chain(of_another(scene)).collect()
}

fn of_another<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Anatomy::Contraction(Contraction::Weight(Some(picked))) = scene.node().op.anatomy() else { return Vec::new() };
    let Some(sums) = Sums::new(scene).map(Rc::new) else { return Vec::new() };
    let product = {
        let sums = sums.clone();
        move |row: &RowAt, i: usize, expert: usize| -> Option<f64> {
            let (weights, x) = (sums.weight(sums.row_for(row, i, expert)?), sums.activations(row)?);
            scene.count(2 * x.len());
            Some(weights.iter().zip(x.iter()).map(|(w, x)| f64::from(*w) * x).sum())
        }
    };
    let known: RefCell<HashMap<(usize, usize), Option<usize>>> = RefCell::default();
    let other = {
        let product = product.clone();
        move |row: &RowAt| -> Option<usize> {
            let key = (row.step, row.range.start);
            if let Some(known) = known.borrow().get(&key) {
                return *known;
            }
            let (own, (got, _, bound)) = (expert(scene, row)?, scene.e.row(row));
            // For every other element: what the row alone shows.
            let shown: Vec<usize> = scene.wrong_of(row).into_iter().filter(|i| i % 2 == 0).take(GIVEN).collect();
            let gives = |e: &usize| {
                *e != own && shown.iter().all(|&i| product(row, i, *e).is_some_and(|v| right(got[i], v, bound[i])))
            };
            let found = (0..picked.groups).find(gives).filter(|_| shown.len() == GIVEN);
            known.borrow_mut().insert(key, found);
            found
        }
    };
    let wrong = || scene.rows.iter().filter(|&&r| scene.wrong_in(r)).map(|&r| &scene.e.rows[r]);
    if wrong().next().is_none() || !wrong().take(ROWS).all(|row| other(row).is_some()) {
        return Vec::new();
    }
    let law = Law::new("the weights of another expert than the chosen one are multiplied", 1, move |row: &RowAt| {
        let (_, want, bound) = scene.e.row(row);
        let value = match other(row) {
            Some(expert) => (0..want.len()).map(|i| product(row, i, expert)).collect::<Option<Vec<f64>>>()?,
            // Another one would give something else.
            None => want.iter().zip(bound).map(|(w, b)| w + 64.0 * (f64::from(*b) + w.abs() * 1e-6)).collect(),
        };
        Some(Row { value, bound: bound.to_vec() })
    });
    vec![Law { of_even: Some(usize::MAX), ..law }]
}

#[cfg(test)]
mod tests {
    use super::{Lists, of_tile};

    /// Three lines of expert 0 and two of expert 1, in tiles of 4: with gaps expert 1 begins at place 4, without at place 3.
    #[test]
    fn a_line_has_the_expert_of_its_tile() {
        let lists = Lists::new([(0, vec![0, 2, 4]), (1, vec![1, 3])].into());
        let of = |own: usize, line: usize, gaps: bool| of_tile(&lists, (own, line), (4, (gaps, !gaps)), 2);
        // Placed without gaps, the first line of expert 1 is in the tile of expert 0, and the second in its own.
        assert_eq!([1, 3].map(|line| of(1, line, true)), [Some(0), Some(1)]);
        assert_eq!([0, 2, 4].map(|line| of(0, line, true)), [Some(0); 3]);
        // Placed with gaps at 4 and 5, where expert 1 ends at 5: the tile that begins at 4 is its own.
        assert_eq!([1, 3].map(|line| of(1, line, false)), [Some(1); 2]);
        // Without gaps by either count, the first line of expert 1 is in the tile that begins with expert 0.
        let without = |own, line| of_tile(&lists, (own, line), (4, (false, false)), 2);
        assert_eq!([1, 3].map(|line| without(1, line)), [Some(0), Some(1)]);
    }
}
