#include "backend/cuda/sampling.h"

#include <algorithm>
#include <cmath>

#include "backend/sample.h"
#include "core/error.h"

namespace mr::cuda {

static float max_of(const float* x, int64_t n) { return *std::max_element(x, x + n); }
static float sum_exp(const float* x, int64_t n, float max, float factor) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += std::exp(double(x[i] - max) * factor);
  return float(sum);
}
static bool wants_more(const SampleRow& r) { return r.temperature > 0 || r.n_edits || r.n_logprobs; }

Sampling::Sampling(const Launch& at, ThreadPool& pool) : at_(at), pool_(pool) {
  for (Launched& l : launched_) must(cudaEventCreateWithFlags(&l.done, cudaEventDisableTiming));
}
Sampling::~Sampling() {
  for (Launched& l : launched_) {
    cudaEventDestroy(l.done);
    cudaFreeHost(l.choice);
    cudaFreeHost(l.top);
  }
  for (void* p : {static_cast<void*>(choice_.data), static_cast<void*>(top_.data), static_cast<void*>(unchanged_.data),
                  static_cast<void*>(mask_row_.data), static_cast<void*>(mask_.data)})
    cudaFree(p);
}

static int64_t room_for(int64_t n) { return std::max<int64_t>(2 * n, 1024); }

int64_t Sampling::needs(int64_t n_out, int64_t n_edits) {
  return room_for(n_out) * int64_t(sizeof(Choice)) + room_for(n_out * kMostTop) * int64_t(sizeof(TopToken)) + room_for(n_edits) * 4;
}
int64_t Sampling::bytes() const {
  const int64_t words = unchanged_.n + mask_row_.n + mask_.n;
  return choice_.n * int64_t(sizeof(Choice)) + top_.n * int64_t(sizeof(TopToken)) + words * 4;
}

template <class T>
T* Sampling::take(Room<T>& room, int64_t n) {
  if (n > room.n) {
    must(cudaStreamSynchronize(at_.stream));
    must(cudaFree(room.data));
    room = {};
    const int64_t wanted = room_for(n);
    must(cudaMalloc(reinterpret_cast<void**>(&room.data), size_t(wanted) * sizeof(T)));
    room.n = wanted;
  }
  return room.data;
}

void Sampling::make_room(Launched& l) {
  if (l.n <= l.room) return;
  must(cudaFreeHost(l.choice));
  must(cudaFreeHost(l.top));
  l.choice = nullptr;
  l.top = nullptr;
  l.room = 0;
  const int wanted = std::max(2 * l.n, 256);
  must(cudaMallocHost(reinterpret_cast<void**>(&l.choice), size_t(wanted) * sizeof(Choice)));
  must(cudaMallocHost(reinterpret_cast<void**>(&l.top), size_t(wanted) * kMostTop * sizeof(TopToken)));
  l.room = wanted;
}

void Sampling::launch(Tensor logits, const Batch& host, const Batch& device, int64_t n_edits, int32_t* sampled) {
  Launched& l = launched_[n_launched_++ % std::size(launched_)];
  try {
    fill(l, logits, host, device, n_edits, sampled);
  } catch (...) {  // collect() then returns an empty result for this step
    l.n = 0;
    l.drawn.clear();
    throw;
  }
}

void Sampling::fill(Launched& l, Tensor logits, const Batch& host, const Batch& device, int64_t n_edits, int32_t* sampled) {
  l.n = device.n_out;
  l.row.assign(host.sample, host.sample + l.n);
  for (int i = 0; i < l.n; i++)
    if (host.out[i] != Out::token) l.row[size_t(i)] = {};
  l.most_top = int(std::min<int64_t>(kMostTop, logits.shape[1]));
  make_room(l);
  const bool more = std::ranges::any_of(l.row, wants_more), tops = std::ranges::any_of(l.row, &SampleRow::n_logprobs);
  const Matrix x{logits.data, logits.dtype, logits.shape[0], logits.shape[1], logits.stride[0]};
  Choice* choice = take(choice_, l.n);
  TopToken* top = take(top_, int64_t(l.n) * kMostTop);
  fetch_logits(logits, host, l);                     // before they are edited
  if (more || host.mask_row || at_.deterministic) {  // deterministic: one kernel always, so that a row's bits do not depend on other rows
    SampleCall call{x, device.out, device.sample, device.edit};
    call.unchanged = take(unchanged_, n_edits);
    call.choice = choice;
    call.top = top;
    call.sampled = sampled;
    if (host.mask_row) send_masks(call, host, l.n);
    cuda::sample(at_, call);
  } else {
    greedy(at_, x, device.out, choice, sampled);
  }
  must(cudaMemcpyAsync(l.choice, choice, size_t(l.n) * sizeof(Choice), cudaMemcpyDeviceToHost, at_.stream));
  if (tops) must(cudaMemcpyAsync(l.top, top, size_t(l.n) * kMostTop * sizeof(TopToken), cudaMemcpyDeviceToHost, at_.stream));
  must(cudaEventRecord(l.done, at_.stream));
  if (!l.drawn.empty()) draw(logits.shape[1], host, l, sampled);
}

void Sampling::collect(std::vector<Sampled>& out) {
  check(n_collected_ < n_launched_, "no step was launched whose tokens could be collected");
  Launched& l = launched_[n_collected_++ % std::size(launched_)];
  must(cudaEventSynchronize(l.done));
  out.resize(size_t(l.n));
  for (int i = 0; i < l.n; i++) {
    const TopToken* top = l.top + i * kMostTop;
    out[size_t(i)] = {l.choice[i].token, l.choice[i].logprob, {top, top + std::min(l.row[size_t(i)].n_logprobs, l.most_top)}};
  }
  for (size_t i = 0; i < l.drawn.size(); i++) out[size_t(l.drawn[i])] = std::move(l.sampled[i]);
}

void Sampling::send_masks(SampleCall& call, const Batch& host, int n_out) {
  const int64_t words = (call.logits.cols + 31) / 32, n_masks = 1 + *std::max_element(host.mask_row, host.mask_row + n_out);
  int32_t* rows = take(mask_row_, n_out);
  uint32_t* bits = take(mask_, n_masks * words);
  must(cudaMemcpyAsync(rows, host.mask_row, size_t(n_out) * 4, cudaMemcpyHostToDevice, at_.stream));
  must(cudaMemcpyAsync(bits, host.mask, size_t(n_masks * words) * 4, cudaMemcpyHostToDevice, at_.stream));
  call.mask_row = rows;
  call.mask = bits;
}

void Sampling::fetch_logits(Tensor logits, const Batch& host, Launched& l) {
  l.drawn.clear();
  for (int i = 0; i < l.n; i++)
    if (host.out[i] == Out::token && l.row[size_t(i)].n_logprobs > kMostTop) l.drawn.push_back(i);
  if (l.drawn.empty()) return;
  const size_t vocab = size_t(logits.shape[1]);
  logits_.resize(std::max(logits_.size(), vocab * l.drawn.size()));
  for (size_t i = 0; i < l.drawn.size(); i++)
    must(cudaMemcpyAsync(logits_.data() + i * vocab, logits.row<float>(l.drawn[i]), vocab * 4, cudaMemcpyDeviceToHost, at_.stream));
  must(cudaStreamSynchronize(at_.stream));
}

void Sampling::draw(int64_t vocab, const Batch& host, Launched& l, int32_t* sampled) {
  l.sampled.assign(l.drawn.size(), {});
  pool_.parallel(int64_t(l.drawn.size()), 1, [&](int64_t begin, int64_t end, int) {
    SampleScratch scratch;
    for (int64_t d = begin; d < end; d++) {
      const int i = l.drawn[size_t(d)];
      const int32_t mask_row = host.mask_row ? host.mask_row[i] : -1;
      const uint32_t* mask = mask_row < 0 ? nullptr : host.mask + mask_row * ((vocab + 31) / 32);
      sample_row(logits_.data() + d * vocab, vocab, host.sample[i], host.edit, mask, {max_of, sum_exp}, scratch, l.sampled[size_t(d)]);
    }
  });
  for (size_t d = 0; d < l.drawn.size(); d++)
    must(cudaMemcpyAsync(sampled + l.drawn[d], &l.sampled[d].token, 4, cudaMemcpyHostToDevice, at_.stream));
  must(cudaStreamSynchronize(at_.stream));
}

}  // namespace mr::cuda
