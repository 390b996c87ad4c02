// Matrix products: of few rows, of many, of packed weights, of routed experts.
#pragma once

#include "backend/cuda/rows/rows.h"

namespace mr::cuda {

// product.cu: bf16 x against a bf16 weight [out, in], which is read once for up to 128 rows.
struct Product {
  const void* weight = nullptr;  // bf16 [out, in], contiguous
  int64_t out = 0, in = 0;
  Matrix x;  // bf16
  Matrix y;
  const float* bias = nullptr;
  const float* residual = nullptr;  // f32, may be y
  int64_t residual_stride = 0;
  float scale = 1;
  bool gated = false;  // y [T, out / 2] = act(first half) * second half; no bias, residual, scale
  Activation activation = Activation::none;
  // An RMS norm between two products of few rows is split between them: the second scales its sums by the factor from these squares.
  const float* squares = nullptr;  // of x [T, n_squares]; null: no norm
  int64_t n_squares = 0;
  float eps = 0;
  HalfNorm next;
  struct {  // only product_one(): outputs [first, first + n) pass through a short convolution and go to its `out` instead of y
    int64_t first = 0, n = 0;
    const float *weight = nullptr, *bias = nullptr;  // [n, kConvWidth]
    Activation act = Activation::none;
    Slots slots;
    Matrix out;
  } conv;
};
inline constexpr int kConvWidth = 4;
inline constexpr int kFewRows = 128;                     // most rows of a product that can split a norm
inline constexpr int kSomeRows = 256;                    // up to here product_many() beats cuBLASLt only by its epilogues
inline constexpr int kNormPart = 64, kNormPartOne = 16;  // outputs per part of the half norm, of product() and of product_one()
void product(const Launch&, const Product&);             // in % 8 == 0, gated out % 16 == 0, rows of x 16-byte aligned
void product_one(const Launch&, const Product&);         // the same for one row; sums in a different order
void product_any(const Launch&, const Product&);         // any shape, slowly
void product_plain(const Launch&, const Product&);       // shapes as in product(), without Hopper's instructions; no norms
// Number of input parts whose sums deterministic products add in order; depends only on the weight's shape.
int fixed_split(const Launch&, const Product&);
// many.cu: the same for many rows, called by product(); every sum in `split` parts. Its n_squares is 1.
void product_many(const Launch&, const Product&, int split);
// wide.cu: act(gate) * up of very many rows; sums in a different order.
bool wants_product_wide(const Launch&, const Product&);  // whether it is faster than a product and a separate pass
void product_wide(const Launch&, const Product&);

// packed.cu, which describes the layout: weights in blocks of 32 inputs, in % 32 == 0.
enum class Packing : uint8_t { bf16, q8_0, q4_0, q4_1 };  // bf16: plain rows
struct Packed {
  Packing packing = Packing::bf16;
  const void *quants = nullptr, *scales = nullptr;
  int64_t out = 0, in = 0;
};
// p's weight is w; rows of x 16-byte aligned; gated: out % 32 == 0. A row's bits do not depend on the other rows.
void product_packed(const Launch&, const Product& p, const Packed& w);
void unpack(const Launch&, void* bf16, const Packed&);  // [out, in]
void embed_packed(const Launch&, Matrix out, const Packed& table, float scale, const int32_t* token, const int32_t* sampled);

// experts.cu
void route(const Launch&, Matrix expert, Matrix weight, Matrix logits, bool renormalize);
struct RouteCall {                   // RMS norm, router and top-k
  Matrix expert, weight, normed, x;  // x f32, normed bf16, both by_eight()
  const float* norm_weight = nullptr;
  float eps = 0, offset = 0;
  const void* router = nullptr;  // bf16 [n_experts, D]
  int n_experts = 0;
  bool renormalize = false;
};
bool can_route(const RouteCall&);
void route_normed(const Launch&, const RouteCall&);
struct GroupTile {           // rows routed to one expert
  int32_t expert, first, n;  // pairs [first, first + n) of the list
};
// How n_pairs (row, expert) pairs are split into groups of at most `most`; if listed, the caller provides the lists.
struct GroupPlan {
  int most = 8;
  int64_t n_tiles = 0;                 // upper bound
  bool listed = false, known = false;  // known: the lists are already filled
  GroupTile* tile = nullptr;           // [n_tiles]
  int32_t *n_listed = nullptr, *pairs = nullptr;
};
GroupPlan group_plan(const Launch&, int64_t n_pairs, int64_t n_experts);
// in % 8 == 0, rows of x bf16 and 16-byte aligned. Reads a chosen expert's weight once per `most` rows routed to it.
// ups: out [T * k, out] = act(x . experts^T) * (x . ups^T), with out % 16 == 0.
void grouped(const Launch&, Matrix out, Matrix x, const Packed& shape, const Packed* experts, int n_experts, Matrix expert,
             const GroupPlan&, const Packed* ups = nullptr, Activation = Activation::none);
// The same for one row of x and bf16 weights; and the down products of x [k, in], summed with the routing weights onto `into`.
void grouped_gate_one(const Launch&, Matrix out, Matrix x, const Packed* gates, const Packed* ups, int n_experts, Matrix expert,
                      Activation);
void grouped_sum_one(const Launch&, Matrix into, Matrix x, const Packed* downs, int n_experts, Matrix expert, Matrix weight,
                     const HalfNorm& next);
void grouped_any(const Launch&, Matrix out, Matrix x, const Packed* experts, int n_experts, int64_t in, Matrix expert);  // of bf16 alone
void combine_into(const Launch&, Matrix into, Matrix x, Matrix weight, const HalfNorm& next);                            // into f32
inline constexpr int kCombinePart = 32, kSumPartOne = 8;  // columns of a part of the half norm

}  // namespace mr::cuda
