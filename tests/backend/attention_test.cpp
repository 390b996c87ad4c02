// attend and store_kv: against a formula in double over plain arrays on every backend, and on the CPU the same bits for every
// instruction set, thread count, cut of the sequence, neighbour and order of pages. Pages begin as NaN, so whatever is read too far shows.
#include "backend/attention_world.h"
#include "backend/operations.h"

namespace mr::test {
namespace {

const Shape kShapes[] = {
    // of the laws of the CPU, too
    {9, 3, 64, 64},
    {4, 4, 16, 16, DType::f32, 16},
    {4, 2, 80, 80, DType::bf16, 48},
    {4, 1, 96, 96, DType::f16, 16, 100},
    {8, 1, 128, 128, DType::f16, 64, 0, 5},
    {6, 2, 24, 40, DType::f16, 16, 33, 0, true},
    {2, 2, 64, 20, DType::bf16, 32, 0, 8, true},
    {14, 2, 8, 8, DType::f32, 16, 300},
    // codes of 8 and 4 bits, read as they are by few queries and widened for more
    {9, 3, 64, 64, DType::f8_e4m3},
    {4, 4, 80, 80, DType::f8_e4m3, 16, 100, 0, true, 0.37f, 2.5f},
    {7, 1, 33, 17, DType::f8_e4m3, 48, 0, 5},
    {4, 1, 96, 96, DType::f8_e5m2, 32, 0, 0, false, 3.0f, 0.011f},
    {6, 2, 24, 40, DType::f8_e5m2, 16, 33, 0, true},
    {9, 3, 64, 64, DType::i8},
    {8, 1, 128, 128, DType::i8, 64, 0, 5},
    {2, 2, 13, 21, DType::i8, 16, 60},
    {9, 3, 64, 64, DType::i4},
    {4, 2, 80, 80, DType::i4, 48, 0, 8, true},
    {16, 2, 128, 128, DType::i4, 16, 300},
    {3, 3, 7, 9, DType::i4, 16},
};

const Shape kMoreShapes[] = {
    {9, 3, 64, 64, DType::bf16},
    {8, 2, 128, 128, DType::bf16, 16},
    {8, 1, 128, 128, DType::bf16, 64, 0, 5},
    {6, 2, 64, 64, DType::bf16, 32, 33, 0, true},
    {8, 2, 128, 128, DType::bf16, 32, 100, 0, true},
    {12, 4, 128, 128, DType::bf16, 48},
    {32, 2, 64, 64, DType::bf16, 32},
    {20, 1, 128, 128, DType::bf16, 32, 100},
    {4, 2, 256, 256, DType::bf16, 16},
    {16, 1, 256, 256, DType::bf16, 48, 70, 5, true},
};
const Shape kManyTiles{64, 8, 128, 128, DType::bf16, 32};  // of rows, more than a GPU has multiprocessors

// On a GPU weights of the values are rounded to bf16 (2^-8 of values of at most 1), and so is the result.
Nearness nearness(const Place& place, const Shape& s) {
  if (place.on != Place::On::gpu) return {s.k_dim > 96 ? 4e-6 : 2e-6, 1e-5};  // sums of more terms
  if (place.type == DType::f32) return {1e-5, 1e-5};
  return {s.dtype == DType::f32 ? 1e-5 : 2 * kHalfStep, 1e-5 + kHalfStep};
}

// How far the courses of a run are from the formula.
void expect_formula(Backend& backend, const Place& place, const Shape& s, const std::vector<Course>& courses) {
  const auto got = run(backend, s, courses, 1, {.plain = place.on == Place::On::gpu});
  const Nearness most = nearness(place, s);
  for (size_t i = 0; i < courses.size(); i++)
    expect_close(got[i], formula(s, courses[i].name, courses[i].length()), most.absolute, most.relative,
                 fmt::format("{}, {}, course {} of {}", place.name, describe(s), i, courses.size()));
}

TEST_P(Operations, attention_follows_the_formula) {
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), std::begin(kMoreShapes), std::end(kMoreShapes));
  if (on_gpu()) shapes.push_back(kManyTiles);
  const int length = on_gpu() ? 330 : 150;
  for (const Shape& s : shapes) {
    if (on_gpu() && kv_format(s.dtype).largest > 0) continue;  // it has none of them
    expect_formula(backend(), GetParam(), s, {{5, {length}}});
    expect_formula(backend(), GetParam(), s, {{5, {1, length - 130, 1, 127, 1}}, {6, {67, 1, 1, 0, 1}}});
  }
}

TEST_P(Operations, attention_follows_the_formula_over_long_contexts) {
  if (slow()) GTEST_SKIP() << "slow; the bits of scalar are those of the other instruction sets";
  std::vector<Shape> shapes{{3, 1, 64, 64}, {2, 2, 16, 16, DType::f32, 16, 400}, {3, 1, 64, 64, DType::i4}};
  if (on_gpu())  // many splits
    shapes = {{8, 2, 128, 128, DType::bf16}, {4, 2, 64, 64, DType::bf16, 32, 700, 0, true}, {9, 1, 256, 256, DType::bf16}};
  for (const Shape& s : shapes) expect_formula(backend(), GetParam(), s, {{6, {on_gpu() ? 1500 : 998, 1, 1}}});
}

TEST(Attention, gives_the_same_bits_on_every_instruction_set) {
  for (const Shape& s : kShapes) {
    std::vector<float> want = run(*make_cpu_backend(best_isa(), 1), s, {{5, {290, 3}}})[0];
    for (auto& [name, backend] : cpu_backends()) expect_same_bits(run(*backend, s, {{5, {290, 3}}})[0], want, name + ", " + describe(s));
  }
}

TEST(Attention, gives_the_same_bits_however_a_sequence_is_cut) {
  for (const Shape& s : kShapes) {
    const int length = 530;
    std::vector<float> want = run(*make_cpu_backend(best_isa(), 1), s, {{5, {length}}})[0];
    for (Isa isa : available_isas()) {
      if (isa == Isa::scalar) continue;
      for (int threads : {1, 2, 3, 8}) {
        auto backend = make_cpu_backend(isa, threads);
        for (int most : {1, 7, 40, 400})
          expect_same_bits(run(*backend, s, {{5, cut(length, most, uint32_t(most))}}, uint32_t(most))[0], want,
                           fmt::format("{} with {} threads, at most {} rows a step, {}", name_of(isa), threads, most, describe(s)));
      }
    }
  }
}

// A long context under one row is cut into spans when there are threads to take them.
TEST(Attention, gives_the_same_bits_when_spans_are_shared_out) {
  for (const KvFormat& format : kv_formats()) {
    const Shape s{9, 3, 64, 64, format.element};
    std::vector<float> want = run(*make_cpu_backend(best_isa(), 1), s, {{5, {2000, 1, 5}}})[0];
    for (int threads : {2, 4, 8})
      expect_same_bits(run(*make_cpu_backend(best_isa(), threads), s, {{5, {2000, 1, 5}}})[0], want,
                       fmt::format("{} threads, {}", threads, format.name));
  }
}

TEST(Attention, in_one_operation_gives_the_bits_of_rope_store_and_attend) {
  for (const Shape& s : kShapes) {
    const std::vector<Course> courses = {{5, {290, 1, 1, 1}}, {6, {40, 1, 0, 3}}, {7, {1, 1, 1, 1}}, {8, {600, 1, 1, 1}}};
    auto want = run(*make_cpu_backend(best_isa(), 1), s, courses, 1, {.rotate = true, .plain = true});
    for (int threads : {1, 3})
      for (Isa isa : available_isas()) {
        auto got = run(*make_cpu_backend(isa, threads), s, courses, 1, {.rotate = true});
        for (size_t i = 0; i < courses.size(); i++)
          expect_same_bits(got[i], want[i], fmt::format("{} with {} threads, {}", name_of(isa), threads, describe(s)));
      }
  }
}

TEST(Attention, gives_the_same_bits_beside_others) {
  for (const Shape& s : kShapes) {
    auto alone = make_cpu_backend(best_isa(), 1), together = make_cpu_backend(best_isa(), 3);
    std::vector<Course> courses{{1, {1, 300, 1, 1}}, {2, {20, 0, 20, 1}}, {3, {0, 1, 1, 270}}, {4, {33, 33, 0, 1}}};
    auto got = run(*together, s, courses, 9);
    for (size_t i = 0; i < courses.size(); i++) {
      std::vector<float> want = run(*alone, s, {{courses[i].name, {courses[i].length()}}})[0];
      expect_same_bits(got[i], want, fmt::format("sequence {}, {}", i, describe(s)));
    }
  }
}

// Rows after a prompt that attend to each other, or their ancestors alone.
struct CornerCase {
  Shape s;
  Corner corner;
  static constexpr int context = 37, n = 9, kPath[] = {0, 2, 4, 8};

  Array k{{context + n, s.kv_heads, s.k_dim}}, v{{context + n, s.kv_heads, s.v_dim}}, q{{n, s.heads, s.k_dim}};
  PagedKv kv{{0, 0}, s.dtype, s.kv_heads, s.k_dim, s.v_dim};
  Array sinks = sinks_of(s);

  CornerCase(const Shape& shape, Corner corner, bool bf16) : s(shape), corner(corner) {
    k.fill(1, 3);
    v.fill(2);
    q.fill(3, 3);
    for (Array* x : {&k, &v, &q})
      if (bf16) whole(*x);
  }
  std::vector<float> run(Backend& backend) {
    Units units(8, kv.bytes_per_token() * s.page_tokens, s.page_tokens, 3);
    auto [prompt, rows] = CornerRows(units, context, n, corner);
    Array out({n, s.heads, s.v_dim});
    backend.store_kv(kv, k.view.rows(0, context), v.view.rows(0, context), prompt.batch(), units.state);
    backend.store_kv(kv, k.view.rows(context, n), v.view.rows(context, n), rows.batch(), units.state);
    backend.attend(out, q, kv, rows.batch(), units.state, args_of(s, sinks));
    return out.values();
  }
  // The path 0, 2, 4, 8 of the tree as a causal sequence.
  std::vector<float> run_path(Backend& backend) {
    Units units(8, kv.bytes_per_token() * s.page_tokens, s.page_tokens, 3);
    auto [prompt, rows] = CornerRows(units, context, n, corner);
    Array kp({4, s.kv_heads, s.k_dim}), vp({4, s.kv_heads, s.v_dim}), qp({4, s.heads, s.k_dim}), out({4, s.heads, s.v_dim});
    for (int i = 0; i < 4; i++) {
      std::copy_n(k.view.row<float>(context + kPath[i]), s.kv_heads * s.k_dim, kp.view.row<float>(i));
      std::copy_n(v.view.row<float>(context + kPath[i]), s.kv_heads * s.v_dim, vp.view.row<float>(i));
      std::copy_n(q.view.row<float>(kPath[i]), s.heads * s.k_dim, qp.view.row<float>(i));
    }
    Rows chain;
    chain.add(context, 4);
    chain.unit = prompt.unit;
    chain.unit_begin = prompt.unit_begin;
    backend.store_kv(kv, k.view.rows(0, context), v.view.rows(0, context), prompt.batch(), units.state);
    backend.store_kv(kv, kp, vp, chain.batch(), units.state);
    backend.attend(out, qp, kv, chain.batch(), units.state, args_of(s, sinks));
    return out.values();
  }
};

TEST_P(Operations, attention_has_full_and_tree_corners) {
  for (DType type : {DType::f16, DType::bf16, DType::f8_e4m3, DType::i4})
    for (int dim : {32, 64, 128, 256})
      for (int window : {0, 20, 2})  // 2: some of a tree's rows have left it
        for (Corner corner : {Corner::full, Corner::bits}) {
          if (on_gpu() && kv_format(type).largest > 0) continue;
          CornerCase c({6, 2, dim, dim, type, 16, window}, corner, on_gpu());
          const std::string where = fmt::format("{}, dim {}, window {}, corner {}", name(), dim, window, int(corner));
          const Nearness most = nearness(GetParam(), c.s);
          const std::vector<float> got = c.run(backend());
          if (!is_ref()) expect_close(got, c.run(ref()), most.absolute, most.relative, where);
          if (corner != Corner::bits) continue;
          const std::vector<float> path = c.run_path(backend());
          const int64_t width = c.s.heads * c.s.v_dim;
          for (int64_t i = 0; i < 4; i++) {
            auto row = got.begin() + CornerCase::kPath[i] * width;
            expect_close({row, row + width}, {path.begin() + i * width, path.begin() + (i + 1) * width}, most.absolute, most.relative,
                         where + ", a path of the tree");
          }
        }
}

// A scale of NaN: what is not a number shows in whatever sees it.
TEST(Attention, shows_what_is_not_a_number) {
  for (DType type : {DType::f16, DType::i8, DType::i4}) {
    const Shape s{2, 1, 16, 16, type, 16};
    const PagedKv kv{{0, 0}, type, 1, 16, 16};
    Units units(2, kv.bytes_per_token() * 16, 16, 1);
    Rows rows;
    rows.add(0, 10);
    rows.unit = {1};
    rows.unit_begin = {0, 1};
    Array q({10, 2, 16}), k({10, 1, 16}), v({10, 1, 16}), out({10, 2, 16});
    q.fill(1);
    k.fill(2);
    v.fill(3);
    v.view.row<float>(4)[7] = NAN;
    auto backend = make_cpu_backend(best_isa(), 1);
    backend->store_kv(kv, k, v, rows.batch(), units.state);
    backend->attend(out, q, kv, rows.batch(), units.state, args_of(s, sinks_of(s)));
    for (int r = 4; r < 10; r++) EXPECT_TRUE(std::isnan(out.view.row<float>(r)[7])) << kv.format().name << ", row " << r;
  }
}

TEST(Attention, refuses_heads_that_do_not_divide) {
  auto backend = make_cpu_backend(best_isa(), 1);
  PagedKv kv{{0, 0}, DType::f16, 2, 16, 16};
  Units units(2, kv.bytes_per_token() * 16, 16, 1);
  Rows rows;
  rows.add(0, 1);
  rows.unit = {1};
  rows.unit_begin = {0, 1};
  Array q({1, 3, 16}), out({1, 3, 16});
  EXPECT_THROW(backend->attend(out, q, kv, rows.batch(), units.state, {3, 1}), Error);
  kv.dtype = DType::i16;
  EXPECT_THROW(backend->attend(out, q, kv, rows.batch(), units.state, {2, 1}), Error);
}

}  // namespace
}  // namespace mr::test
