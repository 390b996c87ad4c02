#include "program/bound.h"

namespace mr {

Bound::Bound(const Program& program, const OpList& list, int64_t n_tokens, int64_t n_out, Arena& arena)
    : program_(program), list_(list), n_tokens_(n_tokens), n_out_(n_out) {
  base_ = arena.take(size_t(list.bytes(n_tokens, n_out)));
  int64_t at = 0;
  for (const Slot& slot : list.slots) {
    offset_.push_back(at);
    at += slot.bytes(n_tokens, n_out);
  }
}

int64_t Bound::rows(const Value& v) const {
  const Rows& rows = program_.values[size_t(v.id)].rows;
  return (rows.base == Rows::Base::outputs ? n_out_ : n_tokens_) * rows.times;
}

Tensor Bound::whole(int id) const {
  return view(base_ + offset_[size_t(list_.slot_of[size_t(id)])], program_.dtype(id), {rows({id}), program_.values[size_t(id)].cols});
}

Tensor Bound::operator()(const Value& v) const {
  if (!v) return {};
  Tensor t = whole(v.id).cols(v.first, v.cols);
  if (v.heads == 0) return t;
  const int64_t size = v.cols / v.heads;
  t.rank = 3;
  t.shape = {t.shape[0], v.heads, size};
  t.stride = {t.stride[0], size, 1};
  return t;
}

Tensor Bound::scratch(const Mark& mark) const { return whole(mark.scratch); }

}  // namespace mr
