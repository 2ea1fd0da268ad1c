"""Runs OxiLLaMa on a GGUF, as qdiff tells it, and dumps the logits of the last token: its Python package shows no other value. It takes
text and no ids, so the ids are made text, and the engine's own tokenizer must make the same ids of it."""

import importlib.metadata
import sys

import numpy as np
import oxillama_py
from qdiff_capture import Capture

import run


def main():
    words = run.arguments()
    tokens, = words.passes
    engine = oxillama_py.Engine(oxillama_py.EngineConfig(str(words.model), context_size=4096, num_threads=2))
    engine.load_model()
    text = "".join(engine.decode_token(token) for token in tokens)
    if engine.tokenize(text) != tokens:
        sys.exit(f"its tokenizer makes {engine.tokenize(text)[:12]}… of the text of {tokens[:12]}…")
    engine.reset()
    logits = np.array(engine.forward_logits(text), np.float32)
    with Capture(engine=f"OxiLLaMa {importlib.metadata.version('oxillama')}", arithmetic={"linear": [{"weights": "q8_0", "activations": "q8_0_ref"}]}) as capture, capture.step(tokens):
        capture.add("logits", logits[None])


if __name__ == "__main__":
    main()
