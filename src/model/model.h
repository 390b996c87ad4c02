// A model: embedding, blocks, output layer, built from its ModelSpec and a checkpoint. It owns weights and no mutable
// state, and holds its forward pass as a recorded program.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/checkpoint.h"
#include "model/spec.h"
#include "program/program.h"

namespace mr {

struct ModelOptions {
  std::optional<DType> kv_dtype;                                // none: the backend's
  std::optional<uint64_t> random_weights;                       // random, from config.json alone
  std::function<void(int64_t done, int64_t total)> progress{};  // bytes of the files
  std::optional<DType> state_dtype{};                           // of scans; none: the model's if the backend has it, else f32
  int64_t weight_bytes = 0;                                     // of the outline, if known: one allocation of just that size
  std::string quantize{};                                       // a name of WeightFormats; empty: weights stay as they are stored
  bool requantize = false;                                      // also those that are quantized already
};

class Block;
class PerLayerInputs;
class Streams;

class Model {
 public:
  static std::unique_ptr<Model> load(const Checkpoint&, Backend&, const ModelOptions&);
  // The same model without its weights: layout, weight_bytes and program are those of the loaded one, and nothing large is allocated
  // or read. Files with only a configuration are treated as with random weights.
  static std::unique_ptr<Model> outline(const Checkpoint&, Backend&, ModelOptions);
  ~Model();

  const ModelSpec& spec() const { return spec_; }
  const StateLayout& layout() const { return layout_; }
  const StateTypes& state_types() const { return types_; }
  int64_t weight_bytes() const { return int64_t(store_.bytes()); }
  std::vector<std::span<const std::byte>> weights() const { return store_.parts(); }  // those in host memory
  // From tokens to logits. It refers to objects of this model.
  const Program& program() const { return program_; }
  Program record(const ProgramOptions&) const;  // the same program with other options
  bool has_weights() const { return store_.mode() == WeightStore::Mode::holds; }

 private:
  Model(WeightStore::Mode, Backend&);
  static std::unique_ptr<Model> build(const Checkpoint&, Backend&, const ModelOptions&, WeightStore::Mode);
  ModelSpec spec_;
  StateLayout layout_;
  StateTypes types_;
  WeightStore store_;
  std::vector<RopeTable> ropes_;
  Weight embedding_, output_;  // output_ is empty when tied
  Norm final_norm_;
  std::unique_ptr<PerLayerInputs> per_layer_;  // may be null
  std::unique_ptr<Streams> streams_;           // may be null
  std::vector<std::unique_ptr<Block>> blocks_;
  DType activation_;
  Program program_;
};

}  // namespace mr
