#include "model/mixer.h"

#include "model/mixers/mixers.h"

namespace mr {

std::unique_ptr<Mixer> make_mixer(const MixerSpec& spec, BuildContext& build) {
  return std::visit([&](const auto& s) { return make(s, build); }, spec);
}

std::unique_ptr<Ffn> make_ffn(const FfnSpec& spec, BuildContext& build) {
  std::unique_ptr<Ffn> ffn;
  if_ffn(spec, [&](const auto& s) { ffn = make(s, build); });
  return ffn;
}

}  // namespace mr
