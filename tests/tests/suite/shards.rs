//! One verdict by several machines: each judges some layers, and what they found makes the verdict of one.

use qdiff_tests::{Folder, folder};
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
        let screen = |text: &str| text.lines().filter(|l| !l.contains(" s")).map(str::to_owned).collect::<Vec<_>>();
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
    assert!(said.stderr.contains("the parts 2/3 are not there"), "{said}");
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let folder = recorded("");
    let files = judged(&folder, &[1, 2, 3], "");
    folder.qdiff("judge mine llama -m model.gguf --shard 2/3 --out other.json --check full").exits(0);
    folder.refuses("report part-1.json other.json part-3.json", &["part-1.json and other.json", "different verdicts"]);
    std::fs::copy(folder.join("part-2.json"), folder.join("again.json")).unwrap();
    folder.refuses(&format!("report{files} again.json"), &["part-2.json and again.json", "2/3", "leave one out"]);
    folder.refuses("judge mine llama -m model.gguf --shard 9/9 --out x.json", &["--shard", "parts at most"]);
    folder.refuses("record -m model.gguf --prompt haiku --shards 99 --out x", &["--shards", "parts at most"]);
    // The engine was mended and recorded again after its first part was judged.
    std::fs::remove_dir_all(folder.join("mine")).unwrap();
    alike(&folder, "mine", &format!("--shards {PARTS} --inject scaled:by=1.01@L00.ffn_down"));
    folder.refuses(&format!("report{files}"), &["L00.ffn_down", "other values", "judge that part again"]);
    // A capture of which a file is gone is none.
    std::fs::remove_file(folder.join("mine/capture-00002-of-00003.npz")).unwrap();
    folder.refuses("compare mine llama -m model.gguf", &["mine lacks capture-00002-of-00003.npz", "record it again"]);
}
