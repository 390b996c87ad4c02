// millrace bench, offline: prefill and decode of B sequences at S tokens of context, for lists of both.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backend/op_times.h"
#include "bench/measure.h"

namespace mr {

// The workload of one row.
struct GridShape {
  bool prefill = false;
  int batch = 1;
  int context = 1;  // tokens of each prompt
  int tokens = 1;   // decoded per sequence; 1 for prefill
};

struct GridRow {
  GridShape shape;    // as run
  int asked = 1;      // the context that was requested; the prompt is shorter if the answer would not fit
  std::string error;  // why it was not measured; empty: none
  Measured m;
  std::map<std::string, OpTime> times;  // per operation, of an extra run that waits for each; empty: not run
  double apart_s = 0;                   // duration of that run

  double tokens() const { return double(shape.batch) * (shape.prefill ? shape.context : shape.tokens); }
};

std::vector<GridShape> grid_shapes(const std::vector<int>& batches, const std::vector<int>& prefill, const std::vector<int>& decode,
                                   const std::vector<int>& contexts);

// Before the engine starts: sequences and state for the largest of these shapes that fits this machine.
void make_room(EngineSetup&, const std::vector<GridShape>&);

class GridBench {
 public:
  // explain: every row is run once more, timed per operation.
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
  uint32_t next_prompt_ = 1 << 20;  // no prefill repeats a prompt
  std::string error_;
};

}  // namespace mr
