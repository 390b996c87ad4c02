// short_conv and diag_scan: against ref and their definitions, and on the CPU the same bits however a sequence is cut, whoever stands
// beside it, on every instruction set and thread count.
#include "backend/recurrent_world.h"

namespace mr::test {
namespace {

struct Shape {
  int channels, width, n_state;
  DType state = DType::f32;
};

const Shape kShapes[] = {{64, 4, 16},
                         {33, 3, 8},
                         {16, 1, 5},
                         {200, 4, 24},
                         {7, 2, 1},
                         {33, 3, 16, DType::bf16},
                         {40, 4, 5, DType::f16},
                         {20, 4, 24, DType::bf16},
                         {7, 2, 33, DType::f16}};

struct Layer {
  Shape shape;
  Array conv_weight, conv_bias, a, d;
  SlotState conv{{0, 64}, 0};
  SlotState scan;
  explicit Layer(Shape s)
      : shape(s), conv_weight({s.channels, s.width}), conv_bias({s.channels}), a({s.channels, s.n_state}), d({s.channels}) {
    conv_weight.fill(1);
    conv_bias.fill(2);
    a.fill(3, 2, -2.1f);
    d.fill(4);
    scan = {{0, 64}, (s.width - 1) * s.channels * 4, s.state};
  }
  std::string name() const { return fmt::format("{} channels, {}", shape.channels, name_of(shape.state)); }
  int width() const { return shape.channels; }
  int64_t state_begin() const { return 64; }
  int64_t state_bytes() const { return ((shape.width - 1) * 4 + shape.n_state * size_of(shape.state)) * shape.channels; }
  int64_t unit_bytes() const { return (state_begin() + state_bytes() + 63) / 64 * 64; }

  // Both operations over the rows of a batch, whose row r belongs to sequence `name[r]`: x = conv(x), y = scan(x).
  std::vector<float> step(Backend& backend, const Batch& batch, const StateMemory& state, const std::vector<uint64_t>& name) const {
    const int n = batch.n_tokens, c = shape.channels, m = shape.n_state;
    Array x({n, c}, 3), u({n, c}), dt({n, c}), b({n, m}, 2), out_c({n, m}, 5), y({n, c}, 1);
    for (int r = 0; r < n; r++) {
      uint64_t p = uint64_t(batch.position[r]);
      for (int i = 0; i < c; i++) x.view.row<float>(r)[i] = value(name[size_t(r)] * 8 + 1, p * c + i);
      for (int i = 0; i < c; i++) dt.view.row<float>(r)[i] = 0.6f + 0.5f * value(name[size_t(r)] * 8 + 2, p * c + i);
      for (int i = 0; i < m; i++) b.view.row<float>(r)[i] = value(name[size_t(r)] * 8 + 3, p * m + i);
      for (int i = 0; i < m; i++) out_c.view.row<float>(r)[i] = value(name[size_t(r)] * 8 + 4, p * m + i);
    }
    backend.short_conv(u, x, conv_weight, conv_bias, Activation::silu, conv, batch, state);
    DiagScan call{c, m, a, d, scan};
    backend.diag_scan(y, u, dt, b, out_c, call, batch, state);
    return y.values();
  }
};

TEST_P(Operations, convolution_and_scan_agree_with_ref) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  if (on_gpu()) GTEST_SKIP() << "each for itself, in recurrences_agree_with_ref";
  for (const Shape& s : kShapes) {
    const Layer layer(s);
    expect_ref(layer.name(), near_ref({3e-6, 1e-5}, s.state), [&](Backend& b) { return run_two(b, layer); });
  }
}

// One channel, one state value, width 2, written out.
TEST_P(Operations, convolution_and_scan_follow_their_definitions) {
  Units units(3, 64, 0, 1);
  Rows rows;
  rows.add(0, 3);
  rows.dst = {1, -1, 2};
  Array x({3, 1}), dt({3, 1}), b({3, 1}), c({3, 1}), u({3, 1}), y({3, 1}), weight({1, 2}), bias({1}), a({1, 1}), d({1});
  std::copy_n(std::array{1.0f, 2.0f, 3.0f}.data(), 3, x.data.data());
  std::copy_n(std::array{0.5f, 1.0f, 2.0f}.data(), 3, dt.data.data());
  std::copy_n(std::array{1.0f, -1.0f, 2.0f}.data(), 3, b.data.data());
  std::copy_n(std::array{3.0f, 1.0f, 1.0f}.data(), 3, c.data.data());
  weight.data = {10, 1};
  weight.view.data = weight.data.data();
  bias.data[0] = 0.5f;
  a.data[0] = -1;
  d.data[0] = 2;
  backend().short_conv(u, x, weight, bias, Activation::none, {{0, 0}, 0}, rows.batch(), units.state);
  expect_close(u.values(), {1.5f, 12.5f, 23.5f}, 0, bound(1e-6, 1e-5) + step(), name());
  EXPECT_EQ(*reinterpret_cast<float*>(units.state.group[0].unit(1)), 1);
  EXPECT_EQ(*reinterpret_cast<float*>(units.state.group[0].unit(2)), 3);
  backend().diag_scan(y, x, dt, b, c, {1, 1, a, d, {{0, 0}, 4}}, rows.batch(), units.state);
  double h0 = 0.5, h1 = std::exp(-1.0) * h0 - 2, h2 = std::exp(-2.0) * h1 + 12;
  expect_close(y.values(), {float(3 * h0 + 2), float(h1 + 4), float(h2 + 6)}, 0, bound(1e-6, 1e-5) + step(), name());
  EXPECT_NEAR(reinterpret_cast<float*>(units.state.group[0].unit(1))[1], h0, bound(1e-7, 1e-5));
  EXPECT_NEAR(reinterpret_cast<float*>(units.state.group[0].unit(2))[1], h2, bound(4e-6, 1e-4));
}

TEST(Recurrent, gives_the_same_bits_however_it_is_run) {
  for (const Shape& s : kShapes) expect_same_bits_however_it_is_run(Layer(s));
}

TEST_P(Operations, trees_of_convolution_and_scan_read_their_parents) {
  if (on_gpu()) GTEST_SKIP() << "a tree takes other kernels than a chain: recurrences_agree_with_ref has both";
  for (const Shape& s : kShapes) expect_trees_read_their_parents(backend(), Layer(s));
}

}  // namespace
}  // namespace mr::test
