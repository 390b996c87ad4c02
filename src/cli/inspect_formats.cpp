#include "cli/inspect_formats.h"

#include <fmt/format.h>

#include "backend/cpu/panels.h"
#include "io/stored_tensor.h"
#include "quant/codec.h"

namespace mr {

namespace {

std::string bits(const Codec& codec) { return fmt::format("{:.4g}", 8 * codec.bytes_per_weight()); }

// Which files have it.
std::string files(const Codec& codec) {
  for (const StoredFormat& format : stored_formats())
    if (format.name == codec.name) return format.safetensors.empty() ? "GGUF" : format.gguf < 0 ? "safetensors" : "GGUF, safetensors";
  return "";
}

std::string on_cpu(const Codec& codec) {
  if (codec.storage != DType::u8) return "float panels";
  return integer_panels(codec) ? "integer panels" : "decoded by tile";
}

}  // namespace

std::string formats_page() {
  std::string page = R"(# Weight formats

`millrace inspect --formats` writes this page from the table of codecs.

- **read**: files whose tensors are in this format are opened, and decoded to the bits of the `gguf` package (f32, f16 and bf16 are also safetensors').
- **CPU**: on every instruction set (scalar, AVX2, AVX-512, VNNI, AMX), with equal results. *Float panels*: f32 activations, on AMX two bf16 pieces.
  *Integer panels*: the file's own bits, multiplied with 16-bit activations in exact integer arithmetic. *Decoded by tile*: the file's blocks stay
  in memory and are decoded as they are used. `--device ref` runs all of them by their definition.
- **CUDA**: packed as in the file where [cuda.md](cuda.md) says so, else decoded to bf16 when the model is loaded.
- **write**: `--quantize FORMAT` encodes while loading, `millrace convert --format FORMAT` writes files. Also `q4_k_m` and `q5_k_m`, mixes with q6_k
  for v and down in half of the layers.

| format | bits a weight | block | read | CPU | CUDA | write |
| --- | --- | --- | --- | --- | --- | --- |
)";
  for (const Codec* codec : codecs())
    page += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", codec->name, bits(*codec), codec->block, files(*codec), on_cpu(*codec),
                        "yes", codec->encode ? "yes" : "");
  page += R"(
What holds each column: `tests/quant/gguf_blocks_test.cpp` and `codec_test.cpp` (read), `tests/backend/panels_test.cpp` and `linear_test.cpp`
(CPU, every instruction set, and ref), `tests/backend/cuda_packed_test.cpp` (CUDA), `tests/quant/encode_test.cpp`, `tests/engine/quantize_test.cpp` and
`tests/convert/` (write).

Safetensors of other libraries are read and run, not written (`tests/model/quantized_test.cpp`, logits of each library's own model): GPTQ (2, 3, 4, 8
bits), AWQ, AutoRound, compressed-tensors, FP8 (per tensor, channel, block), ModelOpt, MXFP4, MXFP8, NVFP4, bitsandbytes (int8, 4 bits), MLX.

## How weights are written

f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 and mxfp4 are what the `gguf` package writes, to the bit. The others search scales and codes for the
least squared error; on normal, heavy-tailed and shifted rows they lose no more than llama.cpp's quantizer, row by row (`tests/oracle/quant_errors.py`).

Which weight gets which format (`src/model/weight_formats.h`): the output layer, or an embedding table that serves as one, gets q6_k, or q8_0
where its rows are no multiple of 256, unless the format is larger. Where rows do not divide into a format's blocks, the next larger format with blocks of
32 takes its place (q4_k: q5_0, q5_k: q5_1, q6_k: q8_0, q2_k and q3_k: q4_0, iq4_xs: iq4_nl); where there is none, the weight stays as it is. So do
routers, convolutions, norms and biases. Weights that are quantized already are refused without `--requantize`.

## Conversions

`millrace convert MODEL OUT` writes NAME.gguf or a directory of safetensors from either, with the tokenizer and the chat template. Tensors of a float
model come back equal to the byte, with two exceptions that lie in GGUF: Mamba's A is stored as -exp(A_log), and Gemma's norms with their 1 added, which
rounds what is not bf16 or f16. A model that the other container has no words for (dynamic rope scaling in GGUF, for example) is refused with the reason:
what was written is read back and must describe the same model before it gets its name.
)";
  return page;
}

}  // namespace mr
