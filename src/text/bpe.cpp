// Two algorithms with one result: short pieces are scanned for the best pair until none is left, long ones keep a heap of
// candidates. The best pair has the lowest rank (or highest score); ties go to the leftmost.
#include "text/bpe.h"

#include <fmt/format.h>

#include <queue>

#include "text/unicode.h"

namespace mr {

namespace {

constexpr uint64_t no_key = ~uint64_t{0};
constexpr size_t short_piece = 24;  // symbols; below it scanning beats a heap
constexpr size_t merge_cost = 64;   // nanoseconds, roughly

uint64_t pair_key(int32_t left, int32_t right) { return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right); }

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges) {
  int bits = 4;
  while ((size_t{1} << bits) < merges.size() * 2) ++bits;
  shift_ = 64 - bits;
  entries_.assign(size_t{1} << bits, {no_key, 0, 0});
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    uint64_t key = pair_key(merge.left, merge.right);
    entries_[slot(key)] = {key, static_cast<int32_t>(rank), merge.result};  // a pair listed twice keeps its last rank
  }
}

size_t MergeTable::slot(uint64_t key) const {
  size_t at = (key * 0x9E3779B97F4A7C15u) >> shift_;
  while (entries_[at].key != key && entries_[at].key != no_key) at = (at + 1) & (entries_.size() - 1);
  return at;
}

const MergeTable::Entry* MergeTable::find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const Entry& entry = entries_[slot(pair_key(left, right))];
  return entry.key == no_key ? nullptr : &entry;
}

// A substring of the piece; symbols form a linked list. length 0: merged into its left neighbour.
struct Bpe::Symbol {
  uint32_t begin, length;
  int32_t id;  // -1: not in the vocabulary
  int32_t prev, next;
};

// The union of symbol `left` and its right neighbour. `cost` orders merges; a candidate whose `length` no longer fits is stale.
struct Bpe::Candidate {
  double cost;
  int32_t left;
  int32_t result;
  uint32_t length;
  bool operator>(const Candidate& other) const { return cost != other.cost ? cost > other.cost : left > other.left; }
};

Bpe::Bpe(const TokenizerData& data) : data_(data), merges_(data.merges) {
  vocabulary_.reserve(data.pieces.size());
  for (size_t id = 0; id < data.pieces.size(); ++id) {
    if (!data.pieces[id].empty()) vocabulary_.emplace(data.pieces[id], static_cast<int32_t>(id));
  }
  for (int byte = 0; byte < 256; ++byte) {
    char c = static_cast<char>(byte);
    byte_id_[byte] = find({&c, 1});
    fallback_id_[byte] = find(fmt::format("<0x{:02X}>", byte));
  }
}

int32_t Bpe::find(std::string_view piece) const {
  auto found = vocabulary_.find(piece);
  return found == vocabulary_.end() ? -1 : found->second;
}

void Bpe::add_character(std::string_view piece, size_t begin, size_t length, std::vector<Symbol>& symbols) const {
  auto add = [&](size_t at, size_t bytes, int32_t id) {
    symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(bytes), id, 0, 0});
  };
  int32_t id = length == 1 && data_.byte_level ? byte_id_[static_cast<unsigned char>(piece[begin])] : find(piece.substr(begin, length));
  if (id >= 0 || !data_.scores.empty()) return add(begin, length, id);
  if (data_.byte_fallback) {
    bool all = true;
    for (size_t i = 0; i < length; ++i) all &= fallback_id_[static_cast<unsigned char>(piece[begin + i])] >= 0;
    for (size_t i = 0; all && i < length; ++i) add(begin + i, 1, fallback_id_[static_cast<unsigned char>(piece[begin + i])]);
    if (all) return;
  }
  if (data_.unknown < 0) return;  // dropped, as the `tokenizers` library does
  if (data_.fuse_unknown && !symbols.empty() && symbols.back().id == data_.unknown) {
    symbols.back().length += static_cast<uint32_t>(length);
  } else {
    add(begin, length, data_.unknown);
  }
}

void Bpe::start_symbols(std::string_view piece, std::vector<Symbol>& symbols, TimedLoop& loop) const {
  for (size_t pos = 0; pos < piece.size();) {
    loop.work(merge_cost);
    size_t length = data_.byte_level ? 1 : std::min(code_point_length(static_cast<unsigned char>(piece[pos])), piece.size() - pos);
    add_character(piece, pos, length, symbols);
    pos += length;
  }
  auto n = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols[i].prev = i - 1;
    symbols[i].next = i + 1 < n ? i + 1 : -1;
  }
}

bool Bpe::candidate(std::string_view piece, const std::vector<Symbol>& symbols, int32_t left, Candidate& out) const {
  const Symbol& a = symbols[left];
  if (a.next < 0) return false;
  const Symbol& b = symbols[a.next];
  uint32_t length = a.length + b.length;
  if (data_.scores.empty()) {
    const MergeTable::Entry* entry = merges_.find(a.id, b.id);
    if (entry == nullptr) return false;
    out = {static_cast<double>(entry->rank), left, entry->result, length};
    return true;
  }
  int32_t id = find(piece.substr(a.begin, length));
  if (id < 0) return false;
  out = {-static_cast<double>(data_.scores[id]), left, id, length};
  return true;
}

void Bpe::merge_short(std::string_view piece, std::vector<Symbol>& symbols) const {
  Candidate pairs[short_piece];  // [i]: the pair of symbols i and i + 1
  size_t n = symbols.size();
  auto refresh = [&](size_t i) {
    symbols[i].next = i + 1 < n ? static_cast<int32_t>(i + 1) : -1;
    if (!candidate(piece, symbols, static_cast<int32_t>(i), pairs[i])) pairs[i].left = -1;
  };
  for (size_t i = 0; i < n; ++i) refresh(i);
  while (n > 1) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (pairs[i].left >= 0 && (best == n || pairs[i].cost < pairs[best].cost)) best = i;
    }
    if (best == n) break;
    symbols[best].id = pairs[best].result;
    symbols[best].length = pairs[best].length;
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    refresh(best);
    if (best > 0) refresh(best - 1);
  }
  symbols.resize(n);
}

void Bpe::merge_long(std::string_view piece, std::vector<Symbol>& symbols, TimedLoop& loop) const {
  std::vector<Candidate> room;
  room.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(), std::move(room));
  auto offer = [&](int32_t left) {
    Candidate pair;
    if (left >= 0 && candidate(piece, symbols, left, pair)) queue.push(pair);
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) {
    loop.work(merge_cost);
    offer(i);
  }
  while (!queue.empty()) {
    loop.work(merge_cost);
    Candidate pair = queue.top();
    queue.pop();
    Symbol& left = symbols[pair.left];
    if (left.length == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (left.length + right.length != pair.length) continue;  // one side has grown since
    left.id = pair.result;
    left.length = pair.length;
    right.length = 0;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].prev = pair.left;
    offer(left.prev);
    offer(pair.left);
  }
  std::erase_if(symbols, [](const Symbol& s) { return s.length == 0; });
}

void Bpe::encode(const TextPieces& pieces, std::vector<int32_t>& ids, const Allowance& allowance, size_t& longest) const {
  TimedLoop loop(allowance, "encoding the text");
  size_t own = 0;
  for (TextRange range : pieces.ranges) own = std::max(own, range.end - range.begin);
  if (own > longest) allowance.hold((own - longest) * (sizeof(Symbol) + 2 * sizeof(Candidate)));
  longest = std::max(longest, own);
  std::vector<Symbol> symbols;
  symbols.reserve(own);
  std::unordered_map<std::string_view, TextRange> seen;  // words recur: where in `ids` the first occurrence lies
  for (TextRange range : pieces.ranges) {
    loop.work(merge_cost);
    std::string_view piece(pieces.text.data() + range.begin, range.end - range.begin);
    bool keep = piece.size() > 3 && piece.size() < 64 && seen.size() < 10'000;
    auto [known, fresh] = keep ? seen.try_emplace(piece) : std::pair{seen.find(piece), false};
    if (!fresh && known != seen.end()) {
      for (size_t i = known->second.begin; i < known->second.end; ++i) ids.push_back(ids[i]);
      continue;
    }
    size_t begin = ids.size();
    encode_piece(piece, symbols, loop, ids);
    if (fresh) known->second = {begin, ids.size()};
  }
}

void Bpe::encode_piece(std::string_view piece, std::vector<Symbol>& symbols, TimedLoop& loop, std::vector<int32_t>& ids) const {
  if (data_.ignore_merges) {
    if (int32_t whole = find(piece); whole >= 0) {
      ids.push_back(whole);
      return;
    }
  }
  symbols.clear();
  start_symbols(piece, symbols, loop);
  if (symbols.size() <= short_piece) {
    merge_short(piece, symbols);
  } else {
    merge_long(piece, symbols, loop);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
      continue;
    }
    for (uint32_t i = 0; i < symbol.length; ++i) {  // only with scores: a character without a piece
      int32_t id = fallback_id_[static_cast<unsigned char>(piece[symbol.begin + i])];
      if (id < 0) id = data_.unknown;
      if (id >= 0) ids.push_back(id);
    }
  }
}

}  // namespace mr
