//! The CUDA engine on an emulated card (`tests/emulated/card.cpp`), through the binary: what runs is the engine, its launches
//! and its kernels, and what judges them are the oracle and llama.cpp. Where no path is named, it is the tapped one.

use super::{experts, hybrids};
use qdiff_engine::quant::{CACHES, GgmlType};
use qdiff_tests::card::Card;
use qdiff_tests::synth::{Lora, Setting, Synth};
use qdiff_tests::{Folder, Told, folder_with, share, whole};
use serde_json::Value;

/// Tokens of a prompt, where `scripts/test-all` takes all 35 of the default one: a card of fibers takes its time by the token.
const TOKENS: &str = "--length 12";

/// `qdiff run` on the card: exit code, JSON, screen.
fn judged(card: &Card, folder: &Folder, extra: &str) -> (i32, Value, String) {
    let tokens =
        if whole() || ["--prompt", "--length"].iter().any(|given| extra.contains(given)) { "" } else { TOKENS };
    let path = if extra.contains("--subject") { "" } else { "--subject cuda" };
    let line = format!("run -m model.gguf {path} --oracle cpu {tokens} {extra} --json told.json");
    let said = folder.qdiff_on(card, &line);
    assert_ne!(said.code, 2, "{line}: {said}");
    (said.code, folder.json("told.json"), said.stdout)
}

/// Every stage is judged, and is right.
fn matches(card: &Card, model: &Synth, extra: &str) {
    let (code, report, text) = judged(card, &folder_with(model), extra);
    assert_eq!(code, 0, "{model:?} {extra}\n{text}");
    assert!(report.is_whole(), "{text}");
    let stages = report.stages();
    // Partial sums of ranks, which the reference does not give, are judged with the sum.
    let right = |stage: &Value| ["match", "covered"].iter().any(|status| stage["status"] == *status);
    assert!(stages.len() > 40 && stages.iter().all(right), "{text}");
}

#[test]
fn experts_of_odd_shapes_match() {
    let card = Card::new();
    for model in experts::odd() {
        matches(&card, &model, "-n 2");
    }
}

/// A decode step by the fused kernels, in which the chosen experts come through rings where their rows are whole blocks of 256
/// weights: of the three formats that have such, with tiles that all blocks share out; with routers that are no F32; and a
/// prompt in parts.
#[test]
fn experts_of_the_fused_kernels_match() {
    let card = Card::new();
    let experts = |all: [usize; 3]| {
        let keys = ["expert_count", "expert_used_count", "expert_feed_forward_length"];
        keys.into_iter().zip(all).map(|(key, n)| (key.to_owned(), Setting::Integer(n))).collect()
    };
    let narrower = |model: &Synth| model.n_embd == 160;
    for model in experts::odd().into_iter().filter(|model| model.arch == "qwen3moe" && !narrower(model)) {
        matches(&card, &model, "--subject cuda-fast -n 2");
    }
    let overridden = |all: &[(&str, GgmlType)]| all.iter().map(|(name, ty)| ((*name).to_owned(), *ty)).collect();
    let of_others = [
        ("blk.0.ffn_down_exps.weight", GgmlType::Q6_K),
        ("blk.1.ffn_down_exps.weight", GgmlType::Q5_K),
        ("blk.0.ffn_gate_inp.weight", GgmlType::Q8_0),
        ("blk.1.ffn_gate_inp.weight", GgmlType::F16),
    ];
    let mixed = Synth {
        arch: "qwen3moe",
        weight_type: GgmlType::Q4_K,
        n_embd: 512,
        settings: experts([11, 5, 256]),
        overrides: overridden(&of_others),
        ..Synth::default()
    };
    matches(&card, &mixed, "--subject cuda-fast --length 12 --passes 5,2,1,3,1 --kv-type f16");
    let odd =
        Synth { n_heads: 1, n_kv_heads: 1, head_dim: 32, n_embd: 160, weight_type: GgmlType::Q5_1, ..mixed.clone() };
    let odd = Synth { settings: experts([37, 3, 96]), n_heads: 3, overrides: Vec::new(), ..odd };
    matches(&card, &odd, "--subject cuda-fast -n 2");
    // One stage alone: nothing else is written, and it is what it was.
    let some = "--subject cuda-fast -n 1 --taps L*.router_experts,L01.expert_down,logits";
    let (code, _, text) = judged(&card, &folder_with(&mixed), some);
    assert_eq!(code, 0, "{text}");
}

/// Products of experts that are multiplied by a scale of their own.
#[test]
fn scaled_experts_match() {
    let scaled = Synth { arch: "qwen3moe", weight_type: GgmlType::NVFP4, scales: true, ..Synth::default() };
    matches(&Card::new(), &scaled, "-n 2");
}

/// Sequences that have adapters of their own in one pass, by either kind of product; and a kernel that takes the scale of none.
#[test]
fn adapters_of_a_batch_match() {
    let (card, model) = (Card::new(), Synth { arch: "qwen3", weight_type: GgmlType::Q8_0, ..Synth::default() });
    let folder = folder_with(&model);
    for (name, rank, ty) in [("f32", 8, GgmlType::F32), ("f16", 5, GgmlType::F16)] {
        let lora = Lora { rank, alpha: 16.0, matrices: &[], ty, seed: rank as u64 };
        std::fs::write(folder.join(format!("{name}.gguf")), model.adapter(&lora)).unwrap();
    }
    let batch = "run -m model.gguf --subject cuda --oracle cpu --adapter 1=f32.gguf --adapter 2=f16.gguf --prompt long --length 20 \
                 --sequences 3+4+6,1+1+1,1+0+3";
    for options in ["", "--gemm cublas --kv-type f16"] {
        let said = folder.qdiff_on(&card, &format!("{batch} {options}")).exits(0);
        assert!(said.stdout.contains("3 runs: 3 MATCH"), "{said}");
    }
    let bug = card.with_bug("expert_factor.cu", "p.w[place]", "p.w[0]");
    let said = folder.qdiff_on(&bug, batch).exits(1);
    assert!(said.stdout.contains("3 runs: 2 DIVERGED, 1 MATCH") && said.stdout.contains("L00.q_lora"), "{said}");
}

/// Whether the rows of all matrices are whole groups of 32 weights, as the kernels read them.
fn in_groups(model: &Synth) -> bool {
    let cut = |value: &Setting| matches!(value, Setting::Integer(n) if n % 32 != 0);
    !model.settings.iter().any(|(key, value)| key == "ssm.inner_size" && cut(value))
}

/// Prompts in one part, and cut where a window of the convolution reaches over the cut; heads of 32 to 96.
#[test]
fn delta_nets_of_odd_shapes_match() {
    let card = Card::new();
    let of_48 = Synth { weight_type: GgmlType::F32, ..hybrids::model("qwen35", &hybrids::net([48, 2, 4, 4])) };
    for (i, model) in hybrids::models().iter().filter(|m| in_groups(m)).chain([&of_48]).enumerate() {
        let passes = if whole() { "--passes 20,2,1,9,2,1" } else { "--passes 5,2,1,3,1" };
        matches(&card, model, if i % 2 == 0 { "-n 2" } else { passes });
    }
}

/// A decode step by the fused kernels: rows through rings and one by one, formats that differ within a layer, more value heads than key
/// heads, heads of 16 to 128, windows of other lengths, a first step of one token.
#[test]
fn delta_nets_of_the_fused_kernels_match() {
    let card = Card::new();
    let of = |weight_type, net| Synth { weight_type, ..hybrids::model("qwen35", &hybrids::net(net)) };
    let rings = Synth {
        n_embd: 512,
        overrides: vec![
            ("blk.0.attn_qkv.weight".to_owned(), GgmlType::Q6_K),
            ("blk.0.ssm_beta.weight".to_owned(), GgmlType::F32),
            ("blk.0.ssm_out.weight".to_owned(), GgmlType::Q5_K),
        ],
        ..of(GgmlType::Q4_K, [128, 2, 4, 4])
    };
    let models = [
        (rings.clone(), "-n 2 --kv-type f16"),
        (of(GgmlType::Q8_0, [16, 3, 6, 4]), "--passes 1,5,1,2,2,1"),
        (of(GgmlType::F16, [64, 1, 3, 2]), "-n 2"),
        (of(GgmlType::Q5_1, [32, 2, 2, 5]), "-n 2 --kv-type f16"),
    ];
    for (model, extra) in &models {
        matches(&card, model, &format!("--subject cuda-fast {extra}"));
    }
    // Some stages alone: nothing else is written, and it is what it was.
    let some = "--subject cuda-fast -n 1 --taps delta_state,conv_state,logits";
    let (code, _, text) = judged(&card, &folder_with(&rings), some);
    assert_eq!(code, 0, "{text}");
}

/// Both ways to make products, caches of halves, formats that no kernel reads, and several sequences in one pass.
#[test]
fn other_ways_to_run_match() {
    let card = Card::new();
    let of = |arch, weight_type| Synth { arch, weight_type, ..Synth::default() };
    let fused = |arch, weight_type| Synth { fused: true, ..of(arch, weight_type) };
    matches(&card, &fused("qwen2moe", GgmlType::Q5_K), "-n 2 --gemm cublas --kv-type f16");
    for arch in ["qwen2", "qwen35"] {
        matches(&card, &fused(arch, GgmlType::Q4_K), "--subject cuda-fast -n 2");
    }
    matches(&card, &of("qwen35moe", GgmlType::Q6_K), "-n 2 --gemm cublas --kv-type f16");
    matches(&card, &of("qwen3moe", GgmlType::IQ4_XS), "-n 2");
    matches(&card, &of("qwen3next", GgmlType::MXFP4), "-n 2");
    for (arch, sequences, runs) in [
        ("qwen3moe", "7,5+1+17@0 --length 30", 3),
        ("qwen35", "9+4,5+5,1~4+2~1,0+0+9@0:9 --length 35", 5),
        ("qwen3next", "7,5+1+17@0 --length 30", 3),
        ("qwen4exp", "9,5,1~4 --length 15", 2),
    ] {
        let folder = folder_with(&of(arch, GgmlType::Q8_0));
        let line = format!("run -m model.gguf --subject cuda --oracle cpu --sequences {sequences}");
        let said = folder.qdiff_on(&card, &line).exits(0);
        assert!(said.stdout.starts_with(&format!("{runs} runs: {runs} MATCH")), "{arch}: {said}");
    }
}

/// The fused path in passes of several sequences: a prefill beside a decode step, a shared prefix, a draft that is taken back,
/// slots that are used again, and passes that are one graph.
#[test]
fn the_fused_path_runs_several_sequences() {
    let card = Card::new();
    for (arch, weight_type, kv) in [("qwen2", GgmlType::Q4_K, "f16"), ("qwen3", GgmlType::Q8_0, "f32")] {
        let folder = folder_with(&Synth { arch, weight_type, fused: true, ..Synth::default() });
        let run = format!("run -m model.gguf --subject cuda-fast --oracle cpu --kv-type {kv} --sequences");
        for (plan, runs) in [
            ("7,11+1+17@0,1+1+1 --length 39", 3),
            ("9+4,5+5,1~4+2~1,0+0+9@0:9,1+1+1 --length 38", 5),
            ("6+4,0~all+1,9+1 --length 21", 3),
        ] {
            let said = folder.qdiff_on(&card, &format!("{run} {plan}")).exits(0);
            assert!(said.stdout.starts_with(&format!("{runs} runs: {runs} MATCH")), "{arch} {plan}: {said}");
        }
        // A pass of which no stage of a layer is captured runs as one graph.
        let record = format!("record -m model.gguf --runner cuda-fast --kv-type {kv} --stages logits --out graph");
        folder.qdiff_on(&card, &format!("{record} --sequences 9+2,2x1+1,1~1+1 --length 17")).exits(0);
        let said = folder.qdiff_on(&card, "run -m model.gguf --subject capture:graph --oracle cpu").exits(0);
        assert!(said.stdout.starts_with("3 runs: 3 MATCH"), "{arch}: {said}");
    }
}

/// Caches of every type on the tapped path: their rows are what ggml stores, to the last bit, in several sequences too, and keys
/// of blocks. `scripts/test` takes every fourth type.
#[test]
fn caches_of_every_type_match() {
    let (card, folder) = (Card::new(), folder_with(&Synth::default()));
    let names = CACHES.map(|(name, ..)| name).into_iter().filter(|name| !["f32", "f16"].contains(name));
    for kv in ["q8_0/q4_1"].into_iter().chain(share(names, 4)) {
        // llama.cpp has no caches in 8-bit floating point; without a reference nothing is a match.
        let (reference, told) = if kv.starts_with("f8") { ("--reference none", 3) } else { ("", 0) };
        let (code, report, text) = judged(&card, &folder, &format!("-n 2 --kv-type {kv} {reference}"));
        assert_eq!((code, report.is_whole()), (told, true), "{kv}\n{text}");
        assert_eq!(report["subject"]["arithmetic"]["kv"], kv);
        let caches = report.stages().iter().filter(|stage| stage["stage"].as_str().unwrap().ends_with("_cache"));
        let off: Vec<_> = caches.map(|stage| &stage["subject"]["residual"]).collect();
        assert!(off.len() == 4 && off.iter().all(|off| **off == 0.0), "{kv} {off:?}");
    }
    let several = "--sequences 7,5+1+17@0,1+1+1 --length 33 --kv-type q5_1/iq4_nl";
    let said = folder.qdiff_on(&card, &format!("run -m model.gguf --subject cuda --oracle cpu {several}")).exits(0);
    assert!(said.stdout.starts_with("3 runs: 3 MATCH"), "{said}");
    let pooled = folder_with(&Synth { arch: "qwen4exp", ..Synth::default() });
    let (code, report, text) = judged(&card, &pooled, "-n 2 --kv-type q8_0 --reference none");
    assert_eq!((code, report.is_whole(), report.origins().len()), (3, true, 0), "{text}");
}

/// A rank on each of two cards: a prompt in parts, and decode steps that are replayed as one graph with its taps and collectives.
#[test]
fn ranks_match() {
    let card = Card::new();
    let of = |weight_type| Synth { weight_type, ..Synth::default() };
    matches(&card, &of(GgmlType::Q8_0), "--ranks 2 -n 3 --prompt haiku --ubatch 8");
    matches(&card, &Synth { fused: true, ..of(GgmlType::F16) }, "--ranks 2:vocab=whole -n 3 --kv-type f16");
}

/// Angles scaled for a longer context, in whole heads and in parts of them.
#[test]
fn longer_contexts_match() {
    let card = Card::new();
    let yarn = [
        ("rope.scaling.type", Setting::Text("yarn".to_owned())),
        ("rope.scaling.factor", Setting::Real(4.0)),
        ("rope.scaling.original_context_length", Setting::Integer(256)),
    ];
    let settings = yarn.map(|(key, value)| (key.to_owned(), value)).to_vec();
    for arch in ["qwen2", "qwen35"] {
        matches(&card, &Synth { arch, settings: settings.clone(), ..Synth::default() }, "-n 1");
    }
}

/// A bug in a kernel is found at the stages that the kernel makes. `scripts/test` takes every second bug, looks for the cause of
/// the first alone, and runs the subject again for that one alone.
#[test]
fn a_bug_in_a_kernel_is_found_at_its_stage() {
    let bugs: [(&str, &str, &str, &str, &[&str]); 20] = [
        ("qwen3moe", "fused/expert_act.cu", "{row0, row0}", "{chosen.places[0] * p.m, row0}", &["expert_gate"]),
        ("qwen3moe", "fused/router.cu", "groups - 1)", "groups - 2)", &["router"]),
        ("qwen3moe", "fused/expert_down.cu", "item % taken * blocks", "item % 2 * blocks", &["expert_down"]),
        ("qwen3moe", "fused/expert_down.cu", "fmaf(weights[slot]", "fmaf(weights[0]", &["experts_out"]),
        ("qwen3moe", "top_k.cu", "other > own ||", "other < own ||", &["router_experts"]),
        ("qwen3moe", "gather.cu", "(i / p.k) * p.n", "(i / p.k % 2) * p.n", &["router_weights"]),
        ("qwen3moe", "row_softmax.cu", "y[i] /= total", "y[i] /= total * 1.001f", &["router_probs"]),
        ("qwen3moe", "row_shares.cu", "j < p.k", "j < p.k - 1", &["router_shares"]),
        (
            "qwen3moe",
            "expert_linear.cu",
            "((size_t)expert * p.m + o)",
            "((size_t)expert * p.m + o / 2)",
            &["expert_gate", "expert_up", "expert_down"],
        ),
        ("qwen2moe", "weighted_sum.cu", "w[j]", "w[p.terms - 1 - j]", &["experts_out"]),
        (
            "qwen35",
            "l2_norm.cu",
            "reduce_sum(squares)",
            "reduce_sum(squares) / p.d",
            &["delta_q_normed", "delta_k_normed"],
        ),
        ("qwen35", "convolution.cu", "p.before[(size_t)row * p.n + c]", "0.0f", &["conv_out"]),
        ("qwen35", "window.cu", "from - p.rows", "max(from - p.rows - 1, 0)", &["conv_state"]),
        ("qwen35", "delta_net.cu", "h % p.key_heads", "h / (p.heads / p.key_heads)", &["delta_state", "delta_out"]),
        ("qwen35", "delta_net.cu", "if (p.before) p.before[row + i] = m[i];", "", &["delta_out"]),
        (
            "qwen3next",
            "columns.cu",
            "i / p.run * p.stride",
            "i / p.run * p.run",
            &["delta_b", "delta_a", "q_half", "gate_half"],
        ),
        ("qwen4exp", "block_scores.cu", "(float)begin * p", "(float)last * p", &["index_scores"]),
        ("qwen4exp", "gated_mean.cu", "c < p.streams", "c < p.streams - 1", &["attn_norm", "ffn_norm", "final_norm"]),
        ("qwen4exp", "top_blocks.cu", "before < p.picks", "before <= p.picks", &["index_keys"]),
        (
            "qwen4exp",
            "stream_sum.cu",
            "p.w[stream]",
            "p.w[t * p.streams]",
            &["ngram_gated", "attn_residual", "layer_out"],
        ),
    ];
    let (card, mut wrong) = (Card::new(), Vec::new());
    for arch in ["qwen2moe", "qwen3moe", "qwen35", "qwen3next", "qwen4exp"] {
        matches(&card, &Synth { arch, ..Synth::default() }, "-n 2");
    }
    for (i, (arch, path, old, new, stages)) in share(bugs, 2).enumerate() {
        // Weights that come through rings, and the path that these kernels are of.
        let fused = path.starts_with("fused/");
        let weight_type = if fused { GgmlType::Q4_K } else { GgmlType::Q8_0 };
        let folder = folder_with(&Synth { arch, weight_type, ..Synth::default() });
        let alone = if i == 0 || whole() { "-n 2" } else { "-n 2 --why-budget 0 --confirm no --repeat 0" };
        let alone = format!("{alone}{}", if fused { " --subject cuda-fast" } else { "" });
        let (code, report, text) = judged(&card.with_bug(path, old, new), &folder, &alone);
        let origins = report.origins();
        let name = |stage: &&str| stage.split_once('.').map_or("", |(_, name)| name).to_owned();
        let mut found: Vec<String> = origins.iter().map(name).collect();
        found.sort_unstable();
        found.dedup();
        let mut expected: Vec<&str> = stages.to_vec();
        expected.sort_unstable();
        if code != 1 || found != expected {
            wrong.push(format!("{arch} {path} {old}: exit {code}, {origins:?} for {stages:?}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the kernels are not made for is refused in one line that says what to take instead.
#[test]
fn what_a_card_does_not_run_is_refused() {
    let card = Card::new();
    let refused = |folder: &Folder, line: &str, words: &[&str]| {
        let said = folder.qdiff_on(&card, line).exits(2);
        assert!(said.stdout.is_empty() && said.stderr.trim_end().lines().count() == 1, "{said}");
        assert!(words.iter().all(|word| said.stderr.contains(word)), "{said}");
    };
    refused(
        &folder_with(&hybrids::model("qwen4exp", &[])),
        "run -m model.gguf --subject cuda --reference none --sequences 7,5+1+17 --length 30",
        &["takes one sequence at a time", "use --subject cpu"],
    );
    let folder = folder_with(&Synth::default());
    for kv in ["q8_0", "f16/f32", "bf16"] {
        let words = [&format!("the fused kernels have no KV cache in {kv}"), "--kv-type f16, or --subject cuda"];
        refused(&folder, &format!("run -m model.gguf --subject cuda-fast --kv-type {kv}"), &words);
    }
    for (arch, word) in [
        ("qwen3next", "keys are repeated"),
        ("qwen35moe", "experts beside a shared one"),
        ("qwen2moe", "no fused kernel"),
    ] {
        let folder = folder_with(&Synth { arch, ..Synth::default() });
        refused(&folder, "run -m model.gguf --subject cuda-fast", &[word, "use --subject cuda"]);
    }
    refused(
        &folder_with(&Synth { arch: "qwen35", fused: true, ..Synth::default() }),
        "run -m model.gguf --subject cuda-fast --reference none --sequences 7,5+1+17 --length 30",
        &["one sequence of qwen35 at a time", "use --subject cuda"],
    );
    let of_48 = folder_with(&hybrids::model("qwen35", &hybrids::net([48, 2, 4, 4])));
    refused(&of_48, "run -m model.gguf --subject cuda-fast", &["heads of 48 elements", "use --subject cuda"]);
    let odd = hybrids::models().into_iter().find(|model| !in_groups(model)).unwrap();
    let words = ["ssm_out.weight", "take multiples of 32", "use --subject cpu"];
    refused(&folder_with(&odd), "run -m model.gguf --subject cuda", &words);
}
