#include "backend/cuda/step_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"

namespace mr::cuda {

static constexpr int kBlocksPerSm = 12;  // that a decode should have, over all K/V heads: more than run at once, so that they level out
static constexpr int kHeads = 8;         // K/V heads that the plan counts with
static constexpr int kShortest = 64;     // tokens of an item, at least

StepMemory::StepMemory(cudaStream_t stream) : stream_(stream) {
  for (cudaEvent_t& e : copied_) must(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
}
StepMemory::~StepMemory() {
  for (cudaEvent_t e : copied_) cudaEventDestroy(e);
  for (std::byte* p : host_) cudaFreeHost(p);
  cudaFree(device_);
}

// Sequences of one row are cut into items, so that all multiprocessors have work; the others into tiles of rows, longest first.
void StepMemory::make_plan(const Batch& b, int n_sm) {
  items_.clear(), tiles_.clear();
  int64_t total = 0;
  int n_decode = 0;
  for (int s = 0; s < b.n_seqs; s++)
    if (b.rows(s) == 1) total += b.context[s] + 1, n_decode++;
  const int wanted = std::max(1, n_sm * kBlocksPerSm / kHeads);
  const int64_t share = std::max<int64_t>((total / wanted + kShortest) / kShortest * kShortest, kShortest);
  for (int s = 0; s < b.n_seqs; s++) {
    const int length = b.context[s] + b.rows(s);
    if (b.rows(s) == 1) {
      const int count = int((length + share - 1) / share);
      for (int i = 0; i < count; i++)
        items_.push_back({s, int32_t(i * share), int32_t(std::min<int64_t>((i + 1) * share, length)), i, count});
    } else {
      for (int r = 0; r < b.rows(s); r += kPrefillRows) tiles_.push_back({s, r});
    }
  }
  std::stable_sort(tiles_.begin(), tiles_.end(),
                   [&](const PrefillTile& x, const PrefillTile& y) { return b.context[x.seq] + x.row > b.context[y.seq] + y.row; });
  plan_ = {};
  plan_.n_items = int(items_.size()), plan_.n_tiles = int(tiles_.size());
  plan_.grid = n_decode ? wanted + n_decode : 0;
}

// Room for `room` elements, of which the first n are copied from `from`; null stays null.
template <class T>
const T* StepMemory::put(const T* from, int64_t n, int64_t room) {
  if (!from && n) return nullptr;
  const size_t begin = (used_ + 15) / 16 * 16;
  used_ = begin + size_t(std::max(n, room)) * sizeof(T);
  if (used_ <= size_ && n) std::memcpy(host_[turn_] + begin, from, size_t(n) * sizeof(T));
  return reinterpret_cast<const T*>(device_ + begin);
}

void StepMemory::write(const Batch& h, Batch& b, const StateMemory& state) {
  used_ = 0;
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
  const int32_t n_items = int32_t(items_.size());
  plan_.n_items_at = put(&n_items, 1, 0);
  plan_.item = put(items_.data(), n_items, plan_.grid);
  plan_.tile = put(tiles_.data(), int64_t(tiles_.size()), 0);
  for (size_t g = 0; g < h.group.size(); g++) {
    const GroupTable& from = h.group[g];
    GroupTable& to = tables_[g];
    to = {};
    if (state.group[g].page_tokens == 0) {
      to.src = put(from.src, h.n_seqs, 0);
      to.dst = put(from.dst, h.n_tokens, 0);
    } else {
      const int64_t n = from.begin[h.n_seqs];
      to.begin = put(from.begin, h.n_seqs + 1, 0);
      to.unit = put(from.unit, n, int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(n, 64)))));
    }
  }
  b.group = tables_;
}

Batch StepMemory::upload(const Batch& h, const StateMemory& state, int n_sm) {
  Batch b = h;
  make_plan(h, n_sm);
  tables_.resize(h.group.size());
  turn_ ^= 1;
  must(cudaEventSynchronize(copied_[turn_]));
  write(h, b, state);
  if (used_ > size_) {  // the first pass has counted
    must(cudaStreamSynchronize(stream_));
    for (std::byte* p : host_) cudaFreeHost(p);
    cudaFree(device_);
    size_ = std::max<size_t>(used_ * 2, size_t(4) << 20);
    for (std::byte*& p : host_) must(cudaMallocHost(reinterpret_cast<void**>(&p), size_));
    must(cudaMalloc(reinterpret_cast<void**>(&device_), size_));
    moves_++;
    write(h, b, state);
  }
  must(cudaMemcpyAsync(device_, host_[turn_], used_, cudaMemcpyHostToDevice, stream_));
  must(cudaEventRecord(copied_[turn_], stream_));
  return b;
}

}  // namespace mr::cuda
