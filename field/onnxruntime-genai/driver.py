"""Lets onnxruntime-genai's builder make an ONNX model of a folder of safetensors, runs it with ONNX Runtime, as qdiff tells it, and
dumps its inner nodes."""

import importlib.metadata
import json

import numpy as np
import onnxruntime
from qdiff_capture import Capture

import onnx_nodes
import run


def main():
    words = run.arguments(dtype=["fp32", "fp16"])
    folder = run.converted(words.model, words.dtype, lambda folder: onnx_nodes.build(words.model, folder, words.dtype))
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    stages = json.loads((folder / "stages.json").read_text())
    if words.dtype == "fp16":
        # ONNX Runtime computes these on a CPU in f32, and the next node reads them unrounded: the outputs are rounded copies.
        stages = {name: at for name, at in stages.items() if at[0] not in ("ffn_gate", "ffn_up", "ffn_act")}
    number = {"fp32": np.float32, "fp16": np.float16}[words.dtype]
    cache = {one.name: np.zeros((1, one.shape[1], 0, head_dim(one, words.model)), number)
             for one in session.get_inputs() if one.name.startswith("past_key_values")}
    version = importlib.metadata.version("onnxruntime-genai")
    capture = Capture(engine=f"onnxruntime-genai {version}, {words.dtype}", sampler="told",
                      arithmetic={"fp32": "f32", "fp16": "f16"}[words.dtype])
    first = 0
    with capture:
        for tokens in words.passes:
            given = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, first + len(tokens)), np.int64), **cache}
            if any(one.name == "position_ids" for one in session.get_inputs()):
                given["position_ids"] = np.arange(first, first + len(tokens))[None]
            values = dict(zip(stages, session.run(list(stages), given)))
            with capture.step(tokens):
                for name, (stage, layer) in stages.items():
                    x = values[name][0]
                    capture.add(stage, x.swapaxes(0, 1) if stage.endswith("cache") else x.reshape(len(tokens), -1), layer=layer)
            cache = {name: values[name.replace("past_key_values", "present")] for name in cache}
            first += len(tokens)


def head_dim(one, model):
    """The width of a cached head."""
    if isinstance(one.shape[3], int):
        return one.shape[3]
    config = json.loads((model / "config.json").read_text())
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


if __name__ == "__main__":
    main()
