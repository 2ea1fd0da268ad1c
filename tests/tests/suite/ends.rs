//! The end of generation: which tokens end a text to the engine, and where it stopped, by its own decision.

use qdiff_tests::schema::Schema;
use qdiff_tests::synth::{Kv, base_vocab};
use qdiff_tests::{Folder, empty, exact, headline};
use serde_json::{Value, json};

const EOS: &str = "tokenizer.ggml.eos_token_id";
const BOS: &str = "tokenizer.ggml.bos_token_id";

/// A folder with a small model of other metadata.
fn with(change: impl FnOnce(&mut Kv)) -> Folder {
    let folder = empty();
    folder.write("model.gguf", exact().to_bytes_with(change));
    folder
}

/// `<|endoftext|>` and `<|im_end|>`, which end a text of every model here.
fn ends() -> [u32; 2] {
    let ids = base_vocab() as u32;
    [ids - 3, ids - 1]
}

/// A token that the model draws first as the second or later, and its index; it is no end.
fn drawn() -> (u32, usize) {
    let (_, report, text) = with(|_| ()).generated("-n 12");
    let tokens: Vec<u32> = serde_json::from_value(report["generation"]["subject"]["tokens"].clone()).unwrap();
    let first = |i: &usize| !tokens[..*i].contains(&tokens[*i]) && !ends().contains(&tokens[*i]);
    let index = (1..11).find(first).unwrap_or_else(|| panic!("it repeats itself: {text}"));
    (tokens[index], index)
}

/// The subject stops by what it takes for an end, the reference by what llama.cpp does; the report has both.
#[test]
fn the_engines_own_end_decides_and_is_judged() {
    let (token, index) = drawn();
    let stops = |report: &Value| {
        let side = |side: &str| report["generation"][side]["stop"].as_str().unwrap().to_owned();
        [side("subject"), side("reference")]
    };
    let end = "end-of-generation";
    // An end of the file's own, of no known text.
    let folder = with(|kv| kv.u32(EOS, token));
    let (code, report, text) = folder.generated("-n 12");
    assert_eq!((code, stops(&report)), (0, [end, end].map(String::from)), "{text}");
    assert_eq!(report["generation"]["subject"]["tokens"].as_array().unwrap().len(), index + 1);
    assert!(text.contains("the same 3 end-of-text tokens as llama.cpp"), "{text}");
    // An engine that takes bos for it goes on.
    let (code, report, text) = folder.generated("-n 12 --inject bos-for-eos --junit told.xml");
    assert_eq!((code, stops(&report)), (1, ["length", end].map(String::from)), "{text}");
    let wrong = &report["end"]["wrong"];
    assert_eq!((&wrong["index"], &wrong["stopped"]), (&json!(index), &json!(false)), "{text}");
    let line = format!("DIVERGED at the end of generation: the engine went on after token {index}, ");
    assert!(text.contains(&line) && headline(&text[text.find(&line).unwrap()..]).contains("(bos-for-eos)"), "{text}");
    assert!(text.contains("up to where one of them ended"), "{text}");
    assert!(folder.text("told.xml").contains("<failure"), "{text}");
    Schema::printed("generation").check(&report).unwrap();
    // Where bos is no end it stops too early.
    let folder = with(|kv| kv.u32(BOS, token));
    let (code, report, text) = folder.generated("-n 12 --inject bos-for-eos");
    assert_eq!((code, stops(&report)), (1, [end, "length"].map(String::from)), "{text}");
    let wrong = &report["end"]["wrong"];
    assert_eq!((&wrong["token"]["id"], &wrong["stopped"]), (&json!(token), &json!(true)), "{text}");
    assert!(text.contains(&format!("the engine stopped at token {index}, ")), "{text}");
    assert!(text.contains("remedy"), "{text}");
}

/// An end that the engine does not know is found though no text came to it.
#[test]
fn a_list_of_ends_is_compared() {
    let folder = with(|_| ());
    let (code, report, text) = folder.generated("-n 2 --inject eos-alone");
    let [missed, _] = ends();
    assert_eq!((code, &report["end"]["missed"][0]["id"]), (1, &json!(missed)), "{text}");
    assert_eq!((&report["end"]["added"], &report["end"]["wrong"]), (&json!([]), &Value::Null), "{text}");
    assert_eq!(report["end"]["cause"]["name"], "eos-alone", "{text}");
    let line =
        format!("DIVERGED at the end of generation: only llama.cpp ends a text at '<|endoftext|>' (id {missed})");
    assert!(headline(&text[text.find("DIVERGED").unwrap()..]).contains(&line), "{text}");
    assert!(text.contains("eos-alone in the end of generation"), "{text}");
    for (args, word) in [
        ("generate --inject eos-alone --inject bos-for-eos", "cannot be injected together"),
        ("generate --inject eos-alone@L00", "is the fault of no stage"),
        ("run --inject eos-alone", "`qdiff mutations show eos-alone` says where"),
    ] {
        folder.refuses(&format!("{args} -m model.gguf"), &[word]);
    }
    // A vocabulary with no other end.
    let mut tokens: Vec<String> = (0..512).map(|i| format!("token{i}")).collect();
    let folder = with(|kv| kv.strings("tokenizer.ggml.tokens", &tokens));
    let said = "changes nothing about this vocabulary, where 1 token ends a text";
    folder.refuses("generate -m model.gguf --tokens 1,2 --inject eos-alone", &[said]);
    // Which of two paddings ends a text is llama.cpp's hash map's to say; and some ends are none beside others.
    for (names, count) in [
        (&["<|fim_pad|>", "[PAD]", "<PAD>", "<fim_pad>"][..], 2),
        (&["<|return|>", "<|call|>", "<|end|>"], 3),
        (&["<|flush|>", "<|calls|>", "<|end|>"], 3),
        (&["<|return|>", "<|flush|>", "<|end|>"], 4),
        (&["<|tool_response>", "</s>"], 2),
        (&["</s>"], 2),
    ] {
        for (place, name) in tokens[100..].iter_mut().zip(names) {
            *place = (*name).to_owned();
        }
        let (code, report, text) =
            with(|kv| kv.strings("tokenizer.ggml.tokens", &tokens)).generated("--tokens 1,2 -n 1");
        assert_eq!((code, &report["end"]["ends"]), (0, &json!(count)), "{names:?}: {text}");
        (100..104).for_each(|i| tokens[i] = format!("token{i}"));
    }
}

/// A capture says where its engine stopped, and is held to it.
#[test]
fn a_recorded_end_is_judged() {
    let (token, index) = drawn();
    let folder = with(|kv| kv.u32(EOS, token));
    let [other, im_end] = ends();
    folder.record("mine", &format!("-n {index}"));
    let manifest = folder.json("mine/manifest.json");
    let judged = |folder: &Folder, end: Value| {
        let mut said = manifest.clone();
        said["end"] = end;
        folder.write("mine/manifest.json", said.to_string());
        folder.judged("--subject capture:mine --junit told.xml")
    };
    // Without a declaration nothing is judged: the tokens may be another engine's.
    let (code, report, _) = judged(&folder, Value::Null);
    assert_eq!((code, &report["end"]), (0, &Value::Null));
    let (code, report, text) = judged(&folder, json!({"at": token, "tokens": [other, im_end, token]}));
    assert_eq!((code, &report["end"]["wrong"]), (0, &Value::Null), "{text}");
    assert!(text.contains("the same 3 end-of-text tokens as llama.cpp"), "{text}");
    let (code, _, text) = judged(&folder, json!({"at": token}));
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("the list of ends was not compared"), "{text}");
    for (end, said, cause) in [
        (json!({"at": 7}), format!("the engine stopped at token {index}, "), ""),
        (json!({"at": token, "tokens": [token]}), "only llama.cpp ends a text at ".to_owned(), "eos-alone"),
        (json!({"tokens": [other, im_end, token, 9_999_999]}), "(id 9999999)".to_owned(), ""),
    ] {
        let (code, report, text) = judged(&folder, end);
        assert_eq!(code, 1, "{text}");
        assert!(headline(&text).starts_with("DIVERGED at the end of generation: "), "{text}");
        assert!(headline(&text).contains(&said) && headline(&text).contains(cause), "{text}");
        assert!(folder.text("told.xml").contains("name=\"end of generation\""), "{text}");
        Schema::printed("run").check(&report).unwrap();
        // A saved report prints the same.
        assert!(folder.qdiff("report told.json").exits(1).stdout.contains("at the end of generation"));
    }
    // One step more, and the end was fed.
    std::fs::remove_dir_all(folder.join("mine")).unwrap();
    folder.record("mine", &format!("-n {}", index + 1));
    let manifest = folder.json("mine/manifest.json");
    assert_eq!(manifest["decoded"][index], json!(token));
    let mut said = manifest;
    said["end"] = json!({});
    folder.write("mine/manifest.json", said.to_string());
    let (code, report, text) = folder.judged("--subject capture:mine");
    assert_eq!((code, &report["end"]["wrong"]["index"]), (1, &json!(index)), "{text}");
    assert!(headline(&text).contains(&format!("the engine went on after token {index}")), "{text}");
    said["end"] = json!(5);
    folder.write("mine/manifest.json", said.to_string());
    folder.refuses("run -m model.gguf --subject capture:mine", &["is no manifest"]);
}
