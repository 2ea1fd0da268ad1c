"""Runs Hugging Face transformers on a GGUF or a folder of safetensors, as qdiff tells it, and dumps every stage."""

import torch
import transformers
from qdiff_capture.transformers import hooked

import run

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def rounded_tables(rotary, dtype):
    """Rotary tables as candle 0.11.1 makes them for quantised Qwen3 (f16) and for Qwen2 in bf16: position, frequency, angle, sine
    and cosine in this type."""
    frequencies = rotary.inv_freq.to(dtype)

    def forward(x, position_ids):
        angles = position_ids[..., None].to(dtype) * frequencies
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    rotary.forward = forward


def softmax_in_bf16(scores, dim, dtype=None):
    """The softmax of candle-nn 0.11.1 on a CPU in bf16: differences, exponentials, each partial sum, and quotients are rounded."""
    assert dim == -1
    powers = scores.bfloat16()
    powers = (powers - powers.amax(-1, keepdim=True)).exp()
    total = torch.zeros(powers.shape[:-1], dtype=torch.bfloat16)
    for column in powers.movedim(-1, 0).contiguous():
        total += column
    return (powers / total[..., None]).to(dtype or scores.dtype)


def main():
    words = run.arguments(dtype=list(DTYPES), attention=["eager", "sdpa"], rope=["exact", "f16", "bf16"], softmax=["exact", "bf16"],
                          batch=["none", "left", "right"])
    place = {} if words.model.is_dir() else {"gguf_file": words.model.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        words.model.absolute() if words.model.is_dir() else words.model.parent.absolute(), **place, dtype=DTYPES[words.dtype],
        attn_implementation=words.attention, local_files_only=True).eval()
    if words.rope != "exact":
        rounded_tables(model.model.rotary_emb, DTYPES[words.rope])
    if words.softmax == "bf16":
        # Only the eager attention of these models calls it.
        torch.nn.functional.softmax = softmax_in_bf16
    cache = transformers.DynamicCache()
    capture = run.capture(engine=f"transformers {transformers.__version__}, {words.attention}, {words.dtype}",
                      arithmetic=words.dtype, sampler="told")
    if words.batch != "none":
        return in_a_batch(model, cache, capture, words)
    with capture, hooked(model, capture), torch.inference_mode():
        for tokens in words.passes:
            model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)


class Unpadded:
    """A capture of a sequence of a padded batch, without the rows and keys of its padding."""

    writes = True

    def __init__(self, own, keys):
        self.own, self.keys, self.rows = own, keys, keys

    def begin(self, tokens):
        self.own.begin(tokens[self.rows])

    def add(self, stage, x, layer=None):
        if stage in ("attn_scores", "attn_weights"):  # [heads, tokens, keys]
            x = x[:, self.rows, self.keys]
        else:
            x = x[self.keys if stage.endswith("_cache") else self.rows]
        self.own.add(stage, x, layer=layer)

    def end(self):
        self.own.end()
        self.rows = slice(None)  # Only the first pass is padded.


def in_a_batch(model, cache, capture, words):
    """Runs the sequence as the second of three of unequal lengths, which are padded at the left or right of the first pass, and
    captures it alone."""
    first, *later = words.passes
    n, width = len(first), len(first) + 5
    batch = [first[::-1][:n // 2 + 1], first, [*first[::-1], *first, *first, *first, *first, *first][:width]]
    left = words.batch == "left"
    assert left or not later, "after padding at the right no pass follows here"
    padded = [[0] * (width - len(one)) + one if left else one + [0] * (width - len(one)) for one in batch]
    mask = torch.tensor([[int(at >= width - len(one) if left else at < len(one)) for at in range(width)] for one in batch])
    shown = Unpadded(capture, slice(width - n, None) if left else slice(0, n))
    with capture, hooked(model, shown, sequence=1), torch.inference_mode():
        for number, tokens in enumerate(words.passes):
            ids = torch.tensor(padded if number == 0 else [tokens] * 3)
            mask = mask if number == 0 else torch.cat((mask, torch.ones_like(ids)), 1)
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1]:]
            model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)


if __name__ == "__main__":
    main()
