// Alternating updates (AltUp, Baykal et al. 2023), as Gemma 3n has them: several residual streams of which each layer computes one, the
// active. The layer predicts all of them from what they were, computes the active one, and corrects the others by what the
// prediction had missed there. Streams lie beside each other: [T, n * dim].
#pragma once

#include "model/linear.h"
#include "model/mixer.h"

namespace mr {

// Before the first layer and after the last.
class Streams {
 public:
  Streams(const ModelSpec&, Loader&);
  Value split(Recorder&, Value embedding) const;  // [T, dim], the first columns of a value with room for all streams
  Value join(Recorder&, Value streams) const;     // their mean: [T, dim]

 private:
  int n_;
  int64_t dim_;
  std::vector<Linear> in_, out_;  // [dim, dim] for each but the first
};

// Of one layer.
class AltUp {
 public:
  explicit AltUp(BuildContext&);

  struct Predicted {
    Value streams;
    Value active;  // of its own, for the layer to work on
  };
  Predicted predict(Recorder&, Value streams) const;
  void correct(Recorder&, const Predicted&) const;    // `active` has become what the layer made of it, and is used up
  Value scaled(Recorder&, Value streams) const;       // the active one
  void add(Recorder&, Value streams, Value y) const;  // to all but the first

 private:
  Value modes(Recorder&, Value x) const;  // f32 [T, n]: what x is like, from which the coefficients are made
  Value stream(Value streams, int i) const { return streams.columns(i * dim_, dim_); }

  AltUpSpec spec_;
  int64_t dim_;
  Norm norm_, scale_;
  Linear router_;   // [n, dim]
  Linear predict_;  // [n * n, n]
  Linear correct_;  // [n, n]
};

}  // namespace mr
