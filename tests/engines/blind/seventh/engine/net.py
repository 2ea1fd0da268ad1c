"""Qwen2, Qwen3, their experts, and Qwen3.5's gated delta nets: a pass in straight lines, over buffers made once."""
import numpy as np

import weights
from cells import Cells, Rows

MOST = 1024  # rows of a pass


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Net:
    def __init__(self, path, kv="f32"):
        meta, w = weights.read(path)
        arch = meta["general.architecture"]
        get = lambda name, other=None: meta.get(f"{arch}.{name}", other)
        self.layers, self.h, self.g = get("block_count"), get("attention.head_count"), get("attention.head_count_kv")
        self.e = get("embedding_length")
        self.d = get("attention.key_length") or self.e // self.h
        self.eps = np.float32(get("attention.layer_norm_rms_epsilon"))
        self.chosen = get("expert_used_count", 0)
        self.rotated = get("rope.dimension_count") or self.d
        self.base = get("rope.freq_base", 10000.0)
        self.scale = np.float32(self.d ** -0.5)
        self.gated = arch == "qwen35"
        self.v_heads, self.k_heads, self.dd = get("ssm.time_step_rank", 0), get("ssm.group_count", 0), get("ssm.state_size", 0)
        self.w = w
        for name in list(w):
            if w[name].ndim == 2 and name != "token_embd.weight" and "conv1d" not in name:
                w[name] = np.ascontiguousarray(w[name].T)
        self.head = w["output.weight"] if "output.weight" in w else np.ascontiguousarray(w["token_embd.weight"].T)
        for l in range(self.layers):
            p = f"blk.{l}."
            if p + "attn_k.weight" in w:
                w[p + "qkv"] = np.concatenate([w[p + f"attn_{n}.weight"] for n in "qkv"], 1)
            if p + "attn_q.bias" in w:
                w[p + "qkv_bias"] = np.concatenate([w[p + f"attn_{n}.bias"] for n in "qkv"])
            if p + "ffn_gate.weight" in w:
                w[p + "gate_up"] = np.concatenate([w[p + "ffn_gate.weight"], w[p + "ffn_up.weight"]], 1)
        self.cells = Cells()
        kinds = (kv.split("/") * 2)[:2]
        self.k, self.v = ([Rows(self.g, self.d, kind) for _ in range(self.layers)] for kind in kinds)
        self.states = {}   # of each sequence and layer, the delta net's window and state
        self.x = np.zeros((MOST, self.e), np.float32)
        self.normed = np.zeros((MOST, self.e), np.float32)
        half = self.rotated // 2
        self.frequency = (self.base ** (-np.arange(half) / half)).astype(np.float64)

    def norm(self, x, weight, out=None):
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return np.multiply(x * scale, weight, out=out)

    def rope(self, x, positions):
        half = self.rotated // 2
        turn = np.exp(1j * np.asarray(positions)[:, None] * self.frequency).astype(np.complex64)[:, None]
        z = (x[..., :half] + 1j * x[..., half:2 * half]) * turn
        return np.concatenate([z.real, z.imag, x[..., 2 * half:]], -1).astype(np.float32)

    def attention(self, l, q, run, tap):
        """All rows against all cells; a row sees those of its sequence up to its own position."""
        if run.decode:
            return self.attention_of_one(l, q, run, tap)
        seen = self.cells.seen()
        every = np.arange(seen)
        k, v = self.k[l].get(every), self.v[l].get(every)
        mask = self.cells.mask(run.sequences, run.cells, seen)
        of = np.arange(self.h) // (self.h // self.g)
        scores = np.matmul(q.transpose(1, 0, 2), k.transpose(1, 2, 0)[of])
        s = np.where(mask[None], scores * self.scale, np.float32(-np.inf))
        e = np.exp(s - s.max(-1, keepdims=True))
        w = e / e.sum(-1, keepdims=True)
        out = np.matmul(w, v.transpose(1, 0, 2)[of]).transpose(1, 0, 2)
        for s, rows in run.rows.items():
            cells = self.cells.where[s]
            tap.of(s, "attn_scores", l, scores[:, rows][:, :, cells])
            tap.of(s, "attn_weights", l, w[:, rows][:, :, cells])
        return out

    def attention_of_one(self, l, q, run, tap):
        """A row of each sequence, against the cells that its table names."""
        out = np.zeros_like(q)
        for t, s in enumerate(run.sequences):
            cells = self.cells.where[s]
            k, v = self.k[l].get(cells), self.v[l].get(cells)
            grouped = q[t].reshape(self.g, -1, self.d)
            scores = np.einsum("gjd,ngd->gjn", grouped, k)
            z = scores * self.scale
            e = np.exp(z - z.max(-1, keepdims=True))
            w = e / e.sum(-1, keepdims=True)
            out[t] = np.einsum("gjn,ngd->gjd", w, v).reshape(self.h, self.d)
            tap.of(s, "attn_scores", l, scores.reshape(self.h, 1, -1))
            tap.of(s, "attn_weights", l, w.reshape(self.h, 1, -1))
        return out

    def mix(self, l, h, run, tap):
        """Attention of a layer, up to its output projection."""
        p, n, w = f"blk.{l}.", len(h), self.w
        qkv = h @ w[p + "qkv"]
        gate = None
        if self.gated:
            width = 2 * self.h * self.d
            both = tap("q_gate_proj", qkv[:, :width], l).reshape(n, self.h, 2, self.d)
            q, gate = both[:, :, 0].reshape(n, -1), both[:, :, 1].reshape(n, -1)
            tap("q_half", q, l)
            tap("gate_half", gate, l)
            k, v = np.split(qkv[:, width:], 2, 1)
        else:
            q, k, v = np.split(qkv, [self.h * self.d, (self.h + self.g) * self.d], 1)
            tap("q_proj", q, l)
        tap("k_proj", k, l)
        tap("v_proj", v, l)
        if p + "qkv_bias" in w:
            q, k, v = np.split(np.concatenate([q, k, v], 1) + w[p + "qkv_bias"], [self.h * self.d, (self.h + self.g) * self.d], 1)
            for name, x in zip("qkv", (q, k, v)):
                tap(name + "_biased", x, l)
        q, k, v = q.reshape(n, self.h, self.d), k.reshape(n, self.g, self.d), v.reshape(n, self.g, self.d)
        if p + "attn_q_norm.weight" in w:
            q, k = self.norm(q, w[p + "attn_q_norm.weight"]), self.norm(k, w[p + "attn_k_norm.weight"])
            tap("q_normed", q.reshape(n, -1), l)
            tap("k_normed", k.reshape(n, -1), l)
        q, k = tap("q_rope", self.rope(q, run.positions), l), tap("k_rope", self.rope(k, run.positions), l)
        self.k[l].put(run.cells, k)
        self.v[l].put(run.cells, v)
        for s in run.rows:
            tap.of(s, "k_cache", l, self.k[l].get(self.cells.where[s]))
            tap.of(s, "v_cache", l, self.v[l].get(self.cells.where[s]))
        context = tap("attn_context", self.attention(l, q, run, tap).reshape(n, -1), l)
        if gate is not None:
            context = tap("attn_gated", context * tap("gate_sigmoid", sigmoid(gate), l), l)
        return tap("attn_out", context @ w[p + "attn_output.weight"], l)

    def delta(self, l, h, run, tap):
        """A gated delta net, token by token."""
        p, w, n, d, hv, hk = f"blk.{l}.", self.w, len(h), self.dd, self.v_heads, self.k_heads
        qkv = tap("delta_qkv", h @ w[p + "attn_qkv.weight"], l)
        z = tap("delta_z", h @ w[p + "attn_gate.weight"], l)
        beta = tap("delta_beta", sigmoid(tap("delta_b", h @ w[p + "ssm_beta.weight"], l)), l)
        a = tap("delta_a", h @ w[p + "ssm_alpha.weight"], l) + w[p + "ssm_dt.bias"]
        decay = tap("delta_decay", tap("delta_softplus", np.logaddexp(a, np.float32(0)), l) * w[p + "ssm_a"], l)
        kernel = w[p + "ssm_conv1d.weight"]
        past = kernel.shape[1] - 1
        conv, outs = np.empty_like(qkv), np.empty((n, hv, d), np.float32)
        for s, rows in run.rows.items():
            window, state = self.states.get((s, l)) or (np.zeros((past, qkv.shape[1]), np.float32), np.zeros((hv, d, d), np.float32))
            line = np.concatenate([window, qkv[rows]])
            m = len(line) - past
            conv[rows] = sum(line[j:j + m] * kernel[:, j] for j in range(past + 1))
            self.states[s, l] = [line[-past:].copy(), state.copy()]
            tap.of(s, "conv_state", l, self.states[s, l][0][None])
        tap("conv_out", conv, l)
        act = tap("conv_act", conv * sigmoid(conv), l)
        q, k, v = np.split(act, [hk * d, 2 * hk * d], 1)
        for name, x in zip("qkv", (q, k, v)):
            tap("delta_" + name, x, l)
        q, k = (x.reshape(n, hk, d) for x in (q, k))
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + self.eps) for x in (q, k))
        tap("delta_q_normed", q.reshape(n, -1), l)
        tap("delta_k_normed", k.reshape(n, -1), l)
        of = np.arange(hv) % hk
        v = v.reshape(n, hv, d)
        for s, rows in run.rows.items():
            state = self.states[s, l][1]
            for t in rows:
                kt, qt = k[t][of], q[t][of]
                state *= np.exp(decay[t])[:, None, None]
                error = (v[t] - np.einsum("hji,hi->hj", state, kt)) * beta[t][:, None]
                state += error[:, :, None] * kt[:, None, :]
                outs[t] = np.einsum("hji,hi->hj", state, qt) / np.float32(np.sqrt(d))
            tap.of(s, "delta_state", l, state.reshape(1, hv, d * d))
        tap("delta_out", outs.reshape(n, -1), l)
        y = tap("delta_normed", self.norm(outs, w[p + "ssm_norm.weight"]).reshape(n, -1), l)
        return tap("delta_proj", tap("delta_gated", z * sigmoid(z) * y, l) @ w[p + "ssm_out.weight"], l)

    def experts(self, l, h, tap):
        p, n, w, k = f"blk.{l}.", len(h), self.w, self.chosen
        router = tap("router", h @ w[p + "ffn_gate_inp.weight"], l)
        probs = np.exp(router - router.max(-1, keepdims=True))
        probs = tap("router_probs", probs / probs.sum(-1, keepdims=True), l)
        ids = np.argsort(-probs, -1, kind="stable")[:, :k]
        tap("router_experts", ids.astype(np.float32), l)
        share = tap("router_weights", np.take_along_axis(probs, ids, 1), l)
        share = tap("router_shares", share / share.sum(-1, keepdims=True), l)
        wg, wu, wd = (w[p + f"ffn_{name}_exps.weight"] for name in ("gate", "up", "down"))
        gate, up = np.empty((n, k, wg.shape[1]), np.float32), np.empty((n, k, wg.shape[1]), np.float32)
        down = np.empty((n, k, self.e), np.float32)
        for i in range(wg.shape[0]):
            row, place = np.nonzero(ids == i)
            gate[row, place] = h[row] @ wg[i].T
            up[row, place] = h[row] @ wu[i].T
        act = gate * sigmoid(gate) * up
        for i in range(wg.shape[0]):
            row, place = np.nonzero(ids == i)
            down[row, place] = act[row, place] @ wd[i].T
        for name, x in (("gate", gate), ("up", up), ("act", act), ("down", down)):
            tap("expert_" + name, x, l)
        return tap("experts_out", np.einsum("tk,tke->te", share, down), l)

    def compact(self):
        """Closes the holes in the cache, once they are many."""
        source, to = self.cells.compact()
        if len(to):
            for l in range(self.layers):
                self.k[l].copy(source, to)
                self.v[l].copy(source, to)

    def forward(self, run, tap):
        """A pass; the tokens, positions, sequences and cells of its rows are in `run`."""
        w, n = self.w, len(run.tokens)
        x, normed = self.x[:n], self.normed[:n]
        np.take(w["token_embd.weight"], run.tokens, axis=0, out=x)
        tap("embed", x)
        for l in range(self.layers):
            p = f"blk.{l}."
            self.norm(x, w[p + "attn_norm.weight"], out=normed)
            tap("attn_norm", normed, l)
            x += self.mix(l, normed, run, tap) if p + "qkv" in w else self.delta(l, normed, run, tap)
            tap("attn_residual", x, l)
            name = "ffn_norm" if p + "ffn_norm.weight" in w else "post_attention_norm"
            self.norm(x, w[p + name + ".weight"], out=normed)
            tap("ffn_norm", normed, l)
            if self.chosen:
                x += self.experts(l, normed, tap)
            else:
                gate, up = np.split(normed @ w[p + "gate_up"], 2, 1)
                tap("ffn_gate", gate, l)
                tap("ffn_up", up, l)
                act = tap("ffn_act", gate * sigmoid(gate) * up, l)
                x += tap("ffn_down", act @ w[p + "ffn_down.weight"], l)
            tap("layer_out", x, l)
        self.norm(x, w["output_norm.weight"], out=normed)
        tap("final_norm", normed)
        return tap("logits", normed @ self.head)
