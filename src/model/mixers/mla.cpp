// Multi-head latent attention (DeepSeek-V2 2024): analysis only, it cannot be run.
#include <fmt/format.h>

#include "core/error.h"
#include "model/mixers/mixers.h"

namespace mr {

int64_t MlaSpec::parameters(int64_t dim) const {
  const int64_t q = int64_t(heads) * (nope_dim + rope_dim), v = int64_t(heads) * v_dim;
  const int64_t queries = q_rank ? q_rank * (dim + 1 + q) : dim * q;
  return queries + dim * (kv_rank + rope_dim) + kv_rank + kv_rank * (int64_t(heads) * nope_dim + v) + v * dim;
}

StateSpec MlaSpec::state(const StateTypes& types) const {
  const PagedKv latent{{}, types.kv, 1, kv_rank + rope_dim, 0};  // values are read from the keys
  return {StateSpec::Kind::paged, latent.bytes_per_token(), 0};
}

std::string MlaSpec::text(const ModelSpec&) const {
  return fmt::format("latent attention, {} heads, latent {} and {} rotated", heads, kv_rank, rope_dim);
}

std::string MlaSpec::kind() const { return fmt::format("MLA {} + {}", kv_rank, rope_dim); }

std::unique_ptr<Mixer> make(const MlaSpec&, BuildContext& build) {
  fail("layer {} is multi-head latent attention, which can be analysed but not run", build.layer);
}

}  // namespace mr
