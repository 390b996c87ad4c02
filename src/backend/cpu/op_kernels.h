// The kernels of one instruction set for all operations but linear: functions over single rows, and the parts of
// attention. All are written once over Vec, so every instruction set gives the same bits.
#pragma once

#include <cstdint>

namespace mr {

struct NormRow {
  const float *weight, *bias;  // may be null
  int64_t n;
  float eps, offset;
  int kind;  // of mr::Norm::Kind: 0 rms, 1 layer, 2 none
};

// Attention mask of a query: it sees keys [lo, hi), and from `corner` on only those whose bit is set.
struct Sight {
  int32_t lo, hi, corner;
  uint64_t bits;
};

// How values are stored. E4M3 is read as 2^-8 of what it stands for; integers and E4M3 need a scale to be values.
enum StoredAs : int { kF32, kF16, kBf16, kE4m3, kE5m2, kI8, kI4 };

// Some queries of one K/V head over one span of keys: at most kSpan of them, between two multiples of kSpan.
struct SpanCall {
  static constexpr int kSpan = 256, kTile = 16;
  static constexpr int kFewQueries = 4;  // most that read codes of 8 or 4 bits; for more, widen them once
  StoredAs k_type, v_type;
  int k_dim, v_dim;
  int n_queries;                   // at most max_queries
  const float* q;                  // [n_queries, k_dim], already scaled
  const Sight* sight;              // [n_queries]
  float softcap;                   // 0: none
  int32_t first, end;              // keys [first, end); first is a multiple of 16
  const void* const* k_tile;       // per 16 keys from `first` on: [k_dim][16]
  const void* const* v_tile;       // [16][v_dim]; a v_dim that is not a multiple of 16 has to be widened: f32 [16][v_stride]
  const float *k_scale, *v_scale;  // of every key from `first` on, may be null: of its score, of its value's weight
  bool k_fetched;                  // the keys were prefetched, as next_k_tile of the previous call
  const void* const* next_k_tile;  // n_next tiles of keys to prefetch
  int n_next;
  float* scores;     // scratch [n_queries, kSpan]
  float* max;        // out [n_queries]
  float* sum;        // out [n_queries]: of exp(score - max)
  float* acc;        // out [n_queries, v_stride]: exp(score - max) . V
  int64_t v_stride;  // multiple of 16, at least v_dim
};

// A convolution or a scan of one sequence, over some channels. Rows are consecutive.
struct RecurrentRows {
  int rows;
  const int32_t* parent;  // of each row, relative to the first; negative: `source`. Null: the previous row
  const void* source;     // the state before the first row
  void* const* store;     // [rows] slot that receives a row's state, or null
  void* scratch;          // null parent: one state; else rows + 1 states
};

struct ConvCall {
  RecurrentRows rows;
  int width, act;
  int64_t channels;                // row stride of the state
  int64_t first, n;                // channels [first, first + n)
  const float *x, *weight, *bias;  // x [rows, channels], weight [channels, width], bias [channels] or null
  float* out;
  int64_t x_stride, out_stride;
};

struct ScanCall {
  RecurrentRows rows;
  StoredAs type;  // of the state: kF32, kF16, kBf16
  int n_state;
  int64_t first, n;                     // channels [first, first + n)
  const float *x, *dt, *b, *c, *a, *d;  // d may be null
  float* out;
  int64_t x_stride, dt_stride, b_stride, c_stride, out_stride;
};

struct OuterScanCall {
  RecurrentRows rows;
  StoredAs type;  // of the state: kF32, kF16, kBf16
  int n_state, head_dim, heads_a_group;
  int64_t first, n;                     // heads [first, first + n)
  const float *x, *dt, *b, *c, *a, *d;  // d may be null
  float dt_min, dt_max;
  float* out;
  int64_t x_stride, dt_stride, b_stride, c_stride, out_stride;
};

struct OpKernels {
  int max_queries;
  void (*norm)(float* out, const float* x, const NormRow&);
  void (*add)(float* into, const float* x, float scale, int64_t n);
  // n values: out = (add: +=) the sum over k rows of x, `stride` apart, times their weights
  void (*combine)(float* out, const float* x, int64_t stride, const float* weight, int64_t k, int64_t n, bool add);
  float (*mean_square)(const float* x, int64_t n, bool centered);
  void (*gate)(float* out, const float* gate, const float* up, int64_t n, int act);
  void (*activate)(float* x, int64_t n, int act);
  void (*softplus)(float* x, const float* bias, int64_t n);
  void (*softcap)(float* x, float cap, int64_t n);
  void (*exp)(float* x, int64_t n);
  void (*tanh)(float* x, int64_t n);  // for tests
  // Rotates one head of `2 * half` values; cosine and sine have `half` each.
  void (*rope)(float* x, const float* cosine, const float* sine, int64_t half, bool interleaved);
  // Rounds n values to the stored type, divided by the scale if it is of 8 or 4 bits; `stride` elements, of kI4 bytes, apart.
  void (*store)(void* to, const float* x, int64_t n, int64_t stride, StoredAs type, float scale);
  // A tile of 16 keys as f32 [k_dim][16], and of `keys` values as [keys][v_dim rounded up to 16], padded with 0.
  void (*widen_keys)(float* to, const void* tile, int k_dim, StoredAs type);
  void (*widen_values)(float* to, const void* tile, int keys, int v_dim, StoredAs type);
  void (*attend_span)(const SpanCall&);
  // Merges the partial softmax of a later span into an earlier one: n values of acc.
  void (*merge)(float* max, float* sum, float* acc, float later_max, float later_sum, const float* later, int64_t n);
  // out = acc / sum; has_sink: a logit `sink` takes part in the softmax's denominator.
  void (*finish)(float* out, float max, float sum, const float* acc, int64_t n, bool has_sink, float sink);
  void (*conv)(const ConvCall&);
  void (*scan)(const ScanCall&);
  void (*outer_scan)(const OuterScanCall&);
  float (*max_of)(const float* x, int64_t n);
  float (*sum_exp)(const float* x, int64_t n, float max, float factor);
};

const OpKernels& op_kernels_scalar();
const OpKernels& op_kernels_avx2();
const OpKernels& op_kernels_avx512();  // vnni uses it too

}  // namespace mr
