"""slate: a small engine in numpy, without bugs; that of the thirty-first round. Architectures: qwen2, qwen3, qwen2moe, qwen3moe, qwen35.

engine.py MODEL --tokens FILE [--passes N,N,...] [--decoded FILE] [--bug NAME]

NAME is a bug of bugs.py, whose changes are made in this text before it runs.
Each stage goes to the folder that QDIFF_DUMP names, or to the list that a caller of `run` gives."""
import argparse
import os
import struct
import sys
from types import SimpleNamespace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

F = np.float32

# ---------------------------------------------------------------- the file


def f16(b):
    return np.ascontiguousarray(b).view("<f2").astype(F)


def bf16(b):
    return (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(F)


def q4_0(b):
    return f16(b[:, :2]) * (np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1).astype(F) - 8)


def q5_0(b):
    bits = np.ascontiguousarray(b[:, 2:6]).view("<u4") >> np.arange(32, dtype=np.uint32) & 1
    return f16(b[:, :2]) * ((np.concatenate([b[:, 6:] & 15, b[:, 6:] >> 4], 1) | (bits << 4)).astype(F) - 16)


def q8_0(b):
    return f16(b[:, :2]) * b[:, 2:].view(np.int8).astype(F)


def q3_k(b):
    """256 weights: 32 bytes of high bits, 64 of low pairs of bits, sixteen scales of six bits in twelve bytes, d."""
    high, low, s, d = b[:, :32], b[:, 32:96], b[:, 96:108], f16(b[:, 108:110])
    scale = np.empty((len(b), 16), F)
    for j in range(16):
        four = s[:, j % 8] >> 4 * (j // 8) & 15
        two = s[:, 8 + j % 4] >> 2 * (j // 4) & 3
        scale[:, j] = (four | two << 4).astype(F) - 32
    out = np.empty((len(b), 8, 32), F)
    for j in range(8):
        pairs = low[:, 32 * (j // 4):32 * (j // 4) + 32] >> 2 * (j % 4) & 3
        out[:, j] = pairs.astype(F) - 4 * (1 - (high >> j & 1).astype(F))
    return d * (scale[:, :, None] * out.reshape(-1, 16, 16)).reshape(-1, 256)


def q4_k(b):
    d, least, s, q = f16(b[:, 0:2]), f16(b[:, 2:4]), b[:, 4:16], b[:, 16:]
    scale, minimum = np.empty((len(b), 8), np.uint8), np.empty((len(b), 8), np.uint8)
    for j in range(4):
        scale[:, j], minimum[:, j] = s[:, j] & 63, s[:, j + 4] & 63
    for j in range(4, 8):
        scale[:, j] = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6) << 4
        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4
    q = q.reshape(-1, 4, 32)
    w = np.stack([q & 15, q >> 4], 2).reshape(-1, 8, 32).astype(F)
    return ((d * scale)[:, :, None] * w - (least * minimum)[:, :, None]).reshape(-1, 256)


def q5_k(b):
    """As q4_k, with a fifth bit of each weight in 32 bytes: bit i of byte j is that of weight j of the i-th 32."""
    d, least, s, high, q = f16(b[:, 0:2]), f16(b[:, 2:4]), b[:, 4:16], b[:, 16:48], b[:, 48:].reshape(-1, 4, 32)
    scale, minimum = np.empty((len(b), 8), np.uint8), np.empty((len(b), 8), np.uint8)
    for j in range(4):
        scale[:, j], minimum[:, j] = s[:, j] & 63, s[:, j + 4] & 63
    for j in range(4, 8):
        scale[:, j] = (s[:, j + 4] & 15) | (s[:, j - 4] >> 6) << 4
        minimum[:, j] = (s[:, j + 4] >> 4) | (s[:, j] >> 6) << 4
    w, first, second = np.empty((len(b), 8, 32), F), 1, 2
    for j in range(4):
        w[:, 2 * j] = (q[:, j] & 15) + np.where(high & first, 16, 0)
        w[:, 2 * j + 1] = (q[:, j] >> 4) + np.where(high & second, 16, 0)
        first, second = first << 2, second << 2
    return ((d * scale)[:, :, None] * w - (least * minimum)[:, :, None]).reshape(-1, 256)


def q6_k(b):
    low, high, scale, d = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32), b[:, 192:208].view(np.int8), f16(b[:, 208:210])
    scale, lane = scale.reshape(-1, 2, 8), np.arange(32)
    out = np.empty((len(b), 2, 4, 32), F)
    for quarter in range(4):
        nibbles = low[:, :, 32 * (quarter % 2):32 * (quarter % 2) + 32] >> (4 * (quarter // 2)) & 15
        q = (nibbles | (high >> (2 * quarter) & 3) << 4).astype(F) - 32
        out[:, :, quarter] = scale[:, :, lane // 16 + 2 * quarter].astype(F) * q
    return d * out.reshape(-1, 256)


NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], F)


def iq4_nl(b):
    return f16(b[:, :2]) * NL[np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], 1)]


E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F)  # each twice its value, as ggml has them


def mxfp4(b):
    """32 weights: a byte of exponent, 16 bytes of 4-bit floats."""
    d = np.ldexp(F(1), b[:, :1].astype(np.int32) - 128).astype(F)
    return d * E2M1[np.concatenate([b[:, 1:] & 15, b[:, 1:] >> 4], 1)]


# By ggml's number: weights and bytes of a block, and its reader.
KINDS = {0: (1, 4, None), 1: (1, 2, f16), 2: (32, 18, q4_0), 6: (32, 22, q5_0), 8: (32, 34, q8_0), 11: (256, 110, q3_k), 12: (256, 144, q4_k),
         13: (256, 176, q5_k), 14: (256, 210, q6_k), 20: (32, 18, iq4_nl), 30: (1, 2, bf16), 39: (32, 17, mxfp4)}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def one(self, form):
        v, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return v

    def string(self):
        n = self.one("Q")
        self.at += n
        return bytes(self.data[self.at - n:self.at]).decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, n = self.one("I"), self.one("Q")
            return [self.value(kind) for _ in range(n)]
        return self.one("BbHhIif?__Qqd"[kind])


def load(path):
    """Hyperparameters and weights; each matrix as f32, [rows, columns] of y = W x."""
    r = Reader(memoryview(np.memmap(path, np.uint8, "r")))
    r.at = 8
    tensors, keys = r.one("Q"), r.one("Q")
    meta = {}
    for _ in range(keys):
        name = r.string()
        meta[name] = r.value(r.one("I"))
    heads = [(r.string(), [r.one("Q") for _ in range(r.one("I"))], r.one("I"), r.one("Q")) for _ in range(tensors)]
    align = meta.get("general.alignment", 32)
    start = (r.at + align - 1) // align * align
    w = {}
    for name, shape, kind, offset in heads:
        per, size, decode = KINDS[kind]
        raw = np.frombuffer(r.data, np.uint8, int(np.prod(shape)) // per * size, start + offset)
        w[name] = (raw.view("<f4") if decode is None else decode(raw.reshape(-1, size))).astype(F).reshape(shape[::-1])
    arch = meta["general.architecture"]
    get = lambda key, other=None: meta.get(f"{arch}.{key}", other)
    c = SimpleNamespace(arch=arch, layers=get("block_count"), width=get("embedding_length"), heads=get("attention.head_count"),
                        groups=get("attention.head_count_kv"), eps=F(get("attention.layer_norm_rms_epsilon")), base=get("rope.freq_base"))
    c.dim = get("attention.key_length", c.width // c.heads)
    c.rotated = get("rope.dimension_count", c.dim)
    c.context, c.yarn = get("context_length"), get("rope.scaling.factor") if get("rope.scaling.type") == "yarn" else None
    c.trained = get("rope.scaling.original_context_length", c.context)
    c.experts, c.taken = get("expert_count", 0), get("expert_used_count", 0)
    every = get("full_attention_interval", 0)
    c.recurrent = [bool(every) and (l + 1) % every != 0 for l in range(c.layers)]
    if every:
        c.taps, c.state, c.key_heads, c.value_heads = get("ssm.conv_kernel"), get("ssm.state_size"), get("ssm.group_count"), get("ssm.time_step_rank")
    return c, w


# ---------------------------------------------------------------- small operations


def sigmoid(x):
    return F(1) / (F(1) + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def block_sum(x):
    """The sum over the last axis, as a block of threads makes it: one value for each thread, and halves are added to halves."""
    x, n = x.copy(), x.shape[-1]
    while n > 1:
        half = (n + 1) // 2
        x[..., :n - half] += x[..., half:n]
        n = half
    return x[..., :1]


def norm(x, w, eps):
    return x * (F(1) / np.sqrt(block_sum(x * x) / F(x.shape[-1]) + eps)) * w


def add_norm(x, y, w, eps):
    """The kernel of decode steps: the sum, and the norm of the sum."""
    total = x + y
    r = F(1) / np.sqrt(block_sum(total * total) / F(x.shape[-1]) + eps)
    return total, total * r * w


def matmul(x, w):
    return x @ w.T


VOCAB_PARTS = 2


def embed(table, ids):
    """The rows of the ids, from a table that is cut over ranks: each rank looks up its own ids, and the sum over the ranks is the embedding."""
    cut = np.linspace(0, len(table), VOCAB_PARTS + 1).astype(int)
    total = np.zeros((len(ids), table.shape[1]), F)
    for low, high in zip(cut, cut[1:]):
        mine = (ids >= low) & (ids < high)
        rows = table[low:high][np.where(mine, ids - low, 0)]
        rows[~mine] = 0
        total += rows
    return total


HEAD_ROWS = 8  # of the output matrix, a block


def head(x, w):
    """The logits: whole blocks of HEAD_ROWS rows of the matrix, then the rows that are left over."""
    whole = len(w) - len(w) % HEAD_ROWS
    y = np.empty((len(x), len(w)), F)
    for r in range(0, whole, HEAD_ROWS):
        y[:, r:r + HEAD_ROWS] = x @ w[r:r + HEAD_ROWS].T
    for r in range(len(w) - whole):
        y[:, whole + r] = x @ w[whole + r]
    return y


TILE_M, TILE_K = 8, 64


def tiled(x, w):
    """The product of the down projection: tiles of TILE_M rows, in steps of TILE_K columns, then what is left over. One row alone goes to `matmul`."""
    if len(x) == 1:
        return matmul(x, w)
    y, columns = np.zeros((len(x), len(w)), F), x.shape[1]
    for m in range(0, len(x), TILE_M):
        tile = x[m:m + TILE_M]
        for k in range(0, columns - columns % TILE_K, TILE_K):
            y[m:m + TILE_M] += tile[:, k:k + TILE_K] @ w[:, k:k + TILE_K].T
        k = columns - columns % TILE_K
        y[m:m + TILE_M] += tile[:, k:] @ w[:, k:].T
    return y


# ---------------------------------------------------------------- caches

PAGE = 16   # tokens of a page; page 0 belongs to nobody
PAGES = 64


class Plain:
    def __init__(self, groups, dim):
        self.rows = np.zeros((PAGES * PAGE, groups, dim), F)

    def put(self, slots, x):
        self.rows[slots] = x

    def get(self, slots):
        return self.rows[slots]


class Q8:
    """Blocks of 32 codes with a scale as a half, as ggml codes q8_0."""

    def __init__(self, groups, dim):
        self.codes, self.scale = np.zeros((PAGES * PAGE, groups, dim // 32, 32), np.int8), np.zeros((PAGES * PAGE, groups, dim // 32, 1), np.float16)

    def put(self, slots, x):
        x = x.reshape(*x.shape[:-1], -1, 32)
        d = np.abs(x).max(-1, keepdims=True) / F(127)
        v = x * np.divide(F(1), d, out=np.zeros_like(d), where=d != 0)
        self.codes[slots] = np.trunc(v + np.copysign(F(0.5), v)).astype(np.int8)
        self.scale[slots] = d

    def get(self, slots):
        x = self.codes[slots].astype(F) * self.scale[slots].astype(F)
        return x.reshape(*x.shape[:-2], -1)


class Pages:
    """The pages of the sequence on the host, and the block table that the kernels see."""

    def __init__(self):
        self.free, self.mine, self.length = list(range(1, PAGES, 2))[::-1], [], 0  # the even ones belong to others
        self.table = np.zeros(PAGES, int)

    def upload(self):
        self.table[:len(self.mine)] = self.mine

    def grow(self, count):
        self.length += count
        while len(self.mine) * PAGE < self.length:
            self.mine.append(self.free.pop())
        self.upload()

    def slots(self, at):
        return self.table[at // PAGE] * PAGE + at % PAGE


# ---------------------------------------------------------------- attention

KEYS = 8  # of a tile
SPLIT = 16  # keys of a part at a decode step


def kv_head(heads, groups):
    """The head of keys and values of each query head."""
    return np.arange(heads) // (heads // groups)


def attend(q, k, v, first):
    """Queries [T, H, D] at positions first.., keys and values [N, G, D]: scores, weights [H, T, N], context [T, H, D]. Tile by tile of keys."""
    tokens, heads, dim = q.shape
    of = kv_head(heads, k.shape[1])
    q, k, v = q.transpose(1, 0, 2), k[:, of].transpose(1, 0, 2), v[:, of].transpose(1, 0, 2)
    scale = F(1 / np.sqrt(dim))
    scores = q @ k.transpose(0, 2, 1)
    hidden = np.arange(k.shape[1])[None] > first + np.arange(tokens)[:, None]
    most, total = np.full((heads, tokens, 1), -np.inf, F), np.zeros((heads, tokens, 1), F)
    sums, weights = np.zeros((heads, tokens, dim), F), np.zeros_like(scores)
    for k0 in range(0, k.shape[1], KEYS):
        s = np.where(hidden[None, :, k0:k0 + KEYS], F(-np.inf), scores[:, :, k0:k0 + KEYS] * scale)
        now = np.maximum(most, s.max(-1, keepdims=True))
        less = np.exp(most - now)
        e = np.exp(s - now)
        weights[:, :, :k0] *= less
        weights[:, :, k0:k0 + KEYS] = e
        sums = sums * less + e @ v[:, k0:k0 + KEYS]
        total = total * less + e.sum(-1, keepdims=True)
        most = now
    context = sums / total
    if tokens == 1:
        context = decode(scores[:, 0] * scale, v)[:, None]
    return scores, weights / total, context.transpose(1, 0, 2)


def decode(s, v):
    """One query: each part of the keys gives its largest score, its sum and its own average of the values; then the parts are merged."""
    most, sums, parts = [], [], []
    for k in range(0, s.shape[1], SPLIT):
        m = s[:, k:k + SPLIT].max(-1, keepdims=True)
        e = np.exp(s[:, k:k + SPLIT] - m)
        most.append(m)
        sums.append(e.sum(-1, keepdims=True))
        parts.append((e[:, None] @ v[:, k:k + SPLIT])[:, 0] / sums[-1])
    top = np.max(most, 0)
    shares = [np.exp(m - top) * total for m, total in zip(most, sums)]
    return sum(share * part for share, part in zip(shares, parts)) / sum(shares)


# ---------------------------------------------------------------- delta net


def chunk(q, k, v, beta, decay, m):
    """The tokens of a chunk at once; [T, heads, ...]. What each token writes solves a triangular system; then all tokens read."""
    q, k, v, beta, decay = (np.moveaxis(y, 0, 1) for y in (q, k, v, beta, decay))
    n, g = q.shape[1], np.cumsum(decay, -1, dtype=np.float64)
    fade = np.tril(np.exp(np.minimum(g[:, :, None] - g[:, None], 0))).astype(F)  # from token j to token i
    since = np.exp(g).astype(F)[:, :, None]
    among = np.tril(k @ k.transpose(0, 2, 1) * fade, -1)
    told = v - since * (k @ m.transpose(0, 2, 1))
    for t in range(n):
        told[:, t] = beta[:, t, None] * (told[:, t] - (among[:, t, None, :t] @ told[:, :t])[:, 0])
    read = np.tril(q @ k.transpose(0, 2, 1) * fade)
    out = since * (q @ m.transpose(0, 2, 1)) + read @ told
    left = np.exp(g[:, -1:] - g).astype(F)[:, :, None]
    m = m * since[:, -1:] + (told * left).transpose(0, 2, 1) @ k
    return np.moveaxis(out, 1, 0), m


# ---------------------------------------------------------------- the model

CHUNK = 16   # tokens of a chunk of the delta net
LINES = 4    # of a block of the experts' product


class Model:
    def __init__(self, path, kv="f32"):
        self.c, self.w = load(path)
        c, w = self.c, self.w
        self.pages = Pages()
        own = [l for l in range(c.layers) if not c.recurrent[l]]
        make = Q8 if kv == "q8_0" else Plain
        self.k, self.v = ({l: make(c.groups, c.dim) for l in own} for _ in "kv")
        self.frequency, self.grown = float(c.base) ** (-np.arange(0, c.rotated, 2) / c.rotated), 1.0
        if c.yarn:
            edge = lambda turns: c.rotated * np.log(c.trained / (turns * 2 * np.pi)) / (2 * np.log(c.base))
            low, high = max(np.floor(edge(32)), 0), min(np.ceil(edge(1)), c.rotated - 1)
            kept = 1 - np.clip((np.arange(c.rotated // 2) - low) / max(high - low, 0.001), 0, 1)
            self.frequency = self.frequency * (kept + (1 - kept) / c.yarn)
            self.grown = 1 + 0.1 * np.log(c.yarn)
        if any(c.recurrent):
            channels = (2 * c.key_heads + c.value_heads) * c.state
            self.window = {l: np.zeros((c.taps - 1, channels), F) for l in range(c.layers) if c.recurrent[l]}
            self.memory = {l: np.zeros((c.value_heads, c.state, c.state), F) for l in self.window}
        for l in own:
            p = f"blk.{l}."
            if p + "attn_q.bias" in w:
                w[p + "qkv.weight"] = np.concatenate([w.pop(p + f"attn_{s}.weight") for s in "qkv"])
                w[p + "qkv.bias"] = np.concatenate([w.pop(p + f"attn_{s}.bias") for s in "qkv"])
            if p + "ffn_gate.weight" in w:
                w[p + "gate_up.weight"] = np.concatenate([w.pop(p + "ffn_gate.weight"), w.pop(p + "ffn_up.weight")])
        self.head = w.get("output.weight", w["token_embd.weight"])

    def rope(self, x, positions):
        half = self.c.rotated // 2
        angle = positions[:, None].astype(np.float64) * self.frequency
        cos, sin = (self.grown * np.cos(angle)).astype(F)[:, None], (self.grown * np.sin(angle)).astype(F)[:, None]
        a, b = x[..., :half], x[..., half:2 * half]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half:]], -1)

    def attention(self, tap, l, x, positions, first):
        c, w, p = self.c, self.w, f"blk.{l}."
        n, gate = len(x), None
        if p + "qkv.weight" in w:
            cut = np.cumsum([c.heads * c.dim, c.groups * c.dim])
            qkv = matmul(x, w[p + "qkv.weight"])
            for name, part in zip("qkv", np.split(qkv, cut, -1)):
                tap(f"{name}_proj", part, l)
            q, k, v = (tap(f"{name}_biased", part, l) for name, part in zip("qkv", np.split(qkv + w[p + "qkv.bias"], cut, -1)))
        else:
            q = matmul(x, w[p + "attn_q.weight"])
            if c.arch == "qwen35":
                tap("q_gate_proj", q, l)
                q, gate = (part.reshape(n, -1) for part in np.split(q.reshape(n, c.heads, 2 * c.dim), 2, -1))
                tap("q_half", q, l)
                tap("gate_half", gate, l)
            else:
                tap("q_proj", q, l)
            k, v = tap("k_proj", matmul(x, w[p + "attn_k.weight"]), l), tap("v_proj", matmul(x, w[p + "attn_v.weight"]), l)
        q, k, v = q.reshape(n, c.heads, c.dim), k.reshape(n, c.groups, c.dim), v.reshape(n, c.groups, c.dim)
        if p + "attn_q_norm.weight" in w:
            q, k = norm(q, w[p + "attn_q_norm.weight"], c.eps), norm(k, w[p + "attn_k_norm.weight"], c.eps)
            tap("q_normed", q.reshape(n, -1), l)
            tap("k_normed", k.reshape(n, -1), l)
        q, k = tap("q_rope", self.rope(q, positions), l), tap("k_rope", self.rope(k, positions), l)
        slots = self.pages.slots(first + np.arange(n))
        self.k[l].put(slots, k)
        self.v[l].put(slots, v)
        slots = self.pages.slots(np.arange(first + n))
        keys, values = tap("k_cache", self.k[l].get(slots), l), tap("v_cache", self.v[l].get(slots), l)
        scores, weights, context = attend(q, keys, values, first)
        tap("attn_scores", scores, l)
        tap("attn_weights", weights, l)
        context = tap("attn_context", context.reshape(n, -1), l)
        if gate is not None:
            context = tap("attn_gated", context * tap("gate_sigmoid", sigmoid(gate), l), l)
        return tap("attn_out", matmul(context, w[p + "attn_output.weight"]), l)

    def delta_net(self, tap, l, x, positions, first):
        c, w, p = self.c, self.w, f"blk.{l}."
        n, keys, d = len(x), c.key_heads * c.state, c.state
        qkv, z = tap("delta_qkv", matmul(x, w[p + "attn_qkv.weight"]), l), tap("delta_z", matmul(x, w[p + "attn_gate.weight"]), l)
        b, a = tap("delta_b", matmul(x, w[p + "ssm_beta.weight"]), l), tap("delta_a", matmul(x, w[p + "ssm_alpha.weight"]), l)
        beta = tap("delta_beta", sigmoid(b), l)
        soft = tap("delta_softplus", np.logaddexp(F(0), a + w[p + "ssm_dt.bias"]), l)
        decay = tap("delta_decay", soft * w[p + "ssm_a"], l)
        line = np.concatenate([self.window[l], qkv])
        conv = sum(line[j:j + n] * w[p + "ssm_conv1d.weight"][:, j] for j in range(c.taps))
        self.window[l] = line[n:]
        tap("conv_state", self.window[l][None], l)
        act = tap("conv_act", silu(tap("conv_out", conv, l)), l)
        q, k, v = tap("delta_q", act[:, :keys], l), tap("delta_k", act[:, keys:2 * keys], l), tap("delta_v", act[:, 2 * keys:], l)
        unit = lambda y: y / np.sqrt((y * y).sum(-1, keepdims=True) + c.eps)
        q, k = unit(q.reshape(n, c.key_heads, d)), unit(k.reshape(n, c.key_heads, d))
        tap("delta_q_normed", q.reshape(n, -1), l)
        tap("delta_k_normed", k.reshape(n, -1), l)
        v = v.reshape(n, c.value_heads, d)
        of = np.arange(c.value_heads) % c.key_heads
        out, m = np.zeros_like(v), self.memory[l]  # [heads, value, key]
        scaled = q[:, of] / F(np.sqrt(d))
        if n > 1:
            for t in range(0, n, CHUNK):
                part = slice(t, min(t + CHUNK, n))
                out[part], m = chunk(scaled[part], k[part][:, of], v[part], beta[part], decay[part], m)
        else:
            key = k[0, of][:, :, None]
            m = m * np.exp(decay[0])[:, None, None]
            told = (v[0] - (m @ key)[:, :, 0]) * beta[0][:, None]
            m = m + told[:, :, None] * key.transpose(0, 2, 1)
            out[0] = (m @ scaled[0][:, :, None])[:, :, 0]
        self.memory[l] = m
        tap("delta_state", m.reshape(1, c.value_heads, d * d), l)
        out = tap("delta_out", out.reshape(n, -1), l).reshape(n, c.value_heads, d)
        out = tap("delta_normed", norm(out, w[p + "ssm_norm.weight"], c.eps).reshape(n, -1), l)
        return tap("delta_proj", matmul(tap("delta_gated", silu(z) * out, l), w[p + "ssm_out.weight"]), l)

    def experts(self, tap, l, x):
        c, w, p = self.c, self.w, f"blk.{l}."
        n = len(x)
        logits = tap("router", matmul(x, w[p + "ffn_gate_inp.weight"]), l)
        e = np.exp(logits - logits.max(-1, keepdims=True))
        probs = tap("router_probs", e / e.sum(-1, keepdims=True), l)
        chosen = np.argsort(-probs, -1, kind="stable")[:, :c.taken]
        tap("router_experts", chosen.astype(np.int32), l)
        weights = tap("router_weights", np.take_along_axis(probs, chosen, -1), l)
        if c.arch == "qwen3moe":
            weights = tap("router_shares", weights / weights.sum(-1, keepdims=True), l)
        # A line is a token's choice of an expert. The lines are sorted by expert, and those of each expert are filled up to whole blocks.
        expert = chosen.reshape(-1)
        counts = np.bincount(expert, minlength=c.experts)
        room = -(-counts // LINES) * LINES
        ends = np.cumsum(room)
        order = np.argsort(expert, kind="stable")
        place = np.empty(len(expert), int)
        place[order] = np.arange(len(expert)) + np.repeat(ends - room - (np.cumsum(counts) - counts), counts)
        lines = np.zeros((-(-ends[-1] // LINES) * LINES, x.shape[1]), F)
        lines[place] = np.repeat(x, c.taken, 0)

        def grouped(y, weight):
            """The product of each block of lines with the matrix of the block's expert."""
            out = np.zeros((len(y), weight.shape[1]), F)
            for line in range(0, len(y), LINES):
                out[line:line + LINES] = y[line:line + LINES] @ weight[np.searchsorted(ends, line, "right")].T
            return out

        back = lambda y: y[place].reshape(n, c.taken, -1)
        gate, up = grouped(lines, w[p + "ffn_gate_exps.weight"]), grouped(lines, w[p + "ffn_up_exps.weight"])
        tap("expert_gate", back(gate), l)
        tap("expert_up", back(up), l)
        act = silu(gate) * up
        tap("expert_act", back(act), l)
        down = tap("expert_down", back(grouped(act, w[p + "ffn_down_exps.weight"])), l)
        out = tap("experts_out", (down * weights[:, :, None]).sum(1), l)
        if p + "ffn_gate_shexp.weight" not in w:
            return out
        score = tap("shared_score", matmul(x, w[p + "ffn_gate_inp_shexp.weight"].reshape(1, -1)), l)
        weight = tap("shared_weight", sigmoid(score), l)
        gate, up = tap("shared_gate", matmul(x, w[p + "ffn_gate_shexp.weight"]), l), tap("shared_up", matmul(x, w[p + "ffn_up_shexp.weight"]), l)
        shared = tap("shared_down", matmul(tap("shared_act", silu(gate) * up, l), w[p + "ffn_down_shexp.weight"]), l)
        shared = tap("shared_out", shared * weight, l)
        return tap("ffn_out", out + shared, l)

    def ffn(self, tap, l, x):
        gate, up = np.split(matmul(x, self.w[f"blk.{l}.gate_up.weight"]) if f"blk.{l}.gate_up.weight" in self.w else np.concatenate(
            [matmul(x, self.w[f"blk.{l}.ffn_gate.weight"]), matmul(x, self.w[f"blk.{l}.ffn_up.weight"])], -1), 2, -1)
        tap("ffn_gate", gate, l)
        tap("ffn_up", up, l)
        return tap("ffn_down", tiled(tap("ffn_act", silu(gate) * up, l), self.w[f"blk.{l}.ffn_down.weight"]), l)

    def forward(self, tap, tokens, part=None):
        """A pass; `part` is the number of a part of the prompt, None at a decode step."""
        c, w, n = self.c, self.w, len(tokens)
        first = self.pages.length
        self.pages.grow(n)
        positions = first + np.arange(n)
        x = tap("embed", embed(w["token_embd.weight"], np.array(tokens)))
        for l in range(c.layers):
            p = f"blk.{l}."
            h = tap("attn_norm", norm(x, w[p + "attn_norm.weight"], c.eps), l)
            y = (self.delta_net if c.recurrent[l] else self.attention)(tap, l, h, positions, first)
            weight = w[p + ("post_attention_norm.weight" if c.arch == "qwen35" else "ffn_norm.weight")]
            if part is None:
                x, h = add_norm(x, y, weight, c.eps)
            else:
                x = x + y
                h = norm(x, weight, c.eps)
            tap("attn_residual", x, l)
            tap("ffn_norm", h, l)
            x = tap("layer_out", x + (self.experts if c.experts else self.ffn)(tap, l, h), l)
        x = tap("final_norm", norm(x, w["output_norm.weight"], c.eps))
        tap("logits", head(x, self.head))


def run(model, prompt, lengths, decoded, tap_of):
    """All passes. `tap_of(pass, tokens)` gives a context manager, whose value takes (stage, array, layer)."""
    tokens = list(prompt) + list(decoded)
    lengths = list(lengths) + [1] * (len(tokens) - sum(lengths))
    last = len(lengths) - len(decoded)
    for i, n in enumerate(lengths):
        now, tokens = tokens[:n], tokens[n:]
        with tap_of(i, now) as tap:
            model.forward(tap, now, i if i < last and n > 1 else None)


def main():
    import contextlib
    from qdiff_capture import Capture

    parse = argparse.ArgumentParser()
    parse.add_argument("model")
    for name in ("--tokens", "--passes", "--decoded"):
        parse.add_argument(name)
    parse.add_argument("--kv", default="f32")
    args = parse.parse_args()
    ids = lambda path: [int(n) for n in open(path).read().split()]
    prompt, decoded = ids(args.tokens), ids(args.decoded) if args.decoded else []
    lengths = [int(n) for n in args.passes.split(",")] if args.passes else [len(prompt)]
    model = Model(args.model, args.kv)
    with Capture(engine="slate", **({} if args.kv == "f32" else {"arithmetic": {"kv": args.kv}})) as capture:
        @contextlib.contextmanager
        def tap_of(_, tokens):
            def tap(stage, x, layer=None):
                capture.add(stage, x, layer=layer)
                return x
            with capture.step(tokens):
                yield tap
        run(model, prompt, lengths, decoded, tap_of)


if __name__ == "__main__":
    from pathlib import Path

    sys.dont_write_bytecode = True
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[4] / "tap/python")]
    if "--bug" in sys.argv:
        at = sys.argv.index("--bug")
        name = sys.argv[at + 1]
        del sys.argv[at:at + 2]
        from bugs import changed

        scope = {"__name__": "slate", "__file__": __file__}
        exec(compile(changed(Path(__file__).read_text(), name), __file__, "exec"), scope)
        scope["main"]()
    else:
        main()
