//! What needs no device: the launches that faults make, and that their kernels compile.

use super::{Extra, Planted, REPLAYED, all};
use crate::cuda::compile::{Source, compile};
use crate::cuda::fast::{Fused, decoder_of};
use crate::cuda::kernels::{File, Kernel};
use crate::cuda::launch::Call;
use crate::cuda::options::{Options, Path};
use crate::cuda::schedule::{Launch, Schedule, calls_of};
use crate::cuda::testing::{graphs, with_calls};
use crate::model::Graph;
use std::collections::BTreeSet;

/// The launches of a prefill of five tokens and of a decode step, with faults.
fn launches(graph: &Graph, planted: Option<&Planted>) -> Vec<Launch> {
    let options = Options { step: 8, context: 16, ..Options::default() };
    with_calls(graph, &options, |calls| {
        let schedule = Schedule { calls, fused: None, planted };
        [schedule.step(&[0; 5], 0), schedule.step(&[0], 5)].concat()
    })
}

/// The launches with each fault at each of its places.
fn planted(graph: &Graph) -> impl Iterator<Item = (String, Vec<Launch>)> {
    let fits = move |fault: &'static super::Fault| {
        let places = graph.nodes.iter().enumerate().filter(move |(_, node)| (fault.fits)(graph, node));
        places.map(move |(index, node)| {
            let extra = Extra { frequencies: 256, ones: 512, _memory: Vec::new() };
            let planted = Planted { places: vec![(index, fault)], extra };
            (format!("{}@{}", fault.cause, node.id), launches(graph, Some(&planted)))
        })
    };
    all().iter().flat_map(fits)
}

#[test]
fn every_fault_has_places_and_changes_a_launch_at_each() {
    let mut seen = BTreeSet::new();
    for graph in &graphs() {
        let clean = launches(graph, None);
        for (name, faulty) in planted(graph) {
            assert_eq!(faulty.len(), clean.len(), "{name}");
            assert!(faulty != clean, "{name} changes nothing");
            seen.insert(name.split('@').next().map(str::to_owned));
        }
    }
    assert_eq!(seen.len(), all().len(), "of {seen:?}");
}

/// A decode step after another one: without a bug of the captured graph, then with each.
fn replayed(graph: &Graph) -> Vec<Vec<Call>> {
    let options = Options { step: 8, context: 16, path: Path::Fast, taps: true, ..Options::default() };
    with_calls(graph, &options, |calls| {
        let decoder = decoder_of(graph).expect("a decoder");
        let fused = Fused { calls, decoder: &decoder, next_token: 0, wants: &|_| true };
        let clean: Vec<Call> = calls_of(fused.decode(7, 5)).collect();
        let before = fused.embed_token(3, 4);
        let spoiled = REPLAYED.iter().map(|fault| {
            let mut calls = clean.clone();
            fault.spoil(&mut calls, Some(&before), &decoder);
            calls
        });
        [clean.clone()].into_iter().chain(spoiled).collect()
    })
}

#[test]
fn every_bug_of_the_captured_graph_changes_one_launch() {
    for graph in &graphs() {
        let steps = replayed(graph);
        for (fault, calls) in REPLAYED.iter().zip(&steps[1..]) {
            let changed = calls.iter().zip(&steps[0]).filter(|(a, b)| a != b).count();
            assert_eq!((changed, calls.len()), (1, steps[0].len()), "{}", fault.name);
        }
    }
}

#[test]
fn every_kernel_with_a_bug_is_launched_by_a_fault_and_compiles() {
    let graphs = graphs();
    let tapped = graphs.iter().flat_map(planted).flat_map(|(_, launches)| calls_of(launches));
    let replayed = graphs.iter().flat_map(|graph| replayed(graph).concat());
    let kernels: BTreeSet<(&str, String)> =
        tapped.chain(replayed).map(|call| (call.kernel().file.path(), call.kernel().arguments)).collect();
    let faulty = File::ALL.iter().filter(|file| file.path().starts_with("faults/"));
    for &file in faulty {
        let arguments = kernels.iter().find(|(path, _)| *path == file.path());
        let (_, arguments) = arguments.unwrap_or_else(|| panic!("no fault launches {}", file.path()));
        let kernel = Kernel { file, arguments: arguments.clone() };
        compile(&Source::new(file, [&kernel]), "sm_90a").unwrap_or_else(|e| panic!("{e}"));
    }
}
