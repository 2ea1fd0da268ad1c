//! Bugs of a prefill that works in tiles of keys. The first two once had a cause that was confirmed and false: the run on
//! other tokens did not separate what the cause said from what the kernel did.

use super::super::{Spot, context, scores};
use super::{KernelFault, Pair, bug, given, patch};
use qdiff_engine::model::Role;
use qdiff_engine::ops::Op;

/// Keys of a tile.
const TILE: usize = 8;

/// The power of two that a tile of keys or values is scaled by, from its largest.
fn unit(rows: &[f32], width: usize, at: usize, d: usize) -> f64 {
    let largest = rows.chunks(width).flat_map(|row| &row[at..at + d]).fold(0f32, |m, v| m.max(v.abs()));
    if largest == 0.0 { 1.0 } else { f64::from(largest).log2().floor().exp2() }
}

/// The context of a prefill, of which the sum over a tile of keys is scaled back by the unit of the tile's keys, and not by
/// that of its values.
fn values_unscaled_as_keys(s: &mut Spot<'_>) {
    let (heads, groups, d) = (s.config.n_heads, s.config.n_kv_heads, s.config.head_dim);
    let (inputs, positions) = (s.inputs, s.positions);
    let keys = inputs[0].shape[2];
    let Some(cached) = given(s, s.node.id.layer, |n| matches!(n.op, Op::KvCache(_)) && n.role == Role::Key) else {
        return;
    };
    let width = groups * d;
    let by = |head: usize, tile: usize| {
        let rows = tile * TILE * width..((tile + 1) * TILE).min(keys) * width;
        let of = |all: &[f32]| unit(&all[rows.clone()], width, head * d, d);
        of(cached) / of(&inputs[1].data)
    };
    let tiles = keys.div_ceil(TILE);
    let by: Vec<f64> = (0..groups * tiles).map(|i| by(i / tiles, i % tiles)).collect();
    patch(s, |c, _, v| {
        if c.tokens == 1 {
            return v;
        }
        let (h, i) = (c.o / d, c.o % d);
        let group = h / (heads / groups);
        let share = |n: usize| f64::from(inputs[0].data[(h * c.tokens + c.t) * keys + n]);
        let value = |n: usize| f64::from(inputs[1].data[n * width + group * d + i]);
        let seen = positions[c.t] as usize + 1;
        (0..seen).map(|n| share(n) * value(n) * by[group * tiles + n / TILE]).sum::<f64>() as f32
    });
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "keys-beyond-whole-tiles-are-zeros",
        "in a prefill the keys beyond the last whole tile of 16 that the cache holds are zeros",
        |_, n, _| scores(n),
        |s| {
            for at in 0..s.out.len() {
                let pair = Pair::at(s, at);
                if pair.tokens > 1 && pair.n >= pair.keys / 16 * 16 {
                    s.out[at] = 0.0;
                }
            }
        },
    ),
    bug(
        "values-scaled-back-as-keys",
        "in a prefill the sum over each tile of 8 keys is scaled back by the power of two of its keys, and not of its values",
        |_, n, _| context(n),
        values_unscaled_as_keys,
    ),
];
