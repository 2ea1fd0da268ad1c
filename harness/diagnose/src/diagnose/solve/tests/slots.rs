//! Rows of a cache in other slots than their own.

use super::bench::{At, Bench, Stage};
use super::plants::Plant;
use super::{CONDITIONS, planted, says};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Node, Role};
use qdiff_synth::Synth;

/// The slot of a position, given the first of its part and how many it has.
type Slot = fn(usize, (usize, usize)) -> usize;

/// What the cache holds in a slot if rows are written to those of `f`: the last one, or the old value if nothing
/// wrote the slot.
fn written(s: &Stage, at: &At, f: Slot) -> f64 {
    let parts = &s.steps[..=at.step];
    let mut written = parts.iter().flat_map(|part| (part.0..part.0 + part.1).map(|p| (p, f(p, *part))));
    let holds = written.rfind(|(_, slot)| *slot == at.token);
    holds.map_or(0.125, |(p, _)| s.elsewhere(at, p as i64, at.column as i64).unwrap())
}

/// The same where rows are read from these slots too: positions of one slot have one row.
fn shared(s: &Stage, at: &At, f: Slot) -> f64 {
    let parts = &s.steps[..=at.step];
    let own = s.steps.iter().find(|part| (part.0..part.0 + part.1).contains(&at.token)).unwrap();
    let mut written = parts.iter().flat_map(|part| (part.0..part.0 + part.1).map(|p| (p, f(p, *part))));
    let (last, _) = written.rfind(|(_, slot)| *slot == f(at.token, *own)).unwrap();
    s.elsewhere(at, last as i64, at.column as i64).unwrap()
}

/// Steps since a row was written.
fn age(s: &Stage, at: &At) -> usize {
    at.step - s.steps.iter().position(|part| (part.0..part.0 + part.1).contains(&at.token)).unwrap()
}

/// A key that is rotated again in each step after it was written.
fn rotated_again(s: &Stage, at: &At) -> f64 {
    rotated(s, at, age(s, at))
}

/// A key of a page that a later part begins in, rotated again by that part.
fn rotated_by_a_part(s: &Stage, at: &At) -> f64 {
    let begins = |(first, tokens): &(usize, usize)| *tokens > 1 && *first > at.token && first / 16 == at.token / 16;
    rotated(s, at, usize::from(s.steps[..=at.step].iter().any(begins)))
}

/// A key that is rotated so many times more.
fn rotated(s: &Stage, at: &At, times: usize) -> f64 {
    let (d, i) = (s.head_dim(), at.column % s.head_dim());
    let angle = (at.token * times) as f64 * s.graph.config.rope_base.powf(-2.0 * (i % (d / 2)) as f64 / d as f64);
    let other = s.elsewhere(at, at.token as i64, (at.column - i + (i + d / 2) % d) as i64).unwrap();
    let sign = if i < d / 2 { -1.0 } else { 1.0 };
    s.own(at) * angle.cos() + sign * other * angle.sin()
}

/// Columns of rows, one after the other, in a buffer that doubles and leaves what it holds where it was.
fn grown(s: &Stage, at: &At) -> f64 {
    let (width, mut rows) = (s.width(at.step), 16);
    let mut buffer = vec![None; rows * width];
    for (first, tokens) in &s.steps[..=at.step] {
        while rows < first + tokens {
            rows *= 2;
            buffer.resize(rows * width, None);
        }
        for p in *first..first + tokens {
            (0..width).for_each(|column| buffer[column * rows + p] = Some((p, column)));
        }
    }
    buffer[at.column * rows + at.token].map_or(0.0, |(p, column)| s.elsewhere(at, p as i64, column as i64).unwrap())
}

pub(super) fn plants() -> Vec<Plant> {
    let plant = |name: &str, words: &str, f: Slot| Plant::new(name, words, move |s, at| written(s, at, f));
    let mut all = vec![
        plant("slots modulo 16", "slots are counted modulo 16|to slot p mod 16|16 before|32 before", |p, _| p % 16),
        plant(
            "one slot on in decode steps",
            "each row of a decode step is written 1 slot after its own, and its own",
            |p, part| p + usize::from(part.1 == 1),
        ),
        plant("by the row in the part", "to the slot of its number in the part", |p, part| p - part.0),
        plant(
            "one row lost in another slot",
            "each row, that of position 20 alone, is written|row 20 is there instead|to slot",
            |p, _| {
                if p == 20 { 4 } else { p }
            },
        ),
        plant("every 8th a slot on", "each row where position mod 8 = 7 is written 1 slot before its own", |p, _| {
            if p % 8 == 7 { p - 1 } else { p }
        }),
        plant("a part in reverse order", "in reverse order", |p, part| part.0 + part.1 - 1 - (p - part.0)),
    ];
    for tile in [8, 16] {
        let words = format!("each tile of {tile} slots by {tile} columns is transposed|each tile of");
        all.push(Plant::new(format!("tiles of {tile} transposed"), words, move |s, at| {
            let rows = s.given[at.step].shape[0];
            let (slot, column) = (at.token / tile * tile + at.column % tile, at.column / tile * tile + at.token % tile);
            if slot < rows && column < s.width(at.step) {
                f64::from(s.given[at.step].data[slot * s.width(at.step) + column])
            } else {
                s.own(at)
            }
        }));
    }
    all
}

/// What later steps do to a cache, and slots that several positions share.
fn left() -> Vec<Plant> {
    vec![
        Plant::new(
            "a ring of 24",
            "slots are counted modulo 24&and read from there|the row 24 after is there instead",
            |s: &Stage, at: &At| shared(s, at, |p, _| p % 24),
        ),
        Plant::new(
            "a table that does not grow",
            "of the run 1 of 16&and read from there|the row 16 after is there instead",
            |s: &Stage, at: &At| shared(s, at, |p, _| (p / 16).min(1) * 16 + p % 16),
        ),
        Plant::new("rotated again", "are rotated by their positions again in each later step", rotated_again),
        Plant::new(
            "a page rotated by a later part",
            "are rotated by their positions again in a later step, once",
            rotated_by_a_part,
        ),
        Plant::new("a buffer that grows", "what it held stays at its old stride", grown),
        Plant::new("from the page's first slot", "began at the first slot of its", |s: &Stage, at: &At| {
            written(s, at, |p, part| p - part.0 % 16)
        }),
        Plant::new(
            "pages as heads by slots",
            "pages of 16 slots are written as heads by slots by columns, and read as slots by heads by columns",
            |s: &Stage, at: &At| {
                let (d, heads) = (s.head_dim(), s.width(at.step) / s.head_dim());
                let block = at.token % 16 * heads + at.column / d;
                let (slot, column) = (at.token / 16 * 16 + block % 16, block / 16 * d + at.column % d);
                let rows = s.given[at.step].shape[0];
                if slot < rows { s.elsewhere(at, slot as i64, column as i64).unwrap() } else { 0.25 }
            },
        ),
        // Pages of 8 that are 2 apart: every other one that is counted on to is nobody's.
        Plant::new(
            "no table of pages",
            "counted on from its part's first one: the table of pages of 8, which are 2 apart, is not read",
            |s: &Stage, at: &At| {
                written(s, at, |p, part| {
                    let (first, on) = (part.0 / 8, p / 8 - part.0 / 8);
                    if on % 2 == 0 { (first + on / 2) * 8 + p % 8 } else { usize::MAX }
                })
            },
        ),
        // The first part has no slots before it.
        Plant::new(
            "parts from the first slot on",
            "each row of the prefill is written to the slot of its number in the part",
            |s: &Stage, at: &At| written(s, at, |p, part| if part.1 > 1 { p - part.0 } else { p }),
        ),
        Plant::new(
            "a page too early in decode steps",
            "each row of a decode step whose position is a multiple of 2 is written 2 slots before its own|that of position 36 alone",
            |s: &Stage, at: &At| written(s, at, |p, part| if part.1 == 1 && p % 2 == 0 { p - 2 } else { p }),
        ),
        Plant::new(
            "read too early",
            "what it held|rows are not written&in the rows that the step itself writes",
            |s: &Stage, at: &At| {
                if age(s, at) == 0 { 0.625 } else { s.own(at) }
            },
        ),
    ]
}

#[test]
fn what_later_steps_do_to_a_cache_is_told() {
    let model = Synth { n_embd: 192, n_heads: 6, n_kv_heads: 2, head_dim: 32, n_ff: 256, ..Synth::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    let mut bench = Bench::new(&model, &file, (35, 23));
    let of_keys = |n: &&Node| n.op.has_state() && n.role == Role::Key && n.id.layer == Some(1);
    let node = bench.oracle.graph.nodes.iter().find(of_keys).unwrap().clone();
    let stage = bench.stage(&node);
    let mut wrong = Vec::new();
    for plant in left() {
        let judged = bench.judged(&stage, planted(&stage, &plant, &CONDITIONS[0]));
        let said = judged.solution.as_ref().map_or_else(String::new, super::Solution::told);
        if !says(&said, &plant.words) {
            wrong.push(format!("{}: {said}", plant.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
