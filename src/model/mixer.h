// What a block is made of. Both are const: state arrives in Step.
#pragma once

#include <memory>

#include "model/linear.h"
#include "model/spec.h"

namespace mr {

struct Step;
class Loader;

class Mixer {
 public:
  virtual ~Mixer() = default;
  // out [T, dim] = epilogue(what it makes of x [T, dim]). An out of fewer rows is the batch's outputs alone, maybe none; state is kept
  // of all.
  virtual void forward(Tensor out, const Input& x, const Epilogue&, Step&) const = 0;
  virtual int64_t workspace(int64_t n_tokens) const = 0;  // bytes of arena that forward takes
  virtual int64_t decode_bytes() const = 0;               // of weights that one step reads
};

// What stands beside the mixer in a block; stateless.
class Ffn {
 public:
  virtual ~Ffn() = default;
  virtual void forward(Tensor out, const Input& x, const Epilogue&, Step&) const = 0;
  virtual int64_t workspace(int64_t n_tokens) const = 0;
  virtual int64_t decode_bytes() const = 0;
};

struct BuildContext {
  Loader& loader;
  StateLayout& layout;
  const ModelSpec& spec;
  DType kv_dtype;
  int layer;
  std::vector<StateRef>& kv;  // of each layer: where its keys and values lie, for layers that share them
};

std::unique_ptr<Mixer> make_mixer(const MixerSpec&, BuildContext&);
std::unique_ptr<Ffn> make_ffn(const FfnSpec&, BuildContext&);  // null for none

// Arena bytes of n floats, as the arena rounds them.
inline int64_t arena_bytes(int64_t n) { return (n * 4 + 63) / 64 * 64; }

}  // namespace mr
