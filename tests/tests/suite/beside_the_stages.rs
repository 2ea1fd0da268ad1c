//! What is wrong before the first stage, or after the last: other tokens made of
//! the prompt, another token drawn from the logits.

use qdiff::loaded::LoadedModel;
use qdiff::mutations::{FaultSite, catalogue};
use qdiff::prompts::{self, Style};
use qdiff::tokens;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::tokenizer::Tokenizer;
use qdiff_tests::generation::{exact, generate};
use qdiff_tests::{folder_with, qdiff, qdiff_with, stderr, stdout};
use serde_json::Value;

#[test]
fn the_first_different_token_is_shown_with_its_rule() {
    let folder = folder_with(&exact());
    let opened = LoadedModel::new(&folder.path().join("model.gguf")).unwrap();
    let tokenizer = Tokenizer::new(opened.model.gguf()).unwrap();
    let style = Style { raw: true, ..Style::default() };
    let prompt = prompts::ready(&opened, "text", "Hello the 12".to_owned(), style).unwrap();
    let right = prompt.tokens.clone();
    let piece = |id| opened.llama.piece_bytes(id, true).unwrap();
    let check = tokens::check(&opened, &prompt, None).unwrap().unwrap();
    assert_eq!((check.same, check.diverged()), (right.len(), false));

    // As if llama.cpp kept digits together, or had gone on.
    let mut theirs = right.clone();
    let last = theirs.len() - 1;
    theirs[last] = right[0];
    let found = tokens::compare(&tokenizer, &prompt, &right, &theirs, piece);
    let difference = found.difference.unwrap();
    assert_eq!(difference.index, last);
    assert_eq!(difference.at, Some(prompt.text.len() - 1));
    assert_eq!(difference.rule.as_deref(), Some(r"\p{N}"));
    assert_eq!(difference.subject.unwrap().text, "'2'");
    assert_eq!(difference.reference.unwrap().text, "'Hello'");
    theirs = right.clone();
    // A fault that would change nothing here explains nothing.
    assert_eq!(found.cause, None);
    theirs.push(0);
    let found = tokens::compare(&tokenizer, &prompt, &right, &theirs, piece);
    assert_eq!(found.difference.unwrap().subject, None);
}

/// Each fault of the tokenizer is found at the tokens, and named.
#[test]
fn faults_of_the_tokenizer_are_named() {
    let folder = folder_with(&exact());
    let given = ["-n", "1", "--prompt", "Hi", "--system", "Be brief"];
    for fault in catalogue().filter(|m| m.site() == FaultSite::Tokenizer) {
        let inject = ["--inject", fault.name];
        for command in ["run", "generate"] {
            let file = ["--json", "tokens.json", "-m", "model.gguf"];
            let output = qdiff(folder.path(), &[&[command], &given[..], &inject, &file].concat());
            let text = stdout(&output);
            assert_eq!(output.status.code(), Some(1), "{}\n{text}", stderr(&output));
            let report = std::fs::read(folder.path().join("tokens.json")).unwrap();
            let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
            assert_eq!(report["tokens"]["cause"]["name"], fault.name, "{text}");
            let injected = format!("{} in the tokenizer", fault.name);
            assert!(text.contains(&injected), "{text}");
            assert!(text.contains("DIVERGED at tokens: token "), "{text}");
        }
    }
}

/// One that does nothing is refused, and so are two.
#[test]
fn faults_of_the_tokenizer_do_something() {
    let folder = folder_with(&exact());
    for (args, expected) in [
        (&["--prompt", "Hi", "--inject", "system-prompt-missing"][..], "changes nothing about the prompt"),
        (&["--tokens", "1,2", "--inject", "bos-added"], "tokens are given here"),
        (&["--inject", "bos-added", "--inject", "special-tokens-as-text"], "cannot be injected together"),
    ] {
        for command in ["run", "generate"] {
            let output = qdiff(folder.path(), &[&[command, "-m", "model.gguf"], args].concat());
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(expected), "{said}");
        }
    }
}

/// A capture is held against the prompt that it is said to be of.
#[test]
fn the_tokens_of_a_capture_are_named() {
    let folder = folder_with(&exact());
    let run = |args: &[&str]| {
        let output = qdiff(folder.path(), &[args, &["-m", "model.gguf"]].concat());
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let (code, said) = run(&["record", "--out", "mine", "--prompt", "Hi", "--raw"]);
    assert_eq!(code, Some(0), "{said}");
    let of = |prompt: &[&str]| run(&[&["run", "--subject", "capture:mine", "--prompt", "Hi"], prompt].concat());
    let (code, said) = of(&["--raw"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("as llama.cpp"), "{said}");
    // Tokens and length of the environment give way to what was typed.
    let typed = ["run", "--subject", "capture:mine", "--prompt", "Hi", "--raw"];
    let output = qdiff_with(
        folder.path(),
        &[("QDIFF_TOKENS", "1,2"), ("QDIFF_LENGTH", "3")],
        &[&typed[..], &["-m", "model.gguf"]].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Nothing is decoded after it.
    let (_, said) = of(&["--raw", "--length", "2048"]);
    assert!(said.contains("is nothing to the engine"), "{said}");
    let refused = run(&["run", "--subject", "capture:mine", "--inject", "bos-added"]);
    assert_eq!(refused.0, Some(2), "{}", refused.1);
    let (code, said) = of(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("(chat-template-missing)"), "{said}");
    assert!(said.contains("--subject capture:mine"), "{said}");
}

/// A fault of the samplers is told from one of the model, and named.
#[test]
fn faults_of_the_samplers_are_named() {
    let folder = folder_with(&exact());
    for (fault, more) in [
        ("sampler-seed", &["--temp", "1"][..]),
        ("sampler-order", &["--temp", "4", "--min-p", "0.2"]),
        ("sampler-bound", &[]),
    ] {
        let mut args = vec!["-n", "24", "--inject", fault];
        args.extend(more);
        let (code, report, text) = generate(folder.path(), &args);
        assert_eq!(code, 1, "{fault}: {text}");
        assert_eq!(report["cause"]["kind"], "sampler", "{fault}: {text}");
        let causes = report["cause"]["causes"].as_array().unwrap();
        assert!(causes.iter().any(|c| c["name"] == fault), "{fault}: {text}");
        assert!(text.contains("from the same logits the engine's samplers draw another token"), "{text}");
    }
    // Equal logits: a norm without weight makes all of them zero.
    let path = folder.path().join("model.gguf");
    let gguf = Gguf::open(&path).unwrap();
    let weight = gguf.tensor("output_norm.weight").unwrap();
    let start = (gguf.data_offset() + weight.offset) as usize;
    let length = gguf.data(weight).len();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[start..start + length].fill(0);
    drop(gguf);
    std::fs::write(&path, bytes).unwrap();
    let (code, report, text) = generate(folder.path(), &["-n", "2"]);
    assert_eq!((code, &report["cause"]), (0, &Value::Null), "{text}");
    let (code, report, text) = generate(folder.path(), &["-n", "2", "--inject", "sampler-ties"]);
    assert_eq!(code, 1, "{text}");
    assert_eq!(report["cause"]["causes"][0]["name"], "sampler-ties", "{text}");

    let run = ["run", "-m", "model.gguf", "--inject", "sampler-seed"];
    let refused = qdiff(folder.path(), &run);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("`qdiff mutations show sampler-seed` says where"));
}
