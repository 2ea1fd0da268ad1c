"""Hooks for mlx-lm: every forward pass of a Qwen2 or Qwen3 model is a step of a capture.

    from qdiff_capture import Capture
    from qdiff_capture.mlx import hooked

    with Capture("mine", engine="mlx-lm") as capture, hooked(model, capture):
        model(mx.array([tokens]), cache=cache)

Any dtype and device; one sequence of a batch, without padding. What is seen is evaluated on the spot. Left out is what MLX
never materialises: the projections before their bias, and the attention's scores and weights. qdiff checks these as part of
the next stage that is there. A model within `mx.compile` runs no hooks.
"""

from qdiff_capture import _stages
from qdiff_capture._hooks import Hooks

__all__ = ["hooked"]


def hooked(model, capture, sequence=0):
    """Captures every forward pass of `model` as long as the block lasts; `sequence` is the index in the batch."""
    return _Mlx(model, capture, sequence).on()


class _Mlx(Hooks):
    def __init__(self, model, capture, sequence):
        super().__init__(capture, sequence)
        self.module(model, before=self.begin, after=self.finish)
        self.decoder(_stages.MLX, model.model)
        # A rotation is called with the queries first, then with the keys.
        self.rotated_before = set()
        for number, layer in enumerate(model.model.layers):
            self.module(layer.self_attn.rope, after=lambda _, args, kwargs, out, n=number: self.rotated(out, n))

    def begin(self, _, args, kwargs):
        self.rotated_before.clear()
        self.capture.begin(args[0][self.sequence].tolist())

    def finish(self, _, args, kwargs, out):
        # The head's output; where the embedding serves as the head there is no module for it.
        self.add("logits", out)
        cache = kwargs.get("cache", args[1] if len(args) > 1 else None)
        self.caches(layer.keys_and_values() for layer in cache or ())
        self.capture.end()

    def rotated(self, out, layer):
        stage = "k_rope" if layer in self.rotated_before else "q_rope"
        self.rotated_before.add(layer)
        self.add(stage, out.swapaxes(1, 2), layer)  # [batch, heads, tokens, head_dim]

    def module(self, module, before=None, after=None):
        """A call looks its method up in the class: the module is given one of its own, beneath its class."""
        own = type(module)

        def call(me, *args, **kwargs):
            if before is not None:
                before(me, args, kwargs)
            out = own.__call__(me, *args, **kwargs)
            if after is not None:
                after(me, args, kwargs, out)
            return out

        module.__class__ = type(own.__name__, (own,), {"__call__": call})
        self.undo.append(lambda: setattr(module, "__class__", own))
