// The CUDA backend against ref over odd shapes, with f32 and with bf16 activations. Inputs have bf16 values, so that what differs is
// arithmetic alone; with bf16 activations a result is rounded once more, by at most 2^-8 of itself. Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/cuda/attention/attention.h"
#include "backend/on_kinds.h"

namespace mr::test {
namespace {

const std::pair<int, int> kRows[] = {{1, 1}, {1, 7}, {2, 16}, {3, 17}, {5, 64}, {2, 104}, {1, 576}, {70, 577}, {2, 4096}, {33, 1024}};

class CudaOps : public OnKinds {
 protected:
  template <class Op>
  void expect_ref(const std::string& what, double absolute, double relative, Op op) {
    auto ref = make_ref_backend();
    for (auto [rows, columns] : kRows)
      expect_close(op(device(), rows, columns), op(*ref, rows, columns), absolute, relative + step(),
                   fmt::format("{} on {}, [{}, {}]", what, device().name(), rows, columns));
  }
};

TEST_P(CudaOps, norm) {
  for (auto kind : {Norm::Kind::rms, Norm::Kind::layer})
    for (int parts = 0; parts < 4; parts++)
      for (int gap : {0, 3, 8})
        expect_ref("norm", 4e-6, 4e-6, [&](Backend& b, int rows, int columns) {
          Array x({rows, columns}, gap), out({rows, columns}, gap), weight({columns}), bias({columns});
          whole(x.fill(1, 5, kind == Norm::Kind::layer ? 2 : 0)), weight.fill(2), bias.fill(3);
          b.norm(out, x, {kind, 1e-5f, parts & 1 ? weight.view : Tensor{}, parts & 2 ? bias.view : Tensor{}, parts == 3 ? 1.0f : 0.0f});
          return out.values();
        });
  expect_ref("norm of heads", 4e-6, 4e-6, [](Backend& b, int rows, int columns) {
    Array x({rows, 3, columns}, 8), weight({columns});
    whole(x.fill(1, 5)), weight.fill(2);
    b.norm(x, x, {Norm::Kind::rms, 1e-6f, weight});
    return x.values();
  });
}

TEST_P(CudaOps, elements) {
  for (int gap : {0, 3, 8}) {
    expect_ref("add", 1e-6, 1e-6, [&](Backend& b, int rows, int columns) {
      Array into({rows, columns}, gap), x({rows, columns}, gap);
      b.add(into.fill(1), whole(x.fill(2)), 0.3f);
      return into.values();
    });
    for (int act = 0; act < 6; act++)
      expect_ref(fmt::format("activation {}", act), 4e-6, 4e-6, [&](Backend& b, int rows, int columns) {
        Array both({rows, 2 * columns}, gap), out({rows, columns}), x({rows, columns}, gap);
        whole(both.fill(1, 6)), whole(x.fill(2, 6));
        b.gate(out, both.view.cols(0, columns), both.view.cols(columns, columns), Activation(act));
        b.activate(x, Activation(act));
        std::vector<float> values = out.values(), more = x.values();
        values.insert(values.end(), more.begin(), more.end());
        return values;
      });
    expect_ref("softplus", 2e-6, 2e-6, [&](Backend& b, int rows, int columns) {
      Array x({rows, columns}, gap), bias({columns});
      whole(x.fill(1, 25)), bias.fill(2);
      b.softplus(x, rows % 2 ? bias.view : Tensor{});
      return x.values();
    });
    expect_ref("softcap", 2e-6, 2e-6, [&](Backend& b, int rows, int columns) {
      Array x({rows, columns}, gap);
      b.softcap(whole(x.fill(1, 25)), 7.5f);
      return x.values();
    });
  }
}

TEST_P(CudaOps, rope) {
  for (bool interleaved : {false, true})
    for (int head : {8, 64, 80}) {
      expect_ref("rope", 2e-6 + 3 * step(), 2e-6, [&](Backend& b, int rows, int) {
        RopeTable table{.dim = head / 8 * 4 + 2, .scale = 1.1f};
        for (int i = 0; i < table.dim / 2; i++) table.inv_freq.push_back(std::pow(100.0f, -2.0f * float(i) / float(table.dim)));
        Rows r;
        r.add(11, rows);
        Array x({rows, 3, head}, 5), angles({rows, table.dim});
        whole(x.fill(1));
        b.angles(angles, table, r.batch());
        b.rope(x, angles, interleaved);
        return x.values();
      });
    }
  auto ref = make_ref_backend();
  for (RopeTable table :
       {RopeTable{.length = RopeTable::Length::longrope,
       .dim = 4,
       .scale = 2,
       .inv_freq = {1, 0.5f},
       .long_inv_freq = {0.25f, 0.125f},
       .original = 10},
        RopeTable{.length = RopeTable::Length::dynamic, .dim = 4, .inv_freq = {1, 0.01f}, .original = 10, .theta = 10000, .factor = 2}}) {
    Rows rows;
    rows.add(8, 4), rows.add(3, 1), rows.prompt_len[1] = 11;
    Array want({5, 4}), got({5, 4});
    ref->angles(want, table, rows.batch());
    device().angles(got, table, rows.batch());
    expect_close(got.values(), want.values(), 1e-6, 1e-6, "angles by length");
  }
}

TEST_P(CudaOps, embed_and_gather) {
  ThreadPool pool(1);
  WeightStore store;
  const int vocab = 37;
  for (int dim : {8, 33, 512}) {
    Array table({vocab, dim});
    whole(table.fill(1));
    std::vector<const std::byte*> pointers;
    for (int i = 0; i < vocab; i++) pointers.push_back(reinterpret_cast<const std::byte*>(table.view.row<float>(i)));
    Weight weight = pack(format_ops("f32"), pointers, dim, store, pool);
    Rows sampling;
    sampling.add(0, 2);
    sampling.out_row = {0, 1}, sampling.out = {Out::token, Out::token};
    sampling.sample.assign(2, SampleRow{.top_p = 1, .repetition_penalty = 1});
    Array logits({2, vocab});
    logits.fill(2);
    logits.view.row<float>(0)[17] = 9, logits.view.row<float>(1)[4] = 9;
    std::vector<Sampled> sampled;
    device().sample(logits, sampling.batch(), sampled);
    Rows rows;
    rows.add(0, 3);
    rows.token = {36, -2, -1}, rows.out_row = {0, 2};
    Array out({3, dim}), some({2, dim});
    device().embed(out, weight, 2, rows.batch());
    device().gather(some, out, rows.batch());
    for (auto [row, token] : {std::pair{0, 36}, {1, 4}, {2, 17}})
      for (int i = 0; i < dim; i++) EXPECT_EQ(out.view.row<float>(row)[i], 2 * table.view.row<float>(token)[i]);
    for (int i = 0; i < dim; i++) EXPECT_EQ(some.view.row<float>(1)[i], out.view.row<float>(2)[i]);
  }
}

// Sums of n products of bf16 values in f32: each of n additions errs by 2^-24 of the sum of magnitudes at most; tensor cores keep a
// few bits fewer inside a chunk, hence 2^-22.
double product_bound(const float* x, const float* w, int64_t n) {
  double magnitude = 0;
  for (int64_t k = 0; k < n; k++) magnitude += std::abs(double(x[k]) * w[k]);
  return (std::sqrt(double(n)) + 4) * 0x1p-22 * magnitude + 1e-30;
}

// One product against its sums in f64; `step`: how far the result is rounded. Bits of `parts`: bias; residual; scale, onto y itself.
void expect_product(OnDevice& device, double step, const Made& w, int rows, int parts) {
  const int out = int(w.weight.out), in = int(w.weight.in);
  Array x({rows, in}, rows % 2 ? 8 : 3), bias({out}), residual({rows, out}), y({rows, out}, out % 8 ? 1 : 8);
  whole(x.fill(2)), bias.fill(3), residual.fill(4), y.fill(4);
  Epilogue e;
  if (parts & 1) e.bias = bias;
  if (parts & 2) e.residual = parts & 4 ? y.view : residual.view;
  if (parts & 4) e.scale = 0.3f;
  std::vector<float> before = y.values();
  device.linear(y, x, w.weight, e);
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < out; o++) {
      const float *xr = x.view.row<float>(r), *wo = w.values.view.row<float>(o);
      double exact = 0;
      for (int k = 0; k < in; k++) exact += double(xr[k]) * wo[k];
      if (parts & 1) exact += bias.data[size_t(o)];
      if (parts & 4) exact *= 0.3f;
      if (parts & 2) exact += before[size_t(r * out + o)];
      ASSERT_NEAR(y.view.row<float>(r)[o], exact, product_bound(xr, wo, in) + (step + 0x1p-22) * std::abs(exact) + 1e-6)
          << rows << " rows, [" << out << ", " << in << "], row " << r << " output " << o << " parts " << parts;
    }
}

TEST_P(CudaOps, linear) {
  for (auto [out, in] :
       {std::pair{1, 8}, {15, 32}, {17, 33}, {16, 64}, {100, 96}, {333, 576}, {48, 1536}, {64, 4096}, {24, 14336}, {8, 5}, {96, 104}}) {
    Made w(out, in, uint64_t(out * 10000 + in));
    for (int rows : {1, 2, 7, 8, 9, 16, 17, 40, 130, 256, 300})
      for (int parts = 0; parts < 8; parts += rows == 9 ? 1 : 7) ASSERT_NO_FATAL_FAILURE(expect_product(device(), step(), w, rows, parts));
  }
  // cuBLASLt's eight proposals three times in turn, and the one that stays
  const Made w(96, 104, 1);
  for (int i = 0; i < 26; i++) ASSERT_NO_FATAL_FAILURE(expect_product(device(), step(), w, 2051 + i, 7));
}

// In deterministic mode a row's product has the same bits alone and among others.
TEST(CudaDeterministic, linear) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  OnDevice device(DType::bf16, {.deterministic = true});
  for (auto [out, in] : {std::pair{333, 576}, {1024, 4096}, {64, 1536}, {8192, 64}}) {
    Made w(out, in, 5);
    for (int many : {130, 400}) {
      Array x({many, in}), all({many, out}), halves({many, out / 2});
      whole(x.fill(2));
      device.linear(all, x, w.weight, {});
      if (out % 2 == 0) device.linear_gate(halves, x, w.weight, Activation::silu);
      for (int rows : {1, 3, 8, 9, 16, 17, 33, 64, 65})
        for (int at : {0, 7, many - rows}) {
          Array some({rows, out}), half({rows, out / 2});
          device.linear(some, x.view.rows(at, rows), w.weight, {});
          std::vector<float> want(all.view.row<float>(at), all.view.row<float>(at) + rows * out);
          expect_same_bits(some.values(), want, fmt::format("[{}, {}], rows {} + {} of {}", out, in, at, rows, many));
          if (out % 2) continue;
          device.linear_gate(half, x.view.rows(at, rows), w.weight, Activation::silu);
          want.assign(halves.view.row<float>(at), halves.view.row<float>(at) + rows * (out / 2));
          expect_same_bits(half.values(), want, fmt::format("gated [{}, {}], rows {} + {} of {}", out, in, at, rows, many));
        }
    }
  }
}

// act(gate) * up against f64; `between`: how far gate and up are rounded before the activation.
void expect_gated(OnDevice& device, double step, double between, int half, int in, int rows, Activation act = Activation::silu) {
  Made w(2 * half, in, 77);
  Array x({rows, in}), y({rows, half});
  whole(x.fill(2));
  device.linear_gate(y, x, w.weight, act);
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < half; o++) {
      auto dot = [&](int row) {
        double sum = 0;
        for (int k = 0; k < in; k++) sum += double(x.view.row<float>(r)[k]) * w.values.view.row<float>(row)[k];
        return sum;
      };
      double gate = dot(o), up = dot(half + o), active = act == Activation::relu ? std::max(gate, 0.0) : gate / (1 + std::exp(-gate));
      const float* xr = x.view.row<float>(r);
      double want = active * up, sums = 1.1 * product_bound(xr, w.values.view.row<float>(o), in) * std::abs(up) +
                                        product_bound(xr, w.values.view.row<float>(half + o), in) * std::abs(active);
      ASSERT_NEAR(y.view.row<float>(r)[o], want, sums + 1e-6 + (step + between + 4e-6) * std::abs(want) + between * std::abs(up))
          << rows << " rows, [" << half << ", " << in << "], row " << r << " output " << o;
    }
}

TEST_P(CudaOps, linear_gate) {
  if (GetParam() != DType::bf16) GTEST_SKIP() << "programs have bf16 activations";
  for (auto [half, in] : {std::pair{8, 64}, {20, 104}, {333, 576}, {64, 4096}, {5, 7}})
    for (int rows : {1, 9, 16, 33, 130, 256, 300}) {
      // cuBLASLt's gate and up are rounded to bf16 between product and activation.
      const bool rounded = rows == 33 || rows == 300 || (rows > 16 && half % 8);
      ASSERT_NO_FATAL_FAILURE(expect_gated(device(), step(), rounded ? 2.2 * kHalfStep : 0, half, in, rows));
    }
  ASSERT_NO_FATAL_FAILURE(expect_gated(device(), step(), 2.2 * kHalfStep, 64, 104, 2100, Activation::relu));
  // product_wide.cu: not rounded between; more tiles than pairs of blocks
  for (auto [half, in] : {std::pair{2296, 136}, {360, 8}}) ASSERT_NO_FATAL_FAILURE(expect_gated(device(), step(), 0, half, in, 2570));
}

// product_many.cu takes all products of so many rows where cuBLASLt may not be used.
TEST(CudaDeterministic, many_rows) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  for (DType type : {DType::f32, DType::bf16}) {
    OnDevice device(type, {.deterministic = true});
    const double step = type == DType::bf16 ? kHalfStep : 0;
    for (auto [out, in] : {std::pair{256, 64}, {333, 576}, {520, 104}, {300, 136}, {8, 2048}, {8712, 8}}) {
      Made w(out, in, uint64_t(out));
      for (int rows : {129, 257, 301, 515})
        for (int parts = 0; parts < 8; parts += rows == 129 ? 1 : 7) ASSERT_NO_FATAL_FAILURE(expect_product(device, step, w, rows, parts));
    }
    // 66 tiles of 256 outputs; the others are cut into tiles of 224
    ASSERT_NO_FATAL_FAILURE(expect_product(device, step, Made(16896, 8, 1), 129, 7));
    if (type == DType::f32) continue;  // programs have bf16 activations
    for (auto [half, in] : {std::pair{128, 64}, {200, 104}, {333, 576}, {4232, 8}})
      for (int rows : {129, 301}) {
        ASSERT_NO_FATAL_FAILURE(expect_gated(device, step, 0, half, in, rows));
        ASSERT_NO_FATAL_FAILURE(expect_gated(device, step, 0, half, in, rows, Activation::relu));
      }
    ASSERT_NO_FATAL_FAILURE(expect_gated(device, step, 0, 8448, 8, 129));
  }
}

// A norm that two products share: what it reads is checked as a product, and what comes out against the norm of that.
TEST_P(CudaOps, norm_between_products) {
  if (GetParam() != DType::bf16) GTEST_SKIP() << "programs have bf16 activations";
  for (auto [in, dim, half] : {std::array{64, 72, 8}, {96, 576, 100}, {576, 1000, 36}, {256, 4096, 24}, {64, 8256, 16}}) {
    Made first(dim, in, 11), second(2 * half, dim, 12);
    for (int kind = 0; kind < 3; kind++)
      for (int rows : {1, 8, 9, 16, 17, 40}) {
        if (kind > 0 && rows % 8) continue;
        const bool gated = kind != 1;
        Array x({rows, in}), between({rows, dim}), weight({dim}), y({rows, gated ? half : 2 * half});
        whole(x.fill(2)), between.fill(3, 3), weight.fill(4);
        const std::vector<float> before = between.values();
        const Norm norm{kind == 2 ? Norm::Kind::layer : Norm::Kind::rms, 1e-5f, weight, {}, kind == 1 ? 1.0f : 0.0f};
        device().norm_between(y, between, x, first.weight, norm, second.weight, gated);
        for (int r = 0; r < rows; r++) {
          const float *xr = x.view.row<float>(r), *sum = between.view.row<float>(r);
          double mean = 0, squares = 0;
          for (int i = 0; i < dim; i++) {
            double exact = before[size_t(r * dim + i)];
            for (int k = 0; k < in; k++) exact += double(xr[k]) * first.values.view.row<float>(i)[k];
            ASSERT_NEAR(sum[i], exact, product_bound(xr, first.values.view.row<float>(i), in) + 1e-6 * std::abs(exact) + 1e-6)
                << rows << " rows of " << in << " to " << dim << ", row " << r << " output " << i;
            mean += norm.kind == Norm::Kind::layer ? double(sum[i]) / dim : 0.0;
          }
          for (int i = 0; i < dim; i++) squares += (sum[i] - mean) * (sum[i] - mean);
          std::vector<float> normed(static_cast<size_t>(dim));
          for (int i = 0; i < dim; i++)
            normed[size_t(i)] = float((sum[i] - mean) / std::sqrt(squares / dim + norm.eps) * (norm.offset + weight.data[size_t(i)]));
          // rounded to bf16 on their way, each for itself: four deviations
          auto dot = [&](int row) {
            const float* w = second.values.view.row<float>(row);
            double exact = 0, spread = 0;
            for (int i = 0; i < dim; i++)
              exact += double(normed[size_t(i)]) * w[i], spread += std::pow(double(normed[size_t(i)]) * w[i], 2);
            return std::pair{exact, 4 * kHalfStep / 2 * std::sqrt(spread) + 2 * product_bound(normed.data(), w, dim) + 1e-6};
          };
          for (int o = 0; o < int(y.view.shape[1]); o++) {
            auto [want, bound] = dot(o);
            if (gated) {
              auto [up, up_bound] = dot(half + o);
              const double silu = want / (1 + std::exp(-want));
              bound = 1.1 * bound * std::abs(up) + up_bound * std::abs(silu) + 1.1 * bound * up_bound + 4 * kHalfStep * std::abs(silu * up);
              want = silu * up;
            }
            ASSERT_NEAR(y.view.row<float>(r)[o], want, bound + (step() + 4e-6) * std::abs(want))
                << rows << " rows of " << dim << " to " << y.view.shape[1] << ", row " << r << " output " << o << " kind " << kind;
          }
        }
      }
  }
}

// The same, alone and among others.
TEST(CudaDeterministic, norm_between_products) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  OnDevice device(DType::bf16, {.deterministic = true});
  for (int dim : {576, 4096, 8256}) {
    Made first(dim, 96, 11), second(80, dim, 12);
    Array x({130, 96}), between({130, dim}), weight({dim}), all({130, 80});
    whole(x.fill(2)), between.fill(3, 3), weight.fill(4);
    const Norm norm{Norm::Kind::rms, 1e-5f, weight};
    Array sums({130, dim});
    sums.data = between.data, sums.view.data = sums.data.data();
    device.norm_between(all, sums, x, first.weight, norm, second.weight, false);
    for (int rows : {1, 8, 9, 17, 65})
      for (int at : {0, 130 - rows}) {
        Array some({rows, 80}), own({rows, dim});
        std::copy_n(between.view.row<float>(at), rows * dim, own.view.row<float>(0));
        device.norm_between(some, own, x.view.rows(at, rows), first.weight, norm, second.weight, false);
        std::vector<float> want(all.view.row<float>(at), all.view.row<float>(at) + rows * 80);
        expect_same_bits(some.values(), want, fmt::format("{}, rows {} + {}", dim, at, rows));
      }
  }
}

TEST_P(CudaOps, greedy_takes_the_lowest_id_of_the_largest) {
  for (int vocab : {1, 5, 33, 1000, 49152, 128256}) {
    Rows rows;
    rows.add(0, 3);
    rows.out_row = {0, 1, 2}, rows.out = {Out::token, Out::logits, Out::token};
    rows.sample.assign(3, SampleRow{.top_p = 1, .repetition_penalty = 1});
    Array logits({3, vocab});
    logits.fill(uint64_t(vocab), 4);
    std::fill_n(logits.view.row<float>(0), vocab, -3.0f);
    if (vocab > 2) logits.view.row<float>(2)[vocab - 1] = logits.view.row<float>(2)[vocab / 2] = 7;
    std::vector<Sampled> got, want;
    Array copy({3, vocab});
    copy.data = logits.data, copy.view.data = copy.data.data();
    device().sample(logits, rows.batch(), got);
    make_ref_backend()->sample(copy, rows.batch(), want);
    for (int i = 0; i < 3; i++) {
      EXPECT_EQ(got[size_t(i)].token, want[size_t(i)].token) << vocab << " row " << i;
      EXPECT_NEAR(got[size_t(i)].logprob, want[size_t(i)].logprob, 1e-4);
    }
  }
}

TEST_P(CudaOps, samples_what_masks_allow) {
  const int vocab = 70;  // three words of a mask
  Rows rows;
  rows.add(0, 3);
  rows.out_row = {0, 1, 2}, rows.out.assign(3, Out::token);
  rows.sample.assign(3, SampleRow{.top_p = 1, .repetition_penalty = 1});
  const std::vector<int32_t> mask_row{1, -1, 0};
  const std::vector<uint32_t> mask{0, 0, 1u << 5, 1u << 7, 1u << 31, 0};  // token 69 alone; 7 and 63
  Array logits({3, vocab});
  logits.fill(3, 4);
  const float* x = logits.view.row<float>(0);
  const int32_t better = x[7] >= x[63] ? 7 : 63;
  x = logits.view.row<float>(1);
  const auto best = int32_t(std::max_element(x, x + vocab) - x);
  Batch batch = rows.batch();
  batch.mask_row = mask_row.data(), batch.mask = mask.data();
  std::vector<Sampled> got;
  device().sample(logits, batch, got);
  EXPECT_EQ(got[0].token, better);
  EXPECT_EQ(got[1].token, best);
  EXPECT_EQ(got[2].token, 69);
}

TEST_P(CudaOps, experts) {
  auto ref = make_ref_backend();
  for (auto [rows, n, k, out, in] : {std::array{1, 1, 1, 5, 32},
                                     {3, 8, 2, 40, 64},
                                     {31, 13, 3, 17, 33},
                                     {70, 60, 4, 64, 256},
                                     {16, 8, 2, 100, 104},
                                     {300, 5, 2, 50, 576}}) {
    std::vector<std::unique_ptr<Made>> made;
    std::vector<Weight> weights;
    for (int e = 0; e < n; e++) made.push_back(std::make_unique<Made>(out, in, uint64_t(100 + e))), weights.push_back(made.back()->weight);
    for (bool renormalize : {false, true}) {
      std::vector<std::vector<float>> results;
      std::vector<std::vector<int32_t>> chosen;
      for (Backend* b : {static_cast<Backend*>(ref.get()), static_cast<Backend*>(&device())}) {
        std::vector<int32_t> id(size_t(rows * k), -1);
        Tensor expert = view(id.data(), DType::i32, {rows, k});
        Array logits({rows, n}), weight({rows, k}), x({rows, in}), y({rows * k, out}), sum({rows, out});
        logits.fill(9, 6), whole(x.fill(2));
        b->route(expert, weight, logits, renormalize);
        b->grouped_linear(y, x, weights, expert);
        b->combine(sum, y, weight);
        results.push_back(sum.values()), chosen.push_back(id);
      }
      EXPECT_EQ(chosen[1], chosen[0]);
      expect_close(results[1], results[0], 1e-4 + step() * std::sqrt(double(in)), step(),
                   fmt::format("{} of {} experts on {}", k, n, device().name()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaOps, testing::ValuesIn(kKinds), name_of_kind);

}  // namespace
}  // namespace mr::test
#endif
