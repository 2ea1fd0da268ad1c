"""The engine of the thirty-first round, with a bug of the sixtieth or with none.

engine.py MODEL --tokens FILE --passes N,N,... [--decoded FILE] [--kv f32|q8_0] [--bug ID]

With --bug the changes that bugs.py has for the id are made in the engine's text before it runs."""
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
    scope = {"__name__": "slate", "__file__": str(BASE)}
    exec(compile(text, str(BASE), "exec"), scope)
    scope["main"]()
