#include "model/laurel.h"

#include <numbers>

#include "model/loader.h"

namespace mr {

Laurel::Laurel(int rank, BuildContext& build) {
  const int dim = build.spec.dim;
  left_ = build.loader.linear({{"laurel_left", rank}}, dim, false, build.layer);
  right_ = build.loader.linear({{"laurel_right", dim}}, rank, false, build.layer);
  norm_ = build.loader.norm(build.spec.norm, "laurel_norm", dim, build.layer);
}

void Laurel::record(Recorder& r, Value residual, Value x) const {
  const Value y = right_(r, left_(r, x));
  r.norm_in_place(y, norm_);
  r.add(residual, x);
  r.add(residual, y);
  r.add(residual, residual, 1 / std::numbers::sqrt2_v<float> - 1);
}

}  // namespace mr
