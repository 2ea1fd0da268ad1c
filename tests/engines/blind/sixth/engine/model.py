"""Qwen2, Qwen3 and Qwen3-MoE over a paged cache, in numpy."""
import numpy as np

import gguf
from pool import BLOCK, Store

PART = 32         # keys of a partition of the attention, of which the results are merged
VOCABULARY = 128  # ids of a tile of the logits


class Batch:
    """The rows of a forward pass, padding last, and what the attention is told of each sequence."""

    def __init__(self, tokens, positions, slots, starts, lengths, tables, count):
        self.tokens, self.positions, self.slots = tokens, positions, slots
        self.starts = starts    # of each sequence its first row; one more at the end
        self.lengths = lengths  # of each sequence its tokens with those of this pass
        self.tables = tables    # of each sequence its blocks
        self.count = count      # rows that are no padding


class Model:
    def __init__(self, path, slots, kv="f32"):
        meta, self.w = gguf.read(path)
        arch = meta["general.architecture"]
        key = lambda name, default=None: meta.get(f"{arch}.{name}", default)
        self.layers, self.heads, self.kv_heads = key("block_count"), key("attention.head_count"), key("attention.head_count_kv")
        self.embedding = key("embedding_length")
        self.d = key("attention.key_length") or self.embedding // self.heads
        self.eps = np.float32(key("attention.layer_norm_rms_epsilon"))
        self.chosen = key("expert_used_count", 0)
        base, longest = key("rope.freq_base", 10000.0), key("context_length")
        angle = np.arange(longest)[:, None] * base ** (-np.arange(0, self.d, 2) / self.d)
        self.cos, self.sin = np.cos(angle).astype("f4"), np.sin(angle).astype("f4")
        for l in range(self.layers):
            p = f"blk.{l}."
            self.w[p + "qkv.weight"] = np.concatenate([self.w[p + f"attn_{n}.weight"] for n in "qkv"])
            if p + "attn_q.bias" in self.w:
                self.w[p + "qkv.bias"] = np.concatenate([self.w[p + f"attn_{n}.bias"] for n in "qkv"])
            if not self.chosen:
                self.w[p + "gate_up.weight"] = np.concatenate([self.w[p + f"ffn_{n}.weight"] for n in ("gate", "up")])
        self.head = self.w.get("output.weight", self.w["token_embd.weight"])
        self.k = [Store(slots, self.kv_heads, self.d, kv) for _ in range(self.layers)]
        self.v = [Store(slots, self.kv_heads, self.d, kv) for _ in range(self.layers)]

    def norm(self, x, weight):
        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps)
        return x * scale * weight

    def rope(self, x, positions):
        half = self.d // 2
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def slots_of(self, table, length):
        at = np.arange(length)
        return table[at // BLOCK] * BLOCK + at % BLOCK

    def attention(self, q, l, batch, tap):
        """Causal attention of all sequences: partitions of their keys, each with its own maximum and sum, merged at the end."""
        out = np.zeros_like(q)
        group = self.heads // self.kv_heads
        scale = np.float32(1 / np.sqrt(self.d))
        for s in range(len(batch.lengths)):
            first, end, length = batch.starts[s], batch.starts[s + 1], batch.lengths[s]
            rows = q[first:end]
            last = batch.lengths[s] - (end - first) + np.arange(end - first)  # the last key of each row
            slots = self.slots_of(batch.tables[s], length)
            raw = np.zeros((self.heads, end - first, length), np.float32)
            most, total, sums = [], [], []
            for begin in range(0, length, PART):
                stop = min(begin + PART, length)
                k = np.repeat(self.k[l].read(slots[begin:stop]), group, 1)
                v = np.repeat(self.v[l].read(slots[begin:stop]), group, 1)
                score = np.einsum("thd,khd->htk", rows, k)
                raw[:, :, begin:stop] = score
                score = np.where(np.arange(begin, stop)[None, None] <= last[None, :, None], score * scale, -np.inf)
                m = np.maximum(score.max(-1), np.float32(-1e30))
                e = np.exp(score - m[..., None])
                most.append(m)
                total.append(e.sum(-1))
                sums.append(np.einsum("htk,khd->htd", e, v))
            m = np.max(most, 0)
            by = [np.exp(part - m) for part in most]
            z = sum(t * f for t, f in zip(total, by))
            o = sum(x * f[..., None] for x, f in zip(sums, by)) / z[..., None]
            out[first:end] = o.transpose(1, 0, 2)
            tap.of(s, "attn_scores", l, raw)
            tap.of(s, "k_cache", l, self.k[l].read(slots))
            tap.of(s, "v_cache", l, self.v[l].read(slots))
        return out

    def experts(self, h, p, l, tap):
        """Tokens sorted by expert, so that each expert makes one product; put back in order at the end."""
        n, k = len(h), self.chosen
        router = tap("router", h @ self.w[p + "ffn_gate_inp.weight"].T, l)
        e = np.exp(router - router.max(-1, keepdims=True))
        probs = tap("router_probs", e / e.sum(-1, keepdims=True), l)
        ids = np.argsort(-probs, -1, kind="stable")[:, :k]
        tap("router_experts", ids.astype(np.float32), l)
        weights = tap("router_weights", np.take_along_axis(probs, ids, -1), l)
        weights = tap("router_shares", weights / weights.sum(-1, keepdims=True), l)
        flat = ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        counts = np.bincount(flat, minlength=router.shape[1])
        ends = np.cumsum(counts)
        x = h[order // k]
        parts = {name: [] for name in ("expert_gate", "expert_up", "expert_act", "expert_down")}
        for i, end in enumerate(ends):
            mine = x[end - counts[i]:end]
            gate, up = (mine @ self.w[p + f"ffn_{name}_exps.weight"][i].T for name in ("gate", "up"))
            act = gate / (1 + np.exp(-gate)) * up
            for name, part in (("expert_gate", gate), ("expert_up", up), ("expert_act", act),
                               ("expert_down", act @ self.w[p + "ffn_down_exps.weight"][i].T)):
                parts[name].append(part)
        back = np.argsort(order, kind="stable")
        made = {name: np.concatenate(part)[back].reshape(n, k, -1) for name, part in parts.items()}
        for name, part in made.items():
            tap(name, part, l)
        return tap("experts_out", (made["expert_down"] * weights[..., None]).sum(1), l)

    def layer(self, x, l, batch, tap):
        p, w, n = f"blk.{l}.", self.w, len(x)
        heads, kv_heads, d = self.heads, self.kv_heads, self.d
        h = tap("attn_norm", self.norm(x, w[p + "attn_norm.weight"]), l)
        qkv = h @ w[p + "qkv.weight"].T
        cut = [heads * d, (heads + kv_heads) * d]
        for name, part in zip("qkv", np.split(qkv, cut, 1)):
            tap(name + "_proj", part, l)
        if p + "qkv.bias" in w:
            qkv = qkv + w[p + "qkv.bias"]
            for name, part in zip("qkv", np.split(qkv, cut, 1)):
                tap(name + "_biased", part, l)
        q, k, v = (part.reshape(n, -1, d) for part in np.split(qkv, cut, 1))
        if p + "attn_q_norm.weight" in w:
            q, k = self.norm(q, w[p + "attn_q_norm.weight"]), self.norm(k, w[p + "attn_k_norm.weight"])
            tap("q_normed", q.reshape(n, -1), l)
            tap("k_normed", k.reshape(n, -1), l)
        q, k = tap("q_rope", self.rope(q, batch.positions), l), tap("k_rope", self.rope(k, batch.positions), l)
        self.k[l].write(batch.slots, k)
        self.v[l].write(batch.slots, v)
        context = tap("attn_context", self.attention(q, l, batch, tap).reshape(n, -1), l)
        x = tap("attn_residual", x + tap("attn_out", context @ w[p + "attn_output.weight"].T, l), l)
        h = tap("ffn_norm", self.norm(x, w[p + "ffn_norm.weight"]), l)
        if self.chosen:
            out = self.experts(h, p, l, tap)
        else:
            gate, up = np.split(h @ w[p + "gate_up.weight"].T, 2, 1)
            tap("ffn_gate", gate, l)
            tap("ffn_up", up, l)
            act = tap("ffn_act", gate / (1 + np.exp(-gate)) * up, l)
            out = tap("ffn_down", act @ w[p + "ffn_down.weight"].T, l)
        return tap("layer_out", x + out, l)

    def forward(self, batch, tap):
        x = tap("embed", self.w["token_embd.weight"][batch.tokens])
        for l in range(self.layers):
            x = self.layer(x, l, batch, tap)
        h = tap("final_norm", self.norm(x, self.w["output_norm.weight"]))
        vocabulary = len(self.head)
        logits = np.empty((len(h), vocabulary), np.float32)
        for begin in range(0, vocabulary, VOCABULARY):
            end = min(begin + VOCABULARY, vocabulary)
            logits[:, begin:end] = h @ self.head[begin:end].T
        return tap("logits", logits)
