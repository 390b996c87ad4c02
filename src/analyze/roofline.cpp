#include "analyze/roofline.h"

#include <algorithm>

namespace mr {

std::string_view name_of(Roof bound) { return bound == Roof::memory ? "memory" : bound == Roof::compute ? "compute" : "link"; }

Operation part_of(Operation o, int chips) {
  const double share = o.split ? 1.0 / chips : 1;
  for (double* x : {&o.flops, &o.weights, &o.read, &o.written}) *x *= share;
  o.state /= o.state_ways ? std::min(o.state_ways, chips) : chips;
  return o;
}

RoofTime time_of(const Operation& whole, const Deployment& d) {
  const Operation o = part_of(whole, d.tp);
  const double rate = o.product ? product_rate(d.chip, o.format) : d.chip.bf16;
  const double memory = o.bytes() / d.chip.bandwidth;
  const double compute = o.flops / rate, link = o.link > 0 ? o.link / d.chip.link : 0;
  if (link > memory && link > compute) return {link, Roof::link, memory, compute};
  return compute > memory ? RoofTime{compute, Roof::compute, memory, compute} : RoofTime{memory, Roof::memory, memory, compute};
}

StepCost step_cost(std::span<const Operation> operations, const Deployment& d) {
  StepCost cost;
  double by_bound[3]{};
  for (const Operation& o : operations) {
    RoofTime t = time_of(o, d);
    cost.seconds += t.seconds;
    cost.bytes += o.bytes();
    cost.flops += o.flops;
    cost.memory_s += t.memory_s;
    cost.compute_s += t.compute_s;
    by_bound[size_t(t.bound)] += t.seconds;
  }
  cost.bound = Roof(std::ranges::max_element(by_bound) - by_bound);
  return cost;
}

}  // namespace mr
