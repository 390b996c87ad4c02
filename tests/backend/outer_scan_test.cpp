// outer_scan: against its definition and ref, and the same bits however a sequence is cut, whoever stands beside it, on every
// instruction set and thread count. Slots begin as NaN except slot 0, the state of a fresh sequence.
#include "backend/world.h"

namespace mr::test {
namespace {

struct Shape {
  int heads, head_dim, n_state, groups;
  int inner() const { return heads * head_dim; }
};

const Shape kShapes[] = {{4, 16, 12, 2}, {3, 64, 16, 1}, {2, 5, 1, 2}, {6, 80, 33, 3}, {8, 100, 7, 4}, {1, 1, 3, 1}};

struct Course {
  uint64_t name;
  std::vector<int> steps;
};

struct Layer {
  Shape shape;
  Array a, d;
  OuterScan scan;
  explicit Layer(Shape s) : shape(s), a({s.heads}), d({s.heads}) {
    a.fill(3, 1, -1.1f), d.fill(4);
    scan = {s.heads, s.head_dim, s.n_state, s.groups, a, s.heads % 2 ? Tensor{} : d.view, 0.2f, 1.0f, {{0, 64}, 128}};
  }
  int64_t state_bytes() const { return int64_t(shape.inner()) * shape.n_state * 4; }
  int64_t unit_bytes() const { return (192 + state_bytes() + 63) / 64 * 64; }

  // Row r belongs to sequence `name[r]`.
  std::vector<float> step(Backend& backend, const Batch& batch, const StateMemory& state, const std::vector<uint64_t>& name) const {
    const int n = batch.n_tokens, m = shape.groups * shape.n_state;
    Array x({n, shape.inner()}, 3), dt({n, shape.heads}, 4), b({n, m}, 2), c({n, m}, 5), y({n, shape.inner()}, 1);
    auto fill = [&](Array& array, int r, uint64_t which, float scale, float shift) {
      int64_t columns = array.view.shape[1];
      for (int64_t i = 0; i < columns; i++)
        array.view.row<float>(r)[i] = shift + scale * value(name[size_t(r)] * 8 + which, uint64_t(batch.position[r] * columns + i));
    };
    for (int r = 0; r < n; r++) fill(x, r, 1, 1, 0), fill(dt, r, 2, 0.6f, 0.6f), fill(b, r, 3, 1, 0), fill(c, r, 4, 1, 0);
    backend.outer_scan(y, x, dt, b, c, scan, batch, state);
    return y.values();
  }
};

std::vector<std::vector<float>> run(Backend& backend, const Layer& layer, const std::vector<Course>& courses) {
  Units units(int(courses.size()) + 4, layer.unit_bytes(), 0, 5);
  std::vector<int32_t> slot;
  std::vector<int> done(courses.size(), 0);
  std::vector<std::vector<float>> outs(courses.size());
  for (size_t i = 0; i < courses.size(); i++) slot.push_back(units.take());
  for (size_t step = 0; step < courses[0].steps.size(); step++) {
    Rows rows;
    std::vector<size_t> who;
    std::vector<uint64_t> names;
    for (size_t i = 0; i < courses.size(); i++) {
      int n = courses[i].steps[step];
      if (!n) continue;
      rows.add(done[i], n);
      rows.src.back() = done[i] ? slot[i] : 0;
      rows.dst.back() = slot[i];
      who.push_back(i);
      names.insert(names.end(), size_t(n), courses[i].name);
      done[i] += n;
    }
    std::vector<float> y = layer.step(backend, rows.batch(), units.state, names);
    const int width = layer.shape.inner();
    for (size_t w = 0; w < who.size(); w++)
      outs[who[w]].insert(outs[who[w]].end(), y.begin() + rows.row_begin[w] * width, y.begin() + rows.row_begin[w + 1] * width);
  }
  return outs;
}

// One head of two channels, one state value, written out; dt is held to at most 1.
TEST(OuterScanOp, follows_the_definition) {
  std::vector<NamedBackend> all = cpu_backends();
  all.push_back({"ref", make_ref_backend()});
  for (auto& [name, backend] : all) {
    Units units(3, 64, 0, 1);
    Rows rows;
    rows.add(0, 2);
    rows.dst = {1, 2};
    Array x({2, 2}), dt({2, 1}), b({2, 1}), c({2, 1}), y({2, 2}), a({1}), d({1});
    std::copy_n(std::array{1.0f, 2.0f, 3.0f, -4.0f}.data(), 4, x.data.data());
    std::copy_n(std::array{0.5f, 7.0f}.data(), 2, dt.data.data());
    std::copy_n(std::array{1.0f, -1.0f}.data(), 2, b.data.data());
    std::copy_n(std::array{3.0f, 2.0f}.data(), 2, c.data.data());
    a.data[0] = -2, d.data[0] = 10;
    backend->outer_scan(y, x, dt, b, c, {1, 2, 1, 1, a, d, 0, 1, {{0, 0}, 0}}, rows.batch(), units.state);
    double h0 = 0.5, h1 = 1, g0 = std::exp(-2.0) * h0 - 3, g1 = std::exp(-2.0) * h1 + 4;
    expect_close(y.values(), {float(3 * h0 + 10), float(3 * h1 + 20), float(2 * g0 + 30), float(2 * g1 - 40)}, 0, 1e-6, name);
    auto stored = [&](int unit) { return reinterpret_cast<float*>(units.state.group[0].unit(unit)); };
    EXPECT_FLOAT_EQ(stored(1)[1], float(h1));
    EXPECT_FLOAT_EQ(stored(2)[0], float(g0));
  }
}

TEST(OuterScanOp, agrees_with_ref) {
  auto ref = make_ref_backend();
  for (const Shape& s : kShapes) {
    Layer layer(s);
    std::vector<Course> courses{{1, {40, 1, 3}}, {2, {1, 1, 20}}};
    auto want = run(*ref, layer, courses);
    for (auto& [name, backend] : cpu_backends(3)) {
      auto got = run(*backend, layer, courses);
      for (size_t i = 0; i < courses.size(); i++)
        expect_close(got[i], want[i], 1e-5, 1e-5, fmt::format("{}, {} heads of {}", name, s.heads, s.head_dim));
    }
  }
}

TEST(OuterScanOp, gives_the_same_bits_however_it_is_run) {
  for (const Shape& s : kShapes) {
    Layer layer(s);
    auto single = make_cpu_backend(best_isa(), 1);
    std::vector<float> want = run(*single, layer, {{1, {100}}})[0], other = run(*single, layer, {{2, {60}}})[0];
    for (Isa isa : available_isas()) {
      for (int threads : {1, 2, 5, 8}) {
        auto backend = make_cpu_backend(isa, threads);
        std::string where = fmt::format("{} with {} threads, {} heads of {}", name_of(isa), threads, s.heads, s.head_dim);
        expect_same_bits(run(*backend, layer, {{1, {1, 2, 1, 50, 45, 1}}})[0], want, where);
        auto both = run(*backend, layer, {{1, {17, 80, 1, 2}}, {2, {0, 5, 54, 1}}});
        expect_same_bits(both[0], want, where + ", beside another");
        expect_same_bits(both[1], other, where + ", the other");
      }
    }
  }
}

// Every path of a tree gives what a chain of the same tokens gives, and stores the same states.
TEST(OuterScanOp, trees_read_their_parents) {
  for (const Shape& s : kShapes) {
    Layer layer(s);
    std::vector<NamedBackend> all = cpu_backends();
    all.push_back({"ref", make_ref_backend()});
    for (auto& [name, backend] : all) {
      Units units(9, layer.unit_bytes(), 0, 5);
      int32_t start = units.take();
      Rows prompt;
      prompt.add(0, 5);
      prompt.dst.back() = start;
      layer.step(*backend, prompt.batch(), units.state, std::vector<uint64_t>(5, 1));
      // rows 0 and 2 follow the context, 1 follows 0, 3 follows 2; row 0 stores over the state that both began from
      const int parent[] = {-1, 0, -1, 2};
      Rows tree;
      tree.add(5, 4, Corner::bits);
      tree.src[0] = start;
      std::vector<std::byte> before(units.state.group[0].unit(start), units.state.group[0].unit(start) + layer.unit_bytes());
      for (int r = 0; r < 4; r++) {
        tree.parent[size_t(r)] = parent[r];
        tree.position[size_t(r)] = parent[r] < 0 ? 5 : 6;
        tree.dst[size_t(r)] = r == 0 ? start : units.take();
      }
      std::vector<uint64_t> names{1, 2, 3, 4};
      std::vector<float> got = layer.step(*backend, tree.batch(), units.state, names);
      const int width = s.inner();
      for (int leaf : {1, 3}) {
        Units chain_units(3, layer.unit_bytes(), 0, 5);
        std::copy(before.begin(), before.end(), chain_units.state.group[0].unit(1));
        Rows chain;
        chain.add(5, 2);
        chain.src[0] = 1, chain.dst = {-1, 2};
        std::vector<float> want =
            layer.step(*backend, chain.batch(), chain_units.state, {names[size_t(parent[leaf])], names[size_t(leaf)]});
        expect_same_bits({got.begin() + leaf * width, got.begin() + (leaf + 1) * width}, {want.begin() + width, want.end()},
                         fmt::format("{}, leaf {}", name, leaf));
        std::byte *stored = units.state.group[0].unit(tree.dst[size_t(leaf)]) + 192, *expected = chain_units.state.group[0].unit(2) + 192;
        EXPECT_EQ(std::memcmp(stored, expected, size_t(layer.state_bytes())), 0) << name << ", leaf " << leaf;
      }
    }
  }
}

}  // namespace
}  // namespace mr::test
