// millrace bench, offline: prefill and decode of B sequences at S tokens of context, for lists of both.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backend/op_times.h"
#include "cli/measure.h"

namespace mr {

// What one row measures.
struct GridShape {
  bool prefill = false;
  int batch = 1;
  int context = 1;  // tokens of each prompt
  int tokens = 1;   // that each sequence writes; 1 of prefill
};

struct GridRow {
  GridShape shape;    // as it was run
  int asked = 1;      // tokens of context that were asked for: more, where the answer has to find room behind the prompt
  std::string error;  // why it was not measured; empty: it was
  Measured m;
  std::map<std::string, OpTime> times;  // of one more run that was taken apart, operation by operation; empty: none was
  double apart_s = 0;                   // what that run took

  double tokens() const { return double(shape.batch) * (shape.prefill ? shape.context : shape.tokens); }
};

std::vector<GridShape> grid_shapes(const std::vector<int>& batches, const std::vector<int>& prefill, const std::vector<int>& decode,
                                   const std::vector<int>& contexts);

// Before the engine starts: places and state for the largest of these shapes that this machine has memory for.
void make_room(EngineFlags&, const std::vector<GridShape>&);

class GridBench {
 public:
  // explain: every row is run once more to see where its time goes.
  GridBench(Engine& engine, std::vector<StepWork>& log, LimitProbe& probe, const StepCosts& costs, bool explain)
      : engine_(engine), log_(log), probe_(probe), costs_(costs), explain_(explain) {}
  GridRow row(const GridShape&, const Patience&);

 private:
  GridShape within_context(GridShape) const;
  std::string refuse(const GridShape&) const;
  void take_apart(GridRow&);
  Run prefill(const GridShape&);
  Run decode(const GridShape&);
  bool writes_one_each(const StepWork&, const GridShape&) const;
  std::vector<int64_t> submit(const GridShape&, uint32_t first_prompt, int max_tokens);
  void drain(const std::vector<int64_t>& ids);

  Engine& engine_;
  std::vector<StepWork>& log_;  // of the engine
  LimitProbe& probe_;
  const StepCosts& costs_;
  const bool explain_;
  OpTimes times_;
  uint32_t next_prompt_ = 1 << 20;  // no prompt of a prefill is read twice
  std::string error_;
};

}  // namespace mr
