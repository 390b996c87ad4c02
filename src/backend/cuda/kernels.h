// The kernels' launchers, callable from plain C++. All pointers are device pointers unless they say host; every launch goes to
// the stream of its Launch and may overlap the end of the launch before it (programmatic dependent launch).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/launch_log.h"

namespace mr::cuda {

void must(cudaError_t);  // throws Error unless it is cudaSuccess

// Where a launch goes.
struct Launch {
  cudaStream_t stream = nullptr;
  int n_sm = 132;
  bool deterministic = false;  // a row's bits do not depend on the rows beside it
  const LaunchLog* log = nullptr;
};

// A matrix of f32 or bf16; rows may lie apart.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, cols = 0, stride = 0;
};

// [rows, heads, dim] of f32 or bf16.
struct Heads {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0, heads = 0, dim = 0, stride = 0, head_stride = 0;
};

// Pages of one attention layer: K [kv_head][page_tokens][k_dim], then V [kv_head][page_tokens][v_dim], row after row.
struct Pages {
  std::byte* base = nullptr;  // of unit 0 of this layer
  int64_t unit_bytes = 0;
  int page_tokens = 0, page_shift = -1;  // shift: its logarithm, where it is a power of two
  DType dtype = DType::bf16;
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  const int32_t *unit = nullptr, *begin = nullptr;  // the sequences' tables
  int group = 0;
};

// The arrays of a Batch that attention reads.
struct Spots {
  int n_seqs = 0, n_tokens = 0;
  const int32_t *row_begin = nullptr, *context = nullptr, *position = nullptr;
  const Corner* corner = nullptr;
  const uint64_t* ancestors = nullptr;
};

// A piece of a decode: tokens [begin, end) of a sequence's keys, the index-th of `count` that lie together; count 0: nothing.
struct DecodeItem {
  int32_t seq, row, context, begin, end, index, count;
  int32_t slot;      // of its result; those of a sequence follow each other
  int32_t shared;    // of the count, the first so many are attend_shared()'s
  int32_t table[5];  // where the sequence's page table begins in each of the first groups
};
// Keys [begin, end) that n sequences of one row begin with alike: the part-th item of each.
struct SharedTile {
  int32_t first, n;  // in the list of SharedRows; at most kPrefillRows / query heads of a K/V head
  int32_t seq;       // whose page table is read
  int32_t begin, end, part;
};
struct SharedRow {
  int32_t row, slot;  // of q; the first result of the sequence
};
// One block's share of a prefill: rows [row, row + kPrefillRows) of a sequence of n_rows, whose first is row `first` of the batch.
struct PrefillTile {
  int32_t seq, row, first, n_rows, context, causal;
};
inline constexpr int kPrefillRows = 128;
inline constexpr int kDecodeBlocks = 2;  // of a decode that a multiprocessor holds at a time
inline constexpr int kGroup = 8;         // query heads of one K/V head that a block of a decode holds at most
// In how many shares a decode takes the query heads: each reads its K/V head.
inline int decode_shares(int heads, int kv_heads) { return kv_heads * ((heads / kv_heads + kGroup - 1) / kGroup); }
inline constexpr int kPartExtra = 4;  // floats beside the sums in an item's result

struct Rope {
  const float* angles = nullptr;  // [T, dim]: cos, then sin; null: no rotation
  int64_t stride = 0;
  int dim = 0;
};

struct AttendCall {
  Heads q, out;
  Heads k, v;  // decode alone: this step's keys and values, stored first; empty: stored already
  Rope rope;   // decode alone: rotates q and k
  Pages pages;
  Spots spots;
  int heads = 0;
  float scale = 1;
  int window = 0;
  float softcap = 0;
  const float* sinks = nullptr;
};

struct DecodePlan {
  const DecodeItem* item = nullptr;
  int grid = 0;                // items at most
  float* partial = nullptr;    // [slots * decode_shares() * kGroup * (v_dim + kPartExtra)]
  int32_t* arrived = nullptr;  // [n_seqs * decode_shares()] zero
  const SharedTile* shared = nullptr;
  const SharedRow* shared_row = nullptr;
  const int32_t* n_shared = nullptr;  // tiles, at most shared_room
  int shared_room = 0;                // 0: nothing is shared
};

// rows.cu: moves rows * cols elements of each operand once.
void embed(const Launch&, Matrix out, const void* table_bf16, int64_t in, float scale, const int32_t* token, const int32_t* sampled);
void norm(const Launch&, Heads out, Heads x, Norm::Kind, float eps, const float* weight, const float* bias, float offset);
void add(const Launch&, Matrix into, Matrix x, float scale);
void gate(const Launch&, Matrix out, Matrix gate, Matrix up, Activation);
void activate(const Launch&, Matrix x, Activation);
void softplus(const Launch&, Matrix x, const float* bias);
void softcap(const Launch&, Matrix x, float cap);
void gather(const Launch&, Matrix out, Matrix x, const int32_t* out_row);
void convert(const Launch&, Matrix out, Matrix x);  // f32 <-> bf16

// rope.cu
struct Frequencies {
  RopeTable::Length length;
  int dim;
  float scale;
  const float *inv_freq, *long_inv_freq;
  int original;
  float theta, factor;
};
void angles(const Launch&, Matrix out, const Frequencies&, const Spots&, const int32_t* prompt_len);
void rope(const Launch&, Heads x, Matrix angles, bool interleaved);
void store_kv(const Launch&, const Pages&, Heads k, Heads v, const Spots&);
// q rotated in place; k rotated and v as it is stored in their pages. bf16, whole heads, pairs (i, i + dim / 2).
bool can_rope_store(const AttendCall&);
void rope_store(const Launch&, const AttendCall&);

struct Slots {  // of one recurrent layer
  std::byte* base = nullptr;
  int64_t unit_bytes = 0;
  const int32_t *src = nullptr, *dst = nullptr;
};

// Half of a root mean square norm, done by who computes y: y times the norm's weight, as bf16, and the squares of y summed in parts.
struct HalfNorm {
  void* x = nullptr;         // bf16 [T, all of y's columns]; null: not wanted
  float* squares = nullptr;  // [T, parts of the columns]
  const float* weight = nullptr;
  float offset = 0;
  int64_t parts = 0;  // of a row; who makes fewer of them writes zeros
};

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
// product_many.cu: the same for many rows, which product() calls; every sum in `split` parts.
void product_many(const Launch&, const Product&, int split);
// product_wide.cu: act(gate) * up of very many rows; other sums.
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

// attend_*.cu
bool can_decode(const AttendCall&);  // one row a sequence, bf16 pages, heads of 64, 128 or 256
void attend_decode(const Launch&, const AttendCall&, const DecodePlan&);
bool can_prefill(const AttendCall&);  // bf16, heads of 64, 128 or 256
// singles: every tile is the one row of its sequence, for all query heads of a K/V head at once. Bits are the same either way.
void attend_prefill(const Launch&, const AttendCall&, const PrefillTile* tiles, int n_tiles, bool singles = false);
// Before attend_decode(), whose q and keys must be rotated and stored already: the parts of its items that sequences share.
void attend_shared(const Launch&, const AttendCall&, const DecodePlan&);
void attend_any(const Launch&, const AttendCall&);

// scan.cu, short_conv.cu
struct Recurrence {
  int n_seqs = 0;
  const int32_t *row_begin = nullptr, *parent = nullptr;  // parent: null without trees
  const Corner* corner = nullptr;
};
struct OuterShape {
  int heads, head_dim, n_state, groups;
  const float *a, *d;
  float dt_min, dt_max;
};
void short_conv(const Launch&, Matrix out, Matrix x, const float* weight, int width, const float* bias, Activation, const Slots&,
                const Recurrence&);
struct ScanRows {  // of the batch
  Matrix out, x, dt, b, c;
  const float* dt_bias = nullptr;  // dt = softplus(dt + dt_bias); null: it is that already
  Matrix gate;                     // out = silu(gate) * out; without data: not
  HalfNorm next;                   // where outer_can_norm()
};
inline constexpr int kScanPart = 32;  // columns of a part
void diag_scan(const Launch&, const ScanRows&, int n_state, const float* a, const float* d, const Slots&, const Recurrence&);
void outer_scan(const Launch&, const ScanRows&, const OuterShape&, const Slots&, const Recurrence&);
bool outer_can_norm(const OuterShape&, const Slots&);  // may it do half of a norm?

// selective.cu: Mamba's choice of dt, B and C, and the scan, of one row a sequence.
struct SelectCall {
  ScanRows rows;              // out, x, gate, dt_bias; the rest is made here
  Matrix dbc;                 // f32 [T, rank + 2 n_state]: low, B, C before their norms
  const void* low = nullptr;  // bf16 [inner, rank]
  int rank = 0, n_state = 0;
  bool norms = false;
  float eps[3] = {};
  const float* weight[3] = {};  // of the norms of low, B, C; null: ones
  const float *a = nullptr, *d = nullptr;
};
inline constexpr int kSelectMost = 16;     // rows; more of them are as fast one operation after the other
inline constexpr int kSelectVectors = 8;   // of eight inputs of dt's weight that a thread holds at most
inline constexpr int kSelectShared = 384;  // values of a row that all channels share, at most
bool can_select(const SelectCall&, const Slots&);
void select_scan(const Launch&, const SelectCall&, const Slots&);
// y [T, out] f32 = x . weight^T for few outputs of many inputs, and few rows; in % 8 == 0, rows of x bf16 and 16-byte aligned.
void product_thin(const Launch&, Matrix y, Matrix x, const void* weight);

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
void combine(const Launch&, Matrix out, Matrix x, Matrix weight);
void combine_into(const Launch&, Matrix into, Matrix x, Matrix weight, const HalfNorm& next);  // into f32
inline constexpr int kCombinePart = 32, kSumPartOne = 8;                                       // columns of a part of the half norm

// sample.cu
struct Choice {
  int32_t token;
  float logprob;
};
void greedy(const Launch&, Matrix logits, const Out* out, Choice* choice, int32_t* sampled);  // for rows that ask for no more
inline constexpr int kMostTop = 20;                                                           // alternatives that sample() reports of a row
struct SampleCall {
  Matrix logits;                      // f32 [n_out, vocab], changed by edits and masks
  const Out* out = nullptr;           // [n_out]
  const SampleRow* row = nullptr;     // [n_out]
  const LogitEdit* edit = nullptr;    // of all rows, no token twice in a row's
  float* unchanged = nullptr;         // [edits of all rows], sample()'s own
  const int32_t* mask_row = nullptr;  // [n_out] or null
  const uint32_t* mask = nullptr;
  Choice* choice = nullptr;    // [n_out]
  TopToken* top = nullptr;     // [n_out, kMostTop]: n_logprobs of them are written, at most kMostTop
  int32_t* sampled = nullptr;  // [n_out]
};
void sample(const Launch&, const SampleCall&);  // backend/sample.cpp's rule, whatever a row asks for
void fill_random(const Launch&, void* bf16, int64_t n, uint64_t seed, float spread);

}  // namespace mr::cuda
