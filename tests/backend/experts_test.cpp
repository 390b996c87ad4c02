// route, grouped_linear and combine: against their definitions and ref, and on the CPU the same bits whoever chose the same expert.
#include "backend/operations.h"

namespace mr::test {
namespace {

struct Routes {
  std::vector<int32_t> id;
  Tensor expert;
  Array weight;
  Routes(int64_t rows, int64_t k) : id(size_t(rows * k), -1), expert(view(id.data(), DType::i32, {rows, k})), weight({rows, k}) {}
};

TEST_P(Operations, route_follows_its_definition) {
  const float ln = std::log(2.0f);
  for (bool renormalize : {false, true}) {
    Array logits({2, 5});
    std::copy_n(std::array{0 * ln, 3 * ln, 1 * ln, 3 * ln, -1 * ln, 7.0f, 7.0f, 7.0f, 7.0f, 7.0f}.data(), 10, logits.data.data());
    Routes r(2, 3);
    backend().route(r.expert, r.weight, logits, renormalize);
    EXPECT_EQ(r.id, (std::vector<int32_t>{1, 3, 2, 0, 1, 2})) << name();  // ties to the lower id
    float all_of_them = 19.5f, chosen = 18;                               // 1 + 8 + 2 + 8 + 1/2; 8 + 8 + 2
    float total = renormalize ? chosen : all_of_them, even = renormalize ? 1.0f / 3 : 0.2f;
    expect_close(r.weight.values(), {8 / total, 8 / total, 2 / total, even, even, even}, 0, bound(1e-6, 1e-5), name());
  }
}

TEST_P(Operations, route_agrees_with_ref) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (auto [rows, experts, k] :
       {std::array{1, 1, 1}, {3, 8, 2}, {17, 60, 4}, {31, 13, 3}, {300, 128, 8}, {5, 16, 16}, {2, 33, 7}, {300, 5, 2}})
    for (bool renormalize : {false, true}) {
      auto make = [&, rows = rows, experts = experts, k = k](Backend& b) {
        Array logits({rows, experts}, 3);
        Routes r(rows, k);
        b.route(r.expert, r.weight, logits.fill(9, 6), renormalize);
        return std::pair(r.id, r.weight.values());
      };
      const std::string what = fmt::format("the best {} of {} experts", k, experts);
      EXPECT_EQ(make(backend()).first, make(ref()).first) << what << " on " << name();
      expect_ref(what, {bound(1e-7, 1e-6), bound(2e-6, 1e-5)}, [&](Backend& b) { return make(b).second; });
    }
}

// Experts of one shape in one format.
struct Layer {
  ThreadPool pool{1};
  WeightStore store;
  std::vector<Weight> experts;
  Layer(const Codec& codec, int n, int64_t out, int64_t in) {
    for (int e = 0; e < n; e++) {
      Array w({out, in});
      w.fill(100 + uint64_t(e));
      experts.push_back(pack(StoredRows(codec, w).weight, store, pool));
    }
  }
};

// Row t is called `name[t]`, and so are its values and its choices; per_pair: every choice has an input of its own.
std::vector<float> run(Backend& backend, const Layer& layer, const std::vector<uint64_t>& name, int k, bool per_pair) {
  const int64_t rows = int64_t(name.size()), in = layer.experts[0].in, out = layer.experts[0].out, n = int64_t(layer.experts.size());
  const int64_t inputs = per_pair ? k : 1;
  Array x({rows * inputs, in}, 5), y({rows * k, out}, 3), sum({rows, out}, 1);
  Routes r(rows, k);
  for (int64_t t = 0; t < rows; t++) {
    for (int64_t i = 0; i < inputs * in; i++) x.view.row<float>(t * inputs + i / in)[i % in] = value(name[size_t(t)], uint64_t(i));
    for (int64_t j = 0; j < k; j++) {
      r.id[size_t(t * k + j)] = int32_t((int64_t(name[size_t(t)] * 7) + j * 3) % n);
      r.weight.view.row<float>(t)[j] = 0.1f + value(name[size_t(t)] + 1, uint64_t(j)) / 3;
    }
  }
  backend.grouped_linear(y, x, layer.experts, r.expert);
  backend.combine(sum, y, r.weight, false);
  return sum.values();
}

TEST_P(Operations, experts_agree_with_ref) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  if (on_gpu()) GTEST_SKIP() << "CudaPacked has the formats";
  for (const char* format : {"f32", "bf16", "q8_0", "q4_1"})
    for (auto [n, out, in] : {std::array{1, 5, 32}, {8, 40, 64}, {13, 17, 96}}) {
      Layer layer(get_codec(format), n, out, in);
      for (int rows : {1, 2, 31}) {
        std::vector<uint64_t> names(static_cast<size_t>(rows));
        std::iota(names.begin(), names.end(), 1);
        for (bool per_pair : {false, true}) {
          auto result = [&, k = std::min(n, 2)](Backend& b) { return run(b, layer, names, k, per_pair); };
          const std::string what = fmt::format("{}, {} experts, {} rows", format, n, rows);
          const bool split = GetParam().isa == Isa::amx && format == std::string_view("bf16");  // activations of two pieces of 8 bits
          const bool rounded = split || get_codec(format).block > 1;                            // to about 16 bits
          const Nearness most{rounded ? 5e-4 : 1e-5, 1e-5};
          if (!split)
            expect_ref(what, most, result);
          else  // bits of its own: the tests of products have them
            expect_close(result(backend()), result(ref()), most.absolute, most.relative, what + " on amx");
        }
      }
    }
}

// Chosen, multiplied and combined, with weights that every backend has the same.
TEST_P(Operations, experts) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (auto [rows, n, k, out, in] : {std::array{1, 1, 1, 5, 32},
                                     {3, 8, 2, 40, 64},
                                     {31, 13, 3, 17, 33},
                                     {70, 60, 4, 64, 256},
                                     {16, 8, 2, 100, 104},
                                     {300, 5, 2, 50, 576}}) {
    std::vector<std::unique_ptr<Made>> made;
    std::vector<Weight> weights;
    for (int e = 0; e < n; e++) {
      made.push_back(std::make_unique<Made>(out, in, uint64_t(100 + e)));
      weights.push_back(made.back()->weight);
    }
    for (bool renormalize : {false, true}) {
      std::vector<std::vector<float>> results;
      std::vector<std::vector<int32_t>> chosen;
      for (Backend* b : {&ref(), &backend()}) {
        std::vector<int32_t> id(size_t(rows * k), -1);
        Tensor expert = view(id.data(), DType::i32, {rows, k});
        Array logits({rows, n}), weight({rows, k}), x({rows, in}), y({rows * k, out}), sum({rows, out});
        logits.fill(9, 6);
        whole(x.fill(2));
        b->route(expert, weight, logits, renormalize);
        b->grouped_linear(y, x, weights, expert);
        b->combine(sum, y, weight, false);
        results.push_back(sum.values());
        chosen.push_back(id);
      }
      EXPECT_EQ(chosen[1], chosen[0]);
      expect_close(results[1], results[0], 1e-4 + step() * std::sqrt(double(in)), step(),
                   fmt::format("{} of {} experts on {}", k, n, name()));
    }
  }
}

// Expert e multiplies by e + 1.
TEST_P(Operations, every_row_goes_to_its_own_expert) {
  const int n = 6, dim = 16;
  ThreadPool pool(1);
  WeightStore store;
  std::vector<Weight> experts;
  for (int e = 0; e < n; e++) {
    std::vector<float> w(size_t(dim * dim), 0.0f);
    for (int i = 0; i < dim; i++) w[size_t(i * dim + i)] = float(e + 1);
    experts.push_back(pack(StoredWeight(get_codec("f32"), w.data(), dim, dim), store, pool));
  }
  Array x({3, dim}), y({6, dim}), sum({3, dim});
  for (int i = 0; i < 3 * dim; i++) x.data[size_t(i)] = float(i);
  Routes r(3, 2);
  r.id = {5, 0, 2, 5, 0, 1};
  r.expert.data = r.id.data();
  std::copy_n(std::array{1.0f, 2.0f, 0.5f, 1.0f, 4.0f, 0.0f}.data(), 6, r.weight.data.data());
  backend().grouped_linear(y, x, experts, r.expert);
  backend().combine(sum, y, r.weight, false);
  const float factor[] = {6 * 1 + 1 * 2, 3 * 0.5f + 6 * 1, 1 * 4};
  for (int t = 0; t < 3; t++)
    for (int i = 0; i < dim; i++) {
      const float want = factor[t] * float(t * dim + i);
      EXPECT_NEAR(sum.view.row<float>(t)[i], want, step() * want) << name();
    }
}

TEST(Experts, a_row_gives_the_same_bits_in_any_company) {
  for (const char* format : {"f32", "q4_0", "q8_0"}) {
    Layer layer(get_codec(format), 5, 33, 64);
    std::vector<uint64_t> names(40);
    std::iota(names.begin(), names.end(), 1);
    std::vector<std::vector<float>> alone;
    for (uint64_t name : names) alone.push_back(run(*make_cpu_backend(best_isa(), 1), layer, {name}, 3, false));
    for (int threads : {1, 2, 5}) {
      auto backend = make_cpu_backend(best_isa(), threads);
      for (unsigned seed = 0; seed < 6; seed++) {
        std::shuffle(names.begin(), names.end(), std::mt19937(seed));
        std::vector<uint64_t> some(names.begin(), names.begin() + 1 + int(seed) * 7);
        std::vector<float> got = run(*backend, layer, some, 3, false);
        for (size_t t = 0; t < some.size(); t++)
          expect_same_bits({got.begin() + int64_t(t) * 33, got.begin() + int64_t(t + 1) * 33}, alone[some[t] - 1],
                           fmt::format("{}, row {} of {}", format, t, some.size()));
      }
    }
  }
}

}  // namespace
}  // namespace mr::test
