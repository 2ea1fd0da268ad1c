"""See scripts/check-ray. Usage: check_ray.py QDIFF MODEL"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import ray
from ray.cluster_utils import Cluster

HERE = pathlib.Path(__file__).resolve().parent
SHARDS = 6


def run(*words, code=0):
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    if code is not None and said.returncode != code:
        sys.exit(f"{' '.join(map(str, words))}: exit {said.returncode}, not {code}\n{said.stdout}{said.stderr}")
    return said


def verdict(path):
    report = json.loads(path.read_text())
    report["seconds"] = report["verdict"]["search"]["seconds"] = None
    # How much memory a process took depends on the process.
    report.pop("memory", None)
    # The same captures lie elsewhere where they were fetched.
    report["run"] = report["run"]["tokens"]
    report["model"]["path"] = None
    # Only a verdict made of parts has the number of stages that came from parts.
    report["verdict"].pop("parts", None)
    # Whether the weights were compared in this run or in one before.
    report["weights"].pop("kept", None)
    return report


def main():
    qdiff, model = sys.argv[1:]
    os.environ["OMP_WAIT_POLICY"] = "passive"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    workers = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    print("| capture | workers | exit | verdict | as one machine |\n| --- | --- | --- | --- | --- |")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run(qdiff, "record", "-m", model, "--runner", "llama", "-n", "2", "--shards", str(SHARDS), "--out", folder / "llama")
        for name, fault in (("right", []), ("faulty", ["--inject", "qkv-bias-omitted@L07"])):
            run(qdiff, "record", "-m", model, "--runner", "cpu", "--like", folder / "llama", "--shards", str(SHARDS),
                "--out", folder / name, *fault)
            alone = run(qdiff, "compare", folder / name, folder / "llama", "-m", model, "--json", folder / "alone.json",
                        code=len(fault) // 2).returncode
            for place, told in ((str(folder), "two"), (f"file://{folder}", "two, captures from a URL"),
                                (str(folder), "two, one killed")):
                killed = None
                shutil.rmtree(folder / "parts", ignore_errors=True)
                if "killed" in told:
                    def kill():
                        # As soon as the first part is judged, while others are.
                        while not any((folder / "parts").glob("*.json")):
                            time.sleep(0.02)
                        cluster.remove_node(workers.pop(), allow_graceful=False)
                    killed = threading.Thread(target=kill)
                    killed.start()
                out = folder / "merged.json"
                out.unlink(missing_ok=True)
                words = [sys.executable, str(HERE / "judge_ray.py"), f"{place}/{name}", f"{place}/llama", "--model", model,
                         "--shards", str(SHARDS), "--address", cluster.address, "--qdiff", qdiff,
                         "--parts", str(folder / "parts"), "--report", str(out)]
                said = run(*words, code=None)
                if killed:
                    killed.join()
                    workers.append(cluster.add_node(num_cpus=1))
                    cluster.wait_for_nodes()
                if said.returncode not in (0, 1):
                    sys.exit(said.stdout + said.stderr)
                same = said.returncode == alone and verdict(out) == verdict(folder / "alone.json")
                right &= same
                print(f"| {name} | {told} | {said.returncode} | {json.loads(out.read_text())['outcome'].upper()} | "
                      f"{'the same' if same else 'ANOTHER'} |", flush=True)
        # A file of the third part is damaged: the part cannot be judged, and is no pass.
        (folder / "right" / f"capture-00003-of-{SHARDS:05}.npz").write_bytes(b"no archive")
        said = run(*words[:2], f"{folder}/right", *words[3:], code=None)
        right &= said.returncode == 2 and "part 3/6" in said.stderr
        print(f"| damaged | two | {said.returncode} | {'part 3/6 named' if 'part 3/6' in said.stderr else 'NOTHING NAMED'} | |")
    ray.shutdown()
    cluster.shutdown()
    sys.exit(not right)


if __name__ == "__main__":
    main()
