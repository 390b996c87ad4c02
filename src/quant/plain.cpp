// f32, f16 and bf16: no scales.
#include <cstring>

#include "quant/format.h"
#include "quant/table.h"

namespace mr {

template <class T>
struct Place {
  static constexpr int64_t inputs = 4 / sizeof(T);  // in a vector
  static int64_t vectors(int64_t in) { return (in + inputs - 1) / inputs; }
  // Input k of a panel's first row.
  static int64_t at(int64_t panel, int64_t in, int64_t k) {
    return (((panel / kPair * vectors(in) + k / inputs) * kPair + panel % kPair) * inputs + k % inputs) * kPanel;
  }
};

template <class T>
static int64_t packed_bytes(int64_t out, int64_t in) {
  return (out + kPair * kPanel - 1) / (kPair * kPanel) * kPair * Place<T>::vectors(in) * 64;
}

template <class T>
static void pack_panel(std::byte* packed, int64_t panel, int64_t in, std::span<const std::byte* const, kPanel> rows) {
  constexpr int64_t kTile = 32;  // inputs at a time: a cache line or two of each row
  T* out = reinterpret_cast<T*>(packed);
  T tile[kPanel][kTile]{};
  for (int64_t k = 0; k < in; k += kTile) {
    int64_t n = k + kTile < in ? kTile : in - k;
    for (int r = 0; r < kPanel; r++)
      if (rows[r]) std::memcpy(tile[r], rows[r] + k * int64_t(sizeof(T)), size_t(n) * sizeof(T));
    for (int64_t i = 0; i < n; i++)
      for (int r = 0; r < kPanel; r++) out[Place<T>::at(panel, in, k + i) + r] = tile[r][i];
  }
}

template <class T, float (*widen)(T)>
static void decode_rows(const Weight& w, int64_t row, int64_t n, float* out) {
  const T* packed = w.packed.as<T>();
  for (int64_t r = row; r < row + n; r++, out += w.in)
    for (int64_t k = 0; k < w.in; k++) out[k] = widen(packed[Place<T>::at(r / kPanel, w.in, k) + r % kPanel]);
}

template <class T, T (*narrow)(float)>
static void encode_row(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k++) {
    T value = narrow(row[k]);
    std::memcpy(stored + k * int64_t(sizeof(T)), &value, sizeof(T));
  }
}

static float same(float x) { return x; }

template <class T, float (*widen)(T), T (*narrow)(float)>
static constexpr FormatOps plain(std::string_view name, DType dtype) {
  Format format{name, dtype, int(8 * sizeof(T)), 1, false, sizeof(T)};
  return {format, packed_bytes<T>, pack_panel<T>, decode_rows<T, widen>, encode_row<T, narrow>};
}

const FormatOps kF32 = plain<float, same, same>("f32", DType::f32);
const FormatOps kF16 = plain<uint16_t, f32_from_f16, f16_from_f32>("f16", DType::f16);
const FormatOps kBf16 = plain<uint16_t, f32_from_bf16, bf16_from_f32>("bf16", DType::bf16);

}  // namespace mr
