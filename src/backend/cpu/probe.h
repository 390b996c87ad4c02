// Measures the machine's roofline: memory bandwidth, and the rate of a matrix product with cached operands on the
// instructions that linear layers use.
// Benchmarks report their results relative to these.
#pragma once

#include <cstddef>
#include <span>

#include "core/isa.h"
#include "core/thread_pool.h"

namespace mr {

// Bytes a second over these pieces of memory, all threads, the median of many passes (at least 5).
double read_bandwidth(std::span<const std::span<const std::byte>> memory, Isa, ThreadPool&, double budget_s = 0.5);
// Floating-point operations a second (a multiply-add counts as 2), all threads, the best of several passes.
double float_rate(Isa, ThreadPool&);
double quantized_rate(Isa, ThreadPool&);

}  // namespace mr
