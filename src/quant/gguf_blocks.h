// The block types of GGUF files: what their bytes mean, with the arithmetic of the `gguf` package, equal to the bit. Types whose values
// are a grid are defined by their codes, the others by a decoder of rows.
#pragma once

#include <span>

#include "quant/codec.h"

namespace mr {

std::span<const Codec> gguf_codecs();  // beside q8_0, q4_0 and q4_1

// in a row of whole blocks, at any address
using DecodeRow = void(const std::byte* row, int64_t in, float* out);
using BlockToCodes = void(const std::byte* block, BlockCodes&);
using CodesToBlock = void(const BlockCodes&, std::byte* block);  // zeroed before

// One scale a block (f16), with a minimum in those that end in 1.
BlockToCodes codes_q5_0, codes_q5_1;
CodesToBlock pack_q5_0, pack_q5_1;
// Super-blocks of 256: scales of 4 to 8 bits for groups of 16 or 32, themselves scaled by an f16.
BlockToCodes codes_q2_k, codes_q3_k, codes_q4_k, codes_q5_k, codes_q6_k;
CodesToBlock pack_q2_k, pack_q3_k, pack_q4_k, pack_q5_k, pack_q6_k;
// 4 bits that choose from a table of 16 values.
BlockToCodes codes_iq4_nl, codes_iq4_xs;
CodesToBlock pack_iq4_nl, pack_iq4_xs;
// E2M1 under scales of 8 bits: E8M0 a block of 32, E4M3 a group of 16.
BlockToCodes codes_mxfp4;
CodesToBlock pack_mxfp4;
DecodeRow decode_nvfp4;
// Codebooks: an index names 4 or 8 magnitudes at once (quant/iq_grids.h), signs beside it.
DecodeRow decode_iq2_xxs, decode_iq2_xs, decode_iq2_s, decode_iq3_xxs, decode_iq3_s;
// Codebooks of -1, 0, 1, moved by an eighth.
DecodeRow decode_iq1_s, decode_iq1_m;
// -1, 0, 1, five to a byte or four.
DecodeRow decode_tq1_0, decode_tq2_0;

}  // namespace mr
