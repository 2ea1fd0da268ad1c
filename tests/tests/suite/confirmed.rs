//! Causes tried on other tokens, through the binary: what is confirmed, what is withdrawn, and what could not be tried.

use qdiff_tests::containers::{arrays, write_npy};
use qdiff_tests::{Folder, folder, unwrapped};
use serde_json::Value;

/// A prompt whose decode steps begin at position 16.
const TOKENS: &str = "--tokens 5,9,77,4,4,120,33,8,250,19,3,7,61,90,12,44 -n 3";

/// What became of the cause of the first finding, with the screen in one line.
fn tried(folder: &Folder, extra: &str) -> (Value, String) {
    let (code, report, text) = folder.judged(extra);
    assert_eq!(code, 1, "{text}");
    let first = &report["verdict"]["findings"][0];
    (first["trial"].clone(), unwrapped(&text))
}

/// A cause that fitted one run was reported as one of all runs.
#[test]
fn a_cause_is_tried_on_other_tokens() {
    let folder = folder();
    for fault in ["qkv-bias-omitted", "kv-position-stuck", "stale-from-previous-step@L01.ffn_up"] {
        let (trial, text) = tried(&folder, &format!("--subject cpu {TOKENS} --inject {fault}"));
        assert_eq!(trial["outcome"], "confirmed", "{fault}: {text}");
        let told = format!("confirmed on {} other tokens: it gives", trial["tokens"]);
        assert!(trial["elements"].as_u64() > Some(0) && text.contains(&told), "{text}");
    }
    let tokens_of = |runs: usize| {
        let command = format!("--subject cpu {TOKENS} --inject rope-base@L01 --confirm {runs}");
        let (trial, text) = tried(&folder, &command);
        assert_eq!(trial["outcome"], "confirmed", "{text}");
        trial["tokens"].as_u64().unwrap()
    };
    // A run of 38 tokens of a prompt, then one of 37: that leaves fewer rows over after whole tiles. Three decode steps of each.
    assert_eq!([1, 2].map(tokens_of), [41, 41 + 40]);
    let (trial, text) = tried(&folder, &format!("--subject cpu {TOKENS} --inject rope-base@L01 --confirm no"));
    assert_eq!(trial["outcome"], "untried", "{text}");
    assert!(text.contains("fits this run; not tried on other tokens: --confirm no"), "{text}");
    let (trial, text) = tried(&folder, &format!("--subject cpu {TOKENS} --inject rope-base@L01 --positions 1-18"));
    assert!(trial["outcome"] == "untried" && text.contains("--positions names positions of this prompt"), "{text}");
}

/// A recorded subject cannot run again: another capture of it tells.
#[test]
fn captures_are_tried_on_another_capture() {
    let folder = folder();
    let faulty = "--runner cpu --inject rms-eps-wrong:eps=0.001@L01.ffn_norm";
    folder.record("one", &format!("{TOKENS} {faulty}"));
    folder.record("same", &format!("--tokens 8,70,3,41,5,300,22 {faulty}"));
    folder.record("other", "--tokens 8,70,3,41,5,300,22 --runner cpu --inject gelu-for-silu@L01.ffn_act");
    folder.record("another", "--tokens 8,70,3,41,5,300,22 --runner cpu --inject scaled:by=0.7@L01.ffn_norm");
    let judged = |other: &str| tried(&folder, &format!("--subject capture:one{other}"));
    let (trial, text) = judged("");
    assert_eq!(trial["outcome"], "untried", "{text}");
    assert!(text.contains("a capture cannot run again (give one of other tokens: --confirm capture:DIR)"), "{text}");
    let (trial, text) = judged(" --confirm capture:same");
    assert_eq!((&trial["outcome"], &trial["tokens"]), (&"confirmed".into(), &9.into()), "{text}");
    // Nothing is wrong there, or something else is.
    for other in ["other", "another"] {
        let (trial, text) = judged(&format!(" --confirm capture:{other}"));
        assert_eq!(trial["outcome"], "withdrawn", "{text}");
        assert!(
            text.contains("no known cause") && text.contains("one candidate for the cause is taken back, \"epsilon"),
            "{text}"
        );
    }
    folder.refuses("run -m model.gguf --subject capture:one --confirm 1", &["--confirm capture:DIR"]);
    folder.refuses("run -m model.gguf --subject cpu --confirm capture:same", &["--confirm N"]);
    // A run that goes on longer on the same tokens is no other one.
    folder.record("longer", &format!("{} {faulty}", TOKENS.replace("-n 3", "-n 5")));
    for same in ["one", "longer"] {
        folder.refuses(
            &format!("run -m model.gguf --subject capture:one --confirm capture:{same}"),
            &["holds the same tokens"],
        );
    }
}

/// The same of captures of several sequences: this was promised, and refused.
#[test]
fn captures_of_sequences_are_tried_on_another_one() {
    let folder = folder();
    for (name, text) in [("one", "haiku"), ("other", "long")] {
        folder
            .qdiff(&format!("record -m model.gguf --prompt {text} --length 15 --sequences 7+6,1+1 --out right"))
            .exits(0);
        let mut all = arrays(&folder.join("right"));
        for array in all.iter_mut().filter(|array| array.name.ends_with("/logits")) {
            array.values.iter_mut().for_each(|value| *value *= 0.75);
        }
        write_npy(&folder.join(name), &all);
        std::fs::rename(folder.join("right/manifest.json"), folder.join(format!("{name}/manifest.json"))).unwrap();
        std::fs::remove_dir_all(folder.join("right")).unwrap();
    }
    let said = folder.qdiff("run -m model.gguf --subject capture:one --confirm capture:other").exits(1);
    let text = unwrapped(&said.stdout);
    assert!(
        text.contains("the output is multiplied by a constant (scaled:by=0.75)") && text.contains("confirmed on"),
        "{said}"
    );
}

/// The verdict stands where the engine ends on other tokens; one line says why the cause was not tried.
#[test]
fn an_engine_that_fails_on_other_tokens_keeps_its_verdict() {
    let folder = folder();
    folder.record("wrong", "--tokens 5,9,77,4,41,120 -n 0 --runner cpu --inject rope-base@L01");
    let engine = "cmd: test -e ran && exit 5; touch ran; cp wrong/* {dir}/ # {ids}";
    let (trial, text) = tried(&folder, &format!("--subject '{engine}' --tokens 5,9,77,4,41,120 -n 0 --repeat 0"));
    assert_eq!(trial["outcome"], "untried", "{text}");
    assert!(text.contains("rope-base") && text.contains("the subject could not run on them"), "{text}");
}
