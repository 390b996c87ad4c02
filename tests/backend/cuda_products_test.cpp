// What a program of products becomes on a GPU: gated, with a norm between two, and in deterministic mode. Inputs have bf16 values, so that
// what differs is arithmetic alone. Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/on_kinds.h"
#include "backend/products.h"

namespace mr::test {
namespace {

class CudaProducts : public OnKinds {};

// In deterministic mode a row's product has the same bits alone and among others.
TEST(CudaDeterministic, linear) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  OnDevice device(DType::bf16, {.deterministic = true});
  // 4,400 rows of a small weight, and 2,200 of a larger one, fill the GPU with tiles of many rows; 12,288 inputs are split into four parts.
  for (auto [out, in, most] : {std::array{333, 576, 4400}, {1024, 4096, 2200}, {64, 1536, 400}, {8192, 64, 400}, {4032, 12288, 300}}) {
    Made w(out, in, 5);
    for (int many : {130, most}) {
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

TEST_P(CudaProducts, linear_gate) {
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
TEST_P(CudaProducts, norm_between_products) {
  if (GetParam() != DType::bf16) GTEST_SKIP() << "programs have bf16 activations";
  for (auto [in, dim, half] : {std::array{64, 72, 8}, {96, 576, 100}, {576, 1000, 36}, {256, 4096, 24}, {64, 8256, 16}}) {
    Made first(dim, in, 11), second(2 * half, dim, 12);
    for (int kind = 0; kind < 3; kind++)
      for (int rows : {1, 8, 9, 16, 17, 40}) {
        if (kind > 0 && rows % 8) continue;
        const bool gated = kind != 1;
        Array x({rows, in}), between({rows, dim}), weight({dim}), y({rows, gated ? half : 2 * half});
        whole(x.fill(2));
        between.fill(3, 3);
        weight.fill(4);
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
            for (int i = 0; i < dim; i++) {
              exact += double(normed[size_t(i)]) * w[i];
              spread += std::pow(double(normed[size_t(i)]) * w[i], 2);
            }
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
    whole(x.fill(2));
    between.fill(3, 3);
    weight.fill(4);
    const Norm norm{Norm::Kind::rms, 1e-5f, weight};
    Array sums({130, dim});
    sums.data = between.data;
    sums.view.data = sums.data.data();
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

INSTANTIATE_TEST_SUITE_P(All, CudaProducts, testing::ValuesIn(kKinds), name_of_kind);

}  // namespace
}  // namespace mr::test
#endif
