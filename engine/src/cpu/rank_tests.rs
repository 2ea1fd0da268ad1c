//! What ranks compute together is what one computes alone.

use super::tests::{All, Drawn, graphs};
use super::{CpuEngine, Peers, SharedMemory};
use crate::model::{Graph, Node, Placement, Slices, WeightSource};
use crate::ops::Tensor;
use std::sync::Arc;
use std::thread;

/// The steps of the ranks of a graph, each rank in a thread: every stage of every rank, step by step.
fn run(placed: &Graph, weights: &(dyn WeightSource + Send + Sync), steps: &[&[u32]]) -> Vec<All> {
    let shared = Arc::new(SharedMemory::new(placed.ranks()));
    let source: Arc<dyn WeightSource + Send + Sync> = Arc::new(Slices::new(weights));
    let mut engines: Vec<CpuEngine<'_>> = (0..placed.ranks())
        .map(|rank| CpuEngine::of_rank(placed, source.clone(), Peers { rank, exchange: shared.clone() }))
        .collect();
    let step = |tokens: &&[u32]| {
        let mut all = All::default();
        thread::scope(|scope| {
            let run = |engine| {
                scope.spawn(move || {
                    let (mut taps, engine): (All, &mut CpuEngine<'_>) = (All::default(), engine);
                    engine.step(tokens, &mut taps);
                    taps
                })
            };
            let running: Vec<_> = engines.iter_mut().map(run).collect();
            running.into_iter().for_each(|rank| all.0.extend(rank.join().expect("a rank runs").0));
        });
        all
    };
    steps.iter().map(step).collect()
}

/// Parts of a tensor put together along the axis of its first fixed extent.
fn joined(node: &Node, parts: &[&Tensor<f32>]) -> Vec<f32> {
    let axis = node.shape.iter().position(|a| matches!(a, crate::model::Axis::Fixed(_))).expect("a fixed axis");
    let outer: usize = parts[0].shape[..axis].iter().product();
    let chunk = |part: &Tensor<f32>| part.data.len() / outer;
    let of = |o: usize| parts.iter().flat_map(move |part| part.data[o * chunk(part)..][..chunk(part)].iter().copied());
    (0..outer).flat_map(of).collect()
}

#[test]
fn ranks_together_are_what_one_is_alone() {
    for graph in graphs() {
        let weights = Drawn::of(&graph);
        let steps: [&[u32]; 3] = [&[1, 0, 1, 1, 0], &[0], &[1]];
        let mut engine = CpuEngine::new(graph.clone(), &weights);
        let alone = steps.map(|tokens| {
            let mut all = All::default();
            engine.step(tokens, &mut all);
            all
        });
        for text in ["2", "4:vocab=whole", "3:vocab=whole", "2:ffn=13+27,vocab=whole", "1", "3:heads=2+1+1,vocab=whole"]
        {
            let placement: Placement = text.parse().unwrap();
            let placement = placement.settled(&graph, |_| 8).unwrap();
            assert_eq!(placement.to_string().parse::<Placement>().unwrap(), placement);
            let placed = placement.place(&graph).unwrap();
            let split =
                |node: &&Node| placed.nodes.iter().filter(|n| n.id.whole() == node.id).count() == placement.ranks;
            assert!(graph.nodes.iter().all(|node| split(&node)), "every stage is on every rank");
            for (all, alone) in run(&placed, &weights, &steps).iter().zip(&alone) {
                for (at, node) in graph.nodes.iter().enumerate() {
                    let own = placed.nodes.iter().filter(|n| n.id.whole() == node.id);
                    let (own, parts): (Vec<&Node>, Vec<&Tensor<f32>>) = own.map(|n| (n, &*all.0[&n.id])).unzip();
                    let whole = &alone.0[&node.id];
                    let cut = own[0].shape != node.shape;
                    // What is added up over ranks is rounded otherwise.
                    let first = graph.nodes.iter().position(|n| n.id.name == "attn_context").unwrap();
                    let allowed = if at <= first { 1e-5 } else { 1e-3 };
                    let reads_twice =
                        placement.ranks > 2 && matches!(node.role, crate::model::Role::Key | crate::model::Role::Value);
                    let given: Vec<Vec<f32>> = match cut && !reads_twice {
                        true => vec![joined(node, &parts)],
                        false if cut => continue,
                        false => parts.iter().map(|part| part.data.clone()).collect(),
                    };
                    for given in given {
                        assert_eq!(given.len(), whole.data.len(), "{text} {}", node.id);
                        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= allowed * (1.0 + b.abs());
                        assert!(given.iter().zip(&whole.data).all(close), "{text} {}", node.id);
                    }
                }
            }
        }
    }
}

#[test]
fn cuts_that_cannot_be_are_refused() {
    let [graph, _] = graphs();
    for text in ["2:heads=3+1", "2:heads=4+0", "2:ffn=20", "2:vocab=2+1", "3", "5:vocab=whole"] {
        let placement: Placement = text.parse().unwrap();
        assert!(placement.settled(&graph, |_| 1).is_err(), "{text}");
    }
    for text in ["", "0", "two", "65", "2:", "2:heads=whole", "2:ffn", "2:experts=1+1", "2:heads=a+b"] {
        assert!(text == "2:" || text.parse::<Placement>().is_err(), "{text}");
    }
}
