// Shared by the tests of attention: values of q, k and v by name, a run of several sequences over pages in steps, and the formula in
// double over plain arrays.
#pragma once

#include "backend/programs.h"

namespace mr::test {
namespace {

struct Shape {
  int heads, kv_heads, k_dim, v_dim;
  DType dtype = DType::f16;
  int page_tokens = 32, window = 0;
  float softcap = 0;
  bool sinks = false;
  float k_scale = 1, v_scale = 1;  // of codes without scales of their own
  float scale() const { return 1 / std::sqrt(float(k_dim)); }
};

// The course of sequence `name`: its rows in each step (0: not in that step).
struct Course {
  uint64_t name;
  std::vector<int> steps;
  int length() const { return std::accumulate(steps.begin(), steps.end(), 0); }
};

// q, k and v have bf16 values, so that a backend with bf16 activations gets the same.
[[maybe_unused]] float as_bf16(float x) { return f32_from_bf16(bf16_from_f32(x)); }

[[maybe_unused]] float q_value(const Shape& s, uint64_t name, int position, int i) {
  return as_bf16(3 * value(name * 4 + 1, uint64_t(position) * s.heads * s.k_dim + i));
}
[[maybe_unused]] float k_value(const Shape& s, uint64_t name, int position, int i) {
  return as_bf16(3 * value(name * 4 + 2, uint64_t(position) * s.kv_heads * s.k_dim + i));
}
[[maybe_unused]] float v_value(const Shape& s, uint64_t name, int position, int i) {
  return as_bf16(value(name * 4 + 3, uint64_t(position) * s.kv_heads * s.v_dim + i));
}

// The nearest value of a float of 8 bits, by trying all; of two that are equally near, the one with an even code.
[[maybe_unused]] double nearest_float8(double x, int fraction, int bias, int n_codes) {
  double best = 0;
  int best_code = 0;
  for (int code = 1; code < n_codes; code++) {
    const int exponent = code >> fraction, part = code & ((1 << fraction) - 1);
    const double v = exponent ? std::ldexp((1 << fraction) + part, exponent - bias - fraction) : std::ldexp(part, 1 - bias - fraction);
    const double off = std::abs(v - std::abs(x)), before = std::abs(best - std::abs(x));
    if (off > before || (off == before && best_code % 2 == 0)) continue;
    best = v;
    best_code = code;
  }
  return x < 0 ? -best : best;
}

// What is left of a head's n values once they are stored; `scale` is of codes without scales of their own.
[[maybe_unused]] std::vector<double> kept(DType type, std::vector<float> x, double scale) {
  std::vector<double> y(x.begin(), x.end());
  if (type == DType::f16)
    for (double& v : y) v = f32_from_f16(f16_from_f32(float(v)));
  if (type == DType::bf16)
    for (double& v : y) v = f32_from_bf16(bf16_from_f32(float(v)));
  if (type == DType::f8_e4m3)
    for (double& v : y) v = scale * nearest_float8(float(v) / float(scale), 3, 7, 127);
  if (type == DType::f8_e5m2)
    for (double& v : y) v = scale * nearest_float8(float(v) / float(scale), 2, 15, 124);
  if (type == DType::i8 || type == DType::i4) {
    double top = 0;
    for (double v : y) top = std::max(top, std::abs(v));
    const double largest = type == DType::i8 ? 127 : 7;
    uint32_t bits = std::bit_cast<uint32_t>(float(top / largest)) & 0xffff0000;  // the next bf16 that is not smaller
    if (double(std::bit_cast<float>(bits)) * largest < top * (1 - 1e-7)) bits += 0x10000;
    const float own = std::bit_cast<float>(bits);
    for (double& v : y) v = own > 0 ? double(own) * std::nearbyint(float(v) / own) : 0;
  }
  return y;
}

[[maybe_unused]] Array sinks_of(const Shape& s) {
  Array a({s.heads});
  a.fill(77, 2);
  return a;
}

[[maybe_unused]] AttendArgs args_of(const Shape& s, const Array& sinks) {
  return {s.heads, s.scale(), s.window, s.softcap, s.sinks ? sinks.view : Tensor{}};
}

// n rows of a corner after the tokens of a prompt, in three pages. As a tree, rows 1-3 are children of 0, the others of i / 2; a row
// sees its ancestors and itself.
struct CornerRows {
  Rows prompt, rows;
  CornerRows(Units& units, int context, int n, Corner corner) {
    prompt.add(0, context);
    rows.add(context, n, corner);
    for (int i = 0; i < 3; i++) prompt.unit.push_back(units.take());
    prompt.unit_begin.push_back(3);
    rows.unit = prompt.unit;
    rows.unit_begin = prompt.unit_begin;
    for (int i = 0; i < n; i++) {
      int parent = i == 0 ? -1 : i <= 3 ? 0 : i / 2;
      rows.parent[size_t(i)] = parent;
      rows.ancestors[size_t(i)] = (parent < 0 ? 0 : rows.ancestors[size_t(parent)]) | uint64_t(1) << i;
      if (corner == Corner::bits) rows.position[size_t(i)] = parent < 0 ? context : rows.position[size_t(parent)] + 1;
    }
  }
};

// How a run places and reads its rows.
struct Way {
  bool rotate = false;  // q and k, by angles that depend on the position
  bool plain = false;   // as single operations, not as a program with marks
};

// Rope, store and attend as a program; q, k and v are adjacent columns, with padding.
class AttendProgram {
 public:
  AttendProgram(Backend& backend, const Shape& s, const PagedKv& kv, const Array& sinks, bool rotate) : net_(backend) {
    const int64_t q_cols = s.heads * s.k_dim, k_cols = s.kv_heads * s.k_dim, v_cols = s.kv_heads * s.v_dim;
    qkv_ = net_.input(q_cols + 5 + k_cols + 3 + v_cols, 0);
    const Value q = qkv_.columns(0, q_cols).as_heads(s.heads), k = qkv_.columns(q_cols + 5, k_cols).as_heads(s.kv_heads);
    if (rotate) {
      angles_ = net_.input(s.k_dim, ValueType::f32, 0);
      net_.r().rope(q, angles_, false);
      net_.r().rope(k, angles_, false);
    }
    net_.r().store_kv(k, qkv_.columns(q_cols + 5 + k_cols + 3, v_cols).as_heads(s.kv_heads), kv);
    AttendArgs args = args_of(s, sinks);
    args.sinks = net_.floats(args.sinks);
    net_.tap(net_.r().attend(q, kv, args));
    net_.finish();
  }
  void run(Tensor out, Tensor q, Tensor k, Tensor v, Tensor angles, const Batch& batch, const StateMemory& state) {
    std::vector<float> rows;
    for (int64_t r = 0; r < q.shape[0]; r++) {
      auto add = [&](Tensor t, int64_t gap) {
        rows.insert(rows.end(), t.row<float>(r), t.row<float>(r) + t.shape[1] * t.shape[2]);
        rows.insert(rows.end(), size_t(gap), std::nanf(""));
      };
      add(q, 5);
      add(k, 3);
      add(v, 0);
    }
    net_.set(qkv_, rows);
    if (angles_) net_.set(angles_, {angles.as<float>(), angles.as<float>() + angles.size()});
    const std::vector<float> y = net_.run(batch, state);
    const int64_t n = out.shape[1] * out.shape[2];
    for (int64_t r = 0; r < out.shape[0]; r++) std::copy_n(y.begin() + r * n, n, out.row<float>(r));
  }

 private:
  Net net_;
  Value qkv_, angles_;
};

// [length, heads, v_dim] of every course, in the order given.
[[maybe_unused]] std::vector<std::vector<float>> run(Backend& backend, const Shape& s, const std::vector<Course>& courses,
                                                     uint32_t seed = 1, Way way = {}) {
  const Array sinks = sinks_of(s);
  PagedKv kv{{0, 64}, s.dtype, s.kv_heads, s.k_dim, s.v_dim, s.k_scale, s.v_scale};  // 64: after another layer
  int n_pages = 1;
  for (auto& c : courses) n_pages += (c.length() + s.page_tokens - 1) / s.page_tokens;
  const int64_t aligned = layer_bytes({StateSpec::Kind::paged, kv.bytes_per_token()});  // as in a layout of several layers
  Units units(n_pages, (64 + aligned) * s.page_tokens, s.page_tokens, seed);
  std::vector<std::vector<int32_t>> pages(courses.size());
  std::vector<std::vector<float>> outs(courses.size());
  for (size_t i = 0; i < courses.size(); i++)
    for (int t = 0; t < courses[i].length(); t += s.page_tokens) pages[i].push_back(units.take());
  std::vector<int> done(courses.size(), 0);
  std::optional<AttendProgram> program;
  if (!way.plain) program.emplace(backend, s, kv, sinks, way.rotate);
  for (size_t step = 0; step < courses[0].steps.size(); step++) {
    Rows rows;
    std::vector<size_t> who;
    for (size_t i = 0; i < courses.size(); i++) {
      if (!courses[i].steps[step]) continue;
      rows.add(done[i], courses[i].steps[step]);
      for (size_t p = 0; p < pages[i].size(); p++) {  // pages that left the window are freed
        bool gone = s.window && int(p + 1) * s.page_tokens <= done[i] - s.window + 1;
        rows.unit.push_back(gone ? -1 : pages[i][p]);
      }
      rows.unit_begin.push_back(int(rows.unit.size()));
      who.push_back(i);
    }
    Batch batch = rows.batch();
    Array q({batch.n_tokens, s.heads, s.k_dim}, 5), k({batch.n_tokens, s.kv_heads, s.k_dim}, 3), v({batch.n_tokens, s.kv_heads, s.v_dim}),
        out({batch.n_tokens, s.heads, s.v_dim}, 7);
    for (int w = 0; w < batch.n_seqs; w++) {
      for (int r = batch.row_begin[w]; r < batch.row_begin[w + 1]; r++) {
        uint64_t name = courses[who[size_t(w)]].name;
        for (int i = 0; i < s.heads * s.k_dim; i++) q.view.row<float>(r)[i] = q_value(s, name, batch.position[r], i);
        for (int i = 0; i < s.kv_heads * s.k_dim; i++) k.view.row<float>(r)[i] = k_value(s, name, batch.position[r], i);
        for (int i = 0; i < s.kv_heads * s.v_dim; i++) v.view.row<float>(r)[i] = v_value(s, name, batch.position[r], i);
      }
    }
    Array angles({batch.n_tokens, s.k_dim});
    for (int r = 0; r < batch.n_tokens; r++)
      for (int i = 0; i < s.k_dim; i++) angles.view.row<float>(r)[i] = value(9, uint64_t(batch.position[r] * s.k_dim + i));
    if (program) {
      program->run(out, q, k, v, angles, batch, units.state);
    } else {
      if (way.rotate) backend.rope(q, angles, false);
      if (way.rotate) backend.rope(k, angles, false);
      backend.store_kv(kv, k, v, batch, units.state);
      backend.attend(out, q, kv, batch, units.state, args_of(s, sinks));
    }
    for (int w = 0; w < batch.n_seqs; w++) {
      size_t i = who[size_t(w)];
      for (int r = batch.row_begin[w]; r < batch.row_begin[w + 1]; r++)
        outs[i].insert(outs[i].end(), out.view.row<float>(r), out.view.row<float>(r) + s.heads * s.v_dim);
      done[i] += batch.rows(w);
    }
  }
  return outs;
}

// Softmax(q . K) V in double, straight from the definition.
[[maybe_unused]] std::vector<float> formula(const Shape& s, uint64_t name, int length) {
  const Array sinks = sinks_of(s);
  std::vector<std::vector<float>> q;  // of each token
  std::vector<std::vector<double>> k, v;
  for (int t = 0; t < length; t++) {
    q.emplace_back();
    k.emplace_back();
    v.emplace_back();
    for (int i = 0; i < s.heads * s.k_dim; i++) q.back().push_back(q_value(s, name, t, i));
    for (int h = 0; h < s.kv_heads; h++) {
      std::vector<float> key, value;
      for (int i = 0; i < s.k_dim; i++) key.push_back(k_value(s, name, t, h * s.k_dim + i));
      for (int i = 0; i < s.v_dim; i++) value.push_back(v_value(s, name, t, h * s.v_dim + i));
      for (double x : kept(s.dtype, key, s.k_scale)) k.back().push_back(x);
      for (double x : kept(s.dtype, value, s.v_scale)) v.back().push_back(x);
    }
  }
  std::vector<float> out;
  for (int t = 0; t < length; t++) {
    for (int h = 0; h < s.heads; h++) {
      int g = h / (s.heads / s.kv_heads), first = s.window ? std::max(0, t - s.window + 1) : 0;
      double total = s.sinks ? std::exp(double(sinks.data[size_t(h)])) : 0;
      std::vector<double> sum(size_t(s.v_dim), 0.0);
      for (int j = first; j <= t; j++) {
        double dot = 0;
        for (int i = 0; i < s.k_dim; i++) dot += double(q[size_t(t)][size_t(h * s.k_dim + i)]) * k[size_t(j)][size_t(g * s.k_dim + i)];
        dot *= s.scale();
        if (s.softcap != 0) dot = s.softcap * std::tanh(dot / s.softcap);
        double weight = std::exp(dot);
        total += weight;
        for (int i = 0; i < s.v_dim; i++) sum[size_t(i)] += weight * v[size_t(j)][size_t(g * s.v_dim + i)];
      }
      for (double x : sum) out.push_back(float(x / total));
    }
  }
  return out;
}

// Splits `length` at random positions.
[[maybe_unused]] std::vector<int> cut(int length, int most, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int> steps;
  while (length > 0) {
    steps.push_back(std::min<int>(length, 1 + int(random() % uint32_t(most))));
    length -= steps.back();
  }
  return steps;
}

[[maybe_unused]] std::string describe(const Shape& s) {
  return fmt::format("{}/{} heads of {}/{}, {}, pages of {}, window {}, softcap {}, sinks {}", s.heads, s.kv_heads, s.k_dim, s.v_dim,
                     kv_format(s.dtype).name, s.page_tokens, s.window, s.softcap, s.sinks);
}

}  // namespace
}  // namespace mr::test
