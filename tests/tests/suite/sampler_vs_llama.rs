//! The engine's samplers against llama.cpp's own, token for token.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use qdiff::llama::sampler::LlamaSampler;
use qdiff::sampling::Sampling;
use qdiff_engine::sampler::{Sampler, Step};

/// How many chains the property test compares, each over several draws.
const CASES: u32 = 24_000;

/// Logits with ties, steps and extremes, as real ones have among padding.
fn logits(n: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        6 => -12f32..12.0,
        3 => (-4i8..5).prop_map(|n| f32::from(n) * 0.5),
        1 => Just(0.0f32),
        1 => -300f32..300.0,
        1 => Just(f32::NEG_INFINITY),
    ];
    let narrow = (-20i8..20).prop_map(|n| f32::from(n) * 0.25);
    prop_oneof![
        prop::collection::vec(value, n),
        prop::collection::vec(narrow, n),
        (any::<f32>().prop_filter("a finite logit", |l| l.is_finite())).prop_map(move |l| vec![l; n]),
    ]
    .prop_filter("one logit is finite", |l| l.iter().any(|l| l.is_finite()))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..12, select(vec![1.0f32, 1.1, 1.5, 0.8]), select(vec![0f32, 0.3, -0.2]), select(vec![0f32, 0.5, -1.0]))
            .prop_map(|(last, repeat, frequency, presence)| Step::Penalties { last, repeat, frequency, presence }),
        (0usize..400).prop_map(Step::TopK),
        prop_oneof![0f32..1.1, Just(0.95f32)].prop_map(Step::TopP),
        prop_oneof![0f32..1.2, Just(0.05f32)].prop_map(Step::MinP),
        prop_oneof![0f32..2.5, Just(1.0f32), Just(0.0f32)].prop_map(Step::Temperature),
    ]
}

fn settings() -> impl Strategy<Value = Vec<Step>> {
    (
        (select(vec![0f32, 0.2, 0.8, 1.0, 1.7]), 0usize..60, 0.5f32..1.05, -0.01f32..0.3),
        (0u16..20, 0.9f32..1.3, -0.3f32..0.5, -0.3f32..0.5, any::<u32>()),
    )
        .prop_map(|((temp, top_k, top_p, min_p), (last, repeat, frequency, presence, seed))| {
            Sampling {
                temp,
                top_k,
                top_p,
                min_p,
                repeat_last_n: last,
                repeat_penalty: repeat,
                frequency_penalty: frequency,
                presence_penalty: presence,
                // This one means "any" to llama.cpp.
                seed: seed.min(u32::MAX - 1),
            }
            .chain()
        })
}

/// Samplers in any order, once or more often, and a draw.
fn any_chain() -> impl Strategy<Value = Vec<Step>> {
    let end = prop_oneof![Just(Step::Greedy), (0..u32::MAX).prop_map(Step::Draw)];
    (prop::collection::vec(step(), 0..6), end).prop_map(|(mut chain, end)| {
        chain.push(end);
        chain
    })
}

/// A chain, a vocabulary, the prompt, and the logits of a few draws.
fn case() -> impl Strategy<Value = (Vec<Step>, usize, Vec<u32>, Vec<Vec<f32>>)> {
    let size = prop_oneof![
        20 => 1usize..40,
        10 => 100usize..400,
        1 => 1000usize..3000,
    ];
    let chain = prop_oneof![settings(), any_chain()];
    (chain, size).prop_flat_map(|(chain, n)| {
        // A matrix with more rows than tokens: none beyond may be drawn.
        let rows = prop::collection::vec(logits(n + 1), 1..4);
        let prompt = prop::collection::vec(0..n as u32, 0..8);
        (Just(chain), Just(n), prompt, rows)
    })
}

#[test]
fn random_chains() {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&case(), |(chain, n, prompt, rows)| {
            let mut ours = Sampler::new(&chain, n);
            let mut theirs = LlamaSampler::new(&chain, n);
            for token in prompt {
                ours.accept(token);
                theirs.accept(token);
            }
            for (i, row) in rows.iter().enumerate() {
                let drawn = ours.sample(row).expect("a token can be drawn");
                prop_assert_eq!(drawn, theirs.sample(row), "draw {}", i);
                prop_assert!((drawn as usize) < n);
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

/// A vocabulary of real size, where top-k and top-p sort by buckets.
#[test]
fn real_size() {
    const N: usize = 151_936;
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    for seed in 0..40 {
        // In steps of 1/8, so that thousands of logits are equal.
        let row: Vec<f32> = (0..N).map(|_| (0..4).map(|_| next() % 48).sum::<u32>() as f32 / 8.0 - 14.0).collect();
        let chain = [
            Step::TopK([0, 40, 129, 5000][seed as usize % 4]),
            Step::TopP(0.95),
            Step::MinP(0.01),
            Step::Temperature(0.8),
            Step::Draw(seed),
        ];
        let mut ours = Sampler::new(&chain, N);
        let mut theirs = LlamaSampler::new(&chain, N);
        for _ in 0..3 {
            assert_eq!(ours.sample(&row).unwrap(), theirs.sample(&row), "seed {seed}");
        }
    }
}

/// Padding tokens have logits like any other.
#[test]
fn padding_can_be_drawn() {
    let row = [-1.0f32, -2.0, -3.0, 5.0, 100.0];
    let greedy = [Step::Greedy];
    assert_eq!(Sampler::new(&greedy, 4).sample(&row).unwrap(), 3);
    assert_eq!(LlamaSampler::new(&greedy, 4).sample(&row), 3);
    assert!(Sampler::new(&greedy, 6).sample(&row).is_err());
    assert!(Sampler::new(&greedy, 2).sample(&[0.0, f32::NAN]).is_err());
}
