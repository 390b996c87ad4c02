#include "backend/cuda/units.h"

namespace mr::cuda {

using Memory = StateMemory::GroupMemory;

// Copies a unit's blocks of all layers, which are n_units blocks apart on the device and contiguous on the host.
static void copy_page(cudaStream_t stream, const UnitCopy& copy, const Memory& memory, const Memory& host) {
  int64_t before = 0;  // bytes of a unit's preceding layers
  for (size_t i = 0, n; i < memory.layers.size(); i += n) {
    for (n = 1; i + n < memory.layers.size() && memory.layers[i + n] == memory.layers[i];) n++;
    const int64_t block = memory.layers[i] * memory.page_tokens;
    std::byte* layers = memory.base + before * memory.n_units;
    auto on_device = [&](int32_t unit) { return layers + unit * block; };
    auto on_host = [&](int32_t unit) { return host.unit(unit) + before; };
    const bool out = copy.where == UnitCopy::Where::out, in = copy.where == UnitCopy::Where::in;
    const size_t apart = size_t(block * memory.n_units);
    must(cudaMemcpy2DAsync(out ? on_host(copy.dst) : on_device(copy.dst), out ? size_t(block) : apart,
                           in ? on_host(copy.src) : on_device(copy.src), in ? size_t(block) : apart, size_t(block), n, cudaMemcpyDefault,
                           stream));
    before += block * int64_t(n);
  }
}

// Fresh pages need no zeroing: the attention kernels mask keys and clear values past the last token.
void copy_units(cudaStream_t stream, std::span<const UnitCopy> copies, const StateMemory& state, const StateMemory& host) {
  for (const UnitCopy& copy : copies) {
    const Memory& memory = state.group[size_t(copy.group)];
    if (copy.src < 0) {
      if (memory.page_tokens == 0) must(cudaMemsetAsync(memory.unit(copy.dst), 0, size_t(memory.unit_bytes), stream));
      continue;
    }
    const Memory& swapped = host.group[size_t(copy.group)];
    if (memory.page_tokens > 0) {
      copy_page(stream, copy, memory, swapped);
    } else {
      const Memory &to = copy.where == UnitCopy::Where::out ? swapped : memory,
                   &from = copy.where == UnitCopy::Where::in ? swapped : memory;
      must(cudaMemcpyAsync(to.unit(copy.dst), from.unit(copy.src), size_t(memory.unit_bytes), cudaMemcpyDefault, stream));
    }
  }
}

}  // namespace mr::cuda
