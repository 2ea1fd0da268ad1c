"""Runs Hugging Face transformers on a folder of safetensors, on the tokens that qdiff gives, and dumps every stage.

    qdiff run -m FOLDER --subject 'cmd: python transformers_folder.py {model} {tokens} {decoded} --dtype bf16'

Cut over two ranks by the plan of transformers, one process per rank:

    qdiff run -m FOLDER --ranks 2 --subject 'cmd: torchrun --nproc-per-node 2 transformers_folder.py {model} {tokens} {decoded}'

Runs with eager attention, the only one that shows its scores and weights, and declares the arithmetic of its dtype.

Needs: pip install torch transformers numpy, and tap/python on PYTHONPATH or installed
"""

import argparse
import os
import pathlib

import torch
import transformers

from qdiff_capture import Capture
from qdiff_capture.transformers import hooked, ranks

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def ids(path):
    return [int(token) for token in path.read_text().split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="folder of a Qwen2 or Qwen3 model")
    parser.add_argument("tokens", type=pathlib.Path, help="file with the token ids of the prompt")
    parser.add_argument("decoded", type=pathlib.Path, help="file with the token ids to feed after the prompt")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="what it computes in, and declares")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    how = dict(dtype=DTYPES[args.dtype], attn_implementation="eager", local_files_only=True)
    count = int(os.environ.get("WORLD_SIZE", 1))  # processes that torchrun has started
    if count > 1:
        how["distributed_config"] = transformers.distributed.DistributedConfig(tp_size=count, tp_plan="auto")
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, **how).eval()
    part = dict(rank=int(os.environ["RANK"]), ranks=ranks(model)) if count > 1 else {}
    model = model if part else model.to(args.device)
    cache = transformers.DynamicCache()
    # The environment names the folder to dump to.
    capture = Capture(engine=f"transformers {transformers.__version__}, {args.dtype}", arithmetic=args.dtype, sampler="told", **part)
    with capture, hooked(model, capture), torch.inference_mode():
        for tokens in [ids(args.tokens)] + [[token] for token in ids(args.decoded)]:
            model(input_ids=torch.tensor([tokens], device=model.device), past_key_values=cache, use_cache=True)


if __name__ == "__main__":
    main()
