// outer_scan: against its definition and ref, and on the CPU the same bits however a sequence is cut, whoever stands beside it, on every
// instruction set and thread count.
#include "backend/recurrent_world.h"

namespace mr::test {
namespace {

struct Shape {
  int heads, head_dim, n_state, groups;
  DType state = DType::f32;
  int inner() const { return heads * head_dim; }
};

const Shape kShapes[] = {{4, 16, 12, 2},
                         {3, 64, 16, 1},
                         {2, 5, 1, 2},
                         {6, 80, 33, 3},
                         {8, 100, 7, 4},
                         {1, 1, 3, 1},
                         {3, 64, 16, 1, DType::bf16},
                         {6, 80, 33, 3, DType::f16},
                         {8, 100, 7, 4, DType::bf16},
                         {2, 5, 1, 2, DType::f16}};

struct Layer {
  Shape shape;
  Array a, d;
  OuterScan scan;
  explicit Layer(Shape s) : shape(s), a({s.heads}), d({s.heads}) {
    a.fill(3, 1, -1.1f);
    d.fill(4);
    scan = {s.heads, s.head_dim, s.n_state, s.groups, a, s.heads % 2 ? Tensor{} : d.view, 0.2f, 1.0f, {{0, 64}, 128, s.state}};
  }
  std::string name() const { return fmt::format("{} heads of {}, {}", shape.heads, shape.head_dim, name_of(shape.state)); }
  int width() const { return shape.inner(); }
  int64_t state_begin() const { return 192; }
  int64_t state_bytes() const { return int64_t(shape.inner()) * shape.n_state * size_of(shape.state); }
  int64_t unit_bytes() const { return (state_begin() + state_bytes() + 63) / 64 * 64; }

  // Row r belongs to sequence `name[r]`.
  std::vector<float> step(Backend& backend, const Batch& batch, const StateMemory& state, const std::vector<uint64_t>& name) const {
    const int n = batch.n_tokens, m = shape.groups * shape.n_state;
    Array x({n, shape.inner()}, 3), dt({n, shape.heads}, 4), b({n, m}, 2), c({n, m}, 5), y({n, shape.inner()}, 1);
    auto fill = [&](Array& array, int r, uint64_t which, float scale, float shift) {
      int64_t columns = array.view.shape[1];
      for (int64_t i = 0; i < columns; i++)
        array.view.row<float>(r)[i] = shift + scale * value(name[size_t(r)] * 8 + which, uint64_t(batch.position[r] * columns + i));
    };
    for (int r = 0; r < n; r++) {
      fill(x, r, 1, 1, 0);
      fill(dt, r, 2, 0.6f, 0.6f);
      fill(b, r, 3, 1, 0);
      fill(c, r, 4, 1, 0);
    }
    backend.outer_scan(y, x, dt, b, c, scan, batch, state);
    return y.values();
  }
};

// One head of two channels, one state value, written out; dt is held to at most 1.
TEST_P(Operations, outer_scan_follows_its_definition) {
  Units units(3, 64, 0, 1);
  Rows rows;
  rows.add(0, 2);
  rows.dst = {1, 2};
  Array x({2, 2}), dt({2, 1}), b({2, 1}), c({2, 1}), y({2, 2}), a({1}), d({1});
  std::copy_n(std::array{1.0f, 2.0f, 3.0f, -4.0f}.data(), 4, x.data.data());
  std::copy_n(std::array{0.5f, 7.0f}.data(), 2, dt.data.data());
  std::copy_n(std::array{1.0f, -1.0f}.data(), 2, b.data.data());
  std::copy_n(std::array{3.0f, 2.0f}.data(), 2, c.data.data());
  a.data[0] = -2;
  d.data[0] = 10;
  backend().outer_scan(y, x, dt, b, c, {1, 2, 1, 1, a, d, 0, 1, {{0, 0}, 0}}, rows.batch(), units.state);
  double h0 = 0.5, h1 = 1, g0 = std::exp(-2.0) * h0 - 3, g1 = std::exp(-2.0) * h1 + 4;
  expect_close(y.values(), {float(3 * h0 + 10), float(3 * h1 + 20), float(2 * g0 + 30), float(2 * g1 - 40)}, 0, bound(1e-6, 1e-5) + step(),
               name());
  auto stored = [&](int unit) { return reinterpret_cast<float*>(units.state.group[0].unit(unit)); };
  EXPECT_NEAR(stored(1)[1], h1, bound(1e-7, 1e-5));
  EXPECT_NEAR(stored(2)[0], g0, bound(1e-6, 1e-5));
}

TEST_P(Operations, outer_scan_agrees_with_ref) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  if (on_gpu()) GTEST_SKIP() << "recurrences_agree_with_ref has it";
  for (const Shape& s : kShapes) {
    const Layer layer(s);
    expect_ref(layer.name(), near_ref({1e-5, 1e-5}, s.state), [&](Backend& b) { return run_two(b, layer); });
  }
}

TEST(OuterScanOp, gives_the_same_bits_however_it_is_run) {
  for (const Shape& s : kShapes) expect_same_bits_however_it_is_run(Layer(s));
}

TEST_P(Operations, trees_of_outer_scan_read_their_parents) {
  if (on_gpu()) GTEST_SKIP() << "a tree takes other kernels than a chain: recurrences_agree_with_ref has both";
  for (const Shape& s : kShapes) expect_trees_read_their_parents(backend(), Layer(s));
}

}  // namespace
}  // namespace mr::test
