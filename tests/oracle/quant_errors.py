"""Makes tests/fixtures/quant/rows.f32 (rows of 1024 values: Gaussian of several sizes, heavy tails, outliers, an offset) and errors.json: the root
of the mean squared error, relative to the rows' own root mean square, that llama.cpp's quantizer leaves in each format, row by row.

    pip install xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6

xllamacpp is llama.cpp in one library, whose functions ctypes finds; what they store is decoded by the `gguf` package.
"""

import ctypes
import json
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType as Type

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "quant"
WIDTH = 1024
KINDS = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS]


def make_rows():
    rng = np.random.default_rng(11)
    rows = [rng.normal(size=WIDTH) * size for size in (1, 1, 0.02, 0.02, 1e-3)]
    rows += [rng.laplace(size=WIDTH) * 0.02, rng.standard_t(4, size=WIDTH) * 0.02]
    outlier = rng.normal(size=WIDTH) * 0.02
    outlier[[5, 300, 301]] = [0.8, -1.1, 0.5]
    rows += [outlier, rng.normal(size=WIDTH) * 0.02 + 0.05, np.abs(rng.normal(size=WIDTH))]
    return np.array(rows, dtype=np.float32)


def library():
    path = Path(xllamacpp.__file__).parent / "xllamacpp.abi3.so"
    lib = ctypes.CDLL(str(path))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
                                        ctypes.c_void_p]
    return lib


def errors(lib, rows, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    stored = np.zeros((len(rows), WIDTH // block * size), dtype=np.uint8)
    written = lib.ggml_quantize_chunk(int(kind), rows.ctypes.data, stored.ctypes.data, 0, len(rows), WIDTH, None)
    assert written == stored.nbytes
    off = gguf.quants.dequantize(stored, kind).astype(np.float64) - rows
    return np.sqrt((off**2).mean(axis=1) / (rows.astype(np.float64) ** 2).mean(axis=1)).tolist()


def main():
    rows, lib = make_rows(), library()
    rows.tofile(FOLDER / "rows.f32")
    result = {kind.name.lower(): errors(lib, rows, kind) for kind in KINDS}
    (FOLDER / "errors.json").write_text(json.dumps(result, indent=1) + "\n")
    for name, each in result.items():
        print(f"{name:8}", " ".join(f"{e:.5f}" for e in each))


if __name__ == "__main__":
    main()
