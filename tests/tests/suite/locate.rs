//! The smallest faults, each found and located exactly: one block of a file,
//! one logit of a vocabulary, one head of a layer, one position of a decode
//! step; and what reads a weight wrongly, named.

use qdiff_engine::quant::GgmlType;
use qdiff_tests::schema::Schema;
use qdiff_tests::synth::{Synth, tensor_range};
use qdiff_tests::{Told, folder, folder_with, headline, real_folder, unwrapped};
use serde_json::{Value, json};

fn fits_a_screen(text: &str) {
    assert!(text.lines().count() <= 45, "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

/// One bit in one field of one block of a file: tensor, row, block, field and
/// byte are what was changed, and nothing else is reported.
#[test]
fn one_damaged_block_of_a_file() {
    const TENSOR: &str = "blk.1.ffn_down.weight";
    for (ty, bytes, fields) in [
        (GgmlType::Q4_K, 144, &[("d", 1), ("dmin", 3), ("scales", 9), ("qs", 77)][..]),
        (GgmlType::Q6_K, 210, &[("ql", 100), ("qh", 150), ("scales", 200), ("d", 209)]),
        (GgmlType::Q5_0, 22, &[("d", 1), ("qh", 4), ("qs", 12)]),
        (GgmlType::Q8_0, 34, &[("d", 0), ("qs", 20)]),
    ] {
        let folder = folder_with(&Synth { weight_type: ty, ..Synth::default() });
        let file = std::fs::read(folder.join("model.gguf")).unwrap();
        let range = tensor_range(&file, TENSOR);
        // Rows of 512 weights; row 37, its second block.
        let row = range.len() / 256;
        let block = range.start + 37 * row + bytes;
        folder.write("damaged.gguf", &file);
        let weights = || folder.told("weights damaged.gguf --against model.gguf");
        let (code, _, text) = weights();
        assert_eq!(code, 0, "{text}");
        assert!(text.starts_with("MATCH"), "{text}");
        for &(field, at) in fields {
            folder.write("damaged.gguf", &file);
            folder.edit("damaged.gguf", |file| file[block + at] ^= 4);
            let (code, json, text) = weights();
            assert_eq!(code, 1, "{text}");
            let mismatches = json["check"]["mismatches"].as_array().unwrap();
            assert_eq!(mismatches.len(), 1, "{text}");
            let m = &mismatches[0];
            assert_eq!(m["tensor"], TENSOR, "{text}");
            assert_eq!((&m["rows"], &m["blocks"]), (&1.into(), &1.into()), "{text}");
            assert_eq!(m["cause"], Value::Null, "{text}");
            let located = &m["located"][0];
            let found = ["/row", "/block", "/offset", "/fields/0/name", "/fields/0/offset", "/fields/0/bits"];
            let found = found.map(|at| located.pointer(at).unwrap());
            let expected = json!([37, 1, block, field, block + at, 1]);
            assert_eq!(json!(found), expected, "{text}");
            assert_eq!(located["fields"].as_array().unwrap().len(), 1, "{text}");
            Schema::printed("weights").check(&json).unwrap();
        }
    }
}

/// A tensor that two files store in different formats is compared by value: the report names both formats, and says nothing of bytes.
#[test]
fn files_of_two_formats_are_compared_by_value() {
    let [folder, other] =
        [GgmlType::F32, GgmlType::Q8_0].map(|weight_type| folder_with(&Synth { weight_type, ..Synth::default() }));
    let theirs = other.join("model.gguf");
    let (code, _, text) = folder.told(&format!("weights model.gguf --against {}", theirs.display()));
    let text = unwrapped(&text);
    assert!(code == 1 && text.contains("(F32 against Q8_0)"), "{text}");
    assert!(
        text.contains("the formats differ, so bytes are not compared") && !text.contains("bytes are equal"),
        "{text}"
    );
}

/// Each difference between two files is reported.
#[test]
fn files_of_other_tensors_are_told_apart() {
    let folder = folder();
    let other = Synth { tied: true, n_ff: 256, ..Synth::default() };
    other.write(&folder.join("other.gguf")).unwrap();
    let (code, json, text) = folder.told("weights model.gguf --against other.gguf");
    assert_eq!(code, 1);
    let unpaired: Vec<&str> =
        json["check"]["unpaired"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert!(unpaired.contains(&"output.weight: only in the file under suspicion"), "{text}");
    let shape = "blk.0.ffn_up.weight: of shape [256, 512] here, [256, 256] there";
    assert!(unpaired.iter().any(|u| u.starts_with(shape)), "{text}");
}

/// A reader's fault is named, with the field that it misreads, in the tensor
/// that it was put into and in no other.
#[test]
fn a_misread_tensor_is_named_with_field_and_cause() {
    for (ty, fault, tensor, fields) in [
        (GgmlType::Q4_K, "nibble-order@L01.ffn_up", "blk.1.ffn_up.weight", &["qs"][..]),
        (GgmlType::Q4_K, "kquant-scale-bits@blk.0.ffn_down.weight", "blk.0.ffn_down.weight", &["scales"]),
        (GgmlType::Q5_0, "q5-high-bit@L00.q_proj", "blk.0.attn_q.weight", &["qh"]),
        (GgmlType::Q6_K, "q6k-high-bits@logits", "output.weight", &["qh"]),
        (GgmlType::Q4_K, "q4k-scale-min-swapped@L01.v_proj", "blk.1.attn_v.weight", &["scales"]),
        (GgmlType::Q8_0, "q8-unsigned@embed", "token_embd.weight", &["qs"]),
        (GgmlType::IQ4_NL, "nibble-order@L01.ffn_up", "blk.1.ffn_up.weight", &["qs"]),
        (GgmlType::IQ4_XS, "codes-as-quants@L00.ffn_down", "blk.0.ffn_down.weight", &[]),
        (GgmlType::MXFP4, "codes-as-quants@L01.ffn_gate", "blk.1.ffn_gate.weight", &[]),
        (GgmlType::IQ3_S, "grid-signs@L00.q_proj", "blk.0.attn_q.weight", &["signs"]),
        (GgmlType::IQ2_S, "grid-high-bits@L01.v_proj", "blk.1.attn_v.weight", &["qs", "qh"]),
        (GgmlType::Q8_0, "tensor-mapped-wrong@L01.ffn_gate", "blk.1.ffn_gate.weight", &[]),
    ] {
        let folder = folder_with(&Synth { weight_type: ty, ..Synth::default() });
        let (code, json, text) = folder.told(&format!("weights model.gguf --inject {fault}"));
        assert_eq!(code, 1, "{text}");
        let mismatches = json["check"]["mismatches"].as_array().unwrap();
        assert_eq!(mismatches.len(), 1, "{text}");
        assert_eq!(mismatches[0]["tensor"], tensor, "{text}");
        assert_eq!(mismatches[0]["bytes_differ"], false, "{text}");
        let cause = mismatches[0]["cause"]["name"].as_str().unwrap_or_default();
        let name = fault.split('@').next().unwrap();
        assert!(cause.starts_with(name), "{fault}: {text}");
        let found = mismatches[0]["located"][0]["fields"].as_array().unwrap();
        let found: Vec<&str> = found.iter().map(|f| f["name"].as_str().unwrap()).collect();
        assert_eq!(found, fields, "{fault}: {text}");
    }
}

#[test]
fn what_reads_no_weight_is_refused() {
    let folder = folder();
    for (args, part) in [
        ("--inject rope-base@L00", "is no way to read a weight alone"),
        ("--inject nibble-order@p3..", "is no way to read a weight alone"),
        ("--subject llama", "name cpu or cuda"),
        ("--against missing.gguf", "missing.gguf"),
        ("--subject cuda --inject nibble-order", "--subject cpu"),
    ] {
        folder.refuses(&format!("weights model.gguf {args}"), &[part]);
    }
}

/// On a machine with a GPU the weights on it are the file's; on one without,
/// one line names what is missing.
#[test]
fn the_weights_on_the_device() {
    let folder = folder_with(&Synth { weight_type: GgmlType::Q4_K, ..Synth::default() });
    let said = folder.qdiff("weights model.gguf --subject cuda");
    // What must come out depends on the machine, and not on what comes out.
    match qdiff_engine::cuda::devices() {
        Ok(_) => assert!(said.exits(0).stdout.starts_with("MATCH")),
        Err(missing) => assert_eq!(said.exits(2).stderr.trim_end(), format!("qdiff: {missing}")),
    }
}

/// One element of 151,936 · 7.
#[test]
fn one_wrong_logit_of_the_real_vocabulary() {
    let folder = real_folder();
    let fault = "one-tile-wrong:row=4,rows=1,column=77777,columns=1@logits";
    let clean = "logits -m model.gguf --tokens 151644,872,198,7985,264,6386 -n 1";
    let (code, json, text) = folder.told(&format!("{clean} --inject {fault}"));
    assert_eq!(code, 1, "{text}");
    fits_a_screen(&text);
    let study = &json["study"];
    assert_eq!(study["logits"], 151_936 * 7, "{text}");
    assert_eq!(study["wrong"], 1, "{text}");
    assert_eq!(study["listed"], json!([77_777]), "{text}");
    assert_eq!(study["places"]["positions"], json!([4]), "{text}");
    assert_eq!(study["reference_wrong"], 0, "{text}");
    let suspect = &study["suspects"][0];
    assert_eq!((&suspect["id"], &suspect["position"]), (&77_777.into(), &4.into()), "{text}");
    let value = |v: &Value| v.as_f64().unwrap();
    let (product, reference) = (value(&suspect["product"]), value(&suspect["reference"]));
    assert!((product - reference).abs() < 1.0, "{text}");
    assert!((value(&suspect["subject"]) - product).abs() > 1e-3, "{text}");
    let cause = &json["verdict"]["findings"][0]["cause"]["name"];
    assert_eq!(cause, "one-column-wrong:column=77777", "{text}");

    // The padding theory of CASES.md, on the clean engine.
    let (code, json, text) = folder.told(clean);
    assert_eq!(code, 0, "{text}");
    fits_a_screen(&text);
    let ids = &json["study"]["ids"];
    for (field, value) in
        [("rows", 151_936), ("listed", 151_936), ("scanned", 151_936), ("padding", 271), ("first_padding", 151_665)]
    {
        assert_eq!(ids[field], value, "{field}: {text}");
    }
    assert_eq!(json["study"]["padding"]["wins"], 0, "{text}");
    assert_eq!(json["study"]["wrong"], 0, "{text}");
    let words = unwrapped(&text);
    assert!(words.contains("llama.cpp scans them all as well"), "{text}");
    assert!(words.contains("leaving it out changes no choice: padding is not what goes wrong here"), "{text}");
}

/// Every id is wrong and none is an outlier; some ids are stale; one is NaN.
#[test]
fn the_kinds_of_garbage_are_told_apart() {
    let folder = folder();
    let run = |fault: &str| {
        let (code, json, text) = folder.told(&format!("logits -m model.gguf -n 3 --inject {fault}"));
        assert_eq!(code, 1, "{fault}: {text}");
        fits_a_screen(&text);
        Schema::printed("logits").check(&json).unwrap();
        (json, text)
    };
    let (json, text) = run("lm-head-transposed");
    assert_eq!(json["study"]["wrong_ids"], 512, "{text}");
    assert_eq!(json["study"]["outliers"], 0, "{text}");
    assert!(text.contains("no fault of single ids"), "{text}");
    assert!(headline(&text).contains("(lm-head-transposed)"), "{text}");

    let (json, text) = run("logits-stale:stride=100,phase=7");
    let listed = json!([7, 107, 207, 307, 407, 507]);
    assert_eq!(json["study"]["listed"], listed, "{text}");
    let count = |field: &str| json["study"][field].as_u64().unwrap();
    // The buffer was zero before the first step, and nothing was ever written.
    assert_eq!(count("zero"), count("wrong"), "{text}");
    assert_eq!(count("wrong"), 6 * json["study"]["rows"].as_u64().unwrap());
    assert!(text.contains("every 100th id from 7 on"), "{text}");

    let (json, text) = run("scaled:by=inf@logits");
    assert_eq!(json["study"]["non_finite"], json["study"]["logits"], "{text}");
    assert_eq!(json["study"]["suspects"][0]["why"], "non-finite", "{text}");
}

/// Wrong upstream: the logits are right products of a wrong state, and the
/// report says so.
#[test]
fn a_wrong_hidden_state_is_no_wrong_logit() {
    let (code, json, text) = folder().told("logits -m model.gguf --inject residual-missing@L00");
    assert_eq!(code, 0, "{text}");
    assert_eq!(json["study"]["wrong"], 0, "{text}");
    assert!(json["study"]["hidden"].as_f64().unwrap() > 0.1, "{text}");
    assert!(text.contains("look upstream"), "{text}");
}

/// The one finding of a run with this fault: stage, cause and the JSON of it.
fn finding(fault: &str, decode: usize) -> (Value, Value, String) {
    let folder = folder_with(&Synth { n_layers: 6, n_heads: 8, head_dim: 32, ..Synth::default() });
    let (code, json, text) = folder.judged(&format!("-n {decode} --inject {fault}"));
    assert_eq!(code, 1, "{text}");
    let findings = json.findings();
    assert_eq!(findings.len(), 1, "{text}");
    let finding = findings[0].clone();
    let stage = json.stages().iter().find(|s| s["stage"] == finding["stage"]);
    (finding, stage.unwrap().clone(), text)
}

#[test]
fn one_wrong_head_of_one_layer() {
    for (stage, head) in [("L04.attn_context", 5), ("L03.q_rope", 6), ("L05.attn_weights", 2)] {
        let (finding, _, text) = finding(&format!("one-head-wrong:head={head}@{stage}"), 2);
        assert_eq!(finding["stage"], stage, "{text}");
        let cause = format!("one-head-wrong:head={head}");
        assert_eq!(finding["cause"]["name"], cause, "{text}");
    }
}

#[test]
fn one_wrong_position_at_decode_step_5() {
    // The haiku's tokens come first.
    let (_, json, _) = folder().judged("-n 0");
    let position = json["run"]["tokens"].as_array().unwrap().len() + 4;
    for stage in ["L02.ffn_down", "L03.k_rope"] {
        let fault = format!("one-row-wrong:position={position}@{stage}");
        let (finding, result, text) = finding(&fault, 8);
        assert_eq!(finding["stage"], stage, "{text}");
        let first = &result["subject"]["first_bad"];
        assert_eq!((&first["step"], &first["position"]), (&5.into(), &position.into()), "{text}");
        let bad = &result["subject"]["bad_positions"];
        assert_eq!(bad, &json!([position]), "{text}");
        let cause = format!("one-row-wrong:position={position}");
        assert_eq!(finding["cause"]["name"], cause, "{text}");
    }
}
