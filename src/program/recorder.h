// Records programs: one function per operation, values in and values out, so that a block reads like its paper.
#pragma once

#include <map>
#include <set>
#include <string>

#include "program/program.h"

namespace mr {

struct LinearArgs {
  std::string name{};
  Tensor bias{};  // f32 [out], may be empty
  float scale = 1;
  ValueType type = ValueType::activation;
};

class Recorder {
 public:
  explicit Recorder(Program& program) : program_(program) {}

  int layer = -1;  // of the operations recorded next

  Value input(Rows, int64_t cols, ValueType);  // that whoever runs the program writes before
  // f32 [T, in], the first columns of a value of `columns`, whose others are for whoever needs them beside.
  Value embed(const Weight& table, float scale, std::string name, int64_t columns = 0);
  Value norm(Value x, const Norm&);          // of f32 or activations; gives activations
  void norm_in_place(Value x, const Norm&);  // of heads too
  // x . weight^T; several weights are one below the other: the columns of their results beside each other.
  Value linear(Value x, std::span<const Weight> weights, const LinearArgs& = {});
  // into += scale * x; returns `into`. If x is the result of the linear() just recorded, which does not read `into`, it is folded into
  // that one's epilogue: nothing is rounded in between, and x no longer exists.
  Value add(Value into, Value x, float scale = 1);
  Value gate(Value gate, Value up, Activation);                 // act(gate) * up
  void gate_onto(Value out, Value gate, Value up, Activation);  // out may be gate or up
  void activate(Value x, Activation);
  Value angles(const RopeTable&);  // recorded once per table
  void rope(Value x, Value angles, bool interleaved);
  void store_kv(Value k, Value v, const PagedKv&);
  Value attend(Value q, const PagedKv&, const AttendArgs&);  // [T, H * v_dim]
  Value short_conv(Value x, const ShortConv&);
  Value diag_scan(Value x, Value dt, Value b, Value c, const DiagScan&);
  Value outer_scan(Value x, Value dt, Value b, Value c, const OuterScan&);
  void softplus(Value x, Tensor bias);
  struct Routed {
    Value expert, weight;  // i32 and f32 [T, k]
  };
  Routed route(Value logits, int k, bool renormalize);
  Value grouped_linear(Value x, std::span<const Weight> experts, Value expert, std::string name);  // [T * k, out]
  Value combine(Value x, Value weight);                                                            // [T, D]
  // Streams: x [T, k * D] holds k of them beside each other. Row t of the i-th that is made: the sum of weight [t, i * k + j] times the
  // j-th of x. mix gives f32; mix_onto writes to `out`, which may be x if there is one of each, or adds to it.
  Value mix(Value x, int k, Value weight);
  void mix_onto(Value out, Value x, int k, Value weight, bool add);
  Value magnitude(Value x, const Magnitude&);  // f32 [T, 1]
  Value gather(Value x);                       // [n_out, D]
  void softcap(Value x, float cap);

 private:
  Value make(Rows, int64_t cols, ValueType);
  const ValueInfo& info(Value v) const { return program_.values[size_t(v.id)]; }
  void push(OpKind, std::string name = {});

  Program& program_;
  std::map<const RopeTable*, Value> angles_;
  std::set<int> folded_;  // values that add() has folded into a residual
};

}  // namespace mr
