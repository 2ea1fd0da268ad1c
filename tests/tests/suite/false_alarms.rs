//! Correct engines are never called wrong, in any order of sums, with any form of a function,
//! with any fused ops, and with any part left out of their captures.

use qdiff::loaded::LoadedModel;
use qdiff_engine::model::qwen4exp;
use qdiff_engine::quant::GgmlType;
use qdiff_tests::false_alarms::{Total, all, write_model};
use qdiff_tests::synth::Synth;
use qdiff_tests::{empty, folder_with};

/// One of so many stages and pairs of stages is left out of each variant's captures; `--example false_alarms` leaves out
/// all.
const SHARE: usize = 20;

#[test]
fn a_right_engine_is_never_said_to_be_wrong() {
    let folder = empty();
    let path = folder.join("model.gguf");
    write_model(&path);
    let opened = LoadedModel::new(&path).unwrap();
    let mut total = Total::default();
    all(&opened, SHARE, |judged| total.take(judged));
    assert!(total.captures > 900, "{}", total.captures);
    for judged in &total.alarms {
        let (style, order) = (judged.variant.style.name, judged.variant.order_name);
        println!("{style}, {order}, without {:?}: {:?}, {:?}", judged.left_out, judged.wrong, judged.worst());
    }
    assert_eq!(total.alarms.len(), 0, "of {} captures", total.captures);
    // Silence does not help either: nearly all is judged, and bounds are not out of reach.
    let worst = total.worst.unwrap().worst();
    assert!((0.3..1.0).contains(&worst.1), "{worst:?}");
}

/// ggml adds up the offsets of K-quants apart from the quants: with massive activations their sum is large where the weights are small, and so
/// is what it rounds.
#[test]
fn offsets_that_are_summed_apart_are_no_alarm() {
    for (weight_type, seed) in [(GgmlType::Q5_K, 1), (GgmlType::Q5_K, 2), (GgmlType::Q4_K, 3), (GgmlType::Q2_K, 1)] {
        let model = Synth { arch: qwen4exp::ARCH, weight_type, seed, massive: true, ..Synth::default() };
        let (code, _, text) = folder_with(&model).judged("-n 1 --subject cpu");
        assert_eq!(code, 0, "{weight_type} {seed}: {text}");
    }
}
