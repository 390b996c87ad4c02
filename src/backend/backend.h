// The operations that models are made of. Every backend (ref, cpu, cuda) implements them; tests run each against ref over
// odd shapes. Shapes: T rows of the batch, D model width, H query heads, K key/value heads, d head size. Activations are f32, or
// what the backend says; a view may be strided in all but its last dimension (a column slice of a fused projection).
// Law 4: the value of a row depends on that row and its own sequence alone.
#pragma once

#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/batch.h"
#include "core/isa.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "quant/format.h"
#include "state/state_spec.h"

namespace mr {

enum class Activation : uint8_t { none, silu, gelu, gelu_tanh, relu, relu2 };

struct Norm {
  enum class Kind : uint8_t { rms, layer } kind = Kind::rms;
  float eps = 1e-5f;
  Tensor weight, bias;  // f32 [D]; empty: ones, zeros
  float offset = 0;     // weight is (offset + w): Gemma's 1
};

// What linear does to a sum before it is written: out = residual + scale * (sum + bias).
struct Epilogue {
  Tensor bias;      // f32 [out], may be empty
  Tensor residual;  // f32 [T, out], may be empty and may be `out` itself
  float scale = 1;
  const Norm* next = nullptr;  // a promise: the next who reads `out` is a ..._normed() operation or linear_conv() with this very norm
};

// Rotary frequencies. inv_freq has rot/2 entries; length-dependent scalings choose by the sequence's length, see angles().
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

// Attention's keys and values in pages. Layout of one layer's block in a page, chosen so that no product needs a horizontal
// sum: K [kv_head][page_tokens / 16][k_dim][16 tokens], then V [kv_head][page_tokens][v_dim]. page_tokens is a multiple of 16.
struct PagedKv {
  StateRef ref;
  DType dtype = DType::f16;
  int kv_heads = 0, k_dim = 0, v_dim = 0;
  int64_t bytes_per_token() const { return int64_t(kv_heads) * (k_dim + v_dim) * size_of(dtype); }
};

struct AttendArgs {
  int heads = 0;      // query heads; head h reads K/V head h / (heads / kv_heads)
  float scale = 1;    // of q . k
  int window = 0;     // sees the last `window` tokens, itself included; 0: all
  float softcap = 0;  // s -> softcap * tanh(s / softcap); 0: none
  Tensor sinks;       // f32 [heads] may be empty: a logit that takes weight and gives no value
};

// A recurrent layer's state: f32, `size` values at ref in each slot.
struct SlotState {
  StateRef ref;
  int64_t offset = 0;  // bytes after the layer's block begins
};

// A depthwise causal convolution over a sequence's rows; a slot holds the last width - 1 inputs as [width - 1, C], oldest first.
struct ShortConv {
  Tensor weight;  // f32 [C, width]
  Tensor bias;    // f32 [C], may be empty
  Activation act = Activation::none;
  SlotState state;
};

// Mamba's selective scan (Gu & Dao 2023), one token after the other. A slot holds h [inner, n_state].
struct DiagScan {
  int inner = 0, n_state = 0;
  Tensor a;  // f32 [inner, n_state], negative
  Tensor d;  // f32 [inner], may be empty
  SlotState state;
};

// How Mamba chooses step, input and output: dt_rank columns, B and C = x . u, each normed where `norms`; dt = low . those.
struct Selection {
  const Weight *x = nullptr, *low = nullptr;  // [dt_rank + 2 n_state, inner], [inner, dt_rank]
  bool norms = false;
  Norm dt_norm, b_norm, c_norm;
  Tensor dt_bias;  // f32 [inner]
};

// Mamba-2's scan (Dao & Gu 2024), one token after the other. A slot holds h [heads, n_state, head_dim].
struct OuterScan {
  int heads = 0, head_dim = 0, n_state = 0;
  int groups = 1;                                                     // head h reads B and C of group h / (heads / groups)
  Tensor a;                                                           // f32 [heads], negative
  Tensor d;                                                           // f32 [heads], may be empty
  float dt_min = 0, dt_max = std::numeric_limits<float>::infinity();  // dt is held between them
  SlotState state;
};

struct TopToken {
  int32_t token;
  float logprob;
};

// What sampling gives for one output row.
struct Sampled {
  int32_t token = -1;
  float logprob = 0;          // of `token` under the unchanged logits (temperature 1, no penalties)
  std::vector<TopToken> top;  // n_logprobs of them, descending; ties to the lower id
};

class Arena;

// Memory for weights, state and activations. own: nobody else needs it, so that the state may have nearly all that is left.
struct DeviceMemory {
  int64_t bytes = 0;
  bool own = false;
};

// What a device can do in a second.
struct DeviceRates {
  double bytes = 0, flops = 0;  // copied, read and written both counted; of a bf16 product
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual ThreadPool& pool() = 0;

  // Where things lie and when they are done. The defaults mean: in the host's memory, and at once. Tensors, weights and batches
  // that operations take come from allocate(), place() and upload().
  virtual DType activations() const { return DType::f32; }  // what flows between operations; residual, angles and logits are f32
  virtual DType kv_dtype() const { return DType::f16; }     // unless told otherwise
  virtual DeviceMemory memory() const;
  virtual std::optional<DeviceRates> rates() { return std::nullopt; }  // measured now, in some milliseconds; none: backend/cpu/probe.h
  virtual Buffer allocate(size_t bytes) { return Buffer(bytes); }      // zeroed
  virtual void copy_in(void* to, const void* host, size_t bytes);
  virtual void copy_out(void* host, const void* from, size_t bytes);
  virtual void carry_out(std::span<const UnitCopy>, const StateMemory&, const StateMemory& host);
  // A weight whose stored rows lie at `rows`, in the layout that linear() reads; a store that only counts gets no data.
  virtual Weight place(const FormatOps&, std::span<const std::byte* const> rows, int64_t in, WeightStore&);
  // Made-up bf16 values that give outputs of unit variance; the same on every backend.
  virtual Weight make_up(int64_t out, int64_t in, uint64_t seed, WeightStore&);
  // The batch as operations read it, until the next upload. `host` must live until the step's tokens are collected.
  virtual Batch upload(const Batch& host, const StateMemory&) { return host; }
  // Steps of one row a sequence are filled up to this many sequences, so that few shapes are to be replayed.
  virtual int padded(int n_seqs) const { return n_seqs; }
  // Runs `step`, whose operations depend on `key` and on what upload() wrote alone, or plays the same operations once more.
  virtual Tensor replay(uint64_t key, FunctionRef<Tensor()> step);
  // True: operations are queued, and the host may go on to the next step before this one is done.
  virtual bool queues() const { return false; }
  virtual void synchronize() {}

  // out [T, D] = scale * table[token of each row]
  virtual void embed(Tensor out, const Weight& table, float scale, const Batch&) = 0;
  // out [..., D] = norm(x) * weight + bias, over the last dimension; out may be x. x may have rank 3 (per-head norms)
  virtual void norm(Tensor out, Tensor x, const Norm&) = 0;
  // out [T, out] = epilogue(x [T, in] . weight^T)
  virtual void linear(Tensor out, Tensor x, const Weight&, const Epilogue&) = 0;
  // into += scale * x, both [T, D]
  virtual void add(Tensor into, Tensor x, float scale) = 0;
  // out [T, F] = act(gate) * up; gate and up may be column slices of one tensor
  virtual void gate(Tensor out, Tensor gate, Tensor up, Activation) = 0;
  // x [T, F] = act(x), in place
  virtual void activate(Tensor x, Activation) = 0;

  // out [T, dim] = cos of each pair, then sin, of every row's position
  virtual void angles(Tensor out, const RopeTable&, const Batch&) = 0;
  // x [T, heads, d] rotated in place by angles [T, dim]
  virtual void rope(Tensor x, Tensor angles, bool interleaved) = 0;
  // k [T, K, k_dim], v [T, K, v_dim] rounded to the stored type: row i of a sequence is its token context + i
  virtual void store_kv(const PagedKv&, Tensor k, Tensor v, const Batch&, const StateMemory&) = 0;
  // out [T, H, v_dim] = softmax(q [T, H, k_dim] . K) V over the context and the step's own rows, which are stored already
  virtual void attend(Tensor out, Tensor q, const PagedKv&, const Batch&, const StateMemory&, const AttendArgs&) = 0;

  // out [T, C] = act(bias + depthwise causal convolution of x [T, C])
  virtual void short_conv(Tensor out, Tensor x, Tensor weight, Tensor bias, Activation, const SlotState&, const Batch&,
                          const StateMemory&) = 0;
  // h = exp(dt a) h + dt B x;  out [T, inner] = (C . h + d x). x, dt [T, inner] (dt after softplus), B, C [T, n_state]
  virtual void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan&, const Batch&, const StateMemory&) = 0;
  // For each head: h = exp(dt a) h + (dt x) outer B;  out = (C . h + d x). out, x [T, heads * head_dim], dt [T, heads] after
  // softplus, B, C [T, groups * n_state]
  virtual void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan&, const Batch&, const StateMemory&) = 0;
  // x [T, C] = log(1 + exp(x + bias)), in place
  virtual void softplus(Tensor x, Tensor bias) = 0;

  // The k best experts of every row of logits [T, E], best first, ties to the lower id: expert i32 [T, k], weight f32 [T, k]
  // their softmax over all E, or over the k (renormalize). The logits are used up
  virtual void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) = 0;
  // Row t * k + j of out [T * k, out] = x . experts[expert [t, j]]^T, with row t of x [T, in] or row t * k + j of x [T * k, in]
  virtual void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) = 0;
  // out [T, D] = the sum over j, ascending, of weight [t, j] times row t * k + j of x [T * k, D]
  virtual void combine(Tensor out, Tensor x, Tensor weight) = 0;

  // out [n_out, D] = rows out_row of x [T, D]
  virtual void gather(Tensor out, Tensor x, const Batch&) = 0;
  // x = softcap * tanh(x / softcap), in place
  virtual void softcap(Tensor x, float softcap) = 0;
  // out[i] for every output row with Out::token; logits [n_out, V] are changed by edits and masks
  virtual void sample(Tensor logits, const Batch&, std::vector<Sampled>& out) = 0;

  // Two operations in one, where that saves a trip to memory; made of the plain ones unless a backend knows better.
  // out [T, F] = act(first half) * second half of x . weight [2 F, in]^T; the arena has room for [T, 2 F]
  virtual void linear_gate(Tensor out, Tensor x, const Weight&, Activation, Arena&);
  // linear() and linear_gate() of norm(x), x f32 [T, in]; the arena has room for [T, in] too
  virtual void linear_normed(Tensor out, Tensor x, const Norm&, const Weight&, const Epilogue&, Arena&);
  virtual void linear_gate_normed(Tensor out, Tensor x, const Norm&, const Weight&, Activation, Arena&);
  // Rotates q and k by `angles` (may be empty), stores k and v [T, K, d] (empty: they are stored already), then attends. q and k
  // may be changed
  virtual void attend_new(Tensor out, Tensor q, Tensor k, Tensor v, Tensor angles, bool interleaved, const PagedKv&, const Batch&,
                          const StateMemory&, const AttendArgs&);
  // A hint: linear() with this weight will be the next to read what the next linear_gate*() or attend*() makes, before anyone changes it.
  virtual void announce(const Weight&) {}
  // diag_scan() and outer_scan() with dt = log(1 + exp(dt + dt_bias)) before, and out = silu(gate) * out behind. dt may be changed
  virtual void diag_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor dt_bias, Tensor b, Tensor c, Tensor gate, const DiagScan&,
                               const Batch&, const StateMemory&);
  // next: as in Epilogue, of linear_normed() alone
  virtual void outer_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor dt_bias, Tensor b, Tensor c, Tensor gate, const OuterScan&,
                                const Batch&, const StateMemory&, const Norm* next = nullptr);
  // linear_normed() to out [T, all], then short_conv() of C of its columns, from `first` on, to conv_out [T, C]; what these columns of
  // `out` hold is not said
  virtual void linear_conv(Tensor out, Tensor x, const Norm&, const Weight&, const Epilogue&, Tensor conv_out, int64_t first,
                           const ShortConv&, const Batch&, const StateMemory&, Arena&);
  // diag_scan_gated() of u with the dt, B and C that the selection makes of it; the arena has room for these
  virtual void selective_scan(Tensor out, Tensor u, Tensor gate, const Selection&, const DiagScan&, const Batch&, const StateMemory&,
                              Arena&);
  // normed [T, D] = norm(x), then route() by its product with the router [E, D]; the arena has room for the logits
  virtual void route_normed(Tensor expert, Tensor weight, Tensor normed, Tensor x, const Norm&, const Weight& router, bool renormalize,
                            Arena&);
  // out [T * k, F] = act(gate's grouped_linear()) * up's; the arena has room for one more of `out`
  virtual void grouped_gate(Tensor out, Tensor x, std::span<const Weight> gate, std::span<const Weight> up, Tensor expert, Activation,
                            Arena&);
  // into [T, D] f32 += combine() of grouped_linear() of x [T * k, in]; next: as in Epilogue; the arena has room for [T * k + T, D]
  virtual void grouped_combine(Tensor into, Tensor x, std::span<const Weight> experts, Tensor expert, Tensor weight, const Norm* next,
                               Arena&);
  // sample() in two halves: the next step's embed() may read the tokens after the first, the host has them after the second.
  // Launched steps are collected in order.
  virtual void launch_sample(Tensor logits, const Batch&);
  virtual void collect(std::vector<Sampled>& out);

 private:
  std::deque<std::vector<Sampled>> launched_;
};

std::unique_ptr<Backend> make_ref_backend();  // scalar f32, obviously right
std::unique_ptr<Backend> make_cpu_backend(Isa isa, int n_threads);

}  // namespace mr
