#include "backend/cuda/staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/thread_pool.h"

namespace mr::cuda {

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

// A panel of rows through the format's own decoder.
static void decode_panel(uint16_t* to, const FormatOps& format, std::span<const std::byte* const> rows, int64_t in) {
  std::array<const std::byte*, kPanel> all{};
  std::ranges::copy(rows, all.begin());
  std::vector<std::byte> packed(size_t(format.packed_bytes(kPanel, in)));
  format.pack_panel(packed.data(), 0, in, all);
  Weight panel{&format, kPanel, in};
  panel.packed = view(packed.data(), format.format.storage, {int64_t(packed.size()) / size_of(format.format.storage)});
  std::vector<float> values(static_cast<size_t>(in));
  for (size_t r = 0; r < rows.size(); r++) {
    format.decode_rows(panel, int64_t(r), 1, values.data());
    for (int64_t i = 0; i < in; i++) *to++ = bf16_from_f32(values[size_t(i)]);
  }
}

void Staging::send(std::byte* device, const FormatOps& format, std::span<const std::byte* const> rows, int64_t in) {
  const int64_t row_bytes = in * 2, n_rows = int64_t(rows.size());
  const int64_t at_once = std::max<int64_t>(int64_t(kBytes) / row_bytes / kPanel, 1) * kPanel;
  const bool plain = format.format.storage == DType::bf16;
  for (int64_t begin = 0; begin < n_rows; begin += at_once) {
    const int64_t n = std::min(at_once, n_rows - begin);
    Pinned& p = next(size_t(n * row_bytes));
    pool_.parallel((n + kPanel - 1) / kPanel, 4, [&](int64_t panel, int64_t end, int) {
      for (; panel < end; panel++) {
        const int64_t first = panel * kPanel, count = std::min<int64_t>(kPanel, n - first);
        std::byte* to = p.data + first * row_bytes;
        auto part = rows.subspan(size_t(begin + first), size_t(count));
        if (!plain) {
          decode_panel(reinterpret_cast<uint16_t*>(to), format, part, in);
        } else {
          for (int64_t r = 0; r < count; r++) std::memcpy(to + r * row_bytes, part[size_t(r)], size_t(row_bytes));
        }
      }
    });
    must(cudaMemcpyAsync(device + begin * row_bytes, p.data, size_t(n * row_bytes), cudaMemcpyHostToDevice, stream_));
    must(cudaEventRecord(p.copied, stream_));
  }
}

namespace {

// Layout of a format's blocks in a file, and of chunks as described in packed.cu.
struct BlockForm {
  int headers, bits, chunk;  // f16 values before the quants; bits per weight; blocks per chunk
  int64_t stored() const { return 2 * headers + 4 * bits; }
  int64_t chunks(int64_t in) const { return (in / kBlock + chunk - 1) / chunk; }
  int64_t scale_bytes() const { return int64_t(kPanel) * chunk * headers * 2; }  // of a chunk
};
constexpr int64_t kChunkBytes = 512;

BlockForm form_of(Packing packing) {
  return packing == Packing::q8_0 ? BlockForm{1, 8, 1} : BlockForm{packing == Packing::q4_1 ? 2 : 1, 4, 2};
}

// Inputs 8 t to 8 t + 7 of a stored block, in words.
void four_bits(const uint8_t* quants, int t, uint32_t* word) {
  *word = 0;
  for (int i = 0; i < 8; i++) {
    const int input = 8 * t + i;
    *word |= uint32_t(quants[input % 16] >> (input / 16 * 4) & 15) << (i / 2 * 4 + i % 2 * 16);
  }
}
void eight_bits(const uint8_t* quants, int t, uint32_t* words) {
  for (int w = 0; w < 2; w++) {
    const uint8_t* q = quants + 8 * t + 4 * w;
    words[w] = q[0] | q[2] << 8 | q[1] << 16 | uint32_t(q[3]) << 24;
  }
}

// Packs up to 16 rows; quants and scales must be zeroed.
void pack_tile(std::byte* quants, std::byte* scales, Packing packing, std::span<const std::byte* const> rows, int64_t in) {
  const BlockForm form = form_of(packing);
  for (size_t r = 0; r < rows.size(); r++)
    for (int64_t block = 0; block < in / kBlock; block++) {
      const std::byte* from = rows[r] + block * form.stored();
      const int64_t chunk = block / form.chunk, g = int64_t(r % 8), h = int64_t(r / 8), b = block % form.chunk;
      std::memcpy(scales + chunk * form.scale_bytes() + ((g * form.chunk + b) * 2 + h) * form.headers * 2, from, size_t(form.headers) * 2);
      const uint8_t* stored = reinterpret_cast<const uint8_t*>(from) + 2 * form.headers;
      for (int t = 0; t < 4; t++) {
        uint32_t* to = reinterpret_cast<uint32_t*>(quants + chunk * kChunkBytes + (g * 4 + t) * 16);
        if (form.bits == 8) {
          eight_bits(stored, t, to + 2 * h);
        } else {
          four_bits(stored, t, to + 2 * b + h);
        }
      }
    }
}

}  // namespace

Staging::Room Staging::room(Packing packing, int64_t out, int64_t in) {
  const BlockForm form = form_of(packing);
  const int64_t chunks = (out + kPanel - 1) / kPanel * form.chunks(in);
  return {chunks * kChunkBytes, chunks * form.scale_bytes()};
}

void Staging::send_packed(std::byte* quants, std::byte* scales, Packing packing, std::span<const std::byte* const> rows, int64_t in) {
  const Room tile = room(packing, kPanel, in);
  const int64_t n_tiles = (int64_t(rows.size()) + kPanel - 1) / kPanel, tile_bytes = tile.quants + tile.scales;
  const int64_t at_once = std::max<int64_t>(int64_t(kBytes) / tile_bytes, 1);
  for (int64_t begin = 0; begin < n_tiles; begin += at_once) {
    const int64_t n = std::min(at_once, n_tiles - begin);
    Pinned& p = next(size_t(n * tile_bytes));
    std::byte* scales_here = p.data + n * tile.quants;
    std::memset(p.data, 0, size_t(n * tile_bytes));
    pool_.parallel(n, 4, [&](int64_t t, int64_t end, int) {
      for (; t < end; t++) {
        const size_t first = size_t((begin + t) * kPanel);
        pack_tile(p.data + t * tile.quants, scales_here + t * tile.scales, packing,
                  rows.subspan(first, std::min<size_t>(kPanel, rows.size() - first)), in);
      }
    });
    must(cudaMemcpyAsync(quants + begin * tile.quants, p.data, size_t(n * tile.quants), cudaMemcpyHostToDevice, stream_));
    must(cudaMemcpyAsync(scales + begin * tile.scales, scales_here, size_t(n * tile.scales), cudaMemcpyHostToDevice, stream_));
    must(cudaEventRecord(p.copied, stream_));
  }
}

}  // namespace mr::cuda
