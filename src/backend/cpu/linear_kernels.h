// The matrix product kernels of one instruction set: a table with a row per layout of weights.
//
// The arithmetic is fixed, so that every instruction set, row count and thread count gives the same bits. Float weights,
// and those that are decoded from their stored rows: one fma chain over the inputs, ascending, from 0 (bf16 weights on AMX have a different
// arithmetic, equally independent of row and thread counts: linear_amx.inl). Quantized weights: activations are rounded to int16 per block
// of 32 (RoundedBlock), a block's dot product is exact in int32, and blocks are added in ascending order:
//   acc = fma(float(dot), weight_scale * x_scale, acc);   with a minimum then   acc = fma(minimum, x_scale * sum(q), acc)
// Weights with a scale for every 16 do so for one half of a block and then for the other. Scales and minima of two levels are multiplied
// first.
// Then out = residual + scale * (acc + bias), each step rounded, absent parts skipped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mr {

struct StoredWeight;

// 32 activations: x = scale * q, |q| <= 32639 = 127 * 256 + 127, so that q also splits into two signed bytes. q is stored in
// the order in which dot products of pairs read it, 0 2 1 3 of each four; or as the upper bytes of all 32, then the lower ones. A
// block that holds a NaN or an infinity has scale NaN.
struct RoundedBlock {
  union {
    int16_t q[32];
    int8_t bytes[2][32];  // q = 256 * bytes[0] + bytes[1]
  };
  float scale;  // max |x| / 32639; q is x * (32639 / max |x|) rounded to nearest even
  // Of all 32, or of each 16 where weights have a scale for 16:
  union {
    int32_t start[2];  // -offset * sum of q: initial value of an integer dot with weights stored as value + offset
    float sum[2];      // scale * sum of q, for weights with a minimum; negative for one that is subtracted
  };
  int32_t unused;
};

struct LinearCall {
  int64_t in, out, rows;
  const std::byte* packed;     // panels.h says how
  const StoredWeight* stored;  // of the layout `stored`
  void (*decode)(const StoredWeight&, int64_t output, int64_t first, int64_t n, float* to);
  // Of weights in groups: each group of 32 * group_blocks inputs has 16 scales and 16 zeros (a byte each, minus 128) or minima.
  const std::byte* heads;
  int64_t head_bytes, panel_heads;                       // of a group, of a panel's groups
  uint64_t group_inverse;                                // 2^32 / group_blocks, rounded up
  enum class Scale : uint8_t { f16, bf16, f32 } scales;  // of minima, too
  bool minima;
  const float* x;  // [rows, in], for float weights
  int64_t x_stride;
  const std::byte* rounded;  // all rows, as the kernel's `round` left them
  float* y;                  // [rows, out]
  int64_t y_stride;
  const float* bias;      // [out] or null
  const float* residual;  // [rows, out] or null; may be y
  int64_t residual_stride;
  float scale;
};

struct LinearKernel {
  const char* layout;
  int64_t from_rows;  // products of fewer rows use an earlier entry of the layout
  // Rounds inputs [first, first + n) of row `row`, at x, into the buffer of rounded_bytes(in, rows) bytes for all rows of a product;
  // first is a multiple of 32, and so is n unless it reaches the end of the row. Null: the kernel reads f32 activations.
  void (*round)(const float* x, int64_t in, int64_t row, int64_t first, int64_t n, std::byte* rounded);
  int64_t (*rounded_bytes)(int64_t in, int64_t rows);
  // Computes rows [row, row_end) of panels [panel, panel_end). scratch: the worker's scratch_floats.
  void (*run)(const LinearCall&, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch);
  int64_t stretch;  // K block: inputs processed at a time with many rows; 0: all of them
};

struct LinearKernels {
  const LinearKernel* table;
  int count;
  int64_t (*scratch_floats)(int64_t in, int64_t rows, int64_t panels);  // for a piece of this size
  int tile_rows;                                                        // pieces of work begin at multiples of it
  int64_t chunk_bytes;   // of activations in a piece of work, which reads them repeatedly: they must stay in L2
  int64_t group_panels;  // most panels in a piece of many rows; many, since each piece reads its activations from memory again
};

const LinearKernels& linear_kernels_scalar();
const LinearKernels& linear_kernels_avx2();
const LinearKernels& linear_kernels_avx512();
const LinearKernels& linear_kernels_vnni();
const LinearKernels& linear_kernels_amx();

}  // namespace mr
