// The state that a layer declares when it is built: bytes per token (paged) or bytes per sequence (slot). Layers with
// equal (kind, window) form a group: one pool of equal units and one block table per sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mr {

struct StateSpec {
  enum class Kind : uint8_t { paged, slot } kind;
  int64_t bytes;   // of this layer, per token (paged) or per sequence (slot)
  int window = 0;  // paged: tokens kept; 0 keeps all
};

// Bytes that a layer's part of a slot, or its part of a page for every token, takes in its group: rounded up so that it begins at a
// multiple of 64 bytes. Pages have at least 16 tokens.
inline int64_t layer_bytes(const StateSpec& spec) {
  const int64_t unit = spec.kind == StateSpec::Kind::paged ? 8 : 64;
  return (spec.bytes + unit - 1) / unit * unit;
}

// A layer's group, and the bytes of the group's earlier layers (per token or per sequence). Inside a page the
// layer's block begins at offset * page_tokens, inside a slot at offset.
struct StateRef {
  int group = -1;
  int64_t offset = 0;
};

struct Group {
  StateSpec::Kind kind;
  int window;
  int64_t bytes;                  // of all its layers together, per token or per sequence
  std::vector<int64_t> layers{};  // of each layer, in the order of their offsets
};

class StateLayout {
 public:
  StateRef add(StateSpec);
  std::span<const Group> groups() const { return {groups_.data(), groups_.size()}; }
  int64_t bytes_per_token() const;     // over the paged groups
  int64_t bytes_per_sequence() const;  // over the slot groups

 private:
  std::vector<Group> groups_;
};

// The memory of each group's units. Unit 0 of every group is reserved: the zero slot that a new sequence reads, or the dummy page
// that padding rows write to.
struct StateMemory {
  struct GroupMemory {
    std::byte* base = nullptr;
    int64_t unit_bytes = 0;
    int64_t n_units = 0;
    int page_tokens = 0;            // 0: slots
    std::vector<int64_t> layers{};  // bytes of each layer, per token or per sequence
    std::byte* unit(int64_t i) const { return base + i * unit_bytes; }
  };
  std::vector<GroupMemory> group;
};

// To be executed before the next step, in order: fills unit dst with zeros (src -1) or with unit src.
struct UnitCopy {
  enum class Where : uint8_t { within, out, in };  // out: dst is a unit of swap space; in: src is one
  int group;
  int32_t dst, src;
  Where where = Where::within;
};

}  // namespace mr
