"""What the hooks of several engines share: seeing what the modules of a decoder take and give."""

import contextlib


def found(owners, path):
    """The module of this path in the first of the owners that has it; None where none has."""
    for module in owners if isinstance(owners, tuple) else (owners,):
        for name in path.split("."):
            module = getattr(module, name, None)
        if module is not None:
            return module
    return None


def has_bias(module):
    return getattr(module, "bias", None) is not None


class Hooks:
    """Hooks on modules, which `remove` takes off again. As written for modules of torch; [batch, tokens, width] is what they
    take and give, and `sequence` the index in the batch."""

    def __init__(self, capture, sequence=0):
        self.capture, self.sequence, self.layer, self.undo = capture, sequence, None, []

    def decoder(self, table, inner, *others):
        """Hooks the modules of a decoder by the table of its engine (_stages.py); of `others`, what is outside of it."""
        for number, layer in enumerate(inner.layers):
            self.module(layer, before=lambda *_, n=number: setattr(self, "layer", n))
        for stage, in_layer, site, path, _, bias in table:
            if site not in ("output", "input", "layer"):
                continue
            for number, owner in enumerate(inner.layers) if in_layer else [(None, (inner, *others))]:
                module = owner if site == "layer" else found(owner, path)
                if module is None or bias is not None and has_bias(module) != bias:
                    continue
                (self.input if site == "input" else self.output)(module, stage, number)

    def caches(self, caches):
        """Adds the caches of all layers, given as keys and values, [batch, kv heads, rows, head_dim]."""
        for number, cache in enumerate(caches):
            for stage, x in zip(("k_cache", "v_cache"), cache):
                self.add(stage, x.swapaxes(1, 2), number)

    def add(self, stage, x, layer=None, flat=False):
        x = x[self.sequence]
        self.capture.add(stage, x.flatten(1) if flat else x, layer=layer)

    def output(self, module, stage, layer=None):
        self.module(module, after=lambda _, args, kwargs, out: self.add(
            stage, out[0] if isinstance(out, tuple) else out, layer, flat=True))

    def input(self, module, stage, layer=None):
        self.module(module, before=lambda _, args, kwargs: self.add(stage, args[0], layer, flat=True))

    def module(self, module, before=None, after=None):
        """What hooks return would take the place of what they were shown: these return nothing."""
        if before is not None:
            self.undo.append(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        if after is not None:
            self.undo.append(module.register_forward_hook(after, with_kwargs=True).remove)

    def function(self, code, name, see, within=contextlib.nullcontext, before=None):
        """Shows what a function that is looked up as code.name gives; to `before` what it takes, as long as it is that."""
        own = getattr(code, name)

        def seen(*args, **kwargs):
            if before is not None:
                before(*args, **kwargs)
            with within():
                out = own(*args, **kwargs)
            see(out)
            return out

        setattr(code, name, seen)
        self.undo.append(lambda: setattr(code, name, own))

    @contextlib.contextmanager
    def on(self):
        """As long as the block lasts."""
        try:
            yield self.capture
        finally:
            for undo in reversed(self.undo):
                undo()
