"""Captures Hugging Face transformers' Qwen2, loaded from a GGUF, for qdiff.

    qdiff record --runner llama -n 4 --out llama          # chooses the tokens
    python transformers_qwen2.py MODEL.gguf --like llama --out transformers
    qdiff compare -m MODEL.gguf transformers llama

Runs in float32 on the CPU with eager attention, the only one that shows its
weights. What transformers never materialises is left out: the projections
before their bias, and the scores before the softmax.

Needs: pip install torch transformers accelerate gguf numpy
"""

import argparse
import hashlib
import json
import os
import pathlib

import torch
import transformers
from transformers.models.qwen2 import modeling_qwen2

from qdiff_capture import Capture


class Taps:
    """Hooks on every module whose output or input is a stage."""

    def __init__(self, model, capture):
        self.capture, self.step, self.layer = capture, "prefill", None
        inner = model.model
        self.output(inner.embed_tokens, "embed")
        for number, layer in enumerate(inner.layers):
            at = f"L{number:02}."
            layer.register_forward_pre_hook(lambda *_, n=number: setattr(self, "layer", n))
            attention, mlp = layer.self_attn, layer.mlp
            self.output(layer.input_layernorm, at + "attn_norm")
            self.output(attention.q_proj, at + "q_biased")
            self.output(attention.k_proj, at + "k_biased")
            self.output(attention.v_proj, at + "v_biased")
            self.input(attention.o_proj, at + "attn_context")
            self.output(attention.o_proj, at + "attn_out")
            self.input(layer.post_attention_layernorm, at + "attn_residual")
            self.output(layer.post_attention_layernorm, at + "ffn_norm")
            self.output(mlp.gate_proj, at + "ffn_gate")
            self.output(mlp.up_proj, at + "ffn_up")
            self.input(mlp.down_proj, at + "ffn_act")
            self.output(mlp.down_proj, at + "ffn_down")
            self.output(layer, at + "layer_out")
        self.output(inner.norm, "final_norm")
        self.output(model.lm_head, "logits")
        self.functions()

    def add(self, stage, tensor):
        self.capture.add(self.step, stage, tensor.detach().numpy())

    def output(self, module, stage):
        def hook(_, __, out):
            out = out[0] if isinstance(out, tuple) else out
            self.add(stage, out[0])

        module.register_forward_hook(hook)

    def input(self, module, stage):
        module.register_forward_pre_hook(lambda _, args: self.add(stage, args[0][0]))

    def functions(self):
        """RoPE and attention are functions: wrapped where the model looks them up."""
        rope, attend = modeling_qwen2.apply_rotary_pos_emb, modeling_qwen2.eager_attention_forward

        def rotate(q, k, *args, **kwargs):
            q, k = rope(q, k, *args, **kwargs)
            for stage, x in (("q_rope", q), ("k_rope", k)):  # [1, heads, tokens, head_dim]
                self.add(f"L{self.layer:02}.{stage}", x[0].transpose(0, 1))
            return q, k

        def attention(*args, **kwargs):
            out, weights = attend(*args, **kwargs)  # weights: [1, heads, tokens, keys]
            self.add(f"L{self.layer:02}.attn_weights", weights[0])
            return out, weights

        modeling_qwen2.apply_rotary_pos_emb = rotate
        modeling_qwen2.eager_attention_forward = attention

    def cache(self, cache):
        """The KV cache after a step: [1, kv heads, keys, head_dim] a layer."""
        for number, layer in enumerate(cache.layers):
            for stage, x in (("k_cache", layer.keys), ("v_cache", layer.values)):
                self.add(f"L{number:02}.{stage}", x[0].transpose(0, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="GGUF of a Qwen2 model")
    parser.add_argument("--like", type=pathlib.Path, required=True, help="capture whose tokens are run")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write; it must not exist")
    args = parser.parse_args()

    like = json.loads((args.like / "manifest.json").read_text())
    with args.model.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.abspath(args.model.parent), gguf_file=args.model.name, dtype=torch.float32,
        attn_implementation="eager", local_files_only=True).eval()
    capture = Capture(f"transformers {transformers.__version__}", like["tokens"], like["decoded"],
                      model_sha256=sha256)
    taps = Taps(model, capture)
    cache = transformers.DynamicCache()
    steps = [like["tokens"]] + [[token] for token in like["decoded"]]
    with torch.inference_mode():
        for index, tokens in enumerate(steps):
            taps.step = f"step{index}" if index else "prefill"
            model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
            taps.cache(cache)
    capture.save(args.out)
    print(f"{len(capture.arrays)} arrays of {len(steps)} steps in {args.out}")


if __name__ == "__main__":
    main()
