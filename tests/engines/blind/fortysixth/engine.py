"""The engine of the thirty-first round, with a bug of the forty-sixth or with none.

engine.py MODEL --tokens FILE --passes N,N,... [--decoded FILE] [--kv f32|q8_0] [--bug ID]

With --bug the changes that bugs.py has for the id are made in the engine's text before it runs. With SLATE_KEEP, a file to append to, the
tokens, passes and decoded tokens of each run are written there, for the grading."""
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASE = HERE.parent / "thirtyfirst/engine.py"

if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(HERE), str(HERE.parents[3] / "tap/python")]
    text = BASE.read_text()
    if "--bug" in sys.argv:
        from bugs import changed

        at = sys.argv.index("--bug")
        name = sys.argv[at + 1]
        del sys.argv[at:at + 2]
        text = changed(text, name)
    if "SLATE_KEEP" in os.environ:
        read = lambda name: open(sys.argv[sys.argv.index(name) + 1]).read().split() if name in sys.argv else []
        with open(os.environ["SLATE_KEEP"], "a") as keep:
            keep.write(repr((read("--tokens"), sys.argv[sys.argv.index("--passes") + 1], read("--decoded"))) + "\n")
    scope = {"__name__": "slate", "__file__": str(BASE)}
    exec(compile(text, str(BASE), "exec"), scope)
    scope["main"]()
