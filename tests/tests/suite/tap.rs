//! The header `tap/qdiff_tap.h`: it compiles as C and C++ without a warning, engines that include it are judged, and what it
//! cannot dump rightly it says. The crate in `tap/rust` does the same for Rust. The engines are in `tests/tap/`.

use qdiff_tests::containers::{Array, arrays};
use qdiff_tests::markdown::{read, root};
use qdiff_tests::{Folder, Said, empty, exact, folder_with, unwrapped};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// What every compiler must find nothing to say of.
const STRICT: &str = "-Wall -Wextra -Werror -pedantic -g -O1";

/// A program of `tests/tap/`, compiled in `folder` with these options; without the compiler the test fails, as with a
/// warning.
#[track_caller]
fn compiled(folder: &Folder, compiler: &str, options: &str, source: &str) {
    let root = root();
    let mut command = Command::new(compiler);
    command.current_dir(&**folder).args(STRICT.split(' ')).args(options.split(' '));
    command.arg("-I").arg(root.join("tap")).arg("-I").arg(root.join("tests/tap/stub"));
    let output = command.arg(root.join("tests/tap").join(source)).args(["-o", "engine", "-pthread"]).output();
    let output = output.unwrap_or_else(|e| panic!("{compiler}: {e}; scripts/setup --tests installs it"));
    Said::from(output).exits(0);
}

/// Runs it; `dump` is where QDIFF_DUMP points.
fn runs(folder: &Folder, words: &str, dump: Option<&str>) -> Said {
    let mut command = Command::new(folder.join("engine"));
    command.current_dir(&**folder).args(words.split_whitespace()).env_remove("QDIFF_DUMP");
    command.envs(dump.map(|dump| ("QDIFF_DUMP", folder.join(dump))));
    // What the memory of a captured graph's copies is kept for, no sanitizer knows.
    command.env("ASAN_OPTIONS", "detect_leaks=0").output().expect("it was compiled").into()
}

/// Writes what the engines compute: these arrays, on the tokens of the capture `of`.
fn write_values(folder: &Folder, of: &str, arrays: &[Array]) {
    let manifest = folder.json(&format!("{of}/manifest.json"));
    let tokens = manifest["tokens"].as_array().unwrap();
    let (mut lines, mut elements, mut step) = (String::new(), Vec::new(), "");
    for array in arrays {
        let (label, name) = array.name.split_once('/').unwrap();
        if label != step {
            let fed = match label.strip_prefix("step") {
                Some(n) => vec![&manifest["decoded"][n.parse::<usize>().unwrap() - 1]],
                None => tokens.iter().collect(),
            };
            let first = label.strip_prefix("step").map_or(0, |n| tokens.len() + n.parse::<usize>().unwrap() - 1);
            let ids: String = fed.iter().map(|id| format!(" {id}")).collect();
            lines += &format!("step {first} {}{ids}\n", fed.len());
        }
        step = label;
        let (layer, name) = name.strip_prefix('L').and_then(|n| n.split_once('.')).unwrap_or(("-1", name));
        lines += &format!("tap {name} {layer} {} {}\n", array.shape[0], array.shape[1]);
        elements.extend(array.bytes());
    }
    folder.write("values.txt", lines);
    folder.write("values.bin", elements);
}

/// A folder with what the engines compute, of a run with three decode steps.
fn with_values() -> (Folder, Vec<Array>) {
    let folder = folder_with(&exact());
    folder.record("recorded", "-n 3 --stages embed,layer_out,logits");
    let all = arrays(&folder.join("recorded"));
    write_values(&folder, "recorded", &all);
    (folder, all)
}

/// Every compiler, as C and as C++, with what finds faults in memory where the compiler has it: one and the same dump.
#[test]
fn an_engine_in_c_is_judged() {
    let (folder, mut all) = with_values();
    let sanitized = "-fsanitize=address,undefined -fno-sanitize-recover=all";
    for (i, (compiler, options)) in [
        ("gcc", format!("-std=c99 {sanitized}")),
        ("g++", format!("-std=c++11 -x c++ {sanitized}")),
        ("clang", "-std=c99".to_owned()),
        ("clang++", "-std=c++11 -x c++".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        compiled(&folder, compiler, &options, "engine.c");
        let said = runs(&folder, "", Some(&format!("dump{i}"))).exits(0);
        assert_eq!(said.to_string(), "", "{compiler}");
        // The first line says which dump it is.
        let lines = |i: usize| folder.text(&format!("dump{i}/capture.jsonl")).split_once('\n').unwrap().1.to_owned();
        let elements = |i: usize| std::fs::read(folder.join(format!("dump{i}/capture.bin"))).unwrap();
        assert!(lines(0) == lines(i) && elements(0) == elements(i), "{compiler}: another dump");
    }
    let (code, report, text) = folder.judged("--subject capture:dump0");
    assert_eq!(code, 0, "{text}");
    assert_eq!(report["run"]["decoded"].as_array().unwrap().len(), 3, "{text}");
    assert!(report["subject"]["name"].as_str().unwrap().starts_with("an engine in C (recorded"), "{text}");
    let rows = |of: &str| report["verdict"]["coverage"][of].as_u64().unwrap();
    assert_eq!(rows("judged"), rows("asked"), "{text}");

    // Where QDIFF_DUMP is not set there is no dump.
    assert_eq!(runs(&folder, "", None).exits(0).to_string(), "");
    let nowhere = runs(&folder, "", Some("no/such/folder")).exits(0);
    assert!(nowhere.stderr.contains("capture.bin cannot be written; nothing is dumped to QDIFF_DUMP="), "{nowhere}");

    // One value of one layer at one step.
    let wrong = all.iter_mut().find(|a| a.name == "step2/L01.layer_out").unwrap();
    wrong.values[7] += 1.0;
    write_values(&folder, "recorded", &all);
    runs(&folder, "", Some("wrong")).exits(0);
    let (code, report, text) = folder.judged("--subject capture:wrong");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("L01.") && text.contains("at decode step 2"), "{text}");
    assert_eq!(report["verdict"]["findings"][0]["stage"], "L01.layer_out", "{text}");
}

/// An engine dumps into a folder that was used before: files of the earlier run are never judged.
#[test]
fn values_of_an_earlier_run_are_not_judged() {
    let (folder, mut all) = with_values();
    compiled(&folder, "gcc", "-std=c99", "engine.c");
    runs(&folder, "", Some("dump")).exits(0);
    let judge = "run -m model.gguf --subject capture:dump";
    let said = folder.qdiff(judge).exits(0);
    let recorded = |said: &Said| said.stdout.contains("an engine in C (recorded 20") && said.stdout.contains(" UTC");
    assert!(recorded(&said), "{said}");
    // The engine is broken and run again: its new values are judged.
    all.iter_mut().find(|a| a.name == "step2/L01.layer_out").unwrap().values[7] += 1.0;
    write_values(&folder, "recorded", &all);
    runs(&folder, "", Some("dump")).exits(0);
    assert_eq!(folder.qdiff(judge).exits(1).stdout.split_once("DIVERGED at L01.").unwrap().0, "");
    // Another process dumps to the folder: neither's values are judged, until one dumps there alone.
    let other = std::fs::File::options().append(true).open(folder.join("dump/capture.bin")).unwrap();
    other.try_lock().unwrap();
    let said = runs(&folder, "", Some("dump")).exits(0);
    let words = "another dump to the folder has not ended; give each process a folder of its own";
    assert!(said.stderr.contains(words), "{said}");
    folder.refuses(judge, &["dump: the engine could not dump its values here", words, "run the engine again"]);
    drop(other);
    runs(&folder, "", Some("dump")).exits(0);
    folder.qdiff(judge).exits(1);
    // What is not the engine's own is not removed, and nothing is judged with it.
    folder.write("dump/manifest.json", folder.text("recorded/manifest.json"));
    let said = runs(&folder, "", Some("dump")).exits(0);
    assert!(said.stderr.contains("a capture of an earlier run, with a manifest.json"), "{said}");
    folder.refuses(judge, &["a capture of an earlier run, with a manifest.json"]);
    std::fs::remove_file(folder.join("dump/manifest.json")).unwrap();
    // Its files cannot be written.
    std::fs::remove_file(folder.join("dump/capture.bin")).unwrap();
    folder.create("dump/capture.bin");
    runs(&folder, "", Some("dump")).exits(0);
    folder.refuses(judge, &["capture.bin cannot be written"]);
    // Not even the reason can be left: then the old lines go, or, where they cannot, the engine ends.
    std::fs::remove_file(folder.join("dump/capture.trouble")).unwrap();
    folder.create("dump/capture.trouble");
    runs(&folder, "", Some("dump")).exits(0);
    assert!(!folder.join("dump/capture.jsonl").exists());
    folder.create("dump/capture.jsonl/below");
    let said = runs(&folder, "", Some("dump")).exits(1);
    assert!(said.stderr.contains("of an earlier run and cannot be removed: the engine ends here"), "{said}");
}

/// What a header is given by mistake is an error that qdiff repeats; no memory is touched that is not the array's.
#[test]
fn what_the_header_is_given_by_mistake_is_refused() {
    let folder = folder_with(&exact());
    compiled(&folder, "gcc", "-std=c99 -fsanitize=address,undefined -fno-sanitize-recover=all", "misuse.c");
    for (way, words) in [
        ("tokens", "a step of 2 tokens, which are NULL"),
        ("count", "a step of -1 tokens"),
        ("position", "a step at position -1"),
        ("token", "a step whose token 1 is -1"),
        ("data", "x: its elements are NULL"),
        ("extents", "x: its extents are NULL"),
        ("unnamed", "a stage called `NULL`"),
        ("dtype", "x: there is no number format 8"),
        ("dtype-below", "x: there is no number format -1"),
        ("axes", "x: it has 9 axes"),
        ("large", "with axis 0, of 9223372036854775807 elements 4 apart, it is larger than memory"),
        ("many", "it is larger than memory"),
        ("none", "x: axis 1 has 0 elements"),
        ("far", "of 2 elements 4611686018427387903 apart, it is larger than memory"),
        ("repeated", "it is larger than memory"),
        ("back", "x: axis 0 has 2 elements, -4 apart"),
        ("rows", "x: axis 0 has -2 elements"),
        ("layer", "x: there is no layer -2"),
        ("append", "y was appended rows of 2 elements to rows of 4"),
        ("engine", "QDIFF_BEGIN has no name for the engine"),
    ] {
        let said = runs(&folder, way, Some("dump")).exits(0);
        assert!(said.stderr.contains(words), "{way}: {said}");
        folder.refuses("run -m model.gguf --subject capture:dump", &[words]);
    }
}

/// A process that is forked from the engine ends as it likes: no array is there twice or at another's place. One that taps
/// is reported.
#[test]
fn a_process_that_is_forked_changes_no_dump() {
    let folder = folder_with(&exact());
    compiled(&folder, "clang", "-std=c99", "misuse.c");
    let dump = |way: &str| {
        runs(&folder, way, Some(way)).exits(0);
        let lines = folder.text(&format!("{way}/capture.jsonl")).split_once('\n').unwrap().1.to_owned();
        (lines, std::fs::read(folder.join(format!("{way}/capture.bin"))).unwrap())
    };
    let plain = dump("plain");
    assert_eq!(plain.0.matches("\"offset\":0}").count(), 1);
    assert_eq!((dump("fork"), dump("fork-taps")), (plain.clone(), plain));
    folder.refuses(
        "run -m model.gguf --subject capture:fork-taps",
        &["before it forked", "call QDIFF_BEGIN after the fork"],
    );
    // Where the engine is killed after its first step began, the dump has no end.
    runs_into(&folder, "killed");
    folder.refuses("run -m model.gguf --subject capture:killed", &["no step that is whole"]);
}

/// The engine, which ends by a signal, dumps to a folder of the name of its way.
fn runs_into(folder: &Folder, way: &str) {
    let mut command = Command::new(folder.join("engine"));
    let status = command.arg(way).env("QDIFF_DUMP", folder.join(way)).status().unwrap();
    assert_eq!(status.code(), None, "{status}");
}

/// Compiles the crate of `tap/rust`, which needs no other, and with it this program, in `folder`.
#[track_caller]
fn compiled_rust(folder: &Folder, source: &Path) {
    let rustc = |options: &str, source: &Path| {
        let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        command.current_dir(&**folder).args("--edition=2024 -Dwarnings".split(' ')).args(options.split(' '));
        Said::from(command.arg(source).output().expect("what compiled this test is here")).exits(0);
    };
    rustc("--crate-type=lib --crate-name=qdiff_tap", &root().join("tap/rust/src/lib.rs"));
    rustc("--extern=qdiff_tap=libqdiff_tap.rlib --crate-name=engine", source);
}

/// The same engine by way of the crate.
#[test]
fn an_engine_in_rust_is_judged() {
    let (folder, mut all) = with_values();
    compiled_rust(&folder, &root().join("tests/tap/engine.rs"));
    assert_eq!(runs(&folder, "", Some("dump")).exits(0).to_string(), "");
    let (code, report, text) = folder.judged("--subject capture:dump");
    assert_eq!(code, 0, "{text}");
    assert!(report["subject"]["name"].as_str().unwrap().starts_with("an engine in Rust (recorded"), "{text}");
    let rows = |of: &str| report["verdict"]["coverage"][of].as_u64().unwrap();
    assert_eq!(rows("judged"), rows("asked"), "{text}");
    assert_eq!(runs(&folder, "", None).exits(0).to_string(), "");

    let wrong = all.iter_mut().find(|a| a.name == "step2/L01.layer_out").unwrap();
    wrong.values[7] += 1.0;
    write_values(&folder, "recorded", &all);
    runs(&folder, "", Some("wrong")).exits(0);
    let (code, report, text) = folder.judged("--subject capture:wrong");
    assert_eq!((code, &report["verdict"]["findings"][0]["stage"]), (1, &json!("L01.layer_out")), "{text}");

    // What the crate refuses it says in the dump too, and qdiff refuses that with its words.
    folder.write("values.txt", "step 0 1 5\ntap embed -1 1 256\ntap embed -1 1 256\n");
    let said = runs(&folder, "", Some("twice")).exits(1);
    assert!(said.stderr.contains("embed of step 0: was tapped in this step before"), "{said}");
    let words = "the engine says of its own arrays: embed of step 0: was tapped in this step before";
    folder.refuses("run -m model.gguf --subject capture:twice", &[words]);
}

/// As [`a_process_that_is_forked_changes_no_dump`], by way of the crate.
#[test]
fn a_process_that_is_forked_changes_no_dump_of_the_crate() {
    let folder = folder_with(&exact());
    compiled_rust(&folder, &root().join("tests/tap/fork.rs"));
    for way in ["", "taps"] {
        runs(&folder, way, Some("dump")).exits(0);
        let elements = std::fs::read(folder.join("dump/capture.bin")).unwrap();
        let values: Vec<f32> = elements.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let lines = folder.text("dump/capture.jsonl");
        assert_eq!((lines.lines().count(), lines.matches("\"offset\":16}").count()), (5, 1), "{lines}");
        assert!(lines.ends_with("{\"closed\":1}\n"), "{lines}");
        assert_eq!(folder.join("dump/capture.trouble").exists(), way == "taps");
    }
    let words = ["before it forked", "call Tap::begin after the fork"];
    folder.refuses("run -m model.gguf --subject capture:dump", &words);
}

/// What the header cannot dump rightly it says, and qdiff refuses the dump with its words.
#[test]
fn a_dump_that_is_not_what_it_should_be_says_so() {
    let (folder, _) = with_values();
    compiled(&folder, "gcc", "-std=c99", "engine.c");
    folder.write("values.txt", "tap embed -1 1 1\n");
    let said = runs(&folder, "", Some("early")).exits(0);
    assert!(said.stderr.contains("embed was appended to before a step began"), "{said}");
    let refused = "run -m model.gguf --subject capture:early";
    folder.refuses(refused, &["the engine says of its own arrays: embed was appended to before a step began"]);
    folder.write("values.txt", "step 0 1 5\ntap embed -1 1 256\ntap embed -1 1 256\n");
    runs(&folder, "", Some("twice")).exits(0);
    folder.refuses("run -m model.gguf --subject capture:twice", &["embed of prefill, which is there already"]);
}

/// Taps from several threads, under what finds races.
#[test]
fn taps_from_several_threads_are_all_there() {
    let (folder, all) = with_values();
    compiled(&folder, "g++", "-std=c++11 -fsanitize=thread", "threads.cpp");
    let said = runs(&folder, "", Some("dump")).exits(0);
    assert_eq!(said.to_string(), "");
    let lines = folder.text("dump/capture.jsonl");
    assert_eq!(lines.matches("\"offset\"").count(), all.len());
    let (code, _, text) = folder.judged("--subject capture:dump");
    assert_eq!(code, 0, "{text}");
}

/// The tap's work on a GPU, its streams and graphs run by a thread: each replay of a graph is a step, and a dump that
/// would show only the last replay is none. `scripts/tap-round` does the same on a GPU.
#[test]
fn replays_of_a_graph_are_dumped() {
    let (folder, all) = with_values();
    let sanitizers = ["-fsanitize=thread", "-fsanitize=address,undefined -fno-sanitize-recover=all"];
    for (i, sanitizer) in sanitizers.into_iter().enumerate() {
        compiled(&folder, "g++", &format!("-std=c++11 -x c++ {sanitizer}"), "graph.cu");
        for way in ["marks", "counted", "forgotten"] {
            let said = runs(&folder, way, Some(&format!("{way}{i}"))).exits(0);
            assert_eq!(said.stderr.is_empty(), way != "forgotten", "{said}");
        }
    }
    let (code, report, text) = folder.judged("--subject capture:marks0");
    assert_eq!(code, 0, "{text}");
    assert_eq!(report["run"]["decoded"].as_array().unwrap().len(), 3, "{text}");
    // Steps that counted themselves have no tokens: a manifest names them, and they are held against it in number.
    folder.refuses("run -m model.gguf --subject capture:counted0", &["has no tokens, and there is no manifest.json"]);
    let recorded = folder.json("recorded/manifest.json");
    let manifest =
        json!({"schema_version": 3, "engine": "mine", "tokens": recorded["tokens"], "decoded": recorded["decoded"]});
    folder.write("counted0/manifest.json", manifest.to_string());
    let (code, _, text) = folder.judged("--subject capture:counted0");
    assert_eq!(code, 0, "{text}");
    let words = "in step 0: a graph was replayed without QDIFF_STEP_ON, and the last replay alone would be seen";
    folder.refuses("run -m model.gguf --subject capture:forgotten0", &[words]);
    let mut all = all;
    all.iter_mut().find(|a| a.name == "step3/L00.layer_out").unwrap().values[3] *= 2.0;
    write_values(&folder, "recorded", &all);
    runs(&folder, "marks", Some("wrong")).exits(0);
    let (code, report, text) = folder.judged("--subject capture:wrong");
    assert_eq!((code, &report["verdict"]["findings"][0]["stage"]), (1, &json!("L00.layer_out")), "{text}");
}

/// The same of the crate.
#[test]
fn the_shortest_example_in_rust_compiles() {
    let document = read("docs/engine/rust.md");
    let example = document.split_once("```rust\n").unwrap().1.split_once("```").unwrap().0;
    assert!(example.lines().filter(|line| !line.is_empty()).count() < 15, "{example}");
    let folder = empty();
    let given = "prompt: &[u32], embedding: &[f32], layers: &[Vec<f32>], logits: &[f32], n_embd: usize, n_vocab: usize";
    let (main, result) = ("fn main() { let _ = engine; }", "Result<(), Box<dyn std::error::Error>>");
    folder.write("example.rs", format!("{main}\nfn engine({given}) -> {result} {{\n{example}Ok(())\n}}\n"));
    compiled_rust(&folder, &folder.join("example.rs"));
}

/// What the documentation shows is what the header takes, and no more than 15 lines.
#[test]
fn the_shortest_example_compiles() {
    let document = read("docs/engine/c.md");
    let example = document.split_once("```cpp\n").unwrap().1.split_once("```").unwrap().0;
    let (include, calls) = example.split_once("\n\n").unwrap();
    assert!(example.lines().filter(|line| !line.is_empty()).count() < 15, "{example}");
    let folder = empty();
    folder.write(
        "example.cpp",
        format!(
            "{include}\nvoid engine(int first, const int32_t *tokens, int n, const float *x, const float *logits, int layer, \
             int n_embd, int n_vocab) {{\n{calls}}}\n"
        ),
    );
    let source = folder.join("example.cpp");
    compiled(&folder, "g++", "-std=c++11 -c", source.to_str().unwrap());
}

/// The label of a step, its sequence, its first position, and its rows in the pass.
type Part = (&'static str, u32, usize, std::ops::Range<usize>);

/// The passes of the run that the test below is of: of each pass the step of each sequence with its position and tokens. Before the
/// last one sequence 2 takes tokens back.
const PASSES: [&[Part]; 4] = [
    &[("prefill", 0, 0, 0..7)],
    &[("prefill@7", 0, 7, 7..12), ("s1.prefill", 1, 0, 12..13), ("s2.prefill@4", 2, 4, 13..30)],
    &[("step1", 0, 12, 30..31), ("s1.step1", 1, 1, 31..32), ("s2.step1", 2, 21, 32..33)],
    &[("s3.step1", 2, 19, 33..34)],
];

/// Writes what the engines compute of several sequences: stages with the rows of all, caches and block tables of each. Slots of
/// sequence 2 that are not shared with sequence 0 are `apart` from those of the others.
fn write_passes(folder: &Folder, all: &[Array], apart: usize) {
    let manifest = folder.json("recorded/manifest.json");
    let tokens: Vec<u64> = manifest["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    let slot = |sequence: u32, position: usize| match (sequence, position) {
        (2, 0..4) => position,
        (2, _) => apart + position,
        (sequence, _) => 30 * sequence as usize + position,
    };
    let list = |word: &str, all: &[usize]| {
        format!("{word} {} {}\n", all.len(), all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    let (mut lines, mut elements) = (String::new(), Vec::new());
    let mut tap = |lines: &mut String, name: &str, layer: &str, width: usize, values: &[f32]| {
        *lines += &format!("tap {name} {layer} {} {width}\n", values.len() / width);
        elements.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    };
    for (number, pass) in PASSES.into_iter().enumerate() {
        let fed: Vec<usize> = pass.iter().flat_map(|(.., of)| of.clone()).map(|at| tokens[at] as usize).collect();
        let row = |(_, sequence, first, of): &(&str, u32, usize, std::ops::Range<usize>)| {
            let (sequence, first) = (*sequence, *first);
            (first..first + of.len()).map(move |position| (sequence, position))
        };
        let rows: Vec<(u32, usize)> = pass.iter().flat_map(row).collect();
        lines += &list("step 0", &fed);
        lines += &list("whose", &rows.iter().map(|row| row.0 as usize).collect::<Vec<_>>());
        if number == 1 {
            lines += "prefix 0 2 4\n";
        }
        if number == 3 {
            lines += "keeps 2 19\n";
        }
        let numbers =
            |of: &dyn Fn(u32, usize) -> usize| rows.iter().map(|row| of(row.0, row.1) as f32).collect::<Vec<_>>();
        tap(&mut lines, "slots", "-1", 1, &numbers(&slot));
        tap(&mut lines, "positions", "-1", 1, &numbers(&|_, position| position));
        let of_first = all.iter().filter(|array| array.name.starts_with(&format!("{}/", pass[0].0)));
        for array in of_first.filter(|array| !array.name.ends_with("_cache")) {
            let stage = array.name.split_once('/').unwrap().1;
            let of = |(step, ..): &(&str, u32, usize, std::ops::Range<usize>)| {
                all.iter().find(|array| array.name == format!("{step}/{stage}")).unwrap().values.clone()
            };
            let (layer, name) = stage.strip_prefix('L').and_then(|s| s.split_once('.')).unwrap_or(("-1", stage));
            tap(
                &mut lines,
                name,
                layer,
                array.shape[1..].iter().product(),
                &pass.iter().flat_map(of).collect::<Vec<_>>(),
            );
        }
        for (step, sequence, first, of) in pass {
            lines += &format!("of {sequence}\n");
            lines += &list("table", &(0..first + of.len()).map(|p| slot(*sequence, p)).collect::<Vec<_>>());
            for array in all.iter().filter(|array| array.name == format!("{step}/L00.k_cache")) {
                tap(&mut lines, "k_cache", "0", array.shape[1..].iter().product(), &array.values);
            }
        }
    }
    folder.write("values.txt", lines);
    folder.write("values.bin", elements);
}

/// Header and crate say whose the rows of a step are, and which tokens a sequence took back: the run is judged sequence by sequence, and slots that two sequences have at
/// once are named.
#[test]
fn engines_with_batches_of_sequences_are_judged() {
    let folder = folder_with(&exact());
    folder
        .qdiff("record -m model.gguf --length 34 --sequences 7,5+1+17@0:4,1+1+1,0+0+1~3 --stages embed,k_cache,layer_out,logits --out recorded")
        .exits(0);
    let all = arrays(&folder.join("recorded"));
    // The engines have heads in one axis.
    folder.write("map.txt", "L0{L}.k_cache = k_cache\n");
    for language in ["C", "Rust"] {
        match language {
            "C" => {
                compiled(&folder, "gcc", "-std=c99 -fsanitize=address,undefined -fno-sanitize-recover=all", "engine.c")
            }
            _ => compiled_rust(&folder, &root().join("tests/tap/engine.rs")),
        }
        for (apart, code) in [(60, 0), (5, 1)] {
            write_passes(&folder, &all, apart);
            let said = runs(&folder, "", Some("dump")).exits(0);
            assert_eq!(said.to_string(), "", "{language}");
            let said = folder.qdiff("run -m model.gguf --subject capture:dump --map map.txt").exits(code);
            let text = unwrapped(&said.stdout);
            let words = "token 4 of sequence 2 was written to slot 9, which belongs to sequence 0 (its token 9)";
            assert_eq!(text.contains(words), code == 1, "{language}: {said}");
        }
    }
}
