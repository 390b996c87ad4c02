// attend and store_kv: against a formula in double over plain arrays, and the same bits for every instruction set, thread
// count, cut of the sequence, neighbour and order of pages. Pages begin as NaN, so whatever is read too far shows.
#include "backend/attention_world.h"

namespace mr::test {
namespace {

const Shape kShapes[] = {
    {9, 3, 64, 64},
    {4, 4, 16, 16, DType::f32, 16},
    {4, 2, 80, 80, DType::bf16, 48},
    {4, 1, 96, 96, DType::f16, 16, 100},
    {8, 1, 128, 128, DType::f16, 64, 0, 5},
    {6, 2, 24, 40, DType::f16, 16, 33, 0, true},
    {2, 2, 64, 20, DType::bf16, 32, 0, 8, true},
    {14, 2, 8, 8, DType::f32, 16, 300},
};

TEST(Attention, follows_the_formula) {
  auto ref = make_ref_backend();
  for (const Shape& s : kShapes) {
    const int length = 150;
    std::vector<float> want = formula(s, 5, length);
    expect_close(run(*ref, s, {{5, {length}}})[0], want, 1e-6, 1e-5, "ref, " + describe(s));
    for (auto& [name, backend] : cpu_backends())
      expect_close(run(*backend, s, {{5, {length}}})[0], want, 2e-6, 1e-5, name + ", " + describe(s));
  }
}

TEST(Attention, follows_the_formula_over_several_spans) {
  for (Shape s : {Shape{3, 1, 64, 64}, Shape{2, 2, 16, 16, DType::f32, 16, 400}}) {
    std::vector<float> want = formula(s, 6, 1000);
    for (auto& [name, backend] : cpu_backends()) {
      if (name == "scalar") continue;  // the same bits as the others, in the tests below
      expect_close(run(*backend, s, {{6, {999, 1}}})[0], want, 2e-6, 1e-5, name + ", " + describe(s));
    }
  }
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
  Shape s{9, 3, 64, 64};
  std::vector<float> want = run(*make_cpu_backend(best_isa(), 1), s, {{5, {2000, 1, 5}}})[0];
  for (int threads : {2, 4, 8})
    expect_same_bits(run(*make_cpu_backend(best_isa(), threads), s, {{5, {2000, 1, 5}}})[0], want, fmt::format("{} threads", threads));
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

TEST(Attention, full_and_tree_corners_agree_with_ref) {
  Shape s{6, 2, 32, 32, DType::f16, 16};
  auto ref = make_ref_backend();
  for (int window : {0, 20, 2}) {  // 2: of a tree's rows some lie behind it
    for (Corner corner : {Corner::full, Corner::bits}) {
      s.window = window;
      const Array sinks = sinks_of(s);
      const int context = 37, n = 9;
      PagedKv kv{{0, 0}, s.dtype, s.kv_heads, s.k_dim, s.v_dim};
      Units units(8, kv.bytes_per_token() * s.page_tokens, s.page_tokens, 3);
      Array k({context + n, s.kv_heads, s.k_dim}), v({context + n, s.kv_heads, s.v_dim}), q({n, s.heads, s.k_dim}),
          out({n, s.heads, s.v_dim});
      k.fill(1, 3), v.fill(2), q.fill(3, 3);
      auto [prompt, rows] = CornerRows(units, context, n, corner);
      ref->store_kv(kv, k.view.rows(0, context), v.view.rows(0, context), prompt.batch(), units.state);
      ref->store_kv(kv, k.view.rows(context, n), v.view.rows(context, n), rows.batch(), units.state);
      ref->attend(out, q, kv, rows.batch(), units.state, args_of(s, sinks));
      std::vector<float> want = out.values();
      for (auto& [name, backend] : cpu_backends()) {
        backend->store_kv(kv, k.view.rows(context, n), v.view.rows(context, n), rows.batch(), units.state);
        backend->attend(out, q, kv, rows.batch(), units.state, args_of(s, sinks));
        expect_close(out.values(), want, 2e-6, 1e-5, fmt::format("{}, window {}, corner {}", name, window, int(corner)));
      }
      if (corner == Corner::bits) {  // the path 0, 2, 4, 8 of the tree is what a causal sequence of those tokens gives
        Array kp({4, s.kv_heads, s.k_dim}), vp({4, s.kv_heads, s.v_dim}), qp({4, s.heads, s.k_dim}), outp({4, s.heads, s.v_dim});
        int path[] = {0, 2, 4, 8};
        for (int i = 0; i < 4; i++) {
          std::copy_n(k.view.row<float>(context + path[i]), s.kv_heads * s.k_dim, kp.view.row<float>(i));
          std::copy_n(v.view.row<float>(context + path[i]), s.kv_heads * s.v_dim, vp.view.row<float>(i));
          std::copy_n(q.view.row<float>(path[i]), s.heads * s.k_dim, qp.view.row<float>(i));
        }
        Rows chain;
        chain.add(context, 4);
        chain.unit = prompt.unit, chain.unit_begin = prompt.unit_begin;
        ref->store_kv(kv, kp, vp, chain.batch(), units.state);
        ref->attend(outp, qp, kv, chain.batch(), units.state, args_of(s, sinks));
        for (int i = 0; i < 4; i++) {
          auto row = want.begin() + path[i] * s.heads * s.v_dim;
          const float* path_row = outp.view.row<float>(i);
          expect_close({row, row + s.heads * s.v_dim}, {path_row, path_row + s.heads * s.v_dim}, 1e-6, 1e-6, "path");
        }
      }
    }
  }
}

TEST(Attention, refuses_heads_that_do_not_divide) {
  auto backend = make_cpu_backend(best_isa(), 1);
  PagedKv kv{{0, 0}, DType::f16, 2, 16, 16};
  Units units(2, kv.bytes_per_token() * 16, 16, 1);
  Rows rows;
  rows.add(0, 1);
  rows.unit = {1}, rows.unit_begin = {0, 1};
  Array q({1, 3, 16}), out({1, 3, 16});
  EXPECT_THROW(backend->attend(out, q, kv, rows.batch(), units.state, {3, 1}), Error);
  kv.dtype = DType::i8;
  EXPECT_THROW(backend->attend(out, q, kv, rows.batch(), units.state, {2, 1}), Error);
}

}  // namespace
}  // namespace mr::test
