// A program's list bound to one step: the address of each value in the arena, and its number of rows.
#pragma once

#include "core/arena.h"
#include "program/program.h"

namespace mr {

class Bound {
 public:
  // The list's slots are allocated from the arena.
  Bound(const Program&, const OpList&, int64_t n_tokens, int64_t n_out, Arena&);

  const Program& program() const { return program_; }
  const OpList& list() const { return list_; }
  int64_t n_tokens() const { return n_tokens_; }
  int64_t n_out() const { return n_out_; }
  int64_t rows(const Value&) const;
  Tensor operator()(const Value&) const;  // none: an empty tensor
  Tensor scratch(const Mark&) const;
  // Whether the operation has rows: in a step without outputs, those after the gather have none.
  bool runs(const Op& op) const { return (op.rows == Rows::Base::outputs ? n_out_ : n_tokens_) > 0; }

  template <class T>
  const T& op(int i) const {
    return std::get<T>(list_.ops[size_t(i)].kind);
  }

 private:
  Tensor whole(int id) const;

  const Program& program_;
  const OpList& list_;
  int64_t n_tokens_, n_out_;
  std::byte* base_;
  std::vector<int64_t> offset_;  // of each slot
};

}  // namespace mr
