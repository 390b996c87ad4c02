// The steps of a chain: products, attentions and scans of one row, run in order by one kernel.
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/recurrent/recurrent.h"

namespace mr::cuda {

struct OuterStep {  // arguments of outer_scan(), for one row
  ScanRows rows;
  OuterShape shape;
  Slots slots;
  Recurrence recurrence;  // only for outer_scan()
};
struct SelectStep {  // arguments of select_scan(), for one row
  SelectCall call;
  Slots slots;
};

struct RouteStep {  // arguments of route_normed(), for one row whose norm is half done
  RouteCall call;
  const void* x = nullptr;  // bf16
  const float* squares = nullptr;
  int64_t n_squares = 0;
};
struct ExpertsStep {  // products of the k of n experts that the previous RouteStep chose
  Product product;    // gated: y [k, out / 2 / k] = act(first) * second; else y = residual + weighted sum of first's products
  const Packed *first = nullptr, *second = nullptr;  // [n]
  int k = 0, n = 0;
  Matrix x, expert, weight;  // arguments of grouped_gate_one() and grouped_sum_one()
};

struct alignas(16) ChainStep {
  enum class Kind : uint8_t { product, attend, outer, select, route, experts } kind;
  union {
    Product product;    // argument of product_one()
    AttendCall attend;  // the one row of the only sequence, with its key and value
    OuterStep outer;
    SelectStep select;
    RouteStep route;
    ExpertsStep experts;
  };
  constexpr bool attends() const { return kind == Kind::attend; }
  explicit ChainStep(const Product& p) : kind(Kind::product), product(p) {}
  explicit ChainStep(const AttendCall& c) : kind(Kind::attend), attend(c) {}
  explicit ChainStep(const OuterStep& s) : kind(Kind::outer), outer(s) {}
  explicit ChainStep(const SelectStep& s) : kind(Kind::select), select(s) {}
  explicit ChainStep(const RouteStep& s) : kind(Kind::route), route(s) {}
  explicit ChainStep(const ExpertsStep& s) : kind(Kind::experts), experts(s) {}
};
struct ChainMemory {
  float* partial = nullptr;     // [n_sm * kGroup * (v_dim + kPartExtra)]
  unsigned* arrived = nullptr;  // [2 + n_sm] zero before and after; grid barrier, exits, merges
};
bool can_chain(const Launch&, const ChainStep&);
void chain(const Launch&, const ChainStep* host, const ChainStep* device, int n, const ChainMemory&);  // host, device: the same n steps

}  // namespace mr::cuda
