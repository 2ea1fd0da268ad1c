//! What may be computed instead of a softmax, a norm, a rotation, an activation, or the sum of two vectors.

use super::bench::{At, Stage};
use super::plants::{FORMATS, Plant};
use qdiff_engine::ops::Op;

pub(super) fn plants(stage: &Stage) -> Vec<Plant> {
    match &stage.node.op {
        Op::AttnWeights(_) => softmaxes(),
        Op::RmsNorm(_) => norms(),
        Op::Rope(_) => rotations(),
        Op::SwiGlu => activations(),
        Op::Residual => sums(stage, false),
        Op::Bias => sums(stage, true),
        Op::Embed | Op::Linear | Op::KvCache(_) | Op::AttnScores(_) | Op::AttnContext(_) => Vec::new(),
        Op::Collective(_) | Op::Defined(_) => Vec::new(),
    }
}

/// Scaled scores of the element's row, all keys.
fn scores(s: &Stage, at: &At) -> Vec<f64> {
    let (x, tokens, keys) = (&s.inputs[0][at.step], s.steps[at.step].1, s.width(at.step));
    let row = &x.data[(at.head * tokens + at.token) * keys..][..keys];
    row.iter().map(|v| f64::from(*v) / (s.head_dim() as f64).sqrt()).collect()
}

/// The softmax over keys chosen by `(key, position)`.
fn over(taken: fn(usize, usize) -> bool) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let all = scores(s, at);
        let sum: f64 = (0..all.len()).filter(|&k| taken(k, at.position)).map(|k| (all[k] - all[at.column]).exp()).sum();
        if taken(at.column, at.position) { 1.0 / sum } else { 0.0 }
    }
}

/// Right numerators over another sum.
fn divided(by: fn(&[f64], usize) -> f64) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let seen = &scores(s, at)[..=at.position];
        let top = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if at.column > at.position { 0.0 } else { (seen[at.column] - top).exp() / by(seen, at.position) }
    }
}

fn softmaxes() -> Vec<Plant> {
    fn total(s: &[f64]) -> f64 {
        let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        s.iter().map(|v| (v - top).exp()).sum::<f64>()
    }
    let with = |name: &str, words: &str, f: fn(f64) -> f64| {
        Plant::new(name, words, move |s, at| {
            let seen: Vec<f64> = scores(s, at)[..=at.position].to_vec();
            let top = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = seen.iter().map(|v| f(v - top)).sum();
            if at.column > at.position { 0.0 } else { f(seen[at.column] - top) / sum }
        })
    };
    vec![
        Plant::new("a sliding window", "over keys less than 8 before the query", over(|k, p| k <= p && p - k < 8)),
        Plant::new(
            "its own key not seen",
            "the keys before the query's own|all keys but the last 1",
            over(|k, p| k < p || p + k == 0),
        ),
        Plant::new("the first key not seen", "all keys but the first", over(|k, p| k <= p && (k > 0 || p == 0))),
        Plant::new("one key too many", "one key too many", over(|k, p| k <= p + 1)),
        Plant::new("no mask", "nothing is masked|one key too many", over(|_, _| true)),
        Plant::new("own block of 16", "the query's own block of", over(|k, p| k <= p && k / 16 == p / 16)),
        Plant::new(
            "every 16th key not seen",
            "keys but those ≡ 5 mod 16|zeros are there instead",
            over(|k, p| k <= p && k % 16 != 5),
        ),
        Plant::new(
            "the sum forgets the last key",
            "divided by is over&own|divided by is over all keys but the last 1",
            divided(|s, p| {
                let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                s[..p.max(1)].iter().map(|v| (v - top).exp()).sum()
            }),
        ),
        Plant::new("not divided", "not divided by their sum", divided(|_, _| 1.0)),
        Plant::new("1 more in the sum", "1 is added to the sum", divided(|s, _| 1.0 + total(s))),
        Plant::new(
            "sums of tiles not rescaled",
            "the sum so far is not rescaled when the maximum changes&in tiles of 8",
            divided(|s, _| {
                let (mut top, mut sum) = (f64::NEG_INFINITY, 0.0);
                for part in s.chunks(8) {
                    top = part.iter().copied().fold(top, f64::max);
                    sum += part.iter().map(|v| (v - top).exp()).sum::<f64>();
                }
                sum
            }),
        ),
        Plant::new(
            "sums of splits as they are",
            "each part's sum is added as it is&in 4 splits|not rescaled",
            divided(|s, _| {
                let largest = |s: &[f64]| s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let of = |part: &[f64]| part.iter().map(|v| (v - largest(part)).exp()).sum::<f64>();
                s.chunks(s.len().div_ceil(4)).map(of).sum()
            }),
        ),
        Plant::new(
            "the sum forgets the last split",
            "the last of 3 splits are missing from the sum",
            divided(|s, _| {
                let (top, n) = (s.iter().copied().fold(f64::NEG_INFINITY, f64::max), s.len().div_ceil(3));
                s[..(s.len() - 1) / n * n].iter().map(|v| (v - top).exp()).sum()
            }),
        ),
        Plant::new(
            "a tile twice in the sum",
            "second tile of 8 are taken twice in the sum|keys 8..15 are taken twice",
            divided(|s, _| {
                total(s)
                    + if s.len() > 8 {
                        let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        s[8..s.len().min(16)].iter().map(|v| (v - top).exp()).sum()
                    } else {
                        0.0
                    }
            }),
        ),
        Plant::new(
            "three keys more in the sum",
            "of the sum of the softmax, keys",
            divided(|s, _| {
                let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                total(s) + s.iter().take(6).skip(4).map(|v| (v - top).exp()).sum::<f64>()
            }),
        ),
        Plant::new(
            "the sum in bf16",
            "accumulated in bf16|the sum of the softmax is wrong",
            divided(|s, _| {
                let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                s.iter().fold(0.0, |sum, v| FORMATS[0].1(sum + (v - top).exp()))
            }),
        ),
        Plant::new("each tile its own maximum", "own part's maximum&in tiles of 8", |s, at| {
            let seen = &scores(s, at)[..=at.position];
            let largest = |s: &[f64]| s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if at.column > at.position {
                return 0.0;
            }
            let tile = &seen[at.column / 8 * 8..seen.len().min(at.column / 8 * 8 + 8)];
            (seen[at.column] - largest(tile)).exp() / total(seen)
        }),
        with("powers of two", "powers of two instead of e", f64::exp2),
        with("all alike", "all keys weigh the same", |_| 1.0),
        with("scores scaled twice as much", "scores are multiplied by 0.", |x| (2.0 * x).exp()),
        with("exp of an argument in f16", "approximat", |x| (FORMATS[2].1(x * std::f64::consts::LOG2_E)).exp2()),
        with("exp in bf16", "approximat|the exponential is rounded to bf16", |x| FORMATS[0].1(x.exp())),
    ]
}

/// A norm with another factor of the row, or another weight: `(x, place) -> factor`, and of the weight.
fn norms() -> Vec<Plant> {
    let mean = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    type Factor = fn(&[f64], f64) -> f64;
    let factor = move |name: &str, words: &str, f: Factor| {
        Plant::new(name, words, move |s, at| {
            let (x, w) = run(s, at, 0);
            x[at.column % x.len()] * f(&x, eps(s)) * w
        })
    };
    let weight = move |name: &str, words: &str, f: fn(f64) -> f64| {
        Plant::new(name, words, move |s, at| {
            let (x, w) = run(s, at, 0);
            x[at.column % x.len()] / (mean(&x) + eps(s)).sqrt() * f(w)
        })
    };
    vec![
        factor("the tail not in the mean", "the last 16 elements are missing from the mean of squares", |x, e| {
            let n = x.len();
            1.0 / (x[..n - 16].iter().map(|v| v * v).sum::<f64>() / n as f64 + e).sqrt()
        }),
        factor("a lane not in the mean", "elements ≡ 5 mod 8 are missing from the mean of squares", |x, e| {
            let kept = x.iter().enumerate().filter(|(i, _)| i % 8 != 5);
            1.0 / (kept.map(|(_, v)| v * v).sum::<f64>() / x.len() as f64 + e).sqrt()
        }),
        factor("squares in bf16", "the sum of squares is accumulated in bf16|a factor of its own", |x, e| {
            let sum = x.chunks(4).fold(0.0, |sum, x| FORMATS[0].1(sum + x.iter().map(|v| v * v).sum::<f64>()));
            1.0 / (sum / x.len() as f64 + e).sqrt()
        }),
        factor("squares in f16 in lanes", "the sum of squares is accumulated in f16|a factor of its own", |x, e| {
            let mut lanes = [0f64; 32];
            x.iter().enumerate().for_each(|(i, v)| lanes[i % 32] = FORMATS[2].1(lanes[i % 32] + v * v));
            1.0 / (lanes.iter().sum::<f64>() / x.len() as f64 + e).sqrt()
        }),
        factor("no root", "the square root is left out", |x, e| {
            1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + e)
        }),
        factor("not divided by their number", "not divided by their number|right value times", |x, e| {
            1.0 / (x.iter().map(|v| v * v).sum::<f64>() + e).sqrt()
        }),
        factor("variance", "variance about the mean", |x, e| {
            let n = x.len() as f64;
            let m = x.iter().sum::<f64>() / n;
            1.0 / (x.iter().map(|v| (v - m).powi(2)).sum::<f64>() / n + e).sqrt()
        }),
        factor("eps of 1e-3", "ε is 1e-3", |x, _| {
            1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + 1e-3).sqrt()
        }),
        factor("not normalised", "nothing is normalised", |_, _| 1.0),
        factor("a coarse root", "factor of its own|the factor of a row is rounded to bf16", |x, e| {
            FORMATS[0].1(1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + e).sqrt())
        }),
        weight("no weight", "the weight is not applied", |_| 1.0),
        weight("1 + weight", "1 is added to the weight", |w| 1.0 + w),
        weight("weight twice", "the weight is applied twice", |w| w * w),
        weight("weight in bf16", "its weight is wrong|the weight is rounded to bf16", |w| FORMATS[0].1(w)),
        Plant::new(
            "the mean of the row before",
            "the mean is that of the previous token in the part|the mean is that of the first token of each 2",
            move |s, at| {
                if at.token == 0 {
                    return s.own(at);
                }
                let ((x, w), (before, _)) = (run(s, at, 0), run(s, at, -1));
                x[at.column % x.len()] / (mean(&before) + eps(s)).sqrt() * w
            },
        ),
    ]
}

fn eps(s: &Stage) -> f64 {
    s.graph.config.rms_eps
}

/// The elements that are normed together with this one, of a token so many on; and its weight.
fn run(s: &Stage, at: &At, by: i64) -> (Vec<f64>, f64) {
    let weight = &s.matrix[0];
    let x = &s.x(0, at, by).unwrap()[at.column / weight.len() * weight.len()..][..weight.len()];
    (x.iter().map(|v| f64::from(*v)).collect(), f64::from(weight[at.column % weight.len()]))
}

fn rotations() -> Vec<Plant> {
    let turned = |name: &str, words: &str, position: fn(f64) -> f64, round: fn(f64) -> f64| {
        Plant::new(name, words, move |s, at| {
            let (d, x) = (s.head_dim(), s.x(0, at, 0).unwrap());
            let (head, i) = (at.column / d * d, at.column % d);
            let angle =
                position(at.position as f64) * s.graph.config.rope_base.powf(-2.0 * (i % (d / 2)) as f64 / d as f64);
            let (sin, cos) = (round(angle.sin()), round(angle.cos()));
            let (a, b) = (f64::from(x[head + i % (d / 2)]), f64::from(x[head + i % (d / 2) + d / 2]));
            if i < d / 2 { a * cos - b * sin } else { a * sin + b * cos }
        })
    };
    let exact = |v: f64| v;
    vec![
        turned("a position on", "rotated as the next position|the position is one more", |p| p + 1.0, exact),
        turned("not rotated", "not at all|its own input|position 0", |_| 0.0, exact),
        turned("the other way", "the other way round|the sine has the wrong sign", |p| -p, exact),
        turned("as position 7", "rotated as position 7", |_| 7.0, exact),
        turned("positions halved", "positions are multiplied by 0.5|rotated by half the angle", |p| p / 2.0, exact),
        turned(
            "positions modulo 16",
            "positions are taken modulo 16|as the position 16 before|as the position 32 before|rotated as the position p mod 16|rotated as the position p mod 32",
            |p| p % 16.0,
            exact,
        ),
        turned("sines in f16", "approximat|sine and cosine are rounded to f16", |p| p, FORMATS[2].1),
        Plant::new("neighbours as pairs", "pair", |s, at| {
            let (d, x) = (s.head_dim(), s.x(0, at, 0).unwrap());
            let i = at.column % d;
            let angle = at.position as f64 * s.graph.config.rope_base.powf(-2.0 * (i / 2) as f64 / d as f64);
            let (a, b) = (f64::from(x[at.column & !1]), f64::from(x[at.column | 1]));
            if i % 2 == 0 { a * angle.cos() - b * angle.sin() } else { a * angle.sin() + b * angle.cos() }
        }),
    ]
}

fn activations() -> Vec<Plant> {
    let of = |name: &str, words: &str, f: fn(f64, f64) -> f64| {
        Plant::new(name, words, move |s, at| {
            let x = |i: usize| f64::from(s.x(i, at, 0).unwrap()[at.column]);
            f(x(0), x(1))
        })
    };
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
    vec![
        of("no SiLU", "gate times up, without SiLU", |g, u| g * u),
        of("exchanged", "the operands are exchanged", |g, u| u * sigmoid(u) * g),
        of("no up", "SiLU of the gate alone", |g, _| g * sigmoid(g)),
        of("ReLU", "ReLU of the gate times up", |g, u| g.max(0.0) * u),
        of("the tanh form of GELU", "tanh form of GELU", |g, u| {
            0.5 * g * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3))).tanh()) * u
        }),
        of("the quick form of GELU", "quick form of GELU", |g, u| g * sigmoid(1.702 * g) * u),
        of("the gate cut off", "the gate is cut off at 0.35 from above|cut off at 0.3500 from above", |g, u| {
            g.min(0.35) * sigmoid(g.min(0.35)) * u
        }),
        of("softplus", "softplus", |g, u| (1.0 + g.exp()).ln() * u),
        of("powers of two", "2^(−g) is taken for e^(−g)|approximat", |g, u| g / (1.0 + (-g).exp2()) * u),
        Plant::new("gate and up in turn", "read as if interleaved in runs of 8", |s, at| {
            let width = s.width(at.step);
            let x = |place: usize| f64::from(s.x(place / width, at, 0).unwrap()[place % width]);
            let first = at.column / 8 * 16 + at.column % 8;
            let (g, u) = (x(first), x(first + 8));
            g * sigmoid(g) * u
        }),
        of("added", "gate plus up", |g, u| g * sigmoid(g) + u),
        of("exp of an argument in f16", "approximat", |g, u| g / (1.0 + FORMATS[2].1(-g).exp()) * u),
        of("tanh in f16", "approximat", |g, u| 0.5 * g * (1.0 + FORMATS[2].1((0.5 * g).tanh())) * u),
        Plant::new("up of the row before", "the multiplied values of&are those of the previous token", |s, at| {
            let Some(up) = s.x(1, at, -1) else { return s.own(at) };
            let gate = f64::from(s.x(0, at, 0).unwrap()[at.column]);
            gate * sigmoid(gate) * f64::from(up[at.column])
        }),
    ]
}

/// A residual may lose its second operand, a bias its vector.
fn sums(stage: &Stage, bias: bool) -> Vec<Plant> {
    let nodes = &stage.graph.nodes;
    let added = if bias { stage.node.weights[0].name.clone() } else { nodes[stage.node.inputs[1]].id.to_string() };
    let input = nodes[stage.node.inputs[0]].id;
    let of = move |s: &Stage, at: &At, by: i64| {
        let (a, b) = (f64::from(s.x(0, at, 0).unwrap()[at.column]), |at: &At| match bias {
            true => Some(f64::from(s.matrix[0][(at.column as i64 + by).rem_euclid(s.width(at.step) as i64) as usize])),
            false => s.x(1, at, by).map(|x| f64::from(x[at.column])),
        });
        (a, b(at))
    };
    let with = |name: &str, words: String, f: fn(f64, f64) -> f64, by: i64| {
        Plant::new(name, words, move |s, at| {
            let (a, b) = of(s, at, by);
            b.map_or_else(|| s.own(at), |b| f(a, b))
        })
    };
    let mut all = vec![
        with("left out", format!("{added} is not added|its own input {input} is there instead"), |a, _| a, 0),
        with("added twice", format!("{added} is added twice"), |a, b| a + 2.0 * b, 0),
        with("subtracted", format!("{added} is subtracted instead of added"), |a, b| a - b, 0),
        with(
            "the other alone",
            format!(
                "{input} is not added|{added} alone is there instead|{added} itself is there instead|its own input {added} is there instead"
            ),
            |_, b| b,
            0,
        ),
        with("half of it", format!("{added} is multiplied by 0.5 before it is added"), |a, b| a + 0.5 * b, 0),
        with("multiplied", String::new(), |a, b| a * b, 0),
    ];
    if bias {
        all.push(Plant::new("by row", "the bias is read by row in place of column|position", |s, at| {
            f64::from(s.x(0, at, 0).unwrap()[at.column]) + f64::from(s.matrix[0][at.token % s.matrix[0].len()])
        }));
    }
    if !bias {
        let words = format!("the added values of {added} are those of the previous token");
        all.push(with("of the row before", words, |a, b| a + b, -1));
    }
    all
}
