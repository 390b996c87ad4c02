// What is analysed: a model's specification and how its numbers are stored, from a checkpoint, a bare config.json or a preset.
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
  std::shared_ptr<const Model> outline;  // whose program is counted; null: it is described alone, by a preset or a what-if, or cannot run
  std::shared_ptr<const ProgramCosts> program;  // of the outline
};

// Of a step, by the program that would run where there is one, else by the closed forms.
std::vector<Operation> operations(const Subject&, const Phase&, int chips);

// A preset's name, the path of a config.json, a directory (weights are optional), a .gguf file, or a short name of a model in the
// cache folder; empty: the default model. Where there are weights, their stored formats count; else bf16. Keys and values are in bf16.
Subject subject_of(const std::string& model);
void describe_as(Subject&, ModelSpec);  // another model in its place, which nobody has recorded
Subject subject_of(const Preset&);

Storage storage_of(const Checkpoint&);  // as its tensors are stored; bf16 where it has none

void store_weights_as(Storage&, std::string_view format);
void store_keys_as(Storage&, std::string_view format);

}  // namespace mr
