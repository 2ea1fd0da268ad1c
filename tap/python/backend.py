"""Builds the wheel of this folder: a zip of its modules and three files about them (the binary distribution format of the
Python packaging specifications). It needs nothing, so that `pip wheel --no-deps .` needs no network."""

import base64
import hashlib
import pathlib
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "qdiff_capture"

# Where the documents and the modules of llama.cpp are in the environment that the wheel is installed in.
DOCUMENTS, MODULES = "share/doc/qdiff", "lib/qdiff"

# The page of the wheel `qdiff-llm`.
PAGE = f"""# qdiff

`qdiff` finds the first wrong stage of an LLM inference engine: which layer, at which positions, and why. It runs the engine and
llama.cpp on the same model with the same tokens, and compares every stage with a float64 evaluation of its own operands.

```
qdiff demo                    a small model, a planted bug, and the report of it: no download
qdiff run --help              your own engine: --subject 'cmd: ./engine {{model}} {{tokens}} {{dir}}'
qdiff explain REPORT.json     one wrong element worked out
```

The wheel holds the program and the Python module `{PACKAGE}`, with which an engine dumps its stages. It needs Linux; on x86-64,
a processor with AVX2.

## Documents

The documents are in the wheel. This command prints their folder:

```
python3 -c "import sysconfig; print(sysconfig.get_path('data') + '/{DOCUMENTS}')"
```

Begin with `README.md`. `docs/bring-your-own-engine.md` shows how an engine dumps its stages, `docs/guard.md` puts an engine
under guard in continuous integration, and `docs/reading-a-report.md` explains a report line by line.
"""


def project():
    """What pyproject.toml says under [project]; before Python 3.11 there is no reader of TOML."""
    lines = (HERE / "pyproject.toml").read_text().split("[project]\n")[1].splitlines()
    fields = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return {key: value.strip('[]"') for key, value in fields.items()}


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel of this folder alone: the module that writes captures, for every platform."""
    about = project()
    return write(wheel_directory, about["name"], about, "py3-none-any", {}, {})


def build_program(wheel_directory, program, glibc, machine, documents, modules):
    """The wheel `qdiff-llm`: the module, the program, the files under `documents`, and the libraries of llama.cpp in `modules`. The
    program needs the C library of version `glibc` and the processor `machine`."""
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_{machine}"
    about = project() | {"description": "Finds the first wrong stage of an LLM inference engine, and says why", "page": PAGE}
    shipped = {f"{to}/{path.relative_to(folder).as_posix()}": path.read_bytes()
               for to, folder in ((DOCUMENTS, documents), (MODULES, modules))
               for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file()}
    return write(wheel_directory, "qdiff-llm", about, tag, {"qdiff": pathlib.Path(program).read_bytes()}, shipped)


def write(folder, name, about, tag, scripts, shipped):
    """Writes a wheel with the module, `scripts` and `shipped` (name -> bytes) into `folder`, and returns its file name."""
    stem = f"{name.replace('-', '_')}-{about['version']}"
    metadata = (f"Metadata-Version: 2.4\nName: {name}\nVersion: {about['version']}\n"
                f"Summary: {about['description']}\nLicense-Expression: {about['license']}\n"
                f"Requires-Python: {about['requires-python']}\nRequires-Dist: {about['dependencies']}\n")
    if "page" in about:
        metadata += f"Description-Content-Type: text/markdown\n\n{about['page']}"
    files = {f"{PACKAGE}/{path.name}": path.read_bytes() for path in sorted((HERE / PACKAGE).glob("*.py"))}
    files |= {f"{stem}.data/scripts/{script}": data for script, data in scripts.items()}
    files |= {f"{stem}.data/data/{name}": data for name, data in shipped.items()}
    files[f"{stem}.dist-info/METADATA"] = metadata.encode()
    files[f"{stem}.dist-info/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: qdiff\nRoot-Is-Purelib: {str(not scripts).lower()}\nTag: {tag}\n").encode()
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files[f"{stem}.dist-info/RECORD"] = (record + f"{stem}.dist-info/RECORD,,\n").encode()
    wheel = f"{stem}-{tag}.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".data/scripts/" in path else 0o100644) << 16
            archive.writestr(entry, data)
    return wheel


if __name__ == "__main__":
    print(build_program(*sys.argv[1:]))
