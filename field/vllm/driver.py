"""Runs vLLM on a folder of safetensors, on the prompt that qdiff gives it, lets it decode, and dumps what its worker extension sees."""

import os
import pathlib
import sys

# The engine in this process, whose environment names the folder to dump to.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")

from vllm import LLM, SamplingParams


def main():
    model, tokens, decoded, dtype = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    llm = LLM(model, dtype=dtype, enforce_eager=True, skip_tokenizer_init=True, max_model_len=4096, max_num_seqs=1,
              worker_extension_cls="qdiff_capture.vllm.Extension")
    llm.collective_rpc("qdiff_begin", args=(os.environ["QDIFF_DUMP"],))
    llm.generate([{"prompt_token_ids": [int(word) for word in tokens.read_text().split()]}], use_tqdm=False,
                 sampling_params=SamplingParams(temperature=0, max_tokens=decoded + 1, ignore_eos=True, detokenize=False))
    llm.collective_rpc("qdiff_end")


if __name__ == "__main__":
    main()
