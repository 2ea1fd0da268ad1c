//! What a condition may ask of an element.

use super::super::At;
use super::super::experts::{beyond_capacity, line_of_expert, place_in_expert, tile_of_line};
use super::super::scene::Scene;
use super::super::terms::expert;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, Gather};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::borrow::Cow;

/// What a condition may ask of an element, and how it is called.
pub(super) struct Feature {
    pub(super) name: &'static str,
    /// Whether all elements of a row have the same.
    pub(super) by_row: bool,
    pub(super) of: fn(&Scene<'_>, At) -> Option<i64>,
}

fn row<'a>(scene: &'a Scene<'_>, at: At) -> &'a crate::verdict::RowAt {
    &scene.e.rows[at.0]
}

/// The step that ran the element's token: of a row of a cache, the one that wrote it.
pub(super) fn step<'a>(scene: &'a Scene<'_>, at: At) -> &'a crate::capture::Step {
    let (row, steps) = (row(scene, at), &scene.e.side.capture.steps);
    let wrote = |s: &&crate::capture::Step| (s.first..s.keys()).contains(&row.place.position);
    steps[..row.step].iter().find(wrote).unwrap_or(&steps[row.step])
}

/// The element's place in its token's vector.
fn column(scene: &Scene<'_>, at: At) -> i64 {
    (scene.token(row(scene, at)).1 + at.1) as i64
}

/// Whether a later part of several tokens begins in the page of M rows of a cache that a row is in.
fn before_a_part<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (row, steps) = (row(scene, at), &scene.e.side.capture.steps);
    let position = row.place.position;
    let begins = |step: &crate::capture::Step| step.first > position && step.first / M == position / M;
    let parts = steps[..=row.step].iter().filter(|step| step.tokens.len() > 1);
    scene.node().has_state().then(|| i64::from(parts.into_iter().any(begins)))
}

/// Whether a decode step wrote a row as the first of a page of M rows, and a later step left it as it is.
fn began_page<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (row, wrote) = (row(scene, at), step(scene, at));
    let decoded = wrote.first > 0 && wrote.tokens.len() == 1;
    let later = scene.e.side.capture.steps[row.step].first > row.place.position;
    scene.node().has_state().then(|| i64::from(decoded && later && row.place.position.is_multiple_of(M)))
}

/// Whether a decode step wrote a row in a page of M rows that a decode step began, and a later part of several tokens has run.
fn in_begun_page<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    if !scene.node().has_state() {
        return None;
    }
    let (row, steps) = (row(scene, at), &scene.e.side.capture.steps[..=row(scene, at).step]);
    let position = row.place.position;
    let wrote = |position: usize| steps.iter().find(|step| (step.first..step.keys()).contains(&position));
    let decoded = |position: usize| wrote(position).is_some_and(|step| step.first > 0 && step.tokens.len() == 1);
    let part = steps.iter().any(|step| step.first > position && step.tokens.len() > 1);
    Some(i64::from(part && decoded(position) && decoded(position / M * M)))
}

/// Whether a row of a part is beyond the tiles of M rows that the first sequence of its pass has.
fn past_tiles<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (step, position) = (step(scene, at), row(scene, at).place.position);
    step.in_pass.map(|pass| i64::from(position - step.first >= pass.leads.next_multiple_of(M)))
}

/// The step that left the cache as it is: a row is seen again after every later step.
pub(super) const LOOKED: &str = "step that left the cache so";

/// How many steps ago a row of a cache was written.
pub(super) const AGE: &str = "number of steps since the row was written";

/// Simple ones first: of equally simple conditions, the first is reported.
pub(super) const FEATURES: &[Feature] = &[
    Feature {
        name: "head",
        by_row: false,
        of: |s, at| match row(s, at).place.head {
            Some(head) => (!s.of_experts() && !crate::verdict::is_window(s.node())).then_some(head as i64),
            None => Some(column(s, at) / s.head()? as i64),
        },
    },
    Feature {
        name: "row of the window",
        by_row: false,
        of: |s, at| row(s, at).place.head.filter(|_| crate::verdict::is_window(s.node())).map(|row| row as i64),
    },
    Feature {
        name: "expert",
        by_row: false,
        of: |s, at| {
            row(s, at).place.head.and_then(|_| expert(s, row(s, at))).filter(|_| s.of_experts()).map(|e| e as i64)
        },
    },
    Feature {
        name: "chosen expert",
        by_row: false,
        of: |s, at| row(s, at).place.head.filter(|_| s.of_experts()).map(|place| place as i64),
    },
    Feature { name: LINE_OF_EXPERT, by_row: false, of: |s, at| line_of_expert(s, row(s, at)) },
    Feature {
        name: "lines of each expert beyond its capacity, its even share of the part",
        by_row: false,
        of: beyond::<4, 1>,
    },
    Feature {
        name: "lines of each expert beyond its capacity, 1.25 times its even share of the part",
        by_row: false,
        of: beyond::<5, 1>,
    },
    Feature {
        name: "lines of each expert beyond its capacity, 1.5 times its even share of the part",
        by_row: false,
        of: beyond::<6, 1>,
    },
    Feature {
        name: "lines of each expert beyond its capacity, 2 times its even share of the part",
        by_row: false,
        of: beyond::<8, 1>,
    },
    Feature {
        name: "lines of each expert beyond its capacity, its even share of the part in whole tiles of 4",
        by_row: false,
        of: beyond::<4, 4>,
    },
    Feature {
        name: "lines of each expert beyond its capacity, its even share of the part in whole tiles of 8",
        by_row: false,
        of: beyond::<4, 8>,
    },
    Feature {
        name: "lines of each expert beyond its capacity, its even share of the part in whole tiles of 16",
        by_row: false,
        of: beyond::<4, 16>,
    },
    Feature {
        name: "lines of each expert beyond its capacity, its even share of the part in whole tiles of 32",
        by_row: false,
        of: beyond::<4, 32>,
    },
    Feature {
        name: "lines beyond as many tiles of 4 as the part's lines fill, where each expert's begin a tile of their own",
        by_row: false,
        of: beyond_grid::<4>,
    },
    Feature {
        name: "lines beyond as many tiles of 8 as the part's lines fill, where each expert's begin a tile of their own",
        by_row: false,
        of: beyond_grid::<8>,
    },
    Feature {
        name: "lines beyond as many tiles of 16 as the part's lines fill, where each expert's begin a tile of their own",
        by_row: false,
        of: beyond_grid::<16>,
    },
    Feature {
        name: "lines beyond as many tiles of 32 as the part's lines fill, where each expert's begin a tile of their own",
        by_row: false,
        of: beyond_grid::<32>,
    },
    Feature {
        name: "lines beyond as many tiles of 64 as the part's lines fill, where each expert's begin a tile of their own",
        by_row: false,
        of: beyond_grid::<64>,
    },
    Feature {
        name: "column",
        by_row: false,
        of: |s, at| match row(s, at).place.head {
            Some(_) => s.of_experts().then_some(at.1 as i64),
            None => (!s.of_pairs()).then(|| column(s, at)),
        },
    },
    Feature {
        name: "column of the head",
        by_row: false,
        of: |s, at| match row(s, at).place.head {
            Some(_) => (!s.of_pairs() && !s.of_experts()).then_some(at.1 as i64),
            None => Some(column(s, at) % s.head()? as i64),
        },
    },
    Feature { name: FED, by_row: false, of: was_fed },
    Feature { name: PLANE, by_row: false, of: plane },
    Feature { name: "first operand's sign", by_row: false, of: sign::<0> },
    Feature { name: "second operand's sign", by_row: false, of: sign::<1> },
    Feature { name: "key", by_row: false, of: |s, at| s.of_pairs().then_some(at.1 as i64) },
    Feature {
        name: DISTANCE,
        by_row: false,
        of: |s, at| s.of_pairs().then(|| row(s, at).place.position as i64 - at.1 as i64),
    },
    Feature { name: "position", by_row: true, of: |s, at| Some(row(s, at).place.position as i64) },
    Feature { name: "decode step", by_row: true, of: |s, at| (!longer(s)).then(|| step(s, at).index as i64) },
    // Where some have several tokens.
    Feature { name: "step", by_row: true, of: |s, at| longer(s).then(|| step(s, at).index as i64) },
    Feature { name: LATER, by_row: true, of: |s, at| Some(i64::from(step(s, at).first > 0)) },
    Feature { name: BEHIND, by_row: true, of: behind_a_prefix },
    Feature { name: PART_FIRST, by_row: true, of: |s, at| Some(step(s, at).first as i64) },
    Feature {
        // A cache is looked at after every step, whoever wrote its rows.
        name: LOOKED,
        by_row: true,
        // A state of its own is what the step leaves, and no more.
        of: |s, at| {
            let kept = s.node().has_state() && !s.node().is_own_state();
            kept.then(|| s.e.side.capture.steps[row(s, at).step].index as i64)
        },
    },
    Feature {
        name: AGE,
        by_row: true,
        of: |s, at| {
            let position = row(s, at).place.position;
            let wrote = s.e.side.capture.steps.iter().position(|step| (step.first..step.keys()).contains(&position));
            s.node().has_state().then(|| wrote.map(|wrote| row(s, at).step as i64 - wrote as i64)).flatten()
        },
    },
    Feature {
        name: DECODED,
        by_row: true,
        // Nothing of a prompt's rows: then no remainder of it holds of them.
        of: |s, at| {
            let (step, position) = (step(s, at), row(s, at).place.position as i64);
            let decoded = step.first > 0 && step.tokens.len() == 1;
            s.node().has_state().then_some(if decoded { position } else { NONE })
        },
    },
    Feature { name: "rows before a later part that begins in their page of 8", by_row: true, of: before_a_part::<8> },
    Feature { name: "rows before a later part that begins in their page of 16", by_row: true, of: before_a_part::<16> },
    Feature { name: "rows before a later part that begins in their page of 32", by_row: true, of: before_a_part::<32> },
    Feature { name: "rows before a later part that begins in their page of 64", by_row: true, of: before_a_part::<64> },
    Feature {
        name: "rows with which a decode step began a page of 8, as later steps left them",
        by_row: true,
        of: began_page::<8>,
    },
    Feature {
        name: "rows with which a decode step began a page of 16, as later steps left them",
        by_row: true,
        of: began_page::<16>,
    },
    Feature {
        name: "rows with which a decode step began a page of 32, as later steps left them",
        by_row: true,
        of: began_page::<32>,
    },
    Feature {
        name: "rows with which a decode step began a page of 64, as later steps left them",
        by_row: true,
        of: began_page::<64>,
    },
    Feature {
        name: "rows that decode steps wrote in a page of 8 that a decode step began, as later parts left them",
        by_row: true,
        of: in_begun_page::<8>,
    },
    Feature {
        name: "rows that decode steps wrote in a page of 16 that a decode step began, as later parts left them",
        by_row: true,
        of: in_begun_page::<16>,
    },
    Feature {
        name: "rows that decode steps wrote in a page of 32 that a decode step began, as later parts left them",
        by_row: true,
        of: in_begun_page::<32>,
    },
    Feature {
        name: "rows that decode steps wrote in a page of 64 that a decode step began, as later parts left them",
        by_row: true,
        of: in_begun_page::<64>,
    },
    Feature {
        name: "row of the part",
        by_row: true,
        of: |s, at| {
            let row = row(s, at).place.position as i64 - step(s, at).first as i64;
            (!s.node().is_own_state()).then_some(row)
        },
    },
    Feature {
        name: FROM_LAST,
        by_row: true,
        // A state has one row for each part, which is the last.
        of: |s, at| {
            let row = (step(s, at).keys() - 1) as i64 - row(s, at).place.position as i64;
            (!s.node().is_own_state()).then_some(row)
        },
    },
    Feature {
        name: LAST_OF_SEVERAL,
        by_row: true,
        // A decode step is its own last row.
        of: |s, at| {
            let (step, position) = (step(s, at), row(s, at).place.position);
            let last = step.tokens.len() > 1 && position + 1 == step.keys();
            (!s.node().is_own_state()).then_some(i64::from(last))
        },
    },
    Feature { name: LENGTH, by_row: true, of: |s, at| Some(step(s, at).tokens.len() as i64) },
    // A kernel is chosen by all rows of a pass.
    Feature { name: MOST, by_row: true, of: |s, at| step(s, at).in_pass.map(|pass| pass.most as i64) },
    Feature {
        name: OF_PASS,
        by_row: true,
        of: |s, at| {
            let (step, position) = (step(s, at), row(s, at).place.position);
            step.in_pass.map(|pass| (pass.before + position - step.first) as i64)
        },
    },
    Feature { name: TURN, by_row: true, of: |s, at| step(s, at).in_pass.map(|pass| pass.turn as i64) },
    Feature { name: ROLLED, by_row: true, of: |s, at| Some(i64::from(step(s, at).whose.rollbacks)) },
    Feature {
        name: PAST_LEADING,
        by_row: true,
        of: |s, at| {
            let (step, position) = (step(s, at), row(s, at).place.position);
            step.in_pass.map(|pass| i64::from(position - step.first >= pass.leads))
        },
    },
    Feature {
        name: "rows of the part beyond tiles of 4 that hold as many as the first sequence of the pass has",
        by_row: true,
        of: past_tiles::<4>,
    },
    Feature {
        name: "rows of the part beyond tiles of 8 that hold as many as the first sequence of the pass has",
        by_row: true,
        of: past_tiles::<8>,
    },
    Feature {
        name: "rows of the part beyond tiles of 16 that hold as many as the first sequence of the pass has",
        by_row: true,
        of: past_tiles::<16>,
    },
    Feature {
        name: "rows of the part beyond tiles of 32 that hold as many as the first sequence of the pass has",
        by_row: true,
        of: past_tiles::<32>,
    },
    Feature {
        name: "rows of the part beyond tiles of 64 that hold as many as the first sequence of the pass has",
        by_row: true,
        of: past_tiles::<64>,
    },
    Feature { name: ALL_ROWS, by_row: true, of: |s, at| step(s, at).in_pass.map(|pass| pass.rows as i64) },
    Feature {
        name: BESIDE,
        by_row: true,
        of: |s, at| {
            let step = step(s, at);
            step.in_pass.map(|pass| i64::from(step.tokens.len() == 1 && pass.most > 1))
        },
    },
    Feature { name: BEGINS, by_row: true, of: |s, at| step(s, at).in_pass.map(|pass| i64::from(pass.begins)) },
    Feature {
        name: "token id",
        by_row: true,
        of: |s, at| {
            let step = step(s, at);
            let token = row(s, at).place.position.checked_sub(step.first)?;
            step.tokens.get(token).map(|t| i64::from(*t))
        },
    },
    Feature {
        name: WEIGHT_ROW,
        by_row: false,
        of: |s, at| match s.node().op.anatomy() {
            Anatomy::Gather(Gather::Rows) => {
                let step = step(s, at);
                let token = row(s, at).place.position.checked_sub(step.first)?;
                step.tokens.get(token).map(|t| i64::from(*t))
            }
            Anatomy::Contraction(Contraction::Weight(None)) => Some(column(s, at)),
            _ => None,
        },
    },
    Feature { name: "rows left over after whole tiles of 4", by_row: true, of: left_over::<4> },
    Feature { name: "rows left over after whole tiles of 8", by_row: true, of: left_over::<8> },
    Feature { name: "rows left over after whole tiles of 16", by_row: true, of: left_over::<16> },
    Feature { name: "rows left over after whole tiles of 32", by_row: true, of: left_over::<32> },
    Feature { name: "rows left over after whole tiles of 64", by_row: true, of: left_over::<64> },
    Feature { name: "rows that a last tile of 4, moved back to be whole, takes again", by_row: true, of: again::<4> },
    Feature { name: "rows that a last tile of 8, moved back to be whole, takes again", by_row: true, of: again::<8> },
    Feature { name: "rows that a last tile of 16, moved back to be whole, takes again", by_row: true, of: again::<16> },
    Feature { name: "rows that a last tile of 32, moved back to be whole, takes again", by_row: true, of: again::<32> },
    Feature { name: "rows that a last tile of 64, moved back to be whole, takes again", by_row: true, of: again::<64> },
    Feature { name: "rows beyond the page of 8 in which their part begins", by_row: true, of: beyond_page::<8> },
    Feature { name: "rows beyond the page of 16 in which their part begins", by_row: true, of: beyond_page::<16> },
    Feature { name: "rows beyond the page of 32 in which their part begins", by_row: true, of: beyond_page::<32> },
    Feature { name: "rows beyond the page of 64 in which their part begins", by_row: true, of: beyond_page::<64> },
    Feature { name: "lines of each expert left over after whole tiles of 4", by_row: false, of: lines_left_over::<4> },
    Feature { name: "lines of each expert left over after whole tiles of 8", by_row: false, of: lines_left_over::<8> },
    Feature {
        name: "lines of each expert left over after whole tiles of 16",
        by_row: false,
        of: lines_left_over::<16>,
    },
    Feature {
        name: "lines of each expert left over after whole tiles of 32",
        by_row: false,
        of: lines_left_over::<32>,
    },
    Feature {
        name: "lines of each expert left over after whole tiles of 64",
        by_row: false,
        of: lines_left_over::<64>,
    },
    Feature { name: "steps of 1 token whose keys fill whole pages of 8", by_row: true, of: ends_page::<8> },
    Feature { name: "steps of 1 token whose keys fill whole pages of 16", by_row: true, of: ends_page::<16> },
    Feature { name: "steps of 1 token whose keys fill whole pages of 32", by_row: true, of: ends_page::<32> },
    Feature { name: "steps of 1 token whose keys fill whole pages of 64", by_row: true, of: ends_page::<64> },
    Feature { name: "keys left over after whole tiles of 4", by_row: false, of: keys_left_over::<4> },
    Feature { name: "keys left over after whole tiles of 8", by_row: false, of: keys_left_over::<8> },
    Feature { name: "keys left over after whole tiles of 16", by_row: false, of: keys_left_over::<16> },
    Feature { name: "keys left over after whole tiles of 32", by_row: false, of: keys_left_over::<32> },
    Feature { name: "keys left over after whole tiles of 64", by_row: false, of: keys_left_over::<64> },
];

/// Whether a row is of the first pass behind a prefix.
fn behind_a_prefix(scene: &Scene<'_>, at: At) -> Option<i64> {
    let steps = &scene.e.side.capture.steps;
    let (run, own) = (steps.last()?.run, step(scene, at));
    let first = steps.iter().find(|step| step.run == run)?.first;
    Some(i64::from(first > 0 && own.run == run && own.first == first))
}

/// Whether the keys of a step of one token end where a page of M ends.
fn ends_page<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let step = step(scene, at);
    Some(i64::from(step.tokens.len() == 1 && step.keys().is_multiple_of(M)))
}

/// Whether steps after the prefill have several tokens.
fn longer(scene: &Scene<'_>) -> bool {
    scene.e.side.capture.steps.iter().any(|step| step.index > 0 && step.tokens.len() > 1)
}

/// Whether the row is among those that are left over when whole tiles of M rows of the part are taken.
fn left_over<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (position, step) = (row(scene, at).place.position, step(scene, at));
    let first = step.first + step.tokens.len() / M * M;
    Some(i64::from(position >= first))
}

/// Whether a row is among those of whole tiles of M rows that the last M rows of the part have as well.
fn again<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (position, step) = (row(scene, at).place.position, step(scene, at));
    let (row, n) = (position.checked_sub(step.first)?, step.tokens.len());
    let twice = n > M && !n.is_multiple_of(M) && (n - M..n / M * M).contains(&row);
    (!scene.node().is_own_state()).then_some(i64::from(twice))
}

/// Whether a row of a cache is on a later page of M rows than the first row of the part that wrote it.
fn beyond_page<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (position, step) = (row(scene, at).place.position, step(scene, at));
    scene.node().has_state().then(|| i64::from(position / M > step.first / M))
}

/// Whether a line is among those that are left over when whole tiles of M lines of its expert are taken.
fn lines_left_over<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (line, lines) = place_in_expert(scene, row(scene, at))?;
    Some(i64::from(line >= lines / M * M))
}

/// Whether the id of an element of the head is among the tokens of its sequence so far.
fn was_fed(scene: &Scene<'_>, at: At) -> Option<i64> {
    let (node, row) = (scene.node(), row(scene, at));
    let of_ids = node.id.layer.is_none() && scene.width() == Some(scene.e.oracle.graph.config.n_vocab);
    let (id, capture) = (column(scene, at), scene.e.side.capture);
    let steps = capture.steps[..=row.step].iter().flat_map(|step| (step.first..).zip(&step.tokens));
    let fed = |(position, token): (usize, &u32)| position <= row.place.position && i64::from(*token) == id;
    of_ids.then(|| i64::from(steps.into_iter().any(fed)))
}

/// The plane of a rotation that an element turns in.
fn plane(scene: &Scene<'_>, at: At) -> Option<i64> {
    let Anatomy::Elementwise(Elementwise::Rotation(rope)) = scene.node().op.anatomy() else { return None };
    let column = column(scene, at) as usize % rope.head_dim.max(1);
    rope.plane(column).map(|(plane, _)| plane as i64)
}

/// Whether operand N of a function of several is negative, 0, or positive at an element.
fn sign<const N: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let Anatomy::Elementwise(Elementwise::Gated(_) | Elementwise::Function(2..)) = scene.node().op.anatomy() else {
        return None;
    };
    let row = row(scene, at);
    let operand = scene.operand(row.step, N)?;
    let value = *operand.data.get(row.range.start + at.1).filter(|_| operand.shape == scene.shape(row.step))?;
    Some(i64::from(value > 0.0) - i64::from(value < 0.0))
}

/// Whether a line of an expert is beyond a capacity of so many quarters of its even share.
fn beyond<const QUARTERS: usize, const TILE: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    beyond_capacity(scene, row(scene, at), QUARTERS, TILE).map(i64::from)
}

/// Whether a line's tile is behind as many tiles of M lines as all lines of the part would fill without gaps.
fn beyond_grid<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    tile_of_line(scene, row(scene, at), M).map(|(tile, lines)| i64::from(tile >= lines.div_ceil(M)))
}

/// Whether the key is among those that are left over when whole tiles of M are taken of all keys that the part can see.
fn keys_left_over<const M: usize>(scene: &Scene<'_>, at: At) -> Option<i64> {
    let keys = step(scene, at).keys();
    scene.of_pairs().then(|| i64::from(at.1 >= keys / M * M))
}

/// One of the features, in JSON by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked(pub(super) usize);

impl Asked {
    pub(super) fn feature(self) -> &'static Feature {
        &FEATURES[self.0]
    }
}

impl Serialize for Asked {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.feature().name)
    }
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let found = FEATURES.iter().position(|feature| feature.name == name);
        found.map(Self).ok_or_else(|| D::Error::custom(format!("`{name}` is no feature of an element")))
    }
}

impl JsonSchema for Asked {
    fn schema_name() -> Cow<'static, str> {
        "Feature".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// The number of a row in a pass, of whichever sequences its rows are.
pub(super) const OF_PASS: &str = "row of the pass";

/// The sequences that have rows in the pass before the row's own.
pub(super) const TURN: &str = "number of sequences before this one in the pass";

/// How often the sequence took tokens back before the row.
pub(super) const ROLLED: &str = "number of times that tokens were taken back";

/// The rows of a part behind as many as the pass has of its first row's sequence.
pub(super) const PAST_LEADING: &str = "rows of the part beyond as many as the first sequence of the pass has";

/// The rows of a pass of several sequences.
pub(super) const ALL_ROWS: &str = "rows of the pass";

/// Whether a row is the only one of its sequence in a pass that has several of another.
pub(super) const BESIDE: &str = "rows of a sequence that has one in a pass in which another has several";

/// Whether a sequence begins in a pass.
pub(super) const BEGINS: &str = "passes in which a sequence begins at position 0";

/// The ids that the sequence was fed so far.
pub(super) const FED: &str = "ids that were fed so far";

/// A line of a product with experts, among those of its expert.
pub(super) const LINE_OF_EXPERT: &str = "line of the expert";

/// The row of a weight that an element is made of: a column of a product, the token's id of an embedding. It says the same of both,
/// and takes their place where a law is one of the weight.
pub(super) const WEIGHT_ROW: &str = "row of the weight";

/// Whether the part is another one than the first, of a prompt in parts or of a decode step.
pub(super) const LATER: &str = "part that does not begin at position 0";

/// Where a part begins.
pub(super) const PART_FIRST: &str = "first position of the part";

/// The first pass of a sequence that begins with a prefix of another one.
pub(super) const BEHIND: &str = "first pass behind a shared prefix";

/// The position of a row of a cache that a decode step wrote.
pub(super) const DECODED: &str = "position of a decoded token";

/// A row that has no such number.
pub(super) const NONE: i64 = i64::MIN;

/// The rows of a part, counted from its end.
pub(super) const FROM_LAST: &str = "row counted from the part's last";

/// The last row of a part that is no single token.
pub(super) const LAST_OF_SEVERAL: &str = "last row of a part of several tokens";

/// The plane that an element is rotated in.
pub(in super::super) const PLANE: &str = "plane of the rotation";

/// How far before the query a key is.
pub(super) const DISTANCE: &str = "distance of the key from the query";

/// What features have in their names that are about the sign of a number.
pub(super) const SIGN: &str = "operand's sign";

/// What features have in their names that tell whether an expert, or a buffer, has no room for a line.
pub(super) const BEYOND: &str = " beyond ";

/// The most rows of one sequence in the pass.
pub(super) const MOST: &str = "most tokens of one sequence in the pass";

pub(super) const LENGTH: &str = "number of tokens in the part";

/// What features have in their names that tell whether a row is in two tiles.
pub(super) const AGAIN: &str = "takes again";

/// What features have in their names that tell whether a row shares its page with a later part.
pub(super) const IN_PAGE: &str = "before a later part";

/// What features have in their names that tell whether a row began a page.
pub(super) const BEGAN: &str = "began a page";
/// Part of the names of features that are 0 or 1, of pages that decode steps began.
pub(super) const BEGUN: &str = "that a decode step began";

/// What features have in their names that tell whether a step of one token ends a page.
pub(super) const FILLS: &str = "whose keys fill whole pages";

/// What features have in their names that tell whether a row or a key is left over.
pub(super) const LEFT_OVER: &str = "left over after whole tiles";
