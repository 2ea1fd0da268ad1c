"""Captures mlx-lm, its weights loaded from a GGUF, for qdiff.

    qdiff record --runner llama -n 4 --out llama          # chooses the tokens
    python mlx_qwen.py MODEL.gguf --like llama --out mlx --dtype bf16
    qdiff compare -m MODEL.gguf mlx llama

Needs: pip install "mlx[cpu]" mlx-lm gguf numpy (on a Mac plain mlx), and tap/python on PYTHONPATH or installed
"""

import argparse
import hashlib
import importlib
import json
import pathlib

import gguf
import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from qdiff_capture import Capture, passes
from qdiff_capture.mlx import hooked

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16, "f16": mx.float16}


def loaded(path, dtype):
    """The model of a GGUF, dequantised and rounded to a dtype."""
    file = gguf.GGUFReader(path)
    architecture = file.get_field("general.architecture").contents()
    tensors = {tensor.name: tensor for tensor in file.tensors}

    def said(key, otherwise=None):
        field = file.get_field(f"{architecture}.{key}")
        return field.contents() if field is not None else otherwise

    code = importlib.import_module(f"mlx_lm.models.{architecture}")
    width, heads = said("embedding_length"), said("attention.head_count")
    model = code.Model(code.ModelArgs.from_dict({
        "model_type": architecture, "hidden_size": width, "num_hidden_layers": said("block_count"),
        "intermediate_size": said("feed_forward_length"), "num_attention_heads": heads,
        "num_key_value_heads": said("attention.head_count_kv", heads), "head_dim": said("attention.key_length", width // heads),
        "rms_norm_eps": said("attention.layer_norm_rms_epsilon"), "rope_theta": said("rope.freq_base", 10000.0),
        "max_position_embeddings": said("context_length"), "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "tie_word_embeddings": "output.weight" not in tensors}))
    ours = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(ours, said("block_count"))
    weights = []
    for name, _ in tree_flatten(model.parameters()):
        tensor = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weights.append((name, mx.array(values).astype(DTYPES[dtype])))
    model.load_weights(weights)
    mx.eval(model.parameters())
    return model


def captured(model, path, dtype, like, out):
    """Runs the model on the tokens of the capture `like`, and writes what it computes to `out`."""
    like = json.loads((like / "manifest.json").read_text())
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    engine = f"mlx-lm {mlx_lm.__version__} on mlx {mx.__version__}, {dtype}"
    cache = make_prompt_cache(model)
    with Capture(out, engine=engine, model_sha256=sha256, arithmetic=dtype) as capture, hooked(model, capture):
        for tokens in passes(like):
            model(mx.array([tokens]), cache=cache)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="GGUF of a Qwen2 or Qwen3 model")
    parser.add_argument("--like", type=pathlib.Path, required=True, help="capture whose tokens are run")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write; an older dump in it is replaced")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="what it computes in, and declares")
    args = parser.parse_args()
    captured(loaded(args.model, args.dtype), args.model, args.dtype, args.like, args.out)


if __name__ == "__main__":
    main()
