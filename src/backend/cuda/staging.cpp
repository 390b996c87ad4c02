#include "backend/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/thread_pool.h"

namespace mr::cuda {

static constexpr int64_t kTileRows = 16, kBlock = 32;

Staging::Staging(cudaStream_t stream, ThreadPool& pool) : stream_(stream), pool_(pool) {
  for (Pinned& p : pinned_) must(cudaEventCreateWithFlags(&p.copied, cudaEventDisableTiming));
}
Staging::~Staging() {
  for (Pinned& p : pinned_) {
    cudaEventDestroy(p.copied);
    cudaFreeHost(p.data);
  }
}

Staging::Pinned& Staging::next(size_t bytes) {
  Pinned& p = pinned_[turn_++ % kBuffers];
  must(cudaEventSynchronize(p.copied));
  if (bytes > p.bytes) {
    must(cudaFreeHost(p.data));
    p.data = nullptr;
    p.bytes = 0;
    must(cudaMallocHost(reinterpret_cast<void**>(&p.data), std::max(bytes, kBytes)));
    p.bytes = std::max(bytes, kBytes);
  }
  return p;
}

// Rows [first, first + n) to bf16.
static void decode_rows(uint16_t* to, const StoredWeight& w, int64_t first, int64_t n) {
  std::vector<float> values(static_cast<size_t>(w.in));
  for (int64_t r = first; r < first + n; r++) {
    w.decode(r, 0, w.in, values.data());
    for (int64_t i = 0; i < w.in; i++) *to++ = bf16_from_f32(values[size_t(i)]);
  }
}

void Staging::send(std::byte* device, const StoredWeight& w) {
  const int64_t row_bytes = w.in * 2, n_rows = w.out();
  const int64_t at_once = std::max<int64_t>(int64_t(kBytes) / row_bytes / kTileRows, 1) * kTileRows;
  const bool plain = w.codec->storage == DType::bf16;
  for (int64_t begin = 0; begin < n_rows; begin += at_once) {
    const int64_t n = std::min(at_once, n_rows - begin);
    Pinned& p = next(size_t(n * row_bytes));
    pool_.parallel((n + kTileRows - 1) / kTileRows, 4, [&](int64_t tile, int64_t end, int) {
      for (; tile < end; tile++) {
        const int64_t first = tile * kTileRows, count = std::min<int64_t>(kTileRows, n - first);
        std::byte* to = p.data + first * row_bytes;
        if (!plain) {
          decode_rows(reinterpret_cast<uint16_t*>(to), w, begin + first, count);
        } else {
          for (int64_t r = 0; r < count; r++) std::memcpy(to + r * row_bytes, w.row(begin + first + r), size_t(row_bytes));
        }
      }
    });
    must(cudaMemcpyAsync(device + begin * row_bytes, p.data, size_t(n * row_bytes), cudaMemcpyHostToDevice, stream_));
    must(cudaEventRecord(p.copied, stream_));
  }
}

namespace {

// Layout of chunks as described in packed.cu.
struct ChunkForm {
  int headers, bits, chunk;  // f16 values beside a block's codes; bits per weight; blocks per chunk
  int64_t chunks(int64_t in) const { return (in / kBlock + chunk - 1) / chunk; }
  int64_t scale_bytes() const { return int64_t(kTileRows) * chunk * headers * 2; }  // of a chunk
};
constexpr int64_t kChunkBytes = 512;

ChunkForm form_of(Packing packing) {
  return packing == Packing::q8_0 ? ChunkForm{1, 8, 1} : ChunkForm{packing == Packing::q4_1 ? 2 : 1, 4, 2};
}

// Inputs 8 t to 8 t + 7 of a block, in words.
void four_bits(const uint8_t* code, int t, uint32_t* word) {
  *word = 0;
  for (int i = 0; i < 8; i++) *word |= uint32_t(code[8 * t + i]) << (i / 2 * 4 + i % 2 * 16);
}
void eight_bits(const uint8_t* code, int t, uint32_t* words) {  // signed
  for (int w = 0; w < 2; w++) {
    const uint8_t* q = code + 8 * t + 4 * w;
    words[w] = (q[0] | q[2] << 8 | q[1] << 16 | uint32_t(q[3]) << 24) ^ 0x80808080;
  }
}

// Packs up to 16 rows from `first` on; quants and scales must be zeroed.
void pack_tile(std::byte* quants, std::byte* scales, Packing packing, const StoredWeight& w, int64_t first) {
  const ChunkForm form = form_of(packing);
  for (int64_t r = 0; r < std::min<int64_t>(kTileRows, w.out() - first); r++)
    for (int64_t block = 0; block < w.in / kBlock; block++) {
      BlockCodes codes;
      w.codes(first + r, block * w.codec->block, codes);
      const int64_t chunk = block / form.chunk, g = r % 8, h = r / 8, b = block % form.chunk;
      const uint16_t header[] = {uint16_t(codes.scale), uint16_t(codes.minimum)};
      std::memcpy(scales + chunk * form.scale_bytes() + ((g * form.chunk + b) * 2 + h) * form.headers * 2, header,
                  size_t(form.headers) * 2);
      for (int t = 0; t < 4; t++) {
        uint32_t* to = reinterpret_cast<uint32_t*>(quants + chunk * kChunkBytes + (g * 4 + t) * 16);
        if (form.bits == 8) {
          eight_bits(codes.code, t, to + 2 * h);
        } else {
          four_bits(codes.code, t, to + 2 * b + h);
        }
      }
    }
}

}  // namespace

Staging::Room Staging::room(Packing packing, int64_t out, int64_t in) {
  const ChunkForm form = form_of(packing);
  const int64_t chunks = (out + kTileRows - 1) / kTileRows * form.chunks(in);
  return {chunks * kChunkBytes, chunks * form.scale_bytes()};
}

void Staging::send_packed(std::byte* quants, std::byte* scales, Packing packing, const StoredWeight& w) {
  const Room tile = room(packing, kTileRows, w.in);
  const int64_t n_tiles = (w.out() + kTileRows - 1) / kTileRows, tile_bytes = tile.quants + tile.scales;
  const int64_t at_once = std::max<int64_t>(int64_t(kBytes) / tile_bytes, 1);
  for (int64_t begin = 0; begin < n_tiles; begin += at_once) {
    const int64_t n = std::min(at_once, n_tiles - begin);
    Pinned& p = next(size_t(n * tile_bytes));
    std::byte* scales_here = p.data + n * tile.quants;
    std::memset(p.data, 0, size_t(n * tile_bytes));
    pool_.parallel(n, 4, [&](int64_t t, int64_t end, int) {
      for (; t < end; t++) {
        pack_tile(p.data + t * tile.quants, scales_here + t * tile.scales, packing, w, (begin + t) * kTileRows);
      }
    });
    must(cudaMemcpyAsync(quants + begin * tile.quants, p.data, size_t(n * tile.quants), cudaMemcpyHostToDevice, stream_));
    must(cudaMemcpyAsync(scales + begin * tile.scales, scales_here, size_t(n * tile.scales), cudaMemcpyHostToDevice, stream_));
    must(cudaEventRecord(p.copied, stream_));
  }
}

}  // namespace mr::cuda
