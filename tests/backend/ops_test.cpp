// Operations over rows: against ref and their definitions over odd shapes and strided rows; elementary functions of the CPU against
// libm in double.
#include <bit>

#include "backend/cpu/op_kernels.h"
#include "backend/operations.h"

namespace mr::test {
namespace {

INSTANTIATE_TEST_SUITE_P(All, Operations, testing::ValuesIn(kPlaces), [](const auto& info) { return std::string(info.param.name); });

// op(backend, rows, columns)
template <class Op>
void for_shapes(const std::string& what, Op expect) {
  for (auto [rows, columns] :
       {std::pair{1, 1}, {1, 7}, {2, 16}, {3, 17}, {5, 64}, {2, 100}, {2, 104}, {1, 576}, {70, 577}, {2, 4096}, {33, 1024}})
    expect(fmt::format("{} of [{}, {}]", what, rows, columns), rows, columns);
}
const std::pair<int, int> kGaps[] = {{0, 0}, {3, 1}, {2, 5}, {3, 3}, {8, 8}};  // padding after a row of the input, of the output

TEST_P(Operations, norm) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (auto kind : {Norm::Kind::rms, Norm::Kind::layer, Norm::Kind::none})
    for (int parts = 0; parts < 4; parts++)
      for (auto [x_gap, out_gap] : kGaps)
        for_shapes("norm", [&, x_gap = x_gap, out_gap = out_gap](const std::string& what, int rows, int columns) {
          expect_ref(what, {bound(2e-6, 4e-6), bound(2e-6, 4e-6)}, [&](Backend& b) {
            Array x({rows, columns}, x_gap), out({rows, columns}, out_gap), weight({columns}), bias({columns});
            given(x.fill(1, 5, kind == Norm::Kind::layer ? 2 : 0));
            weight.fill(2);
            bias.fill(3);
            b.norm(out, x, {kind, 1e-5f, parts & 1 ? weight.view : Tensor{}, parts & 2 ? bias.view : Tensor{}, parts == 3 ? 1.0f : 0.0f});
            return out.values();
          });
        });
}

TEST_P(Operations, norm_follows_its_definition) {
  Array x({1, 4}), weight({4});
  std::copy_n(std::array{1.0f, 2.0f, 3.0f, 4.0f}.data(), 4, x.data.data());
  std::copy_n(std::array{1.0f, 1.0f, 2.0f, 2.0f}.data(), 4, weight.data.data());
  Array out({1, 4});
  const double most = bound(3e-7, 4e-6) + step();
  backend().norm(out, x, {Norm::Kind::rms, 0.5f, weight});
  float inv = float(1 / std::sqrt(30 / 4.0 + 0.5));
  expect_close(out.values(), {1 * inv, 2 * inv, 6 * inv, 8 * inv}, 0, most, name());
  backend().norm(out, x, {Norm::Kind::layer, 0.75f, weight, {}, 1});
  inv = float(1 / std::sqrt(1.25 + 0.75));
  expect_close(out.values(), {-1.5f * inv * 2, -0.5f * inv * 2, 0.5f * inv * 3, 1.5f * inv * 3}, 0, most, name());
}

TEST_P(Operations, norm_of_heads) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (int gap : {8, 9})
    for_shapes("norm of heads", [&](const std::string& what, int rows, int columns) {
      expect_ref(what, {bound(2e-6, 4e-6), bound(2e-6, 4e-6)}, [&](Backend& b) {
        Array x({rows, 3, columns}, gap), weight({columns});
        given(x.fill(1, 5));
        weight.fill(2);
        b.norm(x, x, {Norm::Kind::rms, 1e-6f, weight});
        return x.values();
      });
    });
}

TEST_P(Operations, magnitude) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (Magnitude how : {Magnitude{}, {.centered = true}, {.floor = 3, .inverse = true}, {.floor = 50}})
    for (auto [x_gap, out_gap] : kGaps)
      for_shapes("magnitude", [&, x_gap = x_gap, out_gap = out_gap](const std::string& what, int rows, int columns) {
        expect_ref(what, {0, bound(2e-6, 4e-6)}, [&](Backend& b) {
          Array x({rows, columns}, x_gap), out({rows, 1}, out_gap);
          b.magnitude(out, given(x.fill(1, 5, 2)), how);
          return out.values();
        });
      });
}

TEST_P(Operations, magnitude_follows_its_definition) {
  Array x({1, 4}), out({1, 1});
  std::copy_n(std::array{1.0f, 2.0f, 3.0f, 6.0f}.data(), 4, x.data.data());
  for (auto [how, want] : {std::pair{Magnitude{}, std::sqrt(50 / 4.0)},
                           {{.centered = true}, std::sqrt(14 / 4.0)},
                           {{.floor = 4}, std::sqrt(50 / 4.0)},
                           {{.floor = 16, .inverse = true}, 0.25}}) {
    backend().magnitude(out, x, how);
    expect_close(out.values(), {float(want)}, 0, bound(2e-7, 4e-6), name());
  }
}

// Streams lie beside each other in rows that may lie apart; as many are made as there are weights for.
TEST_P(Operations, combine) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (auto [n, k] : {std::pair{1, 1}, {1, 4}, {3, 3}, {5, 2}})
    for (bool add : {false, true})
      for (auto [x_gap, out_gap] : kGaps)
        for_shapes("combine", [&, n = n, k = k, x_gap = x_gap, out_gap = out_gap](const std::string& what, int rows, int columns) {
          expect_ref(what, {bound(2e-6, 4e-6), bound(2e-6, 4e-6)}, [&](Backend& b) {
            Array x({rows, k, columns}, x_gap), weight({rows, n * k}, x_gap), out({rows, n, columns}, out_gap);
            b.combine(given(out.fill(3)), given(x.fill(1)), weight.fill(2), add);
            return out.values();
          });
        });
  for_shapes("combine in place", [&](const std::string& what, int rows, int columns) {
    expect_ref(what, {0, 1e-7}, [&](Backend& b) {
      Array x({rows, 1, columns}, 3), weight({rows, 1});
      given(x.fill(1));
      b.combine(x, x, weight.fill(2, 1e-6f), false);
      return x.values();
    });
  });
}

TEST_P(Operations, combine_follows_its_definition) {
  Array x({1, 2, 3}), weight({1, 4}), out({1, 2, 3});
  std::copy_n(std::array{1.0f, 2.0f, 3.0f, 10.0f, 20.0f, 30.0f}.data(), 6, x.data.data());
  std::copy_n(std::array{1.0f, 2.0f, 3.0f, -1.0f}.data(), 4, weight.data.data());
  backend().combine(out, x, weight, false);
  expect_same_bits(out.values(), {21, 42, 63, -7, -14, -21}, name());  // whole numbers that bf16 holds
  backend().combine(out, x, weight, true);
  expect_same_bits(out.values(), {42, 84, 126, -14, -28, -42}, name());
}

TEST_P(Operations, add) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (auto [into_gap, x_gap] : kGaps)
    for_shapes("add", [&, into_gap = into_gap, x_gap = x_gap](const std::string& what, int rows, int columns) {
      expect_ref(what, {1e-6, 1e-6}, [&](Backend& b) {
        Array into({rows, columns}, into_gap), x({rows, columns}, x_gap);
        b.add(into.fill(1), given(x.fill(2)), 0.3f);
        return into.values();
      });
    });
}

TEST_P(Operations, gate_and_activate) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (int act = 0; act < 6; act++)
    for (int gap : {0, 3, 8})
      for_shapes(fmt::format("activation {}", act), [&](const std::string& what, int rows, int columns) {
        expect_ref(what, {bound(2e-6, 4e-6), bound(2e-6, 4e-6)}, [&](Backend& b) {
          Array both({rows, 2 * columns}, gap), out({rows, columns}), x({rows, columns}, gap);
          given(both.fill(1, 6));
          given(x.fill(2, 6));
          b.gate(out, both.view.cols(0, columns), both.view.cols(columns, columns), Activation(act));
          b.activate(x, Activation(act));
          std::vector<float> values = out.values(), more = x.values();
          values.insert(values.end(), more.begin(), more.end());
          return values;
        });
      });
}

TEST_P(Operations, softplus_and_softcap) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (int gap : {0, 3, 8}) {
    for_shapes("softplus", [&](const std::string& what, int rows, int columns) {
      expect_ref(what, {bound(1e-7, 2e-6), bound(1e-6, 2e-6)}, [&](Backend& b) {
        Array x({rows, columns}, gap), bias({columns});
        given(x.fill(1, 25));
        bias.fill(2);
        b.softplus(x, rows % 2 ? bias.view : Tensor{});
        return x.values();
      });
    });
    for_shapes("softcap", [&](const std::string& what, int rows, int columns) {
      expect_ref(what, {bound(1e-6, 2e-6), bound(1e-6, 2e-6)}, [&](Backend& b) {
        Array x({rows, columns}, gap);
        b.softcap(given(x.fill(1, 25)), 7.5f);
        return x.values();
      });
    });
  }
}

TEST_P(Operations, rope) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (bool interleaved : {false, true})
    for (int head : {8, 64, 80})
      for_shapes(fmt::format("rope of heads of {}", head), [&](const std::string& what, int rows, int) {
        expect_ref(what, {bound(1e-6, 2e-6) + 3 * step(), bound(1e-6, 2e-6)}, [&](Backend& b) {
          RopeTable table{.dim = head / 8 * 4 + 2, .scale = 1.1f};  // partial
          for (int i = 0; i < table.dim / 2; i++) table.inv_freq.push_back(std::pow(100.0f, -2.0f * float(i) / float(table.dim)));
          Rows r;
          r.add(11, rows);
          Array x({rows, 3, head}, 5), angles({rows, table.dim});
          given(x.fill(1));
          b.angles(angles, table, r.batch());
          b.rope(x, angles, interleaved);
          return x.values();
        });
      });
}

// Rotation by the angle position * frequency, seen as complex numbers.
TEST_P(Operations, rope_rotates) {
  RopeTable table{.dim = 8, .inv_freq = {1, 0.1f, 0.01f, 0.001f}};
  Rows rows;
  rows.add(100, 2);
  Array angles({2, 8});
  backend().angles(angles, table, rows.batch());
  for (bool interleaved : {false, true}) {
    Array x({2, 1, 12});
    given(x.fill(4));
    std::vector<float> before = x.values();
    backend().rope(x, angles, interleaved);
    for (int r = 0; r < 2; r++) {
      for (int i = 0; i < 4; i++) {
        int a = r * 12 + (interleaved ? 2 * i : i), b = r * 12 + (interleaved ? 2 * i + 1 : 4 + i);
        double angle = (100 + r) * double(table.inv_freq[size_t(i)]);
        EXPECT_NEAR(x.data[size_t(a)], before[size_t(a)] * std::cos(angle) - before[size_t(b)] * std::sin(angle), 1e-5 + 2 * step());
        EXPECT_NEAR(x.data[size_t(b)], before[size_t(b)] * std::cos(angle) + before[size_t(a)] * std::sin(angle), 1e-5 + 2 * step());
      }
      for (int i = 8; i < 12; i++) EXPECT_EQ(x.data[size_t(r * 12 + i)], before[size_t(r * 12 + i)]);
    }
  }
}

TEST_P(Operations, angles_choose_frequencies_by_length) {
  RopeTable table{
      .length = RopeTable::Length::longrope, .dim = 4, .scale = 2, .inv_freq = {1, 0.5f}, .long_inv_freq = {0.25f, 0.125f}, .original = 10};
  Rows rows;
  rows.add(8, 4);
  rows.add(3, 1);
  rows.prompt_len[1] = 11;
  Array out({5, 4});
  backend().angles(out, table, rows.batch());
  EXPECT_NEAR(out.data[0], 2 * std::cos(8.0), 1e-6);          // length 9
  EXPECT_NEAR(out.data[1 * 4 + 2], 2 * std::sin(9.0), 1e-6);  // length 10
  EXPECT_NEAR(out.data[2 * 4 + 2], 2 * std::sin(2.5), 1e-6);  // length 11
  EXPECT_NEAR(out.data[4 * 4 + 3], 2 * std::sin(3 * 0.125), 1e-6);
  table = {.length = RopeTable::Length::dynamic, .dim = 4, .inv_freq = {1, 0.01f}, .original = 10, .theta = 10000, .factor = 2};
  backend().angles(out, table, rows.batch());
  EXPECT_NEAR(out.data[0 * 4 + 3], std::sin(8 * 0.01), 1e-6);
  // length 12: base = 10000 * (2 * 12 / 10 - 1)^(4 / 2) = 19600, and 19600^(-1/2) = 1 / 140
  EXPECT_NEAR(out.data[3 * 4 + 3], std::sin(11 / 140.0), 1e-6);
}

TEST_P(Operations, gather_takes_the_output_rows) {
  Rows rows;
  rows.add(0, 5);
  rows.out_row = {1, 4};
  Array x({5, 7}, 2), out({2, 7});
  given(x.fill(1));
  backend().gather(out, x, rows.batch());
  std::vector<float> all = x.values(), want(all.begin() + 7, all.begin() + 14);
  want.insert(want.end(), all.begin() + 28, all.end());
  expect_same_bits(out.values(), want, name());
}

TEST_P(Operations, embed_reads_rows_and_what_the_last_step_sampled) {
  ThreadPool pool(1);
  WeightStore store;
  const int vocab = 37;
  for (int dim : {8, 32, 33, 512}) {
    Array table({vocab, dim});
    table.fill(1);
    if (on_gpu()) whole(table);  // whose weights are bf16
    Weight weight = pack(StoredWeight(get_codec("f32"), table.view.data, vocab, dim), store, pool);
    Rows sampling;
    sampling.add(0, 2);
    sampling.out_row = {0, 1};
    sampling.out = {Out::token, Out::token};
    sampling.sample.assign(2, SampleRow{.top_p = 1, .repetition_penalty = 1});
    Array logits({2, vocab});
    logits.fill(2);
    logits.view.row<float>(0)[17] = 9;
    logits.view.row<float>(1)[4] = 9;
    std::vector<Sampled> sampled;
    backend().sample(logits, sampling.batch(), sampled);
    Rows rows;
    rows.add(0, 4);
    rows.token = {36, -2, -1, vocab};
    for (float scale : {1.0f, 2.0f, 3.0f}) {
      Array out({4, dim});
      backend().embed(out, weight, scale, rows.batch());
      for (int r = 0; r < 4; r++) {
        int token = std::array{36, 4, 17, 0}[size_t(r)];  // beyond the table: its first row
        std::vector<float> want(table.view.row<float>(token), table.view.row<float>(token) + dim);
        for (float& v : want) v *= scale;
        const double most = scale == 3 ? step() : 0;  // all but 3 keeps a value's bits
        expect_close({out.view.row<float>(r), out.view.row<float>(r) + dim}, want, 0, most, name());
      }
    }
  }
}

// The distance between two floats in steps of the one that is wanted.
double ulps(float got, double want) {
  float w = float(want);
  return std::abs(got - want) / double(std::nextafter(std::abs(w), INFINITY) - std::abs(w));
}

const OpKernels& best_kernels() {
  Isa isa = best_isa();
  return isa == Isa::scalar ? op_kernels_scalar() : isa == Isa::avx2 ? op_kernels_avx2() : op_kernels_avx512();
}

// IEEE's rule: the nearest of 16 bits, a tie goes to the even one; infinity and not-a-number stay what they are.
TEST(VecMath, bf16_rounds_to_the_nearest_even) {
  const std::pair<uint32_t, uint16_t> cases[] = {{0x3f808000, 0x3f80},
                                                 {0x3f818000, 0x3f82},
                                                 {0x3f808001, 0x3f81},
                                                 {0x3f807fff, 0x3f80},
                                                 {0xbf808000, 0xbf80},
                                                 {0xbf818000, 0xbf82},
                                                 {0x7f7fffff, 0x7f80},
                                                 {0x7f800000, 0x7f80},
                                                 {0xff800000, 0xff80},
                                                 {0x7f800001, 0x7fc0},
                                                 {0, 0},
                                                 {0x80000000, 0x8000}};
  for (auto [bits, want] : cases) {
    const float x = std::bit_cast<float>(bits);
    uint16_t got = 1;
    best_kernels().store(&got, &x, 1, 1, kBf16, 1);
    EXPECT_EQ(got, want) << std::hex << bits;
  }
}

TEST(VecMath, exp_and_tanh_are_accurate) {
  std::vector<float> x;
  for (int i = -872000; i <= 883000; i += 7) x.push_back(float(i) * 1e-4f);
  std::vector<float> e = x, t = x;
  best_kernels().exp(e.data(), int64_t(e.size()));
  best_kernels().tanh(t.data(), int64_t(t.size()));
  double worst_exp = 0, worst_tanh = 0;
  for (size_t i = 0; i < x.size(); i++) {
    worst_exp = std::max(worst_exp, ulps(e[i], std::exp(double(x[i]))));
    worst_tanh = std::max(worst_tanh, ulps(t[i], std::tanh(double(x[i]))));
  }
  EXPECT_LT(worst_exp, 2);
  EXPECT_LT(worst_tanh, 3);
  std::vector<float> special{0, -0.0f, -INFINITY, -1000, -88, 1000, NAN, 1e-9f};
  best_kernels().exp(special.data(), int64_t(special.size()));
  EXPECT_EQ(special[0], 1);
  EXPECT_EQ(special[1], 1);
  EXPECT_EQ(special[2], 0);
  EXPECT_EQ(special[3], 0);
  EXPECT_EQ(special[4], 0);
  EXPECT_EQ(special[5], INFINITY);
  EXPECT_TRUE(std::isnan(special[6]));
  EXPECT_EQ(special[7], 1);
}

TEST(VecMath, activations_are_accurate) {
  std::vector<float> x;
  for (int i = -120000; i <= 120000; i++) x.push_back(float(i) * 1e-3f);
  for (float small : {1e-3f, 1e-5f, 1e-10f, 1e-30f}) {
    x.push_back(small);
    x.push_back(-small);
  }
  for (int act : {1, 2, 3}) {
    std::vector<float> y = x;
    best_kernels().activate(y.data(), int64_t(y.size()), act);
    double worst = 0;
    for (size_t i = 0; i < x.size(); i++) {
      double v = x[i], want = v / (1 + std::exp(-v));
      if (act == 2) want = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
      if (act == 3) want = 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
      worst = std::max(worst, std::abs(y[i] - want) / std::abs(v + (v == 0)));
    }
    EXPECT_LT(worst, 3e-7) << "activation " << act;
  }
  std::vector<float> y = x;
  best_kernels().softplus(y.data(), nullptr, int64_t(y.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); i++)
    if (x[i] > -87) worst = std::max(worst, ulps(y[i], std::log1p(std::exp(double(x[i])))));
  EXPECT_LT(worst, 4);
}

}  // namespace
}  // namespace mr::test
