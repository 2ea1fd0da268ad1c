//! Another function: of the right value (a limit, a soft limit), of gate and up, or of the angle of a rotation.

use super::index::{Index, Sources, beside};
use super::moved::meet;
use super::rounded::HALVES;
use super::scene::{Layout, Scene};
use super::{Law, Row, short};
use crate::capture::InPass;
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{self, Elementwise};
use qdiff_engine::ops::{Anatomy, Pairing, Rope, UNIT};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let mut all = limits(scene);
    all.extend(penalties(scene));
    match scene.node().op.anatomy() {
        Anatomy::Elementwise(Elementwise::Gated(anatomy::Activation::Silu)) => all.extend(activations(scene)),
        Anatomy::Elementwise(Elementwise::Rotation(rope)) => {
            all.extend(rotations(scene, rope));
            all.extend(planes(scene, rope));
        }
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => {}
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => {}
    }
    all
}

/// The right value through `f`, which keeps its bound.
fn through<'a>(scene: &'a Scene<'a>, what: String, f: impl Fn(f64) -> f64 + 'a) -> Law<'a> {
    Law::new(what, 1, move |row| {
        let (_, want, _) = scene.e.row(row);
        Some(scene.bounded(row, want.iter().map(|w| f(*w)).collect()))
    })
}

/// Soft caps that a model may have; from how many rows the usual values are taken; and of how many caps they may be.
const CAPS: std::ops::RangeInclusive<f64> = 0.1..=1e6;
const SIZED: usize = 8;
const PRESSED: f64 = 16.0;

/// Values cut off at a limit, or pressed below it.
fn limits<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let elements: Vec<(f64, f64)> = scene.fit.iter().map(|&at| scene.element(at)).map(|(g, w, _)| (g, w)).collect();
    let mut all = Vec::new();
    let largest = elements.iter().fold(0f64, |m, (g, _)| m.max(g.abs()));
    if largest > 0.0 && elements.iter().all(|(g, w)| g.abs() == largest && w.abs() >= largest && g * w > 0.0) {
        let what = format!("values are cut off at {}", short(largest));
        all.push(through(scene, what, move |w| w.clamp(-largest, largest)));
    }
    all.extend(saturated(scene, &elements));
    // c·tanh(w/c), its c from the element that shows it best.
    let shown = elements.iter().filter(|(g, w)| g * w > 0.0 && g.abs() < w.abs());
    if let Some((g, w)) = shown.max_by(|a, b| (a.1 / a.0).abs().total_cmp(&(b.1 / b.0).abs())) {
        let (mut low, mut high) = (g.abs(), 1e12 * w.abs());
        for _ in 0..200 {
            let c = (low * high).sqrt();
            if c * (w.abs() / c).tanh() < g.abs() { low = c } else { high = c }
        }
        // A cap is a number of the model, and most values pass below it: what all of them are pressed to is none.
        let rows = scene.rows.iter().take(SIZED).flat_map(|&r| scene.e.row(&scene.e.rows[r]).1);
        let mut sizes: Vec<f64> = rows.map(|w| w.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let usual = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
        let is_cap = |c: &f64| CAPS.contains(c) && usual <= PRESSED * c;
        for c in [high.round(), high].into_iter().filter(is_cap) {
            let what = format!("a soft cap is applied: c·tanh(x/c) with c = {c}");
            all.push(through(scene, what, move |w| c * (w / c).tanh()).of_model("soft cap", c));
        }
    }
    all
}

/// Large values that all become one larger number, as where an exponent that is still in range is taken for infinity.
fn saturated<'a>(scene: &'a Scene<'a>, elements: &[(f64, f64)]) -> Option<Law<'a>> {
    let to = elements.first()?.0.abs();
    let from = elements.iter().map(|(_, w)| w.abs()).reduce(f64::min)?;
    if !(from < to && elements.iter().all(|(g, w)| g.abs() == to && g * w > 0.0)) {
        return None;
    }
    // The limit lies between the largest value that is right and the smallest that is not.
    let rows = scene.rows.iter().map(|&r| scene.e.row(&scene.e.rows[r]));
    let right = rows
        .flat_map(|(got, want, _)| got.iter().zip(want).filter(|(g, _)| g.abs() as f64 != to).map(|(_, w)| w.abs()));
    let below = right.filter(|w| *w < from).fold(0f64, f64::max);
    let power = from.log2().floor().exp2();
    let limit = if power > below { power } else { from };
    let what = format!("values of {} and more become {}", short(limit), short(to));
    Some(through(scene, what, move |w| if w.abs() >= limit { to.copysign(w) } else { w }))
}

/// Digits of a penalty.
const DIGITS: f64 = 1e3;

/// The head's values under a repetition penalty: divided by it above 0, multiplied below.
fn penalties<'a>(scene: &'a Scene<'a>) -> Option<Law<'a>> {
    let config = &scene.e.oracle.graph.config;
    let of_head = scene.node().id.layer.is_none() && scene.width() == Some(config.n_vocab);
    let by = |&at: &super::At| {
        let (got, want, _) = scene.element(at);
        if want > 0.0 { want / got } else { got / want }
    };
    let penalty = (scene.fit.iter().map(by).next().filter(|_| of_head)? * DIGITS).round() / DIGITS;
    (penalty > 1.0 && penalty < 10.0).then(|| {
        let what = format!(
            "a repetition penalty of {penalty} is applied: values above 0 are divided by it, and others multiplied"
        );
        through(scene, what, move |w| if w > 0.0 { w / penalty } else { w * penalty })
            .of_model("repetition penalty", penalty)
    })
}

/// A function of gate and up, in words.
pub(in crate::diagnose) type Activation = (&'static str, fn(f64, f64) -> f64);

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Possible replacements of SwiGLU.
pub(in crate::diagnose) const ACTIVATIONS: &[Activation] = &[
    ("gate times up, without SiLU", |g, u| g * u),
    ("SiLU of up times gate: the operands are exchanged", |g, u| u * sigmoid(u) * g),
    ("SiLU of the gate alone, without up", |g, _| g * sigmoid(g)),
    ("up alone, without the gate", |_, u| u),
    ("the gate alone", |g, _| g),
    ("the sigmoid of the gate times up: the gate itself is left out", |g, u| sigmoid(g) * u),
    ("ReLU of the gate times up", |g, u| g.max(0.0) * u),
    ("the tanh form of GELU of the gate times up", |g, u| {
        0.5 * g * (1.0 + (0.797_884_560_802_865_4 * (g + 0.044_715 * g * g * g)).tanh()) * u
    }),
    ("the quick form of GELU, g·σ(1.702·g), times up", |g, u| g * sigmoid(1.702 * g) * u),
    ("SiLU with the sign of its exponent wrong, g·σ(−g), times up", |g, u| g * sigmoid(-g) * u),
    ("SiLU with the size of the gate in its exponent, g·σ(|g|), times up", |g, u| g * sigmoid(g.abs()) * u),
    ("SiLU of the gate plus up: added instead of multiplied", |g, u| g * sigmoid(g) + u),
    ("the hard form of SiLU, g·clamp(g/6 + 1/2), times up", |g, u| g * (g / 6.0 + 0.5).clamp(0.0, 1.0) * u),
    ("tanh of the gate times up", |g, u| g.tanh() * u),
    ("SiLU of the product of gate and up", |g, u| g * u * sigmoid(g * u)),
    ("SiLU of the gate, twice, times up", |g, u| {
        let s = g * sigmoid(g);
        s * sigmoid(s) * u
    }),
    ("SiLU of the gate times SiLU of up", |g, u| g * sigmoid(g) * u * sigmoid(u)),
    ("SiLU of the gate times the gate", |g, _| g * g * sigmoid(g)),
];

fn activations<'a>(scene: &'a Scene<'a>) -> impl Iterator<Item = Law<'a>> {
    ACTIVATIONS.iter().map(move |&(what, f)| {
        Law::new(format!("the stage computes {what}"), 0, move |row: &RowAt| {
            let (gate, up) = (scene.operand(row.step, 0)?, scene.operand(row.step, 1)?);
            let (gate, up) = (gate.data.get(row.range.clone())?, up.data.get(row.range.clone())?);
            let value: Vec<f64> = gate.iter().zip(up).map(|(g, u)| f(f64::from(*g), f64::from(*u))).collect();
            // As many roundings as the right one, of a value of this size.
            let size = |((v, g), u): ((&f64, &f32), &f32)| (8.0 * UNIT * v.abs().max(f64::from(g * u).abs())) as f32;
            let bound = value.iter().zip(gate).zip(up).map(size).collect();
            Some(Row { value, bound })
        })
    })
}

/// A plane of a rotation: what becomes of its two elements, given position, number of the plane, and `(sin, cos)` of an
/// angle.
type Plane = fn(&Rope, f64, usize, (f64, f64)) -> (f64, f64);

/// A plane turned by numbers that are rounded.
fn turned_in(angle: f64, (x, y): (f64, f64), of_cos: fn(f64) -> f64, of_sin: fn(f64) -> f64) -> (f64, f64) {
    let (sin, cos) = (of_sin(angle.sin()), of_cos(angle.cos()));
    (x * cos - y * sin, x * sin + y * cos)
}

fn as_it_is(x: f64) -> f64 {
    x
}

/// Other rotations of a plane, before the magnitude multiplies both elements.
const PLANES: &[(&str, Plane)] = &[
    ("the cosine is rounded to bf16", |r, p, i, x| turned_in(p * frequency(r, i), x, HALVES[0].1, as_it_is)),
    ("the sine is rounded to bf16", |r, p, i, x| turned_in(p * frequency(r, i), x, as_it_is, HALVES[0].1)),
    ("the cosine is rounded to f16", |r, p, i, x| turned_in(p * frequency(r, i), x, HALVES[1].1, as_it_is)),
    ("the sine is rounded to f16", |r, p, i, x| turned_in(p * frequency(r, i), x, as_it_is, HALVES[1].1)),
    ("the element is not rotated", |r, _, _, (x, y)| (x / r.magnitude(), y / r.magnitude())),
    ("the magnitude multiplies the cosine alone, and not the sine", |r, p, i, (x, y)| {
        let ((sin, cos), m) = ((p * frequency(r, i)).sin_cos(), r.magnitude());
        (x * cos - y * sin / m, x * sin / m + y * cos)
    }),
    ("the magnitude multiplies the sine alone, and not the cosine", |r, p, i, (x, y)| {
        let ((sin, cos), m) = ((p * frequency(r, i)).sin_cos(), r.magnitude());
        (x * cos / m - y * sin, x * sin + y * cos / m)
    }),
    ("the sine has the wrong sign in the first element of each pair", |r, p, i, (x, y)| {
        let (sin, cos) = (p * frequency(r, i)).sin_cos();
        (x * cos + y * sin, x * sin + y * cos)
    }),
    ("the sine has the wrong sign in the second element of each pair", |r, p, i, (x, y)| {
        let (sin, cos) = (p * frequency(r, i)).sin_cos();
        (x * cos - y * sin, y * cos - x * sin)
    }),
    ("sine and cosine are exchanged", |r, p, i, (x, y)| {
        let (cos, sin) = (p * frequency(r, i)).sin_cos();
        (x * cos - y * sin, x * sin + y * cos)
    }),
    ("the sine is left out: both elements are only multiplied by the cosine", |r, p, i, (x, y)| {
        let cos = (p * frequency(r, i)).cos();
        (x * cos, y * cos)
    }),
    ("the second element is made of the first one as it is after rotating", |r, p, i, (x, y)| {
        let (sin, cos) = (p * frequency(r, i)).sin_cos();
        let x = x * cos - y * sin;
        (x, x * sin + y * cos)
    }),
    ("the two elements of a pair are exchanged", |r, p, i, x| {
        let (a, b) = turn(p * frequency(r, i), x);
        (b, a)
    }),
];

/// An angle, of a position and a plane.
type Angle = fn(&Rope, f64, usize) -> f64;

/// Other angles.
const ANGLES: &[(&str, Angle)] = &[
    ("rotated the other way round", |r, p, i| -p * frequency(r, i)),
    ("the frequency is that of the next plane", |r, p, i| p * frequency(r, i + 1)),
    ("the frequency is that of the plane before", |r, p, i| {
        p * r.base.powf(-2.0 * (i as f64 - 1.0) / r.rotated as f64)
    }),
    ("the frequency is base^(−i/d) instead of base^(−2i/d)", |r, p, i| {
        p * r.base.powf(-(i as f64) / r.rotated as f64)
    }),
    ("the frequency is base^(−4i/d) instead of base^(−2i/d)", |r, p, i| {
        p * r.base.powf(-4.0 * i as f64 / r.rotated as f64)
    }),
    ("the position is one less", |r, p, i| (p - 1.0) * frequency(r, i)),
    ("the position is one more", |r, p, i| (p + 1.0) * frequency(r, i)),
    ("rotated twice", |r, p, i| 2.0 * p * frequency(r, i)),
    ("rotated by half the angle", |r, p, i| 0.5 * p * frequency(r, i)),
    ("the angle is divided by 2π", |r, p, i| p * frequency(r, i) / std::f64::consts::TAU),
    ("the angle is rounded to a whole number", |r, p, i| (p * frequency(r, i)).round()),
    ("the angle is cut off to a whole number", |r, p, i| (p * frequency(r, i)).trunc()),
];

fn turn(angle: f64, (x, y): (f64, f64)) -> (f64, f64) {
    let (sin, cos) = angle.sin_cos();
    (x * cos - y * sin, x * sin + y * cos)
}

/// A row whose planes are turned by `angle`, given their number, and made as long as the right ones.
fn turned_by(rope: &Rope, pairing: Pairing, x: &[f32], angle: impl Fn(usize) -> f64) -> Row {
    let mut value: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    let mut bound = vec![0f32; x.len()];
    for i in 0..rope.rotated / 2 {
        let ((a, b), angle) = (paired(pairing, rope, i), angle(i));
        // Scaled angles and the magnitude round a few times more.
        let more = if rope.scaling.is_some() { 6.0 } else { 0.0 };
        let unscaled = if rope.scaling.is_some() { angle.abs() / rope.share(i) } else { angle.abs() };
        let (x, magnitude) = ((value[a], value[b]), rope.magnitude());
        let reach = (UNIT * (3.0 + more + unscaled * (2.0 + more + i as f64)) * magnitude * x.0.hypot(x.1)) as f32;
        let (u, v) = turn(angle, x);
        (value[a], value[b]) = (magnitude * u, magnitude * v);
        (bound[a], bound[b]) = (reach, reach);
    }
    Row { value, bound }
}

/// Pairs of elements half a head apart, where a part of each head alone is rotated; with the exponents of the whole head, or the right ones.
fn half_a_head_apart<'a>(scene: &'a Scene<'a>, rope: &'a Rope, of_head: bool) -> Law<'a> {
    let (apart, half) = (rope.head_dim / 2, rope.rotated / 2);
    let exponents = if of_head { ", and exponents are divided by the length of a head" } else { "" };
    let what = format!(
        "element i is rotated with element i + {apart}, half of a head, and not i + {half}, half of what is rotated{exponents}"
    );
    let divisor = if of_head { rope.head_dim } else { rope.rotated } as f64;
    Law::new(what, 1 + usize::from(of_head), move |row: &RowAt| {
        let x = operand(scene, row)?;
        let mut value: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        let right = rotated(rope, &x, row.place.position as f64);
        let reach = right.bound.iter().copied().fold(0f32, f32::max);
        for i in 0..half {
            let frequency = rope.base.powf(-2.0 * i as f64 / divisor) * rope.share(i);
            let (u, v) = turn(row.place.position as f64 * frequency, (value[i], value[i + apart]));
            (value[i], value[i + apart]) = (rope.magnitude() * u, rope.magnitude() * v);
        }
        Some(Row { bound: vec![reach; value.len()], value })
    })
}

/// Elements that keep place and angle, each with the element half a head on for its partner, where a part of each head alone is rotated.
fn partner_half_a_head_on<'a>(scene: &'a Scene<'a>, rope: &'a Rope) -> Law<'a> {
    let (d, half) = (rope.head_dim, rope.rotated / 2);
    let what = format!(
        "each element is rotated with element i + {} of its head, wrapping around, and not with the other of its pair",
        d / 2
    );
    Law::new(what, 1, move |row: &RowAt| {
        let x: Vec<f64> = operand(scene, row)?.iter().map(|v| f64::from(*v)).collect();
        let right =
            turned_by(rope, rope.pairing, &operand(scene, row)?, |i| row.place.position as f64 * frequency(rope, i));
        let reach = right.bound.iter().copied().fold(0f32, f32::max);
        let (mut value, partner) = (x.clone(), |i: usize| x[(i + d / 2) % d]);
        for i in 0..half {
            let ((a, b), (sin, cos)) = (pair(rope, i), (row.place.position as f64 * frequency(rope, i)).sin_cos());
            value[a] = rope.magnitude() * (x[a] * cos - partner(a) * sin);
            value[b] = rope.magnitude() * (x[b] * cos + partner(b) * sin);
        }
        Some(Row { bound: vec![reach; value.len()], value })
    })
}

/// YaRN whose slow planes have the frequencies of a larger base, and not the model's divided by the factor.
fn of_larger_base<'a>(scene: &'a Scene<'a>, rope: &'a Rope) -> Option<Law<'a>> {
    let factor = rope.scaling.filter(|scaling| scaling.factor != 1.0)?.factor;
    let what = "frequencies that should be divided by the factor are those of the base times the factor instead";
    Some(Law::new(what, 1, move |row: &RowAt| {
        let position = row.place.position as f64;
        let angle = |i: usize| {
            let kept = (rope.share(i) - 1.0 / factor) / (1.0 - 1.0 / factor);
            let of = |base: f64| base.powf(-2.0 * i as f64 / rope.rotated as f64);
            position * (kept * of(rope.base) + (1.0 - kept) * of(rope.base * factor))
        };
        Some(turned_by(rope, rope.pairing, &operand(scene, row)?, angle))
    }))
}

/// Sines or cosines that are read so many elements after their place in a table, whose row of a position has its cosines and then its
/// sines.
fn from_table<'a>(scene: &'a Scene<'a>, rope: &'a Rope, by: usize, of_sine: bool) -> Law<'a> {
    let half = rope.rotated / 2;
    let which = if of_sine { "sine" } else { "cosine" };
    let what = format!(
        "the {which} of each pair is read {by} elements after its place in a table whose rows are {half} cosines and {half} sines"
    );
    Law::new(what, 1, move |row: &RowAt| {
        let (x, position) = (operand(scene, row)?, row.place.position);
        let angle = |at: usize| (position + at / (2 * half)) as f64 * frequency(rope, at % half);
        // The table goes on with the row of the next position.
        let number = |at: usize| if (at / half).is_multiple_of(2) { angle(at).cos() } else { angle(at).sin() };
        let later = turned_by(rope, rope.pairing, &x, |i| (position + 1) as f64 * frequency(rope, i));
        let most = later.bound.iter().copied().fold(0f32, f32::max);
        let mut value = later.value;
        for i in 0..half {
            let (a, b) = pair(rope, i);
            let (u, v) = (f64::from(x[a]), f64::from(x[b]));
            let (cos, sin) =
                (number(i + if of_sine { 0 } else { by }), number(half + i + if of_sine { by } else { 0 }));
            value[a] = rope.magnitude() * (u * cos - v * sin);
            value[b] = rope.magnitude() * (u * sin + v * cos);
        }
        Some(Row { bound: vec![most; value.len()], value })
    })
}

/// Other rotations, plane by plane; and that of the other way to pair elements.
fn planes<'a>(scene: &'a Scene<'a>, rope: &'a Rope) -> Vec<Law<'a>> {
    let by_plane = |f: Plane| {
        move |row: &RowAt| {
            let (x, position) = (operand(scene, row)?, row.place.position as f64);
            // The angles are the right ones.
            let mut made = turned_by(rope, rope.pairing, &x, |i| position * frequency(rope, i));
            for i in 0..rope.rotated / 2 {
                let (a, b) = pair(rope, i);
                let (u, v) = f(rope, position, i, (f64::from(x[a]), f64::from(x[b])));
                (made.value[a], made.value[b]) = (rope.magnitude() * u, rope.magnitude() * v);
            }
            Some(made)
        }
    };
    let by_angle = |pairing: Pairing, f: Angle| {
        move |row: &RowAt| {
            let position = row.place.position as f64;
            Some(turned_by(rope, pairing, &operand(scene, row)?, |i| f(rope, position, i)))
        }
    };
    let mut all: Vec<Law<'a>> = PLANES.iter().map(|(what, f)| Law::new(*what, 1, by_plane(*f))).collect();
    all.extend(ANGLES.iter().map(|(what, f)| Law::new(*what, 1, by_angle(rope.pairing, *f))));
    let half = rope.rotated / 2;
    all.extend(of_larger_base(scene, rope));
    all.extend((rope.rotated < rope.head_dim).then(|| partner_half_a_head_on(scene, rope)));
    all.extend((1..half).flat_map(|by| [true, false].map(|of_sine| from_table(scene, rope, by, of_sine))));
    all.extend(Index::giving(&of_planes(scene, rope)).into_iter().map(|index| {
        let what = format!("the frequency is that of the {}", index.told("plane", "i"));
        Law::new(what, index.parameters(), move |row: &RowAt| {
            let position = row.place.position as f64;
            let of = |i: usize| index.of(i, half).map_or(f64::NAN, |i| position * frequency(rope, i));
            Some(turned_by(rope, rope.pairing, &operand(scene, row)?, of))
        })
    }));
    all.extend(bases(scene, rope).into_iter().map(|base| {
        let other = Rope { base, ..rope.clone() };
        Law::new(format!("the base is {base} instead of {}", rope.base), 1, move |row: &RowAt| {
            Some(rotated(&other, &operand(scene, row)?, row.place.position as f64))
        })
    }));
    let half = rope.rotated as f64 / 2.0;
    all.extend([half - 1.0, half + 1.0].map(|by| {
        let other = Rope { base: rope.base.powf(half / by), ..rope.clone() };
        Law::new(exponents(by, half), 1, move |row: &RowAt| {
            Some(rotated(&other, &operand(scene, row)?, row.place.position as f64))
        })
    }));
    // Planes counted over the heads of a row.
    let heads = scene.width().map_or(1, |width| width / rope.head_dim.max(1));
    let counted = [
        (
            rope.rotated,
            "plane i of head h has the frequency of plane h·d/2 + i: they go on from head to head".to_owned(),
        ),
        (rope.rotated * heads, format!("the frequencies are those of one head as long as the row, of {heads} heads")),
    ];
    all.extend(counted.into_iter().filter(|_| heads > 1).map(|(of, what)| {
        Law::new(what, 1, move |row: &RowAt| {
            let position = row.place.position as f64;
            let first = scene.token(row).1 / rope.head_dim * rope.rotated / 2;
            let angle = |i: usize| position * rope.base.powf(-2.0 * (first + i) as f64 / of as f64);
            Some(turned_by(rope, rope.pairing, &operand(scene, row)?, angle))
        })
    }));
    // In a pass of several sequences: by the position of its first row, the rows before the step's own, and the tokens that the
    // sequence has from another one.
    type OfPass = fn(InPass, usize, (usize, usize)) -> Option<usize>;
    let of_pass: [(&str, OfPass); 3] = [
        (
            "rotated as the number of tokens that its sequence was fed before: those of a prefix that it has from another one are not counted",
            |_, prefix, (first, t)| (first + t).checked_sub(prefix).filter(|_| prefix > 0),
        ),
        (
            "rotated as if the rows of a pass followed each other from the position of its first row on, of whichever sequence they are",
            |pass, _, (_, t)| Some(pass.first + pass.before + t),
        ),
        ("rotated as its number in the pass, of whichever sequences its rows are", |pass, _, (_, t)| {
            Some(pass.before + t)
        }),
    ];
    let capture = scene.e.side.capture;
    let others = (0..capture.steps.len()).filter(|&i| !capture.is_own(i)).map(|i| capture.steps[i].tokens.len());
    let prefix: usize = others.sum();
    let [of_prefix, others @ ..] = of_pass.map(|(what, number)| {
        Law::new(what, 1, move |row: &RowAt| {
            let (step, x) = (&capture.steps[row.step], operand(scene, row)?);
            let of_part = (step.first, row.place.position.checked_sub(step.first)?);
            // What is not of a pass of several is as it should be.
            let number = step.in_pass.and_then(|pass| number(pass, prefix, of_part)).unwrap_or(row.place.position);
            Some(rotated(rope, &x, number as f64))
        })
    });
    // Where a sequence has one pass of its own, the first of these and the number in the part are one.
    all.push(of_prefix);
    all.extend(numbers().into_iter().map(|(what, number)| {
        Law::new(what, 1, move |row: &RowAt| {
            let (x, first) = (operand(scene, row)?, scene.e.side.capture.steps[row.step].first);
            Some(rotated(rope, &x, number(first, row.place.position.checked_sub(first)?)))
        })
    }));
    all.extend(others);
    let (other, what) = match rope.pairing {
        Pairing::Neox => (Pairing::Norm, "neighbouring elements are rotated in pairs, not those half a head apart"),
        Pairing::Norm => (Pairing::Neox, "elements half a head apart are rotated in pairs, not neighbouring ones"),
    };
    all.push(Law::new(what, 1, by_angle(other, |r, p, i| p * frequency(r, i))));
    if rope.rotated < rope.head_dim && rope.pairing == Pairing::Neox {
        all.extend([false, true].map(|of_head| half_a_head_apart(scene, rope, of_head)));
    }
    let input = scene.e.oracle.graph.nodes[scene.node().inputs[0]].id;
    all.extend(scene.alike().into_iter().filter(|id| *id != input).map(|id| {
        Law::new(format!("{id} is rotated in the place of {input}"), 1, move |row: &RowAt| {
            let x: Vec<f32> = super::norm::of_stage(scene, row, id)?.into_iter().map(|v| v as f32).collect();
            Some(rotated(rope, &x, row.place.position as f64))
        })
    }));
    let usual = rope.base;
    all.extend(bases(scene, rope).into_iter().map(move |base| {
        let rope = Rope { base, pairing: other, ..rope.clone() };
        let what = format!("{what}, and the base is {base} instead of {usual}");
        Law::new(what, 2, move |row: &RowAt| Some(rotated(&rope, &operand(scene, row)?, row.place.position as f64)))
    }));
    all
}

/// What a rotation takes for the position: of the first position of the part, and the token's number in it.
type Number = Box<dyn Fn(usize, usize) -> f64>;

/// Ways to take another number than the position.
fn numbers() -> Vec<(String, Number)> {
    let mut all: Vec<(String, Number)> = vec![
        ("rotated as its number in the part, not as its position".to_owned(), Box::new(|_, t| t as f64)),
        (
            "rotated as its position and the first position of its part: that is added twice".to_owned(),
            Box::new(|first, t| (2 * first + t) as f64),
        ),
        (
            "the position is rounded to bf16 before it is multiplied by the frequency".to_owned(),
            Box::new(|first, t| f64::from(half::bf16::from_f32((first + t) as f32).to_f32())),
        ),
    ];
    for by in [2, 4] {
        let what =
            format!("every {by} tokens of a part are rotated alike: their number in the part is divided by {by}");
        all.push((what, Box::new(move |first, t| (first + t / by) as f64)));
    }
    for page in [8, 16, 32, 64, 128, 256] {
        let what = |way: &str| {
            format!("rotated as if the part began at a multiple of {page}: its first position is rounded {way}")
        };
        all.push((what("up"), Box::new(move |first, t| (first.next_multiple_of(page) + t) as f64)));
        all.push((what("down"), Box::new(move |first, t| (first / page * page + t) as f64)));
    }
    all
}

/// Other bases: simple multiples of the right one, usual ones, and the one that the planes of a row say, the slower first, as
/// a whole number.
fn bases(scene: &Scene<'_>, rope: &Rope) -> Vec<f64> {
    let mut all: Vec<f64> =
        [2.0, 4.0, 8.0, 10.0, 100.0].iter().flat_map(|by| [rope.base * by, rope.base / by]).collect();
    all.extend([1e4, 1e5, 5e5, 1e6, 5e6, 1e7]);
    let read_off = |row: &RowAt| -> Option<f64> {
        let (x, (got, ..)) = (operand(scene, row)?, scene.e.row(row));
        let (mut base, half) = (None, rope.rotated / 2);
        for i in (1..half).rev() {
            let (a, b) = pair(rope, i);
            let turned = f64::from(got[b]).atan2(f64::from(got[a])) - f64::from(x[b]).atan2(f64::from(x[a]));
            let power = -(rope.rotated as f64) / (2.0 * i as f64);
            let position = row.place.position as f64;
            let angle = turned.rem_euclid(std::f64::consts::TAU);
            // The turns that the planes so far say.
            let about = base.map_or(angle, |base: f64| position * base.powf(1.0 / power));
            let angle = angle + ((about - angle) / std::f64::consts::TAU).round() * std::f64::consts::TAU;
            if angle > 1e-3 && position > 0.0 {
                base = Some((angle / position).powf(power));
            }
            // Faster planes say less of it.
            if i <= half / 4 {
                break;
            }
        }
        base.filter(|base| base.is_finite() && (2.0..1e10).contains(base))
    };
    let rows = scene.fit.iter().map(|&(r, _)| &scene.e.rows[r]);
    let last = rows.max_by_key(|row| row.place.position).and_then(read_off);
    all.extend(
        last.into_iter().flat_map(|base| [base.round(), (base / 100.0).round() * 100.0, (base / 1e4).round() * 1e4]),
    );
    all.retain(|base| *base > 1.0 && (base - rope.base).abs() > 1e-9 * rope.base);
    all
}

/// A slip in the exponents of the frequencies of a rotation: their number is divided by `by` instead of `half`.
pub(in super::super) fn exponents(by: f64, half: f64) -> String {
    format!("the frequencies are base^(−i/{by}) instead of base^(−i/{half})")
}

/// The position of a token as another one than its own.
type At = Rc<dyn Fn(usize) -> f64>;

/// Positions that count by the pass: its first one is made of its number and a length in the place of the tokens before it.
fn of_passes(scene: &Scene<'_>) -> Vec<(String, At)> {
    let steps = &scene.e.side.capture.steps;
    let passes: Rc<Vec<Range<usize>>> = Rc::new(steps.iter().map(|step| step.first..step.keys()).collect());
    // The tokens before a pass, by its number.
    type Before = fn(&[Range<usize>], usize) -> usize;
    let ways: [(&str, Before); 3] = [
        ("i·n, for part i (counted from 0) of n tokens", |passes, i| i * passes[i].len()),
        ("i·n, for part i (counted from 0), n being the length of the first part", |passes, i| i * passes[0].len()),
        ("n, the length of the part before it", |passes, i| i.checked_sub(1).map_or(0, |i| passes[i].len())),
    ];
    let law = |(what, before): (&str, Before)| -> (String, At) {
        let passes = passes.clone();
        let at = move |p: usize| {
            let pass = passes.iter().position(|pass| pass.contains(&p));
            pass.map_or(f64::NAN, |i| (before(&passes, i) + p - passes[i].start) as f64)
        };
        (format!("rotated as if each part began at position {what}"), Rc::new(at))
    };
    ways.into_iter().map(law).collect()
}

/// The angle by which each plane of a rotation was turned, against the frequency of the plane.
fn rotations<'a>(scene: &'a Scene<'a>, rope: &'a Rope) -> Vec<Law<'a>> {
    let mut all = Vec::new();
    // One rotation per position: what it was instead is read off the fitted rows.
    let mut positions: BTreeMap<usize, f64> = BTreeMap::new();
    for &(r, _) in scene.fit.iter() {
        let row = &scene.e.rows[r];
        if let Some(p) = turned(scene, rope, row) {
            positions.entry(row.place.position).or_insert(p);
        }
    }
    let (Some((&p0, &q0)), true) = (positions.iter().next(), positions.len() >= 2) else {
        return all;
    };
    let mut push = |what: String, f: At| {
        let agrees = positions.iter().all(|(p, q)| (f(*p) - q).abs() <= 1e-3 * (1.0 + q.abs()));
        if agrees {
            all.push(Law::new(what, 1, move |row: &RowAt| {
                let x = operand(scene, row)?;
                Some(rotated(rope, &x, f(row.place.position)))
            }));
        }
    };
    let by = (q0 - p0 as f64).round();
    push(format!("rotated as the {}", beside("position", by as i64)), Rc::new(move |p| p as f64 + by));
    push("rotated as position 0: not at all".to_owned(), Rc::new(|_| 0.0));
    let (prompt, first) = (scene.prompt(), scene.first_of_part());
    push(
        "decoded tokens are rotated as the first of them: the position stays at the prompt's length".to_owned(),
        Rc::new(move |p| p.min(prompt) as f64),
    );
    for to in [4usize, 8, 16, 32, 64, 128, 256, 512] {
        let more = prompt.next_multiple_of(to) - prompt;
        if more > 0 {
            push(
                format!("decoded tokens are rotated as if the prompt were filled up to a multiple of {to} tokens"),
                Rc::new(move |p| if p < prompt { p as f64 } else { (p + more) as f64 }),
            );
        }
    }
    push("all tokens of a part are rotated as its first".to_owned(), Rc::new(move |p| first(p) as f64));
    for (what, at) in of_passes(scene) {
        push(what, at);
    }
    push("rotated the other way round".to_owned(), Rc::new(|p| -(p as f64)));
    push(format!("rotated as position {}, for every token", q0.round()), Rc::new(move |_| q0.round()));
    let scale = if p0 == 0 { 1.0 } else { q0 / p0 as f64 };
    push(format!("positions are multiplied by {}", short(scale)), Rc::new(move |p| p as f64 * scale));
    let whole = |q: f64| (q >= 0.0 && q.fract() == 0.0).then_some(q as usize);
    let Some(others) = positions.iter().map(|(p, q)| Some((*p, whole(*q)?))).collect::<Option<Vec<_>>>() else {
        return all;
    };
    // By the position, or by the token's number in its part.
    let far = 2 * others.iter().flat_map(|(p, q)| [*p, *q]).max().unwrap_or(0) + 2;
    let by_position = others.iter().map(|(p, q)| ((*p, far), vec![*q])).collect();
    // The function above covers what lies so many on, beyond the ends as well.
    let is_map = |index: &Index| !matches!(index, Index::By(_));
    all.extend(Index::giving(&by_position).into_iter().filter(is_map).map(|index| {
        let what = format!("rotated as the {}", index.told("position", "p"));
        Law::new(what, index.parameters(), move |row: &RowAt| {
            Some(rotated(
                rope,
                &operand(scene, row)?,
                index.of(row.place.position, far.max(2 * row.place.position))? as f64,
            ))
        })
    }));
    let (mut by_number, first) = (Sources::new(), scene.first_of_part());
    for (p, q) in others {
        let first = first(p);
        let there = q.checked_sub(first);
        meet(&mut by_number, (p - first, far), there.into_iter().collect());
    }
    let first = scene.first_of_part();
    all.extend(Index::giving(&by_number).into_iter().filter(is_map).map(|index| {
        let (what, first) = (format!("rotated as the part's {}", index.told("token", "t")), first.clone());
        Law::new(what, index.parameters(), move |row: &RowAt| {
            let (first, p) = (first(row.place.position), row.place.position);
            Some(rotated(rope, &operand(scene, row)?, (first + index.of(p - first, far.max(2 * p))?) as f64))
        })
    }));
    all
}

/// The row of the operand that belongs to a row.
pub(super) fn operand(scene: &Scene<'_>, row: &RowAt) -> Option<Vec<f32>> {
    let graph = &scene.e.oracle.graph;
    let layout = Layout::of(&graph.nodes[*scene.node().inputs.first()?]);
    let (tensor, (token, from)) = (scene.operand(row.step, 0)?, scene.token(row));
    Some((from..from + row.range.len()).map(|j| tensor.data[layout.at(&tensor.shape, token, j)]).collect())
}

pub(super) fn pair(rope: &Rope, i: usize) -> (usize, usize) {
    paired(rope.pairing, rope, i)
}

fn paired(pairing: Pairing, rope: &Rope, i: usize) -> (usize, usize) {
    match pairing {
        Pairing::Neox => (i, i + rope.rotated / 2),
        Pairing::Norm => (2 * i, 2 * i + 1),
    }
}

pub(super) fn frequency(rope: &Rope, i: usize) -> f64 {
    rope.base.powf(-2.0 * i as f64 / rope.rotated as f64) * rope.share(i)
}

/// As which position a head was rotated, from its fastest plane, if the slower ones say the same.
fn turned(scene: &Scene<'_>, rope: &Rope, row: &RowAt) -> Option<f64> {
    let (x, (got, ..)) = (operand(scene, row)?, scene.e.row(row));
    let angle = |i: usize| {
        let (a, b) = pair(rope, i);
        let (x, y) = (f64::from(x[a]), f64::from(x[b]));
        let (u, v) = (f64::from(got[a]), f64::from(got[b]));
        (v.atan2(u) - y.atan2(x)).rem_euclid(std::f64::consts::TAU)
    };
    // From the slow planes on, whose turns are not yet full, up to the fastest.
    let mut position = 0.0;
    for i in (0..rope.rotated / 2).rev() {
        let (turn, measured) = (std::f64::consts::TAU / frequency(rope, i), angle(i) / frequency(rope, i));
        let measured = if measured > 0.75 * turn { measured - turn } else { measured };
        position = measured + ((position - measured) / turn).round() * turn;
    }
    Some(if (position - position.round()).abs() < 1e-3 { position.round() } else { position })
}

fn rotated(rope: &Rope, x: &[f32], position: f64) -> Row {
    turned_by(rope, rope.pairing, x, |i| position * frequency(rope, i))
}

/// Angles as near as this are one.
const ANGLE: f64 = 1e-3;

/// The planes whose frequency turns each wrong plane as it was turned, in all rows.
fn of_planes(scene: &Scene<'_>, rope: &Rope) -> Sources {
    let (mut all, half) = (Sources::new(), rope.rotated / 2);
    for &(r, i) in &scene.fit {
        let row = &scene.e.rows[r];
        let (column, position) = (i % rope.head_dim.max(1), row.place.position as f64);
        if position == 0.0 || column >= rope.rotated || row.range.len() != rope.head_dim {
            continue;
        }
        let plane = if rope.pairing == Pairing::Neox { column % half } else { column / 2 };
        let (Some(x), (got, ..), (a, b)) = (operand(scene, row), scene.e.row(row), pair(rope, plane)) else { continue };
        let angle = f64::from(got[b]).atan2(f64::from(got[a])) - f64::from(x[b]).atan2(f64::from(x[a]));
        let gives = |other: &usize| {
            let turns = (angle - position * frequency(rope, *other)) / std::f64::consts::TAU;
            (turns - turns.round()).abs() * std::f64::consts::TAU < ANGLE
        };
        meet(&mut all, (plane, half), (0..half).filter(gives).collect());
    }
    all
}
