"""Writes a capture that qdiff judges: capture.npz and manifest.json in a folder.

    capture = Capture("my engine", prompt=[151644, 872], decoded=[49891])
    capture.add("prefill", "L00.q_rope", q)      # [tokens, heads, head_dim], float32
    capture.add("step1", "logits", logits)       # [1, vocabulary]
    capture.save("mine")                         # qdiff run -m model.gguf --subject capture:mine
"""

import json
import pathlib

import numpy as np


class Capture:
    def __init__(self, engine, prompt, decoded=(), **manifest):
        """`manifest` may add model_sha256 (checked), ubatch, positions, arithmetic, storage or end."""
        self.arrays = {}
        self.manifest = {"schema_version": 3, "engine": engine, "tokens": list(map(int, prompt)),
                         "decoded": list(map(int, decoded)), **manifest}

    def add(self, step, stage, array):
        """`step` is "prefill" or "step1", …; `stage` as `qdiff inspect MODEL` lists it."""
        name = f"{step}/{stage}"
        if name in self.arrays:
            raise ValueError(f"{name} was added before")
        array = np.asarray(array)
        # A copy: engines reuse their buffers. What is float16 is stored so, which says how coarse it is.
        dtype = np.float16 if array.dtype == np.float16 else np.float32
        self.arrays[name] = np.array(array, dtype=dtype, order="C")

    def save(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(exist_ok=True)
        with open(folder / "capture.npz", "xb") as file:  # never over another capture
            np.savez(file, **self.arrays)
        (folder / "manifest.json").write_text(json.dumps(self.manifest) + "\n")
