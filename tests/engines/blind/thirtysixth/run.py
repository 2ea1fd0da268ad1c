"""run.py OUT PYTHON QDIFF [NAME ...]: writes the models, runs each bug's command and the clean engine on it; OUT/NAME.txt has the screen."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = {
    "qwen2-q4k": "--weights q4_K --layers 3 --seed 3601",
    "qwen35-q8": "--arch qwen35 --weights q8_0 --layers 4 --seed 3602",
    "qwen2moe-q8": "--arch qwen2moe --weights q8_0 --seed 3603",
    "qwen3-yarn": "--arch qwen3 --weights q5_K --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --seed 3604",
    "qwen3-q6k": "--arch qwen3 --weights q6_K --seed 3605",
    "qwen2-tied": "--tied --weights f16 --seed 3606",
    "qwen2-q8": "--weights q8_0 --heads 8 --kv-heads 2 --seed 3607",
    "qwen3-wide": "--arch qwen3 --weights iq4_nl --head-dim 128 --seed 3608",
    "qwen2-q6k": "--weights q6_K --layers 3 --seed 3609",
    "qwen3moe-mx": "--arch qwen3moe --weights mxfp4 --tensor token_embd.weight=q8_0 --tensor output.weight=q8_0 --seed 3610",
    "qwen3-tied": "--arch qwen3 --tied --weights q8_0 --heads 8 --kv-heads 2 --head-dim 64 --seed 3611",
    "qwen2-mix": "--weights q4_K --tensor blk.0.ffn_down.weight=q6_K --tensor output.weight=q6_K --seed 3612",
}
RUNS = {  # model, options; {decoded} and {passes} are in each command
    "q4k-min-high-bits": ("qwen2-q4k", "--prompt haiku -n 0"),
    "partial-rope-pairs": ("qwen35-q8", "--prompt 'Why is the sky blue?' -n 0"),
    "router-raw-logits": ("qwen2moe-q8", "--prompt 'Name three rivers of France.' -n 0"),
    "yarn-mscale-squared": ("qwen3-yarn", "--prompt 'Why is the sky blue?' -n 4"),
    "shared-gate-after-sum": ("qwen2moe-q8", "--prompt haiku -n 0"),
    "norm-after-rope": ("qwen3-q6k", "--prompt 'Write a short story about a fox.' -n 0"),
    "gate-before-norm": ("qwen35-q8", "--prompt 'How do magnets work?' -n 0"),
    "tied-head-requantised": ("qwen2-tied", "--prompt 'Why is the sky blue?' -n 0"),
    "bias-order": ("qwen2-q8", "--prompt haiku -n 4"),
    "flat-gate-split": ("qwen35-q8", "--prompt 'Name three rivers of France.' -n 0"),
    "scale-of-width": ("qwen3-wide", "--prompt 'How do magnets work?' -n 0"),
    "head-floor-grid": ("qwen2-q6k", "--prompt 'Why is the sky blue?' -n 0"),
    "fresh-keys-unrotated": ("qwen3-wide", "--prompt 'Why is the sky blue?' -n 8"),
    "mask-top-left": ("qwen2-q8", "--prompt 'Write a short story about a fox.' --length 45 --passes 24,21 -n 4"),
    "decode-tail-zeros": ("qwen3-tied", "--prompt 'Name three rivers of France.' -n 8"),
    "rope-table-64": ("qwen2-mix", "--prompt 'Write a short story about a fox, a crow and a piece of cheese, in the style of an old fable.' -n 4"),
    "conv-window-zeroed": ("qwen35-q8", "--prompt 'Write a short story about a fox.' --length 48 --passes 20,15,13 -n 4"),
    "state-bf16": ("qwen35-q8", "--prompt 'Why is the sky blue?' -n 8"),
    "slots-from-part": ("qwen2-q6k", "--prompt 'How do magnets work?' --length 42 --passes 21,21 -n 4"),
    "expert-index-of-group": ("qwen3moe-mx", "--prompt haiku -n 8"),
}


def command(name, bug, folder, python, qdiff):
    model, options = RUNS[name]
    engine = f"{python} {HERE / 'engine.py'} {{model}} --tokens {{tokens}} --passes {{passes}} --decoded {{decoded}}"
    return f"{qdiff} run -m {folder}/{model}.gguf {options} --subject \"cmd: {engine}{' --bug ' + name if bug else ''}\""


def main():
    out, python, qdiff, *names = sys.argv[1:]
    out = Path(out)
    models = out / "models"
    models.mkdir(parents=True, exist_ok=True)
    for model, options in MODELS.items():
        if not (models / f"{model}.gguf").exists():
            subprocess.run(f"{qdiff} synth {models}/{model}.gguf {options}", shell=True, check=True, stdout=subprocess.DEVNULL)

    def one(job):
        name, bug = job
        line = command(name, bug, models, python, qdiff)
        done = subprocess.run(line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "NO_COLOR": "1"})
        (out / f"{'' if bug else 'clean-'}{name}.txt").write_text(f"$ {line}\n{done.stdout}\n[exit code {done.returncode}]\n")
        print(name, "bug" if bug else "clean", done.returncode, flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [(name, True) for name in names or RUNS] + [(name, False) for name in names or RUNS]))


if __name__ == "__main__":
    main()
