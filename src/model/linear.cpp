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

Tensor Linear::operator()(Tensor x, Step& step) const {
  Tensor y = step.activation({x.shape[0], out()});
  into(y, x, step);
  return y;
}

Tensor Linear::gated(Tensor x, Activation act, Step& step) const {
  const int64_t half = out() / 2;
  Tensor y = step.activation({x.shape[0], half});
  if (parts_.size() == 1 && !bias_) {
    step.ops.linear_gate(y, x, parts_[0], act, step.arena);
    return y;
  }
  ArenaScope scope(step.arena);
  Tensor both = (*this)(x, step);
  step.ops.gate(y, both.cols(0, half), both.cols(half, half), act);
  return y;
}

void Linear::into(Tensor out, Tensor x, Step& step, Epilogue epilogue) const {
  Tensor residual = epilogue.residual;
  int64_t begin = 0;
  for (const Weight& w : parts_) {
    if (bias_) epilogue.bias = bias_.cols(begin, w.out);
    if (residual) epilogue.residual = residual.cols(begin, w.out);
    step.ops.linear(out.cols(begin, w.out), x, w, epilogue);
    begin += w.out;
  }
}

}  // namespace mr
