//! Gate and up otherwise: cut off at a limit, with another factor in the exponent, or read from a buffer that both share as
//! if its order were another.

use super::scene::Scene;
use super::{Law, Row, short};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{Activation, Elementwise};
use qdiff_engine::ops::{Anatomy, UNIT};
use std::rc::Rc;

/// A function of gate and up.
type Function = Rc<dyn Fn(f64, f64) -> f64>;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The factor of a normal distribution below x, as GELU has it: the error function by a series without cancellation.
pub(super) fn below(x: f64) -> f64 {
    // erf(z) = 2/√π · e^(−z²) · Σ 2^n z^(2n+1) / (2n+1)!!, z = x/√2.
    let z = (x / std::f64::consts::SQRT_2).clamp(-6.5, 6.5);
    let (mut term, mut sum, mut n) = (z, z, 1.0);
    while term.abs() > 1e-17 * sum.abs() && n < 400.0 {
        term *= 2.0 * z * z / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    0.5 * (1.0 + std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() * sum)
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if scene.node().op.anatomy() != Anatomy::Elementwise(Elementwise::Gated(Activation::Silu)) {
        return Vec::new();
    }
    let mut all: Vec<Law<'a>> = functions(scene).into_iter().map(|(what, f)| law(scene, what, f)).collect();
    all.extend(shared(scene));
    all
}

/// A law's words, in which `gate` and `up` are the two operands of a gated stage: by their own names where they have others.
pub(super) fn named(scene: &Scene<'_>, what: String) -> String {
    let node = scene.node();
    if !matches!(node.op.anatomy(), Anatomy::Elementwise(Elementwise::Gated(_))) {
        return what;
    }
    let [gate, up] = [0, 1].map(|i| scene.e.oracle.graph.nodes[node.inputs[i]].id);
    if gate.name.contains("gate") && up.name.contains("up") {
        return what;
    }
    let word = |word: &str| match word {
        "gate" => gate.to_string(),
        "up" => up.to_string(),
        word => word.to_owned(),
    };
    let what = what.replace("the gate", "gate");
    // With what stands between words.
    what.split_inclusive(|c: char| !c.is_alphanumeric())
        .map(|part| {
            let end = part.trim_end_matches(|c: char| !c.is_alphanumeric());
            word(end) + &part[end.len()..]
        })
        .collect()
}

fn law<'a>(scene: &'a Scene<'a>, what: String, f: Function) -> Law<'a> {
    Law::new(what, 1, move |row: &RowAt| {
        let (gate, up) = (scene.operand(row.step, 0)?, scene.operand(row.step, 1)?);
        let (gate, up) = (gate.data.get(row.range.clone())?, up.data.get(row.range.clone())?);
        Some(made(gate.iter().zip(up).map(|(g, u)| (f64::from(*g), f64::from(*u))), &*f))
    })
}

fn made(pairs: impl Iterator<Item = (f64, f64)>, f: &dyn Fn(f64, f64) -> f64) -> Row {
    let of = |(g, u): (f64, f64)| {
        let value = f(g, u);
        // As many roundings as the right one, of a value of this size.
        (value, (8.0 * UNIT * value.abs().max((g * u).abs())) as f32)
    };
    let (value, bound) = pairs.map(of).unzip();
    Row { value, bound }
}

fn functions(scene: &Scene<'_>) -> Vec<(String, Function)> {
    let mut all: Vec<(String, Function)> = Vec::new();
    let mut limits: Vec<f64> =
        vec![0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0, 20.0, 32.0];
    limits.extend(read_off(scene));
    for limit in limits {
        let l = short(limit);
        let mut add = |what: String, f: fn(f64, f64, f64) -> f64| {
            all.push((what, Rc::new(move |g, u| f(g, u, limit))));
        };
        add(format!("the gate is cut off at {l} from above before SiLU"), |g, u, l| silu(g.min(l)) * u);
        add(format!("the gate is cut off at ±{l} before SiLU"), |g, u, l| silu(g.clamp(-l, l)) * u);
        add(format!("the gate is cut off at −{l} from below before SiLU"), |g, u, l| silu(g.max(-l)) * u);
        add(format!("up is cut off at ±{l}"), |g, u, l| silu(g) * u.clamp(-l, l));
        add(format!("up is cut off at {l} from above"), |g, u, l| silu(g) * u.min(l));
        add(format!("up is cut off at −{l} from below"), |g, u, l| silu(g) * u.max(-l));
        add(format!("SiLU of the gate is cut off at {l} from above"), |g, u, l| silu(g).min(l) * u);
        add(format!("gate and up are cut off at ±{l}"), |g, u, l| silu(g.clamp(-l, l)) * u.clamp(-l, l));
        add(format!("the gate is cut off at {l} from above and up at ±{l}"), |g, u, l| {
            silu(g.min(l)) * u.clamp(-l, l)
        });
        add(format!("SiLU of the gate is 0 below −{l}"), |g, u, l| if g < -l { 0.0 } else { silu(g) * u });
        add(
            format!("SiLU of the gate is the gate itself from {l} on"),
            |g, u, l| if g > l { g * u } else { silu(g) * u },
        );
        add(format!("the exponent of SiLU is cut off at ±{l}"), |g, u, l| g / (1.0 + (-g).clamp(-l, l).exp()) * u);
        add(format!("the exponent of SiLU is cut off at {l} from above"), |g, u, l| g / (1.0 + (-g).min(l).exp()) * u);
    }
    let factors = [
        ("2^(−g) is taken for e^(−g)", std::f64::consts::LN_2),
        ("the exponent is multiplied by log2(e) twice", std::f64::consts::LOG2_E),
        ("the exponent is −2·g", 2.0),
        ("the exponent is −g/2", 0.5),
        ("the exponent is −1.5·g", 1.5),
        ("the exponent is −1.7·g", 1.7),
    ];
    for (what, by) in factors {
        all.push((format!("{what} in SiLU of the gate"), Rc::new(move |g, u| g / (1.0 + (-by * g).exp()) * u)));
    }
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    type Plain = fn(f64) -> f64;
    let others: [(&str, Plain); 8] = [
        ("GELU, with the error function,", |x| x * below(x)),
        ("the tanh form of GELU", |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }),
        ("ReLU", |x| x.max(0.0)),
        ("the square of ReLU", |x| x.max(0.0).powi(2)),
        ("softplus, ln(1 + e^x),", |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        ("Mish, x·tanh(ln(1 + e^x)),", |x| x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh()),
        ("ELU", |x| if x > 0.0 { x } else { x.exp_m1() }),
        ("the leaky ReLU, 0.01·x below 0,", |x| if x > 0.0 { x } else { 0.01 * x }),
    ];
    for (name, f) in others {
        all.push((format!("the stage computes {name} of the gate times up"), Rc::new(move |g, u| f(g) * u)));
        let what = format!("the stage computes {name} of up times gate: the operands are exchanged");
        all.push((what, Rc::new(move |g, u| f(u) * g)));
    }
    all.push(("the stage computes SiLU of the gate times 1 + up".to_owned(), Rc::new(|g, u| silu(g) * (1.0 + u))));
    let quick = |g: f64| silu(1.702 * g) / 1.702;
    let what = "the stage computes the quick form of GELU, g·σ(1.702·g), of the gate times 1 + up".to_owned();
    all.push((what, Rc::new(move |g, u| quick(g) * (1.0 + u))));
    all.push(("the stage computes the sigmoid of up times gate".to_owned(), Rc::new(move |g, u| sigmoid(u) * g)));
    all.push(("gate and up are multiplied by the sigmoid of up".to_owned(), Rc::new(move |g, u| g * u * sigmoid(u))));
    all.push(("the stage computes SiLU of the sum of gate and up".to_owned(), Rc::new(|g, u| silu(g + u))));
    all.push(("the stage computes SiLU of up alone, without the gate".to_owned(), Rc::new(|_, u| silu(u))));
    all
}

/// The gate, or up, at which a wrong element is cut off if it is.
fn read_off(scene: &Scene<'_>) -> Vec<f64> {
    let of = |&(r, i): &(usize, usize)| {
        let (row, (got, ..)) = (&scene.e.rows[r], scene.element((r, i)));
        let at = row.range.start + i;
        let (gate, up) = (scene.operand(row.step, 0)?, scene.operand(row.step, 1)?);
        let (g, u) = (f64::from(*gate.data.get(at)?), f64::from(*up.data.get(at)?));
        let (own, other) = (got / u, got / silu(g));
        // SiLU grows from 0 on.
        let (mut low, mut high) = (0.0, 1e4);
        for _ in 0..80 {
            let middle = (low + high) / 2.0;
            if silu(middle) < own { low = middle } else { high = middle }
        }
        Some([high, other.abs(), own])
    };
    let exact = scene.fit.iter().take(4).filter_map(of).flatten().filter(|v| v.is_finite() && *v > 0.0 && *v < 1e3);
    exact.map(|v| (v * 1e4).round() / 1e4).filter(|v| *v > 0.0).collect()
}

/// Gate and up as a buffer that both share holds them, read as if it had runs of so many in turn, or the
/// other way round.
fn shared<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some(width) = scene.width() else { return Vec::new() };
    let runs = (0..10).map(|b| 1usize << b).filter(|run| width.is_multiple_of(2 * run));
    let both = runs.flat_map(|run| [true, false].map(|in_turn| (run, in_turn)));
    both.map(|(run, in_turn)| {
        let what = match in_turn {
            true => format!("gate and up are read as if interleaved in runs of {run}; they come one after the other"),
            false => {
                format!("gate and up are read as if one came after the other; they are interleaved in runs of {run}")
            }
        };
        Law::new(what, 1, move |row: &RowAt| {
            let (gate, up) = (scene.operand(row.step, 0)?, scene.operand(row.step, 1)?);
            let (first, from) = (row.range.start - scene.token(row).1, scene.token(row).1);
            // Place in the buffer of the two, read and held.
            let turn = |c: usize, second: usize| c / run * 2 * run + second * run + c % run;
            let halves = |c: usize, second: usize| second * width + c;
            let at = |c: usize, second: usize| {
                let place = if in_turn { turn(c, second) } else { halves(c, second) };
                let (second, c) = match in_turn {
                    true => (place / width, place % width),
                    false => (place / run % 2, place / (2 * run) * run + place % run),
                };
                f64::from(if second == 0 { gate.data[first + c] } else { up.data[first + c] })
            };
            let pairs = (from..from + row.range.len()).map(|c| (at(c, 0), at(c, 1)));
            Some(made(pairs, &|g, u| silu(g) * u))
        })
    })
    .collect()
}
