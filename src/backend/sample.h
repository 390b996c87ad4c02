// Sampling a token from a row of logits, shared by the host backends. Order: penalties and bias, mask, temperature, top-k,
// top-p, min-p, then one draw by inverse CDF over the kept tokens, sorted by (logit descending, id ascending).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace mr {

// The two passes over a whole row, vectorized per instruction set.
struct LogitOps {
  float (*max)(const float* x, int64_t n);
  float (*sum_exp)(const float* x, int64_t n, float max, float factor);  // sum of exp((x - max) * factor)
};

struct SampleScratch {
  struct Candidate {
    float logit;
    int32_t token;
    double weight;  // exp((logit - max) / temperature)
  };
  std::vector<Candidate> candidates;
  std::vector<TopToken> edited;  // original logits of the edited tokens

  static int64_t needs(int64_t vocab) { return 2 * vocab * int64_t(sizeof(Candidate) + sizeof(TopToken)); }  // vectors grow by doubling
  int64_t bytes() const { return int64_t(candidates.capacity() * sizeof(Candidate) + edited.capacity() * sizeof(TopToken)); }
};

// `mask` may be null: all tokens allowed. out.token is -1 if no token is allowed or the largest logit is not finite.
void sample_row(float* logits, int64_t vocab, const SampleRow&, const LogitEdit* edits, const uint32_t* mask, const LogitOps&,
                SampleScratch&, Sampled& out);

// Every output row with Out::token, rows in parallel; `scratch` has one entry per worker.
void sample_rows(Tensor logits, const Batch&, const LogitOps&, ThreadPool&, std::vector<SampleScratch>& scratch, std::vector<Sampled>& out);

}  // namespace mr
