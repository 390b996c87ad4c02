#include "model/model.h"

#include <algorithm>

#include "core/error.h"
#include "model/block.h"
#include "model/loader.h"
#include "model/per_layer.h"
#include "model/rope.h"

namespace mr {

Model::Model(WeightStore::Mode mode, Backend& backend) : store_(mode, [&backend](size_t bytes) { return backend.allocate(bytes); }) {}
Model::~Model() = default;

std::unique_ptr<Model> Model::load(const Checkpoint& files, Backend& backend, const ModelOptions& options) {
  return build(files, backend, options, WeightStore::Mode::holds);
}

std::unique_ptr<Model> Model::outline(const Checkpoint& files, Backend& backend, ModelOptions options) {
  if (files.tensors().empty() && !options.random_weights) options.random_weights = 0;
  return build(files, backend, options, WeightStore::Mode::counts);
}

std::unique_ptr<Model> Model::build(const Checkpoint& files, Backend& backend, const ModelOptions& options, WeightStore::Mode mode) {
  std::unique_ptr<Model> model(new Model(mode, backend));
  Described described = describe(files);
  model->spec_ = std::move(described.spec);
  const ModelSpec& spec = model->spec_;
  Loader loader(files, std::move(described.names), backend, model->store_, options.random_weights);
  loader.progress = options.progress;
  for (const RopeSpec& rope : spec.ropes) model->ropes_.push_back(make_rope(rope));
  model->embedding_ = loader.weight("embedding", spec.vocab, spec.dim);
  if (spec.per_layer) model->per_layer_ = std::make_unique<PerLayerInputs>(spec, loader);
  model->kv_dtype_ = options.kv_dtype.value_or(backend.kv_dtype());
  std::vector<StateRef> kv(spec.layers.size());
  for (int i = 0; i < int(spec.layers.size()); i++) {
    BuildContext build{loader, model->layout_, spec, model->kv_dtype_, i, kv};
    model->blocks_.push_back(std::make_unique<Block>(spec.layers[size_t(i)], build));
  }
  model->final_norm_ = loader.norm(spec.norm, "final_norm", spec.dim);
  model->output_ = spec.tied ? model->embedding_ : loader.weight("output", spec.vocab, spec.dim);
  return model;
}

int64_t Model::decode_bytes() const {
  int64_t n = output_.bytes() + (per_layer_ ? per_layer_->decode_bytes() : 0);
  for (const auto& block : blocks_) n += block->decode_bytes();
  return n;
}

int64_t Model::workspace(int n_tokens, int n_out) const {
  int64_t block = 0, angles = 0;
  for (const auto& b : blocks_) block = std::max(block, b->workspace(n_tokens));
  for (const RopeTable& r : ropes_) angles += arena_bytes(int64_t(n_tokens) * r.dim);
  int64_t out = 2 * arena_bytes(int64_t(n_out) * spec_.dim) + arena_bytes(int64_t(n_out) * spec_.vocab);
  int64_t per_layer = per_layer_ ? per_layer_->workspace(n_tokens) : 0;
  int64_t ends = arena_bytes(int64_t(std::min(n_out, n_tokens / 2)) * spec_.dim);
  return arena_bytes(int64_t(n_tokens) * spec_.dim) + per_layer + angles + std::max(block + ends, out);
}

Tensor Step::outputs(Tensor x) {
  Tensor some = arena.tensor(x.dtype, {batch.n_out, x.shape[1]});
  if (batch.n_out > 0) ops.gather(some, x, batch);
  return some;
}
Tensor Step::rows_of(Tensor out, Tensor x) { return out.shape[0] == x.shape[0] ? x : outputs(x); }

Tensor Model::forward(Step& step) const {
  check(store_.mode() == WeightStore::Mode::holds, "this is an outline of the model, without weights to run");
  Backend& ops = step.ops;
  const Batch& batch = step.batch;
  Stream stream{step.arena.tensor(DType::f32, {batch.n_tokens, spec_.dim})};
  ops.embed(stream.residual, embedding_, spec_.embedding_scale, batch);
  if (per_layer_) stream.per_layer = per_layer_->forward(stream.residual, step);
  std::vector<Tensor> angles;
  for (const RopeTable& rope : ropes_) {
    angles.push_back(step.arena.tensor(DType::f32, {batch.n_tokens, rope.dim}));
    ops.angles(angles.back(), rope, batch);
  }
  step.angles = angles;
  // Only the rows whose result is wanted pass through the output layer, the largest of all, and where they are few, through what the
  // last block does behind its state: most of a prompt leaves nothing but that there.
  for (size_t i = 0; i < blocks_.size(); i++) {
    stream.ends = i + 1 == blocks_.size() && !per_layer_ && 2 * batch.n_out <= batch.n_tokens;
    blocks_[i]->forward(stream, step, i + 1 < blocks_.size() ? &blocks_[i + 1]->first_norm() : nullptr);
  }
  Tensor last = stream.ends ? stream.residual : step.outputs(stream.residual);
  Tensor logits = step.arena.tensor(DType::f32, {batch.n_out, spec_.vocab});
  if (batch.n_out == 0) return logits;
  ops.linear_normed(logits, last, final_norm_, output_, {}, step.arena);
  if (spec_.logit_softcap) ops.softcap(logits, spec_.logit_softcap);
  return logits;
}

}  // namespace mr
