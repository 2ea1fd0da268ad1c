"""Runs KerasHub's backbone of Qwen2 or Qwen3 on a folder of safetensors, whose weights its own converter takes, on a prompt, as qdiff
tells it, and dumps what its layers take and give. A cache is not used: every run is one prompt."""

import importlib.metadata
import json

import keras
import numpy as np
import torch
from keras_hub.src.utils.transformers import convert_qwen, convert_qwen3
from safetensors.torch import load_file

import run


class Loader:
    """What the converters read weights with."""

    def __init__(self, weights):
        self.weights = weights

    def port_weight(self, keras_variable, hf_weight_key, hook_fn=None):
        name = hf_weight_key if hf_weight_key in self.weights else f"model.{hf_weight_key}"
        x = self.weights[name].to(torch.float32).numpy()
        keras_variable.assign(hook_fn(x, list(keras_variable.shape)) if hook_fn else x)


def places(backbone, biased):
    """By layer of Keras, the stages that it takes and gives; several where it is called several times."""
    place = {id(backbone.token_embedding): [(None, "embed"), ("final_norm", "logits")]}
    for number, layer in enumerate(backbone.transformer_layers):
        attention = layer._self_attention_layer
        place[id(layer._self_attention_layernorm)] = [(None, "attn_norm")]
        for of, dense in (("q", attention._query_dense), ("k", attention._key_dense), ("v", attention._value_dense)):
            place[id(dense)] = [(None, of + ("_biased" if biased else "_proj"))]
        if not biased:
            place[id(attention._query_dense_layer_norm)] = [(None, "q_normed")]
            place[id(attention._key_dense_layer_norm)] = [(None, "k_normed")]
        place[id(attention.rotary_embedding_layer)] = [(None, "q_rope"), (None, "k_rope")]
        place[id(attention._output_dense)] = [("attn_context", "attn_out")]
        place[id(layer._feedforward_layernorm)] = [("attn_residual", "ffn_norm")]
        place[id(layer._feedforward_gate_dense)] = [(None, "ffn_gate")]
        place[id(layer._feedforward_intermediate_dense)] = [(None, "ffn_up")]
        place[id(layer._feedforward_output_dense)] = [("ffn_act", "ffn_down")]
        place[id(layer)] = [(None, "layer_out")]
        for module in (layer, layer._self_attention_layernorm, attention._query_dense, attention._key_dense, attention._value_dense,
                       attention.rotary_embedding_layer, attention._output_dense, layer._feedforward_layernorm,
                       layer._feedforward_gate_dense, layer._feedforward_intermediate_dense, layer._feedforward_output_dense,
                       *([] if biased else [attention._query_dense_layer_norm, attention._key_dense_layer_norm])):
            place[id(module)] = [(taken, given, number) for taken, given in place[id(module)]]
    place[id(backbone.token_embedding)] = [(taken, given, None) for taken, given in place[id(backbone.token_embedding)]]
    return place


def main():
    words = run.arguments(dtype=["float32", "bfloat16"])
    config = json.loads((words.model / "config.json").read_text())
    config.setdefault("sliding_window", None)
    keras.config.set_dtype_policy(words.dtype)
    convert = convert_qwen3 if config["model_type"] == "qwen3" else convert_qwen
    backbone = convert.backbone_cls(**convert.convert_backbone_config(config))
    weights = {name: x for file in words.model.glob("*.safetensors") for name, x in load_file(file).items()}
    convert.convert_weights(backbone, Loader(weights), config)
    if words.fix and convert is convert_qwen3:
        for layer in backbone.transformer_layers:
            attention = layer._self_attention_layer
            attention._query_dense_layer_norm.epsilon = attention._key_dense_layer_norm.epsilon = config["rms_norm_eps"]
    place = places(backbone, convert is convert_qwen)
    capture = run.capture(engine=f"KerasHub {importlib.metadata.version('keras-hub')}, {words.dtype}",
                      arithmetic={"float32": "f32", "bfloat16": "bf16"}[words.dtype])
    own = keras.layers.Layer.__call__

    def add(stage, x, layer):
        if stage:
            x = x[0].detach()
            capture.add(stage, x if stage.endswith("rope") else x.reshape(len(x), -1), layer=layer)

    def called(self, *args, **kwargs):
        stages = place.get(id(self))
        if not stages:
            return own(self, *args, **kwargs)
        # A layer that is called several times has its stages in this order.
        taken, given, layer = stages.pop(0)
        add(taken, args[0] if args else None, layer)
        out = own(self, *args, **kwargs)
        add(given, out[0] if isinstance(out, tuple) else out, layer)
        return out

    keras.layers.Layer.__call__ = called
    tokens, = words.passes

    with capture, capture.step(tokens), torch.no_grad():
        ids = np.array([tokens])
        hidden = backbone({"token_ids": ids, "padding_mask": np.ones_like(ids)})
        backbone.token_embedding(hidden, reverse=True)


if __name__ == "__main__":
    main()
