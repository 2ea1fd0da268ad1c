//! What is supported: README's table is made of the code, every cell of it that says yes gives a verdict, and every other refuses
//! by name.

use qdiff_engine::cuda::{Path, unsupported};
use qdiff_engine::model::{ARCHITECTURES, Graph, KINDS, skeleton};
use qdiff_engine::quant::GgmlType;
use qdiff_tests::card::Card;
use qdiff_tests::synth::Synth;
use qdiff_tests::{folder_with, headline, markdown, share};

/// What stands before and after the table in README.md.
const BEGIN: &str = "<!-- support: made of the code by tests/tests/suite/support.rs -->\n";
const END: &str = "<!-- support ends -->\n";

/// A block format of each kind.
const FORMATS: [GgmlType; 8] = [
    GgmlType::F32,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::IQ4_XS,
    GgmlType::NVFP4,
    GgmlType::MXFP4,
];

/// The graph of a small model.
fn graph(arch: &str) -> Graph {
    let model = Synth { arch: ARCHITECTURES.iter().find(|(name, _)| *name == arch).unwrap().0, ..Synth::default() };
    qdiff_engine::model::build(&model).unwrap()
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
        let llama = if graph(arch).config.llama_departs.is_none() { "yes" } else { "wrong, see DIVERGENCES.md" };
        rows += &format!("| `{arch}` | {llama} | yes | {} | {} |\n", of(Path::Tapped), of(Path::Fast));
    }
    let formats: Vec<String> = FORMATS.iter().map(ToString::to_string).collect();
    format!(
        "{rows}\nEvery architecture is tested on the CPU in {}. Its CUDA kernels are tested too, compiled for a CPU, in three of these formats, which differ by architecture. The other block formats of llama.cpp are tested with `qwen2` alone; \
         `qdiff devices` says how each runner reads them.\n",
        formats.join(", ")
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

/// Every architecture in block formats of every kind, on the CPU engine against llama.cpp; `scripts/test` takes two formats for
/// each, all of them among them.
#[test]
fn every_cell_gives_a_verdict() {
    let (mut told, mut wrong) = (String::new(), 0);
    for (i, (arch, _)) in ARCHITECTURES.iter().enumerate() {
        for weight_type in share((0..FORMATS.len()).map(|j| FORMATS[(i + j) % FORMATS.len()]), 4) {
            let model = Synth { arch, weight_type, ..Synth::default() };
            let (code, report, text) = folder_with(&model).judged("-n 1 --subject cpu");
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
    let line = format!("run -m model.gguf --length 12 -n 1 --subject {subject} --oracle cpu --json told.json");
    let said = folder.qdiff_on(card, &line);
    let right = match graph(arch).config.llama_departs {
        None => said.code == 0,
        Some(_) => said.code == 1 && headline(&said.stdout).contains("reference is wrong here"),
    };
    let coverage = &folder.json("told.json")["verdict"]["coverage"];
    let first = said.stdout.lines().next().unwrap_or(&said.stderr);
    (format!("{arch} {weight_type}: {first}\n"), right && coverage["asked"] == coverage["judged"])
}

/// Every architecture on an emulated card, in three formats each: all of them, one architecture or another. `scripts/test` takes
/// one of the three, still all formats.
#[test]
fn every_cell_of_the_tapped_cuda_path_gives_a_verdict() {
    let (card, mut told, mut right) = (Card::new(), String::new(), true);
    let tapped = ARCHITECTURES.iter().filter(|(arch, _)| refusal(arch, Path::Tapped).is_none());
    for (i, (arch, _)) in tapped.enumerate() {
        for weight_type in share((0..3).map(|j| FORMATS[(3 * i + j) % FORMATS.len()]), 3) {
            let (line, as_it_should) = on_a_card(&card, arch, weight_type, "cuda");
            (told, right) = (told + &line, right && as_it_should);
        }
    }
    println!("{told}");
    assert!(right, "{told}");
}

/// Likewise the fused kernels, of the architectures that they are for, in two of these formats each.
#[test]
fn every_cell_of_the_fused_cuda_path_gives_a_verdict() {
    let (card, mut told, mut right) = (Card::new(), String::new(), true);
    let fused = ARCHITECTURES.iter().filter(|(arch, _)| refusal(arch, Path::Fast).is_none());
    for (i, (arch, _)) in fused.enumerate() {
        for weight_type in share([2 * i + 1, 2 * i + 4].map(|j| FORMATS[j % FORMATS.len()]), 2) {
            let (line, as_it_should) = on_a_card(&card, arch, weight_type, "cuda-fast");
            (told, right) = (told + &line, right && as_it_should);
        }
    }
    println!("{told}");
    assert!(right, "{told}");
}

/// Where there is no kernel, the stage and its op are named, GPU or not, and what to use instead.
#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (arch, _) in ARCHITECTURES {
        for (path, runner) in [(Path::Tapped, "cuda"), (Path::Fast, "cuda-fast")] {
            let Some(why) = refusal(arch, path) else { continue };
            assert!(why.contains("; use --subject cpu") || why.contains("; use --subject cuda"), "{why}");
            let folder = folder_with(&Synth { arch, ..Synth::default() });
            // Without a GPU the message says that.
            let said = folder.qdiff(&format!("run -m model.gguf --subject {runner}")).exits(2);
            assert!(said.stderr.contains(&why) || said.stderr.contains("no CUDA"), "{why}: {said}");
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
