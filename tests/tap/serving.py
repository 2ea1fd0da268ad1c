"""An engine that serves several requests at once, with the module trees and calls of vLLM and SGLang: projections fused, one
module that rotates for all layers, residuals within the norms, outputs written over by what follows. What its modules give is
read from ./recorded. Two requests, one a step later than the other, are dumped by the hooks of the package to ./vllm, ./second
(vLLM's second model runner) and ./sglang; all six captures must hold the same."""

import json
import pathlib
import types

import numpy as np

from qdiff_capture import _batches, sglang, vllm

MANIFEST = json.load(open("recorded/manifest.json"))
ARRAYS = np.load("recorded/capture.npz")
STEPS = ["prefill"] + [f"step{n + 1}" for n in range(len(MANIFEST["decoded"]))]
FED = [MANIFEST["tokens"]] + [[token] for token in MANIFEST["decoded"]]
LAYERS = 1 + max(int(name.split("/L")[1][:2]) for name in ARRAYS.files if "/L" in name)
HEADS, HEAD = ARRAYS["prefill/L00.q_rope"].shape[1:]
KV_HEADS = ARRAYS["prefill/L00.k_rope"].shape[1]
PADDING = 3


class Tensor(np.ndarray):
    def detach(self):
        return self

    def to(self, device, copy):
        assert device == "cpu" and copy
        return self.copy()


def tensor(values):
    return np.array(values).view(Tensor)


class Module:
    """What hooks need of torch's."""

    def __init__(self, forward=None, **children):
        self.before, self.after, self.forward = [], [], forward
        vars(self).update(children)

    def hook(self, hooks, hook):
        hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: hooks.remove(hook))

    def register_forward_pre_hook(self, hook, with_kwargs):
        return self.hook(self.before, hook)

    def register_forward_hook(self, hook):
        return self.hook(self.after, hook)

    def __call__(self, *args, **kwargs):
        for hook in self.before:
            assert hook(self, args, kwargs) is None
        out = self.forward(*args, **kwargs)
        for hook in self.after:
            assert hook(self, args, out) is None
        return out


class Engine:
    """The model, and the batch that it computes: requests with their steps."""

    def __init__(self):
        layers = [self.layer(n) for n in range(LAYERS)]
        self.rotary = Module(self.rotate)
        for layer in layers:
            layer.self_attn.rotary_emb = self.rotary
        self.decoder = Module(self.decode, embed_tokens=self.leaf("embed"), layers=layers, norm=Module(
            lambda: (self.rows("final_norm"), self.rows(f"L{LAYERS - 1:02}.layer_out"))))

    def rows(self, *stages, padding=PADDING):
        """What the stages have, side by side, for all tokens of the batch, and padding after them."""
        sides = [np.concatenate([ARRAYS[f"{STEPS[step]}/{stage}"].reshape(len(FED[step]), -1) for _, step in self.batch])
                 for stage in stages]
        x = np.concatenate(sides, 1)
        return tensor(np.concatenate([x, np.full((padding, x.shape[1]), np.nan, np.float32)]))

    def leaf(self, *stages, **attributes):
        return Module(lambda: self.rows(*stages), **attributes)

    def linear(self, *stages, **attributes):
        return Module(lambda: (self.rows(*stages), None), **attributes)

    def layer(self, n):
        at = f"L{n:02}."
        def normed():
            x = self.rows(at + "attn_norm")
            return (x, self.rows(f"L{n - 1:02}.layer_out")) if n else x
        biased = f"prefill/{at}q_biased" in ARRAYS.files
        attention = Module(
            num_heads=HEADS, total_num_heads=HEADS, head_dim=HEAD, q_size=HEADS * HEAD, kv_size=KV_HEADS * HEAD,
            qkv_proj=self.linear(*(f"{at}{x}_{'biased' if biased else 'proj'}" for x in "qkv"), bias=biased or None),
            attn=self.leaf(at + "attn_context"), o_proj=self.linear(at + "attn_out"))
        if not biased:
            # Heads are rows to these norms.
            for x in "qk":
                normed_heads = lambda x=x: self.rows(f"{at}{x}_normed").reshape(-1, HEAD)
                setattr(attention, f"{x}_norm", Module(normed_heads))
        mlp = Module(gate_up_proj=self.linear(at + "ffn_gate", at + "ffn_up"), act_fn=self.leaf(at + "ffn_act"),
                     down_proj=self.linear(at + "ffn_down"))
        return Module(self_attn=attention, mlp=mlp, input_layernorm=Module(normed), post_attention_layernorm=Module(
            lambda: (self.rows(at + "ffn_norm"), self.rows(at + "attn_residual"))))

    def rotate(self, n):
        return self.rows(f"L{n:02}.q_rope"), self.rows(f"L{n:02}.k_rope")

    def decode(self):
        self.decoder.embed_tokens()
        for n, layer in enumerate(self.decoder.layers):
            attention, mlp = layer.self_attn, layer.mlp
            norms = [getattr(attention, f"{x}_norm")() for x in "qk" if hasattr(attention, f"{x}_norm")]
            spoilt = [*norms, layer.input_layernorm(), attention.qkv_proj(), attention.rotary_emb(n), attention.attn(),
                      attention.o_proj(), layer.post_attention_layernorm(), mlp.gate_up_proj(), mlp.act_fn(), mlp.down_proj()]
            for out in spoilt:
                for x in out if isinstance(out, tuple) else [out]:
                    if x is not None:
                        x[:] = np.nan
        self.decoder.norm()

    def ids(self):
        return tensor([token for _, step in self.batch for token in FED[step]] + [0] * PADDING)

    def positions(self):
        first = [sum(map(len, FED[:step])) for _, step in self.batch]
        each = [range(at, at + len(FED[step])) for at, (_, step) in zip(first, self.batch)]
        return tensor([position for positions in each for position in positions] + [0] * PADDING)

    def counts(self):
        return {request: len(FED[step]) for request, step in self.batch}

    def logits(self):
        return tensor(np.concatenate([ARRAYS[f"{STEPS[step]}/logits"][-1:] for _, step in self.batch]))


def batches():
    """Request a, and request b a step later."""
    for step in range(len(STEPS) + 1):
        yield [(request, at) for request, at in (("a", step), ("b", step - 1)) if 0 <= at < len(STEPS)]


class Runner:
    """vLLM's first model runner, or its second."""

    def __init__(self, engine, second):
        self.engine, self.second = engine, second
        self.processor = Module(lambda: engine.logits())
        self.model = Module(lambda **_: engine.decoder.forward(), model=engine.decoder, logits_processor=self.processor)
        if second:
            self.prepare_inputs = lambda: types.SimpleNamespace(req_ids=[request for request, _ in engine.batch])

    def get_model(self):
        return self.model

    def execute_model(self, scheduled, dummy_run=False):
        if self.second and not dummy_run:
            self.prepare_inputs()
        self.input_batch = types.SimpleNamespace(req_ids=[request for request, _ in self.engine.batch])
        self.model(input_ids=self.engine.ids(), positions=self.engine.positions())


for folder, second in [("vllm", False), ("second", True)]:
    engine = Engine()
    runner = Runner(engine, second)
    worker = vllm.Extension()
    worker.model_runner = runner
    worker.vllm_config = types.SimpleNamespace(model_config=types.SimpleNamespace(enforce_eager=True, dtype="torch.float32"))
    worker.qdiff_begin(folder)
    for engine.batch in batches():
        # A dummy forward pass is nobody's, and so are the logits of a prompt's log-probabilities.
        runner.execute_model(types.SimpleNamespace(num_scheduled_tokens=engine.counts()), dummy_run=True)
        runner.processor()
        # In another order than that of the rows.
        runner.execute_model(types.SimpleNamespace(num_scheduled_tokens=dict(sorted(engine.counts().items(), reverse=True))))
        runner.processor()
        runner.processor()
    worker.qdiff_end()
    assert not runner.model.before and not engine.rotary.after and "execute_model" not in vars(runner)

engine = Engine()
spec, = json.loads(json.dumps(sglang.forward_hooks("sglang")))
module, _, factory = spec["hook_factory"].partition(":")
assert module == sglang.__name__
hook = getattr(sglang, factory)(spec["config"])
processor = Module(lambda *_: types.SimpleNamespace(next_token_logits=engine.logits()))
for seen in [engine.decoder, processor, *_batches.modules(engine.decoder)]:
    seen.register_forward_hook(hook)
for engine.batch in batches():
    decode = all(step for _, step in engine.batch)
    batch = types.SimpleNamespace(
        rids=[request for request, _ in engine.batch], forward_mode=types.SimpleNamespace(is_decode=lambda: decode),
        extend_seq_lens_cpu=None if decode else list(engine.counts().values()), positions=engine.positions())
    engine.decoder()
    processor(engine.ids(), engine.rows("final_norm"), None, batch)
for folder in ["vllm", "second", "sglang"]:
    for request in "ab":
        assert pathlib.Path(folder, request, "capture.bin").read_bytes() == pathlib.Path("vllm/a/capture.bin").read_bytes()
        lines = pathlib.Path(folder, request, "capture.jsonl").read_text().splitlines()
        # SGLang never says that it has ended.
        assert ("closed" in lines[-1]) == (folder != "sglang")
        ends = pathlib.Path("vllm/a/capture.jsonl").read_text().splitlines()[1:-1]
        assert lines[1:1 + len(ends)] == ends


def refused(words, call):
    try:
        call()
    except RuntimeError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words}: it was taken")


# What would be a false capture is none.
def served(change):
    engine = Engine()
    runner, worker = Runner(engine, False), vllm.Extension()
    worker.model_runner = runner
    worker.vllm_config = types.SimpleNamespace(model_config=types.SimpleNamespace(enforce_eager=True, dtype="torch.float32"))
    engine.batch = [("a", 0)]
    change(engine, worker)
    worker.qdiff_begin(f"refused-{change.__name__}")
    runner.execute_model(types.SimpleNamespace(num_scheduled_tokens=engine.counts()))
    runner.processor()


def cached(engine, worker):
    engine.batch = [("a", 1)]


def sharded(engine, worker):
    engine.decoder.layers[0].self_attn.num_heads //= 2


def graphs(engine, worker):
    worker.vllm_config.model_config.enforce_eager = False


def twice(engine, worker):
    own = engine.decoder.embed_tokens
    engine.decoder.forward = lambda: (own(), engine.decode())


def speculating(engine, worker):
    own = engine.logits
    engine.logits = lambda: tensor(np.concatenate([own(), own()]))


for words, change in [("prefix cache", cached), ("one GPU", sharded), ("enforce_eager", graphs), ("called 2 times", twice),
                      ("speculation", speculating)]:
    refused(words, lambda: served(change))
