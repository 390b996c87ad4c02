#include "backend/cuda/staging.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace mr::cuda {

Staging::Staging(cudaStream_t stream, ThreadPool& pool) : stream_(stream), pool_(pool) {
  for (Pinned& p : pinned_) must(cudaEventCreateWithFlags(&p.copied, cudaEventDisableTiming));
}
Staging::~Staging() {
  for (Pinned& p : pinned_) cudaEventDestroy(p.copied), cudaFreeHost(p.data);
}

Staging::Pinned& Staging::next(size_t bytes) {
  Pinned& p = pinned_[turn_++ % kBuffers];
  must(cudaEventSynchronize(p.copied));
  if (bytes > p.bytes) {
    must(cudaFreeHost(p.data));
    p.data = nullptr, p.bytes = 0;
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

}  // namespace mr::cuda
