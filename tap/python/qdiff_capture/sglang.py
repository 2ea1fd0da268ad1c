"""Hooks for SGLang: its forward passes are the steps of a capture, with the rows of all requests.

    from qdiff_capture.sglang import forward_hooks

    engine = sglang.Engine(model_path=model, forward_hooks=forward_hooks("mine"),
                           cuda_graph_backend_prefill="disabled", cuda_graph_backend_decode="disabled")
    engine.generate(prompts, {"max_new_tokens": 4})

A server takes the same as `--forward-hooks`, in JSON: python -m qdiff_capture.sglang mine

Qwen2 and Qwen3 on one GPU, without speculation; the radix cache may be on. Requests are sequences 0, 1, ... in the order in which
they came. Positions, cache slots and block tables are captured as the kernels are given them, and qdiff names the one that is
wrong. Left out is what SGLang never materialises (projections before their bias, scores, weights of the attention), and the
paged caches; qdiff checks these as part of the next stage that is there. CUDA graphs run no hooks: this is
why the last two options are needed.
"""

import json
import os
import sys

from qdiff_capture._batches import Batch, Batches, Request, arithmetic, named
from qdiff_capture._stages import SGLANG

__all__ = ["forward_hooks", "hook"]

# Modules of a layer whose outputs are stages.
SEEN = sorted({path for _, in_layer, site, path, _, _ in SGLANG if in_layer and site in ("output", "part", "columns")})


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
        lengths = batch.seq_lens.tolist()
        counts = [1] * len(lengths) if batch.forward_mode.is_decode() else batch.extend_seq_lens_cpu
        requests = [Request(id, count, length - count) for id, count, length in zip(batch.rids, counts, lengths)]
        pool = self.pool().req_to_token
        tables = [pool[at][:length].tolist() for at, length in zip(batch.req_pool_indices.tolist(), lengths)]
        self.batches.manifest.setdefault("arithmetic", arithmetic(hidden.dtype))
        # Where a pool translates slots, the table has those before.
        slots = batch.out_cache_loc if batch.out_cache_loc_virtual is None else batch.out_cache_loc_virtual
        rows = ids.tolist(), batch.positions.tolist(), slots.tolist()
        self.batches.end(self.decoder, Batch(requests, *rows, tables), logits)

    @staticmethod
    def pool():
        from sglang.srt.model_executor.forward_context import get_req_to_token_pool

        return get_req_to_token_pool()


if __name__ == "__main__":
    print(json.dumps(forward_hooks(sys.argv[1])))
