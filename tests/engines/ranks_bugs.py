"""Runs transformers on ranks that torchrun started, as it is (clean) or with one of the bugs below planted in its code, and dumps what
each rank computes.

Usage: torchrun --nproc-per-node 2 ranks_bugs.py BUG MODEL TOKENS DECODED [--dtype D] [--device D]
"""

import os
import pathlib
import sys

import torch
from transformers.distributed import tensor_parallel as code

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "exporters"))
import transformers_folder

RANK = int(os.environ["RANK"])


def at_sum(path, change):
    """Where rank 1 puts the parts of the module of this path together: change(own part, sum)."""
    own = code.RowwiseParallel.transform_output_post_forward

    def reduced(style, module, output, mesh):
        part = output.clone()
        whole = own(style, module, output, mesh)
        return change(part, whole) if RANK == 1 and module is module_of(path) else whole

    code.RowwiseParallel.transform_output_post_forward = reduced


def module_of(path):
    return MODEL.get_submodule(path)


def sum_missing(_):
    """Rank 1 goes on with its own part. Found as: r1.L01.ffn_down all-reduce-missing"""
    at_sum("model.layers.1.mlp.down_proj", lambda part, whole: part)


def part_twice(_):
    """Rank 1 adds its own part once more. Found as: r1.L00.attn_out part-added-twice"""
    at_sum("model.layers.0.self_attn.o_proj", lambda part, whole: whole + part)


def sum_twice(_):
    """Rank 1 adds the whole sum once more. Found as: r1.L02.attn_out all-reduce-twice"""
    at_sum("model.layers.2.self_attn.o_proj", lambda part, whole: whole + whole)


def other_value_head(model):
    """Rank 1 has the value head of rank 0. Found as: r1.L00.v_biased shard-of-another-rank"""
    put(model, "model.layers.0.self_attn.v_proj", lambda rows, whole: whole[:rows])


def rows_early(model):
    """The rows of rank 1's gate begin one too early. Found as: r1.L01.ffn_gate shard-shifted"""
    put(model, "model.layers.1.mlp.gate_proj", lambda rows, whole: whole[rows - 1:2 * rows - 1])


def put(model, path, rows_of):
    weight = model.get_submodule(path).weight
    whole, local = weight.full_tensor(), weight.to_local()  # every rank takes part in the first
    if RANK == 1:
        local.copy_(rows_of(local.shape[0], whole))


BUGS = {bug.__name__.replace("_", "-"): bug for bug in (sum_missing, part_twice, sum_twice, other_value_head, rows_early)}


def main():
    name = sys.argv.pop(1)
    own = transformers_folder.transformers.AutoModelForCausalLM.from_pretrained

    def loaded(*args, **kwargs):
        global MODEL
        MODEL = own(*args, **kwargs)
        if name != "clean":
            with torch.no_grad():
                BUGS[name](MODEL)
        return MODEL

    transformers_folder.transformers.AutoModelForCausalLM.from_pretrained = loaded
    transformers_folder.main()


if __name__ == "__main__":
    main()
