"""Builds the wheel of this folder: a zip of its modules and three files about them (the binary distribution format of the
Python packaging specifications). It needs nothing, so that `pip wheel --no-deps .` needs no network."""

import base64
import hashlib
import pathlib
import platform
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "qdiff_capture"


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
    return write(wheel_directory, about["name"], about, "py3-none-any", {})


def build_program(wheel_directory, program, glibc):
    """The wheel `qdiff-llm`: the module and the program. The program needs the C library of version `glibc`."""
    tag = f"py3-none-manylinux_{glibc.replace('.', '_')}_{platform.machine()}"
    about = project() | {"description": "Finds the first wrong stage of an LLM inference engine, and says why"}
    return write(wheel_directory, "qdiff-llm", about, tag, {"qdiff": pathlib.Path(program).read_bytes()})


def write(folder, name, about, tag, scripts):
    """Writes a wheel with the module and `scripts` (name -> bytes) into `folder`, and returns its file name."""
    stem = f"{name.replace('-', '_')}-{about['version']}"
    metadata = (f"Metadata-Version: 2.4\nName: {name}\nVersion: {about['version']}\n"
                f"Summary: {about['description']}\nLicense-Expression: {about['license']}\n"
                f"Requires-Python: {about['requires-python']}\nRequires-Dist: {about['dependencies']}\n")
    files = {f"{PACKAGE}/{path.name}": path.read_bytes() for path in sorted((HERE / PACKAGE).glob("*.py"))}
    files |= {f"{stem}.data/scripts/{script}": data for script, data in scripts.items()}
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
