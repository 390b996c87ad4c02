// Gemma 3n's and 4's inputs of every layer: each token brings, beside its embedding, `width` values for each layer, which the end of
// that layer's block gates and adds.
#pragma once

#include "model/linear.h"
#include "model/mixer.h"

namespace mr {

// Once per step: [T, layers * width], from the token's row in a second table and from its embedding.
class PerLayerInputs {
 public:
  PerLayerInputs(const ModelSpec&, Loader&);
  Value record(Recorder&, Value embedding) const;

 private:
  int64_t layers_, width_;
  Weight table_;       // [per_layer_vocab, layers * width]
  Linear projection_;  // [layers * width, dim]
  Norm norm_;          // over width
};

// Once a layer: norm(out(act(gate(x)) * input)).
class PerLayerGate {
 public:
  PerLayerGate(const ModelSpec&, BuildContext&);
  Value record(Recorder&, Value x, Value inputs) const;

 private:
  int64_t begin_, width_;  // its columns of the inputs
  Linear gate_;            // [width, dim]
  Linear out_;             // [dim, width]
  Norm norm_;
  Activation act_;
};

}  // namespace mr
