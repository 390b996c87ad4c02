// Rotary angles of a step's rows; every host backend shares it, as it runs once a step. Like transformers, the angle is the f32
// product of position and frequency.
#pragma once

#include "backend/backend.h"

namespace mr {

// out [T, dim]: cos of dim / 2 pairs, then sin.
void fill_angles(Tensor out, const RopeTable&, const Batch&);

}  // namespace mr
