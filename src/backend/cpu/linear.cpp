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
#endif
    default:
      return linear_kernels_scalar();
  }
}

static const LinearKernel& find_kernel(const LinearKernels& kernels, std::string_view format) {
  for (int i = 0; i < kernels.count; i++)
    if (format == kernels.table[i].format) return kernels.table[i];
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
  int64_t blocks = c.in / kBlock;
  grow(scratch.rounded, size_t(c.rows * blocks) * sizeof(RoundedBlock));
  auto* rounded = scratch.rounded.as<RoundedBlock>();
  c.rounded = rounded;
  int64_t grain = std::max<int64_t>(1, (16 << 10) / c.in);  // about 4 us
  pool.parallel(c.rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) kernel.round(c.x + r * c.x_stride, c.in, rounded + r * blocks);
  });
}

void cpu_linear(Tensor out, Tensor x, const Weight& w, const Epilogue& e, ThreadPool& pool, const LinearKernels& kernels,
                LinearScratch& scratch) {
  LinearCall c = make_call(out, x, w, e);
  if (c.rows == 0 || c.out == 0) return;
  const LinearKernel& kernel = find_kernel(kernels, w.format().name);
  if (kernel.round) round_rows(c, kernel, pool, scratch);

  // A piece is a chunk of rows whose activations stay in the second-level cache, times a group of panels: about 32 KB of weights
  // for one row, more panels for more rows only as long as every worker gets some pieces.
  constexpr int64_t kRowBytes = 192 << 10, kPieceBytes = 32 << 10;
  int64_t panels = w.panels(), panel_bytes = std::max<int64_t>(1, w.packed.bytes() / panels);
  int64_t row_bytes = kernel.round ? c.in / kBlock * int64_t(sizeof(RoundedBlock)) : c.in * 4;
  int64_t chunk = std::clamp<int64_t>(kRowBytes / row_bytes / 24 * 24, 24, c.rows < 24 ? 24 : c.rows),
          chunks = (c.rows + chunk - 1) / chunk;
  int64_t group = std::max<int64_t>(1, kPieceBytes / panel_bytes), most = std::max<int64_t>(1, panels / (4 * pool.size()));
  group = (std::min(group, most) + 3) / 4 * 4;
  int64_t groups = (panels + group - 1) / group;

  size_t floats = size_t(kernels.scratch_panels * c.in * kPanel);
  grow(scratch.panels, floats * sizeof(float) * size_t(pool.size()));
  pool.parallel(chunks * groups, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) {
      int64_t row = i / groups * chunk, panel = i % groups * group;
      kernel.run(c, row, std::min(row + chunk, c.rows), panel, std::min(panel + group, panels),
                 scratch.panels.as<float>() + floats * size_t(worker));
    }
  });
}

}  // namespace mr
