"""Bugs as lists of (file, old text, new text). plant.py FILE NAME FOLDER writes the changed files; plant.py FILE lists the names."""
import os
import sys


def read(path):
    bugs, bug = {}, None
    for line in open(path):
        line = line.rstrip("\n")
        if line.startswith("== "):
            bug = bugs[line[3:]] = {"edits": []}
        elif line.startswith("@ "):
            bug["edits"].append((line[2:], [], []))
        elif line[:2] in ("- ", "+ ") or line in ("-", "+"):
            bug["edits"][-1][1 if line[0] == "-" else 2].append(line[2:])
        elif ": " in line:
            key, value = line.split(": ", 1)
            bug[key] = value
    return bugs


def plant(bug, source, target):
    for file, old, new in bug["edits"]:
        at = os.path.join(target, file)
        text = open(at if os.path.exists(at) else os.path.join(source, file)).read()
        old, new = ("\n".join(lines) for lines in (old, new))
        assert text.count(old) == 1, f"{file} has this {text.count(old)} times: {old}"
        os.makedirs(os.path.dirname(at) or ".", exist_ok=True)
        open(at, "w").write(text.replace(old, new))
