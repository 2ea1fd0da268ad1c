//! What needs no device: the launches that faults make, and that their kernels compile.

use super::bugs::{THEMES, flattened};
use super::{Bug, Extra, Fault, Planted, REPLAYED, all, bugs, fused, tapped};
use crate::cuda::calls::{Launch, calls_of};
use crate::cuda::compile::{Source, cached, compile};
use crate::cuda::fast::{Fused, decoder_of};
use crate::cuda::kernel::Kernel;
use crate::cuda::kernels::File;
use crate::cuda::launch::Call;
use crate::cuda::operand::product_of;
use crate::cuda::options::{Options, Path};
use crate::cuda::schedule::Schedule;
use crate::cuda::testing::{FORMAT, graphs, with_calls, with_calls_where};
use crate::cuda::wide::image_of;
use crate::model::Graph;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The launches of a prefill of five tokens and of a decode step, with faults.
fn launches(graph: &Graph, path: Path, planted: Option<&Planted>) -> Vec<Launch> {
    let options = Options { step: 8, context: 16, path, taps: true, ..Options::default() };
    let wide = path == Path::Fast;
    with_calls_where(graph, &options, wide, |calls| {
        let decoder = decoder_of(graph).expect("a decoder");
        let narrow = planted.is_none_or(Planted::narrow);
        let fused = Fused { calls, decoder: &decoder, next_token: 0, wants: &|_| true, narrow };
        let schedule = Schedule { calls, fused: (path == Path::Fast).then_some(fused), planted };
        [schedule.step(&[0; 5], 0), schedule.step(&[0], 5)].concat()
    })
}

/// Every fault, with its path.
fn everywhere() -> [(Path, &'static [Fault]); 3] {
    [(Path::Tapped, all()), (Path::Tapped, tapped()), (Path::Fast, fused())]
}

/// The launches with each of these faults at each of its places.
fn planted(
    graph: &Graph, (path, faults): (Path, &'static [Fault]),
) -> impl Iterator<Item = (&'static str, String, Vec<Launch>)> {
    let fits = move |fault: &'static Fault| {
        let places = graph.nodes.iter().enumerate().filter(move |(_, node)| (fault.fits)(graph, node));
        places.map(move |(index, node)| {
            let extra = Extra { frequencies: 256, ones: 512, _memory: Vec::new() };
            let planted = Planted { places: vec![(index, fault)], extra };
            (fault.cause, format!("{}@{}", fault.cause, node.id), launches(graph, path, Some(&planted)))
        })
    };
    faults.iter().flat_map(fits)
}

#[test]
fn every_fault_has_places_and_changes_a_launch_at_each() {
    for faults in everywhere() {
        let mut seen = BTreeSet::new();
        for graph in &graphs() {
            let clean = launches(graph, faults.0, None);
            for (cause, name, faulty) in planted(graph, faults) {
                assert_eq!(faulty.len(), clean.len(), "{name}");
                assert!(faulty != clean, "{name} changes nothing");
                seen.insert(cause);
            }
        }
        assert_eq!(seen.len(), faults.1.len(), "of {seen:?}");
    }
}

/// A decode step after another one: without a bug of the captured graph, then with each.
fn replayed(graph: &Graph) -> Vec<Vec<Call>> {
    let options = Options { step: 8, context: 16, path: Path::Fast, taps: true, ..Options::default() };
    with_calls(graph, &options, |calls| {
        let decoder = decoder_of(graph).expect("a decoder");
        let fused = Fused { calls, decoder: &decoder, next_token: 0, wants: &|_| true, narrow: false };
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
    let tapped = graphs.iter().flat_map(|graph| planted(graph, everywhere()[0]));
    let tapped = tapped.flat_map(|(.., launches)| calls_of(launches));
    let replayed = graphs.iter().flat_map(|graph| replayed(graph).concat());
    let kernels: BTreeSet<(&str, String)> =
        tapped.chain(replayed).map(|call| (call.kernel().file.path(), call.kernel().arguments)).collect();
    let faulty = File::ALL.iter().filter(|file| file.path().starts_with("faults/"));
    for &file in faulty {
        let arguments = kernels.iter().find(|(path, _)| *path == file.path());
        let (_, arguments) = arguments.unwrap_or_else(|| panic!("no fault launches {}", file.path()));
        let kernel = Kernel::new(file, arguments.clone());
        compile(&Source::new(&kernel, [&kernel]), "sm_90a").unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn every_bug_of_a_kernel_is_written_into_it_once() {
    let mut names = HashSet::new();
    for bug in bugs() {
        assert!(names.insert(bug.name), "{} twice", bug.name);
        assert!(!bug.edits.is_empty(), "{}", bug.name);
        assert!(!bug.files.is_empty(), "{}", bug.name);
        for file in &bug.files {
            let text = flattened(file.path(), &mut HashSet::new());
            for (old, new) in &bug.edits {
                assert_eq!(text.matches(old.as_str()).count(), 1, "{} has, in {}:\n{old}", bug.name, file.path());
                assert_ne!(old, new, "{}", bug.name);
            }
        }
    }
    let listed = tapped().iter().chain(fused()).map(|fault| fault.cause);
    let planted: HashSet<&str> = listed.chain(REPLAYED.iter().map(|fault| fault.name)).collect();
    assert_eq!(planted.len(), tapped().len() + fused().len() + REPLAYED.len());
    let forgotten: Vec<_> = names.difference(&planted).collect();
    assert!(forgotten.is_empty(), "planted by no fault: {forgotten:?}");
}

#[test]
fn no_theme_of_bugs_is_forgotten() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/faults");
    for entry in std::fs::read_dir(folder).expect("a folder of kernels") {
        let path = entry.expect("an entry").path();
        let known = THEMES.iter().any(|(name, _)| path.ends_with(name));
        assert!(known || path.extension().is_some_and(|e| e == "cu"), "{}", path.display());
    }
}

/// The kernels with a bug that faults launch, each once; of a bug of a format, for that in the place of the graphs' own.
fn kernels_with_bugs() -> BTreeMap<(&'static str, &'static str), Kernel> {
    let graphs = graphs();
    let cases = everywhere().into_iter().flat_map(|faults| graphs.iter().flat_map(move |graph| planted(graph, faults)));
    let replayed = graphs.iter().flat_map(|graph| replayed(graph).concat());
    let kernels = cases.flat_map(|(.., launches)| calls_of(launches)).chain(replayed).map(|call| call.kernel());
    let of = |bug: &'static Bug, kernel: Kernel| match bug.format {
        // A stage of shared memory is as large as the format asks for.
        Some(format) if kernel.file == File::Products => {
            Kernel { arguments: product_of(&[format; 3], 227 << 10).0, ..kernel }
        }
        Some(format) if kernel.file == File::WideProducts => {
            Kernel { arguments: [format; 3].map(image_of).join(", "), ..kernel }
        }
        Some(format) => {
            Kernel { arguments: kernel.arguments.replace(&FORMAT.to_string(), &format.to_string()), ..kernel }
        }
        None => kernel,
    };
    kernels.filter_map(|kernel| kernel.bug.map(|bug| ((bug.name, kernel.file.path()), of(bug, kernel)))).collect()
}

fn compile_bugs(arch: &str) {
    let kernels = kernels_with_bugs();
    let written = bugs().iter().flat_map(|bug| bug.files.iter().map(|file| (bug.name, file.path())));
    let forgotten: Vec<_> = written.filter(|of| !kernels.contains_key(of)).collect();
    assert!(forgotten.is_empty(), "launched by no fault: {forgotten:?}");
    let refused = kernels.into_iter().filter_map(|((name, file), kernel)| {
        let compiled = cached(&Source::new(&kernel, [&kernel]), arch);
        compiled.err().map(|e| format!("{name} in {file}: {e}"))
    });
    let refused: Vec<String> = refused.collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn every_bug_of_a_kernel_compiles_for_hopper() {
    compile_bugs("sm_90a");
}

/// `cargo test --release -p qdiff-engine --lib every_bug -- --ignored`; a minute each the first time.
#[test]
#[ignore = "compiles a hundred kernels for each of three cards"]
fn every_bug_of_a_kernel_compiles_for_other_cards() {
    ["sm_80", "sm_89", "sm_100"].into_iter().for_each(compile_bugs);
}
