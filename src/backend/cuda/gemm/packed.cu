// Products with packed weights of 4 and 8 bits, and with rows of bf16 where there is no Hopper. Layout of packed weights: tiles of 16
// output rows; in a tile, chunks of 64 inputs (q4_0, q4_1: two blocks of 32) or 32 (q8_0) in order, 512 bytes each: 16 for every lane of a
// warp. Lane 4 g + t has rows g and g + 8, inputs 8 t to 8 t + 7 of each block, in the order of mma's A operand:
//   4 bits: word 2 b + h is block b of row g + 8 h; input 8 t + 2 i in nibble i, 8 t + 2 i + 1 in nibble 4 + i
//   8 bits: words 2 h and 2 h + 1 are row g + 8 h; bytes 0, 2, 1, 3 of a word are inputs in order
// Scales are a separate array: per chunk and g, f16 values in word order (rows g, g + 8 of each block); in q4_1 each is followed by
// its minimum. Rows and blocks beyond the end are zero. Without that padding, the size is that of the file.
#include "backend/cuda/gemm/few_rows.cuh"

namespace mr::cuda {

namespace {

// Inputs 8 i to 8 i + 7 of a row.
template <Packing F>
__device__ void unpack8(const Packed& w, int64_t row, int64_t i, float (&v)[8]) {
  using Form = Form<F>;
  const int64_t n_chunks = (w.in + Form::inputs - 1) / Form::inputs, chunk = row / 16 * n_chunks + 8 * i / Form::inputs;
  const int g = int(row % 8), h = int(row / 8 % 2), t = int(i % 4), b = int(i / 4 % Form::blocks);
  const uint32_t* words = static_cast<const uint32_t*>(w.quants) + (chunk * 32 + g * 4 + t) * 4 + first_word<F>(b, h);
  const __half* header = static_cast<const __half*>(w.scales) + (chunk * 8 + g) * (Form::header / 2) + (2 * b + h) * (Form::offset ? 2 : 1);
  const float scale = __half2float(header[0]), more = Form::offset ? __half2float(header[1]) - added<F>() * scale : 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const uint32_t pair = pair_of<F>(words, k);
    v[2 * k] = scale * low(pair) + more;
    v[2 * k + 1] = scale * high(pair) + more;
  }
}

template <Packing F>
__global__ void unpack_kernel(bf16* to, Packed w) {
  launch_next();
  wait_before();
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, per = w.in / 8;
  if (at >= w.out * per) return;
  float v[8];
  unpack8<F>(w, at / per, at % per, v);
  store_n<8>(to, DType::bf16, at * 8, v);
}

// A full barrier between kernels when launched by launch_after_all().
__global__ void pause_kernel() {}

template <Packing F>
__global__ void embed_kernel(Matrix out, Packed table, float scale, const int32_t* token, const int32_t* sampled) {
  launch_next();
  wait_before();
  int32_t id = token[blockIdx.x];
  if (id < 0) id = max(0, sampled[-1 - id]);
  if (id >= table.out) id = 0;
  for (int64_t i = threadIdx.x; i < table.in / 8; i += blockDim.x) {
    float v[8];
    unpack8<F>(table, id, i, v);
    for (int k = 0; k < 8; k++) store(out.data, out.dtype, blockIdx.x * out.stride + 8 * i + k, v[k] * scale);
  }
}

// With few tiles, more warps split the inputs; in deterministic mode their number must not depend on the rows.
template <Packing F>
void run(const Launch& at, const Product& p, const Packed& w) {
  const int64_t rows = p.x.rows;
  const bool few = !p.gated && w.out <= 32 * at.n_sm;
  if (rows <= 8) {
    if (p.gated) return few_rows<F, 1, 2, 8, false>(at, p, w, 1);
    return few ? few_rows<F, 1, 1, 16, false>(at, p, w, 1) : few_rows<F, 1, 1, 8, false>(at, p, w, 1);
  }
  if (rows <= 16 || at.deterministic)
    return few ? few_rows<F, 2, 2, 16, false>(at, p, w, div_up(rows, 16)) : few_rows<F, 2, 2, 8, false>(at, p, w, div_up(rows, 16));
  if (rows <= 32) return few_rows<F, 4, 2, 8, false>(at, p, w, 1);
  few_rows<F, 8, 2, 8, false>(at, p, w, div_up(rows, 64));
}

}  // namespace

void product_plain(const Launch& at, const Product& p) {
  if (p.gated && p.out % 32) return product_any(at, p);
  run<Packing::bf16>(at, p, {Packing::bf16, p.weight, nullptr, p.out, p.in});
}
void product_packed(const Launch& at, const Product& p, const Packed& w) {
  by_packing(w.packing, [&](auto f) { run<f()>(at, p, w); });
}
void unpack(const Launch& at, void* to, const Packed& w) {
  by_packing(w.packing,
             [&](auto f) { launch(at, unpack_kernel<f()>, grid2(div_up(w.out * w.in / 8, 256)), 256, 0, static_cast<bf16*>(to), w); });
  launch_after_all(at, pause_kernel, 1, 1);  // products prefetch weights before wait_before()
}
void embed_packed(const Launch& at, Matrix out, const Packed& table, float scale, const int32_t* token, const int32_t* sampled) {
  by_packing(table.packing, [&](auto f) { launch(at, embed_kernel<f()>, grid2(out.rows), 128, 0, out, table, scale, token, sampled); });
}

}  // namespace mr::cuda
