#include "state/state_manager.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace mr {

using Where = UnitCopy::Where;

void carry_out(std::span<const UnitCopy> copies, const StateMemory& memory, const StateMemory& host) {
  for (const UnitCopy& copy : copies) {
    const StateMemory::GroupMemory& to = (copy.where == Where::out ? host : memory).group[copy.group];
    const StateMemory::GroupMemory& from = (copy.where == Where::in ? host : memory).group[copy.group];
    if (copy.src < 0)
      std::memset(to.unit(copy.dst), 0, size_t(to.unit_bytes));
    else
      std::memcpy(to.unit(copy.dst), from.unit(copy.src), size_t(to.unit_bytes));
  }
}

static std::vector<UnitPool> make_pools(const MemoryPlan& plan, int64_t MemoryPlan::GroupPlan::*n_units) {
  std::vector<UnitPool> pools;
  for (const MemoryPlan::GroupPlan& g : plan.group) pools.emplace_back(int(std::max<int64_t>(1, g.*n_units)));
  return pools;
}

static std::vector<bool> spine_of(const MemoryPlan& plan) {
  std::vector<bool> spine;
  for (const MemoryPlan::GroupPlan& g : plan.group) spine.push_back(g.paged() && g.window == 0);
  return spine;
}

StateManager::StateManager(const MemoryPlan& plan, Options options)
    : page_tokens_(plan.page_tokens),
      prefix_cache_(options.prefix_cache && options.contiguous_tokens == 0),
      contiguous_tokens_(options.contiguous_tokens),
      groups_(plan.group),
      pools_(make_pools(plan, &MemoryPlan::GroupPlan::n_units)),
      host_pools_(make_pools(plan, &MemoryPlan::GroupPlan::n_host)),
      tree_(pools_, spine_of(plan)) {}

int StateManager::first_page(int g, int committed) const {
  int window = group(g).window;
  return window == 0 ? 0 : std::max(0, committed - window + 1) / page_tokens_;
}

// Descends the tree as far as blocks match; the path ends at the last node where every group can resume: slots need a
// snapshot there, windows the pages that the next row sees.
std::vector<StateManager::Node*> StateManager::resumable_path(const SequenceState& seq, Node* root, int& n_matched) const {
  std::span<const int32_t> tokens(seq.tokens);
  const int n_blocks = int(tokens.size() - 1) / page_tokens_;
  std::vector<Node*> path;
  std::vector<int> run(groups_.size());  // consecutive nodes, up to here, that hold a unit of the group
  size_t resume = 0;
  for (Node* node = root; int(path.size()) < n_blocks;) {
    node = tree_.child(node, tokens.subspan(path.size() * size_t(page_tokens_), size_t(page_tokens_)));
    if (!node) break;
    path.push_back(node);
    bool all = true;
    for (int g = 0; g < n_groups(); g++) {
      run[g] = node->held[g].unit >= 0 ? run[g] + 1 : 0;
      int wanted = group(g).paged() ? node->depth - first_page(g, node->depth * page_tokens_) : 1;
      all &= run[g] >= wanted;
    }
    if (all) resume = path.size();
  }
  n_matched = int(path.size());
  path.resize(resume);
  return path;
}

int StateManager::attach(SequenceState& seq) {
  check(!seq.attached() && !seq.swapped(), "sequence {} is attached already", seq.id);
  check(!seq.tokens.empty(), "sequence {} has no tokens", seq.id);
  if (seq.n_prompt == 0) seq.n_prompt = int(seq.tokens.size());
  seq.table.resize(groups_.size());
  seq.committed = seq.planned = 0;
  if (!prefix_cache_) return 0;

  seq.node = tree_.root(seq.salt);
  seq.keep_at = {int(seq.tokens.size() - 1) / page_tokens_ * page_tokens_, 0};
  if (seq.reuse) {
    int n_matched = 0;
    std::vector<Node*> path = resumable_path(seq, seq.node, n_matched);
    if (!path.empty()) resume(seq, path);
    seq.keep_at[1] = n_matched * page_tokens_;
    counters_.n_lookups++;
    counters_.n_hits += !path.empty();
    counters_.lookup_tokens += int64_t(seq.tokens.size());
    counters_.hit_tokens += seq.committed;
  }
  tree_.pin(seq.node);
  return seq.committed;
}

void StateManager::resume(SequenceState& seq, std::span<Node* const> path) {
  const int n_blocks = int(path.size());
  seq.node = path.back();
  seq.committed = n_blocks * page_tokens_;
  for (int g = 0; g < n_groups(); g++) {
    Table& t = seq.table[g];
    if (group(g).paged()) t.unit.assign(path.size(), -1);
    const int first = group(g).paged() ? first_page(g, seq.committed) : n_blocks - 1;
    for (int b = n_blocks - 1; b >= first; b--) {
      Node::Held& held = path[b]->held[g];
      (group(g).paged() ? t.unit[b] : t.src) = held.unit;
      held.temporary = false;
      pool(g).retain(held.unit);
      tree_.touch(path[b], g);
    }
  }
}

int StateManager::units_needed(const SequenceState& seq, int g, int rows, int scratch) const {
  const Table& t = seq.table[g];
  if (!group(g).paged()) return scratch > 0 ? scratch : may_write(seq, g) ? 0 : 1;
  int n_pages = (seq.committed + rows - 1) / page_tokens_ + 1, needed = std::max(0, n_pages - int(t.unit.size()));
  for (int p = seq.committed / page_tokens_; p < std::min(n_pages, int(t.unit.size())); p++) needed += pools_[g].refs(t.unit[p]) > 1;
  return needed;
}

// No other sequence reads it, and it is not a snapshot; or it is one, but no other slot is available.
bool StateManager::may_write(const SequenceState& seq, int g) const {
  const UnitPool& units = pools_[g];
  const Table& t = seq.table[g];
  if (t.src == 0) return false;
  auto is_src = [&](const Table::Snapshot& s) { return s.unit == t.src; };
  int as_snapshot = units.cached(t.src) + int(std::ranges::count_if(t.snapshot, is_src));
  return units.refs(t.src) == 1 + as_snapshot && (as_snapshot == 0 || units.n_available() == 0);
}

int32_t StateManager::take(int g) {
  if (pool(g).n_free() == 0) tree_.evict(g);
  return pool(g).take();
}

int StateManager::units_wanted(const SequenceState& seq, int g, int max_rows) const {
  const Table* t = seq.attached() ? &seq.table[g] : nullptr;
  if (!group(g).paged()) return t && t->src > 0 ? 0 : 1;
  if (contiguous_tokens_) return t && !t->unit.empty() ? 0 : run_pages();
  int pages = int(seq.tokens.size()) / page_tokens_ + 1, held = t ? int(t->unit.size() - std::ranges::count(t->unit, -1)) : 0;
  if (group(g).window) pages = std::min(pages, (group(g).window + max_rows) / page_tokens_ + 2);
  return std::max(0, pages - held);
}

bool StateManager::has_room(std::span<const SequenceState* const> seqs, int max_rows) const {
  for (int g = 0; g < n_groups(); g++) {
    int64_t wanted = 0;
    for (const SequenceState* seq : seqs) wanted += units_wanted(*seq, g, max_rows);
    bool in_runs = contiguous_tokens_ && group(g).paged();
    if (wanted > (in_runs ? int64_t(n_runs(g)) * run_pages() : pools_[g].n_available())) return false;
  }
  return true;
}

int StateManager::n_runs(int g) const {
  UnitPool rest = pools_[g];
  int n = 0;
  for (int32_t first; (first = rest.find_run(run_pages())) >= 0; n++) rest.take_run(first, run_pages());
  return n;
}

int64_t StateManager::stranded_units() const {
  int64_t n = 0;
  for (int g = 0; g < n_groups() && contiguous_tokens_; g++)
    if (group(g).paged()) n += pools_[g].n_free() - n_runs(g) * run_pages();
  return n;
}

void StateManager::reset() noexcept {
  tree_.clear();
  for (UnitPool& p : pools_) p.reset();
  for (UnitPool& p : host_pools_) p.reset();
}

bool StateManager::reserve(SequenceState& seq, int rows, int scratch, std::vector<UnitCopy>& copies, int padding) {
  check(seq.table.size() == groups_.size(), "sequence {} is not attached", seq.id);
  check(rows >= 0 && padding >= 0 && rows + padding > 0 && scratch >= 0 && scratch <= rows,
        "sequence {} plans {} rows of which {} have slots of their own, and {} for nothing", seq.id, rows, scratch, padding);
  drop_plan(seq);
  if (contiguous_tokens_ && !take_runs(seq)) return false;
  // Eviction turns idle units into free ones and never changes how many are available, so this count is exact.
  for (int g = 0; g < n_groups(); g++)
    if (units_needed(seq, g, group(g).paged() ? rows + padding : rows, scratch) > pool(g).n_available()) return false;
  for (int g = 0; g < n_groups(); g++) {
    if (group(g).paged())
      plan_pages(seq, g, rows + padding, copies);
    else
      plan_slots(seq, g, rows, scratch, padding);
  }
  seq.planned = rows;
  return true;
}

bool StateManager::take_runs(SequenceState& seq) {
  auto has_its_run = [&](int g) { return !group(g).paged() || !seq.table[g].unit.empty(); };
  for (int g = 0; g < n_groups(); g++)
    if (!has_its_run(g) && pool(g).find_run(run_pages()) < 0) return false;
  for (int g = 0; g < n_groups(); g++) {
    if (has_its_run(g)) continue;
    int32_t first = pool(g).find_run(run_pages());
    pool(g).take_run(first, run_pages());
    seq.table[g].unit.resize(size_t(run_pages()));
    std::iota(seq.table[g].unit.begin(), seq.table[g].unit.end(), first);
  }
  return true;
}

// New pages are zeroed: attention reads whole tiles, and must not find NaN beyond the last row.
void StateManager::plan_pages(SequenceState& seq, int g, int rows, std::vector<UnitCopy>& copies) {
  std::vector<int32_t>& unit = seq.table[g].unit;
  for (int p = seq.committed / page_tokens_; p <= (seq.committed + rows - 1) / page_tokens_; p++) {
    if (size_t(p) == unit.size()) {
      unit.push_back(take(g));
      copies.push_back({g, unit.back(), -1});
    } else if (int32_t shared = unit[p]; pool(g).refs(shared) > 1) {
      unit[p] = take(g);
      copies.push_back({g, unit[p], shared});
      pool(g).release(shared);
    } else if (contiguous_tokens_ && p * page_tokens_ >= seq.committed) {
      copies.push_back({g, unit[p], -1});
    }
  }
}

void StateManager::plan_slots(SequenceState& seq, int g, int rows, int scratch, int padding) {
  Table& t = seq.table[g];
  t.dst.assign(size_t(rows + padding), -1);
  if (rows == 0) return;
  for (int row = rows - scratch; row < rows; row++) t.dst[row] = take(g);
  if (scratch == 0) {
    bool in_place = may_write(seq, g);
    if (in_place) forget_snapshot(seq, g);
    if (in_place) pool(g).retain(t.src);
    t.dst[rows - 1] = in_place ? t.src : take(g);
  }
  if (!publishes(seq)) return;
  // Snapshots, if slots are available. The last row's is free: if a block ends there, the tree shares its slot.
  int last_block_end = (seq.committed + rows) / page_tokens_ * page_tokens_;
  for (int at : {seq.keep_at[0], seq.keep_at[1], last_block_end}) {
    int row = at - seq.committed - 1;
    if (row >= 0 && row < rows && t.dst[row] < 0 && pool(g).n_available() > 0) t.dst[row] = take(g);
  }
}

void StateManager::forget_snapshot(SequenceState& seq, int g) {
  Table& t = seq.table[g];
  if (pool(g).cached(t.src)) tree_.drop(seq.node, g);  // src was published there, or resumed from there
  std::erase_if(t.snapshot, [&](const Table::Snapshot& s) {
    if (s.unit != t.src) return false;
    pool(g).release(s.unit);
    return true;
  });
}

void StateManager::drop_plan(SequenceState& seq) {
  for (int g = 0; g < n_groups(); g++) {
    for (int32_t unit : seq.table[g].dst)
      if (unit >= 0) pool(g).release(unit);
    seq.table[g].dst.clear();
  }
  seq.planned = 0;
}

void StateManager::commit(SequenceState& seq, int n_rows) {
  std::vector<int> rows(size_t(n_rows), 0);
  std::iota(rows.begin(), rows.end(), 0);
  commit(seq, rows);
}

void StateManager::commit(SequenceState& seq, std::span<const int> rows) {
  check(int(rows.size()) <= seq.planned, "sequence {} commits {} rows of {}", seq.id, rows.size(), seq.planned);
  for (int g = 0; g < n_groups(); g++)
    if (!group(g).paged()) accept_slots(seq, g, rows);
  drop_plan(seq);
  seq.committed += int(rows.size());
  publish(seq);
  leave_windows(seq);
}

void StateManager::accept_slots(SequenceState& seq, int g, std::span<const int> rows) {
  Table& t = seq.table[g];
  if (rows.empty()) {
    check(t.dst.empty() || t.dst.back() != t.src, "sequence {} commits no row, but its state was overwritten", seq.id);
    return;
  }
  int32_t last = t.dst[rows.back()];
  check(last >= 0, "sequence {} commits up to row {}, whose state was not kept", seq.id, rows.back());
  for (size_t i = 0; i < rows.size() && publishes(seq); i++) {
    int at = seq.committed + int(i) + 1;
    int32_t unit = t.dst[rows[i]];
    if (unit < 0 || at % page_tokens_ != 0) continue;
    t.snapshot.push_back({at, unit});
    pool(g).retain(unit);
  }
  pool(g).retain(last);
  if (t.src > 0) pool(g).release(t.src);
  t.src = last;
}

// Publishes only known tokens; the rest follows at a later commit.
void StateManager::publish(SequenceState& seq) {
  if (!publishes(seq)) return;
  std::span<const int32_t> tokens(seq.tokens);
  int n_known = std::min(seq.committed, int(tokens.size()));
  while (n_known > 0 && tokens[size_t(n_known) - 1] < 0) n_known--;
  const int n_blocks = n_known / page_tokens_;
  while (seq.node->depth < n_blocks) {
    auto block = tokens.subspan(size_t(seq.node->depth * page_tokens_), size_t(page_tokens_));
    Node* next = tree_.child(seq.node, block);
    const bool grown = !next;
    if (grown) next = tree_.grow(seq.node, block);
    try {
      publish_pages(seq, next);
    } catch (...) {
      if (grown) tree_.remove(next);
      throw;
    }
    tree_.pin(next);
    tree_.unpin(std::exchange(seq.node, next));
  }
  publish_snapshots(seq);
}

// An equal page that is already published replaces ours.
void StateManager::publish_pages(SequenceState& seq, Node* node) {
  for (int g = 0; g < n_groups(); g++) {
    if (!group(g).paged()) continue;
    int32_t& ours = seq.table[g].unit[node->depth - 1];
    int32_t theirs = node->held[g].unit;
    if (ours < 0 || ours == theirs) continue;
    if (theirs < 0) {
      tree_.hold(node, g, ours);
    } else {
      pool(g).retain(theirs);
      pool(g).release(std::exchange(ours, theirs));
    }
  }
}

// Of the snapshots not in keep_at, the tree holds only our last one.
void StateManager::publish_snapshots(SequenceState& seq) {
  for (int g = 0; g < n_groups(); g++) {
    std::vector<Table::Snapshot>& waiting = seq.table[g].snapshot;
    for (size_t i = 0; i < waiting.size();) {
      const Table::Snapshot s = waiting[i];
      if (s.at > seq.node->depth * page_tokens_) {
        i++;
        continue;
      }
      Node* node = PrefixTree::ancestor(seq.node, s.at / page_tokens_);
      if (node->held[g].unit < 0) {
        tree_.hold(node, g, s.unit, s.at != seq.keep_at[0] && s.at != seq.keep_at[1]);
        if (seq.rolling && seq.rolling->depth < node->depth && seq.rolling->held[g].temporary) tree_.drop(seq.rolling, g);
        seq.rolling = node;
      }
      waiting.erase(waiting.begin() + long(i));
      pool(g).release(s.unit);
    }
  }
}

// Releases pages that left the window; a sequence that publishes keeps those that its last block end needs, so that the next turn
// of the conversation can resume there. The tree keeps pages of the prompt, where others may resume, but not those of the answer.
void StateManager::leave_windows(SequenceState& seq) {
  if (contiguous_tokens_) return;
  const int resume_at = publishes(seq) ? seq.committed / page_tokens_ * page_tokens_ : seq.committed;
  for (int g = 0; g < n_groups(); g++) {
    std::vector<int32_t>& unit = seq.table[g].unit;
    for (int p = first_page(g, resume_at) - 1; p >= 0 && unit[p] >= 0; p--) {
      int32_t left = std::exchange(unit[p], -1);
      pool(g).release(left);
      if (pool(g).idle(left) && p * page_tokens_ >= seq.n_prompt) tree_.drop(PrefixTree::ancestor(seq.node, p + 1), g);
    }
  }
}

void StateManager::fork(const SequenceState& parent, SequenceState& child) {
  check(!contiguous_tokens_, "contiguous state cannot be shared");
  check(!child.attached(), "sequence {} is attached already", child.id);
  check(parent.planned == 0 && !parent.table.empty(), "sequence {} can be forked only between its steps", parent.id);
  child.salt = parent.salt;
  child.tokens = parent.tokens;
  child.n_prompt = parent.n_prompt;
  child.committed = parent.committed;
  child.planned = 0;
  child.reuse = parent.reuse;
  child.publish = parent.publish;
  child.table.resize(groups_.size());
  for (int g = 0; g < n_groups(); g++) {
    const Table& from = parent.table[g];
    Table& to = child.table[g];
    int n_pages = std::min(int(from.unit.size()), (parent.committed + page_tokens_ - 1) / page_tokens_);
    to.unit.assign(from.unit.begin(), from.unit.begin() + n_pages);
    for (int32_t unit : to.unit)
      if (unit >= 0) pool(g).retain(unit);
    to.src = from.src;
    if (to.src > 0) pool(g).retain(to.src);
  }
  child.node = parent.node;
  if (child.node) tree_.pin(child.node);
}

void StateManager::release(SequenceState& seq) noexcept {
  for (size_t g = 0; g < seq.host.size(); g++) release_host(seq.host[g], int(g));
  seq.host.clear();
  if (!seq.attached()) {
    seq.committed = 0;
    return;
  }
  drop_plan(seq);
  try {
    publish(seq);
  } catch (const std::bad_alloc&) {  // fewer blocks are shared
  }
  for (Node* node = seq.node; node && node->depth > 0; node = node->parent)
    for (int g = 0; g < n_groups(); g++) {
      int32_t unit = node->held[g].unit;
      if (group(g).paged() && unit >= 0 && unit == seq.table[g].unit[node->depth - 1]) tree_.touch(node, g);
    }
  for (int g = 0; g < n_groups(); g++) {
    const Table& t = seq.table[g];
    for (int32_t unit : t.unit)
      if (unit >= 0) pool(g).release(unit);
    if (t.src > 0) pool(g).release(t.src);
    for (const Table::Snapshot& s : t.snapshot) pool(g).release(s.unit);
  }
  if (seq.node) tree_.unpin(seq.node);
  seq.node = seq.rolling = nullptr;
  seq.keep_at = {};
  seq.table.clear();
  seq.committed = 0;
}

StateStats StateManager::stats() const {
  StateStats stats = counters_;
  stats.n_evictions = tree_.n_evictions();
  for (const UnitPool& p : pools_) stats.group.push_back({p.n_units(), p.n_units() - p.n_available(), p.n_idle(), p.n_free()});
  return stats;
}

void StateManager::check_invariants(std::span<const SequenceState* const> seqs) const {
  tree_.check_invariants();
  std::unordered_map<const Node*, int> pins;
  for (const SequenceState* seq : seqs)
    if (seq->node) pins[seq->node]++;
  for (auto [node, n] : pins) check(node->n_pins == n, "a node of depth {} counts {} pins of {}", node->depth, node->n_pins, n);
  tree_.each(
      [&](const Node& node) { check(node.n_pins == 0 || pins.contains(&node), "a node of depth {} is pinned by nobody", node.depth); });

  for (size_t g = 0; g < pools_.size(); g++) {
    const UnitPool& pool = pools_[g];
    std::vector<int> refs(size_t(pool.n_units()) + 1);
    auto count = [&](int32_t unit) {
      if (unit > 0) refs[unit]++;
    };
    for (const SequenceState* seq : seqs) {
      if (seq->table.empty()) continue;
      for (int32_t unit : seq->table[g].unit) count(unit);
      for (int32_t unit : seq->table[g].dst) count(unit);
      for (const Table::Snapshot& s : seq->table[g].snapshot) count(s.unit);
      count(seq->table[g].src);
    }
    check_host_units(int(g), seqs);
    tree_.each([&](const Node& node) { count(node.held[g].unit); });
    int n_free = 0, n_idle = 0;
    for (int unit = 0; unit <= pool.n_units(); unit++) {
      check(pool.refs(unit) == refs[unit], "unit {} of group {} counts {} references of {}", unit, g, pool.refs(unit), refs[unit]);
      n_free += unit > 0 && pool.refs(unit) == 0;
      n_idle += pool.idle(unit);
    }
    check(n_free == pool.n_free() && n_idle == pool.n_idle(), "group {} counts {} free units of {}, {} idle of {}", g, pool.n_free(),
          n_free, pool.n_idle(), n_idle);
  }
}

}  // namespace mr
