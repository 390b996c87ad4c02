"""wheel.py PROGRAM VERSION FOLDER [MODULE]: a wheel that holds the program as a script, so that `pip install` puts it on the path, and
the Python module. The program is for any Python, so the wheel is; the module may be for one, and says so on another."""
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

program, version, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
modules = [pathlib.Path(name) for name in sys.argv[4:]]
root = pathlib.Path(__file__).resolve().parents[1]


def newest_glibc(path):
    """The newest version of the C library whose symbols the program asks for."""
    symbols = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    return max((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))


def module_needs():
    """What is said where the module cannot be loaded."""
    if not modules:
        return "this millrace was built without its Python module: there was no nanobind"
    built_for = re.search(r"cpython-3(\d+)", modules[0].name)
    return "the Python module of this millrace is for Python " + (f"3.{built_for[1]}" if built_for else "3.12 and later")


tag = "py3-none-manylinux_%d_%d_%s" % (*max(map(newest_glibc, [program, *modules])), platform.machine())
info = f"millrace-{version}.dist-info"
files = {
    f"millrace-{version}.data/scripts/millrace": program.read_bytes(),
    "millrace/_build.py": f"VERSION = {version!r}\nMODULE_NEEDS = {module_needs()!r}\n".encode(),
    **{f"millrace/{path.name}": path.read_bytes() for path in [*sorted((root / "python/millrace").glob("*.py")), *modules]},
    f"{info}/METADATA": f"""Metadata-Version: 2.1
Name: millrace
Version: {version}
Summary: language-model inference on this machine, and how far from its limit
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{(root / "README.md").read_text()}""".encode(),
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: millrace\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    f"{info}/LICENSE": (root / "LICENSE").read_bytes(),
}
record = ""
for name, data in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(data)}\n"
files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

folder.mkdir(parents=True, exist_ok=True)
out = folder / f"millrace-{version}-{tag}.whl"
with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
    for name, data in files.items():
        entry = zipfile.ZipInfo(name)  # its date is fixed: the same program makes the same wheel
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16  # pip looks whether it is a plain file
        wheel.writestr(entry, data)
print(out)
