//! The tokens that an engine feeds, against those that its own logits choose.

use qdiff::capture::Passes;
use qdiff::loaded::LoadedModel;
use qdiff::pair::{Pair, Settings, Tokens};
use qdiff::progress::silent;
use qdiff::runners::{CPU, Faults};
use qdiff_tests::schema::Schema;
use qdiff_tests::{Folder, folder, headline, unwrapped};
use serde_json::{Value, json};

const PROMPT: [u32; 3] = [1, 2, 3];

/// The tokens that an engine feeds which takes `pick` of its logits.
fn fed(folder: &Folder, steps: usize, pick: fn(&[f32], &[f32]) -> usize) -> Vec<u32> {
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let mut fed: Vec<u32> = Vec::new();
    for decode in 0..steps {
        let tokens = Tokens { prompt: &PROMPT, passes: Passes::Of(512), decode, forced: Some(&fed) };
        let run = pair.run(&CPU, tokens, Faults::default()).unwrap();
        let rows: Vec<Vec<f32>> =
            run.capture.steps.iter().map(|step| step.choice.as_ref().unwrap().get().data.clone()).collect();
        fed.push(pick(&rows[decode], &rows[decode.saturating_sub(1)]) as u32);
    }
    fed
}

/// The capture `mine` of an engine that fed `decoded`, whose manifest says `sampler`.
fn dump(folder: &Folder, decoded: &[u32], sampler: Value) {
    let _ = std::fs::remove_dir_all(folder.join("mine"));
    folder.create("told");
    let told = json!({"schema_version": 3, "engine": "mine", "tokens": PROMPT, "decoded": decoded});
    folder.write("told/manifest.json", told.to_string());
    folder.qdiff("record -m model.gguf --out mine --like told").exits(0);
    let mut manifest = folder.json("mine/manifest.json");
    assert_eq!(manifest["sampler"], "told");
    manifest["sampler"] = sampler;
    folder.write("mine/manifest.json", manifest.to_string());
}

/// An engine that feeds its prompt token by token chose none of these tokens; the greedy ones were "not its logits'".
#[test]
fn a_prompt_fed_token_by_token_is_not_taken_for_choices() {
    let folder = folder();
    folder.create("told");
    let told = json!({"schema_version": 3, "engine": "mine", "tokens": [PROMPT[0]], "decoded": [5, 9, 2, 6, 5]});
    folder.write("told/manifest.json", told.to_string());
    folder.qdiff("record -m model.gguf --out mine --like told").exits(0);
    let mut manifest = folder.json("mine/manifest.json");
    manifest["sampler"] = Value::Null;
    folder.write("mine/manifest.json", manifest.to_string());
    let (code, report, text) = folder.judged("--subject capture:mine");
    assert_eq!((code, &report["outcome"]), (0, &json!("match")), "{text}");
    assert!(text.contains("every pass has one token"), "{text}");
}

/// The same of one that feeds the first tokens in one pass and the others one by one: right engines were DIVERGED. An engine that has
/// chosen once by its logits, and then does not, is.
#[test]
fn the_rest_of_a_prompt_is_not_taken_for_choices() {
    let folder = folder();
    let right = fed(&folder, 2, |row, _| largest(row));
    let other = |token: u32| (token + 7) % 100;
    for (decoded, code, said) in [
        ([other(right[0]), 9, 2], 0, "3 tokens that its logits do not choose may be the rest of the prompt"),
        ([right[0], other(right[1]), 2], 1, "after step 1 the engine chose"),
    ] {
        dump(&folder, &decoded, Value::Null);
        let (status, report, text) = folder.judged("--subject capture:mine");
        assert_eq!(status, code, "{text}");
        assert!(unwrapped(&text).contains(said), "{text}");
        assert_eq!(report["decoded"]["given"] == 3, code == 0, "{text}");
        dump(&folder, &decoded, json!("greedy"));
        let (status, _, text) = folder.judged("--subject capture:mine");
        assert_eq!(status, 1, "{text}");
    }
}

fn smallest(row: &[f32], _: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] < row[best] { i } else { best })
}

fn largest(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// An engine that fed the smallest logit's token at every step was "the same choice after 5 steps".
#[test]
fn an_engine_that_feeds_argmin_is_no_match() {
    let folder = folder();
    let decoded = fed(&folder, 4, smallest);
    dump(&folder, &decoded, Value::Null);
    for subject in ["capture:mine", "'cmd: cp mine/* {dir}; : {tokens} {n}'"] {
        let tokens = if subject.starts_with('c') { "" } else { " --tokens 1,2,3 -n 4" };
        let (code, report, text) = folder.judged(&format!("--subject {subject}{tokens} --junit told.xml"));
        assert_eq!((code, &report["outcome"]), (1, &json!("diverged")), "{text}");
        assert!(
            headline(&text).starts_with("DIVERGED at the decoded tokens: after the prompt the engine chose"),
            "{text}"
        );
        assert!(
            headline(&text).contains("4 of 4 choices are not its logits'; each is the token of the smallest"),
            "{text}"
        );
        assert!(!text.contains("the same token chosen at"), "{text}");
        let (found, first) = (&report["decoded"], &report["decoded"]["first"]);
        assert_eq!((&found["others"], &found["pattern"]), (&json!(4), &json!("smallest")), "{found}");
        assert_eq!((&first["step"], &first["fed"]["id"]), (&json!(0), &json!(decoded[0])), "{first}");
        let rows = &report["verdict"]["logits"];
        let best = &rows.as_array().unwrap().iter().find(|row| row["position"] == 2).unwrap()["subject"][0];
        assert_eq!(first["chosen"]["id"], best["token"], "{first}");
        let number = |value: &Value| value.as_f64().unwrap();
        assert!((number(&first["chosen_logit"]) - number(&best["logit"])).abs() < 1e-6, "{first} {best}");
        let margin = number(&first["chosen_logit"]) - number(&first["fed_logit"]);
        assert!(margin > 0.0 && (margin - number(&first["margin"])).abs() < 1e-6, "{first}");
        assert!(folder.text("told.xml").contains("name=\"decoded tokens\""), "{text}");
        Schema::printed("run").check(&report).unwrap();
        // A saved report prints the same.
        assert!(folder.qdiff("report told.json").exits(1).stdout.contains("at the decoded tokens"));
    }
}

/// An engine is held to its declaration, and tokens that were fed to it are not its choices.
#[test]
fn the_sampler_that_is_declared_decides() {
    let folder = folder();
    let late = fed(&folder, 4, |_, before| largest(before));
    for (sampler, code, said) in [
        (Value::Null, 1, "each is what the logits of the step before choose"),
        (json!("greedy"), 1, "each is what the logits of the step before choose"),
        (json!({"top_k": 1}), 1, "each is what the logits of the step before choose"),
        (json!({"top_k": 512}), 0, "4 tokens fed as the engine's own logits choose (any of the top_k largest)"),
        (json!("drawn"), 0, ""),
        (json!("told"), 0, ""),
    ] {
        dump(&folder, &late, sampler.clone());
        let (status, report, text) = folder.judged("--subject capture:mine");
        let text = unwrapped(&text);
        assert_eq!(status, code, "{sampler}: {text}");
        assert!(text.contains(said), "{sampler}: {text}");
        assert_eq!(report["decoded"].is_null(), said.is_empty(), "{sampler}: {text}");
        assert_eq!(text.contains("says so in its manifest"), sampler.is_null(), "{sampler}: {text}");
    }
    // The token at which it stopped was chosen too.
    let right = fed(&folder, 3, |row, _| largest(row));
    dump(&folder, &right[..2], json!("greedy"));
    let mut manifest = folder.json("mine/manifest.json");
    for (at, others) in [(right[2], 0), (right[2] ^ 1, 1)] {
        manifest["end"] = json!({"at": at});
        folder.write("mine/manifest.json", manifest.to_string());
        let (_, report, text) = folder.judged("--subject capture:mine");
        assert_eq!(
            (&report["decoded"]["checked"], &report["decoded"]["others"]),
            (&json!(3), &json!(others)),
            "{text}"
        );
        assert_eq!(headline(&text).contains("decoded tokens: after step 2"), others == 1, "{text}");
    }
}

/// A capture that was made on the reference's choices is not accused of what the reference chose.
#[test]
fn what_the_reference_chose_is_no_choice_of_the_engine() {
    let folder = folder();
    folder.qdiff("record -m model.gguf --out theirs --runner llama --tokens 1,2,3 -n 3").exits(0);
    folder.qdiff("record -m model.gguf --out mine --like theirs").exits(0);
    let mut manifest = folder.json("mine/manifest.json");
    manifest["sampler"] = Value::Null;
    folder.write("mine/manifest.json", manifest.to_string());
    let decoded = manifest["decoded"][0].as_u64().unwrap() as usize;
    qdiff_tests::npz::tamper(&folder.join("mine/capture.npz"), "prefill/logits", |values| {
        let row = values.len() / 3 * 2;
        values[row + (decoded + 1) % 512] = values[row + decoded] + 1.0;
    });
    let (_, report, text) = folder.judged("--subject capture:mine");
    assert_eq!((&report["decoded"]["as_reference"], &report["decoded"]["others"]), (&json!(1), &json!(0)), "{text}");
    assert!(!text.contains("at the decoded tokens"), "{text}");
}
