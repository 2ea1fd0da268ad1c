"""Captures Hugging Face transformers, its weights loaded from a GGUF, for qdiff.

    qdiff record --runner llama -n 4 --out llama          # chooses the tokens
    python transformers_qwen.py MODEL.gguf --like llama --out transformers
    qdiff compare -m MODEL.gguf transformers llama

Runs with eager attention, the only one that shows its weights.

Needs: pip install torch transformers accelerate gguf numpy, and tap/python on PYTHONPATH or installed
"""

import argparse
import hashlib
import json
import os
import pathlib

import torch
import transformers

from qdiff_capture import Capture
from qdiff_capture.transformers import hooked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="GGUF of a Qwen2 or Qwen3 model")
    parser.add_argument("--like", type=pathlib.Path, required=True, help="capture whose tokens are run")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write; it must not exist")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--arithmetic", help="what the manifest declares, as JSON; plain f32 where it is left out")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    like = json.loads((args.like / "manifest.json").read_text())
    with args.model.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        os.path.abspath(args.model.parent), gguf_file=args.model.name, dtype=getattr(torch, args.dtype),
        attn_implementation="eager", local_files_only=True).to(args.device).eval()
    cache = transformers.DynamicCache()
    engine = f"transformers {transformers.__version__}, {args.dtype}"
    declared = {"arithmetic": json.loads(args.arithmetic)} if args.arithmetic else {}
    capture = Capture(args.out, engine=engine, model_sha256=sha256, **declared)
    with capture, hooked(model, capture), torch.inference_mode():
        for tokens in [like["tokens"]] + [[token] for token in like["decoded"]]:
            model(input_ids=torch.tensor([tokens], device=args.device), past_key_values=cache, use_cache=True)


if __name__ == "__main__":
    main()
