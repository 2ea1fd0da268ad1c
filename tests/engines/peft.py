"""Writes the LoRA adapter of a GGUF file as the folder that PEFT writes, which is what vLLM and transformers read.

Usage: peft.py ADAPTER.gguf FOLDER"""
import json
import pathlib
import sys

import gguf
import torch
from safetensors.torch import save_file

MODULES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
           "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}

read, folder, tensors = gguf.GGUFReader(sys.argv[1]), pathlib.Path(sys.argv[2]), {}
for tensor in read.tensors:
    _, layer, matrix, _, side = tensor.name.split(".")
    name = f"base_model.model.model.layers.{layer}.{MODULES[matrix]}.lora_{side[-1].upper()}.weight"
    tensors[name] = torch.tensor(tensor.data)
folder.mkdir()
save_file(tensors, folder / "adapter_model.safetensors")
(folder / "adapter_config.json").write_text(json.dumps({
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "target_modules": sorted({name.split(".")[-3] for name in tensors}),
    "r": min(min(tensor.shape) for tensor in tensors.values()),
    "lora_alpha": float(read.fields["adapter.lora.alpha"].parts[-1][0])}))
