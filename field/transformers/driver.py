"""Runs Hugging Face transformers on a GGUF or a folder of safetensors, as qdiff tells it, and dumps every stage."""

import torch
import transformers
from qdiff_capture import Capture
from qdiff_capture.transformers import hooked

import run

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def main():
    words = run.arguments(dtype=list(DTYPES), attention=["eager", "sdpa"])
    place = {} if words.model.is_dir() else {"gguf_file": words.model.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        words.model.absolute() if words.model.is_dir() else words.model.parent.absolute(), **place, dtype=DTYPES[words.dtype],
        attn_implementation=words.attention, local_files_only=True).eval()
    cache = transformers.DynamicCache()
    capture = Capture(engine=f"transformers {transformers.__version__}, {words.attention}, {words.dtype}",
                      arithmetic=words.dtype, sampler="told")
    with capture, hooked(model, capture), torch.inference_mode():
        for tokens in words.passes:
            model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)


if __name__ == "__main__":
    main()
