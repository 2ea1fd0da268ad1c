"""Captures transformers as the trainer and vLLM on a CPU as the rollout of the same tokens: as they are, and with each of the bugs
below planted. Writes OUT/CASE/trainer, OUT/CASE/rollout and what both report as logprobs.

Usage: rl.py MODEL TOKENS OUT TRAINER-DTYPE ROLLOUT-DTYPE        (MODEL is a folder of safetensors; TOKENS are ids with commas)
"""

import os
import pathlib
import sys
from contextlib import ExitStack
from unittest import mock

# The engine in this process, where its code can be altered.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")

import torch
import transformers
from qdiff_capture import Capture
from qdiff_capture.transformers import hooked
from transformers.models.qwen2 import modeling_qwen2
from vllm import LLM, SamplingParams

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NEW = 24


def gate_and_up_exchanged(model):
    """In vLLM the second half of the fused projection goes through SiLU. Found as: the rollout is wrong at L00.ffn_act"""
    own = torch.nn.functional.silu
    def exchanged(x):
        gate, up = x.chunk(2, -1)
        return gate * own(up)
    stack = ExitStack()
    for layer in model.model.layers:
        stack.enter_context(mock.patch.object(layer.mlp.act_fn, "forward", exchanged))
    return stack


def heads_tiled(model):
    """In transformers query head h reads the cached head h mod n. Found as: the trainer is wrong at L00.attn_scores"""
    return mock.patch.object(modeling_qwen2, "repeat_kv", lambda x, times: x.repeat(1, times, 1, 1))


def rolled_out(llm, tokens, folder, **sampling):
    """Lets vLLM decode, and writes the logprobs that it reports. Gives all tokens."""
    llm.reset_prefix_cache()
    llm.collective_rpc("qdiff_begin", args=(str(folder / "rollout"),))
    told, = llm.generate([{"prompt_token_ids": tokens}], use_tqdm=False, sampling_params=SamplingParams(
        **{"temperature": 1.0, "seed": 7, "max_tokens": NEW, "ignore_eos": True, "detokenize": False, "logprobs": 0, **sampling}))
    llm.collective_rpc("qdiff_end")
    one, = told.outputs
    chosen = list(one.token_ids)
    values = [of[token].logprob for of, token in zip(one.logprobs, chosen)]
    (folder / "rollout.txt").write_text("\n".join(map(str, values)) + "\n")
    # The last token was drawn and fed to nobody.
    return tokens + chosen


def trained(model, tokens, dtype, folder, shift=1):
    """Runs the trainer on all tokens in one pass, and writes its logprobs. With a shift of 0 each row is read at its own token."""
    capture = Capture(folder / "trainer", engine=f"transformers {transformers.__version__}, {dtype}", arithmetic=dtype)
    ids = torch.tensor([tokens])
    with capture, hooked(model, capture), torch.inference_mode():
        logits = model(input_ids=ids).logits.float().log_softmax(-1)
    rows, labels = logits[0, :-1], ids[0, shift:len(tokens) - 1 + shift]
    values = rows.gather(-1, labels[:, None])[:, 0]
    (folder / "trainer.txt").write_text("\n".join(map(str, values.tolist())) + "\n")


def main():
    model, tokens, out = sys.argv[1], [int(word) for word in sys.argv[2].split(",")], pathlib.Path(sys.argv[3])
    of_trainer, of_rollout = sys.argv[4:6]
    trainer = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=DTYPES[of_trainer], attn_implementation="eager", local_files_only=True).eval()
    llm = LLM(model, dtype=DTYPES[of_rollout], enforce_eager=True, skip_tokenizer_init=True, max_model_len=256, max_num_seqs=2,
              logprobs_mode="processed_logprobs", worker_extension_cls="qdiff_capture.vllm.Extension")
    served, = llm.apply_model(lambda model: model)
    cases = {
        "clean": {},
        # Its stages are wrong.
        "rollout-gate-and-up-exchanged": {"rollout": gate_and_up_exchanged},
        "trainer-heads-tiled": {"trainer": heads_tiled},
        # Its logprobs are not what they are taken for.
        "trainer-labels-not-shifted": {"shift": 0},
        "rollout-at-a-temperature": {"sampling": {"temperature": 0.7}},
        "rollout-truncated": {"sampling": {"top_k": 40}},
    }
    for name, case in cases.items():
        folder = out / name
        folder.mkdir(parents=True)
        with case["rollout"](served) if "rollout" in case else ExitStack():
            ids = rolled_out(llm, tokens, folder, **case.get("sampling", {}))
        # What vLLM did not run is no part of the comparison, but for the logprob of the last token that it drew.
        with case["trainer"](trainer) if "trainer" in case else ExitStack():
            trained(trainer, ids[:-1], of_trainer, folder, case.get("shift", 1))
        values = (folder / "rollout.txt").read_text().split()
        (folder / "rollout.txt").write_text("\n".join(values[:-1]) + "\n")


if __name__ == "__main__":
    main()
