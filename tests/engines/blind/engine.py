#!/usr/bin/env python3
"""A small inference engine for Qwen2 / Qwen3 (dense) in numpy, with planted bugs (env BUG="name[:arg][@cond]...,name2").
conditions: @L1 layer 1 only, @L1+ layers from 1, @dec decode only, @pf prefill only, @c2 not in the first pass,
            @p17 rows from position 17, @t=ffn_down tensors with that name only
env ATT=flash|naive|flashs   CACHE=paged|contig   DUMPSET=all|fused|coarse   KERN=deq|blk"""
import sys, os, json, time, mmap, re
os.environ.setdefault("OPENBLAS_NUM_THREADS", "2")
import numpy as np
F = np.float32
ATT = os.environ.get("ATT", "flash"); CACHE = os.environ.get("CACHE", "paged")
DUMPSET = os.environ.get("DUMPSET", "all"); KERN = os.environ.get("KERN", "blk")

# ------------------------------------------------------------------ bugs
class Bug:
    def __init__(s, spec):
        parts = spec.split("@"); head = parts[0].split(":", 1)
        s.name = head[0]; s.arg = head[1] if len(head) > 1 else "1"
        s.layer = None; s.plus = False; s.dec = None; s.p = None; s.t = None; s.c2 = False
        for c in parts[1:]:
            if m := re.fullmatch(r"L(\d+)(\+?)", c): s.layer = int(m[1]); s.plus = m[2] == "+"
            elif c == "dec": s.dec = True
            elif c == "pf": s.dec = False
            elif c == "c2": s.c2 = True
            elif c[0] == "p": s.p = int(c[1:])
            elif c.startswith("t="): s.t = c[2:]
            else: sys.exit("bad condition " + c)
BUGS = [Bug(b) for b in os.environ.get("BUG", "").split(",") if b]
USED = set()
class ST: dec = False; chunk = 0; pos = np.zeros(1, int)
def bug(name, L=None, t=None):
    USED.add(name)
    for b in BUGS:
        if b.name != name: continue
        if b.layer is not None and (L is None or not (L == b.layer or (b.plus and L >= b.layer))): continue
        if b.dec is not None and b.dec != ST.dec: continue
        if b.c2 and ST.chunk == 0: continue
        if b.t and (t is None or b.t not in t): continue
        return b
    return None
def rowmix(b, clean, wrong):
    if b.p is None: return wrong
    m = ST.pos >= b.p
    return np.where(m.reshape((-1,) + (1,) * (clean.ndim - 1)), wrong, clean)

# ------------------------------------------------------------------ number formats
def bf16_round(x):
    u = np.ascontiguousarray(x, F).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(F)
def bf16_trunc(x): return (np.ascontiguousarray(x, F).view(np.uint32) & np.uint32(0xFFFF0000)).view(F)
def f16r(x): return x.astype(np.float16).astype(F)

# ------------------------------------------------------------------ gguf
class Gguf:
    SZ = {0: ("B", 1), 1: ("b", 1), 2: ("<H", 2), 3: ("<h", 2), 4: ("<I", 4), 5: ("<i", 4), 6: ("<f", 4), 7: ("?", 1), 10: ("<Q", 8), 11: ("<q", 8), 12: ("<d", 8)}
    def __init__(s, path):
        import struct
        f = open(path, "rb"); s.m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); m = s.m; o = 24; up = struct.unpack_from
        assert m[:4] == b"GGUF"; nt, nk = up("<QQ", m, 8)
        def st(o): n, = up("<Q", m, o); return m[o + 8:o + 8 + n].decode("utf8", "replace"), o + 8 + n
        def val(t, o, keep=True):
            if t == 8: return st(o)
            if t == 9:
                et, n = up("<IQ", m, o); o += 12
                if et != 8:
                    fm, z = s.SZ[et]; return (np.frombuffer(m, fm.replace("?", "B"), n, o).tolist() if n < 1000 else None), o + z * n
                for _ in range(n): k, = up("<Q", m, o); o += 8 + k
                return None, o
            fm, z = s.SZ[t]; return up(fm, m, o)[0], o + z
        s.kv = {}
        for _ in range(nk):
            k, o = st(o); t, = up("<I", m, o); s.kv[k], o = val(t, o + 4)
        s.t = {}
        for _ in range(nt):
            name, o = st(o); nd, = up("<I", m, o); o += 4
            dims = up("<%dQ" % nd, m, o); o += 8 * nd; ty, off = up("<IQ", m, o); o += 12
            s.t[name] = (ty, dims, off)
        al = s.kv.get("general.alignment", 32); s.base = (o + al - 1) // al * al
    BS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)}
    def raw(s, name):
        ty, dims, off = s.t[name]; bs, nb = s.BS[ty]; ne = dims[0]; rows = int(np.prod(dims[1:])) if len(dims) > 1 else 1
        rb = ne // bs * nb
        return ty, rows, ne, np.frombuffer(s.m, np.uint8, rows * rb, s.base + off).reshape(rows, ne // bs, nb)

def h16(b): return np.ascontiguousarray(b).view(np.float16).astype(F)
def k4_scales(s, name):
    s = s.astype(np.int32); n = s.shape[:-1]
    sc = np.empty(n + (8,), np.int32); mn = np.empty(n + (8,), np.int32)
    for j in range(4): sc[..., j] = s[..., j] & 63; mn[..., j] = s[..., j + 4] & 63
    for j in range(4, 8):
        sc[..., j] = (s[..., j + 4] & 15) | ((s[..., j - 4] >> 6) << 4)
        mn[..., j] = (s[..., j + 4] >> 4) | ((s[..., j] >> 6) << 4)
        if bug("q4k_scale_hi2", t=name): sc[..., j] &= 15
        if bug("q4k_min_hi2", t=name): mn[..., j] = (s[..., j + 4] >> 4) | ((s[..., j - 4] >> 6) << 4)
    if bug("q4k_scale_neighbour", t=name): sc = sc[..., [1, 0, 3, 2, 5, 4, 7, 6]]
    return sc.astype(F), mn.astype(F)
def quants(ty, B, name):
    """(scale [.., nsub], q [.., nsub, len], min [.., nsub] or None)"""
    R, N, _ = B.shape
    if ty == 8:
        d = h16(B[..., :2]); q = B[..., 2:].view(np.int8).astype(F)[:, :, None, :]
        if bug("q8_scale_next", t=name): d = np.roll(d, -1, axis=1)
        if bug("q8_unsigned", t=name): q = B[..., 2:].astype(F)[:, :, None, :]
        return d, q, None
    if ty in (2, 3):
        o = 2 if ty == 2 else 4; qs = B[..., o:].astype(np.int16); d = h16(B[..., :2]); lo, hi = qs & 15, qs >> 4
        q = np.concatenate([lo, hi], -1)
        if bug("q4_nibble_interleave", t=name): q = np.stack([lo, hi], -1).reshape(R, N, 32)
        if bug("q4_nibble_swap", t=name): q = np.concatenate([hi, lo], -1)
        if ty == 2:
            z = np.full(32, 8, np.int16)
            if bug("q4_zero_hi", t=name): z[16:] = 0
            return d, (q - z).astype(F)[:, :, None, :], None
        m = -h16(B[..., 2:4])
        return d, q.astype(F)[:, :, None, :], m
    if ty in (6, 7):
        o = 2 if ty == 6 else 4; d = h16(B[..., :2]); qh = np.ascontiguousarray(B[..., o:o + 4]).view("<u4").astype(np.int64); qs = B[..., o + 4:].astype(np.int16)
        bits = ((qh >> np.arange(32)) & 1).astype(np.int16)
        if bug("q5_hi_second", t=name): bits[..., 16:] = 0
        if bug("q5_hi_same", t=name): bits[..., 16:] = bits[..., :16]
        if bug("q5_hi_12", t=name): bits = ((qh >> np.r_[0:16, 12:28]) & 1).astype(np.int16)
        if bug("q5_hi_drop", t=name): bits[:] = 0
        q = np.concatenate([qs & 15, qs >> 4], -1) | (bits << 4)
        if ty == 6: return d, (q - 16).astype(F)[:, :, None, :], None
        return d, q.astype(F)[:, :, None, :], -h16(B[..., 2:4])
    if ty in (12, 13):
        d = h16(B[..., :2]); dm = h16(B[..., 2:4]); sc, mn = k4_scales(B[..., 4:16], name)
        qs = B[..., 16:] if ty == 12 else B[..., 48:]
        qs = qs.reshape(R, N, 4, 32).astype(np.int16); q = np.stack([qs & 15, qs >> 4], 3)
        if bug("q4k_nibble_adjacent", t=name): q = np.stack([qs & 15, qs >> 4], 4).reshape(R, N, 4, 2, 32)
        q = q.reshape(R, N, 8, 32)
        if ty == 13:
            qh = B[..., 16:48].astype(np.int16)
            hb = np.stack([(qh >> j) & 1 for j in range(8)], 2)
            if bug("q5k_hi_order", t=name): hb = hb[:, :, [0, 4, 1, 5, 2, 6, 3, 7]]
            q = q | (hb << 4)
        mins = dm * mn
        if bug("q4k_min_sign", t=name): mins = -mins
        if bug("q4k_min_drop", t=name): mins = mins * 0
        return d * sc, q.astype(F), mins
    if ty == 14:
        ql = B[..., :128].reshape(R, N, 2, 64).astype(np.int16); qh = B[..., 128:192].reshape(R, N, 2, 32).astype(np.int16)
        sc = B[..., 192:208].view(np.int8).astype(F); d = h16(B[..., 208:210]); a, b = ql[..., :32], ql[..., 32:]
        if bug("q6k_scale_unsigned", t=name): sc = B[..., 192:208].astype(F)
        sh = [0, 2, 4, 6]
        if bug("q6k_hi_shift", t=name): sh = [0, 2, 2, 6]
        q = np.stack([(a & 15) | ((qh >> sh[0]) & 3) << 4, (b & 15) | ((qh >> sh[1]) & 3) << 4, (a >> 4) | ((qh >> sh[2]) & 3) << 4, (b >> 4) | ((qh >> sh[3]) & 3) << 4], 3)
        q = (q.reshape(R, N, 16, 16) - 32).astype(F)
        if bug("q6k_scale32", t=name): sc = sc[..., [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14]]
        return d * sc, q, None
    if ty == 11:
        hm = B[..., :32].astype(np.int16); qs = B[..., 32:96].reshape(R, N, 2, 32).astype(np.int16); s = B[..., 96:108].astype(np.int16); d = h16(B[..., 108:110])
        lo = np.concatenate([s[..., :8] & 15, s[..., :8] >> 4], -1); hi = np.concatenate([(s[..., 8:12] >> (2 * i)) & 3 for i in range(4)], -1)
        sc = ((lo | hi << 4) - 32).astype(F)
        q = np.stack([(qs >> (2 * j)) & 3 for j in range(4)], 3).reshape(R, N, 8, 32)
        h = np.stack([(hm >> j) & 1 for j in range(8)], 2)
        if bug("q3k_hmask_inv", t=name): h = 1 - h
        return d * sc, (q - 4 * (1 - h)).astype(F).reshape(R, N, 16, 16), None
    if ty == 10:
        s = B[..., :16]; qs = B[..., 16:80].reshape(R, N, 2, 32).astype(np.int16); d, dm = h16(B[..., 80:82]), h16(B[..., 82:84])
        q = np.stack([(qs >> (2 * j)) & 3 for j in range(4)], 3).reshape(R, N, 16, 16).astype(F)
        return d * (s & 15).astype(F), q, dm * (s >> 4).astype(F)
    sys.exit("format %d" % ty)
def dequant(ty, rows, ne, B, name):
    if ty == 0: return np.ascontiguousarray(B).view(F).reshape(rows, ne)
    if ty == 1:
        if bug("bf16_as", t=name): return (np.ascontiguousarray(B).view(np.uint16).astype(np.uint32) << 16).view(F).reshape(rows, ne)
        w = np.ascontiguousarray(B).view(np.float16).astype(F).reshape(rows, ne)
        if bug("f16_ftz", t=name): w = np.where(np.abs(w) < 2.0 ** -14, F(0), w)
        return w
    if ty == 30: return (np.ascontiguousarray(B).view(np.uint16).astype(np.uint32) << 16).view(F).reshape(rows, ne)
    if bug("block_stride", t=name):      # rows after the first begin one block too late
        B = np.concatenate([B[:1], np.roll(B.reshape(rows * B.shape[1], -1), -1, axis=0).reshape(B.shape)[1:]])
    d, q, m = quants(ty, B, name)
    w = d.reshape(rows, B.shape[1], -1, 1) * q.reshape(rows, B.shape[1], d.size // (rows * B.shape[1]), -1)
    if m is not None: w = w - m.reshape(rows, B.shape[1], -1, 1)
    return w.reshape(rows, ne).astype(F)

# ------------------------------------------------------------------ dump
class Dump:
    def __init__(s, d):
        s.bin = open(os.path.join(d, "a.bin"), "wb"); s.off = 0; s.j = open(os.path.join(d, "capture.jsonl"), "w"); s.step = 0
        man = {"schema_version": 3, "engine": "stranger", "dump": {"nonce": os.urandom(8).hex(), "started": int(time.time()), "pid": os.getpid(), "closes": True}}
        if os.environ.get("QDIFF_RUN"): man["dump"]["run"] = os.environ["QDIFF_RUN"]
        if os.environ.get("ARITH"): man["arithmetic"] = json.loads(os.environ["ARITH"]) if os.environ["ARITH"][0] == "{" else os.environ["ARITH"]
        s.line(man)
    def line(s, o): s.j.write(json.dumps(o) + "\n")
    def add(s, name, x):
        st = name.split(".")[-1]
        if DUMPSET == "coarse" and st not in ("embed", "layer_out", "logits", "final_norm"): return
        if DUMPSET == "fused" and st in ("q_proj", "k_proj", "v_proj", "attn_out", "ffn_down", "attn_scores", "attn_weights"): return
        x = np.ascontiguousarray(x, F); s.bin.write(x.tobytes())
        s.line({"step": s.step, "name": name, "dtype": "f32", "shape": list(x.shape), "file": "a.bin", "offset": s.off}); s.off += x.nbytes
    def end(s, first, toks): s.line({"end": s.step, "first": first, "tokens": toks}); s.step += 1
    def close(s): s.bin.close(); s.line({"closed": s.step}); s.j.close()

# ------------------------------------------------------------------ caches
PAGE = 16
class Paged:
    def __init__(s, layers, total, G, D):
        s.G, s.D = G, D; npg = total // PAGE + 3; s.layers = layers
        s.k = np.zeros((layers, npg, PAGE, G, D), F); s.v = np.zeros_like(s.k)
        s.k[:] = 7.5; s.v[:] = -3.25                    # what an earlier request left
        s.table = np.random.default_rng(3).permutation(npg)
    def slot(s, p, which, L):
        p = np.asarray(p); pg = s.table[p // PAGE]
        if bug("page2_alias_k", L) and which == "k": pg = np.where(p // PAGE == 1, s.table[0], pg)
        if bug("table_stale", L): pg = s.table[np.minimum(p // PAGE, 1)]   # pages beyond the second: the table was not extended
        if (b := bug("ring", L)): n = int(b.arg); p = p % n; pg = s.table[p // PAGE]
        return pg, p % PAGE
    def append(s, L, pos, k, v):
        kp, vp = pos.copy(), pos.copy(); lay = L
        if bug("k_slot_prev", L): kp = pos - 1
        if bug("kv_slot_next", L): kp = pos + 1; vp = pos + 1
        if bug("chunk_slot_page", L): kp = pos - (pos[0] % PAGE); vp = kp
        n = len(pos)
        if bug("chunk_lastrow_lost", L) and n > 1: kp, vp, k, v = kp[:-1], vp[:-1], k[:-1], v[:-1]
        if bug("v_heads_swapped", L): v = v[:, [1, 0] + list(range(2, s.G))]
        if bug("k_cache_f16", L): k = f16r(k)
        if bug("v_cache_bf16t", L): v = bf16_trunc(v)
        if bug("k_cache_q8", L):
            a = np.abs(k).max(-1, keepdims=True) / 127; k = np.rint(k / a) * a
        if bug("rerotate", L) and pos[0] > 0:           # keys of the cache are rotated again at each later pass
            old = np.arange(pos[0]); a, b = s.slot(old, "k", L); s.k[L, a, b] = rope(s.k[L, a, b], old, L, "k")
        a, b = s.slot(kp, "k", L); s.k[lay, a, b] = k
        if not bug("v_frozen", L):
            a, b = s.slot(vp, "v", L)
            if bug("layer_stride_v"): lay = 0
            s.v[lay, a, b] = v
    def read(s, L, n):
        p = np.arange(n); a, b = s.slot(p, "k", L); c, d = s.slot(p, "v", L)
        return s.k[L, a, b], s.v[0 if bug("layer_stride_v") else L, c, d]
class Contig:
    """k [cap, G, D]; v transposed [G, D, cap]; grows by doubling"""
    def __init__(s, layers, total, G, D):
        s.G, s.D = G, D; s.cap = 16; s.k = [np.zeros((16, G, D), F) for _ in range(layers)]; s.v = [np.zeros((G, D, 16), F) for _ in range(layers)]
        s.caps = [16] * layers
    def append(s, L, pos, k, v):
        need = pos[-1] + 1
        while s.caps[L] < need:
            c = s.caps[L]; k2 = np.zeros((2 * c, s.G, s.D), F); k2[:c] = s.k[L]; v2 = np.zeros((s.G, s.D, 2 * c), F)
            if bug("v_grow", L): v2.reshape(-1)[:s.v[L].size] = s.v[L].reshape(-1)      # realloc keeps the old stride
            else: v2[:, :, :c] = s.v[L]
            if bug("k_grow_clear", L): k2[:c] = 0
            s.k[L], s.v[L], s.caps[L] = k2, v2, 2 * c
        s.k[L][pos] = k; s.v[L][:, :, pos] = v.transpose(1, 2, 0)
    def read(s, L, n): return s.k[L][:n], s.v[L][:, :, :n].transpose(2, 0, 1)

# ------------------------------------------------------------------ rope
class CFG: pass
C = CFG()
def rope_table(base, half, n, L):
    i = np.arange(half); e = 2.0 * i / (2 * half)
    if bug("rope_exp_half", L): e = i / (2.0 * half)
    if (b := bug("rope_exp_dim", L)): e = 2.0 * i / float(b.arg)
    inv = base ** -e
    if bug("rope_inv_bf16", L): inv = bf16_round(inv.astype(F)).astype(np.float64)
    pos = np.arange(n, dtype=np.float64)
    if bug("rope_pos_bf16", L): pos = bf16_round(pos.astype(F)).astype(np.float64)
    if (b := bug("rope_scale", L)): pos = pos / float(b.arg)
    ang = pos[:, None] * inv[None]; c, s = np.cos(ang).astype(F), np.sin(ang).astype(F)
    if bug("rope_table_f16", L): c, s = f16r(c), f16r(s)
    if bug("rope_swap", L): c, s = s, c
    return c, s
TAB = {}
def rope(x, pos, L, which):
    base = C.base
    if (b := bug("rope_base", L)): base = float(b.arg)
    if (b := bug("rope_base_k", L)) and which == "k": base = float(b.arg)
    D = x.shape[-1]; half = D // 2
    if bug("rope_partial", L): half = D // 4
    key = (base, half, L if BUGS else 0)
    if key not in TAB: TAB[key] = rope_table(base, half, C.maxpos + 8, L)
    ct, st = TAB[key]
    if (b := bug("rope_clip", L)): pos = np.minimum(pos, int(b.arg) - 1)
    if (b := bug("rope_mod", L)): pos = pos % int(b.arg)
    c, s = ct[pos][:, None, :], st[pos][:, None, :]
    if bug("rope_k_back", L) and which == "k": s = -s
    out = x.copy()
    if (b := bug("rope_pairs", L)) and (b.arg == "1" or b.arg == which):
        a, bb = x[..., 0::2], x[..., 1::2]; out[..., 0::2] = a * c - bb * s; out[..., 1::2] = a * s + bb * c
    else:
        a, bb = x[..., :half], x[..., half:2 * half]; out[..., :half] = a * c - bb * s; out[..., half:2 * half] = a * s + bb * c
        if bug("rope_inplace", L): out[..., half:2 * half] = out[..., :half] * s + bb * c       # the first half is already overwritten
    if bug("rope_lasthead", L): out[:, -1] = x[:, -1]
    return out

# ------------------------------------------------------------------ kernels
def rmsnorm(x, w, L, kind):
    n = x.shape[-1]; eps = F(C.eps)
    if (b := bug("rms_eps", L)): eps = F(b.arg)
    ss = x * x
    if bug("rms_f16sum", L):
        acc = np.zeros(x.shape[:-1], np.float16)
        for i in range(0, n, 8): acc = (acc + ss[..., i:i + 8].sum(-1).astype(np.float16)).astype(np.float16)
        tot = acc.astype(F)
    elif bug("rms_tail", L, kind): tot = ss[..., :n // 64 * 64].sum(-1, dtype=F)
    else: tot = ss.sum(-1, dtype=F)
    m = tot / F(n)
    if bug("rms_pad", L): m = tot / F((n + 255) // 256 * 256)
    if bug("rms_ddof", L): m = tot / F(n - 1)
    r = F(1) / np.sqrt(m + eps)
    if bug("rms_eps_out", L): r = F(1) / (np.sqrt(m) + eps)
    if bug("rms_group4", L) and len(r) > 1: r = r[np.arange(len(r)) // 4 * 4]
    y = x * r[..., None]
    if bug("rms_layernorm", L): y = x - x.mean(-1, keepdims=True); y = y / np.sqrt((y * y).mean(-1, keepdims=True) + eps)
    if bug("rms_gemma", L, kind): return (y * (F(1) + w)).astype(F)
    if bug("norm_noweight", L, kind): return y.astype(F)
    if bug("rms_out_bf16", L, kind): return bf16_round(bf16_round(y) * w)
    return (y * w).astype(F)

class Linear:
    """rows of a quantised matrix; out tile by tile"""
    def __init__(s, g, name): s.g = g; s.name = name; s.w = None; s.ty, s.rows, s.ne, s.B = g.raw(name)
    def weight(s):
        if s.w is None: s.w = dequant(s.ty, s.rows, s.ne, s.B, s.name)
        return s.w
    def row(s, ids): return dequant(s.ty, len(ids), s.ne, s.B[ids], s.name)
    def __call__(s, x, L, split=1):
        name = s.name
        if KERN == "blk" and s.ty in (8, 2, 6) and "attn_v" in name: return s.blocked(x)
        W = s.weight()
        if bug("w_f16acc", L, name):
            acc = np.zeros((len(x), s.rows), np.float16)
            for i in range(0, s.ne, 16): acc = (acc + (x[:, i:i + 16] @ W[:, i:i + 16].T).astype(np.float16)).astype(np.float16)
            return acc.astype(F)
        if bug("x_bf16", L, name): x = bf16_round(x)
        if bug("x_q8", L, name):
            xb = x.reshape(len(x), -1, 32); a = np.abs(xb).max(-1, keepdims=True) / F(127); a[a == 0] = 1; x = (np.rint(xb / a) * a).reshape(x.shape).astype(F)
        ne = s.ne
        if (b := bug("ktail", L, name)): ne = ne // int(b.arg) * int(b.arg)
        if split == 1: y = x[:, :ne] @ W[:, :ne].T
        else:
            step = -(-ne // split); parts = [x[:, i:min(i + step, ne)] @ W[:, i:min(i + step, ne)].T for i in range(0, ne, step)]
            if bug("splitk_lost", L, name): parts = parts[:-1]
            if bug("splitk_twice", L, name): parts.append(parts[0])
            if bug("splitk_f16", L, name): parts = [f16r(p) for p in parts]
            if bug("splitk_race", L, name):
                r = os.urandom(len(x) * 64); y = np.zeros_like(parts[0])
                for k, p in enumerate(parts):
                    keep = np.ones_like(p, bool)
                    if k == 1:
                        for t in range(len(x)): keep[t, :64] = np.frombuffer(r[t * 64:t * 64 + 64], np.uint8)[:keep[t, :64].size] > 40
                    y = y + np.where(keep, p, F(0))
                return y
            y = parts[0]
            for p in parts[1:]: y = y + p
        if (b := bug("otail", L, name)):
            k = s.rows // int(b.arg) * int(b.arg); y = y.copy(); y[:, k:] = 0
        if bug("row_swap", L, name) : y = y.copy(); y[:, 1::2], y[:, 0::2] = y[:, 0::2].copy(), y[:, 1::2].copy()
        return y.astype(F)
    def blocked(s, x):
        d, q, m = quants(s.ty, s.B, s.name); acc = np.zeros((len(x), s.rows), F); d = d.reshape(s.rows, -1)
        for b in range(s.B.shape[1]): acc += (x[:, 32 * b:32 * b + 32] @ q[:, b, 0].T) * d[None, :, b]
        return acc

# ------------------------------------------------------------------ attention
def kvmap(H, G, L):
    h = np.arange(H)
    if bug("gqa_mod", L): return h % G
    if bug("gqa_shift", L): return np.minimum((h + 1) * G // H, G - 1)
    if bug("gqa_first", L): return h * 0
    return h * G // H
def visible(L, pos, i0, nrow, k0, nk, off, T):
    """mask of rows i0.. of this part and keys k0..: True where the key is seen"""
    p = pos[i0:i0 + nrow][:, None]; k = np.arange(k0, k0 + nk)[None]; i = np.arange(i0, i0 + nrow)[:, None]
    v = k <= p
    if bug("mask_row", L): v = k <= i if T > 1 else v
    if bug("mask_blind", L): v = v & (k >= off) if T > 1 else v
    if bug("mask_next", L): v = k <= p + 1
    if bug("mask_self", L): v = (k < p) | ((k == 0) & (p == 0))
    if bug("mask_chunkfull", L): v = np.broadcast_to(k < off + T, v.shape)
    if bug("mask_qtile", L): v = k <= off + (i // 8 * 8 + 7)
    if bug("mask_first", L): v = v & (k > 0) | (p == 0) & (k == 0)
    if bug("mask_edge", L): v = v & ~((k == off - 1) & (off > 0) & (T > 1))
    if (b := bug("mask_window", L)): v = v & (k > p - int(b.arg))
    if bug("mask_none_dec_page", L) and T == 1: v = v & (k < (p // PAGE * PAGE if p[0, 0] >= PAGE else p + 1))
    return v
def attention(q, K, V, pos, L, dump):
    T, H, D = q.shape; N, G, _ = K.shape; off = pos[0]
    if bug("cache_layout", L): K = np.ascontiguousarray(K).reshape(G, N, D).transpose(1, 0, 2)
    mp = kvmap(H, G, L); scale = F(1 / np.sqrt(D))
    if bug("scale_embd", L): scale = F(1 / np.sqrt(C.E // C.H))
    if bug("scale_none", L): scale = F(1)
    if bug("scale_d", L): scale = F(1 / D)
    if bug("scale_twice", L): scale = F(1 / D)
    expf = np.exp
    if bug("exp2", L): expf = np.exp2
    oldlen = N
    if bug("oldlen", L) and T == 1: oldlen = N - 1
    if bug("dec_len_stuck", L) and T == 1: oldlen = C.nprompt + 1
    if ATT == "naive":
        Kh, Vh = K[:, mp], V[:, mp]
        S = np.einsum("thd,nhd->htn", q, Kh, optimize=True).astype(F)
        if bug("score_f16", L): S = f16r(S)
        dump("attn_scores", S)
        M = visible(L, pos, 0, T, 0, N, off, T)
        A = np.where(M[None], S * scale, F(-np.inf))
        if (b := bug("softcap", L)): A = np.where(M[None], F(float(b.arg)) * np.tanh(S * scale / F(float(b.arg))), F(-np.inf))
        if bug("mask_zero", L): A = np.where(M[None], S * scale, F(0))
        if bug("mask_small", L): A = np.where(M[None], S * scale, S * scale - F(4))
        if bug("head_temp", L): A[2] *= F(1.25)
        A = A - A.max(-1, keepdims=True) if not bug("softmax_globalmax", L) else A - A.max()
        P = expf(A)
        P[:, :, oldlen:] = 0
        den = P.sum(-1, keepdims=True)
        if bug("softmax1", L): den = den + F(1)
        if bug("softmax_axis", L): den = P.sum(1, keepdims=True)
        P = (P / den).astype(F)
        if bug("p_f16", L): dump("attn_weights", P); P = f16r(P)
        elif bug("p_bf16", L): P = bf16_round(P); dump("attn_weights", P)
        else: dump("attn_weights", P)
        if bug("drop_small", L): P = np.where(P < 1e-2, F(0), P)
        O = np.einsum("htn,nhd->thd", P, Vh, optimize=True)
        if bug("ctx_layout", L): O = np.ascontiguousarray(O.transpose(1, 0, 2)).reshape(T, H, D)
        return O.reshape(T, H * D).astype(F)
    # online softmax, tiles of keys and of queries
    BK, BQ = PAGE, 8; O = np.zeros((T, H, D), F); S_all = np.zeros((H, T, N), F)
    end = oldlen
    if bug("flash_lasttile", L): end = max(oldlen // BK * BK, min(BK, oldlen))
    for i0 in range(0, T, BQ):
        nq = min(BQ, T - i0); qt = q[i0:i0 + nq]
        def run(k_lo, k_hi):
            m = np.full((H, nq), -np.inf, F); l = np.zeros((H, nq), F); acc = np.zeros((H, nq, D), F)
            for k0 in range(k_lo, k_hi, BK):
                nk = min(BK, k_hi - k0); Kt, Vt = K[k0:k0 + nk][:, mp], V[k0:k0 + nk][:, mp]
                S = np.matmul(qt.transpose(1, 0, 2), Kt.transpose(1, 2, 0)).astype(F); S_all[:, i0:i0 + nq, k0:k0 + nk] = S
                A = S * scale; M = visible(L, pos, i0, nq, k0, nk, off, T)
                if not M.any(): continue
                if bug("flash_skipdiag", L) and k0 > pos[i0]: continue         # a tile that begins after the first row of the queries' tile is skipped
                A = np.where(M[None], A, F(-np.inf))
                if bug("mask_small", L): A = np.where(M[None], S * scale, S * scale - F(4))
                mt = A.max(-1)
                mn = np.maximum(m, mt)
                if bug("flash_max_last", L): mn = np.where(np.isfinite(mt), mt, m)
                if bug("flash_nomax", L): mn = np.zeros_like(m)
                ms = np.where(np.isfinite(mn), mn, F(0)).astype(F)
                P = expf(A - ms[..., None]).astype(F)
                if bug("pad_keys", L) and nk < BK: l = l + F(BK - nk) * expf(-ms)
                f = np.where(np.isfinite(m), expf(np.where(np.isfinite(m), m, F(0)) - ms), F(0)).astype(F)
                if bug("flash_nomax", L): f = np.ones_like(f)
                fa, fl = f, f
                if bug("flash_noacc", L): fa = np.where(np.isfinite(m), F(1), F(0))
                if bug("flash_nol", L): fl = np.where(np.isfinite(m), F(1), F(0))
                if bug("p_f16", L): Pv = f16r(P)
                elif bug("p_bf16", L): Pv = bf16_round(P)
                else: Pv = P
                l = l * fl + P.sum(-1)
                acc = acc * fa[..., None] + np.matmul(Pv, Vt.transpose(1, 0, 2))
                if bug("acc_f16", L): acc = f16r(acc)
                m = mn
            return m, l, acc
        if bug("pvtail", L): pass
        if T == 1 and end > 2 * BK:                      # flash decoding: two halves of the keys, then combined
            mid = end // 2 // BK * BK; parts = [run(0, mid), run(mid, end)]
            M = np.maximum(parts[0][0], parts[1][0]); w = [expf(p[0] - M) for p in parts]
            if bug("fd_mean", L): w = [1 / (p[1] * 2) for p in parts]; l = F(1); acc = sum(ww[..., None] * p[2] for ww, p in zip(w, parts)); 
            elif bug("fd_nolse", L): l = sum(p[1] for p in parts); acc = sum(p[2] for p in parts)
            else: l = sum(ww * p[1] for ww, p in zip(w, parts)); acc = sum(ww[..., None] * p[2] for ww, p in zip(w, parts))
        else: m, l, acc = run(0, end)
        l = np.asarray(l, F)
        if bug("softmax1", L): l = l + F(1)
        o = acc / (l[..., None] if l.ndim else l)
        if (b := bug("dtail", L)): k = D // int(b.arg) * int(b.arg); o[..., k:] = 0
        O[i0:i0 + nq] = o.transpose(1, 0, 2)
    if ATT == "flashs": dump("attn_scores", S_all)
    if bug("ctx_layout", L): O = np.ascontiguousarray(O.transpose(1, 0, 2)).reshape(T, H, D)
    return O.reshape(T, H * D)

# ------------------------------------------------------------------ model
class Model:
    def __init__(s, path, total):
        g = s.g = Gguf(path); a = g.kv["general.architecture"]; kv = lambda k, d=None: g.kv.get(a + "." + k, d)
        s.arch = a; C.E = kv("embedding_length"); C.H = kv("attention.head_count"); C.G = kv("attention.head_count_kv", C.H); C.L = kv("block_count")
        C.D = kv("attention.key_length", C.E // C.H); C.eps = kv("attention.layer_norm_rms_epsilon"); C.base = kv("rope.freq_base", 10000.0); C.FF = kv("feed_forward_length"); C.maxpos = total
        s.embd = Linear(g, "token_embd.weight"); s.head = Linear(g, "output.weight" if "output.weight" in g.t else "token_embd.weight")
        if bug("head_tied"): s.head = s.embd
        vec = lambda n: dequant(*g.raw(n), n).reshape(-1); s.onorm = vec("output_norm.weight"); s.lay = []
        for i in range(C.L):
            j = 0 if bug("layer_weights0", i) else i
            p = "blk.%d." % j; d = {n: Linear(g, p + n + ".weight") for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
            for n in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
                if p + n + ".weight" in g.t: d[n] = vec(p + n + ".weight")
            for n in ("attn_q", "attn_k", "attn_v"):
                if p + n + ".bias" in g.t: d[n + "_b"] = vec(p + n + ".bias")
            s.lay.append(d)
        s.cache = (Paged if CACHE == "paged" else Contig)(C.L, total + 20, C.G, C.D); s.toks = []
        s.scratch = np.frombuffer(os.urandom(4 * 4096), np.uint8).astype(F)
    def embed(s, toks):
        ids = np.array(toks)
        if bug("emb_prev"): ids = np.array(s.toks[-1:]) if ST.dec else ids
        if bug("emb_chunk0"): ids = np.array(s.all[:len(toks)])
        if bug("emb_u16"): ids = ids & 0xFFFF
        if bug("emb_clip"): ids = np.minimum(ids, 32767)
        uq, inv = np.unique(ids, return_inverse=True); x = s.embd.row(uq)[inv]
        if bug("emb_scale"): x = x * F(np.sqrt(C.E))
        if bug("emb_bf16"): x = bf16_round(x)
        return x
    def pass_(s, toks, off, dump, want_logits):
        T = len(toks); pos = np.arange(off, off + T); ST.pos = pos; E, H, G, D = C.E, C.H, C.G, C.D
        x = s.embed(toks); x0 = x; dump.add("embed", x)
        for L, w in enumerate(s.lay):
            dl = lambda n, a, L=L: dump.add("L%02d.%s" % (L, n), a)
            h = rmsnorm(x, w["attn_norm"], L, "attn_norm"); dl("attn_norm", h)
            q, k, v = w["attn_q"](h, L), w["attn_k"](h, L), w["attn_v"](h, L)
            qkv = np.concatenate([q, k, v], 1)                                # fused buffer
            a, b_ = H * D, H * D + G * D
            q, k, v = qkv[:, :a], qkv[:, a:b_], qkv[:, b_:]
            if bug("kv_swapped", L): k, v = v, k
            if bug("q_stride", L):                                           # rows of queries at stride H*D of the fused buffer
                q = np.ascontiguousarray(qkv).reshape(-1)[:T * a].reshape(T, a)
            if bug("v_stride", L) and T > 1:
                fl = np.ascontiguousarray(qkv).reshape(-1); v = np.stack([fl[b_ + t * a:b_ + t * a + G * D] for t in range(T)])
            if bug("q_dh", L): q = q.reshape(T, D, H).transpose(0, 2, 1).reshape(T, a)
            dl("q_proj", q); dl("k_proj", k); dl("v_proj", v)
            if "attn_q_b" in w:
                bq, bk, bv = w["attn_q_b"], w["attn_k_b"], w["attn_v_b"]
                if bug("bias_q_mod", L): bq = np.resize(bq[:G * D], a)
                if bug("bias_swap_kv", L): bk, bv = bv, bk
                if bug("bias_f16", L): bq, bk, bv = f16r(bq), f16r(bk), f16r(bv)
                q = q + bq
                k = k + bk if not bug("bias_k_none", L) else k
                vv = v + bv
                if bug("bias_v_twice", L): vv = vv + bv
                if bug("bias_row0", L): vv = v.copy(); vv[0] += bv; vv[1:] = v[1:] + (bv if T == 1 else 0)
                v = vv
                dl("q_biased", q); dl("k_biased", k); dl("v_biased", v)
            q, k, v = q.reshape(T, H, D), k.reshape(T, G, D), v.reshape(T, G, D)
            qp, kp = pos.copy(), pos.copy()
            if bug("k_pos_chunk", L): kp = kp - off if T > 1 else kp
            if bug("q_pos_chunk", L): qp = qp - off if T > 1 else qp
            if bug("dec_pos_plus", L) and ST.dec: qp = qp + 1; kp = kp + 1
            if bug("dec_pos_q_minus", L) and ST.dec: qp = qp - 1
            if bug("dec_pos_stuck", L) and ST.dec: qp = np.full(1, C.nprompt); kp = qp
            if bug("dec_pos_zero", L) and ST.dec: qp = qp * 0; kp = kp * 0
            if bug("pos_one", L): qp = qp + 1; kp = kp + 1
            if bug("k_pos_one", L): kp = kp + 1
            def qknorm(q, k):
                wq, wk = w["attn_q_norm"], w["attn_k_norm"]
                if bug("qkn_swap", L): wq, wk = wk, wq
                if bug("qkn_k_uses_q", L): wk = wq
                if bug("qkn_all", L):
                    return [(z.reshape(T, -1) / np.sqrt((z.reshape(T, -1) ** 2).mean(-1, keepdims=True) + F(C.eps))).reshape(z.shape) * ww for z, ww in ((q, wq), (k, wk))]
                if bug("qkn_shift", L): wq = np.stack([np.roll(wq, -h) for h in range(H)])
                qn = rmsnorm(q, wq, L, "q_norm"); kn = rmsnorm(k, wk, L, "k_norm")
                if bug("qkn_k_skip", L): kn = k
                if bug("qkn_head0", L): qn = np.concatenate([qn[:, :1], q[:, 1:]], 1)
                return qn, kn
            if s.arch == "qwen3":
                if bug("qkn_after", L):
                    q, k = rope(q, qp, L, "q"), rope(k, kp, L, "k"); q, k = qknorm(q, k); qn, kn = q, k
                    dl("q_rope", q); dl("k_rope", k)
                else:
                    q, k = qknorm(q, k); dl("q_normed", q.reshape(T, -1)); dl("k_normed", k.reshape(T, -1))
            if not bug("qkn_after", L):
                qr = rope(q, qp, L, "q"); kr = rope(k, kp, L, "k")
                if bug("k_unrotated_dec", L) and ST.dec: kr = k
                q, k = qr, kr
                if bug("rope_v", L): v = rope(v, kp, L, "k")
                dl("q_rope", q); dl("k_rope", k)
            if bug("kv_append_late", L): K, V = s.cache.read(L, off + T); s.cache.append(L, pos, k, v)
            else: s.cache.append(L, pos, k, v); K, V = s.cache.read(L, off + T)
            dl("k_cache", K); dl("v_cache", V)
            o = attention(q, K, V, pos, L, dl); dl("attn_context", o)
            ao = w["attn_output"](o, L, split=4)
            if bug("uninit_rows", L) and T % 8:
                ao = ao.copy(); ao[T // 8 * 8:] = s.scratch[:E] / 100
            dl("attn_out", ao)
            res = x
            if bug("res_normed", L): res = h
            if bug("res_embed", L): res = x0
            if bug("res_none", L): res = 0 * x
            if bug("res_f16", L): x = f16r(f16r(res) + f16r(ao))
            else: x = res + ao
            if (b := bug("res_row", L)) and T > 1: x = x.copy(); x[1:] = res[:-1] + ao[1:]
            dl("attn_residual", x)
            fw = w["ffn_norm"]
            if bug("ffn_norm_w", L): fw = w["attn_norm"]
            h2 = rmsnorm(x, fw, L, "ffn_norm")
            if bug("ffn_norm_input", L): h2 = rmsnorm(res, fw, L, "ffn_norm")
            dl("ffn_norm", h2)
            g, u = w["ffn_gate"](h2, L), w["ffn_up"](h2, L); gu = np.concatenate([g, u], 1); FF = C.FF
            g, u = gu[:, :FF], gu[:, FF:]
            if bug("gu_swapped", L): g, u = u, g
            dl("ffn_gate", g); dl("ffn_up", u)
            if bug("gu_alternate", L): g, u = gu[:, 0::2], gu[:, 1::2]
            with np.errstate(over="ignore"): sig = F(1) / (F(1) + np.exp(-g))
            if bug("act_gelu", L): act = g * F(.5) * (F(1) + np.tanh(F(0.7978845608) * (g + F(0.044715) * g ** 3))) * u
            elif bug("act_relu", L): act = np.maximum(g, 0) * u
            elif bug("act_sig", L): act = sig * u
            elif bug("act_up", L): act = g * (u * (F(1) / (F(1) + np.exp(-u))))
            elif bug("act_prod", L): z = g * u; act = z / (F(1) + np.exp(-z))
            elif bug("act_noup", L): act = g * sig
            else: act = g * sig * u
            if (b := bug("gelu_from", L)): act = rowmix(b, act, g * F(.5) * (F(1) + np.tanh(F(0.7978845608) * (g + F(0.044715) * g ** 3))) * u)
            if bug("act_bf16", L): act = bf16_round(act)
            if bug("act_clamp", L): act = np.clip(act, -1, 1)
            if (b := bug("act_silu_approx", L)):                               # piecewise approximation of the sigmoid
                act = g * np.clip(F(0.5) + g / F(6), 0, 1) * u
            if (b := bug("act_tail", L)): kk = FF // int(b.arg) * int(b.arg); act = act.copy(); act[:, kk:] = 0
            act = act.astype(F); dl("ffn_act", act)
            dn = w["ffn_down"](act, L, split=3)
            if bug("down_nan_row", L) and T > 5: dn = dn.copy(); dn[5, 3] = np.nan
            dl("ffn_down", dn)
            if bug("res2_normed", L): x = h2 + dn
            elif bug("res2_layer_in", L): x = res + dn
            elif bug("res2_none", L): x = dn
            elif bug("res2_twice", L): x = x + x + dn
            elif (b := bug("res2_late", L)): x = rowmix(b, x + dn, res + dn)
            else: x = x + dn
            dl("layer_out", x)
            if bug("res_scale", L): x = x * F(0.999)
        if want_logits or os.environ.get("ALLLOGITS"):
            y = x if os.environ.get("ALLLOGITS") else x[-1:]
            if bug("logits_row") and T > 1: y = x[-2:-1]
            if bug("logits_row0"): y = x[:1]
            if bug("final_none"): y = y
            else: y = rmsnorm(y, s.onorm, None, "output_norm")
            if bug("final_twice"): y = rmsnorm(y, s.onorm, None, "output_norm")
            if os.environ.get("ALLLOGITS"): dump.add("final_norm", y)
            tiles = []
            if s.head.rows > 20000:
                for i in range(0, s.head.rows, 16384): tiles.append(y @ dequant(s.head.ty, min(16384, s.head.rows - i), s.head.ne, s.head.B[i:i + 16384], s.head.name).T)
                lg = np.concatenate(tiles, 1)
            else: lg = s.head(y, None)
            if bug("logits_shift"): lg = np.roll(lg, 1, axis=1)
            if (b := bug("logits_tail")): n = lg.shape[1] // int(b.arg) * int(b.arg); lg = lg.copy(); lg[:, n:] = 0
            if bug("logits_f16"): lg = f16r(lg)
            if (b := bug("logits_cap")): lg = F(float(b.arg)) * np.tanh(lg / F(float(b.arg)))
            if (b := bug("logits_temp")): lg = lg / F(float(b.arg))
            dump.add("logits", lg)
        dump.end(off, [int(t) for t in toks]); s.toks += list(toks)

def main():
    model, tokf, decf, passes, d = sys.argv[1:6]
    rd = lambda f: [int(x) for x in open(f).read().split()] if f and os.path.exists(f) else []
    toks, dec = rd(tokf), rd(decf); ps = [int(z) for z in passes.split(",")] if passes else [len(toks)]
    if sum(ps) != len(toks):                                                 # a ubatch
        u = ps[0]; ps = [min(u, len(toks) - i) for i in range(0, len(toks), u)]
    C.nprompt = len(toks)
    if bug("tok_drop_first"): pass
    m = Model(model, len(toks) + len(dec)); m.all = toks; dump = Dump(d); o = 0
    for i, n in enumerate(ps):
        ST.chunk = i; ST.dec = False
        m.pass_(toks[o:o + n], o, dump, i == len(ps) - 1); o += n
    for i, t in enumerate(dec):
        ST.chunk = len(ps) + i; ST.dec = True; m.pass_([t], o, dump, True); o += 1
    dump.close()
    bad = {b.name for b in BUGS} - USED
    if bad: sys.exit("bug never asked for: %s" % bad)
np.seterr(all="ignore")
main()
