// Rotary angles of a step's rows, shared by the host backends since they are computed once per step. As in transformers, the angle
// is the f32 product of position and frequency.
#pragma once

#include "backend/backend.h"

namespace mr {

// out [T, dim]: cos of dim / 2 pairs, then sin.
void fill_angles(Tensor out, const RopeTable&, const Batch&);

}  // namespace mr
