#include "engine/step_buffer.h"

#include "core/error.h"

namespace mr {

namespace {

// Allocates aligned pieces of the buffer; offset 0 is the header's, so it can mean "absent".
struct Cursor {
  int64_t end = 0;
  template <class T>
  int32_t take(int64_t n, bool wanted = true) {
    if (!wanted) return 0;
    int64_t begin = (end + 15) / 16 * 16;
    end = begin + n * int64_t(sizeof(T));
    check(end <= INT32_MAX, "a step of {} bytes is too large", end);
    return int32_t(begin);
  }
};

template <class T>
T* at(std::byte* base, int32_t offset) {
  return offset ? reinterpret_cast<T*>(base + offset) : nullptr;
}
template <class T>
const T* at(const std::byte* base, int32_t offset) {
  return offset ? reinterpret_cast<const T*>(base + offset) : nullptr;
}

StepHeader place(const StepShape& shape, Cursor& cursor) {
  StepHeader h{};
  cursor.take<StepHeader>(1);
  h.n_tokens = shape.n_tokens;
  h.n_seqs = shape.n_seqs;
  h.n_out = shape.n_out;
  h.n_groups = int32_t(shape.n_units.size());
  h.groups = cursor.take<GroupOffsets>(h.n_groups);
  h.token = cursor.take<int32_t>(h.n_tokens);
  h.position = cursor.take<int32_t>(h.n_tokens);
  h.row_begin = cursor.take<int32_t>(h.n_seqs + 1);
  h.context = cursor.take<int32_t>(h.n_seqs);
  h.prompt_len = cursor.take<int32_t>(h.n_seqs);
  h.corner = cursor.take<Corner>(h.n_seqs);
  h.parent = cursor.take<int32_t>(h.n_tokens, shape.trees);
  h.ancestors = cursor.take<uint64_t>(h.n_tokens, shape.trees);
  h.out_row = cursor.take<int32_t>(h.n_out);
  h.out = cursor.take<Out>(h.n_out);
  h.sample = cursor.take<SampleRow>(h.n_out);
  h.edit = cursor.take<LogitEdit>(shape.n_edits);
  return h;
}

GroupOffsets place_group(int n_units, const StepHeader& h, Cursor& cursor) {
  bool paged = n_units >= 0;
  return {.unit = cursor.take<int32_t>(n_units, paged),
          .begin = cursor.take<int32_t>(h.n_seqs + 1, paged),
          .src = cursor.take<int32_t>(h.n_seqs, !paged),
          .dst = cursor.take<int32_t>(h.n_tokens, !paged)};
}

}  // namespace

StepArrays& StepBuffer::layout(const StepShape& shape) {
  Cursor cursor;
  StepHeader h = place(shape, cursor);
  int64_t groups_begin = cursor.end;
  for (int n : shape.n_units) place_group(n, h, cursor);
  h.bytes = int32_t(cursor.end);
  if (size_t(h.bytes) > buffer_.size()) buffer_ = Buffer(size_t(h.bytes) * 3 / 2);

  std::byte* base = buffer_.data();
  *reinterpret_cast<StepHeader*>(base) = h;
  StepArrays& a = arrays_;
  a.token = at<int32_t>(base, h.token);
  a.position = at<int32_t>(base, h.position);
  a.row_begin = at<int32_t>(base, h.row_begin);
  a.context = at<int32_t>(base, h.context);
  a.prompt_len = at<int32_t>(base, h.prompt_len);
  a.corner = at<Corner>(base, h.corner);
  a.parent = at<int32_t>(base, h.parent);
  a.ancestors = at<uint64_t>(base, h.ancestors);
  a.out_row = at<int32_t>(base, h.out_row);
  a.out = at<Out>(base, h.out);
  a.sample = at<SampleRow>(base, h.sample);
  a.edit = at<LogitEdit>(base, h.edit);
  a.group.resize(shape.n_units.size());
  cursor.end = groups_begin;
  for (size_t g = 0; g < shape.n_units.size(); g++) {
    GroupOffsets o = place_group(shape.n_units[g], h, cursor);
    at<GroupOffsets>(base, h.groups)[g] = o;
    a.group[g] = {at<int32_t>(base, o.unit), at<int32_t>(base, o.begin), at<int32_t>(base, o.src), at<int32_t>(base, o.dst)};
  }
  return a;
}

std::span<const std::byte> StepBuffer::bytes() const {
  if (buffer_.size() == 0) return {};
  return {buffer_.data(), size_t(reinterpret_cast<const StepHeader*>(buffer_.data())->bytes)};
}

Batch view(std::span<const std::byte> step, std::vector<GroupTable>& tables) {
  const std::byte* base = step.data();
  const StepHeader& h = *reinterpret_cast<const StepHeader*>(base);
  Batch b;
  b.n_tokens = h.n_tokens;
  b.n_seqs = h.n_seqs;
  b.n_out = h.n_out;
  b.token = at<int32_t>(base, h.token);
  b.position = at<int32_t>(base, h.position);
  b.row_begin = at<int32_t>(base, h.row_begin);
  b.context = at<int32_t>(base, h.context);
  b.prompt_len = at<int32_t>(base, h.prompt_len);
  b.corner = at<Corner>(base, h.corner);
  b.parent = at<int32_t>(base, h.parent);
  b.ancestors = at<uint64_t>(base, h.ancestors);
  b.out_row = at<int32_t>(base, h.out_row);
  b.out = at<Out>(base, h.out);
  b.sample = at<SampleRow>(base, h.sample);
  b.edit = at<LogitEdit>(base, h.edit);
  tables.resize(size_t(h.n_groups));
  for (size_t g = 0; g < tables.size(); g++) {
    const GroupOffsets& o = at<GroupOffsets>(base, h.groups)[g];
    tables[g] = {at<int32_t>(base, o.unit), at<int32_t>(base, o.begin), at<int32_t>(base, o.src), at<int32_t>(base, o.dst)};
  }
  b.group = tables;
  return b;
}

}  // namespace mr
