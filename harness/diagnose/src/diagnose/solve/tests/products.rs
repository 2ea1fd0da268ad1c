//! What may be computed instead of a sum of products: other terms, other operands, operands of fewer bits.

use super::super::super::work::Meter;
use super::super::scene::Scene;
use super::super::terms::Sums;
use super::bench::{At, Bench, Stage};
use super::plants::{FORMATS, Plant, rounded};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::Node;
use qdiff_engine::ops::Op;
use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;

/// How often a term is taken: `(term, terms)`.
type Taken = fn(usize, usize) -> f64;

/// The terms of a sum, and what its own author calls one of them.
fn terms(s: &Stage, at: &At) -> Vec<f64> {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).collect();
    match &s.node.op {
        Op::Linear => product(&s.matrix[at.column], s.x(0, at, 0).unwrap()),
        Op::AttnScores(a) => {
            let (d, group) = (a.head_dim, at.head * a.n_kv_heads / a.n_heads);
            let key = s.inputs[1][at.step].row(at.column);
            product(&s.x(0, at, 0).unwrap()[at.head * d..][..d], &key[group * d..][..d])
        }
        Op::AttnContext(a) => context(s, at, at.head * a.n_kv_heads / a.n_heads, 0),
        _ => unreachable!("no sum of products"),
    }
}

/// Weights times values of a head of the cache, of the keys so many rows before.
fn context(s: &Stage, at: &At, group: usize, by: usize) -> Vec<f64> {
    let (weights, values) = (&s.inputs[0][at.step], &s.inputs[1][at.step]);
    let (keys, tokens, d) = (weights.shape[2], weights.shape[1], s.head_dim());
    let weight = |key: usize| f64::from(weights.data[(at.head * tokens + at.token) * keys + key]);
    let value = |key: usize| f64::from(values.row(key.saturating_sub(by))[group * d + at.column % d]);
    (0..=at.position).map(|key| weight(key) * value(key)).collect()
}

fn sum(terms: &[f64], taken: impl Fn(usize, usize) -> f64) -> f64 {
    terms.iter().enumerate().map(|(i, t)| taken(i, terms.len()) * t).sum()
}

/// Terms left out, taken twice or scaled, of a sum of so many.
pub(super) fn groups(stage: &Stage) -> Vec<Plant> {
    let plant =
        |name: &str, words: String, taken: Taken| Plant::new(name, words, move |s, at| sum(&terms(s, at), taken));
    if matches!(stage.node.op, Op::AttnContext(_)) {
        let grouped = |s: &Stage| s.graph.config.n_heads > s.graph.config.n_kv_heads && s.graph.config.n_kv_heads > 1;
        let mut all = vec![
            plant("the last key left out", "the last key is missing".into(), |i, n| f64::from(i + 1 != n)),
            plant("the last 3 keys left out", "the last 3 keys are missing".into(), |i, n| f64::from(i + 3 < n)),
            plant("the first key left out", "key 0 is missing".into(), |i, _| f64::from(i != 0)),
            plant("lanes of keys left out", "≡ 3 mod 8, are missing|≡ 3 mod 8 are missing".into(), |i, _| {
                f64::from(i % 8 != 3)
            }),
            plant("a tile of keys left out", "keys 8..15 are missing".into(), |i, _| f64::from(i / 8 != 1)),
            plant("the last key twice", "the last key is taken twice".into(), |i, n| 1.0 + f64::from(i + 1 == n)),
            plant(
                "half of the first tile",
                "keys 0..7 are taken times 0.5".into(),
                |i, _| if i < 8 { 0.5 } else { 1.0 },
            ),
            Plant::new("values of the key before", "of the previous row are read", |s, at| {
                context(s, at, at.head * s.graph.config.n_kv_heads / s.graph.config.n_heads, 1).iter().sum()
            }),
        ];
        all.extend(narrow("keys"));
        all.extend([
            plant("a split dropped", "the keys of the last of 4 splits are missing".into(), |i, n| {
                f64::from(i / n.div_ceil(4) != (n - 1) / n.div_ceil(4))
            }),
            plant("the tail of 16 left out", "tile of 16 are missing|tile of 16 of all keys of the part are missing|keys 32..&the tail, are missing|keys from 32 on are missing".into(), |i, n| {
                f64::from(i < n / 16 * 16)
            }),
            plant(
                "the last 8 keys a tile of their own",
                "the keys that the last 8 share with whole tiles of 8 are taken twice".into(),
                |i, n| 1.0 + f64::from(n > 8 && i + 8 >= n && i < n / 8 * 8),
            ),
            plant("a key of two tiles", "in every tile of 16 except the first, the first key is taken twice|keys 16, 32 are taken twice|key 16 is taken twice".into(), |i, _| {
                1.0 + f64::from(i > 0 && i % 16 == 0)
            }),
            Plant::new("weights of row t mod 8", "the weights of the part's token t mod 8 for token t is taken|token t mod 8|before in the part is there instead", |s, at| {
                s.moved_query(at, at.token % 8, |at| terms(s, at).iter().sum())
            }),
        ]);
        if grouped(stage) {
            all.push(Plant::new("heads dealt out in turn", "head", |s, at| {
                context(s, at, at.head % s.graph.config.n_kv_heads, 0).iter().sum()
            }));
        }
        return all;
    }
    let at = stage.at(0, 0);
    let n = terms(stage, &at).len();
    let (one, many) =
        if matches!(stage.node.op, Op::Linear) { ("input", "inputs") } else { ("head element", "head elements") };
    let mut more = narrow(many);
    if let Op::AttnScores(_) = stage.node.op {
        more.push(Plant::new("queries of row t mod 8", "the query of the part's token t mod 8", |s, at| {
            s.moved_query(at, at.token % 8, |at| terms(s, at).iter().sum())
        }));
        more.push(Plant::new(
            "a tile of keys transposed",
            "each tile of 16 keys by 16 elements of the cache is transposed",
            |s, at| {
                let (d, group) = (s.head_dim(), at.head * s.graph.config.n_kv_heads / s.graph.config.n_heads);
                let (q, keys) = (s.x(0, at, 0).unwrap(), &s.inputs[1][at.step]);
                let of = |k: usize| {
                    let (key, k) = match at.column / 16 * 16 + k % 16 {
                        key if key < keys.shape[0] => (key, k / 16 * 16 + at.column % 16),
                        _ => (at.column, k),
                    };
                    f64::from(keys.row(key)[group * d + k])
                };
                (0..d).map(|k| f64::from(q[at.head * d + k]) * of(k)).sum()
            },
        ));
    }
    let tail = |k: usize| format!("{many} {}..{}, the tail,|the last {k} {many}", n - k, n - 1);
    more.extend([
        plant("the tail of 16 left out", tail(16).replace('|', " are missing|") + " are missing", |i, n| {
            f64::from(i + 16 < n)
        }),
        plant("the tail of 8 twice", tail(8).replace('|', " are taken twice|") + " are taken twice", |i, n| {
            1.0 + f64::from(i + 8 >= n)
        }),
        plant("a run left out", format!("{many} 8..15 are missing"), |i, _| f64::from(i / 8 != 1)),
        plant("a run halved", format!("{many} 0..15 are taken times 0.5"), |i, _| if i < 16 { 0.5 } else { 1.0 }),
        plant(
            "a run subtracted",
            format!("{many} 16..31 are subtracted|{many} 16..31, the tail, are subtracted"),
            |i, _| if i / 16 == 1 { -1.0 } else { 1.0 },
        ),
        plant("a lane left out", "≡ 5 mod 8, are missing".into(), |i, _| f64::from(i % 8 != 5)),
        plant("a quarter of a warp left out", "≡ 0..7 mod 32 are missing|0..7 are missing".into(), |i, _| {
            f64::from(i % 32 >= 8)
        }),
        plant("one term left out", format!("{one} 17 is missing"), |i, _| f64::from(i != 17)),
        plant(
            "the last term left out",
            format!("the last {one} is missing|{one} {}, the tail,&missing", n - 1),
            |i, n| f64::from(i + 1 != n),
        ),
    ]);
    more
}

/// Sums kept in few bits.
fn narrow(many: &'static str) -> Vec<Plant> {
    type Kept = fn(&[f64]) -> f64;
    let plant = |name: &str, words: String, kept: Kept| Plant::new(name, words, move |s, at| kept(&terms(s, at)));
    vec![
        plant("sums in bf16", format!("accumulated in bf16 rounded after every 8 {many}|accumulated in bf16"), |t| {
            t.chunks(8).fold(0.0, |sum, t| FORMATS[0].1(sum + t.iter().sum::<f64>()))
        }),
        plant("sums in f16", "accumulated in f16".to_owned(), |t| {
            t.chunks(2).fold(0.0, |sum, t| FORMATS[2].1(sum + t.iter().sum::<f64>()))
        }),
        plant("lanes in f16", "accumulated in f16, in 8 lanes|accumulated in f16".to_owned(), |t| {
            let mut lanes = [0f64; 8];
            t.iter().enumerate().for_each(|(i, t)| lanes[i % 8] = FORMATS[2].1(lanes[i % 8] + t));
            lanes.iter().sum()
        }),
        plant(
            "parts in bf16",
            format!("each sum of 16 {many} is rounded to bf16|in bf16|whose shares are rounded to bf16"),
            |t| t.chunks(16).map(|t| FORMATS[0].1(t.iter().sum())).sum(),
        ),
    ]
}

/// A way to keep a vector in fewer bits.
type Coarse = fn(&mut [f64]);

/// Products with operands of fewer bits, and on operands from elsewhere.
pub(super) fn operands(stage: &Stage) -> Vec<Plant> {
    if !matches!(stage.node.op, Op::Linear) {
        let of = |name: &'static str, round: fn(f64) -> f64| {
            let words = format!("rounded to&{name}&multiplied|each term of the sum is rounded to&{name}");
            Plant::new(format!("operands in {name}"), words, move |s, at| {
                let half = |v: &[f32]| -> Vec<f64> { v.iter().map(|v| round(f64::from(*v))).collect() };
                match &s.node.op {
                    Op::AttnScores(a) => {
                        let (d, group) = (a.head_dim, at.head * a.n_kv_heads / a.n_heads);
                        let (q, k) = (half(s.x(0, at, 0).unwrap()), half(s.inputs[1][at.step].row(at.column)));
                        (0..d).map(|i| q[at.head * d + i] * k[group * d + i]).sum()
                    }
                    _ => terms(s, at).iter().map(|t| round(*t)).sum(),
                }
            })
        };
        return vec![of("bf16", FORMATS[0].1), of("f16", FORMATS[2].1), of("TF32", FORMATS[3].1)];
    }
    let coarse: [(&str, Coarse); 7] = [
        ("bf16", |v| v.iter_mut().for_each(|v| *v = FORMATS[0].1(*v))),
        ("f16", |v| v.iter_mut().for_each(|v| *v = FORMATS[2].1(*v))),
        ("TF32", |v| v.iter_mut().for_each(|v| *v = FORMATS[3].1(*v))),
        ("fp8 (e4m3)", |v| v.iter_mut().for_each(|v| *v = FORMATS[5].1(*v))),
        ("int8, one scale a row", |v| int8(v)),
        ("int8, one scale for 32", |v| v.chunks_mut(32).for_each(int8)),
        ("int4, one scale for 32", |v| v.chunks_mut(32).for_each(|part| scaled(part, 7.0))),
    ];
    let mut all = Vec::new();
    for (name, change) in coarse {
        for (who, weights, inputs) in [
            ("the weights are", true, false),
            ("the activations are", false, true),
            ("weights and activations are", true, true),
        ] {
            let wide = |v: &[f32]| -> Vec<f64> { v.iter().map(|v| f64::from(*v)).collect() };
            let made = move |s: &Stage, at: &At| {
                let (mut w, mut x) = (wide(&s.matrix[at.column]), wide(s.x(0, at, 0).unwrap()));
                if weights {
                    change(&mut w);
                }
                if inputs {
                    change(&mut x);
                }
                w.iter().zip(&x).map(|(w, x)| w * x).sum()
            };
            // Weights that are numbers of the format already: then activations alone are rounded.
            let kept = stage.matrix.iter().all(|w| {
                let mut rounded = wide(w);
                change(&mut rounded);
                rounded.iter().zip(w).all(|(r, w)| (r - f64::from(*w)).abs() <= 1e-6 * f64::from(w.abs()))
            });
            let who_else = if weights && inputs && kept { "the activations are" } else { who };
            let words = |who: &str| rounded(name, |name| format!("{who} rounded to {name}")).replace('#', " before");
            let words = words(who) + "|" + &words(who_else);
            all.push(Plant::new(format!("{who} in {name}"), words, made));
        }
    }
    all.push(Plant::new(
        "inputs in pairs",
        "the multiplied values of&are those of the column 1 apart, in pairs",
        |s, at| {
            let x = s.x(0, at, 0).unwrap();
            s.matrix[at.column].iter().enumerate().map(|(i, w)| f64::from(*w) * f64::from(x[i ^ 1])).sum()
        },
    ));
    all.push(Plant::new("inputs of the row before", "the previous token", |s, at| {
        let Some(x) = s.x(0, at, -1) else { return s.own(at) };
        s.matrix[at.column].iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    }));
    all.push(Plant::new(
        "each tile of the weight transposed",
        "each tile of 16 outputs by 16 inputs of the weight is transposed",
        |s, at| {
            let x = s.x(0, at, 0).unwrap();
            let (r, c) = (at.column / 16 * 16, at.column % 16);
            let weight = |k: usize| match s.matrix.get(r + k % 16).filter(|_| k / 16 * 16 + c < x.len()) {
                Some(row) => row[k / 16 * 16 + c],
                None => s.matrix[at.column][k],
            };
            (0..x.len()).map(|k| f64::from(weight(k)) * f64::from(x[k])).sum()
        },
    ));
    if let Some((id, values)) = stage.another.clone() {
        let input = stage.graph.nodes[stage.node.inputs[0]].id;
        all.push(Plant::new(
            "another stage multiplied",
            format!("{id} is multiplied in the place of {input}"),
            move |s, at| {
                let x = values[at.step].row(at.token);
                s.matrix[at.column].iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
            },
        ));
    }
    all
}

fn int8(part: &mut [f64]) {
    scaled(part, 127.0);
}

fn scaled(part: &mut [f64], levels: f64) {
    let largest = part.iter().fold(0f64, |m, v| m.max(v.abs()));
    let inverse = if largest > 0.0 { levels / largest } else { 0.0 };
    part.iter_mut().for_each(|v| *v = if inverse > 0.0 { (*v * inverse).round_ties_even() / inverse } else { 0.0 });
}

/// Only some rows of a long prompt are looked at, and a later row has more keys: a law of groups of keys had no number
/// for its last group, and the search ended in a panic.
#[test]
fn every_row_has_groups_that_were_fitted() {
    let model = Synth { weight_type: GgmlType::F32, ..Synth::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    let mut bench = Bench::new(&model, &file, (131, 131));
    let of_context = |n: &&Node| matches!(n.op, Op::AttnContext(_)) && n.id.layer == Some(1);
    let node = bench.oracle.graph.nodes.iter().find(of_context).unwrap().clone();
    let stage = bench.stage(&node);
    let wrong = stage.given.iter().map(|t| t.map(|v| v * 1.5)).collect();
    bench.seen(&stage, wrong, |e| {
        let meter = Meter::new(u64::MAX);
        let scene = Scene::new(e, &meter).unwrap();
        let last = e.rows.iter().map(|row| row.place.position).max().unwrap();
        assert!(scene.rows.iter().all(|&r| e.rows[r].place.position < last), "the last row is looked at");
        let sums = Sums::new(&scene).unwrap();
        let (terms, kinds) = sums.kinds(2, 768);
        assert!(!kinds.is_empty());
        for kind in kinds {
            for row in &e.rows {
                let n = row.place.position + 1;
                assert!((0..n).all(|k| kind.of(k, n) < kind.count(terms)), "{n} keys");
            }
        }
    });
}
