#include "quant/format.h"

#include <algorithm>

#include "core/error.h"
#include "core/thread_pool.h"
#include "quant/table.h"

namespace mr {

static const FormatOps* const kFormats[] = {&kF32, &kF16, &kBf16, &kQ8_0, &kQ4_0, &kQ4_1};

std::span<const FormatOps* const> formats() { return kFormats; }

const FormatOps* find_format(std::string_view name) {
  for (const FormatOps* ops : kFormats)
    if (ops->format.name == name) return ops;
  return nullptr;
}

const FormatOps& format_ops(std::string_view name) {
  if (const FormatOps* ops = find_format(name)) return *ops;
  std::string known;
  for (const FormatOps* ops : kFormats) known += (known.empty() ? "" : ", ") + std::string(ops->format.name);
  fail("weight format '{}' is not supported: {} are", name, known);
}

Weight pack(const FormatOps& ops, std::span<const std::byte* const> rows, int64_t in, WeightStore& store, ThreadPool& pool) {
  const Format& format = ops.format;
  check(in > 0 && in % format.group == 0, "a {} weight has rows of {} inputs: a multiple of {} is needed", format.name, in, format.group);
  Weight w{&ops, int64_t(rows.size()), in};
  int64_t bytes = ops.packed_bytes(w.out, in);
  w.packed = view(store.take(size_t(bytes)), format.storage, {bytes / size_of(format.storage)});
  if (!w.packed) return w;
  int64_t grain = std::max<int64_t>(1, (256 << 10) * w.panels() / std::max<int64_t>(bytes, 1));  // about 256 KB a piece
  pool.parallel(w.panels(), grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; p++) {
      const std::byte* panel[kPanel]{};
      std::copy_n(rows.begin() + p * kPanel, std::min<int64_t>(kPanel, w.out - p * kPanel), panel);
      ops.pack_panel(w.packed.as<std::byte>(), p, in, std::span<const std::byte* const, kPanel>(panel));
    }
  });
  return w;
}

}  // namespace mr
