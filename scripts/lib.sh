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

# sources: 'HASH  FILE' for every file of the clone that may be compiled.
sources() (
    cd "$root"
    { git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path './target/*' -not -path './.git/*'; } |
        LC_ALL=C sort | { xargs -d '\n' sha256sum 2>/dev/null || true; }
)

# claim_target: call before cargo, and give cargo --manifest-path "$manifest". All clones
# are built under one path, a link, so that what one has compiled serves another. What
# is compiled anew cargo tells by the times of files: the files of a clone that was not
# the last are made old where they are as in the last suite, and new where they are not.
# The lock on fd 8 keeps other clones from building until this script ends.
claim_target() {
    local owner=$CARGO_TARGET_DIR/.qdiff-clone list lock=flock same changed
    list=$owner.sources
    command -v flock >/dev/null || lock=true
    mkdir -p "$CARGO_TARGET_DIR" || die "cannot write to $CARGO_TARGET_DIR. Set CARGO_TARGET_DIR to a writable directory"
    manifest=$CARGO_TARGET_DIR/clone/Cargo.toml
    exec 8>>"$owner.lock"
    while "$lock" -s 8; [ "$(cat "$owner" 2>/dev/null)" != "$root" ] || [ ! -e "$manifest" ]; do
        "$lock" -n 8 || { log "waiting for a build or test of another clone"; "$lock" 8; }
        ln -sfn "$root" "$CARGO_TARGET_DIR/clone"
        touch "$list"
        same=$(sources | grep -Fxf "$list" | cut -c67-) || same=
        changed=$(sources | grep -vFxf "$list" | cut -c67-) || changed=
        (
            cd "$root"
            printf '%s' "$same" | xargs -r -d '\n' touch -d '2001-01-01'
            printf '%s' "$changed" | xargs -r -d '\n' touch
        )
        echo "$root" >"$owner"
    done
    # The list is of what all steps of a suite have seen, and of nothing else.
    claimed=$(sources)
    [ ! -f "$list" ] || [ "$claimed" = "$(cat "$list")" ] || rm -f "$list"
}

# release_sources: call when every kind of build that a suite makes is done.
release_sources() {
    [ "$claimed" != "$(sources)" ] || printf '%s\n' "$claimed" >"$CARGO_TARGET_DIR/.qdiff-clone.sources"
}
