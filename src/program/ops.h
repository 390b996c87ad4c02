// The operations of a model as data: the elements of a recorded program, which every backend can run. Shapes: T tokens of a
// step, D model width, H query heads, K key/value heads, d head size. A value's rows are symbolic; a program is recorded once and
// bound to tensors for every step.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/tensor.h"
#include "quant/kv_format.h"
#include "quant/weight.h"
#include "state/state_spec.h"

namespace mr {

enum class Activation : uint8_t { none, silu, gelu, gelu_tanh, relu, relu2 };

struct Norm {
  enum class Kind : uint8_t { rms, layer, none } kind = Kind::rms;  // none: weight and bias alone
  float eps = 1e-5f;
  Tensor weight, bias;  // f32 [D]; empty: ones, zeros
  float offset = 0;     // weight is (offset + w): Gemma's 1
};

// A number of every row: the root of its mean square.
struct Magnitude {
  bool centered = false;  // of what is left when the mean is taken away: the standard deviation
  float floor = 0;        // the mean square counts as at least this
  bool inverse = false;   // one over it
};

// What linear does to a sum before it is written: out = residual + scale * (sum + bias).
struct Epilogue {
  Tensor bias;      // f32 [out], may be empty
  Tensor residual;  // f32 [T, out], may be empty and may be `out` itself
  float scale = 1;
};

// Rotary frequencies; length-dependent scalings choose by the sequence's length, see fill_angles().
struct RopeTable {
  enum class Length : uint8_t { fixed, dynamic, longrope } length = Length::fixed;
  int dim = 0;                       // rotated dimensions of a head (the first ones)
  bool interleaved = false;          // pairs (2i, 2i+1) instead of (i, i + dim/2)
  float scale = 1;                   // cos and sin are multiplied by it (yarn, longrope)
  std::vector<float> inv_freq;       // [dim / 2]
  std::vector<float> long_inv_freq;  // longrope beyond `original` tokens
  int original = 0;                  // dynamic, longrope: the trained length
  float theta = 0, factor = 1;       // dynamic recomputes inv_freq from them
};

// A layer's paged KV cache. Layout of its block in a page on host backends, chosen so that no product needs a horizontal sum:
// K [kv_head][page_tokens / 16][k_dim][16 tokens], then V [kv_head][page_tokens / 16][16 tokens][v_dim]; in a format that is scaled,
// the scales of 16 tokens follow their codes. page_tokens is a multiple of 16.
struct PagedKv {
  StateRef ref;
  DType dtype = DType::f16;  // of kv_formats()
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  float k_scale = 1, v_scale = 1;  // of codes that have none of their own
  const KvFormat& format() const { return kv_format(dtype); }
  int64_t bytes_per_token() const { return format().bytes(kv_heads, k_dim, 1) + format().bytes(kv_heads, v_dim, 1); }
};

struct AttendArgs {
  int heads = 0;      // query heads; head h reads K/V head h / (heads / kv_heads)
  float scale = 1;    // of q . k
  int window = 0;     // sees the last `window` tokens, itself included; 0: all
  float softcap = 0;  // s -> softcap * tanh(s / softcap); 0: none
  Tensor sinks;       // f32 [heads], may be empty: a logit per head that takes weight without a value
};

// A recurrent layer's state in each slot.
struct SlotState {
  StateRef ref;
  int64_t offset = 0;        // bytes from the beginning of the layer's block
  DType dtype = DType::f32;  // of a scan: f32, f16 or bf16, rounded after every token. The inputs of a convolution are always f32
};

// A depthwise causal convolution over a sequence's rows; a slot holds the last width - 1 inputs as [width - 1, C], oldest first.
struct ShortConv {
  Tensor weight;  // f32 [C, width]
  Tensor bias;    // f32 [C], may be empty
  Activation act = Activation::none;
  SlotState state;
};

// Mamba's selective scan (Gu & Dao 2023). A slot holds h [inner, n_state].
struct DiagScan {
  int inner = 0, n_state = 0;
  Tensor a;  // f32 [inner, n_state], negative
  Tensor d;  // f32 [inner], may be empty
  SlotState state;
};

// Mamba-2's scan (Dao & Gu 2024). A slot holds h [heads, n_state, head_dim].
struct OuterScan {
  int heads = 0, head_dim = 0, n_state = 0;
  int groups = 1;                                                     // head h reads B and C of group h / (heads / groups)
  Tensor a;                                                           // f32 [heads], negative
  Tensor d;                                                           // f32 [heads], may be empty
  float dt_min = 0, dt_max = std::numeric_limits<float>::infinity();  // dt is clamped to them
  SlotState state;
};

// Symbolic row count of a value: `times` per token of the step, or per output.
struct Rows {
  enum class Base : uint8_t { tokens, outputs } base = Base::tokens;
  int times = 1;  // experts: one row per choice
  bool operator==(const Rows&) const = default;
};

enum class ValueType : uint8_t { activation, f32, i32 };  // activation: Program::activation

struct ValueInfo {
  Rows rows;
  int64_t cols = 0;
  ValueType type = ValueType::activation;
};

// Columns [first, first + cols) of a value; with heads, viewed as [rows, heads, cols / heads].
struct Value {
  int id = -1;  // -1: none
  int64_t first = 0, cols = 0;
  int heads = 0;  // 0: a matrix

  explicit operator bool() const { return id >= 0; }
  Value columns(int64_t begin, int64_t n) const { return {id, first + begin, n}; }
  Value as_heads(int n) const { return {id, first, cols, n}; }
  Value as_matrix() const { return {id, first, cols}; }
  bool operator==(const Value&) const = default;
};

// The function of the same name in backend/backend.h documents each operation. Pointers refer to objects owned by the model.
struct EmbedOp {
  Value out;
  const Weight* table;
  float scale;
};
struct NormOp {
  Value out, x;
  const Norm* norm;
};
struct LinearOp {
  Value out, x;
  const Weight* weight;
  Tensor bias;  // f32 [out], may be empty
  float scale = 1;
  Value residual{};  // may be none, and may be `out`
};
struct AddOp {
  Value into, x;
  float scale = 1;
};
struct GateOp {
  Value out, gate, up;
  Activation act;
};
struct ActivateOp {
  Value x;
  Activation act;
};
struct AnglesOp {
  Value out;
  const RopeTable* rope;
};
struct RopeOp {
  Value x, angles;
  bool interleaved;
};
struct StoreKvOp {
  Value k, v;
  const PagedKv* kv;
};
struct AttendOp {
  Value out, q;
  const PagedKv* kv;
  AttendArgs args;
};
struct ShortConvOp {
  Value out, x;
  const ShortConv* conv;
};
struct DiagScanOp {
  Value out, x, dt, b, c;
  const DiagScan* scan;
};
struct OuterScanOp {
  Value out, x, dt, b, c;
  const OuterScan* scan;
};
struct SoftplusOp {
  Value x;
  Tensor bias;
};
struct RouteOp {
  Value expert, weight, logits;
  bool renormalize;
};
struct GroupedLinearOp {
  Value out, x;
  std::span<const Weight> experts;
  Value expert;
};
struct CombineOp {
  Value out, x, weight;
  bool add = false;
};
struct MagnitudeOp {
  Value out, x;
  Magnitude what;
};
struct GatherOp {
  Value out, x;
};
struct SoftcapOp {
  Value x;
  float cap;
};

using OpKind = std::variant<EmbedOp, NormOp, LinearOp, AddOp, GateOp, ActivateOp, AnglesOp, RopeOp, StoreKvOp, AttendOp, ShortConvOp,
                            DiagScanOp, OuterScanOp, SoftplusOp, RouteOp, GroupedLinearOp, CombineOp, MagnitudeOp, GatherOp, SoftcapOp>;

struct Op {
  OpKind kind;
  int layer = -1;                        // -1: before or after all layers
  std::string name{};                    // of its weight: "q+k+v"
  Rows::Base rows = Rows::Base::tokens;  // of its result

  template <class T>
  const T* get() const {
    return std::get_if<T>(&kind);
  }
};

// read: the old value is used. write: it is overwritten. update: both.
enum class Access : uint8_t { read, write, update };

struct Touched {
  Value* value;
  Access access;
};

// The values that an operation touches, reads first. Absent ones are left out.
std::vector<Touched> touched(Op&);
std::vector<std::pair<Value, Access>> touched(const Op&);

std::string_view name_of(const OpKind&);  // "linear"
bool reads_rows(const OpKind&);           // depends on a row's sequence and position: state, attention, positions, tokens

}  // namespace mr
