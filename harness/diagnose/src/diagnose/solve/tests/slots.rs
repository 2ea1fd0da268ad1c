//! Rows of a cache in other slots than their own.

use super::bench::{At, Stage};
use super::plants::Plant;

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
