"""A worker extension of vLLM: what it computes for each request is a capture of its own.

    llm = LLM(model, enforce_eager=True, enable_prefix_caching=False, worker_extension_cls="qdiff_capture.vllm.Extension")
    llm.collective_rpc("qdiff_begin", args=("mine",))
    llm.generate(prompts, SamplingParams(max_tokens=4))
    llm.collective_rpc("qdiff_end")

Qwen2 and Qwen3 on one GPU (or the CPU), without speculation. Each request goes to a folder mine/ID. Left out is what vLLM
never materialises (projections before their bias, scores, weights of the attention), and the paged caches; qdiff checks these
as part of the next stage that is there. Without `enforce_eager` CUDA graphs are replayed, which run no hooks.
"""

from qdiff_capture._batches import Batches, arithmetic, modules, named

__all__ = ["Extension"]


class Extension:
    """What `worker_extension_cls` adds to vLLM's worker."""

    def qdiff_begin(self, folder, manifest=None):
        """Begins to write what is computed to a folder for each request, beneath this one. `manifest` may add what
        `qdiff schema capture` describes, or take the place of the arithmetic that the dtype says."""
        config = self.vllm_config
        if not config.model_config.enforce_eager:
            raise RuntimeError("start vLLM with enforce_eager=True: CUDA graphs run no hooks")
        self._qdiff = _Vllm(self.model_runner, folder, **{
            "engine": named("vllm", "vLLM"), "arithmetic": arithmetic(config.model_config.dtype), **(manifest or {})})

    def qdiff_end(self):
        """Takes the hooks off and closes the captures."""
        self._qdiff.remove()


class _Vllm:
    def __init__(self, runner, folder, **manifest):
        self.runner, self.batches, self.undo = runner, Batches(folder, True, **manifest), []
        self.scheduled = self.batch = self.step = None
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
            requests = [(request, int(self.scheduled[request])) for request in batch.req_ids]
            self.step = requests, kwargs["input_ids"].tolist(), kwargs["positions"].tolist()

    def end(self, _, args, out):
        """The logits come once the model is through; those of a prompt's log-probabilities later, which no step waits for."""
        step, self.step = self.step, None
        if step is not None:
            self.batches.end(self.model.model, *step, out)

    def remove(self):
        for undo in reversed(self.undo):
            undo()
        self.batches.close()
