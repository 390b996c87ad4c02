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
  Tensor y = step.arena.tensor(DType::f32, {x.shape[0], out()});
  into(y, x, step);
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
