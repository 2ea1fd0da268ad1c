//! `qdiff explain`: one wrong element worked out, computed again here from the operands that the report holds.

use qdiff_tests::folder;
use serde_json::Value;

/// The numbers of the operand at this place.
fn numbers(example: &Value, place: usize) -> Vec<f64> {
    let list = example["operands"][place][1].as_array().unwrap();
    list.iter().map(|number| number.as_f64().unwrap()).collect()
}

/// A worked example holds what is needed for the right value, and the engine's value is beyond what rounding may do.
#[test]
fn a_worked_example_gives_the_right_value() {
    let folder = folder();
    for (fault, stage) in [
        ("scaled:by=1.25@L01.ffn_up", "L01.ffn_up"),
        ("rope-base:base=100@L01", "L01.q_rope"),
        ("scaled:by=2@L00.attn_scores", "L00.attn_scores"),
    ] {
        let (code, report, text) = folder.judged(&format!("--subject cpu --prompt haiku -n 2 --inject {fault}"));
        assert_eq!(code, 1, "{text}");
        let finding = &report["verdict"]["findings"][0];
        assert_eq!(finding["stage"], stage, "{text}");
        let example = &finding["example"];
        let of = |key: &str| example[key].as_f64().unwrap_or_else(|| panic!("{key}: {example}"));
        let (left, right) = (numbers(example, 0), numbers(example, 1));
        let sum: f64 = match example["products"].as_bool().unwrap() {
            true => left.iter().zip(&right).map(|(a, b)| a * b).sum(),
            false => {
                // Split halves: the first element of a pair is in the first half of its head.
                let (angle, magnitude) = (right[0] * numbers(example, 2)[0], numbers(example, 3)[0]);
                let first = of("element") as usize % 64 < 32;
                let (a, b) = if first { (left[0], -left[1]) } else { (left[1], left[0]) };
                magnitude * (a * angle.cos() + b * angle.sin())
            }
        };
        assert!((sum - of("right")).abs() <= of("allowed"), "{fault}: {sum} of {example}");
        assert!((of("got") - of("right")).abs() > of("allowed"), "{fault}: {example}");
        folder.write("report.json", report.to_string());
        let told = folder.qdiff("explain report.json --patch").exits(1).stdout;
        assert!(told.contains(&format!("## {stage}")) && told.contains("the right value: "), "{told}");
        assert!(!told.contains("more | | | the report holds"), "{told}");
    }
}
