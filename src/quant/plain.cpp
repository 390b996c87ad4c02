// f32, f16 and bf16: no scales.
#include <cstring>

#include "quant/table.h"

namespace mr {

template <class T, float (*widen)(T)>
static void decode(const std::byte* row, int64_t in, float* out) {
  for (int64_t k = 0; k < in; k++) {
    T value;
    std::memcpy(&value, row + k * int64_t(sizeof(T)), sizeof(T));
    out[k] = widen(value);
  }
}

template <class T, T (*narrow)(float)>
static void encode(const float* row, int64_t in, std::byte* stored) {
  for (int64_t k = 0; k < in; k++) {
    T value = narrow(row[k]);
    std::memcpy(stored + k * int64_t(sizeof(T)), &value, sizeof(T));
  }
}

static float same(float x) { return x; }

template <class T, float (*widen)(T), T (*narrow)(float)>
static constexpr Codec plain(std::string_view name, DType dtype) {
  return {name, dtype, 1, sizeof(T), {}, decode<T, widen>, nullptr, encode<T, narrow>};
}

const Codec kF32 = plain<float, same, same>("f32", DType::f32);
const Codec kF16 = plain<uint16_t, f32_from_f16, f16_from_f32>("f16", DType::f16);
const Codec kBf16 = plain<uint16_t, f32_from_bf16, bf16_from_f32>("bf16", DType::bf16);

}  // namespace mr
