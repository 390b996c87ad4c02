// millrace inspect --program: the forward as it was recorded, one line an operation, with what a step of given numbers costs.
#pragma once

#include "core/json.h"
#include "model/model.h"
#include "program/cost.h"

namespace mr {

struct ProgramQuestion {
  bool asked = false, all = false, tail = false;  // all: layers that are alike too; tail: that list, whatever the step would take
  int batch = 1, context = 0, prompt = 0;         // 0: one new token; a context of its prompt, or of 1024 tokens
  Phase phase(const ModelSpec&) const;
};

std::string program_text(const Model&, const ProgramQuestion&);
Json program_json(const Model&, const ProgramQuestion&);

}  // namespace mr
