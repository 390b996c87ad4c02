// Rows are not commits: in each step a sequence plans rows, then commits 0..n of them. Autoregression commits 1, prefill all,
// speculation accepted + 1, diffusion 0 until its block is done. Scheduler and state manager only see (rows, commits).
#pragma once

#include <memory>
#include <span>

#include "backend/backend.h"
#include "state/sequence_state.h"

namespace mr {

struct RowPlan {
  std::span<const int32_t> tokens;   // the rows, beginning at position `committed` of the sequence
  std::span<const int32_t> parents;  // trees only
  Corner corner = Corner::causal;
  int wants_logits_from = 0;  // first row with an output; tokens.size(): none
  bool atomic = false;        // must not be split into chunks
  bool publish = true;        // may enter the prefix tree
};

struct Absorbed {
  int n_rows = 0;                 // commits the first n_rows
  std::span<const int> path;      // trees only: these rows instead
  std::span<const Sampled> emit;  // new tokens; the caller appends them to the sequence
};

// A decoding strategy, one object per answer. A plan that does not fit into a step is split: its first rows are committed without
// a call to absorb(), and the next plan() begins after them. absorb() follows the step that ran the rest.
class Decoding {
 public:
  virtual ~Decoding() = default;
  virtual int max_rows() const = 0;       // in one step, past the prompt
  virtual bool needs_result() const = 0;  // plan() needs the previous step's tokens on the host
  virtual RowPlan plan(const SequenceState&) = 0;
  // This step ran the plan's last n_rows. One Sampled per planned output row; the result may point into them.
  virtual Absorbed absorb(const SequenceState&, int n_rows, std::span<const Sampled>) = 0;
};

std::unique_ptr<Decoding> make_autoregressive();

}  // namespace mr
