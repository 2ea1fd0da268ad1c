"""Prints a row for each report FOLDER/DTYPE/CASE.json, or folder of this name with a report of each sequence. Fails where `clean` has a finding, but for what BUGS.py says of the engine
itself ("In DTYPE as it is: STAGE CAUSE"), or a bug of BUGS.py is not found first at the stage and with the cause that its function
says ("Found as: STAGE CAUSE").

Usage: table.py BUGS.py FOLDER DTYPE...
"""

import ast
import json
import pathlib
import re
import sys


def expectations(bugs):
    """By case, and of the engine as it is by dtype, the stage and the cause."""
    code = ast.parse(bugs.read_text())
    found = {dtype: says for dtype, *says in re.findall(r"In (\S+) as it is: (\S+) (.+)", ast.get_docstring(code) or "")}
    for function in code.body:
        if isinstance(function, ast.FunctionDef):
            says = re.search(r"Found as: (\S+) (\S+)", ast.get_docstring(function) or "")
            if says:
                found[function.name.replace("_", "-")] = says.groups()
    return found


def read(path):
    """A report; of several sequences the first that diverged, with the coverage of all of them."""
    if path.is_file():
        return json.loads(path.read_text())
    reports = [json.loads(one.read_text()) for one in sorted(path.glob("*/report.json"))]
    coverage = {of: sum(report["verdict"]["coverage"][of] for report in reports) for of in ("asked", "judged")}
    first = next((report for report in reports if report["outcome"] != "match"), reports[0])
    first["verdict"]["coverage"] = coverage
    if first.get("slots", {}).get("wrong"):
        first["verdict"]["findings"].insert(0, {"stage": "slots", "cause": {"name": "wrong"}})
    return first


def stages(path):
    return {finding["stage"] for finding in read(path)["verdict"]["findings"]}


def row(dtype, path, expected):
    report = read(path)
    verdict, coverage = report["verdict"], report["verdict"]["coverage"]
    findings = verdict["findings"]
    # What the catalogue names, or what was solved for.
    said = [finding["cause"] and finding["cause"]["name"] or (finding.get("solution") or {}).get("what") for finding in findings]
    causes = [cause or "none known" for cause in said]
    stage, cause = expected.get(dtype if path.stem == "clean" else path.stem, (None, None))
    # What the engine has as it is is none of the bug.
    own = stages(path.with_name("clean.json")) if path.stem != "clean" else set()
    first = next((i for i, finding in enumerate(findings) if finding["stage"] not in own), None)
    told = "" if first is None else findings[first]["stage"]
    right = not findings if stage is None else told == stage and causes[first].split(":")[0] == cause
    rows = f"{100 * coverage['judged'] / coverage['asked']:.4g} % of {coverage['asked']}"
    cells = [f"{dtype}, {path.stem.replace('-', ' ')}", report["outcome"].upper(), told,
             "; ".join(f"{cause}, {causes.count(cause)} times" for cause in dict.fromkeys(causes)), rows]
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
