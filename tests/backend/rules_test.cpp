// What one kernel does for several operations, against the operations one by one, for 1 to 300 rows: on the CPU the same bits, and so
// with slots shared or not; on a GPU within the rounding of bf16.
#include "backend/rules.h"

#include "backend/cpu/panels.h"
#ifdef MR_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace mr::test {
namespace {

class Rules : public testing::TestWithParam<RuleCase> {
 protected:
  std::unique_ptr<Net> net(Backend& b, const ProgramOptions& options, std::string_view format = "f32") {
    auto n = std::make_unique<Net>(b, std::nullopt, format);
    GetParam().record(*n);
    n->finish(options);
    EXPECT_EQ(n->has(GetParam().rule), options.fuse);
    return n;
  }
};

TEST_P(Rules, GiveTheBitsOfPlainOperations) {
  std::vector<NamedBackend> all = cpu_backends(2);
  all.push_back({"ref", make_ref_backend()});
  for (auto& [name, backend] : all)
    for (const Codec* codec : codecs()) {
      const std::string_view format = codec->name;
      const bool one = format == "f32", products = GetParam().rule <= Rule::gate_linear;  // which differ by format
      if (!one && (name == "ref" || (!products && format != "q4_1") || (GetParam().floats && codec->block > 1) || codec->block > kBlock))
        continue;
      auto plain = net(*backend, {.fuse = false, .share = false}, format), marked = net(*backend, {.fuse = true, .share = false}, format),
           shared = net(*backend, {}, format);
      EXPECT_LE(shared->program().whole.slots.size(), marked->program().whole.slots.size());
      for (int rows : kRuleRows) {
        if (rows > 40 && (name == "scalar" || name == "ref")) continue;  // slow
        if (!one && rows % 3 == 2) continue;                             // 1, 3, 7, 16, 33, 64, 129, 300 are enough
        for (const RowsIn& way : ways_to_have(rows, *plain)) {
          const std::string where = fmt::format("{} on {}, {}, {} rows of {}", GetParam().name, name, format, rows, way.now.size());
          const std::vector<float> want = results_of(*plain, way);
          EXPECT_FALSE(std::isnan(std::accumulate(want.begin(), want.end(), 0.0f))) << where;
          expect_same_bits(results_of(*marked, way), want, where);
          expect_same_bits(results_of(*shared, way), want, where + ", slots shared");
        }
      }
    }
}

#ifdef MR_CUDA
// Rows that differ most are left out where experts are chosen.
void expect_rows_near(std::vector<float> got, std::vector<float> want, int64_t cols, int left_out, double most, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (; left_out > 0; left_out--) {
    double worst = -1;
    int64_t at = 0;
    for (int64_t r = 0; r + cols <= int64_t(want.size()); r += cols) {
      double sum = 0;
      for (int64_t i = r; i < r + cols; i++) sum += std::pow(double(got[size_t(i)]) - want[size_t(i)], 2);
      if (sum > worst) {
        worst = sum;
        at = r;
      }
    }
    got.erase(got.begin() + at, got.begin() + at + cols);
    want.erase(want.begin() + at, want.begin() + at + cols);
  }
  expect_near(got, want, most, what);
}

TEST_P(Rules, FollowRefOnAGpu) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  const RuleCase& c = GetParam();
  auto ref = make_ref_backend();
  auto want_net = net(*ref, {.fuse = false, .share = false});
  struct Device {
    CudaOptions options;
    std::unique_ptr<CudaBackend> gpu = make_cuda_backend(options);
    std::unique_ptr<Net> plain{}, marked{}, shared{};
  };
  std::vector<Device> devices;
  for (const CudaOptions& options :
       std::vector<CudaOptions>{{.chain = 1}, {.chain = 3}, {.chain = 1000}, {.deterministic = true}, {.plain = true}}) {
    Device& d = devices.emplace_back(Device{options});
    d.plain = net(*d.gpu, {.fuse = false, .share = false});
    d.marked = net(*d.gpu, {.fuse = true, .share = false});
    d.shared = net(*d.gpu, {});
  }
  for (int rows : kRuleRows)
    for (const RowsIn& way : ways_to_have(rows, *want_net)) {
      const std::vector<float> want = results_of(*want_net, way);
      for (Device& d : devices) {
        const bool deterministic = d.options.deterministic;
        const std::string where = fmt::format("{}, {} rows of {}, chain {}{}{}", c.name, rows, way.now.size(), d.options.chain,
                                              deterministic ? ", deterministic" : "", d.options.plain ? ", plain kernels" : "");
        auto expect_ref = [&](const std::vector<float>& got, const char* how) {
          const int left_out = c.chooses ? rows / 10 + (rows > 1 ? 1 : 0) : 0;
          expect_rows_near(got, want, want_net->program().logits.cols, left_out, c.steps * kHalfStep, where + how);
        };
        const std::vector<float> got = results_of(*d.marked, way), again = results_of(*d.shared, way);
        expect_ref(results_of(*d.plain, way), ", one by one");
        expect_ref(got, "");
        expect_ref(again, ", slots shared");
        if (deterministic) expect_same_bits(again, got, where + ", slots shared");
      }
    }
}
#endif

INSTANTIATE_TEST_SUITE_P(All, Rules, testing::ValuesIn(kRuleCases), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mr::test
