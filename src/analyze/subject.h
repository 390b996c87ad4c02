// The subject of an analysis: a model's specification and number formats, from a checkpoint, a bare config.json or a preset.
#pragma once

#include <memory>

#include "analyze/presets.h"
#include "analyze/program_costs.h"
#include "io/checkpoint.h"
#include "model/model.h"

namespace mr {

struct Subject {
  std::string name;
  ModelSpec spec;
  Storage storage;
  std::shared_ptr<const Model> outline;         // its program is counted; null for a preset, a what-if, or a model that cannot run
  std::shared_ptr<const ProgramCosts> program;  // of the outline
};

// Of a step: by the recorded program if there is one, else by the closed forms.
std::vector<Operation> operations(const Subject&, const Phase&, int chips);

// A preset's name, the path of a config.json, a directory (weights are optional), a .gguf file, or a short name of a model in the
// cache folder; empty: the default model. Weights count in their stored formats; bf16 without weights. Keys and values are bf16.
Subject subject_of(const std::string& model);
void describe_as(Subject&, ModelSpec);  // replaces the model by one without a program
Subject subject_of(const Preset&);

Storage storage_of(const Checkpoint&);  // as its tensors are stored; bf16 without tensors
Storage storage_of(const Program&);     // as its weights were loaded

void store_weights_as(Storage&, std::string_view format);
void store_keys_as(Storage&, std::string_view format);

}  // namespace mr
