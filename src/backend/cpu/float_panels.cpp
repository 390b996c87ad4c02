#include <algorithm>
#include <cstring>

#include "backend/cpu/panels.h"

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
static int64_t bytes(const Codec&, int64_t out, int64_t in) {
  return (out + kPair * kPanel - 1) / (kPair * kPanel) * kPair * Place<T>::vectors(in) * 64;
}

template <class T>
static void pack_panel(std::byte* packed, int64_t panel, const StoredWeight& w) {
  constexpr int64_t kTile = 32;  // inputs at a time: a cache line or two of each row
  const int64_t first = panel * kPanel, rows = std::min<int64_t>(kPanel, w.out() - first);
  T* out = reinterpret_cast<T*>(packed);
  T tile[kPanel][kTile]{};
  const std::byte* row[kPanel];
  for (int64_t r = 0; r < rows; r++) row[r] = w.row(first + r);
  for (int64_t k = 0; k < w.in; k += kTile) {
    const int64_t n = std::min(kTile, w.in - k);
    for (int64_t r = 0; r < rows; r++) std::memcpy(tile[r], row[r] + k * int64_t(sizeof(T)), size_t(n) * sizeof(T));
    for (int64_t i = 0; i < n; i++)
      for (int r = 0; r < kPanel; r++) out[Place<T>::at(panel, w.in, k + i) + r] = tile[r][i];
  }
}

template <class T, float (*widen)(T)>
static void decode(const Weight& w, int64_t row, int64_t n, float* out) {
  const T* packed = w.packed.as<T>();
  for (int64_t r = row; r < row + n; r++, out += w.in)
    for (int64_t k = 0; k < w.in; k++) out[k] = widen(packed[Place<T>::at(r / kPanel, w.in, k) + r % kPanel]);
}

static float same(float x) { return x; }

static const PanelLayout kF32Panels{{"f32", decode<float, same>}, bytes<float>, pack_panel<float>};
static const PanelLayout kF16Panels{{"f16", decode<uint16_t, f32_from_f16>}, bytes<uint16_t>, pack_panel<uint16_t>};
static const PanelLayout kBf16Panels{{"bf16", decode<uint16_t, f32_from_bf16>}, bytes<uint16_t>, pack_panel<uint16_t>};

const PanelLayout* float_panels(DType type) {
  switch (type) {
    case DType::f32:
      return &kF32Panels;
    case DType::f16:
      return &kF16Panels;
    case DType::bf16:
      return &kBf16Panels;
    default:
      return nullptr;
  }
}

}  // namespace mr
