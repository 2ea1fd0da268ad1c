"""run.py QDIFF OUT [ID...]: one command for each bug, and the same with the clean engine; models and screens go to OUT."""
import os
import subprocess
import sys
from pathlib import Path

SYNTH = {
    "a": "--tied --weights q5_0 --layers 3 --seed 3401",
    "b": "--weights q4_K --tensor blk.1.ffn_down.weight=q6_K --layers 3 --heads 8 --kv-heads 2 --seed 3402",
    "c": "--arch qwen3 --weights q6_K --tensor output.weight=q8_0 --heads 4 --kv-heads 2 --head-dim 64 --layers 3 --seed 3403",
    "d": "--arch qwen3 --tied --weights f16 --heads 6 --kv-heads 2 --head-dim 64 --layers 2 --seed 3404",
    "e": "--arch qwen2moe --weights q8_0 --seed 3405",
    "f": "--arch qwen35 --weights q8_0 --layers 4 --seed 3406",
    "g": "--weights f16 --set rope.scaling.type=yarn --set rope.scaling.factor=4.0 --set rope.scaling.original_context_length=512 --layers 2 --seed 3407",
    "h": "--weights q8_0 --ffn 544 --layers 2 --heads 4 --kv-heads 4 --seed 3408",
    "i": "--arch qwen3moe --weights q4_K --head-dim 64 --heads 4 --kv-heads 2 --seed 3409",
    "j": "--weights q4_0 --layers 4 --heads 8 --kv-heads 4 --head-dim 32 --seed 3410",
}
STORY = "The pump of the old mill stopped twice in a night, and nobody in the village could say which of the three valves had let the water through."
# Model, options of qdiff, whether the command takes the decoded tokens.
PLAN = {
    "x01": ("i", ["--prompt", "haiku"], False),
    "x02": ("f", ["--prompt", "Name three rivers of Portugal.", "-n", "6"], True),
    "x03": ("a", ["--prompt", "haiku"], False),
    "x04": ("f", ["--prompt", "haiku"], False),
    "x05": ("e", ["--prompt", "How deep is the lake?"], False),
    "x06": ("g", ["--prompt", "code", "-n", "4"], True),
    "x07": ("e", ["--prompt", "haiku"], False),
    "x08": ("h", ["--prompt", "Is it raining?", "-n", "4"], True),
    "x09": ("c", ["--prompt", "emoji"], False),
    "x10": ("f", ["--prompt", "code"], False),
    "x11": ("b", ["--prompt", "haiku"], False),
    "x12": ("a", ["--prompt", "How deep is the lake?", "--kv-type", "q8_0", "-n", "4"], True),
    "x13": ("j", ["--prompt", "chinese"], False),
    "x14": ("i", ["--prompt", "haiku", "-n", "6"], True),
    "x15": ("d", ["--prompt", "Write a line on bees.", "-n", "8"], True),
    "x16": ("b", ["--prompt", STORY, "--raw", "--length", "100", "--passes", "40,30,30"], False),
    "x17": ("c", ["--prompt", STORY, "-n", "8"], True),
    "x18": ("d", ["--prompt", "haiku", "-n", "8"], True),
    "x19": ("f", ["--prompt", STORY, "--raw", "--length", "69", "--passes", "32,37", "-n", "4"], True),
    "x20": ("h", ["--prompt", STORY, "--raw", "--length", "60", "--passes", "25,20,15", "-n", "4"], True),
}


def main():
    qdiff, out = sys.argv[1], Path(sys.argv[2])
    here = Path(__file__).resolve().parent
    engine, python = here / "engine.py", sys.executable
    env = {**os.environ, "PYTHONPATH": str(here.parents[3] / "tap" / "python"), "COLUMNS": "160"}
    (out / "models").mkdir(parents=True, exist_ok=True)
    for name in sys.argv[3:] or PLAN:
        letter, options, decoded = PLAN[name]
        model = out / "models" / f"{letter}.gguf"
        if not model.exists():
            subprocess.run([qdiff, "synth", "-q", str(model), *SYNTH[letter].split()], check=True)
        for bug, file in ((f" --bug {name}", f"{name}.txt"), ("", f"clean-{name}.txt")):
            if (out / file).exists():
                continue
            command = f"cmd: {python} {engine} {{model}} --tokens {{tokens}} --passes {{passes}}" + " --decoded {decoded}" * decoded
            command += " --kv q8_0" * ("--kv-type" in options) + bug
            line = [qdiff, "run", "-m", str(model), *options, "--subject", command]
            done = subprocess.run(line, env=env, cwd=out, capture_output=True, text=True)
            (out / file).write_text(f"$ {line[1:]}\n{done.stdout}\n--- stderr\n{done.stderr}\n--- exit {done.returncode}\n")
            print(file, done.returncode, flush=True)


if __name__ == "__main__":
    main()
