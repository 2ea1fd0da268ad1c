"""Runs LitGPT's model on a folder of safetensors, whose weights its own converter renames, as qdiff tells it, and dumps the values of
its modules."""

import importlib.metadata
import json
from collections import defaultdict

import torch
from litgpt import GPT, Config
from litgpt import model as code
from litgpt.scripts import convert_hf_checkpoint as convert
from qdiff_capture import Capture
from safetensors.torch import load_file

import run

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

def loaded(folder, dtype):
    """As LitGPT's own configurations of Qwen2.5 and Qwen3 are, in this model's sizes."""
    hf = json.loads((folder / "config.json").read_text())
    of_qwen3 = hf["model_type"] == "qwen3"
    config = Config(
        name=hf["model_type"], block_size=hf["max_position_embeddings"], vocab_size=hf["vocab_size"], padded_vocab_size=hf["vocab_size"],
        n_layer=hf["num_hidden_layers"], n_head=hf["num_attention_heads"], n_embd=hf["hidden_size"], n_query_groups=hf["num_key_value_heads"],
        rotary_percentage=1.0, parallel_residual=False, bias=False, attn_bias=not of_qwen3, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP", intermediate_size=hf["intermediate_size"], norm_eps=hf["rms_norm_eps"], rope_base=int(hf["rope_theta"]),
        head_size=hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"], norm_qk=of_qwen3)
    weights = {name: x for file in folder.glob("*.safetensors") for name, x in load_file(file).items()}
    copy, renamed = convert.copy_weights_qwen_3 if of_qwen3 else convert.copy_weights_qwen_2_5, {}
    copy(config, defaultdict(dict), renamed, weights, dtype=dtype)
    model = GPT(config).to(dtype)
    model.load_state_dict(renamed)
    return model.eval()

def hook(model, add):
    """Shows every value that a module takes or gives, by its stage and layer."""
    def gives(module, stage, layer=None):
        module.register_forward_hook(lambda _, given, out: add(stage, out, layer))

    def takes(module, stage, layer=None):
        module.register_forward_pre_hook(lambda _, given: add(stage, given[0], layer))

    gives(model.transformer.wte, "embed")
    for layer, block in enumerate(model.transformer.h):
        gives(block.norm_1, "attn_norm", layer)
        gives(block.attn.qkv, "qkv", layer)
        takes(block.attn.proj, "attn_context", layer)
        gives(block.attn.proj, "attn_out", layer)
        takes(block.norm_2, "attn_residual", layer)
        gives(block.norm_2, "ffn_norm", layer)
        gives(block.mlp.fc_1, "ffn_gate", layer)
        gives(block.mlp.fc_2, "ffn_up", layer)
        takes(block.mlp.proj, "ffn_act", layer)
        gives(block.mlp.proj, "ffn_down", layer)
        gives(block, "layer_out", layer)
        if block.attn.norm_q is not None:
            gives(block.attn.norm_q, "q_normed", layer)
            gives(block.attn.norm_k, "k_normed", layer)
    gives(model.transformer.ln_f, "final_norm")
    gives(model.lm_head, "logits")

def main():
    words = run.arguments(dtype=list(DTYPES))
    model = loaded(words.model, DTYPES[words.dtype])
    capture = Capture(engine=f"LitGPT {importlib.metadata.version('litgpt')}, {words.dtype}",
                      arithmetic=words.dtype, sampler="told")
    config, place = model.config, {"rotated": 0}

    def add(stage, x, layer):
        x = x[0]
        if stage == "qkv":
            sizes = [heads * config.head_size for heads in (config.n_head, config.n_query_groups, config.n_query_groups)]
            for of, part in zip("qkv", x.split(sizes, -1)):
                capture.add(of + ("_biased" if config.attn_bias else "_proj"), part, layer=layer)
        else:
            # [heads, tokens, head_dim] of the norms of queries and keys.
            capture.add(stage, x.swapaxes(0, 1).flatten(1) if stage.endswith("normed") else x, layer=layer)

    own = code.apply_rope

    def rotated(x, cos, sin):
        out = own(x, cos, sin)
        # Queries, then keys, of each layer.
        layer, of_keys = divmod(place["rotated"], 2)
        capture.add("k_rope" if of_keys else "q_rope", out[0].swapaxes(0, 1), layer=layer)
        place["rotated"] += 1
        return out

    code.apply_rope = rotated
    hook(model, add)
    model.set_kv_cache(batch_size=1, dtype=DTYPES[words.dtype])
    first = 0
    with capture, torch.inference_mode():
        for tokens in words.passes:
            place["rotated"], end = 0, first + len(tokens)
            with capture.step(tokens):
                model(torch.tensor([tokens]), torch.arange(first, end), input_pos_maxp1=end)
                for layer, block in enumerate(model.transformer.h):
                    for stage, cache in (("k_cache", block.attn.kv_cache.k), ("v_cache", block.attn.kv_cache.v)):
                        capture.add(stage, cache[0, :, :end].swapaxes(0, 1), layer=layer)
            first = end

if __name__ == "__main__":
    main()
