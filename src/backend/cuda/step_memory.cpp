#include "backend/cuda/step_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "core/error.h"

namespace mr::cuda {

static constexpr int kTile = 16;          // tokens that a warp of a decode processes at a time
static constexpr int kShortest = 64;      // fewest tokens of an item
static constexpr int kFixed = 100;        // fixed cost of an item, in tokens
static constexpr int kMostItems = 128;    // per sequence
static constexpr int kSharedLeast = 256;  // shortest prefix worth sharing, among at least kSharers sequences
static constexpr int kSharers = 4, kSharedTile = 128;
static constexpr int64_t kLeastBytes = 4 << 20;
static constexpr int kMostParts = 8;    // of a shared prefix
static constexpr int kMostRounds = 8;   // waves of items over the workers, unless every sequence is a single item
static constexpr int kMostSpans = 512;  // partial results of deterministic items: one for each span

// Length of a sequence's pieces: equal, at most `longest` rounded up to `unit`.
static int piece(int length, int longest, int unit) {
  const int n = (length + longest - 1) / longest;
  return ((length + n - 1) / n + unit - 1) / unit * unit;
}

StepMemory::StepMemory(cudaStream_t stream, const Rules& rules) : stream_(stream), rules_(rules) {
  for (cudaEvent_t& e : copied_) must(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
}
StepMemory::~StepMemory() {
  for (cudaEvent_t e : copied_) cudaEventDestroy(e);
  for (std::byte* p : host_) cudaFreeHost(p);
  cudaFree(device_);
}

// Splits all sequences into pieces of about `most` tokens at most, longest first. Returns the estimated time of the workers in
// tokens: whole waves, each as long as its longest piece, and a fraction of a piece for imbalance between workers.
int64_t StepMemory::cut_into(int most, int workers) {
  for (Own& own : own_) {
    own.piece = piece(own.length, most, rules_.deterministic ? kSpan : kTile);
    own.n = (own.length + own.piece - 1) / own.piece;
  }
  std::ranges::sort(own_, [](const Own& a, const Own& b) { return a.piece != b.piece ? a.piece > b.piece : a.seq < b.seq; });
  int64_t cost = 3 * most / 8, n = 0;
  for (const Own& own : own_) {
    const int64_t rounds = (n + own.n + workers - 1) / workers - (n + workers - 1) / workers;
    cost += rounds * (kFixed + own.piece);
    n += own.n;
  }
  return cost;
}

// Splits the keys after the shared prefix of each sequence of one row into pieces of the length that minimizes the estimated time.
void StepMemory::cut(const Batch& b, int workers) {
  own_.clear();
  int longest = 0;
  for (int s = 0; s < b.n_seqs; s++)
    if (b.rows(s) == 1) {
      own_.push_back({s, b.context[s] + 1 - prefix_[size_t(s)].tokens});
      longest = std::max(longest, own_.back().length);
    }
  int best = longest;
  int64_t least = INT64_MAX;
  const int hurry = std::max(1, 2048 / std::max(1, int(own_.size())));  // with many sequences, tries fewer lengths
  for (int n = 1; n <= kMostItems && (n == 1 || longest / n >= kShortest); n += 1 + n / hurry) {
    const int most = (longest + n - 1) / n;
    const int64_t cost = cut_into(most, workers);
    if (n > 1 && n_items() > most_items(int64_t(own_.size()), workers)) break;
    if (cost < least) {
      least = cost;
      best = most;
    }
  }
  if (!own_.empty()) cut_into(best, workers);
}

int64_t StepMemory::n_items() const {
  int64_t n = 0;
  for (const Own& own : own_) n += own.n;
  return n;
}

int64_t StepMemory::n_spans() const {
  int64_t n = 0;
  for (const Own& own : own_) n += own.spans();
  return n;
}

int64_t StepMemory::most_items(int64_t n_seqs, int workers) { return std::max<int64_t>(n_seqs, int64_t(kMostRounds) * workers); }

// Grid sizes are rounded up, so that few graphs are captured; the padding items are empty.
static int64_t grid_of(int64_t n_items) {
  const int64_t step = std::max<int64_t>(16, int64_t(std::bit_floor(uint64_t(n_items))) / 8);
  return (n_items + step - 1) / step * step;
}

int64_t StepMemory::most_grid(int64_t n_seqs) const {
  return grid_of(std::max(most_items(n_seqs, rules_.workers), most_items(n_seqs, rules_.chained)));
}

int64_t StepMemory::most_slots(int64_t n_seqs) const {
  return rules_.deterministic ? kMostSpans : most_grid(n_seqs) + (rules_.share ? n_seqs * kMostParts : 0);
}

int64_t StepMemory::most_bytes(const StepLimits& most, const StateGroups& groups) const {
  constexpr int64_t word = sizeof(int32_t), smallest_page = 16, gaps = 4096;
  const int64_t a_token = (3 + groups.slots) * word + sizeof(uint64_t);  // including a tree's parents and ancestors
  const int64_t a_sequence = (4 + groups.paged + groups.slots) * word + sizeof(SharedRow);
  const int64_t an_output = 2 * word + sizeof(SampleRow) + kUsualEdits * sizeof(LogitEdit);
  const int64_t items = 2 * most_grid(most.sequences) * sizeof(DecodeItem);
  const int64_t shared = rules_.share ? std::bit_ceil(uint64_t(most.sequences * kMostParts + 16)) * sizeof(SharedTile) : 0;
  const int64_t tiles = (most.tokens / kPrefillRows + most.sequences) * sizeof(PrefillTile);
  const int64_t pages = std::min<int64_t>(most.context, kUsualContext) / smallest_page + 1;
  const int64_t table = std::bit_ceil(uint64_t(most.sequences * pages + 64)) * word;
  const int64_t arrays = most.tokens * a_token + most.sequences * a_sequence + most.outputs * an_output;
  return std::max(arrays + items + shared + tiles + groups.paged * table + gaps, kLeastBytes);
}

// Finds sequences of one row with common leading pages, and splits these into tiles of sequences and parts of tokens.
void StepMemory::share_prefixes(const Batch& b, const StateMemory& state) {
  prefix_.assign(size_t(b.n_seqs), {});
  shared_.clear();
  shared_rows_.clear();
  n_shared_ = 0;
  int group = -1;
  for (size_t g = 0; g < b.group.size(); g++)
    if (state.group[g].page_tokens) group = group < 0 ? int(g) : -2;
  if (!rules_.share || rules_.deterministic || group < 0) return;
  const GroupTable& table = b.group[size_t(group)];
  const int page = state.group[size_t(group)].page_tokens;
  std::map<int32_t, std::vector<int>> by_page;
  for (int s = 0; s < b.n_seqs; s++)
    if (b.rows(s) == 1 && b.context[s] >= kSharedLeast && table.unit[table.begin[s]] >= 0) by_page[table.unit[table.begin[s]]].push_back(s);
  for (const auto& [unit, seqs] : by_page) {
    if (int(seqs.size()) < kSharers) continue;
    const int32_t* first = table.unit + table.begin[seqs[0]];
    int n = b.context[seqs[0]] / page;
    for (int s : seqs)
      n = std::min(n, int(std::mismatch(first, first + std::min(n, b.context[s] / page), table.unit + table.begin[s]).first - first));
    const int tokens = n * page, tiles = (int(seqs.size()) + rules_.share - 1) / rules_.share;
    if (tokens < kSharedLeast) continue;
    const int parts = std::clamp(rules_.workers / 2 / tiles, 1, std::min(kMostParts, tokens / kSharedLeast));
    const int size = ((tokens + parts - 1) / parts + kSharedTile - 1) / kSharedTile * kSharedTile;
    for (int s : seqs) prefix_[size_t(s)] = {tokens, (tokens + size - 1) / size};
    for (size_t i = 0; i < seqs.size(); i += size_t(rules_.share))
      for (int p = 0; p * size < tokens; p++)
        shared_.push_back({int32_t(shared_rows_.size() + i), int32_t(std::min(seqs.size() - i, size_t(rules_.share))), seqs[0], p * size,
                           std::min(tokens, (p + 1) * size), p});
    for (int s : seqs) shared_rows_.push_back({b.row_begin[s], s});  // `slot` holds the sequence until make_plan() knows the slot
  }
  n_shared_ = int32_t(shared_.size());
}

// Items of the sequences of one row for this many workers, longest first; returns the number of partial results.
int32_t StepMemory::make_items(const Batch& b, const StateMemory& state, int workers, std::vector<DecodeItem>& items) {
  items.clear();
  cut(b, workers);
  if (rules_.deterministic && n_spans() > kMostSpans) cut_into(1 << 28, workers);  // whole sequences need no partial results
  int32_t n_slots = 0;
  for (const Own& own : own_) {
    const int s = own.seq;
    Prefix& prefix = prefix_[size_t(s)];
    DecodeItem item{s, b.row_begin[s], b.context[s], 0, 0, 0, prefix.parts + own.n, 0, prefix.parts, {}};
    for (size_t g = 0; g < std::min(b.group.size(), std::size(item.table)); g++)
      if (state.group[g].page_tokens) item.table[g] = b.group[g].begin[s];
    prefix.slot = n_slots;
    for (int i = 0; i < own.n; i++) {
      item.index = prefix.parts + i;
      item.slot = n_slots + (rules_.deterministic ? i * own.piece / kSpan : item.index);
      item.begin = prefix.tokens + i * own.piece;
      item.end = std::min(item.begin + own.piece, prefix.tokens + own.length);
      items.push_back(item);
    }
    n_slots += rules_.deterministic ? own.spans() : item.count;
  }
  return n_slots;
}

// Sequences of one row are split into items, the others into tiles of rows; both longest first.
void StepMemory::make_plan(const Batch& b, const StateMemory& state) {
  items_.clear();
  chained_.clear();
  tiles_.clear();
  own_.clear();
  share_prefixes(b, state);
  const int32_t n_slots = make_items(b, state, rules_.workers, items_);
  for (int s = 0; s < b.n_seqs; s++)
    if (b.rows(s) > 1 || rules_.deterministic)
      for (int r = 0; r < b.rows(s); r += kPrefillRows)
        tiles_.push_back({s, r, b.row_begin[s], b.rows(s), b.context[s], b.corner[s] == Corner::causal});
  for (SharedRow& row : shared_rows_) row.slot = prefix_[size_t(row.slot)].slot;
  std::stable_sort(tiles_.begin(), tiles_.end(),
                   [&](const PrefillTile& x, const PrefillTile& y) { return b.context[x.seq] + x.row > b.context[y.seq] + y.row; });
  const auto rest = std::stable_partition(tiles_.begin(), tiles_.end(), [&](const PrefillTile& t) { return b.rows(t.seq) == 1; });
  plan_ = {};
  plan_.n_single = int(rest - tiles_.begin());
  plan_.n_items = int(items_.size());
  plan_.n_tiles = int(tiles_.size());
  auto padded = [](std::vector<DecodeItem>& items) {
    items.resize(size_t(grid_of(int64_t(items.size()))));
    return int(items.size());
  };
  plan_.grid = padded(items_);
  plan_.shared_room = n_shared_ ? int(std::bit_ceil(unsigned(std::max(n_shared_, 16)))) : 0;
  shared_.resize(size_t(plan_.shared_room));
  // In deterministic mode one row is in the chain of several rows.
  const bool chained = plan_.n_tiles == (rules_.deterministic ? plan_.n_single : 0) && !n_shared_ && b.n_seqs <= rules_.chain_rows &&
                       (rules_.deterministic ? rules_.chain_rows : b.n_seqs) > 1;
  const int32_t n_chained_slots = chained ? make_items(b, state, rules_.chained, chained_) : 0;
  plan_.n_chained = padded(chained_);
  plan_.slots = rules_.deterministic ? std::max(n_slots, n_chained_slots)
                                     : std::max(plan_.grid, plan_.n_chained) + (plan_.shared_room ? b.n_seqs * kMostParts : 0);
}

// Reserves `room` elements (at least n), the first n copied from `from`; null stays null.
template <class T>
const T* StepMemory::put(const T* from, int64_t n, int64_t room) {
  if (!from && n) return nullptr;
  const size_t begin = (used_ + 15) / 16 * 16;
  layout_ = (layout_ ^ begin) * 0x9e3779b97f4a7c15u;
  used_ = begin + size_t(std::max(n, room)) * sizeof(T);
  if (used_ <= size_ && n) std::memcpy(host_[turn_] + begin, from, size_t(n) * sizeof(T));
  return reinterpret_cast<const T*>(device_ + begin);
}

void StepMemory::write(const Batch& h, Batch& b, const StateMemory& state) {
  used_ = layout_ = 0;
  b.token = put(h.token, h.n_tokens, 0);
  b.position = put(h.position, h.n_tokens, 0);
  b.row_begin = put(h.row_begin, h.n_seqs + 1, 0);
  b.context = put(h.context, h.n_seqs, 0);
  b.prompt_len = put(h.prompt_len, h.n_seqs, 0);
  b.corner = put(h.corner, h.n_seqs, 0);
  b.out_row = put(h.out_row, h.n_out, 0);
  b.out = put(h.out, h.n_out, 0);
  const bool trees = std::find(h.corner, h.corner + h.n_seqs, Corner::bits) != h.corner + h.n_seqs;
  b.parent = trees ? put(h.parent, h.n_tokens, 0) : nullptr;
  b.ancestors = trees ? put(h.ancestors, h.n_tokens, 0) : nullptr;
  plan_.item = put(items_.data(), plan_.grid, 0);
  plan_.chained = put(chained_.data(), plan_.n_chained, 0);
  plan_.shared = put(shared_.data(), plan_.shared_room, 0);
  plan_.shared_row = put(shared_rows_.data(), int64_t(shared_rows_.size()), h.n_seqs);
  plan_.n_shared = put(&n_shared_, 1, 0);
  plan_.tile = put(tiles_.data(), int64_t(tiles_.size()), 0);
  for (size_t g = 0; g < h.group.size(); g++) {
    const GroupTable& from = h.group[g];
    const bool paged = state.group[g].page_tokens > 0;
    tables_[g] = {};
    tables_[g].begin = paged ? put(from.begin, h.n_seqs + 1, 0) : nullptr;
    tables_[g].src = paged ? nullptr : put(from.src, h.n_seqs, 0);
    tables_[g].dst = paged ? nullptr : put(from.dst, h.n_tokens, 0);
  }
  for (size_t g = 0; g < h.group.size(); g++) {
    if (state.group[g].page_tokens == 0) continue;
    const int64_t n = h.group[g].begin[h.n_seqs];
    tables_[g].unit = put(h.group[g].unit, n, int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(n, 64)))));
  }
  // Sampling's arrays: no graph reads them, so they are not part of the layout.
  const uint64_t layout = layout_;
  n_edits_ = 0;
  for (int i = 0; h.sample && i < h.n_out; i++) n_edits_ = std::max<int64_t>(n_edits_, h.sample[i].edit_begin + h.sample[i].n_edits);
  b.sample = put(h.sample, h.n_out, 0);
  b.edit = n_edits_ ? put(h.edit, n_edits_, 0) : nullptr;
  layout_ = layout;
  b.group = tables_;
}

void StepMemory::reserve(int64_t bytes) {
  if (size_t(bytes) <= size_) return;
  must(cudaStreamSynchronize(stream_));
  size_ = 0;
  for (std::byte*& p : host_) cudaFreeHost(std::exchange(p, nullptr));
  cudaFree(std::exchange(device_, nullptr));
  moves_++;
  for (std::byte*& p : host_) must(cudaMallocHost(reinterpret_cast<void**>(&p), size_t(bytes)));
  must(cudaMalloc(reinterpret_cast<void**>(&device_), size_t(bytes)));
  size_ = size_t(bytes);
}

Batch StepMemory::upload(const Batch& h, const StateMemory& state) {
  Batch b = h;
  make_plan(h, state);
  tables_.resize(h.group.size());
  turn_ ^= 1;
  must(cudaEventSynchronize(copied_[turn_]));
  write(h, b, state);
  if (used_ > size_) {  // too small: the first pass has computed the size
    reserve(std::max(int64_t(used_ * 2), kLeastBytes));
    write(h, b, state);
  }
  must(cudaMemcpyAsync(device_, host_[turn_], used_, cudaMemcpyHostToDevice, stream_));
  must(cudaEventRecord(copied_[turn_], stream_));
  return b;
}

}  // namespace mr::cuda
