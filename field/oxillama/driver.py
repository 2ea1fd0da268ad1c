"""Runs OxiLLaMa on a GGUF, as qdiff tells it, and dumps the logits of the last token: its Python package shows no other value. It takes
text and no ids, so the ids are made text, and the engine's own tokenizer must make the same ids of it.

With --fix it gets a copy of the GGUF that it reads as ggml reads the original: the scales of Q3_K packed as it unpacks them, and
matrices in MXFP4, which it takes for a format of its own, in F32."""

import importlib.metadata
import shutil
import sys
import tempfile

import gguf
import numpy as np
import oxillama_py
from qdiff_capture import Capture

import run

# Beside these formats it rounds activations to Q8_0; with all others it multiplies f32.
ROUNDED = ["q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q6_K"]


def repacked(blocks):
    """Packs the 16 scales of each block of Q3_K anew: ggml has the low 4 bits of all of them first, and then the high 2 bits; the
    engine reads the scales 0 to 7 in the low 6 bits of the bytes 0 to 7."""
    packed = blocks[:, 96:108]
    low = np.hstack([packed[:, :8] & 15, packed[:, :8] >> 4])
    high = np.hstack([packed[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)])
    blocks[:, 96:104] = low[:, :8] | high[:, :8] << 4 | high[:, 8:] << 6
    blocks[:, 104:108] = low[:, 8:12] | low[:, 12:] << 4


def mended(model, folder):
    copy = shutil.copy(model, folder)
    reader = gguf.GGUFReader(copy, "r+")
    end, moved = reader.data.size, []
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        if kind == "Q3_K":
            repacked(tensor.data.reshape(-1, 110))
        if kind == "MXFP4":
            moved.append(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).tobytes())
            # The last two parts of a tensor's entry: its format, and its place after the begin of the data.
            tensor.field.parts[-2][0] = gguf.GGMLQuantizationType.F32
            end += -end % 32
            tensor.field.parts[-1][0] = end - reader.data_offset
            end += len(moved[-1])
    reader.data.flush()
    with open(copy, "ab") as file:
        for elements in moved:
            file.write(bytes(-file.tell() % 32) + elements)
    return copy


def main():
    words = run.arguments()
    tokens, = words.passes
    with tempfile.TemporaryDirectory() as folder:
        model = mended(words.model, folder) if words.fix else words.model
        engine = oxillama_py.Engine(oxillama_py.EngineConfig(str(model), context_size=4096, num_threads=2))
        engine.load_model()
    text = "".join(engine.decode_token(token) for token in tokens)
    if engine.tokenize(text) != tokens:
        sys.exit(f"its tokenizer makes {engine.tokenize(text)[:12]}… of the text of {tokens[:12]}…")
    engine.reset()
    logits = np.array(engine.forward_logits(text), np.float32)
    arithmetic = {"linear": [{"weights": kind, "activations": "q8_0_ref"} for kind in ROUNDED]}
    with Capture(engine=f"OxiLLaMa {importlib.metadata.version('oxillama')}", arithmetic=arithmetic) as capture, capture.step(tokens):
        capture.add("logits", logits[None])


if __name__ == "__main__":
    main()
