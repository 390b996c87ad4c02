"""Holds millrace's probed limits against independent tools: a STREAM-like read in C with OpenMP, and numpy's f32 matrix product.

    python3 bench/check_probe.py [build/release/millrace]

Needs gcc and numpy (with OpenBLAS, as PyPI's wheels have it). All measure in turns, so that other work on the machine hits them
alike; the best of each counts. Exit status 1: a limit is off by more than 10 %.
"""

import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

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


def product_rate(numpy, a, b):
    """The best of many, as millrace takes it."""
    out, best = numpy.empty((a.shape[0], b.shape[1]), numpy.float32), 0
    for _ in range(20):
        begin = time.perf_counter()
        numpy.matmul(a, b, out=out)
        best = max(best, 2 * a.shape[0] * a.shape[1] * b.shape[1] / (time.perf_counter() - begin))
    return best


def probed(program):
    with tempfile.TemporaryDirectory() as folder:  # its own cache: measured now
        out = subprocess.run([program, "analyze", "--config", "smollm2-135m", "--json"], capture_output=True, check=True,
                             env=os.environ | {"XDG_CACHE_HOME": folder})
    return json.loads(out.stdout)["chip"]


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/release/millrace"
    threads = probed(program)["units"]
    os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder) / "read.c", pathlib.Path(folder) / "read.so"
        source.write_text(READ)
        subprocess.run(["gcc", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC", source, "-o", library], check=True)
        c = ctypes.CDLL(str(library))
    c.read_all.restype, c.read_all.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    data = numpy.ones(1 << 26, numpy.float64)  # 512 MiB
    a, b = (numpy.random.default_rng(i).random((1024, 1024), numpy.float32) for i in (1, 2))

    limits = {"read bandwidth, GB/s": [0, 0], "f32 product, GFLOP/s": [0, 0]}
    for _ in range(5):
        chip = probed(program)
        turns = [(chip["bandwidth"], read_bandwidth(c, data, threads)), (chip["bf16_flops"], product_rate(numpy, a, b))]
        for both, turn in zip(limits.values(), turns):
            both[:] = [max(both[i], turn[i] / 1e9) for i in (0, 1)]
    print(f"{chip['title']}\n{'':24}{'millrace':>10}{'other':>10}{'ratio':>8}")
    for name, (ours, other) in limits.items():
        print(f"{name:24}{ours:10.1f}{other:10.1f}{ours / other:8.2f}")
    return any(not 0.9 <= ours / other <= 1.1 for ours, other in limits.values())


if __name__ == "__main__":
    sys.exit(main())
