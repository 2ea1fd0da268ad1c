//! Texts of models whose positions have sections for images, through the binary.

use qdiff_tests::synth::{Setting, Synth};
use qdiff_tests::{Told, folder_with, headline};

fn model(arch: &'static str, sections: [i32; 4], deepstack: usize) -> Synth {
    let settings = vec![
        ("rope.dimension_sections".to_owned(), Setting::Integers(sections.to_vec())),
        ("n_deepstack_layers".to_owned(), Setting::Integer(deepstack)),
    ];
    Synth { arch, settings, ..Synth::default() }
}

/// Every stage matches, also if the first layers take something of an image, as in Qwen3-VL's own files.
#[test]
fn texts_match_llama_cpp() {
    for arch in ["qwen3vl", "qwen3vlmoe"] {
        for deepstack in [0, 1] {
            let folder = folder_with(&model(arch, [11, 11, 10, 0], deepstack));
            let (code, report, text) = folder.judged("-n 2 --subject cpu");
            assert_eq!(code, 0, "{arch}\n{text}");
            assert!(report.is_whole(), "{text}");
        }
    }
}

/// As Qwen3-VL's own, these sections leave a pair that is in none of height and width: it is turned by the place in the text,
/// and llama.cpp does not turn it.
#[test]
fn the_reference_is_wrong_where_a_pair_is_in_no_section() {
    let (code, report, text) = folder_with(&model("qwen3vl", [12, 10, 10, 0], 0)).judged("-n 2 --subject cpu");
    assert_eq!(code, 1, "{text}");
    assert!(headline(&text).contains("the reference is wrong here: llama.cpp does not rotate every pair"), "{text}");
    let stages = report.stages().iter().filter(|s| s["status"] != "match");
    let names: Vec<&str> = stages.map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(names, ["L00.q_rope", "L00.k_rope", "L01.q_rope", "L01.k_rope"], "{text}");
}
