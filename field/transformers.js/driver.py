"""Runs transformers.js on an ONNX model that onnxruntime-genai's builder makes of a folder of safetensors, as qdiff tells it, and
dumps its inner nodes, which the model has as outputs."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np
import onnx
from qdiff_capture import Capture

import onnx_nodes
import run

NPM = pathlib.Path(os.environ["FIELD_NPM"])


def build(model, folder):
    """As transformers.js wants it: the model below onnx/, and the configuration beside that."""
    onnx_nodes.build(model, folder, "fp32")
    (folder / "onnx").mkdir(exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    graph = onnx.load(folder / "model.onnx")
    for one in graph.graph.input:
        if one.name.startswith("past_key_values"):
            # The builder leaves this axis open, and transformers.js then begins with a cache whose heads have no width.
            one.type.tensor_type.shape.dim[3].dim_value = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    # Small models have their weights in the same file.
    onnx.save(graph, folder / "onnx" / "model.onnx")
    shutil.copy(model / "config.json", folder)


def main():
    words = run.arguments()
    folder = run.converted(words.model, "transformers-js", lambda folder: build(words.model, folder))
    stages = json.loads((folder / "stages.json").read_text())
    module = NPM / "node_modules/@huggingface/transformers"
    version = json.loads((module / "package.json").read_text())["version"]
    with tempfile.TemporaryDirectory() as out, Capture(engine=f"transformers.js {version}, fp32", arithmetic="f32", sampler="told") as capture:
        out = pathlib.Path(out)
        (out / "passes.json").write_text(json.dumps(words.passes))
        subprocess.run(["node", pathlib.Path(__file__).with_name("driver.mjs"), module / "dist/transformers.node.mjs", folder,
                        out / "passes.json", out], check=True)
        for index, tokens in enumerate(words.passes):
            shapes = json.loads((out / f"{index}.json").read_text())
            with capture.step(tokens):
                for number, (name, shape) in enumerate(shapes.items()):
                    if name in stages:
                        stage, layer = stages[name]
                        x = np.fromfile(out / f"{index}-{number}", np.float32).reshape(shape)[0]
                        capture.add(stage, x.swapaxes(0, 1) if stage.endswith("cache") else x.reshape(len(tokens), -1), layer=layer)


if __name__ == "__main__":
    main()
