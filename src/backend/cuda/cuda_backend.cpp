#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "backend/cuda/device/turns.h"
#include "backend/cuda/graphs.h"
#include "backend/cuda/list_run.h"
#include "backend/cuda/needs.h"
#include "backend/cuda/rates.h"
#include "backend/cuda/sampling.h"
#include "backend/cuda/staging.h"
#include "backend/cuda/units.h"
#include "core/error.h"
#include "program/walk.h"

namespace mr {

namespace cuda {

void must(cudaError_t error) { check(error == cudaSuccess, "CUDA error: {}", cudaGetErrorString(error)); }

namespace {

constexpr int kWidestConv = 8;
constexpr int kWidestHead = 1024;  // of the attention that takes any head

class Cuda final : public CudaBackend {
 public:
  explicit Cuda(const CudaOptions& options)
      : pool_(int(std::max(1u, std::thread::hardware_concurrency()))),
        gpu_(options),
        staging_(std::make_unique<Staging>(gpu_.launch.stream, pool_)),
        sampling_(std::make_unique<Sampling>(gpu_.launch, pool_)),
        at_(gpu_.launch) {
    gpu_.forget_addresses = [this] { forget_graphs(); };
    gpu_.tables = std::make_unique<Tables>([this](const void* host, size_t bytes) {
      Buffer copy = allocate(bytes);
      copy_in(copy.data(), host, bytes);
      return copy;
    });
  }
  ~Cuda() override {
    cudaStreamSynchronize(at_.stream);
    forget_graphs();
  }

  std::string_view name() const override { return "cuda"; }
  std::string device() const override { return gpu_.device; }
  ThreadPool& pool() override { return pool_; }

  DType activations() const override { return DType::bf16; }
  DType kv_dtype() const override { return DType::bf16; }
  std::span<const DType> kv_dtypes() const override {
    static constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};
    return kTypes;
  }
  std::span<const DType> state_dtypes() const override {
    static constexpr DType kTypes[] = {DType::f32};
    return kTypes;
  }
  DeviceMemory memory() const override {
    size_t free = 0, total = 0;
    must(cudaMemGetInfo(&free, &total));
    return {int64_t(free) + own_bytes(), true};
  }
  void check_runs(const Program& program) const override {
    check_conv_widths(program, kWidestConv, "the GPU");
    for (const Op& op : program.whole.ops)
      if (const AttendOp* o = op.get<AttendOp>()) {
        const int widest = std::max(o->kv->k_dim, o->kv->v_dim);
        check(widest <= kWidestHead, "layer {} has heads of {} values, but the GPU takes at most {}", op.layer, widest, kWidestHead);
      }
  }
  std::vector<OwnMemory> own_memory(const Program& program, const StepLimits& most) const override {
    int64_t scratch = 0;
    for (int64_t bytes : scratch_needs(gpu_, program, most)) scratch += bytes;
    return {{"products and attention", scratch},
            {"the step's arrays", step_bytes(program, most)},
            {"sampling", Sampling::needs(most.outputs, most.outputs * kUsualEdits)},
            {"tables and chains", table_bytes(program) + gpu_.chains->needs(int64_t(program.whole.ops.size()))},
            {"cuBLASLt", gpu_.cublas ? Cublas::workspace_bytes() : 0},
            {"graphs", Graphs::kRoom}};
  }
  int64_t own_bytes() const override {
    return gpu_.scratch_bytes() + gpu_.step->bytes() + sampling_->bytes() + gpu_.tables->bytes() + gpu_.chains->bytes() +
           (gpu_.cublas ? Cublas::workspace_bytes() : 0) + graphs_.bytes();
  }
  std::optional<DeviceRates> rates() override { return rates_of(*this); }
  Buffer allocate(size_t bytes) override {
    void* p = nullptr;
    cudaError_t error = cudaMalloc(&p, std::max<size_t>(bytes, 256));
    check(error == cudaSuccess, "cannot allocate {} bytes of GPU memory: {}", bytes, cudaGetErrorString(error));
    must(cudaMemsetAsync(p, 0, bytes, at_.stream));
    return {static_cast<std::byte*>(p), bytes, [](std::byte* data, size_t) { cudaFree(data); }};
  }

  void carry_out(std::span<const UnitCopy> copies, const StateMemory& state, const StateMemory& host) override {
    copy_units(at_.stream, copies, state, host);
  }

  Weight place(const StoredWeight& stored, WeightStore& store) override {
    stored.check_shape();
    if (const auto packing = packing_of(*stored.codec); packing && !stored.scaled()) {  // codes leave factors out
      const Staging::Room room = Staging::room(*packing, stored.out(), stored.in);
      Weight w{stored.codec, stored.out(), stored.in, &kTiles};
      w.packed = view(store.take(size_t(room.quants)), DType::u8, {room.quants}, Device::cuda);
      w.scale = view(store.take(size_t(room.scales)), DType::u8, {room.scales}, Device::cuda);
      if (w.packed) staging_->send_packed(w.packed.as<std::byte>(), w.scale.as<std::byte>(), *packing, stored);
      return w;
    }
    Weight w = empty_weight(stored.out(), stored.in, store);
    if (w.packed) staging_->send(w.packed.as<std::byte>(), stored);
    return w;
  }
  Weight make_up(int64_t out, int64_t in, uint64_t seed, WeightStore& store) override {
    Weight w = empty_weight(out, in, store);
    if (w.packed) fill_random(at_, w.packed.data, out * in, seed, std::sqrt(3.0f / float(in)));
    return w;
  }
  Batch upload(const Batch& host, const StateMemory& state) override {
    host_ = host;
    one_each_ = host.n_tokens == host.n_seqs && host.n_out == host.n_seqs;
    for (int i = 0; one_each_ && i < host.n_seqs; i++) one_each_ = host.rows(i) == 1 && host.out_row[i] == i;
    const int moves = gpu_.step->moves();
    Batch batch = gpu_.step->upload(host, state);
    if (gpu_.step->moves() != moves) forget_graphs();
    return batch;
  }
  int padded(int n) const override {
    const int step = n <= 2 ? 1 : n <= 16 ? 4 : n <= 64 ? 8 : n <= 256 ? 16 : 32;
    return (n + step - 1) / step * step;
  }
  bool queues() const override { return true; }

  void embed(Tensor out, const Weight& table, float scale, const Batch& batch) override {
    if (packing_of(*table.codec))
      return embed_packed(at_, matrix(out), packed(table), scale, batch.token, gpu_.sampled(direct_, batch.n_out));
    cuda::embed(at_, matrix(out), table.packed.data, table.out, table.in, scale, batch.token, gpu_.sampled(direct_, batch.n_out));
  }
  void norm(Tensor out, Tensor x, const Norm& n) override {
    cuda::norm(at_, heads(out), heads(x), n.kind, n.eps, floats(n.weight), floats(n.bias), n.offset);
  }
  void linear(Tensor out, Tensor x, const Weight& weight, const Epilogue& e) override {
    gpu_.multiply(direct_, product_of(out, x, weight, e), weight);
  }
  void add(Tensor into, Tensor x, float scale) override { cuda::add(at_, matrix(into), matrix(x), scale); }
  void gate(Tensor out, Tensor g, Tensor up, Activation act) override { cuda::gate(at_, matrix(out), matrix(g), matrix(up), act); }
  void activate(Tensor x, Activation act) override { cuda::activate(at_, matrix(x), act); }
  void softplus(Tensor x, Tensor bias) override { cuda::softplus(at_, matrix(x), floats(bias)); }
  void softcap(Tensor x, float cap) override { cuda::softcap(at_, matrix(x), cap); }
  void gather(Tensor out, Tensor x, const Batch& batch) override { cuda::gather(at_, matrix(out), matrix(x), batch.out_row); }

  void angles(Tensor out, const RopeTable& rope, const Batch& batch) override {
    cuda::angles(at_, matrix(out), gpu_.tables->frequencies(rope), spots(batch), batch.prompt_len);
  }
  void rope(Tensor x, Tensor angles, bool interleaved) override { cuda::rope(at_, heads(x), matrix(angles), interleaved); }
  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& batch, const StateMemory& state) override {
    cuda::store_kv(at_, pages(kv, batch, state), heads(k), heads(v), spots(batch));
  }
  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args) override {
    gpu_.attend(direct_, call_of(out, q, kv, batch, state, args));
  }
  void short_conv(Tensor out, Tensor x, Tensor weight, Tensor bias, Activation act, const SlotState& slot, const Batch& batch,
                  const StateMemory& state) override {
    check(weight.shape[1] <= kWidestConv, "a convolution of width {} is wider than {}", weight.shape[1], kWidestConv);
    cuda::short_conv(at_, matrix(out), matrix(x), floats(weight), int(weight.shape[1]), floats(bias), act, slots(slot, batch, state),
                     recurrence(batch));
  }
  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& scan, const Batch& batch,
                 const StateMemory& state) override {
    const ScanRows rows{matrix(out), matrix(x), matrix(dt), matrix(b), matrix(c)};
    cuda::diag_scan(at_, rows, scan.n_state, floats(scan.a), floats(scan.d), slots(scan.state, batch, state), recurrence(batch));
  }
  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& scan, const Batch& batch,
                  const StateMemory& state) override {
    const OuterShape shape{scan.heads, scan.head_dim, scan.n_state, scan.groups, floats(scan.a), floats(scan.d), scan.dt_min, scan.dt_max};
    const ScanRows rows{matrix(out), matrix(x), matrix(dt), matrix(b), matrix(c)};
    cuda::outer_scan(at_, rows, shape, slots(scan.state, batch, state), recurrence(batch));
  }
  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    cuda::route(at_, matrix(expert), matrix(weight), matrix(logits), renormalize);
  }
  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    gpu_.multiply_grouped(direct_, out, x, experts, {}, expert, Activation::none);
  }
  void combine(Tensor out, Tensor x, Tensor weight, bool add) override {
    cuda::combine(at_, heads(by_token(out, weight.shape[0])), heads(by_token(x, weight.shape[0])), matrix(weight), add);
  }
  void magnitude(Tensor out, Tensor x, const Magnitude& what) override { cuda::magnitude(at_, matrix(out), matrix(x), what); }

  void launch_sample(Tensor logits, const Batch& batch) override {
    sampling_->launch(logits, host_, batch, gpu_.step->n_edits(), gpu_.sampled(direct_, batch.n_out));
  }
  void collect(std::vector<Sampled>& out) override { sampling_->collect(out); }
  void sample(Tensor logits, const Batch& batch, std::vector<Sampled>& out) override {
    launch_sample(logits, batch);
    collect(out);
  }

  void prepare(const Program& program, const StepLimits& most) override {
    forget_graphs();  // graphs are keyed by the program's address, which may be reused
    for (const Op& op : program.whole.ops) {
      if (const AnglesOp* angles = op.get<AnglesOp>()) gpu_.tables->frequencies(*angles->rope);
      if (const GroupedLinearOp* experts = op.get<GroupedLinearOp>()) gpu_.tables->experts(experts->experts);
    }
    const ScratchNeeds needs = scratch_needs(gpu_, program, most);
    for (int use = 0; use < Scratch::n_uses; use++) gpu_.reserve(direct_, Scratch::Use(use), needs[size_t(use)]);
    gpu_.step->reserve(step_bytes(program, most));
  }

  // Steps of one row and one output per sequence are captured as graphs, and replayed.
  Tensor run(const Program& program, const Batch& batch, const StateMemory& state, Arena& arena, Observer* observer) override {
    const Turns::Turn turn(turns_);
    auto once = [&] { return run_once(program, batch, state, arena, observer); };
    if (observer || !one_each_) return once();
    const uint64_t key = graph_key(program, batch, state, arena);
    if (const Graphs::Graph* known = graphs_.find(key)) {
      must(cudaGraphLaunch(known->exec, at_.stream));
      return known->result;
    }
    if (graphs_.full()) forget_graphs();
    once();  // computes this step, and allocates scratch and fills caches before the capture, which only records
    if (gpu_.cublas) gpu_.cublas->decide();
    gpu_.log.note("captured:");
    return graphs_.capture(at_.stream, key, once);
  }

  void copy_within(void* to, const void* from, size_t bytes) override {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, at_.stream));
  }
  void copy_in(void* device, const void* host, size_t bytes) override {
    must(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, at_.stream));
    synchronize();
  }
  void copy_out(void* host, const void* device, size_t bytes) override {
    must(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, at_.stream));
    synchronize();
  }
  void synchronize() override { must(cudaStreamSynchronize(at_.stream)); }
  double milliseconds(const std::function<void()>& work) override {
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    must(cudaEventRecord(begin, at_.stream));
    work();
    must(cudaEventRecord(end, at_.stream));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return ms;
  }
  void log_launches(std::function<void(const std::string&)> sink) override { gpu_.log.to(std::move(sink)); }

 private:
  static constexpr Layout kRows{"rows of bf16", nullptr}, kTiles{"packed tiles", nullptr};

  static Weight empty_weight(int64_t out, int64_t in, WeightStore& store) {
    Weight w{&get_codec("bf16"), out, in, &kRows};
    w.packed = view(store.take(size_t(out * in) * 2), DType::bf16, {out, in}, Device::cuda);
    return w;
  }

  void forget_graphs() {  // when addresses recorded in them become invalid
    graphs_.forget();
    gpu_.chains->forget();
  }

  // All that a graph depends on: the step's shape, the addresses of its arrays, and the memory it works in.
  uint64_t graph_key(const Program& program, const Batch& batch, const StateMemory& state, const Arena& arena) const {
    uint64_t key = gpu_.step->layout();
    auto mix = [&](uint64_t x) { key = (key ^ x) * 0x9e3779b97f4a7c15u; };
    mix(uint64_t(batch.n_seqs));
    mix(reinterpret_cast<uintptr_t>(&program));
    mix(reinterpret_cast<uintptr_t>(arena.data()));
    for (const StateMemory::GroupMemory& group : state.group) mix(reinterpret_cast<uintptr_t>(group.base));
    return key;
  }

  int64_t step_bytes(const Program& program, const StepLimits& most) const { return gpu_.step->most_bytes(most, groups_of(program)); }

  Tensor run_once(const Program& program, const Batch& batch, const StateMemory& state, Arena& arena, Observer* observer) {
    const Bound bound(program, program.list(batch.n_tokens, batch.n_out), batch.n_tokens, batch.n_out, arena);
    ListRun run(gpu_, *this, bound, batch, state);
    walk(
        bound, [&](const Mark& mark) { return run.take(mark); }, [&](int i) { run.run(i); },
        [&](int first, int count) {
          if (!observer) return;
          run.flush();
          synchronize();
          observer->ran(bound, first, count);
        });
    run.flush();
    return bound(program.logits);
  }

  // For plain operations: launches at once.
  struct Direct final : Lane {
    explicit Direct(const Launch& launch) : launch(launch) {}
    const Launch& at() override { return launch; }
    const Launch& launch;
  };

  ThreadPool pool_;
  Gpu gpu_;
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Sampling> sampling_;
  Graphs graphs_;
  const Launch& at_;
  Turns turns_{at_.stream};
  Direct direct_{at_};
  Batch host_;             // the batch of the last upload()
  bool one_each_ = false;  // it has one row and one output per sequence
};

}  // namespace

}  // namespace cuda

std::string why_no_cuda() {
  const std::string why = cuda::why_no_gpu();
  return why.empty() ? "" : fmt::format("there is no NVIDIA GPU of the Hopper generation here ({})", why);
}

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& options) {
  const std::string why = why_no_cuda();
  check(why.empty(), "{}", why);
  return std::make_unique<cuda::Cuda>(options);
}

}  // namespace mr
