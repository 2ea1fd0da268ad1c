"""Runs a model by the low-level calls of llama-cpp-python, as qdiff tells it, and dumps the logits of every token."""

import ctypes
import importlib.metadata

import llama_cpp
import numpy as np
from qdiff_capture import Capture

import run


def decoded(context, tokens, first, vocabulary):
    """The logits of a pass."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, first + i, 1, 0, True
    status = llama_cpp.llama_decode(context, batch)
    if status:
        raise SystemExit(f"llama_decode returned {status}")
    logits = ctypes.cast(llama_cpp.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
    rows = np.ctypeslib.as_array(logits, (len(tokens), vocabulary)).copy()
    llama_cpp.llama_batch_free(batch)
    return rows


def main():
    words = run.arguments(weights=["f32", "f16"])
    version = importlib.metadata.version("llama_cpp_python")
    # Keys and values in F32, that the declared arithmetic is the whole one. Releases 0.2 refuse such values without flash attention: in
    # them both are in F16, as without options, and ggml rounds queries and attention weights to F16 before it multiplies them with these.
    f16 = version.startswith("0.2.")
    arithmetic = {"kv": "f16", "attention": [{"scores": "f16", "context": "f16"}]} if f16 else "f32"
    if words.weights == "f16":
        # ggml rounds activations to F16 beside such weights.
        arithmetic = {**(arithmetic if f16 else {}), "linear": [{"weights": "f16", "activations": "f16"}]}
    engine = llama_cpp.Llama(str(words.model), n_ctx=8192, n_batch=4096, n_ubatch=4096, n_threads=2, n_threads_batch=2, type_k=int(f16), type_v=int(f16), logits_all=True, verbose=False)
    first = 0
    with Capture(engine=f"llama-cpp-python {version}", arithmetic=arithmetic) as capture:
        for tokens in words.passes:
            with capture.step(tokens):
                capture.add("logits", decoded(engine.ctx, tokens, first, engine.n_vocab()))
            first += len(tokens)


if __name__ == "__main__":
    main()
