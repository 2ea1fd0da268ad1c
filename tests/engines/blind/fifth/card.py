"""An emulated CUDA card: qdiff's kernels in plain C++, and libraries in the place of CUDA's (tests/emulated/card.cpp)."""
import importlib.util, os, re, shutil, subprocess
from pathlib import Path

SOURCES = Path(os.environ.get("SOURCES") or Path(__file__).resolve().parents[4])
EMULATED = SOURCES / "tests/emulated"
found = importlib.util.spec_from_file_location("fourth", Path(__file__).resolve().parents[1] / "fourth/card.py")
fourth = importlib.util.module_from_spec(found)
found.loader.exec_module(fourth)


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
    replaced = fourth.instructions(SOURCES)
    for name, text in texts.items():
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(fourth.plain(text, replaced))
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
