"""Writes values.txt and values.bin, which the engines here read, of a capture that qdiff recorded.

Usage: values.py CAPTURE [ARRAY]      with ARRAY, such as prefill/L00.layer_out, its eighth value is changed
"""

import json
import pathlib
import struct
import sys
import zipfile

folder, changed = pathlib.Path(sys.argv[1]), sys.argv[2:]
manifest = json.loads((folder / "manifest.json").read_text())
tokens, decoded = manifest["tokens"], manifest["decoded"]
last = None
with zipfile.ZipFile(folder / "capture.npz") as npz, open("values.txt", "w") as lines, open("values.bin", "wb") as elements:
    for entry in npz.namelist():
        npy = npz.read(entry)
        start = 10 + struct.unpack("<H", npy[8:10])[0]
        rows, width = eval(npy[10:start], {})["shape"]
        step, name = entry.removesuffix(".npy").split("/")
        if step != last:
            n = 0 if step == "prefill" else int(step.removeprefix("step"))
            first, fed = (len(tokens) + n - 1, [decoded[n - 1]]) if n else (0, tokens)
            print("step", first, len(fed), *fed, file=lines)
            last = step
        layer, bare = name[1:].split(".") if "." in name else (-1, name)
        print("tap", bare, int(layer), rows, width, file=lines)
        data = bytearray(npy[start:])
        if changed == [f"{step}/{name}"]:
            data[28:32] = struct.pack("<f", struct.unpack("<f", data[28:32])[0] + 1)
        elements.write(data)
