// What this machine allows, measured: how fast it reads memory, and how fast a product with operands in the caches can go on the
// instructions that linear layers use.
// Benchmarks print their results beside these.
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
