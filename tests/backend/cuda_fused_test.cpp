// What the CUDA backend does in one kernel where others take several, against ref, which does it in the plain order, and Mamba-2's scan in
// chunks. Inputs have bf16 values; the device rounds activations to bf16 between operations. Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/on_device.h"

namespace mr::test {
namespace {

// Its products stay near 1.
struct Small : Made {
  Small(int64_t out, int64_t in, uint64_t name) : Made(out, in, name, std::sqrt(3.0f / float(in))) {}
};

// Root of the mean square of the difference, relative to that of `want`: rounding is random, so that it shows what a bound on
// single elements must hide.
double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, all = 0;
  for (size_t i = 0; i < want.size(); i++) difference += std::pow(double(got[i]) - want[i], 2), all += std::pow(double(want[i]), 2);
  return std::sqrt(difference / all);
}
void expect_near(const std::vector<float>& got, const std::vector<float>& want, double most, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  EXPECT_TRUE(distance(got, want) <= most) << what << " is " << distance(got, want) << " away, not " << most;  // false for NaN, too
}

struct Kind {
  DType type;
  bool chained;  // operations of one row go through chain.cu
};

class CudaFused : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
    device_ = std::make_unique<OnDevice>(GetParam().type, CudaOptions{.chain = GetParam().chained ? 1 : 1000});
  }
  OnDevice& device() { return *device_; }
  static double rounding(double steps) { return steps * kHalfStep; }  // products read bf16 either way
  std::unique_ptr<OnDevice> device_;
  std::unique_ptr<Backend> ref_ = make_ref_backend();
  Arena arena_{Buffer(size_t(64) << 20)};
};

// n sequences of one row each, at slots of their own, which are written in place.
struct Singles {
  Units units;
  Rows rows;
  Singles(int n, int64_t floats) : units(n + 2, (floats * 4 + 63) / 64 * 64, 0, 5) {
    float* state = reinterpret_cast<float*>(units.state.group[0].base);
    for (int64_t i = 0; i < units.state.group[0].unit_bytes / 4 * (n + 2); i++) state[i] = value(77, uint64_t(i));
    for (int i = 0; i < n; i++) {
      rows.add(9, 1);
      rows.src.back() = rows.dst.back() = units.take();
    }
  }
  Batch batch() {
    Batch b = rows.batch();
    b.parent = nullptr;
    return b;
  }
  std::vector<float> state() const {
    const auto& g = units.state.group[0];
    const float* first = reinterpret_cast<const float*>(g.base);
    return {first, first + g.unit_bytes / 4 * g.n_units};
  }
};

TEST_P(CudaFused, linear_conv) {
  for (auto [rows, in, dim, out, first, channels, width] : {std::array{1, 64, 256, 200, 24, 100, 4},
                                                            {1, 96, 512, 77, 0, 77, 4},
                                                            {1, 64, 1096, 5003, 2001, 2600, 4},
                                                            {1, 64, 256, 64, 8, 56, 3},
                                                            {5, 64, 256, 200, 24, 100, 4}}) {
    Small one(dim, in, 1), two(out, dim, 2);
    Array x({rows, in}), weight({dim}), conv({channels, width}), bias({channels});
    whole(x.fill(3)), weight.fill(4), conv.fill(5), bias.fill(6);
    const Norm norm{Norm::Kind::rms, 1e-5f, weight};
    const ShortConv tail{conv, bias, Activation::silu, {{0, 0}, 0}};
    Singles want(rows, (width - 1) * channels), got(rows, (width - 1) * channels);
    Array before({rows, dim}), also({rows, dim}), y({rows, out}), z({rows, out}), u({rows, channels}), v({rows, channels});
    before.fill(7), also.fill(7), y.fill(8), z.fill(8);
    ref_->linear(before, x, one.weight, {.residual = before});
    ref_->linear_conv(y, before, norm, two.weight, {}, u, first, tail, want.batch(), want.units.state, arena_);
    device().linear_and_conv(z, v, also, x, one.weight, norm, two.weight, first, tail, got.batch(), got.units.state);
    const std::string what = fmt::format("{} rows to {}, {} channels of width {} on {}", rows, out, channels, width, device().name());
    expect_near(v.values(), u.values(), rounding(1.5), what);
    expect_near(got.state(), want.state(), rounding(1.5), what + ", the state");
    for (int r = 0; r < rows; r++)
      for (int o = 0; o < out; o++) {
        if (o >= first && o < first + channels) continue;
        EXPECT_NEAR(z.view.row<float>(r)[o], y.view.row<float>(r)[o], rounding(5)) << what << ", output " << o;
      }
  }
}

TEST_P(CudaFused, selective_scan) {
  for (auto [rows, inner, rank, n, norms] : {std::array{1, 160, 32, 16, 1},
                                             {3, 256, 160, 16, 1},
                                             {9, 72, 64, 8, 0},
                                             {40, 256, 128, 16, 1},
                                             {2, 64, 24, 16, 1},
                                             {1, 5120, 160, 16, 1},
                                             {1, 1000, 64, 8, 0},
                                             {1, 136, 256, 32, 1},
                                             {6, 5120, 160, 16, 1}}) {
    Small x(rank + 2 * n, inner, 1), low(inner, rank, 2);
    Array u({rows, inner}), z({rows, inner}), bias({inner}), a({inner, n}), d({inner}),
        weights[3] = {Array({rank}), Array({n}), Array({n})};
    whole(u.fill(3)), whole(z.fill(4, 2)), bias.fill(5), a.fill(6, 2, -2.1f), d.fill(7);
    Selection select{&x.weight, &low.weight, norms == 1, {}, {}, {}, bias};
    Norm* norm[] = {&select.dt_norm, &select.b_norm, &select.c_norm};
    for (size_t i = 0; i < 3; i++)
      weights[i].fill(8 + i, 0.5f, 1), *norm[i] = {Norm::Kind::rms, 1e-6f, i == 1 ? Tensor{} : weights[i].view};
    const DiagScan scan{inner, n, a, d, {{0, 0}, 0}};
    Singles want(rows, inner * n), got(rows, inner * n);
    Array y({rows, inner}), v({rows, inner});
    ref_->selective_scan(y, u, z, select, scan, want.batch(), want.units.state, arena_);
    device().selective_scan(v, u, z, select, scan, got.batch(), got.units.state);
    const std::string what = fmt::format("{} rows of {}, rank {}, {} states on {}", rows, inner, rank, n, device().name());
    expect_near(v.values(), y.values(), rounding(2), what);
    expect_near(got.state(), want.state(), rounding(2), what + ", the state");
  }
}

TEST_P(CudaFused, norm_behind_a_scan) {
  for (auto [rows, heads, dim, n] : {std::array{1, 4, 64, 128},
                                     {1, 80, 64, 128},
                                     {1, 3, 96, 60},
                                     {1, 2, 32, 256},
                                     {3, 5, 32, 16},
                                     {40, 20, 64, 128},
                                     {4, 6, 16, 12},
                                     {32, 20, 64, 128}}) {
    Small w(48, heads * dim, 1);
    Array x({rows, heads * dim}), dt({rows, heads}), b({rows, n}), c({rows, n}), z({rows, heads * dim}), a({heads}), d({heads}),
        bias({heads}), weight({heads * dim}), dt2({rows, heads});
    whole(x.fill(2)), whole(dt.fill(3)), whole(dt2.fill(3)), whole(b.fill(4)), whole(c.fill(5)), whole(z.fill(6, 2));
    a.fill(7, 1, -1.1f), d.fill(8), bias.fill(9), weight.fill(10);
    const OuterScan scan{heads, dim, n, 1, a, d, 0, 10, {{0, 0}, 0}};
    const Norm norm{Norm::Kind::rms, 1e-5f, weight};
    Singles want(rows, heads * dim * n), got(rows, heads * dim * n);
    Array y({rows, heads * dim}), v({rows, heads * dim}), out({rows, 48}), sum({rows, 48});
    out.fill(11), sum.fill(11);
    ref_->outer_scan_gated(y, x, dt, bias, b, c, z, scan, want.batch(), want.units.state, &norm);
    ref_->linear_normed(out, y, norm, w.weight, {.residual = out}, arena_);
    device().scan_and_linear(sum, v, x, dt2, bias, b, c, z, scan, norm, w.weight, got.batch(), got.units.state);
    const std::string what = fmt::format("{} rows of {} heads of {} on {}", rows, heads, dim, device().name());
    expect_near(sum.values(), out.values(), rounding(1.5), what);
    expect_near(v.values(), y.values(), rounding(1.5), what + ", the scan");
    expect_near(got.state(), want.state(), 1e-4, what + ", the state");
  }
}

// Prompts of several lengths side by side, states kept at their end and on the way, then one more step of all from there.
TEST_P(CudaFused, scan_in_chunks) {
  const int heads = 6, dim = 64, n = 128, groups = 2;
  Array a({heads}), d({heads}), bias({heads});
  a.fill(7, 1, -1.1f), d.fill(8), bias.fill(9);
  const OuterScan scan{heads, dim, n, groups, a, d, 0, 10, {{0, 0}, 0}};
  std::vector<float> outs[2], states[2];
  for (int which = 0; which < 2; which++) {
    Units units(12, heads * dim * n * 4, 0, 5);
    int done[4] = {};
    int32_t slot[4];
    for (int32_t& s : slot) s = units.take();
    for (auto steps : {std::array{64, 200, 1, 33}, {70, 1, 130, 65}, {1, 63, 64, 1}}) {
      Rows rows;
      for (size_t i = 0; i < 4; i++) {
        rows.add(done[i], steps[i]);
        rows.src.back() = done[i] ? slot[i] : 0, rows.dst.back() = slot[i];
        if (steps[i] == 130) rows.dst[rows.dst.size() - 47] = units.take(), rows.dst[rows.dst.size() - 30] = units.take();
        done[i] += steps[i];
      }
      Batch batch = rows.batch();
      batch.parent = nullptr;
      const int t = batch.n_tokens;
      Array x({t, heads * dim}), dt({t, heads}), b({t, groups * n}), c({t, groups * n}), z({t, heads * dim}), y({t, heads * dim});
      whole(x.fill(2)), whole(dt.fill(3, 2, -2)), whole(b.fill(4)), whole(c.fill(5)), whole(z.fill(6, 2));
      Backend& backend = which ? static_cast<Backend&>(device()) : *ref_;
      backend.outer_scan_gated(y, x, dt, bias, b, c, z, scan, batch, units.state);
      for (float v : y.values()) outs[which].push_back(v);
    }
    for (int32_t unit = 1; unit < 12; unit++)
      if (std::find(units.free.begin(), units.free.end(), unit) == units.free.end()) {
        const float* h = reinterpret_cast<const float*>(units.state.group[0].unit(unit));
        states[which].insert(states[which].end(), h, h + heads * dim * n);
      }
  }
  expect_near(outs[1], outs[0], rounding(1.5), "rows");
  expect_near(states[1], states[0], 2e-4, "states");  // their factors have 16 bits
}

TEST_P(CudaFused, experts) {
  for (auto [rows, dim, hidden, n, k] : {std::array{1, 64, 48, 4, 2},
                                         {1, 2600, 176, 16, 2},
                                         {1, 520, 1200, 8, 2},
                                         {1, 2048, 96, 8, 3},
                                         {1, 72, 40, 3, 1},
                                         {5, 256, 64, 8, 2},
                                         {20, 616, 336, 5, 2},
                                         {40, 128, 80, 4, 2},
                                         {150, 128, 80, 4, 2}}) {
    Small router(n, dim, 1), behind(24, dim, 2), ahead(dim, 64, 6);
    std::vector<std::unique_ptr<Made>> made;
    std::vector<Weight> gate, up, down;
    for (int e = 0; e < n; e++)
      for (auto* list : {&gate, &up, &down}) {
        const bool last = list == &down;
        made.push_back(std::make_unique<Made>(last ? dim : hidden, last ? hidden : dim, 100 + made.size()));
        list->push_back(made.back()->weight);
      }
    for (bool renormalize : {false, true}) {
      Array x({rows, dim}), sum({rows, dim}), weight({dim}), after({dim}), by({rows, k}), by2({rows, k}), out({rows, 24}), out2({rows, 24});
      Array before({rows, 64});
      whole(before.fill(9)), x.fill(3), sum.fill(3), weight.fill(4, 0.5f, 1), after.fill(5, 0.5f, 1);
      const Norm norm{Norm::Kind::rms, 1e-5f, weight}, next{Norm::Kind::rms, 1e-5f, after};
      std::vector<int32_t> id(size_t(rows * k), -1), id2 = id;
      Tensor expert = view(id.data(), DType::i32, {rows, k});
      Array normed({rows, dim}), hidden_rows({rows * k, hidden});
      ref_->linear(x, before, ahead.weight, {.residual = x});
      ref_->route_normed(expert, by, normed, x, norm, router.weight, renormalize, arena_);
      ref_->grouped_gate(hidden_rows, normed, gate, up, expert, Activation::silu, arena_);
      ref_->grouped_combine(x, hidden_rows, down, expert, by, &next, arena_);
      ref_->linear_normed(out, x, next, behind.weight, {}, arena_);
      device().experts(sum, view(id2.data(), DType::i32, {rows, k}), by2, before, ahead.weight,
                       {norm, &router.weight, gate, up, down, renormalize}, next, behind.weight, out2);
      const std::string what = fmt::format("{} rows, {} of {} experts [{}, {}] on {}", rows, k, n, hidden, dim, device().name());
      // two logits may be nearer than rounding: such rows are left out
      int same = 0;
      std::vector<float> want, got;
      for (int r = 0; r < rows; r++) {
        if (!std::equal(id.begin() + r * k, id.begin() + (r + 1) * k, id2.begin() + r * k)) continue;
        same++;
        want.insert(want.end(), x.view.row<float>(r), x.view.row<float>(r) + dim),
            got.insert(got.end(), sum.view.row<float>(r), sum.view.row<float>(r) + dim);
        want.insert(want.end(), out.view.row<float>(r), out.view.row<float>(r) + 24),
            got.insert(got.end(), out2.view.row<float>(r), out2.view.row<float>(r) + 24);
        want.insert(want.end(), by.view.row<float>(r), by.view.row<float>(r) + k),
            got.insert(got.end(), by2.view.row<float>(r), by2.view.row<float>(r) + k);
      }
      EXPECT_GE(same, rows - rows / 10 - 1) << what;
      EXPECT_TRUE(rows > 1 || same == 1) << what;
      expect_near(got, want, rounding(2), what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaFused, testing::Values(Kind{DType::f32, false}, Kind{DType::bf16, false}, Kind{DType::bf16, true}),
                         [](const auto& info) { return std::string(name_of(info.param.type)) + (info.param.chained ? "_chained" : ""); });

}  // namespace
}  // namespace mr::test
#endif
