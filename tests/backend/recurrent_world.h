// Properties of every recurrent operation: sequences with one state per layer, run on a backend in any steps. A Layer has
// name(), width() of an output row, unit_bytes() of a slot, state_begin() and state_bytes() of its state there, and
// step(backend, batch, state, names): its outputs, where row r belongs to sequence names[r].
#pragma once

#include "backend/operations.h"

namespace mr::test {

// A sequence and its rows in each step.
struct Course {
  uint64_t name;
  std::vector<int> steps;
};

// All rows of each course. Slots start as NaN except slot 0, the state of a fresh sequence.
template <class Layer>
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
    const int width = layer.width();
    for (size_t w = 0; w < who.size(); w++)
      outs[who[w]].insert(outs[who[w]].end(), y.begin() + rows.row_begin[w] * width, y.begin() + rows.row_begin[w + 1] * width);
  }
  return outs;
}

// ref computes in double: now and then it rounds a state to the next value of its type, and what follows differs by that.
inline Nearness near_ref(Nearness of_f32, DType state) {
  const double step = state == DType::bf16 ? 0x1p-8 : state == DType::f16 ? 0x1p-11 : 0;
  return {of_f32.absolute + 4 * step, of_f32.relative + 2 * step};
}

// In steps, batched with another sequence.
template <class Layer>
std::vector<float> run_two(Backend& backend, const Layer& layer) {
  std::vector<float> all;
  for (const std::vector<float>& out : run(backend, layer, {{1, {40, 1, 3}}, {2, {1, 1, 20}}}))
    all.insert(all.end(), out.begin(), out.end());
  return all;
}

// However a sequence is split into steps, whatever else is in the batch, on every instruction set and thread count.
template <class Layer>
void expect_same_bits_however_it_is_run(const Layer& layer) {
  auto single = make_cpu_backend(best_isa(), 1);
  const std::vector<float> want = run(*single, layer, {{1, {100}}})[0], other = run(*single, layer, {{2, {60}}})[0];
  for (Isa isa : available_isas())
    for (int threads : {1, 2, 5, 8}) {
      auto backend = make_cpu_backend(isa, threads);
      const std::string where = fmt::format("{} with {} threads, {}", name_of(isa), threads, layer.name());
      expect_same_bits(run(*backend, layer, {{1, {1, 2, 1, 50, 45, 1}}})[0], want, where);
      auto both = run(*backend, layer, {{1, {17, 80, 1, 2}}, {2, {0, 5, 54, 1}}});
      expect_same_bits(both[0], want, where + ", beside another");
      expect_same_bits(both[1], other, where + ", the other");
    }
}

// Every path of a tree gives the outputs and states of a chain of the same tokens.
template <class Layer>
void expect_trees_read_their_parents(Backend& backend, const Layer& layer) {
  Units units(9, layer.unit_bytes(), 0, 5);
  int32_t start = units.take();
  Rows prompt;
  prompt.add(0, 5);
  prompt.dst.back() = start;
  layer.step(backend, prompt.batch(), units.state, std::vector<uint64_t>(5, 1));
  // rows 0 and 3 follow the context, 1 and 2 follow 0, 4 follows 3; row 0 overwrites the state that all start from
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
  const std::vector<uint64_t> names{1, 2, 3, 4, 5};  // other tokens in each row
  const std::vector<float> got = layer.step(backend, tree.batch(), units.state, names);
  for (int leaf : {1, 2, 4}) {
    Units chain_units(3, layer.unit_bytes(), 0, 5);
    std::copy(before.begin(), before.end(), chain_units.state.group[0].unit(1));
    Rows chain;
    chain.add(5, 2);
    chain.src[0] = 1;
    chain.dst = {-1, 2};
    std::vector<float> want = layer.step(backend, chain.batch(), chain_units.state, {names[size_t(parent[leaf])], names[size_t(leaf)]});
    const int width = layer.width();
    expect_same_bits({got.begin() + leaf * width, got.begin() + (leaf + 1) * width}, {want.begin() + width, want.end()},
                     fmt::format("{}, {}, leaf {}", backend.name(), layer.name(), leaf));
    const std::byte* stored = units.state.group[0].unit(tree.dst[size_t(leaf)]) + layer.state_begin();
    const std::byte* expected = chain_units.state.group[0].unit(2) + layer.state_begin();
    EXPECT_EQ(std::memcmp(stored, expected, size_t(layer.state_bytes())), 0) << layer.name() << ", leaf " << leaf;
  }
}

}  // namespace mr::test
