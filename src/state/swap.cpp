// Preemption by swapping: a sequence's units are copied to host memory, and back when it runs again. Shared units are copied
// like the rest; swapped in, it publishes its blocks again and so shares what the prefix tree still holds.
#include <algorithm>

#include "state/state_manager.h"

namespace mr {

using Where = UnitCopy::Where;

static int n_held(const SequenceState::Table& t) {
  return int(std::ranges::count_if(t.unit, [](int32_t unit) { return unit >= 0; })) + (t.src > 0);
}

bool StateManager::swap_out(SequenceState& seq, std::vector<UnitCopy>& copies) {
  check(seq.attached(), "sequence {} has no state to swap out", seq.id);
  for (int g = 0; g < n_groups(); g++)
    if (n_held(seq.table[g]) > host_pools_[g].n_free()) return false;
  std::vector<Table> host(groups_.size());
  for (int g = 0; g < n_groups(); g++) {
    auto move = [&](int32_t unit) {
      int32_t to = host_pools_[g].take();
      copies.push_back({g, to, unit, Where::out});
      counters_.n_swapped_out++;
      return to;
    };
    for (int32_t unit : seq.table[g].unit) host[g].unit.push_back(unit >= 0 ? move(unit) : -1);
    if (seq.table[g].src > 0) host[g].src = move(seq.table[g].src);
  }
  const int committed = seq.committed;
  release(seq);  // the copies are executed before any later one or the next step writes to these units
  seq.committed = committed;
  seq.host = std::move(host);
  return true;
}

bool StateManager::swap_in(SequenceState& seq, std::vector<UnitCopy>& copies) {
  check(seq.swapped() && !seq.attached(), "sequence {} is not swapped out", seq.id);
  for (int g = 0; g < n_groups(); g++)
    if (n_held(seq.host[g]) > pool(g).n_available()) return false;
  seq.table.resize(groups_.size());
  for (int g = 0; g < n_groups(); g++) {
    const Table& from = seq.host[g];
    auto move = [&](int32_t unit) {
      int32_t to = take(g);
      copies.push_back({g, to, unit, Where::in});
      counters_.n_swapped_in++;
      return to;
    };
    for (int32_t unit : from.unit) seq.table[g].unit.push_back(unit >= 0 ? move(unit) : -1);
    if (from.src > 0) seq.table[g].src = move(from.src);
    release_host(from, g);
  }
  seq.host.clear();
  if (!prefix_cache_) return true;
  seq.node = tree_.root(seq.salt);
  tree_.pin(seq.node);
  seq.keep_at = {int(seq.tokens.size() - 1) / page_tokens_ * page_tokens_, 0};
  return true;
}

void StateManager::release_host(const Table& t, int g) {
  for (int32_t unit : t.unit)
    if (unit >= 0) host_pools_[g].release(unit);
  if (t.src > 0) host_pools_[g].release(t.src);
}

void StateManager::check_host_units(int g, std::span<const SequenceState* const> seqs) const {
  int n = 0;
  for (const SequenceState* seq : seqs)
    if (seq->swapped()) n += n_held(seq->host[g]);
  const UnitPool& units = host_pools_[g];
  check(units.n_units() - units.n_free() == n, "group {} counts {} host units of {}", g, units.n_units() - units.n_free(), n);
}

}  // namespace mr
