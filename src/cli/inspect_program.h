// millrace inspect --program: the recorded forward pass, one line an operation, with its cost in a step of the given shape.
#pragma once

#include "core/json.h"
#include "model/model.h"
#include "program/cost.h"

namespace mr {

struct ProgramQuestion {
  bool asked = false, all = false, tail = false;  // all: equal layers too; tail: the tail list, whatever the step would use
  int batch = 1, context = 0, prompt = 0;         // prompt 0: one new token; context 0: the prompt, or 1024 tokens
  Phase phase(const ModelSpec&) const;
};

std::string program_text(const Model&, const ProgramQuestion&);
Json program_json(const Model&, const ProgramQuestion&);

}  // namespace mr
