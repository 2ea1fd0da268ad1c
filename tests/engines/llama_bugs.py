"""Captures llama.cpp through its own eval callback (docs/exporters/llama_tap.cpp), as it is and with each of the bugs below
planted in its code: to OUT/clean, OUT/NAME, ... DTYPE is the number type of the KV cache.

Of llama.cpp only the file with the bug is compiled again, as the build in LLAMA_OUT compiled it, and linked before its libraries.

Usage: LLAMA_OUT=FOLDER llama_bugs.py MODEL.gguf LIKE OUT DTYPE
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = pathlib.Path(os.environ["LLAMA_OUT"])


def neighbours_rotated():
    """RoPE turns neighbouring elements where Qwen turns the two halves of a head. Found as: L00.q_rope rope-pairing"""
    return ("ggml-cpu/ops.cpp", "rotate_pairs<T>(n_dims, n_dims/2, cache, src + n_offs, dst_data + n_offs);",
            "rotate_pairs<T>(n_dims, 1, cache, src + n_offs, dst_data + n_offs, 1);")


def gate_and_up_exchanged():
    """SiLU is applied to up instead of the gate. Found as: L00.ffn_act gate-up-operands-swapped"""
    return "llama-graph.cpp", "cur = ggml_swiglu_split(ctx0, cur, tmp);", "cur = ggml_swiglu_split(ctx0, tmp, cur);"


def mask_off_by_one():
    """A token sees the one after it. Found as: L00.attn_weights mask-off-by-one"""
    return "llama-kv-cache.cpp", "if (p0 > p1) {", "if (p0 > p1 + 1) {"


def compiled(bug, work):
    """The object of the file that has the bug."""
    file, right, wrong = bug
    commands = json.loads((BUILT / "build" / "compile_commands.json").read_text())
    command = next(c for c in commands if c["file"].endswith("/" + file))
    source, text = pathlib.Path(command["file"]), pathlib.Path(command["file"]).read_text()
    if text.count(right) != 1:
        sys.exit(f"{source}: `{right}` occurs {text.count(right)} times")
    (work / source.name).write_text(text.replace(right, wrong))
    words = shlex.split(command["command"])
    words = words[:words.index("-o")] + ["-iquote", str(source.parent)]
    made = work / "bug.o"
    subprocess.run([*words, "-c", str(work / source.name), "-o", str(made)], check=True)
    return [made]


def engine(objects, work):
    """The program with these objects before the libraries."""
    made = work / "llama_tap"
    libraries = [f"-l{name}" for name in ("llama", "ggml", "ggml-cpu", "ggml-base")]
    subprocess.run(["c++", "-std=c++17", "-O1", "-fopenmp", "-I", ROOT / "tap", "-I", BUILT / "include",
                    ROOT / "docs" / "exporters" / "llama_tap.cpp", *objects, "-L", BUILT / "lib", *libraries, "-o", made], check=True)
    return made


def main():
    gguf, like, out, kv = *map(pathlib.Path, sys.argv[1:4]), sys.argv[4]
    tokens = json.loads((like / "manifest.json").read_text())
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for name in ("tokens", "decoded"):
            (work / name).write_text("".join(f"{token}\n" for token in tokens[name]))
        for plant in [None, neighbours_rotated, gate_and_up_exchanged, mask_off_by_one]:
            program = engine(compiled(plant(), work) if plant else [], work)
            dump = out / (plant.__name__.replace("_", "-") if plant else "clean")
            subprocess.run([program, gguf, ROOT / "docs" / "stages.md", work / "tokens", work / "decoded", kv],
                           env={**os.environ, "QDIFF_DUMP": str(dump)}, check=True)


if __name__ == "__main__":
    main()
