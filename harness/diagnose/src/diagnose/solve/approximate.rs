//! Elementary functions approximated: an exponential by a polynomial, a table or bits of a float; sine and cosine by a table
//! or a polynomial; the inverse root by bits of a float and steps of Newton's method.
//!
//! Each is a function of its own that the operation is evaluated with. A table is read at the nearest of its points, where
//! an argument in the middle goes either way.

use super::functions::{frequency, operand, pair};
use super::scene::Scene;
use super::{At, Law, Row, attended, norm};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{Activation, Elementwise, RowReduction};
use qdiff_engine::ops::{Anatomy, UNIT};
use std::f64::consts::{LN_2, LOG2_E, TAU};
use std::rc::Rc;

/// A function in the place of the exact one.
type Function = Rc<dyn Fn(f64) -> f64>;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    match scene.node().op.anatomy() {
        Anatomy::Elementwise(Elementwise::Gated(Activation::Silu)) => activations(scene),
        Anatomy::RowReduction(RowReduction::Exponentials(softmax)) => softmaxes(scene, softmax.scale),
        Anatomy::Elementwise(Elementwise::Rotation(_)) => rotations(scene),
        Anatomy::RowReduction(RowReduction::MeanSquare(_)) => norms(scene),
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => Vec::new(),
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => Vec::new(),
    }
}

/// `Σ x^k/k!` up to a degree.
fn series(x: f64, degree: i32) -> f64 {
    (1..=degree).rev().fold(1.0, |sum, k| 1.0 + sum * x / f64::from(k))
}

/// Ways to approximate `e^x`.
fn exponentials() -> Vec<(String, Function)> {
    let mut all: Vec<(String, Function)> = vec![(
        "by the bits of a float: 2^n·(1 + f) for 2^(n + f)".to_owned(),
        Rc::new(|x| (x * LOG2_E).floor().exp2() * (1.0 + (x * LOG2_E) - (x * LOG2_E).floor())),
    )];
    // Parabolas that meet 2^f at 0 and 1 (and have its slope, or its middle, or the least error there).
    for (name, b) in [
        ("0.34315", 0.343_15),
        ("0.3371894", 0.337_189_4),
        ("0.3431457", 0.343_145_75),
        ("1/3", 1.0 / 3.0),
        ("0.33977", 0.339_77),
    ] {
        let what = format!("by a power of two and the parabola 1 + f·(1 − b + b·f) of what is left, b = {name}");
        let of = move |x: f64| {
            let f = x * LOG2_E - (x * LOG2_E).floor();
            (x * LOG2_E).floor().exp2() * (1.0 + f * (1.0 - b + b * f))
        };
        all.push((what, Rc::new(of)));
    }
    for degree in 1..=8 {
        let what = format!("by a polynomial of degree {degree} about 0");
        all.push((what, Rc::new(move |x| series(x, degree))));
        let what = format!("by a power of two and a polynomial of degree {degree} of what is left, from 0 to 1");
        let of = move |x: f64| (x * LOG2_E).floor().exp2() * series((x * LOG2_E - (x * LOG2_E).floor()) * LN_2, degree);
        all.push((what, Rc::new(of)));
        let what = format!("by a power of two and a polynomial of degree {degree} of what is left, from −1/2 to 1/2");
        let of = move |x: f64| (x * LOG2_E).round().exp2() * series((x * LOG2_E - (x * LOG2_E).round()) * LN_2, degree);
        all.push((what, Rc::new(of)));
    }
    for bits in 0..=12 {
        let n = f64::from(1 << bits);
        let step = if bits == 0 { "1".to_owned() } else { format!("1/{n}") };
        all.push((
            format!("by a table in steps of {step}, at the nearest entry"),
            Rc::new(move |x| ((x * n).round() / n).exp()),
        ));
        all.push((
            format!("by a table in steps of {step}, at the entry below"),
            Rc::new(move |x| ((x * n).floor() / n).exp()),
        ));
        all.push((
            format!("by a table in steps of {step}, at the entry nearer to 0"),
            Rc::new(move |x| ((x * n).trunc() / n).exp()),
        ));
        if bits >= 2 {
            all.push((format!("by (1 + x/{n})^{n}"), Rc::new(move |x| (1.0 + x / n).powf(n))));
            let linear = move |x: f64| {
                let (a, f) = ((x * n).floor() / n, x * n - (x * n).floor());
                a.exp() * (1.0 - f) + (a + 1.0 / n).exp() * f
            };
            all.push((
                format!("by a table in steps of {step}, in straight lines between its entries"),
                Rc::new(linear),
            ));
        }
    }
    for limit in [1.0, 2.0, 4.0, 5.0, 8.0, 10.0, 16.0, 20.0] {
        all.push((format!("as 0 below −{limit}"), Rc::new(move |x| if x < -limit { 0.0 } else { x.exp() })));
        all.push((format!("with its argument cut off at ±{limit}"), Rc::new(move |x| x.clamp(-limit, limit).exp())));
    }
    all
}

/// The law of `f` at the argument, and a little beside it, so that a table's point is either.
fn law<'a>(scene: &'a Scene<'a>, what: String, f: impl Fn(&RowAt, f64) -> Option<Vec<f64>> + 'a) -> Law<'a> {
    Law::new(what, 1, move |row: &RowAt| {
        let (value, below, above) = (f(row, 0.0)?, f(row, -8.0 * UNIT)?, f(row, 8.0 * UNIT)?);
        let (_, want, bound) = scene.e.row(row);
        if value.len() < want.len() {
            return None;
        }
        let reach = |i: usize| {
            let either = (below[i] - value[i]).abs().max((above[i] - value[i]).abs());
            (either + f64::from(bound[i]) + 32.0 * UNIT * value[i].abs()) as f32
        };
        Some(Row { bound: (0..want.len()).map(reach).collect(), value })
    })
}

fn activations<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let of = |what: String, silu: Function| {
        law(scene, what, move |row, off| {
            let (gate, up) = (scene.operand(row.step, 0)?, scene.operand(row.step, 1)?);
            let (gate, up) = (gate.data.get(row.range.clone())?, up.data.get(row.range.clone())?);
            Some(gate.iter().zip(up).map(|(g, u)| silu(f64::from(*g) * (1.0 + off)) * f64::from(*u)).collect())
        })
    };
    let mut all: Vec<Law<'a>> = exponentials()
        .into_iter()
        .map(|(name, exp)| of(format!("the exponential is approximated {name}"), Rc::new(move |g| g / (1.0 + exp(-g)))))
        .collect();
    let silu = |g: f64| g / (1.0 + (-g).exp());
    for bits in 0..=10 {
        let n = f64::from(1 << bits);
        let what = |of: &str| format!("SiLU is approximated by a table in steps of 1/{n}, {of}");
        all.push(of(what("at the nearest entry"), Rc::new(move |g| silu((g * n).round() / n))));
        all.push(of(what("at the entry below"), Rc::new(move |g| silu((g * n).floor() / n))));
        let linear = move |g: f64| {
            let (a, f) = ((g * n).floor() / n, g * n - (g * n).floor());
            silu(a) * (1.0 - f) + silu(a + 1.0 / n) * f
        };
        all.push(of(what("in straight lines between its entries"), Rc::new(linear)));
    }
    all.extend(
        sigmoids(scene)
            .into_iter()
            .map(|(name, f)| of(format!("the sigmoid is approximated by {name}"), Rc::new(move |g| g * f(g)))),
    );
    // Beyond some size the sigmoid is 0 or 1.
    for limit in [3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0] {
        let cut = move |g: f64| {
            if g > limit {
                g
            } else if g < -limit {
                0.0
            } else {
                silu(g)
            }
        };
        all.push(of(format!("the sigmoid is 0 or 1 beyond ±{limit}"), Rc::new(cut)));
    }
    all
}

/// Ways to approximate the sigmoid: by itself, and by one for tanh of y = x/2.
fn sigmoids(scene: &Scene<'_>) -> Vec<(String, Function)> {
    type Plain = fn(f64) -> f64;
    let own: [(&str, Plain); 4] = [
        ("1/2 + x/(2 + 2|x|)", |x| 0.5 + x / (2.0 + 2.0 * x.abs())),
        ("1/2 + x/4, cut off at 0 and 1", |x| (0.5 + x / 4.0).clamp(0.0, 1.0)),
        ("1/2 + x/(2·√(1 + x²))", |x| 0.5 + x / (2.0 * (1.0 + x * x).sqrt())),
        ("1/2 + x/5, cut off at 0 and 1", |x| (0.5 + x / 5.0).clamp(0.0, 1.0)),
    ];
    let mut all: Vec<(String, Function)> = own.map(|(name, f)| (name.to_owned(), Rc::new(f) as Function)).into();
    let tanh: [(&str, Plain); 5] = [
        ("y/(1 + |y|)", |y| y / (1.0 + y.abs())),
        ("y·(27 + y²)/(27 + 9y²)", |y| y * (27.0 + y * y) / (27.0 + 9.0 * y * y)),
        ("y·(15 + y²)/(15 + 6y²)", |y| y * (15.0 + y * y) / (15.0 + 6.0 * y * y)),
        ("y·(135135 + 17325y² + 378y⁴ + y⁶)/(135135 + 62370y² + 3150y⁴ + 28y⁶)", |y| {
            let z = y * y;
            y * (135_135.0 + z * (17_325.0 + z * (378.0 + z))) / (135_135.0 + z * (62_370.0 + z * (3_150.0 + 28.0 * z)))
        }),
        ("y·(945 + 105y² + y⁴)/(945 + 420y² + 15y⁴)", |y| {
            let z = y * y;
            y * (945.0 + 105.0 * z + z * z) / (945.0 + 420.0 * z + 15.0 * z * z)
        }),
    ];
    for (name, f) in tanh {
        let what = |more: &str| format!("(1 + t)/2, t = {name} for the tanh of y = x/2{more}");
        all.push((what(""), Rc::new(move |x| 0.5 + 0.5 * f(x / 2.0))));
        all.push((what(", cut off at ±1"), Rc::new(move |x| 0.5 + 0.5 * f(x / 2.0).clamp(-1.0, 1.0))));
        for limit in [3.0, 4.0, 5.0] {
            let what = what(&format!(", y cut off at ±{limit}"));
            all.push((what, Rc::new(move |x| 0.5 + 0.5 * f((x / 2.0).clamp(-limit, limit)))));
        }
    }
    for by in cubes(scene) {
        let cubic = move |x: f64| {
            let y = x / 2.0;
            y * (1.0 + by * y * y)
        };
        let what = |more: &str| format!("(1 + t)/2, t = y·(1 + {by}·y²) for the tanh of y = x/2{more}");
        all.push((what(""), Rc::new(move |x| 0.5 + 0.5 * cubic(x))));
        all.push((what(", cut off at ±1"), Rc::new(move |x| 0.5 + 0.5 * cubic(x).clamp(-1.0, 1.0))));
    }
    all
}

/// The factor of the cube, if tanh is a straight line and a cube, as wrong elements show it that are neither near 0 nor cut off: with four
/// digits, and with all.
fn cubes(scene: &Scene<'_>) -> Vec<f64> {
    let of = |&at: &At| {
        let (row, (got, ..)) = (&scene.e.rows[at.0], scene.element(at));
        let of_operand = |i| Some(f64::from(*scene.operand(row.step, i)?.data.get(row.range.start + at.1)?));
        let (gate, up): (f64, f64) = (of_operand(0)?, of_operand(1)?);
        let (y, t) = (gate / 2.0, 2.0 * got / (gate * up) - 1.0);
        let shows = (0.1..0.99).contains(&t.abs()) && y * t > 0.0;
        shows.then(|| (y.abs(), (t / y - 1.0) / (y * y)))
    };
    let best = scene.fit.iter().filter_map(of).filter(|(_, by)| by.is_finite() && by.abs() < 2.0);
    let best = best.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, by)| by);
    best.into_iter().flat_map(|by| [(by * 1e4).round() / 1e4, (by * 1e6).round() / 1e6]).collect()
}

fn softmaxes<'a>(scene: &'a Scene<'a>, scale: f64) -> Vec<Law<'a>> {
    let of = |(name, exp): (String, Function)| {
        law(scene, format!("the exponential is approximated {name}"), move |row, off| {
            let weights = |s: &[f64], p: usize, n: usize| {
                let seen = &s[..(p + 1).min(n)];
                let top = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let e: Vec<f64> = seen.iter().map(|s| exp((s - top) * (1.0 + off))).collect();
                let sum: f64 = e.iter().sum();
                e.iter().map(|e| e / sum).chain(std::iter::repeat(0.0)).take(n).collect()
            };
            Some(attended::weights(scene, scale, row, weights)?.value)
        })
    };
    exponentials().into_iter().map(of).collect()
}

fn rotations<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Anatomy::Elementwise(Elementwise::Rotation(rope)) = scene.node().op.anatomy() else { return Vec::new() };
    type Turn = Rc<dyn Fn(f64) -> (f64, f64)>;
    let mut ways: Vec<(String, Turn)> = Vec::new();
    for bits in 6..=16 {
        let n = f64::from(1 << bits);
        let what = |of: &str| format!("sine and cosine are read from a table of {n} points a turn, {of}");
        ways.push((what("at the nearest point"), Rc::new(move |a| ((a / TAU * n).round() / n * TAU).sin_cos())));
        ways.push((what("at the point below"), Rc::new(move |a| ((a / TAU * n).floor() / n * TAU).sin_cos())));
    }
    for terms in 2..=6usize {
        let polynomial = move |a: f64| {
            let x = a - (a / TAU).round() * TAU;
            let power = |first: usize| {
                let (mut term, mut sum) = (if first == 0 { 1.0 } else { x }, 0.0);
                for k in 0..terms {
                    sum += term;
                    let m = (first + 2 * k) as f64;
                    term *= -x * x / ((m + 1.0) * (m + 2.0));
                }
                sum
            };
            (power(1), power(0))
        };
        let what = format!("sine and cosine are approximated by {terms} terms of their series, from −π to π");
        ways.push((what, Rc::new(polynomial)));
    }
    ways.push(("sine and cosine are those of a small angle: x and 1".to_owned(), Rc::new(|a| (a, 1.0))));
    ways.push((
        "the angle is not brought into one turn: it is cut off at 2π".to_owned(),
        Rc::new(|a| a.min(TAU).sin_cos()),
    ));
    let of = |(what, turn): (String, Turn)| {
        law(scene, what, move |row, off| {
            let mut x: Vec<f64> = operand(scene, row)?.iter().map(|v| f64::from(*v)).collect();
            for i in 0..rope.rotated / 2 {
                let (a, b) = pair(rope, i);
                let (sin, cos) = turn(row.place.position as f64 * frequency(rope, i) * (1.0 + off));
                (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
            }
            Some(x)
        })
    };
    ways.into_iter().map(of).collect()
}

/// The inverse root by the bits of an f32, and so many steps of Newton's method.
fn fast_root(x: f64, steps: usize) -> f64 {
    let start = f32::from_bits(0x5f37_59df_u32.wrapping_sub((x as f32).to_bits() >> 1));
    (0..steps).fold(f64::from(start), |y, _| y * (1.5 - 0.5 * x * y * y))
}

fn norms<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (Anatomy::RowReduction(RowReduction::MeanSquare(rms)), Some(width)) =
        (scene.node().op.anatomy(), scene.width())
    else {
        return Vec::new();
    };
    let run = width / rms.groups;
    let own = Rc::new(scene.vector(&scene.node().weights[0].name, run));
    let mut roots: Vec<(String, Function)> = (0..3)
        .map(|steps| -> (String, Function) {
            let what =
                format!("the inverse root is approximated by the bits of a float and {steps} steps of Newton's method");
            (what, Rc::new(move |x| fast_root(x, steps)))
        })
        .collect();
    for bits in 3..16 {
        let n = f64::from(1 << bits);
        let rounded = move |x: f64| {
            let (y, unit) = (1.0 / x.sqrt(), (1.0 / x.sqrt()).log2().floor().exp2() / n);
            (y / unit).round() * unit
        };
        roots.push((format!("the inverse root has {bits} bits"), Rc::new(rounded)));
    }
    let of = |(what, root): (String, Function)| {
        let own = own.clone();
        law(scene, what, move |row, off| {
            let x = norm::operand(scene, row, 0)?;
            let scaled = x.chunks(run).flat_map(|part| {
                let scale = root((part.iter().map(|v| v * v).sum::<f64>() / run as f64 + rms.eps) * (1.0 + off));
                part.iter().map(move |v| v * scale)
            });
            Some(scaled.enumerate().map(|(i, v)| v * f64::from(own[i % run])).collect())
        })
    };
    roots.into_iter().map(of).collect()
}
