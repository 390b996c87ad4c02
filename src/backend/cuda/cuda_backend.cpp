#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>

#include "backend/cuda/chain_queue.h"
#include "backend/cuda/choices.h"
#include "backend/cuda/gemm/cublas.h"
#include "backend/cuda/graphs.h"
#include "backend/cuda/rates.h"
#include "backend/cuda/sampling.h"
#include "backend/cuda/staging.h"
#include "backend/cuda/step_memory.h"
#include "backend/cuda/tables.h"
#include "backend/cuda/units.h"
#include "backend/cuda/views.h"
#include "core/arena.h"
#include "core/error.h"

namespace mr {

namespace cuda {

void must(cudaError_t error) { check(error == cudaSuccess, "CUDA says: {}", cudaGetErrorString(error)); }

namespace {

class Cuda final : public CudaBackend {
 public:
  explicit Cuda(const CudaOptions& options)
      : options_(options),
        choices_(options.model ? choices_for(*options.model) : Choices{}),
        pool_(int(std::max(1u, std::thread::hardware_concurrency()))) {
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, 0));
    must(cudaStreamCreateWithFlags(&at_.stream, cudaStreamNonBlocking));
    at_.n_sm = properties.multiProcessorCount;
    at_.deterministic = options.deterministic;
    at_.log = &log_;
    std::string library;
    cublas_ = Cublas::open(library);
    device_ = fmt::format("{}, {} multiprocessors, {}", properties.name, at_.n_sm, cublas_ ? library : "no cuBLASLt among " + library);
    step_ = std::make_unique<StepMemory>(
        at_.stream,
        StepMemory::Rules{options.deterministic, choices_.share_prefixes ? kPrefillRows / choices_.group : 0,
                          std::max(1, at_.n_sm * kDecodeBlocks / decode_shares(choices_.kv_heads * choices_.group, choices_.kv_heads)),
                          std::max(1, at_.n_sm / choices_.kv_heads), choices_.chain_rows});
    staging_ = std::make_unique<Staging>(at_.stream, pool_);
    sampling_ = std::make_unique<Sampling>(at_, pool_);
    chains_ = std::make_unique<ChainQueue>(at_, options.chain);
  }
  ~Cuda() override {
    cudaStreamSynchronize(at_.stream);
    forget_graphs();
    for (auto& s : scratch_) cudaFree(s.data);
    chains_.reset();
    sampling_.reset();
    staging_.reset();
    step_.reset();
    cublas_.reset();
    cudaStreamDestroy(at_.stream);
  }

  std::string_view name() const override { return "cuda"; }
  std::string device() const override { return device_; }
  ThreadPool& pool() override { return pool_; }

  DType activations() const override { return DType::bf16; }
  DType kv_dtype() const override { return DType::bf16; }
  DeviceMemory memory() const override {
    size_t free = 0, total = 0;
    must(cudaMemGetInfo(&free, &total));
    return {int64_t(free), true};
  }
  std::optional<DeviceRates> rates() override { return rates_of(*this); }
  Buffer allocate(size_t bytes) override {
    void* p = nullptr;
    cudaError_t error = cudaMalloc(&p, std::max<size_t>(bytes, 256));
    check(error == cudaSuccess, "{} bytes of GPU memory cannot be had: {}", bytes, cudaGetErrorString(error));
    must(cudaMemsetAsync(p, 0, bytes, at().stream));
    return {static_cast<std::byte*>(p), bytes, [](std::byte* data, size_t) { cudaFree(data); }};
  }

  void carry_out(std::span<const UnitCopy> copies, const StateMemory& state, const StateMemory& host) override {
    copy_units(at().stream, copies, state, host);
  }

  Weight place(const FormatOps& format, std::span<const std::byte* const> rows, int64_t in, WeightStore& store) override {
    if (const auto packing = packing_of(format)) {
      check(in % kBlock == 0, "a {} weight has rows of {} inputs: a multiple of {} is needed", format.format.name, in, kBlock);
      const Staging::Room room = Staging::room(*packing, int64_t(rows.size()), in);
      Weight w{&format, int64_t(rows.size()), in};
      w.packed = view(store.take(size_t(room.quants)), DType::u8, {room.quants}, Device::cuda);
      w.scale = view(store.take(size_t(room.scales)), DType::u8, {room.scales}, Device::cuda);
      if (w.packed) staging_->send_packed(w.packed.as<std::byte>(), w.scale.as<std::byte>(), *packing, rows, in);
      return w;
    }
    Weight w = empty_weight(int64_t(rows.size()), in, store);
    if (w.packed) staging_->send(w.packed.as<std::byte>(), format, rows, in);
    return w;
  }
  Weight make_up(int64_t out, int64_t in, uint64_t seed, WeightStore& store) override {
    Weight w = empty_weight(out, in, store);
    if (w.packed) fill_random(at(), w.packed.data, out * in, seed, std::sqrt(3.0f / float(in)));
    return w;
  }
  Batch upload(const Batch& host, const StateMemory& state) override {
    flush();
    host_ = host, half_normed_ = {}, grouped_ = nullptr;
    const int moves = step_->moves();
    Batch batch = step_->upload(host, state);
    if (step_->moves() != moves) forget_graphs();
    return batch;
  }
  int padded(int n) const override {
    const int step = n <= 2 ? 1 : n <= 16 ? 4 : n <= 64 ? 8 : n <= 256 ? 16 : 32;
    return (n + step - 1) / step * step;
  }
  bool queues() const override { return true; }

  void embed(Tensor out, const Weight& table, float scale, const Batch& batch) override {
    if (packing_of(*table.ops)) return embed_packed(at(), matrix(out), packed(table), scale, batch.token, sampled(batch.n_out));
    cuda::embed(at(), matrix(out), table.packed.data, table.in, scale, batch.token, sampled(batch.n_out));
  }
  void norm(Tensor out, Tensor x, const Norm& n) override {
    cuda::norm(at(), heads(out), heads(x), n.kind, n.eps, floats(n.weight), floats(n.bias), n.offset);
  }
  void linear(Tensor out, Tensor x, const Weight& weight, const Epilogue& e) override {
    run(product_of(out, x, weight, e), weight, nullptr, e.next);
  }
  void linear_gate(Tensor out, Tensor x, const Weight& weight, Activation act, Arena& arena) override {
    run(gated_product(out, x, weight, act), weight, &arena);
  }
  void linear_normed(Tensor out, Tensor x, const Norm& norm, const Weight& weight, const Epilogue& e, Arena& arena) override {
    const Product p = product_of(out, x, weight, e);
    if (!half_normed(p, x, norm, weight)) return Backend::linear_normed(out, x, norm, weight, e, arena);
    run(with_norm(p, norm), weight, nullptr, e.next);
  }
  void linear_gate_normed(Tensor out, Tensor x, const Norm& norm, const Weight& weight, Activation act, Arena& arena) override {
    const Product p = gated_product(out, x, weight, act);
    if (!half_normed(p, x, norm, weight)) return Backend::linear_gate_normed(out, x, norm, weight, act, arena);
    run(with_norm(p, norm), weight, &arena);
  }
  void linear_conv(Tensor out, Tensor x, const Norm& norm, const Weight& weight, const Epilogue& e, Tensor conv_out, int64_t first,
                   const ShortConv& conv, const Batch& batch, const StateMemory& state, Arena& arena) override {
    Product p = product_of(out, x, weight, e);
    if (!is_one(p) || conv.weight.shape[1] != kConvWidth || e.residual || e.next || !half_normed(p, x, norm, weight))
      return Backend::linear_conv(out, x, norm, weight, e, conv_out, first, conv, batch, state, arena);
    p.conv = {first,           conv_out.shape[1], floats(conv.weight), floats(conv.bias), conv.act, slots(conv.state, batch, state),
              matrix(conv_out)};
    run(with_norm(p, norm), weight);
  }
  void add(Tensor into, Tensor x, float scale) override { cuda::add(at(), matrix(into), matrix(x), scale); }
  void gate(Tensor out, Tensor g, Tensor up, Activation act) override { cuda::gate(at(), matrix(out), matrix(g), matrix(up), act); }
  void activate(Tensor x, Activation act) override { cuda::activate(at(), matrix(x), act); }
  void softplus(Tensor x, Tensor bias) override { cuda::softplus(at(), matrix(x), floats(bias)); }
  void softcap(Tensor x, float cap) override { cuda::softcap(at(), matrix(x), cap); }
  void gather(Tensor out, Tensor x, const Batch& batch) override { cuda::gather(at(), matrix(out), matrix(x), batch.out_row); }

  void angles(Tensor out, const RopeTable& rope, const Batch& batch) override {
    cuda::angles(at(), matrix(out), tables_.frequencies(rope), spots(batch), batch.prompt_len);
  }
  void rope(Tensor x, Tensor angles, bool interleaved) override { cuda::rope(at(), heads(x), matrix(angles), interleaved); }
  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& batch, const StateMemory& state) override {
    cuda::store_kv(at(), pages(kv, batch, state), heads(k), heads(v), spots(batch));
  }
  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args) override {
    attend_stored(call_of(out, q, kv, batch, state, args));
  }
  void attend_new(Tensor out, Tensor q, Tensor k, Tensor v, Tensor angles, bool interleaved, const PagedKv& kv, const Batch& batch,
                  const StateMemory& state, const AttendArgs& args) override {
    if (!k) {
      if (angles) rope(q, angles, interleaved);
      return attend(out, q, kv, batch, state, args);
    }
    AttendCall call = call_of(out, q, kv, batch, state, args);
    if (angles) call.rope = {floats(angles), angles.stride[0], int(angles.shape[1])};
    call.k = heads(k), call.v = heads(v);
    if (step_->plan().n_tiles == 0 && !step_->plan().shared_room && !interleaved && can_decode(call))
      return batch.n_tokens <= choices_.chain_rows && queued(call) ? void() : decode(call);
    if (!interleaved && angles && can_rope_store(call)) {
      rope_store(at(), call);
    } else {
      if (angles) rope(q, angles, interleaved), rope(k, angles, interleaved);
      store_kv(kv, k, v, batch, state);
    }
    call.k = {}, call.v = {}, call.rope = {};
    attend_stored(call);
  }

  void short_conv(Tensor out, Tensor x, Tensor weight, Tensor bias, Activation act, const SlotState& slot, const Batch& batch,
                  const StateMemory& state) override {
    check(weight.shape[1] <= 8, "a convolution of width {} is wider than 8", weight.shape[1]);
    cuda::short_conv(at(), matrix(out), matrix(x), floats(weight), int(weight.shape[1]), floats(bias), act, slots(slot, batch, state),
                     recurrence(batch));
  }
  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& scan, const Batch& batch,
                 const StateMemory& state) override {
    diag_scan_gated(out, x, dt, {}, b, c, {}, scan, batch, state);
  }
  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& scan, const Batch& batch,
                  const StateMemory& state) override {
    outer_scan_gated(out, x, dt, {}, b, c, {}, scan, batch, state, nullptr);
  }
  void diag_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor dt_bias, Tensor b, Tensor c, Tensor z, const DiagScan& scan,
                       const Batch& batch, const StateMemory& state) override {
    ScanRows rows{matrix(out), matrix(x), matrix(dt), matrix(b), matrix(c), floats(dt_bias), matrix(z)};
    cuda::diag_scan(at(), rows, scan.n_state, floats(scan.a), floats(scan.d), slots(scan.state, batch, state), recurrence(batch));
  }
  void selective_scan(Tensor out, Tensor u, Tensor z, const Selection& select, const DiagScan& scan, const Batch& batch,
                      const StateMemory& state, Arena& arena) override {
    const Slots place = slots(scan.state, batch, state);
    std::optional<SelectCall> call = select_call(out, u, z, select, scan);
    if (!call || options_.deterministic || batch.n_tokens != batch.n_seqs || batch.n_seqs > kSelectMost || !can_select(*call, place) ||
        u.dtype != DType::bf16)
      return Backend::selective_scan(out, u, z, select, scan, batch, state, arena);
    SelectCall& s = *call;
    ArenaScope scope(arena);
    Tensor dbc = arena.tensor(DType::f32, {u.shape[0], select.x->out});
    s.dbc = matrix(dbc);
    Product thin = product_of(dbc, u, *select.x, {});
    if (is_one(thin) && shape_fits(thin) && aligned(thin.x) && chains_->takes(ChainStep(SelectStep{s, place}), 2) && queued(thin)) {
      queued(SelectStep{s, place});
      return;
    }
    if (s.rows.x.cols % 8 == 0 && aligned(s.rows.x)) {
      product_thin(at(), s.dbc, s.rows.x, select.x->packed.data);
    } else {
      linear(dbc, u, *select.x, {});
    }
    select_scan(at(), s, place);
  }
  void outer_scan_gated(Tensor out, Tensor x, Tensor dt, Tensor dt_bias, Tensor b, Tensor c, Tensor z, const OuterScan& scan,
                        const Batch& batch, const StateMemory& state, const Norm* next) override {
    OuterShape shape{scan.heads, scan.head_dim, scan.n_state, scan.groups, floats(scan.a), floats(scan.d), scan.dt_min, scan.dt_max};
    ScanRows rows{matrix(out), matrix(x), matrix(dt), matrix(b), matrix(c), floats(dt_bias), matrix(z)};
    const Slots place = slots(scan.state, batch, state);
    // its many parts are too much for products of more rows
    if (next && rows.out.rows == 1 && outer_can_norm(shape, place)) rows.next = half_norm(*next, rows.out, kScanPart);
    if (rows.out.rows == 1 && !options_.deterministic && queued(OuterStep{rows, shape, place, recurrence(batch)})) return;
    cuda::outer_scan(at(), rows, shape, place, recurrence(batch));
  }
  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    grouped_ = nullptr;
    cuda::route(at(), matrix(expert), matrix(weight), matrix(logits), renormalize);
  }
  void route_normed(Tensor expert, Tensor weight, Tensor normed, Tensor x, const Norm& n, const Weight& router, bool renormalize,
                    Arena& arena) override {
    RouteCall r{matrix(expert), matrix(weight), matrix(normed),     matrix(x),       floats(n.weight),
                n.eps,          n.offset,       router.packed.data, int(router.out), renormalize};
    if (n.kind != Norm::Kind::rms || n.bias || packing_of(*router.ops) || x.shape[0] > kFewRows || options_.deterministic || !can_route(r))
      return Backend::route_normed(expert, weight, normed, x, n, router, renormalize, arena);
    grouped_ = nullptr;
    if (x.shape[0] == 1 && half_normed_.of == x.data && half_normed_.rows == 1 && half_normed_.norm == &n &&
        queued(RouteStep{r, half_normed_.x, half_normed_.squares, half_normed_.n_squares})) {
      routed_ = {expert.data, normed.data, n.eps, half_normed_};
      return;
    }
    cuda::route_normed(at(), r);
  }
  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    grouped_ = nullptr;
    grouped_product(out, x, experts, {}, expert, Activation::none);
  }
  void grouped_gate(Tensor out, Tensor x, std::span<const Weight> gates, std::span<const Weight> ups, Tensor expert, Activation act,
                    Arena& arena) override {
    const Weight& w = gates[0];
    if (w.in % 8 || w.out % 16 || w.ops != ups[0].ops) return Backend::grouped_gate(out, x, gates, ups, expert, act, arena);
    if (!one_row_of(x, expert, w)) {
      grouped_product(out, x, gates, ups, expert, act);
      grouped_ = expert.data;
      return;
    }
    ExpertsStep step = chosen(x, gates, expert);
    step.second = tables_.experts(ups), step.product.gated = true, step.product.activation = act;
    step.product.out = 2 * out.size(), step.product.y = matrix(out);
    if (routed_.expert == expert.data && routed_.normed == x.data && step.product.y.stride == w.out) {
      Product& p = step.product;
      p.x.data = const_cast<void*>(routed_.half.x);
      p.squares = routed_.half.squares, p.n_squares = routed_.half.n_squares, p.eps = routed_.eps;
      if (queued(step)) return;
    }
    flush(), alone(ChainStep(step));
  }
  void grouped_combine(Tensor into, Tensor x, std::span<const Weight> experts, Tensor expert, Tensor weight, const Norm* next,
                       Arena& arena) override {
    ArenaScope scope(arena);
    const bool one = one_row_of(x, expert, experts[0]);
    Tensor each = arena.tensor(activations(), {x.shape[0], into.shape[1]});
    if (!one) grouped_product(each, x, experts, {}, expert, Activation::none, grouped_ == expert.data);
    if (half_normed_.of == into.data) half_normed_ = {};
    const HalfNorm half = next ? half_norm(*next, matrix(into), one ? kSumPartOne : kCombinePart, one ? at_.n_sm : 0) : HalfNorm{};
    if (!one) return cuda::combine_into(at(), matrix(into), matrix(each), matrix(weight), half);
    ExpertsStep step = chosen(x, experts, expert);
    step.weight = matrix(weight), step.product.out = into.shape[1], step.product.y = matrix(into), step.product.next = half;
    step.product.residual = static_cast<const float*>(into.data);
    if (routed_.expert == expert.data && queued(step)) return;
    flush(), alone(ChainStep(step));
  }
  void combine(Tensor out, Tensor x, Tensor weight) override { cuda::combine(at(), matrix(out), matrix(x), matrix(weight)); }

  void launch_sample(Tensor logits, const Batch& batch) override {
    flush();
    sampling_->launch(logits, host_, batch, step_->n_edits(), sampled(batch.n_out));
  }
  void collect(std::vector<Sampled>& out) override { sampling_->collect(out); }
  void sample(Tensor logits, const Batch& batch, std::vector<Sampled>& out) override {
    launch_sample(logits, batch);
    collect(out);
  }

  Tensor replay(uint64_t key, FunctionRef<Tensor()> step) override {
    key ^= step_->layout();
    if (const Graphs::Graph* known = graphs_.find(key)) {
      must(cudaGraphLaunch(known->exec, at().stream));
      return known->result;
    }
    if (graphs_.full()) forget_graphs();
    step(), flush();  // fills caches and scratch memory
    if (cublas_) cublas_->decide();
    log_.note("captured:");
    try {
      return graphs_.capture(at().stream, key, [&] {
        const Tensor result = step();
        return flush(), result;
      });
    } catch (...) {
      chains_->drop();
      throw;
    }
  }

  void copy_within(void* to, const void* from, size_t bytes) override {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, at().stream));
  }
  void copy_in(void* device, const void* host, size_t bytes) override {
    must(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, at().stream));
    synchronize();
  }
  void copy_out(void* host, const void* device, size_t bytes) override {
    must(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, at().stream));
    synchronize();
  }
  void synchronize() override { must(cudaStreamSynchronize(at().stream)); }
  double milliseconds(const std::function<void()>& work) override {
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin)), must(cudaEventCreate(&end));
    must(cudaEventRecord(begin, at().stream));
    work();
    must(cudaEventRecord(end, at().stream));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return ms;
  }
  void log_launches(std::function<void(const std::string&)> sink) override { log_.to(std::move(sink)); }

 private:
  static Weight empty_weight(int64_t out, int64_t in, WeightStore& store) {
    Weight w{&format_ops("bf16"), out, in};
    w.packed = view(store.take(size_t(out * in) * 2), DType::bf16, {out, in}, Device::cuda);
    return w;
  }

  void forget_graphs() { graphs_.forget(), chains_->forget(); }  // they know addresses that are no more

  // Operations of few rows wait until something else is wanted of the stream, and are launched together.
  void flush() {
    chains_->flush([this](const ChainStep& step) { alone(step); });
    routed_ = {};
  }
  void alone(const ChainStep& step) {
    switch (step.kind) {
      case ChainStep::Kind::product:
        return product_alone(step.product);
      case ChainStep::Kind::attend:
        return decode(step.attend);
      default:
        return run_alone(at_, step);
    }
  }
  const Launch& at() { return flush(), at_; }
  template <class Operation>
  bool queued(const Operation& operation) {
    const ChainStep step(operation);
    if (!chains_->fits(step)) flush();
    return chains_->add(step);
  }
  bool queued(const AttendCall& call) {
    if (call.spots.n_tokens > 1) chains_->plan(plan_of(call, true));
    return queued<AttendCall>(call);
  }
  void product_alone(const Product& p) { is_one(p) ? product_one(at_, p) : product(at_, p); }

  // Memory that an operation needs for itself, by purpose; it grows when nothing is being captured.
  enum Use { x_bf16, half_normed_x, half_normed_x2, squares, squares2, partial, arrived, sampled_tokens, unpacked, groups, n_uses };
  template <class T>
  T* scratch(Use use, int64_t n) {
    Scratch& s = scratch_[use];
    size_t bytes = size_t(n) * sizeof(T);
    if (bytes > s.bytes) {
      synchronize();
      forget_graphs();
      cudaFree(s.data);
      s = {};
      const size_t room = std::max<size_t>(bytes * 5 / 4, 4096);
      must(cudaMalloc(&s.data, room));
      s.bytes = room;
      must(cudaMemsetAsync(s.data, 0, room, at().stream));
    }
    return static_cast<T*>(s.data);
  }
  int32_t* sampled(int n_out) { return scratch<int32_t>(sampled_tokens, std::max(n_out, 1024)); }

  // A product whose result is to be normed leaves, beside it, what the product after it needs to do the norm in passing.
  struct HalfNormed {
    const void* of = nullptr;  // the result
    const Norm* norm = nullptr;
    int64_t rows = 0, n_squares = 0;
    const void* x = nullptr;
    const float* squares = nullptr;
  };
  // Is the norm of x half done, and can this product do the rest?
  bool half_normed(const Product& p, Tensor x, const Norm& norm, const Weight& weight) const {
    return half_normed_.of == x.data && half_normed_.norm == &norm && half_normed_.rows == x.shape[0] && !packing_of(*weight.ops) &&
           !to_library(p) && shape_fits(p);
  }
  // Who computes y is to do half of its norm, in parts of so many columns, or in `least` parts. Not in deterministic mode: products of
  // many rows cannot, and their bits would be others. In two places in turn: who reads one may write the other.
  HalfNorm half_norm(const Norm& norm, const Matrix& y, int part, int64_t least = 0) {
    if (norm.kind != Norm::Kind::rms || norm.bias || y.rows > kFewRows || options_.deterministic) return {};
    const int64_t parts = std::max((y.cols + part - 1) / part, least);
    HalfNorm half[2];
    for (int i = 0; i < 2; i++)
      half[i] = {scratch<uint16_t>(Use(half_normed_x + i), y.rows * y.cols), scratch<float>(Use(squares + i), y.rows * parts),
                 floats(norm.weight), norm.offset, parts};
    turn_ ^= 1;
    half_normed_ = {y.data, &norm, y.rows, parts, half[turn_].x, half[turn_].squares};
    return half[turn_];
  }
  Product with_norm(Product p, const Norm& norm) {
    p.x = {const_cast<void*>(half_normed_.x), DType::bf16, p.x.rows, p.in, p.in};
    p.squares = half_normed_.squares, p.n_squares = half_normed_.n_squares, p.eps = norm.eps;
    return p;
  }
  bool is_one(const Product& p) const { return p.x.rows == 1 && !options_.deterministic; }
  bool to_library(const Product& p) const {
    return p.x.rows > options_.skinny_rows && !suits_many(p) && cublas_ && !options_.deterministic && p.out % 8 == 0 && aligned(p.y) &&
           p.in % 8 == 0;
  }
  Matrix as_bf16(const Matrix& from) {  // aligned
    if (from.dtype == DType::bf16 && aligned(from)) return from;
    const int64_t stride = (from.cols + 7) / 8 * 8;
    Matrix x{scratch<uint16_t>(x_bf16, from.rows * stride), DType::bf16, from.rows, from.cols, stride};
    convert(at(), x, from);
    return x;
  }
  static constexpr int64_t kPackedRows = 64;  // more are multiplied with the weight unpacked
  // `arena` has room for both halves of a gated product.
  void run(Product p, const Weight& weight, Arena* arena = nullptr, const Norm* next = nullptr) {
    const int64_t rows = p.x.rows;
    const bool blocks = packing_of(*weight.ops).has_value();
    if (half_normed_.of == p.y.data) half_normed_ = {};
    if (p.x.dtype != DType::bf16 || blocks) p.x = as_bf16(p.x);
    if (blocks) {
      const Packed w = packed(weight);
      if ((rows <= kPackedRows || options_.deterministic) && (!p.gated || p.out % 32 == 0)) return product_packed(at(), p, w);
      p.weight = scratch<uint16_t>(unpacked, p.out * p.in);
      unpack(at(), const_cast<void*>(p.weight), w);
    }
    if (!to_library(p) || !aligned(p.x)) {
      if (!shape_fits(p) || !aligned(p.x)) return product_any(at(), p);
      if (!options_.deterministic && wants_product_wide(at_, p)) return product_wide(at(), p);
      const bool few = rows <= choices_.chain_rows && !options_.deterministic;
      if (next) p.next = half_norm(*next, p.y, is_one(p) ? kNormPartOne : kNormPart, few ? at_.n_sm : 0);
      if (few && queued(p)) return;
      return flush(), product_alone(p);
    }
    if (wants_product_wide(at_, p)) return product_wide(at(), p);
    if (p.gated) {
      Product both = p;
      both.gated = false;
      ArenaScope scope(*arena);
      both.y = matrix(arena->tensor(DType::bf16, {rows, p.out}));
      if (!library_product(both, false)) return product(at(), p);
      Matrix first = both.y, second = both.y;
      first.cols = second.cols = p.out / 2;
      second.data = static_cast<uint16_t*>(second.data) + p.out / 2;
      cuda::gate(at(), p.y, first, second, p.activation);
      return;
    }
    if (p.residual && p.residual != p.y.data)
      convert(at(), p.y, {const_cast<float*>(p.residual), DType::f32, rows, p.out, p.residual_stride});
    if (!library_product(p, p.residual != nullptr)) return product(at(), p);
    if (p.bias) cuda::add(at(), p.y, {const_cast<float*>(p.bias), DType::f32, rows, p.out, 0}, p.scale);
  }

  bool library_product(const Product& p, bool onto) {
    if (!cublas_->product(at().stream, p, onto)) return false;
    log_.note("cublasLt");
    return true;
  }

  bool one_row_of(Tensor x, Tensor expert, const Weight& w) const {
    return expert.shape[0] == 1 && !options_.deterministic && !packing_of(*w.ops) && w.in % 8 == 0 && x.dtype == DType::bf16 &&
           aligned(matrix(x));
  }
  ExpertsStep chosen(Tensor x, std::span<const Weight> experts, Tensor expert) {
    ExpertsStep step{.first = tables_.experts(experts), .k = int(expert.shape[1]), .n = int(experts.size()), .x = matrix(x)};
    step.expert = matrix(expert);
    step.product.in = experts[0].in, step.product.x = step.x;
    return step;
  }
  // ups: may be empty; else a gated product's second halves. known: the rows that chose each expert were listed before.
  void grouped_product(Tensor out, Tensor x, std::span<const Weight> experts, std::span<const Weight> ups, Tensor expert, Activation act,
                       bool known = false) {
    const Packed shape = packed(experts[0]), *list = tables_.experts(experts);
    Matrix rows = matrix(x);
    if (shape.in % 8) return grouped_any(at(), matrix(out), rows, list, shape.in, matrix(expert));
    GroupPlan plan = group_plan(at(), out.shape[0], int64_t(experts.size()));
    if (plan.listed) {
      int32_t* room = scratch<int32_t>(groups, out.shape[0] + 1 + plan.n_tiles * int64_t(sizeof(GroupTile) / 4));
      plan.n_listed = room, plan.pairs = room + 1, plan.tile = reinterpret_cast<GroupTile*>(room + 1 + out.shape[0]);
      plan.known = known;
    }
    grouped(at(), matrix(out), as_bf16(rows), shape, list, int(experts.size()), matrix(expert), plan,
            ups.empty() ? nullptr : tables_.experts(ups), act);
  }

  void attend_stored(const AttendCall& call) {
    const StepMemory::Plan& plan = step_->plan();
    const bool decodes = plan.n_items > 0, prefills = plan.n_tiles > 0;
    if ((decodes && !can_decode(call)) || (prefills && !can_prefill(call))) return attend_any(at(), call);
    if (decodes) decode(call);
    if (plan.n_single) attend_prefill(at(), call, plan.tile, plan.n_single, true);
    if (plan.n_tiles > plan.n_single) attend_prefill(at(), call, plan.tile + plan.n_single, plan.n_tiles - plan.n_single);
  }
  DecodePlan plan_of(const AttendCall& call, bool chained = false) {
    const StepMemory::Plan& plan = step_->plan();
    DecodePlan d{plan.item, plan.grid};
    if (chained) d.item = plan.chained, d.grid = plan.n_chained;
    const int64_t shares = decode_shares(call.heads, call.pages.kv_heads);
    d.partial = scratch<float>(partial, plan.slots * shares * kGroup * (call.pages.v_dim + kPartExtra));
    d.arrived = scratch<int32_t>(arrived, std::max<int64_t>(call.spots.n_seqs * shares, 1 << 16));
    return d;
  }
  void decode(const AttendCall& call) {
    const StepMemory::Plan& plan = step_->plan();
    DecodePlan d = plan_of(call);
    d.shared = plan.shared, d.shared_row = plan.shared_row, d.n_shared = plan.n_shared, d.shared_room = plan.shared_room;
    if (d.shared_room) {
      check(call.window == 0 && call.heads / call.pages.kv_heads <= choices_.group && can_prefill(call),
            "prefixes are shared by attention of whole contexts with {} query heads a K/V head alone", choices_.group);
      attend_shared(at(), call, d);
    }
    attend_decode(at(), call, d);
  }

  struct Scratch {
    void* data = nullptr;
    size_t bytes = 0;
  };
  CudaOptions options_;
  Choices choices_;
  HalfNormed half_normed_;
  int turn_ = 0;
  ThreadPool pool_;
  LaunchLog log_;
  Launch at_;
  std::string device_;
  std::unique_ptr<Cublas> cublas_;  // may be null
  std::unique_ptr<StepMemory> step_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Sampling> sampling_;
  std::unique_ptr<ChainQueue> chains_;
  Tables tables_{[this](const void* host, size_t bytes) {
    Buffer copy = allocate(bytes);
    copy_in(copy.data(), host, bytes);
    return copy;
  }};
  Scratch scratch_[n_uses];
  const void* grouped_ = nullptr;  // the choice of experts whose groups are listed
  struct {                         // the choice that waits in the chain, and the row it was made for
    const void *expert = nullptr, *normed = nullptr;
    float eps = 0;
    HalfNormed half;
  } routed_;
  Graphs graphs_;
  Batch host_;  // what was uploaded last
};

}  // namespace

}  // namespace cuda

bool cuda_available() { return cuda::why_no_gpu().empty(); }

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& options) {
  const std::string why = cuda::why_no_gpu();
  check(why.empty(), "there is no NVIDIA GPU of the Hopper generation here ({})", why);
  return std::make_unique<cuda::Cuda>(options);
}

}  // namespace mr
