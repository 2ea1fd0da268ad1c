"""Captures transformers as it is, and with each of the bugs below planted in its code: to OUT/clean, OUT/NAME, ...

Usage: transformers_bugs.py MODEL.gguf LIKE OUT DTYPE [DEVICE]
"""

import contextlib
import pathlib
import sys
from unittest import mock

import torch
from transformers.models.qwen2 import modeling_qwen2 as code

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "exporters"))
from transformers_qwen import captured, loaded


def neighbours_rotated(model):
    """RoPE turns neighbouring elements, as GPT-J does, where Qwen turns the two halves of a head. Found as: L00.q_rope rope-pairing"""
    def rotated(q, k, cos, sin, unsqueeze_dim=1):
        half = cos.shape[-1] // 2
        cos, sin = (x[..., :half].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for x in (cos, sin))
        def turned(x):
            return (x * cos) + (x.unflatten(-1, (half, 2)).flip(-1) * x.new_tensor([-1, 1])).flatten(-2) * sin
        return turned(q), turned(k)
    return mock.patch.object(code, "apply_rotary_pos_emb", rotated)


def heads_tiled(model):
    """The heads of keys and values are tiled, not repeated one by one: query head h reads head h mod n.

    Found as: L00.attn_scores gqa-head-map"""
    return mock.patch.object(code, "repeat_kv", lambda x, times: x.repeat(1, times, 1, 1))


def mask_off_by_one(model):
    """The causal mask begins a key late: each token sees the next one. Found as: L00.attn_weights mask-off-by-one"""
    own = code.create_causal_mask
    def late(*args, **kwargs):
        mask = own(*args, **kwargs)
        return torch.cat((mask[..., 1:, :], mask[..., -1:, :]), -2)
    return mock.patch.object(code, "create_causal_mask", late)


def main():
    gguf, like, out, dtype = *map(pathlib.Path, sys.argv[1:4]), sys.argv[4]
    model = loaded(gguf, dtype, *sys.argv[5:])
    for plant in [None, neighbours_rotated, heads_tiled, mask_off_by_one]:
        with plant(model) if plant else contextlib.nullcontext():
            captured(model, gguf, dtype, like, out / (plant.__name__.replace("_", "-") if plant else "clean"))


if __name__ == "__main__":
    main()
