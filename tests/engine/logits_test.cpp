// All logits of every fixture, at every position, against transformers: the reference backend and each instruction set.
// Formats in which the CPU rounds activations to 16 bits have the same bound, because that rounding is below it; twice that in the wider
// models of the quantization libraries' formats, where a row's 14 products may add up to just over it.
#include "engine/harness.h"

namespace mr {
namespace {

struct Device {
  std::string name;
  std::optional<Isa> isa;
};

std::vector<Device> devices() {
  std::vector<Device> list{{"ref", {}}};
  for (Isa isa : available_isas()) list.push_back({"cpu", isa});
  return list;
}

class Logits : public testing::TestWithParam<std::string> {};

TEST_P(Logits, AgreeWithTheOracleAtEveryPosition) {
  const std::string& name = GetParam();
  Json expected = expected_of(name);
  auto tokens = expected["prompt"].get<std::vector<int32_t>>();
  // Where a rope depends on the length, the rows of the answer came from another length than a single pass would have.
  bool one_pass = expected["logits"].get<std::string>().starts_with("one forward");
  if (one_pass)
    for (int32_t t : expected["greedy"]) tokens.push_back(t);
  const size_t vocab = expected["vocab"];
  const double largest = expected["max_abs_logit"];
  // Where a format rounds activations to 8 bits, a value between two steps may fall to either: most rows agree, no row is far off.
  const bool rounds = expected.value("rounds_activations", false);
  std::ifstream file(std::filesystem::path(MR_FIXTURES) / "models" / name / "logits.f32", std::ios::binary);
  std::vector<float> want(tokens.size() * vocab);
  ASSERT_TRUE(file.read(reinterpret_cast<char*>(want.data()), std::streamsize(want.size() * 4)));

  for (const Device& device : devices()) {
    auto engine = open(name, {.device = device.name, .isa = device.isa, .kv_dtype = DType::f32, .page_tokens = 16});
    std::vector<float> got;
    Request request = greedy(tokens, 1);
    request.score_prompt = true;
    request.on_logits = [&](int, std::span<const float> row) { got.insert(got.end(), row.begin(), row.end()); };
    run_one(*engine, request);
    ASSERT_EQ(got.size(), want.size());
    std::vector<double> worst(tokens.size());  // of a row
    for (size_t i = 0; i < got.size(); i++) worst[i / vocab] = std::max(worst[i / vocab], double(std::abs(got[i] - want[i])));
    std::ranges::sort(worst);
    const double bound = rounds ? 0.05 : name.starts_with("quant_") && device.isa ? 2e-4 : 1e-4;
    EXPECT_LT(worst.back(), bound * largest) << device.name << " " << (device.isa ? name_of(*device.isa) : "");
    EXPECT_LT(worst[worst.size() / 2], 1e-4 * largest) << device.name << " " << (device.isa ? name_of(*device.isa) : "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Logits, testing::ValuesIn(fixture_names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace mr
