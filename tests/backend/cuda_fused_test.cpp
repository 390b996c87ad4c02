// What the CUDA backend does in one kernel where others take several, against ref, which does it in the plain order, and Mamba-2's scan in
// chunks. Inputs have bf16 values; the device rounds activations to bf16 between operations. Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/cuda/cuda_backend.h"
#include "backend/programs.h"

namespace mr::test {
namespace {

class CudaFused : public testing::TestWithParam<bool> {  // operations of one row go through the chain
 protected:
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
    gpu_ = make_cuda_backend({.chain = GetParam() ? 1 : 1000});
  }
  // The ref backend, then the GPU.
  std::vector<Backend*> both() { return {ref_.get(), gpu_.get()}; }
  static double rounding(double steps) { return steps * kHalfStep; }
  std::unique_ptr<Backend> ref_ = make_ref_backend(), gpu_;
};

Value linear(Net& n, Value x, int64_t out, uint64_t name) { return n.r().linear(x, {&n.weight(out, x.cols, name), 1}); }

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
    std::vector<float> convolved[2], states[2], others[2];
    for (int i = 0; i < 2; i++) {
      Net net(*both()[size_t(i)]);
      const Value before = net.input(dim, ValueType::f32, 7);
      net.r().add(before, linear(net, net.input(in, 3), dim, 1));
      const Value y = linear(net, net.r().norm(before, net.keep(Norm{Norm::Kind::rms, 1e-5f, net.floats({dim}, 4)})), out, 2);
      const ShortConv& conv =
          net.keep(ShortConv{net.floats({channels, width}, 5), net.floats({channels}, 6), Activation::silu, {{0, 0}, 0}});
      net.tap(net.r().short_conv(y.columns(first, channels), conv));
      net.tap(y.columns(0, first));
      net.tap(y.columns(first + channels, out - first - channels));
      net.finish();
      EXPECT_TRUE(net.has(Rule::linear_conv));
      Singles singles(rows, (width - 1) * channels);
      const std::vector<float> all = run_with(net, singles.batch(), singles.units.state);
      convolved[i] = net.part(all, 0);
      for (size_t tap : {1u, 2u})
        for (float x : net.part(all, tap)) others[i].push_back(x);
      states[i] = singles.state();
    }
    const std::string what = fmt::format("{} rows to {}, {} channels of width {}", rows, out, channels, width);
    expect_near(convolved[1], convolved[0], rounding(1.5), what);
    expect_near(states[1], states[0], rounding(1.5), what + ", the state");
    expect_close(others[1], others[0], rounding(5), 0, what + ", the others");
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
    std::vector<float> outs[2], states[2];
    for (int i = 0; i < 2; i++) {
      Net net(*both()[size_t(i)]);
      const Value u = net.input(inner, 3), z = net.input(inner, 4, 2), dbc = linear(net, u, rank + 2 * n, 1);
      const Value parts[] = {dbc.columns(0, rank), dbc.columns(rank, n), dbc.columns(rank + n, n)};
      for (uint64_t part = 0; norms && part < 3; part++) {
        const Tensor weight = part == 1 ? Tensor{} : net.floats({parts[part].cols}, 8 + part, 0.5f, 1);
        net.r().norm_in_place(parts[part], net.keep(Norm{Norm::Kind::rms, 1e-6f, weight}));
      }
      const Value dt = net.r().linear(parts[0], {&net.weight(inner, rank, 2), 1}, {.type = ValueType::f32});
      net.r().softplus(dt, net.floats({inner}, 5));
      const DiagScan& scan = net.keep(DiagScan{inner, n, net.floats({inner, n}, 6, 2, -2.1f), net.floats({inner}, 7), {{0, 0}, 0}});
      const Value y = net.r().diag_scan(u, dt, parts[1], parts[2], scan);
      net.r().gate_onto(y, z, y, Activation::silu);
      net.tap(y);
      net.finish();
      EXPECT_TRUE(net.has(Rule::selective_scan));
      Singles singles(rows, inner * n);
      outs[i] = run_with(net, singles.batch(), singles.units.state);
      states[i] = singles.state();
    }
    const std::string what = fmt::format("{} rows of {}, rank {}, {} states", rows, inner, rank, n);
    expect_near(outs[1], outs[0], rounding(2), what);
    expect_near(states[1], states[0], rounding(2), what + ", the state");
  }
}

// The gated scan of `scan` over inputs by name.
Value gated_scan(Net& net, const OuterScan& scan, float dt_scale = 1, float dt_shift = 0) {
  const int inner = scan.heads * scan.head_dim, bc = scan.groups * scan.n_state;
  const Value x = net.input(inner, 2), dt = net.input(scan.heads, 3, dt_scale, dt_shift), b = net.input(bc, 4), c = net.input(bc, 5);
  net.r().softplus(dt, net.floats({scan.heads}, 9));
  const Value y = net.r().outer_scan(x, dt, b, c, scan);
  net.r().gate_onto(y, net.input(inner, 6, 2), y, Activation::silu);
  return y;
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
    std::vector<float> sums[2], scans[2], states[2];
    for (int i = 0; i < 2; i++) {
      Net net(*both()[size_t(i)]);
      const OuterScan& scan =
          net.keep(OuterScan{heads, dim, n, 1, net.floats({heads}, 7, 1, -1.1f), net.floats({heads}, 8), 0, 10, {{0, 0}, 0}});
      const Value y = gated_scan(net, scan), out = net.input(48, ValueType::f32, 11);
      net.r().add(out, linear(net, net.r().norm(y, net.keep(Norm{Norm::Kind::rms, 1e-5f, net.floats({heads * dim}, 10)})), 48, 1));
      net.tap(out);
      net.tap(y);
      net.finish();
      EXPECT_TRUE(net.has(Rule::gated_scan));
      Singles singles(rows, heads * dim * n);
      const std::vector<float> all = run_with(net, singles.batch(), singles.units.state);
      sums[i] = net.part(all, 0);
      scans[i] = net.part(all, 1);
      states[i] = singles.state();
    }
    const std::string what = fmt::format("{} rows of {} heads of {}", rows, heads, dim);
    expect_near(sums[1], sums[0], rounding(1.5), what);
    expect_near(scans[1], scans[0], rounding(1.5), what + ", the scan");
    expect_near(states[1], states[0], 1e-4, what + ", the state");
  }
}

// Prompts of several lengths side by side, states kept at their end and on the way, then one more step of all from there.
TEST_P(CudaFused, scan_in_chunks) {
  const int heads = 6, dim = 64, n = 128, groups = 2;
  std::vector<float> outs[2], states[2];
  for (int which = 0; which < 2; which++) {
    Net net(*both()[size_t(which)]);
    const OuterScan& scan =
        net.keep(OuterScan{heads, dim, n, groups, net.floats({heads}, 7, 1, -1.1f), net.floats({heads}, 8), 0, 10, {{0, 0}, 0}});
    net.tap(gated_scan(net, scan, 2, -2));
    net.finish();
    Units units(12, heads * dim * n * 4, 0, 5);
    int done[4] = {};
    int32_t slot[4];
    for (int32_t& s : slot) s = units.take();
    for (auto steps : {std::array{64, 200, 1, 33}, {70, 1, 130, 65}, {1, 63, 64, 1}}) {
      Rows rows;
      for (size_t i = 0; i < 4; i++) {
        rows.add(done[i], steps[i]);
        rows.src.back() = done[i] ? slot[i] : 0;
        rows.dst.back() = slot[i];
        for (size_t back : {47u, 30u})
          if (steps[i] == 130) rows.dst[rows.dst.size() - back] = units.take();
        done[i] += steps[i];
      }
      Batch batch = rows.batch();
      batch.parent = nullptr;
      for (float v : run_with(net, batch, units.state)) outs[which].push_back(v);
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
                                         {150, 128, 80, 4, 2}})
    for (bool renormalize : {false, true}) {
      std::vector<float> outs[2];
      int64_t cols = 0;
      for (int i = 0; i < 2; i++) {
        Net net(*both()[size_t(i)]);
        const Value x = net.input(dim, ValueType::f32, 3);
        net.r().add(x, linear(net, net.input(64, 9), dim, 6));
        const Value y = net.r().norm(x, net.norm(dim, 4));
        const Value logits = net.r().linear(y, {&net.weight(n, dim, 1), 1}, {.type = ValueType::f32});
        const auto [expert, weight] = net.r().route(logits, k, renormalize);
        const Value gate = net.r().grouped_linear(y, net.weights(n, hidden, dim, 100), expert, "");
        const Value up = net.r().grouped_linear(y, net.weights(n, hidden, dim, 101), expert, "");
        net.r().gate_onto(up, gate, up, Activation::silu);
        net.r().add(x, net.r().combine(net.r().grouped_linear(up, net.weights(n, dim, hidden, 102), expert, ""), weight));
        net.tap(linear(net, net.r().norm(x, net.norm(dim, 5)), 24, 2));
        net.tap(x);
        net.tap(weight);
        net.finish();
        for (Rule rule : {Rule::route, Rule::experts_gate, Rule::experts_combine}) EXPECT_TRUE(net.has(rule));
        outs[i] = run_rows(net, rows);
        cols = net.program().logits.cols;
      }
      // Two logits may be nearer than rounding: a row that took another expert is left out.
      const std::string what = fmt::format("{} rows, {} of {} experts [{}, {}]", rows, k, n, hidden, dim);
      int same = 0;
      std::vector<float> want, got;
      for (int64_t r = 0; r < rows * cols; r += cols) {
        const std::vector<float> one(outs[0].begin() + r, outs[0].begin() + r + cols),
            other(outs[1].begin() + r, outs[1].begin() + r + cols);
        if (rows > 1 && distance(other, one) > 0.05) continue;
        same++;
        want.insert(want.end(), one.begin(), one.end());
        got.insert(got.end(), other.begin(), other.end());
      }
      EXPECT_GE(same, rows - rows / 10 - 1) << what;
      expect_near(got, want, rounding(2), what);
    }
}

INSTANTIATE_TEST_SUITE_P(All, CudaFused, testing::Bool(), [](const auto& info) { return info.param ? "chained" : "alone"; });

}  // namespace
}  // namespace mr::test
#endif
