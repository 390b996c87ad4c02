// What a matrix product needs from one instruction set: a table with a row per weight format.
//
// The arithmetic is fixed, so that every instruction set, row count and thread count gives the same bits. Float weights:
// one fma chain over the inputs, ascending, from 0 (bf16 weights on AMX have an arithmetic of their own, the same whatever the
// rows and threads: linear_amx.inl). Quantized weights: activations are rounded to int16 per block of 32
// (RoundedBlock), a block's dot product is exact in int32, and blocks are added in ascending order:
//   acc = fma(float(dot), weight_scale * x_scale, acc);   q4_1 then   acc = fma(minimum, x_scale * sum(q), acc)
// Then out = residual + scale * (acc + bias), each step rounded, absent parts skipped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mr {

// 32 activations: x = scale * q, |q| <= 32639 = 127 * 256 + 127, so that q also splits into two signed bytes. q is stored in
// the order that dot products of pairs take it: 0 2 1 3 of each four; or as the upper bytes of all 32, then the lower ones. A
// block that holds a NaN or an infinity has scale NaN.
struct RoundedBlock {
  union {
    int16_t q[32];
    int8_t bytes[2][32];  // q = 256 * bytes[0] + bytes[1]
  };
  float scale;    // max |x| / 32639; q is x * (32639 / max |x|) rounded to nearest even
  int32_t start;  // -offset * sum of q: what an integer dot with weights stored as value + offset begins with
  float sum;      // scale * sum of q
  int32_t unused;
};

struct LinearCall {
  int64_t in, out, rows;
  const std::byte* packed;  // format.h says how
  const float* x;           // [rows, in], for float weights
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
  const char* format;
  int64_t from_rows;  // products of fewer rows take the format's entry above this one
  // Rounds inputs [first, first + n) of row `row`, which lie at x, into the rounded_bytes(in, rows) that hold all rows of a product's
  // activations; first is a multiple of 32, and so is n unless the row ends there. Null: weights that take activations as they are.
  void (*round)(const float* x, int64_t in, int64_t row, int64_t first, int64_t n, std::byte* rounded);
  int64_t (*rounded_bytes)(int64_t in, int64_t rows);
  // Computes rows [row, row_end) of panels [panel, panel_end). scratch: scratch_floats of the worker's own.
  void (*run)(const LinearCall&, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch);
  int64_t stretch;  // inputs that it goes through at a time with many rows; 0: all of them
};

struct LinearKernels {
  const LinearKernel* table;
  int count;
  int64_t (*scratch_floats)(int64_t in, int64_t rows, int64_t panels);  // for so large a piece
  int tile_rows;                                                        // pieces of work begin at multiples of it
  int64_t chunk_bytes;   // of activations that a piece of work goes through again and again: they stay in the second-level cache
  int64_t group_panels;  // at most, that a piece of many rows takes: with each of them its activations come from afar again
};

const LinearKernels& linear_kernels_scalar();
const LinearKernels& linear_kernels_avx2();
const LinearKernels& linear_kernels_avx512();
const LinearKernels& linear_kernels_vnni();
const LinearKernels& linear_kernels_amx();

}  // namespace mr
