"""An emulated card, and one with a bug in a kernel. The list of instructions is read from tests/src/card.rs, so that the two stay the same."""
import os
import re
import shutil
import subprocess


def instructions(sources):
    text = open(f"{sources}/tests/src/card.rs").read()
    text = text[text.index("const INSTRUCTIONS"):text.index("];", text.index("= ["))]
    return re.findall(r'\("((?:[^"\\]|\\.)*)", "((?:[^"\\]|\\.)*)"\)', text)


def with_body(text, head, body):
    at = text.find(head)
    if at < 0:
        return text
    start = text.index("{", at)
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return f"{text[:start]}{{ {body} }}{text[i + 1:]}"


def plain(text, replaced):
    for alignment in (16, 1024):
        text = text.replace(f"extern __shared__ __align__({alignment}) u8 shared[];", "u8 *shared = shared_memory;")
    for head, body in replaced:
        text = with_body(text, head, body)
    text = re.sub(r'asm(?: volatile)?\("" :[^;]*;', ";", text)
    return "".join(line + "\n" for line in text.splitlines() if not line.startswith("#pragma unroll"))


def files(folder):
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(base, name), folder)
            if path.endswith((".cu", ".cuh")) and not path.startswith("faults"):
                yield path


def write(sources, card, edits=()):
    replaced = instructions(sources)
    kernels = f"{sources}/engine/kernels"
    for path in files(kernels):
        text = open(f"{kernels}/{path}").read()
        for file, old, new in edits:
            if file == path:
                old, new = "\n".join(old), "\n".join(new)
                assert text.count(old) == 1, f"{file} has this {text.count(old)} times: {old}"
                text = text.replace(old, new)
        os.makedirs(os.path.dirname(f"{card}/{path}"), exist_ok=True)
        open(f"{card}/{path}", "w").write(plain(text, replaced))
    shutil.copy(f"{sources}/tests/emulated/machine.h", f"{card}/machine.h")


def reaches(kernels, path, targets, seen=None):
    """Whether a file includes one of `targets`, or is one."""
    seen = seen if seen is not None else set()
    if path in targets:
        return True
    if path in seen or not os.path.exists(f"{kernels}/{path}"):
        return False
    seen.add(path)
    return any(reaches(kernels, name, targets, seen) for name in re.findall(r'#include "([^"]+)"', open(f"{kernels}/{path}").read()))


def make(sources, card):
    if os.path.exists(f"{card}/libcuda.so"):
        return
    os.makedirs(card, exist_ok=True)
    write(sources, card)
    subprocess.run(["c++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"{sources}/tests/emulated/card.cpp", "-o", f"{card}/libcuda.so", "-ldl"], check=True)
    for other in ("libnvrtc.so", "libcublas.so", "libnccl.so.2"):
        shutil.copy(f"{card}/libcuda.so", f"{card}/{other}")


def with_bug(sources, card, folder, edits):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    write(sources, folder, edits)
    changed = {file for file, _, _ in edits}
    kernels = f"{sources}/engine/kernels"
    stale = {os.path.basename(path)[:-3] for path in files(kernels) if path.endswith(".cu") and reaches(kernels, path, changed)}
    compiled, to = f"{card}/qdiff/kernels", f"{folder}/qdiff/kernels"
    os.makedirs(to)
    for name in os.listdir(compiled) if os.path.isdir(compiled) else []:
        if not any(name.startswith(kernel + "-") for kernel in stale):
            shutil.copy(f"{compiled}/{name}", f"{to}/{name}")


def environment(card, folder):
    return {"LD_LIBRARY_PATH": card, "QDIFF_EMULATED": folder, "XDG_CACHE_HOME": folder, "NCCL_NVLS_ENABLE": "0"}
