"""Converts a folder of safetensors with CTranslate2's own converter, runs its generator on a prompt, as qdiff tells it, and dumps the
logits: CTranslate2 shows no other value, and no cache from one call to the next."""

import importlib.metadata
import subprocess
import sys

import ctranslate2
import numpy as np
from qdiff_capture import Capture

import run


def convert(model, folder):
    code = "from ctranslate2.converters.transformers import main; main()"
    subprocess.run([sys.executable, "-c", code, "--model", model, "--output_dir", folder / "model", "--quantization", "float32"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def main():
    words = run.arguments()
    folder = run.converted(words.model, "ctranslate2", lambda folder: convert(words.model, folder))
    generator = ctranslate2.Generator(str(folder / "model"), device="cpu", compute_type="float32", intra_threads=2)
    tokens, = words.passes
    given = ctranslate2.StorageView.from_array(np.array([tokens], np.int32))
    lengths = ctranslate2.StorageView.from_array(np.array([len(tokens)], np.int32))
    logits = np.array(generator.forward_batch(given, lengths))[0]
    with Capture(engine=f"CTranslate2 {importlib.metadata.version('ctranslate2')}, float32") as capture, capture.step(tokens):
        capture.add("logits", logits)


if __name__ == "__main__":
    main()
