//! Every way a run can be refused: one clear line with the remedy, exit 2, no
//! panic, nothing written.

use qdiff_tests::synth::Synth;
use qdiff_tests::{Said, binary, empty, files, folder};
use std::process::Command;

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|w| w == what).unwrap()
}

#[test]
fn files_that_are_no_model() {
    let folder = empty();
    let good = Synth::default().to_bytes();
    folder.write("empty.gguf", "");
    folder.write("text.gguf", "this is not a model at all, it is text");
    folder.write("short.gguf", &good[..good.len() / 2]);
    folder.write("header.gguf", &good[..100]);
    folder.create("folder");
    for command in ["run", "verify-oracle", "qdiff-lab bench"] {
        for (name, expected) in [
            ("absent.gguf", &["absent.gguf", "no such file", "check the path"][..]),
            ("folder", &["folder", "directory"]),
            ("empty.gguf", &["empty.gguf", "empty"]),
            ("text.gguf", &["text.gguf", "GGUF"]),
            ("short.gguf", &["short.gguf", "again"]),
            ("header.gguf", &["header.gguf"]),
        ] {
            folder.refuses(&format!("{command} --model {name}"), expected);
        }
    }
    for command in ["inspect", "weights"] {
        folder.refuses(&format!("{command} absent.gguf"), &["absent.gguf"]);
        folder.refuses(&format!("{command} text.gguf"), &["GGUF"]);
    }
    folder.refuses("run", &["--model", "QDIFF_MODEL", "fetch-model"]);
}

#[test]
fn models_that_cannot_be_run() {
    let folder = folder();
    let refused = |change: &dyn Fn(&mut Vec<u8>), expected: &[&str]| {
        folder.write("bad.gguf", Synth::default().to_bytes());
        folder.edit("bad.gguf", change);
        folder.refuses("run -m bad.gguf", expected);
    };
    let architecture = |file: &mut Vec<u8>| {
        // The value of general.architecture follows its key and type.
        let at = find(file, b"general.architecture") + 20 + 4 + 8;
        assert_eq!(&file[at..at + 5], b"qwen2");
        file[at..at + 5].copy_from_slice(b"llama");
    };
    refused(&architecture, &["`llama`", "qwen2, qwen3", "Use a model of one of these"]);

    // The last one, so that no other tensor's offset depends on its size.
    let names = Synth::default().tensor_names();
    let name = names.last().unwrap();
    assert!(name.ends_with("ffn_down.weight") || name == "output.weight", "{name} is no matrix");
    let exotic = |file: &mut Vec<u8>| {
        // Behind a tensor's name: its number of axes, their extents, its type.
        let mut key = (name.len() as u64).to_le_bytes().to_vec();
        key.extend(name.as_bytes());
        let at = find(file, &key) + key.len() + 4 + 16;
        file[at..at + 4].copy_from_slice(&24u32.to_le_bytes());
    };
    refused(&exotic, &[name, "I8", "not supported", "requantise"]);
    let renamed = |file: &mut Vec<u8>| {
        let at = find(file, b"blk.0.attn_k.bias");
        file[at] = b'X';
    };
    refused(&renamed, &["blk.0.attn_k.bias", "missing"]);
}

#[test]
fn prompts_that_cannot_be_run() {
    let folder = folder();
    folder.write("bytes.txt", b"a\xff\xfeb");
    for (args, expected) in [
        ("--prompt ''", &["prompt is empty", "qdiff prompts"][..]),
        ("--prompt @absent.txt", &["absent.txt"]),
        ("--prompt @bytes.txt", &["bytes.txt", "byte 1 is not UTF-8", "save it as UTF-8"]),
        ("--prompt long -n 9999", &["context of 2048", "-n"]),
        ("--tokens 1,99999", &["99999", "vocabulary"]),
        ("--threads 0", &["--threads"]),
        ("-n 18446744073709551615", &["context of 2048"]),
    ] {
        folder.refuses(&format!("run -m model.gguf {args}"), expected);
    }
}

#[test]
fn requests_that_select_nothing() {
    let folder = folder();
    for (args, expected) in [
        ("--stages q_rop", &["`q_rop`", "did you mean `q_rope`", "qdiff inspect"][..]),
        ("--stages L01.ffn_donw", &["did you mean `ffn_down`"]),
        ("--layers 2", &["layer 2", "0 to 1"]),
        ("--layers x", &["`x`"]),
        ("--tolerance nothing=1e-3", &["nothing"]),
        ("--tolerance q_rope", &["GLOB=NUMBER"]),
        ("--inject no-such-bug", &["no-such-bug", "`qdiff mutations` lists them"]),
        ("--inject rope-bsae@L01", &["did you mean `rope-base`"]),
        ("--inject rope-base@L09", &["layer 9", "0 to 1"]),
        ("--inject rope-base@L01,zz", &["`zz` is no layer, rank, stage or tensor"]),
        ("--inject rope-base@L01,p3", &["`p3`", "`p3..` plants the fault from position 3 on"]),
        ("--inject all-reduce-missing", &["is a fault of ranks; add --ranks 2"]),
        ("--inject rope-base@q_proj", &["cannot be injected at q_proj; it applies to q_rope k_rope"]),
        ("--inject rope-base:theta=3", &["base=NUMBER"]),
        ("--inject gelu-for-silu:kind=7@L01", &["`kind=7`", "1: quick GELU"]),
        ("--json absent/report.json", &["absent/report.json", "there is no folder absent"]),
        ("--json .", &["directory"]),
        ("--json /dev/null", &["no plain file"]),
        ("--tokens 1,2 -n 0 --positions 999", &["select nothing", "0 to 1"]),
        ("--stages L01.* --layers 0", &["select nothing"]),
    ] {
        folder.refuses(&format!("run -m model.gguf {args}"), expected);
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut bash = Command::new("bash");
    bash.args(["-o", "pipefail", "-c", "\"$0\" mutations | head -n 1 | tail -n 1"]).arg(binary("qdiff"));
    let said = Said::from(bash.output().unwrap()).exits(0);
    assert_eq!(said.stderr, "");
}

/// An old report survives a run that is refused, and a new one is whole.
#[test]
fn a_report_is_written_whole_or_not_at_all() {
    let folder = folder();
    folder.write("report.json", "the old one");
    folder.refuses("run -m model.gguf --layers 7 --json report.json", &[]);
    assert_eq!(folder.text("report.json"), "the old one");
    folder.qdiff("run -m model.gguf -n 1 --json report.json").exits(0);
    assert_eq!(folder.json("report.json")["schema_version"], 3);
    assert_eq!(files(&folder), ["model.gguf", "report.json"]);
}

/// `git bisect run` takes no trouble for a bad commit. It skips a commit whose engine cannot be run, and stops at what no commit
/// would change: a slip, a model or a program that is not there.
#[test]
fn bisect_skips_an_engine_and_stops_at_a_mistake() {
    let folder = folder();
    for (code, args) in [
        (128, "-m absent.gguf"),
        (128, "--no-such-flag"),
        (128, "--subject nonsense"),
        (128, "-m model.gguf --subject 'cmd: ./absent {ids}'"),
        (128, "-m model.gguf --subject 'cmd: true && ./absent {ids}'"),
        (125, "-m model.gguf --subject 'cmd: exit 1; {ids}'"),
        (125, "-m model.gguf --subject 'cmd: kill -9 $$; {ids}'"),
        (125, "-m model.gguf --subject 'cmd: true {ids}'"),
    ] {
        folder.qdiff(&format!("run --bisect -n 0 {args}")).exits(code);
    }
    folder.write("prompts", "haiku\nThe sky is\n");
    for (code, command) in [(125, "cmd: exit 1; {ids}"), (128, "cmd: true && ./absent {ids}")] {
        folder.qdiff(&format!("run --bisect -m model.gguf -n 0 --prompts prompts --subject '{command}'")).exits(code);
    }
}

/// Rust's words, such as "entity not found", and no way out were all that some errors had.
#[test]
fn a_place_that_cannot_be_written_is_named_with_what_to_do() {
    let folder = folder();
    folder.refuses("demo model.gguf/demo", &["cannot create the folder model.gguf/demo", "qdiff demo /tmp/demo"]);
    for line in
        ["synth no/where/a.gguf", "run -m model.gguf --json no/where/a.json", "record -m model.gguf --out no/where/a"]
    {
        folder.refuses(line, &["cannot write no/where/a", "there is no folder no; make it, or name another"]);
    }
    // Nobody makes a file there, root included.
    folder.refuses(
        "record -m model.gguf --out /proc/a",
        &["cannot write /proc/a: ", "give a path in a folder you can write to"],
    );
    let home = [("HOME", "/no/home"), ("XDG_CACHE_HOME", "")];
    let said = folder.qdiff_with(&home, "fetch-model --path").exits(2).stderr;
    assert!(said.contains("HOME is /no/home, which is not there; set XDG_CACHE_HOME"), "{said}");
}

/// A battery of an engine that crashes in every case was INCOMPLETE, with 0 of 0 cases.
#[test]
fn a_battery_of_crashes_is_trouble() {
    let folder = folder();
    folder.refuses(
        "check -m model.gguf --quick --subject 'cmd: false {tokens}'",
        &["no case could be run: `false", "exit status: 1"],
    );
}

/// A slip in a runner's name names the one that was meant.
#[test]
fn a_runner_that_does_not_exist() {
    for (line, expected) in [
        ("run --subject cdua", "'cuda'"),
        ("run --subject none", "capture:DIR"),
        ("record --runner lama --out x", "'llama'"),
        ("generate --subject capture:mine", "qdiff run --subject capture:mine"),
    ] {
        empty().refuses_options(line, &[expected]);
    }
    empty().refuses("mutations show rope-bsae", &["did you mean `rope-base`"]);
}

/// What `bench` would pass over is refused.
#[test]
fn options_that_say_nothing_about_what_is_measured() {
    for (option, others) in [
        ("--length", "99"),
        ("--gemm", "cublas"),
        ("--alone", ""),
        ("--rounds", "2 --measure soak"),
        ("--threads", "1 --measure cuda"),
        ("--raw", "--measure run"),
        ("--baseline", "x.json --measure tapped-prefill"),
    ] {
        let expected = format!("'{option}' says nothing about what");
        empty().refuses_options(&format!("qdiff-lab bench -m absent.gguf {option} {others}"), &[&expected]);
    }
    // And those that the help says are about a measure are heard with it.
    let heard = [
        ("cuda", "--depth 9"),
        ("cuda", "--prefill 9"),
        ("cuda", "--alone"),
        ("cuda", "--baseline x.json"),
        ("cuda", "--taps logits"),
        ("cuda", "--llama-bench absent"),
        ("batch", "--sequences 8"),
        ("verdict", "--also absent.gguf"),
        ("verdict", "--lengths 8"),
        ("verdict", "--check full"),
        ("verdict", "--oracle cpu"),
    ];
    for (measure, option) in heard {
        let said = empty().qdiff(&format!("qdiff-lab bench -m absent.gguf --measure {measure} {option}")).exits(2);
        assert!(!said.stderr.contains("says nothing"), "{option}: {}", said.stderr);
    }
    let help = empty().qdiff("qdiff-lab bench -h").exits(0).stdout;
    let told =
        help.split("\n      --").filter(|text| text.split_whitespace().collect::<String>().contains("(`--measure"));
    assert_eq!(told.count(), heard.len(), "{help}");
    empty().refuses_options("qdiff-lab bench -n 2", &["unexpected argument '-n'"]);
    empty().refuses_options("qdiff-lab score --prompt code", &["--model"]);
}
