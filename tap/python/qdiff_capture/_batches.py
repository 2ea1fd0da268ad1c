"""What vLLM and SGLang have in common: a forward pass computes the tokens of several requests, one after the other,
projections are fused, and the residual is added within the norm that reads it. One capture holds the passes as they are."""

import dataclasses
import pathlib
import sys

from qdiff_capture import FORMATS, Capture, _folder
from qdiff_capture._hooks import found, has_bias
from qdiff_capture._stages import VLLM


def named(package, name):
    """An engine's name with its version."""
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{name} {version}" if version else name


def arithmetic(dtype):
    """The name of what an engine of this dtype of torch computes in. The fused norms read the sum of the residual in f32, before it
    is rounded to the one that they give; scores are f32, and weights are rounded before they are divided by their sum."""
    held = FORMATS[str(dtype).removeprefix("torch.")]
    return held if held == "f32" else f"{held}-flash"


@dataclasses.dataclass
class Request:
    """A request's part of a forward pass: how many tokens, the position of the first as the scheduler counts, the tokens of its
    prompt where they are known, and how many of its tokens are a draft."""

    id: str
    count: int
    first: int
    prompt: list | None = None
    drafts: int = 0


@dataclasses.dataclass
class Batch:
    """A forward pass: its requests in the order of their rows; tokens and positions of the rows, which may go on with padding;
    the cache slots that the rows are written to, and of each request those of its positions, where they are known. A request whose
    position goes back took tokens back: a draft was rejected, or it was interrupted and is computed again. `caches`
    are stage, layer, and what gives the rows of a cache in slots."""

    requests: list
    tokens: list
    positions: list
    slots: list | None = None
    tables: list | None = None
    caches: list | None = None


class Batches:
    """Writes the forward passes as they are, rows of several requests in each, to `folder`. A request is a sequence, numbered in
    the order in which it came. `manifest` is as for `Capture`; `closes` says whether `close` is called in the end."""

    def __init__(self, folder, closes, **manifest):
        self.folder, self.closes, self.manifest = pathlib.Path(folder), closes, manifest
        self.capture, self.numbers, self.fed, self.slots, self.held, self.failed = None, {}, {}, {}, {}, False
        # The capture begins with the first pass, when the manifest is whole; until then an older one is not to be judged.
        if (self.folder / _folder.LINES).exists():
            _folder.refuse(self.folder, "a later run began, and has dumped nothing")

    def see(self, module, out):
        """Keeps a copy of what a module gave: later modules write over it."""
        parts = out if isinstance(out, tuple) else (out,)
        copies = [part.detach().to("cpu", copy=True) if hasattr(part, "detach") else None for part in parts]
        self.held.setdefault(id(module), []).append(copies)

    def drop(self):
        """Forgets what modules gave in a forward pass that is no request's."""
        self.held.clear()

    def end(self, decoder, batch, logits):
        """Writes a pass. `decoder` is what has the layers; `logits` are those of the last token of each request,
        [requests, vocabulary], and of those before it that are judged by a draft."""
        try:
            self._end(decoder, batch, logits)
        except BaseException:
            self.failed = True  # what comes later is no whole capture
            raise

    def _end(self, decoder, batch, logits):
        stages = [stage for stage in self.stages(decoder) if stage[2] is not None]
        self.held.clear()
        for stage, layer, x in stages:
            if x.shape[0] != len(batch.tokens):
                raise RuntimeError(f"{stage} of layer {layer} has {x.shape[0]} rows for {len(batch.tokens)} tokens of the forward pass")
        sampled = sum(1 + request.drafts for request in batch.requests)
        if logits.shape[0] != sampled:
            raise RuntimeError(f"{logits.shape[0]} rows of logits for {sampled} tokens of requests: switch speculation off")
        if self.capture is None:
            self.capture = (Capture if self.closes else Capture._endless)(self.folder, **self.manifest)
        count = sum(request.count for request in batch.requests)
        for at, request in enumerate(batch.requests):
            self.follow(request, batch.tables[at] if batch.tables else None)
        rows = [self.numbers[request.id] for request in batch.requests for _ in range(request.count)]
        with self.capture.step(batch.tokens[:count], rows):
            for stage, layer, x in stages:
                self.capture.add(stage, x[:count], layer=layer)
            logits = logits.detach().to("cpu", copy=True)
            if sampled == len(batch.requests):
                self.capture.add("logits", logits)
            else:
                first = 0
                for request in batch.requests:
                    own = logits[first:first + 1 + request.drafts]
                    self.capture.add("logits", own, sequence=self.numbers[request.id])
                    first += 1 + request.drafts
            self.capture.add("positions", batch.positions[:count], dtype="i64")
            if batch.slots:
                self.capture.add("slots", batch.slots[:count], dtype="i64")
            for name, layer, cache in batch.caches or ():
                for request, table in zip(batch.requests, batch.tables):
                    self.capture.add(name, cache(table), layer=layer, sequence=self.numbers[request.id])
            for request, table in zip(batch.requests, batch.tables or ()):
                self.capture.add("tables", table, dtype="i64", sequence=self.numbers[request.id])
        first = 0
        for request in batch.requests:
            self.fed[request.id] += batch.tokens[first:first + request.count]
            first += request.count

    def follow(self, request, table):
        """Numbers a request, and finds whose cached rows a new one begins with."""
        if request.id in self.numbers:
            fed = self.fed[request.id]
            if request.first > len(fed):
                raise RuntimeError(f"request {request.id} goes on at position {request.first}, and {len(fed)} tokens of it were captured")
            if request.first < len(fed):
                del fed[request.first:]
                self.capture.take_back(self.numbers[request.id], request.first)
        elif request.first == 0:
            self.numbers[request.id], self.fed[request.id] = len(self.numbers), []
        else:
            prefix = request.prompt[:request.first] if request.prompt is not None else None
            for other, fed in self.fed.items():
                of_tokens = prefix is not None and fed[:request.first] == prefix
                of_slots = prefix is None and table and self.slots[other][:request.first] == table[:request.first]
                if of_tokens or of_slots:
                    break
            else:
                raise RuntimeError(f"request {request.id} begins with {request.first} cached tokens, which were computed before this "
                                   "capture began: begin it before the first request, or empty the prefix cache")
            self.numbers[request.id], self.fed[request.id] = len(self.numbers), list(self.fed[other][:request.first])
            self.capture.share(self.numbers[other], self.numbers[request.id], request.first)
        if table:
            self.slots[request.id] = table

    def close(self):
        if self.capture is not None:
            self.capture.__exit__(RuntimeError if self.failed else None)

    def gave(self, module, part=0, call=0, calls=1):
        """A part of what a module gave at one of its calls in this forward pass; None where it was not called, or gave
        no such part."""
        held = self.held.get(id(module), [])
        if held and len(held) != calls:
            raise RuntimeError(f"{type(module).__name__} was called {len(held)} times in a forward pass, not {calls}")
        return held[call][part] if held and part < len(held[call]) else None

    def stages(self, decoder):
        """Stage, layer, and its rows or None."""
        layers = decoder.layers
        for layer in layers:
            if layer.self_attn.num_heads != layer.self_attn.total_num_heads:
                raise RuntimeError("a part of the heads is computed here: run the engine on one GPU")
        for stage, number, module, site, which in placed(decoder):
            # A module that all layers share is called by each of them.
            shared = number is not None and len(layers) > 1 and site == "part" and all(
                module is found(layer, "self_attn.rotary_emb") for layer in layers)
            call, calls = (number, len(layers)) if shared else (0, 1)
            x = self.gave(module, which if site in ("part", "next_norm") else 0, call, calls)
            if x is not None:
                attention = layers[number or 0].self_attn
                sizes = {"q": attention.q_size, "k": attention.kv_size, "v": attention.kv_size}
                if site == "columns":
                    x = columns(x, which, sizes)
                elif stage.endswith("_normed"):  # heads are rows to these norms
                    x = x.reshape(-1, sizes[stage[0]])
                elif stage.endswith("_rope"):
                    x = x.reshape(-1, sizes[stage[0]] // attention.head_dim, attention.head_dim)
                elif stage == "attn_context":
                    x = x.reshape(-1, sizes["q"])
            yield stage, number, x


def placed(decoder):
    """Stage, layer, module, site, and which part or columns of it: of what modules give, by the table that both engines share."""
    layers = decoder.layers
    for stage, in_layer, site, path, which, bias in VLLM:
        if site not in ("output", "part", "columns", "next_norm"):
            continue
        for number, owner in enumerate(layers) if in_layer else [(None, decoder)]:
            if site == "next_norm":
                module = decoder.norm if number + 1 == len(layers) else layers[number + 1].input_layernorm
            else:
                module = found(owner, path)
            if module is not None and callable(module) and (bias is None or has_bias(module) == bias):
                yield stage, number, module, site, which


def modules(decoder):
    """The modules whose outputs `stages` reads."""
    yield from {id(module): module for _, _, module, _, _ in placed(decoder)}.values()


def columns(x, which, sizes):
    """The columns of a fused product: those of queries, keys or values, or a half."""
    if which in ("first", "second"):
        half = x.shape[-1] // 2
        return x[:, :half] if which == "first" else x[:, half:]
    first = {"query": 0, "key": sizes["q"], "value": sizes["q"] + sizes["k"]}[which]
    return x[:, first:first + sizes[which[0]]]
