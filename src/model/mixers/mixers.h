// Factories of all mixers and feed-forwards, for mixer.cpp, and helpers that they share.
#pragma once

#include <cmath>

#include "model/loader.h"
#include "model/mixer.h"
#include "model/model.h"

namespace mr {

// A decay, A = -exp(A_log); GGUF files store A itself.
inline Tensor load_decay(Loader& load, std::initializer_list<int64_t> shape, Place at) {
  const bool logarithm = load.has("a_log", at);
  return load.vector(logarithm ? "a_log" : "a", ".weight", shape, at, logarithm ? +[](float x) { return -std::exp(x); } : nullptr);
}

std::unique_ptr<Mixer> make(const AttentionSpec&, BuildContext&);
std::unique_ptr<Mixer> make(const MlaSpec&, BuildContext&);
std::unique_ptr<Mixer> make(const MambaSpec&, BuildContext&);
std::unique_ptr<Mixer> make(const Mamba2Spec&, BuildContext&);
std::unique_ptr<Mixer> make(const GatedConvSpec&, BuildContext&);
std::unique_ptr<Ffn> make(const MlpSpec&, BuildContext&);
std::unique_ptr<Ffn> make(const MoeSpec&, BuildContext&);

}  // namespace mr
