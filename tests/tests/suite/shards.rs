//! One verdict by several machines: each judges some layers, and what they found makes the verdict of one.

use qdiff::report::part::checksum;
use qdiff_tests::{Folder, Told, folder, npz};
use serde_json::Value;

const PARTS: usize = 3;

/// Captures of the llama.cpp side and of an engine with this fault, in parts.
fn recorded(fault: &str) -> Folder {
    let folder = folder();
    folder.record("llama", &format!("--runner llama --prompt haiku -n 2 --shards {PARTS}"));
    alike(&folder, "mine", &format!("--shards {PARTS} {fault}"));
    folder
}

/// Records the engine on the same tokens.
fn alike(folder: &Folder, out: &str, options: &str) {
    folder.qdiff(&format!("record -m model.gguf --like llama --out {out} {options}")).exits(0);
}

/// Judges these parts; gives their files.
fn judged(folder: &Folder, parts: &[usize], options: &str) -> String {
    let mut files = String::new();
    for part in parts {
        folder
            .qdiff(&format!("judge mine llama -m model.gguf --shard {part}/{PARTS} --out part-{part}.json {options}"))
            .exits(0);
        files += &format!(" part-{part}.json");
    }
    files
}

/// A report without what differs from run to run.
fn timeless(mut report: Value) -> Value {
    report["seconds"] = Value::Null;
    report["memory"] = Value::Null;
    report["verdict"]["parts"] = Value::Null;
    report["verdict"]["search"]["seconds"] = Value::Null;
    report
}

#[test]
fn parts_give_the_very_verdict_of_one_machine() {
    for (fault, options) in [
        ("", ""),
        ("", "--check probe"),
        ("--inject qkv-bias-omitted@L01", ""),
        ("--inject rope-base:base=10000", "--stages attn_*,*_rope"),
        ("--inject one-column-wrong@logits", "--tolerance L00.ffn_down=1e-3"),
    ] {
        let folder = recorded(fault);
        let (code, whole, text) = folder.told(&format!("compare mine llama -m model.gguf {options}"));
        let files = judged(&folder, &[1, 2, 3], options);
        let (merged_code, merged, merged_text) = folder.told(&format!("report{files}"));
        assert_eq!(code, i32::from(!fault.is_empty()), "{text}");
        assert_eq!(merged_code, code, "{fault} {options}: {merged_text}");
        assert_eq!(timeless(merged), timeless(whole), "{fault} {options}");
        // But for seconds, and for what it says of parts, up to the next word at the edge.
        let screen = |text: &str| {
            let mut of_parts = false;
            let own = |line: &&str| {
                of_parts = line.trim_start().starts_with("parts ") || of_parts && line.starts_with("  ");
                !of_parts && !line.contains(" s")
            };
            text.lines().filter(own).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(screen(&merged_text), screen(&text), "{fault} {options}");
    }
}

/// A machine needs the file of its part alone, and a capture that was recorded whole can be shared as well.
#[test]
fn a_part_reads_no_more_than_it_needs() {
    let folder = recorded("--inject qkv-bias-omitted@L01");
    let files = judged(&folder, &[1, 2, 3], "");
    for part in 1..=PARTS {
        let alone = folder.join("alone");
        for side in ["mine", "llama"] {
            std::fs::create_dir_all(alone.join(side)).unwrap();
            for file in ["manifest.json".to_owned(), format!("capture-{part:05}-of-{PARTS:05}.npz")] {
                std::fs::copy(folder.join(side).join(&file), alone.join(side).join(&file)).unwrap();
            }
        }
        let judge = format!("judge alone/mine alone/llama -m model.gguf --shard {part}/{PARTS} --out alone.json");
        folder.qdiff(&judge).exits(0);
        assert_eq!(folder.json("alone.json")["stages"], folder.json(&format!("part-{part}.json"))["stages"]);
        std::fs::remove_dir_all(&alone).unwrap();
    }
    alike(&folder, "whole", "--inject qkv-bias-omitted@L01");
    folder.qdiff(&format!("judge whole llama -m model.gguf --shard 2/{PARTS} --out whole.json")).exits(0);
    assert_eq!(folder.json("whole.json")["stages"], folder.json("part-2.json")["stages"]);
    let (code, ..) = folder.told(&format!("report{files}"));
    assert_eq!(code, 1);
}

/// The verdict of one machine and of three, with these options: exit code, outcome and findings.
fn both(folder: &Folder, options: &str) -> [(i32, Value, Value); 2] {
    let told = |(code, report, _): (i32, Value, String)| {
        (code, report["outcome"].clone(), report["verdict"]["findings"].clone())
    };
    let one = told(folder.told(&format!("compare mine llama -m model.gguf {options}")));
    let files = judged(folder, &[3, 2, 1], options);
    [one, told(folder.told(&format!("report{files}")))]
}

/// Takes arrays out of every file of a capture, or changes their values.
fn edit(folder: &Folder, capture: &str, is: impl Fn(&str) -> bool, factor: Option<f32>) {
    for part in 1..=PARTS {
        let path = folder.join(capture).join(format!("capture-{part:05}-of-{PARTS:05}.npz"));
        npz::rewrite(&path, |name, mut npy| {
            if !is(name) {
                return Some(npy);
            }
            let start = npz::data(&npy);
            for value in npy[start..].as_chunks_mut::<4>().0 {
                *value = (f32::from_le_bytes(*value) * factor?).to_le_bytes();
            }
            Some(npy)
        });
    }
}

/// Segments that cross a cut: what stands before the stage at its end, in every step, is read by the part that judges it.
#[test]
fn stages_that_were_not_captured_before_a_cut() {
    for (gone, options) in [
        ("/L00.layer_out", ""),
        ("/L00.layer_out", "--layers 0"),
        ("/L00.layer_out", "--stages layer_out"),
        ("step1/L00.layer_out", ""),
        ("step1/L00.layer_out", "--stages attn_norm"),
    ] {
        let folder = recorded("--inject scaled:by=1.00001@L01.attn_norm");
        edit(&folder, "mine", |name| name.ends_with(gone), None);
        let [one, three] = both(&folder, options);
        assert_eq!(one, three, "{gone} {options}");
    }
}

/// A part is of the operands that it was judged on.
#[test]
fn parts_of_operands_that_changed_are_refused() {
    let folder = recorded("");
    let files = judged(&folder, &[1, 2, 3], "--layers 1");
    edit(&folder, "mine", |name| name.ends_with("L00.layer_out"), Some(1.05));
    folder.refuses(
        &format!("report{files}"),
        &["L01.attn_norm", "of itself or of what it reads", "judge all parts again"],
    );
}

/// NaN that comes from a part that is not there begins nowhere that was judged.
#[test]
fn what_comes_from_a_missing_part_is_no_origin() {
    let folder = recorded("");
    let since = |name: &str| {
        name.ends_with("L00.layer_out") || ["/L01.", "/final_norm", "/logits"].iter().any(|n| name.contains(n))
    };
    edit(&folder, "mine", since, Some(f32::NAN));
    let [one, three] = both(&folder, "");
    assert_eq!((one.0, one.2[0]["stage"].as_str()), (1, Some("L00.layer_out")));
    assert_eq!(one, three);
    let files = judged(&folder, &[2, 3], "");
    let (code, report, text) = folder.told(&format!("report{files}"));
    assert_eq!((code, report.findings().len()), (3, 0), "{text}");
    // A part that was not requested is not missed.
    let folder = recorded("");
    let files = judged(&folder, &[2], "--layers 1");
    let (code, _, text) = folder.told(&format!("report{files}"));
    assert_eq!(code, 0, "{text}");
}

/// Changes a part, and writes it with the checksum of what it then is.
fn sealed(folder: &Folder, from: &str, to: &str, change: impl Fn(&mut Value)) {
    let mut part = folder.json(from);
    change(&mut part);
    part["checksum"] = checksum(part.to_string().as_bytes()).unwrap().into();
    folder.write(to, part.to_string());
}

/// What no judging wrote.
#[test]
fn parts_that_were_edited_are_refused() {
    let folder = recorded("--inject scaled:by=1.5@L00.ffn_down");
    judged(&folder, &[1, 2, 3], "");
    let at = |part: &Value, stage: &str| {
        part["stages"].as_array().unwrap().iter().position(|s| s["stage"] == stage).unwrap()
    };
    let stage = folder.json("part-1.json")["stages"][at(&folder.json("part-1.json"), "L00.ffn_down")].clone();
    let unsaid = |part: &mut Value| {
        let at = at(part, "L00.ffn_down");
        part["stages"][at]["subject"]["used"] = 0.into();
    };
    let mut wrong = folder.json("part-1.json");
    unsaid(&mut wrong);
    folder.write("wrong.json", wrong.to_string());
    folder.refuses(
        "report wrong.json part-2.json part-3.json",
        &["wrong.json is not what `qdiff judge` wrote", "checksum"],
    );
    sealed(&folder, "part-1.json", "wrong.json", unsaid);
    folder.refuses(
        "report wrong.json part-2.json part-3.json",
        &["wrong.json", "its figures for L00.ffn_down contradict each other"],
    );
    sealed(&folder, "part-2.json", "other.json", |part| part["stages"].as_array_mut().unwrap().push(stage.clone()));
    folder.refuses("report part-1.json other.json part-3.json", &["other.json", "L00.ffn_down is none of its part"]);
    sealed(&folder, "part-2.json", "index.json", |part| part["shard"]["index"] = 9.into());
    folder.refuses("report part-1.json index.json", &["index.json says that it is part 9/3"]);
}

/// The machine that puts parts together has the captures and the model elsewhere than the machines that judged. Parts that
/// said so were refused as edited.
#[test]
fn parts_may_say_where_the_captures_lie_now() {
    let folder = recorded("--inject scaled:by=1.5@L00.ffn_down");
    alike(&folder, "other", &format!("--shards {PARTS} --inject scaled:by=1.4@L00.ffn_down"));
    let files = judged(&folder, &[1, 2, 3], "");
    let (code, report, text) = folder.told(&format!("report{files}"));
    assert_eq!(code, 1, "{text}");
    let name = |key: &str, to: &str| {
        for file in files.split_whitespace() {
            let mut part = folder.json(file);
            part["asked"][key] = to.into();
            folder.write(file, part.to_string());
        }
    };
    for (key, from, to) in [
        ("subject", "mine", "fetched-mine"),
        ("reference", "llama", "fetched-llama"),
        ("model", "model.gguf", "fetched.gguf"),
    ] {
        std::fs::rename(folder.join(from), folder.join(to)).unwrap();
        name(key, to);
    }
    let (code, moved, text) = folder.told(&format!("report{files}"));
    assert_eq!((code, &moved["outcome"]), (1, &report["outcome"]), "{text}");
    assert_eq!(moved["verdict"]["findings"], report["verdict"]["findings"]);
    // A capture of other values is not the one that was judged, wherever it lies.
    name("subject", "other");
    folder.refuses(&format!("report{files}"), &["judge", "again"]);
    name("subject", "fetched-mine");
    // A request to them is no place.
    name("layers", "1");
    folder.refuses(&format!("report{files}"), &["part-1.json is not what `qdiff judge` wrote", "checksum"]);
}

/// A part whose every stage was made right by hand, checksum and all, was a match.
#[test]
fn a_part_that_says_what_judging_does_not_give_is_refused() {
    let folder = recorded("--inject scaled:by=1.5@logits");
    let judge = |part: usize| {
        let options = "--stages logits";
        let command = format!("judge mine llama -m model.gguf --shard {part}/{PARTS} --out part-{part}.json {options}");
        folder.qdiff(&command).exits(0);
    };
    judge(3);
    let said = folder.qdiff("report part-3.json").exits(1);
    assert!(said.stdout.contains("judged again here"), "{said}");
    sealed(&folder, "part-3.json", "part-3.json", |part| {
        let local = &mut part["stages"][0]["subject"];
        (local["used"], local["residual"], local["bad_rows"]) = (0.5.into(), 1e-7.into(), 0.into());
        (local["bad_positions"], local["bad_prefill_rows"]) = (Value::Array(Vec::new()), 0.into());
        local["first_bad"] = Value::Null;
    });
    folder.refuses("report part-3.json", &["the parts say of logits", "judge all parts again"]);
}

/// Folders that are no captures in parts.
#[test]
fn what_is_no_capture_in_parts_is_refused() {
    let folder = recorded("");
    folder.write("maps.map", "query.{L} = q_rope");
    folder.refuses(
        "judge mine llama -m model.gguf --shard 1/2 --map maps.map --out x.json",
        &["mine is a capture in parts", "--map is of other containers"],
    );
    std::fs::rename(
        folder.join("mine/capture-00002-of-00003.npz"),
        folder.join("mine/capture-00002-of-18446744073709551615.npz"),
    )
    .unwrap();
    folder.refuses("compare mine llama -m model.gguf", &["mine holds archives of two captures"]);
    for part in [1, 3] {
        std::fs::remove_file(folder.join(format!("mine/capture-{part:05}-of-00003.npz"))).unwrap();
    }
    folder.refuses("compare mine llama -m model.gguf", &["18446744073709551615 parts", "4096"]);
    let folder = recorded("");
    for side in ["mine", "llama"] {
        folder.edit(&format!("{side}/manifest.json"), |text| {
            let manifest = String::from_utf8(std::mem::take(text)).unwrap();
            let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
            manifest["tokens"][0] = 4_000_000.into();
            *text = manifest.to_string().into_bytes();
        });
    }
    folder.refuses("judge mine llama -m model.gguf --shard 1/3 --out x.json", &["token 4000000 does not exist"]);
}

/// What a machine that died did not judge is not judged: never a match.
#[test]
fn a_missing_part_is_no_pass() {
    let folder = recorded("");
    let files = judged(&folder, &[1, 3], "");
    let (code, report, text) = folder.told(&format!("report{files}"));
    assert_eq!((code, report["outcome"].as_str()), (3, Some("incomplete")), "{text}");
    let coverage = &report["verdict"]["coverage"];
    assert!(coverage["judged"].as_u64() < coverage["asked"].as_u64(), "{coverage}");
    let said = folder.qdiff(&format!("report{files}")).exits(3);
    assert!(said.stderr.contains("the part 2/3 is not there"), "{said}");
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let folder = recorded("");
    let files = judged(&folder, &[1, 2, 3], "");
    folder.qdiff("judge mine llama -m model.gguf --shard 2/3 --out other.json --check full").exits(0);
    folder.refuses("report part-1.json other.json part-3.json", &["part-1.json and other.json", "different verdicts"]);
    std::fs::copy(folder.join("part-2.json"), folder.join("again.json")).unwrap();
    folder.refuses(&format!("report{files} again.json"), &["part-2.json and again.json", "2/3", "leave one out"]);
    folder.refuses("judge mine llama -m model.gguf --shard 9/9 --out x.json", &["--shard", "at most 3 parts"]);
    folder.refuses("record -m model.gguf --prompt haiku --shards 99 --out x", &["--shards", "at most 3 parts"]);
    // The engine was mended and recorded again after its first part was judged.
    std::fs::remove_dir_all(folder.join("mine")).unwrap();
    alike(&folder, "mine", &format!("--shards {PARTS} --inject scaled:by=1.01@L00.ffn_down"));
    folder.refuses(&format!("report{files}"), &["L00.ffn_down", "other values", "judge all parts again"]);
    // A capture of which a file is gone is none.
    std::fs::remove_file(folder.join("mine/capture-00002-of-00003.npz")).unwrap();
    folder.refuses("compare mine llama -m model.gguf", &["mine lacks capture-00002-of-00003.npz", "record it again"]);
}
