//! What a verdict speaks of: the tokens that were run, the faults that could act, the options that were heard, the
//! tolerances that were set; and the battery that runs what others leave out.

use qdiff_engine::cuda::CudaError;
use qdiff_tests::npz::tamper;
use qdiff_tests::schema::Schema;
use qdiff_tests::synth::Synth;
use qdiff_tests::{Folder, folder, folder_with, headline, unwrapped};
use serde_json::{Value, json};

/// A small model with a context and a vocabulary of so many.
fn sized(context: usize, n_vocab: usize) -> Folder {
    let small =
        Synth { n_layers: 1, n_embd: 32, n_heads: 1, n_kv_heads: 1, head_dim: 32, n_ff: 32, ..Synth::default() };
    folder_with(&Synth { context, n_vocab, tied: true, ..small })
}

fn of<'a>(report: &'a Value, case: &str) -> &'a Value {
    report["cases"].as_array().unwrap().iter().find(|c| c["name"] == case).unwrap()
}

/// Every case runs where there is room for it, and then nothing is left unexercised.
#[test]
fn the_battery_exercises_all_that_a_model_has_room_for() {
    for (context, n_vocab, absent) in
        [(8192, 512, &["high-ids"][..]), (128, 140_000, &["boundary-256", "boundary-4096"])]
    {
        let (code, report, text) = sized(context, n_vocab).told("check -m model.gguf --subject cpu");
        assert_eq!((code, &report["unexercised"]), (0, &json!([])), "{text}");
        assert!(!text.contains("untested"), "{text}");
        for case in report["cases"].as_array().unwrap() {
            let left = absent.contains(&case["name"].as_str().unwrap());
            assert_eq!(case["fared"], if left { "left-out" } else { "run" }, "{text}");
            assert!(left || case["outcome"] == "match", "{text}");
        }
    }
}

/// What the model is too small for, and what nobody wanted, is named in the verdict and in every list.
#[test]
fn what_the_battery_leaves_out_is_said() {
    let folder = folder();
    let (code, report, text) = folder.told("check -m model.gguf --subject cpu --quick --junit told.xml");
    assert_eq!(code, 0, "{text}");
    let line = headline(&text);
    assert!(
        line.starts_with("MATCH: 8 of 8 cases match; high-ids was left out (the vocabulary ends at id 511)"),
        "{line}"
    );
    assert!(line.contains("boundary-256 was left out (--quick)"), "{line}");
    assert!(
        line.contains("boundary-4096 was left out (it takes 4099 tokens, and the model's context is 2048)"),
        "{line}"
    );
    assert_eq!(report["unexercised"], json!(["positions from 256 on"]), "{text}");
    assert_eq!(folder.text("told.xml").matches("<skipped").count(), 3);
    Schema::printed("check").check(&report).unwrap();
}

/// A fault of some cases alone is found in these, and the command that is named shows it.
#[test]
fn the_battery_finds_what_one_prompt_does_not() {
    let folder = folder();
    // Nothing that has fewer tokens knows of it.
    let fault = "--subject cpu --inject tail-skipped@L01.q_proj,p44..";
    let (code, ..) = folder.judged(fault);
    assert_eq!(code, 0);
    let (code, report, text) = folder.told(&format!("check -m model.gguf --quick {fault}"));
    assert_eq!(code, 1, "{text}");
    assert!(headline(&text).starts_with("DIVERGED: 7 of 8 cases match; odd-longer DIVERGED at L01.q_proj"), "{text}");
    assert_eq!(of(&report, "odd")["outcome"], "match");
    let command = of(&report, "odd-longer")["command"].as_str().unwrap();
    let again = folder.qdiff(command.strip_prefix("qdiff ").unwrap()).exits(1);
    assert!(again.stdout.starts_with("DIVERGED at L01.q_proj"), "{again}");
}

/// Every run says what its tokens do not exercise.
#[test]
fn a_run_says_what_it_does_not_exercise() {
    let folder = folder();
    let (_, report, text) = folder.judged("--tokens 5 -n 0");
    let left = json!([
        "attention to an earlier token",
        "a prompt in several parts",
        "decode steps",
        "several tokens after a decode step",
        "a token that comes again",
        "positions from 256 on"
    ]);
    assert_eq!(report["run"]["unexercised"], left, "{text}");
    assert!(unwrapped(&text).contains("not exercised here: attention to an"), "{text}");
    let (_, report, _) = folder.judged("--tokens 5,6,7 --ubatch 2 -n 1");
    assert_eq!(report["run"]["unexercised"].as_array().unwrap().last().unwrap(), "positions from 256 on");
}

/// A fault that could not act on these tokens proves nothing of the check, and the verdict says so.
#[test]
fn an_inert_fault_is_said_to_be_inert() {
    let folder = folder();
    let (code, report, text) = folder.judged("--tokens 5 -n 0 --inject rope-base");
    assert_eq!((code, &report["run"]["inert"]), (0, &json!(["rope-base:base=10000 in 4 stages"])), "{text}");
    let line = "MATCH with injected faults that are inert here, rope-base:base=10000 in 4 stages: all 47 stages";
    assert!(headline(&text).starts_with(line), "{text}");
    // One that acts is not; nor is one that was not judged, or that a tolerance let pass.
    for rest in ["--tokens 5,6", "--tokens 5,6 --stages ffn_*", "--tokens 5,6 --tolerance *_rope=9"] {
        let (_, report, text) = folder.judged(&format!("{rest} -n 0 --inject rope-base@L01"));
        assert_eq!(report["run"]["inert"], Value::Null, "{text}");
    }
    // Nor is one in a stage that was not tapped, whether its segment is wrong or right.
    for (tokens, code) in [("5,6,7,8", 1), ("5", 0)] {
        let given = format!("--tokens {tokens} -n 0 --taps embed,L*.layer_out,logits --inject");
        let fault = if code == 1 { "scaled:by=0.9@L01.v_proj" } else { "rope-base" };
        let (found, report, text) = folder.judged(&format!("{given} {fault}"));
        assert_eq!((found, &report["run"]["inert"]), (code, &Value::Null), "{text}");
        assert!(!text.contains("inert"), "{text}");
    }
}

/// Every command that takes a fault says of one that could not act that it is inert, and of no other.
#[test]
fn every_command_says_that_a_fault_is_inert() {
    let folder = folder();
    let line = |verdict: &str| format!("{verdict} with injected faults that are inert here, rope-base:base=10000 in ");
    // The first position is not rotated, at any base.
    for (command, word) in [("run", "MATCH"), ("logits", "MATCH"), ("sweep", "MATCH"), ("generate", "SAME TEXT")] {
        let n = u8::from(command == "generate");
        let given = format!("{command} -m model.gguf --subject cpu -n {n} --inject rope-base");
        let (code, report, text) = folder.told(&format!("{given} --tokens 5 --markdown told.md"));
        let inert = if command == "run" { &report["run"]["inert"] } else { &report["inert"] };
        assert_eq!((code, inert), (0, &json!(["rope-base:base=10000 in 4 stages"])), "{text}");
        assert!(text.contains(&line(word)) && folder.text("told.md").contains("inert here"), "{text}");
        Schema::printed(if command == "generate" { "generation" } else { command }).check(&report).unwrap();
        let (_, report, text) = folder.told(&format!("{given}@L01 --tokens 5,6"));
        assert_eq!((&report["inert"], &report["run"]["inert"]), (&Value::Null, &Value::Null), "{text}");
        assert!(!text.contains("inert"), "{text}");
    }
    // A capture does not name an injected fault, so `record` prints a warning.
    let said =
        folder.qdiff("record -m model.gguf --tokens 5 -n 0 --inject rope-base --stages logits --out one").exits(0);
    assert!(said.stdout.starts_with(line("").trim_start()) && said.stdout.contains(": recorded "), "{said}");
    let said = folder.qdiff("record -m model.gguf --tokens 5,6 -n 0 --inject rope-base --out two").exits(0);
    assert!(said.stdout.starts_with("recorded "), "{said}");
    // Of several runs, what is inert in all of them.
    let (code, report, text) =
        folder.told("check -m model.gguf --subject cpu --quick --inject tail-skipped@L01.q_proj,p200..");
    let fault = "tail-skipped:from=240,left=0 in 1 stage from position 200 on";
    assert_eq!((code, &report["inert"]), (0, &json!([fault])), "{text}");
    let expected = format!("MATCH with injected faults that are inert here, {fault}: 8 of 8 cases match");
    assert!(headline(&text).starts_with(&expected), "{text}");
    folder.write("prompts.txt", "one-token\none-token\n");
    let batch =
        "run -m model.gguf --subject cpu --prompts prompts.txt -n 0 --inject rope-base --tolerance L*.ffn_down=1";
    let said = folder.qdiff(batch);
    let counts = "; 2 with tolerances set by hand; 2 with injected faults that are inert\n";
    assert!(said.stdout.lines().next().is_some_and(|l| l.ends_with(counts.trim_end())), "{said}");
}

/// A tolerance is offered where it may be one, and the one that is offered passes.
#[test]
fn a_tolerance_is_offered_for_small_errors_of_unknown_cause_alone() {
    let folder = folder();
    for (size, offered) in [(1e-4f32, true), (0.3, false)] {
        let out = format!("by-{size}");
        folder.record(&out, "-n 0");
        tamper(&folder.join(&out).join("capture.npz"), "prefill/logits", |x| {
            for (i, v) in x.iter_mut().enumerate() {
                *v += size * ((i * 7919 % 1009) as f32 / 504.0 - 1.0);
            }
        });
        let (code, report, text) = folder.judged(&format!("--subject capture:{out}"));
        assert_eq!((code, &report["verdict"]["findings"][0]["cause"]), (1, &Value::Null), "{text}");
        let line = text.lines().find(|l| l.starts_with("tolerance"));
        assert_eq!(line.is_some_and(|line| line.contains("--tolerance '")), offered, "{text}");
        if let Some(rule) = line.and_then(|line| line.split('\'').nth(1)) {
            let (code, _, text) = folder.judged(&format!("--subject capture:{out} --tolerance {rule}"));
            assert_eq!(code, 0, "{rule}\n{text}");
            assert!(headline(&text).starts_with("MATCH with tolerances set by hand, logits="), "{text}");
        }
    }
    let (_, _, text) = folder.judged("--inject rms-eps-wrong@L00.attn_norm");
    assert!(text.contains("rms-eps-wrong") && !text.contains("would pass"), "{text}");
}

/// What a command would pass over is refused, and a word that is the name of no prompt.
#[test]
fn what_would_be_passed_over_is_refused() {
    let folder = folder();
    folder.record("mine", "-n 0");
    for (line, word) in [
        ("run --tokens 1,2 --prompt haiku", "'--prompt' would be ignored"),
        ("generate --tokens 1,2 --raw", "'--raw' would be ignored"),
        ("run --subject capture:mine --system be", "'--system' would be ignored"),
        ("run --subject cpu --map names.txt", "'--map' would be ignored"),
        ("run --subject cpu --gemm cublas", "'--gemm' would be ignored"),
        // A fault makes a CPU engine of `auto` on every machine.
        ("run --inject rope-base --gemm cublas", "'--gemm' would be ignored"),
        ("record --gemm cublas --out x", "'--gemm' would be ignored"),
        ("generate --seed 3", "'--seed' would be ignored"),
        ("run --prompts notes.txt --length 4", "'--prompts' cannot be used with '--length'"),
        ("record --like mine --out x --ubatch 4", "'--like' cannot be used with '--ubatch'"),
        ("run --subject capture:mine -n 4", "-n"),
        ("run --subject capture:mine --ubatch 4", "--ubatch"),
    ] {
        folder.refuses_options(line, &[word]);
    }
    folder.refuses("run -m model.gguf --prompt hiaku", &["`hiaku`", "did you mean `haiku`?", "--raw"]);
    folder.refuses("generate -m model.gguf --prompt hello", &["no built-in prompt is called `hello`"]);
    folder.qdiff("run -m model.gguf --prompt hello --raw -n 0").exits(0);
}

/// Without a GPU the CPU engine replaces it: qdiff says so, and `--ci` makes it an error. The message came before every
/// error as if it were the cause, with a driver to install, and with `-q`.
#[test]
fn another_engine_in_the_place_of_the_one_that_was_meant() {
    let folder = folder();
    folder.write("summary.md", "");
    let said = folder.qdiff("run -m model.gguf -n 0");
    let ci = [("GITHUB_STEP_SUMMARY", "summary.md")];
    let told = folder.qdiff_with(&ci, "run -m model.gguf -n 0 --ci github");
    // What must come out depends on the machine, and not on what comes out.
    match qdiff_engine::cuda::devices() {
        Ok(_) => assert_eq!((said.stderr.as_str(), told.code), ("", 0)),
        Err(missing) => {
            let why = if let CudaError::NoDriver = missing { "no GPU".to_owned() } else { missing.to_string() };
            assert_eq!(said.exits(0).stderr, format!("qdiff: {why}: using the CPU engine\n"));
            assert_eq!(folder.qdiff("run -m model.gguf -n 0 -q").exits(0).stderr, "");
            let error = folder.qdiff("run -m model.gguf -n 0 --stages no_such_stage").exits(2).stderr;
            assert!(!error.contains(&why) && error.contains("no_such_stage"), "{error}");
            assert!(told.exits(2).stderr.contains(&format!("{why}: with --ci, name the CPU engine")));
        }
    }
    folder.qdiff_with(&ci, "run -m model.gguf -n 0 --ci github --subject cpu").exits(0);
}
