"""An engine that serves several requests at once, with the module trees, calls and metadata of vLLM and SGLang: projections fused,
one module that rotates for all layers, residuals within the norms, outputs written over by what follows, caches in blocks. What
its modules give is read from ./recorded, a run of three sequences. Requests a, b and c are these; c begins with a cached block of
a. They are dumped by the hooks of the package to ./vllm, ./second (vLLM's second model runner) and ./sglang; ./slot, ./table and
./position are the first with one wrong number in what the kernels are given."""

import json
import pathlib
import sys
import types

import numpy as np

from qdiff_capture import _batches, sglang, vllm

MANIFEST = json.load(open("recorded/manifest.json"))
ARRAYS = np.load("recorded/capture.npz")
LAYERS = 1 + max(int(name.split("/L")[1][:2]) for name in ARRAYS.files if "/L" in name)
HEADS, HEAD = ARRAYS["prefill/L00.q_rope"].shape[1:]
KV_HEADS = ARRAYS["prefill/L00.k_rope"].shape[1]
PADDING, BLOCK, BLOCKS = 3, 4, 24

assert MANIFEST["sequences"] == "7,5+1+17@0:4,1+1+1,1~2", MANIFEST["sequences"]
TOKENS = MANIFEST["tokens"]


class Part:
    """What a request has in a pass: the step of the recording, its position, and its tokens."""

    def __init__(self, request, step, first, fed):
        self.request, self.step, self.first, self.fed = request, step, first, fed
        self.length = first + len(fed)


PASSES = [
    [Part("a", "prefill", 0, TOKENS[:7])],
    [Part("a", "prefill@7", 7, TOKENS[7:12]), Part("b", "s1.prefill", 0, TOKENS[12:13]), Part("c", "s2.prefill@4", 4, TOKENS[13:30])],
    # In another order than that in which they came.
    [Part("c", "s2.step1", 21, TOKENS[32:33]), Part("a", "step1", 12, TOKENS[30:31]), Part("b", "s1.step1", 1, TOKENS[31:32])],
    # The last two tokens of a are taken back.
    [Part("a", "s3.step1", 11, TOKENS[33:34])],
]
PROMPTS = {"a": TOKENS[:12], "b": TOKENS[12:13], "c": TOKENS[:4] + TOKENS[13:30]}
# Their blocks; the first of c is that of a.
TABLES = {"a": [5, 9, 2, 11], "b": [7], "c": [5, 3, 20, 4, 15, 6]}


def slots(request, length):
    return [BLOCK * TABLES[request][n // BLOCK] + n % BLOCK for n in range(length)]


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
    """The model, and the batch that it computes: what requests have in a pass."""

    def __init__(self):
        layers = [self.layer(n) for n in range(LAYERS)]
        self.rotary = Module(self.rotate)
        for layer in layers:
            layer.self_attn.rotary_emb = self.rotary
        self.decoder = Module(self.decode, embed_tokens=self.leaf("embed"), layers=layers, norm=Module(
            lambda: (self.rows("final_norm"), self.rows(f"L{LAYERS - 1:02}.layer_out"))))

    def rows(self, *stages, padding=PADDING):
        """What the stages have, side by side, for all tokens of the batch, and padding after them."""
        sides = [np.concatenate([ARRAYS[f"{part.step}/{stage}"].reshape(len(part.fed), -1) for part in self.batch])
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
            attn=self.leaf(at + "attn_context", layer_name=at, head_size=HEAD), o_proj=self.linear(at + "attn_out"))
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
        return tensor([token for part in self.batch for token in part.fed] + [0] * PADDING)

    def positions(self):
        rows = [position for part in self.batch for position in range(part.first, part.length)]
        return tensor(self.wrong("position", rows) + [0] * PADDING)

    def slots(self):
        rows = [slot for part in self.batch for slot in slots(part.request, part.length)[part.first:]]
        return tensor(self.wrong("slot", rows) + [-1] * PADDING)

    # What is exchanged for what in the first row of the last pass, token 21 of sequence 2.
    spoilt = None

    def wrong(self, what, rows):
        if self.spoilt == what and self.batch is PASSES[2]:
            rows[0] = {"slot": slots("a", 12)[5], "position": 20}[what]
        return rows

    def tables(self):
        longest = max(map(len, TABLES.values()))
        rows = [TABLES[part.request] + [0] * (longest - len(TABLES[part.request])) for part in self.batch]
        if self.spoilt == "table" and self.batch is PASSES[2]:
            rows[0][1] = TABLES["a"][2]
        return tensor(rows)

    def counts(self):
        return {part.request: len(part.fed) for part in self.batch}

    def logits(self):
        return tensor(np.concatenate([ARRAYS[f"{part.step}/logits"][-1:] for part in self.batch]))

    def fill_caches(self):
        """As vLLM has them on a GPU: [blocks, heads, block, keys and values]."""
        for n, layer in enumerate(self.decoder.layers):
            cache = layer.self_attn.attn.kv_cache
            for part in self.batch:
                at = np.array(slots(part.request, part.length))
                both = [ARRAYS[f"{part.step}/L{n:02}.{x}_cache"] for x in "kv"]
                cache[at // BLOCK, :, at % BLOCK] = np.concatenate(both, 2)


class Runner:
    """vLLM's first model runner, or its second."""

    def __init__(self, engine, second):
        self.engine, self.second = engine, second
        self.processor = Module(lambda: engine.logits())
        self.model = Module(lambda **_: engine.decoder.forward(), model=engine.decoder, logits_processor=self.processor)
        if second:
            self.prepare_inputs = lambda: types.SimpleNamespace(req_ids=[part.request for part in engine.batch])

    def get_model(self):
        return self.model

    def execute_model(self, scheduled, dummy_run=False):
        if self.second and not dummy_run:
            self.prepare_inputs()
        self.input_batch = types.SimpleNamespace(req_ids=[part.request for part in self.engine.batch])
        self.model(input_ids=self.engine.ids(), positions=self.engine.positions())

    def scheduled(self):
        """In another order than that of the rows."""
        engine = self.engine
        fresh = [types.SimpleNamespace(req_id=part.request, prompt_token_ids=PROMPTS[part.request], num_computed_tokens=part.first)
                 for part in engine.batch if part.step.endswith(("prefill", "@4"))]
        old = [part for part in engine.batch if not part.step.endswith(("prefill", "@4"))]
        return types.SimpleNamespace(num_scheduled_tokens=dict(sorted(engine.counts().items(), reverse=True)),
                                     scheduled_new_reqs=fresh, scheduled_spec_decode_tokens={},
                                     scheduled_cached_reqs=types.SimpleNamespace(
                                         req_ids=[part.request for part in old], num_computed_tokens=[part.first for part in old]))


# The context of a forward pass, as layers find it.
CONTEXT = types.ModuleType("vllm.forward_context")
sys.modules["vllm"], sys.modules["vllm.forward_context"] = types.ModuleType("vllm"), CONTEXT


SGLANG = types.ModuleType("sglang.srt.model_executor.forward_context")
for name in ["sglang", "sglang.srt", "sglang.srt.model_executor"]:
    sys.modules[name] = types.ModuleType(name)
sys.modules[SGLANG.__name__] = SGLANG


def metadata(engine):
    said = types.SimpleNamespace(slot_mapping=engine.slots(), block_table=engine.tables())
    return types.SimpleNamespace(attn_metadata={layer.self_attn.attn.layer_name: said for layer in engine.decoder.layers})


def began(engine, second, folder):
    for layer in engine.decoder.layers:
        layer.self_attn.attn.kv_cache = tensor(np.full((BLOCKS, KV_HEADS, BLOCK, 2 * HEAD), np.nan, np.float32))
    CONTEXT.get_forward_context = lambda: metadata(engine)
    runner, worker = Runner(engine, second), vllm.Extension()
    worker.model_runner = runner
    worker.vllm_config = types.SimpleNamespace(model_config=types.SimpleNamespace(enforce_eager=True, dtype="torch.float32"),
                                               speculative_config=None)
    return runner, worker, lambda: worker.qdiff_begin(folder)


for folder, second, spoilt in [("vllm", False, None), ("second", True, None), ("slot", False, "slot"), ("table", False, "table"),
                               ("position", True, "position")]:
    engine = Engine()
    engine.spoilt = spoilt
    runner, worker, begin = began(engine, second, folder)
    begin()
    for engine.batch in PASSES:
        # A dummy forward pass is nobody's, and so are the logits of a prompt's log-probabilities.
        runner.execute_model(types.SimpleNamespace(num_scheduled_tokens=engine.counts()), dummy_run=True)
        runner.processor()
        runner.execute_model(runner.scheduled())
        engine.fill_caches()
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
for engine.batch in PASSES:
    decode = engine.batch in PASSES[2:]
    pool = tensor(np.zeros((9, 64), np.int64))
    for at, part in enumerate(engine.batch):
        pool[8 - at][:part.length] = slots(part.request, part.length)
    batch = types.SimpleNamespace(
        rids=[part.request for part in engine.batch], forward_mode=types.SimpleNamespace(is_decode=lambda: decode),
        extend_seq_lens_cpu=None if decode else list(engine.counts().values()), positions=engine.positions(),
        seq_lens=tensor([part.length for part in engine.batch]), out_cache_loc=engine.slots() + 100,
        out_cache_loc_virtual=engine.slots(),
        req_pool_indices=tensor([8 - at for at in range(len(engine.batch))]))
    SGLANG.get_req_to_token_pool = lambda: types.SimpleNamespace(req_to_token=pool)
    engine.decoder()
    processor(engine.ids(), engine.rows("final_norm"), None, batch)
for folder in ["vllm", "second", "sglang"]:
    lines = pathlib.Path(folder, "capture.jsonl").read_text().splitlines()
    # SGLang never says that it has ended.
    assert ("closed" in lines[-1]) == (folder != "sglang")
    whose = [line for line in lines if '"sequences"' in line]
    assert [json.loads(line)["sequences"] for line in whose] == [[0] * 7, [0] * 5 + [1] + [2] * 17, [2, 0, 1], [0]]
    assert json.loads(whose[1])["prefixes"] == [[0, 2, 4]] and json.loads(whose[3])["taken_back"] == [[0, 11]]
assert pathlib.Path("second/capture.bin").read_bytes() == pathlib.Path("vllm/capture.bin").read_bytes()


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
    runner, worker, begin = began(engine, False, f"refused-{change.__name__}")
    engine.batch = PASSES[0]
    change(engine, worker)
    begin()
    runner.execute_model(runner.scheduled())
    runner.processor()


def cached(engine, worker):
    engine.batch = PASSES[1][2:]


def begun(engine, worker):
    engine.batch = PASSES[2]


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


for words, change in [("empty the prefix cache", cached), ("begun before the capture", begun),
                      ("one GPU", sharded), ("enforce_eager", graphs), ("called 2 times", twice), ("speculation", speculating)]:
    refused(words, lambda: served(change))
