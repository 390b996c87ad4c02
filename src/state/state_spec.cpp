#include "state/state_spec.h"

namespace mr {

StateRef StateLayout::add(StateSpec spec) {
  const int64_t bytes = layer_bytes(spec);
  for (size_t i = 0; i < groups_.size(); i++) {
    Group& g = groups_[i];
    if (g.kind != spec.kind || g.window != spec.window) continue;
    StateRef ref{int(i), g.bytes};
    g.bytes += bytes;
    g.layers.push_back(bytes);
    return ref;
  }
  groups_.push_back({spec.kind, spec.window, bytes, {bytes}});
  return {int(groups_.size()) - 1, 0};
}

static int64_t sum(std::span<const Group> groups, StateSpec::Kind kind) {
  int64_t n = 0;
  for (const Group& g : groups)
    if (g.kind == kind) n += g.bytes;
  return n;
}

int64_t StateLayout::bytes_per_token() const { return sum(groups_, StateSpec::Kind::paged); }
int64_t StateLayout::bytes_per_sequence() const { return sum(groups_, StateSpec::Kind::slot); }

}  // namespace mr
