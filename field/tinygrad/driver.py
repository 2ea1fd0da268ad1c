"""Runs the transformer of tinygrad.llm on a GGUF, as qdiff tells it, and dumps the stages that its code names. Each tapped value is
realized, where unchanged tinygrad would compute several of them in one kernel."""

import importlib.metadata
import os
import sys
import types

from qdiff_capture import Capture
from tinygrad import Tensor, nn

try:
    import tinygrad.llm.kernels.amd
except ModuleNotFoundError:
    # The wheel of 0.14.0 lacks this package, and tinygrad.llm.model imports it. This stub has what a CPU needs of it.
    stub = types.ModuleType("tinygrad.llm.kernels.amd")
    stub.Linear, stub.amd_custom_kernels_supported = nn.Linear, lambda device: False
    stub.gated_delta_prefill = stub.flash_attention = None
    sys.modules |= {"tinygrad.llm.kernels": types.ModuleType("tinygrad.llm.kernels"), "tinygrad.llm.kernels.amd": stub}
from tinygrad.llm import model as code

import run

# The cache is f16, all else is f32. With HALF=1, the default, the code casts weights to f16. qdiff finds this in the embedding of a large
# model alone: elsewhere the weights act as the file has them.
ARITHMETIC = {"kv": "f16", "outputs": {"default": "f32"}}


def main():
    words = run.arguments(half=["1", "0"])
    os.environ["HALF"] = words.half
    if words.half == "1":
        ARITHMETIC["outputs"]["ops"] = {"embed": "f16"}
    model, _ = code.Transformer.from_gguf(words.model, max_context=4096)
    capture = Capture(engine=f"tinygrad {importlib.metadata.version('tinygrad')}", arithmetic=ARITHMETIC, sampler="told")

    class Tapped:
        """A layer whose result, or whose operand, is a stage."""
        def __init__(self, own, stage=None, layer=None, operand=None):
            self.own, self.stage, self.layer, self.operand = own, stage, layer, operand

        def __call__(self, x):
            x = x.contiguous().realize()
            if self.operand:
                add(self.operand, x, self.layer)
            y = self.own(x).contiguous().realize()
            if self.stage:
                add(self.stage, y, self.layer)
            return y

        def __getattr__(self, name):
            return getattr(self.own, name)

    def add(stage, x, layer):
        x = x.numpy()[0]
        # With heads: [heads, tokens, head_dim].
        x = x.swapaxes(0, 1) if x.ndim == 3 else x
        capture.add(stage, x if "rope" in stage else x.reshape(len(x), -1), layer=layer)

    own_rope, place = code.apply_rope, {}

    def rope(x, table):
        y = own_rope(x, table).contiguous().realize()
        add(place["stages"].pop(0), y, place["layer"])
        return y

    code.apply_rope = rope
    for layer, block in enumerate(model.blk):
        biased = "biased" if getattr(block.attn_q, "bias", None) is not None else "proj"
        for name in "qkv":
            setattr(block, f"attn_{name}", Tapped(getattr(block, f"attn_{name}"), f"{name}_{biased}", layer))
        if hasattr(block, "attn_q_norm"):
            block.attn_q_norm, block.attn_k_norm = (Tapped(own, stage, layer) for own, stage in (
                (block.attn_q_norm, "q_normed"), (block.attn_k_norm, "k_normed")))
        block.attn_output = Tapped(block.attn_output, "attn_out", layer, "attn_context")
        block.attn_norm, block.ffn_norm = Tapped(block.attn_norm, "attn_norm", layer), Tapped(block.ffn_norm, "ffn_norm", layer, "attn_residual")
        block.ffn_gate, block.ffn_up = Tapped(block.ffn_gate, "ffn_gate", layer), Tapped(block.ffn_up, "ffn_up", layer)
        block.ffn_down = Tapped(block.ffn_down, "ffn_down", layer, "ffn_act")
    output = Tapped(model.output, "logits")
    first = 0
    with capture:
        for tokens in words.passes:
            with capture.step(tokens):
                x = model.token_embd(Tensor([tokens], dtype="int32")).float().realize()
                add("embed", x, None)
                for layer, block in enumerate(model.blk):
                    place.update(layer=layer, stages=["q_rope", "k_rope"])
                    block._init_state(x)
                    # As in FFNBlock.__call__, but not compiled as one function.
                    h = (x + block._attention(block.attn_norm(x), first)).contiguous().realize()
                    x = (h + block._feed_forward(block.ffn_norm(h))).contiguous().realize()
                    add("layer_out", x, layer)
                    for stage, cache in zip(("k_cache", "v_cache"), block.cache_kv.numpy()[:, 0, :, :first + len(tokens)]):
                        capture.add(stage, cache.swapaxes(0, 1), layer=layer)
                # As in Transformer.forward.
                output(model.output_norm(x[:, -1:]))
            first += len(tokens)


if __name__ == "__main__":
    main()
