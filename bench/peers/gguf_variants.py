"""Writes a GGUF file again in other weight formats: gguf_variants.py IN.gguf OUT_DIR FORMAT…

Every matrix is dequantized and encoded anew, metadata and order stay. Norms stay F32. The token embedding, which is the
output matrix too, stays as it is in the 4- and 8-bit files (Q8_0 in the default model) and becomes F16 in the F16 file.
Fetches the packages gguf and numpy where they are not there.
"""

import sys
from pathlib import Path

try:
    import gguf
    from gguf.quants import dequantize, quantize
except ImportError:
    from packages import run_again_with
    run_again_with("gguf", "numpy")

FILE_TYPE = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # general.file_type
COUNTED = ("GGUF.", "general.architecture", "general.file_type")  # what the writer or we set


def target_type(tensor, format_name):
    if len(tensor.shape) == 1:
        return tensor.tensor_type
    if tensor.name == "token_embd.weight" and format_name != "F16":
        return tensor.tensor_type
    return gguf.GGMLQuantizationType[format_name]


def copy_metadata(reader, writer, format_name):
    for field in reader.fields.values():
        if not field.name.startswith(COUNTED):
            item_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=item_type)
    writer.add_file_type(FILE_TYPE[format_name])


def write_variant(reader, path, format_name):
    partial = path.with_suffix(".part")  # renamed when whole: an interrupted run leaves no half file
    writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
    copy_metadata(reader, writer, format_name)
    for tensor in reader.tensors:
        data, target = tensor.data, target_type(tensor, format_name)
        if target != tensor.tensor_type:
            data = quantize(dequantize(data, tensor.tensor_type), target)
        writer.add_tensor(tensor.name, data, raw_dtype=target)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def main():
    if len(sys.argv) < 4 or not set(sys.argv[3:]) <= set(FILE_TYPE):
        raise SystemExit(f"gguf_variants.py IN.gguf OUT_DIR FORMAT...: formats are {', '.join(FILE_TYPE)}")
    source, out_dir, formats = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    out_dir.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    stem = source.stem.rsplit(".", 1)[0]  # NAME.Q4_1.gguf -> NAME
    for format_name in formats:
        path = out_dir / f"{stem}.{format_name}.gguf"
        write_variant(reader, path, format_name)
        print(path)


if __name__ == "__main__":
    main()
