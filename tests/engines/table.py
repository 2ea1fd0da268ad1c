"""Prints a row for each report FOLDER/DTYPE/CASE.json. Fails where `clean` has a finding, or a bug of BUGS.py is not found first at
the stage and with the cause that its function says ("Found as: STAGE CAUSE").

Usage: table.py BUGS.py FOLDER DTYPE...
"""

import ast
import json
import pathlib
import re
import sys


def expectations(bugs):
    """By case, the stage and the cause."""
    found = {}
    for function in ast.parse(bugs.read_text()).body:
        if isinstance(function, ast.FunctionDef):
            says = re.search(r"Found as: (\S+) (\S+)", ast.get_docstring(function) or "")
            if says:
                found[function.name.replace("_", "-")] = says.groups()
    return found


def row(dtype, path, expected):
    report = json.loads(path.read_text())
    verdict, coverage = report["verdict"], report["verdict"]["coverage"]
    findings = verdict["findings"]
    causes = [finding["cause"]["name"] if finding["cause"] else None for finding in findings]
    if path.stem == "clean":
        right = not findings
    else:
        stage, cause = expected[path.stem]
        right = bool(findings) and findings[0]["stage"] == stage and (causes[0] or "").split(":")[0] == cause
    rows = f"{100 * coverage['judged'] / coverage['asked']:.4g} % of {coverage['asked']}"
    cells = [f"{dtype}, {path.stem.replace('-', ' ')}", report["outcome"].upper(), findings[0]["stage"] if findings else "",
             ", ".join(f"{cause or 'none known'}, {causes.count(cause)} times" for cause in dict.fromkeys(causes)), rows]
    return right, "| " + " | ".join(cells) + " |"


def main():
    expected, folder, dtypes = expectations(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]), sys.argv[3:]
    print("| case | verdict | first stage | cause | rows judged |\n| --- | --- | --- | --- | --- |")
    all_right = True
    for dtype in dtypes:
        reports = sorted((folder / dtype).glob("*.json"), key=lambda path: (path.stem != "clean", path.stem))
        for path in reports:
            right, text = row(dtype, path, expected)
            print(text)
            all_right &= right
    sys.exit(not all_right)


if __name__ == "__main__":
    main()
