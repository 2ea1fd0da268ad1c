//! Bugs outside the catalogue, planted in a recorded capture: qdiff derives what was computed instead, with the
//! condition, and proved; and what follows no law gets no cause.

use qdiff_tests::npz::revalue;
use qdiff_tests::synth::Synth;
use qdiff_tests::{Folder, folder_with, unwrapped};
use serde_json::Value;
use std::collections::BTreeMap;

type Arrays = BTreeMap<String, Vec<f32>>;

/// Tokens of the prompt; decode steps follow.
const TOKENS: usize = 21;

/// Width of the residual stream, and of a head.
const WIDTH: usize = 256;
const HEAD: usize = 64;

/// Ids whose parity is not that of their position.
fn token(i: usize) -> usize {
    (i * 37 + i / 3 + 11) % 300
}

fn recorded() -> Folder {
    let folder = folder_with(&Synth::default());
    let tokens: Vec<String> = (0..TOKENS).map(|i| token(i).to_string()).collect();
    folder.record("right", &format!("--runner cpu --tokens {} -n 3", tokens.join(",")));
    folder
}

/// The steps of the recording, with the number of tokens before each and in it.
fn steps() -> impl Iterator<Item = (String, usize, usize)> {
    let decoded = (1..=3).map(|n| (format!("step{n}"), TOKENS + n - 1, 1));
    std::iter::once(("prefill".to_owned(), 0, TOKENS)).chain(decoded)
}

/// What is found in the recording after `change`: the first finding, and the headline.
fn finding(folder: &Folder, change: impl FnOnce(&mut Arrays)) -> (Value, String) {
    revalue(&folder.copied("right", "wrong"), change);
    let (code, report, text) = folder.judged("--subject capture:wrong");
    assert_eq!(code, 1, "{text}");
    let first = report["verdict"]["findings"][0].clone();
    (first, unwrapped(text.split("\n\n").next().unwrap()))
}

/// A bug: its name, the stage, what it does, and words that the report must have.
type Bug = (&'static str, &'static str, fn(&mut Arrays), &'static [&'static str]);

fn of(arrays: &Arrays, step: &str, stage: &str) -> Vec<f32> {
    arrays[&format!("{step}/{stage}")].clone()
}

/// Changes the stage in every step: `f(arrays, step, tokens before it, values)`.
fn each(arrays: &mut Arrays, stage: &str, f: impl Fn(&Arrays, &str, usize, &mut [f32])) {
    for (step, before, _) in steps() {
        let mut values = of(arrays, &step, stage);
        f(arrays, &step, before, &mut values);
        arrays.insert(format!("{step}/{stage}"), values);
    }
}

const BUGS: &[Bug] = &[
    (
        "an output kept in bf16",
        "L01.ffn_down",
        |all| {
            each(all, "L01.ffn_down", |_, _, _, y| y.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32()));
        },
        &["the output is rounded to bf16"],
    ),
    (
        "lanes exchanged",
        "L00.ffn_down",
        |all| {
            each(all, "L00.ffn_down", |_, _, _, y| {
                y.chunks_mut(WIDTH).for_each(|row| (0..WIDTH).filter(|c| c & 32 == 0).for_each(|c| row.swap(c, c + 32)))
            });
        },
        &["columns 32 apart are exchanged"],
    ),
    (
        "the residual twice",
        "L01.attn_residual",
        |all| {
            each(all, "L01.attn_residual", |all, step, _, y| {
                let out = of(all, step, "L01.attn_out");
                y.iter_mut().zip(out).for_each(|(y, x)| *y += x);
            });
        },
        &["L01.attn_out is added twice"],
    ),
    (
        "the last rows never written",
        "L01.ffn_gate",
        |all| {
            let other = of(all, "prefill", "L00.ffn_gate");
            each(all, "L01.ffn_gate", move |_, step, _, y| {
                let from = y.len() / TOKENS * (TOKENS - 4);
                if step == "prefill" {
                    y[from..].copy_from_slice(&other[from..]);
                }
            });
        },
        &["the values of L00.ffn_gate are there instead", "from row 17 of the part on"],
    ),
    (
        "the last key forgotten where one is left over",
        "L00.attn_context",
        |all| {
            each(all, "L00.attn_context", |all, step, before, y| {
                let (weights, v) = (of(all, step, "L00.attn_weights"), of(all, step, "L00.v_cache"));
                let keys = v.len() / (2 * HEAD);
                for (t, row) in y.chunks_mut(WIDTH).enumerate().filter(|(t, _)| (before + t + 1) % 4 == 1) {
                    let (p, tokens) = (before + t, weights.len() / (4 * keys));
                    for (j, y) in row.iter_mut().enumerate() {
                        let w = weights[(j / HEAD * tokens + t) * keys + p];
                        *y -= w * v[(p * 2 + j / HEAD / 2) * HEAD + j % HEAD];
                    }
                }
            });
        },
        &["the last key is missing from every sum", "mod 4"],
    ),
    (
        "a sliding window",
        "L01.attn_weights",
        |all| {
            each(all, "L01.attn_weights", |_, step, before, y| {
                let tokens = if step == "prefill" { TOKENS } else { 1 };
                let keys = before + tokens;
                for (r, row) in y.chunks_mut(keys).enumerate() {
                    let p = before + r % tokens;
                    row[..(p + 1).saturating_sub(8)].fill(0.0);
                    let sum: f32 = row.iter().sum();
                    row.iter_mut().for_each(|w| *w /= sum);
                }
            });
        },
        &["the softmax is over keys less than 8 before the query"],
    ),
    (
        "a norm that misses its tail",
        "L00.ffn_norm",
        |all| {
            each(all, "L00.ffn_norm", |all, step, _, y| {
                let x = of(all, step, "L00.attn_residual");
                for (y, x) in y.chunks_mut(WIDTH).zip(x.chunks(WIDTH)) {
                    let sum = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
                    let by = ((sum(x) / 256.0 + 1e-6) / (sum(&x[..WIDTH - 8]) / 256.0 + 1e-6)).sqrt();
                    y.iter_mut().for_each(|y| *y = (f64::from(*y) * by) as f32);
                }
            });
        },
        &["the last 8 elements are missing from the mean of squares"],
    ),
    (
        "no bias for odd ids",
        "L01.v_biased",
        |all| {
            each(all, "L01.v_biased", |all, step, _, y| {
                let x = of(all, step, "L01.v_proj");
                let rows = y.chunks_mut(2 * HEAD).zip(x.chunks(2 * HEAD)).enumerate();
                for (_, (y, x)) in rows.filter(|(t, _)| step == "prefill" && token(*t) % 2 == 1) {
                    y.copy_from_slice(x);
                }
            });
        },
        &["L01.v_proj", "the token id is odd"],
    ),
];

#[test]
fn what_was_computed_instead_is_solved_for() {
    let folder = recorded();
    for (what, stage, bug, words) in BUGS {
        let (first, told) = finding(&folder, bug);
        assert_eq!(first["stage"], *stage, "{what}: {told}");
        assert_eq!(first["solution"]["confidence"], "proved", "{what}: {told}\n{first}");
        for word in words.iter() {
            assert!(told.contains(word), "{what}: `{word}` is not in: {told}");
        }
    }
}

/// Noise of any size follows no law; NaN is no evidence of a value.
#[test]
fn what_follows_no_law_is_no_cause() {
    let folder = recorded();
    let noise = |size: f32| {
        move |all: &mut Arrays| {
            each(all, "L01.ffn_down", |_, _, _, y| {
                for (i, v) in y.iter_mut().enumerate() {
                    let random = ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0;
                    *v *= 1.0 + size * random;
                }
            });
        }
    };
    for size in [1e-4, 1e-3, 1e-1] {
        let (first, told) = finding(&folder, noise(size));
        assert_eq!(first["solution"], Value::Null, "{size}: {told}");
    }
    let (first, told) = finding(&folder, |all| {
        each(all, "L00.ffn_up", |_, step, _, y| {
            if step == "prefill" {
                y[5 * 512..7 * 512].fill(f32::NAN);
            }
        });
    });
    assert_eq!(first["solution"], Value::Null, "{told}");
}
