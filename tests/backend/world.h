// Shared by the tests of operations: values determined by their names, batches with scrambled pages and slots, and the backends of
// this machine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/error.h"
#include "core/random.h"

namespace mr::test {

// Uniform in [-1, 1): element i of the array called `name`.
inline float value(uint64_t name, uint64_t i) { return float(2 * uniform(name, uint32_t(i >> 32), uint32_t(i)) - 1); }

// An owned f32 tensor; rows may be padded (stride > columns) with NaN.
struct Array {
  std::vector<float> data;
  Tensor view;
  Array(std::initializer_list<int64_t> shape, int64_t gap = 0) : view(mr::view(nullptr, DType::f32, shape)) {
    int64_t row = view.size() / std::max<int64_t>(view.shape[0], 1) + gap;
    if (view.rank > 1) view.stride[0] = row;
    data.assign(size_t(std::max<int64_t>(view.rank > 1 ? view.shape[0] * row : view.size(), 1)), std::nanf(""));
    view.data = data.data();
  }
  Array(Array&&) = default;  // a moved vector keeps its memory
  Array(const Array&) = delete;
  Array& fill(uint64_t name, float scale = 1, float shift = 0) {
    int64_t rows = view.rank > 1 ? view.shape[0] : 1, n = view.size() / rows;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < n; i++)
        data[size_t(r * (view.rank > 1 ? view.stride[0] : 0) + i)] = shift + scale * value(name, uint64_t(r * n + i));
    return *this;
  }
  std::vector<float> values() const {  // without the padding
    int64_t rows = view.rank > 1 ? view.shape[0] : 1, n = view.size() / rows;
    std::vector<float> v;
    for (int64_t r = 0; r < rows; r++) {
      const float* row = data.data() + r * (view.rank > 1 ? view.stride[0] : 0);
      v.insert(v.end(), row, row + n);
    }
    return v;
  }
  operator Tensor() const { return view; }
};

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

inline std::vector<NamedBackend> cpu_backends(int n_threads = 2) {
  std::vector<NamedBackend> all;
  for (Isa isa : available_isas()) all.push_back({std::string(name_of(isa)), make_cpu_backend(isa, n_threads)});
  return all;
}

inline void expect_close(const std::vector<float>& got, const std::vector<float>& want, double absolute, double relative,
                         const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); i++) {
    if (std::abs(double(got[i]) - want[i]) <= absolute + relative * std::abs(want[i])) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << got[i] << ", not " << want[i];
    return;
  }
}

inline void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); i++) {
    if (std::memcmp(&got[i], &want[i], 4) == 0) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << got[i] << ", not " << want[i];
    return;
  }
}

// Owns the arrays of a Batch. Sequences are added one by one, then batch() points into them.
struct Rows {
  std::vector<int32_t> token, position, row_begin{0}, context, prompt_len, parent, out_row, dst, src, unit, unit_begin{0};
  std::vector<uint64_t> ancestors;
  std::vector<Corner> corner;
  std::vector<Out> out;
  std::vector<SampleRow> sample;
  std::vector<GroupTable> group{1};

  void add(int context_, int rows, Corner corner_ = Corner::causal) {
    for (int i = 0; i < rows; i++) {
      token.push_back(0);
      position.push_back(context_ + i);
      parent.push_back(int(parent.size()) - (i ? 1 : 0));
      dst.push_back(-1);
      if (i == 0) parent.back() = -1;
      ancestors.push_back((uint64_t(2) << std::min(i, 62)) - 1);
    }
    row_begin.push_back(int(token.size()));
    context.push_back(context_);
    prompt_len.push_back(0);
    corner.push_back(corner_);
    src.push_back(0);
  }
  Batch batch() {
    Batch b;
    b.n_tokens = int(token.size());
    b.n_seqs = int(context.size());
    b.n_out = int(out_row.size());
    b.token = token.data();
    b.position = position.data();
    b.row_begin = row_begin.data();
    b.context = context.data();
    b.prompt_len = prompt_len.data();
    b.corner = corner.data();
    b.parent = parent.data();
    b.ancestors = ancestors.data();
    b.out_row = out_row.data();
    b.out = out.data();
    b.sample = sample.data();
    group[0] = {unit.data(), unit_begin.data(), src.data(), dst.data()};
    b.group = group;
    return b;
  }
};

// Units of one group, allocated in scrambled order; all memory starts as NaN except unit 0, which is zero.
struct Units {
  std::vector<std::byte> memory;
  StateMemory state;
  std::vector<int32_t> free;
  Units(int n_units, int64_t unit_bytes, int page_tokens, uint32_t seed) : memory(size_t(n_units * unit_bytes + 64), std::byte(0xff)) {
    std::byte* base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    std::fill(base, base + unit_bytes, std::byte(0));
    state.group.push_back({base, unit_bytes, n_units, page_tokens});
    free.resize(size_t(n_units - 1));
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), std::mt19937(seed));
  }
  int32_t take() {
    int32_t u = free.back();
    free.pop_back();
    return u;
  }
};

}  // namespace mr::test
