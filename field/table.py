"""Writes FIELD.md from the results below field/results."""

import json
import re

HEAD = """# The field: released engines, judged

`scripts/field` wrote this file from `field/results/*.json`; do not edit it. [field/README.md](field/README.md) says how to add
an engine.

A row is one engine with one setting on one model, over the runs in its third column. The name of a run lists its passes: `64` is a
prompt of 64 tokens, `7+3` a prompt of 7 tokens and 3 decode steps, and `20,3x1,9` a prompt of 20 tokens, three decode steps, and 9 more
tokens in one pass, as the second turn of a conversation is. `real` is
Qwen2.5-Coder-0.5B-Instruct in Q4_K_M, `real-f16` the same model in F16, and `real-1.5b` Qwen2.5-Coder-1.5B-Instruct in Q4_K_M.
`qdiff synth` writes the other models, which are small.

- **model**: its name, and the formats of its matrices.
- **used**: the largest error / bound ratio of all rows in correct stages, and its stage.
- **coverage**: the share of stage rows that were judged, and in brackets how many stages the engine dumped. Every other stage was
  judged as part of the next dumped stage.
- **confirmed**: *prediction*: qdiff ran the engine on other tokens, and the cause predicted the values. *mended*: with a patch that mends
  only the defects in the brackets, every run of the row that was DIVERGED is a MATCH. If the cell says so, some of these runs are INCOMPLETE
  instead: no stage is wrong, but not every row could be judged. *no*: the cause was not tried
  on other tokens, or did not hold on them; the row shows a difference from the engine's declared arithmetic, and no confirmed defect.
- **cause**: if the runs of a row have different causes, a semicolon separates them.
- **effect**: what all findings together change in the logits, from the first wrong position on: the largest error relative to the norm of
  a row, the largest KL divergence in nats, and the number of positions at which another token is the likeliest. The rounding of both sides is included. On
  `real`, llama.cpp also rounds activations; this alone changes the logits by about 0.06 of a row's norm.
"""
SHAPE = "the tensor's shape is wrong"
WORST = ["trouble", "diverged", "incomplete", "match"]


def of_row(row, plan):
    runs = row["runs"]
    outcome = min((run["outcome"] for run in runs), key=WORST.index)
    bad = [run for run in runs if run["outcome"] == outcome]
    coverage = {}
    # A setting of an engine shows the same stages in every run.
    known = next((n for n in map(shown, runs) if n is not None), None)
    for run in (run for run in runs if run.get("asked")):
        stages = "" if known is None else f" ({shown(run) or known} of {run['stages_total']})"
        coverage.setdefault(f"{100 * run['judged'] / run['asked']:.4g} %{stages}", []).append(run["run"])
    # A name of a run may have commas in it.
    coverage = [share if len(coverage) == 1 else f"{' and '.join(names)}: {share}" for share, names in coverage.items()]
    used = max((run["used"] for run in runs if run.get("used")), key=lambda text: float(text.split(" %")[0]), default="")
    first, cause, confirmed, effect = "", "", "", ""
    if outcome == "trouble":
        # What the command said, without the command.
        cause = re.sub(r"^qdiff: `.*` ended with ", "", (bad[0]["log"] or [""])[-1])[:160]
    if outcome == "diverged":
        first = bad[0]["findings"][0]["stage"] if bad[0]["findings"] else "tokens"
        # The cause of the first stage alone: a cause of a later one would be read as its.
        told = [run["findings"][0] for run in bad if run["findings"]]
        confirmed = [one["cause"] for one in told if one["trial"] == "confirmed" and one["cause"] and one["stage"] == first]
        # Where no law of values is wrong, but rows are missing, the shape of the error says it all.
        seen = [one["seen"] for one in told if SHAPE in (one.get("seen") or "") and one["stage"] == first]
        cause = "; ".join(dict.fromkeys(confirmed or seen)) or "no confirmed cause"
        trials = {run["findings"][0]["trial"] for run in bad if run["findings"]}
        ways = ["prediction"] if "confirmed" in trials else []
        if "fixed" in row:
            ways.append(mended(row["fixed"]))
        confirmed = ", ".join(ways) or "no"
        effects = [run["effect"] for run in bad if run.get("effect")]
        if effects:
            worst = max(effects, key=lambda one: (float(one["logits"] or 0), one["changed"] or 0))
            # Without `logits` their largest error is before the first wrong position.
            logits = f"logits {worst['logits']}, " if worst["logits"] else ""
            effect = f"{logits}KL {worst['kl']}, {worst['changed']} of {worst['positions']}"
    where = f"at {'; '.join(run['run'] for run in bad)}" if len(bad) < len(runs) else "in all runs"
    verdict = outcome.upper() + (f" {where}" if outcome != "match" else "")
    names = ["`" + run["run"] + "`" for run in runs]
    return [row["name"], f"{row['model']}, {formats(row['model'], plan)}", " ".join(names), verdict, first, cause, confirmed, effect, used, "; ".join(coverage)]


def formats(model, plan):
    """The formats of a model's matrices: those that its options name."""
    if model in plan["published"]:
        return "Q4_K_M"
    options = plan["models"][model]
    named = re.findall(r"(?:--weights |--to |--tensor \S+=)(\S+)", options)
    return listed(list(dict.fromkeys(name if "_" in name else name.upper() for name in named)))


def mended(fixed):
    """What the runs with the defect mended gave."""
    outcomes = {run["outcome"] for run in fixed["runs"]}
    if not outcomes <= {"match", "incomplete"}:
        return "NOT mended"
    return f"mended ({fixed['by']}{'; no stage is wrong then, but not every row could be judged' if 'incomplete' in outcomes else ''})"


def shown(run):
    """The stages that the engine dumped; None where an old result does not say."""
    if "shown" in run:
        return run["shown"]
    if run["outcome"] != "match":
        return None
    absent = re.search(r"\((\d+) stages? not dumped\)", run["headline"])
    return run["stages_total"] - int(absent[1]) if absent else run["stages"]


def of_release(run):
    """What one run of a release showed: its verdict, and of each wrong kind of stage what is wrong with it."""
    if run["outcome"] == "trouble":
        return "trouble: " + (run["log"] or [""])[-1].split(" / ")[-1][:120]
    wrong = {}
    for one in run["findings"]:
        stage = one["stage"].split(".")[-1]
        # Where rows are missing, the shape of the error says it all.
        cause = one["cause"] if one["trial"] == "confirmed" else one["seen"] if SHAPE in (one.get("seen") or "") else None
        wrong.setdefault(cause or "no confirmed cause", {})[stage] = None
    return run["outcome"].upper() + ("" if not wrong else ": " + "; ".join(f"{' '.join(stages)}: {cause}" for cause, stages in wrong.items()))


def history(told):
    """The section of an engine's other releases."""
    keys = max(([(*([run["name"]] if "name" in run else []), run["model"], run["run"]) for run in release["rows"]] for release in told["releases"]), key=len)
    text = "\nOther releases, the oldest first (`scripts/field --history`). A cell names the wrong stages of a run, in any layer, and their cause if qdiff confirmed it on other tokens:\n\n"
    text += line(["release", *(", ".join(key) for key in keys)]) + line(["---"] * (1 + len(keys)))
    for release in told["releases"]:
        cells = [of_release(run) for run in release["rows"]] or [release["status"]] * len(keys)
        text += line([release["version"], *cells])
    return text


def listed(names):
    """`a`, `b` and `c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def bisected(name, told):
    """What `--bisect` found."""
    right, wrong = told["right"], told["wrong"]
    judged = f"Judged: {', '.join(told['judged'])}, of {len(told['listed'])} releases from {told['asked'][0]} to {told['asked'][1]}."
    command = f"`scripts/field --bisect {name} {' '.join(told['asked'])}`"
    if not told["stages"]:
        return f"\n{command}: no stage is wrong in {wrong} that is right in {right}. {judged}\n"
    stages = {}
    for *row, stage in told["stages"]:
        stages.setdefault(", ".join(filter(None, row)), []).append(f"`{stage}`")
    what = "; ".join(f"{listed(names)} {'is' if len(names) == 1 else 'are'} right up to {right} and wrong from {wrong} on (run {row})"
                     for row, names in stages.items())
    unknown = f" Between them, {', '.join(told['unknown'])} could not be judged." if told["unknown"] else ""
    return f"\n{command}: {what}.{unknown} {judged}\n"


SEVERITY = """
## Severity

What a defect does to a text: the engine as released, beside the same engine with this defect mended (`scripts/field --severity`,
from [field/severity.json](field/severity.json)). The text is the beginning of a source file of a pinned package
([plan.json](field/plan.json)). A row measures the last 256 tokens before a length: the mean NLL in nats, the number of tokens whose
likeliest successor changes, and the divergence KL(mended, released) at every 16th token.

"""


def severity(told, asked):
    text = SEVERITY + line(["defect", "run on", "tokens", "NLL released", "NLL mended", "changed", "KL mean", "KL worst", "note"]) + line(["---"] * 9)
    for name, one in told.items():
        for at in one["effect"]:
            text += line([name, f"{one['engine']}, {one['model']}", at["length"], at["nll_released"], at["nll_mended"],
                          f"{at['changed']} of {at['of']}", at["kl_mean"], at["kl_worst"], one.get("note", "")])
    missing = []
    for name, one in asked.items():
        measured = [at["length"] for at in told.get(name, {"effect": []})["effect"]]
        why = one.get("unmeasured", {})
        missing += [(name, str(length), why.get(str(length), "not tried")) for length in one.get("lengths", []) if length not in measured]
        missing += [(name, length, reason) for length, reason in why.items() if length not in map(str, one.get("lengths", []))]
    if missing:
        text += "\nNot measured:\n\n" + line(["defect", "tokens", "why"]) + line(["---"] * 3) + "".join(map(line, missing))
    return text


def noted(rows):
    """The notes of an engine's rows, each once."""
    notes = {}
    for name, note in [(row["name"], row["note"]) for row in rows if row.get("note")]:
        if name not in notes.setdefault(note, []):
            notes[note].append(name)
    return "".join(f"\nNote on *{' and '.join(names)}*: {note}.\n" for note, names in notes.items())


def line(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def written(folder, engines):
    results = [(name, json.loads((folder / "results" / f"{name}.json").read_text()))
               for name in engines if (folder / "results" / f"{name}.json").exists()]
    plan = json.loads((folder / "plan.json").read_text())
    text = HEAD + "\n"
    text += line(["engine", "version", "from", "status", "rows", "match", "incomplete", "diverged", "trouble", "command"]) + line(["---"] * 10)
    for name, result in results:
        outcomes = [of_row(row, plan)[3].split()[0].lower() for row in result["rows"]]
        text += line([f"[{result['engine']}](#{name.replace('.', '')})", result["version"], result["from"], result["status"], len(outcomes),
                      *(outcomes.count(one) for one in ("match", "incomplete", "diverged", "trouble")), f"`scripts/field {name}`"])
    missing = [name for name in engines if name not in dict(results)]
    if missing:
        text += f"\nNot judged yet, although they have a driver: {', '.join(missing)}.\n"
    for name, result in results:
        text += f"\n## {name}\n\n{result['engine']} {result['version']}, from {result['from']}: `scripts/field {name}`\n\n"
        if result["status"] != "judged":
            text += f"Status: {result['status']}.\n\n```\n" + "\n".join(result["log"]) + "\n```\n\n"
        if result["rows"]:
            text += line(["setting", "model", "runs", "verdict", "first stage", "cause", "confirmed", "effect", "used", "coverage"]) + line(["---"] * 10)
            text += "".join(line(of_row(row, plan)) for row in result["rows"])
            text += noted(result["rows"])
        old = folder / "results" / f"{name}.history.json"
        if old.exists():
            text += history(json.loads(old.read_text()))
        halved = folder / "results" / f"{name}.bisect.json"
        if halved.exists():
            text += bisected(name, json.loads(halved.read_text()))
        # A name may begin another, as candle does candle-safetensors.
        reports = [one for one in sorted((folder / "reports").glob(f"{name}-*.md"))
                   if max((other for other in engines if one.name.startswith(f"{other}-")), key=len) == name]
        if reports:
            text += "\nReports for the authors (not sent): " + ", ".join(f"[{one.stem}](field/reports/{one.name})" for one in reports) + "\n"
    measured = folder / "results" / "severity.json"
    if measured.exists():
        text += severity(json.loads(measured.read_text()), json.loads((folder / "severity.json").read_text()))
    text += "\n## Models\n\n" + line(["model", "how it is made"]) + line(["---", "---"])
    text += "".join(line([name, f"`qdiff fetch-model {which}`"]) for name, which in plan["published"].items())
    text += "".join(line([name, f"`qdiff {options} -o FILE` of `real`" if options.startswith("dequantise") else f"`qdiff synth {options} {'FOLDER' if 'safetensors' in options else 'FILE'}`"])
                    for name, options in plan["models"].items())
    return text


def unkept(folder, engines):
    """What is missing from the results: an engine without a result, a DIVERGED row that neither a prediction nor a mended engine
    confirms, and a MATCH without its coverage."""
    plan = json.loads((folder / "plan.json").read_text())
    found = []
    for name in engines:
        file = folder / "results" / f"{name}.json"
        if not file.exists():
            found.append(f"{name}: no result")
            continue
        for row in json.loads(file.read_text())["rows"]:
            setting, model, _, verdict, _, _, confirmed, _, _, coverage = of_row(row, plan)
            if verdict.startswith("DIVERGED") and not (confirmed.startswith("prediction") or re.search(r"(^|, )mended", confirmed)):
                found.append(f"{name}, {setting}, {model}: DIVERGED, and not confirmed")
            if verdict == "MATCH" and not coverage:
                found.append(f"{name}, {setting}, {model}: MATCH without coverage")
    return found
