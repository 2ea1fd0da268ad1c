"""The layers of Qwen2, Qwen3, Qwen3 with experts, and Qwen3.5."""
import numpy as np

import attend
import store
from batch import PAGE, Batch, Pool, States, advance

F = np.float32
PAGES = 64
CHUNK = 8    # tokens that a delta net takes at a time in a prefill
FEW = 8      # rows of a small batch, whose products go over strips
STRIP = 128  # elements of a strip
TOKENS = 8   # rows of a pass that the experts take at a time
HEAD = 8     # rows of a pass that the head takes at a time


def sigmoid(x):
    return F(1) / (F(1) + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def norm(x, w, eps):
    return x * (F(1) / np.sqrt((x * x).mean(-1, dtype=F) + eps))[..., None] * w


def linear(x, w):
    """x times a matrix of rows of weights."""
    if 2 <= len(x) <= FEW:
        y = np.zeros((len(x), len(w)), F)
        for at in range(0, w.shape[1], STRIP):
            y += x[:, at:at + STRIP] @ w[:, at:at + STRIP].T
        return y
    return x @ w.T


def scan(m, q, k, v, decay, beta, root):
    """The gated delta rule over a prefill, in chunks: the state [heads, value, key] before it, queries and keys [T, heads, key].
    The outputs and the state behind the last chunk."""
    out = np.zeros_like(v)
    for t in range(0, len(v), CHUNK):
        qs, ks, vs, b = q[t:t + CHUNK], k[t:t + CHUNK], v[t:t + CHUNK], beta[t:t + CHUNK]
        count = len(vs)
        gate = np.cumsum(decay[t:t + CHUNK], 0, dtype=float)  # in f64: differences of large sums
        power = lambda x: np.exp(x).astype(F)
        u = np.zeros_like(vs)  # what each token of the chunk writes
        for i in range(count):
            near = (ks[:i] * ks[i]).sum(-1) * power(gate[i] - gate[:i])
            held = power(gate[i])[:, None] * (m @ ks[i][:, :, None])[:, :, 0] + (near[:, :, None] * u[:i]).sum(0)
            u[i] = (vs[i] - held) * b[i][:, None]
            read = (ks[:i + 1] * qs[i]).sum(-1) * power(gate[i] - gate[:i + 1])
            out[t + i] = (power(gate[i])[:, None] * (m @ qs[i][:, :, None])[:, :, 0] + (read[:, :, None] * u[:i + 1]).sum(0)) / root
        last = gate[-1]
        m = power(last)[:, None, None] * m + np.einsum("jh,jhv,jhk->hvk", power(last - gate), u, ks)
    return out, m


class Model:
    def __init__(self, c, w, kv):
        self.c, self.w = c, w
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
        self.batch = Batch(Pool(PAGES), self.states)

    def copy_page(self, a, b):
        for cache in (self.k, self.v):
            for held in cache.values():
                held.copy(a, b)

    def rope(self, x, at):
        half = self.c.rotated // 2
        cos, sin = self.cos[at][:, None], self.sin[at][:, None]
        a, b = x[..., :half], x[..., half:2 * half]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)

    def attention(self, run, tap, l, x):
        c, w, p = self.c, self.w, f"blk.{l}."
        n, gate = len(x), None
        if c.arch == "qwen35":
            both = tap("q_gate_proj", linear(x, w[p + "attn_q.weight"]), l).reshape(n, c.heads, 2, c.dim)
            q, gate = tap("q_half", both[:, :, 0].reshape(n, -1), l), tap("gate_half", both[:, :, 1].reshape(n, -1), l)
        else:
            q = tap("q_proj", linear(x, w[p + "attn_q.weight"]), l)
        k, v = tap("k_proj", linear(x, w[p + "attn_k.weight"]), l), tap("v_proj", linear(x, w[p + "attn_v.weight"]), l)
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
        self.v[l].put(run.slots_of_values[writes], v[writes])
        q = tap("q_rope", self.rope(q, run.turns), l)
        scale = F(1 / np.sqrt(c.dim))
        context = np.zeros((n, c.heads, c.dim), F)
        expand = lambda y: np.repeat(y.transpose(1, 0, 2), c.heads // c.groups, 0)  # [N, G, D] as [H, N, D]
        for sequence in run.order:
            rows, slots, first = run.rows[sequence], run.table[sequence], run.first[sequence]
            keys, values = self.k[l].get(slots), self.v[l].get(slots)
            tap.of(sequence, "k_cache", l, keys)
            tap.of(sequence, "v_cache", l, values)
            query, keys, values = q[rows].transpose(1, 0, 2), expand(keys), expand(values)
            if len(rows) == 1 and first:
                scores, weights, sums = attend.decode(query, keys, values, scale, len(slots), PAGE)
            else:
                scores, weights, sums = attend.prefill(query, keys, values, scale, first, run.first[sequence])
            tap.of(sequence, "attn_scores", l, scores)
            tap.of(sequence, "attn_weights", l, weights)
            context[rows] = sums.transpose(1, 0, 2)
        context = tap("attn_context", context.reshape(n, -1), l)
        if gate is not None:
            context = tap("attn_gated", context * tap("gate_sigmoid", sigmoid(gate), l), l)
        return tap("attn_out", linear(context, w[p + "attn_output.weight"]), l)

    def delta_net(self, run, tap, l, x):
        c, w, p = self.c, self.w, f"blk.{l}."
        n, keys, d = len(x), c.key_heads * c.state, c.state
        qkv, z = tap("delta_qkv", linear(x, w[p + "attn_qkv.weight"]), l), tap("delta_z", linear(x, w[p + "attn_gate.weight"]), l)
        beta = tap("delta_beta", sigmoid(tap("delta_b", linear(x, w[p + "ssm_beta.weight"]), l)), l)
        soft = tap("delta_a", linear(x, w[p + "ssm_alpha.weight"]), l) + w[p + "ssm_dt.bias"]
        soft = tap("delta_softplus", np.logaddexp(F(0), soft), l)
        decay = tap("delta_decay", soft * w[p + "ssm_a"], l)
        kernel, past = w[p + "ssm_conv1d.weight"], c.taps - 1
        conv = np.zeros_like(qkv)
        windows, memory, journal = self.states.window[l], self.states.memory[l], self.states.journal
        for sequence in run.order:
            rows, at = run.rows[sequence], run.places[sequence]
            before = windows[at]
            line = np.concatenate([before, qkv[rows]])
            conv[rows] = sum(line[j:j + len(rows)] * kernel[:, j] for j in range(c.taps))
            windows[at] = line[-past:]
        tap("conv_state", np.stack([windows[run.places[s]] for s in run.order]), l)
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
        for sequence in run.order:
            rows, at = run.rows[sequence], run.places[sequence]
            if len(rows) == 1:
                t = rows[0]
                memory[at] = advance(memory[at], k[t], v[t], decay[t], beta[t])
                out[t] = (memory[at] @ q[t][:, :, None])[:, :, 0] / root
            else:
                out[rows], memory[at] = scan(memory[at].copy(), q[rows], k[rows], v[rows], decay[rows], beta[rows], root)
            journal[sequence, l] += [(qkv[t], k[t], v[t], decay[t], beta[t]) for t in rows]
        tap("delta_state", np.stack([memory[run.places[s]] for s in run.order]).reshape(len(run.order), c.value_heads, d * d), l)
        tap("delta_out", out.reshape(n, -1), l)
        out = tap("delta_normed", norm(out, w[p + "ssm_norm.weight"], c.eps).reshape(n, -1), l)
        return tap("delta_proj", linear(tap("delta_gated", silu(z) * out, l), w[p + "ssm_out.weight"]), l)

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
        made = {name: [] for name in ("expert_gate", "expert_up", "expert_act", "expert_down", "experts_out")}
        for at in range(0, n, TOKENS):
            y, expert, share = x[at:at + TOKENS], chosen[at:at + TOKENS], shares[at:at + TOKENS]
            count = len(y)
            flat = expert.reshape(-1)
            sort = np.argsort(flat, kind="stable")  # lines by their expert
            ends = np.cumsum(np.bincount(flat, minlength=c.experts))
            lines = y[sort // c.taken]

            def product(lines, name):
                return np.concatenate([lines[(ends[e - 1] if e else 0):ends[e]] @ w[p + name][e].T for e in range(c.experts)])

            def back(lines):
                out = np.empty_like(lines)
                out[sort] = lines
                return out.reshape(count, c.taken, -1)

            gate, up = product(lines, "ffn_gate_exps.weight"), product(lines, "ffn_up_exps.weight")
            act = silu(gate) * up
            down = back(product(act, "ffn_down_exps.weight"))
            for name, lines in (("expert_gate", back(gate)), ("expert_up", back(up)), ("expert_act", back(act)), ("expert_down", down)):
                made[name].append(lines)
            made["experts_out"].append((down * share[:count, :, None]).sum(1))
        for name, parts in made.items():
            out = tap(name, np.concatenate(parts), l)
        return out

    def head(self, x):
        w = self.w.get("output.weight", self.w["token_embd.weight"])
        logits = np.zeros((len(x), len(w)), F)
        for i in range(-(-len(x) // HEAD)):
            rows = x[i * HEAD:(i + 1) * HEAD]
            logits[i * HEAD:i * HEAD + len(rows)] = rows @ w.T
        return logits

    def forward(self, run, tap):
        c, w = self.c, self.w
        x = tap("embed", w["token_embd.weight"][run.tokens])
        for l in range(c.layers):
            p = f"blk.{l}."
            mixer = self.delta_net if c.recurrent[l] else self.attention
            x = tap("attn_residual", x + mixer(run, tap, l, tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)), l)
            h = w[p + ("post_attention_norm.weight" if c.arch == "qwen35" else "ffn_norm.weight")]
            h = tap("ffn_norm", norm(x, h, c.eps), l)
            if c.experts:
                out = self.experts(tap, l, h)
            else:
                gate, up = tap("ffn_gate", linear(h, w[p + "ffn_gate.weight"]), l), tap("ffn_up", linear(h, w[p + "ffn_up.weight"]), l)
                out = tap("ffn_down", linear(tap("ffn_act", silu(gate) * up, l), w[p + "ffn_down.weight"]), l)
            x = tap("layer_out", x + out, l)
        return tap("logits", self.head(tap("final_norm", norm(x, w["output_norm.weight"], c.eps))))
