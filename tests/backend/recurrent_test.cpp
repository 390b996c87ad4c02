// short_conv and diag_scan: against ref, and the same bits however a sequence is cut, whoever stands beside it, on every
// instruction set and thread count. Slots begin as NaN except slot 0, the state of a fresh sequence.
#include "backend/world.h"

namespace mr::test {
namespace {

struct Shape {
  int channels, width, n_state;
};

const Shape kShapes[] = {{64, 4, 16}, {33, 3, 8}, {16, 1, 5}, {200, 4, 24}, {7, 2, 1}};

struct Course {
  uint64_t name;
  std::vector<int> steps;
};

struct Layer {
  Shape shape;
  Array conv_weight, conv_bias, a, d;
  SlotState conv{{0, 64}, 0};
  SlotState scan;
  explicit Layer(Shape s)
      : shape(s), conv_weight({s.channels, s.width}), conv_bias({s.channels}), a({s.channels, s.n_state}), d({s.channels}) {
    conv_weight.fill(1), conv_bias.fill(2), a.fill(3, 2, -2.1f), d.fill(4);
    scan = {{0, 64}, (s.width - 1) * s.channels * 4};
  }
  int64_t unit_bytes() const { return (64 + int64_t(shape.width - 1 + shape.n_state) * shape.channels * 4 + 63) / 64 * 64; }

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
    for (size_t w = 0; w < who.size(); w++)
      outs[who[w]].insert(outs[who[w]].end(), y.begin() + rows.row_begin[w] * layer.shape.channels,
                          y.begin() + rows.row_begin[w + 1] * layer.shape.channels);
  }
  return outs;
}

TEST(Recurrent, agrees_with_ref) {
  auto ref = make_ref_backend();
  for (const Shape& s : kShapes) {
    Layer layer(s);
    std::vector<Course> courses{{1, {40, 1, 3}}, {2, {1, 1, 20}}};
    auto want = run(*ref, layer, courses);
    for (auto& [name, backend] : cpu_backends(3)) {
      auto got = run(*backend, layer, courses);
      for (size_t i = 0; i < courses.size(); i++)
        expect_close(got[i], want[i], 3e-6, 1e-5, fmt::format("{}, {} channels", name, s.channels));
    }
  }
}

// One channel, one state value, width 2, written out.
TEST(Recurrent, follows_the_definition) {
  for (auto& [name, backend] : cpu_backends()) {
    Units units(3, 64, 0, 1);
    Rows rows;
    rows.add(0, 3);
    rows.dst = {1, -1, 2};
    Array x({3, 1}), dt({3, 1}), b({3, 1}), c({3, 1}), u({3, 1}), y({3, 1}), weight({1, 2}), bias({1}), a({1, 1}), d({1});
    std::copy_n(std::array{1.0f, 2.0f, 3.0f}.data(), 3, x.data.data());
    std::copy_n(std::array{0.5f, 1.0f, 2.0f}.data(), 3, dt.data.data());
    std::copy_n(std::array{1.0f, -1.0f, 2.0f}.data(), 3, b.data.data());
    std::copy_n(std::array{3.0f, 1.0f, 1.0f}.data(), 3, c.data.data());
    weight.data = {10, 1}, weight.view.data = weight.data.data();
    bias.data[0] = 0.5f, a.data[0] = -1, d.data[0] = 2;
    backend->short_conv(u, x, weight, bias, Activation::none, {{0, 0}, 0}, rows.batch(), units.state);
    expect_close(u.values(), {1.5f, 12.5f, 23.5f}, 0, 1e-6, name);
    EXPECT_EQ(*reinterpret_cast<float*>(units.state.group[0].unit(1)), 1);
    EXPECT_EQ(*reinterpret_cast<float*>(units.state.group[0].unit(2)), 3);
    backend->diag_scan(y, x, dt, b, c, {1, 1, a, d, {{0, 0}, 4}}, rows.batch(), units.state);
    double h0 = 0.5, h1 = std::exp(-1.0) * h0 - 2, h2 = std::exp(-2.0) * h1 + 12;
    expect_close(y.values(), {float(3 * h0 + 2), float(h1 + 4), float(h2 + 6)}, 0, 1e-6, name);
    EXPECT_FLOAT_EQ(reinterpret_cast<float*>(units.state.group[0].unit(1))[1], float(h0));
    EXPECT_FLOAT_EQ(reinterpret_cast<float*>(units.state.group[0].unit(2))[1], float(h2));
  }
}

TEST(Recurrent, gives_the_same_bits_however_it_is_run) {
  for (const Shape& s : kShapes) {
    Layer layer(s);
    std::vector<float> want = run(*make_cpu_backend(best_isa(), 1), layer, {{1, {100}}})[0],
                       other = run(*make_cpu_backend(best_isa(), 1), layer, {{2, {60}}})[0];
    for (Isa isa : available_isas()) {
      for (int threads : {1, 2, 5, 8}) {
        auto backend = make_cpu_backend(isa, threads);
        std::string where = fmt::format("{} with {} threads, {} channels", name_of(isa), threads, s.channels);
        expect_same_bits(run(*backend, layer, {{1, {1, 2, 1, 50, 45, 1}}})[0], want, where);
        auto both = run(*backend, layer, {{1, {17, 80, 1, 2}}, {2, {0, 5, 54, 1}}});
        expect_same_bits(both[0], want, where + ", beside another");
        expect_same_bits(both[1], other, where + ", the other");
      }
    }
  }
}

// Every path of a tree gives what a chain of the same tokens gives, and stores the same states.
TEST(Recurrent, trees_read_their_parents) {
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
      // rows 0 and 3 follow the context, 1 and 2 follow 0, 4 follows 3; row 0 stores over the state that all began from
      const int parent[] = {-1, 0, 0, -1, 3};
      Rows tree;
      tree.add(5, 5, Corner::bits);
      tree.src[0] = start;
      std::vector<std::byte> before(units.state.group[0].unit(start), units.state.group[0].unit(start) + layer.unit_bytes());
      for (int r = 0; r < 5; r++) {
        tree.parent[size_t(r)] = parent[r];
        tree.position[size_t(r)] = parent[r] < 0 ? 5 : 6;
        tree.dst[size_t(r)] = r == 0 ? start : units.take();
      }
      std::vector<uint64_t> names{1, 2, 3, 4, 5};  // other tokens in each row
      std::vector<float> got = layer.step(*backend, tree.batch(), units.state, names);
      for (int leaf : {1, 2, 4}) {
        int root = parent[leaf];
        Units chain_units(3, layer.unit_bytes(), 0, 5);
        std::copy(before.begin(), before.end(), chain_units.state.group[0].unit(1));
        Rows chain;
        chain.add(5, 2);
        chain.src[0] = 1, chain.dst = {-1, 2};
        std::vector<float> want = layer.step(*backend, chain.batch(), chain_units.state, {names[size_t(root)], names[size_t(leaf)]});
        const int c = s.channels;
        expect_same_bits({got.begin() + leaf * c, got.begin() + (leaf + 1) * c}, {want.begin() + c, want.end()},
                         fmt::format("{}, leaf {}", name, leaf));
        std::byte *stored = units.state.group[0].unit(tree.dst[size_t(leaf)]) + 64, *expected = chain_units.state.group[0].unit(2) + 64;
        EXPECT_EQ(std::memcmp(stored, expected, size_t((s.width - 1 + s.n_state) * c) * 4), 0) << name << ", leaf " << leaf;
      }
    }
  }
}

}  // namespace
}  // namespace mr::test
