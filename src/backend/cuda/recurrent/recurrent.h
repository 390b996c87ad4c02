// Recurrent layers: short convolutions and scans, which read and write slots of state.
#pragma once

#include "backend/cuda/rows/rows.h"

namespace mr::cuda {

// scan.cu, short_conv.cu
struct Recurrence {
  int n_seqs = 0;
  const int32_t *row_begin = nullptr, *parent = nullptr;  // parent: null without trees
  const Corner* corner = nullptr;
};
struct OuterShape {
  int heads, head_dim, n_state, groups;
  const float *a, *d;
  float dt_min, dt_max;
};
void short_conv(const Launch&, Matrix out, Matrix x, const float* weight, int width, const float* bias, Activation, const Slots&,
                const Recurrence&);
struct ScanRows {  // of the batch
  Matrix out, x, dt, b, c;
  const float* dt_bias = nullptr;  // dt = softplus(dt + dt_bias); null: already done
  Matrix gate;                     // out = silu(gate) * out; no data: no gate
  HalfNorm next;                   // only if outer_can_norm()
};
inline constexpr int kScanPart = 32;  // columns per part of the half norm
void diag_scan(const Launch&, const ScanRows&, int n_state, const float* a, const float* d, const Slots&, const Recurrence&);
void outer_scan(const Launch&, const ScanRows&, const OuterShape&, const Slots&, const Recurrence&);
bool outer_can_norm(const OuterShape&, const Slots&);  // whether it supports a half norm

// selective.cu: Mamba's selection of dt, B and C, and the scan, of one row per sequence.
struct SelectCall {
  ScanRows rows;              // out, x, gate, dt_bias; the rest is computed here
  Matrix dbc;                 // f32 [T, rank + 2 n_state]: low, B, C before their norms
  const void* low = nullptr;  // bf16 [inner, rank]
  int rank = 0, n_state = 0;
  bool norms = false;
  float eps[3] = {};
  const float* weight[3] = {};  // of the norms of low, B, C; null: ones
  const float *a = nullptr, *d = nullptr;
};
inline constexpr int kSelectMost = 16;     // most rows; beyond, separate operations are as fast
inline constexpr int kSelectVectors = 8;   // most vectors of eight inputs of dt's weight per thread
inline constexpr int kSelectShared = 384;  // most values of a row shared by all channels
bool can_select(const SelectCall&, const Slots&);
void select_scan(const Launch&, const SelectCall&, const Slots&);
// y [T, out] f32 = x . weight^T for few outputs, many inputs and few rows; in % 8 == 0, rows of x bf16 and 16-byte aligned.
void product_thin(const Launch&, Matrix y, Matrix x, const void* weight);

}  // namespace mr::cuda
