//! What engines get wrong most often, told in the words of whoever debugs them.

use super::bench::{At, Bench, Stage};
use super::plants::Plant;
use super::{CONDITIONS, planted, says};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;

/// The prompt, and the tokens of a part of it at most.
const TOKENS: (usize, usize) = (35, 23);

/// First position of the part that a position is in.
fn part(s: &Stage, position: usize) -> usize {
    s.steps.iter().filter(|(first, _)| *first <= position).map(|(first, _)| *first).max().unwrap()
}

/// The softmax over keys chosen by `(key, position, first position of its part)`.
fn over(taken: fn(usize, usize, usize) -> bool) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let (x, tokens, keys) = (&s.inputs[0][at.step], s.steps[at.step].1, s.width(at.step));
        let row = &x.data[(at.head * tokens + at.token) * keys..][..keys];
        let all: Vec<f64> = row.iter().map(|v| f64::from(*v) / (s.head_dim() as f64).sqrt()).collect();
        let seen = |k: usize| taken(k, at.position, part(s, at.position));
        let sum: f64 = (0..keys).filter(|&k| seen(k)).map(|k| (all[k] - all[at.column]).exp()).sum();
        if seen(at.column) { 1.0 / sum } else { 0.0 }
    }
}

/// The weighted sum of the values of keys chosen so.
fn sum(taken: fn(usize, usize, usize) -> bool) -> impl Fn(&Stage, &At) -> f64 {
    move |s, at| {
        let (weights, values) = (&s.inputs[0][at.step], &s.inputs[1][at.step]);
        let (tokens, keys, d) = (s.steps[at.step].1, values.shape[0], s.head_dim());
        let group = s.graph.config.n_heads / s.graph.config.n_kv_heads;
        let row = &weights.data[(at.head * tokens + at.token) * keys..][..keys];
        let value = |k: usize| f64::from(values.row(k)[at.head / group * d + at.column % d]);
        let seen = (0..keys).filter(|&k| taken(k, at.position, part(s, at.position)));
        seen.map(|k| f64::from(row[k]) * value(k)).sum()
    }
}

/// The value at this number of the buffer of a part, counted in rows of the right width.
fn flat(s: &Stage, at: &At, number: usize) -> f64 {
    f64::from(s.given[at.step].data.get(number).copied().unwrap_or(0.0))
}

fn plants(stage: &str) -> Vec<Plant> {
    match stage {
        "attn_weights" => vec![
            Plant::new("blind to the cache", "own part alone", over(|k, p, first| k <= p && k >= first)),
            Plant::new(
                "mask by row",
                "row in its part, which is taken for its position",
                over(|k, p, first| k + first <= p),
            ),
            Plant::new("prompt alone", "of the prompt alone", over(|k, p, _| k <= p && k < 35)),
            Plant::new(
                "cache alone",
                "in the cache before the part",
                over(|k, p, first| k < first || first == 0 && k <= p),
            ),
        ],
        "attn_context" => vec![
            Plant::new(
                "prompt's values",
                "keys 35..37, the tail, are missing from every sum",
                sum(|k, p, _| k <= p && k < 35),
            ),
            Plant::new("heads outside, read", "heads by tokens", |s, at| {
                let (tokens, d) = (s.steps[at.step].1, s.head_dim());
                let i = at.token * s.width(at.step) + at.column;
                let (head, token, column) = (i / (tokens * d), i % (tokens * d) / d, i % d);
                flat(s, at, token * s.width(at.step) + head * d + column)
            }),
        ],
        "q_rope" | "attn_out" => vec![
            Plant::new("padded by 16", "stride of", |s, at| {
                flat(s, at, at.token * (s.width(at.step) + 16) + at.column)
            }),
            Plant::new("written padded by 8", "stride of", |s, at| {
                let (i, wide) = (at.token * s.width(at.step) + at.column, s.width(at.step) + 8);
                if i % wide < s.width(at.step) { flat(s, at, i / wide * s.width(at.step) + i % wide) } else { 0.0 }
            }),
            Plant::new("read padded to 256", "stride of", |s, at| flat(s, at, at.token * 256 + at.column)),
        ],
        _ => Vec::new(),
    }
}

#[test]
fn classics_are_told() {
    let model = Synth {
        n_embd: 192,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 32,
        n_ff: 256,
        weight_type: GgmlType::Q8_0,
        ..Synth::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    let mut bench = Bench::new(&model, &file, TOKENS);
    let mut wrong = Vec::new();
    for node in bench.oracle.graph.nodes.clone().iter().filter(|n| n.id.layer == Some(1)) {
        let stage = bench.stage(node);
        for plant in plants(node.id.name) {
            let judged = bench.judged(&stage, planted(&stage, &plant, &CONDITIONS[0]));
            let said = judged.solution.as_ref().map_or_else(String::new, super::Solution::told);
            if !says(&said, &plant.words) {
                wrong.push(format!("{}: {}: {said}", node.id, plant.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
