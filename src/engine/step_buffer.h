// A step on the host: every array of a Batch in one contiguous buffer with offsets instead of pointers. The same bytes
// can be viewed here, copied to a device in one transfer, or broadcast to other ranks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/batch.h"
#include "core/tensor.h"

namespace mr {

struct StepShape {
  int n_tokens = 0, n_seqs = 0, n_out = 0, n_edits = 0;
  bool trees = false;            // parent and ancestors are present
  std::span<const int> n_units;  // per group: entries of all block tables together; -1: a group of slots
};

// At the beginning of the buffer. Each array is a byte offset from here; 0: absent.
struct StepHeader {
  int32_t bytes, n_tokens, n_seqs, n_out, n_groups;
  int32_t token, position, row_begin, context, prompt_len, corner, parent, ancestors, out_row, out, sample, edit;
  int32_t groups;  // GroupOffsets [n_groups]
};
struct GroupOffsets {
  int32_t unit, begin, src, dst;
};

// The arrays of a Batch, writable.
struct StepArrays {
  int32_t *token, *position, *row_begin, *context, *prompt_len;
  Corner* corner;
  int32_t* parent;
  uint64_t* ancestors;
  int32_t* out_row;
  Out* out;
  SampleRow* sample;
  LogitEdit* edit;
  struct Group {
    int32_t *unit, *begin, *src, *dst;
  };
  std::vector<Group> group;
};

class StepBuffer {
 public:
  StepArrays& layout(const StepShape&);  // allocates a step of this shape; the caller fills the arrays
  std::span<const std::byte> bytes() const;

 private:
  Buffer buffer_;  // grows, never shrinks
  StepArrays arrays_;
};

// `tables` provides the storage of Batch::group.
Batch view(std::span<const std::byte> step, std::vector<GroupTable>& tables);

}  // namespace mr
