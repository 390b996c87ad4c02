#include "quant/encode.h"

#include <algorithm>

#include "core/error.h"

namespace mr {

Buffer encode_rows(const Codec& to, int64_t rows, int64_t in, ThreadPool& pool, FunctionRef<void(int64_t, float*)> values) {
  check(to.encode, "{} can be read, but not written", to.name);
  const int64_t bytes = to.row_bytes(in);
  Buffer out(size_t(rows * bytes));
  std::vector<std::vector<float>> scratch(size_t(pool.size()), std::vector<float>(size_t(in)));
  pool.parallel(rows, std::max<int64_t>(1, (16 << 10) / in), [&](int64_t begin, int64_t end, int worker) {
    float* row = scratch[size_t(worker)].data();
    for (int64_t r = begin; r < end; r++) {
      values(r, row);
      to.encode(row, in, out.data() + r * bytes);
    }
  });
  return out;
}

Buffer encode_rows(const Codec& from, const std::byte* stored, const Codec& to, int64_t rows, int64_t in, ThreadPool& pool) {
  const int64_t bytes = from.row_bytes(in);
  return encode_rows(to, rows, in, pool, [&](int64_t r, float* values) { from.decode(stored + r * bytes, in, values); });
}

std::string encodable_names() {
  std::string names;
  for (const Codec* codec : codecs())
    if (codec->encode) names.append(names.empty() ? "" : ", ").append(codec->name);
  return names;
}

}  // namespace mr
