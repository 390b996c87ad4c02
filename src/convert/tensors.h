// Tensors from a model's files to those of another container: which become one tensor there, under which name and shape, and what is done
// to their values. Both sides are known by roles (model/arch), so a family that is read from both is converted between them.
//   GGUF against Hugging Face: rows of q and k lie in pairs (Llama), norms have their 1 (Gemma, Nemotron), A is -exp(A_log) (Mamba),
//   experts of a layer are one tensor, convolutions have no dimension of 1.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/thread_pool.h"
#include "io/checkpoint.h"
#include "io/model_writer.h"
#include "model/arch/arch.h"
#include "model/weight_formats.h"

namespace mr {

struct Role {
  std::string_view name;
  Place at;
  std::string_view suffix;  // ".weight", ".bias" or none
};
std::optional<Role> role_of(const NameMap&, std::string_view tensor);

// What is done to every value: f(x), then (f + add) * scale.
struct ValueMap {
  enum class Function : uint8_t { same, minus_exp, log_minus } function = Function::same;
  float add = 0, scale = 1;
  float operator()(float x) const;
  bool changes() const { return function != Function::same || add != 0 || scale != 1; }
};

// A tensor to be written, of rows of one tensor or of several, one after the other.
struct TensorJob {
  TensorHead head;
  struct Piece {
    const StoredTensor* tensor;
    std::span<const std::byte> bytes;  // the whole tensor's, or a slice's
    float factor = 1;                  // of its values (NVFP4 in GGUF)
  };
  std::vector<Piece> pieces;
  std::vector<float> values;                                           // instead of pieces: of no file
  enum class Rows : uint8_t { same, pair, unpair } rows = Rows::same;  // of heads
  int head_dim = 0;
  ValueMap map;
};

// What the two sides are called and how their values are meant.
struct Side {
  NameMap names;
  ModelSpec spec;  // norm.offset: what a norm's weight lacks
  bool gguf = false;
};

// Throws for a tensor that has no place on the other side. formats: null keeps each tensor's own.
std::vector<TensorJob> plan_tensors(const Checkpoint&, const Side& from, const Side& to, const WeightFormats* formats, bool again);

// The job's bytes, a bounded part at a time.
void write_tensor(const TensorJob&, const Checkpoint&, ThreadPool&, const std::function<void(std::span<const std::byte>)>& write);

}  // namespace mr
