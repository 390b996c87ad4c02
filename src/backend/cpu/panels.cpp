#include "backend/cpu/panels.h"

#include <algorithm>

#include "core/thread_pool.h"
#include "quant/grouped.h"

namespace mr {

const PanelLayout* panel_layout(const Codec& codec) {
  return codec.storage == DType::u8 ? integer_panels(codec) : float_panels(codec.storage);
}

Weight pack(const StoredWeight& stored, WeightStore& store, ThreadPool& pool) {
  const PanelLayout* layout = panel_layout(*stored.codec);
  std::vector<int32_t> order = layout ? inputs_by_group(stored) : std::vector<int32_t>();
  const bool unordered = stored.codec->grouped && stored.codec->grouped->any_order && order.empty();
  if (!layout || stored.scaled() || unordered) return place_stored(stored, store, pool);
  stored.check_shape();
  Weight w{stored.codec, stored.out(), stored.in, layout};
  StoredWeight sorted;
  if (!order.empty()) {
    sorted = stored;
    w.order = view(store.take(order.size() * sizeof(int32_t)), DType::i32, {w.in});
    if (w.order) std::ranges::copy(order, w.order.as<int32_t>());
    sorted.inputs = std::move(order);
  }
  const StoredWeight& source = sorted.codec ? sorted : stored;
  const int64_t bytes = layout->bytes(*w.codec, w.out, w.in);
  w.packed = view(store.take(size_t(bytes)), w.codec->storage, {bytes / size_of(w.codec->storage)});
  if (!w.packed) return w;
  const int64_t n = panels_of(w), grain = std::max<int64_t>(1, (256 << 10) * n / std::max<int64_t>(bytes, 1));  // about 256 KB a piece
  pool.parallel(n, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; p++) layout->pack(w.packed.as<std::byte>(), p, source);
  });
  return w;
}

}  // namespace mr
