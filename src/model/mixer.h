// The two parts of a block. Both own weights, declare their state when they are built, and record their operations once.
#pragma once

#include <memory>

#include "model/linear.h"
#include "model/spec.h"

namespace mr {

class Loader;

// Records its operations on x [T, dim]; returns [T, dim].
class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual Value record(Recorder&, Value x) const = 0;
};

// The feed-forward of a block; stateless.
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
  StateTypes types;
  int layer;
  std::vector<PagedKv>& kv;  // of each layer: its keys and values, for layers that share them
};

std::unique_ptr<Mixer> make_mixer(const MixerSpec&, BuildContext&);
std::unique_ptr<Ffn> make_ffn(const FfnSpec&, BuildContext&);  // null for none

}  // namespace mr
