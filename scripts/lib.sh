# Shared by every script here; source it, do not run it:
#   source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# It sets root, cache and CARGO_TARGET_DIR, and defines log, die, claim_target and release_target.
# shellcheck shell=bash disable=SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/qdiff

# llama.cpp takes minutes to compile: all clones share one build of it.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
[[ $CARGO_TARGET_DIR = /* ]] || CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR
# Whoever edits builds qdiff's own packages again in part only; the code is as fast. A first build takes less time without that.
if [ -z "${CARGO_INCREMENTAL:-}" ]; then
    CARGO_INCREMENTAL=0
    if compgen -G "$CARGO_TARGET_DIR/release/incremental/*" >/dev/null || ! git -C "$root" diff --quiet HEAD 2>/dev/null; then
        CARGO_INCREMENTAL=1
    fi
fi
export CARGO_INCREMENTAL

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

# configure_ggml OUT SOURCE CMAKE-ARGS...: makes OUT and configures ggml in OUT/build with backends that are loaded at run time.
# SOURCE is a folder of ggml's source; if it is empty, the one that cargo fetched, so that structures agree with those of qdiff.
configure_ggml() {
    local out=$1 source=$2 generator=()
    if [ -z "$source" ]; then
        source=$(cargo metadata --format-version 1 --locked --manifest-path "$root/Cargo.toml" |
            grep -o '[^"]*/llama-cpp-sys-2-[^"/]*/Cargo.toml' | head -n 1)
        source=${source%/*}/llama.cpp/ggml
    fi
    [ -f "$source/CMakeLists.txt" ] || die "$source holds no ggml source"
    mkdir -p "$out"
    # CMake refuses a folder that was configured elsewhere.
    grep -qsF "CMAKE_CACHEFILE_DIR:INTERNAL=$(cd "$out" && pwd)/build" "$out/build/CMakeCache.txt" || rm -rf "$out/build"
    # The crate leaves out what ggml wants as a project of its own: take it as a part.
    printf 'cmake_minimum_required(VERSION 3.18)\nproject(ggml-for-qdiff C CXX ASM)\nadd_subdirectory(%s ggml)\n' \
        "$(cd "$source" && pwd)" >"$out/CMakeLists.txt"
    command -v ninja >/dev/null && generator=(-G Ninja)
    cmake -S "$out" -B "$out/build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON \
        -DGGML_NATIVE=OFF -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN' "${@:3}" >&2
}

# debian RELEASE: prints the folder of an empty Debian, which is made once.
debian() {
    local base=$cache/debian-$1
    [ "$(id -u)" = 0 ] || die "an empty Debian needs root"
    command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
    mkdir -p "$cache"
    if [ ! -d "$base" ]; then
        log "making an empty Debian $1"
        debootstrap --variant=minbase "$1" "$base.part" >"$base.log" 2>&1 || die "debootstrap failed, see $base.log"
        mv "$base.part" "$base"
    fi
    echo "$base"
}

# open_room RELEASE ARGUMENT...: a copy of an empty Debian in $room, with this machine's certificates and a clone of this
# repository in /root/qdiff; `inside COMMAND` runs there. The script begins again with these ARGUMENTs, in a namespace that ends with its mounts.
open_room() {
    [ -n "${QDIFF_ROOM:-}" ] || exec env QDIFF_ROOM=1 unshare --mount --propagation private "$0" "${@:2}"
    local base file
    base=$(debian "$1")
    room=$(mktemp -d)
    trap 'umount "$room/proc" "$room/dev" ${toolchain:+"$room$toolchain"} 2>/dev/null
        mountpoint -q "$room${toolchain:-/proc}" || rm -rf --one-file-system "$room"' EXIT
    cp -a "$base/." "$room/"
    for file in /etc/resolv.conf /etc/apt /etc/pip.conf /etc/ssl/certs /usr/share/ca-certificates /usr/local/share/ca-certificates; do
        [ ! -e "$file" ] || { rm -rf "${room:?}$file" && mkdir -p "$room${file%/*}" && cp -rL "$file" "$room$file"; }
    done
    rm -rf "$room/etc/apt/sources.list.d"
    cp "$base/etc/apt/sources.list" "$room/etc/apt/sources.list"
    mount --bind /proc "$room/proc"
    mount --bind /dev "$room/dev"
    git clone -q --no-hardlinks "$root" "$room/root/qdiff"
}

# take_toolchain: the Rust of this machine in the room, where nothing can write to it.
take_toolchain() {
    toolchain=$(rustc --print sysroot)
    mkdir -p "$room$toolchain"
    mount --bind -o ro "$toolchain" "$room$toolchain"
}

inside() { env -i HOME=/root DEBIAN_FRONTEND=noninteractive PATH="${toolchain:-/usr}/bin:/usr/sbin:/usr/bin:/sbin:/bin" chroot "$room" bash -ec "$1"; }

# install_inside LOG PACKAGE...
install_inside() {
    inside "apt-get update -q && apt-get install -y -q --no-install-recommends ca-certificates ${*:2}" >"$1" 2>&1 || die "apt-get failed, see $1"
}
