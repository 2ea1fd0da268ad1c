"""Builds the wheel of this folder: a zip of its modules and three files about them (the binary distribution format of the
Python packaging specifications). It needs nothing, so that `pip wheel --no-deps .` needs no network."""

import base64
import hashlib
import pathlib
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
    about = project()
    name = f"{PACKAGE}-{about['version']}"
    metadata = (f"Metadata-Version: 2.4\nName: {about['name']}\nVersion: {about['version']}\n"
                f"Summary: {about['description']}\nLicense-Expression: {about['license']}\n"
                f"Requires-Python: {about['requires-python']}\nRequires-Dist: {about['dependencies']}\n")
    files = {f"{PACKAGE}/{path.name}": path.read_text() for path in sorted((HERE / PACKAGE).glob("*.py"))}
    files[f"{name}.dist-info/METADATA"] = metadata
    files[f"{name}.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: qdiff\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{name}.dist-info/RECORD"] = record + f"{name}.dist-info/RECORD,,\n"
    wheel = f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel
