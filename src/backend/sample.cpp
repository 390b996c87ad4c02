#include "backend/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/random.h"

namespace mr {

using Candidate = SampleScratch::Candidate;

static constexpr float kInf = std::numeric_limits<float>::infinity();

static bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

// The n largest logits, descending, ties to the lower id.
static void top_logprobs(const float* logits, int64_t vocab, int n, float lse, std::vector<TopToken>& top) {
  auto better = [](const TopToken& a, const TopToken& b) { return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token; };
  top.clear();
  n = int(std::min<int64_t>(n, vocab));
  if (n <= 0) return;
  for (int64_t i = 0; i < vocab; i++) {
    if (int(top.size()) == n && !(logits[i] > top.front().logprob)) continue;  // an equal logit with a higher id loses
    if (int(top.size()) == n) {
      std::pop_heap(top.begin(), top.end(), better);
      top.pop_back();
    }
    top.push_back({int32_t(i), logits[i]});
    std::push_heap(top.begin(), top.end(), better);
  }
  std::sort_heap(top.begin(), top.end(), better);
  for (TopToken& t : top) t.logprob -= lse;
}

// As OpenAI (frequency, presence, bias) and Hugging Face (repetition) define them.
static void edit_logits(float* logits, const SampleRow& row, const LogitEdit* edits, std::vector<TopToken>& unchanged) {
  unchanged.clear();
  for (int i = 0; i < row.n_edits; i++) {
    const LogitEdit& e = edits[row.edit_begin + i];
    float& x = logits[e.token];
    unchanged.push_back({e.token, x});
    if (e.seen) x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
    x -= float(e.n_generated) * row.frequency_penalty;
    if (e.n_generated > 0) x -= row.presence_penalty;
    x += e.bias;
  }
}

static void mask_logits(float* logits, int64_t vocab, const uint32_t* mask) {
  for (int64_t word = 0; word * 32 < vocab; word++) {
    if (mask[word] == ~0u) continue;
    for (int64_t i = word * 32; i < std::min(vocab, word * 32 + 32); i++)
      if (!(mask[word] >> (i % 32) & 1)) logits[i] = -kInf;
  }
}

// All tokens whose logit is at least `least`; returns the sum of their weights.
static double collect(const float* logits, int64_t vocab, float least, float max, float factor, std::vector<Candidate>& found) {
  found.clear();
  for (int64_t i = 0; i < vocab; i++)
    if (logits[i] >= least) [[unlikely]]
      found.push_back({logits[i], int32_t(i), 0});
  double sum = 0;
  for (Candidate& c : found) sum += c.weight = std::exp(double(c.logit - max) * factor);
  return sum;
}

// Collects candidates from the top down, only as deep as the filters and the draw need; each round doubles the depth.
static int32_t draw(const float* logits, int64_t vocab, const SampleRow& row, float max, const LogitOps& ops,
                    std::vector<Candidate>& kept) {
  const float factor = 1 / row.temperature;
  const double u = uniform(row.seed, uint32_t(row.choice), uint32_t(row.position));
  const bool top_k = row.top_k > 0 && row.top_k < vocab, nucleus = row.top_p < 1;
  const double deepest = row.min_p > 0 ? -std::log(double(row.min_p)) : kInf;
  double total = top_k ? 0 : ops.sum_exp(logits, vocab, max, factor);
  for (double depth = 6;; depth *= 2) {
    bool all = depth > 700;  // exp(-700) is negligible beside the largest weight, 1
    double mass = collect(logits, vocab, all ? -std::numeric_limits<float>::max() : max - float(depth) / factor, max, factor, kept);
    if (all) break;
    if (top_k) {
      if (int64_t(kept.size()) >= row.top_k) break;
    } else {
      if (depth >= deepest || mass > (nucleus ? row.top_p : u) * total) break;
    }
  }
  std::sort(kept.begin(), kept.end(), before);
  if (top_k) {
    if (int64_t(kept.size()) > row.top_k) kept.resize(size_t(row.top_k));
    for (const Candidate& c : kept) total += c.weight;
  }
  double mass = 0;
  size_t n = 0;
  while (n < kept.size() && (n == 0 || ((!nucleus || mass < row.top_p * total) && kept[n].weight >= row.min_p))) mass += kept[n++].weight;
  double target = u * (nucleus || row.min_p > 0 ? mass : total), cumulated = 0;
  for (size_t i = 0; i < n; i++) {
    cumulated += kept[i].weight;
    if (cumulated > target) return kept[i].token;
  }
  return kept[n - 1].token;
}

void sample_row(float* logits, int64_t vocab, const SampleRow& row, const LogitEdit* edits, const uint32_t* mask, const LogitOps& ops,
                SampleScratch& scratch, Sampled& out) {
  out = {};
  float max = ops.max(logits, vocab);
  float lse = max + std::log(ops.sum_exp(logits, vocab, max, 1));
  top_logprobs(logits, vocab, row.n_logprobs, lse, out.top);
  edit_logits(logits, row, edits, scratch.edited);
  if (mask) mask_logits(logits, vocab, mask);
  if (mask || row.n_edits) max = ops.max(logits, vocab);
  if (!(std::abs(max) < kInf)) return;
  out.token = row.temperature > 0 ? draw(logits, vocab, row, max, ops, scratch.candidates)
                                  : int32_t(std::find(logits, logits + vocab, max) - logits);
  float logit = logits[out.token];
  auto edited = std::find_if(scratch.edited.begin(), scratch.edited.end(), [&](const TopToken& t) { return t.token == out.token; });
  if (edited != scratch.edited.end()) logit = edited->logprob;
  out.logprob = logit - lse;
}

void sample_rows(Tensor logits, const Batch& batch, const LogitOps& ops, ThreadPool& pool, std::vector<SampleScratch>& scratch,
                 std::vector<Sampled>& out) {
  const int64_t vocab = logits.shape[1], words = (vocab + 31) / 32;
  scratch.resize(size_t(pool.size()));
  out.resize(size_t(batch.n_out));
  pool.parallel(batch.n_out, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) {
      out[i] = {};
      if (batch.out[i] != Out::token) continue;
      int32_t mask_row = batch.mask_row ? batch.mask_row[i] : -1;
      sample_row(logits.row<float>(i), vocab, batch.sample[i], batch.edit, mask_row < 0 ? nullptr : batch.mask + mask_row * words, ops,
                 scratch[worker], out[i]);
    }
  });
}

}  // namespace mr
