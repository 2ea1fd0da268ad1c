//! What is wrong before the first stage, or after the last: other tokens made of
//! the prompt, another token drawn from the logits.

use qdiff::loaded::LoadedModel;
use qdiff::mutations::{FaultSite, catalogue};
use qdiff::prompts::{self, Style};
use qdiff::tokens;
use qdiff_engine::tokenizer::Tokenizer;
use qdiff_tests::synth::patch;
use qdiff_tests::{empty, exact, folder_with};
use serde_json::{Value, json};

#[test]
fn the_first_different_token_is_shown_with_its_rule() {
    let folder = folder_with(&exact());
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let tokenizer = Tokenizer::new(opened.model.gguf()).unwrap();
    let style = Style { raw: true, ..Style::default() };
    let prompt = prompts::ready(&opened, "text", "Hello the 12".to_owned(), style).unwrap();
    let right = prompt.tokens.clone();
    let piece = |id| opened.piece_bytes(id).unwrap();
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
    for fault in catalogue().filter(|m| m.site() == FaultSite::Tokenizer) {
        for command in ["run", "generate"] {
            let given = "-m model.gguf -n 1 --prompt 'Hi  the model' --system 'Be brief'";
            if fault.name == "digits-together" {
                let said = "changes nothing about the prompt `text`; it is untested there";
                folder.refuses(&format!("{command} {given} --inject digits-together"), &[said]);
                continue;
            }
            let (code, report, text) = folder.told(&format!("{command} {given} --inject {}", fault.name));
            assert_eq!(code, 1, "{text}");
            assert_eq!(report["tokens"]["cause"]["name"], fault.name, "{text}");
            let injected = format!("{} in the tokenizer", fault.name);
            assert!(text.contains(&injected), "{text}");
            assert!(text.contains("DIVERGED at tokens: token "), "{text}");
        }
    }
}

/// The report lists what a text leaves untested of the tokenizer, except what no text can test with this vocabulary.
#[test]
fn what_a_prompt_does_not_test_of_the_tokenizer_is_said() {
    let folder = folder_with(&exact());
    for (text, untested) in [("Hello the", json!(["spaces-together"])), ("Hello  the", Value::Null)] {
        for command in ["run", "generate --subject cpu"] {
            let (code, report, screen) = folder.told(&format!("{command} -m model.gguf -n 1 --raw --prompt '{text}'"));
            assert_eq!((code, &report["tokens"]["untested"]), (0, &untested), "{screen}");
            let said = screen.contains("this text cannot show the fault spaces-together");
            assert_eq!(said, untested != Value::Null, "{screen}");
        }
    }
    // No token of this vocabulary has two digits, until one has.
    let digits = |text: &str| {
        let mut tokens: Vec<String> = (0..512).map(|i| format!("token{i}")).collect();
        for (token, text) in tokens.iter_mut().zip(["1", "2", "12", "a"]) {
            *token = text.to_owned();
        }
        let folder = empty();
        let model = exact().to_bytes_with(|kv| {
            kv.strings("tokenizer.ggml.tokens", &tokens);
            kv.strings("tokenizer.ggml.merges", &["1 2".to_owned()]);
        });
        folder.write("model.gguf", model);
        folder.qdiff(&format!("run -m model.gguf -n 0 --raw --prompt '{text}' --inject digits-together"))
    };
    let said = digits("12").exits(1);
    assert!(said.stdout.contains("(digits-together)"), "{said}");
    assert!(digits("a").exits(2).stderr.contains("it is untested there"));
}

/// One that does nothing is refused, and so are two.
#[test]
fn faults_of_the_tokenizer_do_something() {
    let folder = folder_with(&exact());
    for (args, expected) in [
        ("--prompt Hi --inject system-prompt-missing", "changes nothing about the prompt"),
        ("--tokens 1,2 --inject bos-added", "tokens are given here"),
        ("--inject bos-added --inject special-tokens-as-text", "cannot be injected together"),
    ] {
        for command in ["run", "generate"] {
            folder.refuses(&format!("{command} -m model.gguf {args}"), &[expected]);
        }
    }
}

/// A capture is held against the prompt that the command names.
#[test]
fn the_tokens_of_a_capture_are_named() {
    let folder = folder_with(&exact());
    folder.qdiff("record -m model.gguf --out mine --prompt Hi --raw").exits(0);
    let judge = "run -m model.gguf --subject capture:mine --prompt Hi";
    // Tokens and length of the environment give way to what was typed.
    for environment in [&[][..], &[("QDIFF_TOKENS", "1,2"), ("QDIFF_LENGTH", "3")]] {
        let said = folder.qdiff_with(environment, &format!("{judge} --raw")).exits(0);
        assert!(said.stdout.contains("as in llama.cpp"), "{said}");
    }
    // Nothing is decoded after it.
    let said = folder.qdiff(&format!("{judge} --raw --length 2048"));
    assert!(said.to_string().contains("is nothing to the engine"), "{said}");
    folder.refuses("run -m model.gguf --subject capture:mine --inject bos-added", &[]);
    let said = folder.qdiff(judge).exits(1);
    assert!(said.stdout.contains("(chat-template-missing)"), "{said}");
    assert!(said.stdout.contains("--subject capture:mine"), "{said}");
}

/// A fault of the samplers is separated from one of the model, and named.
#[test]
fn faults_of_the_samplers_are_named() {
    let folder = folder_with(&exact());
    for (fault, more) in
        [("sampler-seed", "--temp 1"), ("sampler-order", "--temp 4 --min-p 0.2"), ("sampler-bound", "")]
    {
        let (code, report, text) = folder.generated(&format!("-n 24 --inject {fault} {more}"));
        assert_eq!(code, 1, "{fault}: {text}");
        assert_eq!(report["cause"]["kind"], "sampler", "{fault}: {text}");
        let causes: Vec<&Value> = report["cause"]["causes"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert_eq!(causes, [fault], "{text}");
        assert!(text.contains("from the same logits the engine's samplers draw another token"), "{text}");
    }
    // Neither fault alone draws what both draw together.
    let (code, report, text) = folder.generated("-n 24 --temp 1 --inject sampler-seed --inject sampler-bound");
    assert_eq!((code, &report["cause"]["causes"]), (1, &json!([])), "{text}");
    assert!(text.contains("no known cause"), "{text}");
    // Equal logits: a norm without weight makes all of them zero.
    folder.edit("model.gguf", |file| patch(file, "output_norm.weight", |weight| weight.fill(0)));
    let (code, report, text) = folder.generated("-n 2");
    assert_eq!((code, &report["cause"]), (0, &Value::Null), "{text}");
    let (code, report, text) = folder.generated("-n 2 --inject sampler-ties");
    assert_eq!(code, 1, "{text}");
    assert_eq!(report["cause"]["causes"][0]["name"], "sampler-ties", "{text}");
    folder.refuses("run -m model.gguf --inject sampler-seed", &["`qdiff mutations show sampler-seed` says where"]);
}
