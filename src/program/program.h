// A forward pass as a program: an ordered list of plain operations over values, recorded once when a model is built and run with
// the shapes of every step. The list is not in single-assignment form and nothing reorders it. Derived from it, each in a separate
// file: the tail (tail.cpp), marks for fusion (fuse.cpp), memory of values (slots.cpp), flops and bytes (cost.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "program/ops.h"

namespace mr {

// Runs of operations that one kernel may do. Values that a fused kernel does not write are dead after the run.
enum class Rule : uint8_t {
  norm_linear,      // norm, linear
  linear_gate,      // [norm,] linear, gate
  gate_linear,      // [norm,] linear, gate, linear: the last one's input may be rounded where it is computed
  attend,           // [rope q] [rope k] store_kv attend; [rope q] attend if another layer stores the keys
  attend_linear,    // the same, and the linear that reads it
  linear_conv,      // norm, linear, short_conv of some of its columns
  gated_scan,       // softplus, diag_scan or outer_scan, gate
  selective_scan,   // linear, [three norms,] linear, softplus, diag_scan, gate
  route,            // norm, linear, route
  experts_gate,     // two grouped_linear of one input, gate
  experts_combine,  // grouped_linear, combine, add
};
std::string_view name_of(Rule);
inline bool joins_two(Rule r) { return r == Rule::gate_linear || r == Rule::attend_linear; }  // that an observer times separately

struct Mark {
  int first = 0, count = 0;
  Rule rule{};
  int scratch = -1;  // a value used only by the mark; -1: none
  int end() const { return first + count; }
};

// Memory shared by values with disjoint lifetimes. Its size scales with the rows of a step.
struct Slot {
  int64_t bytes_per_token = 0, bytes_per_output = 0;  // the widest of its values of each kind
  int64_t bytes(int64_t n_tokens, int64_t n_out) const;
};

struct OpList {
  std::vector<Op> ops;
  std::vector<Mark> marks;  // by first operation, then longest first
  // Of each operation: the norm that is the next to touch its whole result; -1: none.
  std::vector<int> next_norm;
  std::vector<int> slot_of;  // of each value; -1: not used by this list
  std::vector<Slot> slots;

  int64_t bytes(int64_t n_tokens, int64_t n_out) const;  // of all slots
};

struct ProgramOptions {
  bool fuse = true;   // false: no marks
  bool share = true;  // false: a separate slot for every value
};

struct Program {
  DType activation = DType::f32;
  std::vector<ValueInfo> values;
  OpList whole;
  OpList tail;  // the same, but after the last operation that reads rows only outputs continue
  Value logits;

  // With few outputs, the operations after the last state run only for them.
  const OpList& list(int64_t n_tokens, int64_t n_out) const { return 2 * n_out <= n_tokens ? tail : whole; }
  // Upper bound in bytes over all steps within these limits.
  int64_t workspace(int64_t max_tokens, int64_t max_out) const;
  DType dtype(int value) const;
  int64_t row_bytes(int value) const;  // per token or per output
};

// Derives the rest of a program once `whole` is recorded.
void finish(Program&, const ProgramOptions&);

void record_tail(Program&);                        // tail.cpp
void fuse(Program&, OpList&);                      // fuse.cpp
void find_next_norms(OpList&);                     // fuse.cpp
void assign_slots(Program&, OpList&, bool share);  // slots.cpp

}  // namespace mr
