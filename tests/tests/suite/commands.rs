//! Commands as subjects: `cmd:` and `serve:` on an engine in numpy (`docs/engine/engine.py`), and how they fail.

use qdiff_tests::containers::{arrays, write_npy, write_raw, write_safetensors};
use qdiff_tests::markdown::root;
use qdiff_tests::{Folder, Said, exact, files, folder_with, headline, python_path, unwrapped};
use serde_json::json;
use std::time::{Duration, Instant};

/// What every call gets: where numpy is, and one thread of it.
struct Numpy(String);

impl Numpy {
    fn new() -> Self {
        Self(python_path())
    }

    fn qdiff(&self, folder: &Folder, line: &str) -> Said {
        folder.qdiff_with(&[("PYTHONPATH", &self.0), ("OPENBLAS_NUM_THREADS", "1")], line)
    }
}

/// A subject of this engine, quoted for the command line.
fn subject(kind: &str, options: &str) -> String {
    let engine = root().join("docs/engine/engine.py");
    format!("--subject '{kind}: python3 {} {{model}} {options}'", engine.display())
}

const TURNS: &str = "--tokens {tokens} --decoded {decoded} --passes {passes}";

const WHOLE: &str = "--tokens {tokens} --decoded {decoded} --ubatch {ubatch}";

#[test]
fn a_command_is_judged_as_a_runner_is() {
    let (folder, numpy) = (folder_with(&exact()), Numpy::new());
    // With the reference's choices to decode; with its own choices; with the prompt alone; in parts; twice.
    for (options, more, steps) in [
        (WHOLE, "-n 3", 3),
        ("--tokens {tokens} -n {n}", "-n 2", 2),
        ("--tokens {tokens}", "", 0),
        (WHOLE, "-n 2 --ubatch 8", 2),
        // An engine that knows one way alone is said to feed token by token.
        ("--tokens {tokens} --ubatch 1", "--ubatch 1", 0),
        (TURNS, "-n 2 --length 20 --passes 9,3x1,8", 2),
        ("--tokens {tokens} -n {n} --passes {passes}", "-n 2 --length 12 --passes 9,3x1", 2),
        (WHOLE, "-n 1 --repeat 2", 1),
        (WHOLE, "-n 2 --reference none", 2),
    ] {
        let line = format!("run -m model.gguf {more} {} --tmp . --json told.json", subject("cmd", options));
        let said = numpy.qdiff(&folder, &line);
        if more.contains("none") {
            // Nobody chooses, and the command has no other way to decode.
            assert!(said.stdout.contains("the prompt's, fed again"), "{said}");
        }
        let report = folder.json("told.json");
        assert_eq!(said.code, if more.contains("none") { 3 } else { 0 }, "{options}: {said}");
        assert_eq!(report["run"]["decoded"].as_array().unwrap().len(), steps, "{said}");
        assert_eq!(report["subject"]["name"], "numpy (run by its command, arithmetic not declared: f32 assumed)");
        let rows = |of: &str| report["verdict"]["coverage"][of].as_u64().unwrap();
        assert_eq!(rows("judged"), rows("asked"), "{said}");
        assert!(report["run"]["command"].as_str().unwrap().contains("cmd: python3"), "{report}");
    }
    // A fault of its own, and what it can be used for.
    let line = format!("run -m model.gguf -n 2 {} --bisect", subject("cmd", &format!("{WHOLE} --bug base")));
    let said = numpy.qdiff(&folder, &line).exits(1);
    assert!(said.stdout.starts_with("DIVERGED at L00."), "{said}");
    // Prompt after prompt, each by a command of its own.
    folder.write("prompts", "haiku\nThe sky is\n");
    let line = format!("run -m model.gguf -n 1 --prompts prompts {}", subject("cmd", WHOLE));
    let said = numpy.qdiff(&folder, &line).exits(0);
    assert!(said.stdout.starts_with("2 runs: 2 MATCH"), "{said}");
    // An engine that cannot be built or run gives no evidence about the commit under test.
    folder.qdiff("run -m model.gguf --bisect --subject 'cmd: exit 1; {ids}'").exits(125);
    let left = files(&folder);
    assert!(!left.iter().any(|file| file.starts_with(".qdiff-command-")), "{left:?}");
}

/// Random values looked like a bug of the layer, and an engine that took the smallest logit like no bug at all.
#[test]
fn what_stages_do_not_show_of_a_command_is_told() {
    let (folder, numpy) = (folder_with(&exact()), Numpy::new());
    let run = |kind: &str, options: &str, more: &str| {
        let line = format!("run -m model.gguf -n 2 {} {more} --json told.json", subject(kind, options));
        (headline(&numpy.qdiff(&folder, &line).exits(1).stdout), folder.json("told.json"))
    };
    for (kind, options) in [("cmd", format!("{WHOLE} --bug random")), ("serve", "--serve --bug random".to_owned())] {
        let (line, report) = run(kind, &options, "");
        assert!(line.starts_with("DIVERGED: not the same twice at L01.layer_out, p0: a race"), "{kind}: {line}");
        assert_eq!(report["repeated"]["race"]["run"], 2, "{line}");
    }
    let (line, report) = run("cmd", &format!("{WHOLE} --bug random"), "--repeat 0");
    assert!(line.starts_with("DIVERGED at ") && report["repeated"].is_null(), "{line}");
    // It makes its own choices, other tokens each time.
    let (line, _) = run("cmd", "--tokens {tokens} -n {n} --bug random", "");
    assert!(line.starts_with("DIVERGED: not the same twice at L01.layer_out, p0: a race"), "{line}");
    let (line, report) = run("cmd", "--tokens {tokens} -n {n} --bug argmin", "");
    assert!(line.starts_with("DIVERGED at the decoded tokens: after the prompt the engine chose "), "{line}");
    assert_eq!(
        (&report["decoded"]["others"], &report["decoded"]["pattern"]),
        (&2.into(), &"smallest".into()),
        "{line}"
    );
}

#[test]
fn an_engine_that_stays_up_is_driven_step_by_step() {
    let (folder, numpy) = (folder_with(&exact()), Numpy::new());
    let serve = subject("serve", "--serve");
    for more in ["-n 3", "-n 2 --ubatch 8", "-n 2 --length 20 --passes 9,3x1,8", "-n 2 --reference none"] {
        let said = numpy.qdiff(&folder, &format!("run -m model.gguf {more} {serve}"));
        let expected = if more.contains("none") { (3, "INCOMPLETE: no reference ran") } else { (0, "MATCH") };
        assert!(said.code == expected.0 && said.stdout.starts_with(expected.1), "{more}: {said}");
    }
    let said = numpy.qdiff(&folder, &format!("generate -m model.gguf -n 6 {serve}"));
    assert_eq!(said.code, 0, "{said}");
    let faulty = subject("serve", "--serve --bug cache");
    let said = numpy.qdiff(&folder, &format!("sweep -m model.gguf -n 2 --sizes 8,1 {faulty}")).exits(1);
    assert!(headline(&said.stdout).contains("decode or cache, at L00.layer_out; in one batch it is right"), "{said}");
    // A command that runs once cannot be driven, and says what can.
    let said = numpy.qdiff(&folder, &format!("generate -m model.gguf -n 6 {}", subject("cmd", WHOLE))).exits(2);
    assert!(said.stderr.contains("cannot take one after the other") && said.stderr.contains("serve:"), "{said}");
    let said =
        numpy.qdiff(&folder, &format!("sweep -m model.gguf -n 0 --sizes 8 {}", subject("cmd", "--tokens {tokens}")));
    assert!(said.exits(2).stderr.contains("takes no parts of the prompt: it needs {passes} or {ubatch}"));
    let turns = format!("run -m model.gguf -n 0 --length 20 --passes 9,3x1,8 {}", subject("cmd", WHOLE));
    let said = numpy.qdiff(&folder, &turns).exits(2);
    assert!(said.stderr.contains("takes no passes: it needs {passes}"), "{said}");
}

/// A command that leaves what an earlier run wrote, in any container, is refused; written anew, the same values are judged.
#[test]
fn what_an_earlier_run_left_is_not_judged_as_a_commands() {
    let folder = folder_with(&exact());
    folder.record("npz", "-n 0 --stages embed,layer_out,logits");
    let (all, manifest) = (arrays(&folder.join("npz")), folder.json("npz/manifest.json"));
    write_npy(&folder.join("npy"), &all);
    write_safetensors(&folder.join("safetensors"), &all);
    let whole = json!({"end": 0, "first": 0, "tokens": manifest["tokens"]});
    write_raw(&folder.join("raw"), &all, |_| whole.clone());
    for name in ["npy", "safetensors", "raw"] {
        folder.write(&format!("{name}/manifest.json"), manifest.to_string());
    }
    let run = |command: &str| format!("run -m model.gguf --subject 'cmd: {command}; : {{ids}}'");
    for name in ["npz", "npy", "safetensors", "raw"] {
        folder.refuses(&run(&format!("cp -rp {name}/. {{dir}}")), &["is older than the run", "QDIFF_DUMP names"]);
        folder.qdiff(&run(&format!("cp -r {name}/. {{dir}}"))).exits(0);
        // A tap that could not dump says so, even if the folder has other files.
        folder.refuses(&run(&format!("cp -r {name}/. {{dir}}; echo no room > {{dir}}/capture.trouble")), &["no room"]);
    }
    // A tap repeats the name of the run, which no clock can change.
    folder.write("lines", folder.text("raw/capture.jsonl"));
    for (name, code) in [("$QDIFF_RUN", 0), ("another", 2)] {
        let head = format!(r#"{{\"schema_version\":3,\"dump\":{{\"run\":\"{name}\"}}}}"#);
        let lines = format!("(echo \"{head}\"; cat lines) > $QDIFF_DUMP/capture.jsonl");
        let script =
            format!("cp raw/*.bin raw/manifest.json $QDIFF_DUMP\n{lines}\ntouch -d 2001-01-01 $QDIFF_DUMP/*\n");
        folder.write("dump.sh", script);
        let said = folder.qdiff(&run("sh dump.sh")).exits(code);
        assert_eq!(said.stderr.contains("of another run than the last one"), code == 2, "{said}");
    }
    // A dump that was made without that name, and then copied: its files are new, and it began before the run.
    let head = r#"{"schema_version":3,"dump":{"nonce":"1","started":1000000000}}"#;
    folder.write("raw/capture.jsonl", format!("{head}\n{}", folder.text("lines")));
    folder.refuses(&run("cp -r raw/. {dir}"), &["the dump began at 2001-09-09 01:46:40 UTC, before the run"]);
}

/// The battery runs a command in each case that its arguments can express, and names the others.
#[test]
fn a_command_is_put_through_the_battery() {
    let (folder, numpy) = (folder_with(&exact()), Numpy::new());
    let cases = |subject: String, code: u8| {
        let line = format!("check -m model.gguf --quick {subject} --timeout 60 --tmp . --json check.json");
        let said = numpy.qdiff(&folder, &line);
        assert_eq!(said.code, i32::from(code), "{said}");
        let cases = folder.json("check.json")["cases"].as_array().unwrap().clone();
        let fared = |wanted: &str| -> Vec<String> {
            let of = cases.iter().filter(|case| case["fared"] == wanted);
            of.map(|case| format!("{}: {}", case["name"].as_str().unwrap(), case["why"].as_str().unwrap_or("")))
                .collect()
        };
        assert_eq!(fared("failed"), [""; 0], "{said}");
        (fared("run").len(), fared("left-out"), said)
    };
    let (all, _, said) = cases(subject("cmd", WHOLE), 0);
    assert!(all > 5 && headline(&said.stdout).starts_with(&format!("MATCH: {all} of {all} cases match")), "{said}");
    // A command that only runs a prompt passes no case that its arguments do not express.
    let (ran, left, said) = cases(subject("cmd", "--tokens {tokens}"), 0);
    for why in ["one-token: the subject's command takes no decode steps", "parts: the subject's command takes no parts"]
    {
        assert!(left.iter().any(|case| case.starts_with(why)), "{left:?}");
    }
    assert!(
        ran + 4 == all && headline(&said.stdout).contains("two-parts, parts, one-by-one were left out"),
        "{ran} of {all}: {said}"
    );
    let (_, _, said) = cases(format!("{} --why-budget 0", subject("serve", "--serve --bug cache")), 1);
    assert!(headline(&said.stdout).contains("one-token DIVERGED at L00.attn_norm..L00.layer_out"), "{said}");
}

/// An engine of somebody else was judged on several sequences by captures alone. A command takes the passes of the battery from a file, or
/// a line for each; what it does wrong with a rejected draft is found in the cases that have one, and nowhere else.
#[test]
fn a_command_is_taken_through_batches() {
    let (folder, numpy) = (folder_with(&exact()), Numpy::new());
    let serving = |subject: String, code: i32| {
        let said = numpy.qdiff(&folder, &format!("check -m model.gguf --serving --quick {subject} --json told.json"));
        (folder.json("told.json"), said.exits(code))
    };
    let outcomes = |report: &serde_json::Value| -> Vec<String> {
        let cases = report["cases"].as_array().unwrap();
        cases.iter().filter_map(|case| case["outcome"].as_str().map(str::to_owned)).collect()
    };
    for (kind, options) in [("cmd", "--sequences {sequences}"), ("serve", "--serve")] {
        let (report, said) = serving(subject(kind, options), 0);
        assert_eq!(outcomes(&report), ["match"; 10], "{said}");
    }
    // Alone and in a batch: whether numpy gives the same bits is numpy's matter.
    let bitwise = format!(
        "check -m model.gguf --serving --quick --expect bitwise --json told.json {}",
        subject("cmd", "--sequences {sequences}")
    );
    let said = numpy.qdiff(&folder, &bitwise);
    let same = |outcome: &String| {
        outcome == "match" || said.stdout.contains("another order of summation explains the difference")
    };
    assert!(outcomes(&folder.json("told.json")).iter().filter(|o| same(o)).count() == 10, "{said}");
    let (report, said) = serving(subject("cmd", "--sequences {sequences} --bug draft") + " --why-budget 0", 1);
    let wrong = |case: &&serde_json::Value| case["outcome"] == "diverged";
    let wrong: Vec<&str> =
        report["cases"].as_array().unwrap().iter().filter(wrong).filter_map(|case| case["name"].as_str()).collect();
    assert_eq!(wrong, ["draft", "draft-beside", "reuse"], "{said}");
    // Passes of one sequence, decode steps included, are lines of the same file.
    let line = format!("run -m model.gguf -n 2 --ubatch 9 {}", subject("cmd", "--sequences {sequences}"));
    numpy.qdiff(&folder, &line).exits(0);
    // One that reads the tokens alone would run them as one sequence.
    folder.write(
        "flat.py",
        "import json, sys\nfor line in sys.stdin: print(json.dumps({'step': json.loads(line)['step']}), flush=True)\n",
    );
    folder.refuses("check -m model.gguf --serving --subject 'cmd: x {tokens}'", &["no such program"]);
    folder.refuses(
        "check -m model.gguf --serving --subject 'cmd: cat {tokens}'",
        &["it needs {sequences}, a file with a line of JSON"],
    );
}

/// That a slot or a position is wrong was read off whole numbers, and never called confirmed. The values of the run say whether it is what is
/// behind them, and a second batch of other tokens and lengths confirms it. Where the values say otherwise, nothing is confirmed.
#[test]
fn wrong_slots_are_held_against_the_values() {
    let (folder, numpy) = (folder_with(&exact()), Numpy::new());
    let engine = root().join("tests/engines/paged.py");
    let run = |bug: &str, code: i32| {
        let command = format!("cmd: python3 {} {{model}} --sequences {{sequences}} {bug}", engine.display());
        let line = format!("run -m model.gguf --length 30 --sequences 7,5+6+9@0,1+1+1 --subject '{command}'");
        unwrapped(&numpy.qdiff(&folder, &line).exits(code).stdout)
    };
    assert!(run("", 0).contains("3 runs: 3 MATCH"));
    for (bug, origin, words) in [
        ("table", "the block table of sequence 2 has slot 5 for token 0", "the one in the slot that"),
        ("slots", "token 6 of sequence 0 was written to slot 0", "the one in the slot that"),
        ("free", "token 0 of sequence 1 was written to slot 1", "the one in the slot that"),
        ("positions", "token 0 of sequence 1 was given position 6", "rotated as the position that it was given"),
    ] {
        let said = run(&format!("--bug {bug}"), 1);
        assert!(said.contains(origin) && said.contains(words), "{bug}: {said}");
        assert!(said.contains("confirmed on 115 other tokens: they are wrong there too"), "{bug}: {said}");
        // A cause of one of the stages beside it would be a second sentence for one bug.
        assert!(!said.contains("one candidate") && !said.contains("fits this run"), "{bug}: {said}");
    }
    let said = run("--bug scores", 1);
    assert!(said.contains("3 DIVERGED") && !said.contains("at slots") && !said.contains("confirmed"), "{said}");
}

/// Failures of engines: one line reports each, with the engine's last words, and nothing is left.
#[test]
fn engines_that_fail_are_told_of() {
    let folder = folder_with(&exact());
    let lines = "echo '{\"end\":0,\"first\":0,\"tokens\":[1,2]}' > {dir}/capture.jsonl";
    for (command, why) in [
        ("cmd: ./no-such-engine {tokens}", "begins with ./no-such-engine, and there is no such program"),
        ("cmd: true; ./no-such-engine {tokens}", "exit status: 127: sh: 1: ./no-such-engine: not found"),
        ("cmd: echo one >&2; echo out of memory >&2; exit 3; {ids}", "exit status: 3: one / out of memory"),
        ("cmd: exit 4; {ids}", "exit status: 4; it said nothing on stderr"),
        ("cmd: kill -9 $$; {ids}", "ended with signal: 9 (SIGKILL)"),
        ("cmd: true {ids}", "wrote nothing into {dir}, which QDIFF_DUMP names too"),
        (
            "cmd: cat {tokens} > {out}/x",
            "the command has {out}, which qdiff does not replace; qdiff replaces {model}, {dir}, ",
        ),
        ("cmd: cat {tokens}; echo loading >&2; sleep 60", "took longer than 1 s (see --timeout): loading"),
        ("cmd: ./engine --model {model}", "takes no tokens: it needs {tokens}, a file of ids, or {ids}"),
        (&format!("cmd: {lines} # {{ids}}"), "has other tokens or another position than prefill"),
        ("serve: ./engine {model} {tokens}", "has {tokens}, and serve: takes {model} and {dir} alone"),
        ("serve: exit 5", "ended with exit status: 5"),
        ("serve: read line; echo '{\"error\": \"no such token\"}'; cat", "says of step 0: \"no such token\""),
        ("serve: read line; echo '{\"step\": 7}'; cat", "answers {\"step\":7} to a request for step 0"),
        ("serve: read line; echo '{\"step\": 0}'; read line", "a capture is a folder"),
        ("serve: sleep 60", "took longer than 1 s (see --timeout); it said nothing"),
    ] {
        let begun = Instant::now();
        let said = folder.command("run -m model.gguf --tokens 3,4 -n 0 --timeout 1 --reference none");
        let mut said = said;
        let said = Said::from(said.args(["--subject", command]).output().unwrap()).exits(2);
        assert!(said.stderr.contains(why), "{command}: {said}");
        assert_eq!(said.stderr.lines().filter(|l| l.starts_with("qdiff: ")).count(), 1, "{command}: {said}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{command} was waited for");
    }
    for (line, why) in [
        ("sweep -m model.gguf --reference 'cmd: x {ids}'", "is a command, which can be a side of"),
        ("record -m model.gguf --out a --runner 'serve: x'", "is a command, which can be a side of"),
        ("run -m model.gguf --subject 'cmd:'", "possible values: auto"),
        ("run -m model.gguf --timeout 5", "it bounds a command"),
        ("run -m model.gguf -n 3 --subject 'cmd: true {ids}'", "the subject's command takes neither {n} nor {decoded}"),
    ] {
        folder.refuses_options(line, &[why]);
    }
    for (line, why) in [
        ("run -m model.gguf --subject 'cmd: x {ids}' --inject rope-base", "inject into the engine cpu"),
        ("run -m model.gguf --subject 'cmd: true {ids}' --taps logits", "--taps is about qdiff's own engines"),
    ] {
        folder.refuses(line, &[why]);
    }
}

/// A file that lies in a folder starts nothing: commands come from the command line or the environment.
#[test]
fn a_project_file_names_no_command() {
    let folder = folder_with(&exact());
    folder.write("qdiff.toml", "subject = \"cmd: touch owned; {ids}\"\n");
    let why = "is a command, and a file in a checkout must not start one; name it with --subject, or set QDIFF_SUBJECT";
    folder.refuses("run -m model.gguf", &[why]);
    // As the error says.
    folder.write("qdiff.toml", "model = \"model.gguf\"\n");
    folder.qdiff_with(&[("QDIFF_SUBJECT", "cmd: touch owned; {ids}")], "run --tokens 3 -n 0").exits(2);
    assert!(folder.join("owned").is_file());
}
