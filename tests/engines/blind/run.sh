#!/usr/bin/env bash
# Runs an engine in numpy, written by somebody who knew neither the solvers nor the catalogue, with the bugs of bugs.txt, and
# prints a line for each: name, exit code, seconds, and the headline of qdiff. The reports stay in the output folder.
#
# Usage: tests/engines/blind/run.sh OUT [NAME...]      e.g. tests/engines/blind/run.sh /tmp/blind mask-row q-stride
# The program is ./scripts/qdiff, or $QDIFF where that is set; python3 needs numpy. QDIFF_MODEL is the model of the bugs of `big`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
qdiff=${QDIFF:-$here/../../../scripts/qdiff}
[ $# -ge 1 ] || { echo "usage: $0 OUT [NAME...]" >&2; exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd)
shift
synth() { [ -f "$out/$1.gguf" ] || "$qdiff" synth "$out/$1.gguf" -q "${@:2}"; }
synth q2 --layers 3 --heads 8 --kv-heads 2 --embedding 256 --seed 11
synth q2f --layers 2 --heads 5 --kv-heads 1 --embedding 200 --head-dim 40 --ffn 300 --weights F32 --seed 12
synth q2h --layers 2 --heads 6 --kv-heads 3 --embedding 288 --head-dim 48 --ffn 416 --weights F16 --seed 13 --eps 0.001
synth q3 --arch qwen3 --layers 3 --heads 4 --kv-heads 2 --embedding 256 --head-dim 128 --weights Q5_0 --seed 14
synth q3t --arch qwen3 --layers 2 --heads 6 --kv-heads 2 --embedding 192 --head-dim 32 --weights Q4_0 --tied --seed 15
synth q4k --layers 3 --heads 4 --kv-heads 2 --weights Q4_K --tensor blk.0.ffn_down.weight=Q6_K \
    --tensor blk.2.attn_v.weight=Q6_K --tensor output.weight=Q6_K --tensor token_embd.weight=Q5_0 --seed 16
synth q3b --arch qwen3 --layers 3 --heads 8 --kv-heads 4 --head-dim 64 --weights BF16 --seed 17
synth q3k --arch qwen3 --layers 2 --heads 4 --kv-heads 2 --weights Q3_K --tensor blk.1.ffn_down.weight=Q5_K \
    --tensor blk.0.attn_q.weight=Q2_K --tensor blk.1.attn_q.weight=Q5_1 --tensor blk.1.attn_k.weight=Q4_1 --seed 18
synth q2l --layers 2 --heads 4 --kv-heads 2 --rope-base 10000 --weights Q8_0 --seed 19 --ffn 288
ln -sf "${QDIFF_MODEL:-$out/q2.gguf}" "$out/big.gguf"

grep -v '^#' "$here/bugs.txt" | while IFS='|' read -r name model set options _; do
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    tokens=(--raw --prompt long)
    if [[ $model = big || $options = *--prompt* ]]; then tokens=(); fi
    read -ra options <<<"${options/--CHAT/--prompt haiku}"
    read -ra set <<<"$set"
    status=0 start=$SECONDS
    [ "$model" = big ] || set+=(ALLLOGITS=1)
    env "${set[@]}" "$qdiff" run -m "$out/$model.gguf" "${tokens[@]}" "${options[@]}" --report "$out/$name.json" \
        --subject "cmd: python3 $here/engine.py {model} {tokens} {decoded} {passes} {dir}" </dev/null >"$out/$name.txt" 2>&1 || status=$?
    headline=$(awk '/^(DIVERGED|MATCH|INCOMPLETE|NOT|REFERENCE)/{told=1} /^[a-z]/{if (told) exit} told' "$out/$name.txt" | tr -s ' \n' ' ')
    printf '%s|%s|%s|%s\n' "$name" $status $((SECONDS - start)) "$headline"
done
