#!/usr/bin/env bash
# Runs a second engine in numpy, by somebody else who knew neither the solvers nor the catalogue, with the bugs of bugs.txt, and
# prints the headline of each. plan.md says what each bug is, and was written before any was run. The screens stay in OUT.
#
# Usage: tests/engines/blind/third/run.sh OUT [NAME...]      e.g. tests/engines/blind/third/run.sh /tmp/third b30 b33
# The program is ./scripts/qdiff, or $QDIFF where that is set; python3 needs numpy.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
qdiff=${QDIFF:-$here/../../../../scripts/qdiff}
[ $# -ge 1 ] || { echo "usage: $0 OUT [NAME...]" >&2; exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd)
shift
synth() { [ -f "$out/$1.gguf" ] || "$qdiff" synth "$out/$1.gguf" -q --layers 3 --kv-heads 2 "${@:2}"; }
synth q2_05 --embedding 896 --heads 14 --ffn 1216
synth q2_f32 --embedding 192 --heads 6 --ffn 448 --weights F32
synth q2_mix --heads 4 --tensor blk.1.ffn_down.weight=Q4_K --tensor blk.2.attn_q.weight=Q4_K
synth q2_q40 --heads 4 --weights Q4_0
synth q2_q6k --heads 4 --weights Q6_K
synth q2_q8 --heads 4
synth q3_f16 --arch qwen3 --heads 8 --head-dim 64 --ffn 704 --weights F16 --tied
synth q3_q4k --arch qwen3 --heads 4 --head-dim 64 --weights Q4_K
[ -f "$out/q3_q50.gguf" ] ||
    "$qdiff" synth "$out/q3_q50.gguf" -q --arch qwen3 --layers 2 --kv-heads 2 --heads 4 --head-dim 64 --weights Q5_0

while read -r name model number attention dump options; do
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    read -ra options <<<"$options"
    engine="python3 $here/engine.py {model} {tokens} {decoded} {passes} {dir} -k $number --attn $attention --dump $dump"
    status=0
    "$qdiff" run -m "$out/$model.gguf" "${options[@]}" --report "$out/$name.json" --subject "cmd: $engine" \
        </dev/null >"$out/$name.txt" 2>&1 || status=$?
    headline=$(awk '/^(DIVERGED|MATCH|INCOMPLETE|NOT|REFERENCE)/{told=1} /^[a-z]/{if (told) exit} told' "$out/$name.txt" | tr -s ' \n' ' ')
    printf '%s|%s|%s\n' "$name" $status "$headline"
done <"$here/bugs.txt"
