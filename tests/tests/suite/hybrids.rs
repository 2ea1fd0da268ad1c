//! Gated attention and gated delta nets, through the binary: every stage of a right engine is judged and matches llama.cpp,
//! in all shapes and wherever a prompt is cut, and a fault is found at its stage.

use qdiff::capture::Plan;
use qdiff::loaded::LoadedModel;
use qdiff::pair::{Pair, Settings};
use qdiff::progress::silent;
use qdiff::runners::cpu::Cpu;
use qdiff::sequences::record;
use qdiff_engine::quant::GgmlType;
use qdiff_engine::tap::{Intervene, Site};
use qdiff_tests::synth::{Setting, Synth};
use qdiff_tests::{Told, files, folder_with};
use serde_json::Value;

pub(crate) fn model(arch: &'static str, integers: &[(&str, usize)]) -> Synth {
    let settings = integers.iter().map(|(key, n)| ((*key).to_owned(), Setting::Integer(*n))).collect();
    Synth { arch, settings, ..Synth::default() }
}

/// The delta net: length of a head, heads of keys and of values; taps of the convolution.
pub(crate) fn net([dim, keys, values, taps]: [usize; 4]) -> [(&'static str, usize); 5] {
    [
        ("ssm.state_size", dim),
        ("ssm.group_count", keys),
        ("ssm.time_step_rank", values),
        ("ssm.inner_size", dim * values),
        ("ssm.conv_kernel", taps),
    ]
}

pub(crate) fn models() -> Vec<Synth> {
    vec![
        model("qwen35", &[]),
        Synth {
            n_layers: 3,
            n_heads: 3,
            n_kv_heads: 1,
            head_dim: 96,
            tied: true,
            ..model("qwen35", &net([32, 3, 9, 3]))
        },
        Synth { weight_type: GgmlType::F32, ..model("qwen35", &net([48, 5, 5, 4])) },
        Synth { weight_type: GgmlType::Q4_K, ..model("qwen35moe", &[]) },
        Synth { fused: true, weight_type: GgmlType::F16, ..model("qwen35moe", &net([32, 2, 4, 4])) },
        model("qwen3next", &[]),
        Synth { fused: true, n_heads: 5, n_kv_heads: 5, n_embd: 320, ..model("qwen3next", &net([32, 4, 4, 4])) },
        model("qwen3next", &net([64, 1, 3, 5])),
        // Blocks of keys are chosen beyond 8 keys; in F32; with a convolution in F16.
        model("qwen4exp", &[]),
        Synth { weight_type: GgmlType::F32, tied: true, ..model("qwen4exp", &[("hyper_connection.count", 4)]) },
        Synth {
            n_heads: 3,
            n_kv_heads: 1,
            head_dim: 96,
            overrides: vec![("blk.0.ple_conv1d.weight".to_owned(), GgmlType::F16)],
            ..model("qwen4exp", &[("attention.indexer.head_count", 3), ("ple.conv_kernel", 2)])
        },
    ]
}

#[test]
fn every_stage_matches_llama_cpp() {
    for model in models() {
        let folder = folder_with(&model);
        // In one part, and cut where a window of the convolution reaches over the cut.
        for passes in ["-n 3", "-n 0", "--passes 20,2,1,9,2,1"] {
            let (code, report, text) = folder.judged(&format!("{passes} --subject cpu"));
            assert_eq!(code, 0, "{model:?}\n{text}");
            let coverage = &report["verdict"]["coverage"];
            // llama.cpp gives some stages of residual streams no name.
            let unnamed = model.arch == "qwen4exp";
            assert!(report.is_whole() || unnamed && coverage["asked"] == coverage["judged"], "{text}");
            let stages = report.stages();
            let name = |stage: &Value| stage["stage"].as_str().unwrap().to_owned();
            // Nothing reads a state after the only step.
            let unread =
                |stage: &Value| passes == "-n 0" && name(stage).ends_with("_state") && stage["status"] == "alone";
            let right = |s: &Value| s["status"] == "match" || unnamed && (s["status"] == "covered" || unread(s));
            assert!(stages.len() > 50 && stages.iter().all(right), "{text}");
        }
    }
}

#[test]
fn the_oracle_holds() {
    for arch in ["qwen35", "qwen35moe", "qwen3next", "qwen4exp"] {
        let said = folder_with(&model(arch, &[])).qdiff("verify-oracle -m model.gguf -n 2").exits(0);
        assert!(said.stdout.starts_with("MATCH"), "{said}");
    }
}

/// The battery judges every row, as states follow from all of them.
#[test]
fn the_battery_is_complete() {
    let said = folder_with(&model("qwen35", &[])).qdiff("check -m model.gguf --subject cpu");
    assert!(said.code == 0 && said.stdout.starts_with("MATCH"), "{said}");
}

/// Where the stages within were not captured, what is left is judged over them, states and all.
#[test]
fn segments_go_through_states() {
    for arch in ["qwen35", "qwen3next"] {
        let folder = folder_with(&model(arch, &[]));
        let (code, _, text) = folder.judged("-n 3 --subject cpu --taps embed,layer_out,final_norm,logits");
        assert_eq!(code, 0, "{text}");
        let (code, report, text) = folder
            .judged("-n 3 --subject cpu --taps embed,*_residual,layer_out,logits --inject delta-decay-missing@L00");
        assert_eq!((code, report.origins()), (1, vec!["L00.attn_residual"]), "{text}");
    }
}

/// Passes of several sequences: chunks, a prefix that is shared, drafts that are taken back in part, a sequence that begins anew.
const BATCHES: [(&str, usize); 5] = [
    ("7,5+1+17@0", 30),
    ("40,1~20", 41),
    ("9+4,5+5,1~4+2~1,1", 27),
    ("6,3+2,4~all+1", 16),
    ("7,1,1,0+4@0:8,1,12~1,1~11", 27),
];

/// Each sequence of a pass has states of its own, which a prefix hands on and a rejected draft takes back.
#[test]
fn several_sequences_match() {
    // A product of one row alone is added up in another order where weights are no blocks.
    for (arch, weight_type) in [("qwen35", GgmlType::F32), ("qwen35moe", GgmlType::Q8_0), ("qwen3next", GgmlType::BF16)]
    {
        let folder = folder_with(&Synth { weight_type, ..model(arch, &[]) });
        for (plan, length) in BATCHES {
            let said =
                folder.qdiff(&format!("run -m model.gguf --subject cpu --sequences {plan} --length {length}")).exits(0);
            assert!(said.stdout.contains(" MATCH"), "{arch} {plan}: {said}");
        }
        let of_plan = format!("--sequences {} --length 27", BATCHES[2].0);
        folder.qdiff(&format!("record -m model.gguf {of_plan} --out several")).exits(0);
        folder.qdiff("run -m model.gguf --subject capture:several").exits(0);
        for report in files(&folder.join("qdiff-report")) {
            assert!(folder.json(&format!("qdiff-report/{report}/report.json")).is_whole(), "{arch}: {report}");
        }
    }
}

/// llama.cpp makes states again for a prefix and after a rejected draft. Of rounded activations, and where experts are chosen,
/// these may be other states than the pass left: what follows is judged on them.
#[test]
fn states_that_llama_cpp_makes_again_are_its_own() {
    let wide = |arch| Synth { n_layers: 4, n_heads: 8, n_kv_heads: 1, n_embd: 512, head_dim: 64, ..model(arch, &[]) };
    let folder = folder_with(&Synth { weight_type: GgmlType::Q4_K, ..wide("qwen35moe") });
    let said = folder.qdiff("check --serving -m model.gguf --subject cpu").exits(0);
    assert!(said.stdout.starts_with("MATCH: 13 of 13"), "{said}");
}

/// llama.cpp does otherwise with a cache of several sequences.
#[test]
fn blocks_of_keys_are_chosen_in_one_sequence() {
    let folder = folder_with(&model("qwen4exp", &[]));
    let words = ["llama.cpp chooses blocks of keys by their place in its cache", "give --reference none"];
    folder.refuses("run -m model.gguf --subject cpu --sequences 7,5+1+17 --length 30", &words);
    // Without llama.cpp it is judged; nothing says that it matches.
    folder.qdiff("run -m model.gguf --subject cpu --sequences 7,5+1+17 --length 30 --reference none").exits(3);
}

/// An engine whose window of the convolution keeps the tokens of a rejected draft.
struct DraftKept {
    pass: usize,
    window: Vec<f32>,
}

impl Intervene for DraftKept {
    fn change(&mut self, site: Site<'_>) {
        let (name, layer) = (site.node.id.name, site.node.id.layer);
        if layer != Some(0) || !["conv_out", "conv_state"].contains(&name) {
            return;
        }
        let (x, n) = (&site.inputs[0], site.inputs[0].row_len());
        let states = site.inputs.get(1).map_or(&site.output.data, |window| &window.data);
        self.window.resize(states.len(), 0.0);
        let all = [&self.window[..], &x.data[..]].concat();
        if name == "conv_state" {
            self.window = all[all.len() - self.window.len()..].to_vec();
            site.output.data.copy_from_slice(&self.window);
            return;
        }
        self.pass += 1;
        // The third pass comes after the draft.
        if self.pass == 3 {
            let w: Vec<f32> = site.context.vector(0);
            let taps = self.window.len() / n + 1;
            for (i, out) in site.output.data.iter_mut().enumerate() {
                *out = (0..taps).map(|tap| w[i % n * taps + tap] * all[i + tap * n]).sum();
            }
        }
    }
}

/// It is found after the draft, in the run without it, and nowhere else.
#[test]
fn a_state_that_keeps_a_rejected_draft_is_found() {
    let folder = folder_with(&model("qwen35", &[]));
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let plan: Plan = "9,5,1~4".parse().unwrap();
    let tokens: Vec<u32> = (0..15).map(|i| 3 + i * 7 % 200).collect();
    let mut cpu = Cpu::intervened(&opened.model, Box::new(DraftKept { pass: 0, window: Vec::new() }));
    let found = record(&pair, &mut cpu, &plan, &tokens).unwrap().into_iter().map(|subject| {
        let diagnosis = pair.judge(&subject, None).unwrap();
        diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect::<Vec<_>>()
    });
    assert_eq!(found.collect::<Vec<_>>(), [vec![], vec!["L00.conv_state".to_owned(), "L00.conv_out".to_owned()]]);
}

/// Each fault alone: where it is found, and that it is called by its name.
#[test]
fn each_fault_is_found_and_named() {
    let faults: &[(&str, &str, &[&str])] = &[
        ("qwen35", "delta-head-map", &["delta_state", "delta_out"]),
        ("qwen3next", "delta-head-map", &["delta_q_normed", "delta_k_normed"]),
        ("qwen35", "state-not-carried", &["conv_out", "delta_state", "delta_out"]),
        ("qwen35", "window-of-the-step-alone", &["conv_state"]),
        ("qwen35", "state-counted-twice", &["delta_state", "delta_out"]),
        ("qwen35", "delta-decay-after", &["delta_state", "delta_out"]),
        ("qwen35", "delta-before-decay", &["delta_state", "delta_out"]),
        ("qwen35", "state-in-bf16", &["delta_state", "delta_out"]),
        ("qwen35", "state-stored-in-bf16", &["delta_out"]),
        ("qwen35", "state-not-updated", &["conv_state", "delta_state"]),
        ("qwen35", "window-not-moved", &["conv_state"]),
        ("qwen35", "delta-decay-missing", &["delta_state", "delta_out"]),
        ("qwen35", "delta-beta-missing", &["delta_state", "delta_out"]),
        ("qwen35", "delta-unscaled", &["delta_out"]),
        ("qwen35", "conv-window-off", &["conv_out"]),
        ("qwen35", "conv-taps-reversed", &["conv_out"]),
        ("qwen35", "l2-norm-missing", &["delta_q_normed", "delta_k_normed"]),
        ("qwen3next", "l2-norm-as-mean", &["delta_q_normed", "delta_k_normed"]),
        ("qwen35", "a-log-again", &["delta_decay"]),
        ("qwen3next", "halves-split-flat", &["delta_b", "delta_a"]),
    ];
    let streams: &[(&str, &str, &[&str])] = &[
        ("qwen4exp", "streams-summed", &["attn_norm", "ffn_norm"]),
        ("qwen4exp", "stream-gates-missing", &["attn_norm", "ffn_norm"]),
        (
            "qwen4exp",
            "streams-normed-together",
            &["ngram_key_normed", "ngram_normed", "attn_streams_norm", "ffn_streams_norm"],
        ),
        ("qwen4exp", "stream-weights-not-doubled", &["attn_stream_weights", "ffn_stream_weights"]),
        (
            "qwen4exp",
            "stream-share-missing",
            &["attn_streams_act", "attn_stream_weights", "ffn_streams_act", "ffn_stream_weights"],
        ),
        ("qwen4exp", "ngram-gate-without-root", &["ngram_gate"]),
        ("qwen4exp", "taps-side-by-side", &["ngram_conv"]),
        ("qwen4exp", "output-gate-as-silu", &["delta_gated"]),
    ];
    let attention: &[(&str, &str, &[&str])] = &[
        ("qwen4exp", "pooled-keys-unrotated", &["index_scores"]),
        ("qwen4exp", "tail-keys-left-out", &["index_keys"]),
        ("qwen4exp", "budget-of-keys-as-blocks", &["index_keys"]),
        ("qwen4exp", "newest-blocks-chosen", &["index_keys"]),
        ("qwen35", "halves-split-flat", &["q_half", "gate_half"]),
        ("qwen3next", "attention-gate-missing", &["attn_gated"]),
        ("qwen35", "rope-of-whole-heads", &["q_rope", "k_rope"]),
        ("qwen35", "gate-sigmoid-missing", &["gate_sigmoid"]),
    ];
    let mut wrong = Vec::new();
    for (layer, faults) in [(0, faults), (0, streams), (1, attention)] {
        for (arch, fault, stages) in faults {
            let inject = format!("-n 3 --subject cpu --inject {fault}@L{layer:02}");
            let (code, report, text) = folder_with(&model(arch, &[])).judged(&inject);
            let expected: Vec<String> = stages.iter().map(|stage| format!("L{layer:02}.{stage}")).collect();
            let found = report.origins();
            let named = |f: &Value| f["cause"]["name"].as_str().and_then(|n| n.split(':').next()) == Some(fault);
            let findings = report.findings();
            if code != 1 || found != expected || !findings.iter().all(named) {
                wrong.push(format!("{arch} {fault}: exit {code}, {found:?} for {expected:?}\n{text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// llama.cpp reads of no Qwen at which planes the scaling of angles begins and ends.
#[test]
fn the_reference_is_wrong_where_yarn_begins_elsewhere() {
    for arch in ["qwen3", "qwen35"] {
        let settings = vec![
            ("rope.scaling.type".to_owned(), Setting::Text("yarn".to_owned())),
            ("rope.scaling.factor".to_owned(), Setting::Real(4.0)),
            ("rope.scaling.original_context_length".to_owned(), Setting::Integer(64)),
            ("rope.scaling.yarn_beta_fast".to_owned(), Setting::Real(4.0)),
        ];
        let folder = folder_with(&Synth { arch, settings, ..Synth::default() });
        let (code, _, text) = folder.judged("-n 1 --subject cpu");
        let said = qdiff_tests::headline(&text);
        assert!(code == 1 && said.contains("the reference is wrong here"), "{text}");
        assert!(
            said.contains(&format!("llama.cpp never reads the metadata key `{arch}.rope.scaling.yarn_beta_fast`")),
            "{text}"
        );
    }
}

/// Angles scaled for a longer context, all of them or those of slow planes, in whole heads and in parts of them.
#[test]
fn longer_contexts_match() {
    let (yarn, factor, extra) = ("rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor");
    let text = || Setting::Text("yarn".to_owned());
    let trained = ("rope.scaling.original_context_length".to_owned(), Setting::Integer(256));
    for arch in ["qwen2", "qwen3", "qwen35"] {
        for settings in [
            vec![(factor.to_owned(), Setting::Real(8.0))],
            vec![("rope.scale_linear".to_owned(), Setting::Real(2.0)), (extra.to_owned(), Setting::Real(1.25))],
            vec![(yarn.to_owned(), text()), (factor.to_owned(), Setting::Real(4.0)), trained.clone()],
            vec![(yarn.to_owned(), text()), (factor.to_owned(), Setting::Real(0.5)), trained.clone()],
        ] {
            let (code, _, said) =
                folder_with(&Synth { arch, settings, ..Synth::default() }).judged("-n 2 --subject cpu");
            assert_eq!(code, 0, "{arch}\n{said}");
        }
    }
}
