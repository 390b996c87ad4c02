#include "quant/gguf_blocks.h"

namespace mr {

static constexpr GgufBlock kBlocks[] = {
    {"q5_0", 6, 32, 22, decode_q5_0},         {"q5_1", 7, 32, 24, decode_q5_1},         {"q2_k", 10, 256, 84, decode_q2_k},
    {"q3_k", 11, 256, 110, decode_q3_k},      {"q4_k", 12, 256, 144, decode_q4_k},      {"q5_k", 13, 256, 176, decode_q5_k},
    {"q6_k", 14, 256, 210, decode_q6_k},      {"iq2_xxs", 16, 256, 66, decode_iq2_xxs}, {"iq2_xs", 17, 256, 74, decode_iq2_xs},
    {"iq3_xxs", 18, 256, 98, decode_iq3_xxs}, {"iq1_s", 19, 256, 50, decode_iq1_s},     {"iq4_nl", 20, 32, 18, decode_iq4_nl},
    {"iq3_s", 21, 256, 110, decode_iq3_s},    {"iq2_s", 22, 256, 82, decode_iq2_s},     {"iq4_xs", 23, 256, 136, decode_iq4_xs},
    {"iq1_m", 29, 256, 56, decode_iq1_m},     {"tq1_0", 34, 256, 54, decode_tq1_0},     {"tq2_0", 35, 256, 66, decode_tq2_0},
    {"mxfp4", 39, 32, 17, decode_mxfp4},      {"nvfp4", 40, 64, 36, decode_nvfp4},
};

std::span<const GgufBlock> gguf_blocks() { return kBlocks; }

const GgufBlock* find_gguf_block(std::string_view name) {
  for (const GgufBlock& block : kBlocks)
    if (block.name == name) return &block;
  return nullptr;
}

}  // namespace mr
