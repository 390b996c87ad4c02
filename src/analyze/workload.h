// Flops and bytes of a step, operation by operation, from a model's specification alone. Symbols: B sequences, T new
// tokens of each, S context, D model width, F feed-forward, H head size, N query heads, K key/value heads, G = N / K, V vocabulary.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analyze/numbers.h"
#include "model/spec.h"
#include "program/cost.h"

namespace mr {

// Bytes of one number, by its role.
struct Storage {
  double block = 2, table = 2;                  // weights of the layers; of embedding tables and output layer
  double kv = 2;                                // keys, values, latents; without scales that the engine keeps beside them
  std::optional<DType> kv_dtype = DType::bf16;  // none: a format that the engine does not have
  DType scan = DType::f32;                      // what scans carry
  double activation = 2;                        // 0: activations stay in caches; only weights and state count
  bool renamed = false;                         // another format than the file's was given
  NumberFormat::Product block_product = NumberFormat::Product::bf16, table_product = NumberFormat::Product::bf16;
  std::string block_name = "bf16", table_name = "bf16", kv_name = "bf16";
};

struct Operation {
  std::string name;
  std::string law;           // the simple law of its intensity, in symbols; empty: none
  double law_intensity = 0;  // its value
  int layers = 0;            // occurrences in a step
  double flops = 0;
  double weights = 0, state = 0, read = 0;  // bytes read; `read` are activations
  double written = 0;                       // bytes, state included
  double link = 0;                          // bytes sent by every chip
  bool product = false;                     // with weights; its rate depends on their format
  NumberFormat::Product format = NumberFormat::Product::bf16;
  bool split = true;   // over chips that share a layer
  int state_ways = 0;  // the state can be split over at most this many chips; 0: any number

  double bytes() const { return weights + state + read + written; }
  double intensity() const { return bytes() > 0 ? flops / bytes() : 0; }
};

// Closed forms of one step with all sequences of `parts`: weights are read once for all. Laws are those of the first. All rows pass
// through every layer; program_costs.h counts the rows that a recorded program skips in the last one.
std::vector<Operation> operations(const ModelSpec&, const Storage&, std::span<const Phase> parts, int chips = 1);
inline std::vector<Operation> operations(const ModelSpec& m, const Storage& s, const Phase& phase, int chips = 1) {
  return operations(m, s, std::span(&phase, 1), chips);
}

// The simple laws of intensity, stated for numbers of 2 bytes. bytes: of a weight or key; fewer raise the intensity.
void set_law(Operation&, std::string_view symbols, double value, double bytes);
void set_attention_law(Operation&, const Phase&, double group, int window, double bytes);  // group: query heads per key/value head
void set_experts_law(Operation&, double rows, double experts, double used, double bytes);
void set_scan_law(Operation&, const Phase&, double flops, DType state);  // flops per value of the state and token

std::string attention_name(int window);
double ring_bytes(int chips, double bytes);  // sent by each chip in a ring all-reduce of `bytes`
void check_parts(std::span<const Phase> parts);

// FlashAttention (Dao et al. 2022) on one head over a causal prompt of S tokens, with M words of fast memory. Tiles of M / 4H
// tokens of queries, keys, values and results fit there; each tile of queries reads all earlier keys and values once (the order of
// Dao 2023). law_*: the asymptotic laws, which count every pair and drop constants.
struct FlashCost {
  double context = 0, head_dim = 0, fast_words = 0;
  double tile = 0;                                           // tokens
  double flops = 0;                                          // of the causal pairs
  double words = 0;                                          // read from and written to slow memory
  double extra_words = 0;                                    // besides the result: a maximum and a sum for each row
  double law_flops = 0, law_words = 0, law_extra_words = 0;  // 4 S^2 H, S^2 H^2 / M, S
};
FlashCost flash_attention(double context, double head_dim, double fast_words);

double parameter_bytes(const ModelSpec&, const Storage&);  // of all matrices, without the norms, as in the napkin law
double state_bytes(const ModelSpec&, const Storage&, double context, int chips = 1);  // of one sequence, on one chip
// If every layer had its own keys and values for each query head, recurrent layers as many as attention layers on average; 0: the
// model has no attention.
double mha_state_bytes(const ModelSpec&, const Storage&, double context);

// Bytes of a token's keys and values in a layer, the engine's scales included.
double kv_bytes(const Storage&, const PagedKv&);

bool keeps_keys(const ModelSpec&);  // or latents: the format of keys and values matters

// The state of layers of one kind.
struct StateKind {
  std::string name;  // "GQA 32:8", "MLA 512 + 64", "window 1024, MQA", "Mamba", "shares layer 3"
  int layers = 0;
  int64_t bytes_per_token = 0, bytes_per_sequence = 0;  // of all these layers; as the engine allocates them
  int window = 0;
};
std::vector<StateKind> state_kinds(const ModelSpec&, const Storage&);

}  // namespace mr
