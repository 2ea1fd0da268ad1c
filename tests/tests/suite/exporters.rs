//! Captures from Python: numpy reads what qdiff writes and the other way
//! round, with the package of `tap/python`, from its sources and from its wheel.

use qdiff_synth::Synth;
use qdiff_tests::{Folder, Said, Told, files, folder, folder_with, markdown, python, python_path, unwrapped};
use std::process::Command;

/// Reads a recorded capture, asserts what it holds, and writes it again under
/// the names and in the layouts of another engine; `CHANGE` may break an array.
const REWRITE: &str = r#"
import json
import numpy as np
from qdiff_capture import Capture

manifest = json.load(open("recorded/manifest.json"))
arrays = np.load("recorded/capture.npz")
assert manifest["schema_version"] == 3
tokens = len(manifest["tokens"])
q = arrays["prefill/L01.q_rope"]
assert q.dtype == np.float32 and q.shape == (tokens, 4, 64), (q.dtype, q.shape)
assert arrays["prefill/L01.attn_weights"].shape == (4, tokens, tokens)
assert arrays["step2/L01.k_cache"].shape == (tokens + 2, 2, 64)
np.testing.assert_allclose(arrays["prefill/L01.attn_weights"].sum(-1), 1, rtol=1e-5)

with Capture("foreign", engine="numpy", model_sha256=manifest["model_sha256"]) as capture:
    for index, fed in enumerate([manifest["tokens"]] + [[token] for token in manifest["decoded"]]):
        with capture.step(fed):
            for name in arrays.files:
                step, stage = name.split("/")
                if step != (f"step{index}" if index else "prefill"):
                    continue
                x = arrays[name].copy()
                CHANGE
                layer = int(stage[1:3]) if stage[0] == "L" else None
                if layer is None:
                    capture.add(f"model.{stage}", x[None])
                elif stage.endswith("_rope"):
                    capture.add(f"model.{layer}.rotated.{stage[4]}", x.transpose(1, 0, 2)[None])
                elif stage.endswith("ffn_norm"):
                    for row in x:
                        capture.append(f"model.{layer}.{stage[4:]}", row[None])
                else:
                    capture.add(f"model.{layer}.{stage[4:]}", x)
                if stage == "logits":
                    capture.add("model.something_else", x)
"#;

/// Writes the map for these names, every stage of the graph in it.
const MAP: &str = r##"
import numpy as np
names = sorted({n.split("/")[1] for n in np.load("recorded/capture.npz").files})
lines = ["# what numpy calls it"]
for name in sorted({n[4:] for n in names if n[0] == "L"}):
    rope = name.endswith("_rope")
    lines.append(f"model.{{L}}.rotated.{name[0]} = {name} : 0,2,1,3" if rope else f"model.{{L}}.{name} = {name}")
lines += [f"model.{n} = {n}" for n in names if n[0] != "L"]
open("map", "w").write("\n".join(lines) + "\n")
"##;

/// A capture from Python with this change, and its map.
fn exported(change: &str) -> Folder {
    let folder = folder();
    folder.record("recorded", "");
    python(&folder, MAP);
    python(&folder, &REWRITE.replace("CHANGE", change));
    folder
}

const JUDGE: &str = "run -m model.gguf --subject capture:foreign --map map";

#[test]
fn numpy_reads_and_writes_captures() {
    let folder = exported("pass");
    let said = folder.qdiff(JUDGE).exits(0);
    assert!(said.stdout.starts_with("MATCH"), "{said}");
    assert!(said.stdout.contains("numpy (recorded"), "{said}");

    // Lines that fit no array are reported.
    let map = folder.text("map");
    let (line, written) = (map.lines().count() + 1, "typing.{L}.error = attn_out");
    for (more, words) in [("", "fits no array)"), ("\nanother = logits", "and 1 more line fit no array)")] {
        folder.write("map", format!("{map}{written}{more}\n"));
        let said = folder.qdiff(JUDGE).exits(0);
        let words = format!("; line {line} of the map, `{written}`, {words}");
        let told: Vec<&str> = said.stdout.split_whitespace().collect();
        assert!(told.join(" ").contains(&words), "{said}");
    }

    // A wrong order of axes is another tensor, and is found at its stage.
    folder.write("map", map.replace("q_rope : 0,2,1,3", "q_rope : 0,1,2,3"));
    let said = folder.qdiff(JUDGE).exits(1);
    assert!(said.stdout.contains("L00.q_rope"), "{said}");

    for (map, expected) in [
        ("model.{L}.x = nonsense", "no stage is called `nonsense`"),
        ("model.x = q_rope", "has no {L}"),
        ("model.{L}.x = q_rope : 0,0", "each axis once"),
        ("just words", "THEIRS = OURS"),
        ("a = logits\na[:] = logits", "line 2: `a` is logits already"),
        ("model.logits = logits : 1,0", "has 3 axes, and the map orders 2"),
        ("model.{L}.ffn_up = ffn_down", "and the stage has"),
    ] {
        folder.write("map", map);
        folder.refuses(JUDGE, &[expected]);
    }
}

#[test]
fn what_numpy_breaks_is_found() {
    let said = exported("if name == 'step1/L01.ffn_gate': x[0, 7] += 0.5").qdiff(JUDGE).exits(1);
    for part in ["L01.ffn_gate", "at decode step 1", "one column, 7"] {
        assert!(said.stdout.contains(part), "`{part}` is not in:\n{said}");
    }
}

/// The same three stages of every step in a number format of numpy's, or in one that it has no word for.
const FORMATS: &str = r#"
import json
import numpy as np
from qdiff_capture import Capture

manifest = json.load(open("recorded/manifest.json"))
arrays = np.load("recorded/capture.npz")
for name, held, given in [("f64", np.float64, None), ("big", ">f4", None), ("bf16", None, "bf16")]:
    with Capture(f"{name}", engine=name) as capture, capture.step(manifest["tokens"]):
        for stage in ["embed", "L00.layer_out", "L01.layer_out", "logits"]:
            x = arrays[f"prefill/{stage}"]
            if stage == "embed" and given:
                x = (x.view(np.uint32) >> 16).astype(np.uint16)
            layer = int(stage[1:3]) if stage[0] == "L" else None
            capture.add(stage.split(".")[-1], x.astype(held) if held else x, layer=layer,
                        dtype=given if stage == "embed" else None)

def refused(error, call):
    try:
        call()
    except error as why:
        return str(why)
    raise AssertionError("it was taken")

off = Capture(engine="off")
with off.step([1]):
    off.add("embed", object())
assert not off.writes
capture = Capture("refused", engine="refused")
assert "outside a step" in refused(RuntimeError, lambda: capture.add("embed", np.zeros(1)))
capture.begin([1])
assert "before the last one ended" in refused(RuntimeError, lambda: capture.begin([2]))
assert "qdiff reads f32" in refused(TypeError, lambda: capture.add("embed", np.zeros(1, np.uint8)))
assert "has elements of 4 bytes, and bf16 has 2" in refused(TypeError, lambda: capture.add("embed", np.zeros(1, "f4"), dtype="bf16"))
capture.add("embed", np.zeros((1, 256), "f4"))
assert "before" in refused(ValueError, lambda: capture.add("embed", np.zeros((1, 256), "f4")))
import shutil
shutil.copytree("refused", "begun")
assert refused(FileExistsError, lambda: Capture("refused", engine="refused"))
"#;

#[test]
fn the_package_writes_every_number_format() {
    let folder = folder();
    folder.record("recorded", "-n 0 --stages embed,layer_out,logits");
    python(&folder, FORMATS);
    for name in ["f64", "big"] {
        let (code, _, text) = folder.judged(&format!("--subject capture:{name}"));
        assert_eq!(code, 0, "{name}: {text}");
    }
    assert!(folder.text("bf16/capture.jsonl").contains("\"name\": \"embed\", \"dtype\": \"bf16\""));
    folder.judged("--subject capture:bf16");
    // A step that was begun and did not end is none.
    folder.refuses("run -m model.gguf --subject capture:begun", &["no step that is whole"]);
    folder.refuses(
        "run -m model.gguf --subject capture:refused",
        &["could not dump", "another dump to refused has not ended"],
    );
}

/// The wheel is built without a network and without setuptools, and is what the sources are.
#[test]
fn the_wheel_is_built_and_works() {
    let folder = folder();
    folder.record("recorded", "-n 0 --stages embed,layer_out,logits");
    let sources = markdown::root().join("tap/python");
    let pip = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "-w", "."];
    let built = Command::new("python3").args(pip).arg(&sources).current_dir(&*folder).output().unwrap();
    Said::from(built).exits(0);
    let script = r#"
import sys, glob, json, numpy as np
wheel, = glob.glob("*.whl")
sys.path.insert(0, wheel)
import qdiff_capture
assert wheel in qdiff_capture.__file__, qdiff_capture.__file__
import qdiff_capture.vllm, qdiff_capture.sglang, zipfile
modules = [name.split("/")[1] for name in zipfile.ZipFile(wheel).namelist()]
assert {"transformers.py", "mlx.py", "vllm.py", "sglang.py"} <= set(modules), modules
import importlib.metadata
assert importlib.metadata.version("qdiff-capture") == wheel.split("-")[1]
arrays, manifest = np.load("recorded/capture.npz"), json.load(open("recorded/manifest.json"))
with qdiff_capture.Capture("mine", engine="a wheel") as capture, capture.step(manifest["tokens"]):
    for name in arrays.files:
        capture.add(name.split("/")[1], arrays[name])
"#;
    python(&folder, script);
    let (code, report, text) = folder.judged("--subject capture:mine");
    assert_eq!(code, 0, "{text}");
    assert!(report["subject"]["name"].as_str().unwrap().starts_with("a wheel (recorded"), "{text}");
}

/// An engine in Python, dumped as the documentation shows and started by the command that it shows.
#[test]
fn the_recipe_for_a_command_in_python_works() {
    let document = markdown::read("docs/engine/command.md");
    let (_, recipe) = document.split_once("## A command in Python\n").unwrap();
    let engine = recipe.split_once("```python\n").unwrap().1.split_once("```").unwrap().0;
    let folder = folder();
    folder.record("recorded", "-n 0 --stages embed,layer_out,logits");
    folder.write("command.py", engine);
    // What the recipe leaves to the reader: an engine.
    folder.write("my_engine.py", MY_ENGINE);
    let line = recipe.lines().find_map(|line| line.strip_prefix("qdiff ")).unwrap();
    let said = folder.qdiff_with(&[("PYTHONPATH", &python_path())], line).exits(0);
    assert!(said.stdout.starts_with("MATCH") && said.stdout.contains("my engine (run by its command"), "{said}");
}

const MY_ENGINE: &str = r#"
import json
import numpy as np

def forward(model, tokens):
    assert tokens == json.load(open("recorded/manifest.json"))["tokens"]
    arrays = np.load("recorded/capture.npz")
    return [arrays["prefill/" + name] for name in ["embed", "L00.layer_out", "L01.layer_out", "logits"]]
"#;

/// A folder that was used before, a process that is forked between two arrays and ends as Python does, and an error: nothing
/// is there twice, and what is not whole does not say that it is.
#[test]
fn the_package_dumps_the_values_of_one_process_and_one_run() {
    let script = r#"
import os, sys
import numpy as np
from qdiff_capture import Capture
def dump(fork):
    with Capture("twice", engine="mine") as capture, capture.step([1]):
        capture.add("embed", np.zeros((1, 2), "f4"))
        if fork:
            child = os.fork()
            if child == 0:
                if fork == "tap":
                    try:
                        capture.add("logits", np.zeros((1, 2), "f4"))
                    except RuntimeError as why:
                        assert "before it forked" in str(why), why
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
        capture.add("logits", np.ones((1, 2), "f4"))
    return open("twice/capture.jsonl").read().splitlines()[1:], open("twice/capture.bin", "rb").read()
first = dump(None)
assert len(first[1]) == 16 and first[0][-1] == '{"closed": 1}', first
assert dump("end") == first and not os.path.exists("twice/capture.trouble")
assert dump("tap") == first and "before it forked" in open("twice/capture.trouble").read()
assert dump(None) == first and not os.path.exists("twice/capture.trouble")
# One that goes on keeps the folder from nobody.
ended, end = os.pipe()
with Capture("twice", engine="mine"):
    if os.fork() == 0:
        os.close(end)
        os._exit(len(os.read(ended, 1)))
assert dump(None) == first
os.close(end)
assert os.wait()[1] == 0
try:
    with Capture("twice", engine="mine") as capture:
        with capture.step([1]):
            capture.add("embed", np.zeros((1, 2), "f4"))
        raise KeyError
except KeyError:
    assert "closed" not in open("twice/capture.jsonl").read()
"#;
    python(&qdiff_tests::empty(), script);
}

/// An engine that serves several requests in one batch, by modules with the names, calls and metadata of vLLM and SGLang.
const SERVING: &str = include_str!("../../tap/serving.py");

/// Batches were cut into requests, prefix caches refused, and paged caches dropped. They are captured as they are; a wrong slot,
/// block table or position is the origin that is named.
#[test]
fn batches_of_serving_engines_are_judged_as_they_are() {
    for arch in ["qwen2", "qwen3"] {
        let folder = folder_with(&Synth { arch, ..Synth::default() });
        folder.qdiff("record -m model.gguf --length 34 --sequences 7,5+1+17@0:4,1+1+1,1~2 --out recorded").exits(0);
        python(&folder, SERVING);
        for (capture, absent) in [("vllm", "attn_weights"), ("second", "attn_weights"), ("sglang", "k_cache")] {
            let said = folder.qdiff(&format!("run -m model.gguf --subject capture:{capture}")).exits(0);
            assert!(said.stdout.contains("4 runs: 4 MATCH"), "{arch}: {said}");
            // The prefix of sequence 2 ends within a part of which the last token's logits alone were dumped.
            let alone =
                folder.qdiff(&format!("run -m model.gguf --subject capture:{capture} --reference none")).exits(3);
            assert!(alone.stdout.contains("4 runs: 4 INCOMPLETE"), "{arch}: {alone}");
            for file in files(&folder.join("qdiff-report")) {
                let report = folder.json(&format!("qdiff-report/{file}/report.json"));
                assert!(report.is_whole(), "{arch} {capture} {file}");
                let covered = report.stages().iter().filter(|s| s["status"] == "covered");
                assert!(
                    covered.filter_map(|s| s["stage"].as_str()).any(|s| s.ends_with(absent)),
                    "{arch} {capture} {file}"
                );
                assert!(report["slots"]["checked"].as_u64().unwrap() > 60, "{}", report["slots"]);
            }
            std::fs::remove_dir_all(folder.join("qdiff-report")).unwrap();
        }
        let (of_a, of_c) = (4 * 9 + 1, 4 * 3 + 1);
        for (capture, words) in [
            (
                "slot",
                format!("token 21 of sequence 2 was written to slot {of_a}, which belongs to sequence 0 (its token 5)"),
            ),
            (
                "table",
                format!(
                    "the block table of sequence 2 has slot 8 for token 4, which holds token 8 of sequence 0; token 4 of sequence 2 was \
                 written to slot {}",
                    of_c - 1
                ),
            ),
            ("position", "token 21 of sequence 2 was given position 20".to_owned()),
        ] {
            let said = folder.qdiff(&format!("run -m model.gguf --subject capture:{capture}")).exits(1);
            let text = unwrapped(&said.stdout);
            assert!(text.contains(&words), "{arch} {capture}: {said}");
        }
    }
}
