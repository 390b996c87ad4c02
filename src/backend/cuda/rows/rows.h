// Operations on rows: embedding, norms, elementwise operations, sampling; and the half norm that other kernels do in their epilogues.
#pragma once

#include "backend/cuda/device/device.h"

namespace mr::cuda {

// rows.cu: moves rows * cols elements of each operand once.
void embed(const Launch&, Matrix out, const void* table_bf16, int64_t table_rows, int64_t in, float scale, const int32_t* token,
           const int32_t* sampled);
void norm(const Launch&, Heads out, Heads x, Norm::Kind, float eps, const float* weight, const float* bias, float offset);
void add(const Launch&, Matrix into, Matrix x, float scale);
void combine(const Launch&, Heads out, Heads x, Matrix weight, bool add);
void magnitude(const Launch&, Matrix out, Matrix x, const Magnitude&);
void gate(const Launch&, Matrix out, Matrix gate, Matrix up, Activation);
void activate(const Launch&, Matrix x, Activation);
void softplus(const Launch&, Matrix x, const float* bias);
void softcap(const Launch&, Matrix x, float cap);
void gather(const Launch&, Matrix out, Matrix x, const int32_t* out_row);
void convert(const Launch&, Matrix out, Matrix x);  // f32 <-> bf16

// The first half of an RMS norm, done by the kernel that computes y: y times the norm's weight, as bf16, and partial sums of y².
struct HalfNorm {
  void* x = nullptr;         // bf16 [T, all of y's columns]; null: not wanted
  float* squares = nullptr;  // [T, parts of the columns]
  const float* weight = nullptr;
  float offset = 0;
  int64_t parts = 0;   // per row; a kernel that makes fewer writes zeros
  bool fixed = false;  // a part is kFixedPart columns, or the whole row if parts is 1
};
inline constexpr int kFixedPart = 16;
// half_norm.cu: the same for an existing x, with fixed parts.
void half_norm(const Launch&, Matrix x, const HalfNorm&);

// sample.cu
struct Choice {
  int32_t token;
  float logprob;
};
void greedy(const Launch&, Matrix logits, const Out* out, Choice* choice, int32_t* sampled);  // no row has temperature, edits or logprobs
inline constexpr int kMostTop = 20;                                                           // most alternatives that sample() reports
struct SampleCall {
  Matrix logits;                      // f32 [n_out, vocab], changed by edits and masks
  const Out* out = nullptr;           // [n_out]
  const SampleRow* row = nullptr;     // [n_out]
  const LogitEdit* edit = nullptr;    // of all rows; within one row, each token at most once
  float* unchanged = nullptr;         // scratch [edits of all rows]
  const int32_t* mask_row = nullptr;  // [n_out] or null
  const uint32_t* mask = nullptr;
  Choice* choice = nullptr;    // [n_out]
  TopToken* top = nullptr;     // [n_out, kMostTop]: n_logprobs of them are written, at most kMostTop
  int32_t* sampled = nullptr;  // [n_out]
};
void sample(const Launch&, const SampleCall&);  // the rules of backend/sample.cpp, with all options
void fill_random(const Launch&, void* bf16, int64_t n, uint64_t seed, float spread);

}  // namespace mr::cuda
