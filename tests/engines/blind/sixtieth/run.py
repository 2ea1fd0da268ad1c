"""run.py QDIFF OUT [--clean] [ID...]: the command of each bug, or with --clean each command once with the engine without a bug; models and screens go to OUT."""
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bugs import BUGS, MODELS


def main():
    words = [word for word in sys.argv[1:] if word != "--clean"]
    qdiff, out, clean = words[0], Path(words[1]).resolve(), "--clean" in sys.argv
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[3] / "tap" / "python"), "COLUMNS": "160", "NO_COLOR": "1"}
    (out / "models").mkdir(parents=True, exist_ok=True)
    done_already = set()
    for name in words[2:] or BUGS:
        bug = BUGS[name]
        if clean and (bug["model"], bug["run"]) in done_already:
            continue
        done_already.add((bug["model"], bug["run"]))
        model = out / "models" / f"{bug['model']}.gguf"
        if not model.exists():
            subprocess.run([qdiff, "synth", "-q", str(model), *shlex.split(MODELS[bug["model"]])], check=True)
        command = f"cmd: {sys.executable} {HERE / 'engine.py'} {{model}} --tokens {{tokens}} --passes {{passes}} --decoded {{decoded}}"
        command += " --kv q8_0" * ("--kv-type" in bug["run"]) + f" --bug {name}" * (not clean)
        line = [qdiff, "run", "-m", str(model), *shlex.split(bug["run"]), "--subject", command]
        began = time.time()
        done = subprocess.run(line, env=env, cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        (out / f"{name}{'-clean' * clean}.txt").write_text(f"$ {shlex.join(line)}\n{done.stdout}\n[exit {done.returncode}]\n")
        print(name, "clean" * clean, done.returncode, f"{time.time() - began:.0f} s", (done.stdout.splitlines() or [""])[0][:150], flush=True)


if __name__ == "__main__":
    main()
