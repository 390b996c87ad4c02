// What is analysed: a model's specification and how its numbers are stored, from a checkpoint, a bare config.json or a preset.
#pragma once

#include "analyze/presets.h"
#include "analyze/workload.h"
#include "io/checkpoint.h"

namespace mr {

struct Subject {
  std::string name;
  ModelSpec spec;
  Storage storage;
};

// A preset's name, the path of a config.json, a directory (weights are optional), a .gguf file, or a short name of a model in the
// cache folder; empty: the default model. Where there are weights, their stored formats count; else bf16. Keys and values are in bf16.
Subject subject_of(const std::string& model);
Subject subject_of(const Preset&);

Storage storage_of(const Checkpoint&);  // as its tensors are stored; bf16 where it has none

void store_weights_as(Storage&, std::string_view format);
void store_keys_as(Storage&, std::string_view format);

}  // namespace mr
