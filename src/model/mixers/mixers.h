// Factories of all mixers and feed-forwards, for mixer.cpp, and helpers that they share.
#pragma once

#include <cmath>

#include "model/loader.h"
#include "model/mixer.h"
#include "model/model.h"

namespace mr {

inline float minus_exp(float x) { return -std::exp(x); }  // a decay from its stored logarithm

std::unique_ptr<Mixer> make(const AttentionSpec&, BuildContext&);
std::unique_ptr<Mixer> make(const MlaSpec&, BuildContext&);
std::unique_ptr<Mixer> make(const MambaSpec&, BuildContext&);
std::unique_ptr<Mixer> make(const Mamba2Spec&, BuildContext&);
std::unique_ptr<Mixer> make(const GatedConvSpec&, BuildContext&);
std::unique_ptr<Ffn> make(const MlpSpec&, BuildContext&);
std::unique_ptr<Ffn> make(const MoeSpec&, BuildContext&);

}  // namespace mr
