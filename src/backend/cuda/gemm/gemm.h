// Matrix products: of a few rows, of many, of packed weights, of the experts that rows chose.
#pragma once

#include "backend/cuda/rows/rows.h"

namespace mr::cuda {

// product.cu: bf16 x against a bf16 weight [out, in], which is read once for up to 128 rows.
struct Product {
  const void* weight = nullptr;  // bf16 [out, in], rows one after the other
  int64_t out = 0, in = 0;
  Matrix x;  // bf16
  Matrix y;
  const float* bias = nullptr;
  const float* residual = nullptr;  // f32, may be y
  int64_t residual_stride = 0;
  float scale = 1;
  bool gated = false;  // y [T, out / 2] = act(first half) * second half; no bias, residual, scale
  Activation activation = Activation::none;
  // A root mean square norm between two products of few rows is done by both: the second makes the squares the factor of its sums.
  const float* squares = nullptr;  // of x [T, n_squares]; null: x is what it is
  int64_t n_squares = 0;
  float eps = 0;
  HalfNorm next;
  struct {  // product_one() alone: outputs [first, first + n) go through a short convolution, and where it says instead of to y
    int64_t first = 0, n = 0;
    const float *weight = nullptr, *bias = nullptr;  // [n, kConvWidth]
    Activation act = Activation::none;
    Slots slots;
    Matrix out;
  } conv;
};
inline constexpr int kConvWidth = 4;
inline constexpr int kFewRows = 128;                     // of a product that can share a norm
inline constexpr int kSomeRows = 256;                    // up to which product_many() is not always behind cuBLASLt
inline constexpr int kNormPart = 64, kNormPartOne = 16;  // outputs of a part of product() and of product_one()
void product(const Launch&, const Product&);             // in % 8 == 0, gated out % 16 == 0, rows of x 16-byte aligned
void product_one(const Launch&, const Product&);         // the same for one row; other sums
void product_any(const Launch&, const Product&);         // any shape, slowly
// Parts of the inputs whose sums are added in order, of deterministic products: of the weight's shape alone.
int fixed_split(const Launch&, const Product&);
// many.cu: the same for many rows, which product() calls; every sum in `split` parts. Its squares are of one part.
void product_many(const Launch&, const Product&, int split);
// wide.cu: act(gate) * up of very many rows; other sums.
bool wants_product_wide(const Launch&, const Product&);  // is it faster than a product and a pass behind it?
void product_wide(const Launch&, const Product&);

// packed.cu, whose head has the layout: weights of blocks of 32 inputs, in % 32 == 0.
enum class Packing : uint8_t { bf16, q8_0, q4_0, q4_1 };  // bf16: rows as they are
struct Packed {
  Packing packing = Packing::bf16;
  const void *quants = nullptr, *scales = nullptr;
  int64_t out = 0, in = 0;
};
// p's weight is w; rows of x 16-byte aligned; a gated one's halves are whole tiles: out % 32 == 0. A row's bits depend on it alone.
void product_packed(const Launch&, const Product& p, const Packed& w);
void unpack(const Launch&, void* bf16, const Packed&);  // [out, in]
void embed_packed(const Launch&, Matrix out, const Packed& table, float scale, const int32_t* token, const int32_t* sampled);

// experts.cu
void route(const Launch&, Matrix expert, Matrix weight, Matrix logits, bool renormalize);
struct RouteCall {                   // of a root mean square norm
  Matrix expert, weight, normed, x;  // x f32, normed bf16, by eight
  const float* norm_weight = nullptr;
  float eps = 0, offset = 0;
  const void* router = nullptr;  // bf16 [n_experts, D]
  int n_experts = 0;
  bool renormalize = false;
};
bool can_route(const RouteCall&);
void route_normed(const Launch&, const RouteCall&);
struct GroupTile {           // rows that chose one expert
  int32_t expert, first, n;  // first: in the list of pairs
};
// How n_pairs of row and expert are cut into groups of at most `most`; the lists are the caller's, where listed.
struct GroupPlan {
  int most = 8;
  int64_t n_tiles = 0;                 // at most
  bool listed = false, known = false;  // known: the lists are there already
  GroupTile* tile = nullptr;           // [n_tiles]
  int32_t *n_listed = nullptr, *pairs = nullptr;
};
GroupPlan group_plan(const Launch&, int64_t n_pairs, int64_t n_experts);
// in % 8 == 0, rows of x bf16 and 16-byte aligned. Reads every weight that is chosen once every `most` rows that chose it.
// ups: out [T * k, out] = act(experts' product) * ups'; out % 16 == 0 then.
void grouped(const Launch&, Matrix out, Matrix x, const Packed& shape, const Packed* experts, int n_experts, Matrix expert,
             const GroupPlan&, const Packed* ups = nullptr, Activation = Activation::none);
// The same for one row of bf16 weights; and the sum of the products of `down` with x [k, in] by the row's weights, added to `into`.
void grouped_gate_one(const Launch&, Matrix out, Matrix x, const Packed* gates, const Packed* ups, int n_experts, Matrix expert,
                      Activation);
void grouped_sum_one(const Launch&, Matrix into, Matrix x, const Packed* downs, int n_experts, Matrix expert, Matrix weight,
                     const HalfNorm& next);
void grouped_any(const Launch&, Matrix out, Matrix x, const Packed* experts, int64_t in, Matrix expert);  // of bf16 alone
void combine_into(const Launch&, Matrix into, Matrix x, Matrix weight, const HalfNorm& next);             // into f32
inline constexpr int kCombinePart = 32, kSumPartOne = 8;  // columns of a part of the half norm

}  // namespace mr::cuda
