"""Hooks for Hugging Face transformers: every forward pass of a Qwen2 or Qwen3 model is a step of a capture.

    from qdiff_capture import Capture
    from qdiff_capture.transformers import hooked

    with Capture("mine", engine="transformers") as capture, hooked(model, capture):
        model.generate(input_ids, max_new_tokens=4)

Any dtype and device; one sequence of a batch, without padding. Left out is what transformers never materialises: the
projections before their bias and, unless the model was loaded with `attn_implementation="eager"`, the attention's scores
and weights. qdiff checks these as part of the next stage that is there.
"""

import sys

import torch
from torch.overrides import TorchFunctionMode

from qdiff_capture import _stages
from qdiff_capture._hooks import Hooks

__all__ = ["hooked"]


def hooked(model, capture, sequence=0):
    """Captures every forward pass of `model`, a model with a language model's head, as long as the block lasts; `sequence`
    is the index in the batch."""
    return _Transformers(model, capture, sequence).on()


class _Transformers(Hooks):
    def __init__(self, model, capture, sequence):
        super().__init__(capture, sequence)
        self.module(model, before=self.begin, after=self.finish)
        self.decoder(_stages.TRANSFORMERS, model.model, model)
        # RoPE and attention are functions, which the model looks up in its module.
        code = sys.modules[type(model.model.layers[0].self_attn).__module__]
        self.function(code, "apply_rotary_pos_emb", self.rotated)
        self.function(code, "eager_attention_forward", self.attended, within=self.scored)

    def begin(self, _, args, kwargs):
        ids = kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]
        self.capture.begin(ids[self.sequence].tolist())

    def finish(self, _, args, kwargs, out):
        cache = getattr(out, "past_key_values", None)
        self.caches((layer.keys, layer.values) for layer in getattr(cache, "layers", ()))
        self.capture.end()

    def rotated(self, out):
        for stage, x in zip(("q_rope", "k_rope"), out):  # [batch, heads, tokens, head_dim]
            self.add(stage, x.swapaxes(1, 2), self.layer)

    def scored(self):
        return _FirstProduct(lambda out: self.add("attn_scores", out, self.layer))

    def attended(self, out):
        self.add("attn_weights", out[1], self.layer)  # [batch, heads, tokens, keys], as the scores


class _FirstProduct(TorchFunctionMode):
    """Shows the result of the first product of matrices within it: of an attention the scores, unscaled and unmasked."""

    def __init__(self, see):
        super().__init__()
        self.see = see

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if self.see is not None and func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            see, self.see = self.see, None
            see(out)
        return out
