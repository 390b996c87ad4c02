#include "backend/cuda/gpu.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace mr::cuda {

Scratch::~Scratch() {
  for (Piece& p : pieces_) cudaFree(p.data);
}

int64_t Scratch::bytes() const {
  size_t bytes = 0;
  for (const Piece& p : pieces_) bytes += p.bytes;
  return int64_t(bytes);
}

void Scratch::grow(Use use, size_t bytes, cudaStream_t stream) {
  Piece& p = pieces_[use];
  Piece old = std::exchange(p, {});
  if (use != sampled_tokens) cudaFree(std::exchange(old, {}).data);
  const cudaError_t error = cudaMalloc(&p.data, bytes);
  if (error == cudaSuccess) {
    p.bytes = bytes;
    must(cudaMemsetAsync(p.data, 0, bytes, stream));
    if (old.data) must(cudaMemcpyAsync(p.data, old.data, old.bytes, cudaMemcpyDeviceToDevice, stream));
    must(cudaStreamSynchronize(stream));
  }
  cudaFree(old.data);
  must(error);
}

void Gpu::grow(Lane& lane, Scratch::Use use, size_t bytes) {
  must(cudaStreamSynchronize(lane.at().stream));  // at() launches deferred operations, which use the old address
  forget_addresses();
  scratch_.grow(use, bytes, launch.stream);
}

void Gpu::reserve(Lane& lane, Scratch::Use use, int64_t bytes) {
  if (!scratch_.holds(use, size_t(bytes))) grow(lane, use, size_t(bytes));
}

static StepMemory::Rules rules_of(const CudaOptions& options, const Choices& c, int n_sm) {
  StepMemory::Rules rules{.deterministic = options.deterministic};
  rules.share = c.share_prefixes ? kPrefillRows / c.group : 0;
  rules.workers = std::max(1, n_sm * kDecodeBlocks / decode_shares(c.kv_heads * c.group, c.kv_heads));
  rules.chained = std::max(1, n_sm / c.kv_heads);
  rules.chain_rows = c.chain_rows;
  return rules;
}

static cudaDeviceProp device_properties() {
  cudaDeviceProp properties{};
  must(cudaGetDeviceProperties(&properties, 0));
  return properties;
}

static Choices choose(const CudaOptions& options, const Launch& at) {
  const Choices choices = options.model ? choices_for(*options.model) : Choices{};
  return at.plain ? plain_choices(choices) : choices;
}

static constexpr int kHopper = 9;  // major compute capability

static Launch launch_on(const cudaDeviceProp& properties, const CudaOptions& options) {
  Launch at;
  at.n_sm = properties.multiProcessorCount;
  at.deterministic = options.deterministic;
  at.plain = options.plain || properties.major != kHopper;
  at.overlaps = properties.major >= kHopper;
  return at;
}

Gpu::Gpu(const CudaOptions& given) : Gpu(given, device_properties()) {}

Gpu::Gpu(const CudaOptions& given, const cudaDeviceProp& properties)
    : options(given), launch(launch_on(properties, given)), choices(choose(given, launch)) {
  must(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
  launch.log = &log;
  std::string library;
  cublas = Cublas::open(library);
  device = fmt::format("{}, {} multiprocessors, {}", properties.name, launch.n_sm, cublas ? library : "no cuBLASLt among " + library);
  step = std::make_unique<StepMemory>(launch.stream, rules_of(options, choices, launch.n_sm));
  chains = std::make_unique<ChainPrograms>(launch, options.chain);
}

Gpu::~Gpu() {
  cudaStreamSynchronize(launch.stream);
  chains.reset();
  step.reset();
  cublas.reset();
  cudaStreamDestroy(launch.stream);
}

// Products.

bool Gpu::to_library(const Product& p) const {
  return p.x.rows > options.skinny_rows && (launch.plain || !suits_many(p)) && cublas && !options.deterministic && p.out % 8 == 0 &&
         aligned(p.y) && p.in % 8 == 0;
}

Matrix Gpu::as_bf16(Lane& lane, const Matrix& from) {
  if (from.dtype == DType::bf16 && aligned(from)) return from;
  const int64_t stride = padded_cols(from.cols);
  Matrix x{scratch<uint16_t>(lane, Scratch::x_bf16, from.rows * stride), DType::bf16, from.rows, from.cols, stride};
  convert(lane.at(), x, from);
  return x;
}

void Gpu::multiply_alone(const Launch& at, const Product& p) const {
  if (is_one(p)) return product_one(at, p);
  if (at.plain) return product_plain(at, p);
  product(at, p);
}

void Gpu::multiply(Lane& lane, Product p, const Weight& weight, Tensor both) {
  const bool blocks = packing_of(*weight.codec).has_value();
  if (p.x.dtype != DType::bf16 || blocks) p.x = as_bf16(lane, p.x);
  if (blocks) {
    const Packed w = packed(weight);
    if ((p.x.rows <= kPackedRows || options.deterministic) && (!p.gated || p.out % 32 == 0)) return product_packed(lane.at(), p, w);
    p.weight = scratch<uint16_t>(lane, Scratch::unpacked, p.out * p.in);
    unpack(lane.at(), const_cast<void*>(p.weight), w);
  }
  if (to_library(p) && aligned(p.x)) return multiply_by_library(lane, p, both);
  if (!shape_fits(p) || !aligned(p.x)) return product_any(lane.at(), p);
  if (launch.plain) return multiply_alone(lane.at(), p);
  if (!options.deterministic && wants_product_wide(launch, p)) return product_wide(lane.at(), p);
  if (!lane.wait(p)) multiply_alone(lane.at(), p);
}

void Gpu::multiply_by_library(Lane& lane, const Product& p, Tensor both) {
  if (!launch.plain && wants_product_wide(launch, p)) return product_wide(lane.at(), p);
  if (p.gated) {
    Product halves = p;
    halves.gated = false;
    halves.y = matrix(both);
    log.note("cublasLt");
    if (!cublas->product(lane.at().stream, halves, false)) return multiply_alone(lane.at(), p);
    Matrix first = halves.y, second = halves.y;
    first.cols = second.cols = p.out / 2;
    second.data = static_cast<uint16_t*>(second.data) + p.out / 2;
    return cuda::gate(lane.at(), p.y, first, second, p.activation);
  }
  if (p.residual && p.residual != p.y.data)
    convert(lane.at(), p.y, {const_cast<float*>(p.residual), DType::f32, p.x.rows, p.out, p.residual_stride});
  log.note("cublasLt");
  if (!cublas->product(lane.at().stream, p, p.residual != nullptr)) return multiply_alone(lane.at(), p);
  if (p.bias) cuda::add(lane.at(), p.y, {const_cast<float*>(p.bias), DType::f32, p.x.rows, p.out, 0}, p.scale);
}

// Attention.

// In deterministic mode sequences of one row have both items and tiles.
void Gpu::attend(Lane& lane, const AttendCall& call) {
  const StepMemory::Plan& plan = step->plan();
  const bool decodes = plan.n_items > 0 && (!options.deterministic || can_span(call));
  const int tiled = decodes ? plan.n_single : 0;  // the first of the rest
  if (launch.plain || (decodes && !can_decode(call)) || (plan.n_tiles > tiled && !can_prefill(call))) return attend_any(lane.at(), call);
  if (decodes) decode(lane, call);
  if (plan.n_single > tiled) attend_prefill(lane.at(), call, plan.tile, plan.n_single, true);
  if (plan.n_tiles > plan.n_single) attend_prefill(lane.at(), call, plan.tile + plan.n_single, plan.n_tiles - plan.n_single);
}

DecodePlan Gpu::decode_plan(Lane& lane, const AttendCall& call, bool chained) {
  const StepMemory::Plan& plan = step->plan();
  DecodePlan d{chained ? plan.chained : plan.item, chained ? plan.n_chained : plan.grid};
  const int64_t shares = decode_shares(call.heads, call.pages.kv_heads);
  d.partial = scratch<float>(lane, Scratch::partial, plan.slots * partial_floats(shares, call.pages.v_dim));
  d.arrived = scratch<int32_t>(lane, Scratch::arrived, arrived_room(call.spots.n_seqs, shares));
  return d;
}

void Gpu::decode(Lane& lane, const AttendCall& call) {
  const StepMemory::Plan& plan = step->plan();
  DecodePlan d = decode_plan(lane, call, false);
  if (options.deterministic) return attend_spans(lane.at(), call, d);
  d.shared = plan.shared;
  d.shared_row = plan.shared_row;
  d.n_shared = plan.n_shared;
  d.shared_room = plan.shared_room;
  if (d.shared_room) {
    check(call.window == 0 && call.heads / call.pages.kv_heads <= choices.group && can_prefill(call),
          "shared prefixes need attention without a window and at most {} query heads per K/V head", choices.group);
    attend_shared(lane.at(), call, d);
  }
  attend_decode(lane.at(), call, d);
}

// Experts.

void Gpu::multiply_grouped(Lane& lane, Tensor out, Tensor x, std::span<const Weight> experts, std::span<const Weight> ups, Tensor expert,
                           Activation act, bool listed) {
  const Packed shape = packed(experts[0]), *list = tables->experts(experts);
  const Matrix rows = matrix(x);
  if (shape.in % 8) return grouped_any(lane.at(), matrix(out), rows, list, int(experts.size()), shape.in, matrix(expert));
  GroupPlan plan = group_plan(launch, out.shape[0], int64_t(experts.size()));
  if (plan.listed) {
    int32_t* room = scratch<int32_t>(lane, Scratch::groups, out.shape[0] + 1 + plan.n_tiles * int64_t(sizeof(GroupTile) / 4));
    plan.n_listed = room;
    plan.pairs = room + 1;
    plan.tile = reinterpret_cast<GroupTile*>(room + 1 + out.shape[0]);
    plan.known = listed;
  }
  grouped(lane.at(), matrix(out), as_bf16(lane, rows), shape, list, int(experts.size()), matrix(expert), plan,
          ups.empty() ? nullptr : tables->experts(ups), act);
}

}  // namespace mr::cuda
