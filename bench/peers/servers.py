"""Servers under test: started on a free port, ready when their model is loaded, ended when the block ends."""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from packages import CACHE, LLAMA_CPP, python_with, say  # noqa: E402

CMAKE_ARGS = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": ["-DGGML_NATIVE=OFF", *(f"-DGGML_{x}=ON" for x in ("AVX", "AVX2", "FMA", "F16C", "BMI2"))],
}


def llama_server(isa):
    """The program llama-server compiled for `isa`; built on the first call."""
    home = CACHE / "peers" / f"llama-server-{LLAMA_CPP.split('==')[1]}-{isa}"
    program = home / "build" / "bin" / "llama-server"
    if program.exists():
        return program
    if not (shutil.which("c++") or os.environ.get("CXX")):
        raise SystemExit("llama-server is compiled here, and there is no C++ compiler: install the package g++")
    cmake = shutil.which("cmake") or python_with("cmake").parent / "cmake"
    home.mkdir(parents=True, exist_ok=True)
    source = home / "llama.cpp"
    if not (source / "CMakeLists.txt").exists():
        say(f"fetching {LLAMA_CPP}")
        if subprocess.run([python_with(), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "-d", home,
                           LLAMA_CPP]).returncode != 0:
            raise SystemExit(f"pip could not fetch {LLAMA_CPP}: is there a way to the package index? --llama-server names a program "
                             "that is already there")
        with tarfile.open(next(home.glob("llama_cpp_python-*.tar.gz"))) as package:
            package.extractall(home / "package")
        next((home / "package").glob("*/vendor/llama.cpp")).rename(source)
        shutil.rmtree(home / "package")
    say(f"compiling llama-server for {isa} in {home} (about 10 minutes on 2 cores, once); its log is build.log there")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
               "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", *CMAKE_ARGS[isa]]
    with open(home / "build.log", "w") as log:
        for command in ([cmake, "-S", source, "-B", home / "build", *options],
                        [cmake, "--build", home / "build", "--target", "llama-server", "-j", str(os.cpu_count())]):
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode != 0:
                raise SystemExit(f"llama-server did not compile: see {home / 'build.log'}")
    return program


def llama_command(program, model, *, threads, streams, context, flash="on"):
    """As many slots as streams, each with room for `context` tokens; continuous batching is its default."""
    return [program, "-m", model, "-t", threads, "-tb", threads, "-np", streams, "-c", streams * context, "-fa", flash,
            "--cache-ram", 0, "--no-webui", "--log-verbosity", 0]


def millrace_command(program, model, *, threads, isa="native"):
    return [program, "serve", model, "--threads", threads, *(["--isa", isa] if isa != "native" else [])]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def is_ready(url):
    """The process lives, and its model is loaded."""
    try:
        for path in ("/health", "/v1/models"):
            with urllib.request.urlopen(url + path, timeout=2) as answer:
                if answer.status != 200:
                    return False
        return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextlib.contextmanager
def running(command):
    """Yields the server's URL and process id."""
    port = free_port()
    words = [str(word) for word in [*command, "--host", "127.0.0.1", "--port", port]]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while not is_ready(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start: {' '.join(words)}")
            time.sleep(0.1)
        yield url, server.pid
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def busy_seconds():
    """Of all processors since the start of the machine."""
    field = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(field) - field[3] - field[4]) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid):
    field = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(field[11]) + int(field[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def watched(pid):
    """Yields a dict that at the end holds "others": processors that neither this server nor our own children kept busy."""
    def own():
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return process_seconds(pid) + children.ru_utime + children.ru_stime

    result = {}
    busy, mine, begin = busy_seconds(), own(), time.monotonic()
    yield result
    result["others"] = max(0.0, (busy_seconds() - busy) - (own() - mine)) / (time.monotonic() - begin)


@contextlib.contextmanager
def paused(names):
    """Processes of these names (compilers of a neighbour, say) stand still meanwhile, new ones too, and go on afterwards."""
    over = threading.Event()

    def hold():
        while True:
            subprocess.run(["pkill", "-STOP", "-x", "|".join(names)])
            if over.wait(0.5):
                return

    holder = threading.Thread(target=hold)
    try:
        if names:
            holder.start()
        yield
    finally:
        over.set()
        if names:
            holder.join()
            subprocess.run(["pkill", "-CONT", "-x", "|".join(names)])


def resume_on_term():
    """SIGTERM ends the program through its `finally` blocks."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
