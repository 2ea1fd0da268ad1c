"""Writes what an engine computes, for qdiff to judge.

    from qdiff_capture import Capture

    with Capture("mine", engine="my engine") as capture:
        with capture.step(tokens):                        # a forward pass, and the token ids that it is fed
            capture.add("embed", embedding)               # [tokens, n_embd]
            for layer, x in enumerate(layer_outputs):
                capture.add("layer_out", x, layer=layer)
            capture.add("logits", logits)

    qdiff run -m model.gguf --subject capture:mine

For an engine that computes rows of several sequences in one pass, `capture.step(tokens, sequences=[0, 0, 1])` says whose each
row is. Arrays then hold the rows of all of them; those of one sequence alone, such as its cache, are added with
`sequence=1`. "positions" and "slots" (of each row the position, and the cache slot that it is written to) and, of one sequence, "tables"
(the slots of its positions) are whole numbers that the engine gives its kernels.

The folder is written while the engine runs: elements, a line of JSON for each array and for the end of each step, and a last
line that says that the dump is whole. qdiff judges the steps that had ended when a run was killed, and does not pass them.
"""

import contextlib
import json
import os
import pathlib
import sys

import numpy as np

from qdiff_capture import _folder

__all__ = ["Capture", "passes"]

# Number formats by the names that numpy, ml_dtypes and torch give them.
FORMATS = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3",
           "float8_e5m2": "f8_e5m2", "int32": "i32", "int64": "i64"}
SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "f8_e4m3": 1, "f8_e5m2": 1, "i32": 4, "i64": 8}


class Capture:
    def __init__(self, folder=None, *, engine, **manifest):
        """A new dump replaces an older one in `folder`. Without `folder` the environment's QDIFF_DUMP names it, and where that
        is not set nothing is written. `manifest` may add `model_sha256` (checked), `arithmetic` or `end`: `qdiff schema
        capture` describes them.

        Of a run that is cut over ranks each rank makes a Capture with its own `rank` and `ranks`, such as rank=1 and
        ranks="2:ffn=2432+2432,vocab=whole": it writes `rank1` in the folder. Its stages are its own parts, and the names
        of stages are the same for all ranks.

        Where the folder cannot be written, another process dumps to it, or the older capture in it has a manifest.json, that
        is an error, and the folder then holds the reason, with which qdiff refuses it."""
        self._begin(folder if folder is not None else os.environ.get("QDIFF_DUMP"), True, {"engine": engine, **manifest})

    @classmethod
    def _endless(cls, folder, **manifest):
        """One of an engine that never says when it has ended."""
        self = cls.__new__(cls)
        self._begin(folder, False, manifest)
        return self

    def _begin(self, folder, closes, manifest):
        self._lines = self._elements = None
        self._steps = self._offset = 0
        self.position = 0  # tokens in the steps that have ended
        self.lengths = {}  # by sequence, its tokens in the steps that have ended, a prefix included
        self._shared, self._back, self._names = [], [], None
        self._closes, self._closed, self._process = closes, False, os.getpid()
        rank = manifest.get("rank")
        if folder:
            self._folder = pathlib.Path(folder) / ("" if rank is None else f"rank{rank}")
            try:
                self._lines, self._elements = _folder.take(self._folder)
                self._line({"schema_version": 3 if rank is None else 4, "dump": _folder.dump(closes), **manifest})
                _folder.ready(self._folder)
            except Exception as why:
                self._drop()
                _folder.refuse(self._folder, str(why))
                raise

    @property
    def writes(self):
        """Whether anything is written."""
        return self._lines is not None

    def share(self, source, sequence, tokens):
        """Says that a new sequence begins with the first so many tokens of another, whose cached rows it reads. Its first row
        of the next step is at the position after them."""
        self.lengths[sequence] = tokens
        self._shared.append([source, sequence, tokens])

    def take_back(self, sequence, kept):
        """Says that a sequence takes tokens back before the next step, as after a rejected draft, and keeps its first `kept` ones."""
        self.lengths[sequence] = kept
        self._back.append([sequence, kept])

    def begin(self, tokens, sequences=None):
        """Begins a forward pass of these token ids: the prompt, or a part of it, then one token each; any later pass may have
        several tokens, as a second turn has. `sequences` has the number of each row's sequence, from 0 on in the order in which
        they appear; without it all rows are of sequence 0."""
        self._check_process()
        if self._closed:
            raise RuntimeError("a step was begun after the capture was closed")
        if self._names is not None:
            raise RuntimeError("a step was begun before the last one ended")
        self._names, self._tokens = set(), [int(token) for token in tokens]
        self._appended = {}  # by name: number format, shape of a row, rows, elements
        self._sequences = None if sequences is None else [int(sequence) for sequence in sequences]
        if sequences is not None and len(self._sequences) != len(self._tokens):
            raise ValueError(f"{len(self._tokens)} tokens are of {len(self._sequences)} sequences: name that of each token")

    def add(self, stage, array, *, layer=None, dtype=None, sequence=None):
        """Adds the output of a stage: an array of numpy, of torch on any device, of MLX, or any argument of numpy.asarray. With
        `sequence` it holds the rows of that sequence alone.

        `dtype` names the number format where the array has no word for it: "bf16" of the bits in uint16."""
        if not self.writes:
            return
        self._check_process()
        if self._names is None:
            raise RuntimeError(f"{stage} was added outside a step")
        name = stage if layer is None else f"L{layer:02}.{stage}"
        self._put(name, sequence, *_elements(name, array, dtype))

    def append(self, stage, rows, *, layer=None, dtype=None):
        """Appends rows to a stage of the current step, as an engine has them that computes one token of the step after the other.
        Arrays are those of `add`; the rows of a step are one array, which is dumped when the step ends."""
        if not self.writes:
            return
        self._check_process()
        if self._names is None:
            raise RuntimeError(f"{stage} was appended to outside a step")
        name = stage if layer is None else f"L{layer:02}.{stage}"
        if (name, None) in self._names:
            raise ValueError(f"{name} was added to this step before")
        held, shape, elements = _elements(name, rows, dtype)
        if not shape:
            raise ValueError(f"{name} was appended a number; append rows, of shape [rows, width]")
        known = self._appended.setdefault(name, (held, shape[1:], [0], bytearray()))
        if known[:2] != (held, shape[1:]):
            raise ValueError(f"{name} was appended rows of {held} {shape[1:]} to rows of {known[0]} {known[1]}")
        known[2][0] += shape[0]
        known[3].extend(elements)

    def _put(self, name, sequence, held, shape, elements):
        if (name, sequence) in self._names or sequence is None and name in self._appended:
            raise ValueError(f"{name} was added to this step before")
        self._write(self._elements, elements)
        self._line({"step": self._steps, "name": name, "dtype": held, "shape": shape, "file": _folder.ELEMENTS,
                    "offset": self._offset, **({} if sequence is None else {"sequence": sequence})})
        self._offset += len(elements)
        self._names.add((name, sequence))

    def end(self):
        """Ends the step: from here on it is judged."""
        if self._names is None:
            raise RuntimeError("no step was begun")
        if self.writes:
            self._check_process()
            appended, self._appended = self._appended, {}
            for name, (held, shape, rows, elements) in appended.items():
                self._put(name, None, held, rows + shape, elements)
            if self._sequences is not None:
                of_step = {"sequences": self._sequences, "prefixes": self._shared, "taken_back": self._back}
                self._line({"step": self._steps, **{name: said for name, said in of_step.items() if said}})
            self._line({"end": self._steps, "first": self.position, "tokens": self._tokens})
        self._steps, self._shared, self._back = self._steps + 1, [], []
        self.position += len(self._tokens)
        for sequence in self._sequences or [0] * len(self._tokens):
            self.lengths[sequence] = self.lengths.get(sequence, 0) + 1
        self._names = None

    @contextlib.contextmanager
    def step(self, tokens, sequences=None):
        """A forward pass, as `with capture.step(tokens):`; one that fails is not whole, and is not judged."""
        self.begin(tokens, sequences)
        yield self
        self.end()

    def close(self):
        """Says that the dump is whole, and closes the files; a step that was begun is left as it is, and the dump is not
        whole."""
        if self.writes and self._closes and self._names is None and self._process == os.getpid():
            self._line({"closed": self._steps})
        self._drop()

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        """After an error the dump is not whole."""
        if error is None:
            self.close()
        else:
            self._drop()

    def _drop(self):
        if self._elements is not None and self._process == os.getpid():
            _folder.let_go(self._elements)
        for file in (self._elements, self._lines):
            if file is not None:
                file.close()
                self._closed = True
        self._lines = self._elements = None

    def _check_process(self):
        if self.writes and self._process != os.getpid():
            raise RuntimeError(_folder.refuse(
                self._folder, f"process {os.getpid()} taps the dump that process {self._process} began before it forked; make "
                "the Capture after the fork, and give each process a folder of its own"))

    def _line(self, fields):
        self._write(self._lines, (json.dumps(fields) + "\n").encode())

    def _write(self, file, data):
        try:
            _folder.write(file, data)
        except OSError as why:
            _folder.refuse(self._folder, f"{file.name} cannot be written: {why}")
            raise


def passes(manifest):
    """The token ids of each forward pass that the manifest of a capture names, in order: what another engine is fed to run the
    same."""
    tokens, decoded = manifest["tokens"], manifest.get("decoded", [])
    lengths = manifest.get("passes")
    if not lengths:
        part = manifest.get("ubatch") or len(tokens)
        lengths = [min(part, len(tokens) - first) for first in range(0, len(tokens), part)] + [1] * len(decoded)
    every, first = tokens + decoded, 0
    for length in lengths:
        yield every[first:first + length]
        first += length


def _elements(name, array, dtype):
    """Number format, shape and little-endian bytes of an array, row-major."""
    torch, mlx = sys.modules.get("torch"), sys.modules.get("mlx.core")
    if torch is not None and isinstance(array, torch.Tensor):
        held, shape = str(array.dtype).removeprefix("torch."), list(array.shape)
        flat = array.detach().cpu().contiguous().reshape(-1)
        array = flat.view(torch.uint8).numpy()
        given = None
    else:
        if mlx is not None and isinstance(array, mlx.array) and array.dtype == mlx.bfloat16:
            array, dtype = array.view(mlx.uint16), dtype or "bf16"
        array = np.asarray(array)
        held, shape, given = array.dtype.name, list(array.shape), array.dtype
        if given.byteorder == ">" or given.byteorder == "=" and sys.byteorder == "big":
            array = array.byteswap()
    held = dtype or FORMATS.get(held, held)
    if held not in SIZES:
        raise TypeError(f"{name} has dtype {held}; qdiff reads {', '.join(SIZES)}")
    if given is not None and given.itemsize != SIZES[held]:
        raise TypeError(f"{name} has elements of {given.itemsize} bytes, and {held} has {SIZES[held]}")
    return held, shape, array.tobytes()
