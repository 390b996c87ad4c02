#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/altup.h"
#include "model/block.h"
#include "model/loader.h"
#include "model/per_layer.h"
#include "model/rope.h"
#include "program/recorder.h"

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

static std::string names_of(std::span<const DType> types) {
  std::string text;
  for (const DType t : types) text += fmt::format("{}{}", text.empty() ? "" : ", ", kv_format(t).name);
  return text;
}

static StateTypes choose_types(const ModelSpec& spec, const Backend& backend, const ModelOptions& options) {
  const auto kv = backend.kv_dtypes(), scan = backend.state_dtypes();
  const StateTypes types{options.kv_dtype.value_or(backend.kv_dtype()),
                         options.state_dtype.value_or(std::ranges::count(scan, spec.scan_state) ? spec.scan_state : DType::f32)};
  check(std::ranges::count(kv, types.kv), "{} cannot store keys and values as {}: it has {}", backend.name(), kv_format(types.kv).name,
        names_of(kv));
  check(std::ranges::count(scan, types.scan), "{} cannot keep recurrent state as {}: it has {}", backend.name(), name_of(types.scan),
        names_of(scan));
  return types;
}

std::unique_ptr<Model> Model::build(const Checkpoint& files, Backend& backend, const ModelOptions& options, WeightStore::Mode mode) {
  std::unique_ptr<Model> model(new Model(mode, backend));
  model->store_.expect(size_t(options.weight_bytes));
  Described described = describe(files);
  model->spec_ = std::move(described.spec);
  const ModelSpec& spec = model->spec_;
  Loader loader(files, std::move(described.names), backend, model->store_, options.random_weights);
  loader.progress = options.progress;
  if (!options.quantize.empty()) loader.formats.emplace(options.quantize, spec);
  loader.again = options.requantize;
  for (const RopeSpec& rope : spec.ropes) model->ropes_.push_back(make_rope(rope));
  model->embedding_ = loader.weight("embedding", spec.vocab, spec.dim);
  if (spec.per_layer) model->per_layer_ = std::make_unique<PerLayerInputs>(spec, loader);
  if (spec.altup.streams) model->streams_ = std::make_unique<Streams>(spec, loader);
  model->types_ = choose_types(spec, backend, options);
  std::vector<PagedKv> kv(spec.layers.size());
  for (int i = 0; i < int(spec.layers.size()); i++) {
    BuildContext build{loader, model->layout_, spec, model->ropes_, model->types_, i, kv};
    model->blocks_.push_back(std::make_unique<Block>(spec.layers[size_t(i)], build));
  }
  model->final_norm_ = loader.norm(spec.norm, "final_norm", spec.dim);
  if (!spec.tied) model->output_ = loader.weight("output", spec.vocab, spec.dim);
  model->activation_ = backend.activations();
  model->program_ = model->record({});
  return model;
}

Program Model::record(const ProgramOptions& options) const {
  Program program;
  program.activation = activation_;
  Recorder r(program);
  const int64_t width = int64_t(spec_.dim) * std::max(spec_.altup.streams, 1);
  Value residual = r.embed(embedding_, spec_.embedding_scale, "embedding", width);
  const Value per_layer = per_layer_ ? per_layer_->record(r, residual) : Value{};
  if (streams_) residual = streams_->split(r, residual);
  for (const RopeTable& rope : ropes_) r.angles(rope);
  for (const auto& block : blocks_) {
    r.layer++;
    residual = block->record(r, residual, per_layer);
  }
  r.layer = -1;
  Value last = r.gather(residual);  // only rows whose result is wanted pass through the output layer, the largest of all
  if (streams_) last = streams_->join(r, last);
  const LinearArgs args{.name = "output", .scale = spec_.logit_scale, .type = ValueType::f32};
  program.logits = r.linear(r.norm(last, final_norm_), {spec_.tied ? &embedding_ : &output_, 1}, args);
  if (spec_.logit_softcap) r.softcap(program.logits, spec_.logit_softcap);
  finish(program, options);
  return program;
}

}  // namespace mr
