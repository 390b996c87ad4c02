"""Makes tests/fixtures/quant/float8.bin: floats with their nearest E4M3 and E5M2, as ml_dtypes and PyTorch both convert them, and the
values of all codes.

pip install ml_dtypes==0.5.4 numpy==2.4.6 torch==2.13.0; python float8.py

Little-endian: the number n of floats, uint32; n floats, n bytes of E4M3 and n of E5M2; then 256 floats that E4M3's codes stand for and
256 of E5M2's. Floats beyond the largest value are converted as that value: both libraries would make NaN or infinity of them.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import torch

PATH = Path(__file__).resolve().parent.parent / "fixtures" / "quant" / "float8.bin"
TYPES = {448.0: (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn), 57344.0: (ml_dtypes.float8_e5m2, torch.float8_e5m2)}


def values(kind):
    return np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)


def inputs():
    """Every value, the middle between neighbours, and the floats next to it; numbers of every magnitude."""
    some = []
    for kind, _ in TYPES.values():
        v = values(kind)
        v = np.sort(v[np.isfinite(v)])
        middle = ((v[:-1].astype(np.float64) + v[1:]) / 2).astype(np.float32)
        some += [v, middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    rng = np.random.default_rng(8)
    some.append((rng.normal(size=1000) * 2.0 ** rng.integers(-30, 20, 1000)).astype(np.float32))
    some.append(np.array([0.0, -0.0, 1e-45, -1e-45, 1e38, -1e38, np.inf, -np.inf], dtype=np.float32))
    return np.concatenate(some)


def main():
    x = inputs()
    codes = []
    for largest, (kind, torch_kind) in TYPES.items():
        held = np.clip(x, -np.float32(largest), np.float32(largest))
        code = held.astype(kind).view(np.uint8)
        assert (torch.from_numpy(held).to(torch_kind).view(torch.uint8).numpy() == code).all()
        decoded = torch.arange(256, dtype=torch.uint8).view(torch_kind).float().numpy()
        assert np.array_equal(decoded, values(kind), equal_nan=True)
        codes.append(code)
    PATH.write_bytes(b"".join([np.uint32(len(x)).tobytes(), x.tobytes(), *(c.tobytes() for c in codes),
                               *(values(kind).tobytes() for kind, _ in TYPES.values())]))


if __name__ == "__main__":
    main()
