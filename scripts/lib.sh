# Shared by every script here; source it, do not run it:
#   source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# It sets root, cache and CARGO_TARGET_DIR, and defines log, die and claim_target.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/qdiff

# llama.cpp takes minutes to compile: all clones share one build of it.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
[[ $CARGO_TARGET_DIR = /* ]] || CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR

# A rustup installed in this very shell is not on the PATH yet.
if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH
fi

# log MESSAGE...: one line of progress on stderr; stdout belongs to results.
log() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# die MESSAGE...: say what is wrong and what to do; exit 2, qdiff's code for trouble.
die() { log "error: $*"; exit 2; }

# members: '-p PACKAGE' for each package of the workspace, and for none outside it (fuzz/).
members() {
    cargo metadata -q --no-deps --format-version 1 --locked --manifest-path "$root/Cargo.toml" |
        grep -o '"id":"[^"]*"' | sed 's/.*:"\(.*\)"/-p \1/'
}

# claim_target: call before cargo. Cargo cannot tell two clones apart in one target
# directory: it would run the other clone's qdiff as 'fresh'. So the packages of this
# workspace are dropped from it when the last build was another clone's, and the lock
# on fd 8 keeps that clone from doing the same until this script ends.
claim_target() {
    local owner=$CARGO_TARGET_DIR/.qdiff-clone lock=flock names
    command -v flock >/dev/null || lock=true
    mkdir -p "$CARGO_TARGET_DIR" || die "cannot write to $CARGO_TARGET_DIR. Set CARGO_TARGET_DIR to a writable directory"
    exec 8>>"$owner.lock"
    while "$lock" -s 8; [ "$(cat "$owner" 2>/dev/null)" != "$root" ]; do
        "$lock" -n 8 || { log "waiting for a build or test of another clone"; "$lock" 8; }
        if [ -d "$CARGO_TARGET_DIR/release" ]; then
            names=$(members) || die "cargo cannot read $root/Cargo.toml"
            # shellcheck disable=SC2086
            cargo clean -q --release --locked --manifest-path "$root/Cargo.toml" $names >&2 ||
                die "could not clear another clone's build from $CARGO_TARGET_DIR. Delete that directory, or set CARGO_TARGET_DIR to one of your own"
        fi
        echo "$root" >"$owner"
    done
}
