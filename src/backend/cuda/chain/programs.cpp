#include "backend/cuda/chain/programs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace mr::cuda {

void run_alone(const Launch& at, const ChainStep& step) {
  switch (step.kind) {
    case ChainStep::Kind::outer:
      return outer_scan(at, step.outer.rows, step.outer.shape, step.outer.slots, step.outer.recurrence);
    case ChainStep::Kind::select:
      return select_scan(at, step.select.call, step.select.slots);
    case ChainStep::Kind::route:
      return route_normed(at, step.route.call);
    default: {
      const ExpertsStep& e = step.experts;
      const Product& p = e.product;
      if (p.gated) return grouped_gate_one(at, p.y, e.x, e.first, e.second, e.n, e.expert, p.activation);
      return grouped_sum_one(at, p.y, e.x, e.first, e.n, e.expert, e.weight, p.next);
    }
  }
}

static constexpr size_t kBlock = 1 << 20;

template <class T>
static T* zeros(int64_t n, cudaStream_t stream) {
  void* p = nullptr;
  must(cudaMalloc(&p, size_t(n) * sizeof(T)));
  must(cudaMemsetAsync(p, 0, size_t(n) * sizeof(T), stream));
  return static_cast<T*>(p);
}

static int64_t n_partial(const Launch& at) { return int64_t(at.n_sm) * kGroup * (128 + kPartExtra); }
static int64_t n_arrived(const Launch& at) { return 2 + at.n_sm; }

ChainPrograms::ChainPrograms(const Launch& at, int least) : at_(at), least_(size_t(least)) {
  must(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
  memory_.partial = zeros<float>(n_partial(at), at.stream);
  memory_.arrived = zeros<unsigned>(n_arrived(at), at.stream);
}
int64_t ChainPrograms::needs(int64_t n_steps) const {
  return n_partial(at_) * 4 + n_arrived(at_) * 4 + std::max(n_steps * int64_t(sizeof(RowsStep)), int64_t(kBlock));
}
int64_t ChainPrograms::bytes() const { return n_partial(at_) * 4 + n_arrived(at_) * 4 + int64_t(passing_.size); }
ChainPrograms::~ChainPrograms() {
  forget();
  cudaFree(passing_.data);
  cudaFree(memory_.partial);
  cudaFree(memory_.arrived);
  cudaStreamDestroy(side_);
}

int64_t rows_of(const ChainStep& s) { return s.attends() ? s.attend.q.rows : s.kind == ChainStep::Kind::product ? s.product.x.rows : 1; }

// In deterministic mode one row uses the chain of several rows.
bool ChainPrograms::can_take(const ChainStep& step) const {
  return rows_of(step) == 1 && !at_.deterministic ? can_chain(at_, step) : can_chain_rows(at_, step);
}

// "chain of 2: product 4096x14336 attend"
static std::string text_of(const std::vector<ChainStep>& steps) {
  static constexpr const char* name[] = {"product", "attend", "outer", "select", "route", "experts"};
  std::string text = fmt::format("chain of {}:", steps.size());
  for (const ChainStep& s : steps) {
    text += fmt::format(" {}", name[int(s.kind)]);
    if (s.kind == ChainStep::Kind::product) text += fmt::format(" {}x{}", s.product.out, s.product.in);
  }
  return text;
}

void ChainPrograms::launch(const std::vector<ChainStep>& steps, const DecodePlan& plan) {
  const int n = int(steps.size()), rows = int(rows_of(steps[0]));
  at_.log->note([&] { return text_of(steps); });
  if (rows == 1 && !at_.deterministic) return chain(at_, steps.data(), on_device(steps), n, memory_);
  std::vector<RowsStep> program;
  for (const ChainStep& step : steps) program.push_back(rows_step(at_, step));
  chain_rows(at_, on_device(program), n, rows, memory_, plan);
}

void ChainPrograms::forget() {
  for (Block& b : captured_) cudaFree(b.data);
  captured_.clear();
}

// Allows allocations while a graph is captured; they do not become part of the graph.
struct Relaxed {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  Relaxed() { must(cudaThreadExchangeStreamCaptureMode(&mode)); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode); }
};

// A program recorded in a graph gets memory of its own, and is copied there before the graph runs.
template <class Step>
const Step* ChainPrograms::on_device(const std::vector<Step>& steps) {
  const size_t bytes = (steps.size() * sizeof(Step) + 127) / 128 * 128;
  cudaStreamCaptureStatus status;
  must(cudaStreamIsCapturing(at_.stream, &status));
  const bool captured = status == cudaStreamCaptureStatusActive;
  Relaxed relaxed;
  auto made = [&] {
    Block b{nullptr, std::max(bytes, kBlock), 0};
    must(cudaMalloc(reinterpret_cast<void**>(&b.data), b.size));
    return b;
  };
  if (captured && (captured_.empty() || captured_.back().size - captured_.back().used < bytes)) captured_.push_back(made());
  if (!captured && passing_.size < bytes) {
    cudaFree(std::exchange(passing_, {}).data);
    passing_ = made();
  }
  Block& block = captured ? captured_.back() : passing_;
  std::byte* to = block.data + block.used;
  must(cudaMemcpyAsync(to, steps.data(), steps.size() * sizeof(Step), cudaMemcpyHostToDevice, captured ? side_ : at_.stream));
  if (captured) {
    block.used += bytes;
    must(cudaStreamSynchronize(side_));
  }
  return reinterpret_cast<const Step*>(to);
}

}  // namespace mr::cuda
