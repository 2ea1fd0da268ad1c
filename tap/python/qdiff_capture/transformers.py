"""Hooks for Hugging Face transformers: every forward pass of a Qwen2 or Qwen3 model is a step of a capture.

    from qdiff_capture import Capture
    from qdiff_capture.transformers import hooked

    with Capture("mine", engine="transformers") as capture, hooked(model, capture):
        model.generate(input_ids, max_new_tokens=4)

Any dtype and device; one sequence of a batch, without padding. Left out is what transformers never materialises: the
projections before their bias, the scores before the softmax, and, unless the model was loaded with
`attn_implementation="eager"`, the weights after it. qdiff checks these as part of the next stage that is there.
"""

import contextlib
import sys

__all__ = ["hooked"]


@contextlib.contextmanager
def hooked(model, capture, sequence=0):
    """Captures every forward pass of `model`, a model with a language model's head, as long as the block lasts; `sequence`
    is the index in the batch."""
    hooks = _Hooks(model, capture, sequence)
    try:
        yield capture
    finally:
        hooks.remove()


class _Hooks:
    def __init__(self, model, capture, sequence):
        self.capture, self.sequence, self.layer, self.undo = capture, sequence, None, []
        self.module(model, before=self.begin, after=self.finish)
        inner = model.model
        self.output(inner.embed_tokens, "embed")
        for number, layer in enumerate(inner.layers):
            self.module(layer, before=lambda *_, n=number: setattr(self, "layer", n))
            attention, mlp = layer.self_attn, layer.mlp
            self.output(layer.input_layernorm, "attn_norm", number)
            for letter in "qkv":
                projection = getattr(attention, f"{letter}_proj")
                self.output(projection, f"{letter}_proj" if projection.bias is None else f"{letter}_biased", number)
                norm = getattr(attention, f"{letter}_norm", None)
                if norm is not None:
                    self.output(norm, f"{letter}_normed", number)
            self.input(attention.o_proj, "attn_context", number)
            self.output(attention.o_proj, "attn_out", number)
            self.input(layer.post_attention_layernorm, "attn_residual", number)
            self.output(layer.post_attention_layernorm, "ffn_norm", number)
            self.output(mlp.gate_proj, "ffn_gate", number)
            self.output(mlp.up_proj, "ffn_up", number)
            self.input(mlp.down_proj, "ffn_act", number)
            self.output(mlp.down_proj, "ffn_down", number)
            self.output(layer, "layer_out", number)
        self.output(inner.norm, "final_norm")
        self.output(model.lm_head, "logits")
        # RoPE and attention are functions, which the model looks up in its module.
        code = sys.modules[type(inner.layers[0].self_attn).__module__]
        self.function(code, "apply_rotary_pos_emb", self.rotated)
        self.function(code, "eager_attention_forward", self.attended)

    def begin(self, _, args, kwargs):
        ids = kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]
        self.capture.begin(ids[self.sequence].tolist())

    def finish(self, _, args, kwargs, out):
        cache = getattr(out, "past_key_values", None)
        for number, layer in enumerate(getattr(cache, "layers", ())):
            for stage, x in (("k_cache", layer.keys), ("v_cache", layer.values)):  # [batch, kv heads, rows, head_dim]
                self.add(stage, x.transpose(1, 2), number)
        self.capture.end()

    def rotated(self, out):
        for stage, x in zip(("q_rope", "k_rope"), out):  # [batch, heads, tokens, head_dim]
            self.add(stage, x.transpose(1, 2), self.layer)

    def attended(self, out):
        self.add("attn_weights", out[1], self.layer)  # [batch, heads, tokens, keys]

    def add(self, stage, x, layer, flat=False):
        x = x[self.sequence]
        self.capture.add(stage, x.flatten(1) if flat else x, layer=layer)

    def output(self, module, stage, layer=None):
        self.module(module, after=lambda _, args, kwargs, out: self.add(
            stage, out[0] if isinstance(out, tuple) else out, layer, flat=True))

    def input(self, module, stage, layer):
        self.module(module, before=lambda _, args, kwargs: self.add(stage, args[0], layer, flat=True))

    def module(self, module, before=None, after=None):
        """What hooks return would take the place of what they were shown: these return nothing."""
        if before is not None:
            self.undo.append(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        if after is not None:
            self.undo.append(module.register_forward_hook(after, with_kwargs=True).remove)

    def function(self, code, name, see):
        own = getattr(code, name)

        def seen(*args, **kwargs):
            out = own(*args, **kwargs)
            see(out)
            return out

        setattr(code, name, seen)
        self.undo.append(lambda: setattr(code, name, own))

    def remove(self):
        for undo in reversed(self.undo):
            undo()
