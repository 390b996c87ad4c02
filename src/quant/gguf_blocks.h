// The block types of GGUF files as their definition: a row of weights is a list of blocks, and a decoder reads a stored row to f32
// with the arithmetic of the `gguf` package, equal to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mr {

// `row` holds in / weights blocks; `in` is a multiple of the block's weights. Rows need no alignment.
using DecodeRow = void(const std::byte* row, int64_t in, float* out);

struct GgufBlock {
  std::string_view name;  // as in StoredTensor::format
  int type;               // ggml's number
  int weights, bytes;     // a block
  DecodeRow* decode;
};

std::span<const GgufBlock> gguf_blocks();
const GgufBlock* find_gguf_block(std::string_view name);  // null if unknown

// One scale a block (f16), with a minimum in those that end in 1.
DecodeRow decode_q5_0, decode_q5_1;
// Super-blocks of 256: scales of 4 to 8 bits for groups of 16 or 32, themselves scaled by an f16.
DecodeRow decode_q2_k, decode_q3_k, decode_q4_k, decode_q5_k, decode_q6_k;
// 4 bits that choose from a table of 16 values.
DecodeRow decode_iq4_nl, decode_iq4_xs;
// Codebooks: an index names 4 or 8 magnitudes at once (quant/iq_grids.h), signs beside it.
DecodeRow decode_iq2_xxs, decode_iq2_xs, decode_iq2_s, decode_iq3_xxs, decode_iq3_s;
// Codebooks of -1, 0, 1, moved by an eighth.
DecodeRow decode_iq1_s, decode_iq1_m;
// -1, 0, 1, five to a byte or four.
DecodeRow decode_tq1_0, decode_tq2_0;
// E2M1 under scales of 8 bits: E8M0 a block of 32, E4M3 a group of 16.
DecodeRow decode_mxfp4, decode_nvfp4;

}  // namespace mr
