// Weights of 4 and 8 bits on the GPU, from their packed form, against exact sums of the values that the format's decoder gives.
// Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/on_device.h"

namespace mr::test {
namespace {

constexpr int kPackedRows = 64;  // more rows are multiplied with a weight that was rounded to bf16

struct Blocks {
  WeightStore store;
  Weight weight;                // packed for the host
  std::vector<std::byte> file;  // its rows as a file has them
  StoredWeight stored;
  Array values;
  Blocks(const Codec& codec, int64_t out, int64_t in, uint64_t name) : values({out, in}) {
    ThreadPool pool(1);
    values.fill(name);
    const int64_t row_bytes = codec.row_bytes(in);
    file.resize(size_t(out * row_bytes));
    for (int64_t r = 0; r < out; r++) codec.encode(values.view.row<float>(r), in, file.data() + r * row_bytes);
    stored = {codec, file.data(), out, in};
    weight = pack(stored, store, pool);
    weight.decode(0, out, values.data.data());
  }
};

class CudaPacked : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!cuda_available()) GTEST_SKIP() << "no GPU";
  }
  const Codec& format() const { return get_codec(GetParam()); }
  // Sums are f32; q4_1 adds 128 to each of its 16 values, as much as 9 times the largest of a block beside what it multiplies; where
  // the weight is rounded to bf16, half a step of each.
  double bound(const float* x, const float* w, int64_t n, int rows) const {
    double magnitude = 0, spread = 0, largest = 0;
    for (int64_t k = 0; k < n; k++) largest = std::max(largest, double(std::abs(w[k])));
    for (int64_t k = 0; k < n; k++) {
      magnitude += std::abs(double(x[k]) * w[k]);
      spread += std::abs(double(x[k])) * 18 * largest;
    }
    if (format().grid.minimum) magnitude += spread;
    return ((std::sqrt(double(n)) + 4) * 0x1p-22 + (rows > kPackedRows ? kHalfStep : 0)) * magnitude + 1e-6;
  }
};

void to_bf16(Array& a) {
  for (float& x : a.data) x = f32_from_bf16(bf16_from_f32(x));
}

double dot(const float* x, const float* w, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; k++) sum += double(x[k]) * w[k];
  return sum;
}

TEST_P(CudaPacked, linear) {
  OnDevice device(DType::bf16);
  for (auto [out, in] : {std::pair{1, 32}, {15, 64}, {17, 96}, {100, 288}, {333, 576}, {40, 4096}, {9, 14336}}) {
    Blocks w(format(), out, in, uint64_t(out * 10000 + in));
    device.keep_form(w.weight, w.stored);
    for (int rows : {1, 3, 8, 9, 16, 17, 33, 64, 70})
      for (int parts = rows == 9 ? 1 : 0; parts < 8; parts += rows == 9 ? 2 : 7) {
        Array x({rows, in}, rows % 2 ? 8 : 3), bias({out}), residual({rows, out}), y({rows, out}, out % 8 ? 1 : 8);
        x.fill(2);
        to_bf16(x);
        bias.fill(3);
        residual.fill(4);
        y.fill(4);
        Epilogue e;
        if (parts & 1) e.bias = bias;
        if (parts & 2) e.residual = parts & 4 ? y.view : residual.view;
        if (parts & 4) e.scale = 0.3f;
        std::vector<float> before = parts & 4 ? y.values() : residual.values();
        device.linear(y, x, w.weight, e);
        for (int r = 0; r < rows; r++)
          for (int o = 0; o < out; o++) {
            const float *xr = x.view.row<float>(r), *wo = w.values.view.row<float>(o);
            double exact = dot(xr, wo, in);
            if (parts & 1) exact += bias.data[size_t(o)];
            if (parts & 4) exact *= 0.3f;
            if (parts & 2) exact += before[size_t(r * out + o)];
            const double rounded = parts & 2 ? 0x1p-22 : kHalfStep;
            ASSERT_NEAR(y.view.row<float>(r)[o], exact, bound(xr, wo, in, rows) + rounded * std::abs(exact))
                << rows << " rows, [" << out << ", " << in << "], row " << r << " output " << o << " parts " << parts;
          }
      }
  }
}

TEST_P(CudaPacked, linear_gate) {
  OnDevice device(DType::bf16);
  for (auto [half, in] : {std::pair{16, 64}, {20, 96}, {336, 576}, {32, 4096}}) {
    Blocks w(format(), 2 * half, in, 77);
    device.keep_form(w.weight, w.stored);
    for (int rows : {1, 9, 16, 33, 70}) {
      Array x({rows, in}), y({rows, half});
      x.fill(2);
      to_bf16(x);
      device.linear_gate(y, x, w.weight, Activation::silu);
      for (int r = 0; r < rows; r++)
        for (int o = 0; o < half; o++) {
          const float *xr = x.view.row<float>(r), *first = w.values.view.row<float>(o), *second = w.values.view.row<float>(half + o);
          const double gate = dot(xr, first, in), up = dot(xr, second, in), silu = gate / (1 + std::exp(-gate)), want = silu * up;
          const bool unpacked = half % 16 != 0 || rows > kPackedRows;  // gate and up may be rounded to bf16 in between, too
          const double between = unpacked ? 2.2 * kHalfStep : 0;
          const double sums =
              1.1 * bound(xr, first, in, unpacked ? 1000 : 1) * std::abs(up) + bound(xr, second, in, unpacked ? 1000 : 1) * std::abs(silu);
          ASSERT_NEAR(y.view.row<float>(r)[o], want, sums + 1e-6 + (kHalfStep + between + 4e-6) * std::abs(want) + between * std::abs(up))
              << rows << " rows, [" << half << ", " << in << "], row " << r << " output " << o;
        }
    }
  }
}

TEST_P(CudaPacked, embed) {
  OnDevice device(DType::f32);
  auto ref = make_ref_backend();
  for (int dim : {32, 96, 576}) {
    Blocks w(format(), 77, dim, 5);
    device.keep_form(w.weight, w.stored);
    Rows rows;
    rows.add(0, 6);
    rows.token = {0, 76, 8, 15, 16, 33};
    Array got({6, dim}, 3), want({6, dim});
    device.embed(got, w.weight, 0.5f, rows.batch());
    ref->embed(want, w.weight, 0.5f, rows.batch());
    expect_close(got.values(), want.values(), 1e-6, 4e-6, fmt::format("{} of width {}", GetParam(), dim));  // (128 + q) - 128 in f32
  }
}

TEST_P(CudaPacked, experts) {
  OnDevice device(DType::bf16);
  for (auto [rows, n, k, out, in] : {std::array{1, 4, 2, 24, 96}, {40, 6, 2, 40, 64}, {100, 7, 3, 33, 288}}) {
    std::vector<std::unique_ptr<Blocks>> made;
    std::vector<Weight> weights;
    for (int e = 0; e < n; e++) {
      made.push_back(std::make_unique<Blocks>(format(), out, in, uint64_t(100 + e)));
      weights.push_back(made.back()->weight);
      device.keep_form(made.back()->weight, made.back()->stored);
    }
    std::vector<int32_t> id;
    for (int i = 0; i < rows * k; i++) id.push_back((i * i + i / 3) % n);
    Array x({rows, in}), y({rows * k, out});
    x.fill(2);
    to_bf16(x);
    device.grouped_linear(y, x, weights, view(id.data(), DType::i32, {rows, k}));
    for (int p = 0; p < rows * k; p++)
      for (int o = 0; o < out; o++) {
        const float *xr = x.view.row<float>(p / k), *wo = made[size_t(id[size_t(p)])]->values.view.row<float>(o);
        const double exact = dot(xr, wo, in);
        ASSERT_NEAR(y.view.row<float>(p)[o], exact, bound(xr, wo, in, 1) + kHalfStep * std::abs(exact))
            << rows << " rows, " << n << " of [" << out << ", " << in << "], pair " << p << " output " << o;
      }
  }
}

// In deterministic mode a row's product has the same bits alone and among others.
TEST_P(CudaPacked, deterministic) {
  OnDevice device(DType::bf16, {.deterministic = true});
  for (auto [out, in] : {std::pair{333, 576}, {128, 4096}}) {
    Blocks w(format(), out, in, 5);
    device.keep_form(w.weight, w.stored);
    Array x({130, in}), all({130, out});
    x.fill(2);
    to_bf16(x);
    device.linear(all, x, w.weight, {});
    for (int rows : {1, 8, 9, 16, 17, 33, 64, 65})
      for (int at : {0, 7, 130 - rows}) {
        Array some({rows, out});
        device.linear(some, x.view.rows(at, rows), w.weight, {});
        std::vector<float> want(all.view.row<float>(at), all.view.row<float>(at) + rows * out);
        expect_same_bits(some.values(), want, fmt::format("[{}, {}], rows {} + {}", out, in, at, rows));
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaPacked, testing::Values("q8_0", "q4_0", "q4_1"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace mr::test
#endif
