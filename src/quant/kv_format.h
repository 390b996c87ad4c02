// How keys and values are stored, as a table: the one place that knows the bytes of a format. What is stored for a head of a token is
// a row of codes; a code c stands for the value scale * c. Where a format is scaled, each row has a scale of its own, such that its
// largest value fits; otherwise the scale is the layer's, 1 unless the checkpoint says otherwise (k_scale, v_scale).
#pragma once

#include <span>
#include <string_view>

#include "core/dtype.h"

namespace mr {

struct KvFormat {
  std::string_view name;  // as --kv-dtype has it
  DType element;          // of i4, two codes share a byte: the even one is in its lower half
  float largest = 0;      // of the codes; 0: floats whose range is wide enough, never scaled
  bool scaled = false;    // a bf16 for each row

  int64_t row_bytes(int64_t dim) const { return (dim * bits_of(element) + 7) / 8; }  // of its codes
  int64_t bytes(int64_t heads, int64_t dim, int64_t tokens) const { return dim ? heads * tokens * (row_bytes(dim) + (scaled ? 2 : 0)) : 0; }
};

std::span<const KvFormat> kv_formats();
const KvFormat& kv_format(DType element);                // throws Error where it is no format of keys and values
const KvFormat& kv_format_named(std::string_view name);  // throws Error with the names that there are; fp8 is fp8_e4m3

// The smallest bf16 by which n values can be divided so that none exceeds `largest`. NaN if one of them is not finite, so that it
// shows in whatever reads the row.
float kv_scale(const float* x, int64_t n, float largest);

// One code of a row, for reference; `stride`: bytes from one code, of i4 one pair, to the next.
float kv_code(DType element, const std::byte* row, int64_t stride, int64_t i);
void set_kv_code(DType element, std::byte* row, int64_t stride, int64_t i, float x, float scale);  // rounds x / scale

}  // namespace mr
