B=[]
def bug(name,model,run,changes,kv=None,slots=False): B.append(dict(name=name,model=model,run=run,changes=changes,kv=kv,slots=slots))
# ordinary
bug("o01","hybrid","--prompt code -n 4",[("model.py",'''        self.c, self.w = c, w
''','''        if c.arch == "qwen35":  # zero-centred norms
            w = {name: x + F(1) if name.endswith("norm.weight") and "ssm" not in name else x for name, x in w.items()}
        self.c, self.w = c, w
''')])
bug("o02","q4km","--prompt haiku -n 4",[("gguf.py",'scale[:, :, lane // 16 + 2 * quarter]','scale[:, :, lane * 0 + 2 * quarter]')])
bug("o03","untied","--prompt emoji -n 4",[("model.py",'x @ w.get("output.weight", w["token_embd.weight"]).T','x @ w["token_embd.weight"].T')])
bug("o04","yarn","--prompt long --length 48 -n 4",[("model.py","np.log(c.trained / (turns","np.log(c.context / (turns")])
bug("o05","twelve","--prompt haiku -n 5",[("attend.py",'''    return np.repeat(x.transpose(1, 0, 2), heads // x.shape[1], 0)''','''    block = 1 << (heads // x.shape[1] - 1).bit_length()  # heads of a block of threads
    return x.transpose(1, 0, 2)[np.arange(heads) // block]''')])
bug("o06","moe","--prompt code -n 4",[("model.py","lines[place] = np.repeat(x, c.taken, 0)","lines[place] = np.repeat(x, c.taken, 0) * shares.reshape(-1, 1)"),
    ("model.py",'(down * shares[:, :, None]).sum(1)','down.sum(1)')])
bug("o07","odd","--prompt haiku -n 4",[("model.py","    y[..., whole:] = x[..., whole:] * sigmoid(x[..., whole:])","    y[..., whole:] = x[..., whole:]")])
bug("o08","d96","--prompt long --length 40 --passes 25,1x3,12 -n 3",[("model.py","scale = F(1 / np.sqrt(c.dim))","scale = F(1 / np.sqrt(1 << (c.dim - 1).bit_length()))")])
bug("o09","plain","--prompt code -n 4 --kv-type bf16",[("store.py","        bits = bits + (np.uint32(0x7fff) + (bits >> 16 & 1))\n","")],kv="bf16")
bug("o10","deep","--prompt long --length 60 --passes 40,1x4,16 -n 4",[
    ("attend.py","def part(q, k, v, scale, first, begin, end, looked, scores):","def part(q, k, v, scale, first, begin, end, looked, scores, window):"),
    ("attend.py","            hidden = np.arange(k0, k1)[None] > first + np.arange(q0, q1)[:, None]\n",'''            at = first + np.arange(q0, q1)[:, None] - np.arange(k0, k1)[None]
            hidden = (at < 0) | (at >= window)
            looked[q0:q1, k0:k1] &= ~hidden
'''),
    ("attend.py","def prefill(q, k, v, scale, first, shared):","def prefill(q, k, v, scale, first, shared, window):"),
    ("attend.py","part(q, k, v, scale, first, shared, keys, looked, scores)","part(q, k, v, scale, first, shared, keys, looked, scores, window)"),
    ("attend.py","part(q, k, v, scale, first, 0, shared, looked, scores)","part(q, k, v, scale, first, 0, shared, looked, scores, window)"),
    ("attend.py","def decode(q, k, v, scale):","def decode(q, k, v, scale, window):"),
    ("attend.py","        s = scores[:, :, k0:k0 + SPLIT] * scale\n","        s = scores[:, :, k0:k0 + SPLIT] * scale\n        s[:, :, np.arange(k0, k0 + s.shape[2]) <= keys - 1 - window] = -np.inf\n"),
    ("attend.py","        less = np.exp(most - now)\n        e = np.exp(s - now[:, :, None])","        base = np.where(np.isinf(now), F(0), now)\n        less = np.exp(most - base)\n        e = np.exp(s - base[:, :, None])"),
    ("model.py","attend.decode(*args)","attend.decode(*args, 24 if l >= 2 else 1 << 30)"),
    ("model.py","min(self.pages.shared[sequence], first))","min(self.pages.shared[sequence], first), 24 if l >= 2 else 1 << 30)"),
])
# serving
bug("s01","small","--prompt long --length 41 --sequences 6+9+4+11,1+1+1+1,1+1+1+0,1+1+1+1",[("ferry.py","self.tokens[n:size], self.positions[n:size], self.slots[n:size] = 0, 0, -1","self.tokens[n:size], self.positions[n:size] = 0, 0")],slots=True)
bug("s02","three","--prompt long --length 33 --sequences 9+5,5+1,1~4+1,1+1,3+6",[
    ("ferry.py","            positions[rows] = np.arange(self.first[sequence], pages.length[sequence])\n",'''            at = engine.seen.get(sequence, self.first[sequence])
            positions[rows] = at + np.arange(len(rows))
            engine.seen[sequence] = at + len(rows)
'''),
    ("ferry.py","        self.buffers, self.width = Buffers(), 1\n","        self.buffers, self.width, self.seen = Buffers(), 1, {}\n")])
bug("s03","hybrid4","--prompt long --length 32 --sequences 10+6,4+4,1~3+1~2,2+1,1+2",[("pages.py",'''        for row in self.rows[sequence][kept + 1:]:
            self.drop(row)
        del self.rows[sequence][kept + 1:]''','''        for row in self.rows[sequence][kept:]:
            self.drop(row)
        del self.rows[sequence][kept:]''')])
bug("s04","two8","--prompt long --length 42 --sequences 13+11,1+5~all+9@0:12,1+1+1 --kv-type q8_0",[("store.py",'''        for held in (self.codes, self.scale, self.offset):
            held[b * PAGE:(b + 1) * PAGE] = held[a * PAGE:(a + 1) * PAGE]''','''        self.codes[b * PAGE:(b + 1) * PAGE] = self.codes[a * PAGE:(a + 1) * PAGE]''')],kv="q8_0")
bug("s05","wide","--prompt long --length 45 --sequences 17,3+9@0:16+7@0:10,1+1+1,1+4+1",[("attend.py","logs = [m.astype(float) + np.log(t) for","logs = [m.astype(float) * np.log2(np.e) + np.log2(t) for")])
bug("s06","moe16","--prompt long --length 37 --sequences 9+5+12,1+1+1,1+1+1,1+1+0,1+1+1",[("model.py","            context[run.batch_place] = np.concatenate(made)\n","            context[:len(made)] = np.concatenate(made)[run.batch_place]\n")])
bug("s07","plain","--prompt long --length 30 --passes 14,1x6,10 -n 6",[
    ("attend.py","def decode(q, k, v, scale):","def decode(q, k, v, scale, splits):"),
    ("attend.py","    for k0 in range(0, keys, SPLIT):","    for k0 in range(0, min(keys, splits * SPLIT), SPLIT):"),
    ("model.py","attend.decode(*args)","attend.decode(*args, run.splits)"),
    ("ferry.py","        engine.width = max(","        # Splits of the longest sequence, as the scheduler planned the step.\n        self.splits = -(-(max(self.lengths) - 1) // SPLIT)\n        engine.width = max("),
    ("ferry.py","from pages import PAGE\n","from attend import SPLIT\nfrom pages import PAGE\n")])
bug("s08","hybrid8","--prompt long --length 31 --sequences 13,1+6@0:11+5@0:8,1+1+1,1+1+1",[("pages.py","        self.rows[sequence] = self.rows[source][:count + 1]\n","        # States are kept at the ends of pages.\n        self.rows[sequence] = self.rows[source][:count] + [self.rows[source][count // PAGE * PAGE]]\n")])
bug("s09","three","--prompt long --length 32 --sequences 11+7,1+1+6@0:9,1+1+1,1+1+1 --kv-type f8_e4m3 --reference none",[
    ("store.py","        self.scale = F(SCALES[which, layer])\n","        self.scale, self.read = F(SCALES[which, layer]), F(SCALES[\"k\", layer])\n"),
    ("store.py","        return self.rows[slots] * self.scale\n","        return self.rows[slots] * self.read\n")],kv="f8_e4m3")
bug("s10","two8","--prompt long --length 32 --passes 13,9,10 -n 3",[("attend.py","last = min(end, first + q1)","last = min(end, first // KEYS * KEYS + q1)")])
