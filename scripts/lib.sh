# Shared by every script here; source it, do not run it:
#   source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# It sets root, cache and CARGO_TARGET_DIR, and defines log, die, claim_target and release_target.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/qdiff

# llama.cpp takes minutes to compile: all clones share one build of it.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
[[ $CARGO_TARGET_DIR = /* ]] || CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR
# qdiff's own packages are built again in part only; the code is as fast.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-1}

# A rustup installed in this very shell is not on the PATH yet.
if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH
fi

# log MESSAGE...: one line of progress on stderr; stdout belongs to results.
log() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# die MESSAGE...: say what is wrong and what to do; exit 2, qdiff's code for trouble.
die() { log "error: $*"; exit 2; }

# claim_target: call before cargo, and build "$clone/Cargo.toml". Cargo tells clones apart by their path and edits by the
# times of files; scripts/one-clone makes all clones one path, with times that tell the truth. A lock on fd 8 keeps another
# clone from taking that path until this script ends.
claim_target() {
    local lock=flock
    command -v flock >/dev/null || lock=true
    mkdir -p "$CARGO_TARGET_DIR" || die "cannot write to $CARGO_TARGET_DIR. Set CARGO_TARGET_DIR to a writable directory"
    clone=$CARGO_TARGET_DIR/.clone
    exec 8>>"$clone.lock"
    while "$lock" -s 8; [ "$(readlink "$clone")" != "$root" ]; do
        "$lock" -n 8 || { log "waiting for a build or test of another clone"; "$lock" 8; }
        one_clone take
    done
    one_clone take
    trap release_target EXIT
}

# release_target: call after the last cargo, where no EXIT trap will run.
release_target() { one_clone keep; }

one_clone() { "$root/scripts/one-clone" "$1" "$root" "$CARGO_TARGET_DIR" "$$"; }
