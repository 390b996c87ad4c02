#include "state/memory_plan.h"

#include <algorithm>

#include "core/error.h"

namespace mr {

std::string size_text(int64_t bytes) {
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", double(bytes) / (1 << 10));
  if (bytes < 1 << 30) return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
  return fmt::format("{:.2f} GiB", double(bytes) / (1 << 30));
}

namespace {

constexpr int64_t max_units = std::numeric_limits<int32_t>::max();

int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Memory needed for a number of sequences, pages and snapshots.
struct Planner {
  const StateLayout& layout;
  const StateLimits& limits;

  bool has(StateSpec::Kind kind) const {
    return std::ranges::any_of(layout.groups(), [&](const Group& g) { return g.kind == kind; });
  }
  bool keeps_all() const {
    return std::ranges::any_of(layout.groups(),
                               [&](const Group& g) { return g.kind == StateSpec::Kind::paged && (g.window == 0 || limits.contiguous); });
  }
  // A window group never needs more pages than the groups that keep all tokens, nor more than each sequence's window plus the rows
  // of a step (neither aligned to pages), twice: once for running sequences, once for the prefix tree.
  int64_t units(const Group& g, int n_seqs, int64_t pages, int64_t snapshots) const {
    if (g.kind == StateSpec::Kind::slot) return 1 + int64_t(n_seqs) * (1 + limits.scratch) + snapshots;
    if (g.window == 0 || limits.contiguous) return 1 + pages;
    return 1 + std::min(pages, 2 * n_seqs * (div_up(g.window + limits.max_rows, limits.page_tokens) + 2));
  }
  int64_t unit_bytes(const Group& g) const { return g.bytes * (g.kind == StateSpec::Kind::paged ? limits.page_tokens : 1); }

  int64_t bytes(StateSpec::Kind kind, int n_seqs, int64_t pages, int64_t snapshots) const {
    int64_t sum = 0;
    for (const Group& g : layout.groups())
      if (g.kind == kind) sum += unit_bytes(g) * units(g, n_seqs, pages, snapshots);
    return sum;
  }
  int64_t bytes(int n_seqs, int64_t pages, int64_t snapshots) const {
    return bytes(StateSpec::Kind::paged, n_seqs, pages, snapshots) + bytes(StateSpec::Kind::slot, n_seqs, pages, snapshots);
  }
  int64_t snapshots(int n_seqs) const {
    if (limits.snapshots >= 0 || !has(StateSpec::Kind::slot)) return std::max(0, limits.snapshots);
    int64_t two_each = 2 * int64_t(n_seqs);
    return limits.bytes ? std::min(two_each, limits.bytes / 4 / layout.bytes_per_sequence()) : two_each;
  }
  // The most pages, up to `most`, that fit with n_seqs sequences; 0: none.
  int64_t pages_that_fit(int n_seqs, int64_t most) const {
    int64_t low = 0, high = most;
    while (low < high) {
      int64_t middle = low + (high - low + 1) / 2;
      if (bytes(n_seqs, middle, snapshots(n_seqs)) <= limits.bytes)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // With these pages, or, if no token limit was given, with one page per sequence.
  int seqs_that_fit(int64_t pages) const {
    int n = limits.max_seqs - 1;
    while (n > 0 && bytes(n, limits.max_tokens ? pages : n, snapshots(n)) > limits.bytes) n--;
    return n;
  }
  std::string advice(int64_t pages) const {
    std::string text = fmt::format("give it more (--memory; one sequence needs {})", size_text(bytes(1, limits.max_tokens ? pages : 1, 0)));
    int64_t kept = limits.max_tokens ? pages_that_fit(limits.max_seqs, pages) * limits.page_tokens : 0;
    if (kept > 0) text += fmt::format(", keep at most {} tokens", kept);
    if (int n = seqs_that_fit(pages); n > 0) text += fmt::format(", run at most {} sequences (--max-seqs)", n);
    return text;
  }
};

}  // namespace

MemoryPlan plan_memory(const StateLayout& layout, const StateLimits& limits) {
  Planner planner{layout, limits};
  const int tokens = limits.page_tokens, n_seqs = limits.max_seqs;
  check(tokens > 0 && tokens % 16 == 0, "a page of {} tokens is not a multiple of 16 tokens", tokens);
  check(n_seqs > 0 && limits.max_rows > 0 && limits.scratch >= 0, "a plan for {} sequences of {} rows and {} scratch slots is empty",
        n_seqs, limits.max_rows, limits.scratch);
  const bool bounded = planner.keeps_all();
  check(!bounded || limits.bytes || limits.max_tokens, "neither bytes nor tokens limit the state of {} bytes a token",
        layout.bytes_per_token());

  // At least one page per sequence, or the requested tokens.
  const int64_t least = limits.max_tokens ? div_up(limits.max_tokens, tokens) : n_seqs;
  int64_t pages = bounded ? least : max_units - 1;
  const int64_t snapshots = planner.snapshots(n_seqs);
  if (limits.bytes) {
    int64_t needed = planner.bytes(n_seqs, pages, snapshots);
    if (needed > limits.bytes) {
      std::string advice = planner.advice(pages);
      fail("the state needs {} ({} in pages for {} tokens, {} in slots for {} sequences) but {} are left for it: {}", size_text(needed),
           size_text(planner.bytes(StateSpec::Kind::paged, n_seqs, pages, snapshots)),
           bounded ? std::to_string(pages * tokens) : "the window's",
           size_text(planner.bytes(StateSpec::Kind::slot, n_seqs, pages, snapshots)), n_seqs, size_text(limits.bytes), advice);
    }
    if (bounded && !limits.max_tokens) pages = planner.pages_that_fit(n_seqs, max_units - 1);
  }

  MemoryPlan plan{tokens, {}, bounded ? pages * tokens : MemoryPlan::unbounded, n_seqs};
  for (const Group& g : layout.groups())
    plan.group.push_back({g.kind, g.window, planner.unit_bytes(g), planner.units(g, n_seqs, pages, snapshots), 0, g.layers});
  // Swap space has the same proportions, so that no group runs out of it long before the others.
  const double share = double(limits.host_bytes) / double(std::max<int64_t>(1, plan.bytes()));
  for (MemoryPlan::GroupPlan& g : plan.group) g.n_host = limits.host_bytes ? int64_t(double(g.n_units) * share) : 0;
  return plan;
}

int64_t MemoryPlan::bytes() const {
  int64_t sum = 0;
  for (const GroupPlan& g : group) sum += g.bytes();
  return sum;
}

int64_t MemoryPlan::host_bytes() const {
  int64_t sum = 0;
  for (const GroupPlan& g : group) sum += g.unit_bytes * g.n_host;
  return sum;
}

std::string MemoryPlan::text() const {
  std::string s;
  for (const GroupPlan& g : group) {
    std::string what = !g.paged() ? "slots" : g.window ? fmt::format("pages of window {}", g.window) : "pages";
    std::string each = g.paged() ? fmt::format("{} tokens", page_tokens) : size_text(g.unit_bytes);
    s += fmt::format("{}: {} of {}, {}\n", what, g.n_units - 1, each, size_text(g.bytes()));
  }
  return s;
}

StateStore::StateStore(const MemoryPlan& plan, const std::function<Buffer(size_t)>& allocate) {
  for (const MemoryPlan::GroupPlan& g : plan.group) {
    const int page_tokens = g.paged() ? plan.page_tokens : 0;
    Buffer& buffer = buffers_.emplace_back(allocate ? allocate(size_t(g.bytes())) : Buffer(size_t(g.bytes())));
    memory_.group.push_back({buffer.data(), g.unit_bytes, g.n_units, page_tokens, g.layers});
    Buffer& host = buffers_.emplace_back(size_t(g.unit_bytes * g.n_host));
    host_.group.push_back({host.data(), g.unit_bytes, g.n_host, page_tokens, g.layers});
  }
}

}  // namespace mr
