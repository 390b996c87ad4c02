// What a step must compute and move, operation by operation, from a model's specification alone. Symbols: B sequences, T new
// tokens of each, S context, D model width, F feed-forward, H head size, N query heads, K key/value heads, G = N / K, V vocabulary.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "analyze/numbers.h"
#include "model/spec.h"
#include "program/cost.h"

namespace mr {

// Bytes of one number, by where it lies.
struct Storage {
  double block = 2, table = 2;  // weights of the layers; of embedding tables and output layer
  double kv = 2;                // keys, values, latents; recurrent state is always f32
  double activation = 2;        // 0: activations stay in caches, and only weights and state count
  bool renamed = false;         // weights are to have another format than their file's
  NumberFormat::Product block_product = NumberFormat::Product::bf16, table_product = NumberFormat::Product::bf16;
  std::string block_name = "bf16", table_name = "bf16", kv_name = "bf16";
};

struct Operation {
  std::string name;
  std::string law;           // the simple law of its intensity, in symbols; empty: none
  double law_intensity = 0;  // its value
  int layers = 0;            // how often it happens in a step
  double flops = 0;
  double weights = 0, state = 0, read = 0;  // bytes read; `read` are activations
  double written = 0;                       // bytes, state included
  double link = 0;                          // bytes that every chip sends to others
  bool product = false;                     // a product with weights, whose speed depends on their format
  NumberFormat::Product format = NumberFormat::Product::bf16;
  bool split = true;   // over chips that share a layer
  int state_ways = 0;  // the state can be split over at most so many chips; 0: over any number

  double bytes() const { return weights + state + read + written; }
  double intensity() const { return bytes() > 0 ? flops / bytes() : 0; }
};

// Closed forms, of one step in which all sequences of `parts` take part: weights are read once, whoever uses them. Laws are those of
// the first. All rows pass through every layer; what a model that runs spares in its last one is counted in program_costs.h.
std::vector<Operation> operations(const ModelSpec&, const Storage&, std::span<const Phase> parts, int chips = 1);
inline std::vector<Operation> operations(const ModelSpec& m, const Storage& s, const Phase& phase, int chips = 1) {
  return operations(m, s, std::span(&phase, 1), chips);
}

// The simple laws of intensity. bytes: of a weight, a key; they are stated for numbers of 2, smaller ones raise the intensity.
void set_law(Operation&, std::string_view symbols, double value, double bytes);
void set_attention_law(Operation&, const Phase&, double group, int window, double bytes);  // group: query heads that share a key's
void set_experts_law(Operation&, double rows, double experts, double used, double bytes);
void set_scan_law(Operation&, const Phase&, double flops);  // a value of the state and token

std::string attention_name(int window);
double ring_bytes(int chips, double bytes);      // that each of them sends to add up so many
void check_parts(std::span<const Phase> parts);  // of a step

// FlashAttention (Dao et al. 2022) on one head over a causal prompt of S tokens, with M words of fast memory. Tiles of M / 4H
// tokens of queries, keys, values and results lie there; a tile of queries passes all keys and values before it, once
// (the order of Dao 2023). Beside it the laws, which count every pair and leave out constants.
struct FlashCost {
  double context = 0, head_dim = 0, fast_words = 0;
  double tile = 0;                                           // tokens
  double flops = 0;                                          // of the pairs that a causal prompt has
  double words = 0;                                          // read and written, of slow memory
  double extra_words = 0;                                    // kept beside the result: a maximum and a sum for each row
  double law_flops = 0, law_words = 0, law_extra_words = 0;  // 4 S^2 H, S^2 H^2 / M, S
};
FlashCost flash_attention(double context, double head_dim, double fast_words);

double parameter_bytes(const ModelSpec&, const Storage&);  // of all matrices; the norms are left out, as in the napkin law
double state_bytes(const ModelSpec&, const Storage&, double context, int chips = 1);  // of one sequence, on one chip
// Had every layer its own keys and values for each query head, recurrent ones as many as attention layers have on average; 0: the
// model has no attention to compare with.
double mha_state_bytes(const ModelSpec&, const Storage&, double context);

bool keeps_keys(const ModelSpec&);  // or latents of them: the format of keys and values matters

// The state of layers of one kind.
struct StateKind {
  std::string name;  // "GQA 32:8", "MLA 512 + 64", "window 1024, MQA", "Mamba", "shares layer 3"
  int layers = 0;
  int64_t bytes_per_token = 0, bytes_per_sequence = 0;  // of all these layers; as the engine allocates them
  int window = 0;
};
std::vector<StateKind> state_kinds(const ModelSpec&, const Storage&);

}  // namespace mr
