//! Captures from Python: numpy reads what qdiff writes and the other way
//! round, with the exporter that the documentation shows.

use qdiff_tests::{Folder, folder, python};

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

    // A wrong order of axes is another tensor, and is found at its stage.
    let map = folder.text("map");
    folder.write("map", map.replace("q_rope : 0,2,1,3", "q_rope : 0,1,2,3"));
    let said = folder.qdiff(JUDGE).exits(1);
    assert!(said.stdout.contains("L00.q_rope"), "{said}");

    for (map, expected) in [
        ("model.{L}.x = nonsense", "no stage is called `nonsense`"),
        ("model.x = q_rope", "has no {L}"),
        ("model.{L}.x = q_rope : 0,0", "each axis once"),
        ("just words", "THEIRS = OURS"),
        ("a = logits\na = embed", "line 2: `a` is a name already"),
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
