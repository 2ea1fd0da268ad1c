//! The rotation: angles, planes, heads, positions.

use super::super::{Spot, rope};
use super::rounding::{bf16, f16};
use super::{KernelFault, bug};
use qdiff_engine::model::{Graph, Model, Node, Role};

/// A plane of a head, about to be turned.
#[derive(Clone, Copy)]
struct Plane {
    t: usize,
    tokens: usize,
    p: usize,
    head: usize,
    heads: usize,
    i: usize,
    planes: usize,
    base: f64,
}

impl Plane {
    /// How far plane `i` turns at position `p`.
    fn angle(self, p: f64, i: f64) -> f64 {
        p * self.base.powf(-i / self.planes as f64)
    }

    fn own(self) -> f64 {
        self.angle(self.p as f64, self.i as f64)
    }
}

fn turn((a, b): (f32, f32), (sin, cos): (f64, f64)) -> (f32, f32) {
    let (a, b) = (f64::from(a), f64::from(b));
    ((a * cos - b * sin) as f32, (b * cos + a * sin) as f32)
}

/// What `f` makes of each plane's two values.
fn planes(s: &mut Spot<'_>, f: impl Fn(Plane, (f32, f32)) -> (f32, f32)) {
    let (d, base) = (s.config.head_dim, s.config.rope_base);
    let inputs = s.inputs;
    let (x, width) = (&inputs[0].data, s.width());
    for at in (0..s.out.len()).step_by(d) {
        let t = at / width;
        for i in 0..d / 2 {
            let (head, heads) = (at % width / d, width / d);
            let (p, tokens) = (s.positions[t] as usize, s.positions.len());
            let plane = Plane { t, tokens, p, head, heads, i, planes: d / 2, base };
            (s.out[at + i], s.out[at + i + d / 2]) = f(plane, (x[at + i], x[at + i + d / 2]));
        }
    }
}

/// Turned by another angle.
fn turned(s: &mut Spot<'_>, angle: impl Fn(Plane) -> f64) {
    planes(s, |at, x| turn(x, angle(at).sin_cos()));
}

fn both(_: &Graph, n: &Node, _: &Model) -> bool {
    rope(n, &[Role::Query, Role::Key])
}

fn queries(_: &Graph, n: &Node, _: &Model) -> bool {
    rope(n, &[Role::Query])
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "rope-counts-within-the-step",
        "positions are counted from the start of the step, so that a decoded token is at position 0",
        both,
        |s| turned(s, |at| at.angle(at.t as f64, at.i as f64)),
    ),
    bug(
        "rope-replays-old-position",
        "a replayed graph decodes every token at the position of the one before",
        both,
        |s| turned(s, |at| at.angle(at.p.saturating_sub(usize::from(at.tokens == 1)) as f64, at.i as f64)),
    ),
    bug(
        "rope-skips-last-planes",
        "the grid covers three quarters of the planes; the slowest are not turned",
        both,
        |s| turned(s, |at| if at.i < at.planes / 4 * 3 { at.own() } else { 0.0 }),
    ),
    bug("rope-backwards-in-odd-heads", "odd heads turn the other way", both, |s| {
        turned(s, |at| if at.head % 2 == 1 { -at.own() } else { at.own() })
    }),
    bug(
        "rope-reads-what-it-wrote",
        "in place, the second value of a plane is made from the first one already turned",
        both,
        |s| {
            planes(s, |at, (a, b)| {
                let (sin, cos) = at.own().sin_cos();
                let first = turn((a, b), (sin, cos)).0;
                (first, turn((first, b), (sin, cos)).1)
            })
        },
    ),
    bug("rope-exponent-halved", "frequencies fall by base^(i/d) instead of base^(2i/d)", both, |s| {
        turned(s, |at| at.angle(at.p as f64, 0.5 * at.i as f64))
    }),
    bug("rope-table-ends-early", "the table of angles has 8 rows, and later positions read the last", both, |s| {
        turned(s, |at| at.angle(at.p.min(7) as f64, at.i as f64))
    }),
    bug("rope-plane-off-by-one", "every plane is turned with the frequency of the next", both, |s| {
        turned(s, |at| at.angle(at.p as f64, at.i as f64 + 1.0))
    }),
    bug(
        "rope-position-shared-in-pairs",
        "in a step of several tokens, a block turns two of them with the position of the first",
        both,
        |s| turned(s, |at| at.angle((at.p - at.t % 2) as f64, at.i as f64)),
    ),
    bug("rope-last-head-left-out", "the grid is one head short, and the last head is not turned", queries, |s| {
        turned(s, |at| if at.head + 1 < at.heads { at.own() } else { 0.0 })
    }),
    bug(
        "rope-base-changes-with-length",
        "from position 8 on the base is doubled, as for a longer context",
        both,
        |s| {
            turned(s, |at| {
                let base = if at.p < 8 { at.base } else { 2.0 * at.base };
                Plane { base, ..at }.own()
            })
        },
    ),
    bug("rope-sines-in-f16", "sines and cosines come from a table of f16", both, |s| {
        planes(s, |at, x| {
            let (sin, cos) = at.own().sin_cos();
            turn(x, (f64::from(f16(sin as f32)), f64::from(f16(cos as f32))))
        })
    }),
    bug("rope-frequencies-in-bf16", "frequencies are kept in bf16", both, |s| {
        turned(s, |at| at.p as f64 * f64::from(bf16(at.angle(1.0, at.i as f64) as f32)))
    }),
    bug(
        "rope-sign-in-first-plane",
        "the fastest plane is mirrored: the sine enters both lines with the same sign",
        queries,
        |s| {
            planes(s, |at, (a, b)| {
                let right = turn((a, b), at.own().sin_cos());
                if at.i > 0 { right } else { (turn((a, -b), at.own().sin_cos()).0, right.1) }
            })
        },
    ),
];
