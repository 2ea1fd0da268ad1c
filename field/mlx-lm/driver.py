"""Runs mlx-lm on a GGUF, or on a folder of safetensors that its own loader reads, as qdiff tells it, and dumps every stage that it has."""

import pathlib
import sys

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx_lm.models import qwen2, qwen3
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from qdiff_capture.mlx import hooked

import run

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "exporters"))
from mlx_qwen import DTYPES, loaded


def main():
    words = run.arguments(dtype=list(DTYPES))
    if words.model.is_dir():
        model, _ = load_model(words.model)
        model.set_dtype(DTYPES[words.dtype])
    else:
        model = loaded(words.model, words.dtype)
    if words.fix:
        # SwiGLU with its exponential in f32, rounded after it.
        for code in (qwen2, qwen3):
            code.swiglu = lambda gate, x: nn.silu(gate.astype(mx.float32)).astype(gate.dtype) * x
    cache = make_prompt_cache(model)
    capture = run.capture(engine=f"mlx-lm {mlx_lm.__version__} on mlx {mx.__version__}, {words.dtype}", arithmetic=words.dtype, sampler="told")
    with capture, hooked(model, capture):
        for tokens in words.passes:
            model(mx.array([tokens]), cache=cache)


if __name__ == "__main__":
    main()
