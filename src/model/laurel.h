// Gemma 3n's learned augmented residual (Laurel, Menghani et al. 2024): beside the mixer, what it reads goes on by itself and through
// two thin matrices.
#pragma once

#include "model/mixer.h"

namespace mr {

class Laurel {
 public:
  Laurel(int rank, BuildContext&);
  // residual = (residual + x + norm(right(left(x)))) / sqrt(2)
  void record(Recorder&, Value residual, Value x) const;

 private:
  Linear left_;   // [rank, dim]
  Linear right_;  // [dim, rank]
  Norm norm_;
};

}  // namespace mr
