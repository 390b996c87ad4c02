"""Holds millrace's probed limits against independent tools: a STREAM-like read in C with OpenMP, and numpy's f32 matrix product.

    python3 bench/check_probe.py [build/release/millrace]

Needs gcc, and numpy with OpenBLAS, as PyPI's wheels have it: fetched where it is not there. All measure in turns, so that other
work on the machine hits them alike; the best of each counts, and the last line says when the machine was busy. Exit status 1: a tool
reaches less than 90 % or more than 110 % of what millrace calls the limit.
"""

import ctypes
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from packages import run_again_with  # noqa: E402
from servers import busy_seconds  # noqa: E402

BUSY_SHARE = 0.05  # of the processors: from here on millrace, too, calls a machine busy

READ = r"""
#include <stddef.h>
#include <omp.h>
/* The sum of n doubles. */
double read_all(const double *p, size_t n, int threads) {
  double total = 0;
  #pragma omp parallel for num_threads(threads) reduction(+:total) schedule(static)
  for (size_t i = 0; i < n; i++) total += p[i];
  return total;
}
"""


def read_bandwidth(library, data, threads):
    """The median of many passes, as millrace takes it."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        library.read_all(data.ctypes.data, data.size, threads)
        times.append(time.perf_counter() - begin)
    return data.nbytes / statistics.median(times)


PRODUCT = r"""
import time, numpy
a, b = (numpy.random.default_rng(i).random((768, 768), numpy.float32) for i in (1, 2))
out, best, end = numpy.empty_like(a), 0, time.perf_counter() + 1
while time.perf_counter() < end:
    begin = time.perf_counter()
    numpy.matmul(a, b, out=out)
    best = max(best, 2 * 768 ** 3 / (time.perf_counter() - begin))
print(best)
"""


def product_rate(threads):
    """One BLAS a core, of one thread each: what the cores can do, without what sharing one product out costs. Each gives its best of
    many, as millrace takes it, with the kernels that OpenBLAS chooses or with those for AVX2, which are faster on some processors."""
    best = 0
    for kernels in ({}, {"OPENBLAS_CORETYPE": "Haswell"}):
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | kernels
        children = [subprocess.Popen([sys.executable, "-c", PRODUCT], stdout=subprocess.PIPE, env=env) for _ in range(threads)]
        best = max(best, sum(float(child.communicate()[0]) for child in children))
    return best


def probed(program):
    with tempfile.TemporaryDirectory() as folder:  # its own cache: measured now
        out = subprocess.run([program, "analyze", "--config", "smollm2-135m", "--json"], capture_output=True, check=True,
                             env=os.environ | {"XDG_CACHE_HOME": folder})
    return json.loads(out.stdout)["chip"]


class Others:
    """The share of the processors that other programs use: all that was busy, less this program and its children that have ended."""

    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        return busy_seconds() - sum(os.times()[:4]), time.monotonic()

    def share(self):
        busy, seconds = (b - a for a, b in zip(self.begin, self.now()))
        return min(1.0, max(0.0, busy / seconds / os.cpu_count()))


def busy_text(share):
    """Nothing, or what to think of the table."""
    if share <= BUSY_SHARE:
        return ""
    return (f"other programs used {100 * share:.0f} % of the processors meanwhile: both columns are those of a busy machine, and may "
            "differ for that reason alone\n")


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/release/millrace"
    if not pathlib.Path(program).exists():
        sys.exit(f"there is no program {program}: run ./quickstart, or name it")
    if not shutil.which("gcc"):
        sys.exit("the reading loop is compiled here, and there is no C compiler: install the package gcc")
    try:
        import numpy
    except ImportError:
        run_again_with("numpy")
    threads = probed(program)["units"]

    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder) / "read.c", pathlib.Path(folder) / "read.so"
        source.write_text(READ)
        subprocess.run(["gcc", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC", source, "-o", library], check=True)
        c = ctypes.CDLL(str(library))
    c.read_all.restype, c.read_all.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    data = numpy.ones(1 << 26, numpy.float64)  # 512 MiB

    limits = {"read bandwidth, GB/s": [0, 0], "f32 product, GFLOP/s": [0, 0]}
    others = Others()
    for _ in range(5):
        chip = probed(program)
        turns = [(chip["bandwidth"], read_bandwidth(c, data, threads)), (chip["bf16_flops"], product_rate(threads))]
        for both, turn in zip(limits.values(), turns):
            both[:] = [max(both[i], turn[i] / 1e9) for i in (0, 1)]
    print(f"{chip['title']}\n{'':24}{'millrace':>10}{'other':>10}{'other / millrace':>18}")
    for name, (ours, other) in limits.items():
        print(f"{name:24}{ours:10.1f}{other:10.1f}{other / ours:18.2f}")
    print(busy_text(others.share()), end="")
    return any(not 0.9 <= other / ours <= 1.1 for ours, other in limits.values())


if __name__ == "__main__":
    sys.exit(main())
