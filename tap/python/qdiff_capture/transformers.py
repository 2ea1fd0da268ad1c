"""Hooks for Hugging Face transformers: every forward pass of a Qwen2 or Qwen3 model is a step of a capture.

    from qdiff_capture import Capture
    from qdiff_capture.transformers import hooked

    with Capture("mine", engine="transformers") as capture, hooked(model, capture):
        model.generate(input_ids, max_new_tokens=4)

Any dtype and device; one sequence of a batch, without padding. For a model that is cut over ranks (`tp_plan`, started by
torchrun) each rank makes a Capture with its `rank` and with `ranks=ranks(model)`. Left out is what transformers never materialises: the
projections before their bias and, unless the model was loaded with `attn_implementation="eager"`, the attention's scores
and weights. qdiff checks these as part of the next stage that is there.
"""

import sys

import torch
from torch.overrides import TorchFunctionMode

from qdiff_capture import _stages
from qdiff_capture._hooks import Hooks

__all__ = ["hooked", "ranks"]


def hooked(model, capture, sequence=0):
    """Captures every forward pass of `model`, a model with a language model's head, as long as the block lasts; `sequence`
    is the index in the batch."""
    return _Transformers(model, capture, sequence).on()


def ranks(model):
    """How a model is cut over ranks by the plan of transformers, for `Capture(ranks=...)`: heads, columns of the feed-forward
    network and ids of the vocabulary of each rank. The first ranks have the longer slices, as torch cuts tensors."""
    count, attention, mlp = model.tp_size, model.model.layers[0].self_attn, model.model.layers[0].mlp
    heads = attention.q_proj.out_features // attention.head_dim

    def shares(whole):
        each = -(-whole // count)
        return "+".join(str(max(0, min(each, whole - each * rank))) for rank in range(count))

    vocab = shares(model.lm_head.out_features) if hasattr(model.lm_head.weight, "placements") else "whole"
    return f"{count}:heads={shares(heads)},ffn={shares(mlp.gate_proj.out_features)},vocab={vocab}"


class _Transformers(Hooks):
    def __init__(self, model, capture, sequence):
        super().__init__(capture, sequence)
        if (getattr(model, "tp_size", None) or 1) > 1:
            self.parts(model)
        self.module(model, before=self.begin, after=self.finish)
        self.decoder(_stages.TRANSFORMERS, model.model, model)
        # RoPE and attention are functions, which the model looks up in its module.
        code = sys.modules[type(model.model.layers[0].self_attn).__module__]
        self.function(code, "apply_rotary_pos_emb", self.rotated)
        self.function(code, "eager_attention_forward", self.attended, within=self.scored)

    def parts(self, model):
        """What a rank has before the ranks put it together: transformers does that within the forward of the module."""
        from transformers.distributed import tensor_parallel as code

        places = {id(model.lm_head): ("logits_shard", None)}
        for number, layer in enumerate(model.model.layers):
            places[id(layer.self_attn.o_proj)] = ("attn_out_partial", number)
            places[id(layer.mlp.down_proj)] = ("ffn_down_partial", number)

        def see(_, module, output, *__):
            stage, layer = places.get(id(module), (None, None))
            if stage is not None:
                self.add(stage, output, layer, flat=True)

        for style in (code.RowwiseParallel, code.ColwiseParallel):
            self.function(style, "transform_output_post_forward", lambda _: None, before=see)

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
