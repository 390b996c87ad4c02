"""wheel.py PROGRAM VERSION FOLDER: a wheel that holds the program as a script, so that `pip install` puts it on the path."""
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

program, version, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
root = pathlib.Path(__file__).resolve().parents[1]


def newest_glibc(path):
    """The newest version of the C library whose symbols the program asks for."""
    symbols = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    return max((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))


tag = "py3-none-manylinux_%d_%d_%s" % (*newest_glibc(program), platform.machine())
info = f"millrace-{version}.dist-info"
files = {
    f"millrace-{version}.data/scripts/millrace": program.read_bytes(),
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
