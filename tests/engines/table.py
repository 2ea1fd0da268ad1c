"""Prints a row for each report FOLDER/DTYPE/CASE.json. Fails where `clean` has a finding, or no finding of a bug has a cause.

Usage: table.py FOLDER DTYPE...
"""

import json
import pathlib
import sys


def row(dtype, path):
    report = json.loads(path.read_text())
    verdict, coverage = report["verdict"], report["verdict"]["coverage"]
    findings = verdict["findings"]
    causes = [finding["cause"]["name"] if finding["cause"] else None for finding in findings]
    right = not findings if path.stem == "clean" else any(causes)
    rows = f"{100 * coverage['judged'] / coverage['asked']:.4g} % of {coverage['asked']}"
    cells = [f"{dtype}, {path.stem.replace('-', ' ')}", report["outcome"].upper(), findings[0]["stage"] if findings else "",
             ", ".join(f"{cause or 'none known'}, {causes.count(cause)} times" for cause in dict.fromkeys(causes)), rows]
    return right, "| " + " | ".join(cells) + " |"


def main():
    folder, dtypes = pathlib.Path(sys.argv[1]), sys.argv[2:]
    print("| case | verdict | first stage | cause | rows judged |\n| --- | --- | --- | --- | --- |")
    all_right = True
    for dtype in dtypes:
        reports = sorted((folder / dtype).glob("*.json"), key=lambda path: (path.stem != "clean", path.stem))
        for path in reports:
            right, text = row(dtype, path)
            print(text)
            all_right &= right
    sys.exit(not all_right)


if __name__ == "__main__":
    main()
