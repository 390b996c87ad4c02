#include "analyze/roofline.h"

#include <algorithm>

namespace mr {

std::string_view name_of(Bound bound) { return bound == Bound::memory ? "memory" : bound == Bound::compute ? "compute" : "link"; }

RoofTime time_of(const Operation& o, const Deployment& d) {
  const double share = o.split ? 1.0 / d.tp : 1, state_share = 1.0 / (o.state_ways ? std::min(o.state_ways, d.tp) : d.tp);
  const double rate = o.product ? product_rate(d.chip, o.format) : d.chip.bf16;
  const double memory = ((o.weights + o.read + o.written) * share + o.state * state_share) / d.chip.bandwidth;
  const double compute = o.flops * share / rate, link = o.link > 0 ? o.link / d.chip.link : 0;
  if (link > memory && link > compute) return {link, Bound::link, memory, compute};
  return compute > memory ? RoofTime{compute, Bound::compute, memory, compute} : RoofTime{memory, Bound::memory, memory, compute};
}

StepCost step_cost(const ModelSpec& spec, const Storage& storage, std::span<const Phase> parts, const Deployment& d) {
  StepCost cost;
  double by_bound[3]{};
  for (const Operation& o : operations(spec, storage, parts, d.tp)) {
    RoofTime t = time_of(o, d);
    cost.seconds += t.seconds, cost.bytes += o.bytes(), cost.flops += o.flops;
    cost.memory_s += t.memory_s, cost.compute_s += t.compute_s;
    by_bound[size_t(t.bound)] += t.seconds;
  }
  cost.bound = Bound(std::ranges::max_element(by_bound) - by_bound);
  return cost;
}

}  // namespace mr
