"""The layers of Qwen2, Qwen3, Qwen3 with experts, and Qwen3.5."""
import numpy as np

import paged
import store
from pages import Pages, States

F = np.float32
PAGES = 64
STRIP = 128  # elements of a row that a norm adds up at a time
CHUNK = 8    # tokens that a delta net takes at a time in a prefill
TILE = 8     # lines of an expert that a product takes at a time
STRIDE = 16  # rows that are added to the residual stream at a time


def sigmoid(x):
    return F(1) / (F(1) + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def norm(x, w, eps):
    squares = np.zeros(x.shape[:-1], F)
    for at in range(0, x.shape[-1], STRIP):
        strip = x[..., at:at + STRIP]
        squares += (strip * strip).sum(-1)
    return x * (F(1) / np.sqrt(squares / F(x.shape[-1]) + eps))[..., None] * w


def scan(m, q, k, v, decay, beta, root):
    """The gated delta rule over a prefill, in chunks: the state [heads, value, key] before it, queries and keys [T, heads, key]. The outputs,
    the state after each token, and the state behind the last chunk."""
    out, states = np.zeros_like(v), []
    for t in range(0, len(v), CHUNK):
        qs, ks, vs, b = q[t:t + CHUNK], k[t:t + CHUNK], v[t:t + CHUNK], beta[t:t + CHUNK]
        count = len(vs)
        gate = np.zeros((CHUNK, v.shape[1]))  # in f64: differences of large sums
        gate[:count] = np.cumsum(decay[t:t + CHUNK], 0, dtype=float)
        power = lambda x: np.exp(x).astype(F)
        u = np.zeros_like(vs)  # what each token of the chunk writes
        for i in range(count):
            near = (ks[:i] * ks[i]).sum(-1) * power(gate[i] - gate[:i])
            held = power(gate[i])[:, None] * (m @ ks[i][:, :, None])[:, :, 0] + (near[:, :, None] * u[:i]).sum(0)
            u[i] = (vs[i] - held) * b[i][:, None]
            read = (ks[:i + 1] * qs[i]).sum(-1) * power(gate[i] - gate[:i + 1])
            out[t + i] = (power(gate[i])[:, None] * (m @ qs[i][:, :, None])[:, :, 0] + (read[:, :, None] * u[:i + 1]).sum(0)) / root
        state = lambda last, n: power(last)[:, None, None] * m + np.einsum("jh,jhv,jhk->hvk", power(last - gate[:n]), u[:n], ks[:n])
        states += [state(gate[i], i + 1) for i in range(count)]
        m = state(gate[count - 1], count)
    return out, states, m


class Model:
    def __init__(self, c, w, kv):
        self.c, self.w = c, w
        self.pages = Pages(PAGES)
        kinds = kv.split("/")
        make = lambda kind, which: {l: store.make(PAGES, c.groups, c.dim, kind, which, l) for l in range(c.layers) if not c.recurrent[l]}
        self.k, self.v = make(kinds[0], "k"), make(kinds[-1], "v")
        half = c.rotated // 2
        angle = np.arange(c.context, dtype=np.float64)[:, None] * float(c.base) ** (-np.arange(half) / half)
        self.cos, self.sin = np.cos(angle).astype(F), np.sin(angle).astype(F)
        self.states = None
        if any(c.recurrent):
            channels = (2 * c.key_heads + c.value_heads) * c.state
            self.states = States([l for l in range(c.layers) if c.recurrent[l]], c.taps, channels, c.value_heads, c.state)

    # What a scheduler says.

    def take_back(self, sequence, kept):
        self.pages.keep(sequence, kept)
        if self.states:
            self.states.keep(sequence, kept)

    def share(self, source, sequence, count):
        self.pages.share(source, sequence, count)
        if self.states:
            self.states.share(source, sequence, count)

    def copy_page(self, a, b):
        for cache in (self.k, self.v):
            for held in cache.values():
                held.copy(a, b)

    # Layers.

    def rope(self, x, at):
        half = self.c.rotated // 2
        cos, sin = self.cos[at][:, None], self.sin[at][:, None]
        a, b = x[..., :half], x[..., half:2 * half]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)

    def attention(self, run, tap, l, x):
        c, w, p = self.c, self.w, f"blk.{l}."
        n, gate = len(x), None
        if c.arch == "qwen35":
            both = tap("q_gate_proj", x @ w[p + "attn_q.weight"].T, l).reshape(n, c.heads, 2, c.dim)
            q, gate = tap("q_half", both[:, :, 0].reshape(n, -1), l), tap("gate_half", both[:, :, 1].reshape(n, -1), l)
        else:
            q = tap("q_proj", x @ w[p + "attn_q.weight"].T, l)
        k, v = tap("k_proj", x @ w[p + "attn_k.weight"].T, l), tap("v_proj", x @ w[p + "attn_v.weight"].T, l)
        if p + "attn_q.bias" in w:
            q, k, v = (tap(f"{s}_biased", y + w[p + f"attn_{s}.bias"], l) for s, y in zip("qkv", (q, k, v)))
        q, k, v = q.reshape(n, c.heads, c.dim), k.reshape(n, c.groups, c.dim), v.reshape(n, c.groups, c.dim)
        if p + "attn_q_norm.weight" in w:
            q = norm(q, w[p + "attn_q_norm.weight"], c.eps)
            k = norm(k, w[p + "attn_k_norm.weight"], c.eps)
            tap("q_normed", q.reshape(n, -1), l)
            tap("k_normed", k.reshape(n, -1), l)
        k = tap("k_rope", self.rope(k, run.turns), l)
        writes = run.slots >= 0  # rows that only fill up a batch have no slot
        self.k[l].put(run.slots[writes], k[writes])
        self.v[l].put(run.slots[writes], v[writes])
        q = tap("q_rope", self.rope(q, run.turns), l)
        scale = F(1 / np.sqrt(c.dim))
        context = np.zeros((n, c.heads, c.dim), F)
        of_heads = lambda x: np.repeat(x.transpose(1, 0, 2), c.heads // x.shape[1], 0)
        for at, sequence in enumerate(run.order):
            rows, length, slots = run.rows[sequence], run.lengths[at], run.slots_of(at)
            keys, values = self.k[l].get(slots), self.v[l].get(slots)
            tap.of(sequence, "k_cache", l, keys[:length])
            tap.of(sequence, "v_cache", l, values[:length])
            query, keys, values = q[rows].transpose(1, 0, 2), of_heads(keys), of_heads(values)
            if run.decode:
                scores, weights, sums = paged.decode(query, keys, values, scale, length)
            else:
                first = run.first[sequence]
                scores, weights, sums = paged.prefill(query, keys[:, :length], values[:, :length], scale, first, min(self.pages.shared[sequence], first))
            tap.of(sequence, "attn_scores", l, scores)
            tap.of(sequence, "attn_weights", l, weights)
            context[rows] = sums.transpose(1, 0, 2)
        context = tap("attn_context", context.reshape(n, -1), l)
        if gate is not None:
            gate, gated = tap("gate_sigmoid", sigmoid(gate), l), np.zeros_like(context)
            for rows in run.rows.values():
                gated[rows] = context[rows] * gate[rows]
            context = tap("attn_gated", gated, l)
        return tap("attn_out", context @ w[p + "attn_output.weight"].T, l)

    def delta_net(self, run, tap, l, x):
        c, w, p = self.c, self.w, f"blk.{l}."
        n, keys, values, d = len(x), c.key_heads * c.state, c.value_heads * c.state, c.state
        qkv, z = tap("delta_qkv", x @ w[p + "attn_qkv.weight"].T, l), tap("delta_z", x @ w[p + "attn_gate.weight"].T, l)
        beta = tap("delta_beta", sigmoid(tap("delta_b", x @ w[p + "ssm_beta.weight"].T, l)), l)
        soft = tap("delta_a", x @ w[p + "ssm_alpha.weight"].T, l) + w[p + "ssm_dt.bias"]
        soft = tap("delta_softplus", np.logaddexp(F(0), soft), l)
        decay = tap("delta_decay", soft * w[p + "ssm_a"], l)
        kernel, past = w[p + "ssm_conv1d.weight"], c.taps - 1
        conv = np.zeros_like(qkv)
        windows, memory = self.states.window[l], self.states.memory[l]
        held = np.array([run.state[s] for s in run.order])  # rows of the pool
        befores, after = windows[held], {}
        for at, sequence in enumerate(run.order):
            rows = run.rows[sequence]
            line = np.concatenate([befores[at], qkv[rows]])
            conv[rows] = sum(line[j:j + len(rows)] * kernel[:, j] for j in range(c.taps))
            after[sequence] = [line[t + 1:t + 1 + past] for t in range(len(rows))]
            windows[held[at]] = after[sequence][-1]
        tap("conv_state", windows[held], l)
        act = tap("conv_act", silu(tap("conv_out", conv, l)), l)
        q, k, v = tap("delta_q", act[:, :keys], l), tap("delta_k", act[:, keys:2 * keys], l), tap("delta_v", act[:, 2 * keys:], l)
        unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + c.eps)
        q, k = unit(q.reshape(n, c.key_heads, d)), unit(k.reshape(n, c.key_heads, d))
        tap("delta_q_normed", q.reshape(n, -1), l)
        tap("delta_k_normed", k.reshape(n, -1), l)
        v, root = v.reshape(n, c.value_heads, d), F(np.sqrt(d))
        of_head = np.arange(c.value_heads) % c.key_heads
        q, k = q[:, of_head], k[:, of_head]
        out = np.zeros_like(v)
        for at, sequence in enumerate(run.order):
            rows, m = run.rows[sequence], memory[held[at]]  # [heads, value, key]
            if len(rows) == 1:
                r = rows[0]
                m = m * np.exp(decay[r])[:, None, None]
                delta = (v[r] - (m @ k[r][:, :, None])[:, :, 0]) * beta[r][:, None]
                m = m + delta[:, :, None] * k[r][:, None]
                out[r], states = (m @ q[r][:, :, None])[:, :, 0] / root, [m]
            else:
                out[rows], states, m = scan(m, q[rows], k[rows], v[rows], decay[rows], beta[rows], root)
            memory[held[at]] = m
            self.states.save(sequence, l, after[sequence], states)
        tap("delta_state", memory[held].reshape(len(held), c.value_heads, d * d), l)
        tap("delta_out", out.reshape(n, -1), l)
        out = tap("delta_normed", norm(out, w[p + "ssm_norm.weight"], c.eps).reshape(n, -1), l)
        return tap("delta_proj", tap("delta_gated", silu(z) * out, l) @ w[p + "ssm_out.weight"].T, l)

    def experts(self, tap, l, x):
        c, w, p = self.c, self.w, f"blk.{l}."
        n = len(x)
        logits = tap("router", x @ w[p + "ffn_gate_inp.weight"].T, l)
        e = np.exp(logits - logits.max(-1, keepdims=True))
        probs = tap("router_probs", e / e.sum(-1, keepdims=True), l)
        chosen = np.argsort(-probs, -1, kind="stable")[:, :c.taken]
        tap("router_experts", chosen.astype(np.int32), l)
        weights = tap("router_weights", np.take_along_axis(probs, chosen, -1), l)
        shares = tap("router_shares", weights / weights.sum(-1, keepdims=True), l)
        # A line for each pair of row and expert, sorted by expert. Each expert takes its lines in tiles.
        order = np.argsort(chosen.reshape(-1), kind="stable")
        ends = np.cumsum(np.bincount(chosen.reshape(-1), minlength=c.experts))
        begins = np.concatenate([[0], ends[:-1]])
        lines, share = x[order // c.taken], shares.reshape(-1)[order]

        def products(y, *names):
            made = [np.zeros((len(order), w[p + name].shape[1]), F) for name in names]
            for e, (begin, end) in enumerate(zip(begins, ends)):
                for at in range(begin, end, TILE):
                    tile = slice(at, min(at + TILE, end))
                    for out, name in zip(made, names):
                        out[tile] = y[tile] @ w[p + name][e].T
            return made

        def back(y):
            out = np.empty_like(y)
            out[order] = y
            return out.reshape(n, c.taken, -1)

        gate, up = products(lines, "ffn_gate_exps.weight", "ffn_up_exps.weight")
        tap("expert_gate", back(gate), l)
        tap("expert_up", back(up), l)
        act = silu(gate) * up
        tap("expert_act", back(act), l)
        down, = products(act, "ffn_down_exps.weight")
        tap("expert_down", back(down), l)
        return tap("experts_out", back(down * share[:, None]).sum(1), l)

    def plus(self, x, y):
        """The residual stream and what is added to it."""
        out = np.empty_like(x)
        for at in range(0, len(x), STRIDE):
            rows = slice(at, min(at + STRIDE, len(x)))
            out[rows] = x[rows] + y[rows]
        return out

    def forward(self, run, tap):
        c, w = self.c, self.w
        x = tap("embed", w["token_embd.weight"][run.tokens])
        for l in range(c.layers):
            p = f"blk.{l}."
            mixer = self.delta_net if c.recurrent[l] else self.attention
            x = tap("attn_residual", self.plus(x, mixer(run, tap, l, tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l))), l)
            h = w[p + ("post_attention_norm.weight" if c.arch == "qwen35" else "ffn_norm.weight")]
            h = tap("ffn_norm", norm(x, h, c.eps), l)
            if c.experts:
                out = self.experts(tap, l, h)
            else:
                gate, up = tap("ffn_gate", h @ w[p + "ffn_gate.weight"].T, l), tap("ffn_up", h @ w[p + "ffn_up.weight"].T, l)
                out = tap("ffn_down", tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T, l)
            x = tap("layer_out", self.plus(x, out), l)
        x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))
        made = x[run.heads] @ w.get("output.weight", w["token_embd.weight"]).T
        logits = np.empty_like(made)
        logits[run.heads] = made
        return tap("logits", logits)
