#include "bench/limit_meter.h"

namespace mr {

void LimitMeter::measure(Engine& engine, Isa isa) {
  LimitProbe probe(engine, isa);
  probe.take();
  chip_ = probe.median();
  costs_.emplace(engine);
  sums_.bytes_per_s = chip_.bandwidth;
  sums_.flops_per_s = product_rate(chip_, costs_->storage().block_product);
}

int64_t LimitMeter::now() { return std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count(); }

void LimitMeter::note(const StepWork& step) {
  if (!costs_) return;
  const StepCost cost = costs_->of(step, chip_);
  const int64_t number = now();
  std::lock_guard lock(mutex_);
  Second& second = seconds_[size_t(number) % seconds_.size()];
  if (second.number != number) second = {number};
  second.memory_s += cost.memory_s;
  second.compute_s += cost.compute_s;
  sums_.bytes += cost.bytes;
  sums_.flops += cost.flops;
}

LimitStats LimitMeter::read() const {
  const int64_t number = now();
  std::lock_guard lock(mutex_);
  LimitStats stats = sums_;
  for (const Second& s : seconds_)
    if (s.number >= number - LimitStats::interval_s && s.number < number) {
      stats.memory_share += s.memory_s / LimitStats::interval_s;
      stats.compute_share += s.compute_s / LimitStats::interval_s;
    }
  return stats;
}

}  // namespace mr
