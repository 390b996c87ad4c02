#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <thread>
#include <unordered_map>

#include "backend/cuda/cublas.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/step_memory.h"
#include "backend/sample.h"
#include "core/error.h"

namespace mr {

namespace cuda {

void must(cudaError_t error) { check(error == cudaSuccess, "CUDA says: {}", cudaGetErrorString(error)); }

namespace {

Matrix matrix(Tensor t) { return {t.data, t.dtype, t.shape[0], t.shape[1], t.stride[0]}; }
Heads heads(Tensor t) {
  if (t.rank == 2) return {t.data, t.dtype, t.shape[0], 1, t.shape[1], t.stride[0], t.shape[1]};
  return {t.data, t.dtype, t.shape[0], t.shape[1], t.shape[2], t.stride[0], t.stride[1]};
}
const float* floats(Tensor t) { return t.as<const float>(); }

bool aligned(const Matrix& m) { return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride * size_of(m.dtype) % 16 == 0; }

float max_of(const float* x, int64_t n) { return *std::max_element(x, x + n); }
float sum_exp(const float* x, int64_t n, float max, float factor) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += std::exp(double(x[i] - max) * factor);
  return float(sum);
}

class Cuda final : public CudaBackend {
 public:
  explicit Cuda(const CudaOptions& options) : options_(options), pool_(int(std::max(1u, std::thread::hardware_concurrency()))) {
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, 0));
    must(cudaStreamCreateWithFlags(&at_.stream, cudaStreamNonBlocking));
    at_.n_sm = properties.multiProcessorCount;
    at_.deterministic = options.deterministic;
    std::string library;
    cublas_ = Cublas::open(library);
    device_ = fmt::format("{}, {} multiprocessors, {}", properties.name, at_.n_sm, cublas_ ? library : "no cuBLASLt among " + library);
    step_ = std::make_unique<StepMemory>(at_.stream,
                                         StepMemory::Rules{options.deterministic, options.share_prefixes ? kPrefillRows / options.group : 0,
                                                           std::max(1, at_.n_sm * kDecodeBlocks / options.kv_heads)});
  }
  ~Cuda() override {
    cudaStreamSynchronize(at_.stream);
    forget_graphs();
    for (void* p : owned_) cudaFree(p);
    for (auto& s : scratch_) cudaFree(s.data);
    cudaFreeHost(choices_host_);
    step_.reset();
    cublas_.reset();
    cudaStreamDestroy(at_.stream);
  }

  std::string_view name() const override { return "cuda"; }
  std::string device() const override { return device_; }
  ThreadPool& pool() override { return pool_; }

  std::byte* allocate(size_t bytes) override {
    void* p = nullptr;
    cudaError_t error = cudaMalloc(&p, std::max<size_t>(bytes, 256));
    check(error == cudaSuccess, "{} bytes of GPU memory cannot be had: {}", bytes, cudaGetErrorString(error));
    must(cudaMemsetAsync(p, 0, bytes, at_.stream));
    owned_.push_back(p);
    return static_cast<std::byte*>(p);
  }

  Weight place(const FormatOps& format, std::span<const std::byte* const> rows, int64_t in) override {
    Weight w = empty_weight(int64_t(rows.size()), in);
    const FormatOps& bf16 = format_ops("bf16");
    std::vector<uint16_t> host(size_t(w.out * in));
    if (format.format.name == "bf16") {
      for (int64_t r = 0; r < w.out; r++) std::memcpy(host.data() + r * in, rows[size_t(r)], size_t(in) * 2);
    } else {
      WeightStore store;
      Weight packed = pack(format, rows, in, store, pool_);
      std::vector<float> values(static_cast<size_t>(in));
      for (int64_t r = 0; r < w.out; r++) {
        format.decode_rows(packed, r, 1, values.data());
        bf16.encode_row(values.data(), in, reinterpret_cast<std::byte*>(host.data() + r * in));
      }
    }
    copy_in(w.packed.data, host.data(), host.size() * 2);
    return w;
  }
  Weight random_weight(int64_t out, int64_t in, uint64_t seed) override {
    Weight w = empty_weight(out, in);
    fill_random(at_, w.packed.data, out * in, seed, std::sqrt(3.0f / float(in)));
    return w;
  }
  Tensor place(Tensor host) override {
    Tensor t = host;
    t.device = Device::cuda;
    t.data = allocate(size_t(host.bytes()));
    copy_in(t.data, host.data, size_t(host.bytes()));
    return t;
  }
  Batch upload(const Batch& host, const StateMemory& state) override {
    host_ = host;
    const int moves = step_->moves();
    Batch batch = step_->upload(host, state);
    if (step_->moves() != moves) forget_graphs();
    // Few rows are multiplied straight through the L1 cache; decode attention then needs one block's shared memory.
    at_.shared_percent = !options_.deterministic && host.n_tokens <= options_.stream_rows ? 56 : 100;
    return batch;
  }

  void embed(Tensor out, const Weight& table, float scale, const Batch& batch) override {
    cuda::embed(at_, matrix(out), table.packed.data, table.in, scale, batch.token, sampled(batch.n_out));
  }
  void norm(Tensor out, Tensor x, const Norm& n) override {
    cuda::norm(at_, heads(out), heads(x), n.kind, n.eps, floats(n.weight), floats(n.bias), n.offset);
  }
  void linear(Tensor out, Tensor x, const Weight& weight, const Epilogue& e) override {
    Product p{weight.packed.data, weight.out, weight.in, matrix(x), matrix(out), floats(e.bias), floats(e.residual), 0, e.scale};
    if (e.residual) p.residual_stride = e.residual.stride[0];
    run(p);
  }
  void linear_gate(Tensor out, Tensor x, const Weight& weight, Activation act) override {
    Product p{weight.packed.data, weight.out, weight.in, matrix(x), matrix(out)};
    p.gated = true, p.activation = act;
    run(p);
  }
  void linear_normed(Tensor out, Tensor x, const Norm& n, const Weight& weight, const Epilogue& e) override {
    Product p{weight.packed.data, weight.out, weight.in, matrix(x), matrix(out), floats(e.bias), floats(e.residual), 0, e.scale};
    if (e.residual) p.residual_stride = e.residual.stride[0];
    run_normed(p, n);
  }
  void linear_gate_normed(Tensor out, Tensor x, const Norm& n, const Weight& weight, Activation act) override {
    Product p{weight.packed.data, weight.out, weight.in, matrix(x), matrix(out)};
    p.gated = true, p.activation = act;
    run_normed(p, n);
  }
  void add(Tensor into, Tensor x, float scale) override { cuda::add(at_, matrix(into), matrix(x), scale); }
  void gate(Tensor out, Tensor g, Tensor up, Activation act) override { cuda::gate(at_, matrix(out), matrix(g), matrix(up), act); }
  void activate(Tensor x, Activation act) override { cuda::activate(at_, matrix(x), act); }
  void softplus(Tensor x, Tensor bias) override { cuda::softplus(at_, matrix(x), floats(bias)); }
  void softcap(Tensor x, float cap) override { cuda::softcap(at_, matrix(x), cap); }
  void gather(Tensor out, Tensor x, const Batch& batch) override { cuda::gather(at_, matrix(out), matrix(x), batch.out_row); }

  void angles(Tensor out, const RopeTable& rope, const Batch& batch) override {
    cuda::angles(at_, matrix(out), frequencies(rope), spots(batch), batch.prompt_len);
  }
  void rope(Tensor x, Tensor angles, bool interleaved) override { cuda::rope(at_, heads(x), matrix(angles), interleaved); }
  void store_kv(const PagedKv& kv, Tensor k, Tensor v, const Batch& batch, const StateMemory& state) override {
    cuda::store_kv(at_, pages(kv, batch, state), heads(k), heads(v), spots(batch));
  }
  void attend(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args) override {
    attend_stored(call_of(out, q, kv, batch, state, args));
  }
  void attend_new(Tensor out, Tensor q, Tensor k, Tensor v, Tensor angles, bool interleaved, const PagedKv& kv, const Batch& batch,
                  const StateMemory& state, const AttendArgs& args) override {
    AttendCall call = call_of(out, q, kv, batch, state, args);
    if (angles) call.rope = {floats(angles), angles.stride[0], int(angles.shape[1])};
    call.k = heads(k), call.v = heads(v);
    if (step_->plan().n_tiles == 0 && !step_->plan().shared_room && !interleaved && can_decode(call)) return decode(call);
    if (!interleaved && angles && can_rope_store(call)) {
      rope_store(at_, call);
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
    cuda::short_conv(at_, matrix(out), matrix(x), floats(weight), int(weight.shape[1]), floats(bias), act, slots(slot, batch, state),
                     recurrence(batch));
  }
  void diag_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const DiagScan& scan, const Batch& batch,
                 const StateMemory& state) override {
    cuda::diag_scan(at_, matrix(out), matrix(x), matrix(dt), matrix(b), matrix(c), scan.n_state, floats(scan.a), floats(scan.d),
                    slots(scan.state, batch, state), recurrence(batch));
  }
  void outer_scan(Tensor out, Tensor x, Tensor dt, Tensor b, Tensor c, const OuterScan& scan, const Batch& batch,
                  const StateMemory& state) override {
    OuterShape shape{scan.heads, scan.head_dim, scan.n_state, scan.groups, floats(scan.a), floats(scan.d), scan.dt_min, scan.dt_max};
    cuda::outer_scan(at_, matrix(out), matrix(x), matrix(dt), matrix(b), matrix(c), shape, slots(scan.state, batch, state),
                     recurrence(batch));
  }
  void route(Tensor expert, Tensor weight, Tensor logits, bool renormalize) override {
    cuda::route(at_, matrix(expert), matrix(weight), matrix(logits), renormalize);
  }
  void grouped_linear(Tensor out, Tensor x, std::span<const Weight> experts, Tensor expert) override {
    grouped(at_, matrix(out), matrix(x), pointers(experts), experts[0].in, matrix(expert));
  }
  void combine(Tensor out, Tensor x, Tensor weight) override { cuda::combine(at_, matrix(out), matrix(x), matrix(weight)); }

  void launch_sample(Tensor logits, const Batch& batch) override {
    logits_ = logits;
    greedy(at_, matrix(logits), batch.out, choices(batch.n_out), sampled(batch.n_out));
    must(cudaMemcpyAsync(choices_host_, choices(batch.n_out), size_t(batch.n_out) * sizeof(Choice), cudaMemcpyDeviceToHost, at_.stream));
  }
  void collect(std::vector<Sampled>& out) override {
    synchronize();
    out.assign(size_t(host_.n_out), {});
    for (int i = 0; i < host_.n_out; i++) {
      if (host_.out[i] != Out::token) continue;
      const SampleRow& row = host_.sample[i];
      bool masked = host_.mask_row && host_.mask_row[i] >= 0;
      if (row.temperature > 0 || row.n_edits || row.n_logprobs || masked) {
        draw(i, out[size_t(i)]);
      } else {
        out[size_t(i)] = {choices_host_[i].token, choices_host_[i].logprob, {}};
      }
    }
  }
  void sample(Tensor logits, const Batch& batch, std::vector<Sampled>& out) override {
    launch_sample(logits, batch);
    collect(out);
  }

  void replay(uint64_t key, const std::function<void()>& step) override {
    key ^= step_->layout();
    auto it = graphs_.find(key);
    if (it == graphs_.end()) {
      step();  // fills caches and scratch memory
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      must(cudaStreamBeginCapture(at_.stream, cudaStreamCaptureModeThreadLocal));
      step();
      must(cudaStreamEndCapture(at_.stream, &graph));
      must(cudaGraphInstantiate(&exec, graph, 0));
      cudaGraphDestroy(graph);
      graphs_.emplace(key, exec);
      return;
    }
    must(cudaGraphLaunch(it->second, at_.stream));
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
    must(cudaEventCreate(&begin)), must(cudaEventCreate(&end));
    must(cudaEventRecord(begin, at_.stream));
    work();
    must(cudaEventRecord(end, at_.stream));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return ms;
  }

 private:
  Weight empty_weight(int64_t out, int64_t in) {
    Weight w{&format_ops("bf16"), out, in};
    w.packed = view(allocate(size_t(out * in) * 2), DType::bf16, {out, in}, Device::cuda);
    return w;
  }

  void forget_graphs() {  // they know addresses that are no more
    for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
    graphs_.clear();
  }

  // Memory that an operation needs for itself, by purpose; it grows when nothing is being captured.
  enum Use { x_bf16, normal, gate_up, partial, arrived, sampled_tokens, choice, n_uses };
  template <class T>
  T* scratch(Use use, int64_t n) {
    Scratch& s = scratch_[use];
    size_t bytes = size_t(n) * sizeof(T);
    if (bytes > s.bytes) {
      synchronize();
      forget_graphs();
      cudaFree(s.data);
      s.bytes = std::max<size_t>(bytes * 5 / 4, 4096);
      must(cudaMalloc(&s.data, s.bytes));
      must(cudaMemsetAsync(s.data, 0, s.bytes, at_.stream));
    }
    return static_cast<T*>(s.data);
  }
  int32_t* sampled(int n_out) { return scratch<int32_t>(sampled_tokens, std::max(n_out, 1024)); }
  Choice* choices(int n_out) {
    if (n_out > n_choices_) {
      synchronize();
      cudaFreeHost(choices_host_);
      n_choices_ = std::max(2 * n_out, 1024);
      must(cudaMallocHost(reinterpret_cast<void**>(&choices_host_), size_t(n_choices_) * sizeof(Choice)));
    }
    return scratch<Choice>(choice, std::max(n_out, 1024));
  }

  void run(Product p) {
    const int64_t rows = p.x.rows;
    if (p.x.dtype != DType::bf16) {
      Matrix x{scratch<uint16_t>(x_bf16, rows * p.in), DType::bf16, rows, p.in, p.in};
      convert(at_, x, p.x);
      p.x = x;
    }
    if (p.in % 8 || !aligned(p.x)) return product_any(at_, p);
    if (!options_.deterministic && rows <= options_.stream_rows && can_stream(p)) return stream(at_, p);
    const bool library = cublas_ && !options_.deterministic && p.out % 8 == 0 && aligned(p.y);
    if (rows <= options_.skinny_rows || !library) return product(at_, p);
    if (p.gated) {
      Product both = p;
      both.gated = false;
      both.y = {scratch<uint16_t>(gate_up, rows * p.out), DType::bf16, rows, p.out, p.out};
      if (!cublas_->product(at_.stream, both, false)) return product(at_, p);
      Matrix first = both.y, second = both.y;
      first.cols = second.cols = p.out / 2;
      second.data = static_cast<uint16_t*>(second.data) + p.out / 2;
      cuda::gate(at_, p.y, first, second, p.activation);
      return;
    }
    if (p.residual && p.residual != p.y.data)
      convert(at_, p.y, {const_cast<float*>(p.residual), DType::f32, rows, p.out, p.residual_stride});
    if (!cublas_->product(at_.stream, p, p.residual != nullptr)) return product(at_, p);
    if (p.bias) cuda::add(at_, p.y, {const_cast<float*>(p.bias), DType::f32, rows, p.out, 0}, p.scale);
  }
  void run_normed(Product p, const Norm& n) {
    if (!options_.deterministic && n.kind == Norm::Kind::rms && !n.bias && p.x.rows <= options_.norm_rows) {
      p.normed = true, p.norm_weight = floats(n.weight), p.norm_eps = n.eps, p.norm_offset = n.offset;
      if (can_stream(p)) return stream(at_, p);
      p.normed = false;
    }
    Matrix x{scratch<uint16_t>(normal, p.x.rows * p.in), DType::bf16, p.x.rows, p.in, p.in};
    auto as_heads = [](const Matrix& m) { return Heads{m.data, m.dtype, m.rows, 1, m.cols, m.stride, m.cols}; };
    cuda::norm(at_, as_heads(x), as_heads(p.x), n.kind, n.eps, floats(n.weight), floats(n.bias), n.offset);
    p.x = x;
    run(p);
  }

  // Where each expert's weight lies, as a list on the device; made once for every list of experts.
  const void* const* pointers(std::span<const Weight> experts) {
    std::vector<const void*> list;
    for (const Weight& w : experts) list.push_back(w.packed.data);
    auto it = experts_.find(list);
    if (it == experts_.end()) {
      std::byte* at = allocate(list.size() * sizeof(void*));
      copy_in(at, list.data(), list.size() * sizeof(void*));
      it = experts_.emplace(list, reinterpret_cast<const void* const*>(at)).first;
    }
    return it->second;
  }

  static Slots slots(const SlotState& slot, const Batch& batch, const StateMemory& state) {
    const StateMemory::GroupMemory& memory = state.group[size_t(slot.ref.group)];
    const GroupTable& table = batch.group[size_t(slot.ref.group)];
    return {memory.base + slot.ref.offset + slot.offset, memory.unit_bytes, table.src, table.dst};
  }
  static Recurrence recurrence(const Batch& b) { return {b.n_seqs, b.row_begin, b.parent, b.corner}; }

  Frequencies frequencies(const RopeTable& rope) {
    auto on_device = [&](const std::vector<float>& v) -> const float* {
      if (v.empty()) return nullptr;
      auto [it, fresh] = ropes_.try_emplace(v.data());
      if (fresh || it->second.first != v) {
        it->second.first = v;
        it->second.second = place(view(const_cast<float*>(v.data()), DType::f32, {int64_t(v.size())})).as<float>();
      }
      return it->second.second;
    };
    return {rope.length,   rope.dim,   rope.scale, on_device(rope.inv_freq), on_device(rope.long_inv_freq),
            rope.original, rope.theta, rope.factor};
  }

  static Spots spots(const Batch& b) { return {b.n_seqs, b.n_tokens, b.row_begin, b.context, b.position, b.corner, b.ancestors}; }
  static Pages pages(const PagedKv& kv, const Batch& batch, const StateMemory& state) {
    const StateMemory::GroupMemory& memory = state.group[size_t(kv.ref.group)];
    check(kv.dtype == DType::f32 || kv.dtype == DType::f16 || kv.dtype == DType::bf16, "keys and values cannot be stored as {}",
          name_of(kv.dtype));
    const GroupTable& table = batch.group[size_t(kv.ref.group)];
    const unsigned tokens = unsigned(memory.page_tokens);
    const int shift = std::has_single_bit(tokens) ? std::countr_zero(tokens) : -1;
    const int64_t before = kv.ref.offset * memory.page_tokens, block = (kv.bytes_per_token() + 63) / 64 * 64 * memory.page_tokens;
    return {memory.base + before * memory.n_units,
            block,
            memory.page_tokens,
            shift,
            kv.dtype,
            kv.kv_heads,
            kv.k_dim,
            kv.v_dim,
            table.unit,
            table.begin,
            kv.ref.group};
  }
  AttendCall call_of(Tensor out, Tensor q, const PagedKv& kv, const Batch& batch, const StateMemory& state, const AttendArgs& args) {
    check(args.heads % kv.kv_heads == 0, "{} query heads cannot share {} key heads", args.heads, kv.kv_heads);
    AttendCall call;
    call.q = heads(q), call.out = heads(out), call.pages = pages(kv, batch, state), call.spots = spots(batch);
    call.heads = args.heads, call.scale = args.scale, call.window = args.window, call.softcap = args.softcap,
    call.sinks = floats(args.sinks);
    return call;
  }
  void attend_stored(const AttendCall& call) {
    const StepMemory::Plan& plan = step_->plan();
    const bool decodes = plan.n_items > 0, prefills = plan.n_tiles > 0;
    if ((decodes && !can_decode(call)) || (prefills && !can_prefill(call))) return attend_any(at_, call);
    if (decodes) decode(call);
    if (plan.n_single) attend_prefill(at_, call, plan.tile, plan.n_single, true);
    if (plan.n_tiles > plan.n_single) attend_prefill(at_, call, plan.tile + plan.n_single, plan.n_tiles - plan.n_single);
  }
  void decode(const AttendCall& call) {
    const StepMemory::Plan& plan = step_->plan();
    DecodePlan d{plan.item, plan.grid};
    d.partial = scratch<float>(partial, int64_t(plan.grid) * call.pages.kv_heads * kGroup * (call.pages.v_dim + kPartExtra));
    d.arrived = scratch<int32_t>(arrived, std::max<int64_t>(int64_t(call.spots.n_seqs) * call.pages.kv_heads, 1 << 16));
    d.shared = plan.shared, d.shared_row = plan.shared_row, d.n_shared = plan.n_shared, d.shared_room = plan.shared_room;
    if (d.shared_room) {
      check(call.window == 0 && call.heads / call.pages.kv_heads <= options_.group && can_prefill(call),
            "prefixes are shared by attention of whole contexts with {} query heads a K/V head alone", options_.group);
      attend_shared(at_, call, d);
    }
    attend_decode(at_, call, d);
  }

  // On the host, for rows whose choice is more than the largest logit.
  void draw(int i, Sampled& out) {
    const int64_t vocab = logits_.shape[1], words = (vocab + 31) / 32;
    std::vector<float> row(static_cast<size_t>(vocab));
    copy_out(row.data(), logits_.row<float>(i), row.size() * 4);
    int32_t mask_row = host_.mask_row ? host_.mask_row[i] : -1;
    SampleScratch scratch;
    sample_row(row.data(), vocab, host_.sample[i], host_.edit, mask_row < 0 ? nullptr : host_.mask + mask_row * words, {max_of, sum_exp},
               scratch, out);
    copy_in(sampled(host_.n_out) + i, &out.token, 4);
  }

  struct Scratch {
    void* data = nullptr;
    size_t bytes = 0;
  };
  CudaOptions options_;
  ThreadPool pool_;
  Launch at_;
  std::string device_;
  std::unique_ptr<Cublas> cublas_;  // may be null
  std::unique_ptr<StepMemory> step_;
  std::vector<void*> owned_;
  Scratch scratch_[n_uses];
  std::unordered_map<const float*, std::pair<std::vector<float>, const float*>> ropes_;
  std::map<std::vector<const void*>, const void* const*> experts_;
  std::unordered_map<uint64_t, cudaGraphExec_t> graphs_;
  Batch host_;
  Tensor logits_;
  Choice* choices_host_ = nullptr;
  int n_choices_ = 0;
};

}  // namespace

}  // namespace cuda

bool cuda_available() {
  int n = 0;
  cudaDeviceProp properties{};
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return false;
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess && properties.major == 9;
}

std::unique_ptr<CudaBackend> make_cuda_backend(const CudaOptions& options) {
  check(cuda_available(), "there is no NVIDIA GPU of the Hopper generation here");
  return std::make_unique<cuda::Cuda>(options);
}

}  // namespace mr
