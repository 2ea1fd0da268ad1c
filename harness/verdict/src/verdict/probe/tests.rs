//! Errors that are written for given random numbers pass where those numbers are used, and nowhere else.

use super::*;
use crate::arithmetic::Arithmetic;
use crate::capture::{Capture, Collector, Filter, Store, Want};
use crate::llama::gguf::GgmlWeights;
use crate::llama::{Load, Model};
use crate::oracle::Oracle;
use crate::verdict::evaluate::probed;
use crate::verdict::operands::Side;
use crate::verdict::tolerance::Policy;
use proptest::prelude::*;
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::Node;
use qdiff_synth::Synth;

const TOKENS: usize = 24;

fn captured(oracle: &Oracle<'_>) -> Capture {
    let (filter, store, all) = (Filter::default(), Store::usual(None), |_: &Node| true);
    let (want, tokens) = (Want::new(&oracle.graph, &filter, &all, &store), (1..=TOKENS as u32).collect::<Vec<_>>());
    let mut engine = CpuEngine::new(oracle.graph.clone(), &oracle.weights);
    let mut taps = Collector::new(&want, 0, &tokens);
    engine.step(&tokens, &mut taps);
    let mut capture = Capture::new(store.clone());
    capture.steps.push(taps.finish());
    capture
}

/// Adds to every row of a linear layer errors as large as its values that numbers of this seed do not see at all.
fn blind(oracle: &Oracle<'_>, node: &Node, capture: &mut Capture, seed: Seed) {
    let weights = AsMultiplied(&oracle.weights, ActivationFormat::F32);
    let (blocks, _) = blocks(&weights, &node.weights[0].name, seed.random(0));
    let step = &mut capture.steps[0];
    let mut given = step.stages[&node.id].get().into_owned();
    let width = given.data.len() / TOKENS;
    for row in given.data.chunks_exact_mut(width) {
        let size = (row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64).sqrt();
        for block in blocks.iter().filter(|block| block.outputs.len() >= 3) {
            let [a, b, c] = [0, 1, 2].map(|i: usize| block.numbers[i]);
            let cross = [b[0] * c[1] - b[1] * c[0], c[0] * a[1] - c[1] * a[0], a[0] * b[1] - a[1] * b[0]];
            for (output, error) in block.outputs.iter().zip(cross) {
                row[*output] += (size * error) as f32;
            }
        }
    }
    step.stages.insert(node.id, capture.store.keep(given));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Numbers that never changed let a third of the logits be anything at all.
    #[test]
    fn errors_written_for_known_numbers_are_found(seed: u64, which in 0usize..64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        Synth::default().write(&path).unwrap();
        let (gguf, model) = (Gguf::open(&path).unwrap(), Model::load(&path, Load::Vocabulary).unwrap());
        let oracle = Oracle::new(GgmlWeights::open(&gguf).unwrap(), &model).unwrap();
        let linear: Vec<&Node> = oracle.graph.nodes.iter().filter(|node| node.op.anatomy().is_layer()).collect();
        let node = linear[which % linear.len()];
        let arithmetic = Arithmetic::default();
        let passing = |capture: &Capture, seed: Option<Seed>| {
            let (side, filter) = (Side { capture, arithmetic: &arithmetic }, Filter::default());
            let mut policy = Policy::default();
            (policy.mode, policy.seed) = (CheckMode::Probe, seed);
            let passed = probed(node, &oracle, &[side], &filter, &policy).unwrap();
            (passed.rows().count(), passed.seed.unwrap())
        };
        let right = captured(&oracle);
        let (rows, of_right) = passing(&right, None);
        prop_assert_eq!((rows, of_right), (TOKENS - COMPUTED, passing(&right, None).1));
        // Those of a run before, and those of anybody's choice.
        for known in [of_right, Seed(seed)] {
            let mut wrong = captured(&oracle);
            blind(&oracle, node, &mut wrong, known);
            prop_assert_eq!(passing(&wrong, Some(known)).0, TOKENS - COMPUTED);
            prop_assert_eq!(passing(&wrong, None).0, 0);
        }
    }
}
