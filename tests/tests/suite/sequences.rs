//! Several sequences in one run: rows of several of them in a pass, a prefix that is shared, a prefill in chunks.

use super::hybrids;
use super::serving_bugs::{FAULTS, FaultyServing};
use qdiff::capture::Plan;
use qdiff::diagnose::{Diagnosis, Finding, Holds, Trial};
use qdiff::loaded::LoadedModel;
use qdiff::mutations::Explains;
use qdiff::pair::{Pair, Recording, Settings};
use qdiff::progress::silent;
use qdiff::runners::cpu::Cpu;
use qdiff::runners::{Faults, LLAMA};
use qdiff::sequences::{record, runner};
use qdiff_engine::model::StageId;
use qdiff_engine::ops::{Rope, Tensor, rope};
use qdiff_engine::tap::{Intervene, Site};
use qdiff_lab::score::faults::sequences::SeenByAll;
use qdiff_tests::containers::{Array, arrays, write_npy, write_safetensors};
use qdiff_tests::synth::Synth;
use qdiff_tests::{Folder, Told, files, folder, folder_with, unwrapped};
use std::collections::BTreeSet;

/// Sequence 0 has a prefill in chunks of 7 and 5, sequence 1 has one token, sequence 2 begins with the first chunk of sequence 0.
const PLAN: &str = "7,5+1+17@0,1+1+1";

/// Bugs of serving of which a cause is confirmed by a run with other lengths, as was measured last. A cause that the sequences of a
/// run contradict is not counted.
const CONFIRMED: usize = 7;

/// Bugs that leave rows of other tokens in a cache or in a stage, which no rule explains: the report names the tokens.
const STRANGERS: [&str; 8] = [
    "block-freed-in-flight", "rows-of-sequences-exchanged", "residual-of-another-row", "stale-tail-of-a-graph",
    "logits-of-the-row-before", "gate-of-one-row", "token-of-the-row-before", "decoded-key-in-the-first-slot",
];

/// Bugs of which the values of several sequences show the same in a run of other lengths: what a graph left of a pass before depends
/// on its length.
const BORNE_OUT: [&str; 10] = [
    "position-of-the-draft", "slot-0-overwritten", "padding-updates-the-cache", "block-freed-in-flight",
    "rows-of-sequences-exchanged", "residual-of-another-row", "logits-of-the-row-before", "gate-of-one-row",
    "token-of-the-row-before", "decoded-key-in-the-first-slot",
];

/// A pass of several sequences could not be run. Each sequence is judged like a sequence that runs alone, against llama.cpp with
/// the same passes.
#[test]
fn sequences_of_one_run_match() {
    let folder = folder();
    let said = folder.qdiff(&format!("run -m model.gguf --length 33 --subject cpu --sequences {PLAN}")).exits(0);
    assert!(said.stdout.contains("3 runs: 3 MATCH"), "{said}");
    let reports = files(&folder.join("qdiff-report"));
    assert_eq!(reports.len(), 3, "{reports:?}");
    let mut tokens = Vec::new();
    for file in reports {
        let report = folder.json(&format!("qdiff-report/{file}/report.json"));
        assert!(report.is_whole(), "{file}");
        let run = &report["run"];
        assert_eq!(run["sequence"]["plan"], PLAN);
        assert!(run["command"].as_str().unwrap().contains(&format!("--sequences {PLAN}")), "{run}");
        tokens.push((run["sequence"]["number"].as_u64(), run["tokens"].as_array().unwrap().len()));
        let prefix = &run["sequence"]["prefix"];
        assert_eq!(prefix["tokens"], if run["sequence"]["number"] == 2 { 7.into() } else { serde_json::Value::Null });
    }
    tokens.sort_unstable();
    assert_eq!(tokens, [(Some(0), 13), (Some(1), 2), (Some(2), 25)]);
}

/// llama.cpp with a KV cache of its own for each sequence could not be the reference. It cuts a pass into ubatches with as many
/// tokens of each sequence, and copies the cache of a prefix.
#[test]
fn llama_with_a_cache_for_each_sequence_is_a_reference() {
    let folder = folder();
    for (plan, length, runs) in [(PLAN, 33, 3), ("9+2,5+1,1~4+1,4~all+1,0+0+3@1:2", 27, 5)] {
        for (subject, more) in [("cpu", ""), ("cpu", "--kv-type q8_0/q4_1"), ("llama", "")] {
            let line = format!("run -m model.gguf --length {length} --sequences {plan} --no-kv-unified {more}");
            let said = folder.qdiff(&format!("{line} --subject {subject}")).exits(0);
            assert!(said.stdout.contains(&format!("{runs} runs: {runs} MATCH")), "{line}: {said}");
            let reports = files(&folder.join("qdiff-report"));
            assert_eq!(reports.len(), runs, "{reports:?}");
            for file in reports {
                let report = folder.json(&format!("qdiff-report/{file}/report.json"));
                assert!(report.is_whole(), "{file}");
                assert!(report["reference"]["name"].as_str().unwrap().contains("split KV"), "{}", report["reference"]);
                assert!(report["run"]["command"].as_str().unwrap().contains("--no-kv-unified"), "{}", report["run"]);
            }
            std::fs::remove_dir_all(folder.join("qdiff-report")).unwrap();
        }
    }
    for (line, why) in [
        ("", "several sequences; name them with --sequences"),
        ("--length 33 --sequences 7,5+1+17@0,1+1+1 --subject cpu --reference none", "llama.cpp does not run here"),
    ] {
        let refused = folder.qdiff(&format!("run -m model.gguf --no-kv-unified {line}")).exits(2);
        assert!(refused.stderr.replace('\n', " ").contains(why), "{refused}");
    }
}

/// A fault of a batch is found beside llama.cpp with a cache for each sequence, in the sequence that it is wrong for.
#[test]
fn a_fault_is_found_beside_caches_of_each_sequence() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings { split_kv: true, ..Settings::default() }, &silent).unwrap();
    let (plan, tokens): (Plan, Vec<u32>) = (PLAN.parse().unwrap(), (0..33).map(|i| 3 + i * 7 % 200).collect());
    let mut llama = runner(&pair, &LLAMA, &plan, Faults::default()).unwrap();
    let references = record(&pair, llama.as_mut(), &plan, &tokens).unwrap();
    let mut cpu = Cpu::intervened(&opened.model, Box::new(SeenByAll::new(1, 2, plan.fed(&tokens))));
    let subjects = record(&pair, &mut cpu, &plan, &tokens).unwrap();
    for (number, (subject, reference)) in subjects.iter().zip(&references).enumerate() {
        let diagnosis = pair.judge(subject, Some(reference)).unwrap();
        let origins: Vec<String> = diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect();
        let wrong = ["L01.attn_weights".to_owned()];
        assert_eq!(origins, if number == 2 { &wrong[..] } else { &[] }, "sequence {number}");
    }
}

/// A capture of several sequences is judged sequence by sequence. One of schema 3 is of one sequence, and read as before.
#[test]
fn a_capture_of_several_sequences_is_judged() {
    let folder = folder();
    folder.qdiff(&format!("record -m model.gguf --length 33 --sequences {PLAN} --out several")).exits(0);
    let mut manifest = folder.json("several/manifest.json");
    assert_eq!((&manifest["schema_version"], &manifest["sequences"]), (&4.into(), &PLAN.into()));
    for reference in ["llama", "capture:several", "none"] {
        let code = if reference == "none" { 3 } else { 0 };
        let said =
            folder.qdiff(&format!("run -m model.gguf --subject capture:several --reference {reference}")).exits(code);
        assert!(said.stdout.contains(if code == 0 { "3 runs: 3 MATCH" } else { "3 runs: 3 INCOMPLETE" }), "{said}");
    }
    folder.record("one", "--length 9");
    assert_eq!(folder.json("one/manifest.json")["schema_version"], 3);
    folder.qdiff("run -m model.gguf --subject capture:one").exits(0);
    for line in
        ["compare several one -m model.gguf", "compare several several", "record -m model.gguf --like several --out x"]
    {
        let refused = folder.qdiff(line).exits(2);
        assert!(refused.stderr.replace('\n', " ").contains("is a capture of several sequences"), "{line}: {refused}");
    }
    folder.qdiff("run -m model.gguf --subject capture:several --reference capture:one").exits(2);
    for (key, value, said) in [
        ("schema_version", serde_json::json!(3), "`sequences` need schema_version 4"),
        ("decoded", serde_json::json!([1]), "leave `ubatch`, `passes`, `decoded` and `end` out"),
        ("sequences", serde_json::json!("7,5+1"), "its `sequences` have 13 tokens, and `tokens` 33"),
        ("sequences", serde_json::json!("7,5+1@3"), "sequence 1 cannot begin with sequence 3"),
    ] {
        let right = std::mem::replace(&mut manifest[key], value);
        folder.write("several/manifest.json", manifest.to_string());
        let refused = folder.qdiff("run -m model.gguf --subject capture:several").exits(2);
        assert!(refused.stderr.replace('\n', " ").contains(said), "{key}: {refused}");
        manifest[key] = right;
        if manifest["decoded"].is_null() {
            manifest["decoded"] = serde_json::json!([]);
        }
    }
}

/// A mask that forgets whose a cache slot is shows in the sequence that it is wrong for, and in no other one; what reads its
/// weights is not accused.
#[test]
fn rows_of_another_sequence_are_seen_in_one_sequence_alone() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let (plan, tokens): (Plan, Vec<u32>) = (PLAN.parse().unwrap(), (0..33).map(|i| 3 + i * 7 % 200).collect());
    let mut llama = runner(&pair, &LLAMA, &plan, Faults::default()).unwrap();
    let references = record(&pair, llama.as_mut(), &plan, &tokens).unwrap();
    for wrong in [1, 2] {
        let fault = SeenByAll::new(1, wrong, plan.fed(&tokens));
        let mut cpu = Cpu::intervened(&opened.model, Box::new(fault));
        let subjects = record(&pair, &mut cpu, &plan, &tokens).unwrap();
        for (number, (subject, reference)) in (0..).zip(subjects.iter().zip(&references)) {
            let diagnosis = pair.judge(subject, Some(reference)).unwrap();
            let origins: Vec<String> = diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect();
            if number != wrong {
                assert_eq!(origins, [""; 0], "sequence {number} of a run with a fault in {wrong}");
                continue;
            }
            assert_eq!(origins, ["L01.attn_weights"], "sequence {number}");
            let finding = &diagnosis.findings[0];
            assert!(finding.shape.contains("on a slot of sequence 0"), "{}", finding.shape);
            assert!(finding.cause.is_none() && finding.solution.is_none());
            let stage = diagnosis.verdict.stages.iter().find(|stage| stage.origin).unwrap();
            assert_eq!(stage.subject.as_ref().unwrap().first_bad.unwrap().whose.sequence, wrong);
        }
    }
}

/// 4 tokens are removed from the middle of sequence 0 while sequence 1 decodes; later 2 of sequence 1, and 3 more of sequence 0.
const SHIFTED: &str = "12+7,3-4:2+1,1+2-2:1,2-3:0+1,1+1";

/// A context shift could not be run. Every stage of the rows after it is right on its own operands, in qdiff's engine and in
/// llama.cpp, whose keys are rotated again (K-shift). qdiff's engine does so in every format of a cache.
#[test]
fn a_context_shift_matches() {
    let folder = folder();
    for more in [
        "",
        "--no-kv-unified",
        "--kv-type f16",
        "--kv-type f16/q4_1 --no-kv-unified",
        "--kv-type q8_0 --reference none",
        "--kv-type iq4_nl/f32 --reference none",
        "--kv-type bf16 --reference none",
    ] {
        let line = format!("run -m model.gguf --length 31 --subject cpu --sequences {SHIFTED} {more}");
        let (code, word) = if more.contains("none") { (3, "INCOMPLETE") } else { (0, "MATCH") };
        let said = folder.qdiff(&line).exits(code);
        assert!(said.stdout.contains(&format!("2 runs: 2 {word}")), "{line}: {said}");
        let reports = files(&folder.join("qdiff-report"));
        for file in &reports {
            let report = folder.json(&format!("qdiff-report/{file}/report.json"));
            assert!(code == 3 || report.is_whole(), "{line}: {file}");
            assert_eq!(report["run"]["sequence"]["plan"], SHIFTED);
        }
        std::fs::remove_dir_all(folder.join("qdiff-report")).unwrap();
    }
    folder.qdiff(&format!("record -m model.gguf --length 31 --sequences {SHIFTED} --out shifted")).exits(0);
    let said = folder.qdiff("run -m model.gguf --subject capture:shifted").exits(0);
    assert!(said.stdout.contains("2 runs: 2 MATCH"), "{said}");
}

/// What cannot be shifted is refused in a sentence that names the option and a remedy.
#[test]
fn a_context_shift_that_cannot_be_is_refused() {
    let folder = folder();
    for arch in ["qwen3next", "qwen35", "qwen2vl"] {
        folder.qdiff(&format!("synth {arch}.gguf --arch {arch}")).exits(0);
    }
    for (line, why) in [
        ("-m qwen3next.gguf --subject cpu", "cannot forget tokens in the middle of a sequence"),
        ("-m qwen35.gguf --subject cpu --reference none", "cannot forget tokens in the middle of a sequence"),
        ("-m qwen2vl.gguf --subject cpu", "M-RoPE"),
        ("-m model.gguf --subject cpu --kv-type bf16", "keys in bf16 again"),
        ("-m model.gguf --subject cpu --kv-type q8_0", "keys in blocks again"),
        ("-m model.gguf --subject 'cmd: cat {model} {sequences}'", "removes no tokens from the middle of a sequence"),
    ] {
        let refused = folder.qdiff(&format!("run {line} --length 31 --sequences {SHIFTED}")).exits(2);
        let told = refused.stderr.replace('\n', " ");
        assert!(told.contains(why) && told.contains("-4:2 out of --sequences"), "{line}: {refused}");
    }
}

/// llama.cpp's graph of a shift rotates all cached keys by the model's own rotation. That of YaRN multiplies by a magnitude, which a
/// key has already: keys are multiplied again at each shift, those of other sequences too.
#[test]
fn the_reference_is_wrong_where_a_shift_meets_yarn() {
    let folder = folder();
    folder
        .qdiff(
            "synth yarn.gguf --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 \
             --set rope.scaling.original_context_length=512",
        )
        .exits(0);
    let line = "run -m yarn.gguf --length 23 --subject cpu --sequences";
    let said = folder.qdiff(&format!("{line} 12+7,3+1")).exits(0);
    assert!(said.stdout.contains("2 runs: 2 MATCH"), "{said}");
    let said = folder.qdiff(&format!("{line} 12+7,3-4:2+1")).exits(1);
    assert!(said.stdout.contains("2 runs: 2 REFERENCE-SUSPECT"), "{said}");
    assert!(unwrapped(&said.stdout).contains("at L00.k_cache: the subject agrees with f64"), "{said}");
}

/// A bug of a context shift: what it makes of a row of a cache that moved, of what was stored before.
struct WrongShift {
    cache: &'static str,
    row: fn(&Rope, &[f32]) -> Vec<f32>,
    before: Vec<f32>,
    pass: usize,
}

impl Intervene for WrongShift {
    fn change(&mut self, site: Site<'_>) {
        if site.node.id != StageId::layer(1, self.cache) {
            return;
        }
        self.pass += 1;
        // Sequence 0 had slots 0 to 11. The shift before the second pass moved those from slot 6 on.
        let width = site.output.row_len();
        if self.pass == 2 {
            let rope = Rope::neox(1e6, site.output.shape[2]);
            for slot in 6..12 {
                let wrong = (self.row)(&rope, &self.before[slot * width..][..width]);
                site.output.data[slot * width..][..width].copy_from_slice(&wrong);
            }
        }
        self.before.clone_from(&site.output.data);
    }
}

/// A stored row turned by so many positions.
fn turned(rope: &Rope, row: &[f32], by: f64) -> Vec<f32> {
    rope::forward(rope, &Tensor { shape: vec![1, row.len()], data: row.to_vec() }, &[by]).data
}

/// What becomes of a row that a shift moves.
type Shifted = fn(&Rope, &[f32]) -> Vec<f32>;

/// Keys that a shift moves and does not rotate again, or rotates the other way, and values that it rotates, are found at the cache,
/// in the sequence that was shifted alone. The rows behind read what the cache holds, and are not accused.
#[test]
fn a_wrong_context_shift_is_found_at_its_cache() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let (plan, tokens): (Plan, Vec<u32>) =
        ("12+7,3-4:2+1,1+2".parse().unwrap(), (0..26).map(|i| 3 + i * 7 % 200).collect());
    let mut llama = runner(&pair, &LLAMA, &plan, Faults::default()).unwrap();
    let references = record(&pair, llama.as_mut(), &plan, &tokens).unwrap();
    let bugs: [(&str, Shifted); 3] = [
        ("k_cache", |_, row| row.to_vec()),
        ("k_cache", |rope, row| turned(rope, row, 4.0)),
        ("v_cache", |rope, row| turned(rope, row, -4.0)),
    ];
    for (i, (cache, row)) in bugs.into_iter().enumerate() {
        let fault = WrongShift { cache, row, before: Vec::new(), pass: 0 };
        let mut cpu = Cpu::intervened(&opened.model, Box::new(fault));
        let subjects = record(&pair, &mut cpu, &plan, &tokens).unwrap();
        for (number, (subject, reference)) in subjects.iter().zip(&references).enumerate() {
            let diagnosis = pair.judge(subject, Some(reference)).unwrap();
            let origins: Vec<String> = diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect();
            let wrong = [format!("L01.{cache}")];
            assert_eq!(origins, if number == 0 { &wrong[..] } else { &[] }, "bug {i}, sequence {number}");
            if number == 0 {
                let stage = diagnosis.verdict.stages.iter().find(|stage| stage.origin).unwrap();
                let bad = &stage.subject.as_ref().unwrap().bad_positions;
                assert_eq!(*bad, (2..8).collect::<BTreeSet<usize>>(), "bug {i}");
            }
        }
    }
}

/// Puts the least weight there is on the first slot, for the query of sequence 1 in the second pass.
struct Least;

impl Intervene for Least {
    fn change(&mut self, site: Site<'_>) {
        let (weights, tokens) = (site.node.id == StageId::layer(1, "attn_weights"), site.context.tokens.len());
        if weights && tokens == 23 {
            let slots = site.output.shape[2];
            site.output.data[5 * slots] = f32::MIN_POSITIVE;
        }
    }
}

/// No bound allows weight where a sequence has no key.
#[test]
fn the_least_weight_on_a_slot_of_another_sequence_is_found() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let (plan, tokens): (Plan, Vec<u32>) = (PLAN.parse().unwrap(), (0..33).map(|i| 3 + i * 7 % 200).collect());
    let mut cpu = Cpu::intervened(&opened.model, Box::new(Least));
    for (number, subject) in record(&pair, &mut cpu, &plan, &tokens).unwrap().iter().enumerate() {
        let diagnosis = pair.judge(subject, None).unwrap();
        let origins: Vec<String> = diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect();
        assert_eq!(origins, if number == 1 { vec!["L01.attn_weights"] } else { Vec::new() }, "sequence {number}");
    }
}

/// Tokens that a sequence took back are gone: what follows is a run of its own, judged against llama.cpp, which takes them back
/// too. What was there before is judged as well, and a capture holds both.
#[test]
fn what_follows_a_rejected_draft_is_judged() {
    let folder = folder();
    let line = "--length 24 --sequences 9+2,5+1,1~4+1,4~all+1";
    let said = folder.qdiff(&format!("run -m model.gguf --subject cpu {line}")).exits(0);
    assert!(said.stdout.contains("4 runs: 4 MATCH"), "{said}");
    let mut runs = Vec::new();
    for file in files(&folder.join("qdiff-report")) {
        let run = &folder.json(&format!("qdiff-report/{file}/report.json"))["run"];
        let (of, tokens) = (&run["sequence"], run["tokens"].as_array().unwrap().len());
        let rollbacks = of["rollbacks"].as_u64().unwrap_or(0);
        runs.push((of["number"].as_u64().unwrap(), rollbacks, tokens, of["prefix"]["tokens"].as_u64()));
    }
    runs.sort_unstable();
    assert_eq!(runs, [(0, 0, 14, None), (0, 1, 11, Some(10)), (0, 2, 4, None), (1, 0, 5, None)]);
    assert!(unwrapped(&said.stdout).contains("haiku, sequence 0 after rollback 2"), "{said}");
    folder.qdiff(&format!("record -m model.gguf {line} --out several")).exits(0);
    let said = folder.qdiff("run -m model.gguf --subject capture:several").exits(0);
    assert!(said.stdout.contains("4 runs: 4 MATCH"), "{said}");
}

/// Writes a row of a cache that was taken back where the row that replaces it belongs.
struct NotTakenBack {
    old: Vec<f32>,
}

impl Intervene for NotTakenBack {
    fn change(&mut self, site: Site<'_>) {
        if site.node.id != StageId::layer(1, "k_cache") {
            return;
        }
        let row = site.output.row_len();
        match site.context.positions {
            [9, 10, ..] => self.old = site.output.row(10).to_vec(),
            [10] => site.output.data[10 * row..][..row].copy_from_slice(&self.old),
            _ => {}
        }
    }
}

/// A cache row of a rejected draft that is still there is found in what follows the draft, and nowhere else.
#[test]
fn a_cache_row_of_a_rejected_draft_is_found() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let (plan, tokens): (Plan, Vec<u32>) = ("9,5,1~4".parse().unwrap(), (0..15).map(|i| 3 + i * 7 % 200).collect());
    let mut cpu = Cpu::intervened(&opened.model, Box::new(NotTakenBack { old: Vec::new() }));
    for (number, subject) in record(&pair, &mut cpu, &plan, &tokens).unwrap().iter().enumerate() {
        let diagnosis = pair.judge(subject, None).unwrap();
        let origins: Vec<String> = diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect();
        assert_eq!(origins, if number == 1 { vec!["L01.k_cache"] } else { Vec::new() }, "run {number}");
    }
}

/// Weighs all keys of a pass alike that has tokens behind cached ones, those after the query too.
struct SeesDrafts;

impl Intervene for SeesDrafts {
    fn change(&mut self, site: Site<'_>) {
        if site.node.id == StageId::layer(1, "attn_weights") && site.context.positions.starts_with(&[9, 10]) {
            let keys = *site.output.shape.last().unwrap();
            site.output.data.fill(1.0 / keys as f32);
        }
    }
}

/// What follows a rejected draft holds the rows of the tokens that were kept, without the keys of those that were not: a context that
/// reads weights on these is right, and was called wrong.
#[test]
fn weights_on_rejected_tokens_accuse_no_context() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let (plan, tokens): (Plan, Vec<u32>) = ("9,5,1~3".parse().unwrap(), (0..15).map(|i| 3 + i * 7 % 200).collect());
    let mut cpu = Cpu::intervened(&opened.model, Box::new(SeesDrafts));
    for subject in &record(&pair, &mut cpu, &plan, &tokens).unwrap() {
        let diagnosis = pair.judge(subject, None).unwrap();
        let origins: Vec<String> = diagnosis.verdict.origins().iter().map(|origin| origin.id.to_string()).collect();
        assert_eq!(origins, ["L01.attn_weights"]);
        let sums = diagnosis.verdict.health.iter().filter(|finding| format!("{finding:?}").contains("sum to"));
        assert_eq!(sums.count(), 0, "{:?}", diagnosis.verdict.health);
    }
}

/// The battery of an engine that serves: every batch is right. Bits that differ from those of a sequence alone are right on
/// their operands: products of 12 rows may add in another order than those of 11.
#[test]
fn the_battery_of_batches_matches() {
    let folder = folder();
    for subject in ["cpu", "cpu --expect bitwise", "llama"] {
        let said =
            folder.qdiff(&format!("check -m model.gguf --serving --quick --json check.json --subject {subject}"));
        let report = folder.json("check.json");
        let cases = report["cases"].as_array().unwrap();
        let left = cases.iter().filter(|case| case["fared"] == "left-out").count();
        assert_eq!((cases.len(), left), (13, 3), "{said}");
        let ran = cases.iter().filter(|case| case["fared"] == "run" && case["other"]["right"] != true);
        assert!(ran.clone().count() > 6, "{said}");
        ran.for_each(|case| assert_eq!(case["outcome"], "match", "{case}"));
    }
    folder.refuses("check -m model.gguf --serving --subject 'cmd: cat {tokens}'", &["runs one sequence at a time"]);
}

/// What cannot be run as several sequences is refused with the remedy.
#[test]
fn sequences_that_cannot_be_run_are_refused() {
    let folder = folder();
    folder.record("one", "--length 9");
    for (options, said) in [
        (
            "--length 9 --sequences 4,2+1",
            "--sequences 4,2+1 takes 7 tokens, and the prompt has 9; name sequences of 9 tokens",
        ),
        ("--length 4 --sequences 4,0+0", "pass 2 feeds no token"),
        ("--length 4 --sequences 2+2 --subject 'cmd: cat {tokens}'", "runs one sequence at a time"),
        ("--sequences 2+2 --reference capture:one", "'--sequences' cannot be used with a capture"),
        ("--length 4 --sequences 2+2 --subject cpu --inject rope-base", "--inject changes a run of one sequence"),
        ("--length 4 --sequences 2+2 --ubatch 2", "cannot be used with '--ubatch'"),
        ("--sequences 2,3~5", "sequence 0 cannot take 5 back in pass 2: it has 2 tokens"),
        ("--sequences 2+2@0", "sequence 1 cannot begin with sequence 0 in pass 1"),
    ] {
        let refused = folder.qdiff(&format!("run -m model.gguf {options}")).exits(2);
        assert!(refused.stderr.replace('\n', " ").contains(said), "{options}: {refused}");
    }
}

/// One array may hold the rows of all sequences of a pass, in every container; a map takes each sequence's rows from
/// the engine's own cache, by the block tables that were captured.
#[test]
fn arrays_of_whole_passes_are_read_from_every_container() {
    for folder in [folder(), folder_with(&hybrids::model("qwen35", &[]))] {
        whole_passes_of(&folder);
    }
}

fn whole_passes_of(folder: &Folder) {
    folder.qdiff(&format!("record -m model.gguf --length 33 --sequences {PLAN} --out several")).exits(0);
    let all = arrays(&folder.join("several"));
    // Slots in the order in which rows took them, but for a gap of 2 that nobody has.
    let passes: [&[(&str, usize)]; 3] = [
        &[("prefill", 0)],
        &[("prefill@7", 0), ("s1.prefill", 1), ("s2.prefill@7", 2)],
        &[("step1", 0), ("s1.step1", 1), ("s2.step1", 2)],
    ];
    let (mut tables, mut taken, mut made) = (vec![Vec::<usize>::new(); 3], 2, Vec::new());
    for (number, pass) in passes.into_iter().enumerate() {
        let of = |step: &str| all.iter().filter(|a| a.name.starts_with(&format!("{step}/"))).collect::<Vec<_>>();
        if number == 1 {
            tables[2] = tables[0].clone();
        }
        let mut slots = Vec::new();
        for (step, sequence) in pass {
            let rows = of(step).into_iter().find(|a| a.name.ends_with("/embed")).unwrap().shape[0];
            slots.extend((taken..taken + rows).map(|slot| (slot, *sequence)));
            tables[*sequence].extend(taken..taken + rows);
            taken += rows;
        }
        let numbers = |name: String, values: Vec<usize>| {
            let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
            Array { name, shape: vec![values.len()], values }
        };
        made.push(numbers(format!("pass{number}/slots"), slots.iter().map(|(slot, _)| *slot).collect()));
        for (step, sequence) in pass {
            made.push(numbers(format!("{step}/tables"), tables[*sequence].clone()));
        }
        for first in of(pass[0].0) {
            let stage = first.name.split_once('/').unwrap().1;
            let each = |step: &str| of(step).into_iter().find(|a| a.name.ends_with(&format!("/{stage}"))).unwrap();
            let width: usize = first.shape[1..].iter().product();
            if stage.ends_with("_cache") {
                let mut values = vec![f32::NAN; taken * width];
                for (step, sequence) in pass {
                    for (row, slot) in each(step).values.chunks(width).zip(&tables[*sequence]) {
                        values[slot * width..][..width].copy_from_slice(row);
                    }
                }
                let shape = [&[taken], &first.shape[1..]].concat();
                made.push(Array { name: format!("pass{number}/{stage}"), shape, values });
            } else if first.shape[0] == first.values.len() / width
                && !stage.contains("attn_scores")
                && !stage.contains("attn_weights")
            {
                let values: Vec<f32> = pass.iter().flat_map(|(step, _)| each(step).values.clone()).collect();
                let shape = [&[values.len() / width], &first.shape[1..]].concat();
                made.push(Array { name: format!("pass{number}/{stage}"), shape, values });
            } else {
                for (step, _) in pass {
                    let Array { name, shape, values } = each(step);
                    made.push(Array { name: name.clone(), shape: shape.clone(), values: values.clone() });
                }
            }
        }
    }
    made.sort_by(|a, b| a.name.cmp(&b.name));
    folder.write("map.txt", "L0{L}.k_cache[tables] = k_cache\nL0{L}.v_cache[tables] = v_cache\n");
    for container in ["npy", "safetensors"] {
        let to = folder.join(container);
        match container {
            "npy" => write_npy(&to, &made),
            _ => write_safetensors(&to, &made),
        }
        folder.write(&format!("{container}/manifest.json"), folder.text("several/manifest.json"));
        let said = folder.qdiff(&format!("run -m model.gguf --subject capture:{container} --map map.txt")).exits(0);
        assert!(said.stdout.contains("3 runs: 3 MATCH"), "{container}: {said}");
        // A cache of all sequences without a map is whose?
        let refused = folder.qdiff(&format!("run -m model.gguf --subject capture:{container}")).exits(2);
        assert!(
            refused.stderr.replace('\n', " ").contains("say in a map what a sequence takes"),
            "{container}: {refused}"
        );
    }
    // A slot that sequence 0 has.
    let slots = made.iter_mut().find(|a| a.name == "pass2/slots").unwrap();
    slots.values[1] = 4.0;
    std::fs::remove_dir_all(folder.join("npy")).unwrap();
    write_npy(&folder.join("npy"), &made);
    folder.write("npy/manifest.json", folder.text("several/manifest.json"));
    let said = folder.qdiff("run -m model.gguf --subject capture:npy --map map.txt").exits(1);
    let text = unwrapped(&said.stdout);
    assert!(
        text.contains("token 1 of sequence 1 was written to slot 4, which belongs to sequence 0 (its token 2)"),
        "{said}"
    );
}

/// Each bug of an engine that serves is found at the stage that has it, in a sequence that it is wrong for, and nowhere else. No
/// reference ran. Causes that a run with other lengths confirms hold in two more, too: one with the lengths of the first, and one
/// with others again. Their conditions hold in the run that is reported.
#[test]
fn bugs_of_serving_are_found_at_their_stage() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let (plan, config): (Plan, _) = (PLAN.parse().unwrap(), &opened.model.graph().config);
    let (mut confirmed, mut strangers, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    for fault in FAULTS {
        let run = |plan: &Plan, by: u32| {
            let tokens: Vec<u32> = (0..plan.tokens() as u32).map(|i| 3 + (i * 7 + by) % 200).collect();
            let faulty = FaultyServing::new(fault, 1, plan.fed(&tokens), config.rope_base, config.head_dim);
            let mut cpu = Cpu::intervened(&opened.model, Box::new(faulty));
            record(&pair, &mut cpu, plan, &tokens).unwrap()
        };
        let runs = [run(&plan.like(1)[0], 31), run(&plan, 0), run(&plan, 77), run(&plan.like(2)[0], 123)];
        let [mut second, mut same, mut third, mut fourth] = runs;
        let judge = |subject: Recording| {
            let diagnosis = pair.judge(&subject, None).unwrap();
            (subject, diagnosis)
        };
        let mut judged: Vec<(Recording, Diagnosis)> = run(&plan, 0).into_iter().map(judge).collect();
        pair.among_sequences(&mut judged);
        // One bug has one cause, in whichever sequences it shows.
        let what = |f: &Finding| match (&f.solution, &f.cause) {
            (Some(solution), _) => Some(solution.what.clone()),
            (None, cause) => cause.as_ref().filter(|c| c.kind != Explains::Place).map(|cause| cause.name.to_string()),
        };
        let told: BTreeSet<String> =
            judged.iter().flat_map(|(_, diagnosis)| diagnosis.findings.iter().filter_map(what)).collect();
        assert!(told.len() < 2, "{}: {told:?}", fault.name);
        let before: Vec<Diagnosis> = judged.iter().map(|(_, diagnosis)| diagnosis.clone()).collect();
        let mut found = 0;
        for (number, ((subject, diagnosis), second)) in judged.iter_mut().zip(&second).enumerate() {
            let origins: Vec<&str> = diagnosis.verdict.origins().iter().map(|origin| origin.id.name).collect();
            assert!(
                origins.iter().all(|name| *name == fault.stage),
                "{} in sequence {number}: {origins:?}",
                fault.name
            );
            found += origins.len();
            strangers
                .extend(diagnosis.findings.iter().any(|f| f.shape.contains(" of sequence ")).then_some(fault.name));
            pair.confirm(subject, [second], diagnosis);
        }
        assert!(found > 0, "{} is not found: {}", fault.name, fault.what);
        pair.again_among_sequences(&mut judged, &before);
        // What the values of several sequences show is borne out by other lengths, and then by others again.
        let untried: Vec<Diagnosis> = judged.iter().map(|(_, diagnosis)| diagnosis.clone()).collect();
        let mut borne_out = |others: &mut [Recording]| -> Vec<bool> {
            judged.iter_mut().zip(&untried).for_each(|((_, diagnosis), untried)| diagnosis.clone_from(untried));
            pair.confirm_among_sequences(&mut judged, others, plan.0.len()).unwrap();
            let findings = judged.iter().flat_map(|(_, diagnosis)| &diagnosis.findings).filter(|f| f.plain().is_some());
            findings.map(|f| matches!(f.trial, Some(Trial::Confirmed { .. }))).collect()
        };
        let runs = [&mut second, &mut same, &mut third, &mut fourth];
        let [by_second, by_same, by_third, by_fourth] = runs.map(|run| borne_out(run));
        let again = |i: usize| by_same[i] && by_third[i] && by_fourth[i];
        assert!((0..by_second.len()).all(|i| !by_second[i] || again(i)), "{}: by chance", fault.name);
        shown.extend(by_second.contains(&true).then_some(fault.name));
        judged.iter_mut().zip(untried).for_each(|((_, diagnosis), untried)| *diagnosis = untried);
        for (((subject, diagnosis), same), others) in judged.into_iter().zip(same).zip(third.into_iter().zip(fourth)) {
            let told = |f: &Finding| matches!(f.trial, Some(Trial::Confirmed { .. } | Trial::Narrowed { .. }));
            let mut graded = diagnosis.clone();
            pair.confirm(&subject, &[same], &mut graded);
            for (finding, own) in graded.findings.iter().zip(&diagnosis.findings).filter(|(_, own)| told(own)) {
                let holds = |f: &Finding| f.solution.as_ref().map(|solution| format!("{:?}", solution.holds));
                let by_rule = own.solution.as_ref().is_some_and(|s| matches!(s.holds, Holds::Under { .. }));
                assert!(
                    !by_rule || holds(finding) == holds(own),
                    "{}: {:?}\n{:?}",
                    fault.name,
                    holds(own),
                    holds(finding)
                );
            }
            for other in [others.0, others.1] {
                let mut graded = diagnosis.clone();
                pair.confirm(&subject, &[other], &mut graded);
                for (finding, own) in graded.findings.iter().zip(&diagnosis.findings).filter(|(_, own)| told(own)) {
                    let refuted = matches!(finding.trial, Some(Trial::Withdrawn { .. }));
                    assert!(!refuted, "{}: a false cause, {:?}: {:?}", fault.name, own.solution, finding.trial);
                    confirmed.push(fault.name);
                }
            }
        }
    }
    confirmed.dedup();
    strangers.dedup();
    assert!(confirmed.len() >= CONFIRMED, "{confirmed:?}");
    assert_eq!(strangers, STRANGERS, "of {confirmed:?}");
    assert_eq!(shown, BORNE_OUT);
}

/// A capture in which the softmax of sequence 0 counts the keys of sequence 1 as well. With its own keys alone each weight is too
/// small by one factor; whose keys make up for the rest, the other sequence says.
#[test]
fn keys_of_another_sequence_in_a_softmax_are_named() {
    let folder = folder();
    folder.qdiff("record -m model.gguf --length 20 --sequences 9+7,1+1,1+1 --out several").exits(0);
    let mut all = arrays(&folder.join("several"));
    let get = |all: &[Array], name: &str| {
        let found = all.iter().find(|a| a.name == name).unwrap_or_else(|| panic!("no {name}"));
        (found.shape.clone(), found.values.clone())
    };
    let (_, theirs) = get(&all, "s1.step2/L00.k_cache");
    for (step, first, known) in [("prefill", 0, 7), ("step1", 9, 8), ("step2", 10, 9)] {
        let (_, q) = get(&all, &format!("{step}/L00.q_rope"));
        let (shape, own) = get(&all, &format!("{step}/L00.k_cache"));
        let weights = all.iter_mut().find(|a| a.name == format!("{step}/L00.attn_weights")).unwrap();
        let [heads, tokens, keys] = weights.shape[..] else { panic!("{:?}", weights.shape) };
        let (kv_heads, d) = (shape[1], shape[2]);
        for (row, w) in weights.values.chunks_mut(keys).enumerate() {
            let (head, token) = (row / tokens, row % tokens);
            let q = &q[(token * heads + head) * d..][..d];
            let from = head / (heads / kv_heads) * d;
            let exponential = |cache: &[f32], at: usize| {
                let k = &cache[at * kv_heads * d + from..][..d];
                (q.iter().zip(k).map(|(q, k)| f64::from(q * k)).sum::<f64>() / (d as f64).sqrt()).exp()
            };
            let position = first + token;
            let sum: f64 = (0..=position).map(|at| exponential(&own, at)).sum();
            let more: f64 = (0..known.min(position + 1)).map(|at| exponential(&theirs, at)).sum();
            w.iter_mut().for_each(|w| *w = (f64::from(*w) * sum / (sum + more)) as f32);
        }
    }
    // What went on from the right weights is not part of this capture.
    let upto =
        ["embed", "attn_norm", "q_biased", "q_rope", "k_rope", "k_cache", "v_cache", "attn_scores", "attn_weights"];
    all.retain(|a| !a.name.contains("L01.") && upto.iter().any(|stage| a.name.ends_with(stage)));
    write_npy(&folder.join("leaking"), &all);
    folder.write("leaking/manifest.json", folder.text("several/manifest.json"));
    let said = folder.qdiff("run -m model.gguf --subject capture:leaking").exits(1);
    let told = "keys of sequence 1 count in the softmax, too, up to the query's own position";
    assert!(unwrapped(&said.stdout).contains(told), "{said}");
}

/// A capture in which the first layer of sequence 1, a delta net, went on from the state that sequence 0 left, as in a slot that
/// was never cleared: it is that of a second pass of sequence 0.
#[test]
fn a_state_that_was_not_cleared_is_named() {
    let folder = folder_with(&Synth { arch: "qwen35", ..Synth::default() });
    folder.qdiff("record -m model.gguf --length 11 --sequences 6,0+5 --out several").exits(0);
    folder.qdiff("record -m model.gguf --length 11 --sequences 6,5 --out one").exits(0);
    let (mut all, one) = (arrays(&folder.join("several")), arrays(&folder.join("one")));
    all.retain(|a| a.name.contains("L00.") || a.name.ends_with("embed"));
    for array in all.iter_mut().filter(|a| a.name.starts_with("s1.")) {
        let name = array.name.replace("s1.prefill", "prefill@6");
        array.values.clone_from(&one.iter().find(|a| a.name == name).unwrap().values);
    }
    write_npy(&folder.join("stale"), &all);
    folder.write("stale/manifest.json", folder.text("several/manifest.json"));
    let said = folder.qdiff("run -m model.gguf --subject capture:stale").exits(1);
    let told =
        "the state that the pass at position 0 begins with is the one of sequence 0 after 6 tokens, and not zeros";
    assert!(unwrapped(&said.stdout).contains(told), "{said}");
}

/// A capture in which the window of a convolution ends a row too early, and goes on from there.
#[test]
fn a_window_that_ends_too_early_is_named() {
    let folder = folder_with(&Synth { arch: "qwen35", ..Synth::default() });
    folder.qdiff("record -m model.gguf --length 10 --passes 6,3,1 -n 2 --out right").exits(0);
    let mut all = arrays(&folder.join("right"));
    // What went on from the right window is not part of this capture.
    all.retain(|a| ["embed", "L00.attn_norm", "L00.delta_qkv", "L00.conv_state"].iter().any(|s| a.name.ends_with(s)));
    let mut before: Option<Vec<f32>> = None;
    for step in ["prefill", "prefill@6", "step1", "step2", "step3"] {
        let at = |stage: &str| all.iter().position(|a| a.name == format!("{step}/L00.{stage}")).unwrap();
        let (window, rows) = (at("conv_state"), at("delta_qkv"));
        let width = all[rows].shape[1];
        let whole = all[window].values.len();
        let line = [before.unwrap_or_else(|| vec![0.0; whole]), all[rows].values.clone()].concat();
        let from = all[rows].values.len() - width;
        all[window].values.copy_from_slice(&line[from..from + whole]);
        before = Some(all[window].values.clone());
    }
    write_npy(&folder.join("early"), &all);
    folder.write("early/manifest.json", folder.text("right/manifest.json"));
    let said = folder.qdiff("run -m model.gguf --subject capture:early").exits(1);
    assert!(unwrapped(&said.stdout).contains("the window ends 1 row before the last row of the part"), "{said}");
}

/// A capture whose logits have the order of the sequences' lengths in each pass with one row of each: a rule of the passes, which one
/// sequence alone does not show.
#[test]
fn rows_in_the_order_of_lengths_are_told_by_a_rule() {
    let folder = folder();
    folder.qdiff("record -m model.gguf --length 24 --sequences 6+9+4,1+1+1,0+1+1 --out several").exits(0);
    let mut all = arrays(&folder.join("several"));
    let at = |all: &[Array], name: &str| all.iter().position(|a| a.name == name).unwrap();
    // Sequence 1 is the longest, then sequence 0, then sequence 2; in the last pass the order is right.
    let exchange = |all: &mut Vec<Array>, step: &str| {
        let [first, second] = ["", "s1."].map(|sequence| at(all, &format!("{sequence}{step}/logits")));
        let longest = all[second].values.clone();
        all[second].values = std::mem::replace(&mut all[first].values, longest);
    };
    exchange(&mut all, "step1");
    write_npy(&folder.join("ordered"), &all);
    folder.write("ordered/manifest.json", folder.text("several/manifest.json"));
    let told = "each row is the row at its place when rows are ordered from the longest sequence to the shortest, in passes in which every \
                sequence has one row";
    let said = folder.qdiff("run -m model.gguf --subject capture:ordered").exits(1);
    // One pass that is wrong shows no rule.
    assert!(!unwrapped(&said.stdout).contains(told), "{said}");
    // A second one does.
    folder.qdiff("record -m model.gguf --length 25 --sequences 6+9+4,1+1+1,1+1+1 --out longer").exits(0);
    let mut all = arrays(&folder.join("longer"));
    ["step1", "step2"].into_iter().for_each(|step| exchange(&mut all, step));
    write_npy(&folder.join("twice"), &all);
    folder.write("twice/manifest.json", folder.text("longer/manifest.json"));
    let said = folder.qdiff("run -m model.gguf --subject capture:twice").exits(1);
    assert!(unwrapped(&said.stdout).contains(told), "{said}");
}

/// A plan of one sequence says no more than its passes. A command that dumped such a plan was refused.
#[test]
fn a_plan_of_one_sequence_is_its_passes() {
    let folder = folder();
    folder.qdiff("record -m model.gguf --length 14 --sequences 7,5,1,1 --out planned").exits(0);
    assert_eq!(folder.json("planned/manifest.json")["sequences"], "7,5,2x1");
    let command = "cp planned/manifest.json planned/capture.npz {dir}/; : {tokens} {passes}";
    let run = format!("run -m model.gguf --length 14 --passes 7,5,1,1 -n 0 --subject 'cmd: {command}'");
    folder.qdiff(&run).exits(0);
    // Beside a capture that names its passes, it is another capture of them, on either side.
    folder.record("ordinary", "--length 14 --passes 7,5,1,1 -n 0");
    for [a, b] in [["planned", "ordinary"], ["ordinary", "planned"]] {
        let said = folder.qdiff(&format!("compare {a} {b} -m model.gguf")).exits(0);
        assert!(said.stdout.contains("MATCH"), "{said}");
        folder.qdiff(&format!("run -m model.gguf --subject capture:{a} --reference capture:{b}")).exits(0);
    }
}
