#include "model/mixer.h"

#include "core/error.h"
#include "model/mixers/mixers.h"

namespace mr {

static std::unique_ptr<Mixer> make(const AttentionSpec& s, BuildContext& b) { return make_attention(s, b); }
static std::unique_ptr<Mixer> make(const MlaSpec&, BuildContext& b) {
  fail("layer {} is multi-head latent attention, which can be analysed but not run", b.layer);
}
static std::unique_ptr<Mixer> make(const MambaSpec& s, BuildContext& b) { return make_mamba(s, b); }
static std::unique_ptr<Mixer> make(const Mamba2Spec& s, BuildContext& b) { return make_mamba2(s, b); }
static std::unique_ptr<Ffn> make(const MlpSpec& s, BuildContext& b) { return make_mlp(s, b); }
static std::unique_ptr<Ffn> make(const MoeSpec& s, BuildContext& b) {
  check(!s.shared, "layer {} has experts that every token uses, which can be analysed but not run", b.layer);
  return make_moe(s, b);
}
static std::unique_ptr<Ffn> make(std::monostate, BuildContext&) { return nullptr; }

std::unique_ptr<Mixer> make_mixer(const MixerSpec& spec, BuildContext& build) {
  return std::visit([&](const auto& s) { return make(s, build); }, spec);
}

std::unique_ptr<Ffn> make_ffn(const FfnSpec& spec, BuildContext& build) {
  return std::visit([&](const auto& s) { return make(s, build); }, spec);
}

}  // namespace mr
