// Attention on a GPU in deterministic mode, after shared prefixes and as one with what comes before. Inputs have bf16 values, so that what
// differs is arithmetic alone. Skipped without a GPU.
#ifdef MR_CUDA
#include "backend/attention_world.h"
#include "backend/on_kinds.h"

namespace mr::test {
namespace {

class CudaAttention : public OnKinds {};

std::vector<std::vector<float>> run(OnDevice& device, const Shape& s, const std::vector<Course>& courses) {
  return run(device, s, courses, 1, {.plain = true});
}

// However a sequence is cut into steps and whoever is beside it, each row's bits are the same.
TEST(CudaDeterministicAttention, attention_does_not_depend_on_chunks_or_neighbours) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  OnDevice device(DType::bf16, {.deterministic = true});
  for (Shape s : {Shape{8, 2, 128, 128, DType::bf16},
                  {6, 2, 64, 64, DType::bf16, 32, 100, 0, true},
                  {8, 1, 128, 128, DType::bf16, 48, 0, 5},
                  {4, 1, 256, 256, DType::bf16, 32, 200, 5},
                  {64, 8, 64, 64, DType::bf16, 16}}) {
    const std::vector<float> alone = run(device, s, {{5, {530}}})[0];
    expect_same_bits(run(device, s, {{5, {1, 200, 1, 327, 1}}, {6, {137, 1, 1, 0, 1}}})[0], alone, describe(s));
    expect_same_bits(run(device, s, {{7, {300, 3, 1}}, {5, {129, 400, 1}}})[1], alone, describe(s));
  }
}

// More query heads than multiprocessors, each with a K/V head of its own, for a single row.
TEST(CudaDeterministicAttention, single_rows_of_many_heads) {
  if (!cuda_available()) GTEST_SKIP() << "no GPU";
  OnDevice device(DType::bf16, {.deterministic = true});
  for (int dim : {64, 256}) {
    const Shape s{150, 150, dim, dim, DType::bf16};
    expect_same_bits(run(device, s, {{5, {39, 1}}})[0], run(device, s, {{5, {40}}})[0], describe(s));
  }
}

// Sequences that begin with the same pages, read once for all of them, and one that does not.
TEST_P(CudaAttention, shared_prefixes) {
  auto ref = make_ref_backend();
  for (auto [heads, kv_heads, dim, shared, n] :
       {std::array{8, 2, 128, 320, 6}, {8, 2, 64, 1600, 40}, {6, 2, 128, 800, 70}, {16, 2, 64, 288, 4}, {4, 2, 256, 416, 9}}) {
    OnDevice device(GetParam(), {.model = ModelFacts{.attention = {{heads, kv_heads, dim, 0}}}});  // prefixes are shared
    const int page = 32, last = n;                                                                 // sequence `last` is alone
    PagedKv kv{{0, 0}, DType::bf16, kv_heads, dim, dim};
    std::vector<std::vector<float>> outs;
    for (Backend* b : {static_cast<Backend*>(ref.get()), static_cast<Backend*>(&device)}) {
      Units units(shared / page * 2 + 4 * n + 40, kv.bytes_per_token() * page, page, 3);
      Rows first, rows;
      std::vector<int32_t> common;
      for (int p = 0; p < shared / page; p++) common.push_back(units.take());
      std::vector<int> context;
      for (int s = 0; s <= n; s++) {
        context.push_back(shared + 5 + s % 70);
        for (int p = 0; p * page <= context.back(); p++)
          rows.unit.push_back(p < shared / page && s != last ? common[size_t(p)] : units.take());
        rows.unit_begin.push_back(int(rows.unit.size()));
        first.add(s == 0 || s == last ? 0 : shared, context.back() - (s == 0 || s == last ? 0 : shared));
        rows.add(context.back(), 1);
      }
      first.unit = rows.unit;
      first.unit_begin = rows.unit_begin;
      Batch before = first.batch(), now = rows.batch();
      Array k({before.n_tokens, kv_heads, dim}), v({before.n_tokens, kv_heads, dim}), new_k({n + 1, kv_heads, dim}),
          new_v({n + 1, kv_heads, dim}), q({n + 1, heads, dim}), out({n + 1, heads, dim});
      whole(k.fill(1, 2));
      whole(v.fill(2));
      whole(new_k.fill(4, 2));
      whole(new_v.fill(5));
      whole(q.fill(3, 2));
      b->store_kv(kv, k, v, before, units.state);
      b->store_kv(kv, new_k, new_v, now, units.state);
      b->attend(out, q, kv, now, units.state, {.heads = heads, .scale = 1 / std::sqrt(float(dim))});
      outs.push_back(out.values());
    }
    expect_close(outs[1], outs[0], GetParam() == DType::f32 ? 1e-5 : 2 * kHalfStep, 1e-5 + step(),
                 fmt::format("{} sequences behind {} tokens, {} heads of {} on {}", n, shared, heads, dim, device.name()));
  }
}

// rope + store + attend as one against the three operations of ref: q and k are rounded once more after rotation (2^-8 of
// values up to 3, over `dim` products of mean square 3 * 3 * 1.5, scaled by 1 / sqrt(dim)): weights err by 3 % at most.
TEST_P(CudaAttention, rope_store_and_attend_as_one) {
  if (GetParam() != DType::bf16) GTEST_SKIP() << "programs have bf16 activations";
  auto ref = make_ref_backend();
  for (int dim : {64, 128, 80, 256})
    for (int rows : {1, 70}) {
      const int heads = 8, kv_heads = 2, context = 90;
      std::vector<float> outs[2];
      for (Backend* b : {static_cast<Backend*>(ref.get()), static_cast<Backend*>(&device().gpu())}) {
        Net net(*b);
        const Value q = net.input(heads * dim, 3, 3).as_heads(heads), k = net.input(kv_heads * dim, 1, 3).as_heads(kv_heads),
                    v = net.input(kv_heads * dim, 2).as_heads(kv_heads), angles = net.r().angles(net.rope(dim));
        const PagedKv& kv = net.paged(kv_heads, dim);
        net.r().rope(q, angles, false);
        net.r().rope(k, angles, false);
        net.r().store_kv(k, v, kv);
        net.tap(net.r().attend(q, kv, {.heads = heads, .scale = 1 / std::sqrt(float(dim))}));
        net.finish();
        EXPECT_TRUE(net.has(Rule::attend));
        Session session(net, {context + rows});
        for (int n : {context, rows})
          for (float x : session.step({n})) outs[b != ref.get()].push_back(x);
      }
      expect_close(outs[1], outs[0], 3e-2, step(), fmt::format("dim {}, {} rows", dim, rows));
    }
}

INSTANTIATE_TEST_SUITE_P(All, CudaAttention, testing::ValuesIn(kKinds), name_of_kind);

}  // namespace
}  // namespace mr::test
#endif
