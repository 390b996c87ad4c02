// Weights of several stored tensors, as checkpoints of GPTQ, AWQ, compressed-tensors, bitsandbytes, MLX and FP8 have them: codes, and
// beside them scales, zeros and more. How a format's tensors lie is data, a Grouped; its arithmetic is a Grid.
#pragma once

#include "quant/codec.h"

namespace mr {

// Small integers [out, in], or zeros [out, groups], as streams of bits: low bits first, in little-endian words.
struct BitMatrix {
  int bits = 0;                    // of one; 0: there are none
  int unit = 4;                    // bytes of a word: streams are whole words
  bool along_outputs = false;      // a stream runs over the outputs (AWQ; GPTQ's zeros); else over the inputs or groups
  bool words_apart = false;        // the words of a stream lie one row apart (GPTQ: [in / 8, out]); else one after the other
  const uint8_t* order = nullptr;  // where each of 8 neighbours lies; null: as they come
  bool is_signed = false;          // two's complement; read as value + 2^(bits - 1)

  bool operator==(const BitMatrix&) const = default;
  int64_t bytes(int64_t outputs, int64_t inputs) const;  // of the whole tensor
};

struct Grouped {
  BitMatrix codes;
  BitMatrix zeros;
  int zero_added = 0;                    // GPTQ's first convention stores them minus 1
  int64_t group = 0;                     // inputs of a scale; the last of a row may be short
  int64_t scale_rows = 1;                // outputs of a scale (FP8's blocks); 0: all of them
  bool scales_by_group = false;          // [groups, out]; else [out, groups]. Minima lie alike
  bool flat = false;                     // groups run on from row to row
  Grid::Scale scale = Grid::Scale::f16;  // as stored
  // times, divides: one scale more for the tensor. nested: a scale is a byte: nested_map[byte] * nested_scale[its index / 256] + outer.
  enum class Outer : uint8_t { none, times, divides, nested } outer = Outer::none;
  bool any_order = false;       // inputs name their groups (StoredWeight::Beside::group_of)
  bool rounded_inputs = false;  // the format rounds activations: a kernel that rounds them again would move them to other steps
  Grid grid;                    // of the values; its scale is f32 where there is an outer one

  bool operator==(const Grouped&) const = default;
  int64_t groups(int64_t in) const { return (in + group - 1) / group; }
  int64_t scales(int64_t out, int64_t in) const;  // how many are stored
};

// A codec that lives as long as the program, the same for equal arguments. Its grid is empty where a block's codes do not share a scale.
const Codec& grouped_codec(std::string_view name, const Grouped&, int64_t in);

// The inputs of a weight that names their groups, sorted by them; empty where groups are not all of one size, or lie in order.
std::vector<int32_t> inputs_by_group(const StoredWeight&);

void decode_grouped(const StoredWeight&, const StoredWeight::Part&, int64_t row, int64_t first, int64_t n, float* to);
void codes_grouped(const StoredWeight&, const StoredWeight::Part&, int64_t row, int64_t first, BlockCodes&);

}  // namespace mr
