#include "quant/value_tables.h"

#include <array>

#include "core/dtype.h"

namespace mr {

template <float (*value)(uint8_t)>
static const float* all_values() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t;
    for (int i = 0; i < 256; i++) t[size_t(i)] = value(uint8_t(i));
    return t;
  }();
  return table.data();
}

const float* e4m3_values() { return all_values<f32_from_e4m3>(); }
const float* e5m2_values() { return all_values<f32_from_e5m2>(); }

}  // namespace mr
