// A model as data: the contents of config.json or GGUF metadata in one form for every family. arch/ writes it, Model builds
// from it, analyses read it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "backend/model_facts.h"

namespace mr {

struct RopeSpec {
  enum class Scaling : uint8_t { none, linear, dynamic, llama3, yarn, longrope, factors, proportional } scaling = Scaling::none;
  int dim = 0;               // rotated dimensions of a head
  int pairs = 0;             // proportional: the pairs after these are not rotated
  bool interleaved = false;  // pairs (2i, 2i+1)
  float theta = 10000;
  float factor = 1;
  int original = 0;                                 // context length before scaling
  float low_freq_factor = 1, high_freq_factor = 4;  // llama3
  float beta_fast = 32, beta_slow = 1;              // yarn
  bool truncate = true;                             // yarn: whole correction dimensions
  float attention_factor = 0;                       // yarn, longrope; 0: derived
  float mscale = 0, mscale_all_dim = 0;             // yarn as in DeepSeek
  std::vector<float> short_factor, long_factor;     // [dim / 2]: longrope chooses by length, factors uses short_factor always

  bool operator==(const RopeSpec&) const = default;
};

struct NormSpec {
  Norm::Kind kind = Norm::Kind::rms;
  float eps = 1e-5f;
  float offset = 0;  // weight is (offset + w)
  bool operator==(const NormSpec&) const = default;
};

// How tensor parallelism splits a layer: into whole units, and its state at most state_ways ways (0: as the units).
struct Division {
  const char* what = "";
  int units = 1, state_ways = 0;
};

struct ModelSpec;

// In what state is kept: keys and values (of kv_formats()), and what scans carry from token to token (f32, f16 or bf16). The last inputs
// of a convolution stay f32: they are few beside either, and are read again as they came.
struct StateTypes {
  DType kv = DType::f16, scan = DType::f32;
};

// A mixer's spec answers for itself whatever is asked before, or without, building it; each answers in the mixer's own file:
//   parameters(dim)     how many
//   state(types)        what the layer keeps; 0 bytes: nothing of its own
//   text(model)         a phrase for `inspect`
//   kind()              a name for its state
//   division()          how tensor parallelism would split it
struct AttentionSpec {
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0;  // of q . k
  int window = 0;   // 0: all
  int rope = -1;    // index into ModelSpec::ropes; -1: no positions
  bool qkv_bias = false, out_bias = false;
  bool qk_norm = false;  // RMS norm over each head of q and k
  bool v_norm = false;   // and, without weights, of v
  int kv_owner = -1;     // the layer whose keys and values it reads; -1: it has its own
  float softcap = 0;
  int64_t parameters(int64_t dim) const;
  StateSpec state(const StateTypes&) const;
  std::string text(const ModelSpec&) const;
  std::string kind() const;
  Division division() const { return {"query heads", heads, kv_heads}; }
  bool operator==(const AttentionSpec&) const = default;
};

// Multi-head latent attention (DeepSeek-V2 2024): keys and values of all heads are computed from one latent vector per token; only
// that is cached, with one rotated key that the heads share. Analysis only: no mixer runs it.
struct MlaSpec {
  int heads = 0;
  int q_rank = 0;                             // low rank of the query projection; 0: full rank
  int kv_rank = 0;                            // size of the latent
  int nope_dim = 0, rope_dim = 0, v_dim = 0;  // of a head: parts of q and k without and with positions, v
  int64_t parameters(int64_t dim) const;
  StateSpec state(const StateTypes&) const;
  std::string text(const ModelSpec&) const;
  std::string kind() const;
  Division division() const { return {"query heads", heads, 1}; }
  bool operator==(const MlaSpec&) const = default;
};

struct MambaSpec {
  int inner = 0, n_state = 16, conv = 4, dt_rank = 0;
  bool conv_bias = true, proj_bias = false;
  enum class Norms : uint8_t { none, plain, weighted } norms = Norms::none;  // RMS norms on dt, B and C; plain: no weights
  float norm_eps = 0;
  int64_t parameters(int64_t dim) const;
  StateSpec state(const StateTypes&) const;
  std::string text(const ModelSpec&) const;
  std::string kind() const;
  Division division() const { return {"channels", inner}; }
  int64_t conv_bytes() const;  // the first part of its slot; h [inner, n_state] follows
  bool operator==(const MambaSpec&) const = default;
};

struct Mamba2Spec {
  int heads = 0, head_dim = 0, n_state = 128, groups = 1, conv = 4;
  bool conv_bias = true, proj_bias = false;
  float dt_min = 0, dt_max = std::numeric_limits<float>::infinity();  // dt is clamped to them
  int inner() const { return heads * head_dim; }
  int conv_channels() const { return inner() + 2 * groups * n_state; }  // x, B and C
  int64_t parameters(int64_t dim) const;
  StateSpec state(const StateTypes&) const;
  std::string text(const ModelSpec&) const;
  std::string kind() const;
  Division division() const { return {"heads", heads}; }
  int64_t conv_bytes() const;  // the first part of its slot; h [heads, n_state, head_dim] follows
  bool operator==(const Mamba2Spec&) const = default;
};

// The gated short convolution of LFM2 (Liquid AI 2025).
struct GatedConvSpec {
  int dim = 0, conv = 3;
  bool bias = false;
  int64_t parameters(int64_t dim) const;
  StateSpec state(const StateTypes&) const;
  std::string text(const ModelSpec&) const;
  std::string kind() const;
  Division division() const { return {"channels", dim}; }
  bool operator==(const GatedConvSpec&) const = default;
};

// A feed-forward's spec has the same functions, without state. all_experts: counts all of them; else those that one token uses.
struct MlpSpec {
  int hidden = 0;
  Activation activation = Activation::silu;
  bool gated = true;
  bool bias = false;
  float sparsity = 0;  // the share of the gate's values that is cut off, where they are normally distributed
  int64_t parameters(int64_t dim, bool all_experts) const;
  std::string text() const;
  Division division() const { return {"feed-forward channels", hidden}; }
  bool operator==(const MlpSpec&) const = default;
};

// A mixture of experts: a router chooses `used` gated feed-forwards per token.
struct MoeSpec {
  int experts = 0, used = 0;
  int hidden = 0;  // of one expert
  Activation activation = Activation::silu;
  bool renormalize = true;  // the weights of the chosen sum to 1
  int shared = 0;           // hidden size of a feed-forward that every token uses beside them; it can be analysed, not run
  int64_t parameters(int64_t dim, bool all_experts) const;
  std::string text() const;
  Division division() const { return {"channels of an expert", hidden}; }
  bool operator==(const MoeSpec&) const = default;
};

using MixerSpec = std::variant<AttentionSpec, MlaSpec, MambaSpec, Mamba2Spec, GatedConvSpec>;
using FfnSpec = std::variant<std::monostate, MlpSpec, MoeSpec>;

template <class F>
void if_ffn(const FfnSpec& ffn, F f) {
  std::visit(
      [&](const auto& spec) {
        if constexpr (!std::is_same_v<decltype(spec), const std::monostate&>) f(spec);
      },
      ffn);
}

struct LayerSpec {
  MixerSpec mixer;
  FfnSpec ffn;
  bool post_norms = false;  // what mixer and feed-forward give is normed too, before it is added
  bool scaled = false;      // what leaves the block is multiplied by a number of its own
  int laurel = 0;           // rank of a learned residual beside the mixer, see laurel.h; 0: none
  bool operator==(const LayerSpec&) const = default;
};

// Several residual streams of which every layer computes one, see altup.h.
struct AltUpSpec {
  int streams = 0;                        // 0: one, as ever
  int active = 0;                         // the one that layers compute
  bool scaled = false;                    // a layer's own input is gated by that one times a vector
  int64_t parameters(int64_t dim) const;  // of a layer, without norms
  bool operator==(const AltUpSpec&) const = default;
};

struct ModelSpec {
  std::string arch;
  int dim = 0, vocab = 0, max_context = 0;
  NormSpec norm;  // of every layer and before the output
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
  bool tied = false;        // the output layer is the embedding table
  int per_layer = 0;        // values that a token brings for each layer, see per_layer.h; 0: none
  int per_layer_vocab = 0;  // tokens that bring values of their own; the others bring the first one's
  AltUpSpec altup;
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1;  // residual: of what mixers and feed-forwards add
  float logit_softcap = 0;
  DType scan_state = DType::f32;  // what the model was made for (mamba_ssm_cache_dtype); a backend may have f32 alone
  std::vector<int32_t> eos;

  int add_rope(const RopeSpec&);  // returns its index; equal ropes share one
  bool operator==(const ModelSpec&) const = default;
};

int64_t parameters(const ModelSpec&);
int64_t active_parameters(const ModelSpec&);  // those that one token uses: of a layer's experts only the chosen
int64_t norm_parameters(const ModelSpec&);    // of the norms around mixers and feed-forwards and before the output
int64_t table_parameters(const ModelSpec&);   // of embedding tables and the output layer

ModelFacts facts_of(const ModelSpec&, DType kv_dtype);  // for creating a backend

// The state of all layers: exactly what the mixers declare, known before anything is loaded.
StateLayout layout_of(const ModelSpec&, const StateTypes&);
int64_t conv_slot_bytes(int64_t width, int64_t channels);  // of a short convolution's last inputs, aligned
std::string text_of(const LayerSpec&, const ModelSpec&);   // "GQA attention, ...; gated feed-forward 1536"

}  // namespace mr
