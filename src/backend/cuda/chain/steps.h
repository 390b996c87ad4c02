// Products, attentions and scans of one row, each after those before it, in one kernel.
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/recurrent/recurrent.h"

namespace mr::cuda {

struct OuterStep {  // as outer_scan() takes it, for one row
  ScanRows rows;
  OuterShape shape;
  Slots slots;
  Recurrence recurrence;  // for outer_scan() alone
};
struct SelectStep {  // as select_scan() takes it, for one row
  SelectCall call;
  Slots slots;
};

struct RouteStep {  // as route_normed() takes it, for one row, half of whose norm is done
  RouteCall call;
  const void* x = nullptr;  // bf16
  const float* squares = nullptr;
  int64_t n_squares = 0;
};
struct ExpertsStep {  // of the experts that the RouteStep before it chose, k of n
  Product product;    // gated: y [k, out / 2 / k] = act(first) * second; else y = residual + the sum of first's products by their weights
  const Packed *first = nullptr, *second = nullptr;  // [n]
  int k = 0, n = 0;
  Matrix x, expert, weight;  // as grouped_gate_one() and grouped_sum_one() take them
};

struct alignas(16) ChainStep {
  enum class Kind : uint8_t { product, attend, outer, select, route, experts } kind;
  union {
    Product product;    // as product_one() takes it
    AttendCall attend;  // the one row of the one sequence there is, with its key and value
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
  unsigned* arrived = nullptr;  // [2 + n_sm] zero
};
bool can_chain(const Launch&, const ChainStep&);
void chain(const Launch&, const ChainStep* host, const ChainStep* device, int n, const ChainMemory&);  // the steps, twice

}  // namespace mr::cuda
