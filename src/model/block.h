// One layer: norm, mixer, residual; norm, feed-forward, residual. Some families norm once more before the residual;
// Gemma 4 adds an input of the layer's own and scales what leaves; Gemma 3n has several residuals, of which a layer computes one.
#pragma once

#include "model/altup.h"
#include "model/laurel.h"
#include "model/mixer.h"
#include "model/per_layer.h"

namespace mr {

class Block {
 public:
  Block(const LayerSpec&, BuildContext&);
  // What leaves: the residual, or AltUp's streams. per_layer: the inputs of all layers, or none.
  Value record(Recorder&, Value residual, Value per_layer) const;

 private:
  void compute(Recorder&, Value residual) const;

  Norm mixer_norm_, ffn_norm_;
  bool post_norms_;
  Norm mixer_post_norm_, ffn_post_norm_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Ffn> ffn_;                 // may be null
  std::unique_ptr<PerLayerGate> per_layer_;  // may be null
  std::unique_ptr<Laurel> laurel_;           // may be null
  std::unique_ptr<AltUp> altup_;             // may be null
  float scale_ = 1, residual_scale_;
};

}  // namespace mr
