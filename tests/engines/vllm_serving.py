"""Takes vLLM on a CPU through what an engine that serves meets; each batch becomes a capture, OUT/NAME.

Usage: vllm_serving.py MODEL OUT DTYPE [NAME...]      MODEL: a folder of safetensors with a context of 4,200 tokens; default: all names
With ADAPTERS=A,B in the environment, two folders of PEFT, the batches of requests with these adapters run too. With OTHER=1 in the environment the same of other tokens, on which `--confirm capture:OUT/NAME` tries a cause.
"""

import os
import pathlib
import sys
from contextlib import contextmanager
from unittest import mock

# The engine in this process.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

# Tokens of a block of the cache: as few as vLLM takes on a CPU.
BLOCK = 32


def text(length, seed=1):
    """Token ids in which no run of two comes again soon."""
    seed += 100 * int(os.environ.get("OTHER", 0))
    return [5 + (seed * 7919 + 31 * i + i * i * seed) % 300 for i in range(length)]


# What arrives: at which step of the engine, the prompt, and how many tokens are decoded.
def together(*lengths, decoded=3):
    return [(0, text(length, number + 1), decoded) for number, length in enumerate(lengths)]


SHARED = text(70)
PLAIN = {
    "unequal": together(5, 1, 17),
    "small": together(1, 2, 3, 8, 9),
    "join-and-leave": [(0, text(12), 2), (1, text(5, 2), 7), (3, text(9, 3), 4)],
    "chunks-beside-decode": [(0, text(20), 9), (2, text(150, 2), 3)],
    "around-32": together(31, 32, 33),
    "around-64": together(63, 64, 65),
    "around-128": together(127, 128, 129),
    "prefix-cold-and-warm": [(0, SHARED, 2), (9, SHARED, 2), (9, SHARED[:64] + text(9, 4), 2), (9, SHARED[:33], 2)],
    "beyond-4k": [(0, text(4100), 2)],
}
# Blocks for 256 tokens: requests take those of others that have ended, and interrupt each other.
FEW = {
    "blocks-reused": [(30 * number, text(100 + 20 * number, number + 1), 3) for number in range(5)],
    "interrupted": [(0, text(60), 75), (0, text(60, 2), 75)],
    "prefix-restored": [(0, SHARED, 2), (9, text(200, 5), 2), (30, SHARED, 2)],
}
# Adapters of requests by number, 0 for none; the last one comes while others decode.
ADAPTED = {
    "two-adapters": [(0, text(5), 3, 2), (0, text(9, 2), 6, 1), (0, text(17, 3), 3, 2), (2, text(40, 4), 4, 1), (3, text(1, 5), 3, 2)],
    "adapters-in-chunks": [(0, text(20), 9, 1), (2, text(100, 2), 3, 2), (2, text(50, 3), 3, 1)],
    "adapters-beside-none": [(0, text(5), 3, 0), (0, text(9, 2), 6, 1), (0, text(17, 3), 3, 2), (2, text(40, 4), 4, 0)],
}
# How an engine is started, and its batches.
ENGINES = [
    (PLAIN, {"max_num_batched_tokens": 48}),
    (FEW, {"max_num_batched_tokens": 48, "num_gpu_blocks_override": 9}),
    (ADAPTED, {"max_num_batched_tokens": 48, "enable_lora": True, "max_loras": 2, "max_lora_rank": 16}),
    # The last one: no other engine starts behind the modules that it loads.
    (None, {"max_num_batched_tokens": 48, "async_scheduling": False, "speculative_config": {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 2}}),
]
# Folders as PEFT writes them.
ADAPTERS = [name for name in os.environ.get("ADAPTERS", "").split(",") if name]


def serve(llm, arrivals, number=[0]):
    """Feeds the requests as they arrive; gives the tokens of each."""
    engine, step, waiting, ended = llm.llm_engine, 0, sorted(arrivals, key=lambda arrival: arrival[0]), {}
    while waiting or engine.has_unfinished_requests():
        while waiting and (waiting[0][0] <= step or not engine.has_unfinished_requests()):
            _, prompt, decoded, *adapter = waiting.pop(0)
            number[0] += 1
            params = SamplingParams(temperature=0, max_tokens=decoded, ignore_eos=True, detokenize=False)
            lora = LoRARequest(f"adapter {adapter[0]}", adapter[0], ADAPTERS[adapter[0] - 1]) if any(adapter) else None
            engine.add_request(str(number[0]), {"prompt_token_ids": prompt}, params, lora_request=lora)
        for output in engine.step():
            ended[int(output.request_id)] = list(output.outputs[0].token_ids)
        step += 1
    return [ended[id] for id in sorted(ended)]


@contextmanager
def drafts(llm):
    """Requests whose drafts of four tokens are right for none, one, two, three and all four of them: the drafter knows what the engine
    chooses without it."""
    prompts = [text(length, length) for length in (1, 20, 33)]
    known = [prompt + chosen for prompt, chosen in zip(prompts, serve(llm, [(0, prompt, 60) for prompt in prompts]))]

    def propose(self, most, sampled, lengths, tokens, slot_mappings=None):
        def draft(so_far):
            whole, = (whole for whole in known if whole[:len(so_far)] == so_far)
            following, right = whole[len(so_far):len(so_far) + most], len(so_far) % (most + 1)
            return following[:right] + [(token + 1) % 300 for token in following[right:]]
        return [draft(tokens[i, :lengths[i]].tolist()) if own else [] for i, own in enumerate(sampled)]

    with mock.patch("vllm.v1.spec_decode.ngram_proposer.NgramProposer.propose", propose):
        yield [(0, prompt, 40) for prompt in prompts]


@contextmanager
def as_they_are(arrivals):
    yield arrivals


def captured(llm, arrivals, out):
    llm.reset_prefix_cache()
    llm.collective_rpc("qdiff_begin", args=(str(out),))
    serve(llm, arrivals)
    llm.collective_rpc("qdiff_end")


def main():
    model, out, dtype, wanted = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4:]
    for batches, options in ENGINES:
        names = [name for name in batches or ["drafts"] if not wanted or name in wanted]
        if not names or batches is ADAPTED and not ADAPTERS:
            continue
        llm = LLM(model, dtype=dtype, enforce_eager=True, enable_prefix_caching=True, block_size=BLOCK, skip_tokenizer_init=True,
                  max_model_len=4200 if batches is PLAIN else 256, max_num_seqs=8, worker_extension_cls="qdiff_capture.vllm.Extension", **options)
        for name in names:
            with as_they_are(batches[name]) if batches else drafts(llm) as arrivals:
                captured(llm, arrivals, out / name)
        llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
