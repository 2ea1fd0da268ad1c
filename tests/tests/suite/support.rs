//! What is supported: README's table is made of the code, every cell of it that says yes gives a verdict, and every other refuses
//! by name.

use qdiff::runners::{CPU, CUDA, CUDA_FAST, LLAMA, LLAMA_CUDA, Reads};
use qdiff_engine::cuda::{Path, unsupported};
use qdiff_engine::model::{ARCHITECTURES, Graph, KINDS, skeleton};
use qdiff_engine::quant::GgmlType;
use qdiff_tests::card::Card;
use qdiff_tests::synth::{Setting, Synth};
use qdiff_tests::{folder_with, headline, markdown, whole};

/// What stands before and after the table in README.md.
const BEGIN: &str = "<!-- support: made of the code by tests/tests/suite/support.rs -->\n";
const END: &str = "<!-- support ends -->\n";

/// A block format of each kind, all of which a short run of the suite takes.
const OF_EACH_KIND: [GgmlType; 8] = [
    GgmlType::F32,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::IQ4_XS,
    GgmlType::NVFP4,
    GgmlType::MXFP4,
];

/// Some of the formats for the architecture of this number: all if the whole runs, else so many of those of each kind, from
/// `from` on.
fn formats(from: usize, count: usize) -> Vec<GgmlType> {
    if whole() {
        return GgmlType::ALL_SUPPORTED.to_vec();
    }
    (0..count).map(|j| OF_EACH_KIND[(from + j * OF_EACH_KIND.len() / count) % OF_EACH_KIND.len()]).collect()
}

/// The graph of a small model.
fn graph(arch: &str) -> Graph {
    let model = Synth { arch: ARCHITECTURES.iter().find(|(name, _)| *name == arch).unwrap().0, ..Synth::default() };
    qdiff_engine::model::build(&model).unwrap()
}

/// The same with the sections of the rotation that released models of Qwen3-VL have: 24, 20 and 20 of 64 pairs.
fn with_released_sections(arch: &str) -> Graph {
    let arch = ARCHITECTURES.iter().find(|(name, _)| *name == arch).unwrap().0;
    let plain = Synth { arch, ..Synth::default() };
    let key = "rope.dimension_sections".to_owned();
    if !arch.starts_with("qwen3vl") {
        return graph(arch);
    }
    let settings = vec![(key, Setting::Integers(vec![24, 20, 20, 0]))];
    qdiff_engine::model::build(&Synth { head_dim: 128, settings, ..plain }).unwrap()
}

/// What keeps a path of the CUDA engine from an architecture, if anything does.
fn refusal(arch: &str, path: Path) -> Option<String> {
    unsupported(&graph(arch), path).map(|why| why.to_string())
}

fn table() -> String {
    let mut rows =
        "| architecture | `llama` | `cpu` | `cuda` | `cuda-fast` |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for (arch, _) in ARCHITECTURES {
        let of = |path| if refusal(arch, path).is_none() { "yes" } else { "no" };
        let departs = |graph: Graph| graph.config.llama_departs.is_some();
        let llama = match (departs(graph(arch)), departs(with_released_sections(arch))) {
            (true, _) => "wrong, see DIVERGENCES.md",
            (false, true) => "wrong for released models, see DIVERGENCES.md",
            (false, false) => "yes",
        };
        rows += &format!("| `{arch}` | {llama} | yes | {} | {} |\n", of(Path::Tapped), of(Path::Fast));
    }
    let runners = [&LLAMA, &CPU, &CUDA, &CUDA_FAST, &LLAMA_CUDA];
    let mut kinds: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for format in GgmlType::ALL_SUPPORTED {
        let ways = runners.map(|kind| kind.reading(*format).to_string()).to_vec();
        match kinds.iter_mut().find(|(known, _)| *known == ways) {
            Some((_, names)) => names.push(format.to_string()),
            None => kinds.push((ways, vec![format.to_string()])),
        }
    }
    let heads: Vec<String> = runners.iter().map(|kind| format!("`{kind}`")).collect();
    let mut by_format =
        format!("| formats of weights | {} |\n| --- |{}\n", heads.join(" | "), " --- |".repeat(runners.len()));
    for (ways, names) in kinds {
        by_format += &format!("| {} | {} |\n", names.join(" "), ways.join(" | "));
    }
    format!(
        "{rows}\n{by_format}\nWeights that are read as F16, F32 or BF16 have the same values, take more memory, and are slower. `scripts/test-all` tests \
         each architecture in each format on the CPU and, if the table says that CUDA runs it, on an emulated card.\n"
    )
}

#[test]
fn the_table_in_the_readme_is_made_of_the_code() {
    let readme = std::fs::read_to_string(markdown::root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once(BEGIN).expect("README has the table");
    let (given, _) = rest.split_once(END).expect("the table ends");
    let made = table();
    assert_eq!(given, made, "write it into README.md:\n{BEGIN}{made}{END}");
}

/// Every architecture in every format, on the CPU engine against llama.cpp, every second one with the magnitudes of real models;
/// `scripts/test` takes two formats for each, one of every kind among them.
#[test]
fn every_cell_gives_a_verdict() {
    let (mut told, mut wrong) = (String::new(), 0);
    for (i, (arch, _)) in ARCHITECTURES.iter().enumerate() {
        for (j, weight_type) in formats(i, 2).into_iter().enumerate() {
            let model = Synth { arch, weight_type, massive: j % 2 == 1, ..Synth::default() };
            let folder = folder_with(&model);
            if LLAMA.reading(weight_type) == Reads::Refused {
                let said = folder.qdiff("run -m model.gguf -n 1 --subject cpu").exits(2);
                told += &format!("{arch} {weight_type}: {}\n", said.stderr);
                wrong += usize::from(!said.stderr.contains(&format!("is {weight_type}: ")));
                continue;
            }
            let (code, report, text) = folder.judged("-n 1 --subject cpu");
            let coverage = &report["verdict"]["coverage"];
            let whole = coverage["asked"] == coverage["judged"];
            told += &format!("{arch} {weight_type}: {}\n", text.lines().next().unwrap_or_default());
            // If llama.cpp is the outlier, the verdict says so.
            let right = match graph(arch).config.llama_departs {
                None => code == 0,
                Some(_) => code == 1 && headline(&text).contains("reference is wrong here"),
            };
            wrong += usize::from(!right || !whole);
        }
    }
    println!("{told}");
    assert_eq!(wrong, 0, "{told}");
}

/// The verdict on an architecture in a format by a path on an emulated card, and whether it is whole and right.
fn on_a_card(card: &Card, arch: &'static str, weight_type: GgmlType, subject: &str) -> (String, bool) {
    let folder = folder_with(&Synth { arch, weight_type, ..Synth::default() });
    // Without a reference, what llama.cpp refuses is judged alone.
    let refused = LLAMA.reading(weight_type) == Reads::Refused;
    let reference = if refused { "--reference none" } else { "" };
    let line =
        format!("run -m model.gguf --length 12 -n 1 --subject {subject} {reference} --oracle cpu --json told.json");
    let said = folder.qdiff_on(card, &line);
    let right = match graph(arch).config.llama_departs {
        _ if refused => said.code == 3 && headline(&said.stdout).contains("no reference ran"),
        None => said.code == 0,
        Some(_) => said.code == 1 && headline(&said.stdout).contains("reference is wrong here"),
    };
    let coverage = &folder.json("told.json")["verdict"]["coverage"];
    let first = said.stdout.lines().next().unwrap_or(&said.stderr);
    (format!("{arch} {weight_type}: {first}\n"), right && coverage["asked"] == coverage["judged"])
}

/// Every architecture on an emulated card, in every format; `scripts/test` takes one for each, still one of every kind.
#[test]
fn every_cell_of_the_tapped_cuda_path_gives_a_verdict() {
    let (card, mut told, mut right) = (Card::new(), String::new(), true);
    let tapped = ARCHITECTURES.iter().filter(|(arch, _)| refusal(arch, Path::Tapped).is_none());
    for (i, (arch, _)) in tapped.enumerate() {
        for weight_type in formats(3 * i, 1) {
            let (line, as_it_should) = on_a_card(&card, arch, weight_type, "cuda");
            (told, right) = (told + &line, right && as_it_should);
        }
    }
    println!("{told}");
    assert!(right, "{told}");
}

/// Likewise the fused kernels, of the architectures that they are for.
#[test]
fn every_cell_of_the_fused_cuda_path_gives_a_verdict() {
    let (card, mut told, mut right) = (Card::new(), String::new(), true);
    let fused = ARCHITECTURES.iter().filter(|(arch, _)| refusal(arch, Path::Fast).is_none());
    for (i, (arch, _)) in fused.enumerate() {
        for weight_type in formats(2 * i + 1, 1) {
            let (line, as_it_should) = on_a_card(&card, arch, weight_type, "cuda-fast");
            (told, right) = (told + &line, right && as_it_should);
        }
    }
    println!("{told}");
    assert!(right, "{told}");
}

/// Where there is no kernel, the stage and its op are named, and what to use instead.
#[test]
fn what_is_not_supported_is_refused_by_name() {
    let card = Card::new();
    for (arch, _) in ARCHITECTURES {
        for (path, runner) in [(Path::Tapped, "cuda"), (Path::Fast, "cuda-fast")] {
            let Some(why) = refusal(arch, path) else { continue };
            assert!(why.contains("; use --subject cpu") || why.contains("; use --subject cuda"), "{why}");
            let folder = folder_with(&Synth { arch, ..Synth::default() });
            let said = folder.qdiff_on(&card, &format!("run -m model.gguf --subject {runner}")).exits(2);
            assert!(said.stderr.contains(&why), "{why}: {said}");
        }
    }
}

/// The smallest model of each architecture has every kind of layer.
#[test]
fn every_kind_of_layer_is_in_a_skeleton() {
    for (arch, build) in ARCHITECTURES {
        let names = |layers| skeleton(*build, layers).stage_names().len();
        assert_eq!(names(KINDS), names(5), "{arch}");
    }
}
