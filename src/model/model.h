// A model: embedding, blocks, output layer, built from its ModelSpec and a checkpoint. It owns weights and nothing that
// changes; state arrives in Step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/arena.h"
#include "io/checkpoint.h"
#include "model/spec.h"

namespace mr {

// All that a forward may touch.
struct Step {
  Backend& ops;
  const Batch& batch;
  const StateMemory& state;
  Arena& arena;
  std::span<const Tensor> angles{};  // one per ModelSpec::ropes, f32 [T, dim]; Model fills it

  Tensor activation(std::initializer_list<int64_t> shape) { return arena.tensor(ops.activations(), shape); }
  Tensor outputs(Tensor x);              // [T, n] -> [n_out, n], in the arena
  Tensor rows_of(Tensor out, Tensor x);  // x [T, n], or its outputs where out has fewer rows than that
};

// What flows between blocks.
struct Stream {
  Tensor residual;     // f32 [T, dim]
  Tensor per_layer{};  // f32 [T, layers * per_layer], or empty
  bool ends = false;   // nothing but the outputs is wanted of the block that is next: it leaves a residual of [n_out, dim]
};

struct ModelOptions {
  std::optional<DType> kv_dtype;                                // none: the backend's
  std::optional<uint64_t> random_weights;                       // made up from config.json alone
  std::function<void(int64_t done, int64_t total)> progress{};  // bytes of the files
};

class Block;
class PerLayerInputs;

class Model {
 public:
  static std::unique_ptr<Model> load(const Checkpoint&, Backend&, const ModelOptions&);
  // The same model without its weights: layout, weight_bytes, decode_bytes and workspace are those of the loaded one, and nothing
  // large is allocated or read. Files that hold a configuration alone are taken as random weights would be made of them.
  static std::unique_ptr<Model> outline(const Checkpoint&, Backend&, ModelOptions);
  ~Model();

  const ModelSpec& spec() const { return spec_; }
  const StateLayout& layout() const { return layout_; }
  DType kv_dtype() const { return kv_dtype_; }
  int64_t weight_bytes() const { return int64_t(store_.bytes()); }
  std::vector<std::span<const std::byte>> weights() const { return store_.parts(); }  // that lie in the host's memory
  int64_t decode_bytes() const;  // of weights that one decode step reads: all but the rows of the embedding it skips

  // Bytes of arena that forward takes for a batch of this size.
  int64_t workspace(int n_tokens, int n_out) const;
  // f32 [n_out, vocab], in the arena.
  Tensor forward(Step&) const;

 private:
  Model(WeightStore::Mode, Backend&);
  static std::unique_ptr<Model> build(const Checkpoint&, Backend&, const ModelOptions&, WeightStore::Mode);
  ModelSpec spec_;
  StateLayout layout_;
  DType kv_dtype_ = DType::f16;
  WeightStore store_;
  std::vector<RopeTable> ropes_;
  Weight embedding_, output_;  // output_ is embedding_ when tied
  Norm final_norm_;
  std::unique_ptr<PerLayerInputs> per_layer_;  // may be null
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace mr
