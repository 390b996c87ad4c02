#include "backend/cpu/linear.h"

#include <algorithm>
#include <span>

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

static const LinearKernel& find_kernel(const LinearKernels& kernels, const Weight& w, int64_t rows) {
  for (int i = kernels.count - 1; i >= 0; i--)
    if (w.layout->name == kernels.table[i].layout && rows >= kernels.table[i].from_rows) return kernels.table[i];
  fail("the CPU has no kernel for weights laid out as '{}'", w.layout->name);
}

static void grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer = Buffer(bytes);
}

static LinearCall make_call(Tensor out, Tensor x, const Weight& w, const Epilogue& e) {
  if (x.shape[x.rank - 1] != w.in || out.shape[out.rank - 1] != w.out || x.shape[0] != out.shape[0])
    fail("a [{}, {}] weight cannot take {} to {}", w.out, w.in, shape_string(x), shape_string(out));
  LinearCall c{w.in, w.out, x.shape[0], w.packed.as<std::byte>(), w.stored};
  c.decode = [](const StoredWeight& stored, int64_t output, int64_t first, int64_t n, float* to) { stored.decode(output, first, n, to); };
  if (const auto heads = group_heads(w)) {
    c.heads = c.packed + heads->offset;
    c.head_bytes = heads->bytes;
    c.panel_heads = heads->panel_bytes;
    c.group_inverse = ((uint64_t(1) << 32) + uint64_t(heads->blocks) - 1) / uint64_t(heads->blocks);
    c.scales = heads->scale == Grid::Scale::f16    ? LinearCall::Scale::f16
               : heads->scale == Grid::Scale::bf16 ? LinearCall::Scale::bf16
                                                   : LinearCall::Scale::f32;
    c.minima = heads->minima;
  }
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

// A weight's own form of its inputs: rounded by its format, or in the order of its groups.
static bool changes_rows(const Weight& w) { return w.activations || w.order.rank; }
static void change_row(const Weight& w, const float* x, float* to) {
  for (int64_t k = 0; w.order && k < w.in; k++) to[k] = x[w.order.as<int32_t>()[k]];
  if (w.activations) round_activations(w.activations, w.order ? to : x, w.in, to);
}

RoundAhead::RoundAhead(const Weight& reader, int64_t rows, const LinearKernels& kernels, LinearScratch& scratch) {
  if (rows == 0 || changes_rows(reader)) return;
  const LinearKernel& kernel = find_kernel(kernels, reader, rows);
  if (!kernel.round) return;
  grow(scratch.ahead, size_t(kernel.rounded_bytes(reader.in, rows)));
  kernel_ = &kernel;
  in_ = reader.in;
  rounded_ = scratch.ahead.data();
}

const std::byte* RoundAhead::take(const LinearKernel& kernel, LinearScratch& scratch) const {
  if (kernel_ != &kernel) return nullptr;
  std::swap(scratch.rounded, scratch.ahead);
  return scratch.rounded.data();
}

// Prepares the rows of x and rounds them for the kernel.
static void make_rows(LinearCall& c, const Weight& w, const LinearKernel& kernel, ThreadPool& pool, LinearScratch& scratch,
                      const RowsOfX& x) {
  const bool changed = changes_rows(w);
  if (!changed && x.rounded && (c.rounded = x.rounded->take(kernel, scratch))) return;
  if (!kernel.round && !x.prepare && !changed) return;
  if (kernel.round) grow(scratch.rounded, size_t(kernel.rounded_bytes(c.in, c.rows)));
  const float* rows = c.x;
  const int64_t stride = c.x_stride;
  if (changed) {
    grow(scratch.values, size_t(c.rows * c.in) * sizeof(float));
    c.x = scratch.values.as<float>();
    c.x_stride = c.in;
  }
  std::byte* rounded = scratch.rounded.data();
  c.rounded = rounded;
  int64_t grain = std::max<int64_t>(1, (16 << 10) / c.in);  // about 4 us
  pool.parallel(c.rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) {
      if (x.prepare) (*x.prepare)(r);
      if (changed) change_row(w, rows + r * stride, scratch.values.as<float>() + r * c.in);
      if (kernel.round) kernel.round(c.x + r * c.x_stride, c.in, r, 0, c.in, rounded);
    }
  });
}

// A piece of work is a chunk of rows, whose activations stay in the L2 cache, times a group of panels: small enough that
// a preempted worker delays the others only briefly, large enough to amortize scheduling.
struct Pieces {
  int64_t chunk, chunks, group, groups;
  bool panels_first;  // all chunks of a group of panels are consecutive, so that weights, the larger operand, are read from memory once
};

// Panels per piece, a multiple of `step` and at most `most`, that minimize the load of the busiest worker; whole pairs on a
// tie.
static int64_t group_of(int64_t panels, int64_t chunks, int64_t most, int workers, int64_t step) {
  int64_t best = 0, least = panels * chunks;
  for (int64_t group = most / step * step; group >= step; group -= step) {
    const int64_t pieces = (panels + group - 1) / group * chunks, longest = (pieces + workers - 1) / workers * group;
    if (!best || longest < least || (longest == least && best % kPair > group % kPair)) {
      best = group;
      least = longest;
    }
  }
  return best ? best : step;
}

static bool stretched(const LinearKernel& kernel, int64_t in) { return kernel.stretch && in > kernel.stretch / 2 * 3; }  // else in one pass

// Most rows of a chunk.
static int64_t most_rows(int64_t in, const LinearKernel& kernel, const LinearKernels& kernels) {
  const int64_t tile = kernels.tile_rows, inputs = stretched(kernel, in) ? kernel.stretch : in;
  const int64_t row_bytes = kernel.round ? kernel.rounded_bytes(inputs, tile) / tile : inputs * 4;
  return std::max(tile, kernels.chunk_bytes / row_bytes / tile * tile);
}

// Most panels of a group, for products that are not stretched.
static int64_t most_panels(int64_t share, int64_t panel_bytes) {
  constexpr int64_t kBytes = 192 << 10, kLeastBytes = 32 << 10;
  if (share * panel_bytes <= 4 * kLeastBytes) return share;
  return std::clamp<int64_t>(share / 4, std::max<int64_t>(1, kLeastBytes / panel_bytes), std::max<int64_t>(kPair, kBytes / panel_bytes));
}

static Pieces cut(const LinearCall& c, int64_t panels, int64_t step, int64_t panel_bytes, const LinearKernel& kernel,
                  const LinearKernels& kernels, int workers) {
  constexpr int64_t kManyRows = 64;
  const int64_t tile = kernels.tile_rows, most = most_rows(c.in, kernel, kernels), fewest = (c.rows + most - 1) / most;
  const int64_t chunk = ((c.rows + fewest - 1) / fewest + tile - 1) / tile * tile;  // of equal size, so that workers finish together
  const int64_t chunks = (c.rows + chunk - 1) / chunk;
  // Several pieces per worker, if they are large enough, so that fast workers take over from slow ones.
  const int64_t share = (panels + workers - 1) / workers;
  const bool in_stretches = stretched(kernel, c.in);
  const int64_t longest =
      in_stretches && chunk >= kManyRows ? std::min(share * chunks, kernels.group_panels) : most_panels(share, panel_bytes);
  const int64_t group = group_of(panels, chunks, std::min(longest, panels), workers, step);
  return {chunk, chunks, group, (panels + group - 1) / group, in_stretches && panels * panel_bytes > c.rows * c.in * 4};
}

// A worker's memory for a piece: `inner` for the kernel, then so many halves of the piece's outputs.
struct PieceFloats {
  int64_t inner, all;
};
static PieceFloats floats_of(int64_t in, int64_t rows, int64_t group, int halves, const LinearKernels& kernels) {
  const int64_t inner = kernels.scratch_floats(in, rows, group);
  return {inner, inner + halves * rows * group * kPanel};
}

void LinearNeeds::count(const Weight& w, int64_t rows, const LinearKernels& kernels, int n_workers) {
  if (rows == 0 || w.out == 0) return;
  if (changes_rows(w)) values_ = std::max(values_, rows * w.in * int64_t(sizeof(float)));
  for (const LinearKernel& kernel : std::span(kernels.table, size_t(kernels.count))) {
    if (w.layout->name != kernel.layout || rows < kernel.from_rows) continue;
    if (kernel.round) rounded_ = std::max(rounded_, kernel.rounded_bytes(w.in, rows));
    const int64_t chunk = std::min(rows, most_rows(w.in, kernel, kernels));
    for (int halves : {0, 2}) {  // a gated product's pieces are of both halves
      const int64_t panels = halves ? panels_of(w) / 2 : panels_of(w), share = (panels + n_workers - 1) / n_workers;
      int64_t group = most_panels(share, w.packed.bytes() / panels_of(w));
      if (stretched(kernel, w.in)) group = std::max(group, kernels.group_panels);
      group = std::max<int64_t>(std::min(group, panels), kPair);
      const int64_t floats = floats_of(w.in, chunk, group, halves, kernels).all;
      workers_ = std::max(workers_, floats * int64_t(sizeof(float)) * n_workers);
    }
  }
}

// Calls f(row, row_end, panel, panel_end, scratch, own) over pieces that cover all rows times panels [0, panels), split at multiples
// of `step`. own: the worker's memory for `halves` times a piece's outputs.
template <class F>
static void run_pieces(const LinearCall& c, const Weight& w, int64_t panels, int64_t step, int halves, const LinearKernel& kernel,
                       ThreadPool& pool, const LinearKernels& kernels, LinearScratch& scratch, F f) {
  const Pieces p = cut(c, panels, step, w.packed.bytes() / panels_of(w), kernel, kernels, pool.size());
  const PieceFloats floats = floats_of(c.in, std::min(p.chunk, c.rows), p.group, halves, kernels);
  grow(scratch.workers, size_t(floats.all) * sizeof(float) * size_t(pool.size()));
  pool.parallel(p.chunks * p.groups, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t row = (p.panels_first ? i % p.chunks : i / p.groups) * p.chunk;
      const int64_t panel = (p.panels_first ? i / p.chunks : i % p.groups) * p.group;
      float* memory = scratch.workers.as<float>() + floats.all * worker;
      f(row, std::min(row + p.chunk, c.rows), panel, std::min(panel + p.group, panels), memory, memory + floats.inner);
    }
  });
}

void cpu_linear(Tensor out, Tensor x, const Weight& w, const Epilogue& e, ThreadPool& pool, const LinearKernels& kernels,
                LinearScratch& scratch, const RowsOfX& rows) {
  LinearCall c = make_call(out, x, w, e);
  if (c.rows == 0 || c.out == 0) return;
  const LinearKernel& kernel = find_kernel(kernels, w, c.rows);
  make_rows(c, w, kernel, pool, scratch, rows);
  run_pieces(c, w, panels_of(w), 1, 0, kernel, pool, kernels, scratch,
             [&](int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* floats, float*) {
               kernel.run(c, row, row_end, panel, panel_end, floats);
             });
}

RoundAhead cpu_linear_gate(Tensor out, Tensor x, const Weight& w, GateFunction gate, int act, ThreadPool& pool,
                           const LinearKernels& kernels, LinearScratch& scratch, const Weight* reader, const RowsOfX& rows) {
  const int64_t half = w.out / 2, half_panels = half / kPanel;
  if (out.shape[1] != half)
    fail("a [{}, {}] weight cannot take {} to {}, half its outputs", w.out, w.in, shape_string(x), shape_string(out));
  Tensor both = out;  // for its shape; nothing is written to it
  both.shape[1] = w.out;
  LinearCall c = make_call(both, x, w, {});
  if (c.rows == 0 || c.out == 0) return {};
  const LinearKernel& kernel = find_kernel(kernels, w, c.rows);
  make_rows(c, w, kernel, pool, scratch, rows);
  const bool whole_blocks = half % kBlock == 0;
  const RoundAhead ahead = whole_blocks && reader ? RoundAhead(*reader, c.rows, kernels, scratch) : RoundAhead();
  run_pieces(c, w, half_panels, whole_blocks ? kPair : 1, 2, kernel, pool, kernels, scratch,
             [&](int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* floats, float* own) {
               const int64_t column = panel * kPanel, n = (panel_end - panel) * kPanel, n_rows = row_end - row;
               float* gates = own;  // [rows, n], followed by up [rows, n]
               for (int64_t i = 0; i < 2; i++) {
                 LinearCall part = c;
                 part.y = own + i * n_rows * n - row * n - (column + i * half);
                 part.y_stride = n;
                 kernel.run(part, row, row_end, panel + i * half_panels, panel_end + i * half_panels, floats);
               }
               for (int64_t r = row; r < row_end; r++, gates += n) {
                 float* y = out.row<float>(r) + column;
                 gate(y, gates, gates + n_rows * n, n, act);
                 ahead(y, r, column, n);
               }
             });
  return ahead;
}

}  // namespace mr
