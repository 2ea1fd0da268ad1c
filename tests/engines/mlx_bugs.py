"""Captures mlx-lm as it is, and with each of the bugs below planted in its code: to OUT/clean, OUT/NAME, ...

In f16 as it is: L03.ffn_act the exponential is rounded to f16

Usage: mlx_bugs.py MODEL.gguf LIKE OUT DTYPE
"""

import contextlib
import pathlib
import sys
from unittest import mock

import mlx.nn as nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "exporters"))
from mlx_qwen import captured, loaded


def neighbours_rotated(model):
    """RoPE turns neighbouring elements, MLX's `traditional`, where Qwen turns the two halves of a head.

    Found as: L00.q_rope rope-pairing"""
    patched = contextlib.ExitStack()
    for layer in model.layers:
        patched.enter_context(mock.patch.object(layer.self_attn.rope, "traditional", True))
    return patched


def gate_and_up_exchanged(model):
    """SiLU is applied to up instead of the gate. Found as: L00.ffn_act gate-up-operands-swapped"""
    code = sys.modules[type(model).__module__]
    own = code.swiglu
    return mock.patch.object(code, "swiglu", lambda gate, up: own(up, gate))


def decode_position_late(model):
    """What is decoded is rotated by the position after its own. Found as: L00.q_rope decode-offset"""
    own = nn.RoPE.__call__
    return mock.patch.object(nn.RoPE, "__call__", lambda self, x, offset=0: own(self, x, offset + (offset > 0)))


def main():
    gguf, like, out, dtype = *map(pathlib.Path, sys.argv[1:4]), sys.argv[4]
    model = loaded(gguf, dtype)
    for plant in [None, neighbours_rotated, gate_and_up_exchanged, decode_position_late]:
        with plant(model) if plant else contextlib.nullcontext():
            captured(model, gguf, dtype, like, out / (plant.__name__.replace("_", "-") if plant else "clean"))


if __name__ == "__main__":
    main()
