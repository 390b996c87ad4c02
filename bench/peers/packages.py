"""What benchmarks need beside millrace, fetched by name on the first call and kept in the cache folder: Python packages in an
environment of their own, so that the system's stays as it is, and the default model in other formats."""

import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "millrace"
LLAMA_CPP = "llama-cpp-python==0.3.36"  # its source package holds llama-server's sources, too


def say(text):
    print(text, file=sys.stderr, flush=True)


def make_environment(home):
    try:
        venv.create(home, with_pip=True, clear=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise SystemExit(f"{sys.executable} cannot make an environment in {home} ({error}): install the package python3-venv")


def python_with(*packages):
    """The interpreter of an environment that has these packages."""
    home = CACHE / "peers" / "python"
    python = home / "bin" / "python"
    if not python.exists():
        make_environment(home)
    missing = [p for p in packages if not (home / f"{p}.ready").exists()]
    if missing:
        say(f"fetching {', '.join(missing)} into {home}")
        if subprocess.run([python, "-m", "pip", "install", "--quiet", *missing]).returncode != 0:
            raise SystemExit(f"pip could not install {', '.join(missing)}: is there a way to the package index?")
        for package in missing:
            (home / f"{package}.ready").touch()
    return python


def run_again_with(*packages):
    """Starts this program anew in such an environment."""
    python = python_with(*packages)
    os.execv(python, [str(python), *sys.argv])


CONVERTED = ["Q4_K", "Q4_K_M", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4"]  # which the `gguf` package cannot write, or not mixed


def model_files(model, formats, folder, millrace=None):
    """{format: file}; the formats that `model` (NAME.Q4_1.gguf) does not have are made from it once. K-quants are written by `millrace convert`: both
    programs read the same file."""
    if not model.exists():
        raise SystemExit(f"no model at {model}: run ./quickstart, which fetches it")
    stem, own = model.stem.rsplit(".", 1)
    files = {f: model if f == own else folder / f"{stem}.{f}.gguf" for f in formats}
    missing = [f for f in formats if not files[f].exists()]
    for f in [f for f in missing if f in CONVERTED]:
        if millrace is None:
            raise SystemExit(f"{f} files are written by millrace: give --millrace")
        say(f"writing {files[f]}")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([millrace, "convert", model, files[f], "--format", f.lower(), "--requantize"], check=True)
    missing = [f for f in missing if f not in CONVERTED]
    if missing:
        say(f"writing {', '.join(missing)} files to {folder}")
        subprocess.run([python_with("gguf", "numpy"), HERE / "gguf_variants.py", model, folder, *missing], check=True, stdout=sys.stderr)
    return files
