"""Makes tests/fixtures/io (checkpoints written by the `safetensors` and `gguf` packages) and tests/fixtures/quant
(blocks of each GGUF format with the f32 values that the `gguf` package reads out of them).

pip install gguf==0.19.0 safetensors==0.8.0 numpy; python gguf_safetensors_files.py

Tensor values are (i % 64 - 32) / 8, exact in every plain type, so that tests can state them without a file.
quant/<format>.bin: a matrix of 24 rows and 96 columns, row-major, as a GGUF file holds it; quant/<format>.f32: its
24 * 96 values as raw little-endian float32.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import safetensors

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
IO, QUANT = FIXTURES / "io", FIXTURES / "quant"
Type = gguf.GGMLQuantizationType
Value = gguf.GGUFValueType


def ramp(*shape):
    return ((np.arange(np.prod(shape)) % 64 - 32) / 8).astype(np.float32).reshape(shape)


def bf16_bytes(x):
    return gguf.quants.quantize(x, Type.BF16)  # uint8, two bytes an element


def safetensors_file(path, tensors, metadata=None):
    """tensors: name -> (dtype, f32 array)."""
    numpy_type = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "int64": np.int64}
    entries, kept = {}, []  # kept: the library takes bare pointers
    for name, (dtype, x) in tensors.items():
        data = np.ascontiguousarray(bf16_bytes(x) if dtype == "bfloat16" else x.astype(numpy_type[dtype]))
        kept.append(data)
        entries[name] = safetensors.TensorSpec(dtype=dtype, shape=list(x.shape), data_ptr=data.ctypes.data, data_len=data.nbytes)
    safetensors.serialize_file(entries, path, metadata)


def write_sharded():
    folder = IO / "sharded"
    folder.mkdir(parents=True, exist_ok=True)
    shards = [
        {"a.weight": ("float32", ramp(3, 5)), "b.weight": ("float16", ramp(4, 8)), "b.scalar": ("float32", ramp(1).reshape(()))},
        {"c.weight": ("bfloat16", ramp(2, 3, 4)), "c.codes": ("int8", ramp(7) * 8), "c.ids": ("int64", ramp(3) * 8)},
    ]
    weight_map = {}
    for i, tensors in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        safetensors_file(folder / name, tensors, {"format": "pt"})
        (folder / name).chmod(0o644)
        weight_map |= {tensor: name for tensor in tensors}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}) + "\n")


METADATA = {  # key -> (type, element type, value)
    "test.u8": (Value.UINT8, None, 255),
    "test.i8": (Value.INT8, None, -128),
    "test.u16": (Value.UINT16, None, 65535),
    "test.i16": (Value.INT16, None, -32768),
    "test.u32": (Value.UINT32, None, 4294967295),
    "test.i32": (Value.INT32, None, -2147483648),
    "test.u64": (Value.UINT64, None, 18446744073709551615),
    "test.i64": (Value.INT64, None, -9223372036854775808),
    "test.f32": (Value.FLOAT32, None, 0.15625),
    "test.f64": (Value.FLOAT64, None, 0.1),
    "test.true": (Value.BOOL, None, True),
    "test.false": (Value.BOOL, None, False),
    "test.string": (Value.STRING, None, "grün → 水車"),
    "test.array.u8": (Value.ARRAY, Value.UINT8, [0, 1, 255]),
    "test.array.i32": (Value.ARRAY, Value.INT32, [-1, 0, 7]),
    "test.array.f32": (Value.ARRAY, Value.FLOAT32, [0.5, -2.25]),
    "test.array.u64": (Value.ARRAY, Value.UINT64, [1 << 63]),
    "test.array.bool": (Value.ARRAY, Value.BOOL, [True, False, True]),
    "test.array.string": (Value.ARRAY, Value.STRING, ["", "a", "Ġword"]),
    "test.array.nested": (Value.ARRAY, None, [[1, 2, 3], [4], [5, 6]]),
    "test.array.deeper": (Value.ARRAY, None, [[["x"], ["y", "z"]]]),
}


def write_gguf():
    path = IO / "types.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    for key, (kind, element, value) in METADATA.items():
        writer.add_key_value(key, value, kind, element)
    expected = {"general.architecture": "llama", "general.alignment": 64} | {k: v for k, (_, _, v) in METADATA.items()}
    tensors = {}
    for qtype, shape in [(Type.F32, (3, 5)), (Type.F16, (4, 8)), (Type.BF16, (2, 3, 4)), (Type.Q8_0, (4, 64)), (Type.Q4_0, (5, 32)),
                         (Type.Q4_1, (2, 3, 32)), (Type.F32, (7,))]:
        name = f"{qtype.name.lower()}.{len(shape)}d.weight"
        data = gguf.quants.quantize(ramp(*shape), qtype)
        writer.add_tensor(name, data, raw_dtype=qtype)
        tensors[name] = {"format": qtype.name.lower(), "shape": list(shape), "bytes": data.tobytes().hex()}
    finish(writer)
    (IO / "types.json").write_text(json.dumps({"metadata": expected, "tensors": tensors}, indent=1) + "\n")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_other_gguf():
    big = gguf.GGUFWriter(IO / "big_endian.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    big.add_tensor("a", ramp(2, 2))
    finish(big)
    (IO / "split").mkdir(exist_ok=True)
    split = gguf.GGUFWriter(IO / "split" / "tiny.gguf", "llama", split_max_tensors=2)
    for name in "abc":
        split.add_tensor(name, ramp(2, 3))
    finish(split)


def write_quant():
    QUANT.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    x = rng.normal(0, 0.05, (24, 96)).astype(np.float32)
    x[3] = 0
    x[4, :32] = 0.75  # a constant block
    x[5] = np.abs(x[5])
    x[6] = -np.abs(x[6])
    x[7, 40] = 30  # an outlier
    x[8] *= 1e-4  # scales that are subnormal in f16
    x[9] *= 1e5
    for qtype in [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.F16, Type.BF16]:
        data = np.ascontiguousarray(gguf.quants.quantize(x, qtype)).view(np.uint8).reshape(24, -1).copy()
        data[20:] = random_blocks(rng, qtype, data[20:].shape)
        expected = gguf.quants.dequantize(data, qtype).astype("<f4")
        assert expected.shape == (24, 96) and np.isfinite(expected).all()
        data.tofile(QUANT / f"{qtype.name.lower()}.bin")
        expected.tofile(QUANT / f"{qtype.name.lower()}.f32")


def random_blocks(rng, qtype, shape):
    """Every bit pattern, those that a quantizer never writes too, under finite scales."""
    _, size = gguf.GGML_QUANT_SIZES[qtype]
    n_scales = {Type.Q8_0: 1, Type.Q4_0: 1, Type.Q4_1: 2, Type.F16: 0, Type.BF16: 0}[qtype]
    blocks = rng.integers(0, 256, (np.prod(shape) // size, size), dtype=np.uint8)
    if n_scales:
        scales = rng.normal(0, 1, (len(blocks), n_scales)).astype("<f2")
        blocks[:, : 2 * n_scales] = scales.view(np.uint8)
    else:
        blocks[:, 1] &= 0xBF  # exponent below the largest: finite
    return blocks.reshape(shape)


if __name__ == "__main__":
    write_sharded()
    write_gguf()
    write_other_gguf()
    np.save(IO / "ramp.npy", ramp(3, 5))
    write_quant()
