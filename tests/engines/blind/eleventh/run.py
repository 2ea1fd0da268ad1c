#!/usr/bin/env python3
"""Twenty bugs by a stranger, in an engine that he made of that of the eighth set.

QDIFF=PROGRAM SOURCES=ROOT_OF_QDIFF run.py OUT [--clean] [NAME...]   screens go to OUT/NAME.txt
run.py --key                                                        what he planted
"""
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
from bugs import B
from key import KEY
from models import MODELS


def command(bug, folder, qdiff, model):
    several = "--sequences" in bug["run"]
    words = "--sequences {sequences}" if several else "--tokens {tokens} --passes {passes} --decoded {decoded}"
    words += f" --kv {bug['kv']}" if bug["kv"] else ""
    words += " --slots" if bug["slots"] else ""
    engine = f"cmd: {sys.executable} {folder}/ferry.py {{model}} {words}"
    return [qdiff, "run", "-m", str(model), *shlex.split(bug["run"]), "--subject", engine]


def main():
    words = sys.argv[1:]
    if "--key" in words:
        for name, (stage, when, cause) in KEY.items():
            print(f"== {name}\nstage {stage}\nwhen  {when}\ncause {cause}\n")
        return
    out, clean = Path(words[0]).resolve(), "--clean" in words
    names = [word for word in words[1:] if word != "--clean"]
    qdiff, root = os.environ["QDIFF"], os.environ["SOURCES"]
    environment = dict(os.environ, COLUMNS="160", NO_COLOR="1", PYTHONPATH=f"{root}/tap/python", PYTHONDONTWRITEBYTECODE="1")
    (out / "models").mkdir(parents=True, exist_ok=True)
    for bug in B:
        if names and bug["name"] not in names:
            continue
        folder, model = out / bug["name"], out / "models" / f"{bug['model']}.gguf"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(HERE / "engine", folder)
        shutil.copy(HERE.parent / "eighth" / "engine" / "pages.py", folder)
        for file, old, new in [] if clean else bug["changes"]:
            text = (folder / file).read_text()
            assert text.count(old) == 1, (bug["name"], file)
            (folder / file).write_text(text.replace(old, new))
        if not model.exists():
            subprocess.run([qdiff, "synth", model, "-q", *shlex.split(MODELS[bug["model"]])], check=True, stdout=subprocess.DEVNULL)
        line = command(bug, folder, qdiff, model)
        ran = subprocess.run(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out)
        (out / f"{bug['name']}.txt").write_text(f"$ {shlex.join(line)}\n{ran.stdout}\n[exit {ran.returncode}]\n")
        print(bug["name"], ran.returncode, flush=True)


main()
