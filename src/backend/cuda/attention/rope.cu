// Rotary embeddings, and storing keys and values in their pages.
#include <algorithm>

#include "backend/cuda/attention/pages.cuh"
#include "backend/cuda/attention/rope.cuh"

namespace mr::cuda {

namespace {

// The sequence that a row belongs to.
__device__ int sequence_of(const Spots& s, int row) {
  int low = 0, high = s.n_seqs - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (s.row_begin[middle + 1] <= row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The layer's block of the page that holds token `place` of a sequence.
__device__ std::byte* page_of(const Pages& p, int seq, int place) {
  return p.base + p.unit[p.begin[seq] + place / p.page_tokens] * p.unit_bytes;
}

// The angle is the f32 product of position and frequency; its cosine and sine are computed in double.
__global__ void angles_kernel(Matrix out, Frequencies f, Spots s, const int32_t* prompt_len) {
  launch_next();
  wait_before();
  const int row = blockIdx.x, half = f.dim / 2, position = s.position[row];
  int length = position + 1;
  if (f.length != RopeTable::Length::fixed && prompt_len) length = max(length, prompt_len[sequence_of(s, row)]);
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    float frequency = f.inv_freq[i];
    if (f.length == RopeTable::Length::longrope && length > f.original) frequency = f.long_inv_freq[i];
    if (f.length == RopeTable::Length::dynamic && length > f.original) {
      double growth = double(f.factor) * length / f.original - (f.factor - 1.0);
      double base = f.theta * pow(growth, f.dim / (f.dim - 2.0));
      frequency = float(1 / pow(base, 2.0 * i / f.dim));
    }
    double angle = float(position) * frequency;
    store(out.data, out.dtype, row * out.stride + i, float(cos(angle)) * f.scale);
    store(out.data, out.dtype, row * out.stride + half + i, float(sin(angle)) * f.scale);
  }
}

__global__ void rope_kernel(Heads x, Matrix angles, bool interleaved) {
  launch_next();
  wait_before();
  const int64_t row = blockIdx.x, half = angles.cols / 2;
  const float* cosine = static_cast<const float*>(angles.data) + row * angles.stride;
  for (int64_t n = threadIdx.x; n < x.heads * half; n += blockDim.x) {
    int64_t i = n % half, at = row * x.stride + n / half * x.head_stride;
    int64_t a = at + (interleaved ? 2 * i : i), b = at + (interleaved ? 2 * i + 1 : half + i);
    float xa = load(x.data, x.dtype, a), xb = load(x.data, x.dtype, b), c = cosine[i], s = cosine[half + i];
    const float2 turned = rotate_pair(xa, xb, c, s);
    store(x.data, x.dtype, a, turned.x);
    store(x.data, x.dtype, b, turned.y);
  }
}

__global__ void store_kv_kernel(Pages p, Heads k, Heads v, Spots s) {
  launch_next();
  wait_before();
  const int row = blockIdx.x, seq = sequence_of(s, row), place = s.context[seq] + row - s.row_begin[seq], at = place % p.page_tokens;
  std::byte* page = page_of(p, seq, place);
  const int64_t k_size = int64_t(p.kv_heads) * p.page_tokens * p.k_dim;
  for (int i = threadIdx.x; i < p.kv_heads * p.k_dim; i += blockDim.x) {
    int head = i / p.k_dim, d = i % p.k_dim;
    store(page, p.dtype, (int64_t(head) * p.page_tokens + at) * p.k_dim + d,
          load(k.data, k.dtype, row * k.stride + head * k.head_stride + d));
  }
  for (int i = threadIdx.x; i < p.kv_heads * p.v_dim; i += blockDim.x) {
    int head = i / p.v_dim, d = i % p.v_dim;
    store(page, p.dtype, k_size + (int64_t(head) * p.page_tokens + at) * p.v_dim + d,
          load(v.data, v.dtype, row * v.stride + head * v.head_stride + d));
  }
}

// One block per row; a thread handles eight pairs of a head of q or k, or sixteen values of v. Only k and v look up the row's page.
__global__ void rope_store_kernel(AttendCall call) {
  launch_next();
  wait_before();
  const Pages& p = call.pages;
  const int row = blockIdx.x, d = p.k_dim, half = d / 2, lanes = half / 8, heads = call.heads;
  auto stored = [&](int head) {  // of K, then V
    const int seq = sequence_of(call.spots, row), place = call.spots.context[seq] + row - call.spots.row_begin[seq];
    return reinterpret_cast<bf16*>(page_of(p, seq, place)) + (int64_t(head) * p.page_tokens + place % p.page_tokens) * d;
  };
  const float* cosine = call.rope.angles + row * call.rope.stride;
  for (int n = threadIdx.x; n < (heads + 2 * p.kv_heads) * lanes; n += blockDim.x) {
    const int head = n / lanes, i = n % lanes * 8;
    if (head >= heads + p.kv_heads) {  // v
      const int h = head - heads - p.kv_heads;
      const bf16* from = static_cast<const bf16*>(call.v.data) + row * call.v.stride + h * call.v.head_stride;
      const uint4 low = *reinterpret_cast<const uint4*>(from + i), high = *reinterpret_cast<const uint4*>(from + half + i);
      bf16* to = stored(p.kv_heads + h);
      *reinterpret_cast<uint4*>(to + i) = low;
      *reinterpret_cast<uint4*>(to + half + i) = high;
      continue;
    }
    float a[8], b[8], c[8], s[8];
    const Heads& x = head < heads ? call.q : call.k;
    const int h = head < heads ? head : head - heads;
    bf16* from = static_cast<bf16*>(x.data) + row * x.stride + h * x.head_stride;
    load_n<8>(from, DType::bf16, i, a);
    load_n<8>(from, DType::bf16, half + i, b);
    load_n<8>(cosine, DType::f32, i, c);
    load_n<8>(cosine, DType::f32, half + i, s);
    bf16* to = head < heads ? from : stored(h);
    for (int e = 0; e < 8; e++) {
      const float2 turned = rotate_pair(a[e], b[e], c[e], s[e]);
      a[e] = turned.x;
      b[e] = turned.y;
    }
    store_n<8>(to, DType::bf16, i, a);
    store_n<8>(to, DType::bf16, half + i, b);
  }
}

}  // namespace

void angles(const Launch& at, Matrix out, const Frequencies& f, const Spots& spots, const int32_t* prompt_len) {
  launch(at, angles_kernel, grid2(out.rows), 64, 0, out, f, spots, prompt_len);
}

void rope(const Launch& at, Heads x, Matrix angles, bool interleaved) {
  launch(at, rope_kernel, grid2(x.rows), 256, 0, x, angles, interleaved);
}

void store_kv(const Launch& at, const Pages& pages, Heads k, Heads v, const Spots& spots) {
  launch(at, store_kv_kernel, grid2(spots.n_tokens), 256, 0, pages, k, v, spots);
}

bool can_rope_store(const AttendCall& c) {
  const int d = c.pages.k_dim;
  auto fits = [&](const Heads& x) {
    return x.data && by_eight(x.data, x.dtype, d, x.stride) && x.dtype == DType::bf16 && x.head_stride % 8 == 0;
  };
  return c.pages.dtype == DType::bf16 && d == c.pages.v_dim && d % 16 == 0 && c.rope.dim == d && c.rope.stride % 8 == 0 && fits(c.q) &&
         fits(c.k) && fits(c.v);
}

void rope_store(const Launch& at, const AttendCall& call) {
  const int64_t wanted = (call.heads + 2 * call.pages.kv_heads) * (call.pages.k_dim / 16);
  launch(at, rope_store_kernel, grid2(call.spots.n_tokens), int(std::min<int64_t>(512, div_up(wanted, 32) * 32)), 0, call);
}

}  // namespace mr::cuda
