#include "backend/cpu/linear.h"

#include <algorithm>

#include "core/error.h"

namespace mr {

const LinearKernels& linear_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return linear_kernels_avx2();
    case Isa::avx512:
      return linear_kernels_avx512();
    case Isa::vnni:
      return linear_kernels_vnni();
    case Isa::amx:
      return linear_kernels_amx();
#endif
    default:
      return linear_kernels_scalar();
  }
}

static const LinearKernel& find_kernel(const LinearKernels& kernels, std::string_view format, int64_t rows) {
  for (int i = kernels.count - 1; i >= 0; i--)
    if (format == kernels.table[i].format && rows >= kernels.table[i].from_rows) return kernels.table[i];
  fail("the CPU has no kernel for weights in format '{}'", format);
}

static void grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer = Buffer(bytes);
}

static LinearCall make_call(Tensor out, Tensor x, const Weight& w, const Epilogue& e) {
  check(x.shape[x.rank - 1] == w.in && out.shape[out.rank - 1] == w.out && x.shape[0] == out.shape[0],
        "a [{}, {}] weight cannot take {} to {}", w.out, w.in, shape_string(x), shape_string(out));
  LinearCall c{w.in, w.out, x.shape[0], w.packed.as<std::byte>()};
  c.x = x.as<float>();
  c.x_stride = x.stride[0];
  c.y = out.as<float>();
  c.y_stride = out.stride[0];
  c.bias = e.bias.as<float>();
  c.residual = e.residual.as<float>();
  c.residual_stride = e.residual.stride[0];
  c.scale = e.scale;
  return c;
}

static void round_rows(LinearCall& c, const LinearKernel& kernel, ThreadPool& pool, LinearScratch& scratch) {
  grow(scratch.rounded, size_t(kernel.rounded_bytes(c.in, c.rows)));
  std::byte* rounded = scratch.rounded.data();
  c.rounded = rounded;
  int64_t grain = std::max<int64_t>(1, (16 << 10) / c.in);  // about 4 us
  pool.parallel(c.rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) kernel.round(c.x + r * c.x_stride, c.in, r, rounded);
  });
}

// A piece of the work is a chunk of rows, whose activations stay in the second-level cache, times a group of panels: small
// enough that a worker which the system takes away holds the others up only shortly, large enough to be worth fetching.
struct Pieces {
  int64_t chunk, chunks, group, groups;
};

// Panels that a piece takes: as many as leave each worker several pieces, of those the number with which the worker that gets
// most has least; whole pairs if these do as well.
static int64_t group_of(int64_t panels, int64_t panel_bytes, int workers) {
  constexpr int64_t kBytes = 192 << 10, kFew = 8;
  const int64_t share = (panels + workers - 1) / workers;
  const int64_t most = share <= kFew ? share : std::min(share / 4, std::max<int64_t>(kPair, kBytes / panel_bytes));
  int64_t best = 1, least = panels;
  for (int64_t group = most; group >= 1; group--) {
    const int64_t pieces = (panels + group - 1) / group, longest = (pieces + workers - 1) / workers * group;
    if (longest < least || (longest == least && best % kPair > group % kPair)) best = group, least = longest;
  }
  return best;
}

static Pieces cut(const LinearCall& c, int64_t panels, int64_t panel_bytes, const LinearKernel& kernel, const LinearKernels& kernels,
                  int workers) {
  const int64_t tile = kernels.tile_rows;
  int64_t row_bytes = kernel.round ? kernel.rounded_bytes(c.in, tile) / tile : c.in * 4;
  int64_t chunk = std::max(tile, kernels.chunk_bytes / row_bytes / tile * tile);
  const int64_t group = group_of(panels, panel_bytes, workers);
  return {chunk, (c.rows + chunk - 1) / chunk, group, (panels + group - 1) / group};
}

// Calls f(row, row_end, panel, panel_end, scratch) over pieces that together are all rows times panels [0, panels).
template <class F>
static void run_pieces(LinearCall& c, const Weight& w, int64_t panels, ThreadPool& pool, const LinearKernels& kernels,
                       LinearScratch& scratch, F f) {
  const LinearKernel& kernel = find_kernel(kernels, w.format().name, c.rows);
  if (kernel.round) round_rows(c, kernel, pool, scratch);
  const size_t floats = size_t(kernels.scratch_panels * ((c.in + kBlock - 1) / kBlock) * kBlock * kPanel);
  grow(scratch.panels, floats * sizeof(float) * size_t(pool.size()));
  const Pieces p = cut(c, panels, w.packed.bytes() / w.panels(), kernel, kernels, pool.size());
  pool.parallel(p.chunks * p.groups, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t row = i / p.groups * p.chunk, panel = i % p.groups * p.group;
      f(kernel, row, std::min(row + p.chunk, c.rows), panel, std::min(panel + p.group, panels),
        scratch.panels.as<float>() + floats * size_t(worker));
    }
  });
}

void cpu_linear(Tensor out, Tensor x, const Weight& w, const Epilogue& e, ThreadPool& pool, const LinearKernels& kernels,
                LinearScratch& scratch) {
  LinearCall c = make_call(out, x, w, e);
  if (c.rows == 0 || c.out == 0) return;
  run_pieces(c, w, w.panels(), pool, kernels, scratch,
             [&](const LinearKernel& kernel, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* floats) {
               kernel.run(c, row, row_end, panel, panel_end, floats);
             });
}

void cpu_linear_gate(Tensor out, Tensor both, Tensor x, const Weight& w, GateFunction gate, int act, ThreadPool& pool,
                     const LinearKernels& kernels, LinearScratch& scratch) {
  LinearCall c = make_call(both, x, w, {});
  if (c.rows == 0 || c.out == 0) return;
  const int64_t half = w.out / 2, half_panels = half / kPanel;
  run_pieces(c, w, half_panels, pool, kernels, scratch,
             [&](const LinearKernel& kernel, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* floats) {
               kernel.run(c, row, row_end, panel, panel_end, floats);
               kernel.run(c, row, row_end, panel + half_panels, panel_end + half_panels, floats);
               const int64_t column = panel * kPanel, n = (panel_end - panel) * kPanel;
               for (int64_t r = row; r < row_end; r++)
                 gate(out.row<float>(r) + column, both.row<float>(r) + column, both.row<float>(r) + half + column, n, act);
             });
}

}  // namespace mr
