//! `qdiff generate`: both sides generate text, and the report on their first difference.

use qdiff::capture::Passes;
use qdiff::loaded::LoadedModel;
use qdiff::nonce::Changes;
use qdiff::pair::{Pair, Settings, Tokens};
use qdiff::progress::silent;
use qdiff::runners::{CPU, Faults};
use qdiff_tests::schema::Schema;
use qdiff_tests::synth::Synth;
use qdiff_tests::{exact, folder_with, real_folder};
use serde_json::Value;

fn tokens_of(report: &Value, side: &str) -> Vec<u64> {
    let list = report["generation"][side]["tokens"].as_array().unwrap();
    list.iter().map(|t| t.as_u64().unwrap()).collect()
}

/// Nothing but a flip may part them, and then it is shown to be one.
fn assert_same_or_flip(code: i32, report: &Value, text: &str) {
    assert_eq!(code, 0, "{text}");
    match report["generation"]["fork"].as_object() {
        None => {
            assert_eq!(tokens_of(report, "subject"), tokens_of(report, "reference"));
            assert!(text.contains("SAME TEXT"), "{text}");
        }
        Some(fork) => {
            assert_eq!(report["cause"]["kind"], "flip", "{text}");
            let at = fork["index"].as_u64().unwrap() as usize;
            let (a, b) = (tokens_of(report, "subject"), tokens_of(report, "reference"));
            assert_eq!(a[..at], b[..at]);
            assert_ne!(a[at], b[at]);
            for side in ["subject", "reference"] {
                // The same number was drawn, and falls into either token's share.
                let draw = &fork[side]["draw"];
                if !draw.is_null() {
                    let number = |name: &str| draw[name].as_f64().unwrap();
                    assert_eq!(draw["at"], fork["subject"]["draw"]["at"]);
                    assert!((number("from")..=number("to")).contains(&number("at")), "{draw}");
                }
            }
            assert!(text.contains("FLIP at token"), "{text}");
        }
    }
    assert_eq!(report["generation"]["sampler_differs"], Value::Null);
}

#[test]
fn greedy_and_drawn_text_is_the_same() {
    let folder = folder_with(&exact());
    for extra in [
        "-n 24",
        "-n 24 --temp 0.8 --seed 7",
        "-n 16 --temp 1.5 --top-k 0 --top-p 1 --min-p 0 --seed 8",
        "-n 16 --repeat-penalty 1.3 --frequency-penalty 0.5 --presence-penalty -0.2",
        "-n 8 --prompt Hello --raw --ubatch 2",
    ] {
        let (code, report, text) = folder.generated(extra);
        assert_same_or_flip(code, &report, &text);
        assert!(tokens_of(&report, "subject").len() > 1, "{text}");
        assert!(text.contains("as llama.cpp"), "{text}");
    }
    let text_of = |seed| tokens_of(&folder.generated(&format!("-n 8 --temp 1 --seed {seed}")).1, "subject");
    assert_eq!(std::collections::HashSet::from([1, 2, 3].map(text_of)).len(), 3);
}

#[test]
fn a_fault_that_changes_the_text_is_named() {
    let folder = folder_with(&exact());
    for (fault, stage) in [("lm-head-transposed", "logits"), ("qkv-bias-omitted@L00", "L00.q_biased")] {
        let (code, report, text) = folder.generated(&format!("-n 12 --inject {fault}"));
        assert_eq!(code, 1, "{text}");
        assert_eq!(report["cause"]["kind"], "divergence", "{text}");
        assert_eq!(report["cause"]["stage"], stage, "{text}");
        let fork = &report["generation"]["fork"];
        assert_eq!(fork["subject"]["best"].as_array().unwrap().len(), 5);
        assert_eq!(fork["reference"]["best"].as_array().unwrap().len(), 5);
        assert!(fork["reference"]["margin"].as_f64().unwrap() >= 0.0);
        assert!(report["forced"]["compared"].as_u64().unwrap() > 0, "{text}");
        assert!(text.starts_with("DIVERGED at token"), "{text}");
        // What to do comes before the tokens.
        let (head, table) = text.split_once("\ntoken ").unwrap_or_else(|| panic!("{text}"));
        assert!(
            head.contains("\nremedy ") && head.contains("\nnext ") && head.contains("qdiff run -m model.gguf"),
            "{text}"
        );
        assert!(table.lines().count() > 2, "{text}");
    }
    let (_, _, text) = folder.generated("-n 2 --prompt haiku --inject qkv-bias-omitted@L00 --temp 0.8 --seed 7");
    assert!(!text.contains("qdiff run"), "another text would be judged: {text}");
}

/// Nothing can be drawn from NaN; the stage that made it is found all the same.
#[test]
fn a_side_that_can_say_nothing() {
    let (code, report, text) = folder_with(&exact()).generated("-n 4 --inject rope-base:base=nan@L01");
    assert_eq!(code, 1, "{text}");
    assert_eq!(report["generation"]["subject"]["stop"], "not-a-number");
    assert_eq!(report["cause"]["stage"], "L01.q_rope", "{text}");
    assert!(text.contains("DIVERGED at token 0, where a logit is NaN"), "{text}");
}

#[test]
fn every_stage_changes_with_the_nonce() {
    let folder = folder_with(&exact());
    let (code, report, text) = folder.generated("--nonce 12345678 -n 6");
    assert_same_or_flip(code, &report, &text);
    assert_eq!(report["nonce"], 12_345_678);
    let prompt = report["prompt_text"].as_str().unwrap();
    assert!(prompt.contains("12345678"), "{prompt}");
    assert_eq!(report["changes"]["unchanged"], serde_json::json!([]));
    // Every stage of both sides: 22 in each of two layers, and three outside them.
    assert_eq!(report["changes"]["compared"], 2 * (2 * 22 + 3));
    let fresh = || folder.generated("--nonce -n 1").1["nonce"].clone();
    assert_ne!(fresh(), fresh());
}

/// An engine that gives the same answer from memory to every prompt.
#[test]
fn a_stage_that_does_not_change_is_stale() {
    let folder = folder_with(&exact());
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let oracle = &pair.oracle;
    let run = |prompt: &[u32]| {
        let tokens = Tokens { prompt, passes: Passes::Of(512), decode: 0, forced: None };
        pair.run(&CPU, tokens, Faults::default()).unwrap()
    };
    let (a, b) = (run(&[1, 2, 3]), run(&[1, 4, 3]));
    let mut changes = Changes::default();
    changes.compare(&oracle.graph, &a, &b);
    assert!(!changes.stale(), "{changes:?}");
    changes.compare(&oracle.graph, &a, &a);
    assert_eq!(changes.unchanged.len(), oracle.graph.nodes.len());
    assert!(changes.stale());
}

#[test]
fn the_models_own_template_and_a_system_prompt() {
    let folder = folder_with(&exact());
    let turn = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let system = format!("<|im_start|>system\nBe brief<|im_end|>\n{turn}");
    for (extra, prompt) in [
        ("", turn),
        ("--template model", turn),
        ("--system 'Be brief' --template bare", &system),
        ("--system 'Be brief' --template model", &system),
        ("--raw", "Hi"),
    ] {
        assert_eq!(folder.generated(&format!("-n 1 --prompt Hi {extra}")).1["prompt_text"], prompt);
    }
}

/// What a template can try, and how it is stopped: one line, exit 2.
#[test]
fn hostile_templates_are_stopped() {
    for (template, expected) in [
        (
            "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
            "instructions",
        ),
        (
            "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}",
            "takes more than 5 s or 1024 MiB",
        ),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "instructions"),
        ("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "bytes"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        // Found by fuzzing.
        ("{% set ns = namespace() %}{% set ns.s = ns %}{{ ns }}", "nests values too deeply"),
        ("{% include '/etc/hostname' %}", "fails in line 1"),
        ("{{ raise_exception('no users') }}", "no users"),
        ("{% if %}", "fails in line 1"),
        ("", "has no chat template"),
    ] {
        let folder = folder_with(&Synth { chat_template: template.to_owned(), ..exact() });
        folder.refuses("generate -m model.gguf -n 1 --template model", &[expected, "--template bare"]);
    }
}

#[test]
fn wrong_arguments() {
    let folder = folder_with(&exact());
    for (args, expected) in [
        ("--subject capture:x", "`qdiff run --subject capture:x`"),
        ("--temp -1", "from 0 on"),
        ("--temp nan", "from 0 on"),
        ("--top-p 1.5", "from 0 to 1"),
        ("--repeat-penalty 0", "above 0"),
        ("--seed 4294967295", "seed"),
        ("--nonce --raw", "--raw"),
    ] {
        folder.refuses_options(&format!("generate -m model.gguf {args}"), &[expected]);
    }
    for (args, expected) in [
        ("-n 0", "-n 0"),
        ("-n 99999", "context"),
        ("--system x --raw --prompt Hi", "--system"),
        ("--system x --prompt code", "--system"),
    ] {
        folder.refuses(&format!("generate -m model.gguf {args}"), &[expected]);
    }
}

/// The haiku test: a prompt that nobody has seen, on the real model.
#[test]
fn the_haiku_test() {
    let (code, report, text) = real_folder().generated("--nonce -n 24");
    assert_same_or_flip(code, &report, &text);
    for side in ["subject", "reference"] {
        assert_eq!(report["generation"][side]["repetition"], Value::Null, "{text}");
        assert!(report["generation"][side]["decode_speed"].as_f64().unwrap() > 0.0);
        assert!(tokens_of(&report, side).len() > 8, "{text}");
    }
    // 22 stages in each of 24 layers and three outside them, on both sides.
    assert_eq!(report["changes"]["compared"], 2 * (24 * 22 + 3));
    assert_eq!(report["changes"]["unchanged"], serde_json::json!([]));
    // In this vocabulary a number is a token a digit.
    assert_eq!(report["tokens"]["same"], report["prompt_tokens"].as_array().unwrap().len());
}

#[test]
fn json_is_what_the_schema_says() {
    let folder = folder_with(&exact());
    let schema = Schema::printed("generation");
    for extra in ["--nonce 1 -n 2", "-n 12 --temp 0.5 --inject lm-head-transposed"] {
        let (_, mut report, _) = folder.generated(extra);
        schema.check(&report).unwrap();
        report["generation"]["subject"]["stop"] = Value::from("whenever");
        assert!(schema.check(&report).is_err());
    }
}

/// Output that is repetitive on the subject's side alone is reported.
#[test]
fn a_circle_is_told() {
    let (code, report, text) = folder_with(&exact()).generated("-n 40 --inject stale-from-previous-step@logits");
    assert_eq!(code, 1, "{text}");
    let circle = &report["generation"]["subject"]["repetition"];
    assert_eq!(circle["period"], 1, "{text}");
    assert!(report["generation"]["reference"]["repetition"].is_null(), "{text}");
    assert!(text.contains("LOOP: the subject's output is repetitive, the reference's is not"), "{text}");
    assert!(text.contains("; repetitive: 1 token 39 times from token 1 on"), "{text}");
}

/// And so is one that ends before it began: of an answer that is complete.
#[test]
fn a_text_that_ends_at_once_is_told() {
    let complete = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHello! How can I assist you today?";
    let (code, _, text) = real_folder().generated(&format!("--raw --prompt '{complete}' -n 3"));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("SAME TEXT"), "{text}");
    assert!(text.contains("1 token, ended at once, without a text"), "{text}");
}
