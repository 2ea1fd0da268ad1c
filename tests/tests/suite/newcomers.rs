//! What people read wrongly, or missed, on their first day with qdiff.

use qdiff::hash::sha256;
use qdiff_synth::Synth;
use qdiff_tests::containers::{arrays, write_npy};
use qdiff_tests::{Folder, Told, empty, exact, folder, folder_with, headline, unwrapped};
use serde_json::Value;
use std::process::Command;

/// A screen in one line.
/// The cell of the last column of a stage's row.
fn status<'a>(text: &'a str, stage: &str) -> &'a str {
    let row =
        text.lines().find(|line| line.split(' ').next() == Some(stage)).unwrap_or_else(|| panic!("{stage}: {text}"));
    let words = ["DIVERGED", "inherited", "covered", "match"].iter().filter_map(|word| row.find(word));
    row[words.min().unwrap_or_else(|| panic!("{stage}: {row}"))..].trim_end()
}

/// The table named the first layer of a status that later layers have too, and did not say what to do about `inherited`.
#[test]
fn a_status_names_all_its_layers_and_what_it_means() {
    let folder = folder_with(&Synth { n_layers: 4, ..Synth::default() });
    let (code, _, text) = folder.judged("--subject cpu -n 0 --inject scaled:by=1.25@L01.ffn_up");
    assert_eq!(code, 1, "{text}");
    assert_eq!(status(&text, "ffn_up"), "DIVERGED L01");
    assert_eq!(status(&text, "ffn_down"), "inherited L01..L03");
    assert_eq!(status(&text, "logits"), "inherited");
    let words = unwrapped(&text);
    assert!(
        words.contains("inherited right on its own inputs, which an earlier wrong stage changed: mend the"),
        "{text}"
    );
    // A run without decode steps had "+ 0 decode steps".
    assert!(!words.contains("decode step;") && !words.contains("0 decode steps"), "{text}");
    let (_, _, text) = folder.judged("--subject cpu -n 0 --taps L*.layer_out,logits");
    assert_eq!((status(&text, "attn_norm"), status(&text, "layer_out")), ("covered", "match"));
    assert!(text.contains("\ncovered    not captured, and judged as a part of the next stage"), "{text}");
    let (_, _, text) = folder.judged("--subject cpu -n 0 --taps L00.*,L*.layer_out,logits");
    assert_eq!(status(&text, "ffn_up"), "covered L01..L03");
}

/// `qdiff explain` showed three of four origins, and did not say so.
#[test]
fn what_has_no_worked_example_is_named() {
    let folder = folder();
    let (_, report, text) = folder.judged("--subject cpu -n 0 --inject qkv-bias-omitted");
    folder.write("report.json", report.to_string());
    let findings = report.findings();
    assert!(findings.len() > 3, "{text}");
    let told = folder.qdiff("explain report.json").exits(1).stdout;
    assert!(told.contains(&format!("{} more origins without a worked example", findings.len() - 3)), "{told}");
    for finding in findings {
        assert!(told.contains(finding["stage"].as_str().unwrap()), "{finding}: {told}");
    }
}

/// The report of a wrong extent said "no known cause"; a finding of a cache had no remedy; the size of a stage that has no
/// size was the word "Infinity".
#[test]
fn a_wrong_extent_is_what_is_wrong() {
    let folder = folder();
    folder.record("right", "-n 3");
    let mut all = arrays(&folder.join("right"));
    for cache in all.iter_mut().filter(|a| a.name.starts_with("step3/") && a.name.ends_with("L01.k_cache")) {
        let width: usize = cache.shape[1..].iter().product();
        cache.values.drain(2 * width..4 * width);
        cache.shape[0] -= 2;
    }
    write_npy(&folder.join("lost"), &all);
    folder.write("lost/manifest.json", folder.text("right/manifest.json"));
    let (code, report, text) = folder.judged("--subject capture:lost");
    assert_eq!(code, 1, "{text}");
    let line = headline(&text);
    assert!(line.contains("L01.k_cache") && line.contains("the rows of positions 2..3 are missing"), "{text}");
    assert!(!text.contains("no known cause"), "{text}");
    assert!(
        unwrapped(&text).contains(
            "remedy write the row of each token, in the number format of the cache, to the slot of its position"
        ),
        "{text}"
    );
    let off = &report["severity"]["origins"][0];
    assert_eq!(
        (&off["stage"], &off["by"], &off["unmeasured"]),
        (&"L01.k_cache".into(), &Value::Null, &"extent".into())
    );
    // A report of an earlier version is read as well.
    let mut old = report;
    old["severity"]["origins"][0]["by"] = "Infinity".into();
    folder.write("old.json", old.to_string());
    assert!(folder.qdiff("report old.json").exits(1).stdout.contains("L01.k_cache is of another shape"));
}

/// A count of wrong elements was that of another run; a row that kept what it held had no remedy.
#[test]
fn wrong_elements_are_those_of_a_stage_and_a_run() {
    let folder = folder();
    let (_, report, text) = folder.judged("--subject cpu -n 3 --inject scaled:by=1.25@L01.ffn_up");
    let trial = &report["verdict"]["findings"][0]["trial"];
    let (tokens, elements) = (&trial["tokens"], &trial["elements"]);
    let told = format!(
        "confirmed on {tokens} other tokens: it gives all {elements} wrong elements of L01.ffn_up in that run;"
    );
    assert!(unwrapped(&text).contains(&told), "{told}: {text}");
    folder.record("right", "-n 3");
    let mut all = arrays(&folder.join("right"));
    for cache in all.iter_mut().filter(|a| a.name.ends_with("L01.k_cache")) {
        // Row 1 holds what row 0 holds, in every step.
        let width: usize = cache.shape[1..].iter().product();
        cache.values.copy_within(0..width, width);
    }
    write_npy(&folder.join("stale"), &all);
    folder.write("stale/manifest.json", folder.text("right/manifest.json"));
    let (code, report, text) = folder.judged("--subject capture:stale");
    assert_eq!(code, 1, "{text}");
    let finding = &report["verdict"]["findings"][0];
    assert!(finding["stage"] == "L01.k_cache" && finding["solution"].is_object(), "{text}");
    assert!(text.contains("\nremedy "), "{text}");
}

/// The remedy of a position that is off by one spoke of the length of the prompt.
#[test]
fn a_remedy_is_about_the_fault() {
    let folder = folder();
    for fault in ["decode-offset:by=1@L01", "rope-position-off-by-one@L01"] {
        let (_, report, text) = folder.judged(&format!("--subject cpu -n 3 --inject {fault}"));
        let remedy = report["verdict"]["findings"][0]["cause"]["remedy"].as_str().unwrap();
        assert!(remedy.contains("the number of tokens before it") && !remedy.contains("length"), "{remedy}: {text}");
    }
}

/// The hash of a folder was of nothing that a user can hash.
#[test]
fn a_hash_comes_with_the_command_that_prints_it() {
    let folder = empty();
    std::fs::create_dir(folder.join("hf")).unwrap();
    for (name, bytes) in exact().to_folder().unwrap() {
        std::fs::write(folder.join("hf").join(name), bytes).unwrap();
    }
    let (_, report, text) = folder.told("run -m hf --subject cpu -n 0");
    let command = report["model"]["hashed_by"].as_str().unwrap_or_else(|| panic!("{text}"));
    assert!(unwrapped(&text).contains(&format!("hash the sha256 is what `{command}` prints")), "{text}");
    let printed = Command::new("sh").args(["-c", command]).current_dir(&*folder).output().unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();
    assert_eq!(printed.split(' ').next(), report["model"]["sha256"].as_str(), "{command}");
}

/// Nothing in the help said which words qdiff replaces in a command.
#[test]
fn the_help_lists_what_a_command_may_name() {
    let folder = folder();
    let help = folder.qdiff("run --help").exits(0).stdout;
    let (_, listed) = help.split_once("in braces,").unwrap();
    let listed = listed.split_once("{model}:").unwrap().1.split_once("serve:").unwrap().0;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names.len(), 10, "{listed}");
    let all: Vec<String> = names.iter().map(|name| format!("{{{name}}}")).collect();
    let said = folder.qdiff(&format!("run -m model.gguf -n 1 --subject 'cmd: sh -c \"exit 7\" {}'", all.join(" ")));
    assert!(said.code == 2 && !said.stderr.contains("does not replace"), "{said}");
    // A word that is none is named, with the same list.
    let said = folder.qdiff("run -m model.gguf -n 0 --subject 'cmd: sh -c \"exit 7\" {tokens} {token}'");
    assert!(
        said.stderr.contains("{token}, which qdiff does not replace") && said.stderr.contains(&all.join(", ")),
        "{said}"
    );
}

/// A badge has the hashes of model and report; a report can be run again, and says what differs.
#[test]
fn a_report_is_verified_by_running_it_again() {
    let folder = folder();
    folder.qdiff("run -m model.gguf --subject cpu -n 1 --json a.json --badge a.svg").exits(0);
    let (report, badge) = (folder.json("a.json"), folder.text("a.svg"));
    let svg = roxmltree::Document::parse(&badge).unwrap();
    let title = svg.descendants().find(|node| node.has_tag_name("title")).unwrap().text().unwrap();
    let of_report = sha256(folder.text("a.json").as_bytes());
    for hash in [report["model"]["sha256"].as_str().unwrap(), &of_report] {
        assert!(title.contains(hash), "{hash}: {title}");
    }
    let said = folder.qdiff("report a.json --verify").exits(0).stdout;
    assert!(said.starts_with("VERIFIED: the run gives this verdict again: MATCH"), "{said}");
    // What a shell has set does not change the run.
    folder.qdiff_with(&[("QDIFF_DECODE", "3"), ("QDIFF_TOLERANCE", "logits=1")], "report a.json --verify").exits(0);
    let edited = |change: &dyn Fn(&mut Value)| {
        let mut report = folder.json("a.json");
        change(&mut report);
        folder.write("b.json", report.to_string());
        folder.qdiff("report b.json --verify")
    };
    let said = edited(&|report| {
        report["run"]["command"] = "qdiff run -m model.gguf --subject cpu -n 1 --inject gelu-for-silu@L01".into()
    });
    assert_eq!(said.code, 1, "{said}");
    assert!(said.stdout.starts_with("NOT VERIFIED: the report says: MATCH"), "{said}");
    assert!(
        unwrapped(&said.stdout)
            .contains("outcome MATCH in the report, DIVERGED here origins none in the report, L01.ffn_act here"),
        "{said}"
    );
    let said = edited(&|report| report["model"]["sha256"] = "0".repeat(64).into());
    assert!(said.code == 1 && said.stdout.contains("\nmodel      0000"), "{said}");
    // A stranger's report starts no command.
    let said = edited(&|report| report["run"]["command"] = "qdiff run --subject 'cmd: touch started; {tokens}'".into());
    assert!(said.code == 2 && said.stderr.contains("starts no command that a file names"), "{said}");
    assert!(!folder.join("started").exists());
    for (command, why) in
        [("qdiff check", "is no `qdiff run`"), ("rm -r x", "does not take"), ("qdiff run '", "open quote")]
    {
        let said = edited(&|report| report["run"]["command"] = command.into());
        assert!(said.code == 2 && said.stderr.contains(why), "{command}: {said}");
    }
}

/// Paths of reports had the whole command line of an engine in them.
#[test]
fn the_path_of_a_report_is_short() {
    let folder = folder();
    folder.record("mine", "-n 0");
    std::fs::create_dir(folder.join("prompts")).unwrap();
    let of = |folder: &Folder, line: &str| {
        let text = folder.qdiff(line).stdout;
        let path = text.lines().find_map(|line| line.strip_prefix("report ")).unwrap_or_else(|| panic!("{text}"));
        path.trim().to_owned()
    };
    let path = of(&folder, "run -m model.gguf --subject capture:mine");
    assert!(path.starts_with("qdiff-report/mine/cpu_recorded-"), "{path}");
    folder.write("prompts/question.txt", "Why?");
    let whole = folder.join("prompts/question.txt").display().to_string();
    let path = of(&folder, &format!("run -m model.gguf --subject cpu --reference none -n 0 --prompt @{whole}"));
    assert!(path.starts_with("qdiff-report/question_txt-") && path.len() < 70, "{path}");
    let json = folder.join("x.json").display().to_string();
    assert_eq!(of(&folder, &format!("run -m model.gguf --subject cpu -n 0 --json {json}")), "x.json");
}
