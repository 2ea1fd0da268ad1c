"""Judges two captures on the machines of a Ray cluster: each part of the stages is a task, one that dies is run again, and
`qdiff report` puts together what they found.

    qdiff record -m MODEL --runner llama --shards 8 --out theirs
    qdiff record -m MODEL --runner cpu --like theirs --shards 8 --out mine
    scripts/judge-ray mine theirs --model MODEL --shards 8 --address auto --report report.html

SUBJECT, REFERENCE and --model are folders or files that every machine sees, or URLs of any file system that fsspec knows
(s3://, gs://, …; its package for that must be there). From a capture at a URL each machine fetches the manifest and the file of
its part alone. All words after -- go to `qdiff judge`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import fsspec
import ray


def remote(place):
    return "://" in place


def fetched(place, folder, names):
    """The path of `place` on this machine; of a URL these files in it, or the file itself where there are none."""
    if not remote(place):
        return place
    files, path = fsspec.core.url_to_fs(place)
    name = path.rstrip("/").rsplit("/", 1)[-1]
    target = pathlib.Path(folder) / name
    if not names:
        files.get_file(path, str(target))
        return str(target)
    target.mkdir(parents=True)
    for name in names:
        files.get_file(f"{path.rstrip('/')}/{name}", str(target / name))
    return str(target)


def judged(part, of, asked):
    """The text of the file of one part, judged here."""
    with tempfile.TemporaryDirectory(prefix="qdiff-part-") as folder:
        names = ["manifest.json", f"capture-{part:05}-of-{of:05}.npz"]
        subject, reference = (fetched(asked[side], pathlib.Path(folder) / side, names) if remote(asked[side]) else asked[side]
                              for side in ("subject", "reference"))
        model = fetched(asked["model"], folder, [])
        out = pathlib.Path(folder) / "part.json"
        command = [asked["qdiff"], "judge", subject, reference, "-m", model, "--shard", f"{part}/{of}", "--out", str(out),
                   *asked["options"]]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode != 0:
            raise RuntimeError(" ".join(f"part {part}/{of}: exit {said.returncode}: {said.stderr}".split()))
        return out.read_text()


def parts(of, asked, cpus, folder):
    """Judges every part somewhere in the cluster; gives the files, and what became of the others."""
    task = ray.remote(num_cpus=cpus, max_retries=asked["retries"], retry_exceptions=False)(judged)
    waiting = {task.remote(part, of, asked): part for part in range(1, of + 1)}
    files, lost = {}, []
    while waiting:
        (done,), _ = ray.wait(list(waiting))
        part = waiting.pop(done)
        try:
            text = ray.get(done)
        except ray.exceptions.RayError as error:
            lost.append(f"part {part}/{of}: {str(error).strip().splitlines()[-1]}")
            print(f"judge-ray: {lost[-1]}", file=sys.stderr)
            continue
        files[part] = folder / f"part-{part:05}-of-{of:05}.json"
        files[part].write_text(text)
        print(f"judge-ray: part {part} of {of} judged", file=sys.stderr)
    return [files[part] for part in sorted(files)], lost


def merged(files, of, asked, report):
    """Puts the parts together on this machine, which needs the captures whole; gives qdiff's exit code."""
    with tempfile.TemporaryDirectory(prefix="qdiff-merge-") as folder:
        names = ["manifest.json"] + [f"capture-{part:05}-of-{of:05}.npz" for part in range(1, of + 1)]
        here = {side: fetched(asked[side], pathlib.Path(folder) / side, names) for side in ("subject", "reference")}
        here["model"] = fetched(asked["model"], folder, [])
        for file in files:
            # They name what the machine that judged them saw. A part's checksum is not of where these files lie.
            text = json.loads(file.read_text())
            text["asked"].update({key: str(pathlib.Path(path).absolute()) for key, path in here.items()})
            file.write_text(json.dumps(text))
        return subprocess.run([asked["qdiff"], "report", *map(str, files), *report], check=False).returncode


def main():
    words = sys.argv[1:]
    options = words[words.index("--") + 1:] if "--" in words else []
    parser = argparse.ArgumentParser(prog="judge-ray", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject")
    parser.add_argument("reference")
    parser.add_argument("--model", required=True)
    parser.add_argument("--shards", type=int, choices=range(1, 4097), metavar="N", required=True, help="as many as the captures were recorded in")
    parser.add_argument("--address", help="of the Ray cluster, such as auto; without it, this machine alone")
    parser.add_argument("--cpus", type=float, default=1, help="cores that a task takes [default: 1]; they are the threads of `qdiff judge`")
    parser.add_argument("--retries", type=int, default=3, help="times that a part is run again whose machine dies [default: 3]")
    parser.add_argument("--qdiff", default="qdiff", help="the program, where every machine finds it [default: qdiff]")
    parser.add_argument("--parts", type=pathlib.Path, default=pathlib.Path("parts"), help="folder for the files of the parts [default: parts]")
    parser.add_argument("--report", action="append", default=[], help="as `qdiff report --report`")
    args = parser.parse_args(words[:words.index("--")] if "--" in words else words)
    args.parts.mkdir(parents=True, exist_ok=True)
    absolute = lambda place: place if remote(place) else str(pathlib.Path(place).absolute())
    asked = {"subject": absolute(args.subject), "reference": absolute(args.reference), "model": absolute(args.model),
             "qdiff": args.qdiff, "options": [*options, "--threads", str(max(1, int(args.cpus)))], "retries": args.retries}
    ray.init(address=args.address, log_to_driver=False)
    files, lost = parts(args.shards, asked, args.cpus, args.parts)
    if not files:
        sys.exit(2)
    code = merged(files, args.shards, asked, [word for path in args.report for word in ("--report", path)])
    # A part that could not be judged is no trouble that a verdict hides.
    sys.exit(2 if lost and code == 0 else code)


if __name__ == "__main__":
    main()
