"""Makes tests/fixtures/quant/encode.f32 (24 rows of 96 values) and encode_<format>.bin: what the `gguf` package stores for it."""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "quant"


def main():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(24, 96)).astype(np.float32)
    x[1] *= 1e-3
    x[2, :32] = 0  # a block without any scale
    x[3, :32] = 0.25  # all equal: q4_1 has a minimum and no scale
    x[4, :32] = np.arange(32) - 16  # exact steps, and halves between them
    x[5, 32:64] = (np.arange(32) - 16) / 2
    x[6, 7] = 40  # an outlier
    x[7, :64] = -np.abs(x[7, :64])
    x[8, [3, 9]] = [5, -5]  # two of the same magnitude: the first decides
    x.tofile(FOLDER / "encode.f32")
    for kind in (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.MXFP4):
        stored = gguf.quants.quantize(x, kind).view(np.uint8)
        stored.tofile(FOLDER / f"encode_{kind.name.lower()}.bin")


if __name__ == "__main__":
    main()
