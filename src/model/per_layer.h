// Gemma 4's inputs of every layer: each token brings, beside its embedding, `width` values for each layer, which the end of
// that layer's block gates and adds.
#pragma once

#include "model/linear.h"
#include "model/mixer.h"
#include "model/model.h"

namespace mr {

// Once a step: [T, layers * width], from the token's row in a second table and from its embedding.
class PerLayerInputs {
 public:
  PerLayerInputs(const ModelSpec&, Loader&);
  Tensor forward(Tensor embedding, Step&) const;
  int64_t workspace(int64_t n_tokens) const;
  int64_t decode_bytes() const { return projection_.bytes(); }

 private:
  int64_t layers_, width_;
  Weight table_;       // [vocab, layers * width]
  Linear projection_;  // [layers * width, dim]
  Norm norm_;          // over width
};

// Once a layer: residual += norm(out(act(gate(residual)) * input)).
class PerLayerGate {
 public:
  PerLayerGate(const ModelSpec&, BuildContext&);
  void forward(Stream&, Step&) const;
  int64_t workspace(int64_t n_tokens) const;
  int64_t decode_bytes() const { return gate_.bytes() + out_.bytes(); }

 private:
  int64_t begin_, width_;  // its columns of Stream::per_layer
  Linear gate_;            // [width, dim]
  Linear out_;             // [dim, width]
  Norm norm_;
};

}  // namespace mr
