"""What the drivers in Python share: the words that qdiff gives them, and the passes of the run."""

import argparse
import pathlib


def arguments(**options):
    """The words of the command: MODEL TOKENS [PASSES [DECODED]], and options with their choices, of which the first is the default.
    `passes` is then a list of the token ids of each forward pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path, help="GGUF, or folder of safetensors")
    parser.add_argument("tokens", type=pathlib.Path, help="file with the token ids of the prompt")
    parser.add_argument("lengths", nargs="?", help="lengths of the passes over the prompt, such as 20,1,1,9")
    parser.add_argument("decoded", type=pathlib.Path, nargs="?", help="file with the token ids to feed after the prompt")
    parser.add_argument("--fix", action="store_true", help="mend the defect that the table names")
    for name, choices in options.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0])
    words = parser.parse_args()
    tokens, words.passes = ids(words.tokens), []
    for length in map(int, (words.lengths or str(len(tokens))).split(",")):
        words.passes.append(tokens[:length])
        tokens = tokens[length:]
    words.passes += [[token] for token in (ids(words.decoded) if words.decoded else [])]
    return words


def ids(path):
    return [int(word) for word in path.read_text().split()]


def converted(model, what, make):
    """The folder that `make` wrote of a model, made once and kept beside it."""
    folder = model.parent / f"{model.stem}.{what}-{model.stat().st_mtime_ns}"
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        make(folder)
        (folder / "done").touch()
    return folder
