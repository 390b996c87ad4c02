// Matrix products of f32 or rounded activations with packed weights; linear_kernels.h fixes the arithmetic. Written once on
// Vec and IVec and compiled per instruction set. A tile is Rows activation rows by Panels weight panels held in registers;
// every output is one chain over the inputs whatever the tile, so results do not depend on it.
#pragma once

#include "backend/cpu/linear_ivec.h"
#include "backend/cpu/linear_kernels.h"

namespace {
namespace linear {

using mr::LinearCall;
using mr::RoundedBlock;

constexpr int kPanel = 16, kBlock = 32;

// Largest tiles that the registers hold.
#if defined(__AVX512F__)
constexpr int kFloatRows = 8, kFloatPanels = 2, kQuantRows = 8;
#elif defined(__AVX2__)
constexpr int kFloatRows = 6, kFloatPanels = 1, kQuantRows = 4;
#else
constexpr int kFloatRows = 4, kFloatPanels = 1, kQuantRows = 4;
#endif
constexpr int kOneRowPanels = 4;  // one row: that many chains hide the latency of an fma

template <int N>
inline void finish_n(const LinearCall& c, int64_t row, int64_t column, Vec sum, int n) {
  auto get = [&](const float* p) { return N ? load_n(p, n) : load(p); };
  if (c.bias) sum = add(sum, get(c.bias + column));
  if (c.scale != 1) sum = mul(set1(c.scale), sum);
  if (c.residual) sum = add(get(c.residual + row * c.residual_stride + column), sum);
  float* y = c.y + row * c.y_stride + column;
  if (N)
    store_n(y, sum, n);
  else
    store(y, sum);
}

inline void finish(const LinearCall& c, int64_t row, int64_t panel, Vec sum) {
  int64_t column = panel * kPanel, left = c.out - column;
  if (left >= kPanel)
    finish_n<0>(c, row, column, sum, kPanel);
  else
    finish_n<1>(c, row, column, sum, int(left));
}

// Float weights.

struct F32 {
  using Stored = float;
  static Vec get(const float* p) { return load(p); }
};
struct F16 {
  using Stored = uint16_t;
  static Vec get(const uint16_t* p) { return load_f16(p); }
};
struct Bf16 {
  using Stored = uint16_t;
  static Vec get(const uint16_t* p) { return load_bf16(p); }
};

template <class W, int Rows, int Panels>
void float_tile(const LinearCall& c, int64_t row, int64_t panel, const typename W::Stored* w) {
  Vec acc[Rows][Panels];
  for (int r = 0; r < Rows; r++)
    for (int p = 0; p < Panels; p++) acc[r][p] = zero();
  const float* x = c.x + row * c.x_stride;
  const int64_t in = c.in, stride = c.x_stride;
  for (int64_t k = 0; k < in; k++) {
    Vec wk[Panels];
    for (int p = 0; p < Panels; p++) wk[p] = W::get(w + (p * in + k) * kPanel);
    for (int r = 0; r < Rows; r++) {
      Vec xk = set1(x[r * stride + k]);
      for (int p = 0; p < Panels; p++) acc[r][p] = fma(xk, wk[p], acc[r][p]);
    }
  }
  for (int r = 0; r < Rows; r++)
    for (int p = 0; p < Panels; p++) finish(c, row + r, panel + p, acc[r][p]);
}

// Rows [row, row_end) of one group of panels, in the largest tiles of at most Rows rows.
template <class W, int Rows, int Panels>
void float_rows(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, const typename W::Stored* w) {
  for (; row + Rows <= row_end; row += Rows) float_tile<W, Rows, Panels>(c, row, panel, w);
  if constexpr (Rows > 1)
    if (row < row_end) float_rows<W, Rows - 1, Panels>(c, row, row_end, panel, w);
}

// As above, from an f32 copy of the panels if the rows are many: then widening costs once, not once a tile.
template <class W, int Rows, int Panels>
void float_panels(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, float* scratch) {
  const auto* w = (const typename W::Stored*)c.packed + panel * c.in * kPanel;
  if (sizeof(*w) == sizeof(float) || row_end - row <= kFloatRows) return float_rows<W, Rows, Panels>(c, row, row_end, panel, w);
  for (int64_t i = 0; i < Panels * c.in; i++) store(scratch + i * kPanel, W::get(w + i * kPanel));
  float_rows<F32, Rows, Panels>(c, row, row_end, panel, scratch);
}

template <class W>
void run_float(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* scratch) {
  if (row_end - row == 1)
    for (; panel + kOneRowPanels <= panel_end; panel += kOneRowPanels) float_panels<W, 1, kOneRowPanels>(c, row, row_end, panel, scratch);
  for (; panel + kFloatPanels <= panel_end; panel += kFloatPanels)
    float_panels<W, kFloatRows, kFloatPanels>(c, row, row_end, panel, scratch);
  for (; panel < panel_end; panel++) float_panels<W, kFloatRows, 1>(c, row, row_end, panel, scratch);
}

// Quantized weights. A packed block: f16 scales, (f16 minima), then vectors of 4 inputs x 16 rows. As int16 lanes, a vector's
// even bytes are inputs 0 and 2 of each row and its odd bytes inputs 1 and 3: the pairs of a RoundedBlock.

struct Q8_0 {
  static constexpr int kOffset = 128, kHeaders = 1, kVectors = 8;
  template <class F>
  static void pairs(const uint8_t* vector, int g, F use) {
    IVec v = load_bytes(vector);
    use(and16(v, 0xff), 4 * g);
    use(shift16<8>(v), 4 * g + 2);
  }
};

template <int Offset, int Headers>
struct Q4 {
  static constexpr int kOffset = Offset, kHeaders = Headers, kVectors = 4;
  template <class F>
  static void pairs(const uint8_t* vector, int g, F use) {
    IVec v = load_bytes(vector);
    use(and16(v, 15), 4 * g);
    use(and16(shift16<8>(v), 15), 4 * g + 2);
    use(and16(shift16<4>(v), 15), 16 + 4 * g);
    use(shift16<12>(v), 16 + 4 * g + 2);
  }
};
using Q4_0 = Q4<8, 1>;
using Q4_1 = Q4<0, 2>;

template <class W>
void round_row(const float* x, int64_t in, RoundedBlock* out) {
  for (int64_t b = 0; b < in / kBlock; b++, x += kBlock, out++) {
    uint32_t bits = max_magnitude(x);
    float largest = __builtin_bit_cast(float, bits);
    bool none = bits < 0x0d800000u;  // below 2^-100: nothing
    bool bad = bits >= 0x7f800000u;
    if (none || bad) {
      for (int i = 0; i < kBlock; i++) out->q[i] = 0;
      out->scale = out->sum = bad ? __builtin_nanf("") : 0;
      out->start = 0;
      continue;
    }
    int32_t sum = round_32(x, 32639.0f / largest, out->q);
    out->scale = largest / 32639.0f;
    out->start = -W::kOffset * sum;
    out->sum = out->scale * float(sum);
  }
}

template <class W, int Rows>
void quant_tile(const LinearCall& c, int64_t row, int64_t panel) {
  constexpr int64_t kBytes = kPanel * (2 * W::kHeaders + 4 * W::kVectors);
  const int64_t blocks = c.in / kBlock;
  const uint8_t* w = (const uint8_t*)c.packed + panel * blocks * kBytes;
  const RoundedBlock* x = c.rounded + row * blocks;
  Vec acc[Rows];
  for (int r = 0; r < Rows; r++) acc[r] = zero();
  for (int64_t b = 0; b < blocks; b++, w += kBytes, x++) {
    IVec sum[Rows];
    for (int r = 0; r < Rows; r++) sum[r] = set_all(x[r * blocks].start);
    for (int g = 0; g < W::kVectors; g++)
      W::pairs(w + 2 * kPanel * W::kHeaders + 64 * g, g, [&](IVec pair, int at) {
        for (int r = 0; r < Rows; r++) sum[r] = dot(sum[r], pair, load_pair(x[r * blocks].q + at));
      });
    Vec scale = load_f16((const uint16_t*)w);
    for (int r = 0; r < Rows; r++) acc[r] = fma(to_float(sum[r]), mul(scale, set1(x[r * blocks].scale)), acc[r]);
    if constexpr (W::kHeaders == 2) {
      Vec minimum = load_f16((const uint16_t*)w + kPanel);
      for (int r = 0; r < Rows; r++) acc[r] = fma(minimum, set1(x[r * blocks].sum), acc[r]);
    }
  }
  for (int r = 0; r < Rows; r++) finish(c, row + r, panel, acc[r]);
}

template <class W, int Rows>
void quant_rows(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel) {
  for (; row + Rows <= row_end; row += Rows) quant_tile<W, Rows>(c, row, panel);
  if constexpr (Rows > 1)
    if (row < row_end) quant_rows<W, Rows - 1>(c, row, row_end, panel);
}

template <class W>
void run_quant(const LinearCall& c, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float*) {
  for (; panel < panel_end; panel++) quant_rows<W, kQuantRows>(c, row, row_end, panel);
}

constexpr mr::LinearKernel kTable[] = {
    {"f32", nullptr, run_float<F32>},           {"f16", nullptr, run_float<F16>},           {"bf16", nullptr, run_float<Bf16>},
    {"q8_0", round_row<Q8_0>, run_quant<Q8_0>}, {"q4_0", round_row<Q4_0>, run_quant<Q4_0>}, {"q4_1", round_row<Q4_1>, run_quant<Q4_1>},
};
constexpr mr::LinearKernels kKernels{kTable, sizeof(kTable) / sizeof(kTable[0]), kFloatPanels};

}  // namespace linear
}  // namespace
