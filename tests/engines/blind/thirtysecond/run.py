"""run.py OUT: writes the models to OUT/models, and the screens of the twenty bugs and of the clean engine to OUT/ID.txt and OUT/ID-clean.txt.

QDIFF names the program, PYTHON the Python with numpy. run.py OUT ID... runs only these."""
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
QDIFF, PYTHON = os.environ.get("QDIFF", "qdiff"), os.environ.get("PYTHON", "python3")

MODELS = {
    "a": "--layers 3 --heads 8 --kv-heads 2 --ffn 544 --weights q8_0 --seed 321",
    "b": "--tied --layers 3 --weights q3_K --tensor blk.0.ffn_down.weight=q5_K --tensor blk.1.ffn_down.weight=q5_K --tensor blk.2.ffn_down.weight=q5_K "
         "--tensor token_embd.weight=q6_K --eps 0.00001 --seed 322",
    "c": "--arch qwen3 --tied --layers 2 --head-dim 128 --weights f16 --seed 323",
    "d": "--arch qwen3 --layers 3 --embedding 320 --heads 5 --kv-heads 1 --head-dim 64 --weights q5_0 --seed 324",
    "e": "--arch qwen2moe --layers 2 --weights q8_0 --seed 325",
    "f": "--arch qwen3moe --layers 3 --weights bf16 --seed 326",
    "g": "--arch qwen35 --layers 4 --weights q8_0 --seed 327",
    "h": "--arch qwen3 --layers 2 --weights iq4_nl --context 256 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=64 --seed 328",
}

# By bug: the model, and the options of the run.
RUNS = {
    "eps": ("b", "--prompt haiku -n 4"),
    "norm-in-place": ("a", "--prompt code -n 3"),
    "kv-tile": ("a", "--prompt haiku -n 0"),
    "head-tail": ("a", "--prompt emoji -n 2"),
    "q3k-scales": ("b", "--prompt chinese -n 0"),
    "tied-head": ("d", "--prompt 'Why is the sky blue?' -n 0"),
    "topk-norm": ("e", "--prompt haiku -n 0"),
    "head-dim": ("c", "--prompt code -n 0"),
    "inv-freq": ("c", "--prompt long --length 96 -n 0"),
    "gate-flat": ("g", "--prompt haiku -n 0"),
    "odd-sum": ("d", "--prompt code -n 2"),
    "delta-heads": ("g", "--prompt 'Name three rivers of Europe.' -n 3"),
    "mask-offset": ("a", "--prompt long --length 45 --passes 16,16,13 -n 2"),
    "k-tail": ("a", "--prompt haiku -n 3"),
    "short-part": ("g", "--prompt long --length 37 --passes 20,2,15 -n 2"),
    "stale-table": ("c", "--prompt long --length 29 -n 6"),
    "first-scale": ("c", "--prompt haiku -n 5 --kv-type q8_0"),
    "half-variance": ("h", "--prompt haiku -n 8"),
    "rope-table": ("h", "--prompt long --length 80 -n 2"),
    "moe-grid": ("f", "--prompt emoji -n 2"),
}


def main():
    out = Path(sys.argv[1]).resolve()
    (out / "models").mkdir(parents=True, exist_ok=True)
    for name, options in MODELS.items():
        if not (out / f"models/{name}.gguf").exists():
            subprocess.run(f"{QDIFF} synth {out}/models/{name}.gguf {options}", shell=True, check=True)
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[3] / "tap/python"), "COLUMNS": "160"}
    for bug in sys.argv[2:] or RUNS:
        model, options = RUNS[bug]
        kv = " --kv q8_0" if "q8_0" in options else ""
        for name, end in ((bug, f" --bug {bug}"), (bug + "-clean", "")):
            subject = f"cmd: {PYTHON} {HERE}/engine.py {{model}} --tokens {{tokens}} --passes {{passes}} --decoded {{decoded}}{kv}{end}"
            line = f"{QDIFF} run -m {out}/models/{model}.gguf {options} --report {out}/{name}.json --subject '{subject}'"
            done = subprocess.run(line, shell=True, env=env, cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            (out / f"{name}.txt").write_text(f"$ {line}\n{done.stdout}exit {done.returncode}\n")
            print(name, done.returncode, next((l for l in done.stdout.splitlines() if l.split(":")[0].split(" ")[0].isupper()), ""), flush=True)


if __name__ == "__main__":
    main()
