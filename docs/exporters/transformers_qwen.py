"""Captures Hugging Face transformers, its weights loaded from a GGUF, for qdiff.

    qdiff record --runner llama -n 4 --out llama          # chooses the tokens
    python transformers_qwen.py MODEL.gguf --like llama --out transformers --dtype bf16
    qdiff compare -m MODEL.gguf transformers llama

Runs with eager attention, the only one that shows its scores and weights, and declares the arithmetic of its dtype.

Needs: pip install torch transformers accelerate gguf numpy, and tap/python on PYTHONPATH or installed
"""

import argparse
import hashlib
import json
import os
import pathlib

import torch
import transformers

from qdiff_capture import Capture, passes
from qdiff_capture.transformers import hooked

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def loaded(gguf, dtype, device="cpu"):
    """The model of a GGUF, dequantised and rounded to a dtype."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        os.path.abspath(gguf.parent), gguf_file=gguf.name, dtype=DTYPES[dtype], attn_implementation="eager",
        local_files_only=True).to(device).eval()


def captured(model, gguf, dtype, like, out):
    """Runs the model on the tokens of the capture `like`, and writes what it computes to `out`."""
    like = json.loads((like / "manifest.json").read_text())
    with gguf.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    cache = transformers.DynamicCache()
    capture = Capture(out, engine=f"transformers {transformers.__version__}, {dtype}", model_sha256=sha256, arithmetic=dtype)
    with capture, hooked(model, capture), torch.inference_mode():
        for tokens in passes(like):
            model(input_ids=torch.tensor([tokens], device=model.device), past_key_values=cache, use_cache=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="GGUF of a Qwen2 or Qwen3 model")
    parser.add_argument("--like", type=pathlib.Path, required=True, help="capture whose tokens are run")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write; an older dump in it is replaced")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="what it computes in, and declares")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    captured(loaded(args.model, args.dtype, args.device), args.model, args.dtype, args.like, args.out)


if __name__ == "__main__":
    main()
