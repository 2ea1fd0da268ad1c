"""A worker extension of vLLM: its forward passes are the steps of a capture, with the rows of all requests.

    llm = LLM(model, enforce_eager=True, worker_extension_cls="qdiff_capture.vllm.Extension")
    llm.collective_rpc("qdiff_begin", args=("mine",))
    llm.generate(prompts, SamplingParams(max_tokens=4))
    llm.collective_rpc("qdiff_end")

Qwen2 and Qwen3 on one GPU (or the CPU); the prefix cache and speculation (with `async_scheduling=False`) may be on. Requests are
sequences 0, 1, ... in the order in which they came; one whose draft is rejected, or that is interrupted, takes tokens back. Positions, cache slots and block tables are captured as the kernels are given them, and qdiff names the
one that is wrong. Left out is what vLLM never materialises (projections before their bias, scores, weights of the attention),
and on a CPU the caches, which lie there as its instructions want them; qdiff checks these as part of the next stage that is
there. Without `enforce_eager` CUDA graphs are replayed, which run no hooks.
"""

from qdiff_capture._batches import Batch, Batches, Request, arithmetic, modules, named

__all__ = ["Extension"]


class Extension:
    """What `worker_extension_cls` adds to vLLM's worker."""

    def qdiff_begin(self, folder, manifest=None):
        """Begins to write what is computed to a folder. `manifest` may add what `qdiff schema capture` describes, or take the
        place of the arithmetic that the dtype says."""
        config = self.vllm_config
        if not config.model_config.enforce_eager:
            raise RuntimeError("start vLLM with enforce_eager=True: CUDA graphs run no hooks")
        if config.speculative_config and config.scheduler_config.async_scheduling:
            raise RuntimeError("start vLLM with async_scheduling=False: with speculation its scheduler counts drafts before they are judged")
        self._qdiff = _Vllm(self.model_runner, folder, **{
            "engine": named("vllm", "vLLM"), "arithmetic": arithmetic(config.model_config.dtype), **(manifest or {})})

    def qdiff_end(self):
        """Takes the hooks off and closes the capture."""
        self._qdiff.remove()


class _Vllm:
    def __init__(self, runner, folder, **manifest):
        self.runner, self.batches, self.undo = runner, Batches(folder, True, **manifest), []
        self.scheduled = self.batch = self.step = None
        self.prompts, self.lengths, self.drafts = {}, {}, {}
        self.model = runner.get_model()
        for module in modules(self.model.model):
            self.undo.append(module.register_forward_hook(lambda module, _, out: self.batches.see(module, out)).remove)
        self.undo.append(self.model.register_forward_pre_hook(self.begin, with_kwargs=True).remove)
        self.undo.append(self.model.logits_processor.register_forward_hook(self.end).remove)
        self.within("execute_model", self.executed)
        # The second runner's batch is a value that this method gives; the first one's is an attribute.
        if hasattr(runner, "prepare_inputs"):
            self.within("prepare_inputs", self.prepared)

    def within(self, name, run):
        own = getattr(self.runner, name)
        setattr(self.runner, name, lambda *args, **kwargs: run(own, *args, **kwargs))
        self.undo.append(lambda: delattr(self.runner, name))

    def executed(self, own, scheduled, *args, **kwargs):
        """Forward passes outside, and dummy ones, compute nobody's tokens."""
        self.scheduled = None if kwargs.get("dummy_run") else scheduled.num_scheduled_tokens
        if self.scheduled:
            for new in scheduled.scheduled_new_reqs:
                self.prompts[new.req_id], self.lengths[new.req_id] = new.prompt_token_ids, new.num_computed_tokens
            cached = scheduled.scheduled_cached_reqs
            self.lengths.update((id, n) for id, n in zip(cached.req_ids, cached.num_computed_tokens) if id in self.lengths)
            self.drafts = {id: len(tokens) for id, tokens in scheduled.scheduled_spec_decode_tokens.items()}
        try:
            return own(scheduled, *args, **kwargs)
        finally:
            self.scheduled = None

    def prepared(self, own, *args, **kwargs):
        self.batch = own(*args, **kwargs)
        return self.batch

    def begin(self, _, args, kwargs):
        self.batches.drop()
        self.step = None
        if self.scheduled:
            batch = self.runner.input_batch if self.batch is None else self.batch
            requests = []
            for id in batch.req_ids:
                if id not in self.lengths:
                    raise RuntimeError(f"request {id} was begun before the capture: begin the capture before the first request")
                drafts = self.drafts.get(id, 0)
                requests.append(Request(id, int(self.scheduled[id]), self.lengths[id], self.prompts[id], drafts))
                self.lengths[id] += requests[-1].count
            rows = kwargs["input_ids"].tolist(), kwargs["positions"].tolist()
            self.step = Batch(requests, *rows, *self.cached(requests))

    def cached(self, requests):
        """Slots, block tables and caches, as the kernels of this forward pass are given them: by the context of the first layer, as
        all layers have one table. The last axis of a cache [blocks, heads, block, 2 * width] has keys, then values."""
        attention = [layer.self_attn.attn for layer in self.model.model.layers]
        said = self.context().attn_metadata
        said = said.get(attention[0].layer_name) if isinstance(said, dict) else None
        if said is None:
            return None, None, None
        caches = [layer.kv_cache[0] if isinstance(layer.kv_cache, (list, tuple)) else layer.kv_cache for layer in attention]
        block = caches[0].shape[2]
        tables = [[blocks[n // block] * block + n % block for n in range(request.first + request.count)]
                  for request, blocks in zip(requests, said.block_table.tolist())]
        return said.slot_mapping.tolist(), tables, list(self.rows(attention, caches))

    def rows(self, attention, caches):
        for number, (layer, cache) in enumerate(zip(attention, caches)):
            width = layer.head_size
            # An instruction set's own order of a block's elements is nobody else's to read.
            if hasattr(layer, "isa") or len(cache.shape) != 4 or cache.shape[3] != 2 * width:
                return
            for at, stage in enumerate(("k_cache", "v_cache")):
                def taken(slots, cache=cache, first=at * width, block=cache.shape[2]):
                    blocks, inside = [slot // block for slot in slots], [slot % block for slot in slots]
                    return cache[blocks, :, inside, first:first + width]
                yield stage, number, taken

    @staticmethod
    def context():
        from vllm.forward_context import get_forward_context

        return get_forward_context()

    def end(self, _, args, out):
        """The logits come once the model is through; those of a prompt's log-probabilities later, which no step waits for."""
        step, self.step = self.step, None
        if step is not None:
            self.batches.end(self.model.model, step, out)

    def remove(self):
        for undo in reversed(self.undo):
            undo()
        self.batches.close()
