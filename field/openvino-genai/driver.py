"""Lets OpenVINO GenAI make a model of a GGUF and save it, runs the saved model on the CPU with its inner nodes as outputs, as qdiff
tells it, and dumps them.

LLMPipeline ends with "unordered_map::at" on a GGUF without general.file_type, which is optional: the driver gives it a copy that has
that key."""

import importlib.metadata
import pathlib
import tempfile

import gguf
import numpy as np
import openvino
import openvino_genai
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

import run

def with_file_type(path, folder):
    reader = gguf.GGUFReader(path)
    if "general.file_type" in reader.fields:
        (folder / "model.gguf").symlink_to(path.absolute())
    else:
        kind = {"F16": 1, "Q8_0": 7, "Q4_K": 15}[reader.get_tensor(0).tensor_type.name]
        writer = gguf.GGUFWriter(folder / "model.gguf", reader.fields["general.architecture"].contents())
        copy_with_new_metadata(reader, writer, {"general.file_type": MetadataDetails(gguf.GGUFValueType.UINT32, kind)}, [])
    return folder / "model.gguf"


def back(value, kind):
    """The first node of this kind that a value is made by, along the first operands before the others; None where none is."""
    if value.get_node().get_type_name() == kind:
        return value.get_node()
    return next((found for operand in value.get_node().input_values() if (found := back(operand, kind))), None)


def consumer(value, kind):
    """The node of this kind that takes the value."""
    return next((target.get_node() for target in value.get_target_inputs() if target.get_node().get_type_name() == kind), None)


def product(found, name, node, layer, biased=None):
    """A projection, and its sum with the bias where it has one."""
    found[name, layer] = node.output(0)
    total = biased and consumer(node.output(0), "Add")
    if total:
        found[biased, layer] = total.output(0)


def stages(model):
    """By stage and layer, the output of a node. Weights have no names in models of quantised formats: the attention is what the
    other nodes are found from."""
    found = {}
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    for layer, node in enumerate(attentions):
        products = {}
        rotated = {"q": node.input_value(0), "k": back(node.input_value(1), "Concat").input_value(1)}
        for of, value in rotated.items():
            found[f"{of}_rope", layer] = value
            # x cos + turned(x) sin, where x is the transposed result of a norm in Qwen3.
            turned = value.get_node().input_value(0).get_node().input_value(0).get_node().input_value(0)
            products[of] = back(turned, "MatMul")
            product(found, f"{of}_proj", products[of], layer, f"{of}_biased")
            if turned.get_node().get_type_name() == "Multiply":
                found[f"{of}_normed", layer] = turned
        product(found, "v_proj", back(back(node.input_value(2), "Concat").input_value(1), "MatMul"), layer, "v_biased")
        found["attn_norm", layer] = products["q"].input_value(0)
        out = consumer(consumer(consumer(node.output(0), "Transpose").output(0), "Reshape").output(0), "MatMul")
        found["attn_context", layer], found["attn_out", layer] = out.input_value(0), out.output(0)
        residual = consumer(out.output(0), "Add")
        found["attn_residual", layer] = residual.output(0)
        if layer == 0:
            found["embed", None], = (value for value in residual.input_values() if value != out.output(0))
        total = consumer(residual.output(0), "Add")
        down, = (value.get_node() for value in total.input_values() if value != residual.output(0))
        found["ffn_act", layer], found["ffn_down", layer], found["layer_out", layer] = down.input_value(0), down.output(0), total.output(0)
        activated, up = down.input_value(0).get_node().input_values()
        found["ffn_up", layer], found["ffn_gate", layer] = up, back(activated, "MatMul").output(0)
        found["ffn_norm", layer] = up.get_node().input_value(0)
    found["final_norm", None] = back(model.output("logits").get_node().input_value(0), "MatMul").input_value(0)
    return found


# The tensors of a GGUF that a stage is made of.
WEIGHTS = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "attn_out": "attn_output", "ffn_gate": "ffn_gate",
           "ffn_up": "ffn_up", "ffn_down": "ffn_down"}


def mended(model, path):
    """Puts the rotary frequencies into the model in f32, in the place of those that were saved in f16, and the weights as ggml
    decodes them in the place of requantised ones."""
    reader = gguf.GGUFReader(path)
    fields, tensors = reader.fields, {tensor.name: tensor for tensor in reader.tensors}

    def put(operand, tensor):
        decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        operand.replace(openvino.opset13.constant(decoded).output(0))

    found = stages(model)
    for (stage, layer), value in found.items():
        if stage in WEIGHTS:
            put(value.get_node().input_value(1), tensors[f"blk.{layer}.{WEIGHTS[stage]}.weight"])
    put(back(model.output("logits").get_node().input_value(0), "MatMul").input_value(1),
        tensors.get("output.weight", tensors["token_embd.weight"]))
    put(found["embed", None].get_node().input_value(0), tensors["token_embd.weight"])
    base, = (field.contents() for key, field in fields.items() if key.endswith("rope.freq_base"))
    for node in model.get_ordered_ops():
        value = node.output(0)
        shape = value.partial_shape
        # [1, head_dim / 2, 1], which is multiplied by the positions.
        if node.get_type_name() in ("Convert", "Constant") and shape.is_static and len(shape) == 3 and consumer(value, "Broadcast"):
            half = shape[1].get_length()
            exact = (base ** (-np.arange(half) / half)).astype(np.float32).reshape(1, half, 1)
            value.replace(openvino.opset13.constant(exact).output(0))


def main():
    words = run.arguments()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        openvino_genai.LLMPipeline(str(with_file_type(words.model, folder)), "CPU", enable_save_ov_model=True)
        core = openvino.Core()
        model = core.read_model(folder / "openvino_model.xml")
        if words.fix:
            mended(model, words.model)
        tapped = {} if run.SCORED else stages(model)
        count = len(model.outputs)
        model.add_outputs(list(tapped.values()))
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32",
                                                       "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0})
        request = compiled.create_infer_request()
    # A model of floating-point weights is saved with all its constants in f16.
    floating = gguf.GGUFReader(words.model).get_tensor(0).tensor_type.name in ("F32", "F16", "BF16")
    capture = run.capture(engine=f"OpenVINO GenAI {importlib.metadata.version('openvino-genai')}, f32", sampler="told",
                      arithmetic={"parameters": "f16" if floating else "f32", "outputs": {"default": "f32"}})
    first = 0
    with capture:
        for tokens in words.passes:
            n = len(tokens)
            results = request.infer({"input_ids": np.array([tokens]), "attention_mask": np.ones((1, first + n), np.int64),
                                     "position_ids": np.arange(first, first + n)[None], "beam_idx": np.zeros(1, np.int32)})
            with capture.step(tokens):
                for index, (stage, layer) in enumerate(tapped):
                    x = np.array(results[count + index])[0]
                    # [heads, tokens, head_dim]
                    x = x.swapaxes(0, 1) if stage.endswith(("rope", "cache")) else x.reshape(n, -1)
                    capture.add(stage, x, layer=layer)
                capture.add("logits", np.array(results["logits"])[0])
            first += n


if __name__ == "__main__":
    main()
