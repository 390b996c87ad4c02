#include "core/dtype.h"

#include <array>
#include <utility>

#include "core/error.h"

namespace mr {

static constexpr std::array<std::pair<DType, std::string_view>, 11> kDTypeNames{{{DType::f32, "f32"},
                                                                                 {DType::f16, "f16"},
                                                                                 {DType::bf16, "bf16"},
                                                                                 {DType::i8, "i8"},
                                                                                 {DType::u8, "u8"},
                                                                                 {DType::i16, "i16"},
                                                                                 {DType::i32, "i32"},
                                                                                 {DType::i64, "i64"},
                                                                                 {DType::f8_e4m3, "fp8_e4m3"},
                                                                                 {DType::f8_e5m2, "fp8_e5m2"},
                                                                                 {DType::i4, "i4"}}};

std::string_view name_of(DType t) { return kDTypeNames[size_t(t)].second; }

DType dtype_from(std::string_view name) {
  for (auto [t, n] : kDTypeNames)
    if (n == name) return t;
  fail("unknown element type '{}'", name);
}

}  // namespace mr
