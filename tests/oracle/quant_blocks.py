"""Makes tests/fixtures/quant/blocks: rows of every block type of GGUF that has no kernels of its own, with the f32 values that the `gguf`
package reads out of them, and the package's codebooks.

pip install gguf==0.19.0 numpy==2.4.6; python quant_blocks.py

<type>.bin: 4 rows of 512 weights as a GGUF file holds them, <type>.f32: their values as raw little-endian float32. The first rows are
random bits under finite scales, the last are what the package quantizes, where it can. codebooks.bin: the entries of IQ2_XXS, IQ2_XS, IQ2_S,
IQ3_XXS, IQ3_S and IQ1_S as raw int8, one codebook after the other.
"""

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

FOLDER = Path(__file__).resolve().parent.parent / "fixtures" / "quant" / "blocks"
ROWS, IN = 4, 512

# Where a block has its f16 scales.
HALVES = {
    Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.IQ2_XXS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_XXS: [0], Type.IQ3_S: [0],
    Type.IQ1_S: [0], Type.IQ1_M: [], Type.TQ1_0: [52], Type.TQ2_0: [64], Type.MXFP4: [], Type.NVFP4: [],
}


def random_blocks(rng, kind, n):
    blocks = rng.integers(0, 256, (n, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    scales = (rng.normal(0, 1, n) * 10.0 ** rng.integers(-6, 2, n)).astype("<f2")  # subnormal ones too
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = rng.permutation(scales).view(np.uint8).reshape(n, 2)
    if kind == Type.IQ1_M:  # a nibble of the scale on top of each of its last four words
        words = blocks[:, 48:].copy().view("<u2")
        parts = (scales.view("<u2")[:, None] >> np.array([0, 4, 8, 12], "<u2")) << 12
        blocks[:, 48:] = (words & 0x0FFF | parts).view(np.uint8)
    if kind == Type.MXFP4:
        blocks[:, 0] = np.concatenate([[0, 1, 2, 251], rng.integers(100, 140, n - 4)])  # beyond 251 values overflow
    if kind == Type.NVFP4:
        blocks[0, :4] = [0x00, 0x7F, 0x80, 0xFF]
    return blocks


def main():
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    for kind in HALVES:
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        data = random_blocks(rng, kind, ROWS * IN // weights).reshape(ROWS, -1)
        x = rng.normal(0, 0.05, (2, IN)).astype(np.float32)
        x[1, :256] = 0
        try:
            data[2:] = gguf.quants.quantize(x, kind)
        except NotImplementedError:
            pass
        expected = gguf.quants.dequantize(data, kind).astype("<f4")
        assert expected.shape == (ROWS, IN) and np.isfinite(expected).all(), kind
        data.tofile(FOLDER / f"{kind.name.lower()}.bin")
        expected.tofile(FOLDER / f"{kind.name.lower()}.f32")
    with open(FOLDER / "codebooks.bin", "wb") as file:
        for kind in (Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S, Type.IQ1_S):
            file.write(gguf.quants._type_traits[kind].grid.astype(np.int8).tobytes())


if __name__ == "__main__":
    main()
