"""The layers of Qwen2, Qwen3, Qwen3 with experts, and Qwen3.5."""
import numpy as np

import attend
import store
from pages import PAGE, Pages, States

F = np.float32
PAGES = 64
STRIP = 128  # elements of a row that a norm adds up at a time
ROWS = 4     # rows that get their bias at a time
LANES = 64   # elements that the activation takes at a time
BLOCK = 4    # lines of a block of an expert
CHUNK = 8    # rows whose experts are added up at a time


def sigmoid(x):
    return F(1) / (F(1) + np.exp(-x))


def silu(x):
    """In vectors of LANES elements, and what is left over one by one."""
    y = np.empty_like(x)
    whole = x.shape[-1] - x.shape[-1] % LANES
    y[..., :whole] = x[..., :whole] * sigmoid(x[..., :whole])
    y[..., whole:] = x[..., whole:] * sigmoid(x[..., whole:])
    return y


def norm(x, w, eps):
    squares = np.zeros(x.shape[:-1], F)
    for at in range(0, x.shape[-1], STRIP):
        strip = x[..., at:at + STRIP]
        squares += (strip * strip).sum(-1)
    return x * (F(1) / np.sqrt(squares / F(x.shape[-1]) + eps))[..., None] * w


def add_bias(x, b):
    y = x.copy()
    whole = len(x) - len(x) % ROWS
    for at in range(0, whole, ROWS):
        y[at:at + ROWS] += b
    for at in range(whole, len(x)):
        y[at] += b
    return y


def yarn(frequency, c):
    """Fast pairs as trained, slow pairs stretched, a ramp between; and the factor of cosine and sine."""
    pair = lambda turns: c.rotated * np.log(c.trained / (turns * 2 * np.pi)) / (2 * np.log(c.base))
    low, high = max(0, np.floor(pair(32))), min(c.rotated - 1, np.ceil(pair(1)))
    ramp = np.clip((np.arange(len(frequency)) - low) / max(0.001, high - low), 0, 1)
    return frequency / c.yarn * ramp + frequency * (1 - ramp), 1 + 0.1 * np.log(c.yarn)


class Model:
    def __init__(self, c, w, kv):
        self.c, self.w = c, w
        self.pages = Pages(PAGES)
        kinds = kv.split("/")
        make = lambda kind, which: {l: store.make(PAGES, c.groups, c.dim, kind, which, l) for l in range(c.layers) if not c.recurrent[l]}
        self.k, self.v = make(kinds[0], "k"), make(kinds[-1], "v")
        half = c.rotated // 2
        at = np.arange(c.context, dtype=np.float64)[:, None]
        frequency, loud = float(c.base) ** (-np.arange(half) / half), 1.0
        if c.yarn:
            frequency, loud = yarn(frequency, c)
        angle = at * frequency
        self.cos, self.sin = (np.cos(angle) * loud).astype(F), (np.sin(angle) * loud).astype(F)
        self.states = None
        self.work = {}  # by count of rows, where norms write
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

    def rope(self, x, positions):
        half = self.c.rotated // 2
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
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
            q, k, v = (tap(f"{s}_biased", add_bias(y, w[p + f"attn_{s}.bias"]), l) for s, y in zip("qkv", (q, k, v)))
        q, k, v = q.reshape(n, c.heads, c.dim), k.reshape(n, c.groups, c.dim), v.reshape(n, c.groups, c.dim)
        if p + "attn_q_norm.weight" in w:
            q = norm(q, w[p + "attn_q_norm.weight"], c.eps)
            k = norm(k, w[p + "attn_k_norm.weight"], c.eps)
            tap("q_normed", q.reshape(n, -1), l)
            tap("k_normed", k.reshape(n, -1), l)
        q, k = tap("q_rope", self.rope(q, run.positions), l), tap("k_rope", self.rope(k, run.positions), l)
        writes = run.slots >= 0  # rows that only fill up a batch have no slot
        self.k[l].put(run.slots[writes], k[writes], run.decode)
        self.v[l].put(run.slots[writes], v[writes], run.decode)
        scale = F(1 / np.sqrt(c.dim))
        context = np.zeros((n, c.heads, c.dim), F)
        made = []
        for at, sequence in enumerate(run.order):
            rows = run.rows[sequence]
            slots, count = run.slots_of(at, sequence), run.lengths[at]
            keys, values = self.k[l].get(slots), self.v[l].get(slots)
            tap.of(sequence, "k_cache", l, keys[:count])
            tap.of(sequence, "v_cache", l, values[:count])
            query = q[rows].transpose(1, 0, 2)
            args = query, attend.expand(keys, c.heads), attend.expand(values, c.heads), scale
            if run.decode:
                scores, weights, *parts = attend.split(*args)
                made.append(parts)
            else:
                first = run.first[sequence]
                scores, weights, sums = attend.prefill(*args, first, min(self.pages.shared[sequence], first), c.heads // c.groups)
                made.append(sums.transpose(1, 0, 2))
            tap.of(sequence, "attn_scores", l, scores[:, :, :count])
            tap.of(sequence, "attn_weights", l, weights[:, :, :count])
        if run.decode:  # of each sequence one row, which goes where the sequence stands in the batch
            context[run.batch_place] = attend.combine(made)
        else:
            for sequence, sums in zip(run.order, made):
                context[run.rows[sequence]] = sums
        context = tap("attn_context", context.reshape(n, -1), l)
        if gate is not None:
            context = tap("attn_gated", context * tap("gate_sigmoid", sigmoid(gate), l), l)
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
        windows = self.states.window[l]
        ends = []
        for sequence in run.order:
            rows, marks = run.rows[sequence], run.marks[sequence]
            line = np.concatenate([windows[marks[0]], qkv[rows]])
            conv[rows] = sum(line[j:j + len(rows)] * kernel[:, j] for j in range(c.taps))
            for t, mark in enumerate(marks[1:]):
                windows[mark][:] = line[t + 1:t + 1 + past]
            ends.append(windows[marks[-1]])
        for t in range(run.count, n):  # rows that only fill up a batch have no state
            if run.state_rows[t] >= 0:
                line = np.concatenate([windows[run.state_rows[t]], qkv[t:t + 1]])
                conv[t], windows[run.state_rows[t]][:] = (line * kernel.T).sum(0), line[1:]
        tap("conv_state", np.stack(ends), l)
        act = tap("conv_act", silu(tap("conv_out", conv, l)), l)
        q, k, v = tap("delta_q", act[:, :keys], l), tap("delta_k", act[:, keys:2 * keys], l), tap("delta_v", act[:, 2 * keys:], l)
        unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + c.eps)
        q, k = unit(q.reshape(n, c.key_heads, d)), unit(k.reshape(n, c.key_heads, d))
        tap("delta_q_normed", q.reshape(n, -1), l)
        tap("delta_k_normed", k.reshape(n, -1), l)
        v, root = v.reshape(n, c.value_heads, d), F(np.sqrt(d))
        of_head = np.arange(c.value_heads) % c.key_heads
        out = np.zeros_like(v)
        memory = self.states.memory[l]

        def step(m, t):  # m is [heads, value, key]
            key = k[t][of_head]
            m = m * np.exp(decay[t])[:, None, None]
            delta = (v[t] - (m @ key[:, :, None])[:, :, 0]) * beta[t][:, None]
            return m + delta[:, :, None] * key[:, None]

        for sequence in run.order:
            marks = run.marks[sequence]
            m = memory[marks[0]].copy()
            for t, mark in zip(run.rows[sequence], marks[1:]):
                m = step(m, t)
                out[t] = (m @ q[t][of_head][:, :, None])[:, :, 0] / root
                memory[mark][:] = m
        for t in range(run.count, n):
            if run.state_rows[t] >= 0:
                memory[run.state_rows[t]][:] = step(memory[run.state_rows[t]], t)
        ends = [memory[run.marks[sequence][-1]] for sequence in run.order]
        tap("delta_state", np.stack(ends).reshape(len(ends), c.value_heads, d * d), l)
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
        # Lines sorted by their expert; those of an expert fill whole blocks.
        expert = chosen.reshape(-1)
        counts = np.bincount(expert, minlength=c.experts)
        padded = -(-counts // BLOCK) * BLOCK
        starts = np.cumsum(padded) - padded
        place, filled = np.empty(len(expert), int), starts.copy()
        for line in np.argsort(expert, kind="stable"):
            place[line] = filled[expert[line]]
            filled[expert[line]] += 1
        of_block = np.repeat(np.arange(c.experts), padded // BLOCK)
        lines = np.zeros((padded.sum(), x.shape[1]), F)
        lines[place] = np.repeat(x, c.taken, 0)

        def product(y, name):
            matrices = w[p + name]
            return np.concatenate([y[b * BLOCK:(b + 1) * BLOCK] @ matrices[of_block[b]].T for b in range(len(of_block))])

        back = lambda y: y[place].reshape(n, c.taken, -1)
        gate, up = product(lines, "ffn_gate_exps.weight"), product(lines, "ffn_up_exps.weight")
        tap("expert_gate", back(gate), l)
        tap("expert_up", back(up), l)
        act = silu(gate) * up
        tap("expert_act", back(act), l)
        down = tap("expert_down", back(product(act, "ffn_down_exps.weight")), l)
        out = np.empty_like(x)
        for begin in range(0, n, CHUNK):
            end = min(begin + CHUNK, n)
            out[begin:end] = (down[begin:end] * shares[begin:end, :, None]).sum(1)
        return tap("experts_out", out, l)

    def normed(self, x, w):
        """The norm in front of a mixer, in memory that the layers use again."""
        out = self.work.setdefault(len(x), np.zeros_like(x))
        out[:] = norm(x, w, self.c.eps)
        return out

    def normed_sum(self, x, y, w):
        """x + y, and its norm, a row at a time."""
        x, out = x + y, self.work[len(x)]
        for row in range(len(x)):
            out[row] = norm(x[row], w, self.c.eps)
        return x, out

    def forward(self, run, tap):
        c, w = self.c, self.w
        x = tap("embed", w["token_embd.weight"][run.tokens])
        for l in range(c.layers):
            p = f"blk.{l}."
            mixer = self.delta_net if c.recurrent[l] else self.attention
            y = mixer(run, tap, l, tap("attn_norm", self.normed(x, w[p + "attn_norm.weight"]), l))
            h = w[p + ("post_attention_norm.weight" if c.arch == "qwen35" else "ffn_norm.weight")]
            x, h = self.normed_sum(x, y, h)
            tap("attn_residual", x, l)
            tap("ffn_norm", h, l)
            if c.experts:
                out = self.experts(tap, l, h)
            else:
                gate, up = tap("ffn_gate", h @ w[p + "ffn_gate.weight"].T, l), tap("ffn_up", h @ w[p + "ffn_up.weight"].T, l)
                out = tap("ffn_down", tap("ffn_act", silu(gate) * up, l) @ w[p + "ffn_down.weight"].T, l)
            x = tap("layer_out", x + out, l)
        x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))
        # The head takes the rows in the order of the batch.
        order = np.concatenate([run.batch_place, np.arange(run.count, len(x))]) if run.decode else np.arange(len(x))
        made = x[order] @ w.get("output.weight", w["token_embd.weight"]).T
        logits = np.empty_like(made)
        logits[order] = made
        return tap("logits", logits)
