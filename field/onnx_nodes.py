"""A model of onnxruntime-genai's builder with its inner nodes as outputs: which output is which stage."""

import re
import subprocess
import sys

STAGES = [(r"/model/embed_tokens/Gather/output_0", "embed", 0), (r"/model/layers\.(\d+)/input_layernorm/output_0", "attn_norm", 0),
          (r"/model/layers\.(\d+)/input_layernorm/output_3", "layer_out", -1),
          (r"/model/layers\.(\d+)/attn/q_norm/Reshape_2/output_0", "q_normed", 0),
          (r"/model/layers\.(\d+)/attn/k_norm/Reshape_2/output_0", "k_normed", 0),
          (r"/model/layers\.(\d+)/attn/GroupQueryAttention/output_0", "attn_context", 0), (r"present\.(\d+)\.key", "k_cache", 0),
          (r"present\.(\d+)\.value", "v_cache", 0), (r"/model/layers\.(\d+)/attn/o_proj/MatMul/output_0", "attn_out", 0),
          (r"/model/layers\.(\d+)/post_attention_layernorm/output_0", "ffn_norm", 0),
          (r"/model/layers\.(\d+)/post_attention_layernorm/output_3", "attn_residual", 0),
          (r"/model/layers\.(\d+)/mlp/gate_proj/MatMul/output_0", "ffn_gate", 0),
          (r"/model/layers\.(\d+)/mlp/up_proj/MatMul/output_0", "ffn_up", 0), (r"/model/layers\.(\d+)/mlp/Mul/output_0", "ffn_act", 0),
          (r"/model/layers\.(\d+)/mlp/down_proj/MatMul/output_0", "ffn_down", 0),
          (r"/model/layers\.\d+/final_norm_layernorm/output_0", "final_norm", 0),
          (r"/model/layers\.(\d+)/final_norm_layernorm/output_3", "layer_out", -1), (r"logits", "logits", 0)]


def build(source, folder, dtype):
    """Writes model.onnx, by the builder's own command, and stages.json: by output, stage and layer."""
    import json

    import onnx

    subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", "", "-i", source, "-o", folder, "-p", dtype, "-e", "cpu",
                    "-c", folder / "cache"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    graph = model.graph
    has = {out.name for out in graph.output}
    biased = any("qkv_proj/Add" in node.name for node in graph.node)
    kind = onnx.TensorProto.FLOAT if dtype == "fp32" else onnx.TensorProto.FLOAT16
    stages = {}
    for name in [name for node in graph.node for name in node.output]:
        found = next(((re.fullmatch(pattern, name), stage, shift) for pattern, stage, shift in STAGES if re.fullmatch(pattern, name)), None)
        split = re.fullmatch(r"/model/layers\.(\d+)/attn/qkv_proj/Split/output_(\d)", name)
        if split:
            found = split, "qkv"[int(split[2])] + ("_biased" if biased else "_proj"), 0
        if not found:
            continue
        stages[name] = [found[1], int(found[0][1]) + found[2] if found[0].groups() else None]
        if name not in has:
            graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
    onnx.save(model, folder / "model.onnx")
    (folder / "stages.json").write_text(json.dumps(stages))
