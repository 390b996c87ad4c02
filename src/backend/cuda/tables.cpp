#include "backend/cuda/tables.h"

#include "backend/cuda/views.h"
#include "core/error.h"

namespace mr::cuda {

template <class T>
const T* Tables::keep(const std::vector<T>& host) {
  return reinterpret_cast<const T*>(kept_.emplace_back(copy_in_(host.data(), host.size() * sizeof(T))).data());
}

int64_t Tables::bytes() const {
  size_t bytes = 0;
  for (const Buffer& b : kept_) bytes += b.size();
  return int64_t(bytes);
}

const Packed* Tables::experts(std::span<const Weight> experts) {
  std::vector<const void*> key;
  for (const Weight& w : experts) key.push_back(w.packed.data);
  auto it = experts_.find(key);
  if (it == experts_.end()) {
    std::vector<Packed> list;
    for (const Weight& w : experts) {
      list.push_back(packed(w));
      check(w.codec == experts[0].codec, "experts of {} and of {} cannot be run together", experts[0].codec->name, w.codec->name);
    }
    it = experts_.emplace(key, keep(list)).first;
  }
  return it->second;
}

Frequencies Tables::frequencies(const RopeTable& rope) {
  auto on_device = [&](const std::vector<float>& v) -> const float* {
    if (v.empty()) return nullptr;
    auto [it, fresh] = floats_.try_emplace(v.data());
    if (fresh || it->second.first != v) it->second = {v, keep(v)};
    return it->second.second;
  };
  return {rope.length,   rope.dim,   rope.scale, on_device(rope.inv_freq), on_device(rope.long_inv_freq),
          rope.original, rope.theta, rope.factor};
}

}  // namespace mr::cuda
