"""blind3: a numpy Qwen2/Qwen3 engine modelled on CUDA kernels: tiled GEMM, split-K GEMV, paged KV, flash / split decode, fused kernels.
engine.py MODEL TOKENS DECODED PASSES DIR [-k N] [--attn naive|flash] [--dump all|nogu|mid|few]   (-k N: variant)"""
import argparse, json, os, struct
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np
f32 = np.float32
ap = argparse.ArgumentParser()
for n in ("model", "tokens", "decoded", "passes", "dir"): ap.add_argument(n)
ap.add_argument("-k", type=int, default=0); ap.add_argument("--attn", default="naive"); ap.add_argument("--dump", default="all")
A = ap.parse_args()
K = A.k

# ---------- GGUF
def gguf(path):
    data = memoryview(open(path, "rb").read()); at = 8
    def take(f):
        nonlocal at
        v = struct.unpack_from("<" + f, data, at); at += struct.calcsize("<" + f); return v[0]
    def text():
        nonlocal at
        n = take("Q"); at += n; return bytes(data[at - n:at]).decode("utf8", "replace")
    def value(k):
        if k == 8: return text()
        if k == 9:
            i, c = take("I"), take("Q"); return [value(i) for _ in range(c)]
        return take("BbHhIif?__Qqd"[k])
    nt, nf = take("Q"), take("Q")
    md = {}
    for _ in range(nf):
        key = text(); md[key] = value(take("I"))
    infos = [(text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(nt)]
    al = md.get("general.alignment", 32); start = -(-at // al) * al
    T = {}
    for name, ext, kind, off in infos:
        bs, by = {0: (1, 4), 1: (1, 2), 8: (32, 34), 2: (32, 18), 6: (32, 22), 12: (256, 144), 14: (256, 210)}[kind]
        cnt = int(np.prod(ext)); raw = np.frombuffer(data, np.uint8, cnt // bs * by, start + off)
        T[name] = (kind, ext[::-1], raw)
    return md, T

def f16at(b, o): return b[:, o:o + 2].copy().view(np.float16).astype(f32)

def dequant(kind, shape, raw, kern):
    """kern: rows (get_rows), gemm, gemv"""
    if kind == 0: return raw.view(f32).reshape(shape)
    if kind == 1: return raw.view(np.float16).astype(f32).reshape(shape)
    if kind == 8:
        b = raw.reshape(-1, 34); d = f16at(b, 0); q = b[:, 2:].view(np.int8).astype(f32)
        if K == 2 and kern == "gemm_gate": d = d.copy(); d[1::2] = d[0::2]
        y = q * d
    elif kind == 2:
        b = raw.reshape(-1, 18); d = f16at(b, 0); qs = b[:, 2:]
        lo, hi = (qs & 15).astype(f32) - 8, (qs >> 4).astype(f32) - 8
        if K == 1 and kern == "gemv": y = np.stack([lo, hi], -1).reshape(-1, 32) * d
        else: y = np.concatenate([lo, hi], 1) * d
    elif kind == 6:
        b = raw.reshape(-1, 22); d = f16at(b, 0); qh = b[:, 2:6].copy().view("<u4"); qs = b[:, 6:]
        j = np.arange(16, dtype=np.uint32)
        h0 = ((qh >> j) & 1).astype(np.uint8) << 4; h1 = ((qh >> (j + 16)) & 1).astype(np.uint8) << 4
        if K == 6 and kern != "rows": h1 = h0
        y = np.concatenate([((qs & 15) | h0).astype(f32) - 16, ((qs >> 4) | h1).astype(f32) - 16], 1) * d
    elif kind == 12:
        b = raw.reshape(-1, 144); d, dm = f16at(b, 0), f16at(b, 2); s = b[:, 4:16]; qs = b[:, 16:].reshape(-1, 4, 32)
        sc = np.empty((len(b), 8), np.uint8); mn = np.empty_like(sc)
        sc[:, :4] = s[:, :4] & 63; mn[:, :4] = s[:, 4:8] & 63
        sc[:, 4:] = (s[:, 8:] & 15) | ((s[:, :4] >> 6) << 4); mn[:, 4:] = (s[:, 8:] >> 4) | ((s[:, 4:8] >> 6) << 4)
        if K == 3 and kern != "rows": sc[:, 4:] = s[:, 8:] & 15; mn[:, 4:] = s[:, 8:] >> 4
        if K == 4 and kern != "rows": mn[:, 4:] = (s[:, 8:] >> 4) | ((s[:, :4] >> 6) << 4)
        if K == 8 and kern == "gemv": sc[:, 1::2] = sc[:, 0::2]; mn[:, 1::2] = mn[:, 0::2]
        q = np.stack([qs & 15, qs >> 4], 2).reshape(-1, 8, 32).astype(f32)
        y = (d * sc)[:, :, None] * q - (dm * mn)[:, :, None]
    elif kind == 14:
        b = raw.reshape(-1, 210); ql = b[:, :128].reshape(-1, 2, 64); qh = b[:, 128:192].reshape(-1, 2, 32)
        sc = b[:, 192:208].view(np.int8).astype(f32); d = f16at(b, 208)
        if K == 7 and kern != "rows": sc = b[:, 192:208].astype(f32)
        s3 = 2 if K == 5 and kern != "rows" else 4
        q = np.stack([(ql[:, :, :32] & 15) | ((qh & 3) << 4), (ql[:, :, 32:] & 15) | (((qh >> 2) & 3) << 4),
                      (ql[:, :, :32] >> 4) | (((qh >> s3) & 3) << 4), (ql[:, :, 32:] >> 4) | (((qh >> 6) & 3) << 4)], 2)
        q = q.reshape(-1, 16, 16).astype(f32) - 32
        y = (d * sc)[:, :, None] * q
    return np.ascontiguousarray(y.reshape(shape), dtype=f32)

# ---------- rounding helpers
def bf16_trunc(x): return (np.ascontiguousarray(x, f32).view(np.uint32) & np.uint32(0xffff0000)).view(f32)
def bf16(x):
    u = np.ascontiguousarray(x, f32).view(np.uint32)
    return ((u + 0x7fff + ((u >> 16) & 1)) & np.uint32(0xffff0000)).view(f32)
def f16(x): return np.asarray(x, f32).astype(np.float16).astype(f32)
def tf32(x):
    u = np.ascontiguousarray(x, f32).view(np.uint32)
    return ((u + 0xfff + ((u >> 13) & 1)) & np.uint32(0xffffe000)).view(f32)

class Dump:
    FEW = ("embed", "layer_out", "logits"); MID = FEW + ("attn_residual", "final_norm")
    def __init__(self, d):
        self.bin, self.lines = (open(os.path.join(d, n), "wb") for n in ("a.bin", "capture.jsonl")); self.step = 0
        self.line({"schema_version": 3, "engine": "blind"})
    def line(self, l): self.bin.flush(); self.lines.write(json.dumps(l).encode() + b"\n"); self.lines.flush()
    def add(self, name, a):
        st = name.split(".")[-1]
        if A.dump == "nogu" and st in ("ffn_gate", "ffn_up"): return
        if A.dump == "few" and st not in self.FEW or A.dump == "mid" and st not in self.MID: return
        a = np.ascontiguousarray(a, dtype="<f4"); off = self.bin.tell(); self.bin.write(a.tobytes())
        self.line({"step": self.step, "name": name, "dtype": "f32", "shape": a.shape, "file": "a.bin", "offset": off})
    def end(self, first, tokens): self.line({"end": self.step, "first": first, "tokens": tokens}); self.step += 1

PAGE = 16
class Engine:
    def __init__(s, path):
        s.d = Dump(A.dir); md, s.T = gguf(path); s.arch = md["general.architecture"]
        key = lambda n, *z: md.get(s.arch + "." + n, *z)
        s.L, s.H, s.G, s.E, s.F = (key(n) for n in ("block_count", "attention.head_count", "attention.head_count_kv", "embedding_length", "feed_forward_length"))
        s.D = key("attention.key_length", s.E // s.H)
        s.eps = f32(key("attention.layer_norm_rms_epsilon")); s.base = key("rope.freq_base", 10000.0)
        s.cache = {}; s.pos = 0; s.ctx = 4096
        s.kp = np.zeros((s.L, s.ctx // PAGE, PAGE, s.G, s.D), f32); s.vp = np.zeros_like(s.kp)
        s.table = [(i * 37 + 11) % (s.ctx // PAGE) for i in range(s.ctx // PAGE)]      # block table: logical -> physical
        s.kbuf = None; s.graph = None
    def w(s, name, kern):
        if (name, kern) not in s.cache: s.cache[name, kern] = dequant(*s.T[name], kern)
        return s.cache[name, kern]
    def v(s, name): return s.w(name, "rows")

    # ---------- linear layers
    def linear(s, x, name):
        st = name.split(".")[-2]; t, k = x.shape
        return s.gemv(x, name, st) if t == 1 else s.gemm(x, name, st)
    def gemv(s, x, name, st):
        W = s.w(name, "gemv"); k = W.shape[1]; x = x[0]
        if K == 14 and st == "ffn_down":
            sc = np.abs(x).max() / f32(127); x = np.rint(x / sc).astype(f32) * sc
        nsplit = 4; part = -(-k // nsplit // 32) * 32
        parts = [W[:, i:i + part] @ x[i:i + part] for i in range(0, k, part)]
        if K == 10 and k > 256: parts = parts[:-1]
        y = np.zeros(W.shape[0], f32)
        if K == 11 and st == "attn_k":
            if not name.startswith("blk.0."): y = s.kbuf.copy()
        for p in parts: y = y + p
        if K == 11 and st == "attn_k": s.kbuf = y
        return y[None]
    def gemm(s, x, name, st):
        kern = "gemm_gate" if K == 2 and st == "ffn_gate" else "gemm"
        W = s.w(name, kern); t, k = x.shape; n = W.shape[0]
        if K == 16 and st == "attn_q" and t >= 64: x, W = tf32(x), tf32(W)
        y = np.zeros((t, n), f32); KT = 32 if K == 12 and st == "ffn_up" else 128
        for i in range(0, k, KT):
            p = x[:, i:i + KT] @ W[:, i:i + KT].T
            if K == 9 and st == "ffn_down" and i + KT >= k and t % 16:
                r = t - t % 16; p[r:] = x[r:, i:k - 32] @ W[:, i:k - 32].T
            y += p
            if K == 12 and st == "ffn_up": y = f16(y)
        if K == 15 and name == s.head and n % 64:
            y[:, n - 64:n - n % 64] *= 2
        if K == 13 and st == "attn_output": y = bf16_trunc(y)
        return y

    # ---------- norms
    def norm(s, x, w, where="", eps=None):
        if K == 17 and where == "ffn_norm": eps = f32(1e-5)
        eps = s.eps if eps is None else eps
        if K == 19 and where == "ffn_norm": x = bf16(x)
        sq = x * x
        if K == 18 and where in ("attn_norm+", "final_norm") and len(x) == 1: sq = sq[:, :s.E - 32]
        ms = sq.sum(-1, keepdims=True) / f32(x.shape[-1])
        return x / np.sqrt(ms + eps) * w
    def headnorm(s, x, w, which):
        t = len(x); h = x.reshape(t, -1, s.D)
        if K == 20 and which == "k" and t == 1:
            return (h / np.sqrt((h * h).mean((1, 2), keepdims=True) + s.eps) * w).reshape(t, -1)
        return (h / np.sqrt((h * h).mean(-1, keepdims=True) + s.eps) * w).reshape(t, -1)

    # ---------- rope (NeoX)
    def rope(s, x, pos, which):
        half = s.D // 2; t = len(x); pos = pos.astype(np.float64)
        if K == 21 and t == 1:
            if s.graph is None: s.graph = pos
            pos = s.graph
        if K == 24: pos = np.minimum(pos, 127)
        inv = s.base ** (-np.arange(half) / half)
        ang = np.broadcast_to(pos[:, None, None] * inv, (t, x.shape[1], half)).copy()
        if K == 22: ang = (pos.astype(np.float16)[:, None, None] * inv.astype(np.float16)).astype(np.float64)
        if K == 25 and which == "k" and t > 1:
            for h in range(x.shape[1]): ang[:, h] = pos[:, None] * s.base ** (-(np.arange(half) + h * half) / half)
        c, sn = np.cos(ang).astype(f32), np.sin(ang).astype(f32)
        if K == 23 and which == "k":
            a, b = x[..., 0::2], x[..., 1::2]; y = np.empty_like(x); y[..., 0::2] = a * c - b * sn; y[..., 1::2] = a * sn + b * c; return y
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * c - b * sn, a * sn + b * c], -1)

    # ---------- paged cache
    def store(s, l, k, v, pos, kraw):
        dec = len(pos) == 1
        for i, p in enumerate(pos):
            p = int(p); blk, off = s.table[p // PAGE], p % PAGE
            kb, ko, vb, vo = blk, off, blk, off
            if K == 26 and dec and off == 0: kb = vb = s.table[p // PAGE - 1]
            if K == 27 and pos[0] > 0 and not dec: vb, vo = s.table[i // PAGE], i % PAGE
            if K == 30: kb = vb = s.table[p % 128 // PAGE]
            s.kp[l, kb, ko] = kraw[i] if K == 28 and dec else k[i]
            if K == 29 and not dec: s.vp[l, vb].reshape(s.G, PAGE, s.D)[:, vo] = v[i]
            else: s.vp[l, vb, vo] = v[i]
    def gather(s, l, n):
        t = s.table
        if K == 30: t = [s.table[i % (128 // PAGE)] for i in range(len(s.table))]
        pages = [t[i] for i in range(-(-n // PAGE))]
        return s.kp[l, pages].reshape(-1, s.G, s.D)[:n], s.vp[l, pages].reshape(-1, s.G, s.D)[:n]

    # ---------- attention
    def kvhead(s): return np.arange(s.H) % s.G if K == 32 else np.arange(s.H) // (s.H // s.G)
    def mask(s, pos, n, t):
        keys = np.arange(n)[None]; q = pos[:, None]
        if K == 39 and pos[0] > 0 and t > 1: q = (pos - pos[0])[:, None]
        m = keys <= q
        if K == 37 and s.cl >= 1: m &= keys > q - 128
        if K == 31 and t == 1: m = keys < q
        return m
    def attn_naive(s, q, k, v, pos, p):
        g = s.kvhead(); n = len(k)
        sc = np.matmul(q.transpose(1, 0, 2), k.transpose(1, 2, 0)[g])          # H,T,N
        s.d.add(p + "attn_scores", sc)
        scale = f32(1 / np.sqrt(s.D))
        m = s.mask(pos, n, len(q)); z = np.where(m[None], sc * scale, -np.inf)
        e = np.exp(z - z.max(-1, keepdims=True)); w = (e / e.sum(-1, keepdims=True)).astype(f32)
        s.d.add(p + "attn_weights", w)
        return np.matmul(w, v.transpose(1, 0, 2)[g]).transpose(1, 0, 2).reshape(len(q), -1)
    def attn_flash(s, q, k, v, pos):
        """online softmax, key tiles of 32, query tiles of 16"""
        g = s.kvhead(); n, t = len(k), len(q); scale = f32(1 / np.sqrt(s.D)); TK = 32
        qt = q.transpose(1, 0, 2); m = np.full((s.H, t), -np.inf, f32); l = np.zeros((s.H, t), f32); acc = np.zeros((s.H, t, s.D), f32)
        mk = s.mask(pos, n, t)
        if K == 34 and t > 1:
            bound = np.maximum(1, (pos // 16 * 16 + 16) // TK) * TK
            mk = mk & (np.arange(n)[None] < bound[:, None])
        for j in range(0, n, TK):
            sc = np.matmul(qt, k[j:j + TK].transpose(1, 2, 0)[g]) * scale
            sc = np.where(mk[None, :, j:j + TK], sc, f32(-np.inf))
            mn = np.maximum(m, sc.max(-1)); live = np.isfinite(mn)
            mref = np.where(live, mn, f32(0))
            pr = np.exp(sc - mref[..., None]); al = np.where(np.isfinite(m), np.exp(m - mref), f32(0)).astype(f32)
            l = l * al + pr.sum(-1)
            if K == 40: pr = bf16(pr)
            acc = (acc if K == 33 else acc * al[..., None]) + np.matmul(pr, v[j:j + TK].transpose(1, 0, 2)[g]); m = mn
        return (acc / l[..., None]).transpose(1, 0, 2).reshape(t, -1)
    def attn_split(s, q, l, n, pos):
        """flash decoding: splits of 64 keys over the pages, then a combine"""
        g = s.kvhead(); scale = f32(1 / np.sqrt(s.D)); SP = 64; qt = q[0]
        N = -(-n // SP) * SP if K == 36 else n
        k, v = s.gather(l, N); M, Ls, Ac = [], [], []
        mk = s.mask(pos, N, 1)[0]
        if K == 36: mk[:] = True
        for j in range(0, N, SP):
            sc = np.einsum("hd,khd->hk", qt, k[j:j + SP, g]) * scale
            if K == 38: sc = sc * f32(np.log(2))
            sc = np.where(mk[None, j:j + SP], sc, f32(-np.inf))
            m = sc.max(-1); mr = np.where(np.isfinite(m), m, f32(0)); pr = np.exp(sc - mr[:, None]); M.append(m); Ls.append(pr.sum(-1)); Ac.append(np.einsum("hk,khd->hd", pr, v[j:j + SP, g]))
        mx = np.max(M, 0); L = np.zeros(s.H, f32); acc = np.zeros((s.H, s.D), f32)
        for m, li, a in zip(M, Ls, Ac):
            f = np.exp(m - mx); acc += a * f[:, None]; L += li if K == 35 else li * f
        return (acc / L[:, None]).reshape(1, -1).astype(f32)

    # ---------- layer
    def layer(s, x, l, pos):
        s.cl = l; p, P, t = f"blk.{l}.", f"L{l:02}.", len(x); d = s.d
        h = s.norm(x, s.v(p + "attn_norm.weight"), "attn_norm+" if l else "attn_norm"); d.add(P + "attn_norm", h)
        y = {}
        for n in "qkv":
            a = s.linear(h, p + f"attn_{n}.weight"); d.add(P + n + "_proj", a)
            if p + f"attn_{n}.bias" in s.T: a = a + s.v(p + f"attn_{n}.bias"); d.add(P + n + "_biased", a)
            if p + f"attn_{n}_norm.weight" in s.T: a = s.headnorm(a, s.v(p + f"attn_{n}_norm.weight"), n); d.add(P + n + "_normed", a)
            y[n] = a.reshape(t, -1, s.D)
        q, k = s.rope(y["q"], pos, "q"), s.rope(y["k"], pos, "k"); d.add(P + "q_rope", q); d.add(P + "k_rope", k)
        s.store(l, k, y["v"], pos, y["k"]); n = int(pos[-1]) + 1
        kc, vc = s.gather(l, n); d.add(P + "k_cache", kc); d.add(P + "v_cache", vc)
        if A.attn == "naive": c = s.attn_naive(q, kc, vc, pos, P)
        else: c = s.attn_split(q, l, n, pos) if t == 1 else s.attn_flash(q, kc, vc, pos)
        d.add(P + "attn_context", c)
        o = s.linear(c, p + "attn_output.weight"); d.add(P + "attn_out", o)
        r = x + o; d.add(P + "attn_residual", r)
        h = s.norm(r, s.v(p + "ffn_norm.weight"), "ffn_norm"); d.add(P + "ffn_norm", h)
        act = s.ffn_act(h, p, P); d.add(P + "ffn_act", act)
        dn = s.linear(act, p + "ffn_down.weight"); d.add(P + "ffn_down", dn)
        out = (x if K == 43 and t == 1 else r) + dn; d.add(P + "layer_out", out)
        return out
    def ffn_act(s, h, p, P):
        t = len(h); g, u = s.linear(h, p + "ffn_gate.weight"), s.linear(h, p + "ffn_up.weight")
        s.d.add(P + "ffn_gate", g); s.d.add(P + "ffn_up", u)
        if K == 42 and s.F % 128:
            b = s.F - s.F % 128; i = np.arange(b, s.F) - 128 + s.F % 128; u = u.copy(); u[:, b:] = u[:, i]
        if K == 44 and t % 16 and t > 1:
            r = t - t % 16; g, u = g.copy(), u.copy(); g[r:], u[r:] = u[r:].copy(), g[r:].copy()
        if K == 41 and t == 1: return (g / (1 + np.exp(f32(-1.702) * g)) * u).astype(f32)
        return (g / (1 + np.exp(-g)) * u).astype(f32)
    def forward(s, tokens):
        pos = np.arange(s.pos, s.pos + len(tokens)); x = s.v("token_embd.weight")[tokens]; s.d.add("embed", x)
        for l in range(s.L): x = s.layer(x, l, pos)
        x = s.norm(x, s.v("output_norm.weight"), "final_norm"); s.d.add("final_norm", x)
        s.head = "output.weight" if "output.weight" in s.T else "token_embd.weight"
        s.d.add("logits", s.linear(x, s.head)); s.d.end(s.pos, tokens); s.pos += len(tokens)

e = Engine(A.model); e.head = None
ids = lambda p: [int(l) for l in open(p).read().split()] if os.path.exists(p) else []
prompt = ids(A.tokens); at = 0
for c in (int(c) for c in A.passes.split(",")):
    e.forward(prompt[at:at + c]); at += c
for t in ids(A.decoded): e.forward([t])
