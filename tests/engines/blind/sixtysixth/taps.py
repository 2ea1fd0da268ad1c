"""Compares captures of the clean and of the changed card with numpy: the first arrays changed, by pass, and which rows."""
import sys, os, shlex, shutil, subprocess, json
from pathlib import Path
sys.dont_write_bytecode = True
H = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(H/"sixtysixth"), str(H/"seventh")]
import card, numpy
from bugs import BUGS, MODELS
OUT = Path(sys.argv.pop(1)); Q = os.environ.get("QDIFF", "qdiff")  # OUT as of run.py, after its --clean
ORDER = """embed attn_norm delta_qkv delta_z delta_b delta_beta delta_a delta_softplus delta_decay conv_state conv_out conv_act delta_q delta_k delta_v delta_q_normed delta_k_normed delta_state delta_out delta_normed delta_gated delta_proj q_gate_proj q_proj q_half gate_half q_normed k_proj k_normed v_proj
q_rope k_rope k_cache v_cache attn_scores attn_weights attn_context gate_sigmoid attn_gated attn_out attn_residual ffn_norm
router router_probs router_experts router_weights router_shares expert_gate expert_up expert_act expert_down experts_out ffn_gate ffn_up ffn_act
ffn_down layer_out final_norm logits""".split()
def place(n):
    step, st = n.split("/"); l, of = st.split(".") if "." in st else ("L99" if st in ("final_norm","logits") else "L-1", st)
    return (int("".join(c for c in step if c.isdigit()) or -1), int(l[1:]), ORDER.index(of))
def rec(b, at, to):
    shutil.rmtree(to, ignore_errors=True)
    m = OUT/"models"/f"{b['model']}.gguf"
    if not m.exists(): subprocess.run([Q,"synth",str(m),"-q",*shlex.split(MODELS[b['model']])],check=True,stdout=subprocess.DEVNULL)
    subprocess.run(["nice","-n","5",Q,"record","--runner",b["subject"],"-m",str(m),*shlex.split(b["run"]),"-o",str(to)],check=True,env=dict(os.environ,**card.environment(at)),stdout=subprocess.DEVNULL)
    return numpy.load(to/"capture.npz")
for b in BUGS:
    if len(sys.argv)>1 and not any(b["name"].startswith(a) for a in sys.argv[1:]): continue
    f = OUT/b["name"]; f.mkdir(parents=True, exist_ok=True)
    at = card.make(f/"tapcard", b["changes"], like=OUT/"card")
    key = OUT/"cleancap"/("_".join([b["model"],b["subject"],b["run"]]).replace("/","-").replace(" ","_"))
    clean = numpy.load(key/"capture.npz") if (key/"capture.npz").exists() else rec(b, OUT/"card", key)
    bug = rec(b, at, f/"bugcap")
    print("==", b["name"], flush=True)
    seen = {}
    for n in sorted((n for n in clean.files if "/" in n and n.split("/")[1].split(".")[-1] in ORDER), key=place):
        a, c = clean[n].astype(float), bug[n].astype(float)
        if a.shape != c.shape: print("   shape", n, a.shape, c.shape); continue
        d = ~((a==c)|(numpy.isnan(a)&numpy.isnan(c)))
        if not d.any(): continue
        s = n.split("/")[0]; seen.setdefault(s,0)
        far = numpy.linalg.norm(numpy.nan_to_num(a-c))/max(numpy.linalg.norm(numpy.nan_to_num(a)),1e-30)
        if seen[s] < 2 and len(seen) < 12:
            seen[s]+=1
            ax = 1 if n.split(".")[-1] in ("attn_scores","attn_weights") else 0
            rows = sorted(set(numpy.nonzero(d)[ax]))
            print(f"   {n} {a.shape} rel {far:.1e} changed {d.sum()}/{d.size} nan {numpy.isnan(c).sum()} rows {[int(r) for r in rows][:24]}", flush=True)
    shutil.rmtree(f/"tapcard", ignore_errors=True)
