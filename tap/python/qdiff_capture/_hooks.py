"""What the hooks of several engines share: seeing what the modules of a decoder take and give."""

import contextlib


class Hooks:
    """Hooks on modules, which `remove` takes off again. As written for modules of torch; [batch, tokens, width] is what they
    take and give, and `sequence` the index in the batch."""

    def __init__(self, capture, sequence=0):
        self.capture, self.sequence, self.layer, self.undo = capture, sequence, None, []

    def decoder(self, inner):
        """Hooks the modules of a decoder in which each projection is one: as Hugging Face's models name them, and MLX's."""
        self.output(inner.embed_tokens, "embed")
        for number, layer in enumerate(inner.layers):
            self.module(layer, before=lambda *_, n=number: setattr(self, "layer", n))
            attention, mlp = layer.self_attn, layer.mlp
            self.output(layer.input_layernorm, "attn_norm", number)
            for letter in "qkv":
                projection = getattr(attention, f"{letter}_proj")
                biased = getattr(projection, "bias", None) is not None
                self.output(projection, f"{letter}_biased" if biased else f"{letter}_proj", number)
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

    def caches(self, caches):
        """Adds the caches of all layers, given as keys and values, [batch, kv heads, rows, head_dim]."""
        for number, cache in enumerate(caches):
            for stage, x in zip(("k_cache", "v_cache"), cache):
                self.add(stage, x.swapaxes(1, 2), number)

    def add(self, stage, x, layer=None, flat=False):
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

    def function(self, code, name, see, within=contextlib.nullcontext):
        """Shows what a function that is looked up as code.name gives."""
        own = getattr(code, name)

        def seen(*args, **kwargs):
            with within():
                out = own(*args, **kwargs)
            see(out)
            return out

        setattr(code, name, seen)
        self.undo.append(lambda: setattr(code, name, own))

    @contextlib.contextmanager
    def on(self):
        """As long as the block lasts."""
        try:
            yield self.capture
        finally:
            for undo in reversed(self.undo):
                undo()
