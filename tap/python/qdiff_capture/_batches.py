"""What vLLM and SGLang have in common: a forward pass computes the tokens of several requests, one after the other,
projections are fused, and the residual is added within the norm that reads it. A capture is written for each request."""

import pathlib
import re
import sys

from qdiff_capture import FORMATS, Capture, _folder


def named(package, name):
    """An engine's name with its version."""
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{name} {version}" if version else name


def arithmetic(dtype):
    """The name of what an engine of this dtype of torch computes in. The fused norms read the sum of the residual in f32, before it
    is rounded to the one that they give; scores are f32, and weights are rounded before they are divided by their sum."""
    held = FORMATS[str(dtype).removeprefix("torch.")]
    return held if held == "f32" else f"{held}-flash"


class Batches:
    """Writes a folder for each request beneath `folder`; `manifest` as for `Capture`. `closes`: whether `close` is called in the
    end. Captures of an earlier run beneath `folder` are refused from here on."""

    def __init__(self, folder, closes, **manifest):
        self.folder, self.closes, self.manifest = pathlib.Path(folder), closes, manifest
        self.captures, self.held, self.failed = {}, {}, False
        for lines in self.folder.glob(f"*/{_folder.LINES}"):
            _folder.refuse(lines.parent, "a later run began, and has dumped no request of this name")

    def see(self, module, out):
        """Keeps a copy of what a module gave: later modules write over it."""
        parts = out if isinstance(out, tuple) else (out,)
        copies = [part.detach().to("cpu", copy=True) if hasattr(part, "detach") else None for part in parts]
        self.held.setdefault(id(module), []).append(copies)

    def drop(self):
        """Forgets what modules gave in a forward pass that is no request's."""
        self.held.clear()

    def end(self, decoder, requests, tokens, positions, logits):
        """Writes the step of each request. `decoder` is what has the layers; `requests` are ids with the numbers of their
        tokens, in their order; `tokens` and `positions` are lists, which may go on with padding; `logits` are those of the
        last token of each request, [requests, vocabulary]."""
        try:
            self._end(decoder, requests, tokens, positions, logits)
        except BaseException:
            self.failed = True  # what comes later is no whole capture
            raise

    def _end(self, decoder, requests, tokens, positions, logits):
        stages = [stage for stage in self.stages(decoder) if stage[2] is not None]
        self.held.clear()
        for stage, layer, x in stages:
            if x.shape[0] != len(tokens):
                raise RuntimeError(f"{stage} of layer {layer} has {x.shape[0]} rows for {len(tokens)} tokens of the forward pass")
        if logits.shape[0] != len(requests):
            raise RuntimeError(f"{logits.shape[0]} rows of logits for {len(requests)} requests: switch speculation off")
        logits, first = logits.detach().to("cpu", copy=True), 0
        for row, (request, count) in enumerate(requests):
            rows = slice(first, first + count)
            first += count
            capture = self.capture(request)
            here = list(range(capture.position, capture.position + count))
            if positions[rows] != here:
                raise RuntimeError(f"request {request} goes on at position {positions[rows][0]}, and its capture at {here[0]}:"
                                   " switch the prefix cache off")
            with capture.step(tokens[rows]):
                for stage, layer, x in stages:
                    capture.add(stage, x[rows], layer=layer)
                capture.add("logits", logits[row:row + 1])

    def capture(self, request):
        if request not in self.captures:
            made = Capture if self.closes else Capture._endless
            self.captures[request] = made(self.folder / re.sub(r"[^\w.-]", "_", request), **self.manifest)
        return self.captures[request]

    def close(self):
        for capture in self.captures.values():
            capture.__exit__(RuntimeError if self.failed else None)

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
        yield "embed", None, self.gave(decoder.embed_tokens)
        for number, layer in enumerate(layers):
            attention, mlp = layer.self_attn, layer.mlp
            if attention.num_heads != attention.total_num_heads:
                raise RuntimeError("a part of the heads is computed here: run the engine on one GPU")
            yield "attn_norm", number, self.gave(layer.input_layernorm)
            sizes = [attention.q_size, attention.kv_size, attention.kv_size]
            suffix = "proj" if attention.qkv_proj.bias is None else "biased"
            for letter, x in zip("qkv", split(self.gave(attention.qkv_proj), sizes)):
                yield f"{letter}_{suffix}", number, x
            for letter, size in zip("qk", sizes):
                norm = getattr(attention, f"{letter}_norm", None)
                if norm is not None:
                    yield f"{letter}_normed", number, shaped(self.gave(norm), -1, size)
            # The module that rotates is one, of all layers.
            shared = layers[0].self_attn.rotary_emb is layers[-1].self_attn.rotary_emb
            call, calls = (number, len(layers)) if shared else (0, 1)
            for part, stage in enumerate(("q_rope", "k_rope")):
                x = self.gave(attention.rotary_emb, part, call, calls)
                yield stage, number, shaped(x, -1, sizes[part] // attention.head_dim, attention.head_dim)
            yield "attn_context", number, shaped(self.gave(attention.attn), -1, sizes[0])
            yield "attn_out", number, self.gave(attention.o_proj)
            yield "attn_residual", number, self.gave(layer.post_attention_layernorm, 1)
            yield "ffn_norm", number, self.gave(layer.post_attention_layernorm)
            gate_up = self.gave(mlp.gate_up_proj)
            for stage, x in zip(("ffn_gate", "ffn_up"), split(gate_up, None)):
                yield stage, number, x
            yield "ffn_act", number, self.gave(mlp.act_fn)
            yield "ffn_down", number, self.gave(mlp.down_proj)
            after = decoder.norm if number + 1 == len(layers) else layers[number + 1].input_layernorm
            yield "layer_out", number, self.gave(after, 1)
        yield "final_norm", None, self.gave(decoder.norm)


def modules(decoder):
    """The modules whose outputs `stages` reads."""
    yield decoder.embed_tokens
    yield decoder.norm
    for layer in decoder.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield from (layer.input_layernorm, attention.qkv_proj, attention.attn, attention.o_proj)
        yield from (getattr(attention, f"{letter}_norm") for letter in "qk" if getattr(attention, f"{letter}_norm", None))
        yield from (layer.post_attention_layernorm, mlp.gate_up_proj, mlp.act_fn, mlp.down_proj)
    yield from {id(layer.self_attn.rotary_emb): layer.self_attn.rotary_emb for layer in decoder.layers}.values()


def split(x, sizes):
    """The columns of x in parts of these sizes; in two halves without any."""
    if x is None:
        return
    first = 0
    for size in sizes or [x.shape[-1] // 2] * 2:
        yield x[:, first:first + size]
        first += size


def shaped(x, *shape):
    return None if x is None else x.reshape(shape)
