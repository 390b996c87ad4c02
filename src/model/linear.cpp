#include "model/linear.h"

#include "model/model.h"

namespace mr {

int64_t Linear::out() const {
  int64_t n = 0;
  for (const Weight& w : parts_) n += w.out;
  return n;
}

int64_t Linear::bytes() const {
  int64_t n = bias_.bytes();
  for (const Weight& w : parts_) n += w.bytes();
  return n;
}

Tensor Input::tensor(Step& step) const {
  if (!norm) return x;
  Tensor y = step.activation({x.shape[0], x.shape[1]});
  step.ops.norm(y, x, *norm);
  return y;
}

Tensor Linear::operator()(const Input& x, Step& step) const {
  Tensor y = step.activation({x.rows(), out()});
  into(y, x, step);
  return y;
}

Tensor Linear::gated(const Input& x, Activation act, Step& step) const {
  const int64_t half = out() / 2;
  Tensor y = step.activation({x.rows(), half});
  if (parts_.size() == 1 && !bias_) {
    if (x.norm)
      step.ops.linear_gate_normed(y, x.x, *x.norm, parts_[0], act, step.arena);
    else
      step.ops.linear_gate(y, x.x, parts_[0], act, step.arena);
    return y;
  }
  ArenaScope scope(step.arena);
  Tensor both = (*this)(x, step);
  step.ops.gate(y, both.cols(0, half), both.cols(half, half), act);
  return y;
}

void Linear::announce(Step& step) const {
  if (parts_.size() == 1) step.ops.announce(parts_[0]);
}

void Linear::into(Tensor out, const Input& input, Step& step, Epilogue epilogue) const {
  if (input.norm && parts_.size() == 1) {
    epilogue.bias = bias_;
    return step.ops.linear_normed(out, input.x, *input.norm, parts_[0], epilogue, step.arena);
  }
  ArenaScope scope(step.arena);
  Tensor x = input.tensor(step), residual = epilogue.residual;
  if (parts_.size() > 1) epilogue.next = nullptr;
  int64_t begin = 0;
  for (const Weight& w : parts_) {
    if (bias_) epilogue.bias = bias_.cols(begin, w.out);
    if (residual) epilogue.residual = residual.cols(begin, w.out);
    step.ops.linear(out.cols(begin, w.out), x, w, epilogue);
    begin += w.out;
  }
}

void Linear::into_conv(Tensor out, const Input& x, Tensor conv_out, int64_t first, const ShortConv& conv, Step& step) const {
  if (x.norm && parts_.size() == 1)
    return step.ops.linear_conv(out, x.x, *x.norm, parts_[0], {.bias = bias_}, conv_out, first, conv, step.batch, step.state, step.arena);
  into(out, x, step);
  step.ops.short_conv(conv_out, out.cols(first, conv_out.shape[1]), conv.weight, conv.bias, conv.act, conv.state, step.batch, step.state);
}

}  // namespace mr
