// Products with weights in groups, as quantized safetensors have them: against sums in double precision over their decoded values, and
// equal to the bit on every instruction set, alone or among other rows.
#include "quant/grouped.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "backend/cpu/linear.h"
#include "backend/soft_tiles.h"
#include "core/thread_pool.h"

namespace mr {
namespace {

struct Case {
  const char* name;
  int bits;
  Grid::Scale scale;
  int64_t group;  // 0: the row
  enum { offset, zeros, minima } kind;
  bool any_order = false;
};

// A random weight: codes in rows, zeros [out, groups] as bytes, scales [out, groups].
struct Made {
  std::vector<std::byte> codes, scales, second;
  std::vector<int32_t> numbers;
  StoredWeight stored;

  Made(const Case& c, int64_t out, int64_t in, unsigned seed) {
    std::mt19937 rng(seed);
    const int64_t group = c.group ? c.group : in, groups = in / group;
    auto put = [&](std::vector<std::byte>& to, float x) {
      const uint32_t bits = c.scale == Grid::Scale::f16    ? f16_from_f32(x)
                            : c.scale == Grid::Scale::bf16 ? bf16_from_f32(x)
                                                           : std::bit_cast<uint32_t>(x);
      const auto* p = reinterpret_cast<const std::byte*>(&bits);
      to.insert(to.end(), p, p + size_of(c.scale));
    };
    for (int64_t i = 0; i < out * in * c.bits / 8; i++) codes.push_back(std::byte(rng()));
    for (int64_t i = 0; i < out * groups; i++) {
      const float scale = 0.01f + 0.1f * float(rng() % 1000) / 1000;
      put(scales, scale);
      if (c.kind == Case::minima) put(second, -scale * float(1 << (c.bits - 1)));
      if (c.kind == Case::zeros) second.push_back(std::byte(rng() & ((1u << c.bits) - 1)));
    }
    for (int64_t k = 0; k < in; k++) numbers.push_back(int32_t(k / group));
    Grouped g{.codes = {.bits = c.bits}, .group = group, .scale = c.scale, .any_order = c.any_order};
    g.grid = {.bits = c.bits, .scale = c.scale};
    if (c.kind == Case::offset) g.grid.offset = 1 << (c.bits - 1);
    if (c.kind == Case::minima) g.grid.minimum = true;
    if (c.kind == Case::zeros) {
      g.zeros = {.bits = 8, .unit = 1};
      g.grid.zero = true;
    }
    stored = {grouped_codec(c.name, g, in), in};
    StoredWeight::Beside beside{.codes = codes, .scale = scales, .zero = second};
    if (c.any_order) {
      std::ranges::shuffle(numbers, rng);
      beside.group_of = std::as_bytes(std::span(numbers));
    }
    stored.add(out, beside);
  }
};

std::vector<std::pair<std::string, const LinearKernels*>> variants() {
  std::vector<std::pair<std::string, const LinearKernels*>> all;
  for (Isa isa : available_isas()) all.emplace_back(name_of(isa), &linear_kernels(isa));
  if (std::ranges::count(available_isas(), Isa::vnni)) all.emplace_back("amx in software", &soft_tile_kernels());
  return all;
}

class GroupedTest : public testing::TestWithParam<Case> {
 protected:
  ThreadPool pool{2};
  std::vector<float> run(const LinearKernels& kernels, const Weight& w, std::vector<float>& x) {
    const int64_t rows = int64_t(x.size()) / w.in;
    std::vector<float> y(size_t(rows * w.out));
    LinearScratch scratch;
    cpu_linear(view(y.data(), DType::f32, {rows, w.out}), view(x.data(), DType::f32, {rows, w.in}), w, {}, pool, kernels, scratch);
    return y;
  }
};

TEST_P(GroupedTest, IsTheProductOnEveryInstructionSet) {
  const Case& c = GetParam();
  for (int64_t in : {384, 1536})
    for (int64_t out : {1, 16, 37, 100}) {
      Made made(c, out, in, unsigned(in + out));
      WeightStore store;
      const Weight w = pack(made.stored, store, pool);
      EXPECT_EQ(w.layout->name, c.bits == 4 ? "int4 in groups" : "int8 in groups");
      std::vector<float> decoded(size_t(out * in)), row(static_cast<size_t>(in));
      w.decode(0, out, decoded.data());
      for (int64_t o = 0; o < out; o++) {
        made.stored.decode(o, 0, in, row.data());
        ASSERT_EQ(std::memcmp(row.data(), decoded.data() + o * in, size_t(in) * 4), 0) << "row " << o;
      }
      std::mt19937 rng(5);
      std::normal_distribution<float> normal;
      for (int64_t rows : {1, 3, 20, 41}) {
        std::vector<float> x(size_t(rows * in)), first;
        for (float& v : x) v = normal(rng);
        for (auto& [name, kernels] : variants()) {
          const auto y = run(*kernels, w, x);
          if (first.empty()) first = y;
          ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * 4), 0) << name << ", " << rows << " rows";
          std::vector<float> last(x.end() - in, x.end());
          const auto alone = run(*kernels, w, last);
          ASSERT_EQ(std::memcmp(alone.data(), y.data() + (rows - 1) * out, size_t(out) * 4), 0) << name << ", alone of " << rows;
        }
        for (int64_t r = 0; r < rows; r++)
          for (int64_t o = 0; o < out; o++) {
            double exact = 0, magnitude = 0;
            for (int64_t k = 0; k < in; k++) {
              const double term = double(x[size_t(r * in + k)]) * decoded[size_t(o * in + k)];
              exact += term;
              magnitude += std::abs(term);
            }
            // Half a step of 16 bits in every activation, and the sums of f32, in which offsets cancel.
            ASSERT_NEAR(first[size_t(r * out + o)], exact, 1e-4 * magnitude + 1e-6) << rows << " rows, row " << r << ", output " << o;
          }
      }
    }
}

// Hardly more memory than the file.
TEST_P(GroupedTest, TakesTheBytesOfTheFile) {
  const Case& c = GetParam();
  Made made(c, 64, 1536, 1);
  WeightStore store(WeightStore::Mode::counts);
  pack(made.stored, store, pool);
  const size_t file = made.codes.size() + made.scales.size() + made.second.size() + (c.any_order ? made.numbers.size() * 4 : 0);
  EXPECT_LE(double(store.bytes()), 1.05 * double(file) + 256);
}

const Case kCases[] = {
    {"zeros_f16_128", 4, Grid::Scale::f16, 128, Case::zeros},         {"zeros_bf16_64", 4, Grid::Scale::bf16, 64, Case::zeros},
    {"offset_f32_row", 4, Grid::Scale::f32, 0, Case::offset},         {"offset_f16_96", 4, Grid::Scale::f16, 96, Case::offset},
    {"minima_bf16_32", 4, Grid::Scale::bf16, 32, Case::minima},       {"minima_bf16_64", 4, Grid::Scale::bf16, 64, Case::minima},
    {"bytes_bf16_row", 8, Grid::Scale::bf16, 0, Case::offset},        {"bytes_f32_128", 8, Grid::Scale::f32, 128, Case::zeros},
    {"ordered_f16_128", 4, Grid::Scale::f16, 128, Case::zeros, true}, {"ordered_bytes_f16_32", 8, Grid::Scale::f16, 32, Case::offset, true},
};
INSTANTIATE_TEST_SUITE_P(All, GroupedTest, testing::ValuesIn(kCases), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace mr
