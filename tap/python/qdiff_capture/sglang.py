"""Hooks for SGLang: what it computes for each request is a capture of its own.

    from qdiff_capture.sglang import forward_hooks

    engine = sglang.Engine(model_path=model, forward_hooks=forward_hooks("mine"), disable_radix_cache=True,
                           cuda_graph_backend_prefill="disabled", cuda_graph_backend_decode="disabled")
    engine.generate(prompts, {"max_new_tokens": 4})

A server takes the same as `--forward-hooks`, in JSON: python -m qdiff_capture.sglang mine

Qwen2 and Qwen3 on one GPU, without speculation. Each request goes to a folder mine/ID. Left out is what SGLang never
materialises (projections before their bias, scores, weights of the attention), and the paged caches; qdiff checks these as
part of the next stage that is there. CUDA graphs run no hooks, hence the last two options.
"""

import json
import os
import sys

from qdiff_capture._batches import Batches, arithmetic, named

__all__ = ["forward_hooks", "hook"]

SEEN = ["input_layernorm", "self_attn.qkv_proj", "self_attn.q_norm", "self_attn.k_norm", "self_attn.rotary_emb",
        "self_attn.attn", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_up_proj", "mlp.act_fn", "mlp.down_proj"]


def forward_hooks(folder, **manifest):
    """What `forward_hooks` takes. `manifest` may add what `qdiff schema capture` describes, or take the place of the
    arithmetic that the dtype says."""
    targets = ["model", "model.embed_tokens", "model.norm", "logits_processor", *(f"model.layers.*.{name}" for name in SEEN)]
    return [{"name": "qdiff", "target_modules": targets, "hook_factory": "qdiff_capture.sglang:hook",
             "config": {"folder": os.path.abspath(folder), "manifest": manifest}}]


def hook(config):
    """The hook of all these modules."""
    return _Sglang(**config).see


class _Sglang:
    def __init__(self, folder, manifest):
        self.batches = Batches(folder, False, **{"engine": named("sglang", "SGLang"), **manifest})
        self.decoder = None

    def see(self, module, args, out):
        if hasattr(module, "layers"):
            self.decoder = module
        elif hasattr(out, "next_token_logits"):
            self.end(args[0], args[1], args[3], out.next_token_logits)
        else:
            self.batches.see(module, out)

    def end(self, ids, hidden, batch, logits):
        """The logits come once the model is through. A batch without requests is one to warm up."""
        if not batch.rids or logits is None:
            self.batches.drop()
            return
        counts = [1] * len(batch.rids) if batch.forward_mode.is_decode() else batch.extend_seq_lens_cpu
        self.batches.manifest.setdefault("arithmetic", arithmetic(hidden.dtype))
        self.batches.end(self.decoder, list(zip(batch.rids, counts)), ids.tolist(), batch.positions.tolist(), logits)


if __name__ == "__main__":
    print(json.dumps(forward_hooks(sys.argv[1])))
