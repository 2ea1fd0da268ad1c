"""All bugs, each with its number's key: 20 of the engine, 20 of kernels."""
import bugs_engine, bugs_kernels
from keys import KEYS

MODELS = {**bugs_engine.MODELS, **bugs_kernels.MODELS}
BUGS = [dict(b, subject="") for b in bugs_engine.E] + [dict(b, kv="") for b in bugs_kernels.K]
for b in BUGS:
    b["kind"], b["source"], b["shows"], b["instead"] = KEYS[b["name"][:3]]
