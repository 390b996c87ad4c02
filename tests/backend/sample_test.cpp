// Sampling: the kept sets against an obvious implementation, the drawn tokens against their distribution (chi-square with
// fixed seeds), penalties and log-probabilities against their definitions.
#include "backend/sample.h"

#include <set>

#include "backend/operations.h"

namespace mr::test {
namespace {

SampleRow plain() { return {.top_p = 1, .repetition_penalty = 1}; }

struct Problem {
  std::vector<float> logits;
  SampleRow row = plain();
  std::vector<LogitEdit> edits;
  std::vector<uint32_t> mask;  // empty: none

  Sampled run(Backend& backend) const {
    Rows rows;
    rows.add(0, 1);
    rows.out_row = {0};
    rows.out = {Out::token};
    rows.sample = {row};
    rows.sample[0].edit_begin = 0;
    rows.sample[0].n_edits = int(edits.size());
    Batch batch = rows.batch();
    batch.edit = edits.data();
    int32_t mask_row = 0;
    if (!mask.empty()) {
      batch.mask_row = &mask_row;
      batch.mask = mask.data();
    }
    std::vector<float> changed = logits;
    std::vector<Sampled> out;
    backend.sample(view(changed.data(), DType::f32, {1, int64_t(changed.size())}), batch, out);
    return out.at(0);
  }
};

std::vector<float> random_logits(int n, uint64_t name, float spread) {
  std::vector<float> x;
  for (int i = 0; i < n; i++) x.push_back(std::round(spread * value(name, uint64_t(i)) * 8) / 8);  // rounded: there are ties
  return x;
}

// What is kept and how likely each is, by sorting everything.
std::vector<std::pair<int, double>> kept(const std::vector<float>& logits, const SampleRow& row) {
  std::vector<std::pair<int, double>> all;
  double max = *std::max_element(logits.begin(), logits.end()), total = 0, mass = 0;
  for (size_t i = 0; i < logits.size(); i++) all.push_back({int(i), std::exp((logits[i] - max) / row.temperature)});
  std::stable_sort(all.begin(), all.end(), [&](auto& a, auto& b) { return a.second > b.second; });
  if (row.top_k) all.resize(std::min(all.size(), size_t(row.top_k)));
  for (auto& [token, p] : all) total += p;
  size_t n = 0;
  while (n < all.size() && (n == 0 || (mass / total < row.top_p && all[n].second / all[0].second >= row.min_p))) mass += all[n++].second;
  all.resize(n);
  for (auto& [token, p] : all) p /= mass;
  return all;
}

struct Filter {
  float temperature;
  int top_k;
  float top_p, min_p;
};

const Filter kFilters[] = {{1, 0, 1, 0},         {1, 5, 1, 0},          {1, 0, 0.9f, 0},      {1, 0, 1, 0.1f},      {0.7f, 40, 0.8f, 0.05f},
                           {2.5f, 0, 0.95f, 0},  {1, 1, 1, 0},          {1, 0, 1e-6f, 0},     {1.5f, 300, 0.3f, 0}, {1, 0, 0.9999f, 0.001f},
                           {0.01f, 0, 0.99f, 0}, {1, 1000000, 0.5f, 0}, {30, 0, 0.97f, 0.01f}};

TEST(Sample, draws_the_inverse_cdf_of_the_kept_tokens) {
  std::vector<NamedBackend> all = cpu_backends();
  all.push_back({"ref", make_ref_backend()});
  for (int vocab : {3, 50, 1000}) {
    for (const Filter& f : kFilters) {
      Problem p{random_logits(vocab, uint64_t(vocab), 7)};
      p.row.temperature = f.temperature;
      p.row.top_k = f.top_k;
      p.row.top_p = f.top_p;
      p.row.min_p = f.min_p;
      auto set = kept(p.logits, p.row);
      for (int draw = 0; draw < 60; draw++) {
        p.row.seed = 11;
        p.row.choice = 2;
        p.row.position = draw;
        double u = uniform(11, 2, uint32_t(draw)), sum = 0;
        size_t i = 0;
        while (i + 1 < set.size() && (sum += set[i].second) <= u) i++;
        double near = std::abs(sum - u);  // a draw at the very edge may fall to either side
        for (auto& [name, backend] : all) {
          int token = p.run(*backend).token;
          if (near > 1e-5) {
            EXPECT_EQ(token, set[i].first) << name << ", vocabulary " << vocab << ", temperature " << f.temperature << ", top " << f.top_k
                                           << ", " << f.top_p << ", " << f.min_p << ", draw " << draw;
          }
        }
      }
    }
  }
}

// min_p keeps what is at least min_p times as likely as the likeliest: its edge belongs to what is kept (transformers' MinPLogitsWarper
// removes what is less), at any depth.
TEST(Sample, min_p_keeps_its_edge) {
  std::vector<NamedBackend> all = cpu_backends();
  all.push_back({"ref", make_ref_backend()});
  auto draws = [&](const Problem& problem, Backend& backend) {
    Problem p = problem;
    p.row.temperature = 1;
    std::set<int> seen;
    for (int i = 0; i < 60; i++) {
      p.row.position = i;
      seen.insert(p.run(backend).token);
    }
    return seen;
  };
  for (auto& [name, backend] : all) {
    Problem ties{{2, 2, 1.999f, 2}};
    ties.row.min_p = 1;
    EXPECT_EQ(draws(ties, *backend), (std::set<int>{0, 1, 3})) << name;
    // 20 tokens at distance 1, 5,000 at 6.5 and 7.5: where the edge lies decides who can be drawn.
    for (float distance : {1.0f, 6.5f, 7.5f}) {
      Problem p{std::vector<float>(1, 0)};
      p.logits.resize(distance == 1 ? 20 : 5000, -distance);
      const float edge = std::exp(-distance);
      p.row.min_p = std::nextafter(edge, 0.0f);
      EXPECT_GT(draws(p, *backend).size(), 3u) << name << ", distance " << distance;
      p.row.min_p = std::nextafter(edge, 1.0f);
      EXPECT_EQ(draws(p, *backend), std::set<int>{0}) << name << ", distance " << distance;
    }
  }
}

TEST(Sample, draws_the_right_distribution) {
  auto backend = make_cpu_backend(best_isa(), 1);
  for (const Filter& f : kFilters) {
    Problem p{random_logits(300, 5, 4)};
    p.row.temperature = f.temperature;
    p.row.top_k = f.top_k;
    p.row.top_p = f.top_p;
    p.row.min_p = f.min_p;
    p.row.seed = 12345;
    auto set = kept(p.logits, p.row);
    std::vector<int> count(300, 0);
    const int draws = 20000;
    for (int i = 0; i < draws; i++) {
      p.row.position = i;
      count[size_t(p.run(*backend).token)]++;
    }
    double chi = 0, expected_rest = 0, degrees = -1;
    int seen_rest = 0, inside = 0;
    for (auto& [token, probability] : set) {
      double expected = probability * draws;
      inside += count[size_t(token)];
      if (expected < 10) {
        expected_rest += expected;
        seen_rest += count[size_t(token)];
        continue;
      }
      chi += (count[size_t(token)] - expected) * (count[size_t(token)] - expected) / expected;
      degrees++;
    }
    if (expected_rest > 10) {
      chi += (seen_rest - expected_rest) * (seen_rest - expected_rest) / expected_rest;
      degrees++;
    }
    EXPECT_EQ(inside, draws);
    // mean `degrees`, variance twice that: four standard deviations
    EXPECT_LT(chi, degrees + 4 * std::sqrt(2 * degrees + 1) + 4)
        << "temperature " << f.temperature << ", top " << f.top_k << ", " << f.top_p;
  }
}

TEST_P(Operations, greedy_takes_the_lowest_id_of_the_largest) {
  for (int vocab : {1, 5, 16, 33, 1000, 49152, 128256}) {
    Problem p{std::vector<float>(size_t(vocab), -3)};
    EXPECT_EQ(p.run(backend()).token, 0) << name();
    EXPECT_NEAR(p.run(backend()).logprob, -std::log(double(vocab)), bound(1e-5, 1e-4)) << name();
    if (vocab < 3) continue;
    p.logits[size_t(vocab - 1)] = p.logits[size_t(vocab / 2)] = 2;
    EXPECT_EQ(p.run(backend()).token, vocab / 2) << name();
  }
}

// Some rows want a token, others their logits alone.
TEST_P(Operations, greedy_agrees_with_ref) {
  SKIP_WHERE_REF_IS_THE_DEFINITION();
  for (int vocab : {1, 5, 33, 1000, 49152, 128256}) {
    Rows rows;
    rows.add(0, 3);
    rows.out_row = {0, 1, 2};
    rows.out = {Out::token, Out::logits, Out::token};
    rows.sample.assign(3, SampleRow{.top_p = 1, .repetition_penalty = 1});
    Array logits({3, vocab});
    logits.fill(uint64_t(vocab), 4);
    std::fill_n(logits.view.row<float>(0), vocab, -3.0f);
    if (vocab > 2) logits.view.row<float>(2)[vocab - 1] = logits.view.row<float>(2)[vocab / 2] = 7;
    std::vector<Sampled> got, want;
    Array copy({3, vocab});
    copy.data = logits.data;
    copy.view.data = copy.data.data();
    backend().sample(logits, rows.batch(), got);
    ref().sample(copy, rows.batch(), want);
    for (int i = 0; i < 3; i++) {
      EXPECT_EQ(got[size_t(i)].token, want[size_t(i)].token) << vocab << " row " << i;
      EXPECT_NEAR(got[size_t(i)].logprob, want[size_t(i)].logprob, 1e-4);
    }
  }
}

// Each row has a mask of its own, or none.
TEST_P(Operations, samples_what_masks_allow) {
  const int vocab = 70;  // three words of a mask
  Rows rows;
  rows.add(0, 3);
  rows.out_row = {0, 1, 2};
  rows.out.assign(3, Out::token);
  rows.sample.assign(3, SampleRow{.top_p = 1, .repetition_penalty = 1});
  const std::vector<int32_t> mask_row{1, -1, 0};
  const std::vector<uint32_t> mask{0, 0, 1u << 5, 1u << 7, 1u << 31, 0};  // token 69 alone; 7 and 63
  Array logits({3, vocab});
  logits.fill(3, 4);
  const float* x = logits.view.row<float>(0);
  const int32_t better = x[7] >= x[63] ? 7 : 63;
  x = logits.view.row<float>(1);
  const auto best = int32_t(std::max_element(x, x + vocab) - x);
  Batch batch = rows.batch();
  batch.mask_row = mask_row.data();
  batch.mask = mask.data();
  std::vector<Sampled> got;
  backend().sample(logits, batch, got);
  EXPECT_EQ(got[0].token, better);
  EXPECT_EQ(got[1].token, best);
  EXPECT_EQ(got[2].token, 69);
}

TEST_P(Operations, edits_change_logits_but_not_reported_probabilities) {
  Problem p{{1.0f, 2.0f, -1.0f, 1.9f}};
  double lse = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(-1.0) + std::exp(1.9));
  p.row.n_logprobs = 3;
  p.row.repetition_penalty = 2;
  p.edits = {{1, 0, 1, 0}};  // 2 / 2 = 1
  Sampled s = p.run(backend());
  EXPECT_EQ(s.token, 3);
  EXPECT_NEAR(s.logprob, 1.9 - lse, bound(1e-5, 2e-4));
  ASSERT_EQ(s.top.size(), 3u);
  EXPECT_EQ(s.top[0].token, 1);
  EXPECT_NEAR(s.top[0].logprob, 2 - lse, bound(1e-5, 2e-4));
  EXPECT_EQ(s.top[2].token, 0);

  p.edits = {{2, 0, 1, 3.8f}, {1, 0, 0, -2}};  // -1 * 2 + 3.8 = 1.8; 2 - 2 = 0
  EXPECT_EQ(p.run(backend()).token, 3);
  p.edits[0].bias = 4;  // 2
  s = p.run(backend());
  EXPECT_EQ(s.token, 2);
  EXPECT_NEAR(s.logprob, -1 - lse, bound(1e-5, 2e-4));

  p.row.repetition_penalty = 1;
  p.row.frequency_penalty = 0.03f;
  p.row.presence_penalty = 0.05f;
  p.edits = {{1, 1, 1, 0}};  // 2 - 0.03 - 0.05 = 1.92
  EXPECT_EQ(p.run(backend()).token, 1);
  p.edits = {{1, 2, 1, 0}};  // 1.89
  EXPECT_EQ(p.run(backend()).token, 3);
  p.row.frequency_penalty = p.row.presence_penalty = 1;
  p.edits = {{1, 0, 1, 0}};  // only in the prompt: neither penalty
  EXPECT_EQ(p.run(backend()).token, 1);
}

TEST_P(Operations, masks_allow_only_their_tokens) {
  Problem p{random_logits(70, 3, 5)};
  p.mask = {0, 1u << 7, 1u << 3};  // tokens 39 and 67
  for (float temperature : {0.0f, 1.0f, 5.0f}) {
    p.row.temperature = temperature;
    std::vector<int> count(70, 0);
    for (int i = 0; i < 50; i++) {
      p.row.position = i;
      count[size_t(p.run(backend()).token)]++;
    }
    EXPECT_EQ(count[39] + count[67], 50);
  }
  p.mask = {0, 0, 0};
  EXPECT_EQ(p.run(backend()).token, -1);
}

TEST_P(Operations, top_tokens_are_sorted_with_ties_to_the_lower_id) {
  Problem p{random_logits(500, 8, 3)};
  p.row.n_logprobs = 20;
  std::vector<int> order(500);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p.logits[size_t(a)] > p.logits[size_t(b)]; });
  Sampled s = p.run(backend());
  ASSERT_EQ(s.top.size(), 20u);
  for (int i = 0; i < 20; i++) EXPECT_EQ(s.top[size_t(i)].token, order[size_t(i)]);
  p.logits.resize(4);
  EXPECT_EQ(p.run(backend()).top.size(), 4u);
}

TEST(Sample, a_row_does_not_depend_on_its_neighbours) {
  auto backend = make_cpu_backend(best_isa(), 4);
  const int vocab = 800, n = 9;
  Array logits({n, vocab});
  logits.fill(4, 6);
  Rows rows;
  rows.add(0, n);
  for (int i = 0; i < n; i++) {
    rows.out_row.push_back(i);
    rows.out.push_back(i == 4 ? Out::logits : Out::token);
    rows.sample.push_back(plain());
    rows.sample.back().temperature = 0.3f * float(i);
    rows.sample.back().seed = uint64_t(i);
    rows.sample.back().top_p = 0.9f;
  }
  std::vector<Problem> alone;
  for (int i = 0; i < n; i++) alone.push_back({{logits.view.row<float>(i), logits.view.row<float>(i) + vocab}, rows.sample[size_t(i)]});
  std::vector<Sampled> out;
  backend->sample(logits, rows.batch(), out);
  for (int i = 0; i < n; i++) {
    if (i == 4) {
      EXPECT_EQ(out[4].token, -1);
      continue;
    }
    Sampled want = alone[size_t(i)].run(*backend);
    EXPECT_EQ(out[size_t(i)].token, want.token);
    EXPECT_EQ(out[size_t(i)].logprob, want.logprob);
  }
}

}  // namespace
}  // namespace mr::test
