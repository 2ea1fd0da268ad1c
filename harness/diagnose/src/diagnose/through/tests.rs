//! Engines that show only the output of layers, or nothing inside their attention, and the reports on the
//! bugs in them. None of these is in the catalogue, or they are written once more.

use super::super::{Diagnosis, explain};
use crate::arithmetic::Arithmetic;
use crate::capture::{Capture, Collector, Filter, Passes, Store, Want, steps};
use crate::llama::gguf::GgmlWeights;
use crate::llama::{Load, Model};
use crate::oracle::Oracle;
use crate::progress::silent;
use crate::verdict::{Policy, Side, judge};
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{Graph, Node, Role};
use qdiff_engine::ops::{Attention, Context, Op, Tensor};
use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;

/// The values that a softmax, or its replacement, gives for a row of scaled scores and the query's position.
type Weights = fn(&[f64], usize) -> Vec<f64>;

fn softmax(scores: &[f64]) -> Vec<f64> {
    let top = scores.iter().copied().fold(f64::MIN, f64::max);
    let powers: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

fn weighing(node: &Node, weights: Weights) -> Node {
    let Op::AttnWeights(own) = node.op.clone() else { unreachable!("a softmax") };
    node.computing(move |inputs, c| {
        let mut made = Tensor::zeros(inputs[0].shape.clone());
        let (tokens, keys) = (made.shape[1], made.shape[2]);
        for (row, (out, s)) in made.data.chunks_mut(keys).zip(inputs[0].data.chunks(keys)).enumerate() {
            let position = c.positions[row % tokens] as usize;
            let scaled: Vec<f64> = s[..=position].iter().map(|s| s * own.scale).collect();
            out[..=position].copy_from_slice(&weights(&scaled, position));
        }
        let bound = vec![0f32; made.data.len()];
        (made, bound)
    })
}

/// Attention as `right` computes it of the heads that `head` gives for those of the cache.
fn regrouped(node: &Node, head: fn(&Attention, usize) -> usize) -> Node {
    let (Op::AttnScores(a) | Op::AttnContext(a)) = node.op.clone() else { unreachable!("attention") };
    let of_scores = matches!(node.op, Op::AttnScores(_));
    node.computing(move |inputs, c| {
        let cache = inputs[1];
        let (keys, d) = (cache.shape[0], a.head_dim);
        let at = |key: usize, h: usize, i: usize| cache.data[(key * a.n_kv_heads + head(&a, h)) * d + i];
        let tokens = c.positions.len();
        let shape = if of_scores { vec![a.n_heads, tokens, keys] } else { vec![tokens, a.n_heads * d] };
        let mut made = Tensor::zeros(shape);
        for h in 0..a.n_heads {
            for t in 0..tokens {
                for k in 0..keys {
                    let place = (h * tokens + t) * keys + k;
                    for i in 0..d {
                        if of_scores {
                            made.data[place] += inputs[0].data[(t * a.n_heads + h) * d + i] * at(k, h, i);
                        } else {
                            made.data[t * a.n_heads * d + h * d + i] += inputs[0].data[place] * at(k, h, i);
                        }
                    }
                }
            }
        }
        let bound = vec![0f32; made.data.len()];
        (made, bound)
    })
}

/// A change to every node of a layer that it is about.
type Bug = fn(&Graph, &Node) -> Option<Node>;

fn softmaxes(node: &Node, weights: Weights) -> Option<Node> {
    matches!(node.op, Op::AttnWeights(_)).then(|| weighing(node, weights))
}

/// Bugs, and the report that each must get; none for those outside all searched laws.
const BUGS: &[(&str, Bug, Option<&str>)] = &[
    (
        "a window of 5 keys",
        |_, n| {
            softmaxes(n, |s, p| {
                [vec![0.0; (p + 1).saturating_sub(5)], softmax(&s[(p + 1).saturating_sub(5)..])].concat()
            })
        },
        Some(
            "a fault in L01.attn_weights gives these values: the softmax is over keys less than 5 before the query: a sliding window",
        ),
    ),
    (
        "a soft cap",
        |_, n| softmaxes(n, |s, _| softmax(&s.iter().map(|s| 3.0 * (s / 3.0).tanh()).collect::<Vec<_>>())),
        Some(
            "a fault in L01.attn_weights gives these values: a soft cap is applied to the scaled scores: c·tanh(x/c) with c = 3",
        ),
    ),
    (
        "another scale",
        |_, n| softmaxes(n, |s, _| softmax(&s.iter().map(|s| s * 1.6).collect::<Vec<_>>())),
        Some(
            "a fault in L01.attn_weights gives these values: the scores are scaled by another factor than 1/sqrt(head_dim) (attn-scale-wrong:scale=0.2)",
        ),
    ),
    (
        "heads in turn",
        |_, n| {
            let attention = matches!(n.op, Op::AttnScores(_) | Op::AttnContext(_));
            attention.then(|| regrouped(n, |a, h| h % a.n_kv_heads))
        },
        Some(
            "a fault in L01.attn_scores and L01.attn_context gives these values: query head h reads KV head h mod n_kv instead of h / group (gqa-head-map)",
        ),
    ),
    (
        "up, and no gate",
        |_, n| {
            let up = |x: &[&Tensor<f64>], _: &Context<'_>| (x[1].clone(), vec![0f32; x[1].data.len()]);
            (n.op == Op::SwiGlu).then(|| n.computing(up))
        },
        Some("a fault in L01.ffn_act gives these values: the stage computes up alone, without the gate"),
    ),
    (
        "weights of the layer before",
        |graph, n| {
            let weights = n.weights.iter().cloned().map(|mut w| {
                w.name = w.name.replace("blk.1.", "blk.0.");
                w
            });
            let node = Node { weights: weights.collect(), ..n.clone() };
            (!n.weights.is_empty() && graph.config.n_layers > 1).then_some(node)
        },
        Some("the weight of another layer is used (tensor-mapped-wrong:off=-1)"),
    ),
    (
        "no bias",
        |_, n| (n.op == Op::Bias).then(|| n.left_out()),
        Some(
            "a fault in L01.q_biased, L01.k_biased and L01.v_biased gives these values: the bias is not added (qkv-bias-omitted)",
        ),
    ),
    (
        "noise",
        |_, n| {
            let noisy = |x: &[&Tensor<f64>], _: &Context<'_>| {
                let noise = |i: usize| 1.0 + 0.01 * ((i * 7919 % 1013) as f64 / 1013.0 - 0.5);
                let data = x[0].data.iter().zip(&x[1].data).enumerate().map(|(i, (a, b))| (a + b) * noise(i)).collect();
                (Tensor { shape: x[0].shape.clone(), data }, vec![0f32; x[0].data.len()])
            };
            (n.op == Op::Residual && n.role == Role::AttnOutput).then(|| n.computing(noisy))
        },
        None,
    ),
    (
        "one column of the hidden values twice as large",
        |_, n| {
            let own = n.op.clone();
            let spoilt = move |x: &[&Tensor<f64>], c: &Context<'_>| {
                let (mut made, bound) = qdiff_engine::ops::forward_with_bound(&own, x, c);
                let width = made.row_len();
                made.data.chunks_mut(width).for_each(|row| row[7] *= 2.0);
                (made, bound)
            };
            (n.op == Op::SwiGlu).then(|| n.computing(spoilt))
        },
        None,
    ),
];

/// Whether a stage is what a layer gives, or the logits.
fn leaves(graph: &Graph, node: &Node) -> bool {
    node.role == Role::Logits || node.role == Role::Embedding || {
        let read_by_next =
            |n: &Node| n.id.layer != node.id.layer && n.inputs.iter().any(|&i| graph.nodes[i].id == node.id);
        node.op == Op::Residual && graph.nodes.iter().any(read_by_next)
    }
}

/// What an engine shows whose attention is one function: all but what is within that.
fn fused(_: &Graph, node: &Node) -> bool {
    !matches!(node.op, Op::AttnScores(_) | Op::AttnWeights(_))
}

fn diagnosis(oracle: &Oracle<'_>, bug: Bug, shown: fn(&Graph, &Node) -> bool) -> Diagnosis {
    let (filter, policy, arithmetic) = (Filter::default(), Policy::default(), Arithmetic::default());
    let store = Store::usual(None);
    let mut graph = oracle.graph.clone();
    for i in 0..graph.nodes.len() {
        if graph.nodes[i].id.layer == Some(1)
            && let Some(wrong) = bug(&oracle.graph, &graph.nodes[i])
        {
            graph.nodes[i] = wrong;
        }
    }
    let want = Want::new(&oracle.graph, &filter, &|node| shown(&oracle.graph, node), &store);
    let mut engine = CpuEngine::new(graph, &oracle.weights);
    let mut capture = Capture::new(store.clone());
    let tokens: Vec<u32> = (0..24).map(|i| (i * 37 + 11) % 500).collect();
    for step in steps(&tokens[..21], Passes::Of(21), &tokens[21..]) {
        let mut taps = Collector::new(&want, engine.position(), &step.tokens);
        engine.step(&step.tokens, &mut taps);
        let mut done = taps.finish();
        done.index = step.index;
        capture.steps.push(done);
    }
    let subject = Side { capture: &capture, arithmetic: &arithmetic };
    let verdict = judge(oracle, subject, None, &filter, &policy, &silent).unwrap();
    explain(oracle, &subject, verdict, (&filter, &policy), 1.0, &silent)
}

#[test]
fn what_leaves_a_segment_tells_what_is_wrong_inside() {
    let model = Synth { n_layers: 3, weight_type: GgmlType::F32, n_vocab: 600, ..Synth::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let oracle =
        Oracle::new(GgmlWeights::open(&gguf).unwrap(), &Model::load(&path, Load::Vocabulary).unwrap()).unwrap();
    let within_attention = BUGS[..4].iter().map(|case| (case, fused as fn(&Graph, &Node) -> bool));
    let within_layer = BUGS.iter().map(|case| (case, leaves as fn(&Graph, &Node) -> bool));
    for ((name, bug, told), shown) in within_layer.chain(within_attention) {
        // Where queries and caches were shown, attention itself is solved for, and needs no guess.
        let solved = [
            ("a window of 5 keys", "the softmax is over keys less than 5 before the query: a sliding window"),
            ("a soft cap", "a soft cap is applied to the scaled scores: c·tanh(x/c) with c = 3"),
            ("another scale", "scores are multiplied by 0.2 instead of 0.125"),
            ("heads in turn", "query head h reads the keys and values of KV head h mod n_kv instead of h / group"),
        ];
        let of_attention = solved.iter().find(|(of, _)| of == name && shown as *const () == fused as *const ());
        let told = of_attention.map(|(_, told)| *told).or(*told);
        let found = diagnosis(&oracle, *bug, shown);
        let findings = &found.findings;
        assert_eq!(findings.len(), 1, "{name}: {findings:?}");
        assert_eq!(findings[0].id.layer, Some(1), "{name}: {findings:?}");
        match told {
            Some(words) => assert!(findings[0].told().is_some_and(|t| t.contains(words)), "{name}: {findings:?}"),
            None => assert_eq!(findings[0].told(), None, "{name}"),
        }
    }
    for shown in [leaves as fn(&Graph, &Node) -> bool, fused] {
        let right = diagnosis(&oracle, |_, _| None, shown);
        assert!(right.findings.is_empty(), "{:?}", right.findings);
    }
}
