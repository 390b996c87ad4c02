#include "io/stored_tensor.h"

#include <fmt/ranges.h>

#include "core/error.h"

namespace mr {

// Sizes are those of the block structures in ggml-common.h and of the safetensors specification.
static constexpr StoredFormat kFormats[] = {
    {"f32", 1, 4, 4, 0, "F32"},          {"f16", 1, 2, 2, 1, "F16"},          {"bf16", 1, 2, 2, 30, "BF16"},
    {"f64", 1, 8, 8, 28, "F64"},         {"i8", 1, 1, 1, 24, "I8"},           {"i16", 1, 2, 2, 25, "I16"},
    {"i32", 1, 4, 4, 26, "I32"},         {"i64", 1, 8, 8, 27, "I64"},         {"bool", 1, 1, 1, -1, "BOOL"},
    {"u8", 1, 1, 1, -1, "U8"},           {"u16", 1, 2, 2, -1, "U16"},         {"u32", 1, 4, 4, -1, "U32"},
    {"u64", 1, 8, 8, -1, "U64"},         {"c64", 1, 8, 4, -1, "C64"},         {"f8_e4m3", 1, 1, 1, -1, "F8_E4M3"},
    {"f8_e5m2", 1, 1, 1, -1, "F8_E5M2"}, {"f8_e8m0", 1, 1, 1, -1, "F8_E8M0"}, {"f4", 2, 1, 1, -1, "F4"},
    {"f6_e2m3", 4, 3, 1, -1, "F6_E2M3"}, {"f6_e3m2", 4, 3, 1, -1, "F6_E3M2"}, {"q4_0", 32, 18, 2, 2, ""},
    {"q4_1", 32, 20, 2, 3, ""},          {"q5_0", 32, 22, 2, 6, ""},          {"q5_1", 32, 24, 2, 7, ""},
    {"q8_0", 32, 34, 2, 8, ""},          {"q8_1", 32, 36, 2, 9, ""},          {"q2_k", 256, 84, 2, 10, ""},
    {"q3_k", 256, 110, 2, 11, ""},       {"q4_k", 256, 144, 2, 12, ""},       {"q5_k", 256, 176, 2, 13, ""},
    {"q6_k", 256, 210, 2, 14, ""},       {"q8_k", 256, 292, 4, 15, ""},       {"iq2_xxs", 256, 66, 2, 16, ""},
    {"iq2_xs", 256, 74, 2, 17, ""},      {"iq3_xxs", 256, 98, 2, 18, ""},     {"iq1_s", 256, 50, 2, 19, ""},
    {"iq4_nl", 32, 18, 2, 20, ""},       {"iq3_s", 256, 110, 2, 21, ""},      {"iq2_s", 256, 82, 2, 22, ""},
    {"iq4_xs", 256, 136, 2, 23, ""},     {"iq1_m", 256, 56, 2, 29, ""},       {"tq1_0", 256, 54, 2, 34, ""},
    {"tq2_0", 256, 66, 2, 35, ""},       {"mxfp4", 32, 17, 1, 39, ""},        {"nvfp4", 64, 36, 1, 40, ""},
    {"q1_0", 128, 18, 2, 41, ""},        {"q2_0", 64, 18, 2, 42, ""},
};

std::span<const StoredFormat> stored_formats() { return kFormats; }

std::string shape_string(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

size_t stored_bytes(const StoredFormat& format, const StoredTensor& tensor, const std::filesystem::path& file) {
  int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  check(row % format.elements == 0, "tensor '{}' of '{}' has rows of {} elements, which do not divide into {}'s blocks of {}", tensor.name,
        file.native(), row, format.name, format.elements);
  int64_t bytes = row / format.elements;
  bool fits = !__builtin_mul_overflow(bytes, int64_t(format.bytes), &bytes);
  for (size_t i = 0; i + 1 < tensor.shape.size() && fits; i++) fits = !__builtin_mul_overflow(bytes, tensor.shape[i], &bytes);
  check(fits, "tensor '{}' of '{}' has an impossible shape {}", tensor.name, file.native(), shape_string(tensor.shape));
  return size_t(bytes);
}

}  // namespace mr
