"""An emulated CUDA card: qdiff's kernels in plain C++, and libraries in the place of CUDA's (tests/emulated/card.cpp)."""
import os, re, shutil, subprocess
from pathlib import Path

SOURCES = Path(os.environ.get("SOURCES") or Path(__file__).resolve().parents[4])
EMULATED = SOURCES / "tests/emulated"
INSTRUCTIONS = [
    ("unsigned long long now()", "return 1;"),
    ("float half_bits(u16 h)", "return half_to_float(h);"),
    ("void copy16(", "memcpy(to, from, 16);"),
    ("void copy16_or_zeros(", "if (there) memcpy(to, from, 16); else memset(to, 0, 16);"),
    ("void copy4(", "if (there) memcpy(to, from, 4); else memset(to, 0, 4);"),
    ("u32 subtract_halves(", "return machine_subtract_halves(a, b);"),
    ("u32 multiply_halves(", "return machine_multiply_halves(a, b);"),
    ("void load_transposed(", "machine_load_transposed(r, row);"),
    ("void cluster_barrier()", "machine_cluster_barrier();"),
    ("void cluster_meet()", "machine_cluster_barrier();"),
    ("float4 of_rank(", "return machine_of_rank(mine, rank);"),
    ("void end_copies()", ""),
    ("void wait_for_copies()", ""),
    ("void load_matrices(", "machine_load_matrices(r, row);"),
    ("void multiply32(", "machine_multiply32(c, a, b);"),
    ("void multiply_unsigned(", "machine_multiply32<uint8_t>(c, a, b);"),
    ("u32 warp_largest(", "return machine_largest(v);"),
    ("void multiply16(", "machine_multiply16(c, a0, a1, b);"),
    ("void multiply_f16(", "machine_multiply_floats(c, a, b, half_to_float);"),
    ("void multiply_bf16(", "machine_multiply_floats(c, a, b, brain_to_float);"),
    ("void show_to_products()", ""),
    ("void begin_products(", ""),
    ("void end_products()", ""),
    ("void wait_for_products(", ""),
    ("void multiply_group(", "machine_multiply_group(s, a, stage + offset, plus);"),
    ("void make_barrier(", "machine_make_barrier(at, arrivals);"),
    ("void show_barriers()", ""),
    ("void arrive(Barrier", "machine_arrive(at, 0);"),
    ("void arrive_and_expect(", "machine_arrive(at, bytes);"),
    ("bool is_over(", "return machine_is_over(at, parity);"),
    ("void copy_in_bulk(", "machine_copy_in_bulk(to, from, bytes, at);"),
    ("void begin_wide(", ""),
    ("void wait_for_wide(", ""),
    ("void multiply_wide(", "machine_multiply_wide(s, a, b, plus);"),
    ("float half_of(u32 two, int which)", "return half_to_float((u16)(two >> (16 * which)));"),
    ("u32 pair_of_halves(float a, float b)", "return float_to_half(a) | (u32)float_to_half(b) << 16;"),
    ("u16 bits_of_half(float v)", "return float_to_half(v);"),
    ("float get(unsigned short bits)", "return half_to_float(bits);"),
    ("unsigned short put(float v)", "return float_to_half(v);"),
]


def with_body(text, head, body):
    at = text.find(head)
    if at < 0:
        return text
    begin = text.index("{", at)
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return text[:begin] + "{ " + body + " }" + text[i + 1:]
    raise ValueError(head)


def plain(text):
    for alignment in (16, 1024):
        text = text.replace(f"extern __shared__ __align__({alignment}) u8 shared[];", "u8 *shared = shared_memory;")
    for head, body in INSTRUCTIONS:
        text = with_body(text, head, body)
    for opaque in ('asm("" :', 'asm volatile("" :'):
        while opaque in text:
            at = text.index(opaque)
            text = text[:at] + ";" + text[text.index(";", at) + 1:]
    return "".join(line + "\n" for line in text.splitlines() if not line.startswith("#pragma unroll"))


def sources():
    root = SOURCES / "engine/kernels"
    return {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*.cu*"))}


def includers(file, texts):
    """The kernels whose text has the file in it."""
    def has(name, seen):
        if name == file:
            return True
        if name in seen or name not in texts:
            return False
        seen.add(name)
        return any(has(other, seen) for other in re.findall(r'#include "([^"]+)"', texts[name]))
    return {name for name in texts if name.endswith(".cu") and has(name, set())}


def make(folder, changes=(), like=None):
    """Writes a card to `folder`: libraries, kernels with `changes` [(file, old, new)]. Compiled kernels that the changes do not
    touch are taken from the card `like`."""
    folder = Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = sources()
    touched = set()
    for file, old, new in changes:
        assert texts[file].count(old) == 1, f"{file} has {texts[file].count(old)} times {old!r}"
        texts[file] = texts[file].replace(old, new)
        touched |= includers(file, texts)
    for name, text in texts.items():
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(plain(text))
    shutil.copy(EMULATED / "machine.h", folder / "machine.h")
    if like:
        for lib in ("libcuda.so", "libnvrtc.so", "libcublas.so", "libnccl.so.2"):
            os.symlink(Path(like).resolve() / lib, folder / lib)
        cache = Path(like) / "qdiff" / "kernels"
        stems = {Path(name).stem for name in touched}
        if cache.is_dir():
            (folder / "qdiff" / "kernels").mkdir(parents=True)
            for entry in cache.iterdir():
                if not any(entry.name.startswith(stem + "-") for stem in stems):
                    shutil.copy(entry, folder / "qdiff" / "kernels" / entry.name)
    else:
        subprocess.run(["c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", str(EMULATED / "card.cpp"), "-o",
                        str(folder / "libcuda.so"), "-ldl"], check=True)
        for other in ("libnvrtc.so", "libcublas.so", "libnccl.so.2"):
            shutil.copy(folder / "libcuda.so", folder / other)
    return folder


def environment(folder):
    folder = str(Path(folder).resolve())
    return {"LD_LIBRARY_PATH": folder, "QDIFF_EMULATED": folder, "XDG_CACHE_HOME": folder, "NCCL_NVLS_ENABLE": "0"}
