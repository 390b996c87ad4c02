// What a stateful layer declares, once, when it is built: bytes a token (paged) or bytes a sequence (slot). Layers with
// equal (kind, window) share a group: one pool of equal units and one table per sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mr {

struct StateSpec {
  enum class Kind : uint8_t { paged, slot } kind;
  int64_t bytes;   // a token (paged) or a sequence (slot), of this layer
  int window = 0;  // paged: tokens kept; 0 keeps all
};

// A layer's place: its group, and the bytes that earlier layers of the group take (a token or a sequence). Inside a page the
// layer's block begins at offset * page_tokens, inside a slot at offset.
struct StateRef {
  int group = -1;
  int64_t offset = 0;
};

struct Group {
  StateSpec::Kind kind;
  int window;
  int64_t bytes;                  // of all its layers together, a token or a sequence
  std::vector<int64_t> layers{};  // of each, in the order of their offsets
};

class StateLayout {
 public:
  StateRef add(StateSpec);  // bytes are rounded up to 64, so that every layer's block is aligned
  std::span<const Group> groups() const { return {groups_.data(), groups_.size()}; }
  int64_t bytes_per_token() const;     // over the paged groups
  int64_t bytes_per_sequence() const;  // over the slot groups

 private:
  std::vector<Group> groups_;
};

// Where the units of each group lie. Unit 0 of every group is reserved: the zero slot that a fresh sequence reads, and for
// pages the sink that padding rows write to.
struct StateMemory {
  struct GroupMemory {
    std::byte* base = nullptr;
    int64_t unit_bytes = 0;
    int64_t n_units = 0;
    int page_tokens = 0;            // 0: slots
    std::vector<int64_t> layers{};  // bytes a token or a sequence of each layer
    std::byte* unit(int64_t i) const { return base + i * unit_bytes; }
  };
  std::vector<GroupMemory> group;
};

// To be done before the step that follows, in the order given: fill unit dst with zeros (src -1) or with unit src.
struct UnitCopy {
  enum class Where : uint8_t { within, out, in };  // out: dst is a unit of host memory; in: src is one
  int group;
  int32_t dst, src;
  Where where = Where::within;
};

}  // namespace mr
