// The rotation of one pair of dimensions, rounded in the same way by every kernel.
#pragma once

namespace mr::cuda {

__device__ inline float2 rotate_pair(float a, float b, float c, float s) {
  return make_float2(fmaf(a, c, -__fmul_rn(b, s)), fmaf(b, c, __fmul_rn(a, s)));
}

}  // namespace mr::cuda
