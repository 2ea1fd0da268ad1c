//! What may be computed instead, and what is then right to say: operations of every stage, and errors that nothing
//! explains. Each is written down here from its definition, and shares nothing with the solver that is to find it.

use super::bench::{At, Stage};
use half::{bf16, f16};

type Value = Box<dyn Fn(&Stage, &At) -> f64>;

/// One thing to compute instead.
pub(super) struct Plant {
    pub(super) name: String,
    /// What an element is then.
    pub(super) value: Value,
    /// The allowed sentences: alternatives between `|`, all of whose fragments between `&` must be in the sentence.
    /// Empty if none is allowed.
    pub(super) words: String,
    /// Whether it is instead the value after the step before.
    pub(super) stale: bool,
}

impl Plant {
    pub(super) fn new(
        name: impl Into<String>, words: impl Into<String>, value: impl Fn(&Stage, &At) -> f64 + 'static,
    ) -> Self {
        Self { name: name.into(), value: Box::new(value), words: words.into(), stale: false }
    }
}

/// A number that goes with the element and nothing else: uniform in -1..1, or bell-shaped.
pub(super) fn random(at: &At, seed: u64) -> f64 {
    let mut z = (at.index as u64 ^ (at.step as u64) << 40 ^ seed << 52).wrapping_add(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    }
    (z >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

pub(super) fn bell(at: &At, seed: u64) -> f64 {
    (0..6).map(|i| random(at, seed * 6 + i)).sum::<f64>() / 2f64.sqrt()
}

/// As [`random`], alike for all that have the same number.
pub(super) fn drawn(number: usize, seed: u64) -> f64 {
    random(&At { step: 0, token: 0, position: 0, head: 0, column: 0, index: number }, seed)
}

type Round = fn(f64) -> f64;

/// Formats with few bits, by what is called so.
pub(super) const FORMATS: [(&str, Round); 7] = [
    ("bf16", |x| bf16::from_f32(x as f32).to_f64()),
    ("bf16, cut off", |x| f64::from(f32::from_bits((x as f32).to_bits() >> 16 << 16))),
    ("f16", |x| f16::from_f32(x as f32).to_f64()),
    ("TF32", |x| kept(x, 10, -126, f64::INFINITY)),
    ("f16 or TF32 (both keep 11 bits), cut off", |x| f64::from(f32::from_bits((x as f32).to_bits() >> 13 << 13))),
    ("fp8 (e4m3)", |x| kept(x, 3, -6, 448.0)),
    ("fp8 (e5m2)", |x| kept(x, 2, -14, 57344.0)),
];

/// The words for a format: rounded and cut off are not the same, f16 and TF32 are where their exponents do not tell them
/// apart.
pub(super) fn rounded(name: &str, told: impl Fn(&str) -> String) -> String {
    let own = told(name) + if name.ends_with("off") { "" } else { "#" };
    match name {
        "f16" | "TF32" => own + "|" + &told("f16 or TF32 (both keep 11 bits)"),
        _ => own,
    }
}

/// To so many bits after the first, the least exponent and the largest value given.
fn kept(x: f64, bits: i32, least: i32, largest: f64) -> f64 {
    if x == 0.0 {
        return 0.0;
    }
    let step = 2f64.powi((x.abs().log2().floor() as i32).max(least) - bits);
    ((x / step).round_ties_even() * step).clamp(-largest, largest)
}

/// What may happen to any stage.
pub(super) fn common(stage: &Stage) -> Vec<Plant> {
    let mut all = vec![
        Plant::new("zeros", "zeros are there instead", |_, _| 0.0),
        Plant::new("a constant", "the constant 0.37", |_, _| 0.37),
        Plant::new("half", "the right value times 0.5 is there instead", |s, at| 0.5 * s.own(at)),
        Plant::new(
            "1 % more",
            "the right value times 1.010 is there instead|the right value times 1.01 is there instead",
            |s, at| 1.01 * s.own(at),
        ),
        Plant::new("negated", "the sign is wrong", |s, at| -s.own(at)),
        Plant::new("1 added", "a constant is added: 1", |s, at| 1.0 + s.own(at)),
        Plant::new("cut off", "values are cut off at|the constant 0.31", |s, at| s.own(at).clamp(-0.31, 0.31)),
        Plant::new("a soft cap", "a soft cap is applied", |s, at| 3.0 * (s.own(at) / 3.0).tanh()),
        Plant::new("a factor of the row", "factor of its own", |s, at| {
            s.own(at) * (1.0 + 0.3 * drawn(at.position * 64 + if s.of_pairs() { at.head } else { 0 }, 1))
        }),
        Plant { stale: true, ..Plant::new("what the step before left", "step before", Stage::own) },
    ];
    for (i, (name, round)) in FORMATS.into_iter().enumerate() {
        let words = rounded(name, |name| format!("the output is rounded to {name}"));
        all.push(Plant::new(format!("output in {name}"), words, move |s, at| round(s.own(at))));
        if i < 3 {
            let size = 2f64.powi(if i == 2 { -11 } else { -8 });
            all.push(Plant::new(format!("noise of the size of {name}"), "", move |s, at| {
                s.own(at) * (1.0 + size * random(at, 3))
            }));
        }
    }
    if !stage.of_pairs() {
        all.extend(of_vectors(stage));
    }
    all
}

/// What may happen to a stage that has a vector for every token.
fn of_vectors(stage: &Stage) -> Vec<Plant> {
    let moved = |what: &str, words: &str, token: fn(i64, i64) -> i64, column: fn(i64, i64) -> i64| {
        Plant::new(what, words, move |s, at| {
            let (tokens, width) = (s.steps[at.step].1 as i64, s.width(at.step) as i64);
            let from = s.elsewhere(at, token(at.token as i64, tokens), column(at.column as i64, width));
            from.unwrap_or_else(|| s.own(at))
        })
    };
    let mut all = vec![
        moved(
            "the row before",
            "row of the previous token in the part is there instead|are those of the previous token",
            |t, _| t - 1,
            |c, _| c,
        ),
        moved(
            "three rows on",
            "row of the token 3 after in the part is there instead|are those of the token 3 after",
            |t, _| t + 3,
            |c, _| c,
        ),
        moved("rows reversed", "in reverse order|other end of the part", |t, n| n - 1 - t, |c, _| c),
        moved(
            "rows exchanged",
            "neighbouring tokens are exchanged|neighbour in a pair|the previous token|the next token",
            |t, _| t ^ 1,
            |c, _| c,
        ),
        moved("the column on", "the value of the next column&is there instead", |t, _| t, |c, n| (c + 1) % n),
        moved(
            "columns exchanged",
            "columns 16 apart are exchanged|the column 16 before is there instead|the column 16 after&is there instead|the two elements of a pair are exchanged",
            |t, _| t,
            |c, _| c ^ 16,
        ),
        moved("columns reversed", "columns of the row are in reverse order|in the bits of", |t, _| t, |c, n| n - 1 - c),
        moved("rows of each 8 reversed", "token at the other end of each 8", |t, _| t / 8 * 8 + 7 - t % 8, |c, _| c),
        moved("the first row of each 4", "first token of each 4|the previous token", |t, _| t / 4 * 4, |c, _| c),
        moved("one column", "the value of column 5 is there instead", |t, _| t, |_, _| 5),
        Plant::new("a factor of the column", "each wrong column is multiplied by a factor of its own", |s, at| {
            s.own(at) * (1.0 + 0.3 * drawn(at.column, 5))
        }),
        Plant::new("a number of the column", "each wrong column has a number of its own added", |s, at| {
            s.own(at) + 0.3 * drawn(at.column, 6)
        }),
    ];
    for tile in [8, 16] {
        let words = format!(
            "each tile of {tile} tokens by {tile} columns is transposed|transposed place in each tile of {tile}"
        );
        all.push(Plant::new(format!("tiles of {tile} transposed"), words, move |s, at| {
            let token = at.token / tile * tile + at.column % tile;
            let column = at.column / tile * tile + at.token % tile;
            s.elsewhere(at, token as i64, column as i64).unwrap_or_else(|| s.own(at))
        }));
    }
    for (id, values) in stage.alike.iter().take(2).cloned() {
        all.push(Plant::new(
            "another stage",
            format!("{id} are there instead|input {id} is there instead"),
            move |_, at| f64::from(values[at.step].data[at.index]),
        ));
    }
    let d = stage.head_dim();
    if crate::verdict::of_heads(&stage.node) && stage.width(0) > d {
        let head = |s: &Stage, at: &At, head: usize| {
            s.elsewhere(at, at.token as i64, (head * s.head_dim() + at.column % s.head_dim()) as i64)
        };
        all.push(Plant::new(
            "head 0 in all",
            "the values of head 0 are there instead|the values of the previous head|the value of the column",
            move |s, at| head(s, at, 0).unwrap(),
        ));
        let next = "the next head|the previous head|the value of the column|the values of head";
        let more = stage.width(0) > 2 * d;
        all.extend(more.then(|| {
            Plant::new("the head after", next, move |s, at| {
                head(s, at, (at.head + 1) % (s.width(at.step) / s.head_dim())).unwrap()
            })
        }));
    }
    all
}

/// Errors that nothing explains.
pub(super) fn nothing(seed: u64) -> Vec<Plant> {
    let mut all = Vec::new();
    for size in [1e-5, 1e-3, 1e-1, 1.0] {
        let noise = move |s: &Stage, at: &At| s.own(at) + size * s.size(at) * bell(at, seed);
        all.push(Plant::new(format!("noise of {size}"), "", noise));
        all.push(Plant::new(format!("noise of {size} in some rows"), "", move |s, at| {
            if drawn(at.position, seed) > 0.3 { noise(s, at) } else { s.own(at) }
        }));
        all.push(Plant::new(format!("noise of {size} in few elements"), "", move |s, at| {
            if random(at, seed + 1) > 0.998 { noise(s, at) } else { s.own(at) }
        }));
    }
    for size in [1e-3, 1e-1] {
        all.push(Plant::new(format!("noise of {size} of each value"), "", move |s, at| {
            s.own(at) * (1.0 + size * bell(at, seed))
        }));
        all.push(Plant::new(format!("noise of {size}, kept in bf16"), "", move |s, at| {
            bf16::from_f64(s.own(at) + size * s.size(at) * bell(at, seed)).to_f64()
        }));
    }
    all.push(Plant::new("a smooth function", "", |s, at| s.own(at) + 0.02 * (3.0 * s.own(at)).sin()));
    all.push(Plant::new("a bent function", "", |s, at| s.own(at) * (1.0 + 0.1 * s.own(at) / (1.0 + s.own(at).abs()))));
    all.push(Plant::new("values of another run", "", |s, at| f64::from(s.of_another_run[at.step].data[at.index])));
    all.push(Plant::new(
        "NaN in some rows",
        "",
        move |s, at| {
            if drawn(at.position, seed) > 0.3 { f64::NAN } else { s.own(at) }
        },
    ));
    all.push(Plant::new(
        "NaN here and there",
        "",
        move |s, at| {
            if random(at, seed) > 0.95 { f64::NAN } else { s.own(at) }
        },
    ));
    all.push(Plant::new("elements shuffled", "", move |s, at| {
        let width = s.width(at.step) as i64;
        let from = (random(at, seed + 2).abs() * width as f64) as i64;
        s.elsewhere(at, at.token as i64, from.min(width - 1)).unwrap()
    }));
    all
}
