//! Captures from Python: numpy reads what qdiff writes and the other way
//! round, with the exporter that the documentation shows.

use qdiff_tests::recording::record;
use qdiff_tests::{folder, qdiff, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs Python with numpy and the exporter on its path.
fn python(folder: &Path, script: &str) -> String {
    let numpy = Command::new(root().join("scripts/fetch-numpy")).output().unwrap();
    assert!(numpy.status.success(), "no numpy: {}", stderr(&numpy));
    let path = format!("{}:{}", stdout(&numpy).trim(), root().join("docs/exporters").display());
    let output =
        Command::new("python3").current_dir(folder).env("PYTHONPATH", path).args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Reads a recorded capture, asserts what it holds, and writes it again under
/// the names and in the layouts of another engine; `CHANGE` may break an array.
const REWRITE: &str = r#"
import json
import numpy as np
from qdiff_capture import Capture

manifest = json.load(open("recorded/manifest.json"))
arrays = np.load("recorded/capture.npz")
assert manifest["schema_version"] == 2
tokens = len(manifest["tokens"])
q = arrays["prefill/L01.q_rope"]
assert q.dtype == np.float32 and q.shape == (tokens, 4, 64), (q.dtype, q.shape)
assert arrays["prefill/L01.attn_weights"].shape == (4, tokens, tokens)
assert arrays["step2/L01.k_cache"].shape == (tokens + 2, 2, 64)
np.testing.assert_allclose(arrays["prefill/L01.attn_weights"].sum(-1), 1, rtol=1e-5)

capture = Capture("numpy", manifest["tokens"], manifest["decoded"], model_sha256=manifest["model_sha256"])
for name in arrays.files:
    step, stage = name.split("/")
    x = arrays[name].copy()
    CHANGE
    layer = int(stage[1:3]) if stage[0] == "L" else None
    if layer is None:
        capture.add(step, f"model.{stage}", x[None])
    elif stage.endswith("_rope"):
        capture.add(step, f"model.{layer}.rotated.{stage[4]}", x.transpose(1, 0, 2)[None])
    else:
        capture.add(step, f"model.{layer}.{stage[4:]}", x)
    if stage == "logits":
        capture.add(step, "model.something_else", x)
capture.save("foreign")
"#;

/// The map for these names, every stage of the graph in it.
fn write_map(folder: &Path) {
    let script = r##"
import numpy as np
names = sorted({n.split("/")[1] for n in np.load("recorded/capture.npz").files})
lines = ["# what numpy calls it"]
for name in sorted({n[4:] for n in names if n[0] == "L"}):
    rope = name.endswith("_rope")
    lines.append(f"model.{{L}}.rotated.{name[0]} = {name} : 0,2,1,3" if rope else f"model.{{L}}.{name} = {name}")
lines += [f"model.{n} = {n}" for n in names if n[0] != "L"]
open("map", "w").write("\n".join(lines) + "\n")
"##;
    python(folder, script);
}

fn setup() -> tempfile::TempDir {
    let folder = folder();
    record(folder.path(), "recorded", &[]);
    write_map(folder.path());
    folder
}

const JUDGE: &[&str] = &["run", "-m", "model.gguf", "--subject", "capture:foreign", "--map", "map"];

#[test]
fn numpy_reads_and_writes_captures() {
    let folder = setup();
    let folder = folder.path();
    python(folder, &REWRITE.replace("CHANGE", "pass"));
    let output = qdiff(folder, JUDGE);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.starts_with("MATCH"), "{text}");
    assert!(text.contains("numpy (recorded"), "{text}");

    // A wrong order of axes is another tensor, and is found at its stage.
    let map = std::fs::read_to_string(folder.join("map")).unwrap();
    std::fs::write(folder.join("map"), map.replace("q_rope : 0,2,1,3", "q_rope : 0,1,2,3")).unwrap();
    let output = qdiff(folder, JUDGE);
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("L00.q_rope"), "{}", stdout(&output));
}

#[test]
fn what_numpy_breaks_is_found() {
    let folder = setup();
    let change = "if name == 'step1/L01.ffn_gate': x[0, 7] += 0.5";
    python(folder.path(), &REWRITE.replace("CHANGE", change));
    let output = qdiff(folder.path(), JUDGE);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    for part in ["L01.ffn_gate", "at decode step 1", "one column, 7"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

#[test]
fn maps_that_say_nothing_are_refused() {
    let folder = setup();
    python(folder.path(), &REWRITE.replace("CHANGE", "pass"));
    for (map, expected) in [
        ("model.{L}.x = nonsense", "no stage is called `nonsense`"),
        ("model.x = q_rope", "has no {L}"),
        ("model.{L}.x = q_rope : 0,0", "each axis once"),
        ("just words", "THEIRS = OURS"),
        ("a = logits\na = embed", "line 2: `a` is a name already"),
        ("model.logits = logits : 1,0", "has 3 axes, and the map orders 2"),
        ("model.{L}.ffn_up = ffn_down", "and the stage has"),
    ] {
        std::fs::write(folder.path().join("map"), map).unwrap();
        let output = qdiff(folder.path(), JUDGE);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{map}: {message}");
        assert!(message.contains(expected), "{map}: {message}");
    }
}
