//! The report on several origins together: on numbers of the model, of declared roundings, and with how much work.

mod confirm;

use super::{Diagnosis, explain};
use crate::arithmetic::Arithmetic;
use crate::capture::{Capture, Collector, Filter, Passes, Store, Want, steps};
use crate::llama::gguf::GgmlWeights;
use crate::llama::{Load, Model};
use crate::oracle::Oracle;
use crate::progress::silent;
use crate::verdict::{Policy, Side, judge};
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::dtype::DType;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::Node;
use qdiff_engine::model::fault::Output;
use qdiff_engine::ops::{Context, Op, RmsNorm, Tensor, forward_with_bound};
use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;

/// What is wrong of a stage.
type Bug<'b> = &'b dyn Fn(&Node) -> Option<Node>;

fn with_oracle(test: impl FnOnce(&Oracle<'_>)) {
    with_layers(3, test);
}

fn with_layers(n_layers: usize, test: impl FnOnce(&Oracle<'_>)) {
    let model = Synth { n_layers, weight_type: GgmlType::F32, n_vocab: 600, ..Synth::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let vocabulary = Model::load(&path, Load::Vocabulary).unwrap();
    test(&Oracle::new(GgmlWeights::open(&gguf).unwrap(), &vocabulary).unwrap());
}

/// All stages of an engine with this bug.
fn captured(oracle: &Oracle<'_>, bug: Bug<'_>) -> Capture {
    captured_in(oracle, Passes::Lengths(&[21, 1, 1, 1]), bug)
}

/// The same in these passes, which have 24 tokens.
fn captured_in(oracle: &Oracle<'_>, passes: Passes<'_>, bug: Bug<'_>) -> Capture {
    let tokens: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % 500).collect();
    captured_of(oracle, bug, (&tokens, tokens.len(), passes))
}

/// The same of these tokens, of which so many are the prompt, in these passes.
fn captured_of(oracle: &Oracle<'_>, bug: Bug<'_>, (tokens, prompt, passes): (&[u32], usize, Passes<'_>)) -> Capture {
    let (filter, store) = (Filter::default(), Store::usual(None));
    let mut graph = oracle.graph.clone();
    for node in &mut graph.nodes {
        if let Some(wrong) = bug(node) {
            *node = wrong;
        }
    }
    let want = Want::new(&oracle.graph, &filter, &|_| true, &store);
    let mut engine = CpuEngine::new(graph, &oracle.weights);
    let mut capture = Capture::new(store.clone());
    for step in steps(&tokens[..prompt], passes, &tokens[prompt..]) {
        let mut taps = Collector::new(&want, engine.position(), &step.tokens);
        engine.step(&step.tokens, &mut taps);
        let mut done = taps.finish();
        done.index = step.index;
        capture.steps.push(done);
    }
    capture
}

fn explained(oracle: &Oracle<'_>, capture: &Capture, arithmetic: &Arithmetic, budget: f64) -> Diagnosis {
    let (filter, policy) = (Filter::default(), Policy::default());
    let subject = Side { capture, arithmetic };
    let verdict = judge(oracle, subject, None, &filter, &policy, &silent).unwrap();
    explain(oracle, &subject, verdict, (&filter, &policy), budget, &silent)
}

fn told(found: &Diagnosis) -> Vec<String> {
    let story = |f: &super::Finding| f.told().unwrap_or_else(|| f.shape.clone());
    found.findings.iter().map(|f| format!("{}: {}", f.id, story(f))).collect()
}

/// A norm with another epsilon in each layer that `of` gives one.
fn epsilon(node: &Node, of: impl Fn(u16) -> Option<f64>) -> Option<Node> {
    let Op::RmsNorm(norm) = &node.op else { return None };
    Some(node.with(Op::RmsNorm(RmsNorm { eps: of(node.id.layer?)?, ..norm.clone() })))
}

fn without_bias(node: &Node) -> Option<Node> {
    (node.op == Op::Bias).then(|| node.left_out())
}

/// In the first layer the bias is left out, in the others nothing is known to give what it gives.
#[test]
fn a_cause_of_one_layer_in_four_is_taken_back() {
    let garbled = |out: Output<'_>| {
        for v in &mut out.value.data {
            *v += (v.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as f64 / 512.0 - 4.0;
        }
    };
    let bug = |node: &Node| match node.id.layer {
        _ if node.op != Op::Bias => None,
        Some(0) => Some(node.left_out()),
        _ => Some(node.writing(garbled)),
    };
    for (layers, taken_back) in [(3, false), (4, true)] {
        with_layers(layers, |oracle| {
            let found = explained(oracle, &captured(oracle, &bug), &Arithmetic::default(), 1.0);
            let of_first: Vec<_> = found.findings.iter().filter(|f| f.id.layer == Some(0)).collect();
            assert!(of_first.len() >= 3, "{:#?}", told(&found));
            for f in of_first {
                let why = match &f.trial {
                    Some(super::Trial::Withdrawn { because, .. }) => because.as_str(),
                    _ => "",
                };
                assert_eq!(why.contains("in 3 other layers"), taken_back, "{layers}: {f:?}");
                assert_eq!(f.says_why(), !taken_back, "{layers}: {f:?}");
            }
        });
    }
}

/// Rows of the biased stages, each changed by `change`, which takes the layer and the position.
fn with_rows(
    node: &Node, rows: &'static [u32], change: impl Fn(u16, u32, &mut [f64]) + Send + Sync + 'static,
) -> Option<Node> {
    let layer = node.id.layer.filter(|_| node.op == Op::Bias)?;
    Some(node.writing(move |out| {
        let width = out.value.row_len();
        for (row, &position) in out.value.data.chunks_mut(width).zip(out.positions) {
            if rows.contains(&position) {
                change(layer, position, row);
            }
        }
    }))
}

/// Three stages got the cause "what the step before left", where fifteen were wrong in the same row.
#[test]
fn a_cause_of_one_stage_in_four_with_the_same_wrong_rows_is_taken_back() {
    let change = |layer: u16, _: u32, row: &mut [f64]| {
        for v in row {
            let noise = (v.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as f64 / 512.0 - 4.0;
            *v = if layer == 0 { *v * 0.5 } else { *v + noise };
        }
    };
    with_oracle(|oracle| {
        for (names, taken_back) in [(&["k_biased"][..], false), (&["q_biased", "k_biased", "v_biased"], true)] {
            let bug = |n: &Node| {
                let wrong = if n.id.layer == Some(0) { n.id.name == "q_biased" } else { names.contains(&n.id.name) };
                with_rows(n, &[5, 11], change).filter(|_| wrong)
            };
            let found = explained(oracle, &captured(oracle, &bug), &Arithmetic::default(), 1.0);
            let first = &found.findings[0];
            assert_eq!(found.findings.len(), if taken_back { 7 } else { 3 }, "{:#?}", told(&found));
            let why = "6 other stages are wrong at the same positions, and no cause of theirs is known";
            let is_why = matches!(&first.trial, Some(super::Trial::Withdrawn { because, .. }) if because == why);
            assert_eq!(is_why, taken_back, "{first:?}");
            let shape = first.shape.starts_with("wrong at the same positions in 7 stages; ");
            assert_eq!(shape, taken_back, "{first:?}");
        }
    });
}

/// "The right value times 0.5 at token id 66" and six more causes were reported for one fault: each row had a factor of its own.
#[test]
fn constant_factors_that_differ_from_stage_to_stage_are_of_rows() {
    with_oracle(|oracle| {
        let of_rows = |of: fn(u16, u32) -> f64, told_all: &str| {
            let bug = |node: &Node| {
                with_rows(node, &[5, 11], move |layer, position, row| {
                    row.iter_mut().for_each(|v| *v *= of(layer, position));
                })
            };
            let found = explained(oracle, &captured(oracle, &bug), &Arithmetic::default(), 1.0);
            let told = told(&found);
            assert!(told.len() == 9 && told.iter().all(|line| line.contains(told_all)), "{told:#?}");
            assert!(told.iter().all(|line| !line.contains("token id") && !line.contains("row of")), "{told:#?}");
        };
        of_rows(|_, _| 0.5, "times 0.5 is there instead, in 2 of the 24 rows that it would change, positions 5, 11");
        of_rows(|layer, _| if layer == 0 { 0.5 } else { 2.0 }, "each wrong row is multiplied by a factor of its own");
        of_rows(
            |layer, position| if layer == 0 || position == 5 { 0.5 } else { 4.0 },
            "each wrong row is multiplied by a factor of its own",
        );
    });
}

/// The embedding "of the id modulo 262144" was proved of a vocabulary that ends before, and the weight of a norm was
/// reported as another one's, its own: all that was wrong is that nothing was rounded.
#[test]
fn what_is_declared_to_be_rounded_and_is_not_is_told_as_that() {
    with_oracle(|oracle| {
        let arithmetic = Arithmetic { parameters: DType::F16, ..Arithmetic::default() };
        let found = explained(oracle, &captured(oracle, &|_| None), &arithmetic, 1.0);
        let told = told(&found);
        assert!(told.len() > 10, "{told:#?}");
        for line in &told {
            assert!(line.contains("parameters are not rounded as declared: f16 is declared"), "{told:#?}");
        }
    });
}

/// Eleven epsilons were named in one model, each fitted to what else was wrong of its layer.
#[test]
fn a_number_of_the_model_that_differs_from_layer_to_layer_is_no_cause() {
    with_oracle(|oracle| {
        let declared = Arithmetic::default();
        let own = |layer: u16| Some(1e-3 * f64::from(layer + 1));
        let found = explained(oracle, &captured(oracle, &|n| epsilon(n, own)), &declared, 1.0);
        assert!(found.findings.len() >= 6, "{:#?}", told(&found));
        for f in &found.findings {
            assert!(f.cause.is_none() && f.solution.is_none() && !f.shape.is_empty(), "{f:?}");
        }
        let found = explained(oracle, &captured(oracle, &|n| epsilon(n, |_| Some(1e-3))), &declared, 1.0);
        for f in &found.findings {
            let name = f.cause.as_ref().map(|c| c.name.to_string());
            assert_eq!(name.as_deref(), Some("rms-eps-wrong:eps=0.001"), "{f:?}");
        }
    });
}

/// The whole catalogue was tried on the first origin of every stage name, also where what explains the first of all explains
/// them.
#[test]
fn what_explains_an_origin_is_tried_first_on_the_others() {
    with_oracle(|oracle| {
        let declared = Arithmetic::default();
        let all = explained(oracle, &captured(oracle, &without_bias), &declared, 1.0);
        assert_eq!(all.findings.len(), 9, "{:#?}", told(&all));
        let first = all.findings[0].id;
        let one = captured(oracle, &|n| without_bias(n).filter(|_| n.id == first));
        let one = explained(oracle, &one, &declared, 1.0);
        assert_eq!(one.findings.len(), 1);
        assert_eq!(all.search.tried, one.search.tried + 8);
    });
}

/// The budget was in seconds: a cause was found on an idle machine and not on a busy one.
#[test]
fn what_is_found_depends_on_no_number_of_threads() {
    with_oracle(|oracle| {
        let noisy = |node: &Node| {
            let op = node.op.clone();
            let noise = move |x: &[&Tensor<f64>], c: &Context<'_>| {
                let (mut made, bound) = forward_with_bound(&op, x, c);
                let of = |i: usize| 1.0 + 0.01 * ((i * 7919 % 1013) as f64 / 1013.0 - 0.5);
                made.data.iter_mut().enumerate().for_each(|(i, v)| *v *= of(i));
                (made, bound)
            };
            (node.op == Op::SwiGlu || node.op == Op::Residual).then(|| node.computing(noise))
        };
        let capture = captured(oracle, &|n| noisy(n).or_else(|| without_bias(n)));
        let with = |threads: usize, budget: f64| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| explained(oracle, &capture, &Arithmetic::default(), budget));
            (told(&found), found.search.tried, found.search.unfinished)
        };
        for budget in [0.0, 1e-5, 1e-4, 1e-3] {
            assert_eq!(with(1, budget), with(5, budget), "{budget}");
        }
        let (all, some) = (with(2, 1.0), with(2, 0.0));
        assert_eq!((all.2, some.1, some.2), (0, 0, 18), "{all:#?}");
    });
}

/// A prompt, three decode steps, a second turn of ten tokens, and two decode steps.
const TURNS: Passes<'_> = Passes::Lengths(&[9, 1, 1, 1, 10, 1, 1]);

/// Whether these are the positions of the second turn.
fn second_turn(positions: &[u32]) -> bool {
    positions.len() > 1 && positions[0] > 0
}

/// The caches without the rows that were decoded, as the second turn reads them.
fn without_decoded(node: &Node) -> Option<Node> {
    let lose = |out: Output<'_>| {
        if second_turn(out.positions) {
            let width = out.value.row_len();
            out.value.data.drain(9 * width..12 * width);
            out.bound.drain(9 * width..12 * width);
            out.value.shape[0] -= 3;
        }
    };
    node.op.has_state().then(|| node.writing(lose))
}

/// Attention weights of the second turn whose queries see what one at the position that `sees` gives should see.
fn seeing(node: &Node, sees: fn(u32) -> u32) -> Option<Node> {
    let op = node.op.clone();
    matches!(op, Op::AttnWeights(_)).then(|| {
        node.computing(move |inputs, c| {
            let of = if second_turn(c.positions) { sees } else { |p| p };
            let positions: Vec<u32> = c.positions.iter().map(|&p| of(p)).collect();
            forward_with_bound(&op, inputs, &Context { positions: &positions, ..*c })
        })
    })
}

/// What is found, and what is seen without a reference.
fn second_turn_with(oracle: &Oracle<'_>, bug: Bug<'_>) -> (Vec<String>, Vec<String>) {
    let capture = captured_in(oracle, TURNS, bug);
    let found = explained(oracle, &capture, &Arithmetic::default(), 1.0);
    (told(&found), found.verdict.health.iter().map(ToString::to_string).collect())
}

/// Passes of any length are right where the engine is.
#[test]
fn a_second_turn_of_a_right_engine_matches() {
    with_oracle(|oracle| {
        let (found, seen) = second_turn_with(oracle, &|_| None);
        assert!(found.is_empty() && seen.is_empty(), "{found:#?} {seen:#?}");
    });
}

/// A report said of a cache that lost the decoded rows that the position does not advance. The attention over its rows
/// is right alone, since queries see the rows up to their own.
#[test]
fn rows_that_a_second_turn_lost_are_named() {
    with_oracle(|oracle| {
        let (found, seen) = second_turn_with(oracle, &|n| without_decoded(n).or_else(|| seeing(n, |p| p - 3)));
        let lost = "it holds 19 rows after 22 tokens: the rows of positions 9..11 are missing";
        for cache in ["L00.k_cache step4: ", "L02.v_cache step4: "] {
            assert!(seen.contains(&format!("{cache}{lost}")), "{seen:#?}");
        }
        assert!(!seen.iter().any(|line| line.contains("advance") || line.contains("after its token")), "{seen:#?}");
        assert!(found.iter().all(|line| line.contains("_cache")), "{found:#?}");
    });
}

/// Where the mask goes by positions, and the cache has fewer rows than that, queries see tokens after their own.
#[test]
fn keys_after_a_token_are_told_of_a_cache_that_lost_rows() {
    with_oracle(|oracle| {
        let (found, seen) = second_turn_with(oracle, &without_decoded);
        for layer in ["L00", "L01", "L02"] {
            let of = |line: &String| line.starts_with(&format!("{layer}.attn_weights step4: the query of p"));
            let ahead = " sees 3 keys after its token, and gives ";
            assert!(seen.iter().any(|line| of(line) && line.contains(ahead)), "{seen:#?}");
        }
        // The report said that the exponential is rounded otherwise.
        let cause = "L00.attn_weights: keys after the token are seen, up to 3 of them; its cache lacks rows";
        assert!(found.iter().any(|line| line.starts_with(cause)), "{found:#?}");
    });
}

/// A mask that is off by the rows before the pass lets its queries see the tokens after their own.
#[test]
fn a_mask_that_is_off_by_the_rows_before_shows_keys_after_the_token() {
    with_oracle(|oracle| {
        let (found, seen) = second_turn_with(oracle, &|n| seeing(n, |p| p + 12));
        // As many as the pass has after the token: its last position is 21.
        let ahead = |p: usize| format!("attn_weights step4: the query of p{p} sees {} keys after its token", 21 - p);
        assert_eq!(seen.len(), 3, "{seen:#?}");
        assert!(seen.iter().all(|line| (12..20).any(|p| line.contains(&ahead(p)))), "{seen:#?}");
        let cause = "attn_weights: the causal mask is left out: a query sees the tokens after it (mask-missing), in the \
                     steps after the prefill only";
        assert!(found.iter().all(|line| line.contains(cause)), "{found:#?}");
    });
}

/// A soft cap of 4e-9 was reported, below which no value passed, and rows twice as far apart as they are long.
#[test]
fn numbers_that_no_kernel_has_are_no_cause() {
    type Rows = fn(&mut Tensor<f64>);
    let cases: [(Rows, &str); 2] = [
        (|made| made.data.iter_mut().for_each(|v| *v = 4e-9 * (*v / 4e-9).tanh()), "soft cap"),
        (
            |made| {
                let (tokens, width) = (made.rows(), made.row_len());
                (1..tokens.div_ceil(2))
                    .for_each(|t| made.data.copy_within(2 * t * width..(2 * t + 1) * width, t * width));
            },
            "stride",
        ),
    ];
    with_oracle(|oracle| {
        for (wrong, word) in cases {
            let bug = |node: &Node| {
                let op = node.op.clone();
                let own = node.op == Op::Residual && node.id.layer == Some(1);
                own.then(|| {
                    node.computing(move |x, c| {
                        let (mut made, bound) = forward_with_bound(&op, x, c);
                        wrong(&mut made);
                        (made, bound)
                    })
                })
            };
            let found = explained(oracle, &captured(oracle, &bug), &Arithmetic::default(), 1.0);
            let told = told(&found);
            assert!(!told.is_empty() && told.iter().all(|told| !told.contains(word)), "{told:#?}");
        }
    });
}
