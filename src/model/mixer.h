// What a block is made of. Both own weights, declare their state while they are built, and record what they compute: once.
#pragma once

#include <memory>

#include "model/linear.h"
#include "model/spec.h"

namespace mr {

class Loader;

// Records what it makes of x [T, dim]: [T, dim].
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Value record(Recorder&, Value x) const = 0;
};

// What stands beside the mixer in a block; stateless.
class Ffn {
 public:
  virtual ~Ffn() = default;
  virtual Value record(Recorder&, Value x) const = 0;
};

struct BuildContext {
  Loader& loader;
  StateLayout& layout;
  const ModelSpec& spec;
  std::span<const RopeTable> ropes;  // of ModelSpec::ropes
  DType kv_dtype;
  int layer;
  std::vector<StateRef>& kv;  // of each layer: where its keys and values lie, for layers that share them
};

std::unique_ptr<Mixer> make_mixer(const MixerSpec&, BuildContext&);
std::unique_ptr<Ffn> make_ffn(const FfnSpec&, BuildContext&);  // null for none

}  // namespace mr
