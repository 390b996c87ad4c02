// Scans of one row, for the blocks of a chain: each computes a range of channels. Inputs from before the chain are prefetched before
// wait(), which returns when the previous steps are done; meet() is a barrier of the block's workers; done() signals that this warp's
// outputs are written: states are stored after it, since no step of the chain reads them.
#pragma once

#include "backend/cuda/chain/steps.h"
#include "backend/cuda/recurrent/scan.cuh"

namespace mr::cuda {

constexpr int kScanWorkers = 256;                  // threads
constexpr int kHeldStates = 128, kHeldGroups = 2;  // states per group of kScanPart channels; most groups per block

// Loads what another block wrote in this kernel: bypasses L1.
__device__ inline float fresh(const Matrix& m, int64_t i) {
  if (m.dtype == DType::f32) return __ldcg(static_cast<const float*>(m.data) + i);
  return low(__ldcg(static_cast<const uint16_t*>(m.data) + i));
}
__device__ inline float4 fresh4(const Matrix& m, int64_t i) {
  if (m.dtype == DType::f32) return __ldcg(reinterpret_cast<const float4*>(static_cast<const float*>(m.data) + i));
  const uint2 v = __ldcg(reinterpret_cast<const uint2*>(static_cast<const bf16*>(m.data) + i));
  return {low(v.x), high(v.x), low(v.y), high(v.y)};
}

inline int outer_groups(const OuterShape& s) { return int(div_up(s.n_state, kHeldStates)); }  // of a slice
inline int outer_slices(const OuterShape& s) { return s.heads * s.head_dim / kScanPart; }
inline size_t outer_room(const OuterShape&) { return size_t(kHeldGroups) * (kScanWorkers / 32) * kScanPart * 4; }

inline bool by_four(const Matrix& m) {
  const size_t size = size_of(m.dtype);
  return (m.dtype == DType::f32 || m.dtype == DType::bf16) && reinterpret_cast<uintptr_t>(m.data) % (4 * size) == 0;
}
inline bool can_chain_outer(const Launch& at, const OuterStep& s) {
  const OuterShape& o = s.shape;
  return o.head_dim % kScanPart == 0 && o.n_state % 4 == 0 && div_up(outer_slices(o), at.n_sm) * outer_groups(o) <= kHeldGroups &&
         by_four(s.slots, o.head_dim) && by_four(s.rows.x) && by_four(s.rows.b) && by_four(s.rows.c) && s.rows.x.rows == 1;
}

// A thread's output of a scan, if its warp has one: channels of the slice-th kScanPart.
struct ScanOutput {
  const ScanRows& rows;
  int slice, channel;
  bool there;
  float through = 0, weight = 0, in = 0, gate = 0;

  __device__ ScanOutput(const ScanRows& r, int of, int end)
      : rows(r), slice(of), channel(of * kScanPart + int(threadIdx.x % 32)), there(of < end) {}
  __device__ void load_ahead(const float* d, int head) {
    if (there && d) through = d[head];
    if (there && rows.next.x && rows.next.weight) weight = rows.next.weight[channel];
  }
  __device__ void load() {
    if (!there) return;
    in = fresh(rows.x, channel);
    if (rows.gate.data) gate = fresh(rows.gate, channel);
  }
  __device__ void write(float y) const {
    if (rows.gate.data) y *= activated(Activation::silu, gate);
    store(rows.out.data, rows.out.dtype, channel, y);
    if (!rows.next.x) return;
    put_half(rows.next, channel, y, weight);
    const float squares = warp_sum(y * y);
    if (threadIdx.x % 32 == 0) put_squares(rows.next, 0, slice, int(rows.next.parts), squares);
  }
};

// Mamba-2's scan for slices [begin, end) of kScanPart channels. Warp w has states 16 w .. 16 w + 15 of every kHeldStates, and eight of
// its lanes cover a slice's channels.
template <class Wait, class Meet, class Done>
__device__ void outer_of_one(float* room, const OuterStep& call, int begin, int end, Wait wait, Meet meet, Done done) {
  const ScanRows& rows = call.rows;
  const OuterShape& s = call.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = s.n_state, per_head = s.head_dim / kScanPart;
  const int chunks = (n + kHeldStates - 1) / kHeldStates, col = lane % 8 * 4, row = (warp * 4 + lane / 8) * 4;
  float(*sums)[kScanWorkers / 32][kScanPart] = reinterpret_cast<float(*)[kScanWorkers / 32][kScanPart]>(room);
  wait_before();
  const float* from = slot_at(call.slots, call.slots.src[0]);
  const int32_t to = call.slots.dst[0];
  float4 held[kHeldGroups][4];
  float rate[kHeldGroups], bias[kHeldGroups];
  auto slice_of = [&](int g) { return begin + g / chunks; };
  auto state_of = [&](int g) { return g % chunks * kHeldStates + row; };
  auto there = [&](int g) { return slice_of(g) < end && state_of(g) < n; };
  auto place = [&](int g) {
    const int slice = slice_of(g);
    return (int64_t(slice / per_head) * n + state_of(g)) * s.head_dim + slice % per_head * kScanPart + col;
  };
#pragma unroll
  for (int g = 0; g < kHeldGroups; g++) {
    if (!there(g)) continue;
    const int head = slice_of(g) / per_head;
#pragma unroll
    for (int i = 0; i < 4; i++) held[g][i] = __ldcg(reinterpret_cast<const float4*>(from + place(g) + i * s.head_dim));
    rate[g] = s.a[head];
    bias[g] = rows.dt_bias ? rows.dt_bias[head] : 0.0f;
  }
  ScanOutput output(rows, begin + warp, end);
  output.load_ahead(s.d, output.slice / per_head);
  wait();

  float4 b[kHeldGroups], c[kHeldGroups], x[kHeldGroups];
  float dt[kHeldGroups];
#pragma unroll
  for (int g = 0; g < kHeldGroups; g++) {
    if (!there(g)) continue;
    const int head = slice_of(g) / per_head;
    const int64_t at = int64_t(head / (s.heads / s.groups)) * n + state_of(g);
    b[g] = fresh4(rows.b, at);
    c[g] = fresh4(rows.c, at);
    x[g] = fresh4(rows.x, slice_of(g) * kScanPart + col);
    dt[g] = fresh(rows.dt, head);
  }
  output.load();
#pragma unroll
  for (int g = 0; g < kHeldGroups; g++) {
    if (slice_of(g) >= end) break;
    float4 sum{};
    if (there(g)) {
      const float step = fminf(fmaxf(rows.dt_bias ? softplus_of(dt[g] + bias[g]) : dt[g], s.dt_min), s.dt_max);
      const float decay = expf(step * rate[g]), by[4] = {b[g].x, b[g].y, b[g].z, b[g].w}, of[4] = {c[g].x, c[g].y, c[g].z, c[g].w};
      const float4 gain = times(step, x[g]);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        held[g][i] = fma4(decay, held[g][i], times(by[i], gain));
        sum = fma4(of[i], held[g][i], sum);
      }
    }
    sum = over_lanes(sum, 8);
    if (lane < 8) *reinterpret_cast<float4*>(&sums[g][warp][col]) = sum;
  }
  meet();
  if (output.there) {
    float y = output.through * output.in;
    for (int g = warp * chunks; g < (warp + 1) * chunks; g++)
#pragma unroll
      for (int w = 0; w < kScanWorkers / 32; w++) y += sums[g][w][lane];
    output.write(y);
  }
  done();
#pragma unroll
  for (int g = 0; g < kHeldGroups; g++) {
    if (!there(g) || to < 0) continue;
    float* kept = slot_at(call.slots, to) + place(g);
#pragma unroll
    for (int i = 0; i < 4; i++) __stcs(reinterpret_cast<float4*>(kept + i * s.head_dim), held[g][i]);
  }
}

inline size_t select_room() { return size_t(kScanWorkers / 32) * kSelectShared * 4; }
inline bool can_chain_select(const Launch& at, const SelectStep& s) {
  return s.call.rows.x.rows == 1 && can_select(s.call, s.slots) &&
         div_up(s.call.rows.x.cols, at.n_sm) * (s.call.n_state / 4) <= kScanWorkers;
}

// Mamba's selection and scan for channels [begin, end), n_state / 4 threads each. Every warp normalizes the shared values redundantly.
template <class Wait, class Done>
__device__ void select_of_one(float* room, const SelectStep& step, int begin, int end, Wait wait, Done done) {
  const SelectCall& s = step.call;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = s.n_state, parts = n / 4, width = s.rank + 2 * n;
  const Segments segments(s);
  const int i = min(begin + int(threadIdx.x) / parts, end - 1), part = threadIdx.x % parts, each = s.rank / parts;
  const bool there = begin + int(threadIdx.x) / parts < end, busy = begin + warp * 32 / parts < end;  // busy: the warp has a channel
  const int64_t place = int64_t(i) * n + 4 * part;
  float4 h{}, rate{};
  uint4 low_weight[kSelectVectors];
  float through = 0, bias = 0, norm_weight[kSelectShared / 32];
  int32_t to = -1;
  wait_before();
  if (busy) {
    h = __ldcg(reinterpret_cast<const float4*>(slot_at(step.slots, step.slots.src[0]) + place));
    const bf16* from = static_cast<const bf16*>(s.low) + int64_t(i) * s.rank + part * each;
#pragma unroll
    for (int v = 0; v < kSelectVectors; v++)
      if (v * 8 < each) low_weight[v] = stream16(from + v * 8);
    rate = rates_at(s.a, place);
    bias = s.rows.dt_bias[i];
    to = step.slots.dst[0];
    if (s.d) through = s.d[i];
#pragma unroll
    for (int k = 0; k < kSelectShared / 32; k++) {
      const int j = k * 32 + lane;
      const float* weight = s.weight[segments.of(j)];
      norm_weight[k] = s.norms && weight && j < width ? weight[j < s.rank ? j : (j - s.rank) % n] : 1.0f;
    }
  }
  wait();
  if (!busy) return done();
  const float in = fresh(s.rows.x, i), gate = s.rows.gate.data ? fresh(s.rows.gate, i) : 0.0f;
  const float* row = static_cast<const float*>(s.dbc.data);
  float* chosen = room + warp * kSelectShared;  // low, B, C
  SelectRow shared_values;
  shared_values.load(s, segments, [&](int j) { return __ldcg(row + j); });
  shared_values.put(segments, chosen, [&](int k, int) { return norm_weight[k]; });
  __syncwarp();
  float dt = 0;
#pragma unroll
  for (int v = 0; v < kSelectVectors; v++) {
    if (v * 8 >= each) break;
    const float4 *at = reinterpret_cast<const float4*>(chosen + part * each + v * 8), a = at[0], b = at[1];
    const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    dt = dot8(low_weight[v], values, dt);
  }
  dt = softplus_of(over_parts(dt, parts) + bias);
  const float4 b = *reinterpret_cast<const float4*>(chosen + s.rank + 4 * part),
               c = *reinterpret_cast<const float4*>(chosen + s.rank + n + 4 * part);
  float y = fmaf(through, in, over_parts(diag_update(h, rate, dt, in, b, c), parts));
  if (s.rows.gate.data) y *= activated(Activation::silu, gate);
  if (there && part == 0) store(s.rows.out.data, s.rows.out.dtype, i, y);
  done();
  if (there && to >= 0) __stcs(reinterpret_cast<float4*>(slot_at(step.slots, to) + place), h);
}

}  // namespace mr::cuda
